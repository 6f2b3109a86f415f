//! Resizing of images, and reading them at given places.

use super::Var;
use super::padding::MOST_TABLE;
use dittograd_numerics::environment;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::tensor::Tensor;
use dittograd_ops::image::{Filter, GridMode, GridPadding, GridSample, Resample, Sampling, Scaling};

/// How [`Var::interpolate`] makes an element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Interpolation {
    /// The element that the start of the new one lies in.
    #[default]
    Nearest,
    /// The element that the centre of the new one lies in.
    NearestExact,
    /// The two elements around its place along each axis: PyTorch's `linear`, `bilinear` and `trilinear`.
    Linear,
    /// Four elements along each axis: PyTorch's `bicubic`, along any number of axes.
    Cubic,
    /// The mean of the elements it covers, which is [`Var::adaptive_avg_pool`].
    Area,
}

/// Options of [`Var::interpolate`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interpolate {
    /// How an element is made.
    pub mode: Interpolation,
    /// Whether the centres of the corner elements stay where they are, instead of their outer edges. For `Linear` and
    /// `Cubic`.
    pub align_corners: bool,
    /// Whether the filter becomes as much wider as an axis becomes shorter. For `Linear` and `Cubic`.
    pub antialias: bool,
    /// For [`Var::interpolate_by`]: whether places follow from the rounded sizes, instead of the factors.
    pub recompute_scale_factor: bool,
}

impl Interpolate {
    /// The mode, with all else off.
    pub fn mode(mode: Interpolation) -> Interpolate {
        Interpolate { mode, ..Interpolate::default() }
    }

    /// With the centres of the corner elements where they are.
    pub fn align_corners(self) -> Interpolate {
        Interpolate { align_corners: true, ..self }
    }

    /// With antialiasing.
    pub fn antialias(self) -> Interpolate {
        Interpolate { antialias: true, ..self }
    }
}

/// Options of [`Var::grid_sample`]. The default is PyTorch's: bilinear, zeros, edges at -1 and 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GridSampleOptions {
    /// How a value is made.
    pub mode: GridMode,
    /// What is beyond the image.
    pub padding_mode: GridPadding,
    /// Whether -1 and 1 are the centres of the corner elements, instead of their outer edges.
    pub align_corners: bool,
}

impl Default for GridSampleOptions {
    fn default() -> GridSampleOptions {
        GridSampleOptions { mode: GridMode::Bilinear, padding_mode: GridPadding::Zeros, align_corners: false }
    }
}

