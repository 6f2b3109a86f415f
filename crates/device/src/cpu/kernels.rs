//! The microkernels, compiled for each SIMD level.
//!
//! A microkernel is a generic function over [`Vector`] and lives with the algorithm it serves: [`super::gemm`], [`super::conv`],
//! [`super::lanes`]. The macro here compiles all of them for one level, with its instructions enabled, into a table.
#![allow(unsafe_code)]

use super::LINE;
use super::conv::kernel::{
    ChannelTile, Lines, StoreTile, StoreTransposed, add_bias, channel_tile, gather, store_tile,
    store_transposed,
};
use super::gemm::kernel::{IN_PLACE, PACKED, PACKING, Tile, tile};
use super::gemm::pack::{pack, transpose};
use super::gemm::plan::MAX_MR;
use super::lanes::{
    Accumulate, Dots, SKIP_FACTORS, SKIP_LANES, SKIP_NOTHING, Skip, Stencil, accumulate_lanes, lane_dots,
    stencil_all,
};
use super::simd::Simd;
use super::vector::Vector;

type TileFn = unsafe fn(&Tile);
type AccumulateFn = unsafe fn(&Accumulate);
type StencilFn = unsafe fn(&Stencil);
type DotsFn = unsafe fn(&Dots);
type ChannelTileFn = unsafe fn(&ChannelTile);
/// Takes (to, stride, rows, columns, bias).
type BiasFn = unsafe fn(*mut f32, usize, usize, usize, *const f32);
type StoreTileFn = unsafe fn(&StoreTile);
type StoreTransposedFn = unsafe fn(&StoreTransposed);
/// Takes the lines and where they go.
type GatherFn = unsafe fn(&Lines, *mut f32);
/// Takes (from, stride, columns, vectors, kc, to).
type PackFn = unsafe fn(*const f32, usize, usize, usize, usize, *mut f32);
type Tiles = [[TileFn; 4]; MAX_MR];

/// The microkernels of one SIMD level.
pub(crate) struct Kernels {
    /// Floats of a vector.
    pub width: usize,
    /// The most rows of a tile; no more than `width`, and more than two thirds of it.
    pub mr: usize,
    /// The most vectors of a tile that reads B in place, by rows less one.
    pub max_vectors: [usize; MAX_MR],
    /// The tile, by whether A is transposed, how B is read ([`PACKED`] and so on), rows less one, and log2 of the vectors.
    pub tile: &'static [[Tiles; 3]; 2],
    /// Packs a panel whose lines run across the terms.
    pub pack_copied: PackFn,
    /// Packs a panel whose lines run along the terms.
    pub pack_transposed: PackFn,
    /// Copies the lines of a view.
    pub gather: GatherFn,
    /// Adds a bias to each row of a tile.
    pub add_bias: BiasFn,
    /// Stores columns of a tile in the result.
    pub store_tile: StoreTileFn,
    /// Stores a tile whose lanes are channels in the result.
    pub store_transposed: StoreTransposedFn,
    /// A tile whose lanes are channels, by positions less one, and log2 of the vectors.
    pub channel_tile: [[ChannelTileFn; 3]; MAX_MR],
    /// Neighbouring outputs of a stencil.
    pub stencil: StencilFn,
    /// Dot products in lanes, by their number less one; at most `mr`.
    pub dots: [DotsFn; MAX_MR],
    /// Columns of accumulators in lanes.
    pub accumulate: AccumulateFn,
}

impl Kernels {
    /// The microkernels of a level, or of the best level that the processor has.
    pub fn of(simd: Simd) -> &'static Kernels {
        match simd.usable() {
            #[cfg(target_arch = "x86_64")]
            Simd::Avx512 | Simd::Amx => &avx512::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Simd::Avx2 => &avx2::KERNELS,
            _ => &scalar::KERNELS,
        }
    }
}

