//! Buffers, and the one door they come through.
//!
//! A [`Buffer`] is a handle of a block of 4-byte words; clones and reshaped views share the block.
//! Dropping the last handle frees it; [`Buffer::release`] frees it early, for every handle at once.
//! The CPU keeps freed blocks by size class, because fresh pages cost more than most kernels.

use super::host::{self, Values};
use super::watch::Watch;
use super::{Backend, Device};
use dittograd_numerics::environment;
use dittograd_numerics::error::readable_bytes;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::reserve::{collected, copied, filled};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::{AnyTensor, DType, Meta, Tensor};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Guard words before and after each block in check mode.
const GUARD: usize = 256;
/// What guard words hold.
const CANARY: u32 = 0xdead_70ad;
/// What new memory holds in check mode: a NaN that no operation makes by itself.
const POISON: u32 = 0x7fa5_a5a5;

/// State of a device's memory. Bytes are those of the elements asked for; blocks kept for reuse are
/// `cached`, not `live`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Bytes in buffers that are alive now.
    pub live: usize,
    /// The most bytes that were ever live.
    pub peak: usize,
    /// Bytes kept for reuse.
    pub cached: usize,
    /// Buffers allocated so far; empty ones do not count.
    pub allocs: u64,
    /// Buffers freed so far, by drop or release.
    pub frees: u64,
    /// Free bytes as the driver sees it; 0 on the CPU.
    pub device_free: usize,
    /// All bytes as the driver sees it; 0 on the CPU.
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

#[derive(Default)]
pub(super) struct Memory {
    state: Mutex<State>,
    /// Whether `State::watch` wants to hear of steps.
    pub(super) watched: AtomicBool,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) stats: MemoryStats,
    pub(super) watch: Watch,
    /// Freed host blocks by capacity.
    shelf: BTreeMap<usize, Vec<Vec<f32>>>,
    checks: bool,
    /// Allocations until one fails, and whether all later ones fail too.
    fail: Option<(u64, bool)>,
    /// Most bytes that may be live.
    limit: Option<usize>,
    /// Guard words found overwritten so far.
    broken_guards: u64,
}

impl State {
    /// Counts an allocation of so many bytes, and says whether it is one that was told to fail or beyond the limit.
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

/// Words a host block of `words` really takes: rounded up so that few classes serve many sizes.
fn size_class(words: usize) -> usize {
    let step = (words.next_power_of_two() / 8).max(64);
    words.div_ceil(step) * step
}

/// The memory of one block.
pub(crate) enum Mem {
    /// Host words.
    Host(Vec<f32>),
    /// A device address.
    Cuda(u64),
    /// Numbers of another type.
    Values(Values),
}

struct Block {
    device: Device,
    /// Elements, of 4 bytes but for numbers of another type.
    words: usize,
    bytes: usize,
    guard: usize,
    /// Where it is counted, if it was made while the device was watched.
    place: Option<u32>,
    mem: RwLock<Option<Mem>>,
}

/// A handle of device memory holding float32 values or u32 indices, all of an allocation or a part of it.
/// Clones and parts share the memory.
#[derive(Clone)]
pub struct Buffer {
    block: Arc<Block>,
    start: usize,
    words: usize,
}

/// Shared access to a block, held while a kernel reads it.
pub struct ReadGuard<'a> {
    guard: RwLockReadGuard<'a, Option<Mem>>,
    range: Range<usize>,
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

/// Buffers that are read together, any number of times. Each block is locked once, however many of them share it: a
/// thread must not lock a block for reading twice.
#[doc(hidden)]
pub struct ReadSet {
    /// One buffer of each block.
    blocks: Vec<Buffer>,
    /// For each buffer its block and its words in it.
    of: Vec<(usize, Range<usize>)>,
    /// Memory for the guards of the next time; a guard is two words.
    spare: Mutex<Vec<[usize; 2]>>,
}

impl ReadSet {
    /// Those of some buffers.
    pub fn new<'b>(buffers: impl IntoIterator<Item = &'b Buffer>) -> ReadSet {
        let mut set = ReadSet { blocks: Vec::new(), of: Vec::new(), spare: Mutex::default() };
        for b in buffers {
            let at = set.blocks.iter().position(|o| o.shares(b)).unwrap_or_else(|| {
                set.blocks.push(b.clone());
                set.blocks.len() - 1
            });
            set.of.push((at, b.range()));
        }
        set
    }

