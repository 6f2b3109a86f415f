//! Windows and the planes they move over: shape rules, and which cells a window holds.

use crate::{Attr, Attrs, mismatch};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::shape::{MAX_RANK, Shape};

/// Kernel, stride, padding and dilation along each of the last axes.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolWindow {
    /// Cells of a window.
    pub kernel: Vec<usize>,
    /// Distance between the starts of neighbouring windows.
    pub stride: Vec<usize>,
    /// Cells added at both ends of an axis.
    pub padding: Vec<usize>,
    /// Distance between neighbouring cells of a window.
    pub dilation: Vec<usize>,
}

impl PoolWindow {
    /// Windows without dilation.
    pub fn new(kernel: &[usize], stride: &[usize], padding: &[usize]) -> PoolWindow {
        PoolWindow {
            kernel: kernel.to_vec(),
            stride: stride.to_vec(),
            padding: padding.to_vec(),
            dilation: vec![1; kernel.len()],
        }
    }

    /// Cells of a window.
    pub(super) fn cells(&self) -> usize {
        self.kernel.iter().product()
    }

    /// Output sizes for the given input sizes, checked.
    pub(super) fn sizes(&self, op: &'static str, input: &[usize], padding_only: bool) -> Result<Vec<usize>> {
        let d = self.kernel.len();
        if [&self.stride, &self.padding, &self.dilation].iter().any(|v| v.len() != d) {
            let why = format!(
                "stride {:?}, padding {:?} and dilation {:?} must have {d} entries each, as kernel {:?}",
                self.stride, self.padding, self.dilation, self.kernel
            );
            return Err(Error::argument(op, "kernel", why));
        }
        let bad = |name: &'static str, why: String| Err(Error::argument(op, name, why));
        let plane = input.iter().try_fold(1usize, |all, &n| all.checked_mul(n));
        if plane.is_none_or(|n| n >= u32::MAX as usize) {
            return Err(Error::new(op, ErrorKind::TooLarge { dims: input.to_vec() }));
        }
        (0..d)
            .map(|a| {
                let (k, s, p, g, n) =
                    (self.kernel[a], self.stride[a], self.padding[a], self.dilation[a], input[a]);
                if k == 0 || s == 0 || g == 0 {
                    return bad("kernel", format!("kernel {k}, stride {s}, dilation {g} must be positive"));
                }
                // The kernels use 32-bit positions.
                if s >= 1 << 31 {
                    return bad("stride", format!("{s} is beyond 31 bits"));
                }
                if n == 0 {
                    return bad("x", format!("axis {a} of the {d} pooled ones is empty"));
                }
                if p > k / 2 && !padding_only {
                    return bad("padding", format!("{p} is more than half of kernel {k}, so windows could miss the input"));
                }
                let reach = (k - 1).checked_mul(g).and_then(|r| r.checked_add(1));
                let padded = p.checked_mul(2).and_then(|p| p.checked_add(n));
                match (reach, padded) {
                    (Some(reach), Some(padded)) if reach <= padded && padded < 1 << 31 => {
                        Ok((padded - reach) / s + 1)
                    }
                    _ => bad("kernel", format!(
                        "{k} cells at distance {g} do not fit {n} cells with padding {p}; use a smaller kernel or more padding"
                    )),
                }
            })
            .collect()
    }

    pub(super) fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![
            ("kernel", Attr::List(self.kernel.clone())),
            ("stride", Attr::List(self.stride.clone())),
            ("padding", Attr::List(self.padding.clone())),
            ("dilation", Attr::List(self.dilation.clone())),
        ]
    }

    pub(super) fn from_attrs(attrs: &Attrs) -> Result<PoolWindow> {
        Ok(PoolWindow {
            kernel: attrs.list("kernel")?,
            stride: attrs.list("stride")?,
            padding: attrs.list("padding")?,
            dilation: attrs.list("dilation")?,
        })
    }
}

