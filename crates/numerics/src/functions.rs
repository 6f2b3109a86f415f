//! The elementary functions of the runtime, each one branch-free formula over [`Lane`].
//!
//! The CPU runs them with `f32`, in loops the compiler vectorises; the GPU runs [`cuda_text`], recorded from
//! the very same code, so there is no second version to keep in step. They are defined for all 2^32 inputs: a
//! NaN argument gives the one NaN `0x7fc00000`, subnormals are neither flushed on the way in nor on the way
//! out. The polynomials are minimax fits made for this file (weighted exchange, then coefficients rounded one
//! at a time and the rest fitted again). Errors are in units in the last place of binary32 at the exact
//! value, the largest over all 2^32 inputs, as [`measure_ulp`] finds them.

use super::lane::{Lane, LaneDouble, LaneInt, Trace, cuda_function, cuda_function2};

/// 1.5 * 2^23: adding it to `|x| < 2^22` rounds `x` to an integer and leaves it in the low bits.
const MAGIC: f64 = 12_582_912.0;
const MAGIC_BITS: u32 = 0x4b40_0000;
/// The same for binary64: 1.5 * 2^52.
const MAGIC_DOUBLE: f64 = 6_755_399_441_055_744.0;
const SIGN: u32 = 0x8000_0000;

/// ln 2 in two parts; the first has 15 bits, so its product with an exponent is exact.
const LN2_HI: f64 = 0.693_145_751_953_125;
const LN2_LO: f64 = 1.428_606_820_309_417_3e-6;

/// Evaluates a polynomial given from its constant term up.
#[inline(always)]
fn poly<L: Lane, const N: usize>(x: L, coefficients: [f64; N]) -> L {
    let mut sum = L::c(coefficients[N - 1]);
    let mut i = N - 1;
    while i > 0 {
        i -= 1;
        sum = sum.fma(x, L::c(coefficients[i]));
    }
    sum
}

/// The binary64 polynomial, likewise.
#[inline(always)]
fn poly_double<D: LaneDouble, const N: usize>(x: D, coefficients: [f64; N]) -> D {
    let mut sum = D::c(coefficients[N - 1]);
    let mut i = N - 1;
    while i > 0 {
        i -= 1;
        sum = sum.fma(x, D::c(coefficients[i]));
    }
    sum
}

/// Gives `magnitude`, which must be positive, zero, or already of the sign of `x`, the sign of `x`.
#[inline(always)]
fn with_sign_of<L: Lane>(magnitude: L, x: L) -> L {
    L::from_bits(magnitude.to_bits() | (x.to_bits() & L::Int::c(SIGN)))
}

/// 2^n for `-126 <= n <= 127`.
#[inline(always)]
fn power_of_two<L: Lane>(n: L::Int) -> L {
    L::from_bits((n + L::Int::c(127)).shl(23))
}

/// Splits e^x into 2^n (1 + q) with |q| <= 0.42, for |x| below about 2^21.
///
/// x = n ln 2 + r with |r| <= 0.347 and q = r + r^2 Q(r), Q of degree 4 (absolute error of the fit 2^-27.7).
#[inline(always)]
fn split_exp<L: Lane>(x: L) -> (L, L::Int) {
    let shifted = x.fma(L::c(std::f64::consts::LOG2_E), L::c(MAGIC));
    let n = shifted - L::c(MAGIC);
    let exact = n.fma(L::c(-LN2_HI), x);
    let rest = n * L::c(-LN2_LO);
    let r = exact + rest;
    let tail = poly(r, [0.5, 0.1666651815, 0.04166620597, 0.008368950337, 0.001395056141]);
    // Not r + r^2 Q: the rounding of r would come in whole, a quarter of a unit of the result.
    (exact + (r * r).fma(tail, rest), shifted.to_bits() - L::Int::c(MAGIC_BITS))
}

/// e^x for `-104 <= x <= 89`; the scaling by 2^n goes in two steps so that a subnormal result rounds once.
#[inline(always)]
fn exp_in_range<L: Lane>(x: L) -> L {
    let (q, n) = split_exp(x);
    let half = n.sar(1);
    (L::c(1.0) + q) * power_of_two::<L>(half) * power_of_two::<L>(n - half)
}

/// e^x.
///
/// Reduction by ln 2, a polynomial of degree 6, scaling in two exact-then-rounded steps.
/// Largest error 0.896 ulp. Overflows to infinity above 88.72284, is subnormal below -87.33655 and 0 below
/// -103.97208; e^-inf = 0, e^inf = inf.
#[inline(always)]
pub fn exp<L: Lane>(x: L) -> L {
    let low = L::select(x.lt(L::c(-104.0)), L::c(-104.0), x);
    let clamped = L::select(low.gt(L::c(89.0)), L::c(89.0), low);
    L::select(x.is_nan(), L::nan(), exp_in_range(clamped))
}

