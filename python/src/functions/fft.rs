//! Functions of `torch.fft`, `stft` and `istft`. Complex values are pairs: a last axis of real and imaginary part, which axes are
//! counted without.

use crate::arguments::Dims;
use crate::tensor::Tensor;
use dittograd::session::FftNorm;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

fn scaling(norm: Option<&str>) -> PyResult<FftNorm> {
    match norm {
        None | Some("backward") => Ok(FftNorm::Backward),
        Some("forward") => Ok(FftNorm::Forward),
        Some("ortho") => Ok(FftNorm::Ortho),
        Some(other) => Err(PyValueError::new_err(format!(
            "norm is {other:?}; use \"backward\", \"forward\" or \"ortho\""
        ))),
    }
}

/// What a transform takes and gives.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Complex values to complex ones.
    Complex,
    /// Real values to complex ones.
    FromReal,
    /// Complex values to real ones.
    ToReal,
}

/// The points of a transform, if any are given, and its axes: without `dim` the last ones, as many as `s` has, or all. A number of
/// -1 stands for as many points as there are.
fn axes(
    input: &Tensor,
    s: Option<Vec<i64>>,
    dim: Option<Dims>,
    kind: Kind,
) -> PyResult<(Option<Vec<usize>>, Vec<i64>)> {
    let mut sizes = input.dims()?;
    if kind != Kind::FromReal {
        sizes.pop();
    }
    let count = s.as_ref().map_or(sizes.len(), Vec::len) as i64;
    let dims = dim.map_or_else(|| (-count..0).collect(), Dims::list);
    let Some(s) = s else { return Ok((None, dims)) };
    let there = |at: usize| {
        let axis = dims.get(at).map_or(0, |&d| if d < 0 { d + sizes.len() as i64 } else { d });
        let modes = usize::try_from(axis).ok().and_then(|axis| sizes.get(axis)).copied().unwrap_or(0);
        let is_half = kind == Kind::ToReal && at + 1 == dims.len();
        if is_half { 2 * modes.saturating_sub(1) } else { modes }
    };
    let points = s.iter().enumerate().map(|(at, &n)| usize::try_from(n).unwrap_or_else(|_| there(at)));
    Ok((Some(points.collect()), dims))
}

#[pymodule]
pub mod fft {
    use super::{Kind, axes, scaling};
    use crate::arguments::Dims;
    use crate::tensor::{Answer, Tensor, one};
    use pyo3::prelude::*;

