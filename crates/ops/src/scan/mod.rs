//! Scans: cumulative sums, and the linear recurrence of state-space models.
//!
//! *Prefix rule* of the cumulative sum: a line has chunks of 1024 elements, a chunk has 32 blocks of 32. Each block is
//! summed sequentially from its first element. Inside a chunk, the blocks' totals are summed sequentially; block total
//! plus sum inside the block is the scan inside the chunk. Along the line, the chunks' totals are summed sequentially,
//! and the total before a chunk is added in front. The value at the end of a block or chunk is what the next one starts
//! from, so an exclusive scan is the inclusive one shifted by one. A recurrence runs strictly in order.

#[cfg(feature = "cases")]
mod cases;
mod cumsum;
mod selective;

pub use cumsum::CumSum;
use dittograd_device::cuda::Source;
pub use selective::{SelectiveScan, SelectiveScanBwd};

/// Elements of a block of the prefix rule.
const BLOCK: usize = 32;

/// Elements of a chunk of the prefix rule: what one task or warp scans at a time.
const CHUNK: usize = BLOCK * BLOCK;

const SCAN_CU: &str = include_str!("scan.cu");

fn module() -> Source {
    crate::module("scan".into(), || format!("#define BLOCK {BLOCK}\n{SCAN_CU}"))
}

/// A grid of 128-thread blocks, one block per item up to a limit.
fn blocks(items: usize) -> [u32; 3] {
    [items.div_ceil(128).clamp(1, 1 << 20) as u32, 1, 1]
}
