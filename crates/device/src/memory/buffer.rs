//! A handle of a block, or of a part of one.

use super::block::{Block, Mem, Owner};
use super::locks::{ReadGuard, WriteGuard};
use crate::Device;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, PoisonError};

/// A handle of device memory that holds float32 values or u32 indices: a whole allocation or a part of it. Clones and
/// parts share the memory.
#[derive(Clone)]
pub struct Buffer {
    pub(super) block: Arc<Block>,
    pub(super) start: usize,
    pub(super) words: usize,
    /// Who releases it, if several own the block.
    pub(super) owner: Option<Arc<Owner>>,
}

#[track_caller]
pub(super) fn released(op: &str) -> Error {
    Error::new(op, ErrorKind::Released)
}

impl Buffer {
    /// Number of elements, also after release.
    pub fn len(&self) -> usize {
        self.words
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.words == 0
    }

    /// Elements `start..start + words` as a separate handle. Errors if there are not as many.
    #[track_caller]
    pub fn part(&self, start: usize, words: usize) -> Result<Buffer> {
        match start.checked_add(words) {
            Some(end) if end <= self.words => Ok(Buffer { start: self.start + start, words, ..self.clone() }),
            _ => Err(Error::new(
                "part",
                ErrorKind::Length { want: start.saturating_add(words), got: self.words },
            )),
        }
    }

    /// Range of the elements in the block.
    pub(super) fn range(&self) -> Range<usize> {
        let from = self.block.guard + self.start;
        from..from + self.words
    }

    /// The device the memory is on.
    pub fn device(&self) -> &Device {
        &self.block.device
    }

    /// Frees the memory now, for this handle and every clone and view of it. Returns whether there was memory to free: a
    /// second call, or a call on an empty buffer, returns `false`.
    ///
    /// Equal constants of a session share memory, but each is released by itself; the last one frees the memory.
    pub fn release(&self) -> bool {
        match &self.owner {
            Some(owner) => owner.release(),
            None => self.block.free(),
        }
    }

    /// Whether the memory was released.
    pub fn is_released(&self) -> bool {
        self.given_up() || self.block.mem.read().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Whether the owner of this handle has released it.
    pub(super) fn given_up(&self) -> bool {
        self.owner.as_ref().is_some_and(|owner| owner.is_released())
    }

    /// A handle of the same elements that is released by itself. `None` if they were released.
    pub(super) fn co_owned(&self) -> Option<Buffer> {
        Some(Buffer { owner: Some(Arc::new(Owner::of(&self.block)?)), ..self.clone() })
    }

    /// Whether this handle is released by itself: others have handles of the same memory.
    #[doc(hidden)]
    pub fn is_co_owned(&self) -> bool {
        self.owner.is_some()
    }

    /// Bytes of the allocation that this is a part of, and an id that is unique among live allocations.
    #[doc(hidden)]
    pub fn allocation(&self) -> (usize, usize) {
        (self.block.bytes, Arc::as_ptr(&self.block) as usize)
    }

    /// Whether both handles refer to the same memory.
    pub fn shares(&self, other: &Buffer) -> bool {
        Arc::ptr_eq(&self.block, &other.block)
    }

    /// Its words, to read. Errors if it was released.
    #[doc(hidden)]
    #[track_caller]
    pub fn read(&self, op: &str) -> Result<ReadGuard<'_>> {
        let guard = self.block.mem.read().unwrap_or_else(PoisonError::into_inner);
        if guard.is_none() || self.given_up() {
            return Err(released(op));
        }
        Ok(ReadGuard { guard, range: self.range() })
    }

    /// Its words, to write. Errors if it was released.
    #[doc(hidden)]
    #[track_caller]
    pub fn write(&self, op: &str) -> Result<WriteGuard<'_>> {
        let guard = self.block.mem.write().unwrap_or_else(PoisonError::into_inner);
        if guard.is_none() || self.given_up() {
            return Err(released(op));
        }
        Ok(WriteGuard { guard, range: self.range() })
    }

    /// The device address, for kernels on the same stream; 0 for an empty or host buffer.
    #[doc(hidden)]
    #[track_caller]
    pub fn address(&self, op: &str) -> Result<u64> {
        match &*self.block.mem.read().unwrap_or_else(PoisonError::into_inner) {
            _ if self.given_up() => Err(released(op)),
            Some(Mem::Cuda(ptr)) => Ok(*ptr + self.range().start as u64 * 4),
            Some(Mem::Host(_) | Mem::Values(_)) => Ok(0),
            None => Err(released(op)),
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.is_released() { ", released" } else { "" };
        write!(f, "Buffer({} elements on {}{state})", self.len(), self.device())
    }
}
