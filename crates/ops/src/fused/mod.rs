//! [`Fused`]: an op with pointwise expressions in its own kernels. A prologue computes inputs of the op as they are read, an epilogue
//! is applied to its results before they are written. An op says what may be fused to it by [`Op::fusion`] or, if it is a
//! reduction, by [`Op::as_fold`].

#[cfg(feature = "cases")]
mod cases;
mod code;

pub use code::{EpilogueCode, FusedCode, PrologueCode};

use crate::layout;
use crate::magnitudes::Lines;
use crate::pointwise::Add;
use crate::pointwise::expression::Pointwise;
use crate::pointwise::map::{self, Access, Map, access};
use crate::reduce::fold::{Fold, Stage};
use crate::{AnyOp, AnyTensor, Attr, Attrs, CpuRun, CudaRun, Gpu, Io, Kernel, Op, PerInput, Recorder, Val};
use dittograd_device::cuda::Source;
use dittograd_device::{Device, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;
use std::sync::Arc;

/// `epilogue(op(…), others…)`, where some inputs of the op are `prologue(others…)`. The inputs are those of the op that the prologue
/// does not compute, then the prologue's, then the epilogue's own.
#[derive(Clone, Debug, PartialEq)]
pub struct Fused {
    /// Computes inputs of the op.
    pub prologue: Option<Prologue>,
    /// The op.
    pub op: Box<AnyOp>,
    /// What is done to its value.
    pub epilogue: Option<Epilogue>,
}

/// A pointwise expression that computes inputs of an op. What it reads is broadcast by NumPy's rule, unless the op is a reduction.
#[derive(Clone, Debug, PartialEq)]
pub struct Prologue {
    /// The expression: one result for each input that it computes.
    pub program: Arc<Pointwise>,
    /// The first of these inputs; the others follow it.
    pub slot: usize,
    /// The shape of each.
    pub shape: Shape,
}

/// A pointwise expression of an op's value, which is its first input, and of others, which are broadcast by NumPy's rule. Several
/// results lie one after the other in a flat value, as those of a [`Map`].
#[derive(Clone, Debug, PartialEq)]
pub struct Epilogue {
    /// The expression.
    pub program: Arc<Pointwise>,
    /// The shape of each result, which has the elements of the op's value.
    pub shape: Shape,
}

/// What may be fused to an op that is no reduction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fusion {
    /// The input that a prologue may compute, and how many of its last axes the op's kernels see as a row.
    pub prologue: Option<(usize, usize)>,
    /// Whether an epilogue may follow.
    pub epilogue: bool,
    /// Whether it pays if that epilogue reads inputs of its own.
    pub others: bool,
    /// Whether it does in a mode that has products in digits.
    pub others_in_digits: bool,
    /// The most weight of either expression.
    pub weight: usize,
}

impl Fusion {
    /// The most terms of a sum, and the most results, with which it pays to read other inputs in the kernel of a product. An
    /// epilogue that reads nothing else costs nothing there; one that does takes as long as by itself, or longer where it
    /// makes the compiler arrange the main loop less well (measured), so that only the launch is saved.
    const FEW_TERMS: usize = 256;
    const FEW_RESULTS: usize = 1 << 18;

    /// That of a product whose results are sums of `terms` products. Its kernel has few threads, so a heavy epilogue takes longer
    /// there than a kernel of its own that reads the sums again (measured).
    pub(crate) fn product(terms: usize, results: usize) -> Fusion {
        let others = terms <= Self::FEW_TERMS || results <= Self::FEW_RESULTS;
        Fusion { prologue: None, epilogue: true, others, others_in_digits: others, weight: 16 }
    }

    /// That of an op on rows, the last `axes` of input `slot`: it takes as long as its bytes do, and every element that need not be
    /// written and read again is a gain.
    pub(crate) fn rows(slot: usize, axes: usize) -> Fusion {
        let prologue = Some((slot, axes));
        Fusion { prologue, epilogue: true, others: true, others_in_digits: true, weight: 64 }
    }
}

impl Prologue {
    /// The expression of the `k`-th input that it computes, as an op.
    fn part(&self, k: usize) -> Map {
        let program = match self.program.outputs() {
            1 => self.program.clone(),
            _ => Arc::new(Pointwise::trace(self.program.inputs(), |x| vec![self.program.eval(x)[k]])),
        };
        Map { program, shape: self.shape }
    }
}

