//! Pooling over the last axes of a value: maximum, average, smooth maximum, and averages to a given size.
//!
//! The window of output cell `o` holds, along each axis, the input positions `o stride - padding + k dilation` for
//! `k` from 0 below the kernel. Every sum over a window, and every gradient's sum over the windows that hold a
//! cell, is one chain from +0, in row-major order of the cells or of the windows.

use super::extremum::{larger, same};
use super::map::{grid, record_program};
use super::program::{Expr, Program};
use super::rows::device_function;
use super::{
    AnyTensor, Attr, Attrs, Bound, CpuRun, CudaRun, Gpu, Io, Kernel, Op, Recorder, Reject, Sample, SampleIn,
    Val, dims, floats, map, mismatch,
};
use crate::program::Scratch;
use dittograd_device::Meta;
use dittograd_device::cpu::simd::{Simd, simd_fn};
use dittograd_device::cuda::{Args, Source};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::rng::Stream;
use dittograd_numerics::scalar::{Real, Scalar};
use dittograd_numerics::shape::{MAX_RANK, Shape};
use dittograd_numerics::tensor::Tensor;
use std::fmt::Write;

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

simd_fn! {
    fn max_step(simd, x: &[f32], stride: usize, best: &mut [f32]) {
        strided!(x, stride, best, |v, i| {
            best[i] = if larger(v, best[i]) { v } else { best[i] };
        });
    }
}

/// No cell.
const NONE: u32 = u32::MAX;

simd_fn! {
    /// Notes the cell of each window whose first one is not found yet, if it is the same number as `y`. The cells are
    /// `stride` apart, from `cell` on.
    fn first_step(simd, x: &[f32], stride: usize, y: &[f32], cell: u32, found: &mut [u32]) {
        let (y, step) = (&y[..found.len()], stride as u32);
        strided!(x, stride, found, |v, i| {
            let take = (found[i] == NONE) & same(v, y[i]);
            found[i] = if take { cell + i as u32 * step } else { found[i] };
        });
    }
}

simd_fn! {
    fn sum_step(simd, x: &[f32], stride: usize, sums: &mut [f32]) {
        strided!(x, stride, sums, |v, i| { sums[i] += v; });
    }
}

simd_fn! {
    fn scale(simd, factor: f32, out: &mut [f32]) {
        out.iter_mut().for_each(|y| *y *= factor);
    }
}

simd_fn! {
    fn largest_step(simd, beta: f32, x: &[f32], stride: usize, best: &mut [f32]) {
        strided!(x, stride, best, |v, i| {
            let t = beta * v;
            best[i] = if t > best[i] { t } else { best[i] };
        });
    }
}

simd_fn! {
    fn term_step(simd, beta: f32, x: &[f32], stride: usize, m: &[f32], sums: &mut [f32]) {
        let m = &m[..sums.len()];
        strided!(x, stride, sums, |v, i| { sums[i] += term(beta, v, m[i]); });
    }
}

simd_fn! {
    fn smooth_row(simd, beta: f32, m: &[f32], out: &mut [f32]) {
        let m = &m[..out.len()];
        for i in 0..out.len() {
            out[i] = smooth(m[i], out[i], beta);
        }
    }
}

simd_fn! {
    fn shift_row(simd, m: &mut [f32]) {
        m.iter_mut().for_each(|m| *m = shift(*m));
    }
}

simd_fn! {
    /// Adds `v e^(beta (x - y))` of cells `stride` apart to the sums of their windows.
    fn weigh_step(simd, beta: f32, x: &[f32], v: &[f32], stride: usize, y: &[f32], sums: &mut [f32]) {
        let y = &y[..sums.len()];
        for (i, (&x, &v)) in x.iter().step_by(stride).zip(v.iter().step_by(stride)).take(sums.len()).enumerate() {
            sums[i] += weighed(beta, x, y[i], v);
        }
    }
}

simd_fn! {
    /// Adds `dy e^(beta (x - y))` of windows to cells `stride` apart.
    fn spread_step(simd, beta: f32, x: &[f32], stride: usize, y: &[f32], dy: &[f32], out: &mut [f32]) {
        let cells = x.iter().step_by(stride).zip(out.iter_mut().step_by(stride));
        for ((&x, out), (&y, &dy)) in cells.zip(y.iter().zip(dy)) {
            *out += weighed(beta, x, y, dy);
        }
    }
}

simd_fn! {
    /// Adds `dy factor` of windows to cells `stride` apart.
    fn share_step(simd, dy: &[f32], factor: f32, stride: usize, out: &mut [f32]) {
        for (out, dy) in out.iter_mut().step_by(stride).zip(dy) {
            *out += dy * factor;
        }
    }
}

/// Cells one task of the thread pool works on.
const TASK: usize = 16 * 1024;

impl Planes {
    /// Calls `f` with each output row: its plane, the coordinates of its first cell, where it starts, and its words.
    fn each_output_row(
        &self,
        run: CpuRun<'_>,
        f: impl Fn(usize, &[usize; MAX_RANK], usize, &mut [f32]) + Sync,
    ) {
        let row = self.output[self.rank() - 1];
        if run.out.is_empty() {
            return;
        }
        let per_plane = self.output_len() / row;
        let work = row * self.kernel_cells();
        let per_task = run.pool.share(self.count * per_plane, (TASK / work).max(1), 1);
        run.pool.chunks_mut(run.out, per_task * row, |task, out| {
            for (i, out) in out.chunks_mut(row).enumerate() {
                let at = task * per_task + i;
                let o = coordinates(at % per_plane * row, &self.output);
                f(at / per_plane, &o, at * row, out);
            }
        });
    }

    /// About how many cells a window has.
    fn kernel_cells(&self) -> usize {
        match &self.cells {
            Cells::Fixed(w) => w.cells(),
            Cells::Adaptive => (self.input_len() / self.output_len()).max(1),
        }
    }

    /// Calls `f` with each plane of the input's gradient, filled with zeros.
    fn each_input_plane(&self, run: CpuRun<'_>, f: impl Fn(usize, &mut [f32]) + Sync) {
        if run.out.is_empty() {
            return;
        }
        let len = self.input_len();
        let per_task = run.pool.share(self.count, (TASK / len).max(1), 1);
        run.pool.chunks_mut(run.out, per_task * len, |task, out| {
            for (i, out) in out.chunks_mut(len).enumerate() {
                out.fill(0.0);
                f(task * per_task + i, out);
            }
        });
    }

    /// Calls `f` with each output row of a plane: coordinates of its first cell and where it starts in the plane.
    fn each_row_of_plane(&self, mut f: impl FnMut(&[usize; MAX_RANK], usize)) {
        let row = self.output[self.rank() - 1];
        (0..self.output_len()).step_by(row).for_each(|at| f(&coordinates(at, &self.output), at));
    }

