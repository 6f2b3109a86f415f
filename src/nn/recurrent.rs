//! Recurrent layers, with PyTorch's names, layouts and initial range. Inputs are `(N, T, F)`. One matrix product
//! projects the inputs of all time steps, and all steps of a layer in one direction are one op, [`Var::recurrence`]. Layers with projected
//! outputs, and cells for loops of one's own, run the same formulas step by step.

use super::{Dropout, Module, positive};
use crate::error::{Error, ErrorKind, Result};
use crate::numerics::environment;
use crate::ops::pointwise::Map;
use crate::ops::recurrent::Cell as Kind;
use crate::params::{Param, Params};
use crate::session::{Recurrence, Session, Var};
use crate::shape::Shape;
use serde::{Deserialize, Serialize};

/// Sizes of a recurrent layer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecurrentConfig {
    /// Inputs per time step.
    pub inputs: usize,
    /// Size of the hidden state.
    pub hidden: usize,
    /// Number of layers. Each reads the outputs of the one before.
    pub layers: usize,
    /// Whether each layer also has a part that runs backwards in time.
    pub bidirectional: bool,
    /// Probability of dropout between layers.
    #[serde(default)]
    pub dropout: f64,
    /// Whether there are biases.
    #[serde(default = "yes")]
    pub bias: bool,
    /// Size that an [`Lstm`] projects its outputs to, PyTorch's `proj_size`; 0 for no projection.
    #[serde(default)]
    pub projection: usize,
}

fn yes() -> bool {
    true
}

impl Default for RecurrentConfig {
    fn default() -> RecurrentConfig {
        RecurrentConfig {
            inputs: 32,
            hidden: 64,
            layers: 1,
            bidirectional: false,
            dropout: 0.0,
            bias: true,
            projection: 0,
        }
    }
}

/// The parameters of one direction of one layer.
#[derive(Clone, Debug, Module)]
struct Cell<const GATES: usize> {
    weight_ih: Param,
    weight_hh: Param,
    bias_ih: Option<Param>,
    bias_hh: Option<Param>,
    weight_hr: Option<Param>,
    hidden: usize,
}

/// A weight and its bias, if there is one, as values.
type Affine<'s> = (Var<'s>, Option<Var<'s>>);

#[track_caller]
fn values<'s>(s: &'s Session, weight: &Param, bias: &Option<Param>) -> Result<Affine<'s>> {
    Ok((s.param(weight)?, bias.as_ref().map(|bias| s.param(bias)).transpose()?))
}

/// `x W^T + b`.
#[track_caller]
fn project<'s>(x: Var<'s>, (weight, bias): Affine<'s>) -> Result<Var<'s>> {
    match bias {
        Some(bias) => x.linear(weight, bias),
        None => x.matmul_with(weight, false, true),
    }
}

/// What a step reads of its cell: the weights of the state, and those of a projected output.
#[derive(Clone, Copy)]
struct StateWeights<'s> {
    hidden: Affine<'s>,
    output: Option<Var<'s>>,
}

/// All steps of one direction of a layer: projected inputs `(T, N, gates hidden)`, the weights, what is computed, and for sequences of
/// different lengths a mask `(T, N)` of the steps that they have.
#[derive(Clone, Copy)]
struct Steps<'s> {
    inputs: Var<'s>,
    weights: StateWeights<'s>,
    kind: Kind,
    reverse: bool,
    live: Option<Var<'s>>,
}

