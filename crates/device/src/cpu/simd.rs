//! The instruction sets a kernel can be compiled for, and the macro that compiles it for each of them.
//!
//! A kernel is written once, as plain loops, and compiled three times with more and more vector instructions
//! allowed. The compiler neither contracts nor reassociates float arithmetic (a `mul_add` is an FMA, a `*`
//! and a `+` never become one), so the versions differ in speed and not in a single bit.
#![allow(unsafe_code)]

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

/// An instruction set that kernels are compiled for, from the slowest to the fastest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Simd {
    /// What every processor of the target has.
    Scalar,
    /// AVX2 and FMA: vectors of 8 floats.
    Avx2,
    /// AVX-512 F, BW, DQ and VL: vectors of 16 floats. Products in digits use VNNI if it is there.
    Avx512,
    /// AMX tiles for products in digits, and AVX-512 for everything else. A process asks the kernel for AMX when it first needs it,
    /// and computes as with `Avx512` if that refuses.
    Amx,
}

impl Simd {
    /// The fastest level of this processor, detected once.
    pub fn best() -> Simd {
        static BEST: OnceLock<Simd> = OnceLock::new();
        *BEST.get_or_init(detect)
    }

    /// Whether this processor has the level.
    pub fn available(self) -> bool {
        self <= Simd::best()
    }

    /// The levels of this processor, slowest first.
    pub fn all_available() -> Vec<Simd> {
        [Simd::Scalar, Simd::Avx2, Simd::Avx512, Simd::Amx].into_iter().filter(|s| s.available()).collect()
    }

    /// This level if the processor has it, else the best it has: the level that a kernel may rely on.
    #[inline]
    pub fn usable(self) -> Simd {
        self.min(Simd::best())
    }
}

/// Detects the level. Each level includes those below it in the order of `Simd`.
fn detect() -> Simd {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        let wide = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        return match wide {
            true if has_amx() => Simd::Amx,
            true => Simd::Avx512,
            false => Simd::Avx2,
        };
    }
    Simd::Scalar
}

/// Whether the processor has AMX tiles of 8-bit integers, and the kernel saves them.
#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
fn has_amx() -> bool {
    use std::arch::asm;
    use std::arch::x86_64::{__cpuid, __cpuid_count};

    const OSXSAVE: u32 = 1 << 27;
    const TILE_AND_INT8: u32 = 1 << 24 | 1 << 25;
    const TILE_STATE: u32 = 1 << 17 | 1 << 18;
    // Unsafe until Rust 1.94.
    #[allow(unused_unsafe)]
    // SAFETY: every x86-64 processor has CPUID. Leaf 7 is there, since AVX2 was found in it.
    let (basic, extended) = unsafe { (__cpuid(1), __cpuid_count(7, 0)) };
    if basic.ecx & OSXSAVE == 0 || extended.edx & TILE_AND_INT8 != TILE_AND_INT8 {
        return false;
    }
    let saved: u32;
    // SAFETY: XGETBV of register 0 is allowed where OSXSAVE is set. It only reads.
    unsafe {
        asm!("xgetbv", in("ecx") 0, out("eax") saved, out("edx") _, options(nomem, nostack, preserves_flags));
    }
    saved & TILE_STATE == TILE_STATE
}

#[cfg(all(target_arch = "x86_64", not(all(target_os = "linux", not(miri)))))]
fn has_amx() -> bool {
    false
}

impl fmt::Display for Simd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Simd::Scalar => "scalar",
            Simd::Avx2 => "avx2",
            Simd::Avx512 => "avx512",
            Simd::Amx => "amx",
        })
    }
}

/// The names of the levels, for messages.
#[doc(hidden)]
pub const LEVELS: &str = "scalar, avx2, avx512 or amx";

/// A name that is no [`Simd`] level.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownSimd(String);

impl fmt::Display for UnknownSimd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown SIMD level {:?}: expected {LEVELS}", self.0)
    }
}

impl std::error::Error for UnknownSimd {}

impl FromStr for Simd {
    type Err = UnknownSimd;

    fn from_str(name: &str) -> Result<Simd, UnknownSimd> {
        match name {
            "scalar" => Ok(Simd::Scalar),
            "avx2" => Ok(Simd::Avx2),
            "avx512" => Ok(Simd::Avx512),
            "amx" => Ok(Simd::Amx),
            _ => Err(UnknownSimd(name.to_owned())),
        }
    }
}

