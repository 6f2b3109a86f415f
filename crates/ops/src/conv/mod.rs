//! Convolutions over any number of spatial axes, with stride, padding, dilation and groups: the convolution,
//! its transpose, and the gradient of its kernel. The three are one trilinear form, so that each is made of
//! the others when differentiated. Every output is a dot product in the order of the contract (C4); operands
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
pub(crate) mod plan;
#[cfg(all(test, feature = "cases"))]
mod tests;

use crate::fused::{Around, Fusion};
use crate::reduce::Sum;
use crate::{AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Kernel, Op, Recorder, Val, mismatch, typed};
use dittograd_device::cpu::conv::depthwise::{Depthwise, DepthwiseGrad};
use dittograd_device::cpu::conv::{Axis, Gather, KernelGrad, MAX_AXES, View};
use dittograd_device::cuda::Source;
use dittograd_device::{DType, Device, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::{MAX_RANK, Shape};
use dittograd_numerics::tensor::Tensor;
use std::fmt;

/// A number for each spatial axis.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    at: [u32; MAX_AXES],
    len: u8,
}

impl Sizes {
    /// These numbers. Errors if there are none, more than a shape has room for, or one is beyond 32 bits.
    pub fn new(sizes: &[usize]) -> Result<Sizes> {
        if sizes.is_empty() || sizes.len() > MAX_AXES {
            let why = format!("{} axes given, 1 to {MAX_AXES} are supported", sizes.len());
            return Err(Error::argument("conv", "sizes", why));
        }
        let mut at = [0; MAX_AXES];
        for (to, &size) in at.iter_mut().zip(sizes) {
            *to = u32::try_from(size)
                .map_err(|_| Error::argument("conv", "sizes", format!("{sizes:?} has one beyond 32 bits")))?;
        }
        Ok(Sizes { at, len: sizes.len() as u8 })
    }

    /// The same number for all of these axes; at most 32 bits of it.
    pub fn filled(self, size: usize) -> Sizes {
        let mut at = [0; MAX_AXES];
        at[..usize::from(self.len)].fill(u32::try_from(size).unwrap_or(u32::MAX));
        Sizes { at, ..self }
    }

    /// The numbers, outermost axis first.
    pub fn get(&self) -> &[u32] {
        &self.at[..usize::from(self.len)]
    }

    /// The numbers as sizes, then zeros.
    fn all(&self) -> [usize; MAX_AXES] {
        self.at.map(|x| x as usize)
    }

    /// The numbers, as sizes.
    fn list(&self) -> Vec<usize> {
        self.get().iter().map(|&x| x as usize).collect()
    }
}

impl fmt::Debug for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.get())
    }
}

/// How the kernel moves over the input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// Input elements from one output to the next, at least 1.
    pub stride: Sizes,
    /// Zeros on either side.
    pub padding: Sizes,
    /// Input elements from one tap to the next, at least 1.
    pub dilation: Sizes,
    /// Groups that input and output channels are cut into, each convolved on its own.
    pub groups: usize,
}

impl Window {
    /// Stride 1, no padding, dilation 1 along `rank` axes, one group.
    pub fn plain(rank: usize) -> Result<Window> {
        let one = Sizes::new(&[1; MAX_AXES + 1][..rank.min(MAX_AXES + 1)])?;
        Ok(Window { stride: one, padding: one.filled(0), dilation: one, groups: 1 })
    }

    /// The same stride along all axes.
    pub fn stride(self, stride: usize) -> Window {
        Window { stride: self.stride.filled(stride), ..self }
    }

    /// The same padding on either side of all axes.
    pub fn padding(self, padding: usize) -> Window {
        Window { padding: self.padding.filled(padding), ..self }
    }

    /// The same dilation along all axes.
    pub fn dilation(self, dilation: usize) -> Window {
        Window { dilation: self.dilation.filled(dilation), ..self }
    }

    /// So many groups of channels.
    pub fn groups(self, groups: usize) -> Window {
        Window { groups, ..self }
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let list = |s: &Sizes| Attr::List(s.list());
        vec![
            ("stride", list(&self.stride)),
            ("padding", list(&self.padding)),
            ("dilation", list(&self.dilation)),
            ("groups", Attr::Num(self.groups as f64)),
        ]
    }

