//! Tensors as text, laid out like NumPy's: numbers in columns, one line a row, a blank line more for every further axis,
//! and three elements from each end of long axes once there are more than a thousand elements.

use super::Tensor;
use crate::scalar::Scalar;
use crate::shape::Shape;
use std::any::TypeId;
use std::fmt;

/// Digits after the point, where the format string asks for no other number of them.
const DIGITS: usize = 4;
/// Elements from which on a tensor is summarised.
const THRESHOLD: usize = 1000;
/// Elements shown at each end of a summarised axis.
const EDGE: usize = 3;
/// Characters of a line.
const WIDTH: usize = 75;

/// As NumPy prints it, with up to 4 digits after the point (`{:.2}` asks for 2): the fewest that tell the number from
/// its neighbours, and powers of ten where magnitudes lie far apart.
///
/// ```
/// use dittograd::prelude::*;
/// # fn main() -> Result<()> {
/// let t = Tensor::new(&[2, 3], vec![1.0f32, -0.5, 2.25, 0.0, f32::NAN, 100.0])?;
/// assert_eq!(t.to_string(), "[[  1.    -0.5    2.25]\n [  0.      nan 100.  ]]");
/// # Ok(())
/// # }
/// ```
impl<T: Scalar> fmt::Display for Tensor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(DIGITS);
        let single = TypeId::of::<T>() == TypeId::of::<f32>();
        if single || TypeId::of::<T>() == TypeId::of::<f64>() {
            write_tensor(f, self, |shown| {
                let numbers: Vec<f64> = shown.iter().map(|x| x.to_f64()).collect();
                let style = Style::of(&numbers, single, digits);
                numbers.into_iter().map(|x| style.number(x)).collect()
            })
        } else {
            write_tensor(f, self, |shown| aligned(shown.iter().map(|x| format!("{x:?}")).collect()))
        }
    }
}

/// As NumPy prints it.
impl fmt::Display for Tensor<u32> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_tensor(f, self, |shown| aligned(shown.iter().map(|i| i.to_string()).collect()))
    }
}

fn aligned(cells: Vec<String>) -> Vec<String> {
    let wide = cells.iter().map(|c| c.chars().count()).max().unwrap_or(0);
    cells.into_iter().map(|c| format!("{c:>wide$}")).collect()
}

/// The indices of an axis that are shown; `None` stands for those that are not.
fn shown(size: usize, summarise: bool) -> Vec<Option<usize>> {
    match summarise && size > 2 * EDGE {
        true => (0..EDGE).map(Some).chain([None]).chain((size - EDGE..size).map(Some)).collect(),
        false => (0..size).map(Some).collect(),
    }
}

fn write_tensor<T: Clone>(
    f: &mut fmt::Formatter<'_>,
    tensor: &Tensor<T>,
    cells: impl FnOnce(&[&T]) -> Vec<String>,
) -> fmt::Result {
    let shape = tensor.shape;
    if shape.numel() == 0 {
        return if shape.rank() == 1 { f.write_str("[]") } else { write!(f, "[] of shape {shape}") };
    }
    let summarise = shape.numel() > THRESHOLD;
    let mut places = vec![0];
    for &d in shape.dims() {
        let along: Vec<usize> = shown(d, summarise).into_iter().flatten().collect();
        places = places.iter().flat_map(|p| along.iter().map(move |i| p * d + i)).collect();
    }
    let elements: Vec<&T> = places.iter().map(|&p| &tensor.data[p]).collect();
    let cells = cells(&elements);
    f.write_str(&Layout { shape, summarise, cells: cells.iter() }.axis(0))
}

struct Layout<'a> {
    shape: Shape,
    summarise: bool,
    /// The cells that are shown, in order.
    cells: std::slice::Iter<'a, String>,
}

impl Layout<'_> {
    /// The text of everything from `axis` on, without the indent of its first line.
    fn axis(&mut self, axis: usize) -> String {
        let Some(&size) = self.shape.dims().get(axis) else {
            return self.cells.next().cloned().unwrap_or_default();
        };
        let inner = axis + 1 == self.shape.rank();
        let along = shown(size, self.summarise);
        let indent = " ".repeat(axis + 1);
        let mut lines: Vec<String> = Vec::new();
        let mut line = String::new();
        for at in along {
            let word = if at.is_some() { self.axis(axis + 1) } else { "...".to_string() };
            if !inner {
                lines.push(word);
                continue;
            }
            // Room for the brackets of this axis and the outer ones.
            let room = WIDTH - axis - 1;
            if !line.is_empty() && indent.len() + line.chars().count() + 1 + word.chars().count() > room {
                lines.push(std::mem::take(&mut line).trim_end().to_string());
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(&word);
        }
        let between = if inner {
            lines.push(line);
            "\n".to_string()
        } else {
            "\n".repeat(self.shape.rank() - axis - 1)
        };
        format!("[{}]", lines.join(&format!("{between}{indent}")))
    }
}

