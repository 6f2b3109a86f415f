//! Sessions: where programs are written. An eager session *executes* each operation as it is recorded. A trace only
//! *records* it, for compilation. Model code is written once against [`Var`] and does not know which of the two it runs
//! in.

mod assign;
mod constants;
mod operators;
mod replay;

// One file per section of `Var`'s documentation page, in the order of the page. Blank lines keep rustfmt from sorting.
mod var;

mod create;
mod gamma;
mod nats;
mod order;
mod pointwise;
mod special;

mod reductions;
mod statistics;

mod differences;
mod quantiles;
mod scan;
mod select;

mod histograms;

mod arrange;
mod layout;

mod algebra;
mod embedding;
mod factors;
mod index;
mod linalg;
mod matrices;
mod products;
mod reflections;
mod replace;
mod scatter;
mod segments;

mod einsum;

mod conv;
mod padding;
mod pool;
mod resize;

mod norm;
mod softmax;

mod attention;
mod dropout;
mod random;
mod recurrent;
mod spectral;

mod fourier;

mod ctc;
mod losses;
mod margin_losses;

mod derivatives;

pub use crate::gradients::Grads;
pub use crate::nats::Nats;
pub use algebra::MatrixNorm;
pub use attention::{AttentionOptions, MultiHeadAttention};
pub use ctc::CtcLoss;
pub use differences::Spacing;
pub use embedding::EmbeddingOptions;
pub use fourier::{FftNorm, Stft};
pub use losses::LabelLoss;
pub use margin_losses::{MultiMargin, PoissonNll, TripletMargin};
pub use padding::PadMode;
pub use pool::AvgPoolOptions;
pub use quantiles::QuantileRule;
pub use recurrent::Recurrence;
pub use reflections::QrMode;
pub use resize::{GridSampleOptions, Interpolate, Interpolation};
pub use scatter::Reduce;
pub use segments::Segments;
pub use select::Unique;
pub use var::{Var, VarId};

use crate::graph::{Graph, Source};
use crate::params::{self, Param};
use crate::tape::Tape;
use assign::Assigned;
use constants::Constants;
use dittograd_device::{AnyBuffer, Device, Meta};
use dittograd_numerics::environment;
use dittograd_numerics::error::{Error, ErrorKind, Located, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::{AnyTensor, Tensor};
use dittograd_ops::pointwise::expression::Expr;
use dittograd_ops::pointwise::map::Map;
use dittograd_ops::{AnyOp, Custom, Op, Recorder, Val};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;

/// Options of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Seed of the random streams.
    pub seed: u64,
    /// Whether gradients can be computed. If not, nothing is recorded for them, and [`Session::scope`] frees values.
    pub track_gradients: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { seed: 0, track_gradients: true }
    }
}

/// A place to compute in. Values are named by [`Var`] handles, which know their session and its epoch: after
/// [`Session::reset`], using an old handle is an error.
pub struct Session {
    device: Device,
    state: RefCell<State>,
}

struct State {
    record: Record,
    epoch: u32,
    /// Number of epochs so far.
    epochs: u32,
    track_gradients: bool,
    /// The leaf of each parameter in this epoch, with the parameter's version when it was recorded.
    leaves: BTreeMap<u64, Leaf>,
    /// New values of parameters, which take effect when the step ends.
    assigned: Assigned,
    /// Constants on the device. They survive resets.
    constants: Constants,
    seed: u64,
    /// Random calls so far. Survives resets, so every step draws new numbers.
    random_calls: u64,
    /// An error for something that a program could not repeat at every run. Reported when the trace ends.
    refused: Option<Error>,
    /// [`params::changes`] when the session began.
    changes: u64,
}

struct Leaf {
    param: Param,
    id: usize,
    version: u64,
}

enum Record {
    Eager(Tape),
    Trace(Graph),
    /// The tape is lent to the closure of [`Session::with_tape`].
    Lent,
}