    fn from_attrs(attrs: &Attrs) -> Result<Window> {
        let groups = attrs.num("groups")?;
        if !(groups >= 1.0 && groups <= f64::from(u32::MAX) && groups.fract() == 0.0) {
            return Err(Error::argument("conv", "groups", format!("{groups} is not a number of groups")));
        }
        Ok(Window {
            stride: Sizes::new(&attrs.list("stride")?)?,
            padding: Sizes::new(&attrs.list("padding")?)?,
            dilation: Sizes::new(&attrs.list("dilation")?)?,
            groups: groups as usize,
        })
    }
}

/// One spatial axis of a convolution.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    input: usize,
    kernel: usize,
    output: usize,
    stride: usize,
    padding: usize,
    dilation: usize,
}

/// A convolution with all its sizes, checked. Channels are per group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    batch: Option<usize>,
    groups: usize,
    channels_in: usize,
    channels_out: usize,
    lines: [Line; MAX_AXES],
    rank: usize,
}

/// The largest size of a padded axis, and of a channel: offsets inside one fit 32 bits.
const MOST: usize = i32::MAX as usize - 4096;

impl Geometry {
    /// The convolution of `input` channels of sizes `x` with a kernel of sizes `k`.
    fn new(
        op: &'static str,
        window: &Window,
        batch: Option<usize>,
        [input, output]: [usize; 2],
        x: &[usize],
        k: &[usize],
    ) -> Result<Geometry> {
        let rank = k.len();
        if window.groups == 0 {
            return Err(Error::argument(op, "groups", "0 groups given, at least 1 is needed"));
        }
        for (name, sizes) in
            [("stride", window.stride), ("padding", window.padding), ("dilation", window.dilation)]
        {
            if sizes.get().len() != rank {
                let why =
                    format!("{sizes:?} is given for {rank} spatial axes: one number per axis is needed");
                return Err(Error::argument(op, name, why));
            }
            if name != "padding" && sizes.get().contains(&0) {
                return Err(Error::argument(op, name, format!("{sizes:?} has a 0, at least 1 is needed")));
            }
        }
        for (name, channels) in [("input", input), ("output", output)] {
            if !channels.is_multiple_of(window.groups) {
                let why = format!("{channels} {name} channels cannot be cut into {} groups", window.groups);
                return Err(Error::argument(op, "groups", why));
            }
        }
        let mut lines = [Line::default(); MAX_AXES];
        for (a, line) in lines.iter_mut().enumerate().take(rank) {
            let [stride, padding, dilation] =
                [window.stride, window.padding, window.dilation].map(|s| s.get()[a] as usize);
            let (input, kernel) = (x[a], k[a]);
            if kernel == 0 {
                return Err(Error::argument(op, "kernel", format!("{k:?} has a size of 0")));
            }
            let padded = padding.checked_mul(2).and_then(|p| p.checked_add(input));
            let reach = (kernel - 1).checked_mul(dilation).and_then(|r| r.checked_add(1));
            let (Some(padded), Some(reach)) =
                (padded.filter(|&p| p <= MOST && stride <= MOST), reach.filter(|&r| r <= MOST))
            else {
                let why = format!(
                    "axis {a} of size {input} with padding {padding} or kernel {kernel} with dilation {dilation} is too long"
                );
                return Err(Error::argument(op, "padding", why));
            };
            let Some(room) = padded.checked_sub(reach) else {
                let why = format!(
                    "along axis {a} a kernel of {kernel} with dilation {dilation} reaches over {reach} \
                     elements, but there are only {padded} with padding: the output would be empty"
                );
                return Err(Error::argument(op, "kernel", why));
            };
            *line = Line { input, kernel, output: room / stride + 1, stride, padding, dilation };
        }
        let geometry = Geometry {
            batch,
            groups: window.groups,
            channels_in: input / window.groups,
            channels_out: output / window.groups,
            lines,
            rank,
        };
        for plane in [|l: &Line| l.input, |l: &Line| l.kernel, |l: &Line| l.output] {
            let sizes = geometry.lines().iter().map(plane);
            if sizes.clone().try_fold(1usize, |n, d| n.checked_mul(d)).is_none_or(|n| n > MOST) {
                return Err(Error::new(op, ErrorKind::TooLarge { dims: sizes.collect() }));
            }
        }
        Ok(geometry)
    }

    fn lines(&self) -> &[Line] {
        &self.lines[..self.rank]
    }

    fn images(&self) -> usize {
        self.batch.unwrap_or(1)
    }

