//! Convolutions over any number of spatial axes, with stride, padding, dilation and groups: the convolution,
//! its transpose, and the gradient of its kernel. The three are one trilinear form, so that each is made of
//! the others when differentiated. Every output is a dot product in the order of the contract; operands
//! are gathered on the way into tiles, no matrix of columns is ever stored.
//!
//! With `o` an output position, `κ` a tap of the kernel, axis by axis `i = o·stride + κ·dilation − padding`:
//!
//! | op | value |
//! |---|---|
//! | `conv` | `y[c, o] = Σ_{a, κ} x[a, i] · w[c, a, κ] (+ b[c])` |
//! | `conv_transpose` | `x[a, i] = Σ_{c, κ} y[c, o] · w[c, a, κ] (+ b[a])` over the taps that reach `i` |
//! | `conv_kernel_grad` | `w[c, a, κ] = Σ_{n, o} y[n, c, o] · x[n, a, i]` |

#[cfg(feature = "cases")]
mod cases;
pub(crate) mod depthwise;
mod digits;
mod forward;
mod geometry;
mod kernel_grad;
pub(crate) mod plan;
#[cfg(all(test, feature = "cases"))]
mod tests;
mod transpose;

pub use forward::Conv;
pub(crate) use geometry::Geometry;
pub use geometry::{ConvWindow, Sizes};
pub use kernel_grad::ConvKernelGrad;
pub use transpose::ConvTranspose;

use crate::fused::Fusion;
use crate::reduce::Sum;
use crate::{AnyTensor, CpuRun, Op, Recorder, Val, mismatch, typed};
use dittograd_device::cpu::conv::Gather;
use dittograd_device::cpu::conv::depthwise::Depthwise;
use dittograd_device::{DType, Meta};
use dittograd_numerics::digits::Digits;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;

/// Checks that there are two float32 inputs, or three where there may be a bias.
fn inputs(op: &'static str, ins: &[Meta], bias: bool) -> Result<()> {
    if !(ins.len() == 2 || bias && ins.len() == 3) {
        return Err(Error::new(op, ErrorKind::Arity { want: 2 + usize::from(bias), got: ins.len() }));
    }
    (0..ins.len()).try_for_each(|i| typed(op, ins, i, DType::F32))
}

/// Batch, channels and sizes of images with `rank` spatial axes, with or without a batch.
fn image<'s>(op: &'static str, shape: &'s Shape, rank: usize) -> Result<(Option<usize>, usize, &'s [usize])> {
    match shape.dims() {
        [channels, sizes @ ..] if sizes.len() == rank => Ok((None, *channels, sizes)),
        [n, channels, sizes @ ..] if sizes.len() == rank => Ok((Some(*n), *channels, sizes)),
        _ => {
            let want =
                "(channels, sizes…) or (batch, channels, sizes…), with as many sizes as the kernel has";
            Err(Error::new(op, ErrorKind::Rank { want, got: *shape }))
        }
    }
}

/// Checks that a kernel has both its channel axes and at least one size.
fn kernel(op: &'static str, w: &Shape) -> Result<()> {
    match w.rank() {
        3.. => Ok(()),
        _ => {
            Err(Error::new(op, ErrorKind::Rank { want: "at least 3: two of channels, then sizes", got: *w }))
        }
    }
}

/// Checks an optional bias against a number of channels.
fn check_bias(op: &'static str, ins: &[Meta], channels: usize) -> Result<()> {
    match ins.get(2) {
        Some(b) if b.shape.dims() != [channels] => {
            Err(mismatch(op, "the bias needs one number per output channel", ins[1].shape, b.shape))
        }
        _ => Ok(()),
    }
}

/// The sum of a gradient over everything but its channels.
fn bias_grad(r: &mut dyn Recorder, g: &Geometry, dy: Val) -> Result<Val> {
    let rank = r.meta(dy).shape.rank();
    let channel = usize::from(g.batch.is_some());
    let axes: Vec<usize> = (0..rank).filter(|&a| a != channel).collect();
    r.record(Sum::new(&axes)?.into(), &[dy])
}

/// What may be fused to a convolution whose kernel has its output channels along axis `outputs`; `in_digits`: it has digits in modes that
/// have some. There an epilogue begins when the sums are numbers, so its main loop stays as it is.
fn fusion(op: &impl Op, ins: &[Meta], outputs: usize, in_digits: bool) -> Fusion {
    let kernel = ins[1].shape;
    let results = op.shape(ins).map_or(0, |out| out.shape.numel());
    let fusion = Fusion::product(kernel.numel() / kernel.dims()[outputs].max(1), results);
    Fusion { others_in_digits: fusion.others || in_digits, ..fusion }
}

/// Words of workspace that the gathers of one result need on the CPU.
fn workspace_words<I: Iterator<Item = Gather>>(
    digits: Option<Digits>,
    classes: impl Fn() -> I,
    threads: usize,
) -> usize {
    if let Some(digits) = digits {
        return classes().map(|g| g.digits_scratch_len(digits, threads)).max().unwrap_or(0);
    }
    match Depthwise::new(classes()).filter(|thin| thin.feeds(threads)) {
        Some(thin) => thin.scratch_len(threads),
        None => classes().map(|g| g.scratch_len(threads)).max().unwrap_or(0),
    }
}

/// Runs the gathers of one result on the CPU: in digits, or by the kernels for thin groups where they feed all threads.
fn run_gathers<I: Iterator<Item = Gather>>(
    thin: Option<&Depthwise>,
    digits: Option<Digits>,
    classes: impl Fn() -> I,
    run: CpuRun<'_>,
) {
    let CpuRun { ins, out, workspace, pool, simd, .. } = run;
    let bias = ins.get(2).copied();
    if let Some(digits) = digits {
        return classes()
            .for_each(|g| g.run_digits(digits, pool, simd, ins[0], ins[1], bias, out, workspace));
    }
    match thin.filter(|thin| thin.feeds(pool.threads())) {
        Some(thin) => thin.run(pool, simd, ins[0], ins[1], bias, out, workspace),
        None => classes().for_each(|g| g.run(pool, simd, ins[0], ins[1], bias, out, workspace)),
    }
}

/// Adds a bias, if there is one, to every image's channels, `channels` in a group.
fn add_bias<T: Scalar>(
    y: &mut [T],
    bias: Option<&AnyTensor<T>>,
    g: &Geometry,
    channels: usize,
) -> Result<()> {
    let Some(bias) = bias else { return Ok(()) };
    let bias = bias.num()?.data();
    let plane = y.len() / (g.images() * g.groups * channels).max(1);
    for (channel, y) in y.chunks_mut(plane.max(1)).enumerate() {
        y.iter_mut().for_each(|y| *y = *y + bias[channel % (g.groups * channels)]);
    }
    Ok(())
}