impl Epilogue {
    /// How many inputs it has besides the op's value.
    pub fn others(&self) -> usize {
        self.program.inputs().saturating_sub(1)
    }

    /// The expression as an op.
    fn map(&self) -> Map {
        Map { program: self.program.clone(), shape: self.shape }
    }
}

impl Fused {
    /// Inputs of the prologue, and those of the epilogue besides the op's value.
    fn given(&self) -> (usize, usize) {
        let prologue = self.prologue.as_ref().map_or(0, |p| p.program.inputs());
        (prologue, self.epilogue.as_ref().map_or(0, Epilogue::others))
    }

    /// Something of each input, by whom it belongs to: the op itself, the prologue, the epilogue.
    #[doc(hidden)]
    pub fn parts<'a, T>(&self, all: &'a [T]) -> [&'a [T]; 3] {
        let (prologue, epilogue) = self.given();
        let (own, rest) = all.split_at(all.len().saturating_sub(prologue + epilogue));
        let (prologue, epilogue) = rest.split_at(prologue.min(rest.len()));
        [own, prologue, epilogue]
    }

    /// Something of each input of the op: `own` of those that it reads itself, `made` of those that the prologue computes.
    fn inserted<T: Copy>(&self, own: &[T], made: &[T], filler: T) -> PerInput<T> {
        let slot = self.prologue.as_ref().map_or(own.len(), |p| p.slot.min(own.len()));
        let mut all = PerInput::new(own.len() + made.len(), filler);
        let words = all.all_mut();
        words[..slot].copy_from_slice(&own[..slot]);
        words[slot..slot + made.len()].copy_from_slice(made);
        words[slot + made.len()..].copy_from_slice(&own[slot..]);
        all
    }

    /// Shapes and types of the op's inputs.
    fn metas(&self, ins: &[Meta]) -> PerInput<Meta> {
        let one = self.prologue.as_ref().map_or(Meta::f32(Shape::SCALAR), |p| Meta::f32(p.shape));
        let made = PerInput::new(self.prologue.as_ref().map_or(0, |p| p.program.outputs()), one);
        self.inserted(self.parts(ins)[0], &made, one)
    }

    /// The op as a reduction with both expressions in its stages, and its axes. `metas` are those of the op.
    fn fold_of(&self, metas: &[Meta]) -> Option<(Fold, Vec<usize>)> {
        let (fold, axes) = self.op.as_fold(metas)?;
        let takes = |p: &Prologue| p.slot == 0 && p.program.outputs() == fold.ins;
        let follows = |e: &Epilogue| e.program.inputs() == 1 && e.program.outputs() == 1;
        if fold.aux > 0
            || !self.prologue.as_ref().is_none_or(takes)
            || !self.epilogue.as_ref().is_none_or(follows)
        {
            return None;
        }
        let ins = self.prologue.as_ref().map_or(fold.ins, |p| p.program.inputs());
        let count = fold.stages.len();
        let stages = fold.stages.iter().enumerate().map(|(k, stage)| Stage {
            kind: stage.kind,
            load: Pointwise::trace(ins + k, |x| {
                let elements = match &self.prologue {
                    Some(p) => p.program.eval(&x[..ins]),
                    None => x[..ins].to_vec(),
                };
                stage.load.eval(&[&elements, &x[ins..]].concat())
            }),
            post: Pointwise::trace(stage.post.inputs(), |x| match &self.epilogue {
                Some(e) if k + 1 == count => e.program.eval(&stage.post.eval(x)),
                _ => stage.post.eval(x),
            }),
        });
        Some((Fold { ins, aux: 0, stages: stages.collect() }, axes))
    }

    /// The op as a reduction with both expressions in its stages, and its axes, if it is one.
    #[doc(hidden)]
    pub fn fold(&self, ins: &[Meta]) -> Option<(Fold, Vec<usize>)> {
        self.fold_of(&self.metas(ins))
    }

    /// Whether the op's kernels can take the expressions in: what they read lies as kernels read it, and there are registers enough.
    #[doc(hidden)]
    pub fn is_possible(&self, ins: &[Meta]) -> bool {
        match self.fold(ins) {
            Some((fold, _)) => fold.fits(),
            None => {
                let prologue = || self.prologue.is_none() || self.prologue_reads(ins).is_some();
                prologue() && (self.epilogue.is_none() || self.epilogue_reads(ins).is_some())
            }
        }
    }

    /// The shape of a reduction's elements.
    fn elements(&self, ins: &[Meta]) -> Shape {
        self.prologue.as_ref().map_or_else(|| ins[0].shape, |p| p.shape)
    }

    #[cold]
    fn unsupported(&self, what: &str) -> Error {
        Error::unsupported(Self::NAME, format!("{what} {}", self.op.name()))
    }

    /// Words that a prologue's result takes before the op's own workspace, where it is stored at all.
    fn made_words(&self) -> usize {
        self.prologue.as_ref().map_or(0, |p| p.shape.numel().next_multiple_of(4))
    }

    /// Runs the prologue, the op, whose value has this shape, by `op_cpu`, and the epilogue.
    fn run_cpu(&self, run: CpuRun<'_>, value: Shape, op_cpu: impl Fn(CpuRun<'_>)) {
        let CpuRun { pool, simd, numerics, metas, ins, out, workspace, .. } = run;
        let ([own, before, after], [_, before_metas, after_metas]) = (self.parts(ins), self.parts(metas));
        let metas = self.metas(metas);
        let (made, workspace) = workspace.split_at_mut(self.made_words());
        if let Some(p) = &self.prologue {
            let accesses = map::accesses(before_metas, &p.shape);
            let out = &mut made[..p.shape.numel()];
            let run = CpuRun {
                pool,
                simd,
                numerics,
                metas: before_metas,
                ins: before,
                shape: p.shape,
                out,
                workspace: &mut [],
            };
            map::run_cpu(&p.program, accesses.all(), run);
        }
        let made: &[&[f32]] = match &self.prologue {
            Some(p) => &[&made[..p.shape.numel()]],
            None => &[],
        };
        let ins = self.inserted(own, made, &[]);
        let words = value.numel();
        let run = CpuRun {
            pool,
            simd,
            numerics,
            metas: &metas,
            ins: &ins,
            shape: value,
            out: &mut out[..words],
            workspace,
        };
        op_cpu(run);
        if let Some(e) = &self.epilogue {
            let accesses = map::accesses(after_metas, &e.shape);
            let run = CpuRun {
                pool,
                simd,
                numerics,
                metas: after_metas,
                ins: after,
                shape: e.shape,
                out,
                workspace: &mut [],
            };
            map::run_cpu_in_place(&e.program, accesses.all(), run);
        }
    }

    /// How an epilogue reads its inputs, in place, in a kernel of its own.
    fn alone(&self, e: &Epilogue, ins: &[Meta]) -> Vec<Access> {
        let [_, _, others] = self.parts(ins);
        let mut accesses = vec![access(&e.shape, &e.shape)];
        accesses.extend(map::accesses(others, &e.shape).all());
        accesses
    }
}

