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
    /// The expression of the arguments that it reads.
    program: Arc<Pointwise>,
    /// Which these are.
    used: Vec<usize>,
    /// The argument that it only passes on, if it does nothing else.
    same: Option<usize>,
}

impl Recordable {
    pub(crate) fn new(program: &Pointwise) -> Recordable {
        let reads = program.reads();
        let used: Vec<usize> = (0..program.inputs()).filter(|&i| reads[i]).collect();
        let same = if let Reg::In(i) = program.result() { Some(usize::from(i)) } else { None };
        let dense = Pointwise::trace(used.len(), |x| {
            let mut all = vec![Expr::c(0.0); program.inputs()];
            used.iter().zip(x).for_each(|(&old, x)| all[old] = *x);
            program.eval(&all)
        });
        Recordable { program: Arc::new(dense), used, same }
    }

    /// Whether it is zero everywhere.
    pub(crate) fn is_zero(&self) -> bool {
        let program = &self.program;
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
        let ins: Vec<Val> = self.used.iter().map(|&i| args[i]).collect();
        r.record(Map { program: self.program.clone(), shape }.into(), &ins)
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

impl dyn Recorder + '_ {
    /// Records an elementwise formula over values that broadcast.
    pub fn pointwise(&mut self, ins: &[Val], f: impl FnOnce(&[Expr]) -> Expr) -> Result<Val> {
        let metas: Vec<Meta> = ins.iter().map(|v| self.meta(*v)).collect();
        self.record(Map::of(&metas, f)?.into(), ins)
    }
}
