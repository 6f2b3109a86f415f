//! Values: buffers with a shape.

use super::buffer::Buffer;
use crate::Backend;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::{DType, Meta};
use std::fmt;

/// A value: a row-major buffer with a shape. The constructor checks that the element counts agree.
#[derive(Clone, Debug)]
pub struct AnyBuffer {
    pub(super) buffer: Buffer,
    pub(super) meta: Meta,
    /// For indices: all entries are below this.
    pub(super) bound: u32,
}

impl AnyBuffer {
    /// `buffer` with shape and type `meta`. Errors if the element counts differ. Indices get an unknown range.
    #[track_caller]
    pub fn new(buffer: Buffer, meta: Meta) -> Result<AnyBuffer> {
        if buffer.len() != meta.shape.numel() {
            let kind = ErrorKind::Length { want: meta.shape.numel(), got: buffer.len() };
            return Err(Error::new("buffer", kind));
        }
        Ok(AnyBuffer { buffer, meta, bound: u32::MAX })
    }

    /// The same value. If it holds indices, all are known to be below `bound`.
    #[doc(hidden)]
    pub fn with_bound(self, bound: u32) -> AnyBuffer {
        AnyBuffer { bound, ..self }
    }

    /// The memory.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Shape and element type.
    pub fn meta(&self) -> Meta {
        self.meta
    }

    /// The shape.
    pub fn shape(&self) -> Shape {
        self.meta.shape
    }

    /// For indices: a known upper bound (exclusive) of all entries.
    pub fn bound(&self) -> u32 {
        self.bound
    }

    /// The same memory, released by itself: its last owner frees it. `None` if it was released.
    #[doc(hidden)]
    pub fn co_owned(&self) -> Option<AnyBuffer> {
        Some(AnyBuffer { buffer: self.buffer.co_owned()?, ..self.clone() })
    }

    /// The same memory with another shape of as many elements.
    #[track_caller]
    pub fn view(&self, shape: Shape) -> Result<AnyBuffer> {
        if shape.numel() != self.meta.shape.numel() {
            let kind = ErrorKind::Length { want: shape.numel(), got: self.meta.shape.numel() };
            return Err(Error::new("view", kind));
        }
        self.part(0, shape)
    }

    /// Elements from `start` on with the given shape. Shares the memory.
    #[track_caller]
    pub fn part(&self, start: usize, shape: Shape) -> Result<AnyBuffer> {
        let buffer = self.buffer.part(start, shape.numel())?;
        let mut view = AnyBuffer::new(buffer, Meta { shape, ..self.meta })?;
        view.bound = self.bound;
        Ok(view)
    }
}

/// Prints the elements like a host tensor. Waits for the device and downloads them all; if that fails, the text says
/// why.
impl fmt::Display for AnyBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let written = match self.meta.dtype {
            DType::F32 => match self.buffer.device().backend() {
                Backend::Host(numbers) => numbers.print(self, f),
                Backend::Cpu(_) | Backend::Cuda(_) => self.to_tensor::<f32>().map(|t| t.fmt(f)),
            },
            DType::U32 => self.to_indices().map(|t| t.fmt(f)),
        };
        written.unwrap_or_else(|e| write!(f, "<{e}>"))
    }
}
