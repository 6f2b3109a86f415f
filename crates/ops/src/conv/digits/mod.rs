//! How convolutions in digits (C9 of the contract) run on CUDA: which variants of the kernels, over which grids. The choice affects
//! only speed, never bits: sums of digits are exact.

mod columns;
mod grad;
mod product;
mod tile;

pub(super) use columns::ColumnsPlan;
pub(super) use grad::GradPlan;

use crate::conv::plan::{Pointers, Step};
use crate::fused::EpilogueCode;
use crate::magnitudes::Lines;
use crate::matmul;
use crate::matmul::plan::{MAX_X, clamp, defines};
use dittograd_device::cpu::conv::{Axis, Gather, KernelGrad, MAX_AXES, Reach};
use dittograd_device::cuda::{Args, Source};
use dittograd_numerics::digits::LEAST_EXPONENT;
use dittograd_numerics::error::Result;

const DIGITS_CU: &str = concat!(
    include_str!("../../matmul/results.cu"),
    include_str!("../../magnitudes.cu"),
    include_str!("../../matmul/digit_parts.cu"),
    include_str!("../../matmul/hopper_parts.cu"),
    include_str!("digits.cu"),
    include_str!("convert.cu"),
    include_str!("product.cu")
);

/// Terms of k in a block of digits, and in a group that is copied at a time.
const BLOCK: usize = 64;
const GROUP: usize = 16;

/// Threads of a block, but for those of products and those that write the digits of a gradient.
const THREADS: u32 = 256;

/// An axis as `digits.cu` has it: every `scale`-th element is in a box, and these are `stride` places apart.
#[derive(Clone, Copy)]
struct BoxAxis {
    reach: Reach,
    scale: usize,
    stride: usize,
}

/// Words of an axis.
const AXIS: usize = 16;

impl BoxAxis {
    /// Its elements in a box.
    fn extent(&self) -> usize {
        if self.scale == 1 { self.reach.extent() } else { self.reach.axis.positions }
    }

    fn words(&self) -> [u64; AXIS] {
        let Axis {
            positions,
            step,
            taps,
            first,
            tap_step,
            source,
            out_first,
            out_step,
            out,
            w_first,
            w_step,
            w,
        } = self.reach.axis;
        let n = |x: usize| x as u64;
        let signed = |x: isize| (x as i64).cast_unsigned();
        [
            n(positions),
            n(step / self.scale),
            n(taps),
            signed(first),
            signed(tap_step),
            n(source),
            signed(self.reach.low),
            n(self.scale),
            n(self.extent()),
            n(self.stride),
            n(out_first),
            n(out_step),
            n(out),
            n(w_first),
            n(w_step),
            n(w),
        ]
    }
}

/// The axes of views that read one box, outermost first, and the places of the box.
fn box_of(views: &[&[Axis]]) -> (Vec<Vec<BoxAxis>>, usize) {
    let mut all = vec![Vec::new(); views.len()];
    let mut places = 1;
    for d in (0..views[0].len()).rev() {
        let reaches: Vec<Reach> = views.iter().map(|axes| Reach::of(axes[d])).collect();
        let low = reaches.iter().map(|r| r.low).min().unwrap_or(0);
        let high = reaches.iter().map(|r| r.low + r.span as isize).max().unwrap_or(0);
        let span = (high - low).cast_unsigned();
        // What a single tap skips is not in the box.
        let scale = if span == 1 { reaches[0].axis.step } else { 1 };
        let mut extent = 1;
        for (axes, reach) in all.iter_mut().zip(reaches) {
            let axis = BoxAxis { reach: Reach { low, span, ..reach }, scale, stride: places };
            extent = axis.extent();
            axes.insert(0, axis);
        }
        places *= extent;
    }
    (all, places)
}

/// The most axes of the variant for images, and the most convolutions that are computed together.
const IMAGE_AXES: usize = 2;
const MOST_CLASSES: usize = 4;

/// Convolutions of one source and kernel, as many at a time as can be computed together: those that read the same box, as the classes of a
/// transposed one mostly do.
pub(super) fn together(classes: &[Gather]) -> impl Iterator<Item = &[Gather]> {
    let is_alone = |g: &Gather| g.channels * g.view.taps() == 0 || g.view.axes().len() > IMAGE_AXES;
    let places = |g: &Gather| g.view.axes().iter().map(|a| (a.positions, a.step)).collect::<Vec<_>>();
    let mut rest = classes;
    std::iter::from_fn(move || {
        let first = rest.first()?;
        let fits = |g: &&Gather| !is_alone(g) && places(g) == places(first);
        let count = if is_alone(first) { 1 } else { rest.iter().take(MOST_CLASSES).take_while(fits).count() };
        let (now, others) = rest.split_at(count);
        rest = others;
        Some(now)
    })
}

