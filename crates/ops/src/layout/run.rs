//! Strided copies along an axis, shared by slices, pads and concatenations.

use super::permute::PERMUTE_CU;
use crate::CudaRun;
use crate::pointwise::map;
use dittograd_device::cuda::Args;
use dittograd_numerics::error::Result;
use dittograd_numerics::shape::Shape;

/// A strided run along one axis of a value seen as (outer, axis, inner). The long side has `size` elements along the
/// axis. The short side has the `len` of them at `start`, `start + step`, ….
#[derive(Clone, Copy)]
pub(super) struct Run {
    pub(super) outer: usize,
    pub(super) size: usize,
    pub(super) inner: usize,
    pub(super) start: usize,
    pub(super) len: usize,
    pub(super) step: usize,
}

impl Run {
    pub(super) fn new(long: &Shape, axis: usize, start: usize, len: usize, step: usize) -> Run {
        let d = long.dims();
        let (outer, inner) = (d[..axis].iter().product(), d[axis + 1..].iter().product());
        Run { outer, size: d[axis], inner, start, len, step }
    }

    /// Words per outer position: of the long side, and of the short side.
    pub(super) fn words(&self) -> (usize, usize) {
        (self.size * self.inner, self.len * self.inner)
    }

    /// Calls `pair(at_long, at_short, words)` for each contiguous piece of one outer position.
    pub(super) fn copy(&self, mut pair: impl FnMut(usize, usize, usize)) {
        if self.step == 1 {
            return pair(self.start * self.inner, 0, self.len * self.inner);
        }
        for j in 0..self.len {
            pair((self.start + j * self.step) * self.inner, j * self.inner, self.inner);
        }
    }

    /// Launches the kernel `name`. Elements are vectors of four words where all sizes are divisible by four.
    pub(super) fn launch(&self, run: &CudaRun<'_>, name: &str, value: Option<f32>) -> Result<()> {
        let total = run.shape.numel();
        if total == 0 {
            return Ok(());
        }
        let mut r = *self;
        if r.step == 1 {
            // The run is contiguous, so inner words count as elements of the axis.
            r = Run { size: r.size * r.inner, start: r.start * r.inner, len: r.len * r.inner, inner: 1, ..r };
        }
        let divides = |n: usize| n.is_multiple_of(4);
        let vector = if r.step == 1 {
            divides(r.size) && divides(r.start) && divides(r.len)
        } else {
            divides(r.inner)
        };
        let width = if vector { 4 } else { 1 };
        if r.step == 1 {
            r = Run { size: r.size / width, start: r.start / width, len: r.len / width, ..r };
        } else {
            r.inner /= width;
        }
        let kernel = run.cuda.kernel("layout", PERMUTE_CU, &format!("{name}{width}"))?;
        let mut args = Args::new();
        args.ptr(run.ins[0]).ptr(run.out).u64((total / width) as u64);
        for n in [r.size, r.inner, r.start, r.len, r.step] {
            args.u64(n as u64);
        }
        if let Some(value) = value {
            args.f32(value);
        }
        run.cuda.launch(kernel, map::grid(run.cuda, total / width), 256, 0, &args)
    }
}

/// The fewest words that a copy task of the thread pool takes.
pub(super) const MIN_WORDS_PER_COPY_TASK: usize = 32 * 1024;