    /// Shape of the images with `channels` in a group and the sizes that `of` takes from the axes.
    fn image_shape(&self, channels: usize, of: fn(&Line) -> usize) -> Result<Shape> {
        let first = self.batch.into_iter().chain([channels * self.groups]);
        shape_of(first.chain(self.lines().iter().map(of)))
    }

    fn input_shape(&self) -> Result<Shape> {
        self.image_shape(self.channels_in, |l| l.input)
    }

    fn output_shape(&self) -> Result<Shape> {
        self.image_shape(self.channels_out, |l| l.output)
    }

    fn kernel_shape(&self) -> Result<Shape> {
        let first = [self.channels_out * self.groups, self.channels_in].into_iter();
        shape_of(first.chain(self.lines().iter().map(|l| l.kernel)))
    }

    fn taps(&self) -> usize {
        self.lines().iter().map(|l| l.kernel).product()
    }

    /// What the convolution reads: all outputs, all taps.
    pub(crate) fn view(&self) -> View {
        View::new(self.lines().iter().map(|l| Axis {
            positions: l.output,
            step: l.stride,
            taps: l.kernel,
            first: -(l.padding as isize),
            tap_step: l.dilation as isize,
            source: l.input,
            out: l.output,
            w: l.kernel,
            ..Axis::ONE
        }))
    }

    /// The convolution as a product.
    pub(crate) fn forward(&self) -> Gather {
        let (rows, channels, taps) = (self.channels_out, self.channels_in, self.taps());
        Gather {
            view: self.view(),
            batch: self.images(),
            groups: self.groups,
            rows,
            channels,
            w_strides: [rows * channels * taps, channels * taps, taps],
        }
    }

    /// The transposed convolution as products, one for each class of input positions that the same taps
    /// reach: with stride `s`, those that leave the same remainder.
    pub(crate) fn transposed(&self) -> impl Iterator<Item = Gather> {
        let geometry = *self;
        let (rows, channels, taps) = (self.channels_in, self.channels_out, self.taps());
        let classes: usize = self.lines().iter().map(|l| l.stride.min(l.input)).product();
        (0..classes).map(move |class| {
            let mut rest = class;
            let mut axes = [Axis::ONE; MAX_AXES];
            for (axis, l) in axes.iter_mut().zip(geometry.lines()).rev() {
                let count = l.stride.min(l.input);
                *axis = l.residue(rest % count);
                rest /= count;
            }
            Gather {
                view: View::new(axes.into_iter().take(geometry.rank)),
                batch: geometry.images(),
                groups: geometry.groups,
                rows,
                channels,
                w_strides: [rows * channels * taps, taps, rows * taps],
            }
        })
    }

    /// The gradient of the kernel as a product.
    pub(crate) fn kernel_grad(&self) -> KernelGrad {
        KernelGrad {
            view: self.view(),
            batch: self.images(),
            groups: self.groups,
            rows: self.channels_out,
            channels: self.channels_in,
        }
    }

    /// Calls `f` with (input, kernel, output) offsets inside a channel for every output position and tap that
    /// meet inside the input.
    fn each(&self, f: &mut dyn FnMut(usize, usize, usize)) {
        fn walk(lines: &[Line], at: [usize; 3], f: &mut dyn FnMut(usize, usize, usize)) {
            let Some((l, rest)) = lines.split_first() else { return f(at[0], at[1], at[2]) };
            for o in 0..l.output {
                for t in 0..l.kernel {
                    let i = o * l.stride + t * l.dilation;
                    if i >= l.padding && i - l.padding < l.input {
                        let next =
                            [at[0] * l.input + i - l.padding, at[1] * l.kernel + t, at[2] * l.output + o];
                        walk(rest, next, f);
                    }
                }
            }
        }
        walk(self.lines(), [0; 3], f);
    }

    /// Calls `f` with the indices in x, w and y of every product that the convolution sums.
    fn products(&self, mut f: impl FnMut(usize, usize, usize)) {
        let size = |of: fn(&Line) -> usize| self.lines().iter().map(of).product::<usize>();
        let (xs, ws, ys) = (size(|l| l.input), size(|l| l.kernel), size(|l| l.output));
        for n in 0..self.images() {
            for g in 0..self.groups {
                for co in g * self.channels_out..(g + 1) * self.channels_out {
                    for ci in 0..self.channels_in {
                        let x = (n * self.groups + g) * self.channels_in + ci;
                        let (w, y) = (co * self.channels_in + ci, n * self.groups * self.channels_out + co);
                        self.each(&mut |i, t, o| f(x * xs + i, w * ws + t, y * ys + o));
                    }
                }
            }
        }
    }
}

