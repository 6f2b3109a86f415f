//! Adding rows of sources to rows of a value, or combining them otherwise, in increasing source order.

use super::{Layout, MIN_WORDS_PER_TASK, sort};
use crate::pointwise::expression::Scratch;
use crate::pointwise::map::grid;
use crate::{CudaRun, mismatch, typed};
use dittograd_device::cpu::simd::{Simd, simd_fn};
use dittograd_device::cpu::threads::Pool;
use dittograd_device::cuda::{Args, Source};
use dittograd_device::{Backend, DType, Device, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::ordered;
use dittograd_numerics::shape::Shape;
use std::hint::select_unpredictable;

simd_fn! {
    /// `y += x`.
    fn add_to(simd, y: &mut [f32], x: &[f32]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y += x;
        }
    }
}

/// How a source is combined with what is at its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Combine {
    /// Added.
    Sum,
    /// Multiplied.
    Prod,
    /// The larger one: +0 is above -0, and NaN is above everything.
    Amax,
    /// The smaller one: -0 is below +0, and NaN is below everything.
    Amin,
}

/// A word that orders as the numbers do: -0 is below +0, NaN above everything.
#[inline(always)]
fn key(x: f32) -> u32 {
    if x.is_nan() { u32::MAX } else { ordered(x) }
}

/// The larger of two numbers by [`key`].
#[inline(always)]
pub(super) fn larger(y: f32, x: f32) -> f32 {
    if y < x || x < y {
        return select_unpredictable(y < x, x, y);
    }
    // Equal numbers, zeros of either sign, or NaN.
    if key(x) > key(y) { x } else { y }
}

/// The smaller of two numbers; NaN is the smallest.
#[inline(always)]
pub(super) fn smaller(y: f32, x: f32) -> f32 {
    -larger(-y, -x)
}

/// Scatter-add of rows on the CPU: `count` sources of `inner` words for every outer position. Source `s` is added to
/// row `row(s)` of `rows`, or dropped if that is out of range.
pub(super) struct Add<'a, F> {
    pub(super) outer: usize,
    pub(super) rows: usize,
    pub(super) count: usize,
    pub(super) inner: usize,
    pub(super) src: &'a [f32],
    pub(super) base: Option<&'a [f32]>,
    pub(super) combine: Combine,
    pub(super) row: F,
}

impl<F: Fn(usize) -> usize + Sync> Add<'_, F> {
    /// Computes rows `first..` of outer position `o`. `sources` are given in increasing order.
    fn rows(
        &self,
        simd: Simd,
        o: usize,
        first: usize,
        out: &mut [f32],
        sources: impl Iterator<Item = usize>,
    ) {
        match self.base {
            Some(base) => out.copy_from_slice(&base[(o * self.rows + first) * self.inner..][..out.len()]),
            None => out.fill(0.0),
        }
        match self.combine {
            Combine::Sum => {}
            Combine::Prod => return self.fold(o, first, out, sources, |y, x| y * x),
            Combine::Amax => return self.fold(o, first, out, sources, larger),
            Combine::Amin => return self.fold(o, first, out, sources, smaller),
        }
        for s in sources {
            let (to, from) = ((self.row)(s), (o * self.count + s) * self.inner);
            if to >= self.rows {
                continue;
            }
            let to = (to - first) * self.inner;
            if self.inner == 1 {
                out[to] += self.src[from];
            } else {
                add_to(simd, &mut out[to..to + self.inner], &self.src[from..from + self.inner]);
            }
        }
    }

    /// Combines sources with rows `first..` of outer position `o`, element by element.
    fn fold(
        &self,
        o: usize,
        first: usize,
        out: &mut [f32],
        sources: impl Iterator<Item = usize>,
        f: impl Fn(f32, f32) -> f32,
    ) {
        for s in sources {
            let (to, from) = ((self.row)(s), (o * self.count + s) * self.inner);
            if to < self.rows {
                let (to, src) = ((to - first) * self.inner, &self.src[from..from + self.inner]);
                out[to..to + self.inner].iter_mut().zip(src).for_each(|(y, x)| *y = f(*y, *x));
            }
        }
    }

    /// Computes `out`. `lists` has a word per source.
    pub(super) fn run(&self, pool: &Pool, simd: Simd, out: &mut [f32], lists: &mut [u32]) {
        let words = self.rows * self.inner;
        if words == 0 {
            return;
        }
        let each = words + self.count * self.inner;
        if self.outer >= 4 * pool.threads() || each <= MIN_WORDS_PER_TASK {
            let per = pool.share(self.outer, (MIN_WORDS_PER_TASK / each).max(1), 1);
            return pool.chunks_mut(out, per * words, |task, out| {
                for (o, out) in out.chunks_mut(words).enumerate() {
                    self.rows(simd, task * per + o, 0, out, 0..self.count);
                }
            });
        }
        // Each task owns a range of rows and gets the ordered list of its sources.
        let per = pool.share(self.rows, (MIN_WORDS_PER_TASK / self.inner).max(1), 1);
        let runs = self.rows.div_ceil(per);
        let mut scratch = Scratch::take(2 * (runs + 1));
        let (ends, rest) = scratch.words().split_at_mut(runs + 1);
        let ends: &mut [u32] = bytemuck::cast_slice_mut(ends);
        let starts: &mut [u32] = bytemuck::cast_slice_mut(&mut rest[..runs + 1]);
        ends.fill(0);
        for s in 0..self.count {
            let to = (self.row)(s);
            if to < self.rows {
                ends[to / per + 1] += 1;
            }
        }
        for r in 0..runs {
            ends[r + 1] += ends[r];
        }
        starts.copy_from_slice(ends);
        for s in 0..self.count {
            let to = (self.row)(s);
            if to < self.rows {
                let next = &mut ends[to / per];
                lists[*next as usize] = s as u32;
                *next += 1;
            }
        }
        let (lists, starts) = (&*lists, &*starts);
        for (o, out) in out.chunks_mut(words).enumerate() {
            pool.chunks_mut(out, per * self.inner, |r, out| {
                let sources = lists[starts[r] as usize..starts[r + 1] as usize].iter().map(|&s| s as usize);
                self.rows(simd, o, r * per, out, sources);
            });
        }
    }
}

