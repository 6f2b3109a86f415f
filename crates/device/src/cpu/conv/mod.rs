//! Convolutions, and the gradients of their kernels.
//!
//! A convolution is a matrix product whose second operand is a view of the source: [`View`] says which source element a
//! tap reads at a position. Positions outside the source are zeros and take part in the sum. The order of summation is
//! that of [`super::gemm`], whichever algorithm is used:
//!
//! - `gather`: implicit GEMM. Elements are gathered while panels are packed, so that at most a cache-sized part is
//!   copied at a time. `kernel_grad` does the same for kernel gradients;
//! - `channels`, `channels_grad`: lanes are output channels, and source elements are broadcast from a padded copy;
//! - [`depthwise`], `depthwise_grad`: many groups of few channels. Lanes are neighbouring outputs, or groups;
//! - `digits`, `digits_grad`: modes `fast` and `turbo`;
//! - `bands`, `padded_copy`, `position_tile`: shared parts: padded copies of the source, and tiles of positions;
//! - `view`, `pack`, `kernel`: views, packing of kernels, and microkernels.

mod bands;
mod channels;
mod channels_grad;
pub mod depthwise;
mod depthwise_grad;
mod digits;
mod digits_grad;
mod gather;
pub(crate) mod kernel;
mod kernel_grad;
mod pack;
mod padded_copy;
mod position_tile;
mod view;

pub use bands::Reach;
pub use view::{Axis, MAX_AXES, View};

use super::simd::Simd;
use super::threads::Pool;
use channels::ByChannels;

/// A convolution, or those positions of a transposed one that have the same taps. For each image and group,
/// `out[row, position] = Σ w[row, channel, tap] · source[channel, position and tap] (+ bias[row])`, summed over
/// (channel, tap) like a matrix product.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gather {
    /// Positions and taps.
    pub view: View,
    /// Images.
    pub batch: usize,
    /// Groups of channels.
    pub groups: usize,
    /// Channels of the result in a group.
    pub rows: usize,
    /// Channels of the source in a group.
    pub channels: usize,
    /// Elements of the kernel from one group, row and channel to the next.
    pub w_strides: [usize; 3],
}

impl Gather {
    /// Terms of a sum.
    pub(crate) fn k(&self) -> usize {
        self.channels * self.view.taps()
    }

    /// Number of floats of workspace that [`Gather::run`] needs with a pool of `threads`.
    pub fn scratch_len(&self, threads: usize) -> usize {
        if self.k() == 0 {
            return 0;
        }
        if let Some(by_channels) = ByChannels::new(self, threads) {
            return by_channels.scratch_len(threads);
        }
        self.gathered_scratch_len(threads)
    }

    /// Computes the result at this view's positions. `scratch` has at least `scratch_len(pool.threads())`
    /// elements, of any value.
    ///
    /// # Panics
    /// If a slice does not have the length that the sizes give.
    #[allow(clippy::too_many_arguments)]
    pub fn run(
        &self,
        pool: &Pool,
        simd: Simd,
        source: &[f32],
        w: &[f32],
        bias: Option<&[f32]>,
        out: &mut [f32],
        scratch: &mut [f32],
    ) {
        self.check_lengths(source, w, bias, out);
        if out.is_empty() || self.view.positions() == 0 {
            return;
        }
        if self.k() == 0 {
            self.fill(pool, bias, out);
            return;
        }
        let threads = pool.threads();
        if let Some(by_channels) = ByChannels::new(self, threads) {
            by_channels.run(pool, simd, source, w, bias, out, scratch);
            return;
        }
        self.run_gathered(pool, simd, source, w, bias, out, scratch);
    }

    /// # Panics
    /// If a slice does not have the length that the sizes give.
    fn check_lengths(&self, source: &[f32], w: &[f32], bias: Option<&[f32]>, out: &[f32]) {
        let Gather { view, batch, groups, rows, channels, .. } = *self;
        assert_eq!(source.len(), batch * groups * channels * view.plane(), "length of source");
        assert_eq!(w.len(), groups * rows * channels * view.w_plane(), "length of w");
        assert_eq!(out.len(), batch * groups * rows * view.out_plane(), "length of out");
        assert!(bias.is_none_or(|b| b.len() == groups * rows), "length of bias");
    }

    /// Writes positions that no tap reaches: +0.0 and the bias.
    fn fill(&self, pool: &Pool, bias: Option<&[f32]>, out: &mut [f32]) {
        let axes = self.view.axes();
        let (inner, outer) = (axes[axes.len() - 1], &axes[..axes.len() - 1]);
        let lines = outer.iter().map(|a| a.positions).product::<usize>();
        pool.chunks_mut(out, self.view.out_plane(), |channel, out| {
            let value = bias.map_or(0.0, |b| 0.0 + b[channel % (self.groups * self.rows)]);
            for line in 0..lines {
                let (mut rest, mut at, mut stride) = (line, inner.out_first, inner.out);
                for a in outer.iter().rev() {
                    at += (a.out_first + rest % a.positions * a.out_step) * stride;
                    rest /= a.positions;
                    stride *= a.out;
                }
                out[at..].iter_mut().step_by(inner.out_step).take(inner.positions).for_each(|x| *x = value);
            }
        });
    }
}

/// The kernel gradient of a convolution: for each group,
/// `out[row, channel, tap] = Σ g[image, row, position] · source[image, channel, position and tap]`, summed over (image,
/// position) like a matrix product.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KernelGrad {
    /// Positions and taps. The view's result is dense and has the layout of `g`; its kernel is the whole kernel.
    pub view: View,
    /// Images.
    pub batch: usize,
    /// Groups of channels.
    pub groups: usize,
    /// Channels of `g` in a group.
    pub rows: usize,
    /// Channels of the source in a group.
    pub channels: usize,
}
