//! Shapes: dimensions outermost first, row-major, last axis fastest.
//!
//! Dimension letters used across the crate: `B` batch, `T` time, `C` channels, `H W` space, and
//! `M N K` for a product of an `M x K` by a `K x N` matrix.

use crate::error::{Error, ErrorKind, Result};
use std::fmt;

/// Most axes a shape can have: a batch, channels and eight axes of space. Kernel metadata travels as arguments of this fixed size.
pub const MAX_RANK: usize = 10;

/// A position as a caller names it: a whole number of any type, counted from the start, or if it is negative from the
/// end, where -1 is the last. Axes of a value are named like this.
pub trait Position: Copy {
    /// The number itself.
    fn number(self) -> i128;

    /// The position from the start among `count`. A number that is not negative stays as it is, even if it is too large.
    /// `None` if it lies before the start.
    fn among(self, count: usize) -> Option<usize> {
        let number = self.number();
        let from_start = if number < 0 { number + count as i128 } else { number };
        usize::try_from(from_start).ok()
    }
}

macro_rules! positions {
    ($($number:ty)*) => {$(
        impl Position for $number {
            fn number(self) -> i128 {
                self as i128
            }
        }
    )*};
}

positions!(usize u32 isize i64 i32);

/// The dimensions of a tensor. The empty list is a scalar with one element; a zero dimension is
/// legal and means no elements. The element count is checked for overflow when the shape is made,
/// so [`Shape::numel`] cannot fail.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    dims: [usize; MAX_RANK],
    rank: u8,
}

impl Shape {
    /// The shape of a scalar.
    pub const SCALAR: Shape = Shape { dims: [0; MAX_RANK], rank: 0 };

    /// A shape from its dimensions. Errors if there are more than [`MAX_RANK`] or if a tensor of
    /// that many float32 elements could not be addressed.
    #[track_caller]
    pub fn new(dims: &[usize]) -> Result<Shape> {
        let too_large = || Error::new("shape", ErrorKind::TooLarge { dims: dims.to_vec() });
        if dims.len() > MAX_RANK {
            return Err(Error::argument(
                "shape",
                "dims",
                format!("{} axes given, at most {MAX_RANK} are supported", dims.len()),
            ));
        }
        let mut bytes = 4usize;
        // Zero dimensions are skipped, so that [usize::MAX, 2, 0] is still refused.
        for &d in dims.iter().filter(|&&d| d != 0) {
            bytes = bytes.checked_mul(d).filter(|&b| b <= isize::MAX as usize).ok_or_else(too_large)?;
        }
        let mut all = [0; MAX_RANK];
        all[..dims.len()].copy_from_slice(dims);
        Ok(Shape { dims: all, rank: dims.len() as u8 })
    }

