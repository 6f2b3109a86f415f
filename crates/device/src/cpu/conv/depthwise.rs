//! Depthwise convolutions, and others with many groups of few channels: products too thin for the tiles of
//! [`crate::cpu::gemm`]. Vector lanes are neighbouring outputs; in a kernel gradient they are groups. They are never
//! terms of one sum, so the order of summation is that of the other algorithms.

pub use super::depthwise_grad::DepthwiseGrad;

use super::Gather;
use super::bands::{Bands, digits};
use crate::cpu::LINE;
use crate::cpu::lanes::stencil;
use crate::cpu::simd::Simd;
use crate::cpu::threads::Pool;
use dittograd_numerics::K_CHUNK;
use dittograd_numerics::shape::MAX_RANK;

/// The most pairs of channels (of source and result) in a group.
pub(super) const MAX_CHANNEL_PAIRS: usize = 8;
/// Floats of a box, so that it stays in the L1 cache beside its outputs.
const BOX_LEN: usize = 8192;
/// The most floats of a thread's box, or of its lines in a gradient.
pub(super) const MAX_LINES_LEN: usize = 1 << 18;
/// The most positions of a line in a box.
pub(super) const MAX_LINE_POSITIONS: usize = 512;
/// Tasks per thread.
pub(super) const TASKS_PER_THREAD: usize = 4;

impl Bands {
    /// Floats of the box, with room for the last vectors to read beyond it.
    fn box_len(&self) -> usize {
        self.gather.channels * self.channel + 2 * LINE
    }

    /// Floats of the outputs of a band, in whole vectors.
    fn sums_len(&self) -> usize {
        (self.lines * self.pitch).next_multiple_of(LINE)
    }

    fn slot_len(&self) -> usize {
        self.box_len() + self.sums_len() + self.offsets.len()
    }

    /// Copies the source of a band into the box; `source` is the channels of a group.
    fn fill(&self, source: &[f32], around: &[usize; MAX_RANK], l0: usize, p0: usize, to: &mut [f32]) {
        let step = self.along.axis.step;
        for (c, source) in source.chunks_exact(self.gather.view.plane()).enumerate() {
            let mut lines = to[c * self.channel..][..self.channel].chunks_exact_mut(self.pitch);
            self.lines(around, l0, p0, |at, inside| {
                let Some(to) = lines.next() else { return };
                if inside.is_empty() {
                    to.fill(0.0);
                    return;
                }
                to[..inside.start].fill(0.0);
                to[inside.end..].fill(0.0);
                let source = &source[at.wrapping_add((inside.start * step) as isize).cast_unsigned()..];
                if step == 1 {
                    to[inside.clone()].copy_from_slice(&source[..inside.len()]);
                } else {
                    for (to, x) in to[inside].iter_mut().zip(source.iter().step_by(step)) {
                        *to = *x;
                    }
                }
            });
        }
    }

