//! Functions of each element.

use crate::arguments::Operand;
use crate::tensor::{Answer, Tensor, one};
use dittograd::device::DType;
use dittograd::error::Result;
use dittograd::session::Var;
use dittograd::tensor::Tensor as Host;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

/// A number as a scalar to compute with values: an index, if one of them holds indices and the number can be one.
fn scalar_with<'s>(values: &[Var<'s>], number: f64) -> Result<Var<'s>> {
    let index = number as u32;
    for v in values {
        if v.meta()?.dtype == DType::U32 && f64::from(index) == number {
            return v.session().indices(&Host::new(&[], vec![index])?);
        }
    }
    values[0].session().scalar(number)
}

/// Runs `f` on tensors and numbers, of which at least one is a tensor.
pub(crate) fn mixed(
    inputs: &[&Operand<'_>],
    f: impl for<'s> FnOnce(&[Var<'s>]) -> Result<Var<'s>> + Send,
) -> Answer {
    let tensors: Vec<&Tensor> = inputs
        .iter()
        .filter_map(|input| match input {
            Operand::Tensor(t) => Some(&**t),
            Operand::Number(_) => None,
        })
        .collect();
    if tensors.is_empty() {
        return Err(PyTypeError::new_err(
            "all arguments are numbers; give at least one tensor, which says where to compute",
        ));
    }
    let numbers: Vec<Option<f64>> = inputs
        .iter()
        .map(|input| match input {
            Operand::Tensor(_) => None,
            Operand::Number(n) => Some(*n),
        })
        .collect();
    one(&tensors, |v| {
        let mut given = v.iter().copied();
        let mut all = Vec::with_capacity(numbers.len());
        for number in numbers {
            match number {
                None => all.extend(given.next()),
                Some(n) => all.push(scalar_with(v, n)?),
            }
        }
        f(&all)
    })
}

/// Like [`mixed`], for a function whose results are truth values.
pub(crate) fn mixed_truth(
    inputs: &[&Operand<'_>],
    f: impl for<'s> FnOnce(&[Var<'s>]) -> Result<Var<'s>> + Send,
) -> Answer {
    mixed(inputs, f).map(Tensor::into_truth)
}

