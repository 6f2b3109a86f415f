//! Memory of a device: the pool over the driver's allocations, pinned host memory, and copies.
//!
//! Uploads go through a ring of pinned memory. The caller's slice can be reused as soon as the call returns, and the
//! host does not wait for the device until the ring is full. Every address is checked to lie in a live allocation: a
//! stale one is an error here instead of a fault that poisons the device.
//!
//! [`Cuda::fetch`] and [`Cuda::put`] copy beside computing, on the transfer stream, from and to pinned memory of the
//! caller's. Freed device memory is used again in the order of the computing stream, which knows nothing of the
//! other: the caller keeps memory allocated until its transfer is over.

#![allow(unsafe_code)]

use super::context::{Cuda, code, lock};
use super::driver::{Handle, OUT_OF_MEMORY, event};
use super::marks::Mark;
use super::memory_pool::{self, MemoryPool};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use std::fmt;
use std::sync::Arc;

/// Bytes of one slot of the upload ring, and the number of slots.
const SLOT_BYTES: usize = 2 << 20;
const SLOTS: usize = 8;

/// Pinned memory for uploads, used as a ring. A slot is filled by any number of uploads; an event marks the end of its
/// last copy.
#[derive(Default)]
pub(super) struct Ring {
    base: Handle,
    events: [Handle; SLOTS],
    busy: [bool; SLOTS],
    slot: usize,
    used: usize,
}

impl Ring {
    /// The pinned memory (possibly null) and the events.
    pub(super) fn objects(&self) -> (Handle, Vec<Handle>) {
        (self.base, self.events.iter().copied().filter(|event| !event.is_null()).collect())
    }
}

/// Memory.
impl Cuda {
    /// `bytes` bytes, aligned to 512, contents undefined. `bytes` must not be 0. If the device has no room even after
    /// cached memory was returned, the error is [`ErrorKind::Cuda`] with code 2.
    pub fn alloc(&self, bytes: usize) -> Result<u64> {
        let _turn = self.enter_outside("cuda alloc")?;
        if bytes == 0 {
            return Err(Error::argument("cuda alloc", "bytes", "must not be 0"));
        }
        let mut pool = lock(&self.pool);
        if let Some(address) = pool.take(bytes) {
            return Ok(address);
        }
        let size = memory_pool::segment_bytes(bytes)
            .ok_or_else(|| Error::argument("cuda alloc", "bytes", format!("{bytes} is beyond any device")))?;
        let segment = match self.noted(self.driver.mem_alloc(size)) {
            Err(error) if code(&error) == Some(OUT_OF_MEMORY) && pool.held() > pool.live() => {
                self.return_segments(&mut pool)?;
                self.noted(self.driver.mem_alloc(size))?
            }
            other => other?,
        };
        pool.add(segment, bytes);
        pool.take(bytes).ok_or_else(|| {
            Error::new("cuda alloc", ErrorKind::Internal { what: "a fresh segment serves nothing" })
        })
    }

    /// Makes a driver call that needs memory. If there is none left, returns cached memory to the driver and calls
    /// again.
    pub(super) fn with_room<T>(&self, call: impl Fn() -> Result<T>) -> Result<T> {
        match self.noted(call()) {
            Err(error)
                if code(&error) == Some(OUT_OF_MEMORY)
                    && !self.capturing_here()
                    && self.cached_bytes() > 0 =>
            {
                // An error of returning memory does not replace the error of the call.
                match self.return_segments(&mut lock(&self.pool)) {
                    Ok(_) => self.noted(call()),
                    Err(_) => Err(error),
                }
            }
            done => done,
        }
    }

    /// Gives memory from [`Cuda::alloc`] back to the pool. Work submitted earlier may still use it. An address that is
    /// not live is reported by the next call.
    pub fn free(&self, ptr: u64) {
        if !self.poisoned() && !lock(&self.pool).give(ptr) {
            let why =
                format!("{ptr:#x} is not the start of a live allocation; it was never one, or freed twice");
            self.keep(Error::argument("cuda free", "ptr", why));
        }
    }

    /// Bytes held from the driver but not handed out.
    pub fn cached_bytes(&self) -> usize {
        let pool = lock(&self.pool);
        pool.held() - pool.live()
    }

    /// Bytes handed out, each allocation rounded up to its block.
    pub fn live_bytes(&self) -> usize {
        lock(&self.pool).live()
    }