    /// Reads them all. Errors if one was released.
    pub fn lock(&self, op: &str) -> Result<ReadGuards<'_>> {
        let spare = std::mem::take(&mut *self.spare.lock().unwrap_or_else(PoisonError::into_inner));
        let mut locked = ReadGuards { set: self, guards: emptied(spare) };
        locked.guards.reserve_exact(self.blocks.len());
        for b in &self.blocks {
            locked.guards.push(b.read(op)?.guard);
        }
        Ok(locked)
    }
}

/// No elements, in the memory of others of the same size.
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

/// Sole access to a block, held while a kernel writes it.
#[doc(hidden)]
pub struct WriteGuard<'a> {
    guard: RwLockWriteGuard<'a, Option<Mem>>,
    range: Range<usize>,
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

fn released(op: &str) -> Error {
    Error::new(op, ErrorKind::Released)
}

impl Device {
    /// Memory for `words` elements. Its contents are undefined: zeros, old values, or in check mode a
    /// NaN pattern. This is the only door to tensor memory.
    pub fn alloc(&self, words: usize) -> Result<Buffer> {
        self.alloc_for("alloc", &Shape::new(&[words])?)
    }

    /// Memory for a value of `shape`, made for what messages call `what`.
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
            // Its guards were never whole, so nobody has broken them.
            block.guard = 0;
            return Err(error);
        }
        Ok(Buffer { block: Arc::new(block), start: 0, words })
    }

    /// Memory that holds numbers of this device's own type, as many as `shape` has.
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
        Ok(Buffer { block: Arc::new(block), start: 0, words: shape.numel() })
    }

    /// A block that is counted from now on until it is freed.
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
        Block { device: self.clone(), words, bytes, guard, place, mem: RwLock::new(Some(mem)) }
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

    /// Returns cached memory to the system or the driver and says how many bytes that were.
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

    /// Takes host memory, and where there is none, that of the blocks that this device keeps for reuse.
    fn on_host<T>(&self, take: impl Fn() -> Result<T>) -> Result<T> {
        match take() {
            Err(_) if !self.is_cuda() && self.collect()? > 0 => take(),
            taken => taken,
        }
    }

    /// Makes the `n`-th allocation from now fail (1 is the next), once or from then on; `None` ends
    /// that. For testing how code behaves when memory runs out.
    pub fn fail_allocation(&self, n: Option<u64>, persistent: bool) {
        self.0.memory.lock().fail = n.map(|n| (n, persistent));
    }

    /// Lets no more than so many bytes be live: an allocation beyond that is out of memory, as it would be on a smaller
    /// device. `None`, as it is at first, leaves it to the system.
    pub fn limit_memory(&self, bytes: Option<usize>) {
        self.0.memory.lock().limit = bytes;
    }

    /// Turns check mode on or off for later allocations: new memory is poisoned with a NaN pattern and
    /// has guard words on both sides, which are looked at when it is freed.
    pub fn set_checks(&self, on: bool) {
        self.0.memory.lock().checks = on;
    }

    /// How many buffers were freed with overwritten guard words, since check mode was turned on.
    pub fn broken_guards(&self) -> u64 {
        self.0.memory.lock().broken_guards
    }
}

