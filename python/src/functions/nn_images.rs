//! Functions of images: convolution, pooling, resizing, padding, patches.

use crate::arguments::Sizes;
use crate::errors::raised;
use crate::tensor::{Answer, Tensor, one, two, with_optional};
use dittograd::ops::{ConvWindow, GridMode, GridPadding, PoolWindow, Sizes as ConvSizes};
use dittograd::session::{AvgPoolOptions, GridSampleOptions, Interpolate, Interpolation, PadMode};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Zeros around an image: a name, or how many.
#[derive(FromPyObject)]
pub enum Padding {
    Name(String),
    Sizes(Sizes),
}

/// Sizes of the last axes, where nothing means that an axis stays as it is.
#[derive(FromPyObject)]
pub enum Targets {
    One(Option<usize>),
    Many(Vec<Option<usize>>),
}

impl Targets {
    fn each(self, input: &Tensor, axes: usize) -> PyResult<Vec<usize>> {
        let targets = match self {
            Targets::One(size) => vec![size; axes],
            Targets::Many(sizes) => sizes,
        };
        let dims = input.dims()?;
        match dims.len().checked_sub(axes) {
            Some(at) if targets.len() == axes => {
                Ok(targets.iter().zip(&dims[at..]).map(|(target, &n)| target.unwrap_or(n)).collect())
            }
            _ => Err(PyValueError::new_err(format!(
                "output_size has {} sizes for a tensor of {} axes; give {axes}, of at least {axes} axes",
                targets.len(),
                dims.len()
            ))),
        }
    }
}

/// A factor for all axes, or one for each.
#[derive(FromPyObject)]
pub enum Factors {
    One(f64),
    Many(Vec<f64>),
}

impl Factors {
    /// One for each of `axes` axes.
    fn each(self, name: &str, axes: usize) -> PyResult<Vec<f64>> {
        match self {
            Factors::One(factor) => Ok(vec![factor; axes]),
            Factors::Many(factors) if factors.len() == axes => Ok(factors),
            Factors::Many(factors) => {
                Err(PyValueError::new_err(format!("{name} has {} numbers; give 1 or {axes}", factors.len())))
            }
        }
    }
}

/// One tensor, or two.
#[derive(IntoPyObject)]
pub enum Pooled {
    #[pyo3(transparent)]
    Values(Tensor),
    WithIndices(Tensor, Tensor),
}

/// The distances between windows: those of neighbours without gaps if none are given.
fn strides(stride: Option<Sizes>, kernel: &[usize]) -> PyResult<Vec<usize>> {
    match stride {
        None => Ok(kernel.to_vec()),
        Some(Sizes::Many(sizes)) if sizes.is_empty() => Ok(kernel.to_vec()),
        Some(sizes) => sizes.each("stride", kernel.len()),
    }
}

/// A window of a convolution along `axes` axes.
fn window(
    axes: usize,
    stride: &Sizes,
    padding: &Sizes,
    dilation: &Sizes,
    groups: usize,
) -> PyResult<ConvWindow> {
    let list = |name: &str, sizes: &Sizes| ConvSizes::new(&sizes.each(name, axes)?).map_err(raised);
    Ok(ConvWindow {
        stride: list("stride", stride)?,
        padding: list("padding", padding)?,
        dilation: list("dilation", dilation)?,
        groups,
    })
}

/// The windows of a pooling.
pub(super) fn pool_window(
    axes: usize,
    kernel: &Sizes,
    stride: Option<Sizes>,
    padding: &Sizes,
    dilation: &Sizes,
) -> PyResult<PoolWindow> {
    let kernel = kernel.each("kernel_size", axes)?;
    Ok(PoolWindow {
        stride: strides(stride, &kernel)?,
        padding: padding.each("padding", axes)?,
        dilation: dilation.each("dilation", axes)?,
        kernel,
    })
}