impl<const GATES: usize> Cell<GATES> {
    /// Parameters `name.weight_ih`, `weight_hh`, `bias_ih`, `bias_hh` and `weight_hr`, each followed by `suffix`; those
    /// that the configuration has.
    #[track_caller]
    fn new(params: &mut Params, name: &str, suffix: &str, config: RecurrentConfig) -> Result<Cell<GATES>> {
        let _strict = environment::enter();
        let RecurrentConfig { inputs, hidden, bias, projection, .. } = config;
        positive("recurrent", "sizes", &[inputs, hidden])?;
        let limit = 1.0 / (hidden as f64).sqrt();
        let rows = hidden.saturating_mul(GATES);
        let mut part = |part: &str, dims: &[usize]| {
            params.uniform(&format!("{name}.{part}{suffix}"), dims, -limit, limit)
        };
        let outputs = if projection > 0 { projection } else { hidden };
        Ok(Cell {
            weight_ih: part("weight_ih", &[rows, inputs])?,
            weight_hh: part("weight_hh", &[rows, outputs])?,
            bias_ih: bias.then(|| part("bias_ih", &[rows])).transpose()?,
            bias_hh: bias.then(|| part("bias_hh", &[rows])).transpose()?,
            weight_hr: (projection > 0).then(|| part("weight_hr", &[projection, hidden])).transpose()?,
            hidden,
        })
    }

    /// Splits a projection `(N, GATES hidden)` into parts `(N, hidden)`.
    #[track_caller]
    fn gates<'s>(&self, all: Var<'s>) -> Result<[Var<'s>; GATES]> {
        let mut gates = [all; GATES];
        if GATES > 1 {
            for (i, gate) in gates.iter_mut().enumerate() {
                *gate = all.narrow(1, i * self.hidden, self.hidden)?;
            }
        }
        Ok(gates)
    }

    /// The projection of inputs `(…, inputs)`.
    #[track_caller]
    fn project_inputs<'s>(&self, x: Var<'s>) -> Result<Var<'s>> {
        project(x, values(x.session(), &self.weight_ih, &self.bias_ih)?)
    }

    #[track_caller]
    fn state_weights<'s>(&self, s: &'s Session) -> Result<StateWeights<'s>> {
        let hidden = values(s, &self.weight_hh, &self.bias_hh)?;
        Ok(StateWeights { hidden, output: self.weight_hr.as_ref().map(|w| s.param(w)).transpose()? })
    }

    /// The states after a step, from the projection of its input.
    #[track_caller]
    fn step<'s, const STATES: usize>(
        &self,
        from_input: Var<'s>,
        weights: StateWeights<'s>,
        states: [Var<'s>; STATES],
        kind: Kind,
    ) -> Result<[Var<'s>; STATES]> {
        let from_state = project(states[0], weights.hidden)?;
        let mut ins = [self.gates(from_input)?, self.gates(from_state)?].concat();
        ins.extend(states);
        let shape = Shape::new(&[from_input.shape()?.dims()[0], self.hidden])?;
        let mut after = states;
        for (i, state) in after.iter_mut().enumerate() {
            let program = kind.state_program(i);
            // What a formula does not read, such as a projected output, need not have the shape of its results.
            let read = ins.iter().zip(program.reads()).map(|(v, is_read)| if *is_read { *v } else { ins[0] });
            let read: Vec<Var<'s>> = read.collect();
            *state = from_input.session().apply(Map { program: program.clone(), shape }, &read)?;
        }
        if let Some(weight) = weights.output {
            after[0] = after[0].matmul_with(weight, false, true)?;
        }
        Ok(after)
    }

    /// The outputs of all steps `(T, N, outputs)` and the last states.
    #[track_caller]
    fn steps<'s, const STATES: usize>(
        &self,
        steps: Steps<'s>,
        states: [Var<'s>; STATES],
    ) -> Result<(Var<'s>, [Var<'s>; STATES])> {
        let Steps { inputs, weights, kind, reverse, live } = steps;
        if weights.output.is_some() {
            return self.steps_one_by_one(steps, states);
        }
        let (weight, bias) = weights.hidden;
        let of = Recurrence { cell: kind, weight, bias, states: &states, reverse, live };
        let (out, found) = inputs.recurrence(of)?;
        let mut last = states;
        last.copy_from_slice(&found);
        Ok((out, last))
    }

    /// [`Cell::steps`], step by step: outputs may be projected.
    #[track_caller]
    fn steps_one_by_one<'s, const STATES: usize>(
        &self,
        Steps { inputs, weights, kind, reverse, live }: Steps<'s>,
        mut states: [Var<'s>; STATES],
    ) -> Result<(Var<'s>, [Var<'s>; STATES])> {
        let (s, times) = (inputs.session(), inputs.shape()?.dims()[0]);
        let mut out = vec![states[0]; times];
        for step in 0..times {
            let t = if reverse { times - 1 - step } else { step };
            let before = states;
            states = self.step(inputs.select(0, t)?, weights, before, kind)?;
            out[t] = states[0];
            if let Some(live) = live {
                let live = live.select(0, t)?.unsqueeze(1)?;
                out[t] = live.where_(states[0], s.scalar(0.0)?)?;
                for (state, before) in states.iter_mut().zip(before) {
                    *state = live.where_(*state, before)?;
                }
            }
        }
        Ok((s.stack(&out, 0)?, states))
    }
}

