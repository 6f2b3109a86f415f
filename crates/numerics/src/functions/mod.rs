//! The elementary functions of the runtime, each one branch-free formula over [`Lane`].
//!
//! The CPU runs them with `f32`, in loops the compiler vectorises; the GPU runs [`cuda_text`], recorded from
//! the very same code, so there is no second version to keep in step. They are defined for all 2^32 inputs: a
//! NaN argument gives the one NaN `0x7fc00000`, subnormals are neither flushed on the way in nor on the way
//! out. The polynomials are minimax fits made for these files (weighted exchange, then coefficients rounded one
//! at a time and the rest fitted again). Errors are in units in the last place of binary32 at the exact
//! value, the largest over all 2^32 inputs, as [`measure_ulp`] finds them.

mod activations;
mod angle;
mod bessel;
mod double;
mod error;
mod exp;
mod gamma;
mod log;
mod pow;
pub(crate) mod reference;
mod trig;
mod turn;
mod ulp;

pub use activations::{erf, sigmoid, softplus, tanh};
pub use angle::{atan2, cosh, exp2, fmod, log2, log10, sinh};
pub use bessel::{i0, i0e, i1, i1e};
pub use error::{erfc, erfcx, erfinv, ndtri};
pub use exp::{decay, exp, expm1, weight, weight_mantissa, weight_power};
pub use gamma::{digamma, lgamma, trigamma};
pub use log::{log, log1p};
pub use pow::pow;
pub use trig::{MODERATE, cos, cos_moderate, sin, sin_moderate};
pub use turn::{cos_turn, cos_turn_over, cuda_turn_text, sin_turn, sin_turn_over};
pub use ulp::{UNARY, UlpReport, Unary, measure_ulp, ulp_error};

use super::lane::{Lane, LaneDouble, LaneInt, Trace, cuda_function, cuda_function2};
use trig::{cos_large, sin_large};

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

/// A formula of one argument, recorded as CUDA text.
type TracedUnary = fn(Trace) -> Trace;

/// The functions whose CUDA text only the kernels that call them contain.
const SPECIAL: [(&str, TracedUnary); 16] = [
    ("sinh", sinh),
    ("cosh", cosh),
    ("exp2", exp2),
    ("log2", log2),
    ("log10", log10),
    ("erfc", erfc),
    ("erfcx", erfcx),
    ("erfinv", erfinv),
    ("ndtri", ndtri),
    ("lgamma", lgamma),
    ("digamma", digamma),
    ("trigamma", trigamma),
    ("i0", i0),
    ("i0e", i0e),
    ("i1", i1),
    ("i1e", i1e),
];

/// The CUDA text of `ditto_NAME`, if it is a function that [`cuda_text`] leaves out. A second copy in one text is skipped.
pub fn cuda_special_text(name: &str) -> Option<String> {
    let called = format!("ditto_{name}");
    let text = match name {
        "atan2" => cuda_function2(&called, atan2),
        "fmod" => cuda_function2(&called, fmod),
        _ => cuda_function(&called, SPECIAL.iter().find(|entry| entry.0 == name)?.1),
    };
    let guard = called.to_uppercase();
    Some(format!("#ifndef {guard}\n#define {guard}\n{text}#endif\n"))
}

/// The CUDA text of every common function, as `ditto_exp`, `ditto_log` and so on; the same text on every call.
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

#[cfg(test)]
mod tests;
