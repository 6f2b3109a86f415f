//! Plots of lines: scales, the numbers along them, and what is drawn inside.

use super::raster::{ZOOM, text_width};
use super::scene::{Anchor, Colour, FRAME, Font, GRID, SOFT, Scene, Shape};

/// Font of the numbers at axes.
pub(super) const SMALL: Font = Font { size: 14.0, bold: false, colour: SOFT };
/// Distance between a number and its axis.
pub(super) const GAP: f64 = 7.0;
/// Lines with at most this many points show each of them.
const DOTS: usize = 16;

/// Maps values to positions on an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scale {
    lo: f64,
    hi: f64,
    log: bool,
    /// Whether only integers are labelled.
    whole: bool,
}

/// A position on an axis, from 0 to 1, and its label.
pub(super) type Tick = (f64, String);

impl Scale {
    /// A scale that covers all finite values, or `None` if there are none. A logarithmic scale leaves out values that
    /// are not positive, and falls back to linear if none is. It is wider than the values by the fraction `pad` at each
    /// end.
    pub(super) fn of(values: impl Iterator<Item = f64> + Clone, log: bool, pad: f64) -> Option<Scale> {
        let range = |log: bool| {
            let shown = values.clone().filter(|v| v.is_finite() && (!log || *v > 0.0));
            let ends = shown.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(v), b.max(v)));
            (ends.0 <= ends.1).then_some((ends, log))
        };
        let ((lo, hi), log) = log.then(|| range(true)).flatten().or_else(|| range(false))?;
        let (lo, hi) = if log { (libm::log10(lo), libm::log10(hi)) } else { (lo, hi) };
        // Halves, since the distance of the ends may overflow.
        let half = hi / 2.0 - lo / 2.0;
        let largest = lo.abs().max(hi.abs());
        let differ = half > if log { 1e-6 } else { 1e-9 * largest };
        let more = match differ {
            true => half * 2.0 * pad,
            false if log => 0.2,
            false if largest == 0.0 => 1.0,
            false => (largest * 0.1).max(f64::MIN_POSITIVE),
        };
        Some(Scale { lo: (lo - more).max(f64::MIN), hi: (hi + more).min(f64::MAX), log, whole: false })
    }

    /// From -`limit` to `limit`.
    pub(super) fn around_zero(limit: f64) -> Scale {
        let limit = if limit > 0.0 && limit.is_finite() { limit } else { 1.0 };
        Scale { lo: -limit, hi: limit, log: false, whole: false }
    }

    /// The position of a value, from 0 to 1; `None` if it has none.
    pub(super) fn at(&self, v: f64) -> Option<f64> {
        let v = match self.log {
            true if v > 0.0 => libm::log10(v),
            true => return None,
            false => v,
        };
        let part = (v / 2.0 - self.lo / 2.0) / (self.hi / 2.0 - self.lo / 2.0);
        v.is_finite().then_some(part.clamp(0.0, 1.0))
    }

    /// Round numbers, about `count` of them or fewer.
    pub(super) fn ticks(&self, count: usize) -> Vec<Tick> {
        let values = match self.log {
            true => self.log_values(count),
            // A single label says nothing about a scale.
            false => {
                let tries = (count..count + 3).map(|c| self.linear_values(c));
                tries.into_iter().find(|v| v.len() > 1).unwrap_or_else(|| self.linear_values(count))
            }
        };
        let texts = labels(&values, self.log);
        values.iter().zip(texts).filter_map(|(v, text)| Some((self.at(*v)?, text))).collect()
    }

    fn linear_values(&self, count: usize) -> Vec<f64> {
        let (lo, hi) = (self.lo, self.hi);
        let raw = (hi / 2.0 - lo / 2.0) / (count.max(1) as f64 / 2.0);
        let raw = if self.whole { raw.max(1.0) } else { raw };
        let mut exponent = libm::floor(libm::log10(raw)) as i32;
        let mantissa = [1.0, 2.0, 5.0, 10.0].into_iter().find(|m| m * power(exponent) >= raw * (1.0 - 1e-9));
        let mut mantissa = mantissa.unwrap_or(10.0);
        if mantissa == 10.0 {
            (mantissa, exponent) = (1.0, exponent + 1);
        }
        let value = |i: f64| decimal(i * mantissa, exponent);
        let step = value(1.0);
        if !(step > 0.0 && step.is_finite()) {
            return Vec::new();
        }
        let first = libm::ceil(lo / step - 1e-6);
        let all = (0..=count + 2).map(|i| value(first + i as f64));
        all.take_while(|v| *v <= hi + 1e-6 * step).collect()
    }

    fn log_values(&self, count: usize) -> Vec<f64> {
        let (lo, hi) = (self.lo, self.hi);
        let decades = |every: i32, within: &[f64]| -> Vec<f64> {
            let first = (libm::floor(lo) as i32).div_euclid(every) * every;
            let all = (first..=libm::ceil(hi) as i32).step_by(every as usize);
            let values = all.flat_map(|e| within.iter().map(move |m| decimal(*m, e)));
            values.filter(|v| (lo - 1e-9..=hi + 1e-9).contains(&libm::log10(*v))).collect()
        };
        let tries = [
            decades(1, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]),
            decades(1, &[1.0, 2.0, 5.0]),
            decades(1, &[1.0, 3.0]),
            decades(1, &[1.0]),
        ];
        if tries[0].len() < 3 {
            // Fewer than a few one-digit labels: use those of a linear axis.
            let between = |v: f64| libm::pow(10.0, v);
            return Scale { lo: between(lo), hi: between(hi), log: false, ..*self }
                .linear_values(count.min(5));
        }
        if let Some(fits) = tries.into_iter().find(|t| t.len() >= 2 && t.len() <= count) {
            return fits;
        }
        let coarse = [2, 3, 5, 10, 20, 50, 100, 200].map(|every| decades(every, &[1.0]));
        coarse.into_iter().find(|t| t.len() <= count).unwrap_or_default()
    }
}

