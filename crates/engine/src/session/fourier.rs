//! Fourier transforms as PyTorch has them. Complex values are pairs: a last axis of real and imaginary part.

use super::{PadMode, Var};
use dittograd_numerics::error::{Error, ErrorKind, Located, Result};
use dittograd_numerics::shape::{Position, Shape};
use dittograd_numerics::tensor::Tensor;

/// Which direction of a Fourier transform is divided, with `n` the number of points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FftNorm {
    /// The inverse by `n`.
    #[default]
    Backward,
    /// The forward transform by `n`.
    Forward,
    /// Both by `sqrt(n)`.
    Ortho,
}

impl FftNorm {
    /// The factor of a transform of `n` points that would not be scaled.
    fn factor(self, n: usize, inverse: bool) -> f64 {
        match (self, inverse) {
            (FftNorm::Backward, false) | (FftNorm::Forward, true) => 1.0,
            (FftNorm::Backward, true) | (FftNorm::Forward, false) => 1.0 / n as f64,
            (FftNorm::Ortho, _) => 1.0 / (n as f64).sqrt(),
        }
    }

    /// That which divides in the other direction.
    fn reversed(self) -> FftNorm {
        match self {
            FftNorm::Backward => FftNorm::Forward,
            FftNorm::Forward => FftNorm::Backward,
            FftNorm::Ortho => FftNorm::Ortho,
        }
    }
}

/// How [`Var::stft`] and [`Var::istft`] cut a signal. The defaults are PyTorch's, with `hop` a quarter of `n_fft`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stft {
    /// Points of a frame.
    pub n_fft: usize,
    /// Points from one frame to the next.
    pub hop: usize,
    /// Points of the window, in the middle of a frame; the others count as zeros. `n_fft` if it is not given.
    pub win_length: Option<usize>,
    /// Whether frame `t` has point `t hop` at its centre; the signal goes on at its ends as `pad_mode` says then.
    pub center: bool,
    /// What is before and after the signal.
    pub pad_mode: PadMode,
    /// Whether to divide by `sqrt(n_fft)`.
    pub normalized: bool,
    /// Whether there are the modes 0 to `n_fft / 2`, and not also the others, which are conjugates of these.
    pub onesided: bool,
}

impl Stft {
    /// Frames of `n_fft` points.
    pub fn new(n_fft: usize) -> Stft {
        Stft {
            n_fft,
            hop: (n_fft / 4).max(1),
            win_length: None,
            center: true,
            pad_mode: PadMode::Reflect,
            normalized: false,
            onesided: true,
        }
    }

    fn check(&self, op: &'static str) -> Result<()> {
        if self.n_fft == 0 || self.hop == 0 {
            let why =
                format!("frames of {} points every {} points; both must be above 0", self.n_fft, self.hop);
            return Err(Error::argument(op, "n_fft", why));
        }
        if self.length() == 0 || self.length() > self.n_fft {
            let why = format!("{}, use 1 to n_fft, which is {}", self.length(), self.n_fft);
            return Err(Error::argument(op, "win_length", why));
        }
        Ok(())
    }

    /// Points of the window.
    fn length(&self) -> usize {
        self.win_length.unwrap_or(self.n_fft)
    }

    /// Modes of a frame.
    fn modes(&self) -> usize {
        if self.onesided { self.n_fft / 2 + 1 } else { self.n_fft }
    }

    fn norm(&self) -> FftNorm {
        if self.normalized { FftNorm::Ortho } else { FftNorm::Backward }
    }

    /// The points that frames take from a signal of `len` points, and the number of frames.
    fn points(&self, len: usize) -> Result<(Vec<u32>, usize)> {
        let pad = if self.center { self.n_fft / 2 } else { 0 };
        if self.center && pad >= len {
            let why =
                format!("{len} points cannot be reflected by {pad}; take a shorter frame or `center: false`");
            return Err(Error::argument("stft", "n_fft", why));
        }
        let whole = len + 2 * pad;
        if whole < self.n_fft {
            let why = format!("{len} points are fewer than a frame of {}", self.n_fft);
            return Err(Error::argument("stft", "n_fft", why));
        }
        let frames = 1 + (whole - self.n_fft) / self.hop;
        let point = |at: usize| match at.checked_sub(pad) {
            None => pad - at,
            Some(at) if at < len => at,
            Some(at) => 2 * (len - 1) - at,
        };
        let all = (0..frames).flat_map(|f| (0..self.n_fft).map(move |i| point(f * self.hop + i) as u32));
        Ok((all.collect(), frames))
    }
}

