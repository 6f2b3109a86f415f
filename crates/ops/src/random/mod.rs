//! Values made from nothing: constants and random draws.
//!
//! A random op knows its seed and its place in the stream of random calls. Eagerly that place is absolute;
//! in a compiled program it is relative to a counter that is a run-time input (two u32 words, low first),
//! so each run draws anew and eager and compiled runs draw the same numbers.

#[cfg(feature = "cases")]
mod cases;

use crate::index::sort;
use crate::pointwise::map;
use crate::pointwise::map::grid;
use crate::pointwise::program::{Program, Registers, Scratch};
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, IndexBound, Io, Kernel, Op, Recorder, Val, dims};
use dittograd_device::cuda::{Args, Source};
use dittograd_device::{Backend, DType, Device, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::rng;
use dittograd_numerics::scalar::{Real, Scalar};
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;

const RANDOM_CU: &str = include_str!("random.cu");

/// Every element `value`.
#[derive(Clone, Debug, PartialEq)]
pub struct Full {
    /// Shape of the value.
    pub shape: Shape,
    /// The element.
    pub value: f32,
}

impl Op for Full {
    const NAME: &'static str = "full";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        crate::arity::<0>(Self::NAME, ins)?;
        Ok(Meta::f32(self.shape))
    }

    fn cpu(&self, run: CpuRun<'_>) {
        run.out.fill(self.value);
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        match run.shape.numel() {
            0 => Ok(()),
            n => run.cuda.fill(run.out, self.value.to_bits(), n),
        }
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        Vec::new()
    }

    fn vjp(&self, _r: &mut dyn Recorder, _io: Io<'_>, _dy: Val) -> Result<Vec<Option<Val>>> {
        Ok(Vec::new())
    }

    fn reference<T: Scalar>(&self, _ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        Ok(Tensor::full(self.shape, T::from_f32(self.value)))
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![("shape", Attr::List(self.shape.dims().to_vec())), ("value", Attr::Num(f64::from(self.value)))]
    }

    fn from_attrs(attrs: &Attrs) -> Result<Full> {
        attrs.only(&["shape", "value"])?;
        Ok(Full { shape: Shape::new(&attrs.list("shape")?)?, value: attrs.num("value")? as f32 })
    }
}

/// Checks the inputs of a draw from the stream `(seed, counter + base)`: `scalars` numbers, and then optionally the base.
fn check(op: &'static str, meta: Meta, ins: &[Meta], scalars: usize) -> Result<Meta> {
    if ins.len() < scalars || ins.len() > scalars + 1 {
        return Err(Error::new(op, ErrorKind::Arity { want: scalars, got: ins.len() }));
    }
    for (i, x) in ins[..scalars].iter().enumerate() {
        crate::typed(op, ins, i, DType::F32)?;
        if x.shape.numel() != 1 {
            return Err(crate::mismatch(op, "a single number is needed", x.shape, Shape::SCALAR));
        }
    }
    if let Some(base) = ins.get(scalars) {
        crate::typed(op, ins, scalars, DType::U32)?;
        if base.shape.dims() != [2] {
            return Err(crate::mismatch(op, "the counter input must hold two words", base.shape, dims(&[2])));
        }
    }
    Ok(meta)
}

/// The base counter of a compiled run; 0 without one.
fn base(words: Option<&[f32]>) -> u64 {
    match words.map(bytemuck::cast_slice::<f32, u32>) {
        Some([low, high]) => u64::from(*low) | u64::from(*high) << 32,
        _ => 0,
    }
}

/// As [`base`], for references.
fn reference_key<T: Scalar>(seed: u64, counter: u64, ins: &[AnyTensor<T>], scalars: usize) -> Result<u64> {
    let base = match ins.get(scalars) {
        Some(words) => base(Some(bytemuck::cast_slice(words.idx()?.data()))),
        None => 0,
    };
    Ok(rng::key(seed, counter.wrapping_add(base)))
}

/// Elements one task of the thread pool draws.
const TASK: usize = 16 * 1024;

/// A formula of uniform draws and scalar inputs, as a program: the draws come first.
struct Draw {
    seed: u64,
    counter: u64,
    /// Uniforms per element: element `i` has those at `draws * i`, `draws * i + 1`, …
    draws: usize,
    program: Program,
}