    /// For each window of an output row the first cell that is the same number as `y`, in row-major order.
    fn first_cells(&self, simd: Simd, x: &[f32], o: &[usize; MAX_RANK], y: &[f32], found: &mut [u32]) {
        let (stride, kernel) = self.last();
        found.fill(NONE);
        self.rows(o, |row| {
            let Some(row) = row else { return };
            for k in 0..kernel {
                let (range, first) = self.span(k);
                if !range.is_empty() {
                    // The shape rule holds planes below 2^32 cells.
                    let cell = (row + first) as u32;
                    first_step(simd, &x[row + first..], stride, &y[range.clone()], cell, &mut found[range]);
                }
            }
        });
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

    /// Whether a thread has an input cell and visits the windows that hold it.
    fn gathers(self) -> bool {
        matches!(self, Job::MaxBwd | Job::AvgBwd { .. } | Job::SmoothBwd)
    }
}

const POOL_CU: &str = include_str!("pool.cu");

impl Planes {
    /// The module of a job. Kernel, stride, padding and dilation are part of the text, so that loops over windows
    /// are unrolled; sizes are arguments.
    fn module(&self, job: Job) -> Source {
        let d = self.rank();
        let small = |n: usize| n <= 32;
        let mut t = String::from(POOL_CU);
        let function = |name: &str, n: usize, f: fn(&[Expr]) -> Expr| {
            device_function(name, &Program::trace(n, |v| vec![f(v)]))
        };
        if matches!(job, Job::Smooth | Job::SmoothBwd | Job::SmoothSum) {
            t.push_str(map::prelude());
            t.push_str(&function("shift_of", 1, |v| shift(v[0])));
            t.push_str(&function("term", 3, |v| term(v[0], v[1], v[2])));
            t.push_str(&function("smooth", 3, |v| smooth(v[0], v[1], v[2])));
            t.push_str(&function("weighed", 4, |v| weighed(v[0], v[1], v[2], v[3])));
        }
        let mut name = format!("pool_{}_{d}", job.name());
        let (unroll, inside) = match &self.cells {
            Cells::Fixed(w) => {
                let list = |v: &[usize]| v.iter().map(usize::to_string).collect::<Vec<_>>().join("x");
                let _ = write!(
                    name,
                    "_k{}_s{}_p{}_d{}",
                    list(&w.kernel),
                    list(&w.stride),
                    list(&w.padding),
                    list(&w.dilation)
                );
                (small(w.cells()), w.padding.iter().all(|&p| p == 0))
            }
            Cells::Adaptive => {
                name.push_str("_adaptive");
                (false, true)
            }
        };
        let unroll = if unroll { "#pragma unroll\n" } else { "#pragma unroll 1\n" };
        // The window of output (o0, o1, …): first cells, loops over the kernel, position of a cell.
        let mut starts = String::new();
        let mut open = String::new();
        let mut real = String::from("true");
        let mut at = String::from("0ull");
        for a in 0..d {
            let (start, count, step) = match &self.cells {
                Cells::Fixed(w) => (
                    format!("(int)(o{a} * {}u) - {}", w.stride[a], w.padding[a]),
                    w.kernel[a].to_string(),
                    w.dilation[a],
                ),
                Cells::Adaptive => (
                    format!("(int)((u64)o{a} * sizes.in[{a}] / sizes.out[{a}])"),
                    format!(
                        "(int)((((u64)o{a} + 1) * sizes.in[{a}] + sizes.out[{a}] - 1) / sizes.out[{a}]) - s{a}"
                    ),
                    1,
                ),
            };
            let _ = writeln!(starts, "const int s{a} = {start};");
            if self.cells == Cells::Adaptive {
                let _ = writeln!(starts, "const int n{a} = {count};");
            }
            let count = if self.cells == Cells::Adaptive { format!("n{a}") } else { count };
            let _ = writeln!(
                open,
                "{unroll}for (int k{a} = 0; k{a} < {count}; ++k{a}) {{ const int i{a} = s{a} + k{a} * {step};"
            );
            if !inside {
                let _ = write!(real, " && (unsigned)i{a} < sizes.in[{a}]");
            }
            at = format!("(({at}) * sizes.in[{a}] + (u64)(unsigned)i{a})");
        }
        let close = "}".repeat(d);
        let over = |body: &str| {
            format!("{open}const bool real = {real};\nconst u64 cell = {at};\n{body}\n{close}\n")
        };
        // 1 / cells of a window: of all, or of the real ones.
        let count = |counted: bool| -> String {
            match &self.cells {
                Cells::Fixed(_) if counted => "const float factor = scalar;\n".into(),
                Cells::Fixed(w) => {
                    let mut t = String::from("unsigned reals = 1;\n");
                    for a in 0..d {
                        let _ =
                            writeln!(t, "reals *= real_cells(s{a}, {}, (int)sizes.in[{a}]);", w.kernel[a]);
                    }
                    t + "const float factor = __fdiv_rn(1.0f, (float)reals);\n"
                }
                Cells::Adaptive => {
                    let all: Vec<String> = (0..d).map(|a| format!("n{a}")).collect();
                    format!("const float factor = __fdiv_rn(1.0f, (float)({}));\n", all.join(" * "))
                }
            }
        };
        let first_cell = || {
            format!(
                "u64 first = ~0ull;\n{}",
                over("if (first == ~0ull && real && same(plane[cell], value)) first = cell;")
            )
        };
        let coordinates = |sizes: &str, letter: &str| -> String {
            let mut t = String::from("u64 rest = item;\n");
            for a in (0..d).rev() {
                let _ = writeln!(t, "const unsigned {letter}{a} = take(rest, sizes.{sizes}[{a}]);");
            }
            t
        };
        let kernel = if job.gathers() {
            // The windows that hold cell (c0, c1, …), in row-major order of the windows.
            let mut windows = String::new();
            let mut window = String::from("0ull");
            for a in 0..d {
                match &self.cells {
                    Cells::Fixed(w) if w.dilation[a] == 1 => {
                        let (k, s, p) = (w.kernel[a], w.stride[a], w.padding[a]);
                        let most = k.div_ceil(s);
                        let _ = writeln!(
                            windows,
                            "const int l{a} = low_window((int)c{a}, {k}, {s}, {p}), h{a} = min(((int)c{a} + {p}) / {s}, (int)sizes.out[{a}] - 1);\n{unroll}for (int w{a} = 0; w{a} < {most}; ++w{a}) {{ const unsigned o{a} = (unsigned)(l{a} + w{a}); if ((int)o{a} > h{a}) continue;"
                        );
                    }
                    Cells::Fixed(w) => {
                        let (k, s, p, g) = (w.kernel[a], w.stride[a], w.padding[a], w.dilation[a]);
                        let _ = writeln!(
                            windows,
                            "{unroll}for (int w{a} = {k} - 1; w{a} >= 0; --w{a}) {{ const int t{a} = (int)c{a} + {p} - w{a} * {g}; if (t{a} < 0 || t{a} % {s} != 0) continue; const unsigned o{a} = (unsigned)(t{a} / {s}); if (o{a} >= sizes.out[{a}]) continue;"
                        );
                    }
                    Cells::Adaptive => {
                        let _ = writeln!(
                            windows,
                            "const unsigned l{a} = (unsigned)((u64)c{a} * sizes.out[{a}] / sizes.in[{a}]), h{a} = (unsigned)((((u64)c{a} + 1) * sizes.out[{a}] + sizes.in[{a}] - 1) / sizes.in[{a}]);\nfor (unsigned o{a} = l{a}; o{a} < h{a}; ++o{a}) {{"
                        );
                    }
                }
                window = format!("(({window}) * sizes.out[{a}] + o{a})");
            }
            let body = match job {
                Job::MaxBwd => format!(
                    "const float value = y[of];\nif (same(mine, value)) {{\n{starts}{}if (first == here) sum = __fadd_rn(sum, dy[of]); }}",
                    first_cell()
                ),
                Job::AvgBwd { counted } => {
                    format!("{starts}{}sum = __fadd_rn(sum, __fmul_rn(dy[of], factor));", count(counted))
                }
                _ => "sum = __fadd_rn(sum, weighed(scalar, mine, y[of], dy[of]));".into(),
            };
            let mine = match job {
                Job::AvgBwd { .. } => "",
                _ => {
                    "const float mine = x[item];\nconst float* const plane = x + rest * in_len; (void)plane;\n"
                }
            };
            format!(
                "{}{mine}const u64 here = item - rest * in_len; (void)here;\nfloat sum = 0.0f;\n{windows}const u64 of = rest * out_len + {window};\n{body}\n{close}\nout[item] = sum;\n",
                coordinates("in", "c")
            )
        } else {
            let body = match job {
                Job::Max => format!(
                    "float best = -__int_as_float(0x7f800000);\n{}out[item] = best;",
                    over("if (real) { const float v = plane[cell]; if (larger(v, best)) best = v; }")
                ),
                Job::Pick => format!(
                    "const float value = y[item];\n{}out[item] = first == ~0ull ? 0.0f : dy[rest * in_len + first];",
                    first_cell()
                ),
                Job::Avg { counted } => format!(
                    "float sum = 0.0f;\n{}{}out[item] = __fmul_rn(sum, factor);",
                    over("if (real) sum = __fadd_rn(sum, plane[cell]);"),
                    count(counted)
                ),
                Job::Smooth => format!(
                    "float m = -__int_as_float(0x7f800000);\n{}m = shift_of(m);\nfloat sum = 0.0f;\n{}out[item] = smooth(m, sum, scalar);",
                    over("const float v = __fmul_rn(scalar, real ? plane[cell] : 0.0f); if (v > m) m = v;"),
                    over("sum = __fadd_rn(sum, term(scalar, real ? plane[cell] : 0.0f, m));")
                ),
                _ => format!(
                    "float sum = 0.0f;\nconst float value = y[item];\nconst float* const weights = dy + rest * in_len;\n{}out[item] = sum;",
                    over(
                        "if (real) sum = __fadd_rn(sum, weighed(scalar, plane[cell], value, weights[cell]));"
                    )
                ),
            };
            format!(
                "{}const float* const plane = x + rest * in_len;\n{starts}{body}\n",
                coordinates("out", "o")
            )
        };
        let _ = write!(
            t,
            "extern \"C\" __global__ void __launch_bounds__(256) pool(float* __restrict__ out, const float* __restrict__ x, const float* __restrict__ y, const float* __restrict__ dy, u64 items, u64 in_len, u64 out_len, Sizes sizes, float scalar) {{\nfor (u64 item = blockIdx.x * 256ull + threadIdx.x; item < items; item += gridDim.x * 256ull) {{\n{kernel}}}\n}}\n"
        );
        super::module(name, || t)
    }

