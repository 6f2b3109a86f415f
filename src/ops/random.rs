//! Values made from nothing: constants and random draws.
//!
//! A random op knows its seed and its place in the stream of random calls. Eagerly that place is absolute;
//! in a compiled program it is relative to a counter that is a run-time input (two u32 words, low first),
//! so each run draws anew and eager and compiled runs draw the same numbers.

use super::map::grid;
use super::sampling::edge_shape;
use super::{
    Attr, Attrs, Bound, CpuRun, CudaRun, Gpu, Io, Op, Recorder, RefIn, Reject, Sample, Val, dims,
    sample_shapes,
};
use crate::device::cuda::Args;
use crate::device::{DType, Meta};
use crate::error::{Error, ErrorKind, Result};
use crate::numerics::rng::{self, Stream};
use crate::scalar::Scalar;
use crate::shape::Shape;
use crate::tensor::Tensor;

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
        super::arity::<0>(Self::NAME, ins)?;
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

    fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<(String, String)> {
        Vec::new()
    }

    fn vjp(&self, _r: &mut dyn Recorder, _io: Io<'_>, _dy: Val) -> Result<Vec<Option<Val>>> {
        Ok(Vec::new())
    }

    fn reference<T: Scalar>(&self, _ins: &[RefIn<T>]) -> Result<Tensor<T>> {
        Ok(Tensor::full(self.shape, T::from_f32(self.value)))
    }

    fn samples() -> Vec<Sample<Full>> {
        sample_shapes()
            .into_iter()
            .map(|shape| Sample { op: Full { shape, value: -1.25 }, ins: vec![] })
            .collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample<Full>> {
        Some(Sample { op: Full { shape: edge_shape(1, 3, stream), value: -1.25 }, ins: vec![] })
    }

    fn rejects() -> Vec<Reject<Full>> {
        let op = Full { shape: dims(&[2]), value: 0.0 };
        vec![Reject { op, ins: vec![Meta::f32(dims(&[2]))], want: "Arity" }]
    }

    fn bound(&self, _ins: &[Meta]) -> Bound {
        Bound::EXACT
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![("shape", Attr::List(self.shape.dims().to_vec())), ("value", Attr::Num(f64::from(self.value)))]
    }

    fn from_attrs(attrs: &Attrs) -> Result<Full> {
        attrs.only(&["shape", "value"])?;
        Ok(Full { shape: Shape::new(&attrs.list("shape")?)?, value: attrs.num("value")? as f32 })
    }
}

/// Draws of the stream `(seed, counter + base)`, where the base is the optional input.
fn check(op: &'static str, shape: Shape, ins: &[Meta]) -> Result<Meta> {
    if ins.len() > 1 {
        return Err(Error::new(op, ErrorKind::Arity { want: 1, got: ins.len() }));
    }
    if let [base] = ins {
        super::typed(op, ins, 0, DType::U32)?;
        if base.shape.dims() != [2] {
            return Err(super::mismatch(op, "the counter input must hold two words", base.shape, dims(&[2])));
        }
    }
    Ok(Meta::f32(shape))
}

/// The base counter of a compiled run.
fn base(words: &[u32]) -> u64 {
    match words {
        [low, high] => u64::from(*low) | u64::from(*high) << 32,
        _ => 0,
    }
}

/// Elements one task of the thread pool draws.
const TASK: usize = 16 * 1024;

fn draw(seed: u64, counter: u64, run: CpuRun<'_>, f: impl Fn(f32) -> f32 + Sync) {
    let base = if run.ins.is_empty() { 0 } else { base(run.indices(0)) };
    let key = rng::key(seed, counter.wrapping_add(base));
    run.pool.chunks_mut(run.out, TASK, |task, out| {
        for (i, y) in out.iter_mut().enumerate() {
            *y = f(rng::uniform(key, (task * TASK + i) as u64));
        }
    });
}

/// One thread per element, grid-stride; 4 bytes written per element.
const RANDOM_CU: &str = r#"
extern "C" __global__ void draw(float* __restrict__ out, unsigned long long n, unsigned long long seed,
                                unsigned long long counter, const unsigned* base, float keep, int mask) {
    if (base) counter += base[0] | (unsigned long long)base[1] << 32;
    const unsigned long long key = ditto_key(seed, counter);
    for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < n; i += (unsigned long long)gridDim.x * blockDim.x) {
        const float u = ditto_uniform(key, i);
        out[i] = mask ? (u < keep ? 1.0f : 0.0f) : u;
    }
}
"#;

fn module() -> (String, String) {
    ("random".into(), format!("{}{RANDOM_CU}", rng::cuda_text()))
}

fn draw_cuda(seed: u64, counter: u64, keep: Option<f32>, run: &CudaRun<'_>) -> Result<()> {
    let n = run.shape.numel();
    if n == 0 {
        return Ok(());
    }
    let (name, source) = module();
    let kernel = run.cuda.kernel(&name, &source, "draw")?;
    let mut args = Args::new();
    args.ptr(run.out).u64(n as u64).u64(seed).u64(counter).ptr(run.ins.first().copied().unwrap_or(0));
    args.f32(keep.unwrap_or(0.0)).i32(i32::from(keep.is_some()));
    run.cuda.launch(kernel, grid(run.cuda, n), 256, 0, &args)
}