impl Draw {
    fn cpu(&self, run: CpuRun<'_>) {
        let scalars = self.program.inputs() - self.draws;
        let key = rng::key(self.seed, self.counter.wrapping_add(base(run.ins.get(scalars).copied())));
        let (ins, simd, block) = (run.ins, run.simd, self.program.block());
        run.pool.chunks_mut(run.out, TASK, |task, out| {
            let mut registers = Registers::new(&self.program, block);
            let mut scratch = Scratch::take((self.draws + scalars) * block);
            // The thread's scratch may be longer than asked for.
            let words = &mut scratch.words()[..(self.draws + scalars) * block];
            for (s, words) in words.chunks_exact_mut(block).skip(self.draws).enumerate() {
                words.fill(ins[s][0]);
            }
            for (b, out) in out.chunks_mut(block).enumerate() {
                let start = task * TASK + b * block;
                for (d, words) in words.chunks_exact_mut(block).take(self.draws).enumerate() {
                    for (i, u) in words[..out.len()].iter_mut().enumerate() {
                        *u = rng::uniform(key, (self.draws * (start + i) + d) as u64);
                    }
                }
                let mut slices: [&[f32]; 16] = [&[]; 16];
                for (slice, words) in slices.iter_mut().zip(words.chunks_exact(block)) {
                    *slice = &words[..out.len()];
                }
                registers.run(simd, &slices[..self.draws + scalars], &mut [out]);
            }
        });
    }

    /// The kernel `draw` of `random.cu` with the program as its formula. Constants are arguments, so that ops that differ
    /// in them alone share a module.
    fn module(&self) -> Source {
        let scalars = self.program.inputs() - self.draws;
        let (inputs, constants) = (self.program.inputs(), self.program.consts().len());
        let each = |count: usize, name: &dyn Fn(usize) -> String| (0..count).map(name).collect::<Vec<_>>();
        let params = [
            each(scalars, &|s| format!(", const float* s{s}")),
            each(constants, &|k| format!(", float k{k}")),
        ];
        let arguments = [
            each(self.draws, &|d| format!("UNIFORM({d})")),
            each(scalars, &|s| format!("s{s}[0]")),
            each(constants, &|k| format!("k{k}")),
        ];
        let formula = [each(inputs, &|x| format!("float x{x}")), each(constants, &|k| format!("float k{k}"))];
        let text = format!(
            "#define DRAWS {}\n#define PARAMS {}\n#define VALUE formula({})\n\
             __device__ __forceinline__ float formula({}) {{\n{}return y0;\n}}\n",
            self.draws,
            params.concat().concat(),
            arguments.concat().join(", "),
            formula.concat().join(", "),
            self.program.cuda()
        );
        let name = format!("random_{}", &blake3::hash(text.as_bytes()).to_hex()[..16]);
        crate::module(name, || format!("{}{}{text}{RANDOM_CU}", map::prelude(), rng::cuda_text()))
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let n = run.shape.numel();
        if n == 0 {
            return Ok(());
        }
        let scalars = self.program.inputs() - self.draws;
        let (name, source) = self.module();
        let kernel = run.cuda.kernel(&name, source, "draw")?;
        let mut args = Args::new();
        args.ptr(run.out).u64(n as u64).u64(self.seed).u64(self.counter);
        args.ptr(run.ins.get(scalars).copied().unwrap_or(0));
        run.ins[..scalars].iter().for_each(|&s| {
            args.ptr(s);
        });
        self.program.consts().iter().for_each(|&k| {
            args.f32(k);
        });
        run.cuda.launch(kernel, grid(run.cuda, n), 256, 0, &args)
    }
}

/// Why an attribute cannot be, in words.
type Refusal = Option<&'static str>;

fn probability(p: f32) -> Refusal {
    (!(0.0..=1.0).contains(&p)).then_some("is not a probability from 0 to 1")
}

fn finite(x: f32) -> Refusal {
    (!x.is_finite()).then_some("is not a finite number")
}

