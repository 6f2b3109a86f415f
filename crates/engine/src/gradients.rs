//! The reverse walk, and gradients as part of a program: recorded where the values are, on a tape or in a graph, they are values
//! like any other and have gradients themselves.

use crate::params::Param;
use dittograd_device::{AnyBuffer, Device, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_ops::{self, AnyOp, Io, Recorder, Val, pointwise};
use std::collections::BTreeMap;

/// Gradients of one backward pass.
#[derive(Debug)]
pub struct Grads {
    by_leaf: BTreeMap<usize, AnyBuffer>,
    by_param: BTreeMap<u64, AnyBuffer>,
    /// The epoch of the session that the leaves are of.
    epoch: u32,
}

impl Grads {
    pub(crate) fn new(
        by_leaf: BTreeMap<usize, AnyBuffer>,
        params: &BTreeMap<usize, &Param>,
        epoch: u32,
    ) -> Grads {
        let by_param =
            by_leaf.iter().filter_map(|(i, g)| params.get(i).map(|p| (p.id(), g.clone()))).collect();
        Grads { by_leaf, by_param, epoch }
    }

    /// The gradient of a parameter, if the value depends on it.
    pub fn param(&self, param: &Param) -> Option<&AnyBuffer> {
        self.by_param.get(&param.id())
    }

    /// Adds the gradients of parameters of another backward pass, to accumulate over parts of a batch. Those of variables are of one pass only
    /// and are dropped.
    ///
    /// ```
    /// use dittograd::prelude::*;
    /// # fn main() -> Result<()> {
    /// # let device = Device::cpu()?;
    /// let mut params = Params::new(&device, 0);
    /// let w = params.value("w", &Tensor::scalar(3.0f32))?;
    /// let session = Session::eager(&device);
    /// let part = |x: f64| session.param(&w)?.scale(x / 2.0)?.backward(); // half of the mean of two parts
    /// let mut grads = part(1.0)?;
    /// session.reset(); // frees the values of the first part
    /// grads.add(&part(2.0)?)?;
    /// assert_eq!(grads.param(&w).map(|g| g.to_tensor::<f32>()).transpose()?, Some(Tensor::scalar(1.5)));
    /// session.reset();
    /// Optimizer::sgd(0.1).step(&params, grads)?;
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn add(&mut self, other: &Grads) -> Result<()> {
        for (id, grad) in &other.by_param {
            let sum = match self.by_param.get(id) {
                None => grad.clone(),
                Some(sum) => {
                    let device = sum.buffer().device();
                    dittograd_ops::apply(device, &pointwise::Add {}.into(), &[sum, grad])?
                }
            };
            self.by_param.insert(*id, sum);
        }
        self.by_leaf.clear();
        Ok(())
    }

    /// The gradient of the leaf `id` of an epoch, if the value depends on it.
    pub(crate) fn leaf(&self, id: usize, epoch: u32) -> Option<&AnyBuffer> {
        self.by_leaf.get(&id).filter(|_| epoch == self.epoch)
    }
}

/// Values that gradients are passed back through. The tape runs the rules of its ops at once and frees what they leave behind;
/// [`gradients`] records them.
pub(crate) trait Reverse {
    /// What a gradient is: memory, or a recorded value.
    type Gradient: Clone;

    /// The gradient of value `id` as it is passed on, now that all contributions are there. `None` if it is not.
    fn complete(&mut self, id: usize, grad: Self::Gradient) -> Result<Option<Self::Gradient>>;

    /// What the rule of value `id` contributes to which values, in the order the rule lists them.
    fn contributions(&mut self, id: usize, grad: &Self::Gradient) -> Result<Vec<(usize, Self::Gradient)>>;

    /// Adds a contribution to the gradient of value `id`; the first is stored as it is.
    fn accumulate(
        &mut self,
        grads: &mut [Option<Self::Gradient>],
        id: usize,
        contribution: Self::Gradient,
    ) -> Result<()>;
}

/// One step of the reverse walk: passes the gradient of value `id`, if it has one, on to what the value was computed from. A
/// walk takes it for strictly decreasing ids, so that gradients accumulate in a fixed order.
pub(crate) fn step<W: Reverse>(walk: &mut W, grads: &mut [Option<W::Gradient>], id: usize) -> Result<()> {
    let Some(grad) = grads[id].clone() else { return Ok(()) };
    let Some(grad) = walk.complete(id, grad)? else { return Ok(()) };
    grads[id] = Some(grad.clone());
    for (parent, contribution) in walk.contributions(id, &grad)? {
        walk.accumulate(grads, parent, contribution)?;
    }
    Ok(())
}

/// Values that know what they were computed from.
pub(crate) trait Program: Recorder {
    /// The op and its inputs, for a computed value through which gradients flow.
    fn origin(&self, v: Val) -> Result<Option<(AnyOp, Vec<Val>)>>;
    /// Whether gradients are wanted of the value.
    fn requires_grad(&self, v: Val) -> bool;
}

/// Appends the gradients of `Σ <seed, value>` over `seeds = (value, seed)` with respect to `wrt`. Only values between the two
/// are walked. `None` where nothing depends on a value.
pub(crate) fn gradients(
    program: &mut impl Program,
    seeds: &[(Val, Val)],
    wrt: &[Val],
) -> Result<Vec<Option<Val>>> {
    let end = seeds.iter().map(|s| s.0.0 as usize + 1).max().unwrap_or(0);
    let mut origins = Vec::with_capacity(end);
    // Whether a value depends on one of `wrt`.
    let mut leads = vec![false; end];
    wrt.iter().filter(|v| (v.0 as usize) < end).for_each(|v| leads[v.0 as usize] = true);
    for id in 0..end {
        let v = Val(id as u32);
        let origin = if program.requires_grad(v) { program.origin(v)? } else { None };
        leads[id] |= origin.as_ref().is_some_and(|(_, ins)| ins.iter().any(|p| leads[p.0 as usize]));
        origins.push(origin);
    }
    let mut grads: Vec<Option<Val>> = vec![None; end];
    let mut walk = Recorded { program, origins, leads };
    for &(v, seed) in seeds {
        walk.accumulate(&mut grads, v.0 as usize, seed)?;
    }
    (0..end).rev().try_for_each(|id| step(&mut walk, &mut grads, id))?;
    Ok(wrt.iter().map(|v| grads.get(v.0 as usize).copied().flatten()).collect())
}

/// A walk that records what rules emit.
struct Recorded<'p, P> {
    program: &'p mut P,
    /// For each value that gradients flow through, what it was computed from.
    origins: Vec<Option<(AnyOp, Vec<Val>)>>,
    /// Whether a value depends on one of those to differentiate by.
    leads: Vec<bool>,
}