/// Prints what was recorded since the last reset, one value per line: the [`Tape`] of an eager session, the [`Graph`]
/// of a trace.
///
/// ```
/// use dittograd::prelude::*;
/// # fn main() -> Result<()> {
/// let session = Session::eager(&Device::cpu()?);
/// let x = session.input(&Tensor::new(&[2, 2], vec![1.0f32, 2.0, 3.0, 4.0])?)?;
/// let w = session.variable(&Tensor::new(&[2], vec![0.5f32, 0.25])?)?;
/// (x * w)?.reshape(&[4])?;
/// let text = "\
/// %0  input     f32[2, 2]  -     16 B
/// %1  variable  f32[2]     grad  8 B
/// %2  mul       f32[2, 2]  grad  16 B   %0 %1
/// %3  reshape   f32[4]     grad  in %2  %2
/// 4 nodes, 3 with gradient, 40 B live";
/// assert_eq!(session.to_string(), text);
/// # Ok(())
/// # }
/// ```
impl fmt::Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.state.borrow().record {
            Record::Eager(tape) => tape.fmt(f),
            Record::Trace(graph) => graph.fmt(f),
            Record::Lent => f.write_str("<the tape is lent to with_tape>"),
        }
    }
}

impl Session {
    /// A session that runs each operation at once.
    pub fn eager(device: &Device) -> Session {
        Session::new(device, Options::default())
    }

    /// An eager session with the given random seed.
    pub fn eager_seeded(device: &Device, seed: u64) -> Session {
        Session::new(device, Options { seed, ..Options::default() })
    }

    /// An eager session for inference: nothing is recorded for gradients.
    #[doc(alias("no_grad", "inference_mode"))]
    pub fn inference(device: &Device) -> Session {
        Session::new(device, Options { track_gradients: false, ..Options::default() })
    }

    /// An eager session with these options.
    pub fn new(device: &Device, options: Options) -> Session {
        Session::with(device, Record::Eager(Tape::new(device)), options)
    }

    /// A session that only records.
    pub(crate) fn trace(device: &Device, seed: u64) -> Session {
        Session::with(device, Record::Trace(Graph::new()), Options { seed, ..Options::default() })
    }

    fn with(device: &Device, record: Record, options: Options) -> Session {
        let Options { seed, track_gradients } = options;
        let (leaves, assigned, constants) = Default::default();
        let state = State {
            record,
            epoch: 0,
            epochs: 1,
            track_gradients,
            leaves,
            assigned,
            constants,
            seed,
            random_calls: 0,
            refused: None,
            changes: params::changes(),
        };
        Session { device: device.clone(), state: RefCell::new(state) }
    }

    /// The random seed.
    pub fn seed(&self) -> u64 {
        self.state.borrow().seed
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

    /// Ends a step: forgets all values of this epoch, and makes older handles errors. Parameters, the random counter
    /// and constants in use stay. Parameters get the values [assigned](Session::assign) to them, and a
    /// [watched](Device::watch) device counts the step. In a traced program this is an error, which is reported when
    /// the trace ends.
    pub fn reset(&self) {
        let mut state = self.state.borrow_mut();
        if matches!(state.record, Record::Trace(_)) {
            let what = "a traced step ends by itself, and reset would drop what was recorded; call reset only on eager \
                        sessions";
            state.refused.get_or_insert(Error::unsupported("reset", what));
            return;
        }
        state.epoch = state.epochs;
        state.epochs += 1;
        state.leaves.clear();
        state.assigned.perform();
        state.constants.end_step();
        match &mut state.record {
            Record::Eager(tape) => tape.clear(),
            Record::Trace(_) => {}
            // `with_tape` sees the new epoch and clears the tape.
            Record::Lent => {}
        }
        drop(state);
        self.device.end_step();
    }

    /// Number of random calls so far.
    pub fn random_calls(&self) -> u64 {
        self.state.borrow().random_calls
    }

    /// Sets the number of random calls, to continue the random stream after a resume. In a traced program this is an
    /// error, which is reported when the trace ends: there calls are counted from the start of each run.
    pub fn set_random_calls(&self, calls: u64) {
        let mut state = self.state.borrow_mut();
        if matches!(state.record, Record::Trace(_)) {
            let what = "a traced program counts random calls from the beginning of each run; call set_random_calls of \
                        TrainStep or Function before a run";
            state.refused.get_or_insert(Error::unsupported("set_random_calls", what));
            return;
        }
        state.random_calls = calls;
    }

    /// Like [`Session::set_random_calls`], but in a trace it sets the trace's own counter.
    pub(crate) fn seek_random(&self, calls: u64) {
        self.state.borrow_mut().random_calls = calls;
    }

    fn var(&self, id: usize) -> Var<'_> {
        Var::new(self, id as u32, self.state.borrow().epoch)
    }