/// Cells of all layers and directions. A projection has `GATES` parts.
#[derive(Clone, Debug, Module)]
struct Cells<const GATES: usize> {
    cells: Vec<Cell<GATES>>,
    dropout: Dropout,
    #[module(skip)]
    config: RecurrentConfig,
}

impl<const GATES: usize> Cells<GATES> {
    #[track_caller]
    fn new(params: &mut Params, name: &str, config: RecurrentConfig) -> Result<Cells<GATES>> {
        let RecurrentConfig { inputs, hidden, layers, bidirectional, dropout, projection, .. } = config;
        super::layers("recurrent", layers)?;
        positive("recurrent", "sizes", &[inputs, hidden])?;
        if projection > 0 && (GATES != 4 || projection >= hidden) {
            let why =
                format!("got {projection}; only an LSTM has one, and it is below the {hidden} of its state");
            return Err(Error::argument("recurrent", "projection", why));
        }
        let directions: &[&str] = if bidirectional { &["", "_reverse"] } else { &[""] };
        let outputs = if projection > 0 { projection } else { hidden };
        let mut cells = Vec::new();
        for layer in 0..layers {
            let inputs = if layer == 0 { inputs } else { outputs.saturating_mul(directions.len()) };
            for suffix in directions {
                let config = RecurrentConfig { inputs, ..config };
                cells.push(Cell::new(params, name, &format!("_l{layer}{suffix}"), config)?);
            }
        }
        Ok(Cells { cells, dropout: Dropout::new(dropout)?, config })
    }

    fn directions(&self) -> usize {
        1 + usize::from(self.config.bidirectional)
    }

    /// The size of state `i`: the first is the output, which may be projected.
    fn size(&self, i: usize) -> usize {
        let RecurrentConfig { hidden, projection, .. } = self.config;
        if i == 0 && projection > 0 { projection } else { hidden }
    }