    // The module's macro does not see what another macro makes.
    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        add_all(module)
    }

    /// The discrete Fourier transform of a complex value along an axis, the last by default.
    ///
    /// A complex value is pairs of a real and an imaginary part along one more last axis of 2, which `dim` does not count.
    ///
    /// n: the number of points, by default all: elements are cut, or zeros added at the end
    /// norm: "backward", the default, which divides the inverse by `n`; "forward", which divides the transform; "ortho", both by its
    /// root
    #[pyfunction]
    #[pyo3(signature = (input, n=None, dim=-1, norm=None))]
    fn fft(input: &Tensor, n: Option<usize>, dim: i64, norm: Option<&str>) -> Answer {
        let norm = scaling(norm)?;
        one(&[input], |v| v[0].fft(n, dim, norm))
    }

    /// The inverse of `fft`, with the same arguments.
    #[pyfunction]
    #[pyo3(signature = (input, n=None, dim=-1, norm=None))]
    fn ifft(input: &Tensor, n: Option<usize>, dim: i64, norm: Option<&str>) -> Answer {
        let norm = scaling(norm)?;
        one(&[input], |v| v[0].ifft(n, dim, norm))
    }

    /// The transform of a real value along an axis, the last by default: the modes 0 to `n / 2`, complex. Arguments as of `fft`.
    #[pyfunction]
    #[pyo3(signature = (input, n=None, dim=-1, norm=None))]
    fn rfft(input: &Tensor, n: Option<usize>, dim: i64, norm: Option<&str>) -> Answer {
        let norm = scaling(norm)?;
        one(&[input], |v| v[0].rfft_with(n, dim, norm))
    }

    /// The inverse of `rfft`: `n` real points, or twice the modes less 2.
    #[pyfunction]
    #[pyo3(signature = (input, n=None, dim=-1, norm=None))]
    fn irfft(input: &Tensor, n: Option<usize>, dim: i64, norm: Option<&str>) -> Answer {
        let norm = scaling(norm)?;
        one(&[input], |v| v[0].irfft_with(n, dim, norm))
    }

    /// The real transform of a complex value that is half of a Hermitian one.
    #[pyfunction]
    #[pyo3(signature = (input, n=None, dim=-1, norm=None))]
    fn hfft(input: &Tensor, n: Option<usize>, dim: i64, norm: Option<&str>) -> Answer {
        let norm = scaling(norm)?;
        one(&[input], |v| v[0].hfft(n, dim, norm))
    }

    /// The inverse of `hfft`.
    #[pyfunction]
    #[pyo3(signature = (input, n=None, dim=-1, norm=None))]
    fn ihfft(input: &Tensor, n: Option<usize>, dim: i64, norm: Option<&str>) -> Answer {
        let norm = scaling(norm)?;
        one(&[input], |v| v[0].ihfft(n, dim, norm))
    }

    /// `fft` along several axes, with `s` points: the last ones or all if `dim` is not given.
    #[pyfunction]
    #[pyo3(signature = (input, s=None, dim=None, norm=None))]
    fn fftn(input: &Tensor, s: Option<Vec<i64>>, dim: Option<Dims>, norm: Option<&str>) -> Answer {
        let (norm, (s, dim)) = (scaling(norm)?, axes(input, s, dim, Kind::Complex)?);
        one(&[input], |v| v[0].fftn(s.as_deref(), &dim, norm))
    }

    /// The inverse of `fftn`.
    #[pyfunction]
    #[pyo3(signature = (input, s=None, dim=None, norm=None))]
    fn ifftn(input: &Tensor, s: Option<Vec<i64>>, dim: Option<Dims>, norm: Option<&str>) -> Answer {
        let (norm, (s, dim)) = (scaling(norm)?, axes(input, s, dim, Kind::Complex)?);
        one(&[input], |v| v[0].ifftn(s.as_deref(), &dim, norm))
    }

    /// The transform of a real value along several axes: `rfft` along the last of them, `fft` along the others.
    #[pyfunction]
    #[pyo3(signature = (input, s=None, dim=None, norm=None))]
    fn rfftn(input: &Tensor, s: Option<Vec<i64>>, dim: Option<Dims>, norm: Option<&str>) -> Answer {
        let (norm, (s, dim)) = (scaling(norm)?, axes(input, s, dim, Kind::FromReal)?);
        one(&[input], |v| v[0].rfftn(s.as_deref(), &dim, norm))
    }

    /// The inverse of `rfftn`.
    #[pyfunction]
    #[pyo3(signature = (input, s=None, dim=None, norm=None))]
    fn irfftn(input: &Tensor, s: Option<Vec<i64>>, dim: Option<Dims>, norm: Option<&str>) -> Answer {
        let (norm, (s, dim)) = (scaling(norm)?, axes(input, s, dim, Kind::ToReal)?);
        one(&[input], |v| v[0].irfftn(s.as_deref(), &dim, norm))
    }

    /// `hfft` along the last of several axes, after `fft` along the others.
    #[pyfunction]
    #[pyo3(signature = (input, s=None, dim=None, norm=None))]
    fn hfftn(input: &Tensor, s: Option<Vec<i64>>, dim: Option<Dims>, norm: Option<&str>) -> Answer {
        let (norm, (s, dim)) = (scaling(norm)?, axes(input, s, dim, Kind::ToReal)?);
        one(&[input], |v| v[0].hfftn(s.as_deref(), &dim, norm))
    }

    /// The inverse of `hfftn`.
    #[pyfunction]
    #[pyo3(signature = (input, s=None, dim=None, norm=None))]
    fn ihfftn(input: &Tensor, s: Option<Vec<i64>>, dim: Option<Dims>, norm: Option<&str>) -> Answer {
        let (norm, (s, dim)) = (scaling(norm)?, axes(input, s, dim, Kind::FromReal)?);
        one(&[input], |v| v[0].ihfftn(s.as_deref(), &dim, norm))
    }

    macro_rules! of_two_axes {
        ($($name:ident = $general:ident;)+) => {
            $(#[doc = concat!("`", stringify!($general), "` along two axes, the last ones if `dim` is not given.")]
            #[pyfunction]
            #[pyo3(signature = (input, s=None, dim=Dims::Many(vec![-2, -1]), norm=None))]
            fn $name(input: &Tensor, s: Option<Vec<i64>>, dim: Dims, norm: Option<&str>) -> Answer {
                $general(input, s, Some(dim), norm)
            }
        )+

            /// Adds them to the module.
            fn add_all(module: &Bound<'_, PyModule>) -> PyResult<()> {
                $(module.add_function(wrap_pyfunction!($name, module)?)?;)+
                Ok(())
            }
        };
    }

    of_two_axes! {
        fft2 = fftn;
        ifft2 = ifftn;
        rfft2 = rfftn;
        irfft2 = irfftn;
        hfft2 = hfftn;
        ihfft2 = ihfftn;
    }

    /// Moves mode 0 from the start to the middle of each axis of `dim`. Of complex pairs, name the axes.
    #[pyfunction]
    #[pyo3(signature = (input, dim=None))]
    fn fftshift(input: &Tensor, dim: Option<Dims>) -> Answer {
        let dims = Dims::or_all(dim, input.rank()?);
        one(&[input], |v| v[0].fftshift(&dims))
    }

    /// The inverse of `fftshift`.
    #[pyfunction]
    #[pyo3(signature = (input, dim=None))]
    fn ifftshift(input: &Tensor, dim: Option<Dims>) -> Answer {
        let dims = Dims::or_all(dim, input.rank()?);
        one(&[input], |v| v[0].ifftshift(&dims))
    }
}

