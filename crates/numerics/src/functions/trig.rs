//! Sine and cosine of radians, of any size.

use super::{MAGIC_DOUBLE, SIGN, poly_double};
use crate::lane::{Lane, LaneDouble, LaneInt};

/// 2/pi in words of 32 bits, behind 25 zero bits: the window of 96 bits that starts at bit E holds the bits
/// of weight 2 and less of 2^(E - 23) * 2/pi, all that matters to a multiple of it modulo 4.
const TWO_OVER_PI: [u32; 7] =
    [0x0000_0051, 0x7cc1_b727, 0x220a_94fe, 0x13ab_e8fa, 0x9a6e_e06d, 0xb14a_cc9e, 0x21c8_20ff];

/// Quarter turns modulo 4 and what is left of `x` in radians, for `1 <= x < inf`.
///
/// x = m 2^(E - 23) with a 24-bit integer m. The product of m and the window is kept to 62 bits behind the
/// point of a quarter turn; no float32 comes nearer than 2^-30 to a multiple of pi/2, so 32 bits remain in
/// the worst case.
#[inline(always)]
fn quarter_turns_of_any<L: Lane>(x: L) -> (L::Int, L::Double) {
    let bits = x.to_bits();
    let m = (bits & L::Int::c(0x007f_ffff)) | L::Int::c(0x0080_0000);
    let start = bits.shr(23) - L::Int::c(127);
    // The word offset start / 32 is 0 to 3; two rounds of selections are cheaper than gathers from a table.
    let by_two = !(start & L::Int::c(64)).eq(L::Int::c(0));
    let by_one = !(start & L::Int::c(32)).eq(L::Int::c(0));
    let word = |i: usize| L::Int::select(by_two, L::Int::c(TWO_OVER_PI[i + 2]), L::Int::c(TWO_OVER_PI[i]));
    let pair = |i: usize| L::Int::select(by_one, word(i + 1), word(i));
    let shift = start & L::Int::c(31);
    let back = L::Int::c(31) - shift;
    let window = |high: L::Int, low: L::Int| high.shl_by(shift) | low.shr(1).shr_by(back);
    let (w0, w1, w2, w3) = (pair(0), pair(1), pair(2), pair(3));
    let (t0, t1, t2) = (window(w0, w1), window(w1, w2), window(w2, w3));
    let carried = m.mul_high(t2);
    let low = m * t1 + carried;
    let carry = L::Int::select(low.below(carried), L::Int::c(1), L::Int::c(0));
    let high = m * t0 + m.mul_high(t1) + carry;
    let quarters = (high + L::Int::c(0x2000_0000)).shr(30);
    let upper = L::Double::from_int(high.shl(2) | low.shr(30));
    let lower = L::Double::from_int(low.shl(2).shr(1));
    let fraction = lower.fma(L::Double::c(1.0 / 2_147_483_648.0), upper);
    (quarters, fraction * L::Double::c(std::f64::consts::FRAC_PI_2 / 4_294_967_296.0))
}

/// Below this magnitude [`sin`] and [`cos`] find the quarter turn in binary64.
pub const MODERATE: f32 = 4_194_304.0;

/// As [`quarter_turns_of_any`], for `0 <= x <` [`MODERATE`].
///
/// n = x * 2/pi rounded to an integer below 2^22; x - n pi/2 with pi/2 in two pieces of 53 bits. The first
/// FMA cancels without error worth mention, the second takes off what the first piece misses of pi/2.
#[inline(always)]
fn quarter_turns<L: Lane>(x: L) -> (L::Int, L::Double) {
    let x = x.to_double();
    let shifted = x.fma(L::Double::c(std::f64::consts::FRAC_2_PI), L::Double::c(MAGIC_DOUBLE));
    let n = shifted - L::Double::c(MAGIC_DOUBLE);
    let r = n.fma(L::Double::c(-std::f64::consts::FRAC_PI_2), x);
    (shifted.low_word(), n.fma(L::Double::c(-6.123_233_995_736_766e-17), r))
}

/// The sine of so many quarter turns and what is left, from -pi/4 to pi/4.
#[inline(always)]
fn sine_after<L: Lane>((quarters, r): (L::Int, L::Double)) -> L {
    let z = r * r;
    let s = poly_double(
        z,
        [-0.16666666494880128, 0.00833331661930669, -0.00019836212060738673, 2.695312304274301e-06],
    );
    let c = poly_double(
        z,
        [-0.49999998116408856, 0.041666483354266114, -0.0013883339693156187, 2.41382425618086e-05],
    );
    let sine = (r * z).fma(s, r);
    let cosine = z.fma(c, L::Double::c(1.0));
    let odd = !(quarters & L::Int::c(1)).eq(L::Int::c(0));
    let sign = (quarters & L::Int::c(2)).shl(30);
    L::from_bits(L::from_double(L::Double::select(odd, cosine, sine)).to_bits() ^ sign)
}

/// The sine of x from the turns of its magnitude, a NaN where x is not finite.
#[inline(always)]
fn sine_of<L: Lane>(x: L, turns: (L::Int, L::Double)) -> L {
    let result = L::from_bits(sine_after::<L>(turns).to_bits() ^ (x.to_bits() & L::Int::c(SIGN)));
    L::select(x.abs().lt(L::c(f64::INFINITY)), result, L::nan())
}

/// The cosine of x from the turns of its magnitude, a NaN where x is not finite.
#[inline(always)]
fn cosine_of<L: Lane>(x: L, (quarters, r): (L::Int, L::Double)) -> L {
    let result = sine_after::<L>((quarters + L::Int::c(1), r));
    L::select(x.abs().lt(L::c(f64::INFINITY)), result, L::nan())
}

/// [`sin`] for arguments below [`MODERATE`] in magnitude, or not finite.
#[inline(always)]
pub fn sin_moderate<L: Lane>(x: L) -> L {
    sine_of(x, quarter_turns(x.abs()))
}

/// [`cos`] for arguments below [`MODERATE`] in magnitude, or not finite.
#[inline(always)]
pub fn cos_moderate<L: Lane>(x: L) -> L {
    cosine_of(x, quarter_turns(x.abs()))
}

#[inline(always)]
pub(super) fn sin_large<L: Lane>(x: L) -> L {
    sine_of(x, quarter_turns_of_any(x.abs()))
}

#[inline(always)]
pub(super) fn cos_large<L: Lane>(x: L) -> L {
    cosine_of(x, quarter_turns_of_any(x.abs()))
}

/// The sine of `x` radians.
///
/// The quarter turn is found in binary64 below [`MODERATE`] and from integer words of 2/pi above, so the
/// argument may be of any size; then a binary64 polynomial. Largest error 0.511 ulp. Odd bit for bit, keeps
/// the sign of zero, NaN at the infinities.
#[inline(always)]
pub fn sin<L: Lane>(x: L) -> L {
    L::select(x.abs().lt(L::c(f64::from(MODERATE))), sin_moderate(x), sin_large(x))
}

/// The cosine of `x` radians.
///
/// As [`sin`], a quarter turn on. Largest error 0.511 ulp. Even bit for bit, NaN at the infinities.
#[inline(always)]
pub fn cos<L: Lane>(x: L) -> L {
    L::select(x.abs().lt(L::c(f64::from(MODERATE))), cos_moderate(x), cos_large(x))
}
