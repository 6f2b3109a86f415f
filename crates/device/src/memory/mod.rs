//! Device memory: buffers, and the one function that allocates them.
//!
//! A [`Buffer`] is a handle of a block of 4-byte words; clones and reshaped views share the block. Dropping the last
//! handle frees it. [`Buffer::release`] frees it early, for every handle of its owner at once. The CPU keeps freed blocks by size
//! class, because fresh pages cost more than most kernels.
//!
//! - this file: allocation, counters, and what tests can ask for (failures, limits, check mode);
//! - `block`: the memory of an allocation, its guard words, and how it is freed;
//! - `buffer`, `locks`: handles of blocks, and access to their words;
//! - `value`: buffers with a shape and a type;
//! - `transfer`: copies between host and devices.

mod block;
mod buffer;
mod locks;
#[cfg(test)]
mod tests;
mod transfer;
mod value;

pub use buffer::Buffer;
pub use locks::{ReadSet, WriteGuard, emptied, with_host_words};
pub use value::AnyBuffer;

use super::host::{self, Values};
use super::watch::Watch;
use super::{Backend, Device};
use block::{Block, GUARD, Mem};
use dittograd_numerics::error::readable_bytes;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::reserve::filled;
use dittograd_numerics::shape::Shape;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// State of a device's memory. Bytes are those of the requested elements. Blocks kept for reuse are `cached`, not
/// `live`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Bytes in buffers that are alive now.
    pub live: usize,
    /// Peak of `live`.
    pub peak: usize,
    /// Bytes kept for reuse.
    pub cached: usize,
    /// Buffers allocated so far; empty ones do not count.
    pub allocs: u64,
    /// Buffers freed so far, by drop or release.
    pub frees: u64,
    /// Free bytes reported by the driver; 0 on the CPU.
    pub device_free: usize,
    /// Total bytes reported by the driver; 0 on the CPU.
    pub device_total: usize,
}

impl fmt::Display for MemoryStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [live, peak, cached] = [self.live, self.peak, self.cached].map(readable_bytes);
        write!(
            f,
            "live {live}, peak {peak}, cached {cached}, {} allocations, {} frees",
            self.allocs, self.frees
        )?;
        if self.device_total > 0 {
            let [free, total] = [self.device_free, self.device_total].map(readable_bytes);
            write!(f, ", device {free} of {total} free")?;
        }
        Ok(())
    }
}

/// The memory of a device.
#[derive(Default)]
pub(super) struct Memory {
    state: Mutex<State>,
    /// Whether `State::watch` counts steps.
    pub(super) watched: AtomicBool,
}

/// The counters and settings of a device's memory.
#[derive(Default)]
pub(super) struct State {
    pub(super) stats: MemoryStats,
    pub(super) watch: Watch,
    /// Freed host blocks by capacity.
    shelf: BTreeMap<usize, Vec<Vec<f32>>>,
    checks: bool,
    /// Number of allocations until one fails, and whether all later ones fail too.
    fail: Option<(u64, bool)>,
    /// The most bytes that may be live.
    limit: Option<usize>,
    /// Buffers found with overwritten guard words so far.
    broken_guards: u64,
}

impl State {
    /// Counts an allocation of `bytes` bytes. Returns whether it fails: on request, or because of the limit.
    fn fails(&mut self, bytes: usize) -> bool {
        if bytes > 0 && self.limit.is_some_and(|limit| self.stats.live.saturating_add(bytes) > limit) {
            return true;
        }
        let Some((left, persistent)) = self.fail.as_mut().filter(|_| bytes > 0) else { return false };
        *left = left.saturating_sub(1);
        let now = *left == 0;
        if now && !*persistent {
            self.fail = None;
        }
        now
    }
}

impl Memory {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Words that a host block of `words` really takes: rounded up, so that few classes serve many sizes.
fn size_class(words: usize) -> usize {
    let step = (words.next_power_of_two() / 8).max(64);
    words.div_ceil(step) * step
}

impl Device {
    /// Memory for `words` elements. Its contents are undefined: zeros, old values, or in check mode a NaN pattern. All
    /// tensor memory is allocated here.
    pub fn alloc(&self, words: usize) -> Result<Buffer> {
        self.alloc_for("alloc", &Shape::new(&[words])?)
    }