/// Ten to a whole power.
fn power(exponent: i32) -> f64 {
    libm::pow(10.0, f64::from(exponent))
}

/// A number times a power of ten, correctly rounded: dividing by an integer power rounds only once.
fn decimal(mantissa: f64, exponent: i32) -> f64 {
    if exponent < 0 { mantissa / power(-exponent) } else { mantissa * power(exponent) }
}

/// The numbers as texts in one style. Those of logarithmic axes have no unneeded digits.
fn labels(values: &[f64], log: bool) -> Vec<String> {
    let sizes = || values.iter().map(|v| v.abs()).filter(|v| *v > 0.0);
    let (smallest, largest) = (sizes().fold(f64::INFINITY, f64::min), sizes().fold(0.0, f64::max));
    let exact = |unit: f64, decimals: usize| {
        let same = |v: &f64| {
            let scale = power(decimals as i32);
            (libm::round(v / unit * scale) / scale - v / unit).abs() <= 1e-9 * (v / unit).abs()
        };
        values.iter().all(same)
    };
    for (unit, name, from) in [(1e9, "G", 1e9), (1e6, "M", 1e6), (1e3, "k", 1e4)] {
        if (from..1e13).contains(&largest)
            && let Some(decimals) = (0..=1).find(|d| exact(unit, *d))
        {
            let text = |v: &f64| match *v == 0.0 {
                true => "0".to_string(),
                false => signed(format!("{:.decimals$}{name}", v / unit)),
            };
            return values.iter().map(text).collect();
        }
    }
    let plain = largest < 1e6 && (smallest >= 1e-4 || largest == 0.0);
    if plain && let Some(decimals) = (0..=7).find(|d| exact(1.0, *d)) {
        let text = |v: &f64| match log || *v == 0.0 {
            true => signed(format!("{}", v.abs().copysign(if *v < 0.0 { -1.0 } else { 1.0 }))),
            false => signed(format!("{v:.decimals$}")),
        };
        return values.iter().map(text).collect();
    }
    values.iter().map(|v| scientific(*v, 4)).collect()
}

/// A proper minus sign.
fn signed(text: String) -> String {
    text.replace('-', "−")
}

