//! Pooling of values. The pooled axes are the last ones, as many as the kernel has entries; all others are
//! independent of each other.

use super::Var;
use dittograd_numerics::environment::single;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::shape::Shape;
use dittograd_ops::pool::{AdaptiveAvgPool, AvgPool, MaxPool, PoolWindow, SmoothMaxPool};

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
