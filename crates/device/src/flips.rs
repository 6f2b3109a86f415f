//! Faults of the hardware, for tests: one bit of one value that a kernel computes is flipped.

use crate::{Backend, Device};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The next fault of a device.
#[doc(hidden)]
#[derive(Default)]
pub struct Flips {
    is_armed: AtomicBool,
    /// Values that are computed before it strikes one, and the bit of that.
    next: Mutex<(u64, u64)>,
}

impl Flips {
    fn next(&self) -> MutexGuard<'_, (u64, u64)> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every kernel on the host calls it with the words that it has computed.
    #[inline]
    pub fn strike(&self, words: &mut [f32]) {
        if self.is_armed.load(Ordering::Relaxed) {
            self.struck(words);
        }
    }

    #[cold]
    fn struck(&self, words: &mut [f32]) {
        let mut next = self.next();
        if words.is_empty() || !self.is_armed.load(Ordering::Relaxed) {
            return;
        }
        let (left, bit) = *next;
        match left.checked_sub(1) {
            Some(left) => next.0 = left,
            None => {
                let bit = bit % (words.len() as u64 * 32);
                let word = &mut words[(bit / 32) as usize];
                *word = f32::from_bits(word.to_bits() ^ 1 << (bit % 32));
                self.is_armed.store(false, Ordering::Relaxed);
            }
        }
    }
}

impl Device {
    fn flips(&self) -> Option<&Flips> {
        match self.backend() {
            Backend::Cpu(cpu) => Some(&cpu.flips),
            Backend::Cuda(cuda) => Some(cuda.flips()),
            Backend::Host(_) => None,
        }
    }

    /// Flips a bit of the value that is computed after `after` others, on the CPU or a driver that computes on the host: bit `bit` modulo
    /// the number of its bits.
    #[doc(hidden)]
    pub fn flip_bit(&self, after: u64, bit: u64) {
        if let Some(flips) = self.flips() {
            *flips.next() = (after, bit);
            flips.is_armed.store(true, Ordering::Relaxed);
        }
    }

    /// Values that are still to be computed before the bit is flipped; `None` if no flip is waiting.
    #[doc(hidden)]
    pub fn flips_after(&self) -> Option<u64> {
        let flips = self.flips()?;
        let left = flips.next().0;
        flips.is_armed.load(Ordering::Relaxed).then_some(left)
    }
}
