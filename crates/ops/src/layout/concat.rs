//! Concatenation along an axis.

use super::permute::PERMUTE_CU;
use super::run::MIN_WORDS_PER_COPY_TASK;
use super::slice::Slice;
use crate::pointwise::map;
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, IndexBound, Io, Op, Recorder, Val, mismatch};
use dittograd_device::Meta;
use dittograd_device::cuda::{Args, Source};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;

/// Concatenates the inputs along an axis. All other dimensions must agree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Concat {
    /// The axis.
    pub axis: usize,
}

impl Op for Concat {
    const NAME: &'static str = "concat";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let Some(first) = ins.first().filter(|_| ins.len() <= crate::MAX_INS) else {
            return Err(Error::new(Self::NAME, ErrorKind::Arity { want: 1, got: ins.len() }));
        };
        let mut out = first.shape.dims().to_vec();
        if self.axis >= out.len() {
            return Err(Error::new(Self::NAME, ErrorKind::Axis { axis: self.axis, shape: first.shape }));
        }
        for (i, x) in ins.iter().enumerate().skip(1) {
            crate::typed(Self::NAME, ins, i, first.dtype)?;
            let same = |(a, (x, y)): (usize, (&usize, &usize))| a == self.axis || x == y;
            let fits = x.shape.rank() == out.len() && x.shape.dims().iter().zip(&out).enumerate().all(same);
            if !fits {
                let why = "inputs must agree in all axes but the one they are joined along";
                return Err(mismatch(Self::NAME, why, first.shape, x.shape));
            }
            out[self.axis] = out[self.axis].saturating_add(x.shape.dims()[self.axis]);
        }
        let shape = Shape::new(&out).map_err(|e| Error::new(Self::NAME, e.kind().clone()))?;
        Ok(Meta { shape, ..*first })
    }

    fn index_bound(&self, ins: &[Meta]) -> IndexBound {
        IndexBound::OfInputs(ins.len())
    }

    fn view(&self, ins: &[Meta]) -> Option<usize> {
        (ins.len() == 1).then_some(0)
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let words = |s: &Shape| s.dims()[self.axis..].iter().product::<usize>();
        let pitch = words(&run.shape);
        if run.out.is_empty() {
            return;
        }
        let parts: Vec<(&[f32], usize)> =
            run.ins.iter().zip(run.metas).map(|(x, m)| (*x, words(&m.shape))).collect();
        if run.out.len() == pitch {
            let mut rest = run.out;
            for (x, words) in parts.into_iter().filter(|p| p.1 > 0) {
                let (out, behind) = rest.split_at_mut(words);
                let per = run.pool.share(words, MIN_WORDS_PER_COPY_TASK, 1);
                run.pool.chunks_mut(out, per, |task, out| out.copy_from_slice(&x[task * per..][..out.len()]));
                rest = behind;
            }
            return;
        }
        let rows = run.pool.share(run.out.len() / pitch, (MIN_WORDS_PER_COPY_TASK / pitch).max(1), 1);
        run.pool.chunks_mut(run.out, rows * pitch, |task, out| {
            for (o, mut out) in out.chunks_mut(pitch).enumerate() {
                for (x, words) in &parts {
                    let (to, behind) = out.split_at_mut(*words);
                    to.copy_from_slice(&x[(task * rows + o) * words..][..*words]);
                    out = behind;
                }
            }
        });
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        if run.shape.numel() == 0 {
            return Ok(());
        }
        let words = |s: &Shape| s.dims()[self.axis..].iter().product::<usize>();
        let pitch = words(&run.shape);
        let outer = run.shape.numel() / pitch;
        let all = run.metas.iter().map(|m| words(&m.shape));
        let width = if all.clone().all(|w| w.is_multiple_of(4)) { 4 } else { 1 };
        let mut parts = [[0u64; crate::MAX_INS]; 3];
        let (mut start, mut most) = (0, 0);
        for (i, (words, &address)) in all.zip(run.ins).enumerate() {
            let words = words / width;
            (parts[0][i], parts[1][i], parts[2][i]) = (address, words as u64, start as u64);
            start += words;
            most = most.max(words);
        }
        let kernel = run.cuda.kernel("layout", PERMUTE_CU, &format!("concat{width}"))?;
        let mut args = Args::new();
        args.bytes(bytemuck::cast_slice(&parts), 8)
            .ptr(run.out)
            .u64(outer as u64)
            .u64((pitch / width) as u64);
        let [x, ..] = map::grid(run.cuda, outer * most);
        run.cuda.launch(kernel, [x, run.ins.len() as u32, 1], 256, 0, &args)
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![("layout".into(), PERMUTE_CU)]
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let mut start = 0;
        let one = |&x: &Val| {
            let len = r.meta(x).shape.dims()[self.axis];
            let slice = Slice { axis: self.axis, start, len, step: 1 };
            start += len;
            r.record(slice.into(), &[dy]).map(Some)
        };
        io.ins.iter().map(one).collect()
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
        let shape = self.shape(&metas)?.shape;
        let xs: Vec<&Tensor<T>> = ins.iter().map(AnyTensor::num).collect::<Result<_>>()?;
        let (inner, total) =
            (shape.dims()[self.axis + 1..].iter().product::<usize>(), shape.dims()[self.axis]);
        Ok(Tensor::from_fn(shape, |at| {
            let (o, mut j, i) = (at / inner / total, at / inner % total, at % inner);
            let mut part = 0;
            while j >= xs[part].shape().dims()[self.axis] {
                j -= xs[part].shape().dims()[self.axis];
                part += 1;
            }
            xs[part].data()[(o * xs[part].shape().dims()[self.axis] + j) * inner + i]
        }))
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![("axis", Attr::Num(self.axis as f64))]
    }

    fn from_attrs(attrs: &Attrs) -> Result<Concat> {
        attrs.only(&["axis"])?;
        Ok(Concat { axis: attrs.whole("axis")? })
    }
}
