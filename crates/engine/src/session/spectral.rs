//! Fourier transforms and spectral convolutions of values.

use super::{Session, Var};
use crate::graph::Source;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;
use dittograd_ops::Op;
use dittograd_ops::layout::Slice;
use dittograd_ops::spectral::fft::{Irfft, Rfft};
use dittograd_ops::spectral::{AxisMatMul, DftTable, ModeMix, SpectralConv1d};

/// The transform along one axis of a spectral convolution, at the modes that are kept, and its inverse. Spectra have the
/// real parts of all modes, then the imaginary parts.
struct Transform<'s> {
    sizes: DftTable,
    /// The table and its weighted form, of which the inverse is a product with the transpose; without them the transform
    /// is an [`Rfft`].
    tables: Option<[Var<'s>; 2]>,
}

impl<'s> Transform<'s> {
    #[track_caller]
    fn new(session: &'s Session, sizes: DftTable) -> Result<Transform<'s>> {
        let shape = sizes.shape(&[])?.shape;
        if sizes.is_faster_by_fft() {
            return Ok(Transform { sizes, tables: None });
        }
        let both = session.dft_tables(sizes)?;
        let half = |start| {
            let one = session.apply(Slice { axis: 0, start, len: 1, step: 1 }, &[both])?;
            one.reshape(&shape.dims()[1..])
        };
        Ok(Transform { sizes, tables: Some([half(0)?, half(1)?]) })
    }

    /// To modes, from (batch, points, width) or, with a real and an imaginary part of each point, (batch, 2 points,
    /// width).
    #[track_caller]
    fn forward(&self, x: Var<'s>) -> Result<Var<'s>> {
        match self.tables {
            Some([plain, _]) => x.along(plain, false),
            None if self.sizes.complex => self.forward_complex(x),
            None => x.transpose()?.rfft()?.narrow(2, 0, self.sizes.low)?.permute(&[0, 3, 2, 1]),
        }
    }

    /// From (batch, 2 modes, width) back to points.
    #[track_caller]
    fn inverse(&self, z: Var<'s>) -> Result<Var<'s>> {
        let DftTable { n, low, complex, .. } = self.sizes;
        match self.tables {
            Some([_, weighted]) => z.along(weighted, true),
            None if complex => self.inverse_complex(z),
            None => {
                let [batch, _, width] = three(z)?;
                let z = z.reshape(&[batch, 2, low, width])?.permute(&[0, 3, 2, 1])?;
                z.pad(2, 0, n / 2 + 1 - low)?.irfft(n)?.transpose()
            }
        }
    }

    /// A complex line is two real ones: with the transforms `P` of its real and `Q` of its imaginary part, mode `k` is
    /// `P[k] + i Q[k]`, and mode `-k` is `conj(P[k]) + i conj(Q[k])`.
    #[track_caller]
    fn forward_complex(&self, x: Var<'s>) -> Result<Var<'s>> {
        let DftTable { n, low, .. } = self.sizes;
        let [batch, _, width] = three(x)?;
        let lines = x.reshape(&[batch, n, 2, width])?.permute(&[0, 2, 3, 1])?;
        let parts = lines.rfft()?.narrow(3, 0, low + 1)?.permute(&[0, 1, 4, 3, 2])?;
        let modes = parts.reshape(&[batch, 4, (low + 1) * width])?.along(self.signs(x, 1.0)?, false)?;
        let modes = modes.reshape(&[batch, 4, low + 1, width])?;
        let positive = modes.narrow(1, 0, 2)?.narrow(2, 0, low)?;
        let negative = modes.narrow(1, 2, 2)?.narrow(2, 1, low)?.flip(&[2])?;
        positive.concat(negative, 2)
    }

    /// The adjoint of each step of [`Transform::forward_complex`], divided by the points.
    #[track_caller]
    fn inverse_complex(&self, z: Var<'s>) -> Result<Var<'s>> {
        let DftTable { n, low, .. } = self.sizes;
        let [batch, _, width] = three(z)?;
        let z = z.reshape(&[batch, 2, 2 * low, width])?;
        let positive = z.narrow(2, 0, low)?.pad(2, 0, 1)?;
        let negative = z.narrow(2, low, low)?.flip(&[2])?.pad(2, 1, 0)?;
        let modes = positive.concat(negative, 1)?.reshape(&[batch, 4, (low + 1) * width])?;
        let parts = modes.along(self.signs(z, 1.0 / n as f64)?, true)?;
        let parts = parts.reshape(&[batch, 2, 2, low + 1, width])?.permute(&[0, 1, 4, 3, 2])?;
        let lines = Irfft { n, scaled: false };
        parts.session().apply(lines, &[parts.pad(3, 0, n / 2 - low)?])?.permute(&[0, 3, 1, 2])
    }

    /// The real and imaginary part of modes `k` and `-k` (rows), from those of `P[k]` and `Q[k]`, times `factor`.
    #[track_caller]
    fn signs(&self, like: Var<'s>, factor: f64) -> Result<Var<'s>> {
        let rows = [[1.0, 0.0, 0.0, -1.0], [0.0, 1.0, 1.0, 0.0], [1.0, 0.0, 0.0, 1.0], [0.0, -1.0, 1.0, 0.0]];
        let all = rows.as_flattened().iter().map(|sign| sign * factor).collect();
        like.session().constant::<f64>(&Tensor::new(&[4, 4], all)?)
    }
}

/// The sizes of a value of three axes.
#[track_caller]
fn three(x: Var<'_>) -> Result<[usize; 3]> {
    let shape = x.shape()?;
    Ok([0, 1, 2].map(|i| shape.dims().get(i).copied().unwrap_or(1)))
}

impl Session {
    /// The two tables of a transform, plain and weighted. A program computes them when it is compiled, and an eager
    /// session keeps them with its constants.
    #[track_caller]
    fn dft_tables(&self, table: DftTable) -> Result<Var<'_>> {
        if self.is_trace() {
            return self.apply(table, &[]);
        }
        let value = self.state.borrow_mut().constants.table(&self.device, table)?;
        self.leaf(DftTable::NAME, Source::Constant(value.clone()), || Ok(value), false)
    }
}

/// # Fourier transforms and spectral convolutions
impl<'s> Var<'s> {
    /// The discrete Fourier transform along the last axis, real to complex: (…, n) to (…, n/2 + 1, 2), pairs of real
    /// and imaginary part, not normalized.
    #[track_caller]
    pub fn rfft(self) -> Result<Var<'s>> {
        self.session().apply(Rfft { scaled: false }, &[self])
    }

    /// The inverse of [`Var::rfft`] for lines of `n` points: (…, n/2 + 1, 2) to (…, n). The imaginary parts of mode
    /// 0 and of the highest mode of an even `n` do not count.
    #[track_caller]
    pub fn irfft(self, n: usize) -> Result<Var<'s>> {
        self.session().apply(Irfft { n, scaled: true }, &[self])
    }

    /// Applies the matrix `a` along the second-to-last axis: `y[…, i, j] = Σ_l a[i, l] x[…, l, j]`.
    #[track_caller]
    pub fn axis_matmul(self, a: Var<'s>) -> Result<Var<'s>> {
        self.along(a, false)
    }

    /// Applies the matrix `a`, or its transpose, along the second-to-last axis.
    #[track_caller]
    fn along(self, a: Var<'s>, ta: bool) -> Result<Var<'s>> {
        self.session().apply(AxisMatMul { ta }, &[a, self])
    }

    /// Spectral convolution along a grid, of a value (…, grid, c) with complex weights (modes, c, o): see
    /// [`SpectralConv1d`]. It is recorded as several ops, so that the backward pass can use the spectrum. With few modes
    /// the transforms are products with tables, with many modes [`Var::rfft`] and [`Var::irfft`]: see
    /// [`DftTable::is_faster_by_fft`].
    #[track_caller]
    pub fn spectral_conv1d(self, w_re: Var<'s>, w_im: Var<'s>) -> Result<Var<'s>> {
        let x = self.shape()?;
        // The op's shape rule does all checks.
        let metas = [self.meta()?, w_re.meta()?, w_im.meta()?];
        let out = SpectralConv1d.shape(&metas)?.shape;
        let w = w_re.shape()?;
        let [modes, c, o] = [w.dims()[0], w.dims()[1], w.dims()[2]];
        let n = x.dims()[x.rank() - 2];
        let batch: usize = x.dims()[..x.rank() - 2].iter().product();
        let grid = Transform::new(self.session(), DftTable { n, low: modes, high: 0, complex: false })?;
        let spectrum = grid.forward(self.reshape(&[batch, n, c])?)?.reshape(&[batch, 2, modes, c])?;
        let mixed = self.session().apply(ModeMix { adjoint: false }, &[spectrum, w_re, w_im])?;
        grid.inverse(mixed.reshape(&[batch, 2 * modes, o])?)?.reshape(out.dims())
    }

    /// [`Var::spectral_conv1d`] of a value (…, c, grid), the layout of PyTorch's Fourier layers.
    #[track_caller]
    pub fn spectral_conv1d_channels_first(self, w_re: Var<'s>, w_im: Var<'s>) -> Result<Var<'s>> {
        self.transpose()?.spectral_conv1d(w_re, w_im)?.transpose()
    }

    /// Spectral convolution over a plane, of a value (…, gx, gy, c) with complex weights (2, mx, my, c, o). As in
    /// Fourier neural operators, it keeps the modes `0 … my - 1` along y, and along x the modes `0 … mx - 1` (weights
    /// 0) and `-mx … -1` (weights 1). All other modes are zero. `2 mx` is at most `gx`, `my` at most `gy / 2 + 1`.
    /// Each axis has its own kind of transform, as in [`Var::spectral_conv1d`].
    #[track_caller]
    pub fn spectral_conv2d(self, w_re: Var<'s>, w_im: Var<'s>) -> Result<Var<'s>> {
        const NAME: &str = "spectral_conv2d";
        let (x, w) = (self.shape()?, w_re.shape()?);
        if x.rank() < 3 {
            return Err(Error::new(NAME, ErrorKind::Rank { want: "at least 3", got: x }));
        }
        if w.rank() != 5 || w.dims()[0] != 2 {
            return Err(Error::argument(NAME, "weights", format!("{w} is not (2, mx, my, c, o)")));
        }
        let [mx, my, c, o] = [1, 2, 3, 4].map(|i| w.dims()[i]);
        let (lead, last) = x.dims().split_at(x.rank() - 3);
        let [gx, gy] = [last[0], last[1]];
        if last[2] != c {
            let kind = ErrorKind::Shapes { why: "value and weights differ in channels", left: x, right: w };
            return Err(Error::new(NAME, kind));
        }
        let batch: usize = lead.iter().product();
        let along_y = Transform::new(self.session(), DftTable { n: gy, low: my, high: 0, complex: false })?;
        let along_x = Transform::new(self.session(), DftTable { n: gx, low: mx, high: mx, complex: true })?;
        let modes = 2 * mx * my;
        let lines =
            along_y.forward(self.reshape(&[batch * gx, gy, c])?)?.reshape(&[batch, 2 * gx, my * c])?;
        let spectrum = along_x.forward(lines)?.reshape(&[batch, 2, modes, c])?;
        let weights = [w_re.reshape(&[modes, c, o])?, w_im.reshape(&[modes, c, o])?];
        let mixed = self.session().apply(ModeMix { adjoint: false }, &[spectrum, weights[0], weights[1]])?;
        let out = Shape::new(&[lead, &[gx, gy, o]].concat())?;
        let lines =
            along_x.inverse(mixed.reshape(&[batch, 4 * mx, my * o])?)?.reshape(&[batch * gx, 2 * my, o])?;
        along_y.inverse(lines)?.reshape(out.dims())
    }
}
