//! Which CUDA kernels run: those in digits, or those of modes `strict` and `tf32`.

use super::cuda::{self, BackwardWorkspace, Variant, delta_module};
use super::cuda_digits;
use super::geometry::{Geometry, Scoring};
use crate::Gpu;
use dittograd_device::cuda::{Cuda, Source};
use dittograd_numerics::error::Result;

/// Words of workspace of the forward pass.
pub(super) fn forward_workspace(g: &Geometry, gpu: &Gpu) -> usize {
    g.digits(gpu.numerics).map_or(0, |digits| cuda_digits::forward_workspace(g, digits))
}

/// The modules of the forward pass.
pub(super) fn forward_modules(scoring: Scoring, g: &Geometry, gpu: &Gpu) -> Vec<Source> {
    match g.digits(gpu.numerics) {
        Some(digits) => cuda_digits::forward_modules(scoring, g, digits),
        None => Variant::forward(g, gpu).map_or(Vec::new(), |v| vec![v.module(g, scoring.flips(g.d))]),
    }
}

/// The forward pass, on the addresses of `q, k, v` and the mask, to those of the outputs, logarithms and largest scores.
pub(super) fn forward(
    cuda: &Cuda,
    scoring: Scoring,
    g: &Geometry,
    ins: [u64; 4],
    outs: [u64; 3],
    workspace: u64,
) -> Result<()> {
    match g.digits(cuda.numerics()) {
        Some(digits) => cuda_digits::forward_cuda(cuda, scoring, g, digits, ins, outs, workspace),
        None => cuda::forward_cuda(cuda, scoring, g, ins, outs),
    }
}

/// Words of workspace of the backward pass, which begins with `delta`.
pub(super) fn backward_workspace(g: &Geometry, gpu: &Gpu) -> usize {
    match g.digits(gpu.numerics) {
        Some(digits) => cuda_digits::backward_workspace(g, digits),
        None => BackwardWorkspace::of(g).end,
    }
}

/// The modules of the backward pass.
pub(super) fn backward_modules(scoring: Scoring, g: &Geometry, gpu: &Gpu) -> Vec<Source> {
    let mut all = vec![delta_module(g)];
    match g.digits(gpu.numerics) {
        Some(digits) => all.extend(cuda_digits::backward_modules(scoring, g, digits, gpu)),
        None => all.extend(Variant::backward(g, gpu).ok().map(|v| v.module(g, scoring.flips(g.d)))),
    }
    all
}

/// The backward pass, on the addresses of `q, k, v` and the mask, and of `dy`, the logarithms and the largest scores, to those of the
/// gradients. The workspace begins with `delta`, which is computed.
pub(super) fn backward(
    cuda: &Cuda,
    scoring: Scoring,
    g: &Geometry,
    ins: [u64; 4],
    statistics: [u64; 3],
    grads: [u64; 3],
    workspace: u64,
) -> Result<()> {
    match g.digits(cuda.numerics()) {
        Some(digits) => {
            cuda_digits::backward_cuda(cuda, scoring, g, digits, ins, statistics, grads, workspace)
        }
        None => cuda::backward_cuda(cuda, scoring, g, ins, statistics, grads, workspace),
    }
}
