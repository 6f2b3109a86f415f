//! Sine and cosine of fractions of a full turn.

use super::{MAGIC_DOUBLE, poly_double};
use crate::lane::{Lane, LaneDouble, LaneInt, cuda_function2};

/// Cosine and sine of `j / n` of a full turn in binary64, for whole numbers `0 <= j < n <= 2^24`.
///
/// The nearest quarter turn is taken off exactly, so multiples of a quarter turn give exactly 0, 1 and -1; what
/// is left is at most an eighth of a turn, where the Taylor polynomials end below the rounding of binary64.
#[inline(always)]
pub(super) fn turn<L: Lane>(j: L, n: L) -> (L::Double, L::Double) {
    let (j, n) = (j.to_double() * L::Double::c(4.0), n.to_double());
    let shifted = j / n + L::Double::c(MAGIC_DOUBLE);
    let quarters = shifted.low_word();
    let whole = shifted - L::Double::c(MAGIC_DOUBLE);
    let r = (-whole).fma(n, j) / n * L::Double::c(std::f64::consts::FRAC_PI_2);
    let z = r * r;
    let s = poly_double(
        z,
        [
            -1.0 / 6.0,
            1.0 / 120.0,
            -1.0 / 5040.0,
            1.0 / 362_880.0,
            -1.0 / 39_916_800.0,
            1.0 / 6_227_020_800.0,
            -1.0 / 1_307_674_368_000.0,
        ],
    );
    let c = poly_double(
        z,
        [
            -0.5,
            1.0 / 24.0,
            -1.0 / 720.0,
            1.0 / 40_320.0,
            -1.0 / 3_628_800.0,
            1.0 / 479_001_600.0,
            -1.0 / 87_178_291_200.0,
            1.0 / 20_922_789_888_000.0,
        ],
    );
    let sine = (r * z).fma(s, r);
    let cosine = z.fma(c, L::Double::c(1.0));
    let odd = !(quarters & L::Int::c(1)).eq(L::Int::c(0));
    let signed = |x: L::Double, q: L::Int| {
        // Adding +0 turns -0 into +0.
        L::Double::select((q & L::Int::c(2)).eq(L::Int::c(0)), x, -x) + L::Double::c(0.0)
    };
    let cos = signed(L::Double::select(odd, sine, cosine), quarters + L::Int::c(1));
    let sin = signed(L::Double::select(odd, cosine, sine), quarters);
    (cos, sin)
}

/// The cosine of `j / n` of a full turn, formed in binary64 and rounded once; `0 <= j < n <= 2^24`.
#[inline(always)]
pub fn cos_turn<L: Lane>(j: L, n: L) -> L {
    L::from_double(turn(j, n).0)
}

/// The sine of `j / n` of a full turn, formed in binary64 and rounded once; `0 <= j < n <= 2^24`.
#[inline(always)]
pub fn sin_turn<L: Lane>(j: L, n: L) -> L {
    L::from_double(turn(j, n).1)
}

/// [`cos_turn`] over `n`, with the one rounding at the end.
#[inline(always)]
pub fn cos_turn_over<L: Lane>(j: L, n: L) -> L {
    L::from_double(turn(j, n).0 / n.to_double())
}

/// [`sin_turn`] over `n`, with the one rounding at the end.
#[inline(always)]
pub fn sin_turn_over<L: Lane>(j: L, n: L) -> L {
    L::from_double(turn(j, n).1 / n.to_double())
}

/// The CUDA text of the four functions of a turn, as `ditto_cos_turn` and so on.
pub fn cuda_turn_text() -> String {
    [
        cuda_function2("ditto_cos_turn", cos_turn),
        cuda_function2("ditto_sin_turn", sin_turn),
        cuda_function2("ditto_cos_turn_over", cos_turn_over),
        cuda_function2("ditto_sin_turn_over", sin_turn_over),
    ]
    .concat()
}