/// `stft` and `istft`, which are in `torch` itself.
#[pymodule]
pub mod frames {
    use crate::tensor::{Answer, Tensor, with_optional};
    use dittograd::session::{PadMode, Stft};
    use pyo3::exceptions::{PyNotImplementedError, PyValueError};
    use pyo3::prelude::*;

    /// The short-time Fourier transform of signals `(…, length)`: `(…, n_fft / 2 + 1, frames)`, complex.
    #[pyfunction]
    #[pyo3(signature = (input, n_fft, hop_length=None, win_length=None, window=None, center=true, pad_mode="reflect", normalized=false,
        onesided=None, return_complex=None))]
    #[allow(clippy::too_many_arguments)]
    fn stft(
        input: &Tensor,
        n_fft: usize,
        hop_length: Option<usize>,
        win_length: Option<usize>,
        window: Option<&Tensor>,
        center: bool,
        pad_mode: &str,
        normalized: bool,
        onesided: Option<bool>,
        return_complex: Option<bool>,
    ) -> Answer {
        // Pairs are both answers: complex, and its real view.
        let _ = return_complex;
        let pad_mode = match pad_mode {
            "reflect" => PadMode::Reflect,
            "replicate" => PadMode::Replicate,
            "circular" => PadMode::Circular,
            "constant" => PadMode::Constant(0.0),
            other => {
                let known = "\"reflect\", \"replicate\", \"circular\" or \"constant\"";
                return Err(PyValueError::new_err(format!(
                    "stft: pad_mode {other:?} is unknown; use {known}"
                )));
            }
        };
        let plain = Stft::new(n_fft);
        let how = Stft {
            hop: hop_length.unwrap_or(plain.hop),
            win_length,
            center,
            pad_mode,
            normalized,
            onesided: onesided != Some(false),
            ..plain
        };
        with_optional(input, &[window], |x, others| x.stft(how, others[0]))
    }

    /// The inverse of `stft`, with the same window: signals `(…, length)`.
    #[pyfunction]
    #[pyo3(signature = (input, n_fft, hop_length=None, win_length=None, window=None, center=true, normalized=false, onesided=None,
        length=None, return_complex=false))]
    #[allow(clippy::too_many_arguments)]
    fn istft(
        input: &Tensor,
        n_fft: usize,
        hop_length: Option<usize>,
        win_length: Option<usize>,
        window: Option<&Tensor>,
        center: bool,
        normalized: bool,
        onesided: Option<bool>,
        length: Option<usize>,
        return_complex: bool,
    ) -> Answer {
        if return_complex {
            return Err(PyNotImplementedError::new_err("istft: return_complex=True; signals are real here"));
        }
        let modes = input.dims()?.iter().rev().nth(2).copied();
        // Without a word, as many modes as points are both sides.
        let onesided = onesided.unwrap_or(modes != Some(n_fft) || n_fft == 1);
        let plain = Stft::new(n_fft);
        let hop = hop_length.unwrap_or(plain.hop);
        let how = Stft { hop, win_length, center, normalized, onesided, ..plain };
        with_optional(input, &[window], |x, others| x.istft(how, others[0], length))
    }
}
