//! What the checks run these ops on.

use super::{Amax, Amin, Logsumexp, Mean, NormInf, NormL1, NormL2, Prod, Reduction, StdDev, Sum, Variance};
use crate::Bound;

/// What the checks of a reduction need to know.
pub(super) trait Expected: Reduction {
    /// Whether it is linear, and exact on whole numbers.
    const LINEAR: bool = false;

    /// Whether the result of no elements is a number, which has a gradient to check.
    const NUMBER_OF_NOTHING: bool = true;

    /// What elements are drawn from: many numbers where only one of them has a slope, so that none is equal.
    const RANGE: (f64, f64) = (-2.0, 2.0);

    /// The op with attributes that suit `n` elements a result.
    fn suited(self, _n: usize) -> Self {
        self
    }

    /// Roundings besides those of the sums.
    fn roundings(&self) -> Bound {
        Bound { ulps: 2.0, terms: 2.0 }
    }
}

/// So many numbers that few are equal.
const MANY: (f64, f64) = (-2000.0, 2000.0);

impl Expected for Sum {
    const LINEAR: bool = true;
}

impl Expected for Mean {
    const NUMBER_OF_NOTHING: bool = false;
}

impl Expected for Prod {
    // Near 1, so that long products stay in range.
    const RANGE: (f64, f64) = (0.98, 1.02);
}

impl Expected for Amax {
    const RANGE: (f64, f64) = MANY;
}

impl Expected for Amin {
    const RANGE: (f64, f64) = MANY;
}

impl Expected for Logsumexp {
    fn roundings(&self) -> Bound {
        Bound { ulps: 4.0, terms: 8.0 }
    }
}

impl Expected for Variance {
    const NUMBER_OF_NOTHING: bool = false;

    fn suited(self, n: usize) -> Self {
        // One element has no unbiased variance.
        Variance { correction: usize::from(n > 1), ..self }
    }

    fn roundings(&self) -> Bound {
        Bound { ulps: 4.0, terms: 8.0 }
    }
}

impl Expected for StdDev {
    const NUMBER_OF_NOTHING: bool = false;

    fn suited(self, n: usize) -> Self {
        // One element has no unbiased variance.
        StdDev { correction: usize::from(n > 1), ..self }
    }

    fn roundings(&self) -> Bound {
        Bound { ulps: 4.0, terms: 8.0 }
    }
}

impl Expected for NormL1 {}

impl Expected for NormL2 {
    fn roundings(&self) -> Bound {
        Bound { ulps: 4.0, terms: 4.0 }
    }
}

impl Expected for NormInf {
    const RANGE: (f64, f64) = MANY;
}

/// Axes and dimensions that every reduction is checked on.
pub(super) fn sample_axes(of_nothing: bool) -> Vec<(&'static [usize], &'static [usize])> {
    let mut cases: Vec<(&[usize], &[usize])> = vec![
        (&[], &[]),
        (&[0], &[1]),
        (&[0], &[1023]),
        (&[0], &[1025]),
        (&[0], &[300_000]),
        (&[1], &[5, 33]),
        (&[1], &[70, 3]),
        (&[1], &[3, 2500]),
        (&[0], &[33, 5]),
        (&[0], &[128, 64]),
        (&[0], &[1025, 3]),
        (&[0], &[2100, 70]),
        (&[0, 1], &[40, 41]),
        (&[0, 2], &[3, 5, 7]),
        (&[1], &[3, 70, 40]),
        (&[1], &[4, 9, 3]),
        (&[0, 1, 2], &[3, 4, 5]),
        (&[1, 3], &[2, 3, 2, 1100]),
        (&[1], &[0, 3]),
        (&[0, 2, 4], &[2, 3, 4, 2, 3]),
        (&[0, 2, 4, 6], &[2, 2, 3, 1, 2, 2, 3]),
        (&[], &[4, 2]),
    ];
    if of_nothing {
        cases.extend([(&[1][..], &[3, 0][..]), (&[0], &[0, 3]), (&[0, 2], &[0, 2, 3])]);
    }
    cases
}