    /// Returns segments without a live allocation to the driver. Returns their bytes. Synchronizes.
    pub fn collect(&self) -> Result<usize> {
        let _turn = self.enter_outside("cuda collect")?;
        self.return_segments(&mut lock(&self.pool))
    }

    /// Waits for work that may still use cached memory, then returns all free segments.
    fn return_segments(&self, pool: &mut MemoryPool) -> Result<usize> {
        self.noted(self.driver.stream_synchronize(self.stream))?;
        let mut outcome = Ok(0);
        for (segment, size) in pool.drain_free() {
            // All are tried; the first error is returned.
            match (self.noted(self.driver.mem_free(segment)), &mut outcome) {
                (Ok(()), Ok(total)) => *total += size,
                (Err(error), Ok(_)) => outcome = Err(error),
                (Err(error), Err(_)) => self.settle(Err(error)),
                (Ok(()), Err(_)) => {}
            }
        }
        outcome
    }

    /// Free and total bytes of the device, as the driver sees them.
    pub fn mem_info(&self) -> Result<(usize, usize)> {
        let _turn = self.enter()?;
        self.noted(self.driver.mem_info())
    }

    /// Like [`Cuda::mem_info`], for reports, which return no errors. A pending error stays pending.
    pub(crate) fn mem_info_if_told(&self) -> Option<(usize, usize)> {
        if self.poisoned() {
            return None;
        }
        let _turn = self.turn().ok()?;
        self.noted(self.driver.mem_info()).ok()
    }

    /// Pinned host memory.
    fn host_memory(&self, op: &str, bytes: usize) -> Result<Handle> {
        self.noted(self.driver.mem_host_alloc(bytes)).map_err(|error| {
            if code(&error) != Some(OUT_OF_MEMORY) {
                return error;
            }
            let report = format!("of pinned host memory for copies from and to cuda:{}", self.ordinal());
            Error::new(op, ErrorKind::OutOfMemory { bytes, report })
        })
    }

    /// Copies `src` to the device. `src` may be changed as soon as this returns.
    pub fn upload(&self, dst: u64, src: &[u8]) -> Result<()> {
        let _turn = self.enter_outside("cuda upload")?;
        if src.is_empty() {
            return Ok(());
        }
        self.owned("cuda upload", "dst", dst, src.len())?;
        let mut ring = lock(&self.ring);
        if ring.base.is_null() {
            ring.base = self.host_memory("cuda upload", SLOT_BYTES * SLOTS)?;
        }
        let mut done = 0;
        while done < src.len() {
            if ring.used == SLOT_BYTES {
                self.next_slot(&mut ring)?;
            }
            let bytes = (src.len() - done).min(SLOT_BYTES - ring.used);
            // SAFETY: the ring has SLOT_BYTES * SLOTS bytes, slot < SLOTS, and used + bytes <= SLOT_BYTES.
            let staged = unsafe { ring.base.0.cast::<u8>().add(ring.slot * SLOT_BYTES + ring.used) };
            // SAFETY: `bytes` bytes are there on both sides. This part of the ring is in nobody's use:
            // a slot is entered only after its last copy has run, and filled front to back.
            unsafe { staged.copy_from_nonoverlapping(src[done..].as_ptr(), bytes) };
            // SAFETY: the staged bytes are not written again before the slot's event has passed.
            self.noted(unsafe { self.driver.memcpy_htod(dst + done as u64, staged, bytes, self.stream) })?;
            ring.used = (ring.used + bytes).next_multiple_of(64);
            done += bytes;
        }
        Ok(())
    }

    /// Marks the end of the full slot and waits until the next one is free. If a step fails, the next call continues
    /// there.
    fn next_slot(&self, ring: &mut Ring) -> Result<()> {
        let slot = ring.slot;
        if !ring.busy[slot] {
            if ring.events[slot].is_null() {
                ring.events[slot] = self.noted(self.driver.event_create(event::PLAIN))?;
            }
            self.noted(self.driver.event_record(ring.events[slot], self.stream))?;
            ring.busy[slot] = true;
        }
        let next = (slot + 1) % SLOTS;
        if ring.busy[next] {
            self.noted(self.driver.event_synchronize(ring.events[next]))?;
            ring.busy[next] = false;
        }
        (ring.slot, ring.used) = (next, 0);
        Ok(())
    }

