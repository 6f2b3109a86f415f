//! Pooling over the last axes of a value: maximum, average, smooth maximum, and averages to a given size.
//!
//! The window of output cell `o` holds, along each axis, the input positions `o stride - padding + k dilation` for
//! `k` from 0 below the kernel. Every sum over a window, and every gradient's sum over the windows that hold a
//! cell, is one chain from +0, in row-major order of the cells or of the windows.

/// Loops over the elements of `x` that are `stride` apart, beside those of other slices.
macro_rules! strided {
    ($x:ident, $stride:ident, $out:ident, |$v:ident, $i:ident| $body:block) => {
        if $stride == 1 {
            let $x = &$x[..$out.len()];
            for $i in 0..$out.len() {
                let $v = $x[$i];
                $body
            }
        } else if $stride == 2 {
            // Pairs, of which a compiler knows how to take every other word.
            let pairs = $x.as_chunks::<2>().0;
            let pairs = &pairs[..pairs.len().min($out.len())];
            for $i in 0..pairs.len() {
                let $v = pairs[$i][0];
                $body
            }
            for $i in pairs.len()..$out.len() {
                let $v = $x[2 * $i];
                $body
            }
        } else {
            for ($i, &$v) in $x.iter().step_by($stride).take($out.len()).enumerate() $body
        }
    };
}

