//! Copies of runs along an axis: what slices, pads and concatenations share.

use super::permute::PERMUTE_CU;
use crate::CudaRun;
use crate::pointwise::map;
use dittograd_device::cuda::Args;
use dittograd_numerics::error::Result;
use dittograd_numerics::shape::Shape;

/// A run along one axis of a value seen as (outer, axis, inner): `size` elements of the axis on the long
/// side, and the `len` of them at `start`, `start + step`, … on the short side.
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

    /// Words of the long side, and of the short side, that belong to one position of the outer axes.
    pub(super) fn words(&self) -> (usize, usize) {
        (self.size * self.inner, self.len * self.inner)
    }

    /// Copies the short side of one outer position out of the long side, or into it.
    pub(super) fn copy(&self, mut pair: impl FnMut(usize, usize, usize)) {
        if self.step == 1 {
            return pair(self.start * self.inner, 0, self.len * self.inner);
        }
        for j in 0..self.len {
            pair((self.start + j * self.step) * self.inner, j * self.inner, self.inner);
        }
    }

    /// The kernel of `name` with its arguments; elements are vectors of four where everything divides.
    pub(super) fn launch(&self, run: &CudaRun<'_>, name: &str, value: Option<f32>) -> Result<()> {
        let total = run.shape.numel();
        if total == 0 {
            return Ok(());
        }
        let mut r = *self;
        if r.step == 1 {
            // One run: its words are elements of the axis.
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

/// The fewest words a task of the copies takes.
pub(super) const MIN_WORDS_PER_COPY_TASK: usize = 32 * 1024;