/// # Fourier transforms of any axis
///
/// Complex values are pairs of real and imaginary part in a last axis, as `torch.view_as_real` makes them; axes are counted
/// without it.
impl<'s> Var<'s> {
    /// The sizes without the axis of pairs.
    #[track_caller]
    fn complex_dims(self, op: &'static str) -> Result<Vec<usize>> {
        let shape = self.shape()?;
        match shape.dims() {
            [dims @ .., 2] if !dims.is_empty() => Ok(dims.to_vec()),
            [_, ..] => {
                let why = format!("{shape} has no last axis of 2: real and imaginary part");
                Err(Error::argument(op, "value", why))
            }
            [] => Err(Error::new(op, ErrorKind::Rank { want: "at least 2", got: shape })),
        }
    }

    /// The axis that a caller names, of a complex value without its last one.
    #[track_caller]
    fn complex_axis(self, op: &'static str, axis: impl Position) -> Result<usize> {
        Shape::new(&self.complex_dims(op)?)?.axis(op, axis)
    }

    /// The value with `n` elements along an axis: cut, or with zeros at the end.
    #[track_caller]
    fn cut_or_padded(self, op: &'static str, n: Option<usize>, axis: usize) -> Result<Var<'s>> {
        let shape = self.shape()?;
        let Some(&have) = shape.dims().get(axis) else {
            return Err(Error::new(op, ErrorKind::Axis { axis, shape }));
        };
        match n.unwrap_or(have) {
            0 => Err(Error::argument(op, "n", "0 points, use at least 1")),
            n if n > have => self.pad(axis, 0, n - have),
            n if n < have => self.narrow(axis, 0, n),
            _ => Ok(self),
        }
    }

    /// The value times a factor.
    #[track_caller]
    fn times(self, factor: f64) -> Result<Var<'s>> {
        if factor == 1.0 { Ok(self) } else { self.scale(factor) }
    }

