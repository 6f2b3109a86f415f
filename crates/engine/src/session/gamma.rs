//! Relatives of the gamma function that are formulas.

use super::Var;
use dittograd_numerics::error::{Error, Result};
use dittograd_numerics::scalar::{Real, Special, polynomial};
use dittograd_ops::pointwise::expression::Expr;
use std::f64::consts::PI;

/// The largest number whose factorial is a float32.
const MOST: usize = 34;

/// Terms that are added one by one before the series takes over.
const FIRST: usize = 9;

/// `B(2 j) / (2 j)!` for j = 1, 2, …, of the series of Euler and Maclaurin.
const EULER_MACLAURIN: [f64; 6] =
    [1.0 / 12.0, -1.0 / 720.0, 1.0 / 30240.0, -1.0 / 1209600.0, 1.0 / 47900160.0, -691.0 / 1.307_674_368e12];

/// The zeta function of Hurwitz, the sum of `(q + k)^-s` over all `k` from 0 up, for `s > 1` and `q` not below 0.
fn hurwitz(s: f64, q: Expr) -> Expr {
    // s, s (s + 1) (s + 2), …
    let rising = (0..EULER_MACLAURIN.len()).scan(s, |factor, j| {
        let k = s + 2.0 * j as f64;
        let now = *factor;
        *factor *= (k + 1.0) * (k + 2.0);
        Some(now)
    });
    let series: Vec<f64> = rising.zip(EULER_MACLAURIN).map(|(factor, b)| factor * b).collect();
    let z = q + Expr::c(FIRST as f64);
    let inverse = Expr::c(1.0) / z;
    let tail = inverse.fma(polynomial(inverse * inverse, &series), Expr::c(0.5));
    let tail = z.pow(Expr::c(1.0 - s)) * inverse.fma(tail, Expr::c(1.0 / (s - 1.0)));
    // The smallest terms first.
    (0..FIRST).rev().fold(tail, |sum, k| sum + (q + Expr::c(k as f64)).pow(Expr::c(-s)))
}

/// The coefficients of derivative `n` of the cotangent as a polynomial `P` of it: the derivative of `P(u)` is `-(1 + u²) P'(u)`.
fn cotangent_derivative(n: usize) -> Vec<f64> {
    let mut p = vec![0.0, 1.0];
    for _ in 0..n {
        let slope: Vec<f64> = p.iter().enumerate().skip(1).map(|(k, a)| a * k as f64).collect();
        p = vec![0.0; slope.len() + 2];
        for (k, a) in slope.iter().enumerate() {
            p[k] -= a;
            p[k + 2] -= a;
        }
    }
    p
}

/// `polygamma(n, x)` for `n` from 2 on. Below zero by reflection: `(-1)^n polygamma(n, 1 - x) - pi^(n + 1) P(cot(pi x))`.
fn polygamma(n: usize, x: Expr) -> Expr {
    let zero = Expr::c(0.0);
    let factorial: f64 = (1..=n).map(|k| k as f64).product();
    let signed = if n.is_multiple_of(2) { -factorial } else { factorial };
    let sum = hurwitz(n as f64 + 1.0, Expr::where_gt(zero, x, Expr::c(1.0) - x, x));
    // Each side gets an argument of its own, so that the other one's gradient stays finite.
    let below = Expr::where_gt(zero, x, x, Expr::c(-0.5));
    let turn = below - below.round();
    // The cosine as a sine, which is exact at its zeros.
    let cotangent = ((Expr::c(0.5) - turn.abs()) * Expr::c(PI)).sin() / (turn * Expr::c(PI)).sin();
    let mut coefficients = cotangent_derivative(n).into_iter().rev().map(Expr::c);
    let highest = coefficients.next().unwrap_or(zero);
    let derivative = coefficients.fold(highest, |sum, k| sum.fma(cotangent, k));
    let reflected = sum * Expr::c(-factorial) - derivative * Expr::c(PI.powi(n as i32 + 1));
    Expr::where_gt(zero, x, reflected, sum * Expr::c(signed))
}

/// # Relatives of the gamma function
impl<'s> Var<'s> {
    /// The derivative number `n` of [`Var::digamma`].
    #[track_caller]
    pub fn polygamma(self, n: usize) -> Result<Var<'s>> {
        match n {
            0 => self.digamma(),
            1 => self.session().pointwise(&[self], |v| v[0].special(Special::Trigamma)),
            2..=MOST => self.session().pointwise(&[self], |v| polygamma(n, v[0])),
            _ => Err(Error::argument(
                "polygamma",
                "n",
                format!("got {n}, use {MOST} or less; its factorial is too large"),
            )),
        }
    }

    /// The logarithm of the gamma function of `p` dimensions, `ln(pi) p (p - 1) / 4` and the sum of [`Var::lgamma`] at
    /// `x - j / 2` for all `j` below `p`.
    #[doc(alias = "multigammaln")]
    #[track_caller]
    pub fn mvlgamma(self, p: usize) -> Result<Var<'s>> {
        if p == 0 {
            return Err(Error::argument("mvlgamma", "p", "is 0, use 1 or more"));
        }
        let constant = p as f64 * (p as f64 - 1.0) / 4.0 * PI.ln();
        self.session().pointwise(&[self], |v| {
            let term = |j: usize| (v[0] - Expr::c(j as f64 / 2.0)).special(Special::Lgamma);
            (0..p).fold(Expr::c(constant), |sum, j| sum + term(j))
        })
    }
}
