//! The update rules, one file each: hyperparameters, names of the states, scalars of a step in f64, and one formula over
//! [`Real`]. The CPU loop, the CUDA kernel and the update in any other number type are read off the formula.
//!
//! A new rule is a file, its `mod` line and its line in `with_rules!`.

mod adadelta;
mod adagrad;
mod adam;
mod lion;
mod momentum;
mod muon;
mod rmsprop;
mod sgd;

pub use adadelta::Adadelta;
pub use adagrad::AdaGrad;
pub use adam::Adam;
pub use lion::Lion;
pub use momentum::Momentum;
pub use muon::Muon;
pub use rmsprop::RmsProp;
pub use sgd::Sgd;

use super::clip::{Clip, clipped};
use dittograd_numerics::error::{Error, Result};
use dittograd_numerics::scalar::Real;
use dittograd_numerics::shape::Shape;
use dittograd_ops::{Recorder, Val};

/// Scalars that a rule may have of its own.
pub(super) const OWN: usize = 7;
/// Scalars that a formula reads: learning rate, weight decay, the rule's own, and the limit of a gradient's element.
pub(crate) const HYPERS: usize = OWN + 3;
/// Most states that a parameter has.
pub(crate) const STATES: usize = 3;

/// Calls `$then` with all rules. Their order gives kernels their numbers: append.
macro_rules! with_rules {
    ($then:ident) => {
        $then! { Sgd Momentum Adam AdaGrad RmsProp Adadelta Lion Muon }
    };
}
pub(super) use with_rules;

/// A rule with its hyperparameters.
pub(super) trait UpdateRule {
    /// Errors if a hyperparameter is out of its range, or with weight decay that the rule has no place for.
    fn check(&self, decoupled: bool) -> Result<()>;

    /// The rule's own scalars at step `t` (from 1) of a parameter.
    fn scalars(&self, t: u64) -> [f64; OWN];

    /// The learning rate at step `t` of a parameter of this shape.
    fn lr(&self, lr: f64, _t: u64, _shape: Shape) -> f64 {
        lr
    }

    /// Which variant of the formula its options ask for.
    fn variant(&self) -> usize {
        0
    }

    /// The value that its states start from.
    fn initial(&self) -> f64 {
        0.0
    }

    /// Whether weight decay is decoupled by default.
    fn decouples(&self) -> bool {
        false
    }

    /// The rule that parameters of this shape follow instead, if this one is not made for them.
    fn instead(&self, _shape: Shape) -> Option<Rule> {
        None
    }

    /// Records the direction of the step, from a gradient and the first state, for a rule whose formula reads one.
    fn direction(&self, _r: &mut dyn Recorder, gradient: Val, _state: Val, _clip: Clip) -> Result<Val> {
        Ok(gradient)
    }
}