/// Scientific notation such as `1.5e−7`, with at most this many digits after the point.
fn scientific(v: f64, digits: usize) -> String {
    if v == 0.0 {
        return "0".to_string();
    }
    let text = format!("{v:.digits$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let mantissa = match mantissa.contains('.') {
        true => mantissa.trim_end_matches('0').trim_end_matches('.'),
        false => mantissa,
    };
    signed(format!("{mantissa}e{exponent}"))
}

/// A number with three significant digits, as in `1.23 %` or `4.5e−7`.
pub(super) fn three(v: f64) -> String {
    let size = v.abs();
    match size {
        _ if !v.is_finite() => "not finite".to_string(),
        0.0 => "0".to_string(),
        _ if !(1e-3..1e5).contains(&size) => scientific(v, 2),
        _ => {
            let decimals = (2 - libm::floor(libm::log10(size)) as i32).clamp(0, 5) as usize;
            signed(format!("{v:.decimals$}"))
        }
    }
}

/// A line in a plot.
pub(super) struct Curve<'a> {
    pub(super) points: Vec<(f64, f64)>,
    pub(super) name: &'a str,
    pub(super) colour: Colour,
    pub(super) width: f64,
    pub(super) dash: Option<[f64; 2]>,
    /// Whether it is points without a line.
    pub(super) dots: bool,
}

/// Lines with their scales.
pub(super) struct Plot<'a> {
    pub(super) curves: Vec<Curve<'a>>,
    pub(super) log: bool,
    /// Whether positions are integers.
    pub(super) whole: bool,
    pub(super) x_name: &'a str,
    pub(super) y_name: &'a str,
}

impl Plot<'_> {
    fn scales(&self) -> Option<(Scale, Scale)> {
        let finite = |p: &&(f64, f64)| p.0.is_finite() && p.1.is_finite();
        let points = || self.curves.iter().flat_map(|c| &c.points).filter(finite);
        let y = Scale::of(points().map(|p| p.1), self.log, 0.05)?;
        let x = Scale::of(points().filter(|p| y.at(p.1).is_some()).map(|p| p.0), false, 0.0)?;
        Some((Scale { whole: self.whole, ..x }, y))
    }

    fn y_ticks(&self, height: f64) -> Vec<Tick> {
        self.scales().map_or(Vec::new(), |(_, y)| y.ticks(((height / 34.0) as usize).clamp(2, 7)))
    }

    /// Room to the left of the plot for numbers and the name.
    pub(super) fn left(&self, height: f64) -> f64 {
        let wide = self.y_ticks(height).iter().map(|t| text_width(&t.1, SMALL)).fold(0.0, f64::max);
        wide + GAP + if self.y_name.is_empty() { 0.0 } else { SMALL.size + 8.0 }
    }

    /// Room below the plot.
    pub(super) fn below(&self) -> f64 {
        SMALL.size + GAP + if self.x_name.is_empty() { 0.0 } else { SMALL.size + 6.0 }
    }

    /// Draws into the box `[x, y, width, height]`. Numbers and names are outside of it, in `left` and `below`.
    pub(super) fn draw(&self, scene: &mut Scene, [x, y, width, height]: [f64; 4], left: f64) {
        let (right, bottom) = (x + width, y + height);
        let scales = self.scales();
        let crisp = |v: f64| v.floor() + 0.5;
        for (at, text) in self.y_ticks(height) {
            let level = crisp(bottom - at * height);
            scene.path(vec![(x, level), (right, level)], GRID, 1.0);
            scene.text((x - GAP, level + 0.36 * SMALL.size), SMALL, Anchor::End, &text);
        }
        for (at, text) in scales.map_or(Vec::new(), |(x, _)| spaced(&x, width)) {
            let place = crisp(x + at * width);
            scene.path(vec![(place, y), (place, bottom)], GRID, 1.0);
            // A long number at the end stays within the margin.
            let place = place.min(right + 18.0 - text_width(&text, SMALL) / 2.0);
            scene.text((place, bottom + GAP + 0.78 * SMALL.size), SMALL, Anchor::Middle, &text);
        }
        let (x_axis, y_axis) = (crisp(bottom), crisp(x));
        scene.path(vec![(y_axis, y), (y_axis, x_axis), (right, x_axis)], FRAME, 1.0);
        let middle = (x + width / 2.0, y + height / 2.0);
        if !self.x_name.is_empty() {
            scene.text((middle.0, bottom + self.below() - 3.0), SMALL, Anchor::Middle, self.x_name);
        }
        if !self.y_name.is_empty() {
            scene.text_up((x - left + 0.8 * SMALL.size, middle.1), SMALL, self.y_name);
        }
        let Some((x_scale, y_scale)) = scales else {
            scene.text(middle, SMALL, Anchor::Middle, "no finite values");
            return;
        };
        for curve in &self.curves {
            let place = |p: &(f64, f64)| {
                let (u, v) = (x_scale.at(p.0)?, y_scale.at(p.1)?);
                Some((x + u * width, bottom - v * height))
            };
            let places: Vec<Option<(f64, f64)>> = curve.points.iter().map(place).collect();
            let few = places.iter().flatten().count() <= DOTS && curve.dash.is_none();
            for piece in places.split(Option::is_none) {
                let piece: Vec<(f64, f64)> = piece.iter().flatten().copied().collect();
                if few || curve.dots || piece.len() == 1 {
                    let dot = |at| Shape::Dot { at, radius: curve.width + 1.0, colour: curve.colour };
                    scene.shapes.extend(piece.iter().copied().map(dot));
                }
                if piece.len() > 1 && !curve.dots {
                    let (points, colour) = (thinned(&piece), curve.colour);
                    let path = Shape::Path { points, colour, width: curve.width, dash: curve.dash };
                    scene.shapes.push(path);
                }
            }
        }
    }
}

