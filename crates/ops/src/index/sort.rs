//! Stable sorting of rows of u32 keys on CUDA, for ops that sort or visit elements in the order of an index. See `sort.cu`.

use dittograd_device::cuda::{Args, Cuda, Source};
use dittograd_numerics::error::Result;

const SORT_CU: &str = include_str!("sort.cu");

/// Up to this many keys of a single row, each key is compared with all others. 16384 keys take about 20 µs, and a radix sort is not
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

/// Whether each key is compared with all others.
fn is_ranked(rows: usize, n: usize) -> bool {
    rows == 1 && n <= MAX_RANKED_KEYS
}

/// Words of workspace for rows of `n` keys.
pub(crate) fn workspace(rows: usize, n: usize) -> usize {
    match rows * n {
        0 => 0,
        words if is_ranked(rows, n) => aligned(words),
        words => 2 * aligned(words) + 256 * rows * (n.div_ceil(KEYS_PER_BLOCK) + 1),
    }
}

/// Sorts each of `rows` rows of `n` keys below 2^`bits`. Writes the positions in a row by increasing key to `order`, equal
/// keys by increasing position. Returns where the sorted keys are: in `keys` or in the workspace. The contents of `keys`
/// are lost. There are fewer than 2^32 keys.
pub fn launch(
    cuda: &Cuda,
    keys: u64,
    (rows, n): (usize, usize),
    bits: u32,
    workspace: u64,
    order: u64,
) -> Result<u64> {
    let (name, source) = module();
    let (all, count) = (rows * n, n as u32);
    if all == 0 {
        return Ok(keys);
    }
    if is_ranked(rows, n) {
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
    let (spare, counts) = (workspace + words(aligned(all)), workspace + words(2 * aligned(all)));
    let (lists, totals) = (256 * rows, counts + words(256 * rows * tiles));
    let passes = bits.clamp(1, 32).div_ceil(8);
    let (mut from, mut to) = (keys, workspace);
    let mut positions = 0;
    for pass in 0..passes {
        // Buffers alternate so that the last pass writes to `order`.
        let moved = if (passes - pass) % 2 == 1 { order } else { spare };
        let grid = [(rows * tiles) as u32, 1, 1];
        let mut args = Args::new();
        args.ptr(from).u32(count).u32(tiles as u32).u32(8 * pass).ptr(counts);
        cuda.launch(digits, grid, 256, 0, &args)?;
        let mut args = Args::new();
        args.ptr(counts).ptr(totals).u32(lists as u32).u32(tiles as u32);
        cuda.launch(sums, [lists.div_ceil(8).min(1 << 16) as u32, 1, 1], 256, 0, &args)?;
        let mut args = Args::new();
        args.ptr(from)
            .ptr(positions)
            .u32(count)
            .u32(tiles as u32)
            .u32(8 * pass)
            .ptr(counts)
            .ptr(totals)
            .ptr(to)
            .ptr(moved);
        cuda.launch(moves, grid, 256, 0, &args)?;
        positions = moved;
        std::mem::swap(&mut from, &mut to);
    }
    Ok(from)
}