/// A struct of 64-bit words.
fn push(args: &mut Args, words: &[u64]) {
    args.bytes(bytemuck::cast_slice(words), 8);
}

/// The axes that a variant has room for.
fn room(axes: usize) -> usize {
    if axes <= IMAGE_AXES { IMAGE_AXES } else { MAX_AXES }
}

/// `Axes` of `digits.cu`.
fn axes_words(axes: &[BoxAxis]) -> Vec<u64> {
    let mut words = vec![axes.len() as u64];
    for d in 0..room(axes.len()) {
        words.extend(axes.get(d).map_or([0; AXIS], BoxAxis::words));
    }
    words
}

/// `Class` of `digits.cu`: taps, blocks of k, where digits and table begin, in bytes and groups of k, and axes.
#[derive(Clone)]
struct Class {
    taps: usize,
    blocks: usize,
    digits: usize,
    table: usize,
    axes: Vec<BoxAxis>,
}

impl Class {
    fn words(&self) -> Vec<u64> {
        let mut words = [self.taps, self.blocks, self.digits, self.table].map(|x| x as u64).to_vec();
        words.extend(axes_words(&self.axes));
        words
    }
}

/// `Classes` of `digits.cu`.
fn push_classes(args: &mut Args, classes: &[Class]) {
    push(args, &classes.iter().flat_map(Class::words).collect::<Vec<_>>());
}

/// The channels of the images that a convolution reads.
pub(super) fn columns_lines(g: &Gather) -> Lines {
    Lines { start: 0, length: g.view.plane(), count: g.batch * g.groups * g.channels }
}

/// The channels of both operands of a kernel's gradient.
pub(super) fn grad_lines(g: &KernelGrad) -> [Lines; 2] {
    let of =
        |channels: usize, length: usize| Lines { start: 0, length, count: g.batch * g.groups * channels };
    [of(g.rows, g.view.positions()), of(g.channels, g.view.plane())]
}

/// Images: where they are, their channels, how many an image has, and where the largest magnitudes of channels are.
struct Images {
    x: u64,
    lines: Lines,
    channels: usize,
    magnitudes: u64,
}

impl Images {
    /// Input `i`. Its magnitudes are those that are known, else a launch finds them and leaves them at `own`.
    fn input(
        at: &Pointers,
        i: usize,
        lines: Lines,
        channels: usize,
        own: u64,
        f: &mut dyn FnMut(Step) -> Result<()>,
    ) -> Result<Images> {
        let known = at.magnitudes[i];
        let images =
            Images { x: at.ins[i], lines, channels, magnitudes: if known == 0 { own } else { known } };
        if known == 0 {
            f(images.step())?;
        }
        Ok(images)
    }

    fn words(&self) -> [u64; 5] {
        let Lines { length, count, .. } = self.lines;
        [self.x, self.channels as u64, length as u64, self.magnitudes, count as u64]
    }

    /// The launch that finds the magnitudes.
    fn step(&self) -> Step {
        let lines = defines(&[
            ("PART", 0),
            ("DIGITS", 2),
            ("INTERLEAVE", 1),
            ("AXES", IMAGE_AXES),
            ("CLASSES", 1),
            ("VECTOR", usize::from(self.lines.vector() == 4)),
            ("WARPS", self.lines.warps()),
        ]);
        let mut args = Args::new();
        push(&mut args, &self.words());
        args.ptr(self.magnitudes);
        Step {
            module: source(&lines, None),
            kernel: "ditto_conv_magnitudes",
            grid: [clamp(self.lines.blocks(), MAX_X), 1, 1],
            block: THREADS,
            shared: 0,
            args,
        }
    }
}

/// A variant of the kernels: a name of its own, and the text.
fn source(lines: &str, epilogue: Option<&EpilogueCode>) -> Source {
    let contract = format!("#define LEAST_EXPONENT ({LEAST_EXPONENT})\n");
    matmul::text("conv_digits", lines, epilogue, |before| format!("{contract}{lines}{before}{DIGITS_CU}"))
}
