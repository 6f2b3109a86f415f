//! Factors of matrices, and systems with triangular matrices. All ops take batches (batch, rows, columns).
//!
//! *Elimination rule*: an element starts from its input, and products are subtracted by one FMA chain in the order of
//! elimination, `s = fma(-a, b, s)`; a division by the pivot comes last. The order inside an element is fixed. Blocked
//! kernels choose only which elements are computed when, so all sizes of blocks give the same bits.

#[cfg(feature = "cases")]
mod cases;
mod cholesky;
mod cuda;
mod lu;
mod panels;
mod qr;
mod triangular;

pub use cholesky::Cholesky;
pub use lu::Lu;
pub use qr::Qr;
pub use triangular::TriangularSolve;

use crate::{Recorder, Val};
use dittograd_device::Meta;
use dittograd_numerics::error::{Error, ErrorKind, Result};

/// Sizes of a batch of matrices (batch, rows, columns), or an error.
fn matrices(op: &'static str, meta: &Meta) -> Result<[usize; 3]> {
    match meta.shape.dims() {
        &[batch, rows, columns] => Ok([batch, rows, columns]),
        _ => Err(Error::new(op, ErrorKind::Rank { want: "exactly 3", got: meta.shape })),
    }
}

/// Sizes (batch, n) of a batch of square matrices, or an error.
fn square(op: &'static str, meta: &Meta) -> Result<[usize; 2]> {
    let [batch, n, columns] = matrices(op, meta)?;
    if n != columns {
        let why = format!("{} is no batch of square matrices (batch, n, n)", meta.shape);
        return Err(Error::argument(op, "matrix", why));
    }
    Ok([batch, n])
}

/// Keeps one triangle of matrices, `shift` columns right of the diagonal.
fn triangle(r: &mut dyn Recorder, x: Val, upper: bool, shift: i64) -> Result<Val> {
    r.record(crate::layout::Triangle { upper, shift }.into(), &[x])
}

/// Products of matrices.
fn product(r: &mut dyn Recorder, a: Val, ta: bool, b: Val, tb: bool) -> Result<Val> {
    r.record(crate::matmul::Bmm { ta, tb }.into(), &[a, b])
}

/// The sum of two values times a factor.
fn scaled_sum(r: &mut dyn Recorder, a: Val, b: Val, c: f32) -> Result<Val> {
    let sum = r.record(crate::pointwise::Add {}.into(), &[a, b])?;
    r.record(crate::pointwise::Scale { c }.into(), &[sum])
}