impl Op for Fused {
    const NAME: &'static str = "fused";

    fn shape(&self, ins: &[Meta]) -> Result<Meta> {
        let (before, after) = self.given();
        let no_value = self.epilogue.as_ref().is_some_and(|e| e.program.inputs() == 0);
        if ins.len() < before + after || no_value {
            return Err(Error::new(Self::NAME, ErrorKind::Arity { want: before + after, got: ins.len() }));
        }
        if self.prologue.is_none() && self.epilogue.is_none() {
            return Err(self.unsupported("there is no expression before or after"));
        }
        let named = |e: Error| Error::new(Self::NAME, e.kind().clone());
        let [own, before, after] = self.parts(ins);
        if let Some(p) = &self.prologue {
            map::check_inputs(Self::NAME, &p.program, before, &p.shape)?;
        }
        let metas = self.metas(ins);
        let value = self.op.shape(&metas).map_err(named)?.shape;
        if let Some(e) = &self.epilogue {
            if value.numel() != e.shape.numel() {
                let why = "elements of the value and the result differ";
                return Err(crate::mismatch(Self::NAME, why, value, e.shape));
            }
            map::check_inputs(Self::NAME, &e.program, &[&[Meta::f32(e.shape)], after].concat(), &e.shape)?;
        }
        if self.op.as_fold(&metas).is_some() {
            let Some((fold, _)) = self.fold_of(&metas) else {
                return Err(self.unsupported("these expressions cannot be part of the reduction"));
            };
            if !fold.fits() {
                return Err(self.unsupported("the expressions need more registers than there are, with"));
            }
            if let Some(p) = &self.prologue
                && let Some(m) = before.iter().find(|m| m.shape != p.shape)
            {
                let why = "an input differs from the elements of the reduction";
                return Err(crate::mismatch(Self::NAME, why, m.shape, p.shape));
            }
            if let Some(e) = self.epilogue.as_ref().filter(|e| e.shape != value) {
                return Err(crate::mismatch(Self::NAME, "the result has another shape", value, e.shape));
            }
            return Ok(Meta::f32(value));
        }
        let fusion = self.op.fusion(&metas);
        if let Some(p) = &self.prologue
            && (fusion.prologue.is_none_or(|(slot, _)| slot != p.slot)
                || p.slot > own.len()
                || p.program.outputs() != 1)
        {
            return Err(self.unsupported(&format!("a prologue cannot compute input {} of", p.slot)));
        }
        match &self.epilogue {
            Some(_) if !fusion.epilogue => Err(self.unsupported("an epilogue cannot follow")),
            Some(e) => map::results_meta(Self::NAME, &e.program, e.shape),
            None => Ok(Meta::f32(value)),
        }
    }

