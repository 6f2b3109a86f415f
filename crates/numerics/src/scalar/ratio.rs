//! Exact fractions.

use super::{Real, Scalar, Special};
use std::cmp::Ordering;
use std::fmt;
use std::ops::{Add, Div, Mul, Neg, Sub};

/// A fraction of whole numbers in lowest terms, exact under `+ - * /`. What has no exact answer (a logarithm, a result
/// beyond 127 bits, division by zero) is [`Ratio::UNDEFINED`], which spreads like a NaN: an answer that is defined is
/// exact.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ratio {
    /// The sign is here.
    above: i128,
    /// At least 1; 0 if undefined.
    below: i128,
}

fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl Ratio {
    /// No number.
    pub const UNDEFINED: Ratio = Ratio { above: 0, below: 0 };

    /// `above / below`.
    pub fn new(above: i128, below: i128) -> Ratio {
        let by = gcd(above.unsigned_abs(), below.unsigned_abs());
        let Ok(by) = i128::try_from(by) else { return Ratio::UNDEFINED };
        if below == 0 || above == i128::MIN || below == i128::MIN {
            return Ratio::UNDEFINED;
        }
        let by = if below < 0 { -by } else { by };
        Ratio { above: above / by, below: below / by }
    }

    /// The whole number `x`.
    pub fn whole(x: i64) -> Ratio {
        Ratio { above: i128::from(x), below: 1 }
    }

    /// Whether it is a number.
    pub fn is_defined(self) -> bool {
        self.below != 0
    }

    fn checked(above: Option<i128>, below: Option<i128>) -> Ratio {
        match (above, below) {
            (Some(above), Some(below)) => Ratio::new(above, below),
            _ => Ratio::UNDEFINED,
        }
    }

    /// `y` at the one point `x` where a function has an exact value, undefined elsewhere.
    fn only(self, x: i64, y: i64) -> Ratio {
        if self == Ratio::whole(x) { Ratio::whole(y) } else { Ratio::UNDEFINED }
    }
}

impl Add for Ratio {
    type Output = Ratio;
    fn add(self, b: Ratio) -> Ratio {
        if !(self.is_defined() && b.is_defined()) {
            return Ratio::UNDEFINED;
        }
        // Over the least common denominator, which overflows last.
        let Ok(by) = i128::try_from(gcd(self.below.unsigned_abs(), b.below.unsigned_abs())) else {
            return Ratio::UNDEFINED;
        };
        let left = self.above.checked_mul(b.below / by);
        let right = b.above.checked_mul(self.below / by);
        let above = left.and_then(|l| right.and_then(|r| l.checked_add(r)));
        Ratio::checked(above, self.below.checked_mul(b.below / by))
    }
}

impl Neg for Ratio {
    type Output = Ratio;
    fn neg(self) -> Ratio {
        Ratio { above: -self.above, below: self.below }
    }
}

impl Sub for Ratio {
    type Output = Ratio;
    fn sub(self, b: Ratio) -> Ratio {
        self + -b
    }
}

impl Mul for Ratio {
    type Output = Ratio;
    fn mul(self, b: Ratio) -> Ratio {
        if !(self.is_defined() && b.is_defined()) {
            return Ratio::UNDEFINED;
        }
        let (left, right) = (Ratio::new(self.above, b.below), Ratio::new(b.above, self.below));
        Ratio::checked(left.above.checked_mul(right.above), left.below.checked_mul(right.below))
    }
}

impl Div for Ratio {
    type Output = Ratio;
    // A quotient is a product with the inverse.
    #[allow(clippy::suspicious_arithmetic_impl)]
    fn div(self, b: Ratio) -> Ratio {
        if b.is_defined() { self * Ratio::new(b.below, b.above) } else { b }
    }
}

impl PartialOrd for Ratio {
    fn partial_cmp(&self, b: &Ratio) -> Option<Ordering> {
        let difference = *self - *b;
        difference.is_defined().then(|| difference.above.cmp(&0))
    }
}

impl fmt::Debug for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.below {
            0 => f.write_str("undefined"),
            1 => write!(f, "{}", self.above),
            _ => write!(f, "{}/{}", self.above, self.below),
        }
    }
}