macro_rules! random_op {
    (
        $(#[$doc:meta])* $op:ident $name:literal {
            $($(#[$attr_doc:meta])* $attr:ident: $default:literal, $refusal:ident, not $wrong:expr;)*
        } draws: $draws:literal, scalars: $scalars:literal, bound: $bound:expr,
        value($self:ident, $u:ident) = $value:expr
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $op {
            /// Shape of the value.
            pub shape: Shape,
            /// Seed of the stream.
            pub seed: u64,
            /// Which random call of the stream this is.
            pub counter: u64,
            $($(#[$attr_doc])* pub $attr: f32,)*
        }

        impl $op {
            /// An element from its uniforms and the scalar inputs.
            fn value<R: Real>(&$self, $u: &[R]) -> R {
                $value
            }

            fn draw(&self) -> Draw {
                let program = Program::trace($draws + $scalars, |u| vec![self.value(u)]);
                Draw { seed: self.seed, counter: self.counter, draws: $draws, program }
            }
        }

        impl Op for $op {
            const NAME: &'static str = $name;

            fn shape(&self, ins: &[Meta]) -> Result<Meta> {
                $(if let Some(why) = $refusal(self.$attr) {
                    let why = format!("{} {why}", self.$attr);
                    return Err(Error::argument(Self::NAME, stringify!($attr), why));
                })*
                check(Self::NAME, Meta::f32(self.shape), ins, $scalars)
            }

            fn cpu(&self, run: CpuRun<'_>) {
                self.draw().cpu(run);
            }

            fn prepared(&self, _ins: &[Meta]) -> Option<Kernel> {
                let draw = self.draw();
                Some(Box::new(move |run| draw.cpu(run)))
            }

            fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
                self.draw().cuda(run)
            }

            fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
                vec![self.draw().module()]
            }

            fn vjp(&self, _r: &mut dyn Recorder, io: Io<'_>, _dy: Val) -> Result<Vec<Option<Val>>> {
                Ok(vec![None; io.ins.len()])
            }

            fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
                let key = reference_key(self.seed, self.counter, ins, $scalars)?;
                let scalars: Vec<T> = ins[..$scalars].iter().map(|s| Ok(s.num()?.data()[0])).collect::<Result<_>>()?;
                Ok(Tensor::from_fn(self.shape, |i| {
                    let uniform = |d: usize| T::from_f32(rng::uniform(key, ($draws * i + d) as u64));
                    let args: Vec<T> = (0..$draws).map(uniform).chain(scalars.iter().copied()).collect();
                    self.value(&args)
                }))
            }

            fn differentiable(&self) -> bool {
                false
            }

            fn attrs(&self) -> Vec<(&'static str, Attr)> {
                vec![
                    ("shape", Attr::List(self.shape.dims().to_vec())),
                    ("seed", Attr::Whole(self.seed)),
                    ("counter", Attr::Whole(self.counter)),
                    $((stringify!($attr), Attr::Num(f64::from(self.$attr))),)*
                ]
            }

            fn from_attrs(attrs: &Attrs) -> Result<$op> {
                attrs.only(&["shape", "seed", "counter", $(stringify!($attr)),*])?;
                Ok($op {
                    shape: Shape::new(&attrs.list("shape")?)?,
                    seed: attrs.word("seed")?,
                    counter: attrs.word("counter")?,
                    $($attr: attrs.num(stringify!($attr))? as f32,)*
                })
            }
        }

        #[cfg(feature = "cases")]
        impl crate::Cases for $op {
            fn samples() -> Vec<crate::Sample<$op>> {
                let numbers = || std::iter::repeat_n(crate::SampleIn::Num(Shape::SCALAR, (0.0, 1.0)), $scalars).collect::<Vec<_>>();
                let sample = |(i, shape): (usize, Shape)| crate::Sample {
                    op: $op { shape, seed: 7, counter: i as u64, $($attr: $default),* },
                    ins: numbers(),
                };
                let mut all: Vec<crate::Sample<$op>> = crate::cases::sample_shapes().into_iter().enumerate().map(sample).collect();
                let op = $op { shape: crate::dims(&[5, 7]), seed: 1, counter: 2, $($attr: $default),* };
                let mut ins = numbers();
                ins.push(crate::SampleIn::Idx(crate::dims(&[2]), 1000));
                all.push(crate::Sample { op, ins });
                all
            }

            fn random(stream: &mut dittograd_numerics::rng::Stream) -> Option<crate::Sample<$op>> {
                let op = $op { shape: crate::cases::edge_shape(1, 3, stream), seed: 7, counter: 0, $($attr: $default),* };
                Some(crate::Sample { op, ins: std::iter::repeat_n(crate::SampleIn::Num(Shape::SCALAR, (0.0, 1.0)), $scalars).collect() })
            }

            fn rejects() -> Vec<crate::Reject<$op>> {
                let op = $op { shape: crate::dims(&[2]), seed: 0, counter: 0, $($attr: $default),* };
                let with = |more: &[Meta]| std::iter::repeat_n(Meta::f32(Shape::SCALAR), $scalars).chain(more.iter().copied()).collect::<Vec<_>>();
                let u = |d: &[usize]| Meta::u32(crate::dims(d));
                let mut bad = vec![
                    crate::Reject { op: op.clone(), ins: with(&[u(&[2]), u(&[2])]), want: "Arity" },
                    crate::Reject { op: op.clone(), ins: with(&[u(&[3])]), want: "Shapes" },
                    crate::Reject { op: op.clone(), ins: with(&[Meta::f32(crate::dims(&[2]))]), want: "DType" },
                ];
                if $scalars > 0 {
                    bad.push(crate::Reject { op: op.clone(), ins: vec![], want: "Arity" });
                    bad.push(crate::Reject { op: op.clone(), ins: std::iter::repeat_n(u(&[]), $scalars).collect(), want: "DType" });
                    bad.push(crate::Reject { op: op.clone(), ins: std::iter::repeat_n(Meta::f32(crate::dims(&[2])), $scalars).collect(), want: "Shapes" });
                }
                $(for wrong in $wrong {
                    bad.push(crate::Reject { op: $op { $attr: wrong, ..op.clone() }, ins: with(&[]), want: "Argument" });
                })*
                bad
            }

            fn bound(&self, _ins: &[Meta]) -> crate::Bound {
                $bound
            }
        }
    };
}

random_op! {
    /// Uniform draws in `[0, 1)`: multiples of 2^-24, never 1.
    Uniform "uniform" {} draws: 1, scalars: 0, bound: crate::Bound::EXACT, value(self, u) = u[0]
}

random_op! {
    /// Uniform draws from `lo` to `hi`: `lo + (hi - lo) u` with one rounding. The rounding may give `hi` itself.
    UniformRange "uniform_range" {
        /// The least value.
        lo: -1.5, finite, not [f32::NAN, f32::INFINITY];
        /// The end of the range.
        hi: 2.25, finite, not [f32::NAN, f32::NEG_INFINITY];
    } draws: 1, scalars: 0, bound: crate::Bound { ulps: 0.0, terms: 2.0 },
    value(self, u) = u[0].fma(R::c(f64::from(self.hi) - f64::from(self.lo)), R::c(f64::from(self.lo)))
}

random_op! {
    /// 1 with probability `keep`, else 0. A `keep` of 1 keeps everything, of 0 nothing.
    Bernoulli "bernoulli" {
        /// Probability of a 1.
        keep: 0.35, probability, not [-0.5, 1.5, f32::NAN];
    } draws: 1, scalars: 0, bound: crate::Bound::EXACT,
    value(self, u) = R::where_gt(R::c(f64::from(self.keep)), u[0], R::c(1.0), R::c(0.0))
}

random_op! {
    /// 1 with the probability that the input, a single number, says, else 0: everything is kept from 1 on, nothing up to
    /// 0 or for NaN. The probability has no gradient.
    BernoulliMask "bernoulli_mask" {} draws: 1, scalars: 1, bound: crate::Bound::EXACT,
    value(self, u) = R::where_gt(u[1], u[0], R::c(1.0), R::c(0.0))
}

random_op! {
    /// Normal draws by Box and Muller, two uniforms each: `z = sqrt(-2 ln(u + 2^-24)) cos(2 pi v)`, the value `mean + std z`
    /// with one rounding. No draw is further than 5.77 `std` from the mean.
    Normal "normal" {
        /// The mean.
        mean: -0.25, finite, not [f32::NAN, f32::INFINITY];
        /// The standard deviation.
        std: 0.75, finite, not [f32::NAN, f32::INFINITY];
    } draws: 2, scalars: 0, bound: crate::Bound { ulps: 1.0, terms: 16.0 },
    value(self, u) = {
        let radius = (R::c(-2.0) * (u[0] + R::c(1.0 / 16_777_216.0)).log()).sqrt();
        let z = radius * (R::c(std::f64::consts::TAU) * u[1]).cos();
        z.fma(R::c(f64::from(self.std)), R::c(f64::from(self.mean)))
    }
}

/// The top 32 random bits of element `i`, scaled to be below `below`, which is at most 2^32.
fn whole(key: u64, i: usize, below: u64) -> u32 {
    (((rng::mix(key.wrapping_add(i as u64)) >> 32) * below) >> 32) as u32
}

fn whole_module() -> Source {
    crate::module("random_whole".into(), || rng::cuda_text() + RANDOM_CU)
}

/// Queues `n` whole numbers below `below`.
fn whole_cuda(run: &CudaRun<'_>, seed: u64, counter: u64, below: u64, out: u64) -> Result<()> {
    let n = run.shape.numel();
    let (name, source) = whole_module();
    let kernel = run.cuda.kernel(&name, source, "whole")?;
    let mut args = Args::new();
    args.ptr(out).u64(n as u64).u64(seed).u64(counter).ptr(run.ins.first().copied().unwrap_or(0)).u64(below);
    run.cuda.launch(kernel, grid(run.cuda, n), 256, 0, &args)
}

/// What the ops that give indices have in common.
macro_rules! whole_methods {
    () => {
        fn vjp(&self, _r: &mut dyn Recorder, io: Io<'_>, _dy: Val) -> Result<Vec<Option<Val>>> {
            Ok(vec![None; io.ins.len()])
        }

        fn differentiable(&self) -> bool {
            false
        }
    };
}

/// Whole numbers from 0 to below `below`, as indices: the top 32 random bits times `below`, over 2^32.
#[derive(Clone, Debug, PartialEq)]
pub struct RandInt {
    /// Shape of the value.
    pub shape: Shape,
    /// Seed of the stream.
    pub seed: u64,
    /// Which random call of the stream this is.
    pub counter: u64,
    /// One more than the largest number.
    pub below: u32,
}

impl Op for RandInt {
    const NAME: &'static str = "randint";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        if self.below == 0 {
            return Err(Error::argument(Self::NAME, "below", "is 0, there is no number below it"));
        }
        check(Self::NAME, Meta::u32(self.shape), ins, 0)
    }

    fn index_bound(&self, _ins: &[Meta]) -> IndexBound {
        IndexBound::Below(self.below as usize)
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let key = rng::key(self.seed, self.counter.wrapping_add(base(run.ins.first().copied())));
        run.pool.chunks_mut(bytemuck::cast_slice_mut(run.out), TASK, |task, out: &mut [u32]| {
            for (i, y) in out.iter_mut().enumerate() {
                *y = whole(key, task * TASK + i, self.below.into());
            }
        });
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        match run.shape.numel() {
            0 => Ok(()),
            _ => whole_cuda(run, self.seed, self.counter, self.below.into(), run.out),
        }
    }

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
        vec![whole_module()]
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let key = reference_key(self.seed, self.counter, ins, 0)?;
        Ok(Tensor::from_fn(self.shape, |i| T::c(whole(key, i, self.below.into()).into())))
    }

    whole_methods!();

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![
            ("shape", Attr::List(self.shape.dims().to_vec())),
            ("seed", Attr::Whole(self.seed)),
            ("counter", Attr::Whole(self.counter)),
            ("below", Attr::Num(self.below.into())),
        ]
    }

    fn from_attrs(attrs: &Attrs) -> Result<RandInt> {
        attrs.only(&["shape", "seed", "counter", "below"])?;
        Ok(RandInt {
            shape: Shape::new(&attrs.list("shape")?)?,
            seed: attrs.word("seed")?,
            counter: attrs.word("counter")?,
            below: u32::try_from(attrs.word("below")?)
                .map_err(|_| Error::argument(Self::NAME, "below", "a number below 2^32 is needed"))?,
        })
    }
}

