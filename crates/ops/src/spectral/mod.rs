//! Spectral convolution by truncated discrete Fourier transforms. A transform that keeps few modes is a product with a
//! table of cosines and sines. So it works for any grid size, and its order of summation is that of the contract. One
//! that keeps many modes is faster by [`fft`]; [`DftTable::is_faster_by_fft`] says from which number of modes on.
//!
//! A spectrum is a value (…, 2, modes, width): the real parts of all modes, then the imaginary parts. A grid has two
//! tables, the transform `A` and its weighted form `A'`. The transform is `A x`, the inverse `A'^T Z`, and the adjoints
//! are the same products with the other transpose flag.

pub mod fft;

pub use fft::{Irfft, Rfft};
mod axis_matmul;
#[cfg(feature = "cases")]
mod cases;
mod conv1d;
mod dft_table;
mod mode_mix;

use crate::{dims, mismatch};
pub(crate) use axis_matmul::Along;
pub use axis_matmul::AxisMatMul;
pub use conv1d::SpectralConv1d;
pub use dft_table::DftTable;
pub(crate) use dft_table::{MAX_GRID, Table, angles, table_module};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::shape::Shape;
pub use mode_mix::{ModeMix, ModeMixDw};

const SPECTRAL_CU: &str = include_str!("spectral.cu");

/// Checks a spectrum and returns its batch, modes and channels.
fn spectrum(op: &'static str, x: Shape) -> Result<[usize; 3]> {
    if x.rank() < 3 {
        return Err(Error::new(op, ErrorKind::Rank { want: "at least 3", got: x }));
    }
    let (lead, last) = x.dims().split_at(x.rank() - 3);
    if last[0] != 2 {
        return Err(mismatch(op, "a spectrum is (…, 2, modes, channels)", x, dims(last)));
    }
    Ok([lead.iter().product(), last[1], last[2]])
}

/// `(…, 2, modes, channels)` with the leading axes of `like`.
fn with_channels(like: Shape, channels: usize) -> Result<Shape> {
    let mut out = like.dims().to_vec();
    if let Some(last) = out.last_mut() {
        *last = channels;
    }
    Shape::new(&out)
}

/// Shapes of the two weight gradients in a packed value.
fn weight_parts(modes: usize, c: usize, o: usize) -> Result<[Shape; 2]> {
    Ok([Shape::new(&[modes, c, o])?; 2])
}
