//! A block of memory, its guard words in check mode, and how it is freed.

use crate::host::Values;
use crate::{Backend, Device};
use dittograd_numerics::error::{ErrorKind, Result};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Guard words before and after each block in check mode.
pub(super) const GUARD: usize = 256;
/// What guard words hold.
const CANARY: u32 = 0xdead_70ad;
/// What new memory holds in check mode: a NaN that no operation produces.
pub(super) const POISON: u32 = 0x7fa5_a5a5;

/// The memory of one block.
pub(crate) enum Mem {
    /// Host words.
    Host(Vec<f32>),
    /// A device address.
    Cuda(u64),
    /// Numbers of another type.
    Values(Values),
}

/// An allocation, counted until it is freed.
pub(super) struct Block {
    pub(super) device: Device,
    /// Number of elements: 4 bytes each, except for other number types.
    pub(super) words: usize,
    pub(super) bytes: usize,
    pub(super) guard: usize,
    /// The entry of the watch that counts it, if it was allocated while the device was watched.
    pub(super) place: Option<u32>,
    pub(super) mem: RwLock<Option<Mem>>,
    /// How many owners share the memory and have not released it.
    pub(super) owners: AtomicUsize,
}

impl Block {
    /// Fills the memory with the poison pattern and the guards with canaries.
    #[track_caller]
    pub(super) fn poison(&self) -> Result<()> {
        let mut mem = self.mem.write().unwrap_or_else(PoisonError::into_inner);
        match (&mut *mem, self.device.backend()) {
            (Some(Mem::Host(words)), _) => {
                let (head, rest) = words.split_at_mut(self.guard);
                let (body, tail) = rest.split_at_mut(self.words);
                head.fill(f32::from_bits(CANARY));
                body.fill(f32::from_bits(POISON));
                tail[..self.guard].fill(f32::from_bits(CANARY));
                Ok(())
            }
            (Some(Mem::Cuda(ptr)), Backend::Cuda(cuda)) => {
                cuda.fill(*ptr, CANARY, self.guard)?;
                cuda.fill(*ptr + self.guard as u64 * 4, POISON, self.words)?;
                cuda.fill(*ptr + (self.guard + self.words) as u64 * 4, CANARY, self.guard)
            }
            _ => Ok(()),
        }
    }

    /// Whether the guard words are unchanged.
    fn guards_intact(&self, mem: &Mem) -> bool {
        let whole = |words: &[f32]| words.iter().all(|w| w.to_bits() == CANARY);
        match (mem, self.device.backend()) {
            (Mem::Host(words), _) => {
                let end = self.guard + self.words;
                whole(&words[..self.guard]) && whole(&words[end..end + self.guard])
            }
            (Mem::Cuda(ptr), Backend::Cuda(cuda)) => {
                let mut words = vec![0.0f32; 2 * self.guard];
                let (head, tail) = words.split_at_mut(self.guard);
                let end = *ptr + (self.guard + self.words) as u64 * 4;
                let read = cuda.download(*ptr, bytemuck::cast_slice_mut(head));
                match read.and_then(|()| cuda.download(end, bytemuck::cast_slice_mut(tail))) {
                    Ok(()) => whole(&words),
                    // If the guards cannot be read, they do not count as broken; the next call returns the error.
                    Err(error) => {
                        if !matches!(error.kind(), ErrorKind::Poisoned { .. } | ErrorKind::Unsupported { .. })
                        {
                            cuda.keep(error);
                        }
                        true
                    }
                }
            }
            _ => true,
        }
    }

    /// Frees the memory. Returns whether there was any.
    pub(super) fn free(&self) -> bool {
        let mem = self.mem.write().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mem) = mem else { return false };
        if self.words == 0 {
            return false;
        }
        let intact = self.guard == 0 || self.guards_intact(&mem);
        let mut state = self.device.0.memory.lock();
        state.stats.live -= self.bytes;
        state.stats.frees += 1;
        state.watch.freed(self.place, self.bytes);
        state.broken_guards += u64::from(!intact);
        match (mem, self.device.backend()) {
            (Mem::Host(words), _) => {
                state.stats.cached += words.len() * 4;
                state.shelf.entry(words.len()).or_default().push(words);
            }
            (Mem::Cuda(ptr), Backend::Cuda(cuda)) => {
                drop(state);
                cuda.free(ptr);
            }
            _ => {}
        }
        true
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.free();
    }
}

/// One of several owners of a block. What it releases stays with the others; the last one frees the block.
pub(super) struct Owner {
    block: Arc<Block>,
    released: AtomicBool,
}

/// The number of owners once the last one has released the block: nobody can own it any more.
const CLOSED: usize = usize::MAX;

impl Owner {
    /// One more owner of a block, unless its memory was released.
    pub(super) fn of(block: &Arc<Block>) -> Option<Owner> {
        let join = |owners: usize| (owners != CLOSED).then_some(owners + 1);
        block.owners.fetch_update(Ordering::AcqRel, Ordering::Acquire, join).ok()?;
        Some(Owner { block: block.clone(), released: AtomicBool::new(false) })
    }

    pub(super) fn is_released(&self) -> bool {
        self.released.load(Ordering::Acquire)
    }

    /// Gives the memory up, and frees it if nobody else owns it. Returns whether there was any.
    pub(super) fn release(&self) -> bool {
        if self.released.swap(true, Ordering::AcqRel) {
            return false;
        }
        let leave = |owners: usize| Some(if owners == 1 { CLOSED } else { owners - 1 });
        match self.block.owners.fetch_update(Ordering::AcqRel, Ordering::Acquire, leave) {
            Ok(1) => self.block.free(),
            _ => self.block.words > 0,
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if !self.is_released() {
            self.block.owners.fetch_sub(1, Ordering::AcqRel);
        }
    }
}