    /// Queues a job on inputs `x, y, dy`, 0 where there is none.
    fn run_cuda(&self, job: Job, ins: [u64; 3], scalar: f32, run: &CudaRun<'_>) -> Result<()> {
        let items = run.shape.numel();
        if items == 0 {
            return Ok(());
        }
        let (module, source) = self.module(job);
        let kernel = run.cuda.kernel(&module, source, "pool")?;
        let mut sizes = [1u32; 2 * MAX_RANK];
        for a in 0..self.rank() {
            // The shape rule holds sizes below 2^31.
            sizes[a] = self.input[a] as u32;
            sizes[MAX_RANK + a] = self.output[a] as u32;
        }
        let mut args = Args::new();
        args.ptr(run.out).ptr(ins[0]).ptr(ins[1]).ptr(ins[2]);
        args.u64(items as u64).u64(self.input_len() as u64).u64(self.output_len() as u64);
        args.bytes(bytemuck::cast_slice(&sizes), 4).f32(scalar);
        run.cuda.launch(kernel, grid(run.cuda, items), 256, 0, &args)
    }
}

/// A sample's input dimensions, kernel, stride, padding and dilation.
type Geometry = (&'static [usize], &'static [usize], &'static [usize], &'static [usize], &'static [usize]);

const GEOMETRIES: [Geometry; 11] = [
    (&[5], &[2], &[1], &[0], &[1]),
    (&[3, 70], &[7], &[2], &[3], &[1]),
    (&[2, 3, 6, 8], &[2, 2], &[2, 2], &[0, 0], &[1, 1]),
    (&[2, 7, 7], &[3, 3], &[2, 2], &[1, 1], &[1, 1]),
    (&[0, 4, 4], &[2, 2], &[2, 2], &[0, 0], &[1, 1]),
    (&[1, 20, 33], &[3, 3], &[1, 1], &[1, 1], &[1, 1]),
    (&[2, 3, 4, 5], &[2, 2, 3], &[1, 2, 1], &[1, 0, 1], &[1, 1, 1]),
    (&[1, 1], &[1], &[3], &[0], &[1]),
    (&[2, 9, 9], &[6, 6], &[2, 3], &[1, 3], &[1, 1]),
    (
        &[2, 2, 1, 2, 3, 1, 2, 4],
        &[2, 1, 1, 2, 1, 2, 3],
        &[1, 1, 1, 2, 1, 2, 1],
        &[1, 0, 0, 0, 0, 0, 1],
        &[1; 7],
    ),
    (
        &[1, 2, 2, 1, 2, 3, 1, 2, 1, 4],
        &[2, 1, 1, 2, 1, 2, 1, 2],
        &[1, 1, 2, 1, 1, 2, 1, 1],
        &[1, 0, 0, 0, 0, 0, 0, 1],
        &[1; 8],
    ),
];

/// Windows whose cells are apart.
const DILATED: [Geometry; 2] =
    [(&[2, 9, 8], &[3, 2], &[1, 2], &[1, 0], &[2, 3]), (&[6], &[2], &[1], &[1], &[3])];

fn windows(dilated: bool) -> impl Iterator<Item = (Window, Shape, Shape)> {
    let more = if dilated { &DILATED[..] } else { &[] };
    GEOMETRIES.iter().chain(more).filter_map(|(d, k, s, p, g)| {
        let window = Window { dilation: g.to_vec(), ..Window::new(k, s, p) };
        let x = dims(d);
        let sizes = window.sizes("pool", &d[d.len() - k.len()..], false).ok()?;
        let y = resized(&x, &sizes).ok()?;
        Some((window, x, y))
    })
}

/// A random geometry around tile edges, along two axes.
fn random_window(stream: &mut Stream) -> Option<(Window, Shape, Shape)> {
    // Few windows, since each is a kernel of its own; any sizes.
    let (k, s, p) =
        [([2, 2], [2, 2], [0, 0]), ([3, 3], [2, 2], [1, 1]), ([3, 3], [1, 1], [1, 1])][stream.below(3)];
    let window = Window::new(&k, &s, &p);
    let side = |stream: &mut Stream| [3, 4, 7, 31, 32, 33, 65][stream.below(7)];
    let x = dims(&[1 + stream.below(40), side(stream), side(stream)]);
    let sizes = window.sizes("pool", &x.dims()[1..], false).ok()?;
    let y = resized(&x, &sizes).ok()?;
    Some((window, x, y))
}

/// Numbers of which hardly two are equal, so that maxima have slopes.
fn distinct(shape: Shape) -> SampleIn {
    SampleIn::Num(shape, (-5000.0, 5000.0))
}

/// Inputs that windows must refuse: with what they are made from and the error.
fn bad_windows() -> Vec<(Window, Shape, &'static str)> {
    let w = Window::new;
    vec![
        (w(&[], &[], &[]), dims(&[4, 4]), "Argument"),
        (w(&[2, 2], &[1], &[0, 0]), dims(&[4, 4]), "Argument"),
        (w(&[2, 2], &[1, 0], &[0, 0]), dims(&[4, 4]), "Argument"),
        (w(&[0, 2], &[1, 1], &[0, 0]), dims(&[4, 4]), "Argument"),
        (w(&[5, 2], &[1, 1], &[0, 0]), dims(&[4, 4]), "Argument"),
        (w(&[2, 2], &[1, 1], &[usize::MAX, 0]), dims(&[4, 4]), "Argument"),
        (w(&[2, 2], &[1, 1], &[0, 0]), dims(&[4]), "Rank"),
        (w(&[2, 2], &[1, 1], &[1, 1]), dims(&[0, 4]), "Argument"),
        (Window { dilation: vec![usize::MAX], ..w(&[3], &[1], &[0]) }, dims(&[4]), "Argument"),
    ]
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

            fn samples() -> Vec<Sample<$op>> {
                $op::cases()
            }

            fn random(stream: &mut Stream) -> Option<Sample<$op>> {
                $op::drawn(stream)
            }

            fn rejects() -> Vec<Reject<$op>> {
                let mut bad = $op::refused();
                let first = $op::cases().into_iter().next();
                if let Some(Sample { op, ins }) = first {
                    let shape = ins[0].meta().shape;
                    bad.push(Reject { op: op.clone(), ins: vec![], want: "Arity" });
                    bad.push(Reject { op, ins: vec![Meta::u32(shape); $arity], want: "DType" });
                }
                bad
            }

            fn bound(&self, _ins: &[Meta]) -> Bound {
                self.limit()
            }

            fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
                self.linear_in()
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

fn beta_attr(beta: &f32) -> Vec<(&'static str, Attr)> {
    vec![("beta", Attr::Num(f64::from(*beta)))]
}

fn sizes_attr(sizes: &[usize]) -> Vec<(&'static str, Attr)> {
    vec![("sizes", Attr::List(sizes.to_vec()))]
}

fn count_attr(count: &bool) -> Vec<(&'static str, Attr)> {
    vec![("count_include_pad", Attr::Bool(*count))]
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

pool_op! {
    /// The largest of each window. Padding is ignored; a NaN counts as larger than every number; a window of `-inf`
    /// gives `-inf`, as does one without a real cell, which only a dilated window can be.
    MaxPool "max_pool" 1 {
        /// The windows; padding is at most half of the kernel.
        window: Window = window_from(attrs, &[]), Window::attrs;
    } attrs
}

pool_op! {
    /// Gradient of [`MaxPool`] from `x`, its value `y` and the upstream gradient: each window's gradient goes to its
    /// first cell, in row-major order, that is the same number as `y` there.
    MaxPoolBwd "max_pool_bwd" 3 {
        /// The windows.
        window: Window = window_from(attrs, &[]), Window::attrs;
    } attrs
}

pool_op! {
    /// Of each window the element of `v` at the cell that [`MaxPoolBwd`] gives the window's gradient to, from `x, y, v`;
    /// 0 where there is none.
    MaxPoolPick "max_pool_pick" 3 {
        /// The windows.
        window: Window = window_from(attrs, &[]), Window::attrs;
    } attrs
}

impl MaxPool {
    fn linear_in(&self) -> Vec<Vec<usize>> {
        Vec::new()
    }

    fn check(&self, [x]: &[Shape; 1]) -> Result<Shape> {
        windowed(Self::NAME, &self.window, x, false)
    }

    fn planes(&self, x: &Shape, out: &Shape) -> Planes {
        Planes::new(x, out, self.window.kernel.len(), Cells::Fixed(self.window.clone()))
    }

    fn job(&self) -> (Job, f32) {
        (Job::Max, 0.0)
    }

    fn run(&self, planes: &Planes, run: CpuRun<'_>) {
        let (simd, x, len) = (run.simd, run.ins[0], planes.input_len());
        let (stride, kernel) = planes.last();
        planes.each_output_row(run, |plane, o, _, out| {
            let x = &x[plane * len..(plane + 1) * len];
            out.fill(f32::NEG_INFINITY);
            planes.rows(o, |row| {
                let Some(row) = row else { return };
                for k in 0..kernel {
                    let (range, first) = planes.span(k);
                    if !range.is_empty() {
                        max_step(simd, &x[row + first..], stride, &mut out[range]);
                    }
                }
            });
        });
    }

    fn record_vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let op = MaxPoolBwd { window: self.window.clone() };
        Ok(vec![Some(r.record(op.into(), &[io.ins[0], io.out, dy])?)])
    }

    fn value<T: Scalar>(&self, planes: &Planes, ins: &[&[T]]) -> Vec<T> {
        let one = |o: usize| {
            let cells = planes.window(o).into_iter().flatten().map(|i| ins[0][i]);
            cells.fold(T::c(f64::NEG_INFINITY), |best, v| if larger(v, best) { v } else { best })
        };
        (0..planes.output_len()).map(one).collect()
    }

    fn cases() -> Vec<Sample<MaxPool>> {
        windows(true)
            .map(|(window, x, _)| Sample { op: MaxPool { window }, ins: vec![distinct(x)] })
            .collect()
    }

    fn drawn(stream: &mut Stream) -> Option<Sample<MaxPool>> {
        let (window, x, _) = random_window(stream)?;
        Some(Sample { op: MaxPool { window }, ins: vec![distinct(x)] })
    }

    fn refused() -> Vec<Reject<MaxPool>> {
        let one = |(window, x, want)| Reject { op: MaxPool { window }, ins: vec![Meta::f32(x)], want };
        let deep = (Window::new(&[3], &[1], &[2]), dims(&[4]), "Argument");
        bad_windows().into_iter().chain([deep]).map(one).collect()
    }

    fn limit(&self) -> Bound {
        Bound::EXACT
    }
}

/// `x`, a value of each window, and another value like one of them, as the second input's companion.
fn triple(op: &'static str, w: &Window, [x, y, v]: &[Shape; 3], cells: bool) -> Result<Shape> {
    let out = windowed(op, w, x, false)?;
    alike(op, "the second input must have one element per window", out, *y)?;
    let (want, value) = if cells { (*x, out) } else { (out, *x) };
    alike(op, "the last input has the wrong shape", want, *v)?;
    Ok(value)
}

fn bad_triples() -> Vec<(Window, [Shape; 3], &'static str)> {
    let w = || Window::new(&[2], &[2], &[0]);
    vec![
        (w(), [dims(&[4]), dims(&[3]), dims(&[2])], "Shapes"),
        (w(), [dims(&[4]), dims(&[2]), dims(&[3])], "Shapes"),
        (Window::new(&[2], &[0], &[0]), [dims(&[4]), dims(&[2]), dims(&[2])], "Argument"),
    ]
}

impl MaxPoolBwd {
    fn linear_in(&self) -> Vec<Vec<usize>> {
        vec![vec![2]]
    }

    fn check(&self, shapes: &[Shape; 3]) -> Result<Shape> {
        triple(Self::NAME, &self.window, shapes, false)
    }

    fn planes(&self, x: &Shape, _out: &Shape) -> Planes {
        // After the check the windows fit.
        let out = windowed(Self::NAME, &self.window, x, false).unwrap_or(*x);
        Planes::new(x, &out, self.window.kernel.len(), Cells::Fixed(self.window.clone()))
    }

    fn job(&self) -> (Job, f32) {
        (Job::MaxBwd, 0.0)
    }

    fn run(&self, planes: &Planes, run: CpuRun<'_>) {
        let (x, y, dy, simd) = (run.ins[0], run.ins[1], run.ins[2], run.simd);
        let (len, outputs) = (planes.input_len(), planes.output_len());
        let width = planes.output[planes.rank() - 1];
        planes.each_input_plane(run, |plane, out| {
            let x = &x[plane * len..(plane + 1) * len];
            let mut scratch = Scratch::take(width);
            let found: &mut [u32] = bytemuck::cast_slice_mut(&mut scratch.words()[..width]);
            planes.each_row_of_plane(|o, at| {
                let at = plane * outputs + at;
                planes.first_cells(simd, x, o, &y[at..at + width], found);
                for (&cell, dy) in found.iter().zip(&dy[at..]).filter(|(c, _)| **c != NONE) {
                    out[cell as usize] += dy;
                }
            });
        });
    }

    fn record_vjp(&self, r: &mut dyn Recorder, io: Io<'_>, v: Val) -> Result<Vec<Option<Val>>> {
        let op = MaxPoolPick { window: self.window.clone() };
        let by_dy = r.record(op.into(), &[io.ins[0], io.ins[1], v])?;
        Ok(vec![None, None, Some(by_dy)])
    }

    fn value<T: Scalar>(&self, planes: &Planes, ins: &[&[T]]) -> Vec<T> {
        let mut out = vec![T::c(0.0); planes.input_len()];
        for o in 0..planes.output_len() {
            if let Some(i) = planes.window(o).into_iter().flatten().find(|&i| same(ins[0][i], ins[1][o])) {
                out[i] = out[i] + ins[2][o];
            }
        }
        out
    }

    fn cases() -> Vec<Sample<MaxPoolBwd>> {
        let ins = |x, y| vec![SampleIn::any(x), SampleIn::any(y), SampleIn::any(y)];
        windows(true).map(|(window, x, y)| Sample { op: MaxPoolBwd { window }, ins: ins(x, y) }).collect()
    }

    fn drawn(_stream: &mut Stream) -> Option<Sample<MaxPoolBwd>> {
        None
    }

    fn refused() -> Vec<Reject<MaxPoolBwd>> {
        let one = |(window, ins, want): (Window, [Shape; 3], _)| Reject {
            op: MaxPoolBwd { window },
            ins: ins.map(Meta::f32).to_vec(),
            want,
        };
        bad_triples().into_iter().map(one).collect()
    }

    fn limit(&self) -> Bound {
        Bound { ulps: 1.0, terms: self.window.cells() as f64 }
    }
}

impl MaxPoolPick {
    fn linear_in(&self) -> Vec<Vec<usize>> {
        vec![vec![2]]
    }

    fn check(&self, shapes: &[Shape; 3]) -> Result<Shape> {
        triple(Self::NAME, &self.window, shapes, true)
    }

    fn planes(&self, x: &Shape, out: &Shape) -> Planes {
        Planes::new(x, out, self.window.kernel.len(), Cells::Fixed(self.window.clone()))
    }

    fn job(&self) -> (Job, f32) {
        (Job::Pick, 0.0)
    }

    fn run(&self, planes: &Planes, run: CpuRun<'_>) {
        let (x, y, v, simd, len) = (run.ins[0], run.ins[1], run.ins[2], run.simd, planes.input_len());
        planes.each_output_row(run, |plane, o, at, out| {
            let cells = plane * len..(plane + 1) * len;
            let (x, v) = (&x[cells.clone()], &v[cells]);
            let mut scratch = Scratch::take(out.len());
            let found: &mut [u32] = bytemuck::cast_slice_mut(&mut scratch.words()[..out.len()]);
            planes.first_cells(simd, x, o, &y[at..at + out.len()], found);
            for (out, &cell) in out.iter_mut().zip(&*found) {
                *out = if cell == NONE { 0.0 } else { v[cell as usize] };
            }
        });
    }

    fn record_vjp(&self, r: &mut dyn Recorder, io: Io<'_>, u: Val) -> Result<Vec<Option<Val>>> {
        let op = MaxPoolBwd { window: self.window.clone() };
        let by_v = r.record(op.into(), &[io.ins[0], io.ins[1], u])?;
        Ok(vec![None, None, Some(by_v)])
    }

    fn value<T: Scalar>(&self, planes: &Planes, ins: &[&[T]]) -> Vec<T> {
        let one = |o: usize| {
            let first = planes.window(o).into_iter().flatten().find(|&i| same(ins[0][i], ins[1][o]));
            first.map_or(T::c(0.0), |i| ins[2][i])
        };
        (0..planes.output_len()).map(one).collect()
    }

    fn cases() -> Vec<Sample<MaxPoolPick>> {
        let ins = |x, y| vec![SampleIn::any(x), SampleIn::any(y), SampleIn::any(x)];
        windows(true).map(|(window, x, y)| Sample { op: MaxPoolPick { window }, ins: ins(x, y) }).collect()
    }

    fn drawn(_stream: &mut Stream) -> Option<Sample<MaxPoolPick>> {
        None
    }

    fn refused() -> Vec<Reject<MaxPoolPick>> {
        let one = |(window, ins, want): (Window, [Shape; 3], _)| Reject {
            op: MaxPoolPick { window },
            ins: ins.map(Meta::f32).to_vec(),
            want,
        };
        bad_triples().into_iter().map(one).collect()
    }

    fn limit(&self) -> Bound {
        Bound::EXACT
    }
}

pool_op! {
    /// The mean of each window. Padding counts as cells of value 0, or, if `count_include_pad` is false, not at all.
    /// The sum is multiplied by the rounded `1 / cells`.
    AvgPool "avg_pool" 1 {
        /// The windows; where padding does not count it is at most half of the kernel.
        window: Window = window_from(attrs, &["count_include_pad"]), Window::attrs;
        /// Whether padding counts as cells.
        count_include_pad: bool = attrs.flag("count_include_pad"), count_attr;
    } attrs
}

pool_op! {
    /// Gradient of [`AvgPool`] from the upstream gradient: each window's, times its rounded `1 / cells`, to all its real
    /// cells.
    AvgPoolBwd "avg_pool_bwd" 1 {
        /// The windows.
        window: Window = window_from(attrs, &["count_include_pad", "sizes"]), Window::attrs;
        /// Whether padding counts as cells.
        count_include_pad: bool = attrs.flag("count_include_pad"), count_attr;
        /// Sizes of the pooled axes of the input.
        sizes: Vec<usize> = attrs.list("sizes"), sizes_attr;
    } attrs
}

/// The input, where dividing by the number of cells is exact.
fn whole_factors(window: &Window, counted: bool) -> Vec<Vec<usize>> {
    if counted && window.cells().is_power_of_two() { vec![vec![0]] } else { Vec::new() }
}

/// `1 / cells`, formed in f64 and rounded once.
fn inverse(cells: usize) -> f32 {
    (1.0 / cells as f64) as f32
}

impl AvgPool {
    fn linear_in(&self) -> Vec<Vec<usize>> {
        whole_factors(&self.window, self.count_include_pad)
    }

    fn check(&self, [x]: &[Shape; 1]) -> Result<Shape> {
        windowed(Self::NAME, &self.window, x, self.count_include_pad)
    }

    fn planes(&self, x: &Shape, out: &Shape) -> Planes {
        Planes::new(x, out, self.window.kernel.len(), Cells::Fixed(self.window.clone()))
    }

    fn job(&self) -> (Job, f32) {
        (Job::Avg { counted: self.count_include_pad }, inverse(self.window.cells()))
    }

    fn run(&self, planes: &Planes, run: CpuRun<'_>) {
        let (simd, x, len) = (run.simd, run.ins[0], planes.input_len());
        let ((stride, kernel), last) = (planes.last(), planes.rank() - 1);
        planes.each_output_row(run, |plane, o, _, out| {
            let x = &x[plane * len..(plane + 1) * len];
            out.fill(0.0);
            planes.rows(o, |row| {
                let Some(row) = row else { return };
                for k in 0..kernel {
                    let (range, first) = planes.span(k);
                    if !range.is_empty() {
                        sum_step(simd, &x[row + first..], stride, &mut out[range]);
                    }
                }
            });
            if self.count_include_pad {
                scale(simd, inverse(self.window.cells()), out);
            } else {
                let mut o = *o;
                for (i, out) in out.iter_mut().enumerate() {
                    o[last] = i;
                    *out *= inverse(planes.real(&o));
                }
            }
        });
    }

    fn record_vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let x = r.meta(io.ins[0]).shape;
        let sizes = pooled(Self::NAME, &x, self.window.kernel.len())?.to_vec();
        let op = AvgPoolBwd { window: self.window.clone(), count_include_pad: self.count_include_pad, sizes };
        Ok(vec![Some(r.record(op.into(), &[dy])?)])
    }

    fn value<T: Scalar>(&self, planes: &Planes, ins: &[&[T]]) -> Vec<T> {
        averages(planes, ins[0], self.count_include_pad)
    }

    fn cases() -> Vec<Sample<AvgPool>> {
        let one = |(i, (window, x, _)): (usize, (Window, Shape, Shape))| Sample {
            op: AvgPool { window, count_include_pad: i % 2 == 0 },
            ins: vec![SampleIn::any(x)],
        };
        let mut all: Vec<_> = windows(false).enumerate().map(one).collect();
        let window = Window::new(&[3, 3], &[2, 2], &[1, 1]);
        all.push(Sample {
            op: AvgPool { window, count_include_pad: true },
            ins: vec![SampleIn::any(dims(&[2, 5, 6]))],
        });
        let window = Window::new(&[2], &[3], &[3]);
        all.push(Sample {
            op: AvgPool { window, count_include_pad: true },
            ins: vec![SampleIn::any(dims(&[2, 7]))],
        });
        all
    }

    fn drawn(stream: &mut Stream) -> Option<Sample<AvgPool>> {
        let (window, x, _) = random_window(stream)?;
        Some(Sample { op: AvgPool { window, count_include_pad: true }, ins: vec![SampleIn::any(x)] })
    }

    fn refused() -> Vec<Reject<AvgPool>> {
        let one = |(window, x, want)| Reject {
            op: AvgPool { window, count_include_pad: false },
            ins: vec![Meta::f32(x)],
            want,
        };
        let deep = (Window::new(&[3], &[1], &[2]), dims(&[4]), "Argument");
        bad_windows().into_iter().chain([deep]).map(one).collect()
    }

    fn limit(&self) -> Bound {
        Bound { ulps: 2.0, terms: 2.0 + self.window.cells() as f64 }
    }
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

/// The shape of the input of windows whose values have shape `dy`, checked.
fn input_of(op: &'static str, w: &Window, dy: &Shape, sizes: &[usize], full: bool) -> Result<Shape> {
    pooled(op, dy, w.kernel.len())?;
    if sizes.len() != w.kernel.len() {
        let why = format!("{sizes:?} must have one entry per entry of kernel {:?}", w.kernel);
        return Err(Error::argument(op, "sizes", why));
    }
    let x = resized(dy, sizes)?;
    alike(op, "the gradient must have one element per window", windowed(op, w, &x, full)?, *dy)?;
    Ok(x)
}

impl AvgPoolBwd {
    fn linear_in(&self) -> Vec<Vec<usize>> {
        whole_factors(&self.window, self.count_include_pad)
    }

    fn check(&self, [dy]: &[Shape; 1]) -> Result<Shape> {
        input_of(Self::NAME, &self.window, dy, &self.sizes, self.count_include_pad)
    }

    fn planes(&self, dy: &Shape, out: &Shape) -> Planes {
        Planes::new(out, dy, self.window.kernel.len(), Cells::Fixed(self.window.clone()))
    }

    fn job(&self) -> (Job, f32) {
        (Job::AvgBwd { counted: self.count_include_pad }, inverse(self.window.cells()))
    }

    fn run(&self, planes: &Planes, run: CpuRun<'_>) {
        let (simd, dy, outputs) = (run.simd, run.ins[0], planes.output_len());
        let ((stride, kernel), last) = (planes.last(), planes.rank() - 1);
        let width = planes.output[last];
        planes.each_input_plane(run, |plane, out| {
            let mut scaled = Scratch::take(width);
            let scaled = &mut scaled.words()[..width];
            planes.each_row_of_plane(|o, at| {
                let dy = &dy[plane * outputs + at..][..width];
                let mut o = *o;
                // Windows of one row in increasing order reach a cell with their cells in decreasing order.
                let (dy, factor) = if self.count_include_pad {
                    (dy, inverse(self.window.cells()))
                } else {
                    for (i, s) in scaled.iter_mut().enumerate() {
                        o[last] = i;
                        *s = dy[i] * inverse(planes.real(&o));
                    }
                    (&*scaled, 1.0)
                };
                planes.rows(&o, |row| {
                    let Some(row) = row else { return };
                    for k in (0..kernel).rev() {
                        let (range, first) = planes.span(k);
                        if !range.is_empty() {
                            share_step(simd, &dy[range], factor, stride, &mut out[row + first..]);
                        }
                    }
                });
            });
        });
    }

    fn record_vjp(&self, r: &mut dyn Recorder, _io: Io<'_>, v: Val) -> Result<Vec<Option<Val>>> {
        let op = AvgPool { window: self.window.clone(), count_include_pad: self.count_include_pad };
        Ok(vec![Some(r.record(op.into(), &[v])?)])
    }

    fn value<T: Scalar>(&self, planes: &Planes, ins: &[&[T]]) -> Vec<T> {
        spread(planes, ins[0], self.count_include_pad)
    }

    fn cases() -> Vec<Sample<AvgPoolBwd>> {
        let one = |s: Sample<AvgPool>| {
            let AvgPool { window, count_include_pad } = s.op;
            let x = s.ins[0].meta().shape;
            let y = windowed(Self::NAME, &window, &x, true).ok()?;
            let sizes = pooled(Self::NAME, &x, window.kernel.len()).ok()?.to_vec();
            Some(Sample { op: AvgPoolBwd { window, count_include_pad, sizes }, ins: vec![SampleIn::any(y)] })
        };
        AvgPool::cases().into_iter().filter_map(one).collect()
    }

    fn drawn(stream: &mut Stream) -> Option<Sample<AvgPoolBwd>> {
        let (window, x, y) = random_window(stream)?;
        let op = AvgPoolBwd { window, count_include_pad: true, sizes: x.dims()[1..].to_vec() };
        Some(Sample { op, ins: vec![SampleIn::any(y)] })
    }

    fn refused() -> Vec<Reject<AvgPoolBwd>> {
        let op = |sizes: &[usize]| AvgPoolBwd {
            window: Window::new(&[2], &[2], &[0]),
            count_include_pad: true,
            sizes: sizes.to_vec(),
        };
        let f = |d: &[usize]| Meta::f32(dims(d));
        vec![
            Reject { op: op(&[4, 4]), ins: vec![f(&[2])], want: "Argument" },
            Reject { op: op(&[6]), ins: vec![f(&[2])], want: "Shapes" },
            Reject { op: op(&[1]), ins: vec![f(&[2])], want: "Argument" },
            Reject { op: op(&[4]), ins: vec![f(&[])], want: "Rank" },
        ]
    }

    fn limit(&self) -> Bound {
        Bound { ulps: 2.0, terms: 2.0 + self.window.cells() as f64 }
    }
}

pool_op! {
    /// Means to given sizes: output cell `o` of `m` along an axis of `n` is the mean of the cells from `floor(o n / m)` to
    /// below `ceil((o + 1) n / m)`.
    AdaptiveAvgPool "adaptive_avg_pool" 1 {
        /// Sizes of the pooled axes of the value.
        sizes: Vec<usize> = attrs.only(&["sizes"]).and_then(|()| attrs.list("sizes")), sizes_attr;
    } attrs
}

pool_op! {
    /// Gradient of [`AdaptiveAvgPool`] from the upstream gradient.
    AdaptiveAvgPoolBwd "adaptive_avg_pool_bwd" 1 {
        /// Sizes of the pooled axes of the input.
        sizes: Vec<usize> = attrs.only(&["sizes"]).and_then(|()| attrs.list("sizes")), sizes_attr;
    } attrs
}

/// A shape with other sizes along its last axes, none of them zero.
fn adapted(op: &'static str, x: &Shape, sizes: &[usize]) -> Result<Shape> {
    if sizes.is_empty() {
        return Err(Error::argument(op, "sizes", "names no axis; give one entry per pooled axis"));
    }
    let from = pooled(op, x, sizes.len())?;
    let fits = |&n: &usize| n > 0 && n < 1 << 31;
    if !from.iter().chain(sizes).all(fits) {
        return Err(Error::argument(
            op,
            "sizes",
            format!("from {from:?} to {sizes:?} has an empty or endless axis"),
        ));
    }
    resized(x, sizes)
}

const ADAPTED: [(&[usize], &[usize]); 8] = [
    (&[5], &[3]),
    (&[2, 7], &[7]),
    (&[3, 4], &[9]),
    (&[2, 6, 8], &[3, 4]),
    (&[2, 3, 7, 10], &[3, 3]),
    (&[0, 5], &[2]),
    (&[2, 5, 4, 3], &[2, 1, 2]),
    (&[1, 2, 2, 1, 3, 2, 1, 2, 1, 5], &[2, 1, 2, 1, 1, 1, 1, 3]),
];

fn bad_sizes() -> Vec<(Vec<usize>, Shape, &'static str)> {
    vec![
        (vec![], dims(&[4]), "Argument"),
        (vec![0], dims(&[4]), "Argument"),
        (vec![2], dims(&[3, 0]), "Argument"),
        (vec![2, 2], dims(&[4]), "Rank"),
        (vec![usize::MAX], dims(&[4]), "Argument"),
    ]
}

impl AdaptiveAvgPool {
    fn linear_in(&self) -> Vec<Vec<usize>> {
        Vec::new()
    }

    fn check(&self, [x]: &[Shape; 1]) -> Result<Shape> {
        adapted(Self::NAME, x, &self.sizes)
    }

    fn planes(&self, x: &Shape, out: &Shape) -> Planes {
        Planes::new(x, out, self.sizes.len(), Cells::Adaptive)
    }

    fn job(&self) -> (Job, f32) {
        (Job::Avg { counted: false }, 0.0)
    }

    fn run(&self, planes: &Planes, run: CpuRun<'_>) {
        let (x, len, last) = (run.ins[0], planes.input_len(), planes.rank() - 1);
        planes.each_output_row(run, |plane, o, _, out| {
            let x = &x[plane * len..(plane + 1) * len];
            let mut o = *o;
            for (i, out) in out.iter_mut().enumerate() {
                o[last] = i;
                let (start, cells) = (i * planes.input[last] / planes.output[last], planes.kernel(last, i));
                let mut sum = 0.0;
                planes.rows(&o, |row| {
                    let Some(row) = row else { return };
                    x[row + start..][..cells].iter().for_each(|v| sum += v);
                });
                *out = sum * inverse(planes.real(&o));
            }
        });
    }

    fn record_vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let x = r.meta(io.ins[0]).shape;
        let sizes = pooled(Self::NAME, &x, self.sizes.len())?.to_vec();
        Ok(vec![Some(r.record(AdaptiveAvgPoolBwd { sizes }.into(), &[dy])?)])
    }

    fn value<T: Scalar>(&self, planes: &Planes, ins: &[&[T]]) -> Vec<T> {
        averages(planes, ins[0], false)
    }

    fn cases() -> Vec<Sample<AdaptiveAvgPool>> {
        let one = |(x, sizes): &(&[usize], &[usize])| Sample {
            op: AdaptiveAvgPool { sizes: sizes.to_vec() },
            ins: vec![SampleIn::any(dims(x))],
        };
        ADAPTED.iter().map(one).collect()
    }

    fn drawn(stream: &mut Stream) -> Option<Sample<AdaptiveAvgPool>> {
        let (_, x, y) = random_window(stream)?;
        Some(Sample { op: AdaptiveAvgPool { sizes: y.dims()[1..].to_vec() }, ins: vec![SampleIn::any(x)] })
    }

    fn refused() -> Vec<Reject<AdaptiveAvgPool>> {
        let one = |(sizes, x, want)| Reject { op: AdaptiveAvgPool { sizes }, ins: vec![Meta::f32(x)], want };
        bad_sizes().into_iter().map(one).collect()
    }

    fn limit(&self) -> Bound {
        // A window may hold a whole plane, and its sum is one chain; the magnitude grows with it.
        Bound { ulps: 2.0, terms: 512.0 }
    }
}

impl AdaptiveAvgPoolBwd {
    fn linear_in(&self) -> Vec<Vec<usize>> {
        Vec::new()
    }

    fn check(&self, [dy]: &[Shape; 1]) -> Result<Shape> {
        adapted(Self::NAME, dy, &self.sizes)
    }

    fn planes(&self, dy: &Shape, out: &Shape) -> Planes {
        Planes::new(out, dy, self.sizes.len(), Cells::Adaptive)
    }

    fn job(&self) -> (Job, f32) {
        (Job::AvgBwd { counted: false }, 0.0)
    }

    fn run(&self, planes: &Planes, run: CpuRun<'_>) {
        let (dy, outputs, last) = (run.ins[0], planes.output_len(), planes.rank() - 1);
        planes.each_input_plane(run, |plane, out| {
            for i in 0..outputs {
                let o = coordinates(i, &planes.output);
                let g = dy[plane * outputs + i] * inverse(planes.real(&o));
                let start = o[last] * planes.input[last] / planes.output[last];
                let cells = planes.kernel(last, o[last]);
                planes.rows(&o, |row| {
                    let Some(row) = row else { return };
                    out[row + start..][..cells].iter_mut().for_each(|d| *d += g);
                });
            }
        });
    }

    fn record_vjp(&self, r: &mut dyn Recorder, io: Io<'_>, v: Val) -> Result<Vec<Option<Val>>> {
        let dy = r.meta(io.ins[0]).shape;
        let sizes = pooled(Self::NAME, &dy, self.sizes.len())?.to_vec();
        Ok(vec![Some(r.record(AdaptiveAvgPool { sizes }.into(), &[v])?)])
    }

    fn value<T: Scalar>(&self, planes: &Planes, ins: &[&[T]]) -> Vec<T> {
        spread(planes, ins[0], false)
    }

    fn cases() -> Vec<Sample<AdaptiveAvgPoolBwd>> {
        let one = |(x, sizes): &(&[usize], &[usize])| {
            let from = x[x.len() - sizes.len()..].to_vec();
            let dy = resized(&dims(x), sizes).unwrap_or_default();
            Sample { op: AdaptiveAvgPoolBwd { sizes: from }, ins: vec![SampleIn::any(dy)] }
        };
        ADAPTED.iter().map(one).collect()
    }

    fn drawn(stream: &mut Stream) -> Option<Sample<AdaptiveAvgPoolBwd>> {
        let (_, x, y) = random_window(stream)?;
        Some(Sample { op: AdaptiveAvgPoolBwd { sizes: x.dims()[1..].to_vec() }, ins: vec![SampleIn::any(y)] })
    }

    fn refused() -> Vec<Reject<AdaptiveAvgPoolBwd>> {
        let one =
            |(sizes, x, want)| Reject { op: AdaptiveAvgPoolBwd { sizes }, ins: vec![Meta::f32(x)], want };
        bad_sizes().into_iter().map(one).collect()
    }

    fn limit(&self) -> Bound {
        Bound { ulps: 2.0, terms: 512.0 }
    }
}

pool_op! {
    /// `ln(sum e^(beta v)) / beta` over each window, with the largest `beta v` taken out first. Padding takes part with
    /// value 0. It is not a mean: a constant window of `K` cells gives `c + ln(K) / beta`. A negative `beta` gives a smooth
    /// minimum.
    SmoothMaxPool "smooth_max_pool" 1 {
        /// The windows; padding is at most half of the kernel.
        window: Window = window_from(attrs, &["beta"]), Window::attrs;
        /// How sharp: finite and not 0.
        beta: f32 = attrs.num("beta").map(|b| b as f32), beta_attr;
    } attrs
}

pool_op! {
    /// Gradient of [`SmoothMaxPool`] from `x`, its value `y` and the upstream gradient: `dx = sum dy e^(beta (x - y))` over the
    /// windows that hold a cell.
    SmoothMaxPoolBwd "smooth_max_pool_bwd" 3 {
        /// The windows.
        window: Window = window_from(attrs, &["beta"]), Window::attrs;
        /// How sharp.
        beta: f32 = attrs.num("beta").map(|b| b as f32), beta_attr;
    } attrs
}

pool_op! {
    /// `sum v e^(beta (x - y))` over the real cells of each window, from `x, y, v`: the adjoint of [`SmoothMaxPoolBwd`].
    SmoothMaxPoolSum "smooth_max_pool_sum" 3 {
        /// The windows.
        window: Window = window_from(attrs, &["beta"]), Window::attrs;
        /// How sharp.
        beta: f32 = attrs.num("beta").map(|b| b as f32), beta_attr;
    } attrs
}

fn check_beta(op: &'static str, beta: f32) -> Result<()> {
    if beta.is_finite() && beta != 0.0 {
        return Ok(());
    }
    Err(Error::argument(op, "beta", format!("is {beta}, use a finite number other than 0")))
}

/// What is done with cells a stride apart and the outputs they belong to.
type Visit<'f> = &'f mut dyn FnMut(&[f32], usize, std::ops::Range<usize>);

/// Numbers whose exponentials stay finite.
fn tame(shape: Shape) -> SampleIn {
    SampleIn::Num(shape, (-2.0, 2.5))
}

fn betas() -> impl Iterator<Item = f32> {
    [2.0, 0.5, -2.0, 1.0].into_iter().cycle()
}

impl SmoothMaxPool {
    fn linear_in(&self) -> Vec<Vec<usize>> {
        Vec::new()
    }

    fn check(&self, [x]: &[Shape; 1]) -> Result<Shape> {
        check_beta(Self::NAME, self.beta)?;
        windowed(Self::NAME, &self.window, x, false)
    }

    fn planes(&self, x: &Shape, out: &Shape) -> Planes {
        Planes::new(x, out, self.window.kernel.len(), Cells::Fixed(self.window.clone()))
    }

    fn job(&self) -> (Job, f32) {
        (Job::Smooth, self.beta)
    }

    fn run(&self, planes: &Planes, run: CpuRun<'_>) {
        let (simd, x, len, beta) = (run.simd, run.ins[0], planes.input_len(), self.beta);
        let ((stride, kernel), width) = (planes.last(), planes.output[planes.rank() - 1]);
        planes.each_output_row(run, |plane, o, _, out| {
            let x = &x[plane * len..(plane + 1) * len];
            let mut scratch = Scratch::take(2 * width);
            let (m, zeros) = scratch.words()[..2 * width].split_at_mut(width);
            m.fill(f32::NEG_INFINITY);
            zeros.fill(0.0);
            // Each cell of the kernel: real ones for a range of outputs, padding around it.
            let each = |f: Visit<'_>| {
                planes.rows(o, |row| {
                    for k in 0..kernel {
                        let (range, first) = match row {
                            Some(_) => planes.span(k),
                            None => (0..0, 0),
                        };
                        f(zeros, 1, 0..range.start);
                        if let Some(row) = row.filter(|_| !range.is_empty()) {
                            f(&x[row + first..], stride, range.clone());
                        }
                        f(zeros, 1, range.end..width);
                    }
                });
            };
            each(&mut |x, stride, range| largest_step(simd, beta, x, stride, &mut m[range]));
            shift_row(simd, m);
            out.fill(0.0);
            each(&mut |x, stride, range| {
                term_step(simd, beta, x, stride, &m[range.clone()], &mut out[range]);
            });
            smooth_row(simd, beta, m, out);
        });
    }

    fn record_vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let op = SmoothMaxPoolBwd { window: self.window.clone(), beta: self.beta };
        Ok(vec![Some(r.record(op.into(), &[io.ins[0], io.out, dy])?)])
    }

