//! Fourier transforms and spectral convolutions of values.

use super::Var;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::shape::Shape;
use dittograd_ops::layout::Slice;
use dittograd_ops::spectral::fft::{Irfft, Rfft};
use dittograd_ops::spectral::{AxisMatMul, DftTable, ModeMix, SpectralConv1d};

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
        self.session().apply(AxisMatMul { ta: false }, &[a, self])
    }

    /// The two tables of a transform, plain and weighted.
    #[track_caller]
    fn dft_tables(self, table: DftTable) -> Result<[Var<'s>; 2]> {
        let both = self.session().apply(table, &[])?;
        let d = both.shape()?;
        let half = |start| {
            let one = self.session().apply(Slice { axis: 0, start, len: 1, step: 1 }, &[both])?;
            one.reshape(&d.dims()[1..])
        };
        Ok([half(0)?, half(1)?])
    }

    /// Applies the matrix `a`, or its transpose, along the second-to-last axis.
    #[track_caller]
    fn along(self, a: Var<'s>, ta: bool) -> Result<Var<'s>> {
        self.session().apply(AxisMatMul { ta }, &[a, self])
    }

    /// Spectral convolution along a grid, of a value (…, grid, c) with complex weights (modes, c, o): see
    /// [`SpectralConv1d`]. It is recorded as three ops, so that the backward pass can use the spectrum.
    #[track_caller]
    pub fn spectral_conv1d(self, w_re: Var<'s>, w_im: Var<'s>) -> Result<Var<'s>> {
        let x = self.shape()?;
        // The op's shape rule does all checks.
        let metas = [self.meta()?, w_re.meta()?, w_im.meta()?];
        let out = dittograd_ops::Op::shape(&SpectralConv1d, &metas)?.shape;
        let w = w_re.shape()?;
        let [modes, c, o] = [w.dims()[0], w.dims()[1], w.dims()[2]];
        let n = x.dims()[x.rank() - 2];
        let batch: usize = x.dims()[..x.rank() - 2].iter().product();
        let [plain, weighted] = self.dft_tables(DftTable { n, low: modes, high: 0, complex: false })?;
        let spectrum = self.reshape(&[batch, n, c])?.along(plain, false)?.reshape(&[batch, 2, modes, c])?;
        let mixed = self.session().apply(ModeMix { adjoint: false }, &[spectrum, w_re, w_im])?;
        mixed.reshape(&[batch, 2 * modes, o])?.along(weighted, true)?.reshape(out.dims())
    }

    /// [`Var::spectral_conv1d`] of a value (…, c, grid), the layout of PyTorch's Fourier layers.
    #[track_caller]
    pub fn spectral_conv1d_channels_first(self, w_re: Var<'s>, w_im: Var<'s>) -> Result<Var<'s>> {
        self.transpose()?.spectral_conv1d(w_re, w_im)?.transpose()
    }

    /// Spectral convolution over a plane, of a value (…, gx, gy, c) with complex weights (2, mx, my, c, o). As in
    /// Fourier neural operators, it keeps the modes `0 … my - 1` along y, and along x the modes `0 … mx - 1` (weights
    /// 0) and `-mx … -1` (weights 1). All other modes are zero. `2 mx` is at most `gx`, `my` at most `gy / 2 + 1`.
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
        let along_y = self.dft_tables(DftTable { n: gy, low: my, high: 0, complex: false })?;
        let along_x = self.dft_tables(DftTable { n: gx, low: mx, high: mx, complex: true })?;
        let modes = 2 * mx * my;
        let spectrum = self
            .reshape(&[batch * gx, gy, c])?
            .along(along_y[0], false)?
            .reshape(&[batch, 2 * gx, my * c])?
            .along(along_x[0], false)?
            .reshape(&[batch, 2, modes, c])?;
        let weights = [w_re.reshape(&[modes, c, o])?, w_im.reshape(&[modes, c, o])?];
        let mixed = self.session().apply(ModeMix { adjoint: false }, &[spectrum, weights[0], weights[1]])?;
        let out = Shape::new(&[lead, &[gx, gy, o]].concat())?;
        mixed
            .reshape(&[batch, 4 * mx, my * o])?
            .along(along_x[1], true)?
            .reshape(&[batch * gx, 2 * my, o])?
            .along(along_y[1], true)?
            .reshape(out.dims())
    }
}