impl Line {
    /// The input positions `r + stride·t` and the taps that reach them.
    fn residue(&self, r: usize) -> Axis {
        let &Line { input, kernel, output, stride, padding, dilation } = self;
        let period = stride / gcd(stride, dilation);
        // Tap t meets them if r + padding - t·dilation is a multiple of the stride.
        let reaches = |t: usize| (r + padding) % stride == (t % stride) * (dilation % stride) % stride;
        let first_tap = (0..kernel.min(period)).find(|&t| reaches(t));
        let (w_first, taps) = first_tap.map_or((0, 0), |t| (t, (kernel - t).div_ceil(period)));
        let reach = (r + padding) as isize - (w_first * dilation) as isize;
        Axis {
            positions: (input - r).div_ceil(stride),
            step: 1,
            taps,
            first: reach.div_euclid(stride as isize),
            tap_step: -((period * dilation / stride) as isize),
            source: output,
            out_first: r,
            out_step: stride,
            out: input,
            w_first,
            w_step: period,
            w: kernel,
        }
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The inputs as float32 shapes: `least` of them, or one more.
fn inputs(op: &'static str, ins: &[Meta], bias: bool) -> Result<()> {
    if !(ins.len() == 2 || bias && ins.len() == 3) {
        return Err(Error::new(op, ErrorKind::Arity { want: 2 + usize::from(bias), got: ins.len() }));
    }
    (0..ins.len()).try_for_each(|i| typed(op, ins, i, DType::F32))
}

/// The shape of these dimensions; there are at most as many as a shape has.
fn shape_of(dims: impl Iterator<Item = usize>) -> Result<Shape> {
    let (mut all, mut rank) = ([0; MAX_RANK], 0);
    for (to, d) in all.iter_mut().zip(dims) {
        *to = d;
        rank += 1;
    }
    Shape::new(&all[..rank])
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

/// Words of workspace for convolutions of one result.
fn columns_words<I: Iterator<Item = Gather>>(classes: impl Fn() -> I, threads: usize) -> usize {
    match Depthwise::new(classes()).filter(|thin| thin.feeds(threads)) {
        Some(thin) => thin.scratch_len(threads),
        None => classes().map(|g| g.scratch_len(threads)).max().unwrap_or(0),
    }
}

/// Runs convolutions of one result, which may be thin.
fn columns<I: Iterator<Item = Gather>>(thin: Option<&Depthwise>, classes: impl Fn() -> I, run: CpuRun<'_>) {
    let CpuRun { ins, out, workspace, pool, simd, .. } = run;
    let bias = ins.get(2).copied();
    match thin.filter(|thin| thin.feeds(pool.threads())) {
        Some(thin) => thin.run(pool, simd, ins[0], ins[1], bias, out, workspace),
        None => classes().for_each(|g| g.run(pool, simd, ins[0], ins[1], bias, out, workspace)),
    }
}

/// Convolution (cross-correlation) of `x (N, Cin, sizes…)` with `w (Cout, Cin / groups, kernel…)` and an
/// optional bias `(Cout)`; the batch axis may be absent. Along each axis there are
/// `⌊(in + 2·padding − dilation·(kernel − 1) − 1) / stride⌋ + 1` outputs; fewer than one is an error. Elements
/// beyond the input are zeros and take part in the sums, so that an infinite weight next to the edge gives NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conv {
    /// How the kernel moves.
    pub window: Window,
}

impl Conv {
    fn of(&self, ins: &[Meta]) -> Result<Geometry> {
        inputs(Self::NAME, ins, true)?;
        let (x, w) = (ins[0].shape, ins[1].shape);
        kernel(Self::NAME, &w)?;
        let k = &w.dims()[2..];
        let (batch, channels, sizes) = image(Self::NAME, &x, k.len())?;
        let channels = [channels, w.dims()[0]];
        let g = Geometry::new(Self::NAME, &self.window, batch, channels, sizes, k)?;
        if g.channels_in != w.dims()[1] {
            return Err(mismatch(Self::NAME, "input channels per group and kernel differ", x, w));
        }
        check_bias(Self::NAME, ins, channels[1])?;
        Ok(g)
    }
}

impl Op for Conv {
    const NAME: &'static str = "conv";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        Ok(Meta::f32(self.of(ins)?.output_shape()?))
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        self.of(ins).map_or(0, |g| match device.as_cuda() {
            Some(cuda) => plan::workspace(&plan::forward(&g), &Gpu::of(cuda)),
            None => columns_words(|| std::iter::once(g.forward()), device.threads()),
        })
    }

    fn cpu(&self, run: CpuRun<'_>) {
        if let Ok(g) = self.of(run.metas) {
            let classes = || std::iter::once(g.forward());
            columns(Depthwise::new(classes()).as_ref(), classes, run);
        }
    }

    fn prepared(&self, ins: &[Meta]) -> Option<Kernel> {
        let g = self.of(ins).ok()?;
        let thin = Depthwise::new(std::iter::once(g.forward()))?;
        Some(Box::new(move |run| columns(Some(&thin), || std::iter::once(g.forward()), run)))
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        plan::launch(&plan::forward(&self.of(run.metas)?), run)
    }

    fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
        self.of(ins).map_or(Vec::new(), |g| plan::modules(&plan::forward(&g), gpu, None))
    }

