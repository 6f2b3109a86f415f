//! Host tensors: a shape and its elements, row-major. They carry data to and from devices, and the
//! references run on them in any [`Scalar`].

mod any;
mod print;

pub use any::{AnyTensor, DType, Meta};

use crate::error::{Error, ErrorKind, Result};
use crate::reserve::collected;
use crate::scalar::Scalar;
use crate::shape::Shape;

/// A dense tensor in host memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor<T = f32> {
    shape: Shape,
    data: Vec<T>,
}

impl<T: Clone> Tensor<T> {
    /// A tensor of `dims` holding `data`. Errors if the counts differ.
    #[track_caller]
    pub fn new(dims: &[usize], data: Vec<T>) -> Result<Tensor<T>> {
        Tensor::with_shape(Shape::new(dims)?, data)
    }

    /// A tensor of `shape` holding `data`. Errors if the counts differ.
    #[track_caller]
    pub fn with_shape(shape: Shape, data: Vec<T>) -> Result<Tensor<T>> {
        if data.len() != shape.numel() {
            let kind = ErrorKind::Length { want: shape.numel(), got: data.len() };
            return Err(Error::new(format!("tensor of shape {shape}"), kind));
        }
        Ok(Tensor { shape, data })
    }

    /// A tensor of `shape` with every element `value`.
    pub fn full(shape: Shape, value: T) -> Tensor<T> {
        Tensor { shape, data: vec![value; shape.numel()] }
    }

    /// A scalar.
    pub fn scalar(value: T) -> Tensor<T> {
        Tensor { shape: Shape::SCALAR, data: vec![value] }
    }

    /// A tensor of `shape` whose element at row-major position `i` is `f(i)`.
    pub fn from_fn(shape: Shape, f: impl FnMut(usize) -> T) -> Tensor<T> {
        Tensor { shape, data: (0..shape.numel()).map(f).collect() }
    }

    /// As [`Tensor::from_fn`], for shapes that come from a user's sizes: an error if the host has no room.
    #[track_caller]
    pub fn try_from_fn(shape: Shape, f: impl FnMut(usize) -> T) -> Result<Tensor<T>> {
        let data = collected(&format!("tensor of shape {shape}"), (0..shape.numel()).map(f))?;
        Ok(Tensor { shape, data })
    }

    /// The shape.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The elements in row-major order.
    pub fn data(&self) -> &[T] {
        &self.data
    }

    /// The elements in row-major order, to be changed in place.
    pub fn data_mut(&mut self) -> &mut [T] {
        &mut self.data
    }

    /// The elements, without the shape.
    pub fn into_data(self) -> Vec<T> {
        self.data
    }

    /// The same elements under another shape of equal count.
    #[track_caller]
    pub fn reshape(self, shape: Shape) -> Result<Tensor<T>> {
        Tensor::with_shape(shape, self.data)
    }

    /// The only element of a tensor with one element.
    #[track_caller]
    pub fn item(&self) -> Result<T> {
        match &self.data[..] {
            [x] => Ok(x.clone()),
            _ => {
                let why = format!(
                    "of shape {} has {} elements, item() reads one; use value(), or sum() or mean() first",
                    self.shape,
                    self.data.len()
                );
                Err(Error::argument("item", "value", why))
            }
        }
    }
}

impl<T: Scalar> Tensor<T> {
    /// Every element through `f`.
    pub fn map<U: Clone>(&self, f: impl Fn(T) -> U) -> Tensor<U> {
        Tensor { shape: self.shape, data: self.data.iter().map(|&x| f(x)).collect() }
    }
}