    /// Takes the recorded graph out of a trace. Errors if the code did something that a program cannot repeat at every
    /// run.
    #[doc(hidden)]
    #[track_caller]
    pub fn into_graph(self) -> Result<Graph> {
        let State { record, refused, changes, .. } = self.state.into_inner();
        if let Some(error) = refused {
            return Err(error);
        }
        if changes != params::changes() {
            return Err(changed_in_trace());
        }
        match record {
            Record::Trace(graph) => Ok(graph),
            Record::Eager(_) | Record::Lent => {
                Err(Error::new("trace", ErrorKind::Internal { what: "a trace without a graph" }))
            }
        }
    }

    #[track_caller]
    fn leaf(
        &self,
        what: &str,
        source: Source,
        upload: impl FnOnce() -> Result<AnyBuffer>,
        grad: bool,
    ) -> Result<Var<'_>> {
        let id = {
            let mut state = self.state.borrow_mut();
            let grad = grad && state.track_gradients;
            match &mut state.record {
                Record::Eager(tape) => tape.leaf(upload()?, Some(what), grad)?,
                Record::Trace(graph) => graph.leaf(source, grad),
                Record::Lent => return Err(lent(what)),
            }
        };
        Ok(self.var(id))
    }

    /// Errors in a trace, whose program would not see a new host value in later runs.
    #[track_caller]
    fn only_eager(&self, op: &str, fixed: &str) -> Result<()> {
        if !self.is_trace() {
            return Ok(());
        }
        let what = format!(
            "this code is traced, and later runs of the program would not see the value; pass it as an argument of the step or \
             program, or use {fixed} if it never changes"
        );
        Err(Error::unsupported(op, what))
    }

    fn is_trace(&self) -> bool {
        matches!(self.state.borrow().record, Record::Trace(_))
    }

    /// A value from the host, without a gradient. In a traced program this is an error: pass the value as an argument
    /// of the program, or use [`Session::constant`].
    #[doc(alias("tensor", "from_numpy"))]
    #[track_caller]
    pub fn input<T: Scalar>(&self, value: &Tensor<T>) -> Result<Var<'_>> {
        self.only_eager("input", "constant")?;
        let source = Source::Input(Meta::f32(value.shape()));
        self.leaf("input", source, || AnyBuffer::upload(&self.device, value), false)
    }

    /// A value from the host: numbers (see [`Session::input`]) or indices (see [`Session::labels`]).
    #[track_caller]
    pub fn input_any<T: Scalar>(&self, value: &AnyTensor<T>) -> Result<Var<'_>> {
        match value {
            AnyTensor::Num(t) => self.input(t),
            AnyTensor::Idx(t) => self.labels(t),
        }
    }

    /// A value from the host with a gradient. In a traced program this is an error: see [`Session::input`], and
    /// [`Var::tracked`] for gradients.
    #[doc(alias = "requires_grad")]
    #[track_caller]
    pub fn variable<T: Scalar>(&self, value: &Tensor<T>) -> Result<Var<'_>> {
        self.only_eager("variable", "constant and tracked")?;
        let source = Source::Input(Meta::f32(value.shape()));
        self.leaf("variable", source, || AnyBuffer::upload(&self.device, value), true)
    }

    /// Labels or other indices from the host. In a traced program this is an error: pass them as an argument of the
    /// program, or use [`Session::indices`] or [`Session::nats`].
    #[track_caller]
    pub fn labels(&self, value: &Tensor<u32>) -> Result<Var<'_>> {
        self.only_eager("labels", "indices")?;
        let source = Source::Input(Meta::u32(value.shape()));
        self.leaf("labels", source, || AnyBuffer::upload_indices(&self.device, value), false)
    }

    /// A value that is already on the device, without a gradient. Shares its memory.
    #[track_caller]
    pub fn buffer(&self, value: &AnyBuffer) -> Result<Var<'_>> {
        self.device.check_accepts("buffer", value.buffer())?;
        self.leaf("buffer", Source::State(value.clone()), || Ok(value.clone()), false)
    }

    /// As [`Session::input`] or [`Session::labels`], of a value that is on the device already. Shares its memory.
    #[doc(hidden)]
    #[track_caller]
    pub fn input_on(&self, value: &AnyBuffer) -> Result<Var<'_>> {
        self.only_eager("input", "constant")?;
        self.device.check_accepts("input", value.buffer())?;
        self.leaf("input", Source::Input(value.meta()), || Ok(value.clone()), false)
    }

    /// A constant, without a gradient. In a trace it becomes part of the program. The session caches up to 64 MiB of
    /// constants on the device: one that the last few steps used is not uploaded again, and equal ones share memory.
    #[track_caller]
    pub fn constant<T: Scalar>(&self, value: &Tensor<T>) -> Result<Var<'_>> {
        let value = self.state.borrow_mut().constants.get(&self.device, value)?;
        self.leaf("constant", Source::Constant(value.clone()), || Ok(value), false)
    }

    /// A scalar constant.
    #[track_caller]
    pub fn scalar(&self, value: f64) -> Result<Var<'_>> {
        self.constant(&Tensor::scalar(value))
    }

    /// A placeholder input of a trace: only its shape is known.
    #[track_caller]
    pub(crate) fn placeholder(&self, meta: Meta) -> Result<Var<'_>> {
        let missing = || Err(Error::unsupported("placeholder", "an eager session needs values, use input"));
        self.leaf("input", Source::Input(meta), missing, false)
    }

    /// The value of a parameter. Every use gives the same leaf, so gradients add up. After an
    /// [assignment](Session::assign) in this step it is the assigned value.
    #[track_caller]
    pub fn param(&self, param: &Param) -> Result<Var<'_>> {
        self.device.check_accepts(&format!("parameter {}", param.name()), param.buffer().buffer())?;
        self.state.borrow_mut().assigned.check()?;
        let known = self.state.borrow().leaves.get(&param.id()).map(|l| (l.id, l.version));
        if let Some((id, version)) = known {
            if version != param.version() {
                return Err(if self.is_trace() { changed_in_trace() } else { changed(param) });
            }
            return Ok(self.var(id));
        }
        let var =
            self.leaf(param.name(), Source::Param(param.clone()), || Ok(param.buffer()), param.trainable())?;
        let leaf = Leaf { param: param.clone(), id: var.id(), version: param.version() };
        self.state.borrow_mut().leaves.insert(param.id(), leaf);
        Ok(var)
    }

    /// Whether a value has the memory of a parameter that this step read.
    fn reads_param(&self, value: &AnyBuffer) -> bool {
        let shares = |l: &Leaf| l.param.buffer().buffer().shares(value.buffer());
        self.state.borrow().leaves.values().any(shares)
    }

    #[track_caller]
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
    #[track_caller]
    pub fn apply(&self, op: impl Into<AnyOp>, ins: &[Var<'_>]) -> Result<Var<'_>> {
        self.apply_any(op.into(), ins)
    }

    /// Records an op of one's own: any type that implements [`Op`]. It works wherever the library's ops do:
    /// eagerly and compiled, on every device it has a kernel for, with gradients if it has a rule.
    #[track_caller]
    pub fn custom<O: Op + Send + Sync + 'static>(&self, op: &O, ins: &[Var<'_>]) -> Result<Var<'_>> {
        self.apply_any(Custom::new(op.clone())?.into(), ins)
    }

    /// Records an elementwise formula over values that broadcast, as one op: its kernels and its gradient are made from the formula,
    /// and it is fused with its neighbours as any other. A formula that needs more registers than there are becomes several ops.
    ///
    /// Constants may be made outside of `f`, all other values only inside.
    ///
    /// ```
    /// use dittograd::prelude::*;
    /// use dittograd::scalar::Real;
    /// # fn main() -> Result<()> {
    /// let session = Session::eager(&Device::cpu()?);
    /// let x = session.variable(&Tensor::new(&[3], vec![-1.0f32, 0.0, 2.0])?)?;
    /// let y = session.pointwise(&[x], |v| v[0] * v[0].sigmoid())?;
    /// assert_eq!(y.value::<f32>()?, x.mul(x.sigmoid()?)?.value::<f32>()?);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn pointwise(&self, ins: &[Var<'_>], f: impl FnOnce(&[Expr]) -> Expr) -> Result<Var<'_>> {
        let metas: Vec<Meta> = ins.iter().map(|v| v.meta()).collect::<Result<_>>()?;
        let (before, (last, used)) = Map::of(&metas, f).located()?.parts();
        let mut values = ins.to_vec();
        fn read<'v>(values: &[Var<'v>], used: &[usize]) -> Vec<Var<'v>> {
            used.iter().map(|&i| values[i]).collect()
        }
        for (op, used) in before {
            values.push(self.apply_any(op.into(), &read(&values, &used))?);
        }
        self.apply_any(last.into(), &read(&values, &used))
    }

    /// Apart from `apply`, so that it is compiled once, not for every op.
    #[track_caller]
    fn apply_any(&self, op: AnyOp, ins: &[Var<'_>]) -> Result<Var<'_>> {
        let _strict = environment::enter();
        let location = Location::caller();
        let ids = ins.iter().map(|v| self.check(op.name(), *v)).collect::<Result<Vec<usize>>>();
        let ids = ids.map_err(|e| e.at(location))?;
        let id = {
            let mut state = self.state.borrow_mut();
            let State { record, leaves, .. } = &mut *state;
            match record {
                Record::Eager(tape) => tape.record(op, &ids).map_err(|e| {
                    let name = |id: &usize| leaves.values().find(|l| l.id == *id).map(|l| l.param.name());
                    e.in_layer(&ids.iter().filter_map(name).collect::<Vec<_>>()).at(location)
                })?,
                Record::Trace(graph) => {
                    let vals: Vec<Val> = ids.iter().map(|&i| Val(i as u32)).collect();
                    graph.record_at(location, op, &vals)?.0 as usize
                }
                Record::Lent => return Err(lent(op.name())),
            }
        };
        Ok(self.var(id))
    }

    /// Gradient checkpointing: runs `f`, which computes one value from others. A compiled program does not keep the
    /// intermediate values until the backward pass, but recomputes them there from the inputs of `f`: less memory for
    /// more time, and the same bits, random draws included. An eager session keeps them.
    #[doc(alias("checkpointing", "remat"))]
    #[track_caller]
    pub fn checkpoint<'s>(&'s self, f: impl FnOnce() -> Result<Var<'s>>) -> Result<Var<'s>> {
        let set = |open: bool| match &mut self.state.borrow_mut().record {
            Record::Trace(graph) => graph.segment(open),
            Record::Eager(_) | Record::Lent => false,
        };
        let before = set(true);
        let value = f();
        set(before);
        let value = value?;
        let id = self.check("checkpoint", value)?;
        if let (Record::Trace(graph), false) = (&mut self.state.borrow_mut().record, before) {
            graph.keep(Val(id as u32));
        }
        Ok(value)
    }

    /// Gives access to the tape of an eager session, for custom gradient rules. Inside the closure, calls on the
    /// session itself are errors, since its values are on the tape.
    #[track_caller]
    pub fn with_tape<T>(&self, f: impl FnOnce(&mut Tape) -> Result<T>) -> Result<T> {
        let lent_out = {
            let mut state = self.state.borrow_mut();
            let epoch = state.epoch;
            match std::mem::replace(&mut state.record, Record::Lent) {
                Record::Eager(tape) => LentTape { session: self, tape: Some(tape), epoch },
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
        lent_out.use_in(f)
    }

    /// Runs `f` on a new, empty tape and restores the old one afterwards. Handles from outside are stale inside, and
    /// handles from inside are stale afterwards. Parameters and the random counter continue.
    #[track_caller]
    pub fn fresh<T>(&self, f: impl FnOnce(&Session) -> Result<T>) -> Result<T> {
        let (record, leaves, epoch) = {
            let mut state = self.state.borrow_mut();
            let empty = match &state.record {
                Record::Eager(_) => Record::Eager(Tape::new(&self.device)),
                Record::Trace(_) => {
                    let what = "a traced program is one tape; use an eager session";
                    return Err(Error::unsupported("fresh", what));
                }
                Record::Lent => return Err(lent("fresh")),
            };
            let before =
                (std::mem::replace(&mut state.record, empty), std::mem::take(&mut state.leaves), state.epoch);
            state.epoch = state.epochs;
            state.epochs += 1;
            before
        };
        let restore = Restore { session: self, before: Some((record, leaves, epoch)) };
        let result = f(self);
        drop(restore);
        result
    }

    /// Runs `f` and, in a session that does not track gradients, frees the values it computed, except for the one it returns. In
    /// others it only runs `f`: gradients need the values. All models of the library compute in a scope, so that in an
    /// [inference](Session::inference) session only their results stay.
    #[track_caller]
    pub fn scope<'s>(&'s self, f: impl FnOnce() -> Result<Var<'s>>) -> Result<Var<'s>> {
        self.scope_of(f, |v| vec![*v])
    }

    /// [`Session::scope`] of something that holds several values.
    #[doc(hidden)]
    #[track_caller]
    pub fn scope_of<'s, T>(
        &'s self,
        f: impl FnOnce() -> Result<T>,
        values: impl FnOnce(&T) -> Vec<Var<'s>>,
    ) -> Result<T> {
        let (first, location) = (self.size(), Location::caller());
        let result = f().map_err(|e| e.at(location));
        if self.state.borrow().track_gradients {
            return result;
        }
        let mut kept = match &result {
            Ok(of) => values(of).into_iter().map(|v| self.check("scope", v)).collect::<Result<Vec<_>>>()?,
            Err(_) => Vec::new(),
        };
        let mut state = self.state.borrow_mut();
        let State { record, leaves, .. } = &mut *state;
        // Every use of a parameter is the same leaf.
        kept.extend(leaves.values().map(|l| l.id));
        if let Record::Eager(tape) = record {
            tape.free_values(first, &kept);
        }
        result
    }

    #[track_caller]
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

    #[track_caller]
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

    /// Gradients of `Σ <seed, value>` over several values with their seeds, with respect to all parameters and
    /// variables they were computed from. Intermediate values are freed during the pass.
    #[track_caller]
    pub fn backward_from(&self, seeds: &[(Var<'_>, &Tensor<f32>)]) -> Result<Grads> {
        let seeds: Vec<_> = seeds.iter().map(|(v, seed)| (*v, Some(*seed))).collect();
        self.backward(&seeds, true)
    }

    #[track_caller]
    fn backward(&self, from: &[(Var<'_>, Option<&Tensor<f32>>)], free_values: bool) -> Result<Grads> {
        let from = from
            .iter()
            .map(|(v, seed)| Ok((self.check("backward", *v)?, *seed)))
            .collect::<Result<Vec<_>>>()?;
        let mut state = self.state.borrow_mut();
        let State { record, leaves, epoch, track_gradients, .. } = &mut *state;
        let tape = match record {
            Record::Eager(tape) => tape,
            Record::Lent => return Err(lent("backward")),
            Record::Trace(_) => {
                let what = "a traced program is differentiated when it is compiled";
                return Err(Error::unsupported("backward", what));
            }
        };
        if let Some(leaf) = leaves.values().find(|l| l.version != l.param.version()) {
            return Err(changed(&leaf.param));
        }
        let mut seeds = Vec::with_capacity(from.len());
        for (id, seed) in from {
            let meta = tape.node(id).map(|n| (n.meta, n.requires_grad));
            let Some((meta, requires_grad)) = meta else {
                return Err(Error::new("backward", ErrorKind::Node { id, size: tape.size() }));
            };
            if !requires_grad {
                let why = match *track_gradients {
                    true => {
                        "nothing this value was computed from requires a gradient; use trainable parameters, or \
                         Session::variable"
                    }
                    false => {
                        "nothing here requires a gradient: Session::inference records none; use Session::eager"
                    }
                };
                let why = why.to_string();
                return Err(Error::new("backward", ErrorKind::Gradient { why }));
            }
            let seed = match seed {
                Some(seed) => AnyBuffer::upload(&self.device, seed)?,
                None if meta.shape == Shape::SCALAR => AnyBuffer::full(&self.device, Shape::SCALAR, 1.0)?,
                None => {
                    let why = format!(
                        "a value of shape {} needs a seed of that shape: backward_from; only a scalar, as sum() and \
                         mean() give, has the seed 1",
                        meta.shape
                    );
                    return Err(Error::new("backward", ErrorKind::Gradient { why }));
                }
            };
            seeds.push((id, seed));
        }
        // Keep the gradients of leaves: parameters and variables.
        let leaf: Vec<bool> =
            (0..tape.size()).map(|i| tape.node(i).is_some_and(|n| n.parents.is_empty())).collect();
        let param_of: BTreeMap<usize, &Param> = leaves.values().map(|l| (l.id, &l.param)).collect();
        let grads = tape.backward_seeds(seeds, |i| leaf[i], free_values)?;
        Ok(Grads::new(grads, &param_of, *epoch))
    }
}

/// Returns a lent tape, even if the borrower panics.
struct LentTape<'s> {
    session: &'s Session,
    tape: Option<Tape>,
    epoch: u32,
}

impl LentTape<'_> {
    #[track_caller]
    fn use_in<T>(mut self, f: impl FnOnce(&mut Tape) -> Result<T>) -> Result<T> {
        match &mut self.tape {
            Some(tape) => f(tape),
            None => Err(lent("tape")),
        }
    }
}

impl Drop for LentTape<'_> {
    fn drop(&mut self) {
        let Some(mut tape) = self.tape.take() else { return };
        let mut state = self.session.state.borrow_mut();
        if state.epoch != self.epoch {
            tape.clear();
        }
        state.record = Record::Eager(tape);
    }
}

/// Restores a session's tape, even after a panic.
struct Restore<'s> {
    session: &'s Session,
    before: Option<(Record, BTreeMap<u64, Leaf>, u32)>,
}

impl Drop for Restore<'_> {
    fn drop(&mut self) {
        if let Some((record, leaves, epoch)) = self.before.take() {
            let mut state = self.session.state.borrow_mut();
            (state.record, state.leaves, state.epoch) = (record, leaves, epoch);
        }
    }
}

/// Calls the closure of a program with `count` inputs. To read one beyond the last is an error then, not a panic.
#[track_caller]
pub(crate) fn with_inputs<T>(op: &str, count: usize, f: impl FnOnce() -> Result<T>) -> Result<T> {
    let panic = match std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)) {
        Ok(result) => return result,
        Err(panic) => panic,
    };
    let beyond = format!("index out of bounds: the len is {count} but the index is ");
    match panic.downcast_ref::<String>().and_then(|text| text.strip_prefix(&beyond)) {
        Some(index) => {
            let why = format!(
                "the closure reads input {index}, but the call gave {count}; inputs are counted from 0"
            );
            Err(Error::argument(op, "inputs", why))
        }
        None => std::panic::resume_unwind(panic),
    }
}

#[cold]
#[track_caller]
fn lent(op: &str) -> Error {
    Error::unsupported(
        op,
        "the session's tape is lent to with_tape; use the tape there, or the session afterwards",
    )
}

#[cold]
#[track_caller]
fn changed_in_trace() -> Error {
    let what = "a parameter or a list of Nats was changed while the code was traced, which the program would not do at its \
                later runs; change it between runs, or use Session::assign";
    Error::unsupported("trace", what)
}

#[track_caller]
fn changed(param: &Param) -> Error {
    let why = format!(
        "parameter {} changed after it was recorded; reset the session before the next step",
        param.name()
    );
    Error::new("session", ErrorKind::Gradient { why })
}