    /// The outputs `(N, T, directions hidden)` of `(N, T, inputs)`, and the last states `(cells, N, hidden)`. With
    /// lengths `(N)`, a sequence ends after so many steps.
    #[track_caller]
    fn run<'s, const STATES: usize>(
        &self,
        x: Var<'s>,
        lengths: Option<Var<'s>>,
        initial: Option<[Var<'s>; STATES]>,
        kind: Kind,
    ) -> Result<(Var<'s>, [Var<'s>; STATES])> {
        let values = |(out, states): &(Var<'s>, [Var<'s>; STATES])| [&[*out], &states[..]].concat();
        x.session().scope_of(|| self.compute(x, lengths, initial, kind), values)
    }

    #[track_caller]
    fn compute<'s, const STATES: usize>(
        &self,
        x: Var<'s>,
        lengths: Option<Var<'s>>,
        initial: Option<[Var<'s>; STATES]>,
        kind: Kind,
    ) -> Result<(Var<'s>, [Var<'s>; STATES])> {
        let shape = x.shape()?;
        let &[batch, times, inputs] = shape.dims() else {
            return Err(Error::new(
                "recurrent",
                ErrorKind::Rank { want: "exactly 3: (N, T, F)", got: shape },
            ));
        };
        if inputs != self.config.inputs || times == 0 {
            let why = format!("{shape} is not (N, T, {}) with a T of at least 1", self.config.inputs);
            return Err(Error::argument("recurrent", "x", why));
        }
        for (i, state) in initial.iter().flatten().enumerate() {
            let (got, wanted) = (state.shape()?, Shape::new(&[self.cells.len(), batch, self.size(i)])?);
            if got != wanted {
                let why = "a state is not (layers times directions, N, hidden)";
                return Err(Error::new("recurrent", ErrorKind::Shapes { why, left: got, right: wanted }));
            }
        }
        let s = x.session();
        let live = lengths.map(|lengths| live(lengths, batch, times)).transpose()?;
        let mut zeros = [s.zeros(&[batch, self.size(0)])?; STATES];
        for (i, zero) in zeros.iter_mut().enumerate().skip(1) {
            if self.size(i) != self.size(0) {
                *zero = s.zeros(&[batch, self.size(i)])?;
            }
        }
        let mut last: Vec<[Var<'s>; STATES]> = Vec::new();
        // Time first, so that the inputs of one time step are contiguous.
        let mut x = x.permute(&[1, 0, 2])?;
        for (layer, cells) in self.cells.chunks(self.directions()).enumerate() {
            if layer > 0 {
                x = self.dropout.forward(x)?;
            }
            let mut outputs = Vec::new();
            for (direction, cell) in cells.iter().enumerate() {
                let mut states = zeros;
                if let Some(initial) = initial {
                    for (state, all) in states.iter_mut().zip(initial) {
                        *state = all.select(0, layer * self.directions() + direction)?;
                    }
                }
                let steps = Steps {
                    inputs: cell.project_inputs(x)?,
                    weights: cell.state_weights(s)?,
                    kind,
                    reverse: direction == 1,
                    live,
                };
                let (out, states) = cell.steps(steps, states)?;
                outputs.push(out);
                last.push(states);
            }
            x = if outputs.len() == 1 { outputs[0] } else { s.concat(&outputs, 2)? };
        }
        let mut states = zeros;
        for (i, state) in states.iter_mut().enumerate() {
            let all: Vec<_> = last.iter().map(|l| l[i]).collect();
            // The last state of one cell alone shares the memory of all its steps, which it must not keep.
            *state = if let [one] = all[..] { one.copy()?.unsqueeze(0)? } else { s.stack(&all, 0)? };
        }
        Ok((x.permute(&[1, 0, 2])?, states))
    }
}

/// A mask `(T, N)` of the steps that each sequence has.
#[track_caller]
fn live<'s>(lengths: Var<'s>, batch: usize, times: usize) -> Result<Var<'s>> {
    let (s, got) = (lengths.session(), lengths.shape()?);
    if got.dims() != [batch] {
        let why = format!("{got} is not the length of each of {batch} sequences");
        return Err(Error::argument("recurrent", "lengths", why));
    }
    // The table checks that no length is above `times`.
    let table = s.arange(0.0, times as f64 + 1.0, 1.0)?;
    let lengths = table.index_select(0, lengths)?;
    lengths.gt(s.arange(0.0, times as f64, 1.0)?.unsqueeze(1)?)
}

/// A simple recurrent layer, PyTorch's `RNN(…, batch_first=True)`: `h' = tanh(W_ih x + b_ih + W_hh h + b_hh)`.
#[derive(Clone, Debug, Module)]
pub struct Rnn {
    cells: Cells<1>,
    relu: bool,
}