fn max_pool(input: &Tensor, window: PoolWindow, ceil_mode: bool, return_indices: bool) -> PyResult<Pooled> {
    Ok(match return_indices {
        true => {
            let (y, at) = two(&[input], |v| v[0].max_pool_with_indices(window, ceil_mode))?;
            Pooled::WithIndices(y, at)
        }
        false => Pooled::Values(one(&[input], |v| v[0].max_pool_with(window, ceil_mode))?),
    })
}

fn resized(input: &Tensor, size: Option<Sizes>, factor: Option<Factors>, options: Interpolate) -> Answer {
    let axes = input.rank()?.checked_sub(2).filter(|&n| n > 0).ok_or_else(|| {
        PyValueError::new_err("input must have at least 3 axes: images, channels and sizes")
    })?;
    match (size, factor) {
        (Some(size), None) => {
            let sizes = size.each("size", axes)?;
            one(&[input], |v| v[0].interpolate(&sizes, options))
        }
        (None, Some(factor)) => {
            let factors = factor.each("scale_factor", axes)?;
            one(&[input], |v| v[0].interpolate_by(&factors, options))
        }
        _ => Err(PyValueError::new_err("give either size or scale_factor")),
    }
}

/// The mode of a grid sample by its name or number.
pub(super) fn grid_options(
    mode: &str,
    padding_mode: &str,
    align_corners: bool,
) -> PyResult<GridSampleOptions> {
    let mode = match mode {
        "bilinear" => GridMode::Bilinear,
        "nearest" => GridMode::Nearest,
        "bicubic" => GridMode::Bicubic,
        other => return unknown("mode", other, "bilinear, nearest or bicubic"),
    };
    let padding_mode = match padding_mode {
        "zeros" => GridPadding::Zeros,
        "border" => GridPadding::Border,
        "reflection" => GridPadding::Reflection,
        other => return unknown("padding_mode", other, "zeros, border or reflection"),
    };
    Ok(GridSampleOptions { mode, padding_mode, align_corners })
}

pub(super) fn unknown<T>(name: &str, found: &str, known: &str) -> PyResult<T> {
    Err(PyValueError::new_err(format!("{name} is {found:?}; use {known}")))
}

/// The functions that exist for one, two and three axes.
mod ranked {
    use super::*;