    /// Copies from the device to `dst` and waits for it.
    pub fn download(&self, src: u64, dst: &mut [u8]) -> Result<()> {
        let _turn = self.enter_outside("cuda download")?;
        if dst.is_empty() {
            return Ok(());
        }
        self.owned("cuda download", "src", src, dst.len())?;
        // SAFETY: the slice is borrowed until the wait below has returned; to memory that is not pinned
        // the driver copies before the call itself returns.
        self.noted(unsafe { self.driver.memcpy_dtoh(dst.as_mut_ptr(), src, dst.len(), self.stream) })?;
        self.noted(self.driver.stream_synchronize(self.stream))
    }

    /// Copies on the device. The ranges must not overlap.
    pub fn copy(&self, dst: u64, src: u64, bytes: usize) -> Result<()> {
        let _turn = self.enter()?;
        if bytes == 0 {
            return Ok(());
        }
        self.owned("cuda copy", "dst", dst, bytes)?;
        self.owned("cuda copy", "src", src, bytes)?;
        if dst.abs_diff(src) < bytes as u64 {
            return Err(Error::argument("cuda copy", "dst", "overlaps the source"));
        }
        self.noted(self.driver.memcpy_dtod(dst, src, bytes, self.stream))
    }

    /// Writes `word` `count` times from `dst` on, which must be aligned to 4.
    pub fn fill(&self, dst: u64, word: u32, count: usize) -> Result<()> {
        let _turn = self.enter()?;
        if count == 0 {
            return Ok(());
        }
        if !dst.is_multiple_of(4) {
            return Err(Error::argument("cuda fill", "dst", format!("{dst:#x} is not aligned to 4 bytes")));
        }
        self.owned("cuda fill", "dst", dst, count.saturating_mul(4))?;
        self.noted(self.driver.memset_d32(dst, word, count, self.stream))
    }

    /// Waits until everything submitted has run.
    pub fn synchronize(&self) -> Result<()> {
        let _turn = self.enter_outside("cuda synchronize")?;
        self.noted(self.driver.stream_synchronize(self.stream))
    }

    /// Refuses a range that is not inside one live allocation.
    pub(super) fn owned(&self, op: &str, name: &'static str, address: u64, bytes: usize) -> Result<()> {
        if lock(&self.pool).contains(address, bytes) {
            return Ok(());
        }
        Err(Error::argument(
            op,
            name,
            format!("{bytes} bytes at {address:#x} are not inside a live allocation"),
        ))
    }
}

/// Host memory that the device reads and writes by itself, for [`Cuda::fetch`] and [`Cuda::put`]. It can be reused any number of
/// times; getting it takes long.
pub struct Pinned {
    cuda: Arc<Cuda>,
    /// Null if there are no bytes.
    base: Handle,
    bytes: usize,
    /// The end of the last copy that reads it.
    read_until: Option<Mark>,
}

impl Pinned {
    /// The device it was made for.
    pub fn cuda(&self) -> &Arc<Cuda> {
        &self.cuda
    }

    /// What it holds.
    pub fn bytes(&self) -> &[u8] {
        if self.base.is_null() {
            return &[];
        }
        // SAFETY: `bytes` bytes are there and were set once; no copy writes them now, since a fetch ends before it
        // returns, and those that only read do no harm.
        unsafe { std::slice::from_raw_parts(self.base.0.cast::<u8>(), self.bytes) }
    }

