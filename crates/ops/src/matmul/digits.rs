//! How a product in digits (C9 of the contract) runs on CUDA: which variants of `digits.cu`, over which grids, in how many
//! splits of k. The choice affects only speed, never bits: sums of digits are exact.

use crate::fused::EpilogueCode;
use crate::matmul::plan::{BANDWIDTH, CLOCK, LAUNCH, MAX_X, Problem, clamp, defines};
use crate::workspace::Workspace;
use crate::{CudaRun, Gpu, Known, known};
use dittograd_device::cuda::{Args, Source};
use dittograd_numerics::digits::{DIGIT_CHUNK, Digits, LEAST_EXPONENT};
use dittograd_numerics::error::Result;
use std::sync::Arc;

const DIGITS_CU: &str = concat!(
    include_str!("results.cu"),
    include_str!("../magnitudes.cu"),
    include_str!("digit_parts.cu"),
    include_str!("hopper_parts.cu"),
    include_str!("digits.cu")
);

/// Terms of k in a block of digits.
const BLOCK: usize = 64;

/// Terms of rows that are not contiguous, that a block of threads holds at a time.
const SPAN: usize = 512;

/// Threads of a block, but for the product's.
const THREADS: u32 = 256;

/// Terms of a contiguous row that a warp holds. Up to eight warps share a row.
const WARP_TERMS: usize = 1024;

/// The most splits of k, and the fewest blocks of digits in one.
const MOST_SPLITS: usize = 16;
const LEAST_BLOCKS: usize = 8;

/// The product's kernel: tile, threads, stages of shared memory, blocks of threads on a multiprocessor, and what it takes on an H200.
struct Tile {
    rows: usize,
    columns: usize,
    threads: u32,
    stages: usize,
    resident: usize,
    /// Cycles of a block of digits.
    block: f64,
    /// Cycles to begin and to end a tile.
    ends: f64,
}

impl Tile {
    fn of(digits: Digits, hopper: bool) -> Tile {
        let (rows, threads) = if hopper { (128, 384) } else { (64, 128) };
        match (hopper, digits) {
            (true, Digits::Two) => {
                Tile { rows, columns: 128, threads, stages: 6, resident: 1, block: 1290.0, ends: 5500.0 }
            }
            (true, Digits::Three) => {
                Tile { rows, columns: 96, threads, stages: 5, resident: 1, block: 2010.0, ends: 4800.0 }
            }
            (false, _) => {
                Tile { rows, columns: 64, threads, stages: 3, resident: 2, block: 2400.0, ends: 3000.0 }
            }
        }
    }

    fn shared(&self, digits: Digits, hopper: bool) -> usize {
        // Tiles for `wgmma` begin at multiples of 1024 bytes.
        let gap = if hopper { 1024 } else { 0 };
        self.stages * digits.count() * (self.rows + self.columns) * BLOCK + gap
    }

    fn count(&self, p: &Problem) -> usize {
        p.m.div_ceil(self.rows) * p.n.div_ceil(self.columns) * p.batch
    }

    /// The expected time of a product in so many splits, in microseconds.
    fn time(&self, p: &Problem, splits: usize, sm_count: u32) -> f64 {
        let places = f64::from(sm_count.max(1)) * self.resident as f64;
        let waves = ((self.count(p) * splits) as f64 / places).ceil();
        let blocks = (p.k.div_ceil(BLOCK) as f64 / splits as f64).ceil();
        let sums =
            if splits == 1 { 0.0 } else { LAUNCH + p.outputs() as f64 * 16.0 * splits as f64 / BANDWIDTH };
        waves * (blocks * self.block + self.ends) / CLOCK + sums
    }
}

impl Problem {
    fn outputs(&self) -> usize {
        self.batch * self.m * self.n
    }
}

/// One operand: rows of k terms.
struct Operand {
    rows: usize,
    pitch: usize,
    /// Blocks of threads that share 32 rows of a chunk, if terms are not contiguous.
    parts: usize,
    /// Blocks of threads.
    places: usize,
    /// Where its digits and exponents begin in the workspace, in words.
    digits: usize,
    exponents: usize,
    /// Where its maxima begin, and the counts of parts that have come to theirs: zeros at first.
    maxima: usize,
    arrived: usize,
}

/// How one product in digits runs.
pub(super) struct DigitsPlan {
    operands: [Operand; 2],
    blocks: usize,
    chunks: usize,
    splits: usize,
    /// Words at the start of the workspace that are zeros at first: a count of pieces of work, then what is in [`Operand`]. 0 without any.
    zeros: usize,
    /// Where the sums of splits begin in the workspace, in words.
    sums: usize,
    /// Words of workspace.
    pub workspace: usize,
    tile: Tile,
    shared: usize,
    grid: usize,
    /// The kernels, where no program follows.
    convert: Source,
    product: Source,
    reduce: Option<Source>,
    product_defines: String,
    reduce_defines: String,
}

