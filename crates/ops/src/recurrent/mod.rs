//! Recurrent layers: all steps of an LSTM, a GRU or a simple recurrence as one op, and their gradient as another.
//!
//! - `cell`: the formulas of a step and of its gradient;
//! - `forward`, `backward`: the two ops;
//! - `cpu`, `cuda`: their kernels. A step is a product with the weights and the cell's formula.

mod backward;
#[cfg(feature = "cases")]
mod cases;
mod cell;
mod cpu;
mod cuda;
mod forward;

pub use backward::RecurrentBwd;
pub use cell::Cell;
pub use forward::Recurrent;

use crate::{Attr, Attrs, Recorder, Val, layout, mismatch, typed};
use dittograd_device::cpu::gemm::Gemm;
use dittograd_device::{DType, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::shape::Shape;

/// A recurrence over inputs of these sizes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub op: Recurrent,
    pub steps: usize,
    pub batch: usize,
    pub hidden: usize,
}

impl Recurrent {
    fn attributes(&self) -> Vec<(&'static str, Attr)> {
        vec![
            ("cell", Attr::Num(self.cell.number() as f64)),
            ("reverse", Attr::Bool(self.reverse)),
            ("masked", Attr::Bool(self.masked)),
        ]
    }

    fn of_attributes(attrs: &Attrs) -> Result<Recurrent> {
        attrs.only(&["cell", "reverse", "masked"])?;
        let cell = Cell::of(attrs.whole("cell")?)?;
        Ok(Recurrent { cell, reverse: attrs.flag("reverse")?, masked: attrs.flag("masked")? })
    }
}

impl Sizes {
    /// Sizes by the weights `(gates H, H)`.
    fn new(
        name: &'static str,
        op: Recurrent,
        [steps, batch]: [usize; 2],
        x: Shape,
        weight: Shape,
    ) -> Result<Sizes> {
        if weight.rank() != 2 {
            return Err(Error::new(name, ErrorKind::Rank { want: "exactly 2", got: weight }));
        }
        let hidden = weight.dims()[1];
        let columns = hidden.checked_mul(op.cell.gates());
        if columns != Some(weight.dims()[0]) {
            let why = "the weights are not (gates times hidden, hidden)";
            return Err(mismatch(name, why, x, weight));
        }
        Ok(Sizes { op, steps, batch, hidden })
    }

    /// Columns of a projection.
    pub fn columns(&self) -> usize {
        self.op.cell.gates() * self.hidden
    }

    /// Elements of a state.
    pub fn state_len(&self) -> usize {
        self.batch * self.hidden
    }

    /// Rows `(N, H)` of the value: of each state one more than there are steps, then of what is saved as many as steps.
    pub fn value_rows(&self) -> usize {
        let cell = self.op.cell;
        self.steps.saturating_mul(cell.states() + cell.saved()).saturating_add(cell.states())
    }

    /// Where the rows of part `i` of the value begin, and how many there are: the states, then what is saved.
    pub fn part(&self, i: usize) -> [usize; 2] {
        let (states, rows) = (self.op.cell.states(), self.steps.saturating_add(1));
        match i.checked_sub(states) {
            None => [rows.saturating_mul(i), rows],
            Some(saved) => {
                [rows.saturating_mul(states).saturating_add(self.steps.saturating_mul(saved)), self.steps]
            }
        }
    }

    /// Gradients of projections that the gradient op gives: that of the state, and that of the input if it is another one.
    pub fn projections(&self) -> usize {
        1 + usize::from(self.op.cell.has_own_input_gradient())
    }

    /// Rows `(N, H)` of the gradient: those of the projections `(T, N, gates H)`, then each initial state.
    pub fn gradient_rows(&self) -> usize {
        self.projection_rows().saturating_mul(self.projections()).saturating_add(self.op.cell.states())
    }

    /// Rows of the gradient of one projection.
    pub fn projection_rows(&self) -> usize {
        self.steps.saturating_mul(self.op.cell.gates())
    }

    /// All lines of a projection.
    pub fn lines(&self) -> usize {
        self.steps.saturating_mul(self.batch)
    }

    /// A value of so many rows `(N, H)`.
    pub fn meta(&self, rows: usize) -> Result<Meta> {
        Ok(Meta::f32(Shape::new(&[rows, self.batch, self.hidden])?))
    }

    /// The time of step `i`.
    pub fn time(&self, i: usize) -> usize {
        if self.op.reverse { self.steps - 1 - i } else { i }
    }

    /// The rows of states before and after the step at time `t`.
    pub fn rows(&self, t: usize) -> [usize; 2] {
        if self.op.reverse { [t + 1, t] } else { [t, t + 1] }
    }

    /// The row of the initial states.
    pub fn first_row(&self) -> usize {
        if self.op.reverse { self.steps } else { 0 }
    }

    /// The product of `rows` states with the weights.
    pub fn project(&self, rows: usize) -> Gemm {
        Gemm { batch: 1, m: rows, n: self.columns(), k: self.hidden, ta: false, tb: true }
    }

    /// The product of `rows` gradients of projections with the weights.
    pub fn project_back(&self, rows: usize) -> Gemm {
        Gemm { batch: 1, m: rows, n: self.hidden, k: self.columns(), ta: false, tb: false }
    }
}

/// Rows of a packed value, as `shape`.
fn rows(r: &mut dyn Recorder, packed: Val, [start, len]: [usize; 2], shape: &[usize]) -> Result<Val> {
    let some = r.record(layout::Slice { axis: 0, start, len, step: 1 }.into(), &[packed])?;
    layout::reshape_to(r, some, Shape::new(shape)?)
}

/// State `i` before all steps, or after them, in the order of time: rows of a packed value, as `(T, N, H)`.
fn states(r: &mut dyn Recorder, packed: Val, s: &Sizes, i: usize, after: bool) -> Result<Val> {
    let first = s.part(i)[0] + usize::from(after != s.op.reverse);
    rows(r, packed, [first, s.steps], &[s.steps, s.batch, s.hidden])
}

/// Errors unless all inputs are numbers.
fn all_floats(name: &'static str, ins: &[Meta]) -> Result<()> {
    (0..ins.len()).try_for_each(|i| typed(name, ins, i, DType::F32))
}

/// Errors unless input `i` has the shape `want`.
fn shaped(name: &'static str, ins: &[Meta], i: usize, want: &[usize], why: &'static str) -> Result<()> {
    let (got, want) = (ins[i].shape, Shape::new(want)?);
    if got == want { Ok(()) } else { Err(mismatch(name, why, got, want)) }
}