    /// The dimensions.
    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.rank as usize]
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.rank as usize
    }

    /// Number of elements: the product of the dimensions, 1 for a scalar.
    pub fn numel(&self) -> usize {
        self.dims().iter().product()
    }

    /// The last dimension, 1 for a scalar.
    pub fn last(&self) -> usize {
        self.dims().last().copied().unwrap_or(1)
    }

    /// The product of all dimensions but the last: how many rows the last axis comes in.
    pub fn rows(&self) -> usize {
        self.dims().split_last().map_or(1, |(_, lead)| lead.iter().product())
    }

    /// The axis that a caller names, from the outermost. A number that is not negative stays as it is: the op that takes it
    /// refuses one that is too large. Errors if it lies before the first axis.
    #[track_caller]
    pub fn axis(&self, op: &str, axis: impl Position) -> Result<usize> {
        axis.among(self.rank()).ok_or_else(|| {
            let (given, rank) = (axis.number(), self.rank());
            let range = match rank {
                0 => "a scalar has no axes".to_string(),
                _ => format!("use -{rank} to {}", rank - 1),
            };
            Error::argument(op, "axis", format!("{given} lies before the first axis of {self}; {range}"))
        })
    }

    /// [`Shape::axis`] of each.
    #[track_caller]
    pub fn axes(&self, op: &str, axes: &[impl Position]) -> Result<Vec<usize>> {
        axes.iter().map(|&axis| self.axis(op, axis)).collect()
    }

    /// The indices of element `i`, counted from 0 in row-major order.
    #[doc(hidden)]
    pub fn place(&self, i: usize) -> Vec<usize> {
        self.dims().iter().zip(self.strides()).map(|(dim, stride)| i / stride % dim).collect()
    }

    /// Row-major strides in elements.
    pub fn strides(&self) -> [usize; MAX_RANK] {
        let mut strides = [0; MAX_RANK];
        let mut step = 1;
        for axis in (0..self.rank()).rev() {
            strides[axis] = step;
            step *= self.dims[axis];
        }
        strides
    }

    /// The same shape without `axis`.
    #[track_caller]
    pub fn without(&self, axis: usize) -> Result<Shape> {
        if axis >= self.rank() {
            return Err(Error::new("shape", ErrorKind::Axis { axis, shape: *self }));
        }
        let mut dims = self.dims().to_vec();
        dims.remove(axis);
        Shape::new(&dims)
    }

    /// The shape two operands broadcast to by NumPy's rule: aligned at the last axis, equal
    /// dimensions or one of them 1.
    #[track_caller]
    pub fn broadcast(&self, other: &Shape) -> Result<Shape> {
        let rank = self.rank().max(other.rank());
        let mut dims = [0; MAX_RANK];
        for (axis, dim) in dims.iter_mut().enumerate().take(rank) {
            let at = |s: &Shape| (axis + s.rank()).checked_sub(rank).map_or(1, |i| s.dims()[i]);
            *dim = match (at(self), at(other)) {
                (a, b) if a == b => a,
                (1, b) => b,
                (a, 1) => a,
                _ => {
                    let why = "shapes do not broadcast (from the last axis on, sizes must be equal or 1)";
                    return Err(Error::new(
                        "broadcast",
                        ErrorKind::Shapes { why, left: *self, right: *other },
                    ));
                }
            };
        }
        Shape::new(&dims[..rank])
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.dims())
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.dims())
    }
}

impl Default for Shape {
    fn default() -> Shape {
        Shape::SCALAR
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalar_has_one_element() {
        assert_eq!(Shape::SCALAR.numel(), 1);
        assert_eq!(Shape::SCALAR.rows(), 1);
    }

    #[test]
    fn zero_dims_are_legal_and_overflow_is_not_hidden_by_them() {
        assert_eq!(Shape::new(&[3, 0, 5]).unwrap().numel(), 0);
        assert!(Shape::new(&[usize::MAX, 2]).is_err());
        assert!(Shape::new(&[usize::MAX, 2, 0]).is_err());
        assert!(Shape::new(&[1; MAX_RANK + 1]).is_err());
    }

    #[test]
    fn broadcasts_like_numpy() {
        let s = |d: &[usize]| Shape::new(d).unwrap();
        assert_eq!(s(&[2, 1, 4]).broadcast(&s(&[3, 1])).unwrap(), s(&[2, 3, 4]));
        assert_eq!(s(&[]).broadcast(&s(&[0])).unwrap(), s(&[0]));
        assert!(s(&[2]).broadcast(&s(&[3])).is_err());
    }

    #[test]
    fn equal_counts_are_not_equal_shapes() {
        assert_ne!(Shape::new(&[6]).unwrap(), Shape::new(&[2, 3]).unwrap());
        assert_ne!(Shape::new(&[1]).unwrap(), Shape::SCALAR);
    }

    #[test]
    fn the_largest_shape_is_as_large_as_memory_can_be() {
        let most = isize::MAX as usize / 4;
        assert_eq!(Shape::new(&[most]).unwrap().numel(), most);
        assert!(Shape::new(&[most + 1]).is_err());
        // 2^61 float32 words are 2^63 bytes, one too many.
        assert!(Shape::new(&[1 << 30, 1 << 30]).is_ok() && Shape::new(&[1 << 31, 1 << 30]).is_err());
        assert_eq!(Shape::new(&[1; MAX_RANK]).unwrap().rank(), MAX_RANK);
    }

    #[test]
    fn parts_of_a_shape() {
        let s = Shape::new(&[2, 3, 5]).unwrap();
        assert_eq!((s.rank(), s.numel(), s.last(), s.rows()), (3, 30, 5, 6));
        assert_eq!(s.strides()[..4], [15, 5, 1, 0]);
        assert_eq!((Shape::SCALAR.last(), Shape::SCALAR.rank()), (1, 0));
        for (axis, want) in [[3, 5], [2, 5], [2, 3]].iter().enumerate() {
            assert_eq!(s.without(axis).unwrap().dims(), want);
        }
        assert!(s.without(3).is_err() && Shape::SCALAR.without(0).is_err());
    }
}