/// How a product in digits runs.
pub(super) fn planned(problem: &Problem, digits: Digits, gpu: &Gpu) -> Arc<DigitsPlan> {
    static KNOWN: Known<(Problem, Digits, Gpu), Arc<DigitsPlan>> = Known::new(Default::default);
    known(&KNOWN, (*problem, digits, *gpu), |(p, digits, gpu)| Arc::new(DigitsPlan::new(p, *digits, gpu)))
}

impl DigitsPlan {
    fn new(p: &Problem, digits: Digits, gpu: &Gpu) -> DigitsPlan {
        let (blocks, chunks) = (p.k.div_ceil(BLOCK), p.k.div_ceil(DIGIT_CHUNK));
        let tile = Tile::of(digits, gpu.hopper);
        // Exact sums of one chunk are added; results of several are not.
        let most = if chunks > 1 { 1 } else { (blocks / LEAST_BLOCKS).clamp(1, MOST_SPLITS) };
        let time = |splits: &usize| tile.time(p, *splits, gpu.sm_count);
        let splits = (1..=most).min_by(|a, b| time(a).total_cmp(&time(b))).unwrap_or(1);
        let mut space = Workspace::default();
        let strided = [p.ta, !p.tb];
        let warps = p.k.min(DIGIT_CHUNK).div_ceil(WARP_TERMS).next_power_of_two().min(8);
        // Of A, and of B.
        let counts = [if p.shares_a { p.batch.min(1) } else { p.batch }, p.batch];
        let strips = [p.m, p.n].map(|rows| rows.div_ceil(32));
        if strided.contains(&true) {
            space.take(1);
        }
        let zeroed = [0, 1].map(|i| match strided[i] {
            true => {
                [counts[i] * chunks * [p.m, p.n][i], counts[i] * chunks * strips[i]].map(|n| space.take(n))
            }
            false => [0; 2],
        });
        let zeros = space.words();
        let mut operand = |i: usize| {
            let rows = [p.m, p.n][i];
            let pitch = rows.next_multiple_of(8);
            let spans = (blocks * BLOCK).min(DIGIT_CHUNK).div_ceil(SPAN);
            // A multiprocessor has two blocks of this kernel: those that wait for each other take at most half of the GPU.
            let parts = spans.min(gpu.sm_count as usize).max(1);
            let each = if strided[i] { strips[i] * parts } else { pitch.div_ceil(8 / warps) };
            Operand {
                rows,
                pitch,
                parts,
                places: each * counts[i] * chunks,
                digits: space.take(counts[i] * blocks * digits.count() * pitch * BLOCK / 4),
                exponents: space.take(counts[i] * chunks * pitch),
                maxima: zeroed[i][0],
                arrived: zeroed[i][1],
            }
        };
        let operands = [operand(0), operand(1)];
        let sums = space.take(if splits > 1 { splits * p.outputs() * 2 } else { 0 });
        // Neighbours at a time, along an axis of this length.
        let whole = |length: usize, by: usize| usize::from(p.aligned && length.is_multiple_of(by));
        let (d, pairs) = (digits.count(), whole(p.n, 2));
        let convert = defines(&[
            ("PART", 0),
            ("DIGITS", d),
            ("TA", usize::from(p.ta)),
            ("TB", usize::from(p.tb)),
            ("VA", whole(if p.ta { p.m } else { p.k }, 4)),
            ("VB", whole(if p.tb { p.k } else { p.n }, 4)),
            ("WARPS", warps),
        ]);
        let bias = usize::from(p.has_bias);
        let product_defines = defines(&[
            ("PART", 1),
            ("DIGITS", d),
            ("VC", pairs),
            ("BIAS", if splits > 1 { 0 } else { bias }),
            ("SPLIT", usize::from(splits > 1)),
            ("HOPPER", usize::from(gpu.hopper)),
            ("ACROSS", tile.columns),
        ]);
        let reduce_defines = defines(&[("PART", 2), ("DIGITS", d), ("VC", pairs), ("BIAS", bias)]);
        let places = gpu.sm_count as usize * tile.resident;
        DigitsPlan {
            convert: source(&convert, None),
            product: source(&product_defines, None),
            reduce: (splits > 1).then(|| source(&reduce_defines, None)),
            shared: tile.shared(digits, gpu.hopper),
            grid: (tile.count(p) * splits).min(places.max(1)),
            operands,
            blocks,
            chunks,
            splits,
            zeros,
            sums,
            workspace: space.words(),
            tile,
            product_defines,
            reduce_defines,
        }
    }

