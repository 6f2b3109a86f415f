//! Checks that the shape rules of many ops share.

use dittograd_device::{DType, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::shape::Shape;

/// The inputs as an array, or an error if their number is another.
pub(crate) fn arity<const N: usize>(op: &'static str, ins: &[Meta]) -> Result<[Meta; N]> {
    ins.try_into().map_err(|_| Error::new(op, ErrorKind::Arity { want: N, got: ins.len() }))
}

/// Errors unless input `i` has the wanted element type.
pub(crate) fn typed(op: &'static str, ins: &[Meta], i: usize, want: DType) -> Result<()> {
    ins[i].dtype.require(want, op, i)
}

/// The inputs as an array of float32 shapes, or an error.
pub(crate) fn floats<const N: usize>(op: &'static str, ins: &[Meta]) -> Result<[Shape; N]> {
    let metas = arity::<N>(op, ins)?;
    for i in 0..N {
        typed(op, ins, i, DType::F32)?;
    }
    Ok(metas.map(|m| m.shape))
}

/// An error of two shapes that do not fit.
#[cold]
pub(crate) fn mismatch(op: &'static str, why: &'static str, left: Shape, right: Shape) -> Error {
    Error::new(op, ErrorKind::Shapes { why, left, right })
}

/// A shape that is known to be fine, for samples.
#[doc(hidden)]
pub fn dims(dims: &[usize]) -> Shape {
    Shape::new(dims).unwrap_or_default()
}
