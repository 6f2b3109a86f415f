//! Products of small operands, for kernels that make operands as they go: an operand is packed once, and may be multiplied many times.
//! A product runs on the calling thread and has one chunk.
#![allow(unsafe_code)]

use super::{Block, Kernels, LINE, LINES, MAX_STRIP, Pack, STEP, Side, words};
use crate::cpu::simd::Simd;
use dittograd_numerics::digits::{DIGIT_CHUNK, Digits};

/// Packs and multiplies at a SIMD level. The level changes the speed, never a bit.
#[derive(Clone, Copy)]
pub struct Small {
    kernels: &'static Kernels,
    digits: Digits,
}

/// The rows of A or the columns of B (its *lines*), and the terms of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operand {
    side: Side,
    lines: usize,
    terms: usize,
}

/// How the elements of an operand lie in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Terms of a line are neighbours, and lines are so many elements apart.
    Lines(usize),
    /// Lines are neighbours, and terms are so many elements apart.
    Terms(usize),
}

impl Operand {
    /// Rows of A.
    pub fn rows(lines: usize, terms: usize) -> Operand {
        Operand { side: Side::A, lines, terms }
    }

    /// Columns of B.
    pub fn columns(lines: usize, terms: usize) -> Operand {
        Operand { side: Side::B, lines, terms }
    }

    /// Number of floats of memory that it needs when packed, at any SIMD level.
    pub fn packed_len(&self, digits: Digits) -> usize {
        let exponents = self.panels() * LINES;
        LINE + (self.digits_len(words::step_len(digits, self.side)) / size_of::<f32>() + exponents)
    }

    fn panels(&self) -> usize {
        self.lines.div_ceil(LINES)
    }

    fn steps(&self) -> usize {
        self.terms.div_ceil(STEP)
    }

    /// Bytes of its digits, if a step has so many.
    fn digits_len(&self, step: usize) -> usize {
        self.panels() * self.steps() * step
    }

    /// Where its digits begin in memory, which is a multiple of a cache line, and its exponents, in floats.
    fn places(&self, small: &Small, memory: &[f32]) -> [usize; 2] {
        assert!(memory.len() >= self.packed_len(small.digits), "length of a packed operand");
        let start = memory.as_ptr().align_offset(4 * LINE).min(LINE);
        let len = self.digits_len((small.kernels.step_len)(small.digits, self.side)) / size_of::<f32>();
        let places = [start, start + len];
        assert!(places[1] + self.panels() * LINES <= memory.len(), "room for every level");
        places
    }
}

impl Small {
    /// Products in these digits.
    pub fn new(simd: Simd, digits: Digits) -> Small {
        Small { kernels: Kernels::of(simd), digits }
    }

    /// Converts an operand to packed digits.
    ///
    /// # Panics
    /// If it has no terms or more than a chunk of them, or a slice is too short.
    pub fn pack(&self, operand: Operand, from: &[f32], order: Order, to: &mut [f32]) {
        let Operand { side, lines, terms } = operand;
        assert!((1..=DIGIT_CHUNK).contains(&terms), "number of terms");
        let [digits_at, exponents_at] = operand.places(self, to);
        if lines == 0 {
            return;
        }
        let (stride, along_k) = match order {
            Order::Lines(stride) => (stride, true),
            Order::Terms(stride) => (stride, false),
        };
        let (outer, inner) = if along_k { (lines, terms) } else { (terms, lines) };
        let last = (outer - 1).checked_mul(stride).and_then(|at| at.checked_add(inner));
        assert!(last.is_some_and(|last| last <= from.len()), "length of an operand");
        let panel_len = operand.steps() * (self.kernels.step_len)(self.digits, side);
        let memory = to.as_mut_ptr();
        for line in (0..lines).step_by(MAX_STRIP * LINES) {
            let pack = Pack {
                digits: self.digits,
                side,
                from: from.as_ptr().wrapping_add(if along_k { line * stride } else { line }),
                stride,
                along_k,
                lines: (MAX_STRIP * LINES).min(lines - line),
                terms,
                to: memory.wrapping_add(digits_at).cast::<u8>().wrapping_add(line / LINES * panel_len),
                panel_len,
                exponents: memory.wrapping_add(exponents_at + line),
                known: false,
            };
            // SAFETY: the lines and terms are inside `from`, and whole panels and their exponents inside `to`, as was checked. `Kernels::of` gives
            // instructions that the processor has.
            unsafe { (self.kernels.pack)(&pack) };
        }
    }

    /// The product of rows and columns that are packed, to `c`, whose rows are `stride` apart; or with `add`, added to what is there.
    ///
    /// # Panics
    /// If these are no operands of one product, or a slice is too short.
    pub fn multiply(
        &self,
        (rows, a): (Operand, &[f32]),
        (columns, b): (Operand, &[f32]),
        add: bool,
        c: &mut [f32],
        stride: usize,
    ) {
        assert!(rows.side == Side::A && columns.side == Side::B && rows.terms == columns.terms, "operands");
        let [a_at, a_exponents] = rows.places(self, a);
        let [b_at, b_exponents] = columns.places(self, b);
        if rows.lines == 0 || columns.lines == 0 {
            return;
        }
        let last = (rows.lines - 1).checked_mul(stride).and_then(|at| at.checked_add(columns.lines));
        assert!(last.is_some_and(|last| last <= c.len()), "length of a product");
        let steps = rows.steps();
        let block = Block {
            digits: self.digits,
            steps,
            a: a.as_ptr().wrapping_add(a_at).cast(),
            b: b.as_ptr().wrapping_add(b_at).cast(),
            a_len: steps * (self.kernels.step_len)(self.digits, Side::A),
            b_len: steps * (self.kernels.step_len)(self.digits, Side::B),
            a_exponents: a.as_ptr().wrapping_add(a_exponents),
            b_exponents: b.as_ptr().wrapping_add(b_exponents),
            rows: rows.lines,
            cols: columns.lines,
            c: c.as_mut_ptr(),
            stride_c: stride,
            first: !add,
            bias: std::ptr::null(),
        };
        // SAFETY: the panels and their exponents are inside `a` and `b`, whatever they hold, and rows and columns inside `c`, as was
        // checked. `Kernels::of` gives instructions that the processor has.
        unsafe { (self.kernels.multiply)(&block) };
    }
}
