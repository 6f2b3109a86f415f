//! Padding by a mode, patches of images, and ways to move channels into positions.

use super::Var;
use dittograd_numerics::environment::single;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;
use dittograd_ops::conv::ConvWindow;
use dittograd_ops::index::{IndexAdd, IndexSelect};

/// What [`Var::pad_mode`] puts around a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PadMode {
    /// A number.
    Constant(f64),
    /// The value, reflected at its outer elements. Padding must be below the size of its axis.
    Reflect,
    /// The outer elements, of the whole axis also where it is cropped.
    Replicate,
    /// The value, as if it were repeated. Padding must not be above the size of its axis.
    Circular,
}

/// The most elements of a table that is made on the host.
pub(super) const MOST_TABLE: usize = 1 << 30;

/// The places of windows in an image: for each tap and each position, the element it reads, or `u32::MAX` in the padding.
/// Also the number of positions.
#[track_caller]
fn patches(
    op: &'static str,
    sizes: &[usize],
    kernel: &[usize],
    window: &ConvWindow,
) -> Result<(Tensor<u32>, usize)> {
    let rank = kernel.len();
    let lists = [window.stride, window.padding, window.dilation];
    if rank == 0 || rank > 8 || lists.iter().any(|l| l.get().len() != rank) {
        let why = format!("kernel {kernel:?} and the window {window:?} must have one number for each axis");
        return Err(Error::argument(op, "kernel", why));
    }
    let each = |l: usize, a: usize| lists[l].get()[a] as usize;
    let mut out = Vec::new();
    for a in 0..rank {
        let (stride, padding, dilation) = (each(0, a), each(1, a), each(2, a));
        let reach =
            kernel[a].checked_sub(1).and_then(|k| k.checked_mul(dilation)).and_then(|r| r.checked_add(1));
        let room = reach.and_then(|reach| (sizes[a].checked_add(2 * padding)?).checked_sub(reach));
        match room {
            Some(room) if stride > 0 && dilation > 0 => out.push(room / stride + 1),
            _ => {
                let why = format!(
                    "{} at stride {stride}, dilation {dilation} does not fit {} elements with padding {padding}",
                    kernel[a], sizes[a]
                );
                return Err(Error::argument(op, "kernel", why));
            }
        }
    }
    let cells = sizes.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).filter(|&n| n < u32::MAX as usize);
    if cells.is_none() {
        return Err(Error::new(op, ErrorKind::TooLarge { dims: sizes.to_vec() }));
    }
    let places = out.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).unwrap_or(usize::MAX);
    let taps = kernel.iter().try_fold(places, |n, &d| n.checked_mul(d)).unwrap_or(usize::MAX);
    if taps > MOST_TABLE {
        return Err(Error::new(op, ErrorKind::TooLarge { dims: [kernel, &out[..]].concat() }));
    }
    let shape = Shape::new(&[taps])?;
    let index = Tensor::try_from_fn(shape, |mut i| {
        let (mut offset, mut scale) = (0, 1);
        let mut at = [0; 16];
        for a in (0..rank).rev() {
            at[a] = i % out[a];
            i /= out[a];
        }
        for a in (0..rank).rev() {
            let tap = i % kernel[a];
            i /= kernel[a];
            match (at[a] * each(0, a) + tap * each(2, a)).checked_sub(each(1, a)) {
                Some(x) if x < sizes[a] => offset += x * scale,
                _ => return u32::MAX,
            }
            scale *= sizes[a];
        }
        offset as u32
    })?;
    Ok((index, places))
}