/// As many labels as fit beside each other.
fn spaced(scale: &Scale, width: f64) -> Vec<Tick> {
    let fits = |ticks: &Vec<Tick>| {
        ticks.windows(2).all(|pair| {
            let need = (text_width(&pair[0].1, SMALL) + text_width(&pair[1].1, SMALL)) / 2.0 + 14.0;
            (pair[1].0 - pair[0].0) * width >= need
        })
    };
    let tries = (1..=7).rev().map(|count| scale.ticks(count));
    tries.into_iter().find(fits).unwrap_or_default()
}

/// The same line with at most four points per column of pixels: the first, the lowest, the highest and the last.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let column = |p: &(f64, f64)| (p.0 * ZOOM).floor();
    let mut kept = Vec::new();
    for run in points.chunk_by(|a, b| column(a) == column(b)) {
        if run.len() <= 4 {
            kept.extend_from_slice(run);
            continue;
        }
        let by = |a: &usize, b: &usize| run[*a].1.total_cmp(&run[*b].1);
        let (low, high) = ((0..run.len()).min_by(by), (0..run.len()).max_by(by));
        let mut which = vec![0, low.unwrap_or(0), high.unwrap_or(0), run.len() - 1];
        which.sort_unstable();
        which.dedup();
        kept.extend(which.iter().map(|i| run[*i]));
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(values: &[f64], log: bool, count: usize) -> String {
        let scale = Scale::of(values.iter().copied(), log, 0.0).unwrap();
        scale.ticks(count).iter().map(|t| t.1.clone()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn picture_numbers_at_axes() {
        assert_eq!(texts(&[0.0, 300.0], false, 6), "0 50 100 150 200 250 300");
        assert_eq!(texts(&[0.0, 1.0], false, 5), "0 0.2 0.4 0.6 0.8 1.0");
        assert_eq!(texts(&[-1.0, 1.0], false, 4), "−1.0 −0.5 0 0.5 1.0");
        assert_eq!(texts(&[0.0, 0.001], false, 5), "0 0.0002 0.0004 0.0006 0.0008 0.0010");
        assert_eq!(texts(&[0.0, 3e-6], false, 3), "0 1e−6 2e−6 3e−6");
        assert_eq!(texts(&[0.0, 100_000.0], false, 5), "0 20k 40k 60k 80k 100k");
        assert_eq!(texts(&[0.0, 2_500_000.0], false, 5), "0 0.5M 1.0M 1.5M 2.0M 2.5M");
        assert_eq!(texts(&[1e-5, 1.0], true, 6), "1e−5 1e−4 1e−3 1e−2 1e−1 1e0");
        assert_eq!(texts(&[0.01, 10.0], true, 6), "0.01 0.1 1 10");
        assert_eq!(texts(&[0.02, 0.9], true, 6), "0.02 0.05 0.1 0.2 0.5");
        assert_eq!(texts(&[0.51, 0.58], true, 5), "0.52 0.54 0.56 0.58");
        assert_eq!(texts(&[0.01, 2.0], true, 6), "0.01 0.03 0.1 0.3 1");
        assert_eq!(texts(&[1e-300, 1e300], true, 5), "1e−200 1e0 1e200");
        // Two numbers at least, where one would be enough room.
        assert_eq!(texts(&[-0.29, 0.29], false, 2), "−0.2 0 0.2");
        let steps = Scale { whole: true, ..Scale::of([3.0, 5.0].into_iter(), false, 0.0).unwrap() };
        assert_eq!(steps.ticks(7).iter().map(|t| t.1.as_str()).collect::<Vec<_>>(), ["3", "4", "5"]);
    }

    #[test]
    fn picture_scales_of_odd_values() {
        let nan = f64::NAN;
        assert_eq!(Scale::of([nan, f64::INFINITY].into_iter(), false, 0.1), None);
        assert_eq!(Scale::of([].into_iter(), true, 0.1), None);
        for values in [
            vec![0.0],
            vec![5.0, 5.0],
            vec![-1e308, 1e308],
            vec![1e-320],
            vec![1.0, 1.0 + f64::EPSILON],
            vec![f64::MAX, f64::MIN],
            vec![-3.0, 0.0],
            vec![0.0, 1e-300],
        ] {
            for log in [false, true] {
                let scale = Scale::of(values.iter().copied(), log, 0.05).unwrap();
                let shown: Vec<f64> = values.iter().filter_map(|v| scale.at(*v)).collect();
                assert!(
                    !shown.is_empty() && shown.iter().all(|p| (0.0..=1.0).contains(p)),
                    "{values:?} {scale:?}"
                );
                let (least, most) =
                    values.iter().fold((f64::MAX, f64::MIN), |(a, b), v| (a.min(*v), b.max(*v)));
                let ends = (scale.at(least), scale.at(most));
                assert!(
                    least == most
                        || log
                        || (ends.0 < Some(0.46) && ends.1 > Some(0.54))
                        || most - least < 1e-9
                );
                let ticks = scale.ticks(6);
                assert!(ticks.len() <= 9, "{values:?} {ticks:?}");
                assert!(
                    ticks.windows(2).all(|w| w[0].0 < w[1].0 && w[0].1 != w[1].1),
                    "{values:?} {ticks:?}"
                );
            }
        }
        let log = Scale::of([0.0, -1.0, 0.1, 10.0].into_iter(), true, 0.0).unwrap();
        assert_eq!(
            [log.at(0.0), log.at(-1.0), log.at(nan), log.at(0.1), log.at(10.0)],
            [None, None, None, Some(0.0), Some(1.0)]
        );
        // Nothing is positive.
        assert_eq!(
            Scale::of([0.0, -1.0].into_iter(), true, 0.0),
            Scale::of([0.0, -1.0].into_iter(), false, 0.0)
        );
    }

    #[test]
    fn picture_numbers_in_texts() {
        let got = [0.0, 0.0123456, 1.23456, 99.96, 12345.6, 4.567e-7, -2.0, f64::NAN].map(three);
        assert_eq!(got, ["0", "0.0123", "1.23", "100.0", "12346", "4.57e−7", "−2.00", "not finite"]);
    }

    #[test]
    fn picture_thinning_keeps_extremes() {
        let points: Vec<(f64, f64)> = (0..100_000)
            .map(|i| (f64::from(i) / 200.0, if i == 54_321 { 999.0 } else { f64::from(i % 100) }))
            .collect();
        let kept = thinned(&points);
        assert!(kept.len() <= 4 * 1000 && kept.contains(&points[54_321]));
        assert_eq!((kept[0], kept[kept.len() - 1]), (points[0], points[99_999]));
        assert!(kept.windows(2).all(|w| w[0].0 < w[1].0));
        assert_eq!(thinned(&points[..3]), points[..3]);
    }
}