/// How the floats of one tensor are written.
struct Style {
    /// Powers of ten, with that many digits after the point and in the exponent.
    scientific: Option<(usize, usize)>,
    single: bool,
    digits: usize,
    /// Widest text before and after the point.
    left: usize,
    right: usize,
}

impl Style {
    fn of(numbers: &[f64], single: bool, digits: usize) -> Style {
        let finite = || numbers.iter().copied().filter(|x| x.is_finite());
        let sizes = || finite().map(f64::abs).filter(|x| *x != 0.0);
        let (max, min) = (sizes().fold(0.0, f64::max), sizes().fold(f64::INFINITY, f64::min));
        // In the type of the elements, whose digits the limits are about.
        let spread = match single {
            true => max >= 1e6 || (min as f32) < 1e-4 || max as f32 / min as f32 > 1e3,
            false => max >= 1e8 || min < 1e-4 || max / min > 1e3,
        };
        let mut style = Style { scientific: None, single, digits, left: 0, right: 0 };
        if spread && min.is_finite() {
            let texts: Vec<(String, i32)> = finite().map(|x| style.powers(x)).collect();
            let widest = |part: &dyn Fn(&(String, i32)) -> usize| texts.iter().map(part).max().unwrap_or(0);
            let after = widest(&|(m, _)| fraction(m).len());
            let exponent = widest(&|(_, e)| e.unsigned_abs().to_string().len()).max(2);
            style.scientific = Some((after, exponent));
            style.left = widest(&|(m, _)| m.split('.').next().map_or(0, str::len));
            style.right = after + 2 + exponent;
        } else {
            for x in finite() {
                let text = style.positional(x);
                let after = fraction(&text).len();
                style.left = style.left.max(text.len() - 1 - after);
                style.right = style.right.max(after);
            }
        }
        let other = numbers.iter().filter(|x| !x.is_finite()).map(|x| special(*x).len()).max().unwrap_or(0);
        style.left = style.left.max(other.saturating_sub(style.right + 1));
        style
    }

    /// The shortest text of `x` that is no other number's, or the nearest one of so many digits if it is longer. Ends in
    /// a digit or the point.
    fn positional(&self, x: f64) -> String {
        let shortest = if self.single { (x as f32).to_string() } else { x.to_string() };
        match fraction(&shortest).len() {
            0 => format!("{shortest}."),
            n if n <= self.digits => shortest,
            _ => trimmed(format!("{x:.*}", self.digits)),
        }
    }

    /// The same as a number from 1 to below 10, and the power of ten it is multiplied by.
    fn powers(&self, x: f64) -> (String, i32) {
        let cut = |text: String| {
            let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
            (mantissa.to_string(), exponent.parse().unwrap_or(0))
        };
        let (mantissa, exponent) =
            cut(if self.single { format!("{:e}", x as f32) } else { format!("{x:e}") });
        match fraction(&mantissa).len() {
            n if n <= self.digits => (mantissa, exponent),
            _ => {
                let (mantissa, exponent) = cut(format!("{x:.*e}", self.digits));
                (trimmed(mantissa), exponent)
            }
        }
    }

    /// The cell of a number, as wide as every other.
    fn number(&self, x: f64) -> String {
        let (left, right) = (self.left, self.right);
        if !x.is_finite() {
            return format!("{:>1$}", special(x), left + right + 1);
        }
        if let Some((after, exponent)) = self.scientific {
            let (mantissa, power) = self.powers(x);
            let (whole, digits) = mantissa.split_once('.').unwrap_or((&mantissa, ""));
            let sign = if power < 0 { '-' } else { '+' };
            return format!("{whole:>left$}.{digits:0<after$}e{sign}{:0exponent$}", power.unsigned_abs());
        }
        let text = self.positional(x);
        let (whole, digits) = text.split_once('.').unwrap_or((&text, ""));
        format!("{whole:>left$}.{digits:<right$}")
    }
}

/// The digits after the point.
fn fraction(text: &str) -> &str {
    text.split_once('.').map_or("", |(_, digits)| digits)
}

fn trimmed(text: String) -> String {
    match text.contains('.') {
        true => text.trim_end_matches('0').to_string(),
        false => format!("{text}."),
    }
}

fn special(x: f64) -> &'static str {
    match x {
        f64::INFINITY => "inf",
        f64::NEG_INFINITY => "-inf",
        _ => "nan",
    }
}
