//! Padding with a constant along an axis.

use super::permute::PERMUTE_CU;
use super::run::{MIN_WORDS_PER_COPY_TASK, Run};
use super::slice::{Slice, check_run};
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Op, Recorder, Val};
use dittograd_device::cuda::Source;
use dittograd_device::{DType, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;

/// Fills an axis with a constant and puts the input's elements at `start`, `start + step`, …. With zeros it is the
/// adjoint of [`Slice`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pad {
    /// The axis.
    pub axis: usize,
    /// Where the first element goes.
    pub start: usize,
    /// Distance between elements.
    pub step: usize,
    /// Size of the axis of the value.
    pub size: usize,
    /// The constant.
    pub value: f32,
}

impl Pad {
    pub(super) fn run(&self, from: &Shape, to: &Shape) -> Run {
        Run::new(to, self.axis, self.start, from.dims()[self.axis], self.step)
    }
}

impl Op for Pad {
    const NAME: &'static str = "pad";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let [x] = crate::arity(Self::NAME, ins)?;
        crate::typed(Self::NAME, ins, 0, DType::F32)?;
        if self.axis >= x.shape.rank() {
            return Err(Error::new(Self::NAME, ErrorKind::Axis { axis: self.axis, shape: x.shape }));
        }
        let mut out = x.shape.dims().to_vec();
        check_run(Self::NAME, self.size, self.start, out[self.axis], self.step)?;
        out[self.axis] = self.size;
        Ok(Meta::f32(Shape::new(&out)?))
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let r = self.run(&run.metas[0].shape, &run.shape);
        let (long, short) = r.words();
        if long == 0 {
            return;
        }
        let x = run.ins[0];
        let rows = run.pool.share(r.outer, (MIN_WORDS_PER_COPY_TASK / long).max(1), 1);
        run.pool.chunks_mut(run.out, rows * long, |task, out| {
            for (o, out) in out.chunks_mut(long).enumerate() {
                let x = &x[(task * rows + o) * short..][..short];
                out.fill(self.value);
                r.copy(|to, from, n| out[to..to + n].copy_from_slice(&x[from..from + n]));
            }
        });
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        self.run(&run.metas[0].shape, &run.shape).launch(run, "pad_axis", Some(self.value))
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![("layout".into(), PERMUTE_CU)]
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let len = r.meta(io.ins[0]).shape.dims()[self.axis];
        let slice = Slice { axis: self.axis, start: self.start, len, step: self.step };
        Ok(vec![Some(r.record(slice.into(), &[dy])?)])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let x = ins[0].num()?;
        let shape = self.shape(&[ins[0].meta()])?.shape;
        let inner: usize = shape.dims()[self.axis + 1..].iter().product();
        let len = x.shape().dims()[self.axis];
        Ok(Tensor::from_fn(shape, |at| {
            let (o, j, i) = (at / inner / self.size, at / inner % self.size, at % inner);
            match j.checked_sub(self.start) {
                Some(j) if j % self.step == 0 && j / self.step < len => {
                    x.data()[(o * len + j / self.step) * inner + i]
                }
                _ => T::c(f64::from(self.value)),
            }
        }))
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let num = |n: usize| Attr::Num(n as f64);
        vec![
            ("axis", num(self.axis)),
            ("start", num(self.start)),
            ("step", num(self.step)),
            ("size", num(self.size)),
            ("value", Attr::Num(f64::from(self.value))),
        ]
    }

    fn from_attrs(attrs: &Attrs) -> Result<Pad> {
        attrs.only(&["axis", "start", "step", "size", "value"])?;
        Ok(Pad {
            axis: attrs.whole("axis")?,
            start: attrs.whole("start")?,
            step: attrs.whole("step")?,
            size: attrs.whole("size")?,
            value: if attrs.has("value") { attrs.num("value")? as f32 } else { 0.0 },
        })
    }
}
