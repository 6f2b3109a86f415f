//! Expressions as gradient rules record them: on those of their arguments that they read.

use super::expression::{Expr, Pointwise, Reg};
use super::map::Map;
use crate::{Recorder, Val};
use dittograd_device::Meta;
use dittograd_numerics::error::Result;
use dittograd_numerics::scalar::Real;
use dittograd_numerics::shape::Shape;
use std::sync::Arc;

/// An expression with one result, ready to be recorded.
#[derive(Clone, Debug)]
pub(crate) struct Recordable {
    /// Number of its arguments.
    inputs: usize,
    /// Expressions whose results are read later, where one was too long.
    before: Vec<Part>,
    /// The one that has the result.
    last: Part,
    /// The argument that it only passes on, if it does nothing else.
    same: Option<usize>,
}

/// A part of an expression that was too long for one op.
#[derive(Clone, Debug)]
struct Part {
    /// The expression of the arguments that it reads.
    program: Arc<Pointwise>,
    /// Which these are, of the arguments of the whole and the results of the parts before.
    used: Vec<usize>,
}

impl Part {
    fn new(program: &Pointwise) -> Part {
        let reads = program.reads();
        let used: Vec<usize> = (0..program.inputs()).filter(|&i| reads[i]).collect();
        let dense = Pointwise::trace(used.len(), |x| {
            let mut all = vec![Expr::c(0.0); program.inputs()];
            used.iter().zip(x).for_each(|(&old, x)| all[old] = *x);
            program.eval(&all)
        });
        Part { program: Arc::new(dense), used }
    }
}

impl Recordable {
    pub(crate) fn new(program: &Pointwise) -> Recordable {
        let same = if let Reg::In(i) = program.result() { Some(usize::from(i)) } else { None };
        let (before, last) = program.clone().split();
        let before = before.iter().map(Part::new).collect();
        Recordable { inputs: program.inputs(), before, last: Part::new(&last), same }
    }

    /// Whether one op has room for it.
    #[cfg(test)]
    pub(crate) fn fits(&self) -> bool {
        self.before.is_empty() && self.last.program.fits()
    }

    /// Whether it is zero everywhere.
    pub(crate) fn is_zero(&self) -> bool {
        let program = &self.last.program;
        matches!(program.result(), Reg::Const(c) if program.consts()[usize::from(c)] == 0.0)
    }

    /// Records it on `args`, of which there may be more than it has. An argument of the right shape that it only passes on is the
    /// value itself.
    pub(crate) fn record(&self, r: &mut dyn Recorder, shape: Shape, args: &[Val]) -> Result<Val> {
        if let Some(i) = self.same
            && r.meta(args[i]).shape == shape
        {
            return Ok(args[i]);
        }
        let mut values = args[..self.inputs].to_vec();
        let mut one = |part: &Part, values: &[Val]| {
            let ins: Vec<Val> = part.used.iter().map(|&i| values[i]).collect();
            r.record(Map { program: part.program.clone(), shape }.into(), &ins)
        };
        for part in &self.before {
            values.push(one(part, &values)?);
        }
        one(&self.last, &values)
    }
}

/// Records an expression with one result on those of `args` that it reads.
#[doc(hidden)]
pub fn record_pointwise(
    r: &mut dyn Recorder,
    program: &Pointwise,
    shape: Shape,
    args: &[Val],
) -> Result<Val> {
    Recordable::new(program).record(r, shape, args)
}

/// An op and what it reads, of the inputs and then of the values of the ops before it.
type Reading = (Map, Vec<usize>);

impl Map {
    /// What is too long for one op as several, the last of which has the value.
    #[doc(hidden)]
    pub fn parts(self) -> (Vec<Reading>, Reading) {
        if self.program.fits() {
            let all = (0..self.program.inputs()).collect();
            return (Vec::new(), (self, all));
        }
        let (before, last) = Pointwise::clone(&self.program).split();
        let op = |program: &Pointwise| {
            let Part { program, used } = Part::new(program);
            (Map { program, shape: self.shape }, used)
        };
        (before.iter().map(op).collect(), op(&last))
    }
}

impl dyn Recorder + '_ {
    /// Records an elementwise formula over values that broadcast. One that is too long for an op becomes several.
    pub fn pointwise(&mut self, ins: &[Val], f: impl FnOnce(&[Expr]) -> Expr) -> Result<Val> {
        let metas: Vec<Meta> = ins.iter().map(|v| self.meta(*v)).collect();
        let (before, (last, used)) = Map::of(&metas, f)?.parts();
        let mut values = ins.to_vec();
        let read = |values: &[Val], used: &[usize]| used.iter().map(|&i| values[i]).collect::<Vec<Val>>();
        for (op, used) in before {
            let value = self.record(op.into(), &read(&values, &used))?;
            values.push(value);
        }
        self.record(last.into(), &read(&values, &used))
    }
}