    /// Its kernels, with an epilogue or without.
    pub(super) fn modules(&self, epilogue: Option<&EpilogueCode>) -> Vec<Source> {
        let first = if self.reduce.is_some() { None } else { epilogue };
        let mut modules = vec![self.convert.clone(), source(&self.product_defines, first)];
        modules.extend(self.reduce.is_some().then(|| source(&self.reduce_defines, epilogue)));
        modules
    }

    /// Queues the product of these operands.
    pub(super) fn launch(&self, p: &Problem, operands: [u64; 2], run: &CudaRun<'_>) -> Result<()> {
        let address = |word: usize| run.workspace + word as u64 * 4;
        let epilogue = run.fused.epilogue;
        let (module, text) = &self.convert;
        let of_operand = |operand: &Operand, x: u64| {
            let places = [operand.maxima, operand.arrived, operand.exponents, operand.digits];
            let [maxima, arrived, exponents, digits] = places.map(address);
            let sizes = [operand.rows * p.k, operand.rows, p.k, operand.pitch, self.blocks, self.chunks];
            let [stride, rows, k, pitch, blocks, chunks] = sizes.map(|n| n as u64);
            let parts = operand.parts as u64;
            [x, stride, rows, k, pitch, blocks, chunks, maxima, arrived, parts, exponents, digits]
        };
        let [a, b] = &self.operands;
        if self.zeros > 0 {
            run.cuda.fill(run.workspace, 0, self.zeros)?;
        }
        let kernel = run.cuda.kernel(module, text, "ditto_digits")?;
        let mut args = Args::new();
        args.bytes(bytemuck::cast_slice(&of_operand(a, operands[0])), 8);
        args.bytes(bytemuck::cast_slice(&of_operand(b, operands[1])), 8);
        args.u64(a.places as u64).ptr(run.workspace);
        run.cuda.launch(kernel, [clamp(a.places + b.places, MAX_X), 1, 1], THREADS, 0, &args)?;
        let (first, last) = if self.reduce.is_some() { (None, epilogue) } else { (epilogue, None) };
        let bias = if p.has_bias { run.ins[2] } else { 0 };
        let own = first.map(|epilogue| source(&self.product_defines, Some(epilogue)));
        let (module, text) = own.as_ref().unwrap_or(&self.product);
        let kernel = run.cuda.kernel(module, text, "ditto_digits_product")?;
        let pointers = [a.digits, b.digits, a.exponents, b.exponents].map(address);
        let shares_a = usize::from(p.shares_a);
        let sizes = [p.m, p.n, self.blocks, self.chunks, a.pitch, b.pitch, p.batch, shares_a, self.splits];
        let mut words = pointers.to_vec();
        words.extend(sizes.map(|n| n as u64));
        words.push(address(self.sums));
        let mut args = Args::new();
        args.bytes(bytemuck::cast_slice(&words), 8).ptr(run.out).ptr(bias);
        if let Some(epilogue) = first {
            epilogue.push(&mut args);
        }
        let grid = [clamp(self.grid, MAX_X), 1, 1];
        run.cuda.launch(kernel, grid, self.tile.threads, self.shared as u32, &args)?;
        let Some(plain) = &self.reduce else { return Ok(()) };
        let own = last.map(|epilogue| source(&self.reduce_defines, Some(epilogue)));
        let (module, text) = own.as_ref().unwrap_or(plain);
        let kernel = run.cuda.kernel(module, text, "ditto_digits_reduce")?;
        let mut args = Args::new();
        args.ptr(address(self.sums))
            .ptr(address(a.exponents))
            .ptr(address(b.exponents))
            .ptr(run.out)
            .ptr(bias);
        for n in [p.m, p.n, a.pitch, b.pitch, p.batch, shares_a, self.splits] {
            args.u64(n as u64);
        }
        if let Some(epilogue) = last {
            epilogue.push(&mut args);
        }
        let grid = [clamp(p.outputs().div_ceil(2 * THREADS as usize), MAX_REDUCE), 1, 1];
        run.cuda.launch(kernel, grid, THREADS, 0, &args)
    }
}

/// The most blocks of the kernel that adds splits, which walks the rest in a loop.
const MAX_REDUCE: usize = 1 << 12;

/// A variant of the kernels: a name of its own, and the text.
fn source(lines: &str, epilogue: Option<&EpilogueCode>) -> Source {
    let contract = format!("#define DIGIT_CHUNK {DIGIT_CHUNK}\n#define LEAST_EXPONENT ({LEAST_EXPONENT})\n");
    super::text("digits", lines, epilogue, |before| format!("{contract}{lines}{before}{DIGITS_CU}"))
}