    fn value<T: Scalar>(&self, planes: &Planes, ins: &[&[T]]) -> Vec<T> {
        let beta = T::from_f32(self.beta);
        let one = |o: usize| {
            let window = planes.window(o);
            let values: Vec<T> = window.iter().map(|i| beta * i.map_or(T::c(0.0), |i| ins[0][i])).collect();
            let m = values.iter().copied().fold(values[0], |m, v| if v > m { v } else { m });
            let s = values.iter().fold(T::c(0.0), |s, &v| s + (v - m).exp());
            (m + s.log()) / beta
        };
        (0..planes.output_len()).map(one).collect()
    }

    fn cases() -> Vec<Sample<SmoothMaxPool>> {
        let one = |((window, x, _), beta)| Sample { op: SmoothMaxPool { window, beta }, ins: vec![tame(x)] };
        windows(false).zip(betas()).map(one).collect()
    }

    fn drawn(stream: &mut Stream) -> Option<Sample<SmoothMaxPool>> {
        let (window, x, _) = random_window(stream)?;
        Some(Sample { op: SmoothMaxPool { window, beta: 2.0 }, ins: vec![tame(x)] })
    }

    fn refused() -> Vec<Reject<SmoothMaxPool>> {
        let one = |(window, x, want)| Reject {
            op: SmoothMaxPool { window, beta: 1.0 },
            ins: vec![Meta::f32(x)],
            want,
        };
        let mut bad: Vec<_> = bad_windows().into_iter().map(one).collect();
        for beta in [0.0, -0.0, f32::INFINITY, f32::NAN] {
            let op = SmoothMaxPool { window: Window::new(&[2], &[2], &[0]), beta };
            bad.push(Reject { op, ins: vec![Meta::f32(dims(&[4]))], want: "Argument" });
        }
        bad
    }

