//! Gradients as part of the program: the reverse walk records the ops of the rules where the values are, on a tape or in
//! a graph, so that they are values like any other and have gradients themselves.

use dittograd_device::{AnyBuffer, Device, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_ops::{self, AnyOp, Io, Recorder, Val, elementwise};

/// Values that know what they were computed from.
pub(crate) trait Program: Recorder {
    /// The op and its inputs, for a computed value through which gradients flow.
    fn origin(&self, v: Val) -> Result<Option<(AnyOp, Vec<Val>)>>;
    /// Whether gradients are wanted of the value.
    fn requires_grad(&self, v: Val) -> bool;
}

/// Appends the gradients of `Σ <seed, value>` over `seeds = (value, seed)` with respect to `wrt`, in the order the tape
/// walks (C5): values from the last to the first, contributions in the order their rule lists them. Only values
/// between the two are walked. `None` where nothing depends on a value.
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
    for &(v, seed) in seeds {
        add(program, &mut grads[v.0 as usize], seed)?;
    }
    for id in (0..end).rev() {
        let (Some(dy), Some((op, ins))) = (grads[id].filter(|_| leads[id]), origins[id].take()) else {
            continue;
        };
        let wanted: Vec<bool> =
            ins.iter().map(|p| leads[p.0 as usize] && program.requires_grad(*p)).collect();
        if !wanted.contains(&true) {
            continue;
        }
        let given: Vec<Val> = ins.iter().copied().chain([Val(id as u32), dy]).collect();
        let rule = Rule::of(&op, given.iter().map(|v| program.meta(*v)).collect(), &wanted)?;
        let contributions = rule.replay(program, &given)?;
        for (parent, g) in ins.iter().zip(contributions) {
            if let Some(g) = g {
                add(program, &mut grads[parent.0 as usize], g)?;
            }
        }
    }
    Ok(wrt.iter().map(|v| grads.get(v.0 as usize).copied().flatten()).collect())
}

fn add(program: &mut impl Program, slot: &mut Option<Val>, g: Val) -> Result<()> {
    *slot = Some(match *slot {
        None => g,
        Some(sum) if program.meta(sum) != program.meta(g) => {
            return Err(wrong_shape("gradients", program.meta(g), program.meta(sum)));
        }
        Some(sum) => program.record(elementwise::Add {}.into(), &[sum, g])?,
    });
    Ok(())
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
