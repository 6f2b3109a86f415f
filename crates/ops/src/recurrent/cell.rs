//! The formulas of one step of a recurrent layer and of its gradient, each written once over [`Real`]: CPU, CUDA text,
//! reference and the layers' own unrolled steps come from them.

use crate::pointwise::expression::{Expr, Pointwise};
use dittograd_numerics::error::{Error, Result};
use dittograd_numerics::scalar::Real;
use std::sync::{Arc, OnceLock};

/// What a recurrent layer computes in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cell {
    /// Long short-term memory. `i`, `f` and `o` are sigmoids and `g` is a tanh of the gates, in the order `i, f, g, o`;
    /// `c' = f c + i g`, `h' = o tanh(c')`. The states are `h` and `c`.
    Lstm,
    /// A gated recurrent unit: `r` and `z` are sigmoids, `n = tanh(x_n + r h_n)`, `h' = n + z (h - n)`. The gates are in
    /// the order `r, z, n`.
    Gru,
    /// `h' = tanh(x + h)`.
    Tanh,
    /// `h' = relu(x + h)`.
    Relu,
}

/// The programs of a step and of its gradient, and of the latter with the gradients of the states already added up.
pub(super) struct Programs {
    pub step: Pointwise,
    pub slope: Pointwise,
    pub slope_of_sums: Pointwise,
}

/// What the gradient of a step reads, element by element.
struct SlopeIn<'a, R> {
    saved: &'a [R],
    after: &'a [R],
    before: &'a [R],
    saved_up: &'a [R],
    /// Gradients of the states after the step.
    up: &'a [R],
}

impl Cell {
    /// All of them, in the order of their numbers.
    pub const ALL: [Cell; 4] = [Cell::Lstm, Cell::Gru, Cell::Tanh, Cell::Relu];

    /// Its number, as attributes have it.
    pub(super) fn number(self) -> usize {
        self as usize
    }

    /// The cell of that number.
    pub(super) fn of(number: usize) -> Result<Cell> {
        let cell = Cell::ALL.get(number).copied();
        cell.ok_or_else(|| Error::argument("attributes", "cell", format!("got {number}, use 0 to 3")))
    }

    /// Gates: parts of a projection.
    pub fn gates(self) -> usize {
        match self {
            Cell::Lstm => 4,
            Cell::Gru => 3,
            Cell::Tanh | Cell::Relu => 1,
        }
    }

    /// States. The first is the output.
    pub fn states(self) -> usize {
        match self {
            Cell::Lstm => 2,
            Cell::Gru | Cell::Tanh | Cell::Relu => 1,
        }
    }

    /// What a step keeps for its gradient beside the states.
    pub fn saved(self) -> usize {
        match self {
            Cell::Lstm | Cell::Gru => 4,
            Cell::Tanh | Cell::Relu => 0,
        }
    }

    /// Whether the gradients of the two projections differ.
    pub(super) fn has_own_input_gradient(self) -> bool {
        self == Cell::Gru
    }

    /// One step, from the gates of the two projections and the states before: the states after it, then what is saved.
    fn step<R: Real>(self, x: &[R], h: &[R], before: &[R]) -> Vec<R> {
        match self {
            Cell::Lstm => {
                let [i, f, o] = [0, 1, 3].map(|k| (x[k] + h[k]).sigmoid());
                let g = (x[2] + h[2]).tanh();
                let c = f * before[1] + i * g;
                vec![o * c.tanh(), c, i, f, g, o]
            }
            Cell::Gru => {
                let [r, z] = [0, 1].map(|k| (x[k] + h[k]).sigmoid());
                let n = (x[2] + r * h[2]).tanh();
                vec![n + z * (before[0] - n), r, z, n, h[2]]
            }
            Cell::Tanh => vec![(x[0] + h[0]).tanh()],
            Cell::Relu => {
                let (zero, sum) = (R::c(0.0), x[0] + h[0]);
                vec![R::where_le(sum, zero, zero, sum)]
            }
        }
    }

    /// The gradient of a step: that of the projection of the state, gate by gate, that of the projection of the input if it is
    /// another one, and what goes to each state before beside the product with the weights.
    fn slope<R: Real>(self, s: &SlopeIn<'_, R>) -> Vec<R> {
        let (zero, one) = (R::c(0.0), R::c(1.0));
        let dh = s.up[0];
        match self {
            Cell::Lstm => {
                let [i, f, g, o] = [0, 1, 2, 3].map(|k| s.saved[k]);
                let [i_up, f_up, g_up, o_up] = [0, 1, 2, 3].map(|k| s.saved_up[k]);
                let t = s.after[1].tanh();
                let dc = (dh * o).fma(one - t * t, s.up[1]);
                let by_sigmoid = |d: R, y: R| d * (y * (one - y));
                vec![
                    by_sigmoid(dc.fma(g, i_up), i),
                    by_sigmoid(dc.fma(s.before[1], f_up), f),
                    dc.fma(i, g_up) * (one - g * g),
                    by_sigmoid(dh.fma(t, o_up), o),
                    zero,
                    dc * f,
                ]
            }
            Cell::Gru => {
                let [r, z, n, hn] = [0, 1, 2, 3].map(|k| s.saved[k]);
                let [r_up, z_up, n_up, hn_up] = [0, 1, 2, 3].map(|k| s.saved_up[k]);
                let dn = dh.fma(one - z, n_up) * (one - n * n);
                let dr = dn.fma(hn, r_up) * (r * (one - r));
                let dz = dh.fma(s.before[0] - n, z_up) * (z * (one - z));
                vec![dr, dz, dn.fma(r, hn_up), dr, dz, dn, dh * z]
            }
            Cell::Tanh => vec![dh * (one - s.after[0] * s.after[0]), zero],
            Cell::Relu => {
                let h = s.after[0];
                // NaN stays NaN.
                vec![R::where_le(h, zero, zero, R::where_eq(h, h, dh, h)), zero]
            }
        }
    }

