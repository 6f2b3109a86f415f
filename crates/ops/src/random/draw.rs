//! Random floats: formulas of uniform draws.

use super::{ELEMENTS_PER_TASK, RANDOM_CU, base, check, reference_key};
use crate::pointwise::expression::{Pointwise, Registers, Scratch};
use crate::pointwise::map;
use crate::pointwise::map::grid;
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Kernel, Op, Recorder, Val};
use dittograd_device::Meta;
use dittograd_device::cuda::{Args, Source};
use dittograd_numerics::error::{Error, Result};
use dittograd_numerics::rng;
use dittograd_numerics::scalar::{Real, Scalar};
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;

/// A pointwise program of uniform draws and scalar inputs. The draws come first.
struct Draw {
    seed: u64,
    counter: u64,
    /// Uniforms per element: element `i` uses those at `draws * i`, `draws * i + 1`, …
    draws: usize,
    program: Pointwise,
}

impl Draw {
    fn cpu(&self, run: CpuRun<'_>) {
        let scalars = self.program.inputs() - self.draws;
        let key = rng::key(self.seed, self.counter.wrapping_add(base(run.ins.get(scalars).copied())));
        let (ins, simd, block) = (run.ins, run.simd, self.program.block());
        run.pool.chunks_mut(run.out, ELEMENTS_PER_TASK, |task, out| {
            let mut registers = Registers::new(&self.program, block);
            let mut scratch = Scratch::take((self.draws + scalars) * block);
            // The thread's scratch may be longer than requested.
            let words = &mut scratch.words()[..(self.draws + scalars) * block];
            for (s, words) in words.chunks_exact_mut(block).skip(self.draws).enumerate() {
                words.fill(ins[s][0]);
            }
            for (b, out) in out.chunks_mut(block).enumerate() {
                let start = task * ELEMENTS_PER_TASK + b * block;
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

    /// The kernel `draw` of `random.cu` with the program as its formula. Constants are arguments, so that ops that
    /// differ only in constants share a module.
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
        crate::module(name, || {
            let functions = self.program.cuda_functions();
            format!("{}{}{functions}{text}{RANDOM_CU}", map::prelude(), rng::cuda_text())
        })
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

/// Why an attribute's value is refused.
type Refusal = Option<&'static str>;

fn any(_: f32) -> Refusal {
    None
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
            /// One element, from its uniforms and the scalar inputs.
            fn value<R: Real>(&$self, $u: &[R]) -> R {
                $value
            }

            fn draw(&self) -> Draw {
                let program = Pointwise::trace($draws + $scalars, |u| vec![self.value(u)]);
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
            fn samples() -> Vec<crate::Sample> {
                let numbers = || std::iter::repeat_n(crate::SampleIn::Num(Shape::SCALAR, (0.0, 1.0)), $scalars).collect::<Vec<_>>();
                let sample = |(i, shape): (usize, Shape)| {
                    let op = $op { shape, seed: 7, counter: i as u64, $($attr: $default),* };
                    crate::Sample::new(op, numbers())
                };
                let shapes = crate::cases::sample_shapes().into_iter().enumerate();
                let mut all: Vec<crate::Sample> = shapes.map(sample).collect();
                let op = $op { shape: crate::dims(&[5, 7]), seed: 1, counter: 2, $($attr: $default),* };
                let mut ins = numbers();
                ins.push(crate::SampleIn::Idx(crate::dims(&[2]), 1000));
                all.push(crate::Sample::new(op, ins));
                all
            }

            fn random(stream: &mut dittograd_numerics::rng::Stream) -> Option<crate::Sample> {
                let op = $op { shape: crate::cases::edge_shape(1, 3, stream), seed: 7, counter: 0, $($attr: $default),* };
                Some(crate::Sample::new(op, std::iter::repeat_n(crate::SampleIn::Num(Shape::SCALAR, (0.0, 1.0)), $scalars).collect()))
            }

            fn rejects() -> Vec<crate::Reject> {
                let op = $op { shape: crate::dims(&[2]), seed: 0, counter: 0, $($attr: $default),* };
                let with = |more: &[Meta]| std::iter::repeat_n(Meta::f32(Shape::SCALAR), $scalars).chain(more.iter().copied()).collect::<Vec<_>>();
                let u = |d: &[usize]| Meta::u32(crate::dims(d));
                let mut bad = vec![
                    crate::Reject::new(op.clone(), with(&[u(&[2]), u(&[2])]), "Arity"),
                    crate::Reject::new(op.clone(), with(&[u(&[3])]), "Shapes"),
                    crate::Reject::new(op.clone(), with(&[Meta::f32(crate::dims(&[2]))]), "DType"),
                ];
                if $scalars > 0 {
                    bad.push(crate::Reject::new(op.clone(), vec![], "Arity"));
                    bad.push(crate::Reject::new(op.clone(), std::iter::repeat_n(u(&[]), $scalars).collect(), "DType"));
                    bad.push(crate::Reject::new(op.clone(), std::iter::repeat_n(Meta::f32(crate::dims(&[2])), $scalars).collect(), "Shapes"));
                }
                $(for wrong in $wrong {
                    bad.push(crate::Reject::new($op { $attr: wrong, ..op.clone() }, with(&[]), "Argument"));
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
    /// Uniform draws in `[lo, hi)`: `lo + (hi - lo) u` with one rounding, which may give `hi` itself.
    UniformRange "uniform_range" {
        /// Lower end of the range.
        lo: -1.5, finite, not [f32::NAN, f32::INFINITY];
        /// Upper end of the range.
        hi: 2.25, finite, not [f32::NAN, f32::NEG_INFINITY];
    } draws: 1, scalars: 0, bound: crate::Bound { ulps: 0.0, terms: 2.0 },
    value(self, u) = u[0].fma(R::c(f64::from(self.hi) - f64::from(self.lo)), R::c(f64::from(self.lo)))
}

/// 1 where a uniform draw is below `keep`, else 0. Every `keep` has a meaning, since one that is computed on the device
/// cannot be refused: from 1 on everything is kept, up to 0 or for NaN nothing.
fn kept<R: Real>(keep: R, u: R) -> R {
    R::where_gt(keep, u, R::c(1.0), R::c(0.0))
}

random_op! {
    /// 1 with probability `keep`, else 0. A `keep` of 1 or more keeps everything; one up to 0, or NaN, keeps nothing.
    Bernoulli "bernoulli" {
        /// Probability of a 1.
        keep: 0.35, any, not [];
    } draws: 1, scalars: 0, bound: crate::Bound::EXACT,
    value(self, u) = kept(R::c(f64::from(self.keep)), u[0])
}

random_op! {
    /// [`Bernoulli`] with the probability given by the input, a scalar. The probability has no gradient.
    BernoulliMask "bernoulli_mask" {} draws: 1, scalars: 1, bound: crate::Bound::EXACT,
    value(self, u) = kept(u[1], u[0])
}

random_op! {
    /// Normal draws by Box and Muller from two uniforms each: `z = sqrt(-2 ln(u + 2^-24)) cos(2 pi v)`. The value is
    /// `mean + std z` with one rounding. No draw is further than 5.77 `std` from the mean.
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