    fn workspace(&self, ins: &[Meta], device: &Device) -> usize {
        let metas = self.metas(ins);
        if let Some((fold, axes)) = self.fold_of(&metas) {
            return fold.workspace(&self.elements(ins), &axes, device);
        }
        let own = self.op.workspace(&metas, device);
        let joins = |cuda| self.prologue_code(ins, &[], &metas, &Gpu::of(cuda)).is_some();
        if device.as_cuda().is_some_and(|cuda| joins(cuda)) { own } else { self.made_words() + own }
    }

    fn cpu(&self, run: CpuRun<'_>) {
        match self.fold(run.metas) {
            Some((fold, axes)) => fold.run_cpu(&self.elements(run.metas), &axes, run),
            None => {
                let Ok(value) = self.op.shape(&self.metas(run.metas)) else { return };
                self.run_cpu(run, value.shape, |run| self.op.cpu(run));
            }
        }
    }

    fn prepared(&self, ins: &[Meta]) -> Option<Kernel> {
        if let Some((fold, axes)) = self.fold(ins) {
            return Some(fold.prepared(self.elements(ins), axes));
        }
        let metas = self.metas(ins);
        let (op, value, this) = (self.op.prepared(&metas)?, self.op.shape(&metas).ok()?.shape, self.clone());
        Some(Box::new(move |run| this.run_cpu(run, value, &op)))
    }

    fn cuda(&self, run: &CudaRun<'_>) -> Result<()> {
        let metas = self.metas(run.metas);
        if let Some((fold, axes)) = self.fold_of(&metas) {
            return fold.run_cuda(&self.elements(run.metas), &axes, run);
        }
        let ([own, before, after], [_, before_metas, _]) = (self.parts(run.ins), self.parts(run.metas));
        let (prologue, epilogue) = self.code(run.metas, run.ins, run.out, &metas, &Gpu::of(run.cuda));
        let (mut made, mut workspace) = (Vec::new(), run.workspace);
        if let Some(p) = &self.prologue {
            made.push(if prologue.is_some() { 0 } else { workspace });
            if prologue.is_none() {
                let accesses = map::accesses(before_metas, &p.shape);
                let alone =
                    CudaRun { metas: before_metas, ins: before, shape: p.shape, out: workspace, ..*run };
                map::run_cuda(&p.program, accesses.all(), &alone)?;
                workspace += 4 * self.made_words() as u64;
            }
        }
        let (shape, ins) = (self.op.shape(&metas)?.shape, self.inserted(own, &made, 0));
        let fused = FusedCode { prologue: prologue.as_ref(), epilogue: epilogue.as_ref() };
        self.op.cuda(&CudaRun { metas: &metas, ins: &ins, shape, workspace, fused, ..*run })?;
        match &self.epilogue {
            Some(e) if epilogue.is_none() => {
                let (accesses, ins) = (self.alone(e, run.metas), [&[run.out], after].concat());
                map::run_cuda(&e.program, &accesses, &CudaRun { ins: &ins, shape: e.shape, ..*run })
            }
            _ => Ok(()),
        }
    }

