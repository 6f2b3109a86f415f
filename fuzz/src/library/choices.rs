//! Choices from bytes. Where the bytes end, every choice is the first, so that programs made from them end too and a shorter
//! input is a simpler case.

use dittograd::error::{Error, ErrorKind};
use dittograd::shape::Shape;

/// The bytes that were not used yet.
pub struct Choices<'a>(&'a [u8]);

impl<'a> Choices<'a> {
    pub fn new(bytes: &'a [u8]) -> Choices<'a> {
        Choices(bytes)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// One of `n`, which is at least 1 and at most 65536.
    pub fn below(&mut self, n: usize) -> usize {
        let high = if n > 256 { usize::from(self.byte()) << 8 } else { 0 };
        (high | usize::from(self.byte())) % n
    }

    pub fn flag(&mut self) -> bool {
        self.below(2) == 1
    }

    pub fn word(&mut self) -> u64 {
        (0..8).fold(0, |n, _| n << 8 | u64::from(self.byte()))
    }

    /// A size: mostly small, sometimes at the edges of what there is.
    pub fn size(&mut self) -> usize {
        match self.byte() {
            b @ 0..=199 => usize::from(b % 9),
            b @ 200..=230 => usize::from(b - 200) + 9,
            231..=240 => usize::from(self.byte()),
            241 => usize::MAX,
            242 => isize::MAX as usize,
            243 => 1 << 31,
            244 => (1 << 32) - 1,
            245 => 1 << 61,
            246 => 1 << 16,
            247 => (1 << 53) - 1,
            _ => self.word() as usize,
        }
    }

    /// A number: mostly ordinary, sometimes none or at the edges.
    pub fn number(&mut self) -> f64 {
        match self.byte() {
            b @ 0..=63 => f64::from(b) * 0.25 - 4.0,
            b @ 64..=127 => f64::from(b - 64),
            b @ 128..=199 => f64::from(b - 128) / 72.0,
            200 => f64::NAN,
            201 => f64::INFINITY,
            202 => f64::NEG_INFINITY,
            203 => -0.0,
            204 => 1e-45,
            205 => f64::MAX,
            206 => f64::from(f32::MAX),
            207 => f64::MIN_POSITIVE,
            208 => 9_007_199_254_740_991.0,
            209 => 1e-5,
            _ => f64::from_bits(self.word()),
        }
    }

    /// A shape of up to `rank` axes.
    pub fn shape(&mut self, rank: usize) -> Result<Shape, Error> {
        let rank = self.below(rank + 1);
        let dims: Vec<usize> = (0..rank).map(|_| self.size()).collect();
        Shape::new(&dims)
    }

    /// A small shape of up to `rank` axes.
    pub fn small_shape(&mut self, rank: usize) -> Vec<usize> {
        let rank = self.below(rank + 1);
        (0..rank).map(|_| self.below(5)).collect()
    }
}

/// What all errors must be: one line that says something, and not that the library has a bug.
pub fn said(e: &Error) {
    assert!(!matches!(e.kind(), ErrorKind::Internal { .. }), "{e}");
    let text = e.to_string();
    assert!(text.len() > e.op().len() + 2, "an error that says nothing: {text:?}");
    assert!(!text.contains('\n'), "an error of several lines: {text:?}");
}

/// Bits with all NaNs made one, as the contract compares them.
pub fn bits(x: &f32) -> u32 {
    if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }
}
