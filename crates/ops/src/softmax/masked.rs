//! Softmax under a mask.

use super::SoftmaxBwd;
use super::along::{Along, nonempty_last};
use crate::fused::{FusedCode, Fusion};
use crate::softmax::rows::{Formula, Row};
use crate::{AnyTensor, Attrs, CpuRun, CudaRun, Gpu, Io, Op, Recorder, Val, mismatch};
use dittograd_device::cuda::Source;
use dittograd_device::{DType, Device, Meta};
use dittograd_numerics::error::Result;
use dittograd_numerics::scalar::{Real, Scalar};
use dittograd_numerics::tensor::Tensor;

/// `a` where the mask is 0, else `b`. NaN allows, as every other number does: only zeros are smaller in magnitude than the
/// smallest number.
#[inline(always)]
fn where_blocked<R: Real>(mask: R, a: R, b: R) -> R {
    R::where_gt(-mask.abs(), R::c(-f64::from(f32::from_bits(1))), a, b)
}

/// Softmax of what a mask allows; the rest is 0, and so is a row with nothing allowed.
#[derive(Clone, Copy)]
struct MaskedRow;

impl Formula<2> for MaskedRow {
    const NAME: &'static str = "masked_softmax";
    const MASKED: bool = true;

    #[inline(always)]
    fn score<R: Real>(self, [x, mask]: [R; 2]) -> R {
        where_blocked(mask, R::c(f64::NEG_INFINITY), x)
    }

    #[inline(always)]
    fn term<R: Real>(self, [x, mask]: [R; 2], m: R) -> R {
        where_blocked(mask, R::c(0.0), (x - m).decay())
    }

    #[inline(always)]
    fn post<R: Real>(self, _: [R; 2], row: Row<R>) -> R {
        // A blocked term is 0 whatever the sum is.
        R::where_gt(row.t, R::c(0.0), row.t * row.r, row.t)
    }
}

/// Softmax along the last axis of what a mask allows, from `x, mask`: where the mask is 0, an element takes part in
/// neither the maximum nor the sum and its result is exactly 0. A row with nothing allowed is all zeros, and no gradient
/// flows to it. The allowed elements of a row that holds NaN or `+inf` among them, or only `-inf`, become NaN. The mask has
/// the last axes of `x` and repeats over the others; it is float32, or u32 of zeros and ones. It has no gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MaskedSoftmax;

impl Op for MaskedSoftmax {
    const NAME: &'static str = "masked_softmax";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let [x, mask] = crate::arity(Self::NAME, ins)?;
        crate::typed(Self::NAME, ins, 0, DType::F32)?;
        nonempty_last(Self::NAME, x.shape)?;
        let (rank, lead) = (x.shape.rank(), x.shape.rank().checked_sub(mask.shape.rank()));
        let fits = lead.is_some_and(|lead| x.shape.dims()[lead..] == *mask.shape.dims());
        if !fits || (mask.shape.rank() == 0 && rank > 0) {
            let why = "the mask must have the last axes of the scores, as they are";
            return Err(mismatch(Self::NAME, why, x.shape, mask.shape));
        }
        Ok(x)
    }

    fn index_limit(&self, ins: &[Meta]) -> Option<(usize, usize)> {
        ins.get(1).filter(|m| m.dtype == DType::U32).map(|_| (1, 2))
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        Along::last(ins[0].shape).workspace(device)
    }

    fn cpu(&self, run: CpuRun<'_>) {
        Along::last(run.shape).cpu(MaskedRow, run);
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        Along::last(run.shape).cuda(&MaskedRow.kernel(), run)
    }

    fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
        Along::last(ins[0].shape).modules(&MaskedRow.kernel(), gpu)
    }

    fn fusion(&self, _ins: &[Meta]) -> Fusion {
        Fusion { prologue: Some((0, 1)), weight: 16, ..Fusion::default() }
    }

    fn fused_modules(&self, ins: &[Meta], gpu: &Gpu, fused: FusedCode<'_>) -> Option<Vec<Source>> {
        Along::last(ins[0].shape).joined(&MaskedRow.kernel(), gpu, fused)
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        Ok(vec![Some(r.record(SoftmaxBwd.into(), &[io.out, dy])?), None])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let x = ins[0].num()?;
        let allowed: Vec<bool> = match &ins[1] {
            AnyTensor::Num(mask) => mask.data().iter().map(|m| m.to_f64() != 0.0).collect(),
            AnyTensor::Idx(mask) => mask.data().iter().map(|&m| m != 0).collect(),
        };
        let width = x.shape().last();
        let mut out = Vec::with_capacity(x.data().len());
        for (row, x) in x.data().chunks(width).enumerate() {
            let at = row * width % allowed.len();
            let allowed = &allowed[at..at + width];
            let taken = || x.iter().zip(allowed).filter(|(_, a)| **a).map(|(&x, _)| x);
            let m = taken().fold(T::c(f64::NEG_INFINITY), |m, x| if x > m { x } else { m });
            let s = taken().fold(T::c(0.0), |s, x| s + (x - m).exp());
            let one = |(&x, &a): (&T, &bool)| if a { (x - m).exp() / s } else { T::c(0.0) };
            out.extend(x.iter().zip(allowed).map(one));
        }
        Tensor::with_shape(x.shape(), out)
    }

    fn from_attrs(attrs: &Attrs) -> Result<MaskedSoftmax> {
        attrs.only(&[])?;
        Ok(MaskedSoftmax)
    }
}