/// Gated recurrent units, PyTorch's `GRU(…, batch_first=True)`: `r` and `z` are sigmoids, `n = tanh(x_n + r h_n)`,
/// `h' = n + z (h - n)`.
#[derive(Clone, Debug, Module)]
pub struct Gru(Cells<3>);

/// Long short-term memory, PyTorch's `LSTM(…, batch_first=True)`: `i`, `f` and `o` are sigmoids, `g` is a tanh,
/// `c' = f c + i g`, `h' = o tanh(c')`.
#[derive(Clone, Debug, Module)]
pub struct Lstm(Cells<4>);

/// Methods of a layer with one state, which is its output: cells and kind are expressions of `self`.
macro_rules! one_state {
    ($($layer:ident |$this:ident| $cells:expr, $kind:expr;)*) => {$(
        impl $layer {
            /// Maps `(N, T, inputs)` to the outputs `(N, T, hidden)`, with both directions concatenated, and the last
            /// states `(layers times directions, N, hidden)`. The initial states are zeros by default.
            #[track_caller]
            pub fn forward<'s>(&self, x: Var<'s>, initial: Option<Var<'s>>) -> Result<(Var<'s>, Var<'s>)> {
                let $this = self;
                let (out, [state]) = $cells.run(x, None, initial.map(|h| [h]), $kind)?;
                Ok((out, state))
            }

            /// Like `forward`, of sequences of different lengths `(N)`, indices up to T. Outputs after the end of a sequence
            /// are zeros. The last state is the one at its end, and the backward direction begins there.
            #[doc(alias = "pack_padded_sequence")]
            #[track_caller]
            pub fn forward_lengths<'s>(
                &self,
                x: Var<'s>,
                lengths: Var<'s>,
                initial: Option<Var<'s>>,
            ) -> Result<(Var<'s>, Var<'s>)> {
                let $this = self;
                let (out, [state]) = $cells.run(x, Some(lengths), initial.map(|h| [h]), $kind)?;
                Ok((out, state))
            }
        }
    )*};
}

one_state! {
    Rnn |this| this.cells, if this.relu { Kind::Relu } else { Kind::Tanh };
    Gru |this| this.0, Kind::Gru;
}

impl Rnn {
    /// Parameters `name.weight_ih_l0`, `weight_hh_l0`, `bias_ih_l0`, `bias_hh_l0`, and so on for each layer. Those of
    /// the backward direction end in `_reverse`. Uniform within `1 / sqrt(hidden)`.
    #[track_caller]
    pub fn new(params: &mut Params, name: &str, config: RecurrentConfig) -> Result<Rnn> {
        Ok(Rnn { cells: Cells::new(params, name, config)?, relu: false })
    }

    /// Like [`Rnn::new`], with relu instead of tanh: PyTorch's `nonlinearity="relu"`.
    #[track_caller]
    pub fn relu(params: &mut Params, name: &str, config: RecurrentConfig) -> Result<Rnn> {
        Ok(Rnn { relu: true, ..Rnn::new(params, name, config)? })
    }
}

impl Gru {
    /// Parameters `name.weight_ih_l0`, `weight_hh_l0`, `bias_ih_l0`, `bias_hh_l0`, and so on for each layer. Those of
    /// the backward direction end in `_reverse`. Uniform within `1 / sqrt(hidden)`.
    #[track_caller]
    pub fn new(params: &mut Params, name: &str, config: RecurrentConfig) -> Result<Gru> {
        Ok(Gru(Cells::new(params, name, config)?))
    }
}

impl Lstm {
    /// Parameters `name.weight_ih_l0`, `weight_hh_l0`, `bias_ih_l0`, `bias_hh_l0`, and so on for each layer. Those of
    /// the backward direction end in `_reverse`. Uniform within `1 / sqrt(hidden)`. A projection adds `weight_hr_l0`.
    #[track_caller]
    pub fn new(params: &mut Params, name: &str, config: RecurrentConfig) -> Result<Lstm> {
        Ok(Lstm(Cells::new(params, name, config)?))
    }