    fn cuda_modules(&self, ins: &[Meta], gpu: &Gpu) -> Vec<Source> {
        let metas = self.metas(ins);
        if let Some((fold, axes)) = self.fold_of(&metas) {
            return fold.modules(&self.elements(ins), &axes, gpu);
        }
        let (prologue, epilogue) = self.code(ins, &[], 0, &metas, gpu);
        let fused = FusedCode { prologue: prologue.as_ref(), epilogue: epilogue.as_ref() };
        let joined = || self.op.fused_modules(&metas, gpu, fused);
        let is_plain = prologue.is_none() && epilogue.is_none();
        let mut modules =
            (!is_plain).then(joined).flatten().unwrap_or_else(|| self.op.cuda_modules(&metas, gpu));
        if let Some(p) = self.prologue.as_ref().filter(|_| prologue.is_none()) {
            let [_, before, _] = self.parts(ins);
            modules.push(map::module(&p.program, &p.shape, map::accesses(before, &p.shape).all()));
        }
        if let Some(e) = self.epilogue.as_ref().filter(|_| epilogue.is_none()) {
            modules.push(map::module(&e.program, &e.shape, &self.alone(e, ins)));
        }
        modules
    }

    // Nothing is inserted before the inputs of an op without a prologue.
    fn reads_magnitudes(&self, ins: &[Meta], gpu: &Gpu) -> [Option<Lines>; 2] {
        match self.prologue {
            Some(_) => [None; 2],
            None => self.op.reads_magnitudes(&self.metas(ins), gpu),
        }
    }

    /// As those of the ops that it is made of; the values between them were not kept.
    fn vjp(&self, r: &mut dyn Recorder, io: Io<'_>, dy: Val) -> Result<Vec<Option<Val>>> {
        let [own, before, after] = self.parts(io.ins);
        let mut made: Vec<(Val, Map)> = Vec::new();
        if let Some(p) = &self.prologue {
            for k in 0..p.program.outputs() {
                let map = p.part(k);
                made.push((r.record(map.clone().into(), before)?, map));
            }
        }
        let values: Vec<Val> = made.iter().map(|m| m.0).collect();
        let ins = self.inserted(own, &values, Val(0));
        let (mut value, mut g, mut rest) = (io.out, Some(dy), vec![None; after.len()]);
        if let Some(e) = &self.epilogue {
            value = r.record((*self.op).clone(), &ins)?;
            let shaped = layout::reshape_to(r, value, e.shape)?;
            let mut grads = e.map().vjp(r, Io { ins: &[&[shaped], after].concat(), out: io.out }, dy)?;
            rest = grads.split_off(1);
            let to = r.meta(value).shape;
            g = grads[0].map(|g| layout::reshape_to(r, g, to)).transpose()?;
        }
        let mut of_op = match g {
            Some(g) => self.op.vjp(r, Io { ins: &ins, out: value }, g)?,
            None => vec![None; ins.len()],
        };
        let mut of_prologue: Vec<Option<Val>> = vec![None; before.len()];
        let slot = self.prologue.as_ref().map_or(0, |p| p.slot);
        for ((value, map), g) in
            made.into_iter().zip(of_op.drain(slot..slot + values.len()).collect::<Vec<_>>())
        {
            let Some(g) = g else { continue };
            for (sum, g) in of_prologue.iter_mut().zip(map.vjp(r, Io { ins: before, out: value }, g)?) {
                *sum = match (*sum, g) {
                    (Some(a), Some(b)) => Some(r.record(Add {}.into(), &[a, b])?),
                    (a, b) => a.or(b),
                };
            }
        }
        Ok([of_op, of_prologue, rest].concat())
    }

    fn reference<T: Scalar>(&self, ins: &[AnyTensor<T>]) -> Result<Tensor<T>> {
        let [own, before, after] = self.parts(ins);
        let mut all = own.to_vec();
        if let Some(p) = &self.prologue {
            for k in 0..p.program.outputs() {
                all.insert(p.slot + k, AnyTensor::Num(p.part(k).reference(before)?));
            }
        }
        let value = self.op.reference(&all)?;
        let Some(e) = &self.epilogue else { return Ok(value) };
        let mut all = vec![AnyTensor::Num(Tensor::with_shape(e.shape, value.data().to_vec())?)];
        all.extend_from_slice(after);
        e.map().reference(&all)
    }

    fn attrs(&self) -> Vec<(&'static str, Attr)> {
        let steps = |p: &Pointwise| Attr::Num(p.steps().len() as f64);
        let prologue = self.prologue.as_ref().map(|p| ("prologue", steps(&p.program)));
        let epilogue = self.epilogue.as_ref().map(|e| ("epilogue", steps(&e.program)));
        prologue.into_iter().chain(epilogue).collect()
    }

    fn from_attrs(_: &Attrs) -> Result<Fused> {
        Err(Error::unsupported(Self::NAME, "an expression cannot be given by attributes"))
    }
}