/// # Resizing
impl<'s> Var<'s> {
    /// Resizes the last axes, one to three, to the given sizes: PyTorch's `interpolate` with `size`. All other axes are
    /// independent of each other.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # use dittograd::session::{Interpolate, Interpolation};
    /// # let session = Session::eager(&Device::cpu()?);
    /// let x = session.arange(0.0, 4.0, 1.0)?.reshape(&[1, 1, 2, 2])?; // [[0. 1.] [2. 3.]]
    /// let y = x.interpolate(&[2, 4], Interpolate::mode(Interpolation::Linear))?;
    /// assert_eq!(y.flatten()?.to_string(), "[0.   0.25 0.75 1.   2.   2.25 2.75 3.  ]");
    /// # Ok::<(), Error>(())
    /// ```
    #[doc(alias("upsample", "upsample_bilinear", "upsample_nearest", "resize"))]
    #[track_caller]
    pub fn interpolate(self, sizes: &[usize], options: Interpolate) -> Result<Var<'s>> {
        self.resized(sizes, vec![0.0; sizes.len()], options)
    }

    /// Resizes the last axes, one to three, by the given factors: PyTorch's `interpolate` with `scale_factor`. Sizes are
    /// rounded down.
    #[track_caller]
    pub fn interpolate_by(self, factors: &[f64], options: Interpolate) -> Result<Var<'s>> {
        let _strict = environment::enter();
        let shape = self.shape()?;
        let Some(at) = shape.rank().checked_sub(factors.len()) else {
            let want = "at least as many axes as there are factors";
            return Err(Error::new("interpolate", ErrorKind::Rank { want, got: shape }));
        };
        if let Some(bad) = factors.iter().find(|f| !(f.is_finite() && **f > 0.0)) {
            return Err(Error::argument("interpolate", "factors", format!("{bad} is not a number above 0")));
        }
        let sizes: Vec<usize> =
            shape.dims()[at..].iter().zip(factors).map(|(&n, f)| (n as f64 * f) as usize).collect();
        let step = |f: &f64| if options.recompute_scale_factor { 0.0 } else { 1.0 / f };
        self.resized(&sizes, factors.iter().map(step).collect(), options)
    }

    #[track_caller]
    fn resized(self, sizes: &[usize], steps: Vec<f64>, options: Interpolate) -> Result<Var<'s>> {
        let filter = match options.mode {
            Interpolation::Nearest => Filter::Nearest,
            Interpolation::NearestExact => Filter::NearestExact,
            Interpolation::Linear => Filter::Linear,
            Interpolation::Cubic => Filter::Cubic,
            Interpolation::Area => {
                for (name, on) in [("align_corners", options.align_corners), ("antialias", options.antialias)]
                {
                    if on {
                        return Err(Error::argument(
                            "interpolate",
                            name,
                            "is for linear and cubic modes only",
                        ));
                    }
                }
                return self.adaptive_avg_pool(sizes);
            }
        };
        let (align_corners, antialias) = (options.align_corners, options.antialias);
        let scaling = Scaling { filter, align_corners, antialias, steps };
        self.session().apply(Resample { scaling, sizes: sizes.to_vec() }, &[self])
    }

    /// Reads images `(N, C, H, W)` or `(N, C, D, H, W)` at the places of a grid `(N, H', W', 2)` or `(N, D', H', W', 3)`.
    /// The numbers of a place are its positions along the last axis, the one before, and so on, from -1 to 1 across the
    /// image.
    #[track_caller]
    pub fn grid_sample(self, grid: Var<'s>, options: GridSampleOptions) -> Result<Var<'s>> {
        let orders = vec![0; self.shape()?.rank().saturating_sub(2)];
        let GridSampleOptions { mode, padding_mode, align_corners } = options;
        let sampling = Sampling { mode, padding: padding_mode, align_corners, orders };
        self.session().apply(GridSample { sampling }, &[self, grid])
    }

    /// The grid for [`Var::grid_sample`] of affine maps `(N, 2, 3)` or `(N, 3, 4)`: the places of an image of the given
    /// sizes `[N, C, H, W]` or `[N, C, D, H, W]`, mapped.
    #[track_caller]
    pub fn affine_grid(self, sizes: &[usize], align_corners: bool) -> Result<Var<'s>> {
        let _strict = environment::enter();
        let (theta, axes) = (self.shape()?, sizes.len().saturating_sub(2));
        if !(2..=3).contains(&axes) || theta.dims() != [sizes[0], axes, axes + 1] {
            let why = format!(
                "maps {theta} do not fit images {sizes:?}; give (N, 2, 3) for [N, C, H, W], or one axis more"
            );
            return Err(Error::argument("affine_grid", "sizes", why));
        }
        let out = &sizes[2..];
        let places = out.iter().try_fold(1usize, |all, &n| all.checked_mul(n)).unwrap_or(usize::MAX);
        if places > MOST_TABLE / 4 {
            return Err(Error::new("affine_grid", ErrorKind::TooLarge { dims: sizes.to_vec() }));
        }
        // Positions along each axis, the last one first, and a one.
        let position = |at: usize, size: usize| match align_corners {
            true if size > 1 => (2 * at) as f64 / (size - 1) as f64 - 1.0,
            true => 0.0,
            false => (2 * at + 1) as f64 / size as f64 - 1.0,
        };
        let shape = dittograd_numerics::shape::Shape::new(&[places, axes + 1])?;
        let base = Tensor::<f64>::try_from_fn(shape, |i| {
            let (mut place, j) = (i / (axes + 1), i % (axes + 1));
            for a in (0..axes).rev() {
                if axes - 1 - a == j {
                    return position(place % out[a], out[a]);
                }
                place /= out[a];
            }
            1.0
        })?;
        let base = self.session().constant(&base)?;
        let flat = self.reshape(&[sizes[0] * axes, axes + 1])?.matmul_with(base, false, true)?;
        let grid = flat.reshape(&[sizes[0], axes, places])?.swap_axes(1, 2)?;
        grid.reshape(&[&[sizes[0]], out, &[axes]].concat())
    }
}
