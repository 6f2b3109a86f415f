//! Tiles of products, and the one that is expected to be fastest.

use super::BLOCK;
use crate::Gpu;
use dittograd_numerics::digits::Digits;

/// Bytes of shared memory of a multiprocessor of compute capability 9.0, and those of a block of threads that it keeps for itself.
const SHARED: usize = 228 << 10;
const RESERVED: usize = 1 << 10;

/// Tiles for `wgmma` begin at multiples of 1024 bytes.
const ALIGN: usize = 1 << 10;

/// Bytes that a warp spreads results by, and those of a column besides its digits: where they begin, and in each stage its scale and where
/// its results are.
const SPREAD: usize = 16 * 32 * 4;
const START: usize = 8;
const COLUMN: usize = 8;
const WIDE_COLUMN: usize = 12;

/// Bytes of a stage besides its digits and columns: its tile and its barriers.
const STAGE: usize = 88;

/// Places of results from which on they need 64 bits.
const WIDE: usize = 1 << 31;

/// How the product is cut: parts of a tile, down and across, each with so many rows and columns, and what a tile takes on an H200.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    pub(super) hopper: bool,
    pub(super) parts: [usize; 2],
    rows: usize,
    pub(super) columns: usize,
    pub(super) threads: usize,
    pub(super) stages: usize,
    resident: usize,
    /// Places of results need 64 bits.
    pub(super) is_wide: bool,
    /// Cycles of a block of digits, where a multiprocessor has one tile and where it has as many as it can, and to begin and to end a tile.
    alone: f64,
    block: f64,
    ends: f64,
}

impl Tile {
    /// With warps of 32 rows and 32 columns, by `mma.sync`.
    fn of_warps(down: usize, across: usize, is_wide: bool) -> Tile {
        let [rows, columns] = [32 * down, 32 * across];
        let parts = [down, across];
        Tile {
            hopper: false,
            parts,
            rows,
            columns,
            threads: 32 * down * across,
            stages: 3,
            resident: 2,
            is_wide,
            alone: 2400.0,
            block: 2400.0,
            ends: 3000.0,
        }
    }

    /// With warp groups of 64 rows below each other, by `wgmma`, and one more that copies.
    fn of_groups(digits: Digits, down: usize, columns: usize, is_wide: bool) -> Tile {
        // A group that multiplies alone takes more than half as long as two, since the columns of a tile are copied for it alone.
        let (resident, alone, block, ends) = match (digits, columns, down) {
            (Digits::Two, 128, 1) => (2, 1100.0, 1500.0, 5000.0),
            (Digits::Two, 128, _) => (1, 1290.0, 1290.0, 5000.0),
            (Digits::Two, _, 1) => (2, 900.0, 1250.0, 4000.0),
            (Digits::Two, ..) => (1, 1000.0, 1000.0, 4000.0),
            (Digits::Three, _, 1) => (2, 1500.0, 2400.0, 4500.0),
            (Digits::Three, ..) => (1, 2010.0, 2010.0, 4800.0),
        };
        let rows = 64 * down;
        let stage = columns * if is_wide { WIDE_COLUMN } else { COLUMN } + STAGE;
        // The tile that is ended has columns, too.
        let others = ALIGN + columns * START + 4 * down * SPREAD + stage;
        let room = SHARED / resident - RESERVED - others;
        let stages = room / (digits.count() * (rows + columns) * BLOCK + stage);
        Tile {
            hopper: true,
            parts: [down, 1],
            rows,
            columns,
            threads: 128 * (1 + down),
            stages,
            resident,
            is_wide,
            alone,
            block,
            ends,
        }
    }

    /// The one that is expected to be fastest for `items` products of `sizes` rows and columns, whose results have `span` places. `is_beside`:
    /// other kernels run beside it and take the places that it leaves, so that only its work counts.
    pub(super) fn best(
        digits: Digits,
        gpu: &Gpu,
        sizes: [usize; 2],
        items: usize,
        blocks: usize,
        span: usize,
        is_beside: bool,
    ) -> Tile {
        let [m, n] = sizes;
        let is_wide = span >= WIDE;
        let of_warps = if m <= 32 { Tile::of_warps(1, 4, is_wide) } else { Tile::of_warps(2, 2, is_wide) };
        let all: &[usize] = match digits {
            Digits::Two => &[128, 96],
            Digits::Three => &[96],
        };
        let of_groups = all
            .iter()
            .flat_map(|&columns| [2, 1].map(|down| Tile::of_groups(digits, down, columns, is_wide)));
        let time = |tile: &Tile| {
            let (count, places) = (tile.count(m, n, items), tile.places(gpu.sm_count));
            let block = if is_beside || count > gpu.sm_count as usize { tile.block } else { tile.alone };
            let turns = if is_beside { count as f64 / places as f64 } else { count.div_ceil(places) as f64 };
            turns * (blocks as f64 * block + tile.ends)
        };
        let better = |best: Tile, tile: Tile| if time(&tile) < time(&best) { tile } else { best };
        of_groups.filter(|_| gpu.hopper).fold(of_warps, better)
    }

    pub(super) fn count(&self, m: usize, n: usize, items: usize) -> usize {
        m.div_ceil(self.rows) * n.div_ceil(self.columns) * items
    }

    /// Blocks of threads that run at a time.
    pub(super) fn places(&self, sm_count: u32) -> usize {
        self.resident * sm_count.max(1) as usize
    }

    pub(super) fn shared(&self, digits: Digits) -> usize {
        let warps = if self.hopper { 4 * self.parts[0] } else { self.parts[0] * self.parts[1] };
        let ring = self.stages * digits.count() * (self.rows + self.columns) * BLOCK;
        ring + warps * SPREAD + if self.hopper { ALIGN } else { 0 }
    }
}
