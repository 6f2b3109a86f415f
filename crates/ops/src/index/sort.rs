//! Stable sorting of u32 keys on CUDA, for ops that must visit elements in the order of an index. See `sort.cu`.

use dittograd_device::cuda::{Args, Cuda, Source};
use dittograd_numerics::error::Result;

const SORT_CU: &str = include_str!("sort.cu");

/// Up to this many keys, each key is compared with all others. 16384 keys take about 20 µs, and a radix sort is not
/// faster for so few.
const MAX_RANKED_KEYS: usize = 16 * 1024;

/// Keys of a block of the radix sort.
const KEYS_PER_BLOCK: usize = 4096;

/// The module that [`launch`] uses.
pub(crate) fn module() -> Source {
    ("sort".into(), SORT_CU)
}

/// `n` rounded up, so that the next region of the workspace starts at a multiple of 16 bytes.
pub(crate) fn aligned(n: usize) -> usize {
    n.next_multiple_of(4)
}

/// Words of workspace for `n` keys.
pub(crate) fn workspace(n: usize) -> usize {
    match n {
        0 => 0,
        n if n <= MAX_RANKED_KEYS => aligned(n),
        n => 2 * aligned(n) + 256 * n.div_ceil(KEYS_PER_BLOCK),
    }
}

/// Sorts `n` keys below 2^`bits`. Writes the positions by increasing key to `order`, equal keys by increasing position.
/// Returns where the sorted keys are: in `keys` or in the workspace. The contents of `keys` are lost.
pub fn launch(cuda: &Cuda, keys: u64, n: usize, bits: u32, workspace: u64, order: u64) -> Result<u64> {
    let (name, source) = module();
    let count = n as u32;
    if n == 0 {
        return Ok(keys);
    }
    if n <= MAX_RANKED_KEYS {
        let kernel = cuda.kernel(&name, source, "rank_keys")?;
        let mut args = Args::new();
        args.ptr(keys).u32(count).ptr(workspace).ptr(order);
        cuda.launch(kernel, [n.div_ceil(64) as u32, 1, 1], 1024, 0, &args)?;
        return Ok(workspace);
    }
    let [digits, sums, moves] =
        ["radix_count", "radix_sum", "radix_move"].map(|k| cuda.kernel(&name, source, k));
    let (digits, sums, moves) = (digits?, sums?, moves?);
    let tiles = n.div_ceil(KEYS_PER_BLOCK);
    let words = |n: usize| n as u64 * 4;
    let (spare, counts) = (workspace + words(aligned(n)), workspace + words(2 * aligned(n)));
    let passes = bits.clamp(1, 32).div_ceil(8);
    let (mut from, mut to) = (keys, workspace);
    let mut positions = 0;
    for pass in 0..passes {
        // Buffers alternate so that the last pass writes to `order`.
        let moved = if (passes - pass) % 2 == 1 { order } else { spare };
        let grid = [tiles as u32, 1, 1];
        let mut args = Args::new();
        args.ptr(from).u32(count).u32(8 * pass).ptr(counts);
        cuda.launch(digits, grid, 256, 0, &args)?;
        let mut args = Args::new();
        args.ptr(counts).u64(256 * tiles as u64);
        cuda.launch(sums, [1, 1, 1], 1024, 0, &args)?;
        let mut args = Args::new();
        args.ptr(from).ptr(positions).u32(count).u32(8 * pass).ptr(counts).ptr(to).ptr(moved);
        cuda.launch(moves, grid, 256, 0, &args)?;
        positions = moved;
        std::mem::swap(&mut from, &mut to);
    }
    Ok(from)
}