    macro_rules! ranked {
        ($($axes:literal $sizes:literal $conv:ident $transpose:ident $max:ident $max_indices:ident $unpool:ident
            $lp:ident $adaptive_avg:ident $adaptive_max:ident;)*) => {
            $(
                #[doc = concat!("Convolution of images `(N, C, ", $sizes, ")`, or of one image without `N`, with\n`weight` \
                    `(O, C / groups, kernel sizes…)` and `bias` `(O)`: images `(N, O, …)`.\n\n\
                    `stride`, `padding` and `dilation` are one number for all axes or one for each; by default 1, 0 and 1.\n\
                    `padding` adds zeros on both sides. It may also be \"valid\", which is 0, or \"same\", which keeps the sizes and \
                    needs stride 1.")]
                #[pyfunction]
                #[pyo3(signature = (input, weight, bias=None, stride=Sizes::One(1), padding=Padding::Sizes(Sizes::One(0)),
                    dilation=Sizes::One(1), groups=1))]
                pub fn $conv(
                    input: &Tensor,
                    weight: &Tensor,
                    bias: Option<&Tensor>,
                    stride: Sizes,
                    padding: Padding,
                    dilation: Sizes,
                    groups: usize,
                ) -> Answer {
                    let (same, padding) = match padding {
                        Padding::Sizes(sizes) => (false, sizes),
                        Padding::Name(name) if name == "valid" => (false, Sizes::One(0)),
                        Padding::Name(name) if name == "same" => (true, Sizes::One(0)),
                        Padding::Name(name) => return unknown("padding", &name, "valid, same or numbers"),
                    };
                    let window = window($axes, &stride, &padding, &dilation, groups)?;
                    with_optional(input, &[Some(weight), bias], |x, others| match (same, others) {
                        (true, [Some(weight), bias]) => x.conv_same(*weight, *bias, window),
                        (false, [Some(weight), bias]) => x.conv(*weight, *bias, window),
                        (_, _) => Ok(x),
                    })
                }

                #[doc = concat!("Transposed convolution of images `(N, C, ", $sizes, ")`, or of one image without `N`, with\n`weight` \
                    `(C, O / groups, kernel sizes…)` and `bias` `(O)`: images `(N, O, …)`.\n\n\
                    `stride`, `padding`, `output_padding` and `dilation` are one number for all axes or one for each; by default 1, 0, 0 \
                    and 1.\n`padding` is that of the convolution whose sizes it undoes; `output_padding` is added to the sizes at the end.")]
                #[pyfunction]
                #[pyo3(signature = (input, weight, bias=None, stride=Sizes::One(1), padding=Sizes::One(0),
                    output_padding=Sizes::One(0), groups=1, dilation=Sizes::One(1)))]
                #[allow(clippy::too_many_arguments)]
                pub fn $transpose(
                    input: &Tensor,
                    weight: &Tensor,
                    bias: Option<&Tensor>,
                    stride: Sizes,
                    padding: Sizes,
                    output_padding: Sizes,
                    groups: usize,
                    dilation: Sizes,
                ) -> Answer {
                    let window = window($axes, &stride, &padding, &dilation, groups)?;
                    let more = output_padding.each("output_padding", $axes)?;
                    with_optional(input, &[Some(weight), bias], |x, others| match others {
                        [Some(weight), bias] => x.conv_transpose(*weight, *bias, window, &more),
                        _ => Ok(x),
                    })
                }

                #[doc = concat!("The largest element of each window of the last axes (", $sizes, "); with `return_indices` also its \
                    position, counted through these axes.\n\n`kernel_size`, `stride`, `padding` and `dilation` are one number for all axes or \
                    one for each. `stride` is by default\n`kernel_size`, `padding` 0, `dilation` 1. With `ceil_mode` the last windows may \
                    reach over the end.")]
                #[pyfunction]
                #[pyo3(signature = (input, kernel_size, stride=None, padding=Sizes::One(0), dilation=Sizes::One(1), ceil_mode=false,
                    return_indices=false))]
                pub fn $max(
                    input: &Tensor,
                    kernel_size: Sizes,
                    stride: Option<Sizes>,
                    padding: Sizes,
                    dilation: Sizes,
                    ceil_mode: bool,
                    return_indices: bool,
                ) -> PyResult<Pooled> {
                    let window = pool_window($axes, &kernel_size, stride, &padding, &dilation)?;
                    max_pool(input, window, ceil_mode, return_indices)
                }

                #[doc = concat!("The largest element of each window of the last axes (", $sizes, "), and its position, counted through \
                    these axes. Arguments as of the pooling without indices.")]
                #[pyfunction]
                #[pyo3(signature = (input, kernel_size, stride=None, padding=Sizes::One(0), dilation=Sizes::One(1), ceil_mode=false,
                    return_indices=true))]
                pub fn $max_indices(
                    input: &Tensor,
                    kernel_size: Sizes,
                    stride: Option<Sizes>,
                    padding: Sizes,
                    dilation: Sizes,
                    ceil_mode: bool,
                    return_indices: bool,
                ) -> PyResult<(Tensor, Tensor)> {
                    // PyTorch takes and ignores it too.
                    let _ = return_indices;
                    let window = pool_window($axes, &kernel_size, stride, &padding, &dilation)?;
                    two(&[input], |v| v[0].max_pool_with_indices(window, ceil_mode))
                }

                #[doc = concat!("Puts elements back to the positions (", $sizes, ") that max pooling returned, among zeros. Elements \
                    with one position are averaged.")]
                #[pyfunction]
                #[pyo3(signature = (input, indices, kernel_size, stride=None, padding=Sizes::One(0), output_size=None))]
                pub fn $unpool(
                    input: &Tensor,
                    indices: &Tensor,
                    kernel_size: Sizes,
                    stride: Option<Sizes>,
                    padding: Sizes,
                    output_size: Option<Vec<usize>>,
                ) -> Answer {
                    let window = pool_window($axes, &kernel_size, stride, &padding, &Sizes::One(1))?;
                    let Some(size) = output_size else {
                        return one(&[input, indices], |v| v[0].max_unpool_with(v[1], window));
                    };
                    let Some(at) = size.len().checked_sub($axes) else {
                        return Err(PyValueError::new_err(format!("output_size must have at least {} sizes", $axes)));
                    };
                    one(&[input, indices], |v| v[0].max_unpool(v[1], &size[at..]))
                }

                #[doc = concat!("The norm of power `norm_type` of each window of the last axes (", $sizes, "), of signed powers.")]
                #[pyfunction]
                #[pyo3(signature = (input, norm_type, kernel_size, stride=None, ceil_mode=false))]
                pub fn $lp(
                    input: &Tensor,
                    norm_type: f64,
                    kernel_size: Sizes,
                    stride: Option<Sizes>,
                    ceil_mode: bool,
                ) -> Answer {
                    let kernel = kernel_size.each("kernel_size", $axes)?;
                    let stride = strides(stride, &kernel)?;
                    one(&[input], |v| v[0].lp_pool(norm_type, &kernel, &stride, ceil_mode))
                }

                #[doc = concat!("The means of as many windows of the last axes (", $sizes, ") as `output_size` says, one number\nfor \
                    all axes or one for each; `None` keeps an axis.")]
                #[pyfunction]
                #[pyo3(signature = (input, output_size))]
                pub fn $adaptive_avg(input: &Tensor, output_size: Targets) -> Answer {
                    let sizes = output_size.each(input, $axes)?;
                    one(&[input], |v| v[0].adaptive_avg_pool(&sizes))
                }

                #[doc = concat!("The largest elements of as many windows of the last axes (", $sizes, ") as `output_size` says, one\nnumber for \
                    all axes or one for each; `None` keeps an axis. With `return_indices` also their positions, counted through these axes.")]
                #[pyfunction]
                #[pyo3(signature = (input, output_size, return_indices=false))]
                pub fn $adaptive_max(input: &Tensor, output_size: Targets, return_indices: bool) -> PyResult<Pooled> {
                    let sizes = output_size.each(input, $axes)?;
                    Ok(match return_indices {
                        true => {
                            let (y, at) = two(&[input], |v| v[0].adaptive_max_pool_with_indices(&sizes))?;
                            Pooled::WithIndices(y, at)
                        }
                        false => Pooled::Values(one(&[input], |v| v[0].adaptive_max_pool(&sizes))?),
                    })
                }
            )*

            /// Adds these functions to a module.
            pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
                $(
                    module.add_function(wrap_pyfunction!($conv, module)?)?;
                    module.add_function(wrap_pyfunction!($transpose, module)?)?;
                    module.add_function(wrap_pyfunction!($max, module)?)?;
                    module.add_function(wrap_pyfunction!($max_indices, module)?)?;
                    module.add_function(wrap_pyfunction!($unpool, module)?)?;
                    module.add_function(wrap_pyfunction!($lp, module)?)?;
                    module.add_function(wrap_pyfunction!($adaptive_avg, module)?)?;
                    module.add_function(wrap_pyfunction!($adaptive_max, module)?)?;
                )*
                Ok(())
            }
        };
    }

    ranked! {
        1 "L" conv1d conv_transpose1d max_pool1d max_pool1d_with_indices max_unpool1d lp_pool1d adaptive_avg_pool1d
            adaptive_max_pool1d;
        2 "H, W" conv2d conv_transpose2d max_pool2d max_pool2d_with_indices max_unpool2d lp_pool2d adaptive_avg_pool2d
            adaptive_max_pool2d;
        3 "D, H, W" conv3d conv_transpose3d max_pool3d max_pool3d_with_indices max_unpool3d lp_pool3d adaptive_avg_pool3d
            adaptive_max_pool3d;
    }
}