    fn fusion(&self, ins: &[Meta]) -> Fusion {
        let kernel = ins[1].shape;
        let results = self.shape(ins).map_or(0, |out| out.shape.numel());
        Fusion::product(kernel.numel() / kernel.dims()[0].max(1), results)
    }

    fn joined(&self, ins: &[Meta], gpu: &Gpu, around: Around<'_>) -> Option<Vec<Source>> {
        let follow = around.only_follow()?;
        let work = plan::forward(&self.of(ins).ok()?);
        plan::takes(&work, gpu, follow).then(|| plan::modules(&work, gpu, Some(follow)))
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let metas: Vec<Meta> = io.ins.iter().map(|&v| r.meta(v)).collect();
        let g = self.of(&metas)?;
        let (x, w) = (io.ins[0], io.ins[1]);
        let sizes = |of: fn(&Line) -> usize| Sizes::new(&g.lines().iter().map(of).collect::<Vec<_>>());
        let window = self.window;
        let dx = r.record(ConvTranspose { window, size: sizes(|l| l.input)? }.into(), &[dy, w])?;
        let dw = r.record(ConvKernelGrad { window, size: sizes(|l| l.kernel)? }.into(), &[dy, x])?;
        let mut all = vec![Some(dx), Some(dw)];
        if io.ins.len() > 2 {
            all.push(Some(bias_grad(r, &g, dy)?));
        }
        Ok(all)
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
        let g = self.of(&metas)?;
        let (x, w) = (ins[0].num()?.data(), ins[1].num()?.data());
        let mut y = vec![T::c(0.0); g.output_shape()?.numel()];
        g.products(|i, t, o| y[o] = y[o] + x[i] * w[t]);
        add_bias(&mut y, ins.get(2), &g, g.channels_out)?;
        Tensor::with_shape(g.output_shape()?, y)
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        self.window.attrs()
    }

    fn from_attrs(attrs: &Attrs) -> Result<Conv> {
        attrs.only(&["stride", "padding", "dilation", "groups"])?;
        Ok(Conv { window: Window::from_attrs(attrs)? })
    }
}

/// Transposed convolution of `y (N, Cin, sizes…)` with `w (Cin, Cout / groups, kernel…)` and an optional bias
/// `(Cout)`: the transpose of [`Conv`] with the same window, so also the gradient of its input. `size` is the
/// size of the value along each axis, which must be one that the convolution takes to the sizes of `y`:
/// `(in − 1)·stride − 2·padding + dilation·(kernel − 1) + 1` and up to `stride − 1` (the output padding) more.
///
/// Which taps take part in a value depends only on its position's remainder by the stride: those that meet
/// it at a whole step. Of these, taps that meet nothing of `y` take part as zeros.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConvTranspose {
    /// How the kernel moves.
    pub window: Window,
    /// Sizes of the value.
    pub size: Sizes,
}

