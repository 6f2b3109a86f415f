//! The upper or lower triangle of matrices.

use super::permute::PERMUTE_CU;
use super::run::MIN_WORDS_PER_COPY_TASK;
use crate::pointwise::map;
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Op, Recorder, Val};
use dittograd_device::Meta;
use dittograd_device::cuda::{Args, Source};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::tensor::Tensor;

/// Zeroes one side of a diagonal of the matrices in the last two axes. Element (i, j) stays where `j - i <= shift`, or
/// with `upper` where `j - i >= shift`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Triangle {
    /// Whether the upper triangle stays.
    pub upper: bool,
    /// The diagonal, counted in columns right of the main one.
    pub shift: i64,
}

impl Op for Triangle {
    const NAME: &'static str = "triangle";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let [x] = crate::floats(Self::NAME, ins)?;
        if x.rank() < 2 {
            return Err(Error::new(Self::NAME, ErrorKind::Rank { want: "at least 2", got: x }));
        }
        Ok(ins[0])
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let (columns, x) = (run.shape.last(), run.ins[0]);
        let height = run.shape.dims()[run.shape.rank() - 2];
        if run.out.is_empty() {
            return;
        }
        let rows = run.pool.share(run.out.len() / columns, (MIN_WORDS_PER_COPY_TASK / columns).max(1), 1);
        run.pool.chunks_mut(run.out, rows * columns, |task, out| {
            for (r, out) in out.chunks_mut(columns).enumerate() {
                let row = task * rows + r;
                let x = &x[row * columns..][..columns];
                // Each row is split at `edge`, so that the diagonal itself always stays.
                let i = (row % height) as i64;
                let edge = i.saturating_add(self.shift).saturating_add(i64::from(!self.upper));
                let edge = usize::try_from(edge).unwrap_or(0).min(columns);
                let (left, right) = out.split_at_mut(edge);
                if self.upper {
                    left.fill(0.0);
                    right.copy_from_slice(&x[edge..]);
                } else {
                    left.copy_from_slice(&x[..edge]);
                    right.fill(0.0);
                }
            }
        });
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let total = run.shape.numel();
        if total == 0 {
            return Ok(());
        }
        let (rows, columns) = (run.shape.dims()[run.shape.rank() - 2], run.shape.last());
        let kernel = run.cuda.kernel("layout", PERMUTE_CU, "triangle")?;
        let mut args = Args::new();
        args.ptr(run.ins[0]).ptr(run.out).u64(total as u64).u64(rows as u64).u64(columns as u64);
        args.u64(self.shift as u64).i32(i32::from(self.upper));
        run.cuda.launch(kernel, map::grid(run.cuda, total), 256, 0, &args)
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![("layout".into(), PERMUTE_CU)]
    }

    fn vjp(&self, r: &mut dyn Recorder, _io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        Ok(vec![Some(r.record((*self).into(), &[dy])?)])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let x = ins[0].num()?;
        let (rows, columns) = (x.shape().dims()[x.shape().rank() - 2], x.shape().last());
        Ok(Tensor::from_fn(x.shape(), |at| {
            let right = (at % columns) as i64 - (at / columns % rows) as i64;
            let stays = if self.upper { right >= self.shift } else { right <= self.shift };
            if stays { x.data()[at] } else { T::c(0.0) }
        }))
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![("upper", Attr::Bool(self.upper)), ("shift", Attr::Num(self.shift as f64))]
    }

    fn from_attrs(attrs: &Attrs) -> Result<Triangle> {
        attrs.only(&["upper", "shift"])?;
        let shift = attrs.num("shift")?;
        if shift.fract() != 0.0 {
            return Err(Error::argument(Self::NAME, "shift", format!("is {shift}, use a whole number")));
        }
        Ok(Triangle { upper: attrs.flag("upper")?, shift: shift as i64 })
    }
}
