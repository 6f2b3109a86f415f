//! Tiles of C with AMX: `tdpbssd` multiplies 16 rows by 16 columns over 64 terms of 8-bit digits. There are eight tile registers. A product
//! of tiles takes 16 cycles and its sum is ready after 52, so each sum gets its next term as late as possible.
//!
//! Tile registers belong to a thread from `ldtilecfg` to `tilerelease`. The compiler knows nothing of them and never uses them, so
//! they keep their values from one `asm!` to the next.
#![allow(unsafe_code)]

use super::bytes::{Finish, MAX_SUMS, SUMS, Sums, TILE, pack, step_len, word_strides};
use super::{Block, Kernels, LINES};
use dittograd_numerics::digits::Digits;
use std::arch::asm;
use std::sync::OnceLock;

pub(super) static KERNELS: Kernels = Kernels { step_len, word_strides, pack: pack::<0>, multiply };

/// Whether the kernel lets this process use tile registers. It is asked once, for all threads.
pub(super) fn permitted() -> bool {
    static PERMITTED: OnceLock<bool> = OnceLock::new();
    *PERMITTED.get_or_init(request)
}

#[cfg(all(target_os = "linux", not(miri)))]
fn request() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
    const TILE_DATA: i64 = 18;
    let answer: i64;
    // SAFETY: a system call that reads and writes no memory of ours. It changes registers rcx and r11.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => answer,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") TILE_DATA,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    answer == 0
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn request() -> bool {
    false
}

/// The operand of `ldtilecfg`: palette 1, all eight tiles of 16 rows of 64 bytes.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    bytes: [u16; 16],
    rows: [u8; 16],
}

static CONFIG: Config = Config {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// # Safety
/// As for [`Kernels::multiply`]; the process is [`permitted`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn multiply(block: &Block) {
    // SAFETY: upheld by the caller. The tile registers are those of this thread, and free again at the end.
    unsafe {
        asm!("ldtilecfg [{}]", in(reg) &raw const CONFIG, options(nostack, readonly, preserves_flags));
        match block.digits {
            Digits::Two => tiles::<2>(block),
            Digits::Three => tiles::<3>(block),
        }
        asm!("tilerelease", options(nostack, nomem, preserves_flags));
    }
}

/// Computes all tiles of a block. Sums of a tile are finished while those of the next are added: these are other units of the
/// processor.
///
/// # Safety
/// As for [`multiply`], with tile registers configured.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn tiles<const D: usize>(block: &Block) {
    let mut sums = Sums([[0; SUMS]; MAX_SUMS]);
    let sums = &raw mut sums;
    // Rows to finish after each step.
    let per_step = LINES.div_ceil(block.steps);
    // SAFETY: upheld by the caller; all addresses are inside the packed panels.
    unsafe {
        let mut left = Finish::nothing();
        for j in 0..block.cols.div_ceil(LINES) {
            for i in 0..block.rows.div_ceil(LINES) {
                let (mut a, mut b) = (block.a.add(i * block.a_len), block.b.add(j * block.b_len));
                zero::<D>();
                for _ in 0..block.steps {
                    step::<D>(a, b);
                    a = a.add(D * TILE);
                    b = b.add(D * TILE);
                    for _ in 0..per_step.min(left.rows - left.row) {
                        left.next_row::<D>(sums);
                    }
                }
                while left.row < left.rows {
                    left.next_row::<D>(sums);
                }
                store::<D>(sums);
                left = Finish::tile(block, i, j);
            }
        }
        while left.row < left.rows {
            left.next_row::<D>(sums);
        }
    }
}

/// Sets the tiles of sums to zero.
///
/// # Safety
/// Tile registers are configured.
#[inline(always)]
unsafe fn zero<const D: usize>() {
    // SAFETY: upheld by the caller.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            options(nostack, nomem, preserves_flags)
        );
        if D == 3 {
            asm!("tilezero tmm4", options(nostack, nomem, preserves_flags));
        }
    }
}

/// Multiplies the digits of a step: `tdpbssd sums, a, b`.
///
/// # Safety
/// `a` and `b` point to the tiles of a step, and tile registers are configured.
#[inline(always)]
unsafe fn step<const D: usize>(a: *const u8, b: *const u8) {
    // SAFETY: upheld by the caller.
    unsafe {
        if D == 2 {
            asm!(
                "tileloadd tmm4, [{a} + {row}]",
                "tileloadd tmm6, [{b} + {row}]",
                "tdpbssd tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{a} + {row} + 1024]",
                "tdpbssd tmm1, tmm5, tmm6",
                "tileloadd tmm7, [{b} + {row} + 1024]",
                "tdpbssd tmm2, tmm4, tmm7",
                "tdpbssd tmm3, tmm5, tmm7",
                a = in(reg) a,
                b = in(reg) b,
                row = in(reg) 64usize,
                options(nostack, readonly, preserves_flags),
            );
        } else {
            // Five sums leave three registers for operands, so the top digit of B is loaded twice.
            asm!(
                "tileloadd tmm5, [{a} + {row}]",
                "tileloadd tmm6, [{b} + {row} + 1024]",
                "tdpbssd tmm0, tmm5, tmm6",
                "tileloadd tmm7, [{b} + {row} + 2048]",
                "tdpbssd tmm1, tmm5, tmm7",
                "tileloadd tmm5, [{a} + {row} + 1024]",
                "tdpbssd tmm3, tmm5, tmm7",
                "tdpbssd tmm2, tmm5, tmm6",
                "tileloadd tmm7, [{b} + {row}]",
                "tdpbssd tmm0, tmm5, tmm7",
                "tileloadd tmm5, [{a} + {row} + 2048]",
                "tdpbssd tmm1, tmm5, tmm7",
                "tdpbssd tmm3, tmm5, tmm6",
                "tileloadd tmm7, [{b} + {row} + 2048]",
                "tdpbssd tmm4, tmm5, tmm7",
                a = in(reg) a,
                b = in(reg) b,
                row = in(reg) 64usize,
                options(nostack, readonly, preserves_flags),
            );
        }
    }
}

/// Stores the tiles of sums.
///
/// # Safety
/// Tile registers are configured, and no other thread uses `sums`.
#[inline(always)]
unsafe fn store<const D: usize>(sums: *mut Sums) {
    // SAFETY: upheld by the caller.
    unsafe {
        asm!(
            "tilestored [{to} + {row}], tmm0",
            "tilestored [{to} + {row} + 1024], tmm1",
            "tilestored [{to} + {row} + 2048], tmm2",
            "tilestored [{to} + {row} + 3072], tmm3",
            to = in(reg) sums,
            row = in(reg) 64usize,
            options(nostack, preserves_flags),
        );
        if D == 3 {
            asm!(
                "tilestored [{to} + {row} + 4096], tmm4",
                to = in(reg) sums,
                row = in(reg) 64usize,
                options(nostack, preserves_flags),
            );
        }
    }
}