/// The shape with other sizes along its last axes.
pub(super) fn with_last_axes(shape: &Shape, sizes: &[usize]) -> Result<Shape> {
    let mut d = shape.dims().to_vec();
    let at = d.len() - sizes.len();
    d[at..].copy_from_slice(sizes);
    Shape::new(&d)
}

/// The last `count` dimensions. An error if `count` is 0 or more than there are.
pub(super) fn pooled_axes<'s>(op: &'static str, shape: &'s Shape, count: usize) -> Result<&'s [usize]> {
    if count == 0 {
        return Err(Error::argument(op, "kernel", "names no axis; give one entry per pooled axis"));
    }
    match shape.rank().checked_sub(count) {
        Some(at) => Ok(&shape.dims()[at..]),
        None => Err(Error::new(
            op,
            ErrorKind::Rank { want: "as many axes as the kernel has entries", got: *shape },
        )),
    }
}

/// Which cells a window holds along each axis.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cells {
    Fixed(PoolWindow),
    /// From `floor(o n / m)` to below `ceil((o + 1) n / m)`, for `n` input and `m` output cells.
    Adaptive,
}

/// The sizes of input and output planes, and the windows.
#[derive(Clone, Debug)]
pub(super) struct Planes {
    pub(super) count: usize,
    pub(super) input: Vec<usize>,
    pub(super) output: Vec<usize>,
    pub(super) cells: Cells,
}

/// Coordinates of a linear position.
pub(super) fn coordinates(mut at: usize, sizes: &[usize]) -> [usize; MAX_RANK] {
    let mut c = [0; MAX_RANK];
    for axis in (0..sizes.len()).rev() {
        c[axis] = at % sizes[axis];
        at /= sizes[axis];
    }
    c
}

impl Planes {
    pub(super) fn new(input: &Shape, output: &Shape, axes: usize, cells: Cells) -> Planes {
        let at = input.rank() - axes;
        Planes {
            count: input.dims()[..at].iter().product(),
            input: input.dims()[at..].to_vec(),
            output: output.dims()[at..].to_vec(),
            cells,
        }
    }

    pub(super) fn rank(&self) -> usize {
        self.input.len()
    }

    pub(super) fn input_len(&self) -> usize {
        self.input.iter().product()
    }

    pub(super) fn output_len(&self) -> usize {
        self.output.iter().product()
    }

    /// Number of kernel cells along an axis in the window of output `o`, padding included.
    pub(super) fn kernel(&self, axis: usize, o: usize) -> usize {
        match &self.cells {
            Cells::Fixed(w) => w.kernel[axis],
            Cells::Adaptive => {
                let (n, m) = (self.input[axis], self.output[axis]);
                ((o + 1) * n).div_ceil(m) - o * n / m
            }
        }
    }

    /// The input position of cell `k` of the window of output `o` along an axis; `None` in the padding.
    pub(super) fn position(&self, axis: usize, o: usize, k: usize) -> Option<usize> {
        let at = match &self.cells {
            Cells::Fixed(w) => (o * w.stride[axis] + k * w.dilation[axis]).checked_sub(w.padding[axis])?,
            Cells::Adaptive => o * self.input[axis] / self.output[axis] + k,
        };
        (at < self.input[axis]).then_some(at)
    }

    /// Calls `f` with the start of each input row that a window touches, in row-major order of the kernel's cells along
    /// all axes but the last. Rows of padding are `None`.
    pub(super) fn rows(&self, outer: &[usize; MAX_RANK], mut f: impl FnMut(Option<usize>)) {
        let last = self.rank() - 1;
        if last == 1 {
            for k in 0..self.kernel(0, outer[0]) {
                f(self.position(0, outer[0], k).map(|row| row * self.input[1]));
            }
            return;
        }
        let mut sizes = [1; MAX_RANK];
        for axis in 0..last {
            sizes[axis] = self.kernel(axis, outer[axis]);
        }
        let count: usize = sizes[..last].iter().product();
        for at in 0..count {
            let k = coordinates(at, &sizes[..last]);
            let row = (0..last).try_fold(0, |row, axis| {
                Some(row * self.input[axis] + self.position(axis, outer[axis], k[axis])?)
            });
            f(row.map(|row| row * self.input[last]));
        }
    }

