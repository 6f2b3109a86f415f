//! Which source is the last at each place.

use super::{Layout, MIN_WORDS_PER_TASK, module, shape_of, size_fits};
use crate::pointwise::map::grid;
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, IndexBound, Op, arity, no_gradient, typed};
use dittograd_device::cuda::{Args, Source};
use dittograd_device::{DType, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::tensor::Tensor;

/// For each place of an axis of `size` elements, the last `j` along the axis whose index is that place:
/// `y[…, t, …] = max { j : index[…, j, …] = t }`, or the number of indices along the axis if there is none. Gathering sources
/// there is a scatter in which the last source wins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScatterLast {
    /// The axis.
    pub axis: usize,
    /// Size of that axis of the value.
    pub size: usize,
    /// Whether an index out of range is an error.
    pub checked: bool,
}

impl ScatterLast {
    fn layout(&self, ins: &[Meta]) -> Layout {
        let d = ins[0].shape.dims();
        let (outer, inner) = (d[..self.axis].iter().product(), d[self.axis + 1..].iter().product());
        Layout { outer, size: self.size, count: d[self.axis], inner }
    }
}

impl Op for ScatterLast {
    const NAME: &'static str = "scatter_last";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let [index] = arity(Self::NAME, ins)?;
        typed(Self::NAME, ins, 0, DType::U32)?;
        size_fits(Self::NAME, self.size)?;
        let d = index.shape.dims();
        if self.axis >= d.len() {
            return Err(Error::new(Self::NAME, ErrorKind::Axis { axis: self.axis, shape: index.shape }));
        }
        size_fits(Self::NAME, d[self.axis])?;
        Ok(Meta::u32(shape_of(Self::NAME, [&d[..self.axis], &[self.size], &d[self.axis + 1..]])?))
    }

    fn index_limit(&self, _ins: &[Meta]) -> Option<(usize, usize)> {
        self.checked.then_some((0, self.size))
    }

    fn index_bound(&self, ins: &[Meta]) -> IndexBound {
        IndexBound::Below(self.layout(ins).count + 1)
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let l = self.layout(run.metas);
        let index: &[u32] = bytemuck::cast_slice(run.ins[0]);
        let (words, taken) = (l.size * l.inner, l.count * l.inner);
        if run.out.is_empty() {
            return;
        }
        let none = f32::from_bits(l.count as u32);
        // Places `rows` of one outer position.
        let fill = |index: &[u32], rows: std::ops::Range<usize>, out: &mut [f32]| {
            out.fill(none);
            for (j, index) in index.chunks(l.inner).enumerate() {
                for (i, &to) in index.iter().enumerate() {
                    if rows.contains(&(to as usize)) {
                        out[(to as usize - rows.start) * l.inner + i] = f32::from_bits(j as u32);
                    }
                }
            }
        };
        if l.outer >= run.pool.threads() {
            let per = run.pool.share(l.outer, (MIN_WORDS_PER_TASK / (words + taken)).max(1), 1);
            return run.pool.chunks_mut(run.out, per * words, |task, out| {
                for (o, out) in out.chunks_mut(words).enumerate() {
                    fill(&index[(task * per + o) * taken..][..taken], 0..l.size, out);
                }
            });
        }
        // Each thread goes through all indices and takes those of its own places.
        for (o, out) in run.out.chunks_mut(words).enumerate() {
            let per = l.size.div_ceil(run.pool.threads()).max(MIN_WORDS_PER_TASK / l.inner);
            run.pool.chunks_mut(out, per * l.inner, |task, out| {
                let first = task * per;
                fill(&index[o * taken..][..taken], first..first + out.len() / l.inner, out);
            });
        }
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let l = self.layout(run.metas);
        let (words, sources) = (run.shape.numel(), run.metas[0].shape.numel());
        if words == 0 {
            return Ok(());
        }
        let (name, source) = module();
        run.cuda.fill(run.out, 0, words)?;
        if sources > 0 {
            let kernel = run.cuda.kernel(&name, source, "last_sources")?;
            let mut args = Args::new();
            args.ptr(run.ins[0]).ptr(run.out).u64(sources as u64);
            args.u64(l.size as u64).u64(l.count as u64).u64(l.inner as u64);
            run.cuda.launch(kernel, grid(run.cuda, sources), 256, 0, &args)?;
        }
        let kernel = run.cuda.kernel(&name, source, "last_positions")?;
        let mut args = Args::new();
        args.ptr(run.out).u32(l.count as u32).u64(words as u64);
        run.cuda.launch(kernel, grid(run.cuda, words), 256, 0, &args)
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![module()]
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let index = ins[0].idx()?;
        let l = self.layout(&[ins[0].meta()]);
        let mut out = Tensor::full(self.shape(&[ins[0].meta()])?.shape, T::c(l.count as f64));
        for (at, &to) in index.data().iter().enumerate() {
            let (o, j, i) = (at / l.inner / l.count, at / l.inner % l.count, at % l.inner);
            if (to as usize) < l.size {
                out.data_mut()[(o * l.size + to as usize) * l.inner + i] = T::c(j as f64);
            }
        }
        Ok(out)
    }

    attr_methods!(ScatterLast: axis, size);

    no_gradient!();
}
