//! Products in digits (C9 of the contract), for modes `fast` and `turbo`. Each factor is scaled by a power of two of its row,
//! rounded to an integer, and written in 8-bit digits. Products of digits are added in integers, which is exact, so tiles, threads
//! and splits of k cannot change a bit. One rounding makes a float32 of the exact sum.
//!
//! Kernels share the small functions here. [`product`] is the definition of a whole product, slowly.

use crate::{Numerics, environment};
use std::sync::atomic::{AtomicBool, Ordering};

/// Number of terms of a dot product that share a scale and an exact sum. With it, sums of digit products of one
/// [weight](Digits::weight) stay below 2^31.
pub const DIGIT_CHUNK: usize = 32768;

/// The scale of a row is at least 2 to this power, so that all powers of two in use are normal numbers.
pub const LEAST_EXPONENT: i32 = -96;

/// Digits of each factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Digits {
    /// Two digits, all 4 pairs of them: mode `turbo`.
    Two,
    /// Three digits, all pairs but the lowest with the lowest: mode `fast`.
    Three,
}

impl Digits {
    /// The digits of a mode, if it has products in digits.
    pub const fn of(numerics: Numerics) -> Option<Digits> {
        match numerics {
            Numerics::Turbo => Some(Digits::Two),
            Numerics::Fast => Some(Digits::Three),
            Numerics::Strict | Numerics::Tf32 => None,
        }
    }

    /// The digits of an `m` by `n` product over `k` in a mode; `None` if it is computed as in `strict`.
    pub fn of_product(numerics: Numerics, m: usize, n: usize, k: usize) -> Option<Digits> {
        if takes_part(m, n, k) { Digits::of(numerics) } else { None }
    }

    /// The digits of the products of an attention with `n` queries and `m` keys a head in a mode, where queries and keys have size `d` and
    /// values `dv`; `None` if it is computed as in `strict`.
    pub fn of_attention(numerics: Numerics, n: usize, m: usize, d: usize, dv: usize) -> Option<Digits> {
        let least = if IS_CHECK.load(Ordering::Relaxed) { LEAST_ROWS_IN_CHECKS } else { LEAST_ROWS };
        let takes_part = n.min(m) >= least && [d, dv].iter().all(|head| HEADS.contains(head));
        if takes_part { Digits::of(numerics) } else { None }
    }

    /// The digits of a convolution or of its gradient by the input; `None` if it is computed as in `strict`. `channels` are those of input
    /// and output in a group, `terms` the number of terms of a sum, and `work` the number of multiplications in a group.
    pub fn of_conv(numerics: Numerics, channels: [usize; 2], terms: usize, work: usize) -> Option<Digits> {
        if conv_takes_part(channels, terms, work) { Digits::of(numerics) } else { None }
    }

    /// The same for the gradient of a convolution's kernel, whose images have so many output positions.
    pub fn of_kernel_grad(
        numerics: Numerics,
        channels: [usize; 2],
        positions: usize,
        work: usize,
    ) -> Option<Digits> {
        let least = if IS_CHECK.load(Ordering::Relaxed) { 0 } else { LEAST_GRAD_OUTPUTS };
        if channels[1] >= least { Digits::of_conv(numerics, channels, positions, work) } else { None }
    }

    /// How many digits.
    pub const fn count(self) -> usize {
        match self {
            Digits::Two => 2,
            Digits::Three => 3,
        }
    }

    /// Bits of the integer of a factor, without its sign: 8d − 1.
    pub const fn bits(self) -> i32 {
        8 * self.count() as i32 - 1
    }

    /// The factor that scales numbers of a row whose exponent is `e` to integers.
    pub fn scale(self, e: i32) -> f32 {
        power(self.bits() - e)
    }

    /// The integer of `x` in a row whose [`scale`](Digits::scale) is given. At most 127·256^(d−1) in size.
    #[inline(always)]
    pub fn integer(x: f32, scale: f32) -> i32 {
        // Where the product is not exact it is subnormal, which rounds to 0 as the exact one does.
        (x * scale).round_ties_even() as i32
    }

    /// The digits of an integer, lowest first; the third is 0 if there are two.
    #[inline(always)]
    pub fn split(self, integer: i32) -> [i8; 3] {
        let (low, rest) = balanced(integer);
        match self {
            Digits::Two => [low, rest as i8, 0],
            Digits::Three => {
                let (middle, top) = balanced(rest);
                [low, middle, top as i8]
            }
        }
    }

