//! Functions to learn from their values.

use super::Dataset;
use super::make::{parallel, stream};
use crate::error::{Error, Result};
use crate::numerics::environment;
use std::f64::consts::PI;

const SET: u64 = 0x7265_6772;

/// A function to learn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Regression {
    /// `sin(2πx)` of one feature from -1 to 1.
    Sine,
    /// `sin(3x₀) cos(3x₁)`, of two features from -1 to 1.
    Waves,
    /// `x₀² - x₁²`, of two features from -1 to 1.
    Saddle,
    /// Friedman's first function, `10 sin(πx₀x₁) + 20 (x₂ - ½)² + 10x₃ + 5x₄`, of ten features from 0 to 1, the last
    /// five of which have no effect.
    Friedman1,
    /// Friedman's second function, `√(x₀² + (x₁x₂ - 1/(x₁x₃))²)`, of four features from 0 to 100, 40π to 560π, 0 to 1
    /// and 1 to 11.
    Friedman2,
}

impl Regression {
    /// All there are.
    pub const ALL: [Regression; 5] = [
        Regression::Sine,
        Regression::Waves,
        Regression::Saddle,
        Regression::Friedman1,
        Regression::Friedman2,
    ];

    /// The name, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Regression::Sine => "sine",
            Regression::Waves => "waves",
            Regression::Saddle => "saddle",
            Regression::Friedman1 => "friedman1",
            Regression::Friedman2 => "friedman2",
        }
    }

    /// The function of a name.
    #[track_caller]
    pub fn named(name: &str) -> Result<Regression> {
        Regression::ALL.into_iter().find(|f| f.name() == name).ok_or_else(|| {
            let all: Vec<&str> = Regression::ALL.iter().map(|f| f.name()).collect();
            let why = format!("`{}` is not one of {}", crate::io::shown(name), all.join(", "));
            Error::argument("regression", "kind", why)
        })
    }

    /// Lowest and highest value of every feature.
    fn ranges(self) -> &'static [(f64, f64)] {
        match self {
            Regression::Sine => &[(-1.0, 1.0)],
            Regression::Waves | Regression::Saddle => &[(-1.0, 1.0); 2],
            Regression::Friedman1 => &[(0.0, 1.0); 10],
            Regression::Friedman2 => &[(0.0, 100.0), (40.0 * PI, 560.0 * PI), (0.0, 1.0), (1.0, 11.0)],
        }
    }

    fn value(self, x: &[f64]) -> f64 {
        match self {
            Regression::Sine => libm::sin(2.0 * PI * x[0]),
            Regression::Waves => libm::sin(3.0 * x[0]) * libm::cos(3.0 * x[1]),
            Regression::Saddle => x[0] * x[0] - x[1] * x[1],
            Regression::Friedman1 => {
                let middle = x[2] - 0.5;
                10.0 * libm::sin(PI * x[0] * x[1]) + 20.0 * middle * middle + 10.0 * x[3] + 5.0 * x[4]
            }
            Regression::Friedman2 => {
                let reactance = x[1] * x[2] - 1.0 / (x[1] * x[3]);
                (x[0] * x[0] + reactance * reactance).sqrt()
            }
        }
    }
}

/// `samples` values of a function at uniformly drawn points, without noise: features `(N, F)`, values `(N, 1)`. The
/// values are computed in f64 from the float32 features and rounded once.
#[track_caller]
pub fn regression(kind: Regression, seed: u64, samples: usize) -> Result<Dataset> {
    let _strict = environment::enter();
    let ranges = kind.ranges();
    let (x, y) = parallel("regression", samples, &[ranges.len()], &[1], || {
        move |i, x: &mut [f32], y: &mut [f32]| {
            let mut stream = stream(seed, SET + kind as u64, i);
            for (x, (lo, hi)) in x.iter_mut().zip(ranges) {
                *x = (lo + (hi - lo) * f64::from(stream.uniform())) as f32;
            }
            let mut wide = [0.0; 10];
            wide.iter_mut().zip(x.iter()).for_each(|(w, x)| *w = f64::from(*x));
            y[0] = kind.value(&wide[..x.len()]) as f32;
        }
    })?;
    Dataset::new(kind.name(), x, y, None)
}

#[cfg(test)]
mod tests {
    use super::super::make::hash;
    use super::*;

    #[test]
    fn bits_are_the_committed_ones() {
        let found = Regression::ALL.map(|kind| {
            let data = regression(kind, 7, 100).unwrap();
            hash(data.x())[..8].to_string() + &hash(data.y())[..8]
        });
        assert_eq!(
            found,
            [
                "b03f85a541ca2513",
                "5f85d269b73a4abe",
                "00e1998ca47b88bf",
                "00526be7ce33a403",
                "a0252ff1286a0153"
            ]
        );
    }

    #[test]
    fn values_are_those_of_the_function() {
        assert_eq!(Regression::Friedman1.value(&[0.5, 1.0, 0.5, 0.1, 0.2]), 12.0);
        assert_eq!(Regression::Friedman2.value(&[3.0, 1.0, 5.0, 1.0]), 5.0);
        for kind in Regression::ALL {
            let data = regression(kind, 3, 50).unwrap();
            assert_eq!(Regression::named(kind.name()).unwrap(), kind);
            let features = kind.ranges().len();
            assert_eq!(data.x().shape().dims(), [50, features]);
            for (row, y) in
                data.x().num().unwrap().data().chunks(features).zip(data.y().num().unwrap().data())
            {
                let wide: Vec<f64> = row.iter().map(|v| f64::from(*v)).collect();
                assert!(
                    wide.iter().zip(kind.ranges()).all(|(v, (lo, hi))| v >= lo && v <= &(hi * 1.000_001))
                );
                assert_eq!(kind.value(&wide) as f32, *y);
            }
            // Samples are independent, so a smaller set is the beginning of a larger one.
            let few = regression(kind, 3, 7).unwrap();
            assert_eq!(few.x().num().unwrap().data(), &data.x().num().unwrap().data()[..7 * features]);
            assert_ne!(regression(kind, 4, 7).unwrap(), few);
        }
        assert!(Regression::named("x").unwrap_err().to_string().contains("sine, waves"));
        assert!(regression(Regression::Sine, 1, 0).is_err());
        assert!(regression(Regression::Sine, 1, usize::MAX).is_err());
    }
}
