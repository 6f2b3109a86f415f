//! RunningExtremum extremes.

use super::{key, lines, module};
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, IndexBound, Op, no_gradient};
use dittograd_device::Meta;
use dittograd_device::cuda::{Args, Source};
use dittograd_numerics::error::Result;
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::tensor::Tensor;
use std::cmp::Ordering;

/// For each element of the last axis, where the largest of it and those before it is, or the smallest if not `largest`: the
/// last of several equal ones. A NaN counts as larger and as smaller than every number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunningExtremum {
    /// Whether the largest is wanted, instead of the smallest.
    pub largest: bool,
}

impl Op for RunningExtremum {
    const NAME: &'static str = "running_extremum";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        Ok(Meta::u32(lines(Self::NAME, ins)?))
    }

    fn index_bound(&self, ins: &[Meta]) -> IndexBound {
        IndexBound::Below(ins[0].shape.last())
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let (x, n) = (run.ins[0], run.shape.last());
        if run.out.is_empty() {
            return;
        }
        let per = run.pool.share(run.out.len() / n, (16 * 1024 / n).max(1), 1);
        run.pool.chunks_mut(run.out, per * n, |task, out| {
            for (row, out) in x[task * per * n..].chunks(n).zip(out.chunks_mut(n)) {
                let (mut best, mut at) = (0, 0);
                for (i, (y, &x)) in out.iter_mut().zip(row).enumerate() {
                    let key = key(if self.largest || x.is_nan() { x } else { -x });
                    if key >= best {
                        (best, at) = (key, i as u32);
                    }
                    *y = f32::from_bits(at);
                }
            }
        });
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let n = run.shape.last();
        if run.shape.numel() == 0 {
            return Ok(());
        }
        let rows = run.shape.numel() / n;
        let (name, source) = module();
        let kernel = run.cuda.kernel(&name, source, "running")?;
        let mut args = Args::new();
        args.ptr(run.ins[0]).ptr(run.out).u32(n as u32).i32(i32::from(!self.largest));
        let threads = n.div_ceil(4).next_power_of_two().clamp(32, 1024);
        run.cuda.launch(kernel, [rows as u32, 1, 1], threads as u32, 0, &args)
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![module()]
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let x = ins[0].num()?;
        let mut out = Vec::with_capacity(x.data().len());
        #[allow(clippy::eq_op)]
        let nan = |x: T| x != x;
        for row in x.data().chunks(x.shape().last().max(1)) {
            let mut best = 0;
            for (i, &x) in row.iter().enumerate() {
                let beaten = match x.partial_cmp(&row[best]) {
                    Some(Ordering::Equal) => true,
                    Some(order) => (order == Ordering::Greater) == self.largest,
                    None => nan(x),
                };
                if beaten {
                    best = i;
                }
                out.push(T::c(best as f64));
            }
        }
        Tensor::with_shape(x.shape(), out)
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![("largest", Attr::Bool(self.largest))]
    }

    fn from_attrs(attrs: &Attrs) -> Result<RunningExtremum> {
        attrs.only(&["largest"])?;
        Ok(RunningExtremum { largest: attrs.flag("largest")? })
    }

    no_gradient!();
}