/// e^x for `x <= 0`: the bits of [`exp`] in two thirds of the steps; above 64 the result has no meaning.
///
/// Without large powers, 2^(n + 32) is a normal number for every n, and 2^-32 rounds once.
#[inline(always)]
pub fn decay<L: Lane>(x: L) -> L {
    let (q, n) = split_exp(x);
    let power = L::from_bits((n + L::Int::c(127 + 32)).shl(23));
    let scaled = (L::c(1.0) + q) * power * L::c(1.0 / 4_294_967_296.0);
    L::select(x.lt(L::c(-104.0)), L::c(0.0), scaled)
}

/// 2^x as softmax weights need it: for `x <= 127`, and 0 below -126.
///
/// The integer part goes into the exponent, the rest r through 1 + r Q(r), Q of degree 5. Largest error 0.94
/// ulp; exactly 1 at 0. Half the work of [`exp`], since nothing is subnormal and nothing overflows: beyond 127
/// the result has no meaning, though the same bits everywhere. A NaN gives a NaN.
#[inline(always)]
pub fn weight<L: Lane>(x: L) -> L {
    let shifted = x + L::c(MAGIC);
    let r = x - (shifted - L::c(MAGIC));
    let q = poly(
        r,
        [
            0.6931471824645996,
            0.24022647738456726,
            0.055503323674201965,
            0.00961843691766262,
            0.00133988750167191,
            0.00015353361959569156,
        ],
    );
    // The low bits of `shifted` are the integer part; a product, not a sum of bits, so that a NaN stays one.
    let power = L::from_bits(shifted.to_bits().shl(23) + L::Int::c(0x3f80_0000));
    L::select(x.lt(L::c(-126.0)), L::c(0.0), r.fma(q, L::c(1.0)) * power)
}

/// e^x - 1.
///
/// The reduction of [`exp`], then 2^n q + (2^n - 1) in one fused step, which keeps small results accurate.
/// Largest error 1.566 ulp. Keeps the sign of zero; -1 at -inf, inf at inf and above 88.72284.
#[inline(always)]
pub fn expm1<L: Lane>(x: L) -> L {
    let low = L::select(x.lt(L::c(-20.0)), L::c(-20.0), x);
    let clamped = L::select(low.gt(L::c(89.0)), L::c(89.0), low);
    let (q, n) = split_exp(clamped);
    // Half of the result first: 2^128 itself would not be a float.
    let scale = power_of_two::<L>(n - L::Int::c(1));
    let half = scale.fma(q, scale - L::c(0.5));
    let result = L::select(n.eq(L::Int::c(0)), q, half + half);
    L::select(x.is_nan(), L::nan(), with_sign_of(result, x))
}

/// ln(2^k (1 + f)) for f in [sqrt(1/2) - 1, sqrt(2) - 1].
///
/// ln(1 + f) = f + f^2 P(f) with P of degree 8. The leading sum k ln 2 + f keeps its rounding error and gives
/// it back with the small terms: k LN2_HI is exact and exceeds |f| unless it is 0.
#[inline(always)]
fn log_split<L: Lane>(f: L, k: L) -> L {
    let sum = k.fma(L::c(LN2_HI), f);
    let lost = f - k.fma(L::c(-LN2_HI), sum);
    let p = poly(
        f,
        [
            -0.4999998808,
            0.3333332539,
            -0.2500158548,
            0.2000196576,
            -0.1660904288,
            0.141819641,
            -0.1324351281,
            0.1290366501,
            -0.0761936307,
        ],
    );
    sum + (f * f).fma(p, k.fma(L::c(LN2_LO), lost))
}

/// Writes a positive normal number as 2^k m with sqrt(1/2) <= m < sqrt(2), up to the rounding of the bounds.
#[inline(always)]
fn split_log<L: Lane>(x: L) -> (L, L::Int) {
    let bits = x.to_bits();
    let k = (bits - L::Int::c(0x3f35_04f3)).sar(23);
    (L::from_bits(bits - k.shl(23)), k)
}

/// The natural logarithm.
///
/// x = 2^k m with m near 1, a polynomial of degree 10 in m - 1, k ln 2 added in two parts.
/// Largest error 0.876 ulp. Subnormal arguments are scaled up first; ln 0 = -inf for both zeros, ln 1 = +0,
/// ln inf = inf, NaN below zero.
#[inline(always)]
pub fn log<L: Lane>(x: L) -> L {
    let tiny = x.lt(L::c(f64::from(f32::MIN_POSITIVE)));
    let (m, k) = split_log(L::select(tiny, x * L::c(8_388_608.0), x));
    let k = k - L::Int::select(tiny, L::Int::c(23), L::Int::c(0));
    let result = log_split(m - L::c(1.0), L::from_int(k));
    let result = L::select(x.eq(L::c(f64::INFINITY)), x, result);
    let result = L::select(x.eq(L::c(0.0)), L::c(f64::NEG_INFINITY), result);
    // Not `x < 0`: this mask holds for NaN too.
    L::select(!x.ge(L::c(0.0)), L::nan(), result)
}