/// Average pooling with all options.
#[allow(clippy::too_many_arguments)]
fn avg_pool(
    axes: usize,
    input: &Tensor,
    kernel: &Sizes,
    stride: Option<Sizes>,
    padding: &Sizes,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: Option<i64>,
) -> Answer {
    let window = pool_window(axes, kernel, stride, padding, &Sizes::One(1))?;
    let size = |d: i64| usize::try_from(d.unsigned_abs()).unwrap_or(usize::MAX);
    let options = AvgPoolOptions { ceil_mode, count_include_pad, divisor_override: divisor.map(size) };
    one(&[input], |v| {
        let y = v[0].avg_pool_with(window, options)?;
        if divisor.is_some_and(|d| d < 0) { y.neg() } else { Ok(y) }
    })
}

/// Fractional max pooling of the last `axes` axes.
fn fractional(
    axes: usize,
    input: &Tensor,
    kernel: &Sizes,
    size: Option<Sizes>,
    ratio: Option<Factors>,
    return_indices: bool,
    samples: Option<&Tensor>,
) -> PyResult<Pooled> {
    let kernel = kernel.each("kernel_size", axes)?;
    let dims = input.dims()?;
    let Some(at) = dims.len().checked_sub(axes) else {
        return Err(PyValueError::new_err(format!("input must have at least {axes} axes")));
    };
    let plane = &dims[at..];
    let sizes = match (size, ratio) {
        (Some(size), None) => size.each("output_size", axes)?,
        (None, Some(ratio)) => {
            let ratios = ratio.each("output_ratio", axes)?;
            plane.iter().zip(ratios).map(|(&n, r)| (n as f64 * r) as usize).collect()
        }
        _ => {
            return Err(PyValueError::new_err("give either output_size or output_ratio"));
        }
    };
    let given: Vec<&Tensor> = std::iter::once(input).chain(samples).collect();
    let count = dims[..at].iter().product::<usize>();
    let (y, found) = two(&given, |v| {
        let samples = v.get(1).map(|samples| samples.reshape(&[count, axes])).transpose()?;
        v[0].fractional_max_pool(&kernel, &sizes, samples)
    })?;
    Ok(if return_indices { Pooled::WithIndices(y, found) } else { Pooled::Values(y) })
}

