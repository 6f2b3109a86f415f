//! The pool as it is, on threads, locks and atomics that loom runs in all their orders.
//!
//! `threads.rs` takes these from `std`, and two functions from `dittograd_numerics`; here both names mean this crate, so that the
//! pool itself knows nothing of it.

extern crate self as dittograd_numerics;
extern crate self as std;
extern crate std as real;

#[allow(dead_code)]
#[path = "../../../crates/device/src/cpu/threads.rs"]
pub mod threads;

/// Loom's threads compute nothing.
pub mod environment {
    pub struct Strict;

    pub fn enter() -> Strict {
        Strict
    }

    pub fn set_strict() {}
}

pub mod reserve {
    pub fn room_for_a_thread() -> bool {
        true
    }
}

pub use real::{any, hint, marker, panic, ptr, slice, time};

pub mod thread {
    use real::{io, num::NonZero};

    pub use loom::thread::{Builder, JoinHandle, yield_now};

    /// One core, so that nobody polls before it sleeps: loom has no time.
    pub fn available_parallelism() -> io::Result<NonZero<usize>> {
        Ok(NonZero::<usize>::MIN)
    }
}

pub mod sync {
    pub use loom::sync::{Arc, Mutex, MutexGuard};
    pub use real::sync::{LockResult, OnceLock, PoisonError};

    /// Wakes the first sleeper once without a reason, as real ones may; loom's never does.
    #[derive(Default)]
    pub struct Condvar {
        condvar: loom::sync::Condvar,
        woke: real::sync::atomic::AtomicBool,
    }

    impl Condvar {
        pub fn new() -> Self {
            Self::default()
        }

        pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
            if self.woke.swap(true, atomic::Ordering::Relaxed) { self.condvar.wait(guard) } else { Ok(guard) }
        }

        pub fn notify_one(&self) {
            self.condvar.notify_one();
        }

        pub fn notify_all(&self) {
            self.condvar.notify_all();
        }
    }

    pub mod atomic {
        pub use loom::sync::atomic::AtomicPtr;
        pub use real::sync::atomic::Ordering;

        use Ordering::SeqCst;
        use real::sync::atomic::{AtomicBool as Flag, Ordering::Relaxed};

        /// Loom takes `SeqCst` for `AcqRel`: two threads that each write a word and then read the other's may both miss the
        /// other, and whoever rests on that is told of a deadlock that cannot be. So here a `SeqCst` load of a word whose
        /// last write was `SeqCst` sees that write, as it must, by a compare-exchange that fails: loom gives it the newest
        /// value, and it writes nothing. After a weaker write it is loom's load, which may see an older value than the real
        /// one could: at worst a false alarm. All that is weaker than `SeqCst` stays loom's.
        macro_rules! word {
            ($name:ident, $type:ty, $from:expr, $($rmw:ident)*) => {
                pub struct $name {
                    word: loom::sync::atomic::AtomicU64,
                    /// Whether the last write was `SeqCst`. No thread runs between a write and the change of this.
                    strong: Flag,
                }

                impl $name {
                    pub fn new(value: $type) -> Self {
                        let word = loom::sync::atomic::AtomicU64::new(value as u64);
                        // Whoever can reach the word happens after this.
                        Self { word, strong: Flag::new(true) }
                    }

                    fn wrote(&self, order: Ordering) {
                        self.strong.store(order == SeqCst, Relaxed);
                    }

                    pub fn load(&self, order: Ordering) -> $type {
                        const NEVER: u64 = u64::MAX;
                        let value = if order == SeqCst && self.strong.load(Relaxed) {
                            let newest = self.word.compare_exchange(NEVER, NEVER, SeqCst, SeqCst);
                            newest.expect_err("no word of the pool has all bits set")
                        } else {
                            self.word.load(order)
                        };
                        $from(value)
                    }

                    pub fn store(&self, value: $type, order: Ordering) {
                        self.word.store(value as u64, order);
                        self.wrote(order);
                    }

                    $(pub fn $rmw(&self, value: $type, order: Ordering) -> $type {
                        let old = self.word.$rmw(value as u64, order);
                        self.wrote(order);
                        $from(old)
                    })*

                    pub fn compare_exchange(
                        &self,
                        old: $type,
                        new: $type,
                        success: Ordering,
                        failure: Ordering,
                    ) -> Result<$type, $type> {
                        let outcome = self.word.compare_exchange(old as u64, new as u64, success, failure);
                        if outcome.is_ok() {
                            self.wrote(success);
                        }
                        outcome.map($from).map_err($from)
                    }
                }

                /// Whoever used the word must have done so before it goes: loom asks that of one who changes it alone.
                impl Drop for $name {
                    fn drop(&mut self) {
                        if !real::thread::panicking() {
                            self.word.with_mut(|_| ());
                        }
                    }
                }
            };
        }
        word!(AtomicBool, bool, |value| value != 0, swap);
        word!(AtomicU64, u64, |value| value, fetch_add fetch_sub fetch_and);
        word!(AtomicUsize, usize, |value| value as usize, fetch_add fetch_sub);
    }
}