impl ConvTranspose {
    fn of(&self, ins: &[Meta]) -> Result<Geometry> {
        inputs(Self::NAME, ins, true)?;
        let (y, w) = (ins[0].shape, ins[1].shape);
        kernel(Self::NAME, &w)?;
        let k = &w.dims()[2..];
        let (batch, channels, sizes) = image(Self::NAME, &y, k.len())?;
        if self.size.get().len() != k.len() {
            let why =
                format!("{:?} is given for {} spatial axes: one size per axis is needed", self.size, k.len());
            return Err(Error::argument(Self::NAME, "size", why));
        }
        let Some(out) = w.dims()[1].checked_mul(self.window.groups) else {
            return Err(Error::argument(
                Self::NAME,
                "groups",
                format!("{} are too many", self.window.groups),
            ));
        };
        if channels != w.dims()[0] {
            return Err(mismatch(Self::NAME, "input channels and kernel differ", y, w));
        }
        let g =
            Geometry::new(Self::NAME, &self.window, batch, [out, channels], &self.size.all()[..k.len()], k)?;
        for (a, (l, &n)) in g.lines().iter().zip(sizes).enumerate() {
            if l.output != n {
                let why = format!(
                    "{:?} has {} along axis {a}, which a convolution takes to {}, but the input has {n}: an \
                     output padding is below the stride",
                    self.size, l.input, l.output
                );
                return Err(Error::argument(Self::NAME, "size", why));
            }
        }
        check_bias(Self::NAME, ins, out)?;
        Ok(g)
    }
}

impl Op for ConvTranspose {
    const NAME: &'static str = "conv_transpose";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        Ok(Meta::f32(self.of(ins)?.input_shape()?))
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        self.of(ins).map_or(0, |g| match device.as_cuda() {
            Some(cuda) => plan::workspace(&plan::transposed(&g), &Gpu::of(cuda)),
            None => columns_words(|| g.transposed(), device.threads()),
        })
    }

    fn cpu(&self, run: CpuRun<'_>) {
        if let Ok(g) = self.of(run.metas) {
            columns(Depthwise::new(g.transposed()).as_ref(), || g.transposed(), run);
        }
    }

    fn prepared(&self, ins: &[Meta]) -> Option<Kernel> {
        let g = self.of(ins).ok()?;
        let thin = Depthwise::new(g.transposed())?;
        Some(Box::new(move |run| columns(Some(&thin), || g.transposed(), run)))
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        plan::launch(&plan::transposed(&self.of(run.metas)?), run)
    }

    fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
        self.of(ins).map_or(Vec::new(), |g| plan::modules(&plan::transposed(&g), gpu, None))
    }

    fn fusion(&self, ins: &[Meta]) -> Fusion {
        let kernel = ins[1].shape;
        let results = self.shape(ins).map_or(0, |out| out.shape.numel());
        Fusion::product(kernel.numel() / kernel.dims()[1].max(1), results)
    }

    fn joined(&self, ins: &[Meta], gpu: &Gpu, around: Around<'_>) -> Option<Vec<Source>> {
        let follow = around.only_follow()?;
        let work = plan::transposed(&self.of(ins).ok()?);
        plan::takes(&work, gpu, follow).then(|| plan::modules(&work, gpu, Some(follow)))
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let metas: Vec<Meta> = io.ins.iter().map(|&v| r.meta(v)).collect();
        let g = self.of(&metas)?;
        let (y, w) = (io.ins[0], io.ins[1]);
        let window = self.window;
        let size = Sizes::new(&g.lines().iter().map(|l| l.kernel).collect::<Vec<_>>())?;
        let d = r.record(Conv { window }.into(), &[dy, w])?;
        let dw = r.record(ConvKernelGrad { window, size }.into(), &[y, dy])?;
        let mut all = vec![Some(d), Some(dw)];
        if io.ins.len() > 2 {
            all.push(Some(bias_grad(r, &g, dy)?));
        }
        Ok(all)
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
        let g = self.of(&metas)?;
        let (y, w) = (ins[0].num()?.data(), ins[1].num()?.data());
        let mut x = vec![T::c(0.0); g.input_shape()?.numel()];
        g.products(|i, t, o| x[i] = x[i] + y[o] * w[t]);
        add_bias(&mut x, ins.get(2), &g, g.channels_in)?;
        Tensor::with_shape(g.input_shape()?, x)
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        [self.window.attrs(), vec![("size", Attr::List(self.size.list()))]].concat()
    }

    fn from_attrs(attrs: &Attrs) -> Result<ConvTranspose> {
        attrs.only(&["stride", "padding", "dilation", "groups", "size"])?;
        Ok(ConvTranspose { window: Window::from_attrs(attrs)?, size: Sizes::new(&attrs.list("size")?)? })
    }
}

