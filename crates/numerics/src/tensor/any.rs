//! Values of either element type: numbers, or indices.

use super::Tensor;
use crate::error::{Error, ErrorKind, Result};
use crate::scalar::Scalar;
use crate::shape::Shape;

/// Element type of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DType {
    /// IEEE binary32 values.
    F32,
    /// Unsigned indices: labels, tokens. Never differentiable.
    U32,
}

impl DType {
    /// Name used in messages.
    pub fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::U32 => "u32",
        }
    }

    /// Errors unless this type, that of an input of `op`, is the one that `op` needs there.
    #[doc(hidden)]
    #[inline]
    #[track_caller]
    pub fn require(self, want: DType, op: impl Into<String>, input: usize) -> Result<()> {
        if self == want { Ok(()) } else { Err(wrong_type(op, want, self, input)) }
    }
}

/// What is known of a value without looking at its elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// The shape.
    pub shape: Shape,
    /// The element type.
    pub dtype: DType,
}

impl Meta {
    /// A float32 value of `shape`.
    pub fn f32(shape: Shape) -> Meta {
        Meta { shape, dtype: DType::F32 }
    }

    /// An index value of `shape`.
    pub fn u32(shape: Shape) -> Meta {
        Meta { shape, dtype: DType::U32 }
    }
}

/// A host tensor of numbers or of indices: what data sets and files hold, and what references take.
#[derive(Clone, Debug, PartialEq)]
pub enum AnyTensor<T: Scalar = f32> {
    /// Numbers.
    Num(Tensor<T>),
    /// Labels, tokens or other indices.
    Idx(Tensor<u32>),
}

impl<T: Scalar> AnyTensor<T> {
    /// The shape.
    pub fn shape(&self) -> Shape {
        match self {
            AnyTensor::Num(t) => t.shape(),
            AnyTensor::Idx(t) => t.shape(),
        }
    }

    /// Shape and element type.
    pub fn meta(&self) -> Meta {
        match self {
            AnyTensor::Num(t) => Meta::f32(t.shape()),
            AnyTensor::Idx(t) => Meta::u32(t.shape()),
        }
    }

    /// The numbers. Errors if it holds indices.
    #[track_caller]
    pub fn num(&self) -> Result<&Tensor<T>> {
        match self {
            AnyTensor::Num(t) => Ok(t),
            AnyTensor::Idx(_) => Err(wrong_type("tensor", DType::F32, DType::U32, 0)),
        }
    }

    /// The indices. Errors if it holds numbers.
    #[track_caller]
    pub fn idx(&self) -> Result<&Tensor<u32>> {
        match self {
            AnyTensor::Idx(t) => Ok(t),
            AnyTensor::Num(_) => Err(wrong_type("tensor", DType::U32, DType::F32, 0)),
        }
    }
}

#[cold]
#[track_caller]
fn wrong_type(op: impl Into<String>, want: DType, got: DType, input: usize) -> Error {
    Error::new(op, ErrorKind::DType { want: want.name(), got: got.name(), input })
}

impl<T: Scalar> From<Tensor<T>> for AnyTensor<T> {
    fn from(t: Tensor<T>) -> AnyTensor<T> {
        AnyTensor::Num(t)
    }
}

impl<T: Scalar> From<Tensor<u32>> for AnyTensor<T> {
    fn from(t: Tensor<u32>) -> AnyTensor<T> {
        AnyTensor::Idx(t)
    }
}