impl<P: Program> Reverse for Recorded<'_, P> {
    type Gradient = Val;

    fn complete(&mut self, id: usize, grad: Val) -> Result<Option<Val>> {
        Ok(Some(grad).filter(|_| self.leads[id]))
    }

    fn contributions(&mut self, id: usize, grad: &Val) -> Result<Vec<(usize, Val)>> {
        let Some((op, ins)) = self.origins[id].take() else { return Ok(Vec::new()) };
        let is_wanted = |p: &Val| self.leads[p.0 as usize] && self.program.requires_grad(*p);
        let wanted: Vec<bool> = ins.iter().map(is_wanted).collect();
        if !wanted.contains(&true) {
            return Ok(Vec::new());
        }
        let given: Vec<Val> = ins.iter().copied().chain([Val(id as u32), *grad]).collect();
        let rule = Rule::of(&op, given.iter().map(|v| self.program.meta(*v)).collect(), &wanted)?;
        let contributions = ins.iter().zip(rule.replay(self.program, &given)?);
        Ok(contributions.filter_map(|(p, g)| g.map(|g| (p.0 as usize, g))).collect())
    }

    fn accumulate(&mut self, grads: &mut [Option<Val>], id: usize, contribution: Val) -> Result<()> {
        grads[id] = Some(match grads[id] {
            None => contribution,
            Some(sum) if self.program.meta(sum) != self.program.meta(contribution) => {
                let (got, want) = (self.program.meta(contribution), self.program.meta(sum));
                return Err(wrong_shape("gradients", got, want));
            }
            Some(sum) => self.program.record(pointwise::Add {}.into(), &[sum, contribution])?,
        });
        Ok(())
    }
}

#[cold]
fn wrong_shape(op: &str, got: Meta, want: Meta) -> Error {
    let why = "the gradient has another shape than the value";
    Error::new(op, ErrorKind::Shapes { why, left: got.shape, right: want.shape })
}