    fn limit(&self) -> Bound {
        Bound { ulps: 4.0, terms: 12.0 + self.window.cells() as f64 }
    }
}

/// Records a formula of two values of one shape.
fn product(r: &mut dyn Recorder, a: Val, b: Val, factor: f32) -> Result<Val> {
    let program = Program::trace(2, |v| vec![(v[0] * v[1]) * Real::c(f64::from(factor))]);
    let shape = r.meta(a).shape;
    record_program(r, &program, shape, &[a, b])
}

impl SmoothMaxPoolBwd {
    fn linear_in(&self) -> Vec<Vec<usize>> {
        Vec::new()
    }

    fn check(&self, shapes: &[Shape; 3]) -> Result<Shape> {
        check_beta(Self::NAME, self.beta)?;
        triple(Self::NAME, &self.window, shapes, false)
    }

    fn planes(&self, x: &Shape, _out: &Shape) -> Planes {
        let out = windowed(Self::NAME, &self.window, x, false).unwrap_or(*x);
        Planes::new(x, &out, self.window.kernel.len(), Cells::Fixed(self.window.clone()))
    }

    fn job(&self) -> (Job, f32) {
        (Job::SmoothBwd, self.beta)
    }

    fn run(&self, planes: &Planes, run: CpuRun<'_>) {
        let (simd, beta) = (run.simd, self.beta);
        let (x, y, dy) = (run.ins[0], run.ins[1], run.ins[2]);
        let (len, outputs) = (planes.input_len(), planes.output_len());
        let ((stride, kernel), width) = (planes.last(), planes.output[planes.rank() - 1]);
        planes.each_input_plane(run, |plane, out| {
            let x = &x[plane * len..(plane + 1) * len];
            planes.each_row_of_plane(|o, at| {
                let at = plane * outputs + at;
                let (y, dy) = (&y[at..at + width], &dy[at..at + width]);
                planes.rows(o, |row| {
                    let Some(row) = row else { return };
                    for k in (0..kernel).rev() {
                        let (range, first) = planes.span(k);
                        if !range.is_empty() {
                            let (x, out) = (&x[row + first..], &mut out[row + first..]);
                            spread_step(simd, beta, x, stride, &y[range.clone()], &dy[range], out);
                        }
                    }
                });
            });
        });
    }

