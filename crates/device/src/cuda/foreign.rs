//! Memory and streams of other libraries in the process, such as PyTorch's.
//!
//! All of them use the device's primary context, so addresses and streams mean the same to all. What they submit is ordered by
//! events between their stream and ours, without waiting on the host. A stream is given as the driver's handle.

#![allow(unsafe_code)]

use super::context::Cuda;
use super::driver::Handle;
use dittograd_numerics::error::Result;
use std::ffi::c_void;
use std::sync::Arc;

/// The default stream, which all streams wait for that were not made otherwise.
#[doc(hidden)]
pub const DEFAULT_STREAM: u64 = 1;

fn handle(stream: u64) -> Handle {
    Handle(std::ptr::with_exposed_provenance_mut::<c_void>(stream as usize))
}

/// Order between computing and streams of other libraries.
impl Cuda {
    /// Makes what is submitted to `stream` from now on wait for all that was submitted to compute so far.
    ///
    /// # Safety
    /// It must be [`DEFAULT_STREAM`] or a stream that is alive.
    #[doc(hidden)]
    pub unsafe fn release_to(self: &Arc<Self>, stream: u64) -> Result<()> {
        let mark = self.mark()?;
        let _turn = self.enter_outside("cuda release")?;
        self.noted(self.driver.stream_wait_event(handle(stream), mark.event(self)?))
    }

    /// Makes what is submitted to compute from now on wait for all that was submitted to `stream` so far. An error that is
    /// pending stays so.
    ///
    /// # Safety
    /// As of [`Cuda::release_to`].
    #[doc(hidden)]
    pub unsafe fn acquire_from(self: &Arc<Self>, stream: u64) -> Result<()> {
        self.outside("cuda acquire")?;
        let _turn = self.turn()?;
        let mark = self.mark_on(handle(stream))?;
        self.noted(self.driver.stream_wait_event(self.stream, mark.event(self)?))
    }

    /// Waits for all streams of the device, those of other libraries too. An error that is pending stays so.
    #[doc(hidden)]
    pub fn synchronize_all(&self) -> Result<()> {
        self.outside("cuda synchronize")?;
        let _turn = self.turn()?;
        self.noted(self.driver.ctx_synchronize())
    }

    /// As [`Cuda::copy`], from memory of another library.
    ///
    /// # Safety
    /// `bytes` bytes at `src` must be device memory that stays allocated until the copy has run.
    #[doc(hidden)]
    pub unsafe fn copy_foreign(&self, dst: u64, src: u64, bytes: usize) -> Result<()> {
        let _turn = self.enter_outside("cuda copy")?;
        if bytes == 0 {
            return Ok(());
        }
        self.owned("cuda copy", "dst", dst, bytes)?;
        self.noted(self.driver.memcpy_dtod(dst, src, bytes, self.stream))
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::{Fake, Live};
    use super::*;

    /// Memory that goes to a stream of another library and comes back. `waits` are those of the other stream for ours, and of ours for the other.
    fn lent(fake: &Fake, waits: [bool; 2]) -> Result<[u8; 3]> {
        // Of one device, so of one context.
        let (ours, other) = (fake.open()?, fake.open()?);
        let theirs = other.stream.0.expose_provenance() as u64;
        let [a, b] = [ours.alloc(64)?, other.alloc(64)?];
        ours.fill(a, 0x0101_0101, 16)?;
        if waits[0] {
            // SAFETY: the stream is that of `other`, which is open.
            unsafe { ours.release_to(theirs)? };
        }
        // SAFETY: `ours` has the memory until the copy has run.
        unsafe { other.copy_foreign(b, a, 64)? };
        if waits[1] {
            // SAFETY: as above.
            unsafe { ours.acquire_from(theirs)? };
        }
        ours.fill(a, 0x0202_0202, 16)?;
        let mut back = [[0; 64]; 3];
        other.download(b, &mut back[0])?;
        ours.download(a, &mut back[1])?;
        // Without waits on streams.
        ours.fill(a, 0x0303_0303, 16)?;
        ours.synchronize_all()?;
        // SAFETY: as above.
        unsafe { other.copy_foreign(b, a, 64)? };
        other.synchronize_all()?;
        ours.free(a);
        other.download(b, &mut back[2])?;
        Ok(back.map(|bytes| bytes[63]))
    }

    #[test]
    fn other_libraries_and_computing_wait_for_each_other() {
        let mut seen = [0; 2];
        for seed in std::iter::once(None).chain((0..200).map(Some)) {
            let run = |waits| {
                let fake = Fake::new();
                fake.shuffle(seed);
                let got = lent(&fake, waits).expect("runs");
                assert_eq!((fake.live(), fake.misuses()), (Live::default(), vec![]));
                got
            };
            assert_eq!(run([true, true]), [1, 2, 3], "{seed:?}");
            seen[0] += usize::from(run([false, true]) != [1, 2, 3]);
            seen[1] += usize::from(run([true, false]) != [1, 2, 3]);
        }
        assert!(seen[0] > 10 && seen[1] > 10, "{seen:?}");
    }
}
