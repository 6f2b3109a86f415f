//! What a convolution is given and what follows from it: sizes and windows of users, the sizes of every axis, and the
//! products that kernels compute.

use crate::{Attr, Attrs};
use dittograd_device::cpu::conv::{Axis, Gather, KernelGrad, MAX_AXES, View};
use dittograd_numerics::Numerics;
use dittograd_numerics::digits::Digits;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::shape::{MAX_RANK, Shape};
use std::fmt;

/// A number for each spatial axis.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    pub(super) at: [u32; MAX_AXES],
    pub(super) len: u8,
}

impl Sizes {
    /// These numbers. Errors if there are none, more than a shape has room for, or one is beyond 32 bits.
    #[track_caller]
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
    pub(super) fn all(&self) -> [usize; MAX_AXES] {
        self.at.map(|x| x as usize)
    }

    /// The numbers, as sizes.
    pub(super) fn list(&self) -> Vec<usize> {
        self.get().iter().map(|&x| x as usize).collect()
    }
}

impl fmt::Debug for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.get())
    }
}

/// How the kernel of a convolution moves over the input; its sizes are those of the weights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConvWindow {
    /// Input elements from one output to the next, at least 1.
    pub stride: Sizes,
    /// Zeros on either side.
    pub padding: Sizes,
    /// Input elements from one tap to the next, at least 1.
    pub dilation: Sizes,
    /// Groups that input and output channels are cut into, each convolved on its own.
    pub groups: usize,
}

impl ConvWindow {
    /// Stride 1, no padding, dilation 1 along `rank` axes, one group.
    #[track_caller]
    pub fn plain(rank: usize) -> Result<ConvWindow> {
        let one = Sizes::new(&[1; MAX_AXES + 1][..rank.min(MAX_AXES + 1)])?;
        Ok(ConvWindow { stride: one, padding: one.filled(0), dilation: one, groups: 1 })
    }

    /// The same stride along all axes.
    pub fn stride(self, stride: usize) -> ConvWindow {
        ConvWindow { stride: self.stride.filled(stride), ..self }
    }

    /// The same padding on either side of all axes.
    pub fn padding(self, padding: usize) -> ConvWindow {
        ConvWindow { padding: self.padding.filled(padding), ..self }
    }

    /// The same dilation along all axes.
    pub fn dilation(self, dilation: usize) -> ConvWindow {
        ConvWindow { dilation: self.dilation.filled(dilation), ..self }
    }

    /// So many groups of channels.
    pub fn groups(self, groups: usize) -> ConvWindow {
        ConvWindow { groups, ..self }
    }

    pub(super) fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let list = |s: &Sizes| Attr::List(s.list());
        vec![
            ("stride", list(&self.stride)),
            ("padding", list(&self.padding)),
            ("dilation", list(&self.dilation)),
            ("groups", Attr::Num(self.groups as f64)),
        ]
    }

    #[track_caller]
    pub(super) fn from_attrs(attrs: &Attrs) -> Result<ConvWindow> {
        let groups = attrs.num("groups")?;
        if !(groups >= 1.0 && groups <= f64::from(u32::MAX) && groups.fract() == 0.0) {
            return Err(Error::argument("conv", "groups", format!("{groups} is not a number of groups")));
        }
        Ok(ConvWindow {
            stride: Sizes::new(&attrs.list("stride")?)?,
            padding: Sizes::new(&attrs.list("padding")?)?,
            dilation: Sizes::new(&attrs.list("dilation")?)?,
            groups: groups as usize,
        })
    }
}

/// One spatial axis of a convolution.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ConvAxis {
    pub(super) input: usize,
    pub(super) kernel: usize,
    pub(super) output: usize,
    pub(super) stride: usize,
    pub(super) padding: usize,
    pub(super) dilation: usize,
}

/// A convolution with all its sizes, checked. Channels are per group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    pub(super) batch: Option<usize>,
    pub(super) groups: usize,
    pub(super) channels_in: usize,
    pub(super) channels_out: usize,
    axes: [ConvAxis; MAX_AXES],
    rank: usize,
}

/// The largest size of a padded axis, and of a channel: offsets inside one fit 32 bits.
const MAX_EXTENT: usize = i32::MAX as usize - 4096;