impl Real for Ratio {
    /// Exactly `x`, undefined if that takes more than 127 bits.
    fn c(x: f64) -> Ratio {
        if !x.is_finite() {
            return Ratio::UNDEFINED;
        }
        let (mut above, mut below) = (x, 1i128);
        while above.fract() != 0.0 {
            let Some(next) = below.checked_mul(2) else { return Ratio::UNDEFINED };
            (above, below) = (above * 2.0, next);
        }
        if above.abs() < 1e38 { Ratio::new(above as i128, below) } else { Ratio::UNDEFINED }
    }
    fn fma(self, b: Ratio, c: Ratio) -> Ratio {
        self * b + c
    }
    fn abs(self) -> Ratio {
        Ratio { above: self.above.abs(), below: self.below }
    }
    /// Of squares.
    fn sqrt(self) -> Ratio {
        let root = |x: i128| {
            let near = (x as f64).sqrt() as i128;
            (near.saturating_sub(1)..=near + 1).find(|r| r.checked_mul(*r) == Some(x))
        };
        if self.above < 0 { Ratio::UNDEFINED } else { Ratio::checked(root(self.above), root(self.below)) }
    }
    fn exp(self) -> Ratio {
        self.only(0, 1)
    }
    fn expm1(self) -> Ratio {
        self.only(0, 0)
    }
    fn log(self) -> Ratio {
        self.only(1, 0)
    }
    fn log1p(self) -> Ratio {
        self.only(0, 0)
    }
    fn tanh(self) -> Ratio {
        self.only(0, 0)
    }
    fn sigmoid(self) -> Ratio {
        self.only(0, 1) * Ratio::new(1, 2)
    }
    fn softplus(self) -> Ratio {
        Ratio::UNDEFINED
    }
    fn sin(self) -> Ratio {
        self.only(0, 0)
    }
    fn cos(self) -> Ratio {
        self.only(0, 1)
    }
    fn erf(self) -> Ratio {
        self.only(0, 0)
    }
    /// For whole exponents.
    fn pow(self, b: Ratio) -> Ratio {
        if b.below != 1 || b.above.unsigned_abs() > 127 {
            return Ratio::UNDEFINED;
        }
        let base = if b.above < 0 { Ratio::whole(1) / self } else { self };
        (0..b.above.unsigned_abs()).fold(Ratio::whole(1), |power, _| power * base)
    }
    fn special(self, _: Special) -> Ratio {
        Ratio::UNDEFINED
    }
    fn atan2(self, _: Ratio) -> Ratio {
        Ratio::UNDEFINED
    }
    fn fmod(self, b: Ratio) -> Ratio {
        let times = (self / b).abs().floor();
        self - b.abs() * if self < Ratio::whole(0) { -times } else { times }
    }
    fn floor(self) -> Ratio {
        if self.is_defined() { Ratio::new(self.above.div_euclid(self.below), 1) } else { self }
    }
    fn round(self) -> Ratio {
        let (half, low) = (Ratio::new(1, 2), self.floor());
        let rest = self - low;
        let up = rest > half || rest == half && low.above % 2 != 0;
        if up { low + Ratio::whole(1) } else { low }
    }
    fn max(self, b: Ratio) -> Ratio {
        if self > b || !self.is_defined() { self } else { b }
    }
    fn min(self, b: Ratio) -> Ratio {
        if b > self || !self.is_defined() { self } else { b }
    }
    fn where_gt(a: Ratio, b: Ratio, x: Ratio, y: Ratio) -> Ratio {
        if a > b { x } else { y }
    }
    fn where_le(a: Ratio, b: Ratio, x: Ratio, y: Ratio) -> Ratio {
        if a <= b { x } else { y }
    }
    fn where_eq(a: Ratio, b: Ratio, x: Ratio, y: Ratio) -> Ratio {
        if a.is_defined() && a == b { x } else { y }
    }
}

impl Scalar for Ratio {
    const NAME: &'static str = "ratio";
    fn to_f64(self) -> f64 {
        self.above as f64 / self.below as f64
    }
    fn to_f32(self) -> Option<f32> {
        None
    }
    fn from_f32(x: f32) -> Ratio {
        Ratio::c(f64::from(x))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_is_exact_or_undefined() {
        let r = Ratio::new;
        assert_eq!(r(1, 3) + r(1, 6), r(1, 2));
        assert_eq!(r(2, -4), r(-1, 2));
        assert_eq!(r(3, 4) / r(-9, 8), r(-2, 3));
        assert_eq!(Ratio::c(0.375), r(3, 8));
        assert_eq!(r(9, 4).sqrt(), r(3, 2));
        assert_eq!(r(-7, 2).floor(), r(-4, 1));
        assert_eq!((r(5, 2).round(), r(7, 2).round(), r(-5, 2).round()), (r(2, 1), r(4, 1), r(-2, 1)));
        assert_eq!(r(2, 3).pow(r(-3, 1)), r(27, 8));
        for undefined in [r(1, 0), r(2, 1).sqrt(), r(1, 2).exp(), Ratio::c(f64::NAN), Ratio::c(1e300)] {
            assert!(!undefined.is_defined() && !(undefined + r(1, 1)).is_defined(), "{undefined:?}");
            assert_eq!(undefined.partial_cmp(&r(1, 1)), None);
        }
        let large = r(i128::MAX, 3);
        assert!(!(large * large).is_defined() && !(large + r(1, 7)).is_defined());
        assert!(r(1, 3) < r(1, 2) && r(-1, 3) > r(-1, 2));
    }
}
