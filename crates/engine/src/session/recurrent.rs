//! Recurrences: all steps of a recurrent layer at once.

use super::Var;
use dittograd_numerics::error::Result;
use dittograd_ops::recurrent::{Cell, Recurrent};

/// What a recurrence reads besides its inputs.
#[derive(Clone, Copy, Debug)]
pub struct Recurrence<'a, 's> {
    /// The formulas of a step.
    pub cell: Cell,
    /// Weights of the state, `(gates H, H)`.
    pub weight: Var<'s>,
    /// Their bias, `(gates H)`.
    pub bias: Option<Var<'s>>,
    /// The states before the first step, each `(N, H)`: `h`, and of an LSTM also `c`.
    pub states: &'a [Var<'s>],
    /// Whether it runs from the last step to the first.
    pub reverse: bool,
    /// For sequences of different lengths, a mask `(T, N)` of the steps that they have.
    pub live: Option<Var<'s>>,
}

impl<'s> Var<'s> {
    /// All steps of a recurrent layer in one direction, for inputs that are projected to the gates, `(T, N, gates H)`. Returns the outputs
    /// `(T, N, H)`, which are 0 where a sequence has ended, and the states after the last step.
    ///
    /// ```
    /// use dittograd::ops::recurrent::Cell;
    /// use dittograd::prelude::*;
    /// use dittograd::session::Recurrence;
    /// # fn main() -> Result<()> {
    /// let session = Session::eager(&Device::cpu()?);
    /// let (gates, weight) = (session.normal(&[5, 2, 3 * 4], 0.0, 1.0)?, session.normal(&[3 * 4, 4], 0.0, 0.5)?);
    /// let states = [session.zeros(&[2, 4])?];
    /// let gru = Recurrence { cell: Cell::Gru, weight, bias: None, states: &states, reverse: false, live: None };
    /// let (outputs, last) = gates.recurrence(gru)?;
    /// assert_eq!(outputs.select(0, 4)?.value::<f32>()?, last[0].value::<f32>()?);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("lstm", "gru", "rnn"))]
    #[track_caller]
    pub fn recurrence(self, of: Recurrence<'_, 's>) -> Result<(Var<'s>, Vec<Var<'s>>)> {
        let Recurrence { cell, weight, bias, states, reverse, live } = of;
        let op = Recurrent { cell, reverse, masked: live.is_some() };
        let mut ins = vec![self, weight];
        ins.extend(states);
        ins.extend(bias);
        ins.extend(live);
        let packed = self.session().apply(op, &ins)?;
        let times = self.shape()?.dims()[0];
        let mut out = packed.narrow(0, op.first_output(), times)?;
        if let Some(live) = live {
            out = live.unsqueeze(2)?.where_(out, self.session().scalar(0.0)?)?;
        }
        let last =
            (0..states.len()).map(|i| packed.select(0, op.last_row(i, times))).collect::<Result<_>>()?;
        Ok((out, last))
    }
}