    /// For fixed windows: the outputs of a row whose cell `k` along the last axis is real, and the input position of
    /// that cell for the first of them.
    pub(super) fn real_span(&self, k: usize) -> (std::ops::Range<usize>, usize) {
        let last = self.rank() - 1;
        let Cells::Fixed(w) = &self.cells else { return (0..0, 0) };
        let (s, p, shift) = (w.stride[last], w.padding[last], k * w.dilation[last]);
        let (n, m) = (self.input[last], self.output[last]);
        let low = p.saturating_sub(shift).div_ceil(s).min(m);
        let high = (n + p).saturating_sub(shift).div_ceil(s).min(m).max(low);
        (low..high, (low * s + shift).saturating_sub(p))
    }

    /// Cells of a window that are not padding.
    pub(super) fn real_cells(&self, o: &[usize; MAX_RANK]) -> usize {
        let along = |axis: usize| {
            (0..self.kernel(axis, o[axis])).filter(|&k| self.position(axis, o[axis], k).is_some()).count()
        };
        (0..self.rank()).map(along).product()
    }

    /// Positions of the cells of a window in row-major order, from the definition. Padding is `None`.
    pub(super) fn window(&self, output: usize) -> Vec<Option<usize>> {
        let o = coordinates(output, &self.output);
        let sizes: Vec<usize> = (0..self.rank()).map(|a| self.kernel(a, o[a])).collect();
        (0..sizes.iter().product())
            .map(|at| {
                let k = coordinates(at, &sizes);
                (0..self.rank())
                    .try_fold(0, |index, a| Some(index * self.input[a] + self.position(a, o[a], k[a])?))
            })
            .collect()
    }

    /// Calls `f` for each output row of a plane: coordinates of its first cell, and its start in the plane.
    pub(super) fn each_row_of_plane(&self, mut f: impl FnMut(&[usize; MAX_RANK], usize)) {
        let row = self.output[self.rank() - 1];
        (0..self.output_len()).step_by(row).for_each(|at| f(&coordinates(at, &self.output), at));
    }

    /// Stride and kernel along the last axis.
    pub(super) fn last_axis(&self) -> (usize, usize) {
        match &self.cells {
            Cells::Fixed(w) => (w.stride[self.rank() - 1], w.kernel[self.rank() - 1]),
            Cells::Adaptive => (1, 1),
        }
    }
}

/// The shape with one element per window over `x`.
pub(super) fn window_shape(op: &'static str, w: &PoolWindow, x: &Shape, padding_only: bool) -> Result<Shape> {
    let sizes = w.sizes(op, pooled_axes(op, x, w.kernel.len())?, padding_only)?;
    with_last_axes(x, &sizes)
}

/// Errors with `why` unless the shapes are equal.
pub(super) fn check_shape(op: &'static str, why: &'static str, want: Shape, got: Shape) -> Result<()> {
    if want == got { Ok(()) } else { Err(mismatch(op, why, want, got)) }
}

/// Checks `x`, `y` and `v`, where `y` has one element per window. `v` has the shape of `x` if `cells`, else of `y`.
/// Returns the shape of the other.
pub(super) fn three_shapes(
    op: &'static str,
    out: Shape,
    [x, y, v]: &[Shape; 3],
    cells: bool,
) -> Result<Shape> {
    check_shape(op, "the second input must have one element per window", out, *y)?;
    let (want, value) = if cells { (*x, out) } else { (out, *x) };
    check_shape(op, "the last input has the wrong shape", want, *v)?;
    Ok(value)
}

/// The attributes of a window.
const WINDOW_ATTRS: [&str; 4] = ["kernel", "stride", "padding", "dilation"];

/// Reads a window from attributes. `more` lists other attributes that are allowed.
pub(super) fn window_from(attrs: &Attrs, more: &[&str]) -> Result<PoolWindow> {
    attrs.only(&[&WINDOW_ATTRS[..], more].concat())?;
    PoolWindow::from_attrs(attrs)
}
