//! How rows are distributed over a GPU. It changes the speed, not the sums.

use super::{fills_lanes, per_lane};
use crate::Gpu;
use crate::pointwise::map::grid;
use dittograd_device::cuda::Cuda;
use dittograd_numerics::sum::{CHUNK, LANES};

/// The kernel for rows of a given length.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Variant {
    /// A warp per row, so many elements per lane in registers; `exact` if all of them are used.
    Warp { per_lane: usize, exact: bool },
    /// A block per row of one input, a warp for so many of its chunks. Aligned rows divide by four.
    Chunks { warps: u32, chunks: u32, aligned: bool },
    /// A block per row, the rows of the first `staged` inputs in shared memory, the next ones on their way to a second
    /// buffer if there is room. Aligned rows divide by four.
    Shared { threads: u32, aligned: bool, staged: usize, buffers: u32 },
    /// A block per row that does not fit into shared memory.
    Long,
}

/// Threads of a block whose warps have a row each.
const WARP_THREADS: u32 = 256;

/// Threads of a block that has a row of [`Variant::Long`].
const LONG_THREADS: u32 = 1024;

/// Chunks of a row of [`Variant::Shared`] at most: so many sums have room in shared memory.
const MOST_CHUNKS: usize = 64;

/// Words of rows up to which a block copies the next ones to a second buffer.
const MOST_BUFFERED: usize = 12288;

/// Elements that a lane with two chunks keeps in shared memory: 48 registers are as many as fit beside a formula's own.
const UNREGISTERED: usize = 16;

impl Variant {
    /// The kernel of short rows.
    fn warp(columns: usize) -> Variant {
        Variant::Warp { per_lane: per_lane(columns), exact: fills_lanes(columns) }
    }

    /// The kernel that stages rows of so many inputs, for formulas of `one` input or of several.
    pub(super) fn of(columns: usize, inputs: usize, one: bool, gpu: &Gpu) -> Variant {
        // A little is left for the sums.
        let room = gpu.shared.saturating_sub(1024) / 4;
        let aligned = columns.is_multiple_of(4);
        let all = columns.div_ceil(CHUNK);
        let chunks = if all <= LANES { 1 } else { 2 };
        let warps = all.div_ceil(chunks);
        match columns {
            n if n <= CHUNK => Variant::warp(columns),
            _ if one && warps <= LANES && warps * chunk_words(chunks as u32, aligned) <= room => {
                Variant::Chunks { warps: warps as u32, chunks: chunks as u32, aligned }
            }
            _ if buffer_words(columns) <= room.min(MOST_CHUNKS * CHUNK) => {
                // Each thread takes about 32 elements: more threads wait for each other longer than they help.
                let threads = match columns {
                    ..=2048 => 64,
                    2049..=4096 => 128,
                    4097..=8192 => 256,
                    _ => 512,
                };
                let staged = if inputs * buffer_words(columns) <= room { inputs } else { 1 };
                let buffers =
                    if staged * columns <= MOST_BUFFERED.min(room / 2 - 4 * staged) { 2 } else { 1 };
                Variant::Shared { threads, aligned, staged, buffers }
            }
            _ => Variant::Long,
        }
    }

    /// Its part of a module's name.
    pub(super) fn name(self) -> String {
        let tag = |aligned: bool| if aligned { "a" } else { "" };
        match self {
            Variant::Warp { per_lane, exact } => format!("warp{per_lane}{}", if exact { "e" } else { "" }),
            Variant::Chunks { warps, chunks, aligned } => format!("chunks{chunks}x{warps}{}", tag(aligned)),
            Variant::Shared { threads, aligned, staged, buffers } => {
                format!("shared{threads}x{staged}x{buffers}{}", tag(aligned))
            }
            Variant::Long => "long".into(),
        }
    }

    /// The parameters of its kernel, and the kernel.
    pub(super) fn source(self) -> (Vec<(&'static str, usize)>, &'static str) {
        match self {
            Variant::Warp { per_lane, exact } => (
                vec![
                    ("THREADS", WARP_THREADS as usize),
                    ("PER_LANE", per_lane),
                    ("EXACT", usize::from(exact)),
                ],
                include_str!("rows_warp.cu"),
            ),
            Variant::Chunks { warps, chunks, aligned } => (
                vec![
                    ("WARPS", warps as usize),
                    ("BLOCKS", resident(warps) as usize),
                    ("CHUNKS", chunks as usize),
                    ("IN_SHARED", if chunks == 2 { UNREGISTERED } else { 0 }),
                    ("SHIFT", shift(aligned)),
                ],
                concat!(include_str!("row_copy.cu"), include_str!("rows_chunks.cu")),
            ),
            Variant::Shared { threads, aligned, staged, buffers } => (
                vec![
                    ("THREADS", threads as usize),
                    ("ALIGNED", usize::from(aligned)),
                    ("STAGED", staged),
                    ("BUFFERS", buffers as usize),
                    ("MOST_CHUNKS", MOST_CHUNKS),
                ],
                include_str!("rows_shared.cu"),
            ),
            Variant::Long => (vec![("THREADS", LONG_THREADS as usize)], include_str!("rows_long.cu")),
        }
    }

    /// The grid, the threads of a block and the bytes of its shared memory, for so many rows.
    pub(super) fn launch(self, rows: usize, columns: usize, cuda: &Cuda) -> ([u32; 3], u32, u32) {
        let sms = cuda.sm_count() as usize;
        let up_to = |blocks: usize| [rows.min(blocks) as u32, 1, 1];
        match self {
            Variant::Warp { .. } => (grid(cuda, rows * LANES), WARP_THREADS, 0),
            Variant::Chunks { warps, chunks, aligned } => {
                let shared = 4 * warps * chunk_words(chunks, aligned) as u32;
                (up_to(sms * resident(warps) as usize), warps * 32, shared)
            }
            Variant::Shared { threads, staged, buffers, .. } => {
                let shared = buffers as usize * staged * buffer_words(columns) * 4;
                // As many blocks as a multiprocessor holds at a time: those beyond would come after all others
                // and have it to themselves. Each block takes a little more shared memory than its rows.
                let room = (cuda.max_shared_per_block() + 1024) / (shared + 1024 + 512);
                let resident = (2048 / threads as usize).min(32).min(room).max(1);
                (up_to(sms * resident), threads, shared as u32)
            }
            // One row per multiprocessor at a time: more would push each other out of the L2 cache.
            Variant::Long => (up_to(sms), LONG_THREADS, 0),
        }
    }
}

/// Blocks of so many warps that a multiprocessor holds, with a chunk in registers each.
fn resident(warps: u32) -> u32 {
    (LANES as u32 / warps).max(1)
}

/// Elements before a row that may be copied with it from an aligned address, rounded to one.
const fn shift(aligned: bool) -> usize {
    if aligned { 0 } else { 4 }
}

/// Words of shared memory for a warp's chunks, with room for what may be copied before and after them.
const fn chunk_words(chunks: u32, aligned: bool) -> usize {
    chunks as usize * CHUNK + 2 * shift(aligned)
}

/// Words of shared memory a row takes: whole vectors, wherever the row starts within the first.
fn buffer_words(columns: usize) -> usize {
    if columns.is_multiple_of(4) { columns } else { (columns + 3).next_multiple_of(4) }
}
