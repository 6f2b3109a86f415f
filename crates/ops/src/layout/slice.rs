//! Slices of an axis.

use super::pad::Pad;
use super::permute::PERMUTE_CU;
use super::run::{MIN_WORDS_PER_COPY_TASK, Run};
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, IndexBound, Io, Op, Recorder, Val};
use dittograd_device::Meta;
use dittograd_device::cuda::Source;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;

/// Elements `start`, `start + step`, … of an axis, `len` of them. A contiguous slice that starts at a multiple of four
/// words shares memory with its input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slice {
    /// The axis.
    pub axis: usize,
    /// First element taken.
    pub start: usize,
    /// Number of elements taken.
    pub len: usize,
    /// Distance between elements taken.
    pub step: usize,
}

impl Slice {
    pub(super) fn run(&self, from: &Shape) -> Run {
        Run::new(from, self.axis, self.start, self.len, self.step)
    }
}

impl Op for Slice {
    const NAME: &'static str = "slice";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let [x] = crate::arity(Self::NAME, ins)?;
        if self.axis >= x.shape.rank() {
            return Err(Error::new(Self::NAME, ErrorKind::Axis { axis: self.axis, shape: x.shape }));
        }
        let size = x.shape.dims()[self.axis];
        check_run(Self::NAME, size, self.start, self.len, self.step)?;
        let mut out = x.shape.dims().to_vec();
        out[self.axis] = self.len;
        Ok(Meta { shape: Shape::new(&out)?, ..x })
    }

    fn index_bound(&self, _ins: &[Meta]) -> IndexBound {
        IndexBound::OfInputs(1)
    }

    fn view(&self, ins: &[Meta]) -> Option<usize> {
        let run = self.run(&ins[0].shape);
        let start = run.start * run.inner;
        let whole = run.outer == 1 && (run.step == 1 || run.len == 1) && run.len > 0;
        (whole && start.is_multiple_of(4)).then_some(start)
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let r = self.run(&run.metas[0].shape);
        let (long, short) = r.words();
        if short == 0 {
            return;
        }
        let x = run.ins[0];
        let rows = run.pool.share(r.outer, (MIN_WORDS_PER_COPY_TASK / short).max(1), 1);
        run.pool.chunks_mut(run.out, rows * short, |task, out| {
            for (o, out) in out.chunks_mut(short).enumerate() {
                let x = &x[(task * rows + o) * long..][..long];
                r.copy(|from, to, n| out[to..to + n].copy_from_slice(&x[from..from + n]));
            }
        });
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        self.run(&run.metas[0].shape).launch(run, "slice_axis", None)
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![("layout".into(), PERMUTE_CU)]
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let size = r.meta(io.ins[0]).shape.dims()[self.axis];
        let pad = Pad { axis: self.axis, start: self.start, step: self.step, size, value: 0.0 };
        Ok(vec![Some(r.record(pad.into(), &[dy])?)])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let x = ins[0].num()?;
        let shape = self.shape(&[ins[0].meta()])?.shape;
        let inner: usize = shape.dims()[self.axis + 1..].iter().product();
        Ok(Tensor::from_fn(shape, |at| {
            let (o, j, i) = (at / inner / self.len, at / inner % self.len, at % inner);
            let size = x.shape().dims()[self.axis];
            x.data()[(o * size + self.start + j * self.step) * inner + i]
        }))
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let num = |n: usize| Attr::Num(n as f64);
        vec![
            ("axis", num(self.axis)),
            ("start", num(self.start)),
            ("len", num(self.len)),
            ("step", num(self.step)),
        ]
    }

    fn from_attrs(attrs: &Attrs) -> Result<Slice> {
        attrs.only(&["axis", "start", "len", "step"])?;
        Ok(Slice {
            axis: attrs.whole("axis")?,
            start: attrs.whole("start")?,
            len: attrs.whole("len")?,
            step: attrs.whole("step")?,
        })
    }
}

/// Errors unless `len` elements from `start` in steps of `step` lie in an axis of `size` elements.
pub(super) fn check_run(op: &'static str, size: usize, start: usize, len: usize, step: usize) -> Result<()> {
    if step == 0 {
        return Err(Error::argument(op, "step", "is 0, use 1 or more"));
    }
    let end = len.saturating_sub(1).checked_mul(step).and_then(|n| n.checked_add(start));
    let fits = if len == 0 { start <= size } else { end.is_some_and(|last| last < size) };
    if fits {
        return Ok(());
    }
    let why = format!("{len} elements from {start} in steps of {step} do not lie in an axis of {size}");
    Err(Error::argument(op, "range", why))
}