#[pymodule]
pub mod nn_images {
    use super::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        ranked::register(module)
    }

    /// The mean of each window of the last axis, of `(N, C, L)` or `(C, L)`.
    ///
    /// `kernel_size`, `stride` and `padding` are one number for all axes or one for each. `stride` is by default `kernel_size`;
    /// `padding` adds zeros on both sides, by default none. With `ceil_mode` the last windows may reach over the end. Without
    /// `count_include_pad` the zeros of the padding do not count.
    #[pyfunction]
    #[pyo3(signature = (input, kernel_size, stride=None, padding=Sizes::One(0), ceil_mode=false, count_include_pad=true))]
    fn avg_pool1d(
        input: &Tensor,
        kernel_size: Sizes,
        stride: Option<Sizes>,
        padding: Sizes,
        ceil_mode: bool,
        count_include_pad: bool,
    ) -> Answer {
        avg_pool(1, input, &kernel_size, stride, &padding, ceil_mode, count_include_pad, None)
    }

    /// The mean of each window of the last two axes, of `(N, C, H, W)` or `(C, H, W)`. With `divisor_override` the sums are divided by
    /// that.
    ///
    /// `kernel_size`, `stride` and `padding` are one number for all axes or one for each. `stride` is by default `kernel_size`;
    /// `padding` adds zeros on both sides, by default none. With `ceil_mode` the last windows may reach over the end. Without
    /// `count_include_pad` the zeros of the padding do not count.
    #[pyfunction]
    #[pyo3(signature = (input, kernel_size, stride=None, padding=Sizes::One(0), ceil_mode=false, count_include_pad=true,
        divisor_override=None))]
    fn avg_pool2d(
        input: &Tensor,
        kernel_size: Sizes,
        stride: Option<Sizes>,
        padding: Sizes,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: Option<i64>,
    ) -> Answer {
        avg_pool(2, input, &kernel_size, stride, &padding, ceil_mode, count_include_pad, divisor_override)
    }

    /// The mean of each window of the last three axes, of `(N, C, D, H, W)` or `(C, D, H, W)`. With `divisor_override` the sums are
    /// divided by that.
    ///
    /// `kernel_size`, `stride` and `padding` are one number for all axes or one for each. `stride` is by default `kernel_size`;
    /// `padding` adds zeros on both sides, by default none. With `ceil_mode` the last windows may reach over the end. Without
    /// `count_include_pad` the zeros of the padding do not count.
    #[pyfunction]
    #[pyo3(signature = (input, kernel_size, stride=None, padding=Sizes::One(0), ceil_mode=false, count_include_pad=true,
        divisor_override=None))]
    fn avg_pool3d(
        input: &Tensor,
        kernel_size: Sizes,
        stride: Option<Sizes>,
        padding: Sizes,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: Option<i64>,
    ) -> Answer {
        avg_pool(3, input, &kernel_size, stride, &padding, ceil_mode, count_include_pad, divisor_override)
    }

    /// The largest element of each window of the last two axes, with windows at random distances.
    ///
    /// `kernel_size` is one number or one for each axis. The number of windows is `output_size`, or `output_ratio` times the sizes;
    /// give one of them. With `return_indices` the positions of the elements are a second result, counted through these axes.
    #[pyfunction]
    #[pyo3(signature = (input, kernel_size, output_size=None, output_ratio=None, return_indices=false, _random_samples=None))]
    fn fractional_max_pool2d(
        input: &Tensor,
        kernel_size: Sizes,
        output_size: Option<Sizes>,
        output_ratio: Option<Factors>,
        return_indices: bool,
        _random_samples: Option<&Tensor>,
    ) -> PyResult<Pooled> {
        fractional(2, input, &kernel_size, output_size, output_ratio, return_indices, _random_samples)
    }

    /// The largest element of each window of the last three axes, with windows at random distances.
    ///
    /// `kernel_size` is one number or one for each axis. The number of windows is `output_size`, or `output_ratio` times the sizes;
    /// give one of them. With `return_indices` the positions of the elements are a second result, counted through these axes.
    #[pyfunction]
    #[pyo3(signature = (input, kernel_size, output_size=None, output_ratio=None, return_indices=false, _random_samples=None))]
    fn fractional_max_pool3d(
        input: &Tensor,
        kernel_size: Sizes,
        output_size: Option<Sizes>,
        output_ratio: Option<Factors>,
        return_indices: bool,
        _random_samples: Option<&Tensor>,
    ) -> PyResult<Pooled> {
        fractional(3, input, &kernel_size, output_size, output_ratio, return_indices, _random_samples)
    }

    /// Resizes images `(N, C, sizes…)`, to `size` or by `scale_factor`, one number for all axes or one for each.
    ///
    /// mode: "nearest" or "nearest-exact"; "linear" for one axis, "bilinear" or "bicubic" for two, "trilinear" for three; "area", which
    /// averages
    /// align_corners: of linear and cubic modes, whether the centres of the corner elements stay at the corners; by default not
    /// recompute_scale_factor: whether the scale is that of the sizes after rounding instead of `scale_factor`
    /// antialias: of linear and cubic modes, whether a smaller image averages over all elements that a new one covers
    #[pyfunction]
    #[pyo3(signature = (input, size=None, scale_factor=None, mode="nearest", align_corners=None, recompute_scale_factor=None,
        antialias=false))]
    fn interpolate(
        input: &Tensor,
        size: Option<Sizes>,
        scale_factor: Option<Factors>,
        mode: &str,
        align_corners: Option<bool>,
        recompute_scale_factor: Option<bool>,
        antialias: bool,
    ) -> Answer {
        let (mode, rank) = match mode {
            "nearest" => (Interpolation::Nearest, None),
            "nearest-exact" => (Interpolation::NearestExact, None),
            "area" => (Interpolation::Area, None),
            "linear" => (Interpolation::Linear, Some(3)),
            "bilinear" => (Interpolation::Linear, Some(4)),
            "trilinear" => (Interpolation::Linear, Some(5)),
            "bicubic" => (Interpolation::Cubic, Some(4)),
            other => {
                let known = "nearest, nearest-exact, area, linear, bilinear, trilinear or bicubic";
                return unknown("mode", other, known);
            }
        };
        if rank.is_none() && align_corners.is_some() {
            return Err(PyValueError::new_err(
                "align_corners is for linear and cubic modes only; leave it out",
            ));
        }
        if let Some(rank) = rank
            && input.rank()? != rank
        {
            let found = input.rank()?;
            return Err(PyValueError::new_err(format!("this mode is for {rank} axes; input has {found}")));
        }
        if size.is_some() && recompute_scale_factor == Some(true) {
            return Err(PyValueError::new_err(
                "recompute_scale_factor is for scale_factor only; leave it out",
            ));
        }
        let options = Interpolate {
            mode,
            align_corners: align_corners.unwrap_or(false),
            antialias,
            recompute_scale_factor: recompute_scale_factor.unwrap_or(false),
        };
        resized(input, size, scale_factor, options)
    }

    /// `interpolate`, with fewer arguments.
    #[pyfunction]
    #[pyo3(signature = (input, size=None, scale_factor=None, mode="nearest", align_corners=None))]
    fn upsample(
        input: &Tensor,
        size: Option<Sizes>,
        scale_factor: Option<Factors>,
        mode: &str,
        align_corners: Option<bool>,
    ) -> Answer {
        interpolate(input, size, scale_factor, mode, align_corners, None, false)
    }

    /// `interpolate` of mode "nearest".
    #[pyfunction]
    #[pyo3(signature = (input, size=None, scale_factor=None))]
    fn upsample_nearest(input: &Tensor, size: Option<Sizes>, scale_factor: Option<Factors>) -> Answer {
        interpolate(input, size, scale_factor, "nearest", None, None, false)
    }

    /// `interpolate` of mode "bilinear" with `align_corners`.
    #[pyfunction]
    #[pyo3(signature = (input, size=None, scale_factor=None))]
    fn upsample_bilinear(input: &Tensor, size: Option<Sizes>, scale_factor: Option<Factors>) -> Answer {
        interpolate(input, size, scale_factor, "bilinear", Some(true), None, false)
    }

    /// Reads images `(N, C, H, W)` at the places of a grid `(N, H2, W2, 2)`: images `(N, C, H2, W2)`. Of `(N, C, D, H, W)` the grid has
    /// three axes and three coordinates.
    ///
    /// grid: coordinates x, y (and z), from -1 to 1 across an image
    /// mode: "bilinear", "nearest" or "bicubic"
    /// padding_mode: what is outside: "zeros", "border" or "reflection"
    /// align_corners: whether -1 and 1 are the centres of the corner elements, not their outer edges
    #[pyfunction]
    #[pyo3(signature = (input, grid, mode="bilinear", padding_mode="zeros", align_corners=None))]
    fn grid_sample(
        input: &Tensor,
        grid: &Tensor,
        mode: &str,
        padding_mode: &str,
        align_corners: Option<bool>,
    ) -> Answer {
        let options = grid_options(mode, padding_mode, align_corners.unwrap_or(false))?;
        one(&[input, grid], |v| v[0].grid_sample(v[1], options))
    }

    /// The grid for `grid_sample` of affine maps `(N, 2, 3)`, for images of the `size` `(N, C, H, W)`; or `(N, 3, 4)` for `(N, C, D, H,
    /// W)`. `align_corners` is as of `grid_sample`.
    #[pyfunction]
    #[pyo3(signature = (theta, size, align_corners=None))]
    fn affine_grid(theta: &Tensor, size: Vec<usize>, align_corners: Option<bool>) -> Answer {
        one(&[theta], |v| v[0].affine_grid(&size, align_corners.unwrap_or(false)))
    }

    /// Pads the last axes. `pad` has two counts for each of them, before and after, from the last one back: `(left, right, top,
    /// bottom)`.
    ///
    /// mode: "constant", with `value`, by default 0; "reflect", "replicate" or "circular"
    #[pyfunction]
    #[pyo3(signature = (input, pad, mode="constant", value=None))]
    fn pad(input: &Tensor, pad: Vec<i64>, mode: &str, value: Option<f64>) -> Answer {
        let mode = match mode {
            "constant" => PadMode::Constant(value.unwrap_or(0.0)),
            "reflect" => PadMode::Reflect,
            "replicate" => PadMode::Replicate,
            "circular" => PadMode::Circular,
            other => return unknown("mode", other, "constant, reflect, replicate or circular"),
        };
        if value.is_some_and(|value| value != 0.0) && !matches!(mode, PadMode::Constant(_)) {
            return Err(PyValueError::new_err("value is for mode \"constant\" only; leave it out"));
        }
        one(&[input], |v| v[0].pad_mode(&pad, mode))
    }

    /// The patches of images `(N, C, H, W)` that a convolution would read, each a column: `(N, C · kernel elements, patches)`.
    ///
    /// `kernel_size`, `dilation`, `padding` and `stride` are one number or one for each axis; by default 1, 0 and 1. `x.unfold` is
    /// another function, the windows of an axis.
    #[pyfunction]
    #[pyo3(signature = (input, kernel_size, dilation=Sizes::One(1), padding=Sizes::One(0), stride=Sizes::One(1)))]
    fn unfold(input: &Tensor, kernel_size: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes) -> Answer {
        let (kernel, window) =
            (kernel_size.each("kernel_size", 2)?, window(2, &stride, &padding, &dilation, 1)?);
        let single = input.rank()? == 3;
        one(&[input], |v| match single {
            true => v[0].unsqueeze(0)?.im2col(&kernel, window)?.squeeze(0),
            false => v[0].im2col(&kernel, window),
        })
    }

    /// Images `(N, C, output_size)` from the sums of their patches `(N, C · kernel elements, patches)`, as `unfold` makes them.
    ///
    /// `output_size`, `kernel_size`, `dilation`, `padding` and `stride` are one number or one for each axis; the last three are by
    /// default 1, 0 and 1.
    #[pyfunction]
    #[pyo3(signature = (input, output_size, kernel_size, dilation=Sizes::One(1), padding=Sizes::One(0), stride=Sizes::One(1)))]
    fn fold(
        input: &Tensor,
        output_size: Sizes,
        kernel_size: Sizes,
        dilation: Sizes,
        padding: Sizes,
        stride: Sizes,
    ) -> Answer {
        let (kernel, window) =
            (kernel_size.each("kernel_size", 2)?, window(2, &stride, &padding, &dilation, 1)?);
        let sizes = output_size.each("output_size", 2)?;
        let single = input.rank()? == 2;
        one(&[input], |v| match single {
            true => v[0].unsqueeze(0)?.col2im(&sizes, &kernel, window)?.squeeze(0),
            false => v[0].col2im(&sizes, &kernel, window),
        })
    }

    /// Moves channels into positions: `(…, C · r², H, W)` to `(…, C, H · r, W · r)`.
    #[pyfunction]
    fn pixel_shuffle(input: &Tensor, upscale_factor: usize) -> Answer {
        one(&[input], |v| v[0].pixel_shuffle(upscale_factor))
    }

    /// Moves positions into channels: `(…, C, H · r, W · r)` to `(…, C · r², H, W)`.
    #[pyfunction]
    fn pixel_unshuffle(input: &Tensor, downscale_factor: usize) -> Answer {
        one(&[input], |v| v[0].pixel_unshuffle(downscale_factor))
    }

    /// Takes the channels of `(N, C, …)`, which form `groups` groups, in turns from each group.
    #[pyfunction]
    fn channel_shuffle(input: &Tensor, groups: usize) -> Answer {
        one(&[input], |v| v[0].channel_shuffle(groups))
    }
}
