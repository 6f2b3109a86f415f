//! The mask as a value, for gradients of gradients.

use super::cuda::{MASK, source};
use crate::pointwise::map;
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Op, Recorder, Val, dims, mismatch};
use dittograd_device::cuda::{Args, Source};
use dittograd_device::{DType, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;

/// `1` where query `i` may attend to key `j`, else `0`, as `(…, n, m)`: where the magnitude of the mask is above 0
/// and, if `causal`, `j <= i`. The mask, numbers or indices, broadcasts along its last two axes; without one
/// only `causal` counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionMask {
    /// Query `i` attends only to keys up to `i`.
    pub causal: bool,
    /// Queries.
    pub n: usize,
    /// Keys.
    pub m: usize,
}

impl AttentionMask {
    /// Strides of a mask from matrix to matrix, per query and per key.
    fn strides(mask: Shape) -> [usize; 3] {
        let (rows, columns) = (mask.rows().checked_div(lead_of(mask)).unwrap_or(1), mask.last());
        let row = if rows == 1 { 0 } else { columns };
        [rows * columns, row, usize::from(columns != 1)]
    }
}

/// Matrices of a shape.
fn lead_of(s: Shape) -> usize {
    s.dims()[..s.rank().saturating_sub(2)].iter().product()
}

impl Op for AttentionMask {
    const NAME: &'static str = "attention_mask";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        if ins.len() > 1 {
            return Err(Error::new(Self::NAME, ErrorKind::Arity { want: 1, got: ins.len() }));
        }
        let mut all = Vec::new();
        if let [mask] = ins {
            let d = mask.shape.dims();
            let fits = d.iter().rev().zip([self.m, self.n]).all(|(&a, b)| a == 1 || a == b);
            if !fits {
                let why = "the mask does not broadcast to (…, queries, keys)";
                return Err(mismatch(Self::NAME, why, mask.shape, dims(&[self.n, self.m])));
            }
            all.extend_from_slice(&d[..d.len().saturating_sub(2)]);
        }
        all.extend([self.n, self.m]);
        Ok(Meta::f32(Shape::new(&all)?))
    }

    fn index_limit(&self, ins: &[Meta]) -> Option<(usize, usize)> {
        ins.first().filter(|m| m.dtype == DType::U32).map(|_| (0, 2))
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let (n, m) = (self.n, self.m);
        if run.out.is_empty() {
            return;
        }
        let strides = run.metas.first().map_or([0; 3], |mask| AttentionMask::strides(mask.shape));
        let mask = run.ins.first();
        let rows = run.pool.share(run.out.len() / m, (1 << 14) / m + 1, 1);
        run.pool.chunks_mut(run.out, rows * m, |task, out| {
            for (r, out) in out.chunks_mut(m).enumerate() {
                let (z, i) = ((task * rows + r) / n, (task * rows + r) % n);
                let at = z * strides[0] + i * strides[1];
                for (j, x) in out.iter_mut().enumerate() {
                    let open = mask.is_none_or(|mask| mask[at + j * strides[2]].abs() > 0.0);
                    *x = if open && (!self.causal || j <= i) { 1.0 } else { 0.0 };
                }
            }
        });
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let total = run.shape.numel();
        if total == 0 {
            return Ok(());
        }
        let (module, text) = source(MASK, &[]);
        let kernel = run.cuda.kernel(&module, text, MASK.0)?;
        let strides = run.metas.first().map_or([0; 3], |mask| AttentionMask::strides(mask.shape));
        let mut args = Args::new();
        args.ptr(run.ins.first().copied().unwrap_or(0)).ptr(run.out);
        for x in [total, self.n, self.m, strides[0], strides[1], strides[2]] {
            args.u64(x as u64);
        }
        args.u32(u32::from(self.causal));
        run.cuda.launch(kernel, map::grid(run.cuda, total), 256, 0, &args)
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![source(MASK, &[])]
    }

    fn vjp(&self, _r: &mut dyn Recorder, io: Io<'_>, _dy: Val) -> Result<Vec<Option<Val>>> {
        Ok(vec![None; io.ins.len()])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
        let shape = self.shape(&metas)?.shape;
        Ok(Tensor::from_fn(shape, |at| {
            let (z, i, j) = (at / self.m / self.n, at / self.m % self.n, at % self.m);
            let open = ins.first().is_none_or(|mask| {
                let [matrix, row, column] = AttentionMask::strides(mask.meta().shape);
                let at = z * matrix + i * row + j * column;
                match mask {
                    AnyTensor::Num(t) => t.data()[at].to_f64().abs() > 0.0,
                    AnyTensor::Idx(t) => t.data()[at] != 0,
                }
            });
            T::c(f64::from(u8::from(open && (!self.causal || j <= i))))
        }))
    }

    fn differentiable(&self) -> bool {
        false
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let num = |n: usize| Attr::Num(n as f64);
        vec![("causal", Attr::Bool(self.causal)), ("n", num(self.n)), ("m", num(self.m))]
    }

    fn from_attrs(attrs: &Attrs) -> Result<AttentionMask> {
        attrs.only(&["causal", "n", "m"])?;
        Ok(AttentionMask { causal: attrs.flag("causal")?, n: attrs.whole("n")?, m: attrs.whole("m")? })
    }
}
