//! Products in digits: modes `fast` and `turbo`. Every element is an exact integer sum over a chunk of k, rounded once
//! ([`dittograd_numerics::digits`]), so tiles, threads and instruction sets cannot change a bit.
//!
//! For each chunk, all threads first convert both operands to packed digits, each element once, and then compute blocks of C. An
//! operand is packed in panels of `LINES` rows of A or columns of B (its *lines*), and a panel in steps of `STEP` terms. A tile
//! of C is one panel of A times one panel of B, over the whole chunk. All its digits are multiplied while they are in the cache.
//!
//! - `bytes`: packing for `amx` and `vnni`, 8-bit digits, and what they share: one rounding of the sums of a tile;
//! - `amx`: tiles of AMX, `tdpbssd`;
//! - `vnni`: AVX-512 VNNI, `vpdpbusd`;
//! - `words`: AVX2 (`vpmaddwd`) and any other processor: digits of A times 16-bit parts of B;
//! - `small`: products of small operands, which attention packs itself.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod bytes;
mod small;
#[cfg(target_arch = "x86_64")]
mod vnni;
mod words;

pub use small::{Operand, Order, Small};

use super::Gemm;
use crate::cpu::LINE;
use crate::cpu::simd::Simd;
use crate::cpu::threads::Pool;
use dittograd_numerics::digits::{DIGIT_CHUNK, Digits, exponent};

/// Lines of a panel: rows and columns of a tile.
pub(in crate::cpu) const LINES: usize = 16;
/// Terms of a step.
pub(in crate::cpu) const STEP: usize = 64;
/// The most panels that a task converts: its lines are neighbours, and so are their elements if k is the outer dimension.
pub(in crate::cpu) const MAX_STRIP: usize = 4;
/// The most bytes of packed A in a block of C, so that it stays in the L2 cache.
const MAX_BLOCK_A: usize = 512 << 10;
/// The most bytes of packed digits of a few small products that are computed together.
const MAX_GROUP: usize = 16 << 20;
/// Tasks for each thread, so that threads finish together.
const TASKS_PER_THREAD: usize = 8;

/// An operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::cpu) enum Side {
    A,
    B,
}

/// The exponent of a line whose largest magnitude is given, as [`Pack`] has it.
pub(in crate::cpu) fn exponent_of(largest: u32) -> f32 {
    exponent(largest).map_or(f32::NAN, |e| e as f32)
}

/// Some panels of an operand to convert: elements, and where their digits go.
pub(in crate::cpu) struct Pack {
    pub digits: Digits,
    pub side: Side,
    /// The first term of the first line.
    pub from: *const f32,
    /// From one line to the next if lines run along k, else from one term to the next.
    pub stride: usize,
    pub along_k: bool,
    pub lines: usize,
    pub terms: usize,
    /// Packed digits of the first panel, and the bytes of a panel.
    pub to: *mut u8,
    pub panel_len: usize,
    /// The exponent of each line as a float, or NaN if it has an element that is not finite. Padded to whole panels.
    pub exponents: *mut f32,
    /// Whether the exponents are there already. Otherwise they are those of the lines, and are written.
    pub known: bool,
}

/// A block of C: some panels of A times some panels of B, packed, over one chunk.
pub(in crate::cpu) struct Block {
    pub digits: Digits,
    /// Steps of the chunk.
    pub steps: usize,
    pub a: *const u8,
    pub b: *const u8,
    /// Bytes of a panel.
    pub a_len: usize,
    pub b_len: usize,
    pub a_exponents: *const f32,
    pub b_exponents: *const f32,
    pub rows: usize,
    pub cols: usize,
    pub c: *mut f32,
    pub stride_c: usize,
    /// Whether this is the first chunk: C holds nothing yet.
    pub first: bool,
    /// Bias of the block's columns if this is the last chunk, or null.
    pub bias: *const f32,
}

/// How one instruction set computes.
pub(in crate::cpu) struct Kernels {
    /// Bytes of a step of a packed panel.
    pub step_len: fn(Digits, Side) -> usize,
    /// A step of a packed panel of B is rows of 16 words of 32 bits, one for each line. Some words together hold four terms of a line:
    /// the rows from one group of four terms to the next, and from one of its words to the next.
    pub word_strides: fn(Digits) -> [usize; 2],
    /// # Safety
    /// `Pack` points to what it says, and no other thread uses where it writes. The processor has the instructions.
    pub pack: unsafe fn(&Pack),
    /// # Safety
    /// `Block` points to what it says, and no other thread uses its part of C. The processor has the instructions.
    pub multiply: unsafe fn(&Block),
}