    /// What it holds, to change. Waits until the last [`Cuda::put`] from it has run.
    pub fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        if let Some(mark) = &self.read_until {
            mark.synchronize()?;
            self.read_until = None;
        }
        if self.base.is_null() {
            return Ok(&mut []);
        }
        // SAFETY: as above; no copy uses it now.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.base.0.cast::<u8>(), self.bytes) })
    }

    /// Refuses ranges that do not fit, or another device.
    fn check(&self, op: &str, cuda: &Cuda, ranges: &[(u64, usize)]) -> Result<()> {
        if !std::ptr::eq(&*self.cuda, cuda) {
            return Err(Error::argument(op, "pinned", format!("is of {:?}, used on {cuda:?}", self.cuda)));
        }
        let want = ranges.iter().try_fold(0usize, |sum, range| sum.checked_add(range.1));
        if want.is_some_and(|want| want <= self.bytes) {
            return Ok(());
        }
        let got = self.bytes;
        Err(Error::argument(op, "pinned", format!("has {got} bytes, fewer than the ranges together")))
    }

    /// After a copy that failed, part of which may have been submitted: waits for it, and gives the memory up if even that
    /// fails. Then it has no bytes.
    fn recover(&mut self) {
        let cuda = &self.cuda;
        let waited = if cuda.poisoned() { Ok(false) } else { cuda.synchronize_transfers().map(|()| true) };
        match waited {
            Ok(true) => {}
            Ok(false) => self.abandon(),
            Err(error) => {
                cuda.settle(Err(error));
                self.abandon();
            }
        }
    }

    fn abandon(&mut self) {
        if !self.base.is_null() {
            lock(&self.cuda.transfers).abandoned.push(self.base);
        }
        (self.base, self.bytes, self.read_until) = (Handle::NULL, 0, None);
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let cuda = self.cuda.clone();
        cuda.settle(cuda.make_current());
        if let Some(mark) = self.read_until.take() {
            let waited = mark.event(&cuda).and_then(|event| cuda.driver.event_synchronize(event));
            if waited.is_err() {
                cuda.settle(waited);
                self.abandon();
            }
        }
        if cuda.capturing_here() {
            self.abandon();
        }
        if !self.base.is_null() {
            cuda.settle(cuda.driver.mem_free_host(self.base));
        }
    }
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pinned({} bytes for {:?})", self.bytes, self.cuda)
    }
}

/// Copies beside computing.
impl Cuda {
    /// `bytes` bytes of pinned host memory, all 0.
    pub fn pinned(self: &Arc<Self>, bytes: usize) -> Result<Pinned> {
        self.enter_transfer("cuda pinned")?;
        let base = if bytes == 0 { Handle::NULL } else { self.host_memory("cuda pinned", bytes)? };
        if bytes > 0 {
            // SAFETY: the driver gave `bytes` bytes, which nobody else has.
            unsafe { base.0.cast::<u8>().write_bytes(0, bytes) };
        }
        Ok(Pinned { cuda: self.clone(), base, bytes, read_until: None })
    }

    /// Copies ranges of device memory, each an address and its bytes, one behind the other into pinned memory. The copies run
    /// when `after` is reached. Waits for them, and for no other work submitted after that mark. The ranges must stay
    /// allocated until this returns. After an error the memory may be empty.
    pub fn fetch(self: &Arc<Self>, after: &Mark, sources: &[(u64, usize)], into: &mut Pinned) -> Result<()> {
        self.enter_transfer("cuda fetch")?;
        into.check("cuda fetch", self, sources)?;
        // Waits for copies that read it.
        into.bytes_mut()?;
        let mut target = into.base.0.cast::<u8>();
        let copied = self.transfer(after, sources, |stream| {
            for &(source, bytes) in sources.iter().filter(|range| range.1 > 0) {
                // SAFETY: all ranges together fit, and nobody looks at the memory, which is borrowed, until the copies
                // have run or it is given up.
                self.noted(unsafe { self.driver.memcpy_dtoh(target, source, bytes, stream) })?;
                target = target.wrapping_add(bytes);
            }
            Ok(())
        });
        let done = copied.and_then(|mark| mark.synchronize());
        if done.is_err() {
            into.recover();
        }
        done
    }

    /// Copies pinned memory into ranges of device memory, each an address and its bytes, one behind the other. The copies run
    /// when `after` is reached. Does not wait for them: the mark returned is behind them, and [`Cuda::wait`] makes computing
    /// wait for it. The ranges must stay allocated until the mark is reached or waited for. After an error the memory may be
    /// empty.
    pub fn put(self: &Arc<Self>, after: &Mark, from: &mut Pinned, targets: &[(u64, usize)]) -> Result<Mark> {
        self.enter_transfer("cuda put")?;
        from.check("cuda put", self, targets)?;
        let mut source = from.base.0.cast::<u8>().cast_const();
        let copied = self.transfer(after, targets, |stream| {
            for &(target, bytes) in targets.iter().filter(|range| range.1 > 0) {
                // SAFETY: all ranges together fit. The memory is not written before the mark below is reached, nor freed.
                self.noted(unsafe { self.driver.memcpy_htod(target, source, bytes, stream) })?;
                source = source.wrapping_add(bytes);
            }
            Ok(())
        });
        match &copied {
            Ok(mark) => from.read_until = Some(mark.clone()),
            Err(_) => from.recover(),
        }
        copied
    }
}