/// Words of workspace for adding `count` sources, on either device.
pub(super) fn add_workspace(count: usize, device: &Device) -> usize {
    match device.backend() {
        Backend::Cpu(_) | Backend::Host(_) => count,
        Backend::Cuda(_) => 2 * sort::aligned(count) + sort::workspace(1, count),
    }
}

/// Queues the addition of `sources` rows of `l.inner` words (for each of `l.outer`) to `rows` rows. The layout `at`
/// says how to find the row of a source from its index. With the module of products, they are multiplied instead.
pub(super) fn add_cuda(run: &CudaRun<'_>, l: &Layout, at: &Layout, (name, source): Source) -> Result<()> {
    let (sources, rows) = (l.count, l.size);
    if run.shape.numel() == 0 {
        return Ok(());
    }
    let (mut keys, order) = (run.workspace, run.workspace + sort::aligned(sources) as u64 * 4);
    if sources > 0 {
        let kernel = run.cuda.kernel(&name, source, "add_keys")?;
        let mut args = Args::new();
        args.ptr(run.ins[1]).ptr(keys).u64(sources as u64);
        args.u64(at.size as u64).u64(at.count as u64).u64(at.inner as u64).u32(rows as u32);
        run.cuda.launch(kernel, grid(run.cuda, sources), 256, 0, &args)?;
        let bits = u32::BITS - (rows as u32).leading_zeros();
        let scratch = run.workspace + 2 * sort::aligned(sources) as u64 * 4;
        keys = sort::launch(run.cuda, keys, (1, sources), bits, scratch, order)?;
    }
    let width = l.width();
    let inner = l.inner / width;
    // A block takes up to 4096 columns, or more if the grid would have too many pieces. If there are too few elements
    // to keep the GPU busy, the long chains of additions dominate: then a block takes 32 columns of one row.
    let few = rows * inner * l.outer < run.cuda.sm_count() as usize * 2048;
    let wide = inner.min(if few { 32 } else { 4096 }.max(inner.div_ceil(65_535)));
    let per = if few { 1 } else { (3072 / wide).clamp(1, 256) };
    let kernel = run.cuda.kernel(&name, source, &format!("add_rows{width}"))?;
    let mut args = Args::new();
    args.ptr(run.ins[0]).ptr(keys).ptr(order).ptr(run.ins.get(2).copied().unwrap_or(0)).ptr(run.out);
    args.u32(sources as u32)
        .u32(rows as u32)
        .u64(inner as u64)
        .u64(l.outer as u64)
        .u32(per as u32)
        .u32(wide as u32);
    let blocks = [rows.div_ceil(per), l.outer.min(65_535), inner.div_ceil(wide)];
    run.cuda.launch(kernel, blocks.map(|n| n as u32), 256, 0, &args)
}

