//! Recurrent layers, with PyTorch's names, layouts and initial range. Inputs are `(N, T, F)`. One matrix product
//! projects the inputs of all time steps.

use super::{Module, positive};
use crate::error::{Error, ErrorKind, Result};
use crate::numerics::environment;
use crate::params::{Param, Params};
use crate::session::Var;
use crate::shape::Shape;
use serde::{Deserialize, Serialize};

/// Sizes of a recurrent layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
}

impl Default for RecurrentConfig {
    fn default() -> RecurrentConfig {
        RecurrentConfig { inputs: 32, hidden: 64, layers: 1, bidirectional: false }
    }
}

/// The parameters of one direction of one layer.
#[derive(Clone, Debug, Module)]
struct Cell {
    weight_ih: Param,
    weight_hh: Param,
    bias_ih: Param,
    bias_hh: Param,
}

/// Cells of all layers and directions. A projection has `GATES` parts.
#[derive(Clone, Debug, Module)]
struct Cells<const GATES: usize> {
    cells: Vec<Cell>,
    #[module(skip)]
    config: RecurrentConfig,
}

/// Computes the new states from the projections of input and state, gate by gate, and the previous states. The first
/// state is the output.
type Rule<const GATES: usize, const STATES: usize> =
    for<'s> fn([Var<'s>; GATES], [Var<'s>; GATES], [Var<'s>; STATES]) -> Result<[Var<'s>; STATES]>;

impl<const GATES: usize> Cells<GATES> {
    #[track_caller]
    fn new(params: &mut Params, name: &str, config: RecurrentConfig) -> Result<Cells<GATES>> {
        let _strict = environment::enter();
        let RecurrentConfig { inputs, hidden, layers, bidirectional } = config;
        super::layers("recurrent", layers)?;
        positive("recurrent", "sizes", &[inputs, hidden])?;
        let limit = 1.0 / (hidden as f64).sqrt();
        let directions: &[&str] = if bidirectional { &["", "_reverse"] } else { &[""] };
        let rows = hidden.saturating_mul(GATES);
        let mut cells = Vec::new();
        for layer in 0..layers {
            let inputs = if layer == 0 { inputs } else { hidden.saturating_mul(directions.len()) };
            for suffix in directions {
                let mut part = |part: &str, dims: &[usize]| {
                    params.uniform(&format!("{name}.{part}_l{layer}{suffix}"), dims, -limit, limit)
                };
                cells.push(Cell {
                    weight_ih: part("weight_ih", &[rows, inputs])?,
                    weight_hh: part("weight_hh", &[rows, hidden])?,
                    bias_ih: part("bias_ih", &[rows])?,
                    bias_hh: part("bias_hh", &[rows])?,
                });
            }
        }
        Ok(Cells { cells, config })
    }

    fn directions(&self) -> usize {
        1 + usize::from(self.config.bidirectional)
    }

    /// Splits a projection `(N, GATES hidden)` into parts `(N, hidden)`.
    #[track_caller]
    fn gates<'s>(&self, all: Var<'s>) -> Result<[Var<'s>; GATES]> {
        let mut gates = [all; GATES];
        if GATES > 1 {
            for (i, gate) in gates.iter_mut().enumerate() {
                *gate = all.narrow(1, i * self.config.hidden, self.config.hidden)?;
            }
        }
        Ok(gates)
    }

    /// The outputs `(N, T, directions hidden)` of `(N, T, inputs)`, and the last states `(cells, N, hidden)`.
    #[track_caller]
    fn run<'s, const STATES: usize>(
        &self,
        x: Var<'s>,
        initial: Option<[Var<'s>; STATES]>,
        rule: Rule<GATES, STATES>,
    ) -> Result<(Var<'s>, [Var<'s>; STATES])> {
        let values = |(out, states): &(Var<'s>, [Var<'s>; STATES])| [&[*out], &states[..]].concat();
        x.session().scope_of(|| self.compute(x, initial, rule), values)
    }

    #[track_caller]
    fn compute<'s, const STATES: usize>(
        &self,
        x: Var<'s>,
        initial: Option<[Var<'s>; STATES]>,
        rule: Rule<GATES, STATES>,
    ) -> Result<(Var<'s>, [Var<'s>; STATES])> {
        let shape = x.shape()?;
        let &[batch, times, inputs] = shape.dims() else {
            return Err(Error::new(
                "recurrent",
                ErrorKind::Rank { want: "exactly 3: (N, T, F)", got: shape },
            ));
        };
        let hidden = self.config.hidden;
        if inputs != self.config.inputs || times == 0 {
            let why = format!("{shape} is not (N, T, {}) with a T of at least 1", self.config.inputs);
            return Err(Error::argument("recurrent", "x", why));
        }
        let wanted = Shape::new(&[self.cells.len(), batch, hidden])?;
        for state in initial.iter().flatten() {
            let got = state.shape()?;
            if got != wanted {
                let why = "a state is not (layers times directions, N, hidden)";
                return Err(Error::new("recurrent", ErrorKind::Shapes { why, left: got, right: wanted }));
            }
        }
        let s = x.session();
        let zero = s.zeros(&[batch, hidden])?;
        let mut last: Vec<[Var<'s>; STATES]> = Vec::new();
        // Time first, so that the inputs of one time step are contiguous.
        let mut x = x.permute(&[1, 0, 2])?;
        for (layer, cells) in self.cells.chunks(self.directions()).enumerate() {
            let mut outputs = Vec::new();
            for (direction, cell) in cells.iter().enumerate() {
                let all = x.linear(s.param(&cell.weight_ih)?, s.param(&cell.bias_ih)?)?;
                let (weight, bias) = (s.param(&cell.weight_hh)?, s.param(&cell.bias_hh)?);
                let mut states = [zero; STATES];
                if let Some(initial) = initial {
                    for (state, all) in states.iter_mut().zip(initial) {
                        *state = all.select(0, layer * self.directions() + direction)?;
                    }
                }
                let mut out = vec![zero; times];
                for step in 0..times {
                    let t = if direction == 0 { step } else { times - 1 - step };
                    let from_input = self.gates(all.select(0, t)?)?;
                    let from_state = self.gates(states[0].linear(weight, bias)?)?;
                    states = rule(from_input, from_state, states)?;
                    out[t] = states[0];
                }
                outputs.push(s.stack(&out, 0)?);
                last.push(states);
            }
            x = if outputs.len() == 1 { outputs[0] } else { s.concat(&outputs, 2)? };
        }
        let mut states = [zero; STATES];
        for (i, state) in states.iter_mut().enumerate() {
            *state = s.stack(&last.iter().map(|l| l[i]).collect::<Vec<_>>(), 0)?;
        }
        Ok((x.permute(&[1, 0, 2])?, states))
    }
}