/// The table of one level: its vector type, target features, the most rows of a tile, the most vectors of
/// [`accumulate_lanes`], and for each number of rows the third and fourth number of vectors of a tile, as many as fit
/// in the registers. Entries that do not fit repeat the last one that does, and are never called.
macro_rules! kernels {
    ($vector:ty, $(#[$features:meta])* $mr:literal, $nv:literal; $($rows:literal: $v2:literal $v3:literal,)*) => {
        $(#[$features])*
        unsafe fn run_tile<const MR: usize, const NV: usize, const TA: bool, const B: u8>(t: &Tile) {
            // SAFETY: upheld by the caller; this function has the features of the vector.
            unsafe { tile::<$vector, MR, NV, TA, B>(t) }
        }

        $(#[$features])*
        unsafe fn pack_copied(
            from: *const f32, stride: usize, cols: usize, nv: usize, kc: usize, to: *mut f32,
        ) {
            // SAFETY: upheld by the caller; this function has the features of the vector.
            unsafe { pack::<$vector>(from, stride, cols, nv, kc, to) }
        }

        $(#[$features])*
        unsafe fn pack_transposed(
            from: *const f32, stride: usize, cols: usize, nv: usize, kc: usize, to: *mut f32,
        ) {
            // SAFETY: upheld by the caller; this function has the features of the vector.
            unsafe { transpose::<$vector>(from, stride, cols, nv, kc, to) }
        }

        $(#[$features])*
        unsafe fn add_row_bias(to: *mut f32, stride: usize, rows: usize, cols: usize, bias: *const f32) {
            // SAFETY: upheld by the caller; this function has the features of the vector.
            unsafe { add_bias::<$vector>(to, stride, rows, cols, bias) }
        }

        $(#[$features])*
        unsafe fn store_columns(columns: &StoreTile) {
            // SAFETY: upheld by the caller; this function has the features of the vector.
            unsafe { store_tile::<$vector>(columns) }
        }

        $(#[$features])*
        unsafe fn store_sums(sums: &StoreTransposed) {
            // SAFETY: upheld by the caller; this function has the features of the vector.
            unsafe { store_transposed::<$vector>(sums) }
        }

        $(#[$features])*
        unsafe fn gather_lines(lines: &Lines, to: *mut f32) {
            // SAFETY: upheld by the caller; this function has the features of the vector.
            unsafe { gather::<$vector>(lines, to) }
        }

        $(#[$features])*
        unsafe fn channel_sums<const MR: usize, const NV: usize>(sums: &ChannelTile) {
            // SAFETY: upheld by the caller; this function has the features of the vector.
            unsafe { channel_tile::<$vector, MR, NV>(sums) }
        }

        $(#[$features])*
        unsafe fn stencil_lines(stencil: &Stencil) {
            // SAFETY: upheld by the caller; this function has the features of the vector.
            unsafe { stencil_all::<$vector>(stencil) }
        }

        $(#[$features])*
        unsafe fn some_dots<const T: usize>(sums: &Dots) {
            // SAFETY: upheld by the caller; this function has the features of the vector.
            unsafe { lane_dots::<$vector, T, { LINE / <$vector as Vector>::WIDTH }>(sums) }
        }

        $(#[$features])*
        unsafe fn accumulated(w: &Accumulate) {
            // SAFETY: upheld by the caller; this function has the features of the vector.
            unsafe {
                match w.skip {
                    Skip::Nothing => accumulate_lanes::<$vector, $nv, SKIP_NOTHING>(w, 0),
                    Skip::Lanes(mark) => accumulate_lanes::<$vector, $nv, SKIP_LANES>(w, mark),
                    Skip::Factors(mark) => accumulate_lanes::<$vector, $nv, SKIP_FACTORS>(w, mark),
                }
            }
        }

        const fn packed_tiles<const TA: bool, const B: u8>() -> Tiles {
            [$({
                let two: TileFn = run_tile::<$rows, 2, TA, B>;
                [run_tile::<$rows, 1, TA, B>, two, two, two]
            },)*]
        }

        const fn in_place_tiles<const TA: bool>() -> Tiles {
            [$([
                run_tile::<$rows, 1, TA, IN_PLACE>,
                run_tile::<$rows, 2, TA, IN_PLACE>,
                run_tile::<$rows, $v2, TA, IN_PLACE>,
                run_tile::<$rows, $v3, TA, IN_PLACE>,
            ],)*]
        }

        pub(crate) static KERNELS: Kernels = Kernels {
            width: <$vector as Vector>::WIDTH,
            mr: $mr,
            max_vectors: [$($v3),*],
            tile: &[
                [packed_tiles::<false, PACKED>(), in_place_tiles::<false>(), packed_tiles::<false, PACKING>()],
                [packed_tiles::<true, PACKED>(), in_place_tiles::<true>(), packed_tiles::<true, PACKING>()],
            ],
            pack_copied,
            pack_transposed,
            gather: gather_lines,
            add_bias: add_row_bias,
            store_tile: store_columns,
            store_transposed: store_sums,
            channel_tile: [$([channel_sums::<$rows, 1>, channel_sums::<$rows, 2>, channel_sums::<$rows, $v2>]),*],
            stencil: stencil_lines,
            dots: [$(some_dots::<$rows>),*],
            accumulate: accumulated,
        };
    };
}

/// Vectors of four floats, for any processor.
mod scalar {
    use super::*;

    kernels! {
        [f32; 4], 4, 2;
        1: 2 2, 2: 2 2, 3: 2 2, 4: 2 2, 4: 2 2, 4: 2 2, 4: 2 2,
        4: 2 2, 4: 2 2, 4: 2 2, 4: 2 2, 4: 2 2, 4: 2 2, 4: 2 2,
    }
}

/// Vectors of eight floats, in sixteen registers.
#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::*;
    use std::arch::x86_64::__m256;

    kernels! {
        __m256, #[target_feature(enable = "avx2,fma")] 6, 2;
        1: 4 8, 2: 4 4, 3: 4 4, 4: 2 2, 5: 2 2, 6: 2 2, 6: 2 2,
        6: 2 2, 6: 2 2, 6: 2 2, 6: 2 2, 6: 2 2, 6: 2 2, 6: 2 2,
    }
}

/// Vectors of sixteen floats, in thirty-two registers.
#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::*;
    use std::arch::x86_64::__m512;

    kernels! {
        __m512, #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")] 14, 4;
        1: 4 8, 2: 4 8, 3: 4 8, 4: 4 4, 5: 4 4, 6: 4 4, 7: 2 2,
        8: 2 2, 9: 2 2, 10: 2 2, 11: 2 2, 12: 2 2, 13: 2 2, 14: 2 2,
    }
}
