//! Ops without tensor inputs: constants and random draws.
//!
//! A random op has a seed and a position in the stream of random calls. In eager mode the position is absolute. In a
//! compiled program it is relative to a counter that is a run-time input (two u32 words, low first). So each run draws
//! new numbers, and eager and compiled runs draw the same ones.

#[cfg(feature = "cases")]
mod cases;
mod draw;
mod whole;

pub use draw::{Bernoulli, BernoulliMask, Normal, Uniform, UniformRange};
pub use whole::{Permutation, RandInt};

use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Op, Recorder, Val, dims};
use dittograd_device::cuda::Source;
use dittograd_device::{DType, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::rng;
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;

const RANDOM_CU: &str = include_str!("random.cu");

/// A constant: every element is `value`.
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

/// Checks the inputs of a draw from the stream `(seed, counter + base)`: `scalars` numbers, then optionally the base.
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

/// The base counter of a compiled run; 0 in eager mode.
fn base(words: Option<&[f32]>) -> u64 {
    match words.map(bytemuck::cast_slice::<f32, u32>) {
        Some([low, high]) => u64::from(*low) | u64::from(*high) << 32,
        _ => 0,
    }
}

/// The stream's key for references, with the base as in [`base`].
fn reference_key<T: Scalar>(seed: u64, counter: u64, ins: &[AnyTensor<T>], scalars: usize) -> Result<u64> {
    let base = match ins.get(scalars) {
        Some(words) => base(Some(bytemuck::cast_slice(words.idx()?.data()))),
        None => 0,
    };
    Ok(rng::key(seed, counter.wrapping_add(base)))
}

/// Elements per task of the thread pool.
const ELEMENTS_PER_TASK: usize = 16 * 1024;