/// The numbers below `n` in random order, as indices: sorted by 32 random bits each, equal ones by the number itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Permutation {
    /// How many numbers.
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
            // Pairs of key and number; one more, so that they can be aligned.
            Backend::Cpu(_) | Backend::Host(_) => 2 * (self.n + 1),
            Backend::Cuda(_) => sort::aligned(self.n) + sort::workspace(self.n),
        }
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let key = rng::key(self.seed, self.counter.wrapping_add(base(run.ins.first().copied())));
        let (_, pairs, _) = bytemuck::pod_align_to_mut::<f32, u64>(run.workspace);
        let pairs = &mut pairs[..self.n];
        run.pool.chunks_mut(pairs, TASK, |task, pairs| {
            for (i, pair) in pairs.iter_mut().enumerate() {
                let i = task * TASK + i;
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
        whole_cuda(run, self.seed, self.counter, 1 << 32, run.workspace)?;
        let scratch = run.workspace + sort::aligned(self.n) as u64 * 4;
        sort::launch(run.cuda, run.workspace, self.n, 32, scratch, run.out)?;
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

    whole_methods!();

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let n = Attr::Whole(self.n as u64);
        vec![("n", n), ("seed", Attr::Whole(self.seed)), ("counter", Attr::Whole(self.counter))]
    }

    fn from_attrs(attrs: &Attrs) -> Result<Permutation> {
        attrs.only(&["n", "seed", "counter"])?;
        Ok(Permutation { n: attrs.whole("n")?, seed: attrs.word("seed")?, counter: attrs.word("counter")? })
    }
}
