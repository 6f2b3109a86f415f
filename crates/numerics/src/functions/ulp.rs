//! The error of the functions, in units in the last place.

use super::{
    cos, cosh, erf, erfc, erfcx, erfinv, exp, exp2, expm1, i0, i0e, i1, i1e, log, log1p, log2, log10, ndtri,
    reference, sigmoid, sin, sinh, softplus, tanh,
};

/// A function of one argument: its name, the formula at `f32`, and a binary64 reference.
pub type Unary = (&'static str, fn(f32) -> f32, fn(f64) -> f64);

/// Every function of one argument here but those of [the gamma function](super::lgamma), whose error at their roots
/// is absolute, with the reference its error is measured against.
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
    ("sinh", sinh, reference::sinh),
    ("cosh", cosh, reference::cosh),
    ("exp2", exp2, reference::exp2),
    ("log2", log2, reference::log2),
    ("log10", log10, reference::log10),
    ("erfc", erfc, reference::erfc),
    ("erfcx", erfcx, reference::erfcx),
    ("erfinv", erfinv, reference::erfinv),
    ("ndtri", ndtri, reference::ndtri),
    ("i0", i0, reference::i0),
    ("i0e", i0e, reference::i0e),
    ("i1", i1, reference::i1),
    ("i1e", i1e, reference::i1e),
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