macro_rules! random_op {
    ($(#[$doc:meta])* $op:ident $name:literal { $($(#[$attr_doc:meta])* $attr:ident: $default:literal),* } keep: $keep:expr, value: $value:expr) => {
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

        impl Op for $op {
            const NAME: &'static str = $name;

            fn shape(&self, ins: &[Meta]) -> Result<Meta> {
                $(if !(0.0..=1.0).contains(&self.$attr) {
                    let why = format!("{} is not a probability from 0 to 1", self.$attr);
                    return Err(Error::argument(Self::NAME, stringify!($attr), why));
                })*
                check(Self::NAME, self.shape, ins)
            }

            fn cpu(&self, run: CpuRun<'_>) {
                let f: fn(&$op, f32) -> f32 = $value;
                draw(self.seed, self.counter, run, |u| f(self, u));
            }

            fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
                let keep: fn(&$op) -> Option<f32> = $keep;
                draw_cuda(self.seed, self.counter, keep(self), run)
            }

            fn cuda_modules(&self, _ins: &[Meta], _gpu: &Gpu) -> Vec<(String, String)> {
                vec![module()]
            }

            fn vjp(&self, _r: &mut dyn Recorder, io: Io<'_>, _dy: Val) -> Result<Vec<Option<Val>>> {
                Ok(vec![None; io.ins.len()])
            }

            fn reference<T: Scalar>(&self, ins: &[RefIn<T>]) -> Result<Tensor<T>> {
                let base = ins.first().map_or(Ok(0), |i| i.idx().map(|t| base(t.data())))?;
                let key = rng::key(self.seed, self.counter.wrapping_add(base));
                let f: fn(&$op, f32) -> f32 = $value;
                Ok(Tensor::from_fn(self.shape, |i| T::from_f32(f(self, rng::uniform(key, i as u64)))))
            }

            fn samples() -> Vec<Sample<$op>> {
                let sample = |(i, shape): (usize, Shape)| Sample {
                    op: $op { shape, seed: 7, counter: i as u64, $($attr: $default),* },
                    ins: vec![],
                };
                let mut all: Vec<Sample<$op>> = sample_shapes().into_iter().enumerate().map(sample).collect();
                let op = $op { shape: dims(&[5, 7]), seed: 1, counter: 2, $($attr: $default),* };
                all.push(Sample { op, ins: vec![super::SampleIn::Idx(dims(&[2]), 1000)] });
                all
            }

            fn random(stream: &mut Stream) -> Option<Sample<$op>> {
                let shape = edge_shape(1, 3, stream);
                Some(Sample { op: $op { shape, seed: 7, counter: 0, $($attr: $default),* }, ins: vec![] })
            }

            fn rejects() -> Vec<Reject<$op>> {
                let op = $op { shape: dims(&[2]), seed: 0, counter: 0, $($attr: $default),* };
                let u = |d: &[usize]| Meta::u32(dims(d));
                #[allow(unused_mut)]
                let mut bad = vec![
                    Reject { op: op.clone(), ins: vec![u(&[2]), u(&[2])], want: "Arity" },
                    Reject { op: op.clone(), ins: vec![u(&[3])], want: "Shapes" },
                    Reject { op: op.clone(), ins: vec![Meta::f32(dims(&[2]))], want: "DType" },
                ];
                $(for wrong in [-0.5, 1.5, f32::NAN] {
                    bad.push(Reject { op: $op { $attr: wrong, ..op.clone() }, ins: vec![], want: "Argument" });
                })*
                bad
            }

            fn bound(&self, _ins: &[Meta]) -> Bound {
                Bound::EXACT
            }

            fn differentiable(&self) -> bool {
                false
            }

            fn attrs(&self) -> Vec<(&'static str, Attr)> {
                vec![
                    ("shape", Attr::List(self.shape.dims().to_vec())),
                    ("seed", Attr::Num(self.seed as f64)),
                    ("counter", Attr::Num(self.counter as f64)),
                    $((stringify!($attr), Attr::Num(f64::from(self.$attr))),)*
                ]
            }

            fn from_attrs(attrs: &Attrs) -> Result<$op> {
                attrs.only(&["shape", "seed", "counter", $(stringify!($attr)),*])?;
                Ok($op {
                    shape: Shape::new(&attrs.list("shape")?)?,
                    seed: attrs.num("seed")? as u64,
                    counter: attrs.num("counter")? as u64,
                    $($attr: attrs.num(stringify!($attr))? as f32,)*
                })
            }
        }
    };
}

random_op! {
    /// Uniform draws in `[0, 1)`: multiples of 2^-24, never 1.
    Uniform "uniform" {} keep: |_| None, value: |_, u| u
}

random_op! {
    /// 1 with probability `keep`, else 0. A `keep` of 1 keeps everything, of 0 nothing.
    Bernoulli "bernoulli" {
        /// Probability of a 1.
        keep: 0.35
    } keep: |op| Some(op.keep), value: |op, u| if u < op.keep { 1.0 } else { 0.0 }
}