/// Gradient of a convolution's kernel: from `y (N, Cout, …)`, the gradient of its value, and its input
/// `x (N, Cin, …)`, of shape `(Cout, Cin / groups, size…)`. Sums run over (image, output position), positions
/// that meet a zero of the padding taking part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConvKernelGrad {
    /// How the kernel moves.
    pub window: Window,
    /// Sizes of the kernel.
    pub size: Sizes,
}

impl ConvKernelGrad {
    fn of(&self, ins: &[Meta]) -> Result<Geometry> {
        inputs(Self::NAME, ins, false)?;
        let (y, x) = (ins[0].shape, ins[1].shape);
        let k = &self.size.all()[..self.size.get().len()];
        let (batch, channels, sizes) = image(Self::NAME, &x, k.len())?;
        let (y_batch, y_channels, y_sizes) = image(Self::NAME, &y, k.len())?;
        if batch != y_batch {
            return Err(mismatch(Self::NAME, "batch sizes differ", y, x));
        }
        let g = Geometry::new(Self::NAME, &self.window, batch, [channels, y_channels], sizes, k)?;
        if g.lines().iter().zip(y_sizes).any(|(l, &n)| l.output != n) {
            return Err(mismatch(
                Self::NAME,
                "the convolution of the second has other sizes than the first",
                y,
                x,
            ));
        }
        Ok(g)
    }
}

impl Op for ConvKernelGrad {
    const NAME: &'static str = "conv_kernel_grad";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        Ok(Meta::f32(self.of(ins)?.kernel_shape()?))
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        self.of(ins).map_or(0, |g| match device.as_cuda() {
            Some(cuda) => plan::workspace(&plan::kernel_grad(&g), &Gpu::of(cuda)),
            None => match DepthwiseGrad::new(&g.kernel_grad()) {
                Some(thin) => thin.scratch_len(device.threads()),
                None => g.kernel_grad().scratch_len(device.threads()),
            },
        })
    }

    fn cpu(&self, run: CpuRun<'_>) {
        if let Ok(g) = self.of(run.metas) {
            let CpuRun { ins, out, workspace, pool, simd, .. } = run;
            match DepthwiseGrad::new(&g.kernel_grad()) {
                Some(thin) => thin.run(pool, simd, ins[0], ins[1], out, workspace),
                None => g.kernel_grad().run(pool, simd, ins[0], ins[1], out, workspace),
            }
        }
    }

    fn prepared(&self, ins: &[Meta]) -> Option<Kernel> {
        let thin = DepthwiseGrad::new(&self.of(ins).ok()?.kernel_grad())?;
        Some(Box::new(move |run| {
            let CpuRun { ins, out, workspace, pool, simd, .. } = run;
            thin.run(pool, simd, ins[0], ins[1], out, workspace);
        }))
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        plan::launch(&plan::kernel_grad(&self.of(run.metas)?), run)
    }

    fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
        self.of(ins).map_or(Vec::new(), |g| plan::modules(&plan::kernel_grad(&g), gpu, None))
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dw: Val) -> Result<Vec<Option<Val>>> {
        let (y, x) = (io.ins[0], io.ins[1]);
        let metas = [r.meta(y), r.meta(x)];
        let g = self.of(&metas)?;
        let window = self.window;
        let size = Sizes::new(&g.lines().iter().map(|l| l.input).collect::<Vec<_>>())?;
        let dy = r.record(Conv { window }.into(), &[x, dw])?;
        let dx = r.record(ConvTranspose { window, size }.into(), &[y, dw])?;
        Ok(vec![Some(dy), Some(dx)])
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
        let g = self.of(&metas)?;
        let (y, x) = (ins[0].num()?.data(), ins[1].num()?.data());
        let mut w = vec![T::c(0.0); g.kernel_shape()?.numel()];
        g.products(|i, t, o| w[t] = w[t] + y[o] * x[i]);
        Tensor::with_shape(g.kernel_shape()?, w)
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        [self.window.attrs(), vec![("size", Attr::List(self.size.list()))]].concat()
    }

    fn from_attrs(attrs: &Attrs) -> Result<ConvKernelGrad> {
        attrs.only(&["stride", "padding", "dilation", "groups", "size"])?;
        Ok(ConvKernelGrad { window: Window::from_attrs(attrs)?, size: Sizes::new(&attrs.list("size")?)? })
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