impl Kernels {
    pub fn of(simd: Simd) -> &'static Kernels {
        match simd.usable() {
            #[cfg(target_arch = "x86_64")]
            Simd::Amx if amx::permitted() => &amx::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Simd::Avx512 | Simd::Amx if vnni::available() => &vnni::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Simd::Avx2 | Simd::Avx512 | Simd::Amx => &words::AVX2,
            _ => &words::SCALAR,
        }
    }
}

/// The most bytes of a step of a packed panel, over all SIMD levels: those of `words`.
pub(in crate::cpu) fn most_step_len(digits: Digits, side: Side) -> usize {
    words::step_len(digits, side)
}

/// Where the packed operands of a product lie in the workspace, in bytes, and how many products are computed together.
struct Layout {
    a: usize,
    b: usize,
    a_exponents: usize,
    b_exponents: usize,
    len: usize,
    group: usize,
}

impl Gemm {
    /// Room for operands whose steps have so many bytes.
    fn digits_layout(&self, a_step: usize, b_step: usize) -> Layout {
        let steps = self.k.min(DIGIT_CHUNK).div_ceil(STEP);
        let (a_panels, b_panels) = (self.m.div_ceil(LINES), self.n.div_ceil(LINES));
        let b = a_panels * steps * a_step;
        let a_exponents = b + b_panels * steps * b_step;
        let b_exponents = a_exponents + a_panels * LINES * size_of::<f32>();
        let len = b_exponents + b_panels * LINES * size_of::<f32>();
        Layout {
            a: 0,
            b,
            a_exponents,
            b_exponents,
            len,
            group: (MAX_GROUP / len.max(1)).clamp(1, self.batch.max(1)),
        }
    }

    /// The layout that has room for the packed digits of every SIMD level: those of `words`.
    fn digits_room(&self, digits: Digits) -> Layout {
        self.digits_layout(most_step_len(digits, Side::A), most_step_len(digits, Side::B))
    }

    /// Number of floats of workspace that [`Gemm::run_digits`] needs, at any SIMD level and number of threads.
    pub fn digits_scratch_len(&self, digits: Digits) -> usize {
        let room = self.digits_room(digits);
        LINE + room.group * room.len / size_of::<f32>()
    }

    /// Computes C in digits. `scratch` has at least [`digits_scratch_len`](Gemm::digits_scratch_len) elements, of any value. The bias
    /// is added last, as in [`Gemm::run`].
    ///
    /// # Panics
    /// If a slice does not have the length that the sizes give.
    #[allow(clippy::too_many_arguments)]
    pub fn run_digits(
        &self,
        digits: Digits,
        pool: &Pool,
        simd: Simd,
        a: &[f32],
        b: &[f32],
        bias: Option<&[f32]>,
        c: &mut [f32],
        scratch: &mut [f32],
    ) {
        self.check_lengths(a, b, bias, c);
        let Gemm { batch, n, k, .. } = *self;
        if c.is_empty() {
            return;
        }
        if k == 0 {
            for row in c.chunks_exact_mut(n) {
                row.fill(0.0);
                row.iter_mut().zip(bias.unwrap_or_default()).for_each(|(c, bias)| *c += bias);
            }
            return;
        }
        assert!(scratch.len() >= self.digits_scratch_len(digits), "length of scratch");
        let skip = scratch.as_ptr().align_offset(4 * LINE).min(LINE);
        let scratch = &mut scratch[skip..];
        let kernels = Kernels::of(simd);
        let (a_step, b_step) = ((kernels.step_len)(digits, Side::A), (kernels.step_len)(digits, Side::B));
        let room = self.digits_room(digits);
        let layout = Layout { group: room.group, ..self.digits_layout(a_step, b_step) };
        assert!(layout.len <= room.len, "room for every level");
        let work = Work {
            gemm: *self,
            digits,
            kernels,
            layout,
            a_step,
            b_step,
            a: a.as_ptr(),
            b: b.as_ptr(),
            bias: bias.map_or(std::ptr::null(), <[f32]>::as_ptr),
            c: c.as_mut_ptr(),
            scratch: scratch.as_mut_ptr().cast(),
        };
        for first in (0..batch).step_by(work.layout.group) {
            let products = first..batch.min(first + work.layout.group);
            for k0 in (0..k).step_by(DIGIT_CHUNK) {
                let terms = DIGIT_CHUNK.min(k - k0);
                work.pack(pool, products.clone(), k0, terms);
                work.multiply(pool, products.clone(), k0, terms);
            }
        }
    }
}

/// A product in progress.
struct Work {
    gemm: Gemm,
    digits: Digits,
    kernels: &'static Kernels,
    layout: Layout,
    a_step: usize,
    b_step: usize,
    a: *const f32,
    b: *const f32,
    bias: *const f32,
    c: *mut f32,
    scratch: *mut u8,
}

// SAFETY: the pointers point into slices that `Gemm::run_digits` borrows for as long as a `Work` lives. A, B and bias are only read,
// and tasks write parts of C and of the workspace that have nothing in common.
unsafe impl Sync for Work {}