    /// [`Cell::step`] over its inputs one after another. With a mask, which then comes last, a state stays as it is where that is 0, and
    /// zeros are saved.
    pub(super) fn step_of<R: Real>(self, masked: bool, ins: &[R]) -> Vec<R> {
        let (gates, states) = (self.gates(), self.states());
        let (x, rest) = ins.split_at(gates);
        let (h, rest) = rest.split_at(gates);
        let (before, mask) = rest.split_at(states);
        let mut after = self.step(x, h, before);
        if masked {
            let zero = R::c(0.0);
            for (k, y) in after.iter_mut().enumerate() {
                *y = R::where_eq(mask[0], zero, if k < states { before[k] } else { zero }, *y);
            }
        }
        after
    }

    /// [`Cell::slope`] over its inputs one after another: saved, states after, states before, gradients of the saved and of the
    /// states after, and the mask. Where that is 0, the gradients of the states go to those before.
    fn slope_of_sums<R: Real>(self, masked: bool, ins: &[R]) -> Vec<R> {
        let (states, saved) = (self.states(), self.saved());
        let mut rest = ins;
        let mut take = |n: usize| {
            let (some, others) = rest.split_at(n);
            rest = others;
            some
        };
        let s = SlopeIn {
            saved: take(saved),
            after: take(states),
            before: take(states),
            saved_up: take(saved),
            up: take(states),
        };
        let mut all = self.slope(&s);
        if masked {
            let (zero, first) = (R::c(0.0), all.len() - states);
            for (k, y) in all.iter_mut().enumerate() {
                let passed = if k < first { zero } else { s.up[k - first] };
                *y = R::where_eq(rest[0], zero, passed, *y);
            }
        }
        all
    }

    /// The same with the gradients of the states in parts: that of the value for each state, the product with the weights, and for each
    /// state what else comes from the later step.
    pub(super) fn slope_of<R: Real>(self, masked: bool, ins: &[R]) -> Vec<R> {
        let states = self.states();
        let (own, rest) = ins.split_at(2 * (self.saved() + states));
        let (up, rest) = rest.split_at(states);
        let (product, rest) = rest.split_at(1);
        let (direct, mask) = rest.split_at(states);
        let mut sums = own.to_vec();
        for i in 0..states {
            sums.push(up[i] + if i == 0 { product[0] + direct[0] } else { direct[i] });
        }
        sums.extend(mask);
        self.slope_of_sums(masked, &sums)
    }

    /// The programs of a step and of its gradient.
    pub(super) fn programs(self, masked: bool) -> &'static Programs {
        static ALL: [OnceLock<Programs>; 8] = [const { OnceLock::new() }; 8];
        ALL[2 * self.number() + usize::from(masked)].get_or_init(|| {
            let mask = usize::from(masked);
            let (step, own) = (2 * self.gates() + self.states() + mask, 2 * self.saved() + 3 * self.states());
            let slope = own + 1 + self.states() + mask;
            Programs {
                step: Pointwise::trace(step, |ins| self.step_of(masked, ins)),
                slope: Pointwise::trace(slope, |ins| self.slope_of(masked, ins)),
                slope_of_sums: Pointwise::trace(own + mask, |ins| self.slope_of_sums(masked, ins)),
            }
        })
    }

    /// A step as a program of the gates of the projections of input and state, of the states before, and of the mask if there is one: the states
    /// after it, then what is saved.
    #[doc(hidden)]
    pub fn step_program(self, masked: bool) -> &'static Pointwise {
        &self.programs(masked).step
    }

    /// State `i` after a step as a program of the gates of the projections of input and state and of the states before, for layers
    /// that run their steps one by one.
    #[doc(hidden)]
    pub fn state_program(self, i: usize) -> Arc<Pointwise> {
        static ALL: [[OnceLock<Arc<Pointwise>>; 2]; 4] = [const { [const { OnceLock::new() }; 2] }; 4];
        let program = || {
            let inputs = 2 * self.gates() + self.states();
            Arc::new(Pointwise::trace(inputs, |ins: &[Expr]| vec![self.step_of(false, ins)[i]]))
        };
        ALL[self.number()][i.min(1)].get_or_init(program).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pointwise::record::Recordable;

    #[test]
    fn all_programs_fit_into_the_registers_of_their_evaluators() {
        for (cell, masked) in Cell::ALL.into_iter().flat_map(|cell| [(cell, false), (cell, true)]) {
            let Programs { step, slope, slope_of_sums } = cell.programs(masked);
            assert!(step.has_registers() && slope.has_registers(), "{cell:?}");
            for i in 0..cell.states() {
                assert!(cell.state_program(i).fits(), "{cell:?}, state {i}");
            }
            for i in 0..slope_of_sums.inputs() - usize::from(masked) {
                assert!(
                    Recordable::new(&slope_of_sums.gradient(i)).fits(),
                    "{cell:?}, masked {masked}, input {i}"
                );
            }
        }
    }
}