    /// What the product of digit `i` of one factor and digit `j` of the other counts in the total, as a power of 256. `None` for the
    /// pair that is left out.
    pub const fn weight(self, i: usize, j: usize) -> Option<usize> {
        match self {
            Digits::Two => Some(i + j),
            Digits::Three => (i + j).checked_sub(1),
        }
    }

    /// The total of a chunk, of the sums of the pairs of each [weight](Digits::weight).
    #[inline(always)]
    pub fn total(sums: [i32; 4]) -> i64 {
        sums.iter().rev().fold(0, |total, &sum| (total << 8) + i64::from(sum))
    }

    /// The power of two that a total is multiplied by, in a row and a column of these exponents.
    pub const fn total_exponent(self, ea: i32, eb: i32) -> i32 {
        let left_out = match self {
            Digits::Two => 0,
            Digits::Three => 8,
        };
        ea + eb - 2 * self.bits() + left_out
    }

    /// The most that a product over `k` can be off besides the rounding of its results, where no number of its first factor is larger
    /// than `a` and none of its second than `b`.
    pub fn error(self, k: usize, a: f64, b: f64) -> f64 {
        let unit = match self {
            Digits::Two => 1.0 / (127.0 * 256.0),
            Digits::Three => 1.0 / (127.0 * 65536.0),
        };
        // Numbers below are as far off as this one.
        let least = f64::from(power(LEAST_EXPONENT - 1));
        unit * (2.0 + 1.0 / 126.0) * k as f64 * a.max(least) * b.max(least)
    }
}

/// The least size of a product, and its least number of multiplications, for it to be computed in digits. Below, making the digits
/// costs more than it gains.
const LEAST: (usize, usize) = (128, 1 << 26);

/// The same for checks of the kernels, which need not be large then.
const LEAST_IN_CHECKS: (usize, usize) = (64, 1 << 21);

/// The least number of queries and of keys for an attention to be computed in digits, in checks too, and the sizes of its heads.
const LEAST_ROWS: usize = 128;
const LEAST_ROWS_IN_CHECKS: usize = 32;
const HEADS: std::ops::RangeInclusive<usize> = 32..=128;

/// The fewest channels of input and output, and the least number of multiplications, for a convolution to be computed in digits.
const LEAST_CONV: (usize, usize) = (32, 1 << 28);

/// The fewest output channels for the gradient of a kernel to be in digits: all of them share the digits of the input.
const LEAST_GRAD_OUTPUTS: usize = 64;

/// Channels and multiplications for checks of the kernels.
const LEAST_CONV_IN_CHECKS: (usize, usize) = (5, 1 << 14);

/// The most output positions of the images that share a scale in the gradient of a convolution's kernel, if they are several.
pub const CONV_RUN: usize = 2048;

static IS_CHECK: AtomicBool = AtomicBool::new(false);

/// Whether a product is computed in digits in the modes that have them. Sizes alone decide.
pub fn takes_part(m: usize, n: usize, k: usize) -> bool {
    let (size, work) = if IS_CHECK.load(Ordering::Relaxed) { LEAST_IN_CHECKS } else { LEAST };
    m.min(n).min(k) >= size && m.saturating_mul(n).saturating_mul(k) >= work
}

/// Whether a convolution is computed in digits in the modes that have them; see [`Digits::of_conv`].
pub fn conv_takes_part(channels: [usize; 2], terms: usize, work: usize) -> bool {
    let (least, least_work) =
        if IS_CHECK.load(Ordering::Relaxed) { LEAST_CONV_IN_CHECKS } else { LEAST_CONV };
    channels[0].min(channels[1]) >= least && (1..=DIGIT_CHUNK).contains(&terms) && work >= least_work
}

/// Images that share a scale in the gradient of a convolution's kernel, if each has so many output positions.
pub fn conv_run(positions: usize) -> usize {
    (CONV_RUN / positions.max(1)).max(1)
}

/// From now on this process computes smaller products in digits too, for checks of the kernels. That is not the contract.
#[doc(hidden)]
pub fn include_small_products() {
    IS_CHECK.store(true, Ordering::Relaxed);
}

/// The lowest digit of an integer, from −128 to 127, and 256ths of the rest.
#[inline(always)]
fn balanced(integer: i32) -> (i8, i32) {
    let low = integer as i8;
    (low, (integer - i32::from(low)) >> 8)
}

