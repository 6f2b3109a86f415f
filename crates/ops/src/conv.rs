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

use super::conv_plan;
use super::fused::Around;
use super::reduce::Sum;
use super::sampling::pick;
use super::{
    AnyTensor, Attr, Attrs, Bound, CpuRun, CudaRun, Gpu, Io, Kernel, Op, Recorder, Reject, Sample, SampleIn,
    Val, dims, mismatch, typed,
};
use dittograd_device::cpu::conv::depthwise::{Depthwise, DepthwiseGrad};
use dittograd_device::cpu::conv::{Axis, Gather, KernelGrad, MAX_AXES, View};
use dittograd_device::cuda::Source;
use dittograd_device::{DType, Device, Meta};
use dittograd_numerics::K_CHUNK;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::rng::Stream;
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

/// A bound for sums of `k` terms and a bias.
fn sum_bound(k: usize) -> Bound {
    Bound { ulps: 1.0, terms: (k.min(K_CHUNK) + k / K_CHUNK + 2) as f64 }
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
            Some(cuda) => conv_plan::workspace(&conv_plan::forward(&g), &Gpu::of(cuda)),
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
        conv_plan::launch(&conv_plan::forward(&self.of(run.metas)?), run)
    }

    fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
        self.of(ins).map_or(Vec::new(), |g| conv_plan::modules(&conv_plan::forward(&g), gpu, None))
    }

    fn joined(&self, ins: &[Meta], gpu: &Gpu, around: Around<'_>) -> Option<Vec<Source>> {
        let follow = around.only_follow()?;
        let work = conv_plan::forward(&self.of(ins).ok()?);
        conv_plan::takes(&work, gpu, follow).then(|| conv_plan::modules(&work, gpu, Some(follow)))
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

    fn samples() -> Vec<Sample<Conv>> {
        cases().iter().flat_map(Case::convs).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample<Conv>> {
        Case::random(stream).convs().into_iter().last()
    }

    fn rejects() -> Vec<Reject<Conv>> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        let w = |stride: usize, padding: usize, dilation: usize, groups| Conv {
            window: window(&[stride], &[padding], &[dilation], groups),
        };
        let op = w(1, 0, 1, 1);
        let two = Conv { window: window(&[1, 1], &[0, 0], &[1, 1], 1) };
        let far = u32::MAX as usize;
        vec![
            Reject { op, ins: vec![f(&[2, 3, 4])], want: "Arity" },
            Reject { op, ins: vec![f(&[2, 3, 4]), f(&[2, 3, 2]), f(&[2]), f(&[2])], want: "Arity" },
            Reject { op, ins: vec![f(&[2, 3, 4]), f(&[3, 2])], want: "Rank" },
            Reject { op, ins: vec![f(&[4]), f(&[2, 3, 2])], want: "Rank" },
            Reject { op, ins: vec![f(&[1, 1, 3, 4]), f(&[2, 3, 2])], want: "Rank" },
            Reject { op, ins: vec![f(&[2, 3, 4]), f(&[2, 2, 2])], want: "Shapes" },
            Reject { op, ins: vec![f(&[2, 3, 4]), f(&[2, 3, 2]), f(&[3])], want: "Shapes" },
            Reject { op, ins: vec![f(&[2, 3, 4]), f(&[2, 3, 2]), f(&[2, 1])], want: "Shapes" },
            Reject { op, ins: vec![f(&[2, 3, 4]), Meta::u32(dims(&[2, 3, 2]))], want: "DType" },
            // A kernel larger than the padded input, or of no size, or windows that do not move.
            Reject { op, ins: vec![f(&[2, 3, 4]), f(&[2, 3, 5])], want: "Argument" },
            Reject { op: w(1, 1, 2, 1), ins: vec![f(&[2, 3, 4]), f(&[2, 3, 4])], want: "Argument" },
            Reject { op, ins: vec![f(&[2, 3, 4]), f(&[2, 3, 0])], want: "Argument" },
            Reject { op, ins: vec![f(&[2, 3, 0]), f(&[2, 3, 1])], want: "Argument" },
            Reject { op: w(0, 0, 1, 1), ins: vec![f(&[2, 3, 4]), f(&[2, 3, 2])], want: "Argument" },
            Reject { op: w(1, 0, 0, 1), ins: vec![f(&[2, 3, 4]), f(&[2, 3, 2])], want: "Argument" },
            Reject { op: w(1, 0, 1, 0), ins: vec![f(&[2, 3, 4]), f(&[2, 3, 2])], want: "Argument" },
            Reject { op: w(1, 0, 1, 2), ins: vec![f(&[2, 3, 4]), f(&[2, 1, 2])], want: "Argument" },
            Reject { op: w(1, 0, 1, 3), ins: vec![f(&[2, 3, 4]), f(&[2, 1, 2])], want: "Argument" },
            Reject { op: w(1, far, 1, 1), ins: vec![f(&[2, 3, 4]), f(&[2, 3, 2])], want: "Argument" },
            Reject { op: w(1, 0, far, 1), ins: vec![f(&[2, 3, 4]), f(&[2, 3, 3])], want: "Argument" },
            Reject { op: two, ins: vec![f(&[2, 3, 4]), f(&[2, 3, 2])], want: "Argument" },
            Reject {
                op: Conv { window: window(&[1, 1], &[1 << 20, 1 << 20], &[1, 1], 1) },
                ins: vec![f(&[1, 1, 4, 4]), f(&[1, 1, 1, 1])],
                want: "TooLarge",
            },
        ]
    }

    fn linear(&self, ins: &[Meta]) -> Vec<Vec<usize>> {
        // In the images and in the kernel, a bias going with either.
        match ins.len() {
            3 => vec![vec![0, 2], vec![1, 2]],
            _ => vec![vec![0], vec![1]],
        }
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        self.of(ins).map_or(Bound::EXACT, |g| sum_bound(g.channels_in * g.taps()))
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
            Some(cuda) => conv_plan::workspace(&conv_plan::transposed(&g), &Gpu::of(cuda)),
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
        conv_plan::launch(&conv_plan::transposed(&self.of(run.metas)?), run)
    }

    fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
        self.of(ins).map_or(Vec::new(), |g| conv_plan::modules(&conv_plan::transposed(&g), gpu, None))
    }

    fn joined(&self, ins: &[Meta], gpu: &Gpu, around: Around<'_>) -> Option<Vec<Source>> {
        let follow = around.only_follow()?;
        let work = conv_plan::transposed(&self.of(ins).ok()?);
        conv_plan::takes(&work, gpu, follow).then(|| conv_plan::modules(&work, gpu, Some(follow)))
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

    fn samples() -> Vec<Sample<ConvTranspose>> {
        cases().iter().flat_map(Case::transposes).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample<ConvTranspose>> {
        Case::random(stream).transposes().into_iter().last()
    }

    fn rejects() -> Vec<Reject<ConvTranspose>> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        let w = |stride: usize, padding: usize, size: usize, groups| ConvTranspose {
            window: window(&[stride], &[padding], &[1], groups),
            size: sizes(&[size]),
        };
        let op = w(2, 0, 8, 1);
        let y = f(&[2, 3, 4]);
        vec![
            Reject { op, ins: vec![y], want: "Arity" },
            Reject { op, ins: vec![y, f(&[3, 2])], want: "Rank" },
            Reject { op, ins: vec![f(&[1, 2, 3, 4]), f(&[3, 2, 2])], want: "Rank" },
            Reject { op, ins: vec![y, f(&[2, 2, 2])], want: "Shapes" },
            Reject { op, ins: vec![y, f(&[3, 2, 2]), f(&[3])], want: "Shapes" },
            Reject { op, ins: vec![y, Meta::u32(dims(&[3, 2, 2]))], want: "DType" },
            // Sizes whose convolution is not the input: one too few, and an output padding of a whole stride.
            Reject { op: w(2, 0, 7, 1), ins: vec![y, f(&[3, 2, 2])], want: "Argument" },
            Reject { op: w(2, 0, 10, 1), ins: vec![y, f(&[3, 2, 2])], want: "Argument" },
            Reject { op: w(2, 5, 0, 1), ins: vec![y, f(&[3, 2, 2])], want: "Argument" },
            Reject { op: w(0, 0, 8, 1), ins: vec![y, f(&[3, 2, 2])], want: "Argument" },
            Reject { op: w(2, 0, 8, 2), ins: vec![y, f(&[3, 2, 2])], want: "Argument" },
            Reject { op: w(2, 0, 8, usize::MAX), ins: vec![y, f(&[3, 2, 2])], want: "Argument" },
            Reject { op: w(2, 0, 8, 0), ins: vec![y, f(&[3, 2, 2])], want: "Argument" },
            Reject {
                op: ConvTranspose { size: sizes(&[8, 8]), ..op },
                ins: vec![y, f(&[3, 2, 2])],
                want: "Argument",
            },
        ]
    }

    fn linear(&self, ins: &[Meta]) -> Vec<Vec<usize>> {
        // In the images and in the kernel, a bias going with either.
        match ins.len() {
            3 => vec![vec![0, 2], vec![1, 2]],
            _ => vec![vec![0], vec![1]],
        }
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        self.of(ins).map_or(Bound::EXACT, |g| sum_bound(g.channels_out * g.taps()))
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
            Some(cuda) => conv_plan::workspace(&conv_plan::kernel_grad(&g), &Gpu::of(cuda)),
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
        conv_plan::launch(&conv_plan::kernel_grad(&self.of(run.metas)?), run)
    }

    fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
        self.of(ins).map_or(Vec::new(), |g| conv_plan::modules(&conv_plan::kernel_grad(&g), gpu, None))
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

    fn samples() -> Vec<Sample<ConvKernelGrad>> {
        cases().iter().flat_map(Case::kernel_grads).collect()
    }

    fn random(stream: &mut Stream) -> Option<Sample<ConvKernelGrad>> {
        Case::random(stream).kernel_grads().into_iter().last()
    }

    fn rejects() -> Vec<Reject<ConvKernelGrad>> {
        let f = |d: &[usize]| Meta::f32(dims(d));
        let w = |size: &[usize], groups| ConvKernelGrad {
            window: window(&[1], &[0], &[1], groups),
            size: sizes(size),
        };
        let op = w(&[2], 1);
        vec![
            Reject { op, ins: vec![f(&[2, 3, 4])], want: "Arity" },
            Reject { op, ins: vec![f(&[2, 3, 3]), f(&[2, 3, 4]), f(&[2])], want: "Arity" },
            Reject { op, ins: vec![f(&[3]), f(&[2, 3, 4])], want: "Rank" },
            Reject { op, ins: vec![f(&[2, 3, 3]), f(&[4])], want: "Rank" },
            Reject { op, ins: vec![f(&[2, 3, 3]), f(&[1, 3, 4])], want: "Shapes" },
            Reject { op, ins: vec![f(&[3, 3]), f(&[2, 3, 4])], want: "Shapes" },
            Reject { op, ins: vec![f(&[2, 3, 4]), f(&[2, 3, 4])], want: "Shapes" },
            Reject { op, ins: vec![f(&[2, 3, 3]), Meta::u32(dims(&[2, 3, 4]))], want: "DType" },
            Reject { op: w(&[5], 1), ins: vec![f(&[2, 3, 1]), f(&[2, 3, 4])], want: "Argument" },
            Reject { op: w(&[0], 1), ins: vec![f(&[2, 3, 5]), f(&[2, 3, 4])], want: "Argument" },
            Reject { op: w(&[2], 2), ins: vec![f(&[2, 3, 3]), f(&[2, 3, 4])], want: "Argument" },
            Reject { op: w(&[2, 2], 1), ins: vec![f(&[2, 3, 3]), f(&[2, 3, 4])], want: "Argument" },
        ]
    }

    fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
        vec![vec![0], vec![1]]
    }

    fn bound(&self, ins: &[Meta]) -> Bound {
        let terms = |g: Geometry| g.images() * g.lines().iter().map(|l| l.output).product::<usize>();
        self.of(ins).map_or(Bound::EXACT, |g| sum_bound(terms(g)))
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

/// Sizes that are known to be fine, for samples and rejects.
fn sizes(of: &[usize]) -> Sizes {
    Sizes::new(of).unwrap_or(Sizes { at: [0; MAX_AXES], len: 1 })
}

fn window(stride: &[usize], padding: &[usize], dilation: &[usize], groups: usize) -> Window {
    Window { stride: sizes(stride), padding: sizes(padding), dilation: sizes(dilation), groups }
}

/// A convolution for samples: batch (`None` for none), channels in and out, and per axis (input, kernel, stride,
/// padding, dilation).
#[derive(Clone, Debug)]
struct Case {
    batch: Option<usize>,
    channels: [usize; 2],
    groups: usize,
    axes: Vec<[usize; 5]>,
    bias: bool,
}

impl Case {
    fn window(&self) -> Window {
        let of = |i: usize| self.axes.iter().map(|a| a[i]).collect::<Vec<_>>();
        window(&of(2), &of(3), &of(4), self.groups)
    }

    /// Shapes of x, w, y and a bias for each side.
    fn shapes(&self) -> Option<[Shape; 5]> {
        let of = |i: usize| self.axes.iter().map(|a| a[i]).collect::<Vec<_>>();
        let g = Geometry::new("conv", &self.window(), self.batch, self.channels, &of(0), &of(1)).ok()?;
        let shapes = [g.input_shape(), g.kernel_shape(), g.output_shape()].map(Result::ok);
        let [x, w, y] = [shapes[0]?, shapes[1]?, shapes[2]?];
        Some([x, w, y, dims(&self.channels[1..]), dims(&self.channels[..1])])
    }

    fn convs(&self) -> Vec<Sample<Conv>> {
        let with = |[x, w, _, b, _]: [Shape; 5]| {
            let ins = [x, w, b].map(SampleIn::any)[..2 + usize::from(self.bias)].to_vec();
            Sample { op: Conv { window: self.window() }, ins }
        };
        self.shapes().map(with).into_iter().collect()
    }

    fn transposes(&self) -> Vec<Sample<ConvTranspose>> {
        let size = sizes(&self.axes.iter().map(|a| a[0]).collect::<Vec<_>>());
        let with = |[_, w, y, _, b]: [Shape; 5]| {
            let ins = [y, w, b].map(SampleIn::any)[..2 + usize::from(self.bias)].to_vec();
            Sample { op: ConvTranspose { window: self.window(), size }, ins }
        };
        self.shapes().map(with).into_iter().collect()
    }

    fn kernel_grads(&self) -> Vec<Sample<ConvKernelGrad>> {
        let size = sizes(&self.axes.iter().map(|a| a[1]).collect::<Vec<_>>());
        let with = |[x, _, y, _, _]: [Shape; 5]| {
            let ins = [y, x].map(SampleIn::any).to_vec();
            Sample { op: ConvKernelGrad { window: self.window(), size }, ins }
        };
        self.shapes().map(with).into_iter().collect()
    }

    /// A small random one: all kinds of windows, channels around the edges of tiles.
    fn random(stream: &mut Stream) -> Case {
        loop {
            let rank = 1 + stream.below(3);
            let groups = pick(&[1, 1, 1, 2, 3, 16], stream);
            let most: &[usize] = if groups > 3 { &[1, 2] } else { &[1, 2, 3, 5, 8, 15, 17, 33, 65] };
            let channels = [groups * pick(most, stream), groups * pick(most, stream)];
            let axes: Vec<[usize; 5]> = (0..rank)
                .map(|_| {
                    let input =
                        pick(if rank == 1 { &[1, 9, 31, 64, 130] } else { &[1, 2, 4, 7, 8, 16, 19] }, stream);
                    let kernel = pick(&[1, 2, 3, 3, 5, 7], stream);
                    let stride = pick(&[1, 1, 2, 3], stream);
                    [input, kernel, stride, stream.below(kernel + 1), pick(&[1, 1, 2], stream)]
                })
                .collect();
            let batch = [None, Some(1), Some(2), Some(5)][stream.below(4)];
            let case = Case { batch, channels, groups, axes, bias: stream.below(2) == 0 };
            let Some([x, w, y, ..]) = case.shapes() else { continue };
            let work = y.numel() * w.numel() / (channels[1].max(1));
            if x.numel().max(y.numel()).max(w.numel()) <= 20_000 && work <= 600_000 {
                return case;
            }
        }
    }
}

/// What all three ops are sampled on: a plain case of each kind, nothing at all, one of everything, sums of
/// more than a chunk along each of the three sums, tile edges, and each rank.
fn cases() -> Vec<Case> {
    let case = |batch, channels, groups, axes: &[[usize; 5]], bias| Case {
        batch,
        channels,
        groups,
        axes: axes.to_vec(),
        bias,
    };
    vec![
        case(None, [1, 1], 1, &[[5, 3, 1, 1, 1]], false),
        case(None, [2, 3], 1, &[[7, 3, 2, 1, 1]], true),
        case(Some(2), [3, 4], 1, &[[6, 3, 1, 1, 1], [5, 3, 1, 1, 1]], true),
        case(Some(2), [4, 6], 2, &[[7, 3, 2, 1, 1], [8, 2, 3, 0, 1]], false),
        // A pixel each, and taps that skip, which with a stride reach some positions not at all.
        case(Some(3), [5, 2], 1, &[[4, 1, 1, 0, 1], [4, 1, 1, 0, 1]], true),
        case(Some(1), [2, 2], 1, &[[9, 2, 2, 0, 2], [9, 3, 3, 2, 2]], true),
        case(Some(2), [2, 3], 1, &[[7, 2, 3, 1, 1]], true),
        case(Some(1), [1, 2], 1, &[[10, 3, 2, 3, 4]], false),
        // Padding wider than the kernel.
        case(Some(1), [1, 1], 1, &[[2, 1, 1, 2, 1], [1, 2, 2, 3, 1]], true),
        // Channels alone.
        case(Some(2), [6, 6], 6, &[[6, 3, 1, 1, 1], [7, 3, 1, 1, 1]], true),
        case(Some(1), [4, 8], 4, &[[6, 3, 2, 1, 1], [5, 3, 2, 1, 1]], false),
        case(Some(2), [17, 17], 17, &[[17, 3, 1, 1, 1]], true),
        case(Some(1), [10, 5], 5, &[[6, 3, 1, 2, 2], [7, 2, 2, 3, 1]], true),
        case(Some(1), [4, 4], 4, &[[3, 2, 1, 0, 1], [4, 3, 2, 1, 1], [5, 3, 1, 1, 1]], false),
        case(Some(2), [4, 4], 4, &[[23, 3, 1, 1, 1], [33, 3, 1, 1, 1]], false),
        // Nothing of one kind or the other.
        case(Some(0), [2, 3], 1, &[[5, 3, 1, 1, 1]], true),
        case(Some(2), [0, 3], 1, &[[5, 3, 1, 1, 1]], true),
        case(Some(2), [2, 0], 1, &[[5, 3, 1, 1, 1]], true),
        case(Some(1), [1, 1], 1, &[[0, 2, 1, 1, 1]], true),
        // Three to eight axes.
        case(Some(1), [2, 3], 1, &[[3, 2, 1, 0, 1], [4, 3, 2, 1, 1], [5, 2, 1, 1, 2]], true),
        case(Some(1), [1, 2], 1, &[[2, 2, 1, 1, 1], [3, 2, 2, 0, 1], [2, 1, 1, 0, 1], [4, 3, 1, 1, 1]], true),
        case(
            None,
            [2, 1],
            1,
            &[[2, 1, 1, 0, 1], [2, 2, 1, 0, 1], [2, 1, 1, 0, 1], [2, 2, 1, 1, 1], [3, 2, 2, 0, 1]],
            false,
        ),
        case(
            Some(1),
            [1, 2],
            1,
            &[
                [2, 2, 1, 0, 1],
                [2, 1, 1, 0, 1],
                [1, 1, 1, 0, 1],
                [2, 2, 1, 1, 1],
                [2, 1, 2, 0, 1],
                [3, 2, 1, 0, 1],
            ],
            true,
        ),
        case(
            Some(2),
            [2, 2],
            2,
            &[
                [2, 2, 1, 1, 1],
                [1, 1, 1, 0, 1],
                [2, 1, 1, 0, 1],
                [3, 2, 2, 0, 1],
                [1, 1, 1, 0, 1],
                [2, 2, 1, 0, 1],
                [2, 1, 1, 0, 1],
            ],
            true,
        ),
        case(
            Some(1),
            [2, 1],
            1,
            &[
                [2, 2, 1, 0, 1],
                [1, 1, 1, 0, 1],
                [2, 1, 1, 0, 1],
                [2, 2, 2, 0, 1],
                [1, 1, 1, 0, 1],
                [2, 2, 1, 1, 1],
                [3, 2, 1, 0, 2],
                [2, 2, 1, 0, 1],
            ],
            true,
        ),
        // As many taps along one of eight axes as are still few.
        case(
            Some(1),
            [1, 1],
            1,
            &[
                [1, 1, 1, 0, 1],
                [1, 1, 1, 0, 1],
                [2, 1, 1, 0, 1],
                [1, 1, 1, 0, 1],
                [1, 1, 1, 0, 1],
                [1, 1, 1, 0, 1],
                [1, 1, 1, 0, 1],
                [33, 30, 1, 2, 1],
            ],
            false,
        ),
        // Around tiles of both devices.
        case(Some(1), [3, 33], 1, &[[9, 3, 1, 1, 1], [17, 3, 1, 1, 1]], true),
        case(Some(3), [17, 15], 1, &[[7, 3, 1, 1, 1], [7, 3, 1, 1, 1]], true),
        case(Some(2), [4, 65], 1, &[[8, 1, 1, 0, 1], [8, 1, 1, 0, 1]], false),
        case(Some(1), [2, 3], 1, &[[1, 1, 1, 0, 1], [133, 4, 1, 2, 1]], true),
        // More than a chunk: of channels and taps either way, of positions, and of images.
        case(Some(1), [119, 2], 1, &[[3, 3, 1, 1, 1], [4, 3, 1, 1, 1]], true),
        case(Some(1), [2, 119], 1, &[[3, 3, 1, 1, 1], [4, 3, 2, 1, 1]], true),
        case(Some(1), [1, 2], 1, &[[34, 3, 1, 1, 1], [33, 3, 1, 1, 1]], false),
        case(Some(43), [2, 3], 1, &[[7, 3, 1, 1, 1], [7, 3, 1, 1, 1]], false),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use dittograd_device::cpu::simd::Simd;
    use dittograd_device::cpu::threads::Pool;

    fn bits(v: &[f32]) -> Vec<u32> {
        v.iter().map(|x| if x.is_nan() { u32::MAX } else { x.to_bits() }).collect()
    }

    /// Numbers of either sign and of all sizes, some zeros, and now and then one that is not finite.
    fn values(len: usize, stream: &mut Stream) -> Vec<f32> {
        let one = |stream: &mut Stream| match stream.below(1000) {
            0 => f32::INFINITY,
            1 => -f32::INFINITY,
            2..60 => 0.0,
            60..100 => -1e-30,
            n => (stream.below(20_001) as f32 - 10_000.0) / [7.0, 3e4, 1e-3][n % 3],
        };
        (0..len).map(|_| one(stream)).collect()
    }

    /// The three ops of a case, thin and not: whether there was a thin one of each, and the same bits.
    fn same(case: &Case, stream: &mut Stream) -> [bool; 3] {
        let of = |i: usize| case.axes.iter().map(|a| a[i]).collect::<Vec<_>>();
        let Ok(g) = Geometry::new("conv", &case.window(), case.batch, case.channels, &of(0), &of(1)) else {
            return [false; 3];
        };
        let Some([x, w, y, b, bt]) = case.shapes().map(|s| s.map(|s| values(s.numel(), stream))) else {
            return [false; 3];
        };
        let mut found = [false; 3];
        for (threads, simd) in [1, 3].into_iter().zip(Simd::all_available().into_iter().rev().cycle()) {
            let pool = Pool::new(threads);
            let classes = [vec![g.forward()], g.transposed().collect::<Vec<_>>()];
            for (i, ((classes, from), (bias, out))) in
                classes.iter().zip([&x, &y]).zip([(&b, y.len()), (&bt, x.len())]).enumerate()
            {
                let bias = case.bias.then_some(&bias[..]);
                let Some(thin) = Depthwise::new(classes.iter().copied()).filter(|t| t.feeds(threads)) else {
                    continue;
                };
                found[i] = true;
                let (mut got, mut want) = (vec![f32::NAN; out], vec![f32::NAN; out]);
                let mut scratch = vec![f32::NAN; thin.scratch_len(threads)];
                thin.run(&pool, simd, from, &w, bias, &mut got, &mut scratch);
                for class in classes {
                    let mut scratch = vec![f32::NAN; class.scratch_len(threads)];
                    class.run(&pool, simd, from, &w, bias, &mut want, &mut scratch);
                }
                assert_eq!(bits(&got), bits(&want), "{case:?} {threads} {simd} op {i}");
            }
            let grad = g.kernel_grad();
            if let Some(thin) = DepthwiseGrad::new(&grad) {
                found[2] = true;
                let (mut got, mut want) = (vec![f32::NAN; w.len()], vec![f32::NAN; w.len()]);
                let mut scratch = vec![f32::NAN; thin.scratch_len(threads)];
                thin.run(&pool, simd, &y, &x, &mut got, &mut scratch);
                let mut scratch = vec![f32::NAN; grad.scratch_len(threads)];
                grad.run(&pool, simd, &y, &x, &mut want, &mut scratch);
                assert_eq!(bits(&got), bits(&want), "{case:?} {threads} {simd} gradient");
            }
        }
        found
    }

    #[test]
    fn thin_groups_have_the_bits_of_products() {
        let case = |batch, channels, groups, axes: &[[usize; 5]]| Case {
            batch: Some(batch),
            channels,
            groups,
            axes: axes.to_vec(),
            bias: channels[0] % 2 == 0,
        };
        let all = [
            // Widths around vectors, a stride and a skip each, and padding wider than the kernel.
            case(1, [5, 5], 5, &[[3, 3, 1, 1, 1], [15, 3, 1, 1, 1]]),
            case(2, [6, 6], 6, &[[9, 3, 2, 1, 1], [16, 3, 2, 1, 1]]),
            case(1, [17, 17], 17, &[[4, 3, 1, 2, 2], [17, 5, 3, 4, 2]]),
            case(2, [4, 4], 4, &[[5, 1, 1, 3, 1], [7, 2, 2, 5, 1]]),
            case(1, [16, 16], 16, &[[7, 1, 1, 0, 1], [7, 1, 2, 0, 1]]),
            // Several channels of either kind.
            case(2, [8, 16], 8, &[[12, 3, 1, 1, 1], [13, 3, 1, 1, 1]]),
            case(2, [18, 9], 9, &[[12, 3, 2, 1, 1], [13, 2, 1, 1, 1]]),
            case(1, [8, 8], 4, &[[6, 3, 1, 1, 1], [33, 3, 1, 1, 1]]),
            // Many taps, several boxes, several chunks that end inside lines.
            case(2, [4, 4], 4, &[[40, 7, 1, 3, 1], [47, 7, 1, 3, 1]]),
            case(1, [4, 4], 4, &[[40, 3, 1, 1, 1], [300, 3, 1, 1, 1]]),
            case(5, [33, 33], 33, &[[15, 3, 1, 1, 1], [16, 3, 1, 1, 1]]),
            // Lines longer than a piece, and other numbers of axes.
            case(2, [5, 5], 5, &[[1500, 5, 1, 2, 1]]),
            case(1, [4, 8], 4, &[[3, 2, 1, 1, 1], [1100, 3, 2, 1, 3]]),
            case(2, [4, 4], 4, &[[5, 3, 1, 1, 1], [6, 3, 2, 1, 1], [7, 3, 1, 1, 2]]),
            case(1, [4, 4], 4, &[[3, 2, 1, 1, 1], [4, 1, 1, 0, 1], [5, 2, 2, 0, 1], [6, 3, 1, 1, 1]]),
        ];
        let mut stream = Stream::new(7, 0);
        for case in &all {
            assert_eq!(same(case, &mut stream), [true; 3], "{case:?}");
        }
        let mut found = [0; 3];
        for _ in 0..150 {
            let mut case = Case::random(&mut stream);
            if case.groups < 4 {
                case.groups = pick(&[4, 7, 16, 18], &mut stream);
                let m = [pick(&[1, 1, 2, 3], &mut stream), pick(&[1, 1, 2], &mut stream)];
                case.channels = m.map(|m| m * case.groups);
            }
            for (n, found) in found.iter_mut().zip(same(&case, &mut stream)) {
                *n += usize::from(found);
            }
        }
        assert!(found.iter().all(|&n| n > 60), "{found:?}");
    }
}