/// ln(1 + x).
///
/// 1 + x gives only the exponent k; f = 2^-k x + (2^-k - 1) is then formed from x itself in one fused step.
/// Largest error 1.456 ulp. Keeps the sign of zero; -inf at -1, inf at inf, NaN below -1.
#[inline(always)]
pub fn log1p<L: Lane>(x: L) -> L {
    let one = L::c(1.0);
    let u = x + one;
    let (m, k) = split_log(u);
    let scale = power_of_two::<L>(L::Int::c(0) - k);
    // From 2^25 on, 1 + x rounds to x, and 2^-k would leave the range of normal numbers further out.
    let f = L::select(x.gt(L::c(33_554_432.0)), m - one, scale.fma(x, scale - one));
    let result = log_split(f, L::from_int(k));
    let result = L::select(x.eq(L::c(0.0)) | x.eq(L::c(f64::INFINITY)), x, result);
    let result = L::select(x.eq(L::c(-1.0)), L::c(f64::NEG_INFINITY), result);
    L::select(!x.ge(L::c(-1.0)), L::nan(), result)
}

/// The hyperbolic tangent.
///
/// Below 0.95, x + x^3 P(x^2); above, 1 - 2 / (e^2x + 1), where e^2x + 1 is rounded once from the split of
/// [`exp`]. Largest error 0.936 ulp. Odd bit for bit, keeps the sign of zero, and is exactly 1 from 9.02
/// on.
#[inline(always)]
pub fn tanh<L: Lane>(x: L) -> L {
    let a = x.abs();
    let square = a * a;
    let p = poly(
        square,
        [
            -0.3333329558,
            0.1333234757,
            -0.05387998745,
            0.02148717642,
            -0.007946845144,
            0.002301884582,
            -0.0003585958621,
        ],
    );
    let small = a.fma(square * p, a);
    let clamped = L::select(a.gt(L::c(10.0)), L::c(10.0), a);
    let (q, n) = split_exp(clamped + clamped);
    let scale = power_of_two::<L>(n);
    let large = L::c(1.0) - L::c(2.0) / scale.fma(q, scale + L::c(1.0));
    let result = with_sign_of(L::select(a.lt(L::c(0.95)), small, large), x);
    L::select(x.is_nan(), L::nan(), result)
}

/// The logistic function 1 / (1 + e^-x).
///
/// With e^-x = 2^n (1 + q) as in [`exp`] it is 2^-n / (1 + q + 2^-n), whose numerator is exact; what 1 + 2^-n
/// rounds off is added back with q, and the scaling goes in two steps as there. Largest error 1.695
/// ulp. Far below zero it is e^x, subnormal results included; 0 at -inf, 1 from 17.4 on.
#[inline(always)]
pub fn sigmoid<L: Lane>(x: L) -> L {
    let one = L::c(1.0);
    let low = L::select(x.lt(L::c(-104.0)), L::c(-104.0), x);
    let clamped = L::select(low.gt(L::c(20.0)), L::c(20.0), low);
    let (q, n) = split_exp(-clamped);
    let half = n.sar(1);
    let first = power_of_two::<L>(L::Int::c(0) - half);
    let second = power_of_two::<L>(half - n);
    let scale = first * second;
    let minor = scale.lt(one);
    let (large, small) = (L::select(minor, one, scale), L::select(minor, scale, one));
    let sum = large + small;
    let sum = sum + (q + (small - (sum - large)));
    L::select(x.is_nan(), L::nan(), first / sum * second)
}

/// ln(1 + e^x).
///
/// max(x, 0) + ln(1 + e) with e = e^-|x| in [0, 1], the logarithm as e + e^2 Q(e) with Q of degree 9.
/// Largest error 1.903 ulp. Far below zero it is e^x, subnormal results included; inf at inf.
#[inline(always)]
pub fn softplus<L: Lane>(x: L) -> L {
    let below = -x.abs();
    let e = exp_in_range(L::select(below.lt(L::c(-104.0)), L::c(-104.0), below));
    let q = poly(
        e,
        [
            -0.4999998808,
            0.3333271444,
            -0.2498886734,
            0.1990060955,
            -0.1614499688,
            0.1251846999,
            -0.08402843773,
            0.04298470914,
            -0.01418839581,
            0.002199889161,
        ],
    );
    let result = L::select(x.gt(L::c(0.0)), x, L::c(0.0)) + e.fma(e * q, e);
    L::select(x.is_nan(), L::nan(), result)
}

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
fn sin_large<L: Lane>(x: L) -> L {
    sine_of(x, quarter_turns_of_any(x.abs()))
}

