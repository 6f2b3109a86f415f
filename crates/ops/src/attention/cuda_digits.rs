//! Attention in digits on CUDA.

use super::cuda::{self, BackwardWorkspace, Variant};
use super::geometry::{Geometry, Scoring};
use crate::Gpu;
use dittograd_device::cuda::{Cuda, Source};
use dittograd_numerics::digits::Digits;
use dittograd_numerics::error::Result;

/// Words of workspace of the forward pass.
pub(super) fn forward_workspace(_g: &Geometry, _digits: Digits, _gpu: &Gpu) -> usize {
    0
}

/// The modules that [`forward_cuda`] launches kernels of.
pub(super) fn forward_modules(scoring: Scoring, g: &Geometry, _digits: Digits, gpu: &Gpu) -> Vec<Source> {
    Variant::forward(g, gpu).map_or(Vec::new(), |v| vec![v.module(g, scoring.flips(g.d))])
}

/// The forward pass, on the addresses of `q, k, v` and the mask, to those of the outputs, logarithms and largest scores.
pub(super) fn forward_cuda(
    cuda: &Cuda,
    scoring: Scoring,
    g: &Geometry,
    _digits: Digits,
    ins: [u64; 4],
    outs: [u64; 3],
    _workspace: u64,
) -> Result<()> {
    cuda::forward_cuda(cuda, scoring, g, ins, outs)
}

/// Words of workspace of the backward pass, which begins with `delta`.
pub(super) fn backward_workspace(g: &Geometry, _digits: Digits, _gpu: &Gpu) -> usize {
    BackwardWorkspace::of(g).end
}

/// The modules that [`backward_cuda`] launches kernels of.
pub(super) fn backward_modules(scoring: Scoring, g: &Geometry, _digits: Digits, gpu: &Gpu) -> Vec<Source> {
    Variant::backward(g, gpu).map_or(Vec::new(), |v| vec![v.module(g, scoring.flips(g.d))])
}

/// The backward pass, on the addresses of `q, k, v` and the mask, and of `dy`, the logarithms and the largest scores, to those of the
/// gradients. The workspace begins with `delta`, which is computed.
#[allow(clippy::too_many_arguments)]
pub(super) fn backward_cuda(
    cuda: &Cuda,
    scoring: Scoring,
    g: &Geometry,
    _digits: Digits,
    ins: [u64; 4],
    statistics: [u64; 3],
    grads: [u64; 3],
    workspace: u64,
) -> Result<()> {
    cuda::backward_cuda(cuda, scoring, g, ins, statistics, grads, workspace)
}