    fn record_vjp(&self, r: &mut dyn Recorder, io: Io<'_>, v: Val) -> Result<Vec<Option<Val>>> {
        // With f = sum dy e^(beta (x - y)) and S = sum v e^(beta (x - y)): by x it is beta v f, by y -beta dy S, by dy S.
        let op = SmoothMaxPoolSum { window: self.window.clone(), beta: self.beta };
        let by_dy = r.record(op.into(), &[io.ins[0], io.ins[1], v])?;
        let by_x = product(r, v, io.out, self.beta)?;
        let by_y = product(r, io.ins[2], by_dy, -self.beta)?;
        Ok(vec![Some(by_x), Some(by_y), Some(by_dy)])
    }

    fn value<T: Scalar>(&self, planes: &Planes, ins: &[&[T]]) -> Vec<T> {
        let beta = T::from_f32(self.beta);
        let mut out = vec![T::c(0.0); planes.input_len()];
        for o in 0..planes.output_len() {
            for i in planes.window(o).into_iter().flatten() {
                out[i] = out[i] + ins[2][o] * (beta * (ins[0][i] - ins[1][o])).exp();
            }
        }
        out
    }

    fn cases() -> Vec<Sample<SmoothMaxPoolBwd>> {
        let one = |((window, x, y), beta)| Sample {
            op: SmoothMaxPoolBwd { window, beta },
            ins: vec![tame(x), tame(y), tame(y)],
        };
        windows(false).zip(betas()).map(one).collect()
    }

