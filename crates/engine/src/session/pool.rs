//! Pooling of values. The pooled axes are the last ones, as many as the kernel has entries; all others are
//! independent of each other.

use super::Var;
use dittograd_numerics::environment::single;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;
use dittograd_ops::index::ScatterAdd;
use dittograd_ops::pool::{
    AdaptiveAvgPool, AdaptiveMaxPool, AdaptiveMaxPoolPick, AvgPool, MaxPool, MaxPoolPick, PoolWindow,
    SmoothMaxPool,
};

/// Options of [`Var::avg_pool_with`]. The default is PyTorch's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AvgPoolOptions {
    /// Whether windows that begin in the input or before it may end beyond the padding.
    pub ceil_mode: bool,
    /// Whether padding counts as cells of value 0, instead of not at all.
    pub count_include_pad: bool,
    /// What sums are divided by, instead of the number of cells.
    pub divisor_override: Option<usize>,
}

impl Default for AvgPoolOptions {
    fn default() -> AvgPoolOptions {
        AvgPoolOptions { ceil_mode: false, count_include_pad: true, divisor_override: None }
    }
}

/// Positions in a plane that are whole numbers in float32.
const MOST_CELLS: usize = 1 << 24;

/// # Pooling
///
/// The pooled axes are the last ones, as many as the kernel has entries; all others are independent of each other.
impl<'s> Var<'s> {
    /// Max pooling. Padding is ignored; a NaN counts as larger than every number.
    #[track_caller]
    pub fn max_pool(self, kernel: &[usize], stride: &[usize], padding: &[usize]) -> Result<Var<'s>> {
        self.session().apply(MaxPool { window: PoolWindow::new(kernel, stride, padding) }, &[self])
    }

    /// Max pooling with dilated windows, whose neighbouring cells are `dilation` apart.
    #[track_caller]
    pub fn max_pool_dilated(
        self,
        kernel: &[usize],
        stride: &[usize],
        padding: &[usize],
        dilation: &[usize],
    ) -> Result<Var<'s>> {
        let window = PoolWindow { dilation: dilation.to_vec(), ..PoolWindow::new(kernel, stride, padding) };
        self.session().apply(MaxPool { window }, &[self])
    }

    /// Max pooling with windows of any kind. With `ceil_mode`, windows that begin in the input or before it may end beyond
    /// the padding.
    #[track_caller]
    pub fn max_pool_with(self, window: PoolWindow, ceil_mode: bool) -> Result<Var<'s>> {
        let more = if ceil_mode { self.beyond("max_pool", &window)? } else { Vec::new() };
        let x = self.padded_after(&more, f64::NEG_INFINITY)?;
        x.session().apply(MaxPool { window }, &[x])
    }

    /// [`Var::max_pool_with`] and, for each window, the position of its maximum in the plane of the pooled axes, counted in
    /// row-major order: PyTorch's `return_indices`. Planes have at most 2^24 cells.
    #[track_caller]
    pub fn max_pool_with_indices(self, window: PoolWindow, ceil_mode: bool) -> Result<(Var<'s>, Var<'s>)> {
        let more = if ceil_mode { self.beyond("max_pool", &window)? } else { Vec::new() };
        let x = self.padded_after(&more, f64::NEG_INFINITY)?;
        let y = x.session().apply(MaxPool { window: window.clone() }, &[x])?;
        let places = self.places("max_pool", window.kernel.len())?.padded_after(&more, 0.0)?;
        let found = x.session().apply(MaxPoolPick { window }, &[x.detach()?, y.detach()?, places])?;
        Ok((y, found.to_index_below(MOST_CELLS as u32)?))
    }

    /// Max pooling to the given sizes of the last axes.
    #[doc(alias = "adaptive_max_pool2d")]
    #[track_caller]
    pub fn adaptive_max_pool(self, sizes: &[usize]) -> Result<Var<'s>> {
        self.session().apply(AdaptiveMaxPool { sizes: sizes.to_vec() }, &[self])
    }

    /// [`Var::adaptive_max_pool`] and the positions of the maxima, as in [`Var::max_pool_with_indices`].
    #[track_caller]
    pub fn adaptive_max_pool_with_indices(self, sizes: &[usize]) -> Result<(Var<'s>, Var<'s>)> {
        let y = self.adaptive_max_pool(sizes)?;
        let places = self.places("adaptive_max_pool", sizes.len())?;
        let pick = AdaptiveMaxPoolPick { sizes: sizes.to_vec() };
        let found = self.session().apply(pick, &[self.detach()?, y.detach()?, places])?;
        Ok((y, found.to_index_below(MOST_CELLS as u32)?))
    }

    /// Max pooling of windows at random distances, to the given sizes of the last axes, and the positions of the maxima, as in
    /// [`Var::max_pool_with_indices`]. With `α = (n - kernel) / (size - 1)`, window `i` of an axis of `n` begins at
    /// `trunc((i + u) α) - trunc(u α)`, the last one at `n - kernel`. `u` is a number from 0 to 1 for each plane and axis: a row of `samples`
    /// `(planes, axes)` for each plane, or a draw. Of two axes the row has the second one first, as PyTorch's `_random_samples` has.
    #[doc(alias("fractional_max_pool2d", "fractional_max_pool3d"))]
    #[track_caller]
    pub fn fractional_max_pool(
        self,
        kernel: &[usize],
        sizes: &[usize],
        samples: Option<Var<'s>>,
    ) -> Result<(Var<'s>, Var<'s>)> {
        const NAME: &str = "fractional_max_pool";
        let (session, shape, axes) = (self.session(), self.shape()?, kernel.len());
        let (lead, plane) = shape.dims().split_at(whole_axes(NAME, &shape, axes)?);
        let reach = |a: usize| kernel[a].checked_add(sizes[a])?.checked_sub(1);
        let fits = |a: usize| kernel[a] > 0 && sizes[a] > 0 && reach(a).is_some_and(|n| n <= plane[a]);
        if sizes.len() != axes || !(0..axes).all(fits) {
            let why = format!(
                "windows of {kernel:?} cannot make {sizes:?} of {plane:?}; kernel + size - 1 must be at most that"
            );
            return Err(Error::argument(NAME, "kernel", why));
        }
        let (planes, cells): (usize, usize) = (lead.iter().product(), plane.iter().product());
        if cells > MOST_CELLS {
            let why =
                format!("planes of {plane:?} have more than {MOST_CELLS} cells, too many for positions");
            return Err(Error::argument(NAME, "x", why));
        }
        let samples = match samples {
            Some(samples) if samples.shape()?.dims() != [planes, axes] => {
                let why = format!("{} must be ({planes}, {axes}): planes and axes", samples.shape()?);
                return Err(Error::argument(NAME, "samples", why));
            }
            Some(samples) => samples.detach()?,
            None => session.uniform(&[planes, axes])?,
        };
        // The position of each tap of each window: a sum of one number for each axis.
        let mut place = session.zeros(&[1])?;
        let mut distance = cells;
        for a in 0..axes {
            let (n, k, out) = (plane[a], kernel[a], sizes[a]);
            distance /= n;
            let u = samples.narrow(1, if axes == 2 { 1 - a } else { a }, 1)?;
            let i = session.arange(0.0, out as f64, 1.0)?;
            let (last, room) = ((out - 1) as f64, (n - k) as f64);
            let alpha = room / last.max(1.0);
            let start = i.add(u)?.scale(alpha)?.trunc()?.sub(u.scale(alpha)?.trunc()?)?;
            let is_last = i.eq(session.scalar(last)?)?.expand(&[planes, out])?;
            let start = start.masked_fill(is_last, room)?;
            let (mut at, mut of) = (vec![1; 1 + 2 * axes], vec![1; 1 + 2 * axes]);
            (at[0], at[1 + a], of[1 + axes + a]) = (planes, out, k);
            let tap = session.arange(0.0, k as f64, 1.0)?.reshape(&of)?;
            place = place.add(start.reshape(&at)?.add(tap)?.scale(distance as f64)?)?;
        }
        let (out, taps): (usize, usize) = (sizes.iter().product(), kernel.iter().product());
        let place = place.reshape(&[planes, out * taps])?;
        let index = place.to_index_below(cells as u32)?;
        let windows = self.reshape(&[planes, cells])?.take_along_axis(1, index)?;
        let (y, tap) = windows.reshape(&[planes, out, taps])?.max_dim(2, true)?;
        let found = place.reshape(&[planes, out, taps])?.take_along_axis(2, tap)?;
        let whole = [lead, sizes].concat();
        Ok((y.reshape(&whole)?, found.to_index_below(cells as u32)?.reshape(&whole)?))
    }

    /// The inverse of max pooling: a value of zeros with the given sizes of its last axes, and the elements of this one at
    /// the positions that [`Var::max_pool_with_indices`] gave. An element that several windows name gets the mean of them.
    #[doc(alias = "max_unpool2d")]
    #[track_caller]
    pub fn max_unpool(self, indices: Var<'s>, sizes: &[usize]) -> Result<Var<'s>> {
        let shape = self.shape()?;
        let at = whole_axes("max_unpool", &shape, sizes.len())?;
        if indices.shape()? != shape {
            let why = format!("{} must have the shape of the value, {shape}", indices.shape()?);
            return Err(Error::argument("max_unpool", "indices", why));
        }
        let size = sizes.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).unwrap_or(usize::MAX);
        let lead = &shape.dims()[..at];
        let flat = [lead.iter().product(), shape.dims()[at..].iter().product()];
        let (x, indices) = (self.reshape(&flat)?, indices.reshape(&flat)?);
        let add = ScatterAdd { axis: 1, size, checked: true };
        let sum = self.session().apply(add, &[x, indices])?;
        let count = self.session().apply(add, &[x.ones_like()?, indices])?;
        sum.div(count.clamp(1.0, f64::INFINITY)?)?.reshape(&[lead, sizes].concat())
    }

    /// [`Var::max_unpool`] to the sizes of which max pooling with these windows makes this value: the smallest, where several do.
    #[doc(alias = "max_unpool2d")]
    #[track_caller]
    pub fn max_unpool_with(self, indices: Var<'s>, window: PoolWindow) -> Result<Var<'s>> {
        const NAME: &str = "max_unpool";
        let shape = self.shape()?;
        let plane = &shape.dims()[whole_axes(NAME, &shape, window.kernel.len())?..];
        let size = |(a, n): (usize, &usize)| {
            let (stride, padding) = (window.stride.get(a)?, window.padding.get(a)?);
            let reach = n.checked_sub(1)?.checked_mul(*stride)?.checked_add(window.kernel[a])?;
            reach.checked_sub(padding.checked_mul(2)?)
        };
        let Some(sizes) = plane.iter().enumerate().map(size).collect::<Option<Vec<_>>>() else {
            let why = format!("there is no plane of which these windows make {plane:?}");
            return Err(Error::argument(NAME, "window", why));
        };
        self.max_unpool(indices, &sizes)
    }

    /// The `p`-norm of each window, without padding: `(Σ x^p)^(1/p)`.
    #[doc(alias("lp_pool1d", "lp_pool2d", "lp_pool3d"))]
    #[track_caller]
    pub fn lp_pool(self, p: f64, kernel: &[usize], stride: &[usize], ceil_mode: bool) -> Result<Var<'s>> {
        let window = PoolWindow::new(kernel, stride, &vec![0; kernel.len()]);
        let options = AvgPoolOptions { ceil_mode, ..AvgPoolOptions::default() };
        let mean = self.pow_scalar(p)?.avg_pool_with(window, options)?;
        let cells: f64 = kernel.iter().map(|&k| k as f64).product();
        mean.sign()?.mul(mean.abs()?.relu()?)?.scale(cells)?.pow_scalar(1.0 / p)
    }

    /// Average pooling with windows of any kind, all options of PyTorch's.
    #[track_caller]
    pub fn avg_pool_with(self, window: PoolWindow, options: AvgPoolOptions) -> Result<Var<'s>> {
        let AvgPoolOptions { ceil_mode, count_include_pad, divisor_override } = options;
        if divisor_override == Some(0) {
            return Err(Error::argument("avg_pool", "divisor_override", "is 0, use 1 or more"));
        }
        let more = if ceil_mode { self.beyond("avg_pool", &window)? } else { Vec::new() };
        if divisor_override.is_none() && more.iter().all(|&n| n == 0) {
            return self.session().apply(AvgPool { window, count_include_pad }, &[self]);
        }
        let shape = self.shape()?;
        let at = whole_axes("avg_pool", &shape, window.kernel.len())?;
        let cells: f64 = window.kernel.iter().map(|&k| k as f64).product();
        let x = self.padded_after(&more, 0.0)?;
        let mean = x.session().apply(AvgPool { window: window.clone(), count_include_pad: true }, &[x])?;
        if let Some(divisor) = divisor_override {
            return mean.scale(cells / divisor as f64);
        }
        // The cells that count, along each axis.
        let (out, axes) = (mean.shape()?, window.kernel.len());
        let counts = |a: usize, o: usize| {
            let (n, p) = (shape.dims()[at + a], window.padding[a]);
            let start = o * window.stride[a];
            let end = start + window.kernel[a];
            match count_include_pad {
                true => end.min(n + 2 * p) - start,
                false => end.min(n + p).saturating_sub(start.max(p)),
            }
        };
        let sizes = &out.dims()[at..];
        let factors = Tensor::<f64>::try_from_fn(Shape::new(sizes)?, |mut i| {
            let mut count = 1;
            for a in (0..axes).rev() {
                count *= counts(a, i % sizes[a]);
                i /= sizes[a];
            }
            cells / count as f64
        })?;
        mean.mul(x.session().constant(&factors)?)
    }

    /// How many cells the last windows of `ceil_mode` need beyond the padding, along each axis. A window must begin in the
    /// input or in the padding before it.
    #[track_caller]
    fn beyond(self, op: &'static str, window: &PoolWindow) -> Result<Vec<usize>> {
        let (shape, axes) = (self.shape()?, window.kernel.len());
        let at = whole_axes(op, &shape, axes)?;
        let lists = [&window.stride, &window.padding, &window.dilation];
        let one = |a: usize| {
            let [s, p, d] = lists.map(|l| l.get(a).copied());
            let (s, p, d, k, n) = (s?, p?, d?, window.kernel[a], shape.dims()[at + a]);
            let reach = k.checked_sub(1)?.checked_mul(d)?.checked_add(1)?;
            let padded = n.checked_add(p.checked_mul(2)?)?;
            let room = padded.checked_sub(reach)?;
            let starts = if s == 0 { 0 } else { room.div_ceil(s) };
            // The last window must not begin beyond the input.
            let last =
                if starts.checked_mul(s)? >= n.checked_add(p)? { starts.saturating_sub(1) } else { starts };
            Some((last.checked_mul(s)?.checked_add(reach)?).saturating_sub(padded))
        };
        // Where a window does not fit at all, the op says so.
        Ok((0..axes).map(|a| one(a).unwrap_or(0)).collect())
    }

    /// This value with `more` cells after each of its last axes.
    #[track_caller]
    fn padded_after(self, more: &[usize], value: f64) -> Result<Var<'s>> {
        let rank = self.shape()?.rank();
        let pads = more.iter().enumerate().filter(|(_, n)| **n > 0);
        pads.map(|(a, &n)| (rank - more.len() + a, n))
            .try_fold(self, |v, (axis, n)| v.pad_with(axis, 0, n, value))
    }

    /// The position of every element in its plane of the last `axes` axes.
    #[track_caller]
    fn places(self, op: &'static str, axes: usize) -> Result<Var<'s>> {
        let shape = self.shape()?;
        let at = whole_axes(op, &shape, axes)?;
        let plane = &shape.dims()[at..];
        let cells = plane.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).unwrap_or(usize::MAX);
        if cells > MOST_CELLS {
            let why =
                format!("planes of {plane:?} have more than {MOST_CELLS} cells, too many for positions");
            return Err(Error::argument(op, "x", why));
        }
        self.session().arange(0.0, cells as f64, 1.0)?.reshape(plane)?.broadcast_to(shape)
    }

    /// Average pooling. Padding counts as cells of value 0 if `count_include_pad`, else not at all.
    #[track_caller]
    pub fn avg_pool(
        self,
        kernel: &[usize],
        stride: &[usize],
        padding: &[usize],
        count_include_pad: bool,
    ) -> Result<Var<'s>> {
        let op = AvgPool { window: PoolWindow::new(kernel, stride, padding), count_include_pad };
        self.session().apply(op, &[self])
    }

    /// Smooth max pooling: `ln(sum e^(beta v)) / beta` over each window. Padding, of any width,
    /// takes part with value 0.
    #[track_caller]
    pub fn smooth_max_pool(
        self,
        kernel: &[usize],
        stride: &[usize],
        padding: &[usize],
        beta: f64,
    ) -> Result<Var<'s>> {
        let op = SmoothMaxPool { window: PoolWindow::new(kernel, stride, padding), beta: single(beta) };
        self.session().apply(op, &[self])
    }

    /// Average pooling to the given sizes of the last axes. To size 1 along all of them it is [`Var::global_avg_pool`],
    /// which sums like a mean.
    #[doc(alias = "adaptive_avg_pool2d")]
    #[track_caller]
    pub fn adaptive_avg_pool(self, sizes: &[usize]) -> Result<Var<'s>> {
        if !sizes.is_empty() && sizes.iter().all(|&n| n == 1) {
            return self.global_avg_pool(sizes.len());
        }
        self.session().apply(AdaptiveAvgPool { sizes: sizes.to_vec() }, &[self])
    }

    /// The mean over the last `axes` axes, which are kept with size 1.
    #[track_caller]
    pub fn global_avg_pool(self, axes: usize) -> Result<Var<'s>> {
        let shape = self.shape()?;
        let at = whole_axes("global_avg_pool", &shape, axes)?;
        let mut kept = shape.dims().to_vec();
        kept[at..].fill(1);
        self.mean_axes(&(at..shape.rank()).collect::<Vec<_>>())?.reshape(&kept)
    }

    /// The maximum over the last `axes` axes, which are kept with size 1.
    #[track_caller]
    pub fn global_max_pool(self, axes: usize) -> Result<Var<'s>> {
        let shape = self.shape()?;
        let at = whole_axes("global_max_pool", &shape, axes)?;
        self.max_pool(&shape.dims()[at..], &vec![1; axes], &vec![0; axes])
    }

    /// [`Var::max_pool`] over the last two axes with one stride, without padding.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let image = session.arange(0.0, 16.0, 1.0)?.reshape(&[1, 1, 4, 4])?;
    /// assert_eq!(image.max_pool2d([2, 2], 2)?.flatten()?.to_string(), "[ 5.  7. 13. 15.]");
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn max_pool2d(self, kernel: [usize; 2], stride: usize) -> Result<Var<'s>> {
        self.max_pool2d_pad(kernel, stride, 0)
    }

    /// [`Var::max_pool`] over the last two axes with one stride and padding.
    #[track_caller]
    pub fn max_pool2d_pad(self, kernel: [usize; 2], stride: usize, padding: usize) -> Result<Var<'s>> {
        self.max_pool(&kernel, &[stride; 2], &[padding; 2])
    }

    /// [`Var::avg_pool`] over the last two axes with one stride, without padding.
    #[track_caller]
    pub fn avg_pool2d(self, kernel: [usize; 2], stride: usize) -> Result<Var<'s>> {
        self.avg_pool2d_pad(kernel, stride, 0)
    }

    /// [`Var::avg_pool`] over the last two axes with one stride and padding, which counts as cells.
    #[track_caller]
    pub fn avg_pool2d_pad(self, kernel: [usize; 2], stride: usize, padding: usize) -> Result<Var<'s>> {
        self.avg_pool(&kernel, &[stride; 2], &[padding; 2], true)
    }

    /// [`Var::smooth_max_pool`] over the last two axes with one stride, without padding.
    #[track_caller]
    pub fn smooth_max_pool2d(self, kernel: [usize; 2], stride: usize, beta: f64) -> Result<Var<'s>> {
        self.smooth_max_pool2d_pad(kernel, stride, 0, beta)
    }

    /// [`Var::smooth_max_pool`] over the last two axes with one stride and padding.
    #[track_caller]
    pub fn smooth_max_pool2d_pad(
        self,
        kernel: [usize; 2],
        stride: usize,
        padding: usize,
        beta: f64,
    ) -> Result<Var<'s>> {
        self.smooth_max_pool(&kernel, &[stride; 2], &[padding; 2], beta)
    }
}

/// The first of the last `axes` axes. Errors if there are none.
#[track_caller]
fn whole_axes(op: &'static str, shape: &Shape, axes: usize) -> Result<usize> {
    match shape.rank().checked_sub(axes) {
        Some(at) if axes > 0 => Ok(at),
        _ => Err(Error::new(
            op,
            ErrorKind::Rank { want: "at least as many axes as are pooled, and one", got: *shape },
        )),
    }
}