/// With so many lists of single elements, a warp for each keeps a GPU busy.
const MIN_SHARED_LISTS: usize = 512;

/// The most elements of such a list, which lies in shared memory.
const MAX_SHARED_LIST: usize = 4096;

/// Shared memory of a block of such warps, at most.
const SHARED_WORDS: usize = 12 * 1024;

/// Whether a warp has a list in shared memory.
pub(super) fn fits_shared(l: &Layout) -> bool {
    let counts = [l.outer, l.count].iter().all(|&n| n < u32::MAX as usize);
    l.inner == 1 && counts && l.outer >= MIN_SHARED_LISTS && (1..=MAX_SHARED_LIST).contains(&l.size)
}

/// Adds sources one after another without sorting them: a thread has a column, or a warp a list in shared memory.
pub(super) fn add_in_turn(run: &CudaRun<'_>, l: &Layout, (name, source): Source) -> Result<()> {
    let words = run.shape.numel();
    if words == 0 {
        return Ok(());
    }
    let base = run.ins.get(2).copied();
    if fits_shared(l) {
        let kernel = run.cuda.kernel(&name, source, "add_shared")?;
        let mut args = Args::new();
        args.ptr(run.ins[0]).ptr(run.ins[1]).ptr(base.unwrap_or(0)).ptr(run.out);
        let bits = usize::BITS - (l.size - 1).leading_zeros();
        args.u32(l.outer as u32).u32(l.size as u32).u32(l.count as u32).u32(bits);
        let warps = (SHARED_WORDS / l.size).clamp(1, 8);
        let blocks = l.outer.div_ceil(warps).min(1 << 20) as u32;
        let (threads, bytes) = (32 * warps as u32, 4 * (warps * l.size) as u32);
        return run.cuda.launch(kernel, [blocks, 1, 1], threads, bytes, &args);
    }
    match base {
        Some(base) => run.cuda.copy(run.out, base, words * 4)?,
        None => run.cuda.fill(run.out, 0, words)?,
    }
    let columns = l.outer * l.inner;
    let kernel = run.cuda.kernel(&name, source, "add_columns")?;
    let mut args = Args::new();
    args.ptr(run.ins[0]).ptr(run.ins[1]).ptr(run.out).u64(columns as u64);
    args.u64(l.size as u64).u64(l.count as u64).u64(l.inner as u64);
    run.cuda.launch(kernel, grid(run.cuda, columns), 256, 0, &args)
}

/// Checks the optional base, and that the number of sources fits in 32 bits.
pub(super) fn added(op: &'static str, ins: &[Meta], shape: Shape, count: usize) -> Result<Meta> {
    if let Some(base) = ins.get(2) {
        typed(op, ins, 2, DType::F32)?;
        if base.shape != shape {
            return Err(mismatch(op, "the base must have the shape of the result", base.shape, shape));
        }
    }
    if count >= u32::MAX as usize {
        return Err(Error::argument(
            op,
            "index",
            format!("{count} elements to add are too many, split them"),
        ));
    }
    Ok(Meta::f32(shape))
}

pub(super) fn two_or_three(op: &'static str, ins: &[Meta]) -> Result<()> {
    if ins.len() != 2 && ins.len() != 3 {
        return Err(Error::new(op, ErrorKind::Arity { want: 2, got: ins.len() }));
    }
    typed(op, ins, 0, DType::F32)?;
    typed(op, ins, 1, DType::U32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every pair of some numbers, signed zeros and NaNs gives the bits that the order of keys gives.
    #[test]
    fn extremes_follow_keys() {
        let all = [0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, f32::MAX, f32::INFINITY, -f32::INFINITY];
        let all = all.into_iter().chain([0x7fc0_0000, 0xffc0_0001, 0x7fc0_0002].map(f32::from_bits));
        for y in all.clone() {
            for x in all.clone() {
                let most = if key(x) > key(y) { x } else { y };
                assert_eq!(larger(y, x).to_bits(), most.to_bits(), "{y} {x}");
                let least = if key(-x) > key(-y) { x } else { y };
                assert_eq!(smaller(y, x).to_bits(), least.to_bits(), "{y} {x}");
            }
        }
    }
}