/// The arithmetic of a rule, without its numbers: what a kernel is made for.
pub(super) trait Formula {
    /// For each variant, the names of the states, as in PyTorch's state dicts. At most four variants.
    const STATES: &'static [&'static [&'static str]];
    /// Whether it reads a direction besides the gradient.
    const DIRECTED: bool = false;

    /// New parameter and states of one element from the old ones. The gradient is clipped, and weight decay was applied.
    fn update<R: Real>(variant: usize, x: Element<R>, lr: R, own: [R; OWN]) -> (R, [R; STATES]);
}

/// What a formula reads of one element.
#[derive(Clone, Copy)]
pub(crate) struct Element<R> {
    pub p: R,
    pub g: R,
    pub states: [R; STATES],
    pub direction: R,
}

macro_rules! rules {
    ($($name:ident)*) => {
        /// How a parameter follows its gradient `g`, with PyTorch's equations, names and defaults. `t` counts the steps of
        /// the parameter from 1.
        #[derive(Clone, Copy, Debug, PartialEq)]
        #[non_exhaustive]
        pub enum Rule {
            $(
                #[doc = concat!("[`", stringify!($name), "`].")]
                $name($name),
            )*
        }

        $(impl From<$name> for Rule {
            fn from(rule: $name) -> Rule {
                Rule::$name(rule)
            }
        })*

        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(super) enum Family {
            $($name,)*
        }

        const FAMILIES: &[Family] = &[$(Family::$name,)*];

        impl Rule {
            fn numbers(&self) -> &dyn UpdateRule {
                match self {
                    $(Rule::$name(rule) => rule,)*
                }
            }

            fn family(&self) -> Family {
                match self {
                    $(Rule::$name(_) => Family::$name,)*
                }
            }
        }

        impl Kind {
            /// The states' names of all variants, and whether the formula reads a direction.
            fn says(self) -> (&'static [&'static [&'static str]], bool) {
                match self.family {
                    $(Family::$name => ($name::STATES, $name::DIRECTED),)*
                }
            }

            /// The formula: new parameter and new states from the old ones, the gradient, the factor of norm clipping and
            /// the scalars.
            #[inline(always)]
            pub(crate) fn formula<R: Real>(self, x: Element<R>, factor: R, h: [R; HYPERS]) -> (R, [R; STATES]) {
                let Kind { family, variant, decoupled } = self;
                match family {
                    $(Family::$name => update::<$name, R>(variant, decoupled, x, factor, h),)*
                }
            }
        }
    };
}
with_rules!(rules);

impl Rule {
    /// The rule of a parameter of this shape.
    pub(super) fn of(self, shape: Shape) -> Rule {
        self.numbers().instead(shape).unwrap_or(self)
    }

    pub(super) fn kind(self, decoupled: bool) -> Kind {
        Kind { family: self.family(), variant: self.numbers().variant(), decoupled }
    }

    /// The value that its states start from.
    pub(super) fn initial(self) -> f64 {
        self.numbers().initial()
    }

    /// Whether weight decay is decoupled by default.
    pub(super) fn decouples(self) -> bool {
        self.numbers().decouples()
    }

    pub(super) fn check(self, decoupled: bool) -> Result<()> {
        self.numbers().check(decoupled)
    }

    /// The scalars of step `t` (from 1) of a parameter, in f64. `limit` is that of value clipping.
    pub(super) fn hypers(
        self,
        (lr, wd, decoupled): (f64, f64, bool),
        limit: f64,
        t: u64,
        shape: Shape,
    ) -> [f64; HYPERS] {
        let wd = if decoupled { lr * wd } else { wd };
        let mut h = [0.0; HYPERS];
        (h[0], h[1], h[HYPERS - 1]) = (self.numbers().lr(lr, t, shape), wd, limit);
        h[2..HYPERS - 1].copy_from_slice(&self.numbers().scalars(t));
        h
    }

    /// Records the direction of a parameter's step.
    pub(super) fn direction(
        self,
        r: &mut dyn Recorder,
        gradient: Val,
        state: Val,
        clip: Clip,
    ) -> Result<Val> {
        self.numbers().direction(r, gradient, state, clip)
    }
}

/// A rule's formula without its numbers: what a kernel is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Kind {
    pub(super) family: Family,
    pub(super) variant: usize,
    pub(super) decoupled: bool,
}

impl Kind {
    /// All kinds there are.
    pub(super) fn all() -> impl Iterator<Item = Kind> {
        let of = |&family: &Family| {
            let all = (0..8).map(move |i| Kind { family, variant: i % 4, decoupled: i >= 4 });
            all.filter(|k| k.variant < k.says().0.len())
        };
        FAMILIES.iter().flat_map(of)
    }

    /// Its number, which names its kernel.
    pub(super) fn code(self) -> usize {
        self.family as usize * 8 + self.variant + usize::from(self.decoupled) * 4
    }

    /// Names of the states, as in PyTorch's state dicts.
    pub(crate) fn states(self) -> &'static [&'static str] {
        variant_of(self.says().0, self.variant)
    }

    /// Whether the formula reads a direction besides the gradient.
    pub(crate) fn directed(self) -> bool {
        self.says().1
    }
}

/// The states' names of a variant; none of one that does not exist.
pub(super) const fn variant_of(
    all: &'static [&'static [&'static str]],
    variant: usize,
) -> &'static [&'static str] {
    if variant < all.len() { all[variant] } else { &[] }
}

/// The whole update of one element: clipping, weight decay, then the rule's formula.
#[inline(always)]
pub(super) fn update<F: Formula, R: Real>(
    variant: usize,
    decoupled: bool,
    x: Element<R>,
    factor: R,
    h: [R; HYPERS],
) -> (R, [R; STATES]) {
    let [lr, wd, own @ .., limit] = h;
    let g = clipped(x.g, factor, limit);
    let (p, g) = if decoupled { ((-wd).fma(x.p, x.p), g) } else { (x.p, wd.fma(x.p, g)) };
    F::update(variant, Element { p, g, ..x }, lr, own)
}

/// Scalars of a rule that has fewer than there is room for.
fn padded<const N: usize>(some: [f64; N]) -> [f64; OWN] {
    let mut own = [0.0; OWN];
    own[..N].copy_from_slice(&some);
    own
}

/// Errors unless `x` is a number from 0 on that float32 has too.
pub(super) fn finite(name: &'static str, x: f64) -> Result<()> {
    if x >= 0.0 && (x as f32).is_finite() {
        return Ok(());
    }
    Err(Error::argument("optimizer", name, format!("got {x}, use a finite number that is not negative")))
}

/// Errors unless `x` is in `[0, 1)`.
fn share(name: &'static str, x: f64) -> Result<()> {
    if (0.0..1.0).contains(&x) {
        return Ok(());
    }
    Err(Error::argument("optimizer", name, format!("got {x}, use at least 0 and below 1")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kernels are kept on disk by these numbers and their text.
    #[test]
    fn kinds_have_their_numbers() {
        let codes: Vec<usize> = Kind::all().map(Kind::code).collect();
        let known =
            [0, 4, 8, 9, 12, 13, 16, 20, 24, 28, 32, 33, 34, 35, 36, 37, 38, 39, 40, 44, 48, 52, 56, 60];
        assert_eq!(codes, known);
        assert!(Kind::all().all(|k| k.states().len() <= STATES && k.says().0.len() <= 4));
    }
}
