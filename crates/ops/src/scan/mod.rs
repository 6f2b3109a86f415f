//! Scans: cumulative sums, and the linear recurrence of state-space models.
//!
//! *Prefix rule* of the cumulative sum: chunks of 1024 elements, each of 32 blocks of 32. A chain runs inside
//! each block from its first element, and a chain over the last elements of the blocks runs inside each chunk;
//! their sum is the scan inside the chunk. A chain over the last elements of the chunks runs along the line, and
//! what it had before the chunk is added in front. The value at the end of a block or chunk is what the next one
//! starts from, so that an exclusive scan is the inclusive one moved on by one. A recurrence runs strictly in order.

#[cfg(feature = "cases")]
mod cases;
mod cumsum;
mod selective;

pub use cumsum::CumSum;
use dittograd_device::cuda::Source;
pub use selective::{SelectiveScan, SelectiveScanBwd};

/// Elements of a block of the prefix rule.
const BLOCK: usize = 32;

/// Two levels of it: what one task or warp scans at a time.
const CHUNK: usize = BLOCK * BLOCK;

const SCAN_CU: &str = include_str!("scan.cu");

fn module() -> Source {
    crate::module("scan".into(), || format!("#define BLOCK {BLOCK}\n{SCAN_CU}"))
}

/// Blocks of 128 threads, one for each of `items` unless there are very many.
fn blocks(items: usize) -> [u32; 3] {
    [items.div_ceil(128).clamp(1, 1 << 20) as u32, 1, 1]
}