impl Geometry {
    /// The convolution of `input` channels of sizes `x` with a kernel of sizes `k`.
    #[track_caller]
    pub(super) fn new(
        op: &'static str,
        window: &ConvWindow,
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
        let mut lines = [ConvAxis::default(); MAX_AXES];
        for (a, line) in lines.iter_mut().enumerate().take(rank) {
            let [stride, padding, dilation] =
                [window.stride, window.padding, window.dilation].map(|s| s.get()[a] as usize);
            let (input, kernel) = (x[a], k[a]);
            if kernel == 0 {
                return Err(Error::argument(op, "kernel", format!("{k:?} has a size of 0")));
            }
            let padded = padding.checked_mul(2).and_then(|p| p.checked_add(input));
            let reach = (kernel - 1).checked_mul(dilation).and_then(|r| r.checked_add(1));
            let (Some(padded), Some(reach)) = (
                padded.filter(|&p| p <= MAX_EXTENT && stride <= MAX_EXTENT),
                reach.filter(|&r| r <= MAX_EXTENT),
            ) else {
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
            *line = ConvAxis { input, kernel, output: room / stride + 1, stride, padding, dilation };
        }
        let geometry = Geometry {
            batch,
            groups: window.groups,
            channels_in: input / window.groups,
            channels_out: output / window.groups,
            axes: lines,
            rank,
        };
        for plane in [|l: &ConvAxis| l.input, |l: &ConvAxis| l.kernel, |l: &ConvAxis| l.output] {
            let sizes = geometry.axes().iter().map(plane);
            if sizes.clone().try_fold(1usize, |n, d| n.checked_mul(d)).is_none_or(|n| n > MAX_EXTENT) {
                return Err(Error::new(op, ErrorKind::TooLarge { dims: sizes.collect() }));
            }
        }
        Ok(geometry)
    }

    pub(super) fn axes(&self) -> &[ConvAxis] {
        &self.axes[..self.rank]
    }

    pub(super) fn images(&self) -> usize {
        self.batch.unwrap_or(1)
    }

    /// Shape of the images with `channels` in a group and the sizes that `of` takes from the axes.
    #[track_caller]
    fn image_shape(&self, channels: usize, of: fn(&ConvAxis) -> usize) -> Result<Shape> {
        let first = self.batch.into_iter().chain([channels * self.groups]);
        shape_of(first.chain(self.axes().iter().map(of)))
    }

    #[track_caller]
    pub(super) fn input_shape(&self) -> Result<Shape> {
        self.image_shape(self.channels_in, |l| l.input)
    }

    #[track_caller]
    pub(super) fn output_shape(&self) -> Result<Shape> {
        self.image_shape(self.channels_out, |l| l.output)
    }

    #[track_caller]
    pub(super) fn kernel_shape(&self) -> Result<Shape> {
        let first = [self.channels_out * self.groups, self.channels_in].into_iter();
        shape_of(first.chain(self.axes().iter().map(|l| l.kernel)))
    }

    pub(super) fn taps(&self) -> usize {
        self.axes().iter().map(|l| l.kernel).product()
    }

    /// Output positions of an image.
    pub(super) fn outputs(&self) -> usize {
        self.axes().iter().map(|l| l.output).product()
    }

    /// Channels of input and output, and the number of multiplications in a group.
    fn work(&self) -> ([usize; 2], usize) {
        let sizes = [self.images(), self.channels_in, self.channels_out, self.taps(), self.outputs()];
        ([self.channels_in, self.channels_out], sizes.into_iter().fold(1usize, usize::saturating_mul))
    }

    /// The digits that the convolution is computed in, if it is.
    pub(crate) fn forward_digits(&self, numerics: Numerics) -> Option<Digits> {
        let (channels, work) = self.work();
        Digits::of_conv(numerics, channels, self.channels_in.saturating_mul(self.taps()), work)
    }

    /// The digits that the transposed convolution is computed in, if it is.
    pub(crate) fn transposed_digits(&self, numerics: Numerics) -> Option<Digits> {
        let (channels, work) = self.work();
        Digits::of_conv(numerics, channels, self.channels_out.saturating_mul(self.taps()), work)
    }

    /// The digits that the gradient of the kernel is computed in, if it is.
    pub(crate) fn kernel_grad_digits(&self, numerics: Numerics) -> Option<Digits> {
        let (channels, work) = self.work();
        Digits::of_kernel_grad(numerics, channels, self.outputs(), work)
    }

    /// What the convolution reads: all outputs, all taps.
    pub(crate) fn view(&self) -> View {
        View::new(self.axes().iter().map(|l| Axis {
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
        let classes: usize = self.axes().iter().map(|l| l.stride.min(l.input)).product();
        (0..classes).map(move |class| {
            let mut rest = class;
            let mut axes = [Axis::ONE; MAX_AXES];
            for (axis, l) in axes.iter_mut().zip(geometry.axes()).rev() {
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

    /// A transposed convolution without taps, at all input positions.
    pub(crate) fn unreached(&self) -> Gather {
        let (rows, channels) = (self.channels_in, self.channels_out);
        let axis = |l: &ConvAxis| Axis {
            positions: l.input,
            taps: 0,
            source: l.output,
            out: l.input,
            w: l.kernel,
            ..Axis::ONE
        };
        Gather {
            view: View::new(self.axes().iter().map(axis)),
            batch: self.images(),
            groups: self.groups,
            rows,
            channels,
            w_strides: [0; 3],
        }
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
        fn walk(lines: &[ConvAxis], at: [usize; 3], f: &mut dyn FnMut(usize, usize, usize)) {
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
        walk(self.axes(), [0; 3], f);
    }

    /// Calls `f` with the indices in x, w and y of every product that the convolution sums.
    pub(super) fn products(&self, mut f: impl FnMut(usize, usize, usize)) {
        let size = |of: fn(&ConvAxis) -> usize| self.axes().iter().map(of).product::<usize>();
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

impl ConvAxis {
    /// The input positions `r + stride·t` and the taps that reach them.
    fn residue(&self, r: usize) -> Axis {
        let &ConvAxis { input, kernel, output, stride, padding, dilation } = self;
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

/// The shape of these dimensions; there are at most as many as a shape has.
#[track_caller]
fn shape_of(dims: impl Iterator<Item = usize>) -> Result<Shape> {
    let (mut all, mut rank) = ([0; MAX_RANK], 0);
    for (to, d) in all.iter_mut().zip(dims) {
        *to = d;
        rank += 1;
    }
    Shape::new(&all[..rank])
}
