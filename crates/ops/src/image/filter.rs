//! The weights of resampling along an axis: which input elements make an output element, and how much of each.

use crate::{Attr, Attrs};
use dittograd_numerics::error::{Error, Result};

/// How an output element is made of the input elements near its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    /// The element that the start of the output element lies in: PyTorch's `nearest`.
    Nearest,
    /// The element that the centre of the output element lies in: PyTorch's `nearest-exact`.
    NearestExact,
    /// The two elements around the place, by their distances.
    Linear,
    /// Four elements by cubic polynomials, with the constant -0.75, or -0.5 with antialiasing.
    Cubic,
}

const FILTERS: [Filter; 4] = [Filter::Nearest, Filter::NearestExact, Filter::Linear, Filter::Cubic];

/// The most axes that are resampled at once.
pub(super) const MOST_AXES: usize = 3;

const STEPS: [&str; MOST_AXES] = ["step0", "step1", "step2"];

/// What resampling depends on besides sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct Scaling {
    /// The filter.
    pub filter: Filter,
    /// Whether the centres of the corner elements of input and output are the same places, instead of their outer edges.
    pub align_corners: bool,
    /// Whether the filter becomes as much wider as the axis becomes shorter.
    pub antialias: bool,
    /// For each axis, input elements from one output element to the next; 0 stands for the ratio of the sizes.
    pub steps: Vec<f64>,
}

impl Scaling {
    pub(super) fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let mut all = vec![
            ("filter", Attr::Num(self.filter as usize as f64)),
            ("align_corners", Attr::Bool(self.align_corners)),
            ("antialias", Attr::Bool(self.antialias)),
        ];
        all.extend(STEPS.iter().zip(&self.steps).map(|(name, step)| (*name, Attr::Num(*step))));
        all
    }

    pub(super) fn from_attrs(attrs: &Attrs) -> Result<Scaling> {
        attrs.only(&[&["filter", "align_corners", "antialias", "sizes"], &STEPS[..]].concat())?;
        let filter = attrs.whole("filter")?;
        let Some(&filter) = FILTERS.get(filter) else {
            return Err(Error::argument("resample", "filter", format!("{filter} is not 0 to 3")));
        };
        let count = STEPS.iter().take_while(|name| attrs.has(name)).count();
        Ok(Scaling {
            filter,
            align_corners: attrs.flag("align_corners")?,
            antialias: attrs.flag("antialias")?,
            steps: STEPS[..count].iter().map(|name| attrs.num(name)).collect::<Result<_>>()?,
        })
    }

    /// Errors if the parts do not fit together.
    pub(super) fn check(&self, op: &'static str, axes: usize) -> Result<()> {
        let nearest = matches!(self.filter, Filter::Nearest | Filter::NearestExact);
        if axes == 0 || axes > MOST_AXES {
            let why = format!("{axes} given, 1 to {MOST_AXES} are supported");
            return Err(Error::argument(op, "sizes", why));
        }
        if self.steps.len() != axes || self.steps.iter().any(|s| !(s.is_finite() && *s >= 0.0)) {
            let why = format!("{:?} must be {axes} finite numbers of at least 0", self.steps);
            return Err(Error::argument(op, "steps", why));
        }
        for (name, on) in [("align_corners", self.align_corners), ("antialias", self.antialias)] {
            if on && nearest {
                return Err(Error::argument(op, name, "is for linear and cubic filters only"));
            }
        }
        Ok(())
    }

    /// Axis `axis` of an image, from `from` to `to` elements.
    pub(super) fn line(&self, axis: usize, from: usize, to: usize) -> Line {
        let step = match (self.align_corners, self.steps[axis]) {
            (true, _) if to > 1 => (from - 1) as f64 / (to - 1) as f64,
            (true, _) => 0.0,
            (false, step) if step > 0.0 => step,
            (false, _) => from as f64 / to as f64,
        };
        Line {
            from,
            to,
            step,
            filter: self.filter,
            align_corners: self.align_corners,
            antialias: self.antialias,
        }
    }
}

/// Resampling along one axis. The arithmetic is that of `resample.cu`, operation by operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) step: f64,
    pub(super) filter: Filter,
    pub(super) align_corners: bool,
    pub(super) antialias: bool,
}

/// The cubic with constant `a` at distance `x`: within 1, and from 1 to 2.
fn cubic_inner(x: f64, a: f64) -> f64 {
    ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
}

fn cubic_outer(x: f64, a: f64) -> f64 {
    ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a
}

impl Line {
    /// Half the width of the antialiasing filter, in input elements.
    fn support(&self) -> f64 {
        let half = if self.filter == Filter::Cubic { 2.0 } else { 1.0 };
        if self.step > 1.0 { half * self.step } else { half }
    }