    fn drawn(stream: &mut Stream) -> Option<Sample<SmoothMaxPoolBwd>> {
        let (window, x, y) = random_window(stream)?;
        let op = SmoothMaxPoolBwd { window, beta: 1.0 };
        Some(Sample { op, ins: vec![tame(x), tame(y), tame(y)] })
    }

    fn refused() -> Vec<Reject<SmoothMaxPoolBwd>> {
        let one = |(window, ins, want): (Window, [Shape; 3], _)| Reject {
            op: SmoothMaxPoolBwd { window, beta: 1.0 },
            ins: ins.map(Meta::f32).to_vec(),
            want,
        };
        bad_triples().into_iter().map(one).collect()
    }

    fn limit(&self) -> Bound {
        Bound { ulps: 4.0, terms: 8.0 + self.window.cells() as f64 }
    }
}

impl SmoothMaxPoolSum {
    fn linear_in(&self) -> Vec<Vec<usize>> {
        Vec::new()
    }

    fn check(&self, shapes: &[Shape; 3]) -> Result<Shape> {
        check_beta(Self::NAME, self.beta)?;
        triple(Self::NAME, &self.window, shapes, true)
    }

    fn planes(&self, x: &Shape, out: &Shape) -> Planes {
        Planes::new(x, out, self.window.kernel.len(), Cells::Fixed(self.window.clone()))
    }