    /// Memory for a value of `shape`. Messages call it `what`.
    #[doc(hidden)]
    pub fn alloc_for(&self, what: &'static str, shape: &Shape) -> Result<Buffer> {
        let memory = &self.0.memory;
        let words = shape.numel();
        let bytes = words * 4;
        let guard;
        let mut shelved = None;
        {
            let mut state = memory.lock();
            if state.fails(bytes) {
                drop(state);
                return Err(self.out_of_memory(what, shape, bytes));
            }
            guard = if state.checks && words > 0 { GUARD } else { 0 };
            if words > 0 && !self.is_cuda() {
                let class = size_class(words + 2 * guard);
                shelved = state.shelf.get_mut(&class).and_then(Vec::pop);
                if shelved.is_some() {
                    state.stats.cached -= class * 4;
                }
            }
        }
        let total = words + 2 * guard;
        let mem = match self.backend() {
            _ if words == 0 => Mem::Host(Vec::new()),
            Backend::Cpu(_) | Backend::Host(_) => match shelved {
                Some(block) => Mem::Host(block),
                None => match self.on_host(|| filled(what, size_class(total), 0.0)) {
                    Ok(block) => Mem::Host(block),
                    Err(_) => return Err(self.out_of_memory(what, shape, bytes)),
                },
            },
            Backend::Cuda(cuda) => match cuda.alloc(total * 4) {
                Ok(ptr) => Mem::Cuda(ptr),
                Err(e) if matches!(e.kind(), ErrorKind::Cuda { code: 2, .. }) => {
                    return Err(self.out_of_memory(what, shape, bytes));
                }
                Err(e) => return Err(e),
            },
        };
        let mut block = self.block(what, shape, bytes, guard, mem);
        if guard > 0
            && let Err(error) = block.poison()
        {
            // Its guards were never written, so they cannot be broken.
            block.guard = 0;
            return Err(error);
        }
        Ok(Buffer { block: Arc::new(block), start: 0, words, owner: None })
    }

    /// Memory that holds numbers of this device's number type, as many as `shape` has.
    fn hold(
        &self,
        what: &'static str,
        shape: &Shape,
        numbers: &dyn host::Numbers,
        values: Values,
    ) -> Result<Buffer> {
        let bytes = shape.numel() * numbers.size();
        if self.0.memory.lock().fails(bytes) {
            return Err(self.out_of_memory(what, shape, bytes));
        }
        let block = self.block(what, shape, bytes, 0, Mem::Values(values));
        Ok(Buffer { block: Arc::new(block), start: 0, words: shape.numel(), owner: None })
    }

    /// A new block, counted until it is freed.
    fn block(&self, what: &'static str, shape: &Shape, bytes: usize, guard: usize, mem: Mem) -> Block {
        let mut place = None;
        if bytes > 0 {
            let State { stats, watch, .. } = &mut *self.0.memory.lock();
            stats.live += bytes;
            stats.peak = stats.peak.max(stats.live);
            stats.allocs += 1;
            place = watch.allocated(what, shape, bytes, stats.live);
        }
        let words = shape.numel();
        let (mem, owners) = (RwLock::new(Some(mem)), AtomicUsize::new(0));
        Block { device: self.clone(), words, bytes, guard, place, mem, owners }
    }

    #[cold]
    fn out_of_memory(&self, what: &'static str, shape: &Shape, bytes: usize) -> Error {
        let report = format!("for shape {shape} on {self}: {}", self.holders_in_words());
        Error::new(what, ErrorKind::OutOfMemory { bytes, report })
    }

    /// The state of this device's memory.
    pub fn memory(&self) -> MemoryStats {
        let mut stats = self.0.memory.lock().stats;
        if let Backend::Cuda(cuda) = self.backend() {
            stats.cached = cuda.cached_bytes();
            (stats.device_free, stats.device_total) = cuda.mem_info_if_told().unwrap_or((0, 0));
        }
        stats
    }

    /// Returns cached memory to the system or the driver. Returns the number of bytes.
    pub fn collect(&self) -> Result<usize> {
        match self.backend() {
            Backend::Cuda(cuda) => cuda.collect(),
            Backend::Cpu(_) | Backend::Host(_) => {
                let mut state = self.0.memory.lock();
                state.shelf.clear();
                Ok(std::mem::take(&mut state.stats.cached))
            }
        }
    }

    /// Allocates host memory. If there is none left, frees the cached blocks and tries again.
    fn on_host<T>(&self, take: impl Fn() -> Result<T>) -> Result<T> {
        match take() {
            Err(_) if !self.is_cuda() && self.collect()? > 0 => take(),
            taken => taken,
        }
    }

    /// Makes the `n`-th allocation from now fail (1 is the next), once or from then on; `None` ends that. For testing
    /// how code behaves when memory runs out.
    pub fn fail_allocation(&self, n: Option<u64>, persistent: bool) {
        self.0.memory.lock().fail = n.map(|n| (n, persistent));
    }

    /// Limits live memory: an allocation beyond `bytes` is out of memory, as on a smaller device. `None`, the default,
    /// means no limit.
    pub fn limit_memory(&self, bytes: Option<usize>) {
        self.0.memory.lock().limit = bytes;
    }

    /// Turns check mode on or off for later allocations: new memory is poisoned with a NaN pattern and has guard words
    /// on both sides, which are checked when it is freed.
    pub fn set_checks(&self, on: bool) {
        self.0.memory.lock().checks = on;
    }

    /// Number of buffers freed with overwritten guard words since check mode was turned on.
    pub fn broken_guards(&self) -> u64 {
        self.0.memory.lock().broken_guards
    }
}