/// Compiles one function, written as plain safe loops, for every [`Simd`] level. A dispatcher of the same name takes
/// the level as its first argument and clamps it to what the processor has, so any value is sound. The arguments are
/// plain names with types; the body does not see the level. One const and one type parameter are allowed if everything
/// the body calls of them is `#[inline(always)]`.
///
/// ```ignore
/// simd_fn! {
///     /// y += a * x
///     pub fn axpy(simd, a: f32, x: &[f32], y: &mut [f32]) {
///         for (y, x) in y.iter_mut().zip(x) {
///             *y = a.mul_add(*x, *y);
///         }
///     }
/// }
/// ```
#[doc(hidden)]
#[macro_export]
macro_rules! simd_fn {
    (
        $(#[$attr:meta])*
        $vis:vis fn $name:ident $(<const $n:ident: usize, $f:ident: $bound:path>)? ($simd:ident $(, $arg:ident: $ty:ty)* $(,)?) $(-> $ret:ty)? $body:block
    ) => {
        $(#[$attr])*
        #[allow(unsafe_code, clippy::too_many_arguments)]
        $vis fn $name $(<const $n: usize, $f: $bound>)? ($simd: $crate::cpu::simd::Simd $(, $arg: $ty)*) $(-> $ret)? {
            #[deny(unsafe_code)]
            #[inline(always)]
            fn body $(<const $n: usize, $f: $bound>)? ($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2 $(<const $n: usize, $f: $bound>)? ($($arg: $ty),*) $(-> $ret)? {
                body($($arg),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
            fn avx512 $(<const $n: usize, $f: $bound>)? ($($arg: $ty),*) $(-> $ret)? {
                body($($arg),*)
            }

            match $simd.usable() {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: `usable` returns only levels that the processor was found to have.
                $crate::cpu::simd::Simd::Avx512 | $crate::cpu::simd::Simd::Amx => unsafe { avx512($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: `usable` returns only levels that the processor was found to have.
                $crate::cpu::simd::Simd::Avx2 => unsafe { avx2($($arg),*) },
                _ => body($($arg),*),
            }
        }
    };
}
pub use crate::simd_fn;

#[cfg(test)]
mod tests {
    use super::*;

    simd_fn! {
        /// y += a * x
        fn axpy(simd, a: f32, x: &[f32], y: &mut [f32]) {
            for (y, x) in y.iter_mut().zip(x) {
                *y = a.mul_add(*x, *y);
            }
        }
    }

    simd_fn! {
        /// A value that depends on no contraction taking place, and a return value.
        pub(crate) fn cancel(simd, x: &[f32],) -> f32 {
            let mut sum = 0.0;
            for x in x {
                let square = x * x;
                sum += square - x * x;
            }
            sum
        }
    }

    simd_fn! {
        fn longest(simd, x: &[f32]) -> &[f32] {
            &x[1..]
        }
    }

    #[test]
    fn levels_give_the_same_bits() {
        for len in [0, 1, 7, 8, 15, 16, 17, 33, 100, 1000] {
            let x: Vec<f32> = (0..len).map(|i| 1.0 / (i as f32 + 3.0)).collect();
            let mut want: Vec<f32> = x.iter().rev().copied().collect();
            let mut all: Vec<Vec<f32>> = Vec::new();
            for simd in [Simd::Scalar, Simd::Avx2, Simd::Avx512, Simd::Amx] {
                let mut y: Vec<f32> = x.iter().rev().copied().collect();
                axpy(simd, 0.3, &x, &mut y);
                all.push(y);
                assert_eq!(cancel(simd, &x), 0.0);
                if len > 0 {
                    assert_eq!(longest(simd, &x).len(), len - 1);
                }
            }
            for (want, x) in want.iter_mut().zip(&x) {
                *want = 0.3f32.mul_add(*x, *want);
            }
            let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert!(all.iter().all(|y| bits(y) == bits(&want)));
        }
    }

    #[test]
    fn names_round_trip() {
        for simd in [Simd::Scalar, Simd::Avx2, Simd::Avx512, Simd::Amx] {
            assert_eq!(simd.to_string().parse(), Ok(simd));
            assert!(simd.usable().available());
        }
        assert!("avx1".parse::<Simd>().is_err());
        assert!(Simd::all_available().contains(&Simd::best()) && Simd::Scalar.available());
        assert!(Simd::Scalar < Simd::Avx2 && Simd::Avx2 < Simd::Avx512 && Simd::Avx512 < Simd::Amx);
    }
}