/// 2^e, for an `e` from −126 to 127.
#[inline(always)]
pub const fn power(e: i32) -> f32 {
    f32::from_bits(((e + 127) as u32) << 23)
}

/// The bits of `|x|`. They are in the order of the numbers, with infinity and then NaN last, so the largest of them is that of
/// the row in any order of looking.
#[inline(always)]
pub const fn magnitude(x: f32) -> u32 {
    x.to_bits() & 0x7fff_ffff
}

/// The exponent of a row whose largest [`magnitude`] is given: the least `e`, at least [`LEAST_EXPONENT`], such that all
/// numbers are below 127·2^(e−7). `None` if there is an infinity or a NaN.
#[inline(always)]
pub const fn exponent(largest: u32) -> Option<i32> {
    if largest >= 0x7f80_0000 {
        return None;
    }
    // Subnormal numbers, whose field is 0, are far below the least exponent.
    let e = (largest >> 23) as i32 - 126 + (largest & 0x7f_ffff >= 0x7e_0000) as i32;
    Some(if e < LEAST_EXPONENT { LEAST_EXPONENT } else { e })
}

/// The result of a chunk, `total`·2^`exponent`: one rounding of the integer, one more if the result is subnormal.
#[inline(always)]
pub fn finish(total: i64, exponent: i32) -> f32 {
    let half = exponent >> 1;
    (total as f32 * power(half)) * power(exponent - half)
}

/// The integers of the rows of an operand, and the exponent of each chunk of a row.
struct Operand {
    integers: Vec<i32>,
    exponents: Vec<Option<i32>>,
}

impl Operand {
    /// `at(i, l)` is term `l` of row `i`.
    fn new(digits: Digits, rows: usize, k: usize, at: impl Fn(usize, usize) -> f32) -> Operand {
        let (mut integers, mut exponents) = (Vec::with_capacity(rows * k), Vec::new());
        for i in 0..rows {
            for start in (0..k).step_by(DIGIT_CHUNK) {
                let chunk = start..k.min(start + DIGIT_CHUNK);
                let e = exponent(chunk.clone().map(|l| magnitude(at(i, l))).max().unwrap_or(0));
                let scale = e.map_or(0.0, |e| digits.scale(e));
                integers.extend(chunk.map(|l| Digits::integer(at(i, l), scale)));
                exponents.push(e);
            }
        }
        Operand { integers, exponents }
    }
}

/// The `m` by `n` product of `op(a)` and `op(b)` over `k`, row-major, as the contract defines it. An operand whose flag is set is stored
/// transposed: `a` as `(k, m)`, `b` as `(n, k)`.
pub fn product(
    digits: Digits,
    [m, n, k]: [usize; 3],
    [ta, tb]: [bool; 2],
    a: &[f32],
    b: &[f32],
    out: &mut [f32],
) {
    environment::strict(|| {
        let rows = Operand::new(digits, m, k, |i, l| a[if ta { l * m + i } else { i * k + l }]);
        let columns = Operand::new(digits, n, k, |j, l| b[if tb { j * k + l } else { l * n + j }]);
        let chunks = k.div_ceil(DIGIT_CHUNK);
        for (at, c) in out[..m * n].iter_mut().enumerate() {
            let (i, j) = (at / n, at % n);
            let result = |chunk: usize| {
                let exponents = (rows.exponents[i * chunks + chunk], columns.exponents[j * chunks + chunk]);
                let (Some(ea), Some(eb)) = exponents else { return f32::NAN };
                let range = chunk * DIGIT_CHUNK..k.min((chunk + 1) * DIGIT_CHUNK);
                let x = &rows.integers[i * k..][range.clone()];
                let y = &columns.integers[j * k..][range];
                let total = x.iter().zip(y).map(|(&x, &y)| term(digits, x, y)).sum();
                finish(total, digits.total_exponent(ea, eb))
            };
            *c = (0..chunks).map(result).reduce(|sum, next| sum + next).unwrap_or(0.0);
        }
    })
}

/// What one pair of factors adds to the total.
#[inline(always)]
pub fn term(digits: Digits, x: i32, y: i32) -> i64 {
    let product = i64::from(x) * i64::from(y);
    match digits {
        Digits::Two => product,
        // Without the lowest digits' product, a multiple of 256.
        Digits::Three => (product - i64::from(x as i8) * i64::from(y as i8)) >> 8,
    }
}

#[cfg(test)]
mod tests;