    /// Computes a group of an image; `source` and `out` are its channels.
    #[allow(clippy::too_many_arguments)]
    fn plane(
        &self,
        simd: Simd,
        group: usize,
        source: &[f32],
        w: &[f32],
        bias: Option<&[f32]>,
        out: &mut [f32],
        scratch: &mut [f32],
    ) {
        let Gather { view, rows, channels, w_strides: [by_group, by_row, by_channel], .. } = self.gather;
        let (copied, rest) = scratch.split_at_mut(self.box_len());
        let (sums, rest) = rest.split_at_mut(self.sums_len());
        let kernel = &mut rest[..self.offsets.len()];
        copied[self.gather.channels * self.channel..].fill(0.0);
        let (down, along, taps) = (&self.down.axis, &self.along.axis, view.taps());
        for n in 0..self.around.iter().map(|a| a.axis.positions).product() {
            let at = digits(n, &self.around, |a| a.positions);
            let sheet = self
                .around
                .iter()
                .zip(at)
                .fold(0, |to, (a, p)| to * a.axis.out + a.axis.out_first + p * a.axis.out_step);
            for l0 in (0..down.positions).step_by(self.lines) {
                for p0 in (0..along.positions).step_by(self.positions) {
                    self.fill(source, &at, l0, p0, copied);
                    let lines = self.lines.min(down.positions - l0);
                    let positions = self.positions.min(along.positions - p0);
                    let len = ((lines - 1) * self.pitch + positions).next_multiple_of(LINE);
                    for (row, out) in out.chunks_exact_mut(view.out_plane()).enumerate() {
                        for (i, to) in kernel.iter_mut().enumerate() {
                            let at = i / taps * by_channel + view.w_at(i % taps);
                            *to = w[group * by_group + row * by_row + at];
                        }
                        debug_assert_eq!(kernel.len(), channels * taps);
                        // Without a bias, add -0.0, which changes no bit.
                        let add = bias.map_or(-0.0, |b| b[group * rows + row]);
                        stencil(simd, copied, &self.offsets, kernel, add, &mut sums[..len]);
                        for l in 0..lines {
                            let y = sheet * down.out + down.out_first + (l0 + l) * down.out_step;
                            let to = &mut out[y * along.out + along.out_first + p0 * along.out_step..];
                            let sums = &sums[l * self.pitch..][..positions];
                            if along.out_step == 1 {
                                to[..positions].copy_from_slice(sums);
                            } else {
                                for (to, x) in to.iter_mut().step_by(along.out_step).zip(sums) {
                                    *to = *x;
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Whether groups are so small, and sums so short, that lanes are best used for positions.
fn is_depthwise(gather: &Gather) -> bool {
    let Gather { view, batch, groups, rows, channels, .. } = *gather;
    groups > 1
        && batch > 0
        && rows > 0
        && rows * channels <= MAX_CHANNEL_PAIRS
        && channels * view.taps() <= K_CHUNK
}

/// Depthwise convolutions that write disjoint positions of one result: one convolution, or the classes of a transposed
/// one.
pub struct Depthwise {
    classes: Vec<Bands>,
}

impl Depthwise {
    /// The plan, if this is faster for all of the convolutions, provided they [feed](Depthwise::feeds) all threads.
    pub fn new(classes: impl Iterator<Item = Gather>) -> Option<Depthwise> {
        let mut all = Vec::new();
        for gather in classes {
            if !is_depthwise(&gather) {
                return None;
            }
            all.push(
                Bands::new(&gather, MAX_LINE_POSITIONS, BOX_LEN)
                    .filter(|bands| bands.box_len() <= MAX_LINES_LEN)?,
            );
        }
        (!all.is_empty()).then_some(Depthwise { classes: all })
    }

    /// Whether there is enough work for this many threads.
    pub fn feeds(&self, threads: usize) -> bool {
        self.classes.iter().all(|c| c.gather.batch * c.gather.groups >= threads)
    }

    fn slot_len(&self) -> usize {
        self.classes.iter().map(Bands::slot_len).max().unwrap_or(0).next_multiple_of(LINE)
    }

    /// Number of floats of workspace that [`Depthwise::run`] needs with a pool of `threads`.
    pub fn scratch_len(&self, threads: usize) -> usize {
        self.slot_len() * TASKS_PER_THREAD * threads
    }

    /// Computes the result at the positions of all classes. `scratch` has at least `scratch_len(pool.threads())`
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
        let Some(first) = self.classes.first() else { return };
        let Gather { view, batch, groups, rows, channels, .. } = first.gather;
        let (size, out_size) = (channels * view.plane(), rows * view.out_plane());
        assert_eq!(source.len(), batch * groups * size, "length of source");
        assert_eq!(out.len(), batch * groups * out_size, "length of out");
        let slot = self.slot_len();
        let planes = batch * groups;
        let share = planes.div_ceil((TASKS_PER_THREAD * pool.threads()).min(planes));
        let tasks = planes.div_ceil(share);
        assert!(scratch.len() >= tasks * slot, "length of scratch");
        pool.pieces_mut([out, scratch], [share * out_size, slot], tasks, |task, [out, scratch]| {
            for (i, out) in out.chunks_exact_mut(out_size).enumerate() {
                let plane = task * share + i;
                let source = &source[plane * size..][..size];
                for class in &self.classes {
                    class.plane(simd, plane % groups, source, w, bias, out, scratch);
                }
            }
        });
    }
}
