//! Sessions: where programs are written. A session either *executes* each operation as it is recorded
//! (eager) or only *records* it (trace, the front half of the compiled path). Model code is written once
//! against [`Var`] and does not know which.

mod attention;
mod conv;
mod einsum;
mod index;
mod layout;
mod losses;
mod norm;
mod pointwise;
mod pool;
mod products;
mod random;
mod reductions;
mod scan;
mod softmax;
mod spectral;
mod var;

pub use attention::AttentionOptions;
pub use losses::LabelLoss;
pub use var::{Grads, Var};

use crate::device::{AnyBuffer, Device, Meta};
use crate::error::{Error, ErrorKind, Result};
use crate::graph::{Graph, Source};
use crate::ops::{AnyOp, Recorder, Val};
use crate::params::Param;
use crate::scalar::Scalar;
use crate::shape::Shape;
use crate::tape::Tape;
use crate::tensor::Tensor;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// A place to compute in. Values are named by [`Var`] handles, which know their session and its epoch:
/// after [`Session::reset`] old handles are errors, not other values.
pub struct Session {
    device: Device,
    state: RefCell<State>,
}

struct State {
    record: Record,
    epoch: u32,
    /// The one leaf of each parameter in this epoch, with the parameter's version when it was recorded.
    leaves: BTreeMap<u64, Leaf>,
    seed: u64,
    /// Random calls so far; survives resets, so every step draws anew.
    random_calls: u64,
}

struct Leaf {
    param: Param,
    id: usize,
    version: u64,
}

enum Record {
    Eager(Tape),
    Trace(Graph),
    /// The tape is in the hands of [`Session::with_tape`]'s closure.
    Lent,
}

impl Session {
    /// A session that runs each operation at once.
    pub fn eager(device: &Device) -> Session {
        Session::with(device, Record::Eager(Tape::new(device)), 0)
    }

    /// An eager session whose random streams start from `seed`.
    pub fn eager_seeded(device: &Device, seed: u64) -> Session {
        Session::with(device, Record::Eager(Tape::new(device)), seed)
    }

    /// A session that only records.
    pub(crate) fn trace(device: &Device, seed: u64) -> Session {
        Session::with(device, Record::Trace(Graph::new()), seed)
    }

    fn with(device: &Device, record: Record, seed: u64) -> Session {
        let state = State { record, epoch: 0, leaves: BTreeMap::new(), seed, random_calls: 0 };
        Session { device: device.clone(), state: RefCell::new(state) }
    }

    /// The device it computes on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Number of values recorded since the last reset.
    pub fn size(&self) -> usize {
        match &self.state.borrow().record {
            Record::Eager(tape) => tape.size(),
            Record::Trace(graph) => graph.size(),
            Record::Lent => 0,
        }
    }

    /// Forgets all values of this epoch; parameters and the random counter stay. Handles from before
    /// become errors.
    pub fn reset(&self) {
        let mut state = self.state.borrow_mut();
        state.epoch += 1;
        state.leaves.clear();
        match &mut state.record {
            Record::Eager(tape) => tape.clear(),
            Record::Trace(graph) => *graph = Graph::new(),
            // The new epoch tells `with_tape` to clear it.
            Record::Lent => {}
        }
    }

    /// Random calls so far.
    pub fn random_calls(&self) -> u64 {
        self.state.borrow().random_calls
    }

    /// Continues the random stream at a given call, as after a resume.
    pub fn set_random_calls(&self, calls: u64) {
        self.state.borrow_mut().random_calls = calls;
    }