#[inline(always)]
fn cos_large<L: Lane>(x: L) -> L {
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

/// Cosine and sine of `j / n` of a full turn in binary64, for whole numbers `0 <= j < n <= 2^24`.
///
/// The nearest quarter turn is taken off exactly, so multiples of a quarter turn give exactly 0, 1 and -1; what
/// is left is at most an eighth of a turn, where the Taylor polynomials end below the rounding of binary64.
#[inline(always)]
fn turn<L: Lane>(j: L, n: L) -> (L::Double, L::Double) {
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

/// The error function.
///
/// Below 0.9, x + x P(x^2); above, 1 - e^Q(|x|) where Q fits ln erfc on [0.9, 4].
/// Largest error 1.092 ulp. Odd bit for bit, keeps the sign of zero, exactly 1 from 3.92 on.
#[inline(always)]
pub fn erf<L: Lane>(x: L) -> L {
    let a = x.abs();
    let near = poly(
        a * a,
        [0.1283791512, -0.3761250377, 0.1128192022, -0.02677040175, 0.004998785909, -0.000601976295],
    );
    let small = a.fma(near, a);
    let clamped = L::select(a.gt(L::c(4.0)), L::c(4.0), a);
    let far = poly(
        clamped,
        [
            -0.0001775241399,
            -1.127749443,
            -0.6370599866,
            -0.1040370911,
            0.02227691002,
            -0.003055544104,
            0.0001971709426,
        ],
    );
    let (q, n) = split_exp(far);
    let scale = power_of_two::<L>(n);
    let large = L::c(1.0) - scale.fma(q, scale);
    let result = with_sign_of(L::select(a.lt(L::c(0.9)), small, large), x);
    L::select(x.is_nan(), L::nan(), result)
}

/// x to the power y.
///
/// 2^(y log2 |x|) in binary64: log2 from the series in (m - 1) / (m + 1), relative error 2^-45, the power
/// from a polynomial of degree 8, then one rounding to binary32. Largest error found 0.501 ulp (6e7 pairs).
///
/// Special cases are those of C99 Annex F: x^0 = 1^y = 1 even for NaN, (-1)^(+-inf) = 1, a negative finite
/// base with a fractional exponent gives NaN, and an odd integer exponent passes on the sign of the base, of
/// 0 and inf too.
#[inline(always)]
pub fn pow<L: Lane>(x: L, y: L) -> L {
    let infinity = L::c(f64::INFINITY);
    let base = x.abs();
    let tiny = base.lt(L::c(f64::from(f32::MIN_POSITIVE)));
    let (m, k) = split_log(L::select(tiny, base * L::c(8_388_608.0), base));
    let k = k - L::Int::select(tiny, L::Int::c(23), L::Int::c(0));
    let one = L::Double::c(1.0);
    // (m - 1) / (m + 1) by a binary32 reciprocal and one step to cubic error: binary64 division is slow.
    let guess = (L::c(1.0) / (m + L::c(1.0))).to_double();
    let m = m.to_double();
    let miss = guess.fma(-(m + one), one);
    let near = (m - one) * guess;
    let s = near.fma(miss.fma(miss, miss), near);
    let series = poly_double(
        s * s,
        [
            2.88539008177785,
            0.9617966941137199,
            0.5770779422458058,
            0.4122092652780455,
            0.3199051343818056,
            0.28290864677552696,
        ],
    );
    let log2 = s.fma(series, L::Double::from_int(k));
    let log2 = L::Double::select(base.eq(infinity), L::Double::c(f64::INFINITY), log2);
    let log2 = L::Double::select(base.eq(L::c(0.0)), L::Double::c(f64::NEG_INFINITY), log2);

    // Beyond +-300 the result is 0 or infinity whatever the exact exponent.
    let t = y.to_double() * log2;
    let (low, high) = (L::Double::c(-300.0), L::Double::c(300.0));
    let t = L::Double::select(t.lt(low), low, t);
    let t = L::Double::select(high.lt(t), high, t);
    let shifted = t + L::Double::c(MAGIC_DOUBLE);
    let r = t - (shifted - L::Double::c(MAGIC_DOUBLE));
    let e = poly_double(
        r,
        [
            0.6931471805461313,
            0.24022650695553532,
            0.055504109407871545,
            0.00961812921960904,
            0.00133334508225821,
            0.0001540341533334278,
            1.531003279826056e-05,
            1.3263529359977504e-06,
        ],
    );
    let scale = L::Double::from_words((shifted.low_word() + L::Int::c(1023)).shl(20), L::Int::c(0));
    let magnitude = L::from_double(r.fma(e, one) * scale);

    // From 2^23 on every float is an integer, from 2^24 on an even one; adding 2^23 rounds the smaller ones.
    let exponent = y.abs();
    let unit = L::c(8_388_608.0);
    let half = exponent * L::c(0.5);
    let integer = exponent.ge(unit) | ((exponent + unit) - unit).eq(exponent);
    let even = exponent.ge(L::c(16_777_216.0)) | ((half + unit) - unit).eq(half);
    let flip = L::Int::select(integer & !even, L::Int::c(SIGN), L::Int::c(0));
    let result = L::from_bits(magnitude.to_bits() ^ (flip & x.to_bits()));

    let fractional = x.lt(L::c(0.0)) & base.lt(infinity) & !integer;
    let result = L::select(fractional | x.is_nan() | y.is_nan(), L::nan(), result);
    let unity = y.eq(L::c(0.0)) | x.eq(L::c(1.0)) | (base.eq(L::c(1.0)) & exponent.eq(infinity));
    L::select(unity, L::c(1.0), result)
}

/// A formula of one argument, recorded as CUDA text.
type TracedUnary = fn(Trace) -> Trace;

/// The CUDA text of every function here, as `ditto_exp`, `ditto_log` and so on; the same text on every call.
pub fn cuda_text() -> String {
    let unary: [(&str, TracedUnary); 11] = [
        ("ditto_exp", exp),
        ("ditto_decay", decay),
        ("ditto_expm1", expm1),
        ("ditto_log", log),
        ("ditto_log1p", log1p),
        ("ditto_tanh", tanh),
        ("ditto_sigmoid", sigmoid),
        ("ditto_softplus", softplus),
        ("ditto_sin_moderate", sin_moderate),
        ("ditto_cos_moderate", cos_moderate),
        ("ditto_erf", erf),
    ];
    let mut text: String = unary.iter().map(|&(name, formula)| cuda_function(name, formula)).collect();
    // Large arguments are rare and dear: a call, where everything else is inlined.
    let large: [(&str, TracedUnary); 2] = [("sin", sin_large), ("cos", cos_large)];
    for (name, formula) in large {
        let out_of_line = cuda_function(&format!("ditto_{name}_large"), formula);
        text.push_str(&out_of_line.replace("__forceinline__", "__noinline__"));
        text.push_str(&format!(
            "__device__ __forceinline__ float ditto_{name}(float x) {{\n    return fabsf(x) < {MODERATE:.1}f ? ditto_{name}_moderate(x) : ditto_{name}_large(x);\n}}\n"
        ));
    }
    text.push_str(&cuda_function2("ditto_pow", pow));
    text
}

/// A function of one argument: its name, the formula at `f32`, and a binary64 reference.
pub type Unary = (&'static str, fn(f32) -> f32, fn(f64) -> f64);

/// Every function of one argument here, with the reference its error is measured against.
pub const UNARY: &[Unary] = &[
    ("exp", exp, libm::exp),
    ("expm1", expm1, libm::expm1),
    ("log", log, libm::log),
    ("log1p", log1p, libm::log1p),
    ("tanh", tanh, libm::tanh),
    ("sigmoid", sigmoid, reference_sigmoid),
    ("softplus", softplus, reference_softplus),
    ("sin", sin, libm::sin),
    ("cos", cos, libm::cos),
    ("erf", erf, libm::erf),
];

fn reference_sigmoid(x: f64) -> f64 {
    let e = libm::exp(-x.abs());
    if x < 0.0 { e / (1.0 + e) } else { 1.0 / (1.0 + e) }
}

fn reference_softplus(x: f64) -> f64 {
    if x.is_nan() { x } else { x.max(0.0) + libm::log1p(libm::exp(-x.abs())) }
}

/// The error of a binary32 result in units in the last place at `want`.
///
/// The unit is 2^-149 for subnormal values. Beyond the largest float both sides count as 2^128, so a rightful
/// overflow has no error. Infinite where one side alone is NaN.
pub fn ulp_error(got: f32, want: f64) -> f64 {
    if got.is_nan() || want.is_nan() {
        return if got.is_nan() && want.is_nan() { 0.0 } else { f64::INFINITY };
    }
    // One unit and half a unit above the largest float; what reaches the half rounds to infinity.
    let largest = f64::from(f32::MAX);
    let half = f64::from_bits((1023 + 103) << 52);
    let (top, overflow) = (largest + half + half, largest + half);
    let want = if want.abs() >= overflow { top.copysign(want) } else { want };
    let got = f64::from(got).clamp(-top, top);
    let exponent = ((want.to_bits() >> 52) & 0x7ff) as i64 - 1023;
    let unit = f64::from_bits((exponent.clamp(-126, 127) - 23 + 1023) as u64 * (1 << 52));
    (got - want).abs() / unit
}

/// The largest error of a function over the inputs tested.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UlpReport {
    /// The function.
    pub name: &'static str,
    /// The largest error, in units in the last place.
    pub max_ulp: f64,
    /// The bits of an input with that error.
    pub worst: u32,
    /// How many inputs were tested.
    pub tested: u64,
}

/// Measures the error of a function of [`UNARY`] over every `stride`-th bit pattern, on all cores.
///
/// `None` if there is no function of that name. A stride of 0 counts as 1, which tests all 2^32 inputs.
pub fn measure_ulp(name: &str, stride: u32) -> Option<UlpReport> {
    let &(name, function, reference) = UNARY.iter().find(|entry| entry.0 == name)?;
    let stride = u64::from(stride.max(1));
    let sweep = |start: u64, step: u64| {
        let mut report = UlpReport { name, max_ulp: 0.0, worst: 0, tested: 0 };
        let mut bits = start;
        while bits < 1 << 32 {
            let x = f32::from_bits(bits as u32);
            let error = ulp_error(function(x), reference(f64::from(x)));
            if error > report.max_ulp {
                report.max_ulp = error;
                report.worst = bits as u32;
            }
            report.tested += 1;
            bits += step;
        }
        report
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let mut report = UlpReport { name, max_ulp: 0.0, worst: 0, tested: 0 };
    std::thread::scope(|scope| {
        let sweep = &sweep;
        let parts: Vec<_> =
            (0..threads).map(|t| scope.spawn(move || sweep(t * stride, threads * stride))).collect();
        for part in parts {
            // A panic goes on here: a part that is missing would make the error look smaller.
            let part = part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            report.tested += part.tested;
            if part.max_ulp > report.max_ulp {
                (report.max_ulp, report.worst) = (part.max_ulp, part.worst);
            }
        }
    });
    Some(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::f32::consts::{FRAC_1_SQRT_2, FRAC_PI_2, FRAC_PI_4, PI, SQRT_2, TAU};

    /// The bounds that the comments state, rounded up.
    const BOUNDS: [(&str, f64); 10] = [
        ("exp", 0.90),
        ("expm1", 1.57),
        ("log", 0.88),
        ("log1p", 1.46),
        ("tanh", 0.94),
        ("sigmoid", 1.70),
        ("softplus", 1.91),
        ("sin", 0.52),
        ("cos", 0.52),
        ("erf", 1.10),
    ];

    /// Where a formula changes branch, saturates, overflows or meets an edge of the format.
    #[rustfmt::skip]
    const POINTS: [f32; 38] = [
        0.0, 1e-45, f32::MIN_POSITIVE, 2.9802322e-8, 5.9604645e-8, f32::EPSILON, 2.4414063e-4, 0.3465736,
        0.35, 0.41421357, 0.5, FRAC_1_SQRT_2, FRAC_PI_4, 0.9, 0.95, 1.0, 1.0397208, SQRT_2, FRAC_PI_2, 2.0,
        PI, 3.92, 4.0, TAU, 9.02, 16.63, 17.32868, 20.0, 87.33655, 88.72284, 89.0, 103.27893, 103.97208,
        104.0, 33554432.0, 1.7014118e38, f32::MAX, f32::INFINITY,
    ];

    fn bound_of(name: &str) -> f64 {
        BOUNDS.iter().find(|entry| entry.0 == name).unwrap().1
    }

    fn check(name: &str) {
        let bound = bound_of(name);
        let report = measure_ulp(name, 997).unwrap();
        assert!(report.tested > 4_000_000);
        assert!(report.max_ulp <= bound, "{report:?} exceeds {bound}");
        let &(_, function, reference) = UNARY.iter().find(|entry| entry.0 == name).unwrap();
        for point in POINTS {
            for offset in -300..=300 {
                let bits = f32::to_bits(point).wrapping_add_signed(offset);
                for x in [f32::from_bits(bits), f32::from_bits(bits ^ SIGN)] {
                    let error = ulp_error(function(x), reference(f64::from(x)));
                    assert!(error <= bound, "{name}({x:e}) is off by {error}");
                }
            }
        }
    }

    macro_rules! sampled {
        ($($function:ident),+) => {
            mod sampled { $(#[test] fn $function() { super::check(stringify!($function)); })+ }
        };
    }
    sampled!(exp, expm1, log, log1p, tanh, sigmoid, softplus, sin, cos, erf);

    #[test]
    fn turns_are_exact_at_quarters_and_close_elsewhere() {
        for n in [1u32, 2, 3, 4, 5, 7, 8, 12, 100, 1024, 1025, 16_777_216] {
            for j in (0..n).step_by((n as usize / 1000).max(1)) {
                let (x, y) = (j as f32, n as f32);
                let angle = std::f64::consts::TAU * f64::from(j) / f64::from(n);
                let (c, s): (f64, f64) = turn(x, y);
                assert!(
                    (c - libm::cos(angle)).abs() < 1e-15 && (s - libm::sin(angle)).abs() < 1e-15,
                    "{j}/{n}"
                );
                if 4 * j % n == 0 {
                    let want = [(1.0, 0.0), (0.0, 1.0), (-1.0, 0.0), (0.0, -1.0)][(4 * j / n) as usize];
                    assert_eq!((c, s), want);
                    assert!(c.to_bits() != (-0.0f64).to_bits() && s.to_bits() != (-0.0f64).to_bits());
                }
                assert_eq!((cos_turn(x, y), sin_turn(x, y)), (c as f32, s as f32));
                assert_eq!(cos_turn_over(x, y), (c / f64::from(n)) as f32);
            }
        }
    }

    #[test]
    #[ignore = "all 2^32 inputs of every function: minutes in a release build"]
    fn every_input_is_within_the_bound() {
        for &(name, ..) in UNARY {
            let report = measure_ulp(name, 1).unwrap();
            println!("{report:?}");
            assert!(report.max_ulp <= bound_of(name), "{report:?}");
        }
    }

    /// A function with arguments and the results they must give.
    type Cases = (&'static str, fn(f32) -> f32, &'static [(f32, f32)]);

    #[test]
    fn special_values_have_exact_bits() {
        const INF: f32 = f32::INFINITY;
        const NAN: f32 = f32::NAN;
        let table: [Cases; 10] = [
            (
                "exp",
                exp,
                &[(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (89.0, INF), (-104.0, 0.0), (NAN, NAN)],
            ),
            (
                "expm1",
                expm1,
                &[(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -1.0), (-1e-45, -1e-45), (NAN, NAN)],
            ),
            (
                "log",
                log,
                &[(1.0, 0.0), (0.0, -INF), (-0.0, -INF), (INF, INF), (-1e-45, NAN), (-INF, NAN), (NAN, NAN)],
            ),
            (
                "log1p",
                log1p,
                &[(0.0, 0.0), (-0.0, -0.0), (-1.0, -INF), (INF, INF), (-1.5, NAN), (-INF, NAN), (NAN, NAN)],
            ),
            (
                "tanh",
                tanh,
                &[(0.0, 0.0), (-0.0, -0.0), (9.1, 1.0), (INF, 1.0), (-INF, -1.0), (1e-45, 1e-45), (NAN, NAN)],
            ),
            (
                "sigmoid",
                sigmoid,
                &[(0.0, 0.5), (-0.0, 0.5), (INF, 1.0), (-INF, 0.0), (20.0, 1.0), (-104.0, 0.0), (NAN, NAN)],
            ),
            ("softplus", softplus, &[(INF, INF), (-INF, 0.0), (100.0, 100.0), (-104.0, 0.0), (NAN, NAN)]),
            ("sin", sin, &[(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN), (-1e-45, -1e-45), (NAN, NAN)]),
            ("cos", cos, &[(0.0, 1.0), (-0.0, 1.0), (INF, NAN), (-INF, NAN), (1e-45, 1.0), (NAN, NAN)]),
            ("erf", erf, &[(0.0, 0.0), (-0.0, -0.0), (4.0, 1.0), (INF, 1.0), (-INF, -1.0), (NAN, NAN)]),
        ];
        for (name, function, cases) in table {
            for &(x, want) in cases {
                let got = function(x);
                assert_eq!(f32::to_bits(got), f32::to_bits(want), "{name}({x}) = {got}");
            }
            for bits in [0x7f80_0001, 0x7fff_ffff, 0xff80_0001, 0xffc0_0000] {
                assert_eq!(f32::to_bits(function(f32::from_bits(bits))), 0x7fc0_0000, "{name} of a NaN");
            }
        }
    }

    #[test]
    fn decay_has_the_bits_of_exp() {
        let same = |x: f32| assert_eq!(f32::to_bits(decay(x)), f32::to_bits(exp(x)), "at {x:e}");
        (0..0x7f80_0001u32).step_by(61).for_each(|bits| same(f32::from_bits(bits | SIGN)));
        for point in POINTS {
            (-300..=300).map(|by| point.to_bits().saturating_add_signed(by).min(0x7f80_0000)).for_each(
                |bits| {
                    same(f32::from_bits(bits | SIGN));
                },
            );
        }
        (0..=64 * 128).for_each(|step| same(step as f32 / 128.0));
        assert!(decay(f32::NAN).is_nan());
    }

    #[test]
    fn weights_are_powers_of_two() {
        let mut worst: f64 = 0.0;
        for step in 0..2_000_000u32 {
            let x = 1.0 - step as f32 * (127.0 / 2e6);
            worst = worst.max(ulp_error(weight(x), libm::exp2(f64::from(x))));
        }
        assert!(worst <= 0.94, "off by {worst}");
        for (x, want) in [(0.0, 1.0), (-0.0, 1.0), (1.0, 2.0), (-126.0, f32::MIN_POSITIVE)] {
            assert_eq!(weight(x), want);
        }
        for x in [-126.00001, -127.0, -1e9, f32::MIN, f32::NEG_INFINITY] {
            assert_eq!(f32::to_bits(weight(x)), 0, "at {x}");
        }
        for bits in [0x7f80_0001, 0x7fff_ffff, 0xff80_0001, 0xffc0_0000] {
            assert!(weight(f32::from_bits(bits)).is_nan());
        }
    }

    #[test]
    fn symmetry_holds_bit_for_bit() {
        for bits in (0..0x7f80_0000u32).step_by(99_991) {
            let x = f32::from_bits(bits);
            for function in [tanh::<f32>, sin, erf] {
                assert_eq!(f32::to_bits(function(-x)), f32::to_bits(-function(x)), "at {x:e}");
            }
            assert_eq!(f32::to_bits(cos(-x)), f32::to_bits(cos(x)), "at {x:e}");
        }
    }

    #[test]
    fn growing_functions_grow() {
        for (name, function, start) in [
            ("exp", exp as fn(f32) -> f32, -120.0f32),
            ("expm1", expm1, -120.0),
            ("log", log, 0.0),
            ("log1p", log1p, -1.0),
            ("tanh", tanh, -12.0),
            ("sigmoid", sigmoid, -120.0),
            ("softplus", softplus, -120.0),
            ("erf", erf, -5.0),
        ] {
            let mut before = function(start);
            for step in 1..30_000 {
                let x = start + step as f32 / 128.0;
                let now = function(x);
                assert!(now >= before, "{name} falls before {x}");
                before = now;
            }
        }
    }

    /// A small generator; its numbers only have to be spread out.
    fn next(state: &mut u64) -> u32 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 32) as u32
    }

    #[test]
    fn powers_are_within_the_bound() {
        let mut state = 1;
        for i in 0..200_000 {
            let x = f32::from_bits(next(&mut state) & 0x7fff_ffff);
            let t = f64::from(next(&mut state)) / 4_294_967_296.0 * 290.0 - 155.0;
            // Half of the exponents are aimed so that the result spans the range of floats, subnormals too.
            let y = if i % 2 == 0 {
                (t / libm::log2(f64::from(x))) as f32
            } else {
                f32::from_bits(next(&mut state))
            };
            let error = ulp_error(pow(x, y), libm::pow(f64::from(x), f64::from(y)));
            assert!(error <= 0.51, "pow({x:e}, {y:e}) is off by {error}");
        }
        for i in -20..=20 {
            for j in -12..=12 {
                let (x, y) = (i as f32 * 0.5, j as f32);
                let error = ulp_error(pow(x, y), libm::pow(f64::from(x), f64::from(y)));
                assert!(error <= 0.5, "pow({x}, {y}) is off by {error}");
            }
        }
    }

    #[test]
    fn special_powers_are_those_of_c() {
        const INF: f32 = f32::INFINITY;
        const NAN: f32 = f32::NAN;
        #[rustfmt::skip]
        let values = [
            0.0, 1e-45, f32::MIN_POSITIVE, 0.5, 0.99999994, 1.0, 1.0000001, 1.5, 2.0, 2.5, 3.0, 8388607.0,
            8388608.0, 8388609.0, 16777215.0, 16777216.0, f32::MAX, INF, NAN,
        ];
        for x in values.iter().flat_map(|&v| [v, -v]) {
            for y in values.iter().flat_map(|&v| [v, -v]) {
                let got = pow(x, y);
                let want = libm::pow(f64::from(x), f64::from(y));
                assert!(ulp_error(got, want) <= 0.51, "pow({x:e}, {y:e}) = {got:e}, not {want:e}");
                if want.is_nan() {
                    assert_eq!(f32::to_bits(got), 0x7fc0_0000);
                } else {
                    assert_eq!(got.is_sign_negative(), want.is_sign_negative(), "pow({x:e}, {y:e})");
                }
            }
        }
        for (x, y, want) in [
            (NAN, 0.0, 1.0),
            (NAN, -0.0, 1.0),
            (1.0, NAN, 1.0),
            (1.0, INF, 1.0),
            (-1.0, INF, 1.0),
            (-1.0, -INF, 1.0),
            (-0.0, -3.0, -INF),
            (-0.0, -2.0, INF),
            (-0.0, 3.0, -0.0),
            (-0.0, 0.5, 0.0),
            (0.0, -INF, INF),
            (-INF, 3.0, -INF),
            (-INF, 0.5, INF),
            (-INF, -3.0, -0.0),
            (0.5, -INF, INF),
            (-2.0, INF, INF),
            (-8.0, 0.33333334, NAN),
            (-2.0, 1e-45, NAN),
            (-2.0, 3.0, -8.0),
            (2.0, -149.0, 1e-45),
            (2.0, 128.0, INF),
        ] {
            assert_eq!(f32::to_bits(pow(x, y)), f32::to_bits(want), "pow({x}, {y})");
        }
    }

    #[test]
    fn cuda_text_calls_intrinsics_only() {
        const KNOWN: &str = "__fadd_rn __fsub_rn __fmul_rn __fdiv_rn __fmaf_rn __fsqrt_rn __dadd_rn \
            __dsub_rn __dmul_rn __ddiv_rn __fma_rn __uint_as_float __float_as_uint __longlong_as_double \
            __int2float_rn __int2double_rn __double2float_rn __double2loint __hiloint2double __umulhi \
            fabsf ditto_sin_moderate ditto_sin_large ditto_cos_moderate ditto_cos_large";
        let text = cuda_text();
        assert_eq!(text, cuda_text());
        // Beside them `decay` and `pow`; sine and cosine are three functions each.
        assert_eq!(text.matches(" float ditto_").count(), UNARY.len() + 2 + 4);
        for line in text.lines().filter(|line| line.starts_with("    ")) {
            for (at, _) in line.match_indices('(') {
                let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
                let called = line[..at].rsplit(|c| !word(c)).next().unwrap_or_default();
                assert!(
                    called.is_empty() || KNOWN.split(' ').any(|known| known == called),
                    "{called} in {line}"
                );
            }
            // Arithmetic on floats goes through intrinsics, so a bare operator may only join integers or
            // masks.
            let float = line.starts_with("    const float") || line.starts_with("    const double");
            let joins = [" + ", " - ", " * ", " / "].iter().any(|operator| line.contains(operator));
            assert!(!(float && joins), "{line}");
        }
    }
}
