//! Folds: a formula of the elements, folded over a set of axes by a sum, a maximum or a minimum, then a
//! formula of the result; several such stages, where later ones may use the results of earlier ones. Sums,
//! means, norms, variances, log-sum-exp and all losses that are a formula summed up are folds, on both
//! devices, from the same little programs.
//!
//! Neighbouring axes are folded as one. Several groups of axes are folded one after the other, the last group
//! first; sums use the row rule for a group that ends the shape and the column rule for any other. Stages
//! over the last axes read a row once and fold it again out of cache, registers or shared memory.

mod cpu;
mod cuda;
#[cfg(test)]
mod tests;

use crate::Kernel;
use crate::pointwise::expression::{Expr, Pointwise, Reg, Registers, Scratch};
pub(crate) use cpu::chunk_sum;
use cpu::each_alone;
use dittograd_device::Device;
use dittograd_numerics::shape::{MAX_RANK, Shape};
use dittograd_numerics::sum::{CHUNK, ROWS};
use std::array::from_fn;

/// How elements are put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// By the sum trees.
    Sum,
    /// By the same trees, multiplied.
    Product,
    /// The largest, NaN if one is; -inf for none, never -0.
    Max,
    /// The smallest, NaN if one is; +inf for none, never -0.
    Min,
}

/// One fold over all elements.
#[derive(Clone, Debug)]
pub struct Stage {
    /// How.
    pub kind: Kind,
    /// The element, from the inputs there, then what is given per result: further inputs, and the results
    /// of earlier stages.
    pub load: Pointwise,
    /// The result, from what was folded, then what is given per result.
    pub post: Pointwise,
}

/// Stages that are run one after the other; the value is the result of the last one.
#[derive(Clone, Debug)]
pub struct Fold {
    /// Number of inputs that have all elements.
    pub ins: usize,
    /// Number of inputs that have one element per result.
    pub aux: usize,
    /// The stages, at least one.
    pub stages: Vec<Stage>,
}

/// One pass of a fold: a value of shape (outer, rows, inner) folded over `rows`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pass {
    pub outer: usize,
    pub rows: usize,
    pub inner: usize,
}

impl Pass {
    fn results(self) -> usize {
        self.outer * self.inner
    }
}

/// The passes of a fold, in order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passes {
    all: [Pass; MAX_RANK],
    len: usize,
}

impl std::ops::Deref for Passes {
    type Target = [Pass];

    fn deref(&self) -> &[Pass] {
        &self.all[..self.len]
    }
}

/// The passes that fold `shape` over `axes`.
pub(crate) fn passes(shape: &Shape, axes: &[usize]) -> Passes {
    let reduced = |a: usize| axes.contains(&a);
    let mut passes = Passes { all: [Pass { outer: 0, rows: 0, inner: 0 }; MAX_RANK], len: 0 };
    let (mut inner, mut axis) = (1, shape.rank());
    while axis > 0 {
        let d = shape.dims()[axis - 1];
        if !reduced(axis - 1) {
            inner *= d;
            axis -= 1;
            continue;
        }
        let mut rows = 1;
        while axis > 0 && reduced(axis - 1) {
            rows *= shape.dims()[axis - 1];
            axis -= 1;
        }
        passes.all[passes.len] = Pass { outer: shape.dims()[..axis].iter().product(), rows, inner };
        passes.len += 1;
    }
    passes
}

/// The shape with every axis of `axes` made 1.
#[doc(hidden)]
pub fn kept(shape: &Shape, axes: &[usize]) -> Shape {
    let mut dims = [1; MAX_RANK];
    for (a, d) in shape.dims().iter().enumerate().filter(|(a, _)| !axes.contains(a)) {
        dims[a] = *d;
    }
    crate::dims(&dims[..shape.rank()])
}

/// Whether a program is just its first input.
fn is_plain(program: &Pointwise) -> bool {
    program.result() == Reg::In(0)
}

/// Computes elements, up to a chunk at a time.
struct Elements<'a> {
    load: Option<Registers<'a>>,
    block: usize,
    ins: usize,
    /// A chunk of elements, then a chunk of each value that is given per result.
    words: Scratch,
}