    /// The discrete Fourier transform of a complex value (…, 2) along an axis, of `n` points: cut or with zeros at the
    /// end, or as many as there are. A complex line is two real ones.
    #[track_caller]
    pub fn fft(self, n: Option<usize>, axis: impl Position, norm: FftNorm) -> Result<Var<'s>> {
        let axis = self.complex_axis("fft", axis)?;
        self.complex_transform("fft", n, axis, norm, false)
    }

    /// The inverse of [`Var::fft`].
    #[track_caller]
    pub fn ifft(self, n: Option<usize>, axis: impl Position, norm: FftNorm) -> Result<Var<'s>> {
        let axis = self.complex_axis("ifft", axis)?;
        self.complex_transform("ifft", n, axis, norm, true)
    }

    #[track_caller]
    fn complex_transform(
        self,
        op: &'static str,
        n: Option<usize>,
        axis: usize,
        norm: FftNorm,
        inverse: bool,
    ) -> Result<Var<'s>> {
        let rank = self.complex_dims(op)?.len();
        if axis >= rank {
            return Err(Error::new(op, ErrorKind::Axis { axis, shape: self.shape()? }));
        }
        let x = self.cut_or_padded(op, n, axis)?;
        let n = x.shape()?.dims()[axis];
        // Exchanging real and imaginary part before and after makes the transform the inverse one.
        let [first, second] = if inverse { [1, 0] } else { [0, 1] };
        let lines = |part| x.select(rank, part)?.movedim(axis, rank - 1)?.rfft();
        let (p, q) = (lines(first)?, lines(second)?);
        let part = |v: Var<'s>, part| v.select(rank, part);
        let ([pr, pi], [qr, qi]) = ([part(p, 0)?, part(p, 1)?], [part(q, 0)?, part(q, 1)?]);
        // Mode k is P[k] + i Q[k], and mode n - k is conj(P[k]) + i conj(Q[k]).
        let mirrored = (n - 1) / 2;
        let join = |low: Var<'s>, high: Var<'s>| {
            if mirrored == 0 {
                return Ok(low);
            }
            low.concat(high.narrow(rank - 1, 1, mirrored)?.flip(&[rank - 1])?, rank - 1)
        };
        let re = join(pr.sub(qi)?, pr.add(qi)?)?;
        let im = join(pi.add(qr)?, qr.sub(pi)?)?;
        let parts = if inverse { [im, re] } else { [re, im] };
        let y = self.session().stack(&parts, rank)?.movedim(rank - 1, axis)?;
        y.times(norm.factor(n, inverse))
    }

    /// [`Var::rfft`] along any axis, of `n` points: (…) to (…, 2), with `n / 2 + 1` modes along the axis.
    #[track_caller]
    pub fn rfft_with(self, n: Option<usize>, axis: impl Position, norm: FftNorm) -> Result<Var<'s>> {
        let axis = self.axis("rfft", axis)?;
        let x = self.cut_or_padded("rfft", n, axis)?;
        let (rank, n) = (x.shape()?.rank(), x.shape()?.dims()[axis]);
        let modes = x.movedim(axis, rank - 1)?.rfft()?;
        modes.movedim(rank - 1, axis)?.times(norm.factor(n, false))
    }

    /// [`Var::irfft`] along any axis, to `n` points, or to twice the modes less 2: (…, 2) to (…).
    #[track_caller]
    pub fn irfft_with(self, n: Option<usize>, axis: impl Position, norm: FftNorm) -> Result<Var<'s>> {
        let axis = self.complex_axis("irfft", axis)?;
        let dims = self.complex_dims("irfft")?;
        let Some(&modes) = dims.get(axis) else {
            return Err(Error::new("irfft", ErrorKind::Axis { axis, shape: self.shape()? }));
        };
        let (n, rank) = (n.unwrap_or(2 * modes.saturating_sub(1)), dims.len());
        let x = self.cut_or_padded("irfft", Some(n / 2 + 1), axis)?;
        let x = x.movedim(axis, rank - 1)?.irfft(n)?;
        x.movedim(rank - 1, axis)?.times(norm.factor(n, true) * n as f64)
    }

    /// Pairs of this value as real part and another as imaginary part; both broadcast.
    #[track_caller]
    pub fn complex(self, imaginary: Var<'s>) -> Result<Var<'s>> {
        let session = self.session();
        session.stack(&session.broadcast_tensors(&[self, imaginary])?, -1)
    }

    /// Pairs of this absolute value and an angle: `x cos(angle)` and `x sin(angle)`; both broadcast.
    #[track_caller]
    pub fn polar(self, angle: Var<'s>) -> Result<Var<'s>> {
        self.mul(angle.cos()?)?.complex(self.mul(angle.sin()?)?)
    }

    /// The complex conjugate of pairs.
    #[track_caller]
    pub fn conj(self) -> Result<Var<'s>> {
        self.complex_dims("conj")?;
        self.mul(self.session().constant(&Tensor::new(&[2], vec![1.0f32, -1.0])?)?)
    }

    /// The real transform of a complex value (…, 2) that is half of a Hermitian one, to `n` points or to twice the modes
    /// less 2: (…).
    #[track_caller]
    pub fn hfft(self, n: Option<usize>, axis: impl Position, norm: FftNorm) -> Result<Var<'s>> {
        self.conj()?.irfft_with(n, axis, norm.reversed())
    }

    /// The inverse of [`Var::hfft`]: of `n` points, (…) to (…, 2), with `n / 2 + 1` modes along the axis.
    #[track_caller]
    pub fn ihfft(self, n: Option<usize>, axis: impl Position, norm: FftNorm) -> Result<Var<'s>> {
        self.rfft_with(n, axis, norm.reversed())?.conj()
    }

    /// The axes of a transform along several, each with the number of its points.
    #[track_caller]
    fn lines(
        self,
        op: &'static str,
        sizes: Option<&[usize]>,
        axes: &[impl Position],
        complex: bool,
    ) -> Result<Vec<(usize, Option<usize>)>> {
        let shape = if complex { Shape::new(&self.complex_dims(op)?)? } else { self.shape()? };
        let axes = shape.axes(op, axes)?;
        if let Some(sizes) = sizes
            && sizes.len() != axes.len()
        {
            let why = format!("{sizes:?} are {} sizes for {} axes", sizes.len(), axes.len());
            return Err(Error::argument(op, "sizes", why));
        }
        if let Some((at, &axis)) = axes.iter().enumerate().find(|(at, axis)| axes[..*at].contains(axis)) {
            let why = format!("axis {axis} is named again as number {at}; name each axis once");
            return Err(Error::argument(op, "axes", why));
        }
        let size = |at: usize| sizes.map(|sizes| sizes[at]);
        Ok(axes.into_iter().enumerate().map(|(at, axis)| (axis, size(at))).collect())
    }

    /// The last of several lines, and the others.
    #[track_caller]
    fn last_line<'a, T: Copy>(op: &'static str, lines: &'a [T]) -> Result<(T, &'a [T])> {
        match lines.split_last() {
            Some((&last, rest)) => Ok((last, rest)),
            None => {
                Err(Error::argument(op, "axes", "a transform of real values needs an axis, there is none"))
            }
        }
    }

    /// [`Var::fft`] or its inverse along several axes, the last one first.
    #[track_caller]
    fn along_lines(self, lines: &[(usize, Option<usize>)], norm: FftNorm, inverse: bool) -> Result<Var<'s>> {
        lines.iter().rev().try_fold(self, |x, &(axis, n)| match inverse {
            true => x.ifft(n, axis, norm),
            false => x.fft(n, axis, norm),
        })
    }

    /// [`Var::fft`] along several axes of a complex value (…, 2), with `sizes` points: cut or with zeros at the end, or as many
    /// as there are.
    #[doc(alias = "fft2")]
    #[track_caller]
    pub fn fftn(self, sizes: Option<&[usize]>, axes: &[impl Position], norm: FftNorm) -> Result<Var<'s>> {
        self.along_lines(&self.lines("fftn", sizes, axes, true)?, norm, false)
    }

    /// The inverse of [`Var::fftn`].
    #[doc(alias = "ifft2")]
    #[track_caller]
    pub fn ifftn(self, sizes: Option<&[usize]>, axes: &[impl Position], norm: FftNorm) -> Result<Var<'s>> {
        self.along_lines(&self.lines("ifftn", sizes, axes, true)?, norm, true)
    }

    /// The transform of a real value along several axes: [`Var::rfft_with`] along the last of them, then [`Var::fft`] along the
    /// others; (…) to (…, 2).
    #[doc(alias = "rfft2")]
    #[track_caller]
    pub fn rfftn(self, sizes: Option<&[usize]>, axes: &[impl Position], norm: FftNorm) -> Result<Var<'s>> {
        let lines = self.lines("rfftn", sizes, axes, false)?;
        let ((axis, n), rest) = Var::last_line("rfftn", &lines)?;
        self.rfft_with(n, axis, norm)?.along_lines(rest, norm, false)
    }

    /// The inverse of [`Var::rfftn`], to `sizes` points. Without them, the last axis gets twice its modes less 2.
    #[doc(alias = "irfft2")]
    #[track_caller]
    pub fn irfftn(self, sizes: Option<&[usize]>, axes: &[impl Position], norm: FftNorm) -> Result<Var<'s>> {
        let lines = self.lines("irfftn", sizes, axes, true)?;
        let ((axis, n), rest) = Var::last_line("irfftn", &lines)?;
        self.along_lines(rest, norm, true)?.irfft_with(n, axis, norm)
    }

    /// [`Var::hfft`] along the last of several axes, after [`Var::fft`] along the others.
    #[doc(alias = "hfft2")]
    #[track_caller]
    pub fn hfftn(self, sizes: Option<&[usize]>, axes: &[impl Position], norm: FftNorm) -> Result<Var<'s>> {
        let lines = self.lines("hfftn", sizes, axes, true)?;
        let ((axis, n), rest) = Var::last_line("hfftn", &lines)?;
        self.along_lines(rest, norm, false)?.hfft(n, axis, norm)
    }

    /// The inverse of [`Var::hfftn`].
    #[doc(alias = "ihfft2")]
    #[track_caller]
    pub fn ihfftn(self, sizes: Option<&[usize]>, axes: &[impl Position], norm: FftNorm) -> Result<Var<'s>> {
        let lines = self.lines("ihfftn", sizes, axes, false)?;
        let ((axis, n), rest) = Var::last_line("ihfftn", &lines)?;
        self.ihfft(n, axis, norm)?.along_lines(rest, norm, true)
    }

    /// [`Var::fftn`] along two axes; PyTorch's default is `[-2, -1]`.
    #[track_caller]
    pub fn fft2(self, sizes: Option<[usize; 2]>, axes: [impl Position; 2], norm: FftNorm) -> Result<Var<'s>> {
        self.fftn(sizes.as_ref().map(<[usize; 2]>::as_slice), &axes, norm)
    }

    /// The inverse of [`Var::fft2`].
    #[track_caller]
    pub fn ifft2(
        self,
        sizes: Option<[usize; 2]>,
        axes: [impl Position; 2],
        norm: FftNorm,
    ) -> Result<Var<'s>> {
        self.ifftn(sizes.as_ref().map(<[usize; 2]>::as_slice), &axes, norm)
    }

    /// [`Var::rfftn`] along two axes.
    #[track_caller]
    pub fn rfft2(
        self,
        sizes: Option<[usize; 2]>,
        axes: [impl Position; 2],
        norm: FftNorm,
    ) -> Result<Var<'s>> {
        self.rfftn(sizes.as_ref().map(<[usize; 2]>::as_slice), &axes, norm)
    }

    /// The inverse of [`Var::rfft2`].
    #[track_caller]
    pub fn irfft2(
        self,
        sizes: Option<[usize; 2]>,
        axes: [impl Position; 2],
        norm: FftNorm,
    ) -> Result<Var<'s>> {
        self.irfftn(sizes.as_ref().map(<[usize; 2]>::as_slice), &axes, norm)
    }

    /// Moves mode 0 from the start of axes to their middle. Axes are those of the value as it is, that of pairs included.
    #[track_caller]
    pub fn fftshift(self, axes: &[impl Position]) -> Result<Var<'s>> {
        self.rolled("fftshift", axes, |n| n / 2)
    }

    /// The inverse of [`Var::fftshift`].
    #[track_caller]
    pub fn ifftshift(self, axes: &[impl Position]) -> Result<Var<'s>> {
        self.rolled("ifftshift", axes, |n| n.div_ceil(2))
    }

    #[track_caller]
    fn rolled(self, op: &str, axes: &[impl Position], shift: fn(usize) -> usize) -> Result<Var<'s>> {
        let dims = self.shape()?;
        self.axes(op, axes)?
            .into_iter()
            .try_fold(self, |x, axis| x.roll(axis, shift(dims.dims().get(axis).copied().unwrap_or(0)) as i64))
    }

    /// The short-time Fourier transform of signals (…, len): modes of frames, (…, n_fft / 2 + 1, frames, 2). Frames are
    /// multiplied by the window (win_length), if there is one. PyTorch's `stft` with `return_complex`.
    #[track_caller]
    pub fn stft(self, how: Stft, window: Option<Var<'s>>) -> Result<Var<'s>> {
        how.check("stft")?;
        let shape = self.shape()?;
        let Some((&len, lead)) = shape.dims().split_last() else {
            return Err(Error::new("stft", ErrorKind::Rank { want: "at least 1", got: shape }));
        };
        // Reflected points are read where they are; others are written first.
        if how.center && how.pad_mode != PadMode::Reflect {
            let half = (how.n_fft / 2) as i64;
            return self
                .pad_mode(&[half, half], how.pad_mode)?
                .stft(Stft { center: false, ..how }, window)
                .located();
        }
        let (points, frames) = how.points(len)?;
        let points = self.session().indices(&Tensor::new(&[frames, how.n_fft], points)?)?;
        let mut x = self.index_select(lead.len(), points)?;
        if let Some(window) = how.window("stft", self, window)? {
            x = x.mul(window)?;
        }
        let axis = lead.len() + 1;
        let mut modes = x.rfft_with(None, axis, how.norm())?;
        // Mode n - k of a real frame is the conjugate of mode k.
        let mirrored = (how.n_fft - 1) / 2;
        if !how.onesided && mirrored > 0 {
            modes = modes.concat(modes.narrow(axis, 1, mirrored)?.flip(&[axis])?.conj()?, axis)?;
        }
        modes.swap_axes(lead.len(), axis)
    }

    /// The inverse of [`Var::stft`], with the same window: (…, n_fft / 2 + 1, frames, 2) to (…, len). Frames are
    /// multiplied by the window and added where they were, and the sums are divided by those of the window's squares.
    /// Without `len` it has the points that frames reach, less the reflected ends.
    #[track_caller]
    pub fn istft(self, how: Stft, window: Option<Var<'s>>, len: Option<usize>) -> Result<Var<'s>> {
        const NAME: &str = "istft";
        how.check(NAME)?;
        let dims = self.complex_dims(NAME)?;
        let (lead, &[modes, frames]) = dims
            .split_last_chunk()
            .ok_or_else(|| Error::argument(NAME, "value", "it is not (…, modes, frames, 2)"))?;
        if modes != how.modes() || frames == 0 {
            let why = format!("{modes} modes of {frames} frames, not {} of at least 1", how.modes());
            return Err(Error::argument(NAME, "value", why));
        }
        let (n, at) = (how.n_fft, lead.len());
        // Of both sides, PyTorch reads this half too.
        let half = if how.onesided { self } else { self.narrow(at, 0, n / 2 + 1)? };
        let x = half.irfft_with(Some(n), at, how.norm())?;
        let mut x = x.swap_axes(at, at + 1)?;
        let session = self.session();
        let window = match how.window(NAME, self, window)? {
            Some(window) => window,
            None => session.ones(&[n])?,
        };
        x = x.mul(window)?;
        let whole = n + how.hop * (frames - 1);
        let places = (0..frames).flat_map(|f| (0..n).map(move |i| (f * how.hop + i) as u32)).collect();
        let places = session.indices(&Tensor::new(&[frames * n], places)?)?;
        let flat = x.reshape(&[lead, &[frames * n]].concat())?;
        let sums = session.zeros(&[lead, &[whole]].concat())?.index_add(at, places, flat)?;
        let squares = window.square()?.expand(&[frames, n])?.reshape(&[frames * n])?;
        let weights = session.zeros(&[whole])?.index_add(0, places, squares)?;
        let start = if how.center { n / 2 } else { 0 };
        let most = whole - start - if how.center && len.is_none() { n / 2 } else { 0 };
        let want = len.unwrap_or(most);
        let kept = want.min(most);
        let x = sums.narrow(at, start, kept)?.div(weights.narrow(0, start, kept)?)?;
        x.pad(at, 0, want - kept)
    }
}

impl Stft {
    /// The window with the size of a frame, if there is one.
    #[track_caller]
    fn window<'s>(
        &self,
        op: &'static str,
        like: Var<'s>,
        window: Option<Var<'s>>,
    ) -> Result<Option<Var<'s>>> {
        let (length, n) = (self.length(), self.n_fft);
        if let Some(window) = window {
            let shape = window.shape()?;
            if shape.dims() != [length] {
                let why = format!("{shape} is not ({length}), the points of a window; set win_length");
                return Err(Error::argument(op, "window", why));
            }
        }
        if length == n {
            return Ok(window);
        }
        let window = match window {
            Some(window) => window,
            None => like.session().ones(&[length])?,
        };
        let before = (n - length) / 2;
        window.pad(0, before, n - length - before).map(Some)
    }
}