    /// Maps `(N, T, inputs)` to the outputs `(N, T, hidden)`, with both directions concatenated, and the last states
    /// `h` and `c`, each `(layers times directions, N, hidden)`. With a projection, the size of outputs and `h` is that
    /// instead of `hidden`. The initial states are zeros by default.
    #[track_caller]
    pub fn forward<'s>(&self, x: Var<'s>, initial: Option<[Var<'s>; 2]>) -> Result<(Var<'s>, [Var<'s>; 2])> {
        self.0.run(x, None, initial, Kind::Lstm)
    }

    /// Like [`Lstm::forward`], of sequences of different lengths `(N)`, indices up to T. Outputs after the end of a
    /// sequence are zeros. The last states are those at its end, and the backward direction begins there.
    #[doc(alias = "pack_padded_sequence")]
    #[track_caller]
    pub fn forward_lengths<'s>(
        &self,
        x: Var<'s>,
        lengths: Var<'s>,
        initial: Option<[Var<'s>; 2]>,
    ) -> Result<(Var<'s>, [Var<'s>; 2])> {
        self.0.run(x, Some(lengths), initial, Kind::Lstm)
    }
}

/// One step of a recurrent layer.
#[track_caller]
fn cell_step<'s, const GATES: usize, const STATES: usize>(
    cell: &Cell<GATES>,
    x: Var<'s>,
    states: Option<[Var<'s>; STATES]>,
    kind: Kind,
) -> Result<[Var<'s>; STATES]> {
    let shape = x.shape()?;
    if shape.rank() != 2 {
        return Err(Error::new("recurrent", ErrorKind::Rank { want: "exactly 2: (N, F)", got: shape }));
    }
    let wanted = Shape::new(&[shape.dims()[0], cell.hidden])?;
    let states = match states {
        Some(states) => states,
        None => [x.session().zeros(wanted.dims())?; STATES],
    };
    for state in states {
        let got = state.shape()?;
        if got != wanted {
            let why = "a state is not (N, hidden)";
            return Err(Error::new("recurrent", ErrorKind::Shapes { why, left: got, right: wanted }));
        }
    }
    cell.step(cell.project_inputs(x)?, cell.state_weights(x.session())?, states, kind)
}

/// Cells: one step of one layer, for loops of your own.
macro_rules! cells {
    ($($(#[$doc:meta])* $name:ident $gates:literal $kind:ident $states:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Module)]
        pub struct $name(Cell<$gates>);

        impl $name {
            /// Parameters `name.weight_ih`, `weight_hh`, `bias_ih` and `bias_hh`, uniform within `1 / sqrt(hidden)`.
            #[track_caller]
            pub fn new(params: &mut Params, name: &str, inputs: usize, hidden: usize) -> Result<$name> {
                let config = RecurrentConfig { inputs, hidden, ..RecurrentConfig::default() };
                Ok($name(Cell::new(params, name, "", config)?))
            }

            /// The states `(N, hidden)` after a step with inputs `(N, inputs)`; the first is the output. The states before it
            /// are zeros by default.
            #[track_caller]
            pub fn forward<'s>(
                &self,
                x: Var<'s>,
                states: Option<[Var<'s>; $states]>,
            ) -> Result<[Var<'s>; $states]> {
                cell_step(&self.0, x, states, Kind::$kind)
            }
        }
    )*};
}

cells! {
    /// One step of an [`Rnn`]: PyTorch's `RNNCell`.
    RnnCell 1 Tanh 1;
    /// One step of a [`Gru`]: PyTorch's `GRUCell`.
    GruCell 3 Gru 1;
    /// One step of an [`Lstm`], with states `h` and `c`: PyTorch's `LSTMCell`.
    LstmCell 4 Lstm 2;
}