/// # Padding and patches
impl<'s> Var<'s> {
    /// Pads the last axes: PyTorch's `pad`. `pad` has two numbers for each axis, before and after it, from the last axis
    /// back: `[left, right, top, bottom, …]`. A negative number crops.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # use dittograd::session::PadMode;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let x = session.arange(0.0, 4.0, 1.0)?;
    /// assert_eq!(x.pad_mode(&[2, 1], PadMode::Reflect)?.to_string(), "[2. 1. 0. 1. 2. 3. 2.]");
    /// assert_eq!(x.pad_mode(&[-1, 2], PadMode::Replicate)?.to_string(), "[1. 2. 3. 3. 3.]");
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn pad_mode(self, pad: &[i64], mode: PadMode) -> Result<Var<'s>> {
        let shape = self.shape()?;
        if !pad.len().is_multiple_of(2) || pad.len() / 2 > shape.rank() {
            let why = format!("{pad:?} must have two numbers for each of at most {} axes", shape.rank());
            return Err(Error::argument("pad", "pad", why));
        }
        let mut v = self;
        for (i, sides) in pad.chunks(2).enumerate() {
            v = v.pad_axis(shape.rank() - 1 - i, [sides[0], sides[1]], mode)?;
        }
        Ok(v)
    }

    #[track_caller]
    fn pad_axis(self, axis: usize, sides: [i64; 2], mode: PadMode) -> Result<Var<'s>> {
        let size = self.shape()?.dims()[axis];
        let refuse =
            |why: String| Err(Error::argument("pad", "pad", format!("{sides:?} of axis {axis}: {why}")));
        let count = |n: i64| usize::try_from(n.unsigned_abs()).unwrap_or(usize::MAX);
        let crop = sides.map(|n| if n < 0 { count(n) } else { 0 });
        let Some(left) = crop[0].checked_add(crop[1]).and_then(|n| size.checked_sub(n)) else {
            return refuse(format!("there are only {size} elements to take away from"));
        };
        let [before, after] = sides.map(|n| if n > 0 { count(n) } else { 0 });
        if mode == PadMode::Replicate && before.max(after) > 0 && left < size {
            return self.replicated(axis, [before, after], crop);
        }
        let v = if left < size { self.narrow(axis, crop[0], left)? } else { self };
        if before == 0 && after == 0 {
            return Ok(v);
        }
        if let PadMode::Constant(value) = mode {
            return v.pad_with(axis, before, after, value);
        }
        if left == 0 {
            return refuse("an axis without elements has nothing to be padded with".into());
        }
        let most = match mode {
            PadMode::Reflect => left - 1,
            PadMode::Circular => left,
            _ => usize::MAX,
        };
        if before.max(after) > most {
            return refuse(format!("at most {most} for {left} elements in this mode"));
        }
        let edge = |at: usize, n: usize| -> Result<Option<Var<'s>>> {
            let side = |from: usize| v.narrow(axis, from, n);
            (n > 0)
                .then(|| match mode {
                    PadMode::Reflect if at == 0 => side(1)?.flip(&[axis]),
                    PadMode::Reflect => side(left - 1 - n)?.flip(&[axis]),
                    PadMode::Circular if at == 0 => side(left - n),
                    PadMode::Circular => side(0),
                    _ => {
                        let one = v.narrow(axis, if at == 0 { 0 } else { left - 1 }, 1)?;
                        let mut dims = v.shape()?.dims().to_vec();
                        dims[axis] = n;
                        one.expand(&dims)
                    }
                })
                .transpose()
        };
        let parts: Vec<Var<'s>> =
            [edge(0, before)?, Some(v), edge(1, after)?].into_iter().flatten().collect();
        self.session().concat(&parts, axis)
    }

    /// An axis that is padded by its outer elements on one side and cropped on the other.
    #[track_caller]
    fn replicated(self, axis: usize, [before, after]: [usize; 2], crop: [usize; 2]) -> Result<Var<'s>> {
        let size = self.shape()?.dims()[axis];
        let whole = self.pad_axis(axis, [before as i64, after as i64], PadMode::Replicate)?;
        whole.narrow(axis, crop[0], before + size + after - crop[0] - crop[1])
    }

    /// The patches of images `(N, C, sizes…)` that a convolution reads: `(N, C · taps, positions)`, the taps and the
    /// positions in row-major order. PyTorch's `unfold`, for any number of axes; `window.groups` does not matter.
    #[doc(alias = "unfold")]
    #[track_caller]
    pub fn im2col(self, kernel: &[usize], window: ConvWindow) -> Result<Var<'s>> {
        let shape = self.shape()?;
        let [n, c, sizes @ ..] = shape.dims() else {
            let want = "images, channels and sizes";
            return Err(Error::new("im2col", ErrorKind::Rank { want, got: shape }));
        };
        if sizes.len() != kernel.len() {
            let why = format!("{kernel:?} is for images of {} axes, not {shape}", kernel.len());
            return Err(Error::argument("im2col", "kernel", why));
        }
        let (index, places) = patches("im2col", sizes, kernel, &window)?;
        let taps: usize = kernel.iter().product();
        let flat = self.reshape(&[*n, *c, sizes.iter().product()])?;
        let index = self.session().indices(&index)?;
        let all = self.session().apply(IndexSelect { axis: 2, checked: false }, &[flat, index])?;
        all.reshape(&[*n, c * taps, places])
    }

    /// Images of the given sizes from the sums of their patches `(N, C · taps, positions)`: the transpose of
    /// [`Var::im2col`], PyTorch's `fold`. Each element is the sum of what lies on it, in the order of taps.
    #[doc(alias = "fold")]
    #[track_caller]
    pub fn col2im(self, sizes: &[usize], kernel: &[usize], window: ConvWindow) -> Result<Var<'s>> {
        let shape = self.shape()?;
        if sizes.len() != kernel.len() {
            let why = format!("{kernel:?} is for images of {} axes, not of sizes {sizes:?}", kernel.len());
            return Err(Error::argument("col2im", "kernel", why));
        }
        let (index, places) = patches("col2im", sizes, kernel, &window)?;
        let taps: usize = kernel.iter().product();
        let &[n, columns, found] = shape.dims() else {
            return Err(Error::new("col2im", ErrorKind::Rank { want: "exactly 3", got: shape }));
        };
        if found != places || !columns.is_multiple_of(taps) {
            let why = format!("patches {shape} must be (N, a multiple of {taps}, {places})");
            return Err(Error::argument("col2im", "kernel", why));
        }
        let (c, size) = (columns / taps, sizes.iter().product());
        let src = self.reshape(&[n, c, taps * places])?;
        let index = self.session().indices(&index)?;
        let sum = self.session().apply(IndexAdd { axis: 2, size, checked: false }, &[src, index])?;
        sum.reshape(&[&[n, c], sizes].concat())
    }

    /// Moves channels into positions: `(…, C · r², H, W)` to `(…, C, H · r, W · r)`.
    #[track_caller]
    pub fn pixel_shuffle(self, r: usize) -> Result<Var<'s>> {
        let (lead, [c, h, w]) = self.plane("pixel_shuffle")?;
        let parts = r.checked_mul(r).filter(|&n| n > 0 && c.is_multiple_of(n));
        let Some(parts) = parts else {
            let why = format!("{r}² must divide the {c} channels");
            return Err(Error::argument("pixel_shuffle", "r", why));
        };
        let all: usize = lead.iter().product();
        let v = self.reshape(&[all, c / parts, r, r, h, w])?.permute(&[0, 1, 4, 2, 5, 3])?;
        v.reshape(&[&lead[..], &[c / parts, h * r, w * r]].concat())
    }

    /// Moves positions into channels: `(…, C, H · r, W · r)` to `(…, C · r², H, W)`.
    #[track_caller]
    pub fn pixel_unshuffle(self, r: usize) -> Result<Var<'s>> {
        let (lead, [c, h, w]) = self.plane("pixel_unshuffle")?;
        if r == 0 || !h.is_multiple_of(r) || !w.is_multiple_of(r) {
            let why = format!("{r} must divide the sizes {h} and {w}");
            return Err(Error::argument("pixel_unshuffle", "r", why));
        }
        let all: usize = lead.iter().product();
        let v = self.reshape(&[all, c, h / r, r, w / r, r])?.permute(&[0, 1, 3, 5, 2, 4])?;
        v.reshape(&[&lead[..], &[c * r * r, h / r, w / r]].concat())
    }

    /// The axes before the last three, and the last three.
    #[track_caller]
    fn plane(self, op: &'static str) -> Result<(Vec<usize>, [usize; 3])> {
        let shape = self.shape()?;
        match shape.dims() {
            [lead @ .., c, h, w] => Ok((lead.to_vec(), [*c, *h, *w])),
            _ => Err(Error::new(
                op,
                ErrorKind::Rank { want: "at least 3: channels, height, width", got: shape },
            )),
        }
    }

    /// Takes the channels of `(N, C, …)`, which form groups, in turns from each group.
    #[track_caller]
    pub fn channel_shuffle(self, groups: usize) -> Result<Var<'s>> {
        let shape = self.shape()?;
        let [n, c, sizes @ ..] = shape.dims() else {
            let want = "at least 2: images and channels";
            return Err(Error::new("channel_shuffle", ErrorKind::Rank { want, got: shape }));
        };
        if groups == 0 || !c.is_multiple_of(groups) {
            let why = format!("{groups} do not divide {c} channels");
            return Err(Error::argument("channel_shuffle", "groups", why));
        }
        let v = self.reshape(&[*n, groups, c / groups, sizes.iter().product()])?.swap_axes(1, 2)?;
        v.reshape(shape.dims())
    }

    /// Local response norm of `(N, C, …)`: `x / (k + alpha · m)^beta`, where `m` is the mean of the squares of `size`
    /// neighbouring channels, zeros beyond the first and last one. PyTorch's defaults are 1e-4, 0.75 and 1.
    #[track_caller]
    pub fn local_response_norm(self, size: usize, alpha: f64, beta: f64, k: f64) -> Result<Var<'s>> {
        let shape = self.shape()?;
        let [n, c, sizes @ ..] = shape.dims() else {
            let want = "at least 3: images, channels and positions";
            return Err(Error::new("local_response_norm", ErrorKind::Rank { want, got: shape }));
        };
        if size == 0 || sizes.is_empty() {
            let why =
                format!("a window of {size} channels of {shape}; use at least 1, of (N, C, positions…)");
            return Err(Error::argument("local_response_norm", "size", why));
        }
        let squares = self.square()?.reshape(&[*n, *c, sizes.iter().product()])?;
        let padded = squares.pad(1, size / 2, (size - 1) / 2)?;
        let mean = padded.avg_pool(&[size, 1], &[1, 1], &[0, 0], true)?.reshape(shape.dims())?;
        let (alpha, k) = (f64::from(single(alpha)), f64::from(single(k)));
        self.div(mean.scale(alpha)?.add_scalar(k)?.pow_scalar(beta)?)
    }
}
