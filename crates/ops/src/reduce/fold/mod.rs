//! Folds: a formula of the elements, folded over a set of axes by a sum, a maximum or a minimum, then a
//! formula of the result; several such stages, where later ones may use the results of earlier ones. Sums,
//! means, norms, variances, log-sum-exp and all losses that are a formula summed up are folds, on both
//! devices, from the same little programs.
//!
//! Neighbouring axes are folded as one. Several groups of axes are folded one after the other, the last group
//! first; sums use the row rule for a group that ends the shape and the column rule for any other. Stages
//! over the last axes read a row once and fold it again out of cache, registers or shared memory.

#[cfg(feature = "cases")]
mod cases;
mod cpu;
mod cuda;
#[cfg(test)]
mod tests;

use crate::pointwise::Add as Plus;
use crate::pointwise::map::Map;
use crate::pointwise::program::{Expr, Program, Reg, Registers, Scratch};
use crate::{AnyOp, AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Kernel, Op, Recorder, Val};
pub(crate) use cpu::chunk_sum;
use cpu::each_alone;
use dittograd_device::cuda::Source;
use dittograd_device::{DType, Device, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::{MAX_RANK, Shape};
use dittograd_numerics::sum::{CHUNK, ROWS};
use dittograd_numerics::tensor::Tensor;
use std::array::from_fn;
use std::sync::Arc;

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
    pub load: Program,
    /// The result, from what was folded, then what is given per result.
    pub post: Program,
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
fn is_plain(program: &Program) -> bool {
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
    pub(crate) fn new(ins: usize, kind: Kind, load: Program, post: Program) -> Fold {
        Fold { ins, aux: 0, stages: vec![Stage { kind, load, post }] }
    }

    /// The sum of plain elements.
    pub(crate) fn sum() -> Fold {
        let first = || Program::same(1);
        Fold::new(1, Kind::Sum, first(), first())
    }

    /// Words of workspace on a device.
    pub(crate) fn workspace(&self, shape: &Shape, axes: &[usize], device: &Device) -> usize {
        let regions = Regions::of(&passes(shape, axes), device.is_cuda());
        let given = self.aux + self.stages.len() - 1;
        (self.stages.len() - 1) * regions.results + 2 * regions.between + given * regions.spread + regions.own
    }

    /// A fold over no axes: each element is folded alone.
    fn pointwise(&self) -> Program {
        Program::trace(self.ins + self.aux, |x| {
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

/// `after(base(before(ins…)))`: a reduction or loss whose elements are computed as they are read, and whose result goes
/// through one more program. The inputs have `shape`, which is that of the elements.
#[derive(Clone, Debug, PartialEq)]
pub struct Folded {
    /// The reduction.
    pub base: Box<AnyOp>,
    /// What its inputs are computed by.
    pub before: Arc<Program>,
    /// What its result goes through.
    pub after: Arc<Program>,
    /// Shape of the inputs.
    pub shape: Shape,
}

impl Folded {
    /// The same with another program after it.
    #[doc(hidden)]
    pub fn then(&self, after: &Program) -> Option<Folded> {
        let both = Program::trace(1, |x| after.eval(&self.after.eval(x)));
        (after.inputs() == 1).then(|| Folded { after: Arc::new(both), ..self.clone() })
    }

    /// Whether the programs fit the registers there are.
    #[doc(hidden)]
    pub fn is_possible(&self) -> bool {
        self.fold().is_some_and(|(fold, _)| fold.stages.iter().all(|s| s.load.fits() && s.post.fits()))
    }

    fn base_metas(&self) -> Vec<Meta> {
        vec![Meta::f32(self.shape); self.before.outputs()]
    }

    /// The fold and its axes.
    #[doc(hidden)]
    pub fn fold(&self) -> Option<(Fold, Vec<usize>)> {
        let (fold, axes) = self.base.as_fold(&self.base_metas())?;
        if fold.aux > 0 || fold.ins != self.before.outputs() || self.after.inputs() != 1 {
            return None;
        }
        let (ins, count) = (self.before.inputs(), fold.stages.len());
        let stages = fold.stages.iter().enumerate().map(|(k, stage)| Stage {
            kind: stage.kind,
            load: Program::trace(ins + k, |x| {
                let elements = self.before.eval(&x[..ins]);
                stage.load.eval(&[&elements, &x[ins..]].concat())
            }),
            post: Program::trace(stage.post.inputs(), |x| {
                let result = stage.post.eval(x);
                if k + 1 == count { self.after.eval(&result) } else { result }
            }),
        });
        Some((Fold { ins, aux: 0, stages: stages.collect() }, axes))
    }

    fn known(&self) -> Result<(Fold, Vec<usize>)> {
        self.fold().ok_or_else(|| {
            Error::unsupported(Self::NAME, format!("{} with these programs is no fold", self.base.name()))
        })
    }

    /// The op between the programs.
    fn value(&self) -> Result<Shape> {
        Ok(self.base.shape(&self.base_metas())?.shape)
    }
}

impl Op for Folded {
    const NAME: &'static str = "folded";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        if ins.len() != self.before.inputs() {
            return Err(Error::new(
                Self::NAME,
                ErrorKind::Arity { want: self.before.inputs(), got: ins.len() },
            ));
        }
        for (i, m) in ins.iter().enumerate() {
            crate::typed(Self::NAME, ins, i, DType::F32)?;
            if m.shape != self.shape {
                return Err(crate::mismatch(
                    Self::NAME,
                    "an input differs from the elements",
                    m.shape,
                    self.shape,
                ));
            }
        }
        let value = self.value()?;
        self.known()?;
        if !self.is_possible() {
            return Err(Error::unsupported(Self::NAME, "the programs need more registers than there are"));
        }
        Ok(Meta::f32(value))
    }

    fn workspace(&self, _ins: &[Meta], device: &Device) -> usize {
        self.fold().map_or(0, |(fold, axes)| fold.workspace(&self.shape, &axes, device))
    }

    fn cpu(&self, run: CpuRun<'_>) {
        if let Some((fold, axes)) = self.fold() {
            fold.run_cpu(&self.shape, &axes, run);
        }
    }

    fn prepared(&self, _ins: &[Meta]) -> Option<Kernel> {
        self.fold().map(|(fold, axes)| fold.prepared(self.shape, axes))
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let (fold, axes) = self.known()?;
        fold.run_cuda(&self.shape, &axes, run)
    }

    fn cuda_modules(&self, _ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
        self.fold().map_or(Vec::new(), |(fold, axes)| fold.modules(&self.shape, &axes, gpu))
    }

    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        // As the ops it is made of; the values between them were not kept.
        let mut parts = Vec::new();
        for k in 0..self.before.outputs() {
            let one = Program::trace(self.before.inputs(), |x| vec![self.before.eval(x)[k]]);
            let map = Map::new(one, self.shape);
            parts.push((r.record(map.clone().into(), io.ins)?, map));
        }
        let elements: Vec<Val> = parts.iter().map(|p| p.0).collect();
        let value = r.record((*self.base).clone(), &elements)?;
        let after = Map { program: self.after.clone(), shape: r.meta(value).shape };
        let mut all: Vec<Option<Val>> = vec![None; io.ins.len()];
        let Some(dy) = after.vjp(r, Io { ins: &[value], out: io.out }, dy)?[0] else { return Ok(all) };
        let grads = self.base.vjp(r, Io { ins: &elements, out: value }, dy)?;
        for ((element, map), g) in parts.into_iter().zip(grads) {
            let Some(g) = g else { continue };
            for (sum, g) in all.iter_mut().zip(map.vjp(r, Io { ins: io.ins, out: element }, g)?) {
                *sum = match (*sum, g) {
                    (Some(a), Some(b)) => Some(r.record(Plus {}.into(), &[a, b])?),
                    (a, b) => a.or(b),
                };
            }
        }
        Ok(all)
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let tensors: Vec<&Tensor<T>> = ins.iter().map(AnyTensor::num).collect::<Result<_>>()?;
        let elements = |k: usize| {
            AnyTensor::Num(Tensor::from_fn(self.shape, |at| {
                let args: Vec<T> = tensors.iter().map(|t| t.data()[at]).collect();
                self.before.eval(&args)[k]
            }))
        };
        let value = self.base.reference(&(0..self.before.outputs()).map(elements).collect::<Vec<_>>())?;
        Ok(Tensor::from_fn(value.shape(), |at| self.after.eval(&[value.data()[at]])[0]))
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let steps = |p: &Program| Attr::Num(p.steps().len() as f64);
        vec![
            ("before", steps(&self.before)),
            ("after", steps(&self.after)),
            ("shape", Attr::List(self.shape.dims().to_vec())),
        ]
    }

    fn from_attrs(_: &Attrs) -> Result<Folded> {
        Err(Error::unsupported(Self::NAME, "a program cannot be given by attributes"))
    }
}