    fn job(&self) -> (Job, f32) {
        (Job::SmoothSum, self.beta)
    }

    fn run(&self, planes: &Planes, run: CpuRun<'_>) {
        let (simd, beta, len) = (run.simd, self.beta, planes.input_len());
        let (x, y, v) = (run.ins[0], run.ins[1], run.ins[2]);
        let (stride, kernel) = planes.last();
        planes.each_output_row(run, |plane, o, at, out| {
            let cells = plane * len..(plane + 1) * len;
            let (x, v) = (&x[cells.clone()], &v[cells]);
            out.fill(0.0);
            planes.rows(o, |row| {
                let Some(row) = row else { return };
                for k in 0..kernel {
                    let (range, first) = planes.span(k);
                    if !range.is_empty() {
                        let y = &y[at + range.start..at + range.end];
                        let from = row + first;
                        weigh_step(simd, beta, &x[from..], &v[from..], stride, y, &mut out[range]);
                    }
                }
            });
        });
    }

    fn record_vjp(&self, r: &mut dyn Recorder, io: Io<'_>, u: Val) -> Result<Vec<Option<Val>>> {
        // With S = sum v e^(beta (x - y)) and B = sum u e^(beta (x - y)): by v it is B, by x beta v B, by y -beta u S.
        let op = SmoothMaxPoolBwd { window: self.window.clone(), beta: self.beta };
        let by_v = r.record(op.into(), &[io.ins[0], io.ins[1], u])?;
        let by_x = product(r, io.ins[2], by_v, self.beta)?;
        let by_y = product(r, u, io.out, -self.beta)?;
        Ok(vec![Some(by_x), Some(by_y), Some(by_v)])
    }

    fn value<T: Scalar>(&self, planes: &Planes, ins: &[&[T]]) -> Vec<T> {
        let beta = T::from_f32(self.beta);
        let one = |o: usize| {
            planes
                .window(o)
                .into_iter()
                .flatten()
                .fold(T::c(0.0), |s, i| s + ins[2][i] * (beta * (ins[0][i] - ins[1][o])).exp())
        };
        (0..planes.output_len()).map(one).collect()
    }

    fn cases() -> Vec<Sample<SmoothMaxPoolSum>> {
        let one = |((window, x, y), beta)| Sample {
            op: SmoothMaxPoolSum { window, beta },
            ins: vec![tame(x), tame(y), tame(x)],
        };
        windows(false).zip(betas()).map(one).collect()
    }

    fn drawn(stream: &mut Stream) -> Option<Sample<SmoothMaxPoolSum>> {
        let (window, x, y) = random_window(stream)?;
        let op = SmoothMaxPoolSum { window, beta: 1.0 };
        Some(Sample { op, ins: vec![tame(x), tame(y), tame(x)] })
    }

    fn refused() -> Vec<Reject<SmoothMaxPoolSum>> {
        let one = |(window, ins, want): (Window, [Shape; 3], _)| Reject {
            op: SmoothMaxPoolSum { window, beta: 1.0 },
            ins: ins.map(Meta::f32).to_vec(),
            want,
        };
        bad_triples().into_iter().map(one).collect()
    }

    fn limit(&self) -> Bound {
        Bound { ulps: 4.0, terms: 8.0 + self.window.cells() as f64 }
    }
}