/// A simple recurrent layer, PyTorch's `RNN(…, batch_first=True)`: `h' = tanh(W_ih x + b_ih + W_hh h + b_hh)`.
#[derive(Clone, Debug, Module)]
pub struct Rnn(Cells<1>);

/// Gated recurrent units, PyTorch's `GRU(…, batch_first=True)`: `r` and `z` are sigmoids, `n = tanh(x_n + r h_n)`,
/// `h' = n + z (h - n)`.
#[derive(Clone, Debug, Module)]
pub struct Gru(Cells<3>);

/// Long short-term memory, PyTorch's `LSTM(…, batch_first=True)`: `i`, `f` and `o` are sigmoids, `g` is a tanh,
/// `c' = f c + i g`, `h' = o tanh(c')`.
#[derive(Clone, Debug, Module)]
pub struct Lstm(Cells<4>);

#[track_caller]
fn rnn<'s>([x]: [Var<'s>; 1], [h]: [Var<'s>; 1], _: [Var<'s>; 1]) -> Result<[Var<'s>; 1]> {
    Ok([x.add(h)?.tanh()?])
}

#[track_caller]
fn gru<'s>(x: [Var<'s>; 3], h: [Var<'s>; 3], [state]: [Var<'s>; 1]) -> Result<[Var<'s>; 1]> {
    let gate = |i: usize| x[i].add(h[i])?.sigmoid();
    let n = x[2].add(gate(0)?.mul(h[2])?)?.tanh()?;
    Ok([n.add(gate(1)?.mul(state.sub(n)?)?)?])
}

#[track_caller]
fn lstm<'s>(x: [Var<'s>; 4], h: [Var<'s>; 4], [_, c]: [Var<'s>; 2]) -> Result<[Var<'s>; 2]> {
    let gate = |i: usize| x[i].add(h[i]);
    let kept = gate(1)?.sigmoid()?.mul(c)?;
    let c = kept.add(gate(0)?.sigmoid()?.mul(gate(2)?.tanh()?)?)?;
    Ok([gate(3)?.sigmoid()?.mul(c.tanh()?)?, c])
}

macro_rules! one_state {
    ($($layer:ident $rule:ident;)*) => {$(
        impl $layer {
            /// Parameters `name.weight_ih_l0`, `weight_hh_l0`, `bias_ih_l0`, `bias_hh_l0`, and so on for each layer.
            /// Those of the backward direction end in `_reverse`. Uniform within `1 / sqrt(hidden)`.
            #[track_caller]
            pub fn new(params: &mut Params, name: &str, config: RecurrentConfig) -> Result<$layer> {
                Ok($layer(Cells::new(params, name, config)?))
            }

            /// Maps `(N, T, inputs)` to the outputs `(N, T, hidden)`, with both directions concatenated, and the last
            /// states `(layers times directions, N, hidden)`. The initial states are zeros by default.
            #[track_caller]
            pub fn forward<'s>(&self, x: Var<'s>, initial: Option<Var<'s>>) -> Result<(Var<'s>, Var<'s>)> {
                let (out, [state]) = self.0.run(x, initial.map(|h| [h]), $rule)?;
                Ok((out, state))
            }
        }
    )*};
}

one_state! {
    Rnn rnn;
    Gru gru;
}

impl Lstm {
    /// Parameters `name.weight_ih_l0`, `weight_hh_l0`, `bias_ih_l0`, `bias_hh_l0`, and so on for each layer. Those of
    /// the backward direction end in `_reverse`. Uniform within `1 / sqrt(hidden)`.
    #[track_caller]
    pub fn new(params: &mut Params, name: &str, config: RecurrentConfig) -> Result<Lstm> {
        Ok(Lstm(Cells::new(params, name, config)?))
    }

    /// Maps `(N, T, inputs)` to the outputs `(N, T, hidden)`, with both directions concatenated, and the last states
    /// `h` and `c`, each `(layers times directions, N, hidden)`. The initial states are zeros by default.
    #[track_caller]
    pub fn forward<'s>(&self, x: Var<'s>, initial: Option<[Var<'s>; 2]>) -> Result<(Var<'s>, [Var<'s>; 2])> {
        self.0.run(x, initial, lstm)
    }
}