    /// The most input elements of an output element.
    pub(super) fn most_taps(&self) -> usize {
        match self.filter {
            Filter::Nearest | Filter::NearestExact => 1,
            _ if self.antialias => ((2.0 * self.support()).ceil() as usize).saturating_add(1).min(self.from),
            Filter::Linear => 2.min(self.from),
            Filter::Cubic => 4.min(self.from),
        }
    }

    /// Calls `tap` with the weights of the input elements that make output element `o`, in order. Returns the first of these
    /// elements. First and last elements never decrease with `o`.
    pub(super) fn taps(&self, o: usize, mut tap: impl FnMut(f64)) -> usize {
        let last = self.from - 1;
        if self.antialias {
            return self.wide_taps(o, tap);
        }
        let place = match self.filter {
            Filter::Nearest => o as f64 * self.step,
            Filter::NearestExact => (o as f64 + 0.5) * self.step,
            _ if self.align_corners => o as f64 * self.step,
            _ => (o as f64 + 0.5) * self.step - 0.5,
        };
        match self.filter {
            Filter::Nearest | Filter::NearestExact => {
                tap(1.0);
                (place as usize).min(last)
            }
            Filter::Linear => {
                let place = if place > 0.0 { place } else { 0.0 };
                let i = (place as usize).min(last);
                let t = place - i as f64;
                if i == last || t == 0.0 {
                    tap(1.0);
                } else {
                    tap(1.0 - t);
                    tap(t);
                }
                i
            }
            Filter::Cubic => {
                let floor = place.floor().min(last as f64);
                let t = if place - floor < 1.0 { place - floor } else { 1.0 };
                let i = floor as i64;
                let weights = [
                    cubic_outer(t + 1.0, -0.75),
                    cubic_inner(t, -0.75),
                    cubic_inner(1.0 - t, -0.75),
                    cubic_outer(2.0 - t, -0.75),
                ];
                // Elements beyond an end are those at the end.
                let at = |k: i64| (i - 1 + k).clamp(0, last as i64);
                let mut sum = weights[0];
                for k in 1..4 {
                    if at(k) != at(k - 1) {
                        tap(sum);
                        sum = 0.0;
                    }
                    sum += weights[k as usize];
                }
                tap(sum);
                at(0) as usize
            }
        }
    }

    fn wide_taps(&self, o: usize, mut tap: impl FnMut(f64)) -> usize {
        let (support, centre) = (self.support(), (o as f64 + 0.5) * self.step);
        let shrink = if self.step > 1.0 { 1.0 / self.step } else { 1.0 };
        let low = centre - support + 0.5;
        let first = if low > 0.0 { (low as usize).min(self.from - 1) } else { 0 };
        let end = ((centre + support + 0.5) as usize).clamp(first + 1, self.from);
        let weight = |i: usize| {
            let x = (((i as f64 - centre) + 0.5) * shrink).abs();
            match self.filter {
                Filter::Cubic if x < 1.0 => cubic_inner(x, -0.5),
                Filter::Cubic if x < 2.0 => cubic_outer(x, -0.5),
                Filter::Linear if x < 1.0 => 1.0 - x,
                _ => 0.0,
            }
        };
        let mut total = 0.0;
        (first..end).for_each(|i| total += weight(i));
        (first..end).for_each(|i| tap(if total == 0.0 { 0.0 } else { weight(i) / total }));
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Weights sum to 1, stay within their number, and ranges of taps never go back.
    #[test]
    fn taps_are_in_range_and_in_order() {
        for filter in FILTERS {
            let smooth = matches!(filter, Filter::Linear | Filter::Cubic);
            for (align_corners, antialias) in [(false, false), (true, false), (false, true), (true, true)] {
                if (align_corners || antialias) && !smooth {
                    continue;
                }
                for (from, to, step) in [
                    (1, 1, 0.0),
                    (1, 7, 0.0),
                    (7, 1, 0.0),
                    (5, 9, 0.0),
                    (33, 4, 0.0),
                    (5, 12, 0.4),
                    (9, 9, 0.0),
                ] {
                    let scaling = Scaling { filter, align_corners, antialias, steps: vec![step] };
                    let line = scaling.line(0, from, to);
                    let mut before = (0, 0);
                    for o in 0..to {
                        let (mut sum, mut count) = (0.0, 0);
                        let first = line.taps(o, |w| {
                            sum += w;
                            count += 1;
                        });
                        let what = format!("{scaling:?} {from} to {to} at {o}");
                        assert!((sum - 1.0).abs() < 1e-12, "{what}: {sum}");
                        assert!(count >= 1 && count <= line.most_taps() && first + count <= from, "{what}");
                        assert!(first >= before.0 && first + count >= before.1, "{what}");
                        before = (first, first + count);
                    }
                }
            }
        }
    }
}
