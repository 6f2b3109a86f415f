//! The floating-point environment: how a thread rounds, and whether it keeps subnormals.
//!
//! The numerics contract needs rounding to nearest even with subnormals kept. The processor has this as a register of each thread,
//! which any library can change: start-up code of programs built with fast math turns subnormals off. [`strict`] computes
//! in the environment of the contract and gives the thread's own back. It is called where the library begins to compute, and
//! in all threads that it starts; inside of it, another call reads one register and changes nothing.
#![allow(unsafe_code)]

use std::hint::black_box;
use std::marker::PhantomData;

/// The control register of the thread.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod register {
    use std::arch::asm;

    pub(super) type Word = u32;

    /// Rounding to nearest even, subnormals kept, no exception traps.
    const STRICT: Word = 0x1f80;
    /// All but the flags of exceptions that happened.
    const CONTROL: Word = 0xffc0;

    pub(super) fn read() -> Word {
        let mut word: Word = 0;
        // SAFETY: it stores MXCSR, which every x86-64 processor has, into four bytes that are ours.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut word, options(nostack, preserves_flags)) };
        word
    }

    pub(super) fn write(word: Word) {
        // SAFETY: it loads MXCSR from four bytes that are ours. `word` is what `read` gave with control bits that every
        // processor has, so no reserved bit is set. The compiler takes for granted the environment of `STRICT`: what is set here
        // is that one, or what the thread had before.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const word, options(nostack, preserves_flags)) };
    }

    pub(super) fn is_strict(word: Word) -> bool {
        word & CONTROL == STRICT
    }

    pub(super) fn made_strict(word: Word) -> Word {
        (word & !CONTROL) | STRICT
    }
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
mod register {
    use std::arch::asm;

    pub(super) type Word = u64;

    /// Rounding mode, flush to zero (of all sizes), default NaN, the alternative behaviours, and exception traps.
    const CONTROL: Word = 0x07c8_9f07;

    pub(super) fn read() -> Word {
        let word: Word;
        // SAFETY: it reads FPCR, which every aarch64 processor has.
        unsafe { asm!("mrs {}, fpcr", out(reg) word, options(nostack, preserves_flags)) };
        word
    }

    pub(super) fn write(word: Word) {
        // SAFETY: it writes FPCR: the environment that the compiler takes for granted (zero in all control bits), or what
        // the thread had before.
        unsafe { asm!("msr fpcr, {}", in(reg) word, options(nostack, preserves_flags)) };
    }

    pub(super) fn is_strict(word: Word) -> bool {
        word & CONTROL == 0
    }

    pub(super) fn made_strict(word: Word) -> Word {
        word & !CONTROL
    }
}

/// Nothing to read or set: the environment is the one the thread has.
#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod register {
    pub(super) type Word = ();

    pub(super) fn read() -> Word {}

    pub(super) fn write((): Word) {}

    pub(super) fn is_strict((): Word) -> bool {
        true
    }

    pub(super) fn made_strict((): Word) -> Word {}
}

/// A thread is in the environment of the contract until this goes, which puts its own one back.
#[doc(hidden)]
#[must_use = "the thread's own environment is back as soon as this is dropped"]
pub struct Strict {
    own: Option<register::Word>,
    /// It belongs to its thread.
    thread: PhantomData<*const ()>,
}

impl Drop for Strict {
    fn drop(&mut self) {
        if let Some(own) = self.own {
            register::write(own);
        }
    }
}

/// [`strict`] until the end of the block: for code whose numbers come from memory and go to memory. The compiler thinks that
/// arithmetic does not depend on the environment, but it does not move reads and writes of memory over a change of the register.
#[doc(hidden)]
#[inline]
pub fn enter() -> Strict {
    let own = register::read();
    let own = (!register::is_strict(own)).then_some(own);
    if let Some(own) = own {
        register::write(register::made_strict(own));
    }
    Strict { own, thread: PhantomData }
}

/// Calls `f` with rounding to nearest even, subnormals kept and no exception traps, and gives the thread its own environment
/// back. Closures that the library is handed and calls inside a computation run in this environment too. On processors
/// other than x86-64 and aarch64 nothing is set.
///
/// ```
/// use dittograd::numerics::environment::strict;
///
/// let third = strict(|| 1.0f32 / 3.0);
/// assert_eq!(third.to_bits(), 0x3eaa_aaab);
/// ```
#[inline]
pub fn strict<T>(f: impl FnOnce() -> T) -> T {
    if register::is_strict(register::read()) { f() } else { foreign(f) }
}

/// [`strict`] in a thread of another environment. What goes in and what comes out is hidden from the compiler, so that no
/// arithmetic can leave.
#[cold]
#[inline(never)]
fn foreign<T>(f: impl FnOnce() -> T) -> T {
    let strict = enter();
    let value = black_box(black_box(f)());
    drop(strict);
    value
}

/// Sets the environment of [`strict`] for all the rest of this thread: at the start of a program, or of a thread.
pub fn set_strict() {
    let own = register::read();
    if !register::is_strict(own) {
        register::write(register::made_strict(own));
    }
}

/// `x` as float32, rounded to nearest even.
#[doc(hidden)]
#[inline]
pub fn single(x: f64) -> f32 {
    strict(|| x as f32)
}
