//! Locks of buffers: shared access for kernels that read, exclusive access for one that writes.

use super::block::Mem;
use super::buffer::{Buffer, released};
use dittograd_numerics::error::Result;
use std::ops::Range;
use std::sync::{Mutex, PoisonError, RwLockReadGuard, RwLockWriteGuard};

/// Shared access to a block, held while a kernel reads it.
pub struct ReadGuard<'a> {
    pub(super) guard: RwLockReadGuard<'a, Option<Mem>>,
    pub(super) range: Range<usize>,
}

fn host_words<'a>(mem: &'a Option<Mem>, range: &Range<usize>) -> &'a [f32] {
    match mem {
        Some(Mem::Host(words)) => &words[range.clone()],
        _ => &[],
    }
}

impl ReadGuard<'_> {
    /// The host words; empty on CUDA.
    pub fn host(&self) -> &[f32] {
        host_words(&self.guard, &self.range)
    }
}

/// Buffers that are read together, any number of times. Each block is locked once, even if several buffers share it: a
/// thread must not lock a block for reading twice.
#[doc(hidden)]
pub struct ReadSet {
    /// One buffer of each block.
    blocks: Vec<Buffer>,
    /// Further buffers of these blocks that have owners of their own, who may have released them.
    owned: Vec<Buffer>,
    /// For each buffer: its block, and its range of words in the block.
    of: Vec<(usize, Range<usize>)>,
    /// Memory reused for the guards of the next lock; a guard is two words.
    spare: Mutex<Vec<[usize; 2]>>,
}

impl ReadSet {
    /// A set of these buffers.
    pub fn new<'b>(buffers: impl IntoIterator<Item = &'b Buffer>) -> ReadSet {
        let mut set =
            ReadSet { blocks: Vec::new(), owned: Vec::new(), of: Vec::new(), spare: Mutex::default() };
        for b in buffers {
            let at = match set.blocks.iter().position(|o| o.shares(b)) {
                Some(at) => {
                    set.owned.extend(b.owner.is_some().then(|| b.clone()));
                    at
                }
                None => {
                    set.blocks.push(b.clone());
                    set.blocks.len() - 1
                }
            };
            set.of.push((at, b.range()));
        }
        set
    }

    /// Locks all of them for reading. Errors if one was released.
    #[track_caller]
    pub fn lock(&self, op: &str) -> Result<ReadGuards<'_>> {
        let spare = std::mem::take(&mut *self.spare.lock().unwrap_or_else(PoisonError::into_inner));
        let mut locked = ReadGuards { set: self, guards: emptied(spare) };
        locked.guards.reserve_exact(self.blocks.len());
        for b in &self.blocks {
            locked.guards.push(b.read(op)?.guard);
        }
        if self.owned.iter().any(Buffer::given_up) {
            return Err(released(op));
        }
        Ok(locked)
    }
}

/// An empty list that reuses the memory of `list`. Both element types have the same size.
#[doc(hidden)]
pub fn emptied<A, B>(mut list: Vec<A>) -> Vec<B> {
    list.clear();
    list.into_iter().filter_map(|_| None).collect()
}

/// Shared access to all buffers of a [`ReadSet`].
pub struct ReadGuards<'a> {
    set: &'a ReadSet,
    guards: Vec<RwLockReadGuard<'a, Option<Mem>>>,
}

impl ReadGuards<'_> {
    /// The host words of buffer `i`; empty on CUDA.
    pub fn host(&self, i: usize) -> &[f32] {
        let (block, range) = &self.set.of[i];
        host_words(&self.guards[*block], range)
    }
}

impl Drop for ReadGuards<'_> {
    fn drop(&mut self) {
        let spare = emptied(std::mem::take(&mut self.guards));
        *self.set.spare.lock().unwrap_or_else(PoisonError::into_inner) = spare;
    }
}

/// Exclusive access to a block, held while a kernel writes it.
#[doc(hidden)]
pub struct WriteGuard<'a> {
    pub(super) guard: RwLockWriteGuard<'a, Option<Mem>>,
    pub(super) range: Range<usize>,
}

impl WriteGuard<'_> {
    /// The host words; empty on CUDA.
    pub fn host(&mut self) -> &mut [f32] {
        match &mut *self.guard {
            Some(Mem::Host(words)) => &mut words[self.range.clone()],
            _ => &mut [],
        }
    }
}