/// What an op's rule emits, collected without running it, so that only what is wanted gets run or recorded.
pub(crate) struct Rule {
    /// Values the rule is given: the op's inputs, its value and the gradient of that.
    given: usize,
    steps: Vec<(AnyOp, Vec<Val>)>,
    metas: Vec<Meta>,
    /// Contributions to the inputs, where wanted.
    results: Vec<Option<Val>>,
}

impl Rule {
    /// The rule of `op` for inputs, value and gradient as in `metas`, and for those of the inputs that are wanted.
    pub(crate) fn of(op: &AnyOp, metas: Vec<Meta>, wanted: &[bool]) -> Result<Rule> {
        let given = metas.len();
        let mut rule = Rule { given, steps: Vec::new(), metas, results: Vec::new() };
        let places: Vec<Val> = (0..given as u32).map(Val).collect();
        let (ins, [out, dy]) = places.split_at(given - 2) else { return Ok(rule) };
        let results = op.vjp(&mut rule, Io { ins, out: *out }, *dy)?;
        rule.results = results.into_iter().zip(wanted).map(|(g, w)| g.filter(|_| *w)).collect();
        for (g, x) in rule.results.iter().zip(ins) {
            if let Some(g) = g.map(|g| rule.meta(g)).filter(|g| *g != Meta::f32(rule.meta(*x).shape)) {
                return Err(wrong_shape(op.name(), g, rule.meta(*x)));
            }
        }
        Ok(rule)
    }

    /// How often each value is used on the way to the wanted contributions.
    fn uses(&self) -> Vec<usize> {
        let mut uses = vec![0; self.metas.len()];
        self.results.iter().flatten().for_each(|v| uses[v.0 as usize] += 1);
        for (i, (_, ins)) in self.steps.iter().enumerate().rev() {
            if uses[self.given + i] > 0 {
                ins.iter().for_each(|v| uses[v.0 as usize] += 1);
            }
        }
        uses
    }

    /// Records the steps that the wanted contributions need, and returns these.
    fn replay(&self, program: &mut impl Recorder, given: &[Val]) -> Result<Vec<Option<Val>>> {
        let uses = self.uses();
        let mut at = given.to_vec();
        for (i, (op, ins)) in self.steps.iter().enumerate() {
            let ins: Vec<Val> = ins.iter().map(|v| at[v.0 as usize]).collect();
            let needed = uses[self.given + i] > 0;
            at.push(if needed { program.record(op.clone(), &ins)? } else { Val(u32::MAX) });
        }
        Ok(self.results.iter().map(|g| g.map(|v| at[v.0 as usize])).collect())
    }

    /// Runs the steps that the wanted contributions need, freeing values after their last use. `given` is asked only
    /// for values that are used.
    pub(crate) fn run(
        &self,
        device: &Device,
        given: impl Fn(usize) -> Result<AnyBuffer>,
    ) -> Result<Vec<Option<AnyBuffer>>> {
        let mut uses = self.uses();
        let mut values: Vec<Option<AnyBuffer>> = vec![None; self.metas.len()];
        for i in 0..self.given {
            if uses[i] > 0 {
                values[i] = Some(given(i)?);
            }
        }
        for (i, (op, ins)) in self.steps.iter().enumerate() {
            if uses[self.given + i] == 0 {
                continue;
            }
            let args: Vec<&AnyBuffer> = ins.iter().filter_map(|v| values[v.0 as usize].as_ref()).collect();
            values[self.given + i] = Some(dittograd_ops::apply(device, op, &args)?);
            for v in ins {
                let v = v.0 as usize;
                uses[v] -= 1;
                if uses[v] == 0 {
                    values[v] = None;
                }
            }
        }
        Ok(self.results.iter().map(|g| g.and_then(|v| values[v.0 as usize].clone())).collect())
    }
}

impl Recorder for Rule {
    fn record(&mut self, op: AnyOp, ins: &[Val]) -> Result<Val> {
        let metas: Vec<Meta> = ins.iter().map(|v| self.metas[v.0 as usize]).collect();
        self.metas.push(op.shape(&metas)?);
        self.steps.push((op, ins.to_vec()));
        Ok(Val(self.metas.len() as u32 - 1))
    }

    fn meta(&self, v: Val) -> Meta {
        self.metas[v.0 as usize]
    }
}