impl<'a> Elements<'a> {
    /// Room for what is given per result, spread over elements.
    fn given(&mut self, i: usize) -> &mut [f32] {
        &mut self.words.words()[(1 + i) * CHUNK..(2 + i) * CHUNK]
    }
}

/// Words of the regions of workspace that a fold needs, each a multiple of four.
struct Regions {
    /// The results of one stage.
    results: usize,
    /// What is left between two passes.
    between: usize,
    /// What is given, spread over the results of the first pass.
    spread: usize,
    /// What one pass needs for itself.
    own: usize,
}

fn aligned(words: usize) -> usize {
    words.next_multiple_of(4)
}

impl Regions {
    fn of(passes: &[Pass], device_is_cuda: bool) -> Regions {
        let own = passes.iter().map(|p| if device_is_cuda { cuda_levels(*p) } else { cpu_scratch(*p) });
        let several = passes.len() > 1;
        let results = |p: &Pass| aligned(p.results());
        Regions {
            results: passes.last().map_or(0, results),
            between: passes.iter().rev().skip(1).map(results).max().unwrap_or(0),
            spread: passes.first().filter(|_| several).map_or(0, results),
            own: aligned(own.max().unwrap_or(0)),
        }
    }
}

fn cpu_scratch(pass: Pass) -> usize {
    match pass {
        Pass { outer: 2.., .. } => 0,
        Pass { inner: 1, rows, .. } => rows.div_ceil(CHUNK),
        _ => cuda_levels(pass),
    }
}

/// Words that the levels of a pass take on CUDA.
fn cuda_levels(pass: Pass) -> usize {
    let unit = if pass.inner == 1 { CHUNK } else { ROWS * ROWS };
    let (mut rows, mut words) = (pass.rows, 0);
    while rows > unit {
        rows = rows.div_ceil(unit);
        words += rows * pass.results();
    }
    words
}

impl Fold {
    /// One stage over `ins` inputs, each element `load`, the result `post` of what was folded.
    pub(crate) fn new(ins: usize, kind: Kind, load: Pointwise, post: Pointwise) -> Fold {
        Fold { ins, aux: 0, stages: vec![Stage { kind, load, post }] }
    }

    /// The sum of plain elements.
    pub(crate) fn sum() -> Fold {
        let first = || Pointwise::same(1);
        Fold::new(1, Kind::Sum, first(), first())
    }

    /// Whether all its programs fit the registers there are.
    pub(crate) fn fits(&self) -> bool {
        self.stages.iter().all(|s| s.load.fits() && s.post.fits())
    }

    /// Words of workspace on a device.
    pub(crate) fn workspace(&self, shape: &Shape, axes: &[usize], device: &Device) -> usize {
        let regions = Regions::of(&passes(shape, axes), device.is_cuda());
        let given = self.aux + self.stages.len() - 1;
        (self.stages.len() - 1) * regions.results + 2 * regions.between + given * regions.spread + regions.own
    }

    /// A fold over no axes: each element is folded alone.
    fn pointwise(&self) -> Pointwise {
        Pointwise::trace(self.ins + self.aux, |x| {
            let (ins, mut given) = (&x[..self.ins], x[self.ins..].to_vec());
            let mut result: Vec<Expr> = Vec::new();
            for stage in &self.stages {
                let folded = stage.load.eval(&[ins, &given].concat());
                result = stage.post.eval(&[&folded, &given[..]].concat());
                given.push(result[0]);
            }
            result
        })
    }

    /// The results' shape with what the first pass folds still there, for spreading what is given.
    fn spread_shapes(shape: &Shape, axes: &[usize]) -> (Shape, Shape) {
        let last = (0..shape.rank()).rev().find(|a| axes.contains(a)).unwrap_or(0);
        let first = (0..=last).rev().take_while(|a| axes.contains(a)).last().unwrap_or(0);
        let group: [usize; MAX_RANK] = from_fn(|a| (first + a).min(last));
        (kept(shape, axes), kept(shape, &group))
    }

    /// [`Fold::run_cpu`], for many runs.
    pub(crate) fn prepared(self, shape: Shape, axes: Vec<usize>) -> Kernel {
        if axes.is_empty() {
            let program = self.pointwise();
            return Box::new(move |run| each_alone(&program, &shape, run));
        }
        Box::new(move |run| self.run_cpu(&shape, &axes, run))
    }
}