/// Functions of one tensor, with the method of the same name of [`Var`]. With `truths:` before them, their results are truth values.
macro_rules! of_each_element {
    (truths: $($rows:tt)+) => { of_each_element! { @with truth $($rows)+ } };
    (@with $run:ident $($(#[doc = $doc:literal])+ $name:ident $(= $method:ident)?;)+) => {$(
        $(#[doc = $doc])+
        #[pyfunction]
        pub fn $name(input: &$crate::tensor::Tensor) -> $crate::tensor::Answer {
            $crate::tensor::$run(&[input], |v| of_each_element!(@call v, $name $(, $method)?))
        }
    )+

    /// Adds these functions to a module.
    pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
        $(module.add_function(wrap_pyfunction!($name, module)?)?;)+
        Ok(())
    }};
    (@call $v:ident, $name:ident) => { $v[0].$name() };
    (@call $v:ident, $name:ident, $name2:ident) => { $v[0].$name2() };
    ($($rows:tt)+) => { of_each_element! { @with one $($rows)+ } };
}
pub(crate) use of_each_element;

/// Functions of two tensors, or of a tensor and a number, with the method of the same name of [`Var`]. With `truths:` before them, their
/// results are truth values.
macro_rules! of_pairs {
    (truths: $($rows:tt)+) => { of_pairs! { @with mixed_truth $($rows)+ } };
    (@with $run:ident $($(#[doc = $doc:literal])+ $name:ident($second:ident) $(= $method:ident)?;)+) => {$(
        $(#[doc = $doc])+
        #[pyfunction]
        pub fn $name(input: $crate::arguments::Operand<'_>, $second: $crate::arguments::Operand<'_>) -> $crate::tensor::Answer {
            $crate::functions::elementwise::$run(&[&input, &$second], |v| of_pairs!(@call v, $name $(, $method)?))
        }
    )+

    /// Adds these functions to a module.
    pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
        $(module.add_function(wrap_pyfunction!($name, module)?)?;)+
        Ok(())
    }};
    (@call $v:ident, $name:ident) => { $v[0].$name($v[1]) };
    (@call $v:ident, $name:ident, $name2:ident) => { $v[0].$name2($v[1]) };
    ($($rows:tt)+) => { of_pairs! { @with mixed $($rows)+ } };
}
pub(crate) use of_pairs;

/// The functions without further arguments.
mod plain {
    use super::*;
    of_each_element! {
        /// Absolute values.
        abs;
        /// Absolute values: another name of `abs`.
        absolute = abs;
        /// The arc cosine; NaN outside of -1 to 1.
        acos;
        /// Another name of `acos`.
        arccos = acos;
        /// The inverse hyperbolic cosine; NaN below 1.
        acosh;
        /// Another name of `acosh`.
        arccosh = acosh;
        /// A copy in memory of its own.
        alias_copy = copy;
        /// The arc sine; NaN outside of -1 to 1.
        asin;
        /// Another name of `asin`.
        arcsin = asin;
        /// The inverse hyperbolic sine.
        asinh;
        /// Another name of `asinh`.
        arcsinh = asinh;
        /// The arc tangent.
        atan;
        /// Another name of `atan`.
        arctan = atan;
        /// The inverse hyperbolic tangent; NaN outside of -1 to 1.
        atanh;
        /// Another name of `atanh`.
        arctanh = atanh;
        /// Rounds up to whole numbers.
        ceil;
        /// The complex conjugate of real numbers: the same numbers.
        conj = positive;
        /// The complex conjugate of real numbers: the same numbers.
        conj_physical = positive;
        /// Cosines of angles in radians.
        cos;
        /// The hyperbolic cosine.
        cosh;
        /// Degrees as radians.
        deg2rad;
        /// The derivative of `lgamma`.
        digamma;
        /// The error function.
        erf;
        /// `1 - erf(x)`, accurate where that is small.
        erfc;
        /// The inverse of `erf`.
        erfinv;
        /// `e^x`.
        exp;
        /// `2^x`.
        exp2;
        /// `e^x - 1`, accurate near zero.
        expm1;
        /// Rounds towards zero: another name of `trunc`.
        fix = trunc;
        /// Rounds down to whole numbers.
        floor;
        /// What is left of a number without its whole part; it has the sign of the number.
        frac;
        /// The modified Bessel function of the first kind, of order 0.
        i0;
        /// The logarithm of the magnitude of the gamma function.
        lgamma;
        /// The natural logarithm.
        log;
        /// The logarithm to base 10.
        log10;
        /// `ln(1 + x)`, accurate near zero.
        log1p;
        /// The logarithm to base 2.
        log2;
        /// `-x`.
        neg;
        /// `-x`: another name of `neg`.
        negative = neg;
        /// The tensor itself.
        positive;
        /// Radians as degrees.
        rad2deg;
        /// The real part of real numbers: the same numbers. Of a complex value, which is pairs, take `x[..., 0]`.
        real = positive;
        /// `1 / x`.
        reciprocal = inv;
        /// The tensor itself: no conjugate waits to be computed.
        resolve_conj = positive;
        /// The tensor itself: no sign waits to be computed.
        resolve_neg = positive;
        /// `1 / sqrt(x)`.
        rsqrt;
        /// -1, 0 or 1 by the sign of real numbers: another name of `sign`.
        sgn = sign;
        /// `1 / (1 + e^-x)`.
        sigmoid;
        /// -1, 0 or 1, by the sign.
        sign;
        /// Sines of angles in radians.
        sin;
        /// `sin(pi x) / (pi x)`, 1 at zero.
        sinc;
        /// The hyperbolic sine.
        sinh;
        /// The square root; NaN below zero. The slope at zero is 0.
        sqrt;
        /// `x * x`.
        square;
        /// Tangents of angles in radians.
        tan;
        /// The hyperbolic tangent.
        tanh;
        /// Rounds towards zero to whole numbers.
        trunc;
        /// A complex value, which is pairs already: the tensor itself.
        view_as_complex = positive;
        /// The pairs of a complex value, which they are already: the tensor itself.
        view_as_real = positive;
        /// Indices as numbers.
        _float = to_float;
        /// Whole numbers as indices.
        _long = to_index;
    }
}

/// The functions of two tensors without further arguments.
mod pairs {
    use super::*;
    of_pairs! {
        /// The angle of the point with ordinate `input` and abscissa `other`, from -pi to pi.
        atan2(other);
        /// Another name of `atan2`.
        arctan2(other) = atan2;
        /// The magnitude of `input` with the sign of `other`.
        copysign(other);
        /// `input` to the power of `exponent`, in float32.
        float_power(exponent) = pow;
        /// The quotient rounded down. It has no gradient.
        floor_divide(other);
        /// The larger of two elements; a number is preferred to NaN.
        fmax(other);
        /// The smaller of two elements; a number is preferred to NaN.
        fmin(other);
        /// What is left of `input` after division by `other`, with the sign of `input`.
        fmod(other);
        /// 0 where `input` is negative, 1 where it is positive, `values` where it is zero.
        heaviside(values);
        /// `sqrt(input² + other²)`, without overflow on the way.
        hypot(other);
        /// `ln(e^input + e^other)`, without overflow on the way.
        logaddexp(other);
        /// `log2(2^input + 2^other)`, without overflow on the way.
        logaddexp2(other);
        /// The larger of two elements; NaN if one is.
        maximum(other);
        /// The smaller of two elements; NaN if one is.
        minimum(other);
        /// `input * other`.
        mul(other);
        /// `input * other`: another name of `mul`.
        multiply(other) = mul;
        /// What is left of `input` after division by `other`, with the sign of `other`, as Python's `%`.
        remainder(other);
        /// `input / other`: another name of `div`.
        true_divide(other) = div;
        /// `input * ln(other)`, 0 where `input` is 0 and `other` is not NaN.
        xlogy(other);
    }
}

/// Questions about each element.
mod truths {
    use super::*;
    of_each_element! {
        truths:
        /// 1 where a number is neither infinite nor NaN, else 0.
        isfinite;
        /// 1 where a number is infinite, else 0.
        isinf;
        /// 1 where a number is NaN, else 0.
        isnan;
        /// 1 where a number is `-inf`, else 0.
        isneginf;
        /// 1 where a number is `inf`, else 0.
        isposinf;
        /// 1 everywhere: all numbers are real.
        isreal = ones_like;
        /// 1 where a number is 0, else 0.
        logical_not;
        /// 1 where the sign bit is set, as of -0, else 0.
        signbit;
    }
}

/// Questions about pairs of elements.
mod truth_pairs {
    use super::*;
    of_pairs! {
        truths:
        /// 1 where the elements are equal, else 0. Indices compare with indices and whole numbers.
        eq(other);
        /// 1 where `input >= other`, else 0.
        ge(other);
        /// Another name of `ge`.
        greater_equal(other) = ge;
        /// 1 where `input > other`, else 0.
        gt(other);
        /// Another name of `gt`.
        greater(other) = gt;
        /// 1 where `input <= other`, else 0.
        le(other);
        /// Another name of `le`.
        less_equal(other) = le;
        /// 1 where both elements are true, which all numbers but 0 are, else 0.
        logical_and(other);
        /// 1 where at least one element is true, else 0.
        logical_or(other);
        /// 1 where exactly one element is true, else 0.
        logical_xor(other);
        /// 1 where `input < other`, else 0.
        lt(other);
        /// Another name of `lt`.
        less(other) = lt;
        /// 1 where the elements differ, else 0. Indices compare with indices and whole numbers.
        ne(other);
        /// Another name of `ne`.
        not_equal(other) = ne;
    }
}

#[pymodule]
pub mod elementwise {
    use crate::arguments::Operand;
    use crate::functions::elementwise::mixed;
    use crate::tensor::{Answer, Tensor, asked_all, one, truth, two};
    use pyo3::exceptions::PyValueError;
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::plain::register(module)?;
        super::pairs::register(module)?;
        super::truths::register(module)?;
        super::truth_pairs::register(module)
    }

    /// `input + alpha * other`.
    #[pyfunction]
    #[pyo3(signature = (input, other, *, alpha=1.0))]
    fn add(input: Operand<'_>, other: Operand<'_>, alpha: f64) -> Answer {
        mixed(&[&input, &other], |v| if alpha == 1.0 { v[0].add(v[1]) } else { v[0].axpy(alpha, v[1]) })
    }

    /// `input + value * tensor1 / tensor2`.
    #[pyfunction]
    #[pyo3(signature = (input, tensor1, tensor2, *, value=1.0))]
    fn addcdiv(input: &Tensor, tensor1: &Tensor, tensor2: &Tensor, value: f64) -> Answer {
        one(&[input, tensor1, tensor2], |v| v[0].addcdiv(value, v[1], v[2]))
    }

    /// `input + value * tensor1 * tensor2`.
    #[pyfunction]
    #[pyo3(signature = (input, tensor1, tensor2, *, value=1.0))]
    fn addcmul(input: &Tensor, tensor1: &Tensor, tensor2: &Tensor, value: f64) -> Answer {
        one(&[input, tensor1, tensor2], |v| v[0].addcmul(value, v[1], v[2]))
    }

    /// Whether all elements are near each other, as `isclose` says. Waits for the device.
    #[pyfunction]
    #[pyo3(signature = (input, other, rtol=1e-5, atol=1e-8, equal_nan=false))]
    fn allclose(input: &Tensor, other: &Tensor, rtol: f64, atol: f64, equal_nan: bool) -> PyResult<bool> {
        asked_all(&[input, other], |v| v[0].allclose(v[1], rtol, atol, equal_nan))
    }

    /// The angle of real numbers as complex ones: pi where they are negative, else 0.
    #[pyfunction]
    fn angle(input: &Tensor) -> Answer {
        one(&[input], |v| v[0].angle())
    }

    /// The numbers held between `min` and `max`, each a number or a tensor. At least one of them is given.
    #[pyfunction]
    #[pyo3(signature = (input, min=None, max=None))]
    fn clamp(input: &Bound<'_, Tensor>, min: Option<Operand<'_>>, max: Option<Operand<'_>>) -> Answer {
        if min.is_none() && max.is_none() {
            return Err(PyValueError::new_err("clamp: neither min nor max is given; give at least one"));
        }
        let low = min.unwrap_or(Operand::Number(f64::NEG_INFINITY));
        let high = max.unwrap_or(Operand::Number(f64::INFINITY));
        mixed(&[&Operand::Tensor(input.borrow()), &low, &high], |v| v[0].clamp_to(v[1], v[2]))
    }

    /// Another name of `clamp`.
    #[pyfunction]
    #[pyo3(signature = (input, min=None, max=None))]
    fn clip(input: &Bound<'_, Tensor>, min: Option<Operand<'_>>, max: Option<Operand<'_>>) -> Answer {
        clamp(input, min, max)
    }

    /// The numbers held below `max`, a number or a tensor.
    #[pyfunction]
    fn clamp_max(input: &Bound<'_, Tensor>, max: Operand<'_>) -> Answer {
        clamp(input, None, Some(max))
    }

    /// The numbers held above `min`, a number or a tensor.
    #[pyfunction]
    fn clamp_min(input: &Bound<'_, Tensor>, min: Operand<'_>) -> Answer {
        clamp(input, Some(min), None)
    }

    /// Complex numbers, that is pairs along a new last axis, of their real and imaginary parts.
    #[pyfunction]
    fn complex(real: &Tensor, imag: &Tensor) -> Answer {
        one(&[real, imag], |v| v[0].complex(v[1]))
    }

    /// The quotient; with `rounding_mode` "trunc" rounded towards zero, with "floor" rounded down.
    #[pyfunction]
    #[pyo3(signature = (input, other, *, rounding_mode=None))]
    fn div(input: Operand<'_>, other: Operand<'_>, rounding_mode: Option<&str>) -> Answer {
        match rounding_mode {
            None => mixed(&[&input, &other], |v| v[0].div(v[1])),
            Some("trunc") => mixed(&[&input, &other], |v| v[0].div(v[1])?.trunc()),
            Some("floor") => mixed(&[&input, &other], |v| v[0].floor_divide(v[1])),
            Some(other) => Err(PyValueError::new_err(format!(
                "div: rounding_mode is {other:?}; use None, \"trunc\" or \"floor\""
            ))),
        }
    }

    /// Another name of `div`.
    #[pyfunction]
    #[pyo3(signature = (input, other, *, rounding_mode=None))]
    fn divide(input: Operand<'_>, other: Operand<'_>, rounding_mode: Option<&str>) -> Answer {
        div(input, other, rounding_mode)
    }

    /// Whether both tensors have one shape and equal elements. Waits for the device.
    #[pyfunction]
    fn equal(input: &Tensor, other: &Tensor) -> PyResult<bool> {
        asked_all(&[input, other], |v| v[0].equal(v[1]))
    }

    /// A tensor of the shape of `input` with every element `value`, a number or a tensor of one element.
    #[pyfunction]
    fn fill(input: &Bound<'_, Tensor>, value: Operand<'_>) -> Answer {
        mixed(&[&Operand::Tensor(input.borrow()), &value], |v| v[1].expand_as(v[0]))
    }

    /// 1 where two elements are as near as `|input - other| <= atol + rtol |other|`, else 0.
    #[pyfunction]
    #[pyo3(signature = (input, other, rtol=1e-5, atol=1e-8, equal_nan=false))]
    fn isclose(input: &Tensor, other: &Tensor, rtol: f64, atol: f64, equal_nan: bool) -> Answer {
        truth(&[input, other], |v| v[0].isclose(v[1], rtol, atol, equal_nan))
    }

    /// 1 where an element of `elements` is one of `test_elements`, else 0; with `invert` the other way round.
    #[pyfunction]
    #[pyo3(signature = (elements, test_elements, *, assume_unique=false, invert=false))]
    fn isin(elements: Operand<'_>, test_elements: Operand<'_>, assume_unique: bool, invert: bool) -> Answer {
        // Every element is compared with every one, so it does not matter whether some are equal.
        let _ = assume_unique;
        let found = mixed(&[&elements, &test_elements], |v| v[0].isin(v[1]))?;
        if invert { truth(&[&found], |v| v[0].logical_not()) } else { Ok(found.into_truth()) }
    }

    /// `input * 2^other`. The exponents may be indices.
    #[pyfunction]
    fn ldexp(input: Operand<'_>, other: Operand<'_>) -> Answer {
        if let Operand::Tensor(t) = &other
            && t.is_index()?
        {
            return mixed(&[&input, &other], |v| v[0].ldexp(v[1].to_float()?));
        }
        mixed(&[&input, &other], |v| v[0].ldexp(v[1]))
    }

    /// Linear interpolation, `input + weight * (end - input)`; the weight is a number or a tensor.
    #[pyfunction]
    fn lerp(input: &Tensor, end: &Tensor, weight: Operand<'_>) -> Answer {
        match weight {
            Operand::Number(weight) => one(&[input, end], |v| v[0].lerp(weight, v[1])),
            Operand::Tensor(weight) => one(&[input, end, &weight], |v| v[0].lerp_by(v[2], v[1])),
        }
    }

    /// The inverse of `sigmoid`, `ln(x / (1 - x))`. With `eps`, numbers are first held between `eps` and `1 - eps`.
    #[pyfunction]
    #[pyo3(signature = (input, eps=None))]
    fn logit(input: &Tensor, eps: Option<f64>) -> Answer {
        one(&[input], |v| v[0].logit(eps))
    }

    /// Numbers in the place of NaN and of infinities: `nan`, `posinf` and `neginf`, or the largest and smallest of all numbers.
    #[pyfunction]
    #[pyo3(signature = (input, nan=0.0, posinf=None, neginf=None))]
    fn nan_to_num(input: &Tensor, nan: Option<f64>, posinf: Option<f64>, neginf: Option<f64>) -> Answer {
        one(&[input], |v| v[0].nan_to_num(nan.unwrap_or(0.0), posinf, neginf))
    }

    /// Complex numbers, that is pairs along a new last axis, of their magnitudes and angles.
    #[pyfunction]
    fn polar(abs: &Tensor, angle: &Tensor) -> Answer {
        one(&[abs, angle], |v| v[0].polar(v[1]))
    }

    /// Mantissas, of a magnitude from 0.5 up to 1, and exponents of base 2, as numbers.
    #[pyfunction]
    fn frexp(input: &Tensor) -> PyResult<(Tensor, Tensor)> {
        two(&[input], |v| v[0].frexp())
    }

    /// The logarithm of the gamma function of `p` dimensions.
    #[pyfunction]
    fn mvlgamma(input: &Tensor, p: usize) -> Answer {
        one(&[input], |v| v[0].mvlgamma(p))
    }

    /// Derivative number `n` of `digamma`.
    #[pyfunction]
    fn polygamma(n: usize, input: &Tensor) -> Answer {
        one(&[input], |v| v[0].polygamma(n))
    }

    /// `input` to the power of `exponent`.
    #[pyfunction]
    fn pow(input: Operand<'_>, exponent: Operand<'_>) -> Answer {
        if let (Operand::Tensor(x), Operand::Number(n)) = (&input, &exponent) {
            return one(&[x], |v| v[0].pow_scalar(*n));
        }
        mixed(&[&input, &exponent], |v| v[0].pow(v[1]))
    }

    /// Rounds to `decimals` decimals, to whole numbers if that is 0; halves to even.
    #[pyfunction]
    #[pyo3(signature = (input, *, decimals=0))]
    fn round(input: &Tensor, decimals: i32) -> Answer {
        one(&[input], |v| v[0].round_to(decimals))
    }

    /// `other - alpha * input`.
    #[pyfunction]
    #[pyo3(signature = (input, other, *, alpha=1.0))]
    fn rsub(input: Operand<'_>, other: Operand<'_>, alpha: f64) -> Answer {
        mixed(&[&input, &other], |v| v[0].rsub(alpha, v[1]))
    }

    /// `input - alpha * other`.
    #[pyfunction]
    #[pyo3(signature = (input, other, *, alpha=1.0))]
    fn sub(input: Operand<'_>, other: Operand<'_>, alpha: f64) -> Answer {
        mixed(&[&input, &other], |v| if alpha == 1.0 { v[0].sub(v[1]) } else { v[0].axpy(-alpha, v[1]) })
    }

    /// Another name of `sub`.
    #[pyfunction]
    #[pyo3(signature = (input, other, *, alpha=1.0))]
    fn subtract(input: Operand<'_>, other: Operand<'_>, alpha: f64) -> Answer {
        sub(input, other, alpha)
    }
}
