//! Learning rates over time. A schedule is a plain function of the number of updates made so far, formed in f64.

use super::rules::finite;
use dittograd_numerics::environment::strict;
use dittograd_numerics::error::{Error, Result};
use std::f64::consts::PI;

/// A learning rate for every step, from the one the optimizer (or the parameter's group) was given. Steps count from 0, as
/// those of PyTorch's schedulers that are stepped once after each update.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    curve: Curve,
    /// Steps of the warm-up and the factor it starts from.
    warmup: Option<(u64, f64)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Curve {
    Constant,
    Step { size: u64, gamma: f64 },
    Exponential { gamma: f64 },
    Cosine { steps: u64, min: f64 },
    OneCycle { steps: u64, rise: f64, div: f64, final_div: f64 },
}

impl Schedule {
    fn of(curve: Curve) -> Schedule {
        Schedule { curve, warmup: None }
    }

    /// Always the given rate.
    pub fn constant() -> Schedule {
        Schedule::of(Curve::Constant)
    }

    /// Times `gamma` after every `size` steps: `StepLR`.
    pub fn step(size: u64, gamma: f64) -> Schedule {
        Schedule::of(Curve::Step { size, gamma })
    }

    /// Times `gamma` after every step: `ExponentialLR`.
    pub fn exponential(gamma: f64) -> Schedule {
        Schedule::of(Curve::Exponential { gamma })
    }

    /// Half a cosine from the given rate to `min` in `steps` steps: `min + (lr - min) (1 + cos(pi step / steps)) / 2`, as
    /// `CosineAnnealingLR`; afterwards it stays at `min`.
    pub fn cosine(steps: u64, min: f64) -> Schedule {
        Schedule::of(Curve::Cosine { steps, min })
    }

    /// `OneCycleLR` over `steps` steps with the given rate as its largest: half a cosine up from a 25th of it in the
    /// first 30 % of the steps, then half a cosine down to a 10,000th of where it began, where it stays.
    pub fn one_cycle(steps: u64) -> Schedule {
        Schedule::one_cycle_with(steps, 0.3, 25.0, 1e4)
    }

    /// [`Schedule::one_cycle`] that rises for the part `pct_start` of the steps, from the largest rate over `div_factor`, and
    /// ends at that over `final_div_factor`.
    pub fn one_cycle_with(steps: u64, pct_start: f64, div_factor: f64, final_div_factor: f64) -> Schedule {
        let (rise, div, final_div) = (pct_start, div_factor, final_div_factor);
        Schedule::of(Curve::OneCycle { steps, rise, div, final_div })
    }

    /// The same schedule after `steps` steps in which the rate grows evenly from `start` times what the schedule begins
    /// with: `LinearLR`, and the schedule after it by `SequentialLR`.
    pub fn warmup(mut self, steps: u64, start: f64) -> Schedule {
        self.warmup = Some((steps, start));
        self
    }

    /// The rate of the step that comes after `step` others, where `base` is the given one.
    pub fn lr(&self, base: f64, step: u64) -> f64 {
        strict(|| match self.warmup {
            Some((steps, start)) if step < steps => {
                self.curve.lr(base, 0) * (start + (1.0 - start) * (step as f64 / steps as f64))
            }
            Some((steps, _)) => self.curve.lr(base, step - steps),
            None => self.curve.lr(base, step),
        })
    }

    #[track_caller]
    pub(super) fn check(&self) -> Result<()> {
        let above = |name: &'static str, x: f64| match x > 0.0 && x.is_finite() {
            true => Ok(()),
            false => Err(Error::argument("schedule", name, format!("got {x}, use a number above 0"))),
        };
        if let Some((_, start)) = self.warmup {
            finite("start", start)?;
        }
        match self.curve {
            Curve::Constant => Ok(()),
            Curve::Step { size, gamma } => {
                above("size", size as f64)?;
                finite("gamma", gamma)
            }
            Curve::Exponential { gamma } => finite("gamma", gamma),
            Curve::Cosine { steps, min } => {
                above("steps", steps as f64)?;
                finite("min", min)
            }
            Curve::OneCycle { steps, rise, div, final_div } => {
                above("steps", steps as f64)?;
                above("div_factor", div)?;
                above("final_div_factor", final_div)?;
                match (0.0..=1.0).contains(&rise) {
                    true => Ok(()),
                    false => Err(Error::argument("schedule", "pct_start", format!("got {rise}, use 0 to 1"))),
                }
            }
        }
    }
}

impl Default for Schedule {
    fn default() -> Schedule {
        Schedule::constant()
    }
}

/// Half a cosine from `start` to `end`; `part` is how much of it has gone by.
fn half_cosine(start: f64, end: f64, part: f64) -> f64 {
    end + (start - end) / 2.0 * (1.0 + libm::cos(PI * part))
}

impl Curve {
    fn lr(self, base: f64, step: u64) -> f64 {
        match self {
            Curve::Constant => base,
            Curve::Step { size, gamma } => base * libm::pow(gamma, (step / size.max(1)) as f64),
            Curve::Exponential { gamma } => base * libm::pow(gamma, step as f64),
            Curve::Cosine { steps, min } if step >= steps => min,
            Curve::Cosine { steps, min } => half_cosine(base, min, step as f64 / steps as f64),
            Curve::OneCycle { steps, rise, div, final_div } => {
                let low = base / div;
                let (at, top, last) = (step as f64, rise * steps as f64 - 1.0, steps as f64 - 1.0);
                if at <= top && top > 0.0 {
                    half_cosine(low, base, at / top)
                } else if at < last {
                    half_cosine(base, low / final_div, (at - top) / (last - top))
                } else {
                    low / final_div
                }
            }
        }
    }
}
