//! Ops of one's own: hand-written kernels for CPU and CUDA, and a gradient that is not the derivative. Both are used as the library's
//! own ops are, eagerly and in a compiled step.

use dittograd::device::{DType, Meta};
use dittograd::ops::{CpuRun, CudaKernel, Custom, Io, Op, Recorder, Val};
use dittograd::prelude::*;
use dittograd::scalar::Scalar;

/// The second difference along the last axis, `x[i - 1] - 2 x[i] + x[i + 1]`, with zeros beyond the ends.
#[derive(Clone, Debug, PartialEq)]
pub struct SecondDifference;

/// `before - 2 at + after`, rounded once less than it is written: the product is exact.
fn second_difference<T: Scalar>(row: &[T], i: usize) -> T {
    let at = |i: usize| row.get(i).copied().unwrap_or(T::c(0.0));
    at(i.wrapping_sub(1)) + at(i + 1) - T::c(2.0) * at(i)
}

impl Op for SecondDifference {
    const NAME: &'static str = "second_difference";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let [x] = ins else {
            return Err(Error::argument(Self::NAME, "inputs", format!("takes one, got {}", ins.len())));
        };
        if x.dtype != DType::F32 || x.shape.rank() == 0 {
            return Err(Error::argument(Self::NAME, "x", "must be numbers with at least one axis"));
        }
        Ok(*x)
    }

    fn cpu(&self, run: CpuRun<'_>) {
        let columns = run.shape.dims().last().copied().unwrap_or(1).max(1);
        for (row, out) in run.ins[0].chunks(columns).zip(run.out.chunks_mut(columns)) {
            for (i, out) in out.iter_mut().enumerate() {
                *out = second_difference(row, i);
            }
        }
    }

    fn cuda_kernel(&self, ins: &[Meta]) -> Option<CudaKernel> {
        let columns = ins[0].shape.dims().last().copied().unwrap_or(1).max(1);
        let source = format!(
            "extern \"C\" __global__ void second_difference(const float* x, float* y, unsigned n) {{
                unsigned i = blockIdx.x * 256 + threadIdx.x;
                if (i >= n) return;
                float before = i % {columns} > 0 ? x[i - 1] : 0.0f;
                float after = i % {columns} + 1 < {columns} ? x[i + 1] : 0.0f;
                y[i] = before + after - 2.0f * x[i];
            }}"
        );
        CudaKernel::for_each(source, "second_difference", ins[0].shape.numel())
    }

    /// The op is its own transpose.
    fn vjp(&self, r: &mut dyn Recorder, _io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        Ok(vec![Some(r.record(Custom::new(SecondDifference)?.into(), &[dy])?)])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let x = ins[0].num()?;
        let columns = x.shape().dims().last().copied().unwrap_or(1).max(1);
        Ok(Tensor::from_fn(x.shape(), |i| {
            let row = i / columns * columns;
            second_difference(&x.data()[row..row + columns], i - row)
        }))
    }

    fn from_attrs(_: &dittograd::ops::Attrs) -> Result<Self> {
        Ok(SecondDifference)
    }
}

/// Rounds to whole steps; the gradient is passed through as if it did not: the straight-through estimator. Without a kernel of its
/// own, the CPU computes the definition.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundThrough;

impl Op for RoundThrough {
    const NAME: &'static str = "round_through";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        ins.first().copied().ok_or_else(|| Error::argument(Self::NAME, "inputs", "takes one, got 0"))
    }

    fn cuda_kernel(&self, ins: &[Meta]) -> Option<CudaKernel> {
        let source = "extern \"C\" __global__ void round_through(const float* x, float* y, unsigned n) {
            unsigned i = blockIdx.x * 256 + threadIdx.x;
            if (i < n) y[i] = rintf(x[i]);
        }";
        CudaKernel::for_each(source, "round_through", ins[0].shape.numel())
    }

    fn vjp(&self, _r: &mut dyn Recorder, _io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        Ok(vec![Some(dy)])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        Ok(ins[0].num()?.map(|x| x.round()))
    }
}

/// How far the weights, rounded and smoothed, are from a target.
pub fn loss<'s>(weights: &Param, target: Var<'s>) -> Result<Var<'s>> {
    let session = target.session();
    let steps = session.custom(&RoundThrough, &[session.param(weights)?])?;
    session.custom(&SecondDifference, &[steps])?.sub(target)?.square()?.mean()
}

/// Trains for some steps, eagerly or compiled, and returns the fingerprint of the weights.
pub fn train(device: &Device, is_compiled: bool) -> Result<String> {
    let mut params = Params::new(device, 7);
    let weights = params.uniform("weights", &[16, 33], -3.0, 3.0)?;
    let target = Tensor::from_fn(Shape::new(&[16, 33])?, |i| (i * 7 % 11) as f32 - 5.0);
    let optimizer = Optimizer::adamw(0.05);
    if is_compiled {
        let mut step = TrainStep::new(&params, optimizer, move |v| loss(&weights, v[0]));
        for _ in 0..30 {
            step.run(&[(&target).into()])?;
        }
    } else {
        let mut optimizer = optimizer;
        for _ in 0..30 {
            let session = Session::eager(device);
            let loss = loss(&weights, session.input(&target)?)?;
            optimizer.step(&params, loss.backward()?)?;
        }
    }
    params.fingerprint()
}

fn main() -> Result<()> {
    let device = Device::best()?;
    let (eager, compiled) = (train(&device, false)?, train(&device, true)?);
    println!("{device}: eager {eager}, compiled {compiled}");
    assert_eq!(eager, compiled);
    Ok(())
}
