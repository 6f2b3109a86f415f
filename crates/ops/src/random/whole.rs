//! Random integers below a bound, and permutations.

use super::{ELEMENTS_PER_TASK, RANDOM_CU, base, check, reference_key};
use crate::index::sort;
use crate::pointwise::map::grid;
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, IndexBound, Op, no_gradient};
use dittograd_device::cuda::{Args, Source};
use dittograd_device::{Backend, Device, Meta};
use dittograd_numerics::error::{Error, Result};
use dittograd_numerics::rng;
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;

/// The top 32 random bits of element `i`, scaled to an integer below `below`, which is at most 2^32.
fn whole(key: u64, i: usize, below: u64) -> u32 {
    (((rng::mix(key.wrapping_add(i as u64)) >> 32) * below) >> 32) as u32
}

fn whole_module() -> Source {
    crate::module("random_whole".into(), || rng::cuda_text() + RANDOM_CU)
}

/// Queues integers from `low` to below `low + count`.
fn whole_cuda(run: &CudaRun<'_>, seed: u64, counter: u64, (low, count): (u32, u64), out: u64) -> Result<()> {
    let n = run.shape.numel();
    let (name, source) = whole_module();
    let kernel = run.cuda.kernel(&name, source, "whole")?;
    let mut args = Args::new();
    args.ptr(out).u64(n as u64).u64(seed).u64(counter).ptr(run.ins.first().copied().unwrap_or(0));
    args.u32(low).u64(count);
    run.cuda.launch(kernel, grid(run.cuda, n), 256, 0, &args)
}

/// Random integers from `low` to below `below`, as indices: `low` plus the top 32 random bits times `below - low`, over 2^32.
#[derive(Clone, Debug, PartialEq)]
pub struct RandInt {
    /// Shape of the value.
    pub shape: Shape,
    /// Seed of the stream.
    pub seed: u64,
    /// Which random call of the stream this is.
    pub counter: u64,
    /// The smallest integer.
    pub low: u32,
    /// Exclusive upper bound.
    pub below: u32,
}

impl RandInt {
    /// How many integers there are.
    fn count(&self) -> u64 {
        self.below.saturating_sub(self.low).into()
    }
}

impl Op for RandInt {
    const NAME: &'static str = "randint";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        if self.below <= self.low {
            let why = format!("is {}, there is no number from {} on below it", self.below, self.low);
            return Err(Error::argument(Self::NAME, "below", why));
        }
        check(Self::NAME, Meta::u32(self.shape), ins, 0)
    }

    fn index_bound(&self, _ins: &[Meta]) -> IndexBound {
        IndexBound::Below(self.below as usize)
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let key = rng::key(self.seed, self.counter.wrapping_add(base(run.ins.first().copied())));
        run.pool.chunks_mut(bytemuck::cast_slice_mut(run.out), ELEMENTS_PER_TASK, |task, out: &mut [u32]| {
            for (i, y) in out.iter_mut().enumerate() {
                *y = self.low + whole(key, task * ELEMENTS_PER_TASK + i, self.count());
            }
        });
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        match run.shape.numel() {
            0 => Ok(()),
            _ => whole_cuda(run, self.seed, self.counter, (self.low, self.count()), run.out),
        }
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![whole_module()]
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let key = reference_key(self.seed, self.counter, ins, 0)?;
        Ok(Tensor::from_fn(self.shape, |i| T::c((self.low + whole(key, i, self.count())).into())))
    }

    no_gradient!();

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let mut attrs = vec![
            ("shape", Attr::List(self.shape.dims().to_vec())),
            ("seed", Attr::Whole(self.seed)),
            ("counter", Attr::Whole(self.counter)),
            ("below", Attr::Num(self.below.into())),
        ];
        // Most begin at 0, which is not said.
        attrs.extend((self.low > 0).then(|| ("low", Attr::Num(self.low.into()))));
        attrs
    }

    fn from_attrs(attrs: &Attrs) -> Result<RandInt> {
        attrs.only(&["shape", "seed", "counter", "below", "low"])?;
        let number = |name: &'static str| {
            u32::try_from(attrs.word(name)?)
                .map_err(|_| Error::argument(Self::NAME, name, "a number below 2^32 is needed"))
        };
        Ok(RandInt {
            shape: Shape::new(&attrs.list("shape")?)?,
            seed: attrs.word("seed")?,
            counter: attrs.word("counter")?,
            low: if attrs.has("low") { number("low")? } else { 0 },
            below: number("below")?,
        })
    }
}

/// A random permutation of the numbers below `n`, as indices: sorted by 32 random bits each, ties by the number itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Permutation {
    /// How many numbers to permute.
    pub n: usize,
    /// Seed of the stream.
    pub seed: u64,
    /// Which random call of the stream this is.
    pub counter: u64,
}

impl Op for Permutation {
    const NAME: &'static str = "permutation";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        if self.n >= u32::MAX as usize {
            return Err(Error::argument(Self::NAME, "n", format!("{} does not fit into 32 bits", self.n)));
        }
        check(Self::NAME, Meta::u32(Shape::new(&[self.n])?), ins, 0)
    }

    fn index_bound(&self, _ins: &[Meta]) -> IndexBound {
        IndexBound::Below(self.n)
    }

    fn workspace(&self, _ins: &[Meta], device: &Device) -> usize {
        match device.backend() {
            // Pairs of key and number, and room to align them.
            Backend::Cpu(_) | Backend::Host(_) => 2 * (self.n + 1),
            Backend::Cuda(_) => sort::aligned(self.n) + sort::workspace(1, self.n),
        }
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let key = rng::key(self.seed, self.counter.wrapping_add(base(run.ins.first().copied())));
        let (_, pairs, _) = bytemuck::pod_align_to_mut::<f32, u64>(run.workspace);
        let pairs = &mut pairs[..self.n];
        run.pool.chunks_mut(pairs, ELEMENTS_PER_TASK, |task, pairs| {
            for (i, pair) in pairs.iter_mut().enumerate() {
                let i = task * ELEMENTS_PER_TASK + i;
                *pair = u64::from(whole(key, i, 1 << 32)) << 32 | i as u64;
            }
        });
        pairs.sort_unstable();
        for (y, pair) in run.out.iter_mut().zip(pairs) {
            *y = f32::from_bits(*pair as u32);
        }
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        if self.n == 0 {
            return Ok(());
        }
        whole_cuda(run, self.seed, self.counter, (0, 1 << 32), run.workspace)?;
        let scratch = run.workspace + sort::aligned(self.n) as u64 * 4;
        sort::launch(run.cuda, run.workspace, (1, self.n), 32, scratch, run.out)?;
        Ok(())
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![whole_module(), sort::module()]
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let key = reference_key(self.seed, self.counter, ins, 0)?;
        let mut order: Vec<usize> = (0..self.n).collect();
        order.sort_by_key(|&i| rng::mix(key.wrapping_add(i as u64)) >> 32);
        Tensor::new(&[self.n], order.into_iter().map(|i| T::c(i as f64)).collect())
    }

    no_gradient!();

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let n = Attr::Whole(self.n as u64);
        vec![("n", n), ("seed", Attr::Whole(self.seed)), ("counter", Attr::Whole(self.counter))]
    }

    fn from_attrs(attrs: &Attrs) -> Result<Permutation> {
        attrs.only(&["n", "seed", "counter"])?;
        Ok(Permutation { n: attrs.whole("n")?, seed: attrs.word("seed")?, counter: attrs.word("counter")? })
    }
}