/// Part `i` of `len` things cut into `parts`.
fn part(len: usize, parts: usize, i: usize) -> std::ops::Range<usize> {
    i * len / parts..(i + 1) * len / parts
}

impl Work {
    /// Converts a chunk of some products.
    fn pack(&self, pool: &Pool, products: std::ops::Range<usize>, k0: usize, terms: usize) {
        let Gemm { m, n, k, ta, tb, .. } = self.gemm;
        let (steps, tasks) = (terms.div_ceil(STEP), TASKS_PER_THREAD * pool.threads());
        let panels = (m.div_ceil(LINES) + n.div_ceil(LINES)) * products.len();
        let strip = LINES * (panels / tasks).clamp(1, MAX_STRIP);
        let (a_strips, strips) = (m.div_ceil(strip), m.div_ceil(strip) + n.div_ceil(strip));
        pool.run(products.len() * strips, |task| {
            let (x, s) = (task / strips, task % strips);
            let base = self.scratch.wrapping_add(x * self.layout.len);
            let is_a = s < a_strips;
            let (side, lines, along_k, matrix, step) = match is_a {
                true => (Side::A, m, !ta, self.a, self.a_step),
                false => (Side::B, n, tb, self.b, self.b_step),
            };
            let (to, exponents) = match is_a {
                true => (self.layout.a, self.layout.a_exponents),
                false => (self.layout.b, self.layout.b_exponents),
            };
            let line = strip * if is_a { s } else { s - a_strips };
            let stride = if along_k { k } else { lines };
            let at = if along_k { line * k + k0 } else { k0 * lines + line };
            let panel_len = steps * step;
            let pack = Pack {
                digits: self.digits,
                side,
                from: matrix.wrapping_add((products.start + x) * lines * k + at),
                stride,
                along_k,
                lines: strip.min(lines - line),
                terms,
                to: base.wrapping_add(to + line / LINES * panel_len),
                panel_len,
                exponents: base.wrapping_add(exponents).cast::<f32>().wrapping_add(line),
                known: false,
            };
            // SAFETY: the lines and terms are inside the operand, whose length was checked, the workspace has room for whole panels of
            // every product, and each strip is packed by one task. `Kernels::of` gives instructions that the processor has.
            unsafe { (self.kernels.pack)(&pack) };
        });
    }

    /// Multiplies a chunk of some products, which is packed.
    fn multiply(&self, pool: &Pool, products: std::ops::Range<usize>, k0: usize, terms: usize) {
        let Gemm { m, n, k, .. } = self.gemm;
        let steps = terms.div_ceil(STEP);
        let (a_len, b_len) = (steps * self.a_step, steps * self.b_step);
        let (a_panels, b_panels) = (m.div_ceil(LINES), n.div_ceil(LINES));
        let row_blocks = a_panels.div_ceil((MAX_BLOCK_A / a_len).max(1));
        // Columns are cut first: the next block then finds its part of A in the cache.
        let target = (TASKS_PER_THREAD * pool.threads()).div_ceil(products.len());
        let col_blocks = target.div_ceil(row_blocks).clamp(1, b_panels);
        let row_blocks = target.div_ceil(col_blocks).max(row_blocks).min(a_panels);
        let blocks = row_blocks * col_blocks;
        pool.run(products.len() * blocks, |task| {
            let (x, row, col) = (task / blocks, task % blocks / col_blocks, task % col_blocks);
            let (i, j) = (part(a_panels, row_blocks, row), part(b_panels, col_blocks, col));
            let base = self.scratch.wrapping_add(x * self.layout.len).cast_const();
            let (row, col) = (i.start * LINES, j.start * LINES);
            let block = Block {
                digits: self.digits,
                steps,
                a: base.wrapping_add(self.layout.a + i.start * a_len),
                b: base.wrapping_add(self.layout.b + j.start * b_len),
                a_len,
                b_len,
                a_exponents: base.wrapping_add(self.layout.a_exponents).cast::<f32>().wrapping_add(row),
                b_exponents: base.wrapping_add(self.layout.b_exponents).cast::<f32>().wrapping_add(col),
                rows: m.min(i.end * LINES) - row,
                cols: n.min(j.end * LINES) - col,
                c: self.c.wrapping_add((products.start + x) * m * n + row * n + col),
                stride_c: n,
                first: k0 == 0,
                bias: match k0 + terms == k && !self.bias.is_null() {
                    true => self.bias.wrapping_add(col),
                    false => std::ptr::null(),
                },
            };
            // SAFETY: the panels are inside the packed operands, the rows and columns inside C, and no two blocks have an element in
            // common. `Kernels::of` gives instructions that the processor has.
            unsafe { (self.kernels.multiply)(&block) };
        });
    }
}