    fn var(&self, id: usize) -> Var<'_> {
        Var::new(self, id as u32, self.state.borrow().epoch)
    }

    /// Takes the recorded graph out of a trace.
    pub(crate) fn into_graph(self) -> Option<Graph> {
        match self.state.into_inner().record {
            Record::Trace(graph) => Some(graph),
            Record::Eager(_) | Record::Lent => None,
        }
    }

    fn leaf(
        &self,
        what: &str,
        source: Source,
        upload: impl FnOnce() -> Result<AnyBuffer>,
        grad: bool,
    ) -> Result<Var<'_>> {
        let id = {
            let mut state = self.state.borrow_mut();
            match &mut state.record {
                Record::Eager(tape) => tape.leaf(upload()?, Some(what), grad)?,
                Record::Trace(graph) => graph.leaf(source, grad),
                Record::Lent => return Err(lent(what)),
            }
        };
        Ok(self.var(id))
    }

    /// A value from the host, without a gradient. In a trace it is an input of the program.
    pub fn input<T: Scalar>(&self, value: &Tensor<T>) -> Result<Var<'_>> {
        let source = Source::Input(Meta::f32(value.shape()));
        self.leaf("input", source, || AnyBuffer::upload(&self.device, value), false)
    }

    /// A value from the host whose gradient can be asked for.
    pub fn variable<T: Scalar>(&self, value: &Tensor<T>) -> Result<Var<'_>> {
        let source = Source::Input(Meta::f32(value.shape()));
        self.leaf("variable", source, || AnyBuffer::upload(&self.device, value), true)
    }

    /// Labels or other indices from the host. In a trace they are an input of the program.
    pub fn labels(&self, value: &Tensor<u32>) -> Result<Var<'_>> {
        let source = Source::Input(Meta::u32(value.shape()));
        self.leaf("labels", source, || AnyBuffer::upload_indices(&self.device, value), false)
    }

    /// A value already on the device, without a gradient. It shares the memory.
    pub fn buffer(&self, value: &AnyBuffer) -> Result<Var<'_>> {
        self.leaf("buffer", Source::Constant(value.clone()), || Ok(value.clone()), false)
    }

    /// A constant, without a gradient. In a trace it becomes part of the program.
    pub fn constant<T: Scalar>(&self, value: &Tensor<T>) -> Result<Var<'_>> {
        let value = AnyBuffer::upload(&self.device, value)?;
        self.leaf("constant", Source::Constant(value.clone()), || Ok(value), false)
    }

    /// A scalar constant.
    pub fn scalar(&self, value: f64) -> Result<Var<'_>> {
        self.constant(&Tensor::scalar(value))
    }

    /// A placeholder input of a trace, known by shape only.
    pub(crate) fn placeholder(&self, meta: Meta) -> Result<Var<'_>> {
        let missing = || Err(Error::unsupported("placeholder", "an eager session needs values, use input"));
        self.leaf("input", Source::Input(meta), missing, false)
    }

    /// The value of a parameter. Using it again gives the same leaf, so its gradients add up.
    pub fn param(&self, param: &Param) -> Result<Var<'_>> {
        self.device.check_accepts(&format!("parameter {}", param.name()), param.buffer().buffer())?;
        let known = self.state.borrow().leaves.get(&param.id()).map(|l| (l.id, l.version));
        if let Some((id, version)) = known {
            if version != param.version() {
                return Err(changed(param));
            }
            return Ok(self.var(id));
        }
        let var = self.leaf(
            param.name(),
            Source::Param(param.clone()),
            || Ok(param.buffer().clone()),
            param.trainable(),
        )?;
        let leaf = Leaf { param: param.clone(), id: var.id(), version: param.version() };
        self.state.borrow_mut().leaves.insert(param.id(), leaf);
        Ok(var)
    }

    fn check(&self, op: &str, v: Var<'_>) -> Result<usize> {
        if !std::ptr::eq(self, v.session()) {
            return Err(Error::new(op, ErrorKind::Foreign));
        }
        let session = self.state.borrow().epoch;
        if v.epoch() != session {
            return Err(Error::new(op, ErrorKind::Stale { handle: v.epoch(), session }));
        }
        Ok(v.id())
    }

    /// Records any op on values of this session.
    pub fn apply(&self, op: impl Into<AnyOp>, ins: &[Var<'_>]) -> Result<Var<'_>> {
        let op = op.into();
        let ids: Vec<usize> = ins.iter().map(|v| self.check(op.name(), *v)).collect::<Result<_>>()?;
        let id = {
            let mut state = self.state.borrow_mut();
            match &mut state.record {
                Record::Eager(tape) => tape.record(op, &ids)?,
                Record::Trace(graph) => {
                    let vals: Vec<Val> = ids.iter().map(|&i| Val(i as u32)).collect();
                    graph.record(op, &vals)?.0 as usize
                }
                Record::Lent => return Err(lent(op.name())),
            }
        };
        Ok(self.var(id))
    }

    /// Works on the tape of an eager session, for users' own rules. Inside the closure the session itself
    /// answers with an error: its values are on the tape.
    pub fn with_tape<T>(&self, f: impl FnOnce(&mut Tape) -> Result<T>) -> Result<T> {
        let (mut tape, epoch) = {
            let mut state = self.state.borrow_mut();
            let epoch = state.epoch;
            match std::mem::replace(&mut state.record, Record::Lent) {
                Record::Eager(tape) => (tape, epoch),
                Record::Lent => return Err(lent("tape")),
                trace => {
                    state.record = trace;
                    return Err(Error::unsupported(
                        "tape",
                        "a traced program has no tape, use an eager session",
                    ));
                }
            }
        };
        let result = f(&mut tape);
        let mut state = self.state.borrow_mut();
        if state.epoch != epoch {
            tape.clear();
        }
        state.record = Record::Eager(tape);
        result
    }

    fn meta(&self, v: Var<'_>) -> Result<Meta> {
        let id = self.check("meta", v)?;
        match &self.state.borrow().record {
            Record::Eager(tape) => tape
                .node(id)
                .map(|n| n.meta)
                .ok_or_else(|| Error::new("meta", ErrorKind::Node { id, size: tape.size() })),
            Record::Trace(graph) => Ok(graph.meta(Val(id as u32))),
            Record::Lent => Err(lent("meta")),
        }
    }

    fn read(&self, v: Var<'_>) -> Result<AnyBuffer> {
        let id = self.check("value", v)?;
        match &self.state.borrow().record {
            Record::Eager(tape) => tape.live_value("value", id).cloned(),
            Record::Trace(_) => Err(Error::unsupported(
                "value",
                "a traced program has no values yet; return the value from the program instead",
            )),
            Record::Lent => Err(lent("value")),
        }
    }

    fn backward(&self, v: Var<'_>, seed: Option<&Tensor<f32>>, free_values: bool) -> Result<Grads> {
        let id = self.check("backward", v)?;
        let mut state = self.state.borrow_mut();
        let State { record, leaves, epoch, .. } = &mut *state;
        let tape = match record {
            Record::Eager(tape) => tape,
            Record::Lent => return Err(lent("backward")),
            Record::Trace(_) => {
                let what = "a traced program is differentiated when it is compiled";
                return Err(Error::unsupported("backward", what));
            }
        };
        let meta = tape.node(id).map(|n| (n.meta, n.requires_grad));
        let Some((meta, requires_grad)) = meta else {
            return Err(Error::new("backward", ErrorKind::Node { id, size: tape.size() }));
        };
        if let Some(leaf) = leaves.values().find(|l| l.version != l.param.version()) {
            return Err(changed(&leaf.param));
        }
        if !requires_grad {
            let why = "nothing this value was computed from requires a gradient".to_string();
            return Err(Error::new("backward", ErrorKind::Gradient { why }));
        }
        let seed = match seed {
            Some(seed) => AnyBuffer::upload(&self.device, seed)?,
            None if meta.shape == Shape::SCALAR => AnyBuffer::full(&self.device, Shape::SCALAR, 1.0)?,
            None => {
                let why = format!(
                    "a value of shape {} needs a seed of that shape; only a scalar has the seed 1",
                    meta.shape
                );
                return Err(Error::new("backward", ErrorKind::Gradient { why }));
            }
        };
        // Gradients of leaves are kept: those of parameters and of variables.
        let leaf: Vec<bool> =
            (0..tape.size()).map(|i| tape.node(i).is_some_and(|n| n.parents.is_empty())).collect();
        let param_of: BTreeMap<usize, &Param> = leaves.values().map(|l| (l.id, &l.param)).collect();
        let grads = tape.backward_sparse(id, seed, |i| leaf[i], free_values)?;
        Ok(Grads::new(grads, &param_of, *epoch))
    }
}

#[cold]
fn lent(op: &str) -> Error {
    Error::unsupported(
        op,
        "the session's tape is lent to with_tape; use the tape there, or the session afterwards",
    )
}

fn changed(param: &Param) -> Error {
    let why = format!(
        "parameter {} changed after it was recorded; reset the session before the next step",
        param.name()
    );
    Error::new("session", ErrorKind::Gradient { why })
}