/// What ops on windows have in common. The op says the rest in `check`, `planes`, `job`, `run`, `record_vjp`, `value`,
/// `cases`, `refused`, `linear_in` and `limit`.
macro_rules! pool_op {
    (
        $(#[$doc:meta])* $op:ident $name:literal $arity:literal
        { $($(#[$field_doc:meta])* $field:ident: $ty:ty = $from:expr, $to:expr;)* } $attrs:ident
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $op {
            $($(#[$field_doc])* pub $field: $ty,)*
        }

        impl Op for $op {
            const NAME: &'static str = $name;

            fn shape(&self, ins: &[Meta]) -> Result<Meta> {
                let shapes: [Shape; $arity] = floats(Self::NAME, ins)?;
                Ok(Meta::f32(self.check(&shapes)?))
            }

            fn cpu(&self, run: CpuRun<'_>) {
                let planes = self.planes(&run.metas[0].shape, &run.shape);
                self.run(&planes, run);
            }

            fn prepared(&self, ins: &[Meta]) -> Option<Kernel> {
                let (op, out) = (self.clone(), self.shape(ins).ok()?.shape);
                let planes = self.planes(&ins[0].shape, &out);
                Some(Box::new(move |run| op.run(&planes, run)))
            }

            fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
                let (job, scalar) = self.job();
                // A gradient's only input is the last of what kernels read.
                let ins = match *run.ins {
                    [dy] if job.gathers() => [0, 0, dy],
                    [x] => [x, 0, 0],
                    [x, y, dy] => [x, y, dy],
                    _ => [0; 3],
                };
                self.planes(&run.metas[0].shape, &run.shape).run_cuda(job, ins, scalar, run)
            }

            fn cuda_modules(&self, ins: &[Meta], _gpu: &Gpu) -> Vec<Source> {
                let out = self.shape(ins).map_or(ins[0].shape, |m| m.shape);
                vec![self.planes(&ins[0].shape, &out).module(self.job().0)]
            }

            fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
                self.record_vjp(r, io, dy)
            }

            fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
                let tensors: Vec<&Tensor<T>> = ins.iter().map(AnyTensor::num).collect::<Result<_>>()?;
                let shapes: Vec<Shape> = tensors.iter().map(|t| t.shape()).collect();
                let shapes: [Shape; $arity] = shapes
                    .try_into()
                    .map_err(|_| Error::new(Self::NAME, ErrorKind::Arity { want: $arity, got: ins.len() }))?;
                let out = self.check(&shapes)?;
                let planes = self.planes(&shapes[0], &out);
                let mut value = Vec::with_capacity(out.numel());
                for plane in 0..planes.count {
                    let parts: Vec<&[T]> = tensors
                        .iter()
                        .map(|t| {
                            let len = t.data().len() / planes.count;
                            &t.data()[plane * len..(plane + 1) * len]
                        })
                        .collect();
                    value.extend(self.value(&planes, &parts));
                }
                Tensor::with_shape(out, value)
            }

            fn attrs(&self) -> Vec<(&'static str, Attr)> {
                let mut all: Vec<(&'static str, Attr)> = Vec::new();
                $(all.extend($to(&self.$field));)*
                all
            }

            fn from_attrs($attrs: &Attrs) -> Result<$op> {
                Ok($op { $($field: $from?,)* })
            }
        }
    };
}

mod adaptive;
mod avg;
#[cfg(feature = "cases")]
mod cases;
mod cpu;
mod cuda;
mod max;
mod smooth;

pub use adaptive::{AdaptiveAvgPool, AdaptiveAvgPoolBwd};
pub use avg::{AvgPool, AvgPoolBwd};
pub use max::{MaxPool, MaxPoolBwd, MaxPoolPick};
pub use smooth::{SmoothMaxPool, SmoothMaxPoolBwd, SmoothMaxPoolSum};

use crate::pointwise::map::record_program;
use crate::pointwise::program::Program;
use crate::{Attr, Attrs, Recorder, Val, mismatch};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::{Real, Scalar};
use dittograd_numerics::shape::{MAX_RANK, Shape};
/// Kernel, stride, padding and dilation along each of the last axes.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// Cells of a window.
    pub kernel: Vec<usize>,
    /// Cells between neighbouring windows.
    pub stride: Vec<usize>,
    /// Cells added at both ends of an axis.
    pub padding: Vec<usize>,
    /// Distance of a window's neighbouring cells.
    pub dilation: Vec<usize>,
}

impl Window {
    /// Windows of neighbouring cells.
    pub fn new(kernel: &[usize], stride: &[usize], padding: &[usize]) -> Window {
        Window {
            kernel: kernel.to_vec(),
            stride: stride.to_vec(),
            padding: padding.to_vec(),
            dilation: vec![1; kernel.len()],
        }
    }

    /// Cells of a window.
    fn cells(&self) -> usize {
        self.kernel.iter().product()
    }

    /// Sizes of the result for inputs of the given sizes, checked. `full` allows windows of padding only.
    fn sizes(&self, op: &'static str, input: &[usize], full: bool) -> Result<Vec<usize>> {
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
                // Places are counted in 32 bits.
                if s >= 1 << 31 {
                    return bad("stride", format!("{s} is beyond 31 bits"));
                }
                if n == 0 {
                    return bad("x", format!("axis {a} of the {d} pooled ones is empty"));
                }
                if p > k / 2 && !full {
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

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        vec![
            ("kernel", Attr::List(self.kernel.clone())),
            ("stride", Attr::List(self.stride.clone())),
            ("padding", Attr::List(self.padding.clone())),
            ("dilation", Attr::List(self.dilation.clone())),
        ]
    }

    fn from_attrs(attrs: &Attrs) -> Result<Window> {
        Ok(Window {
            kernel: attrs.list("kernel")?,
            stride: attrs.list("stride")?,
            padding: attrs.list("padding")?,
            dilation: attrs.list("dilation")?,
        })
    }
}

/// The shape with other sizes along its last axes.
fn resized(shape: &Shape, sizes: &[usize]) -> Result<Shape> {
    let mut d = shape.dims().to_vec();
    let at = d.len() - sizes.len();
    d[at..].copy_from_slice(sizes);
    Shape::new(&d)
}

/// The last `count` dimensions, or an error if there are fewer or none are asked for.
fn pooled<'s>(op: &'static str, shape: &'s Shape, count: usize) -> Result<&'s [usize]> {
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
enum Cells {
    Fixed(Window),
    /// From `floor(o n / m)` to below `ceil((o + 1) n / m)`, for `n` input and `m` output cells.
    Adaptive,
}

/// Planes of input and output sizes.
#[derive(Clone, Debug)]
struct Planes {
    count: usize,
    input: Vec<usize>,
    output: Vec<usize>,
    cells: Cells,
}

/// A position by its coordinates.
fn coordinates(mut at: usize, sizes: &[usize]) -> [usize; MAX_RANK] {
    let mut c = [0; MAX_RANK];
    for axis in (0..sizes.len()).rev() {
        c[axis] = at % sizes[axis];
        at /= sizes[axis];
    }
    c
}

impl Planes {
    fn new(input: &Shape, output: &Shape, axes: usize, cells: Cells) -> Planes {
        let at = input.rank() - axes;
        Planes {
            count: input.dims()[..at].iter().product(),
            input: input.dims()[at..].to_vec(),
            output: output.dims()[at..].to_vec(),
            cells,
        }
    }

    fn rank(&self) -> usize {
        self.input.len()
    }

    fn input_len(&self) -> usize {
        self.input.iter().product()
    }

    fn output_len(&self) -> usize {
        self.output.iter().product()
    }

    /// Kernel cells along an axis in the window of output `o`, and where cell `k` lies, padding included.
    fn kernel(&self, axis: usize, o: usize) -> usize {
        match &self.cells {
            Cells::Fixed(w) => w.kernel[axis],
            Cells::Adaptive => {
                let (n, m) = (self.input[axis], self.output[axis]);
                ((o + 1) * n).div_ceil(m) - o * n / m
            }
        }
    }

    /// The input position of cell `k` of the window of output `o` along an axis; `None` in the padding.
    fn position(&self, axis: usize, o: usize, k: usize) -> Option<usize> {
        let at = match &self.cells {
            Cells::Fixed(w) => (o * w.stride[axis] + k * w.dilation[axis]).checked_sub(w.padding[axis])?,
            Cells::Adaptive => o * self.input[axis] / self.output[axis] + k,
        };
        (at < self.input[axis]).then_some(at)
    }

    /// Calls `f` with the start of each input row that a window touches, in row-major order of the kernel's cells
    /// along all axes but the last; `None` for rows of padding.
    fn rows(&self, outer: &[usize; MAX_RANK], mut f: impl FnMut(Option<usize>)) {
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

    /// For fixed windows: the outputs of a row whose cell `k` along the last axis is real, and the position of the
    /// first one's.
    fn span(&self, k: usize) -> (std::ops::Range<usize>, usize) {
        let last = self.rank() - 1;
        let Cells::Fixed(w) = &self.cells else { return (0..0, 0) };
        let (s, p, shift) = (w.stride[last], w.padding[last], k * w.dilation[last]);
        let (n, m) = (self.input[last], self.output[last]);
        let low = p.saturating_sub(shift).div_ceil(s).min(m);
        let high = (n + p).saturating_sub(shift).div_ceil(s).min(m).max(low);
        (low..high, (low * s + shift).saturating_sub(p))
    }

    /// Real cells of each window, for averages that do not count padding.
    fn real(&self, o: &[usize; MAX_RANK]) -> usize {
        let along = |axis: usize| {
            (0..self.kernel(axis, o[axis])).filter(|&k| self.position(axis, o[axis], k).is_some()).count()
        };
        (0..self.rank()).map(along).product()
    }

    /// Positions of the cells of a window in row-major order, `None` in the padding: the definition.
    fn window(&self, output: usize) -> Vec<Option<usize>> {
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
}

/// The largest of `beta v`, or 0 where that is infinite: then the exponentials themselves say so.
#[inline(always)]
fn shift<R: Real>(m: R) -> R {
    R::where_gt(R::c(f64::INFINITY), m.abs(), m, R::c(0.0))
}

/// `e^(beta v - m)`.
#[inline(always)]
fn term<R: Real>(beta: R, v: R, m: R) -> R {
    (beta * v - m).exp()
}

/// `(m + ln s) / beta`.
#[inline(always)]
fn smooth<R: Real>(m: R, s: R, beta: R) -> R {
    (m + s.log()) / beta
}

/// `g e^(beta (x - y))`: what a cell weighs in a window of value `y`.
#[inline(always)]
fn weighed<R: Real>(beta: R, x: R, y: R, g: R) -> R {
    g * (beta * (x - y)).exp()
}

/// No cell.
const NONE: u32 = u32::MAX;

impl Planes {
    /// Calls `f` with each output row of a plane: coordinates of its first cell and where it starts in the plane.
    fn each_row_of_plane(&self, mut f: impl FnMut(&[usize; MAX_RANK], usize)) {
        let row = self.output[self.rank() - 1];
        (0..self.output_len()).step_by(row).for_each(|at| f(&coordinates(at, &self.output), at));
    }

    /// Along the last axis: the windows' stride and kernel.
    fn last(&self) -> (usize, usize) {
        match &self.cells {
            Cells::Fixed(w) => (w.stride[self.rank() - 1], w.kernel[self.rank() - 1]),
            Cells::Adaptive => (1, 1),
        }
    }
}

/// How a kernel's text finds its windows and what it does with them.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Job {
    Max,
    MaxBwd,
    Pick,
    Avg { counted: bool },
    AvgBwd { counted: bool },
    Smooth,
    SmoothBwd,
    SmoothSum,
}

impl Job {
    fn name(self) -> &'static str {
        match self {
            Job::Max => "max",
            Job::MaxBwd => "max_bwd",
            Job::Pick => "max_pick",
            Job::Avg { counted: true } => "avg",
            Job::Avg { counted: false } => "avg_real",
            Job::AvgBwd { counted: true } => "avg_bwd",
            Job::AvgBwd { counted: false } => "avg_real_bwd",
            Job::Smooth => "smooth",
            Job::SmoothBwd => "smooth_bwd",
            Job::SmoothSum => "smooth_sum",
        }
    }

    /// The name of its `OP_` constant in `pool.cu`.
    fn op(self) -> &'static str {
        match self {
            Job::Max => "MAX",
            Job::MaxBwd => "MAX_BWD",
            Job::Pick => "MAX_PICK",
            Job::Avg { .. } => "AVG",
            Job::AvgBwd { .. } => "AVG_BWD",
            Job::Smooth => "SMOOTH",
            Job::SmoothBwd => "SMOOTH_BWD",
            Job::SmoothSum => "SMOOTH_SUM",
        }
    }

    /// Whether a thread has an input cell and visits the windows that hold it.
    fn gathers(self) -> bool {
        matches!(self, Job::MaxBwd | Job::AvgBwd { .. } | Job::SmoothBwd)
    }
}

fn sizes_attr(sizes: &[usize]) -> Vec<(&'static str, Attr)> {
    vec![("sizes", Attr::List(sizes.to_vec()))]
}

const WINDOW: [&str; 4] = ["kernel", "stride", "padding", "dilation"];

fn window_from(attrs: &Attrs, more: &[&str]) -> Result<Window> {
    attrs.only(&[&WINDOW[..], more].concat())?;
    Window::from_attrs(attrs)
}

/// The shape of windows over `x`; `y` and the like must have it.
fn windowed(op: &'static str, w: &Window, x: &Shape, full: bool) -> Result<Shape> {
    let sizes = w.sizes(op, pooled(op, x, w.kernel.len())?, full)?;
    resized(x, &sizes)
}

fn alike(op: &'static str, why: &'static str, want: Shape, got: Shape) -> Result<()> {
    if want == got { Ok(()) } else { Err(mismatch(op, why, want, got)) }
}

/// `x`, a value of each window, and another value like one of them, as the second input's companion.
fn triple(op: &'static str, w: &Window, [x, y, v]: &[Shape; 3], cells: bool) -> Result<Shape> {
    let out = windowed(op, w, x, false)?;
    alike(op, "the second input must have one element per window", out, *y)?;
    let (want, value) = if cells { (*x, out) } else { (out, *x) };
    alike(op, "the last input has the wrong shape", want, *v)?;
    Ok(value)
}

/// `1 / cells`, formed in f64 and rounded once.
fn inverse(cells: usize) -> f32 {
    (1.0 / cells as f64) as f32
}

/// Means of the real cells of each window: of all cells, or of the real ones.
fn averages<T: Scalar>(planes: &Planes, x: &[T], counted: bool) -> Vec<T> {
    let one = |o: usize| {
        let window = planes.window(o);
        let sum = window.iter().flatten().fold(T::c(0.0), |s, &i| s + x[i]);
        let count = if counted { window.len() } else { window.iter().flatten().count() };
        sum / T::c(count as f64)
    };
    (0..planes.output_len()).map(one).collect()
}

/// The adjoint of [`averages`].
fn spread<T: Scalar>(planes: &Planes, dy: &[T], counted: bool) -> Vec<T> {
    let mut out = vec![T::c(0.0); planes.input_len()];
    for (o, &dy) in dy.iter().enumerate() {
        let window = planes.window(o);
        let count = if counted { window.len() } else { window.iter().flatten().count() };
        window.iter().flatten().for_each(|&i| out[i] = out[i] + dy / T::c(count as f64));
    }
    out
}

/// Records a formula of two values of one shape.
fn product(r: &mut dyn Recorder, a: Val, b: Val, factor: f32) -> Result<Val> {
    let program = Program::trace(2, |v| vec![(v[0] * v[1]) * Real::c(f64::from(factor))]);
    let shape = r.meta(a).shape;
    record_program(r, &program, shape, &[a, b])
}