impl Block {
    /// Fills the memory with the poison pattern and the guards with canaries.
    fn poison(&self) -> Result<()> {
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
                    // What cannot be read cannot be called broken; the error is for the next call.
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

    /// Gives the memory back; says whether there was any.
    fn free(&self) -> bool {
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

impl Buffer {
    /// Number of elements, also after release.
    pub fn len(&self) -> usize {
        self.words
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.words == 0
    }

    /// Elements `start..start + words` as a handle of their own. Errors if there are not as many.
    pub fn part(&self, start: usize, words: usize) -> Result<Buffer> {
        match start.checked_add(words) {
            Some(end) if end <= self.words => {
                Ok(Buffer { block: self.block.clone(), start: self.start + start, words })
            }
            _ => Err(Error::new(
                "part",
                ErrorKind::Length { want: start.saturating_add(words), got: self.words },
            )),
        }
    }

    /// Where the elements are in the block.
    fn range(&self) -> Range<usize> {
        let from = self.block.guard + self.start;
        from..from + self.words
    }

    /// The device the memory is on.
    pub fn device(&self) -> &Device {
        &self.block.device
    }

    /// Frees the memory now, for this handle and every other handle and view of it. Says whether
    /// there was memory to free, so a second call, or one on an empty buffer, answers `false`.
    pub fn release(&self) -> bool {
        self.block.free()
    }

    /// Whether the memory was released.
    pub fn is_released(&self) -> bool {
        self.block.mem.read().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Bytes of the whole allocation this is a part of, and a number that tells it from others that are alive.
    #[doc(hidden)]
    pub fn allocation(&self) -> (usize, usize) {
        (self.block.bytes, Arc::as_ptr(&self.block) as usize)
    }

    /// Whether both handles name the same memory.
    pub fn shares(&self, other: &Buffer) -> bool {
        Arc::ptr_eq(&self.block, &other.block)
    }

    /// Its words, to read. Errors if it was released.
    #[doc(hidden)]
    pub fn read(&self, op: &str) -> Result<ReadGuard<'_>> {
        let guard = self.block.mem.read().unwrap_or_else(PoisonError::into_inner);
        if guard.is_none() {
            return Err(released(op));
        }
        Ok(ReadGuard { guard, range: self.range() })
    }

    /// Its words, to write. Errors if it was released.
    #[doc(hidden)]
    pub fn write(&self, op: &str) -> Result<WriteGuard<'_>> {
        let guard = self.block.mem.write().unwrap_or_else(PoisonError::into_inner);
        if guard.is_none() {
            return Err(released(op));
        }
        Ok(WriteGuard { guard, range: self.range() })
    }

    /// The device address, for kernels on the same stream; 0 for an empty or host buffer.
    #[doc(hidden)]
    pub fn address(&self, op: &str) -> Result<u64> {
        match &*self.block.mem.read().unwrap_or_else(PoisonError::into_inner) {
            Some(Mem::Cuda(ptr)) => Ok(*ptr + self.range().start as u64 * 4),
            Some(Mem::Host(_) | Mem::Values(_)) => Ok(0),
            None => Err(released(op)),
        }
    }

    /// Copies host words into the buffer.
    #[doc(hidden)]
    pub fn write_words(&self, op: &str, words: &[f32]) -> Result<()> {
        if words.len() != self.len() {
            return Err(Error::new(op, ErrorKind::Length { want: self.len(), got: words.len() }));
        }
        match self.device().backend() {
            Backend::Cpu(_) => self.write(op)?.host().copy_from_slice(words),
            Backend::Host(numbers) => {
                let mut guard = self.write(op)?;
                match &mut *guard.guard {
                    Some(Mem::Values(values)) => numbers.set_f32(values, self.range(), words),
                    _ => guard.host().copy_from_slice(words),
                }
            }
            Backend::Cuda(_) if words.is_empty() => {}
            Backend::Cuda(cuda) => cuda.upload(self.address(op)?, bytemuck::cast_slice(words))?,
        }
        Ok(())
    }

    /// Copies the buffer into host words. Waits for the device.
    pub(crate) fn read_words(&self, op: &str, words: &mut [f32]) -> Result<()> {
        if words.len() != self.len() {
            return Err(Error::new(op, ErrorKind::Length { want: self.len(), got: words.len() }));
        }
        match self.device().backend() {
            Backend::Cpu(_) => words.copy_from_slice(self.read(op)?.host()),
            Backend::Host(numbers) => {
                let guard = self.read(op)?;
                match &*guard.guard {
                    Some(Mem::Values(values)) => {
                        words.copy_from_slice(&numbers.to_f32(values, self.range())?)
                    }
                    _ => words.copy_from_slice(guard.host()),
                }
            }
            Backend::Cuda(cuda) => {
                let address = self.address(op)?;
                if !words.is_empty() {
                    cuda.download(address, bytemuck::cast_slice_mut(words))?;
                }
            }
        }
        Ok(())
    }

    /// A new buffer on `device` holding `values`.
    pub fn upload(device: &Device, values: &[f32]) -> Result<Buffer> {
        Buffer::upload_for("upload", device, &Shape::new(&[values.len()])?, values)
    }

    /// As [`Buffer::upload`], for a value of `shape` that messages call `what`.
    fn upload_for(what: &'static str, device: &Device, shape: &Shape, values: &[f32]) -> Result<Buffer> {
        let buffer = device.alloc_for(what, shape)?;
        buffer.write_words(what, values)?;
        Ok(buffer)
    }

    /// The float32 values. Waits for the device.
    pub fn download(&self) -> Result<Vec<f32>> {
        let mut values = self.device().on_host(|| filled("download", self.len(), 0.0))?;
        self.read_words("download", &mut values)?;
        Ok(values)
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.is_released() { ", released" } else { "" };
        write!(f, "Buffer({} elements on {}{state})", self.len(), self.device())
    }
}

/// A value of the runtime: a buffer under a shape, row-major. The constructor checks that the counts
/// agree, so they always do.
#[derive(Clone, Debug)]
pub struct AnyBuffer {
    buffer: Buffer,
    meta: Meta,
    /// For indices: all entries are below this.
    bound: u32,
}

impl AnyBuffer {
    /// `buffer` under `meta`. Errors if the element counts differ. For indices of unknown range.
    pub fn new(buffer: Buffer, meta: Meta) -> Result<AnyBuffer> {
        if buffer.len() != meta.shape.numel() {
            let kind = ErrorKind::Length { want: meta.shape.numel(), got: buffer.len() };
            return Err(Error::new("buffer", kind));
        }
        Ok(AnyBuffer { buffer, meta, bound: u32::MAX })
    }

    /// The same value, whose entries, if they are indices, are known to be below `bound`.
    #[doc(hidden)]
    pub fn with_bound(self, bound: u32) -> AnyBuffer {
        AnyBuffer { bound, ..self }
    }

    /// A new value on `device` with the elements of `tensor`, rounded to float32. Scalars without a
    /// float32 wire form are refused. A device of another number type takes numbers of that type as they are, and
    /// others through f64.
    pub fn upload<T: Scalar>(device: &Device, tensor: &Tensor<T>) -> Result<AnyBuffer> {
        AnyBuffer::upload_for("upload", device, tensor)
    }

    /// As [`AnyBuffer::upload`], for what messages call `what`.
    #[doc(hidden)]
    pub fn upload_for<T: Scalar>(
        what: &'static str,
        device: &Device,
        tensor: &Tensor<T>,
    ) -> Result<AnyBuffer> {
        let _strict = environment::enter();
        let shape = tensor.shape();
        if let Backend::Host(numbers) = device.backend() {
            let values = host::import(&**numbers, tensor)?;
            return AnyBuffer::new(device.hold(what, &shape, &**numbers, values)?, Meta::f32(shape));
        }
        AnyBuffer::upload_words(what, device, shape, &host::to_words(tensor.data())?)
    }

    /// A new value of float32 numbers, on a device that has these.
    #[doc(hidden)]
    pub fn upload_words(
        what: &'static str,
        device: &Device,
        shape: Shape,
        words: &[f32],
    ) -> Result<AnyBuffer> {
        AnyBuffer::new(Buffer::upload_for(what, device, &shape, words)?, Meta::f32(shape))
    }

    /// A new value on `device`, of numbers as by [`AnyBuffer::upload`] or of indices.
    pub fn upload_any<T: Scalar>(device: &Device, tensor: &AnyTensor<T>) -> Result<AnyBuffer> {
        match tensor {
            AnyTensor::Num(t) => AnyBuffer::upload(device, t),
            AnyTensor::Idx(t) => AnyBuffer::upload_indices(device, t),
        }
    }

    /// The elements as a host tensor, whatever their type. Waits for the device.
    pub fn to_any<T: Scalar>(&self) -> Result<AnyTensor<T>> {
        match self.meta.dtype {
            DType::F32 => self.to_tensor().map(AnyTensor::Num),
            DType::U32 => self.to_indices().map(AnyTensor::Idx),
        }
    }

    /// A new index value on `device`.
    pub fn upload_indices(device: &Device, tensor: &Tensor<u32>) -> Result<AnyBuffer> {
        let shape = tensor.shape();
        let buffer = Buffer::upload_for("upload", device, &shape, bytemuck::cast_slice(tensor.data()))?;
        let mut value = AnyBuffer::new(buffer, Meta::u32(shape))?;
        value.bound = index_bound(tensor.data());
        Ok(value)
    }

    /// Zeros of `shape` on `device`.
    pub fn zeros(device: &Device, shape: Shape) -> Result<AnyBuffer> {
        AnyBuffer::full(device, shape, 0.0)
    }

    /// A float32 value of `shape` on `device` with every element `value`.
    pub fn full(device: &Device, shape: Shape, value: f32) -> Result<AnyBuffer> {
        let _strict = environment::enter();
        if matches!(device.backend(), Backend::Host(_)) {
            return AnyBuffer::upload_for("full", device, &Tensor::try_from_fn(shape, |_| value)?);
        }
        let buffer = device.alloc_for("full", &shape)?;
        match device.backend() {
            Backend::Cpu(_) | Backend::Host(_) => buffer.write("full")?.host().fill(value),
            Backend::Cuda(cuda) => {
                if !buffer.is_empty() {
                    cuda.fill(buffer.address("full")?, value.to_bits(), buffer.len())?;
                }
            }
        }
        AnyBuffer::new(buffer, Meta::f32(shape))
    }

    /// Replaces the elements by those of `tensor`, in place, as [`AnyBuffer::upload`] would. Errors if the counts differ.
    #[doc(hidden)]
    pub fn assign<T: Scalar>(&self, op: &str, tensor: &Tensor<T>) -> Result<()> {
        let _strict = environment::enter();
        let len = tensor.data().len();
        if len != self.buffer.len() {
            return Err(Error::new(op, ErrorKind::Length { want: self.buffer.len(), got: len }));
        }
        if let Backend::Host(numbers) = self.buffer.device().backend() {
            let new = host::import(&**numbers, tensor)?;
            if let Some(Mem::Values(values)) = &mut *self.buffer.write(op)?.guard {
                numbers.copy(values, self.buffer.range(), &new, 0..len);
                return Ok(());
            }
        }
        self.buffer.write_words(op, &host::to_words(tensor.data())?)
    }

    /// Replaces the elements by those of `from`, in place: on the device if both are on one, else through the host.
    #[doc(hidden)]
    pub fn copy_from(&self, op: &str, from: &AnyBuffer) -> Result<()> {
        let (to, source) = (&self.buffer, &from.buffer);
        if to.len() != source.len() {
            return Err(Error::new(op, ErrorKind::Length { want: to.len(), got: source.len() }));
        }
        if to.is_empty() || (to.shares(source) && to.start == source.start) {
            return Ok(());
        }
        if !to.device().accepts(source.device()) || to.shares(source) {
            return match to.device().backend() {
                Backend::Host(_) => self.assign(op, &from.to_tensor::<f64>()?),
                _ => to.write_words(op, &source.download()?),
            };
        }
        match to.device().backend() {
            Backend::Cpu(_) => to.write(op)?.host().copy_from_slice(source.read(op)?.host()),
            Backend::Cuda(cuda) => cuda.copy(to.address(op)?, source.address(op)?, to.len() * 4)?,
            Backend::Host(numbers) => {
                let (mut to_guard, from_guard) = (to.write(op)?, source.read(op)?);
                if let (Some(Mem::Values(values)), Some(Mem::Values(new))) =
                    (&mut *to_guard.guard, &*from_guard.guard)
                {
                    numbers.copy(values, to.range(), new, source.range());
                }
            }
        }
        Ok(())
    }

    /// The elements as a host tensor, widened exactly from float32. Waits for the device. From a device of another
    /// number type: as they are, or through f64 if `T` is not that type.
    pub fn to_tensor<T: Scalar>(&self) -> Result<Tensor<T>> {
        let _strict = environment::enter();
        if self.meta.dtype != DType::F32 {
            let kind = ErrorKind::DType { want: "f32", got: self.meta.dtype.name(), input: 0 };
            return Err(Error::new("download", kind));
        }
        if let Backend::Host(numbers) = self.buffer.device().backend() {
            let guard = self.buffer.read("download")?;
            if let Some(Mem::Values(values)) = &*guard.guard {
                let range = self.buffer.range();
                let data = match host::elements::<T>(values, range.clone()) {
                    Some(data) => copied("download", data)?,
                    None => collected("download", numbers.to_f64(values, range)?.into_iter().map(T::c))?,
                };
                return Tensor::with_shape(self.meta.shape, data);
            }
        }
        let values = self.buffer.download()?;
        Tensor::with_shape(self.meta.shape, collected("download", values.into_iter().map(T::from_f32))?)
    }

    /// The indices as a host tensor. Waits for the device.
    pub fn to_indices(&self) -> Result<Tensor<u32>> {
        if self.meta.dtype != DType::U32 {
            let kind = ErrorKind::DType { want: "u32", got: self.meta.dtype.name(), input: 0 };
            return Err(Error::new("download", kind));
        }
        let values = self.buffer.download()?;
        Tensor::with_shape(self.meta.shape, collected("download", values.into_iter().map(f32::to_bits))?)
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

    /// For indices: a number all entries are known to be below.
    pub fn bound(&self) -> u32 {
        self.bound
    }

    /// The same memory under another shape of equal count.
    pub fn view(&self, shape: Shape) -> Result<AnyBuffer> {
        if shape.numel() != self.meta.shape.numel() {
            let kind = ErrorKind::Length { want: shape.numel(), got: self.meta.shape.numel() };
            return Err(Error::new("view", kind));
        }
        self.part(0, shape)
    }

    /// The elements from `start` on that `shape` has room for, under that shape, sharing the memory.
    pub fn part(&self, start: usize, shape: Shape) -> Result<AnyBuffer> {
        let buffer = self.buffer.part(start, shape.numel())?;
        let mut view = AnyBuffer::new(buffer, Meta { shape, ..self.meta })?;
        view.bound = self.bound;
        Ok(view)
    }

    /// A copy of the value on another device (or the same one), through the host. From a device of other numbers to
    /// one of float32 it rounds to nearest; the other way it is exact. Between devices of other numbers it goes
    /// through f64.
    pub fn to_device(&self, device: &Device) -> Result<AnyBuffer> {
        if self.meta.dtype == DType::F32 && matches!(device.backend(), Backend::Host(_)) {
            return AnyBuffer::upload(device, &self.to_tensor::<f64>()?);
        }
        let buffer = Buffer::upload_for("upload", device, &self.meta.shape, &self.buffer.download()?)?;
        let mut copy = AnyBuffer::new(buffer, self.meta)?;
        copy.bound = self.bound;
        Ok(copy)
    }
}

/// The elements as [`Tensor`] prints them. Waits for the device and downloads them all; where that fails, the text says why.
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

/// The smallest number above all `indices`.
pub(crate) fn index_bound(indices: &[u32]) -> u32 {
    indices.iter().max().map_or(0, |m| m.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpu() -> Device {
        Device::cpu_with(1, crate::cpu::simd::Simd::Scalar).unwrap()
    }

    #[test]
    fn counters_follow_every_buffer() {
        let d = cpu();
        let a = Buffer::upload(&d, &[1.0; 100]).unwrap();
        let b = a.clone();
        let m = d.memory();
        assert_eq!((m.live, m.peak, m.allocs, m.frees), (400, 400, 1, 0));
        drop(a);
        assert_eq!(d.memory().live, 400);
        drop(b);
        let m = d.memory();
        assert_eq!((m.live, m.peak, m.allocs, m.frees), (0, 400, 1, 1));
        assert!(m.cached >= 400);
        assert!(d.collect().unwrap() >= 400);
        assert_eq!(d.memory().cached, 0);
    }

    #[test]
    fn empty_buffers_are_not_counted() {
        let d = cpu();
        let e = Buffer::upload(&d, &[]).unwrap();
        assert!(!e.release());
        assert_eq!(d.memory(), MemoryStats::default());
    }

    #[test]
    fn release_is_idempotent_and_reaches_views() {
        let d = cpu();
        let a = AnyBuffer::full(&d, Shape::new(&[2, 3]).unwrap(), 1.5).unwrap();
        let view = a.view(Shape::new(&[6]).unwrap()).unwrap();
        assert!(a.buffer().release());
        assert!(!a.buffer().release());
        assert!(!view.buffer().release());
        let e = view.to_tensor::<f32>().unwrap_err();
        assert_eq!(*e.kind(), ErrorKind::Released);
        assert_eq!((d.memory().live, d.memory().frees), (0, 1));
    }

    #[test]
    fn parts_share_memory_and_stay_within_it() {
        let d = cpu();
        d.set_checks(true);
        let a = Buffer::upload(&d, &[0.0, 1.0, 2.0, 3.0, 4.0]).unwrap();
        let b = a.part(1, 3).unwrap();
        let c = b.part(1, 2).unwrap();
        assert_eq!(c.download().unwrap(), [2.0, 3.0]);
        c.write_words("test", &[7.0, 8.0]).unwrap();
        assert_eq!(a.download().unwrap(), [0.0, 1.0, 7.0, 8.0, 4.0]);
        assert!(b.part(2, 2).is_err() && b.part(usize::MAX, 2).is_err());
        let set = ReadSet::new([&a, &c]);
        let both = set.lock("test").unwrap();
        assert_eq!((both.host(0).len(), both.host(1)), (5, &[7.0, 8.0][..]));
        drop(both);
        assert_eq!(d.memory().allocs, 1);
        assert!(c.release() && a.is_released());
        assert_eq!((d.memory().live, d.broken_guards()), (0, 0));
    }

    #[test]
    fn the_nth_allocation_fails_on_request() {
        let d = cpu();
        d.fail_allocation(Some(2), false);
        let _a = d.alloc(1).unwrap();
        assert!(matches!(d.alloc(8).unwrap_err().kind(), ErrorKind::OutOfMemory { bytes: 32, .. }));
        let _b = d.alloc(8).unwrap();
        d.fail_allocation(Some(1), true);
        assert!(d.alloc(1).is_err() && d.alloc(1).is_err());
        d.fail_allocation(None, false);
        assert!(d.alloc(1).is_ok());
        assert_eq!(d.memory().live, 36);
    }

    #[test]
    fn check_mode_poisons_and_finds_overruns() {
        let d = cpu();
        d.set_checks(true);
        let a = d.alloc(10).unwrap();
        assert!(a.download().unwrap().iter().all(|x| x.to_bits() == POISON));
        drop(a);
        assert_eq!(d.broken_guards(), 0);
        let b = d.alloc(10).unwrap();
        if let Some(Mem::Host(words)) = &mut *b.block.mem.write().unwrap() {
            words[GUARD + 10] = 0.0;
        }
        drop(b);
        assert_eq!(d.broken_guards(), 1);
    }

    #[test]
    fn impossible_sizes_are_an_error() {
        let d = cpu();
        let e = d.alloc(1 << 58).unwrap_err();
        assert!(matches!(e.kind(), ErrorKind::OutOfMemory { .. }), "{e}");
        assert_eq!(d.memory().live, 0);
    }
}
