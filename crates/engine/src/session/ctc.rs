//! Connectionist temporal classification: the loss of sequences of labels without an alignment.

use super::Var;
use dittograd_device::DType;
use dittograd_numerics::error::{Error, ErrorKind, Located, Result};
use dittograd_numerics::scalar::Real;
use dittograd_numerics::shape::Shape;
use dittograd_ops::loss::Reduction;
use dittograd_ops::pointwise::expression::{Expr, Pointwise};
use dittograd_ops::pointwise::map::Map;

/// Options of [`Var::ctc_loss`].
#[derive(Clone, Copy, Debug, Default)]
pub struct CtcLoss {
    /// The class that stands for no label.
    pub blank: u32,
    /// Whether a sequence that cannot have its labels, because it is too short, has loss 0 instead of infinity.
    pub zero_infinity: bool,
    /// How the losses of the sequences are combined. The mean divides each by its number of labels first.
    pub reduction: Reduction,
}

/// The logarithm of a probability of 0, finite so that differences of two are numbers.
const NEVER: f64 = -1e30;

/// `ln(e^a + e^b)`. Either side of the choice has the gradient of the whole, so ties have it too.
fn log_add<R: Real>(a: R, b: R) -> R {
    R::where_gt(a, b, a + (b - a).softplus(), b + (a - b).softplus())
}

/// # Sequences without an alignment
impl<'s> Var<'s> {
    /// CTC loss of log-probabilities `(T, N, C)` against labels `(N, S)`: the negative logarithm of the probability that
    /// a path of T classes becomes the labels when repeated classes, then blanks are removed. Only the first
    /// `input_lengths (N)` steps and `target_lengths (N)` labels of a sequence count; all labels, also those that do
    /// not count, are below C. Without the axis N it is the loss of one sequence.
    ///
    /// The recursion over time is in logarithms: step by step, each state adds its predecessors in the order same state,
    /// one before, two before. The gradient is that of this function; PyTorch's assumes a softmax before it and agrees
    /// behind one. A loss of infinity has gradient 0.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # use dittograd::session::CtcLoss;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let logs = session.full(&[2, 1, 2], 0.5f64.ln())?; // two steps, classes blank and 1
    /// let label = |v: u32, dims: &[usize]| session.labels(&Tensor::new(dims, vec![v])?);
    /// let loss = logs.ctc_loss(label(1, &[1, 1])?, label(2, &[1])?, label(1, &[1])?, CtcLoss::default())?;
    /// assert!((loss.item()? + 0.75f32.ln()).abs() < 1e-6); // 11, 01 and 10 of four paths
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn ctc_loss(
        self,
        targets: Var<'s>,
        input_lengths: Var<'s>,
        target_lengths: Var<'s>,
        options: CtcLoss,
    ) -> Result<Var<'s>> {
        const NAME: &str = "ctc_loss";
        let CtcLoss { blank, zero_infinity, reduction } = options;
        let (x, t) = (self.shape()?, targets.shape()?);
        self.meta()?.dtype.require(DType::F32, NAME, 0)?;
        for (i, v) in [targets, input_lengths, target_lengths].into_iter().enumerate() {
            v.meta()?.dtype.require(DType::U32, NAME, i + 1)?;
        }
        if x.rank() == 2 && t.rank() == 1 {
            let one = |v: Var<'s>| v.reshape(&[1]);
            let (of, to) = (one(input_lengths)?, one(target_lengths)?);
            let loss = self.unsqueeze(1)?.ctc_loss(targets.unsqueeze(0)?, of, to, options)?;
            return if reduction == Reduction::None { loss.squeeze(0) } else { Ok(loss) };
        }
        let (&[times, batch, classes], &[rows, labels]) = (x.dims(), t.dims()) else {
            let why = "log-probabilities are (T, N, C) and labels (N, S), or (T, C) and (S)";
            return Err(Error::new(NAME, ErrorKind::Shapes { why, left: x, right: t }));
        };
        for (lengths, of) in [(input_lengths, "input_lengths"), (target_lengths, "target_lengths")] {
            let got = lengths.shape()?;
            if rows != batch || got.dims() != [batch] {
                let why = format!(
                    "{x} has {batch} sequences, but labels are {t} and {of} {got}; use (N, S) and (N)"
                );
                return Err(Error::argument(NAME, "lengths", why));
            }
        }
        if blank as usize >= classes {
            let why = format!("got {blank}, but there are {classes} classes");
            return Err(Error::argument(NAME, "blank", why));
        }
        let s = self.session();
        // Lengths as numbers; a length beyond its axis is an error of the table.
        let lengths = |of: Var<'s>, most: usize| -> Result<Var<'s>> {
            let table = s.arange(0.0, most as f64 + 1.0, 1.0)?;
            table.index_select(0, of).map_err(|e| Error::new(NAME, e.kind().clone())).located()
        };
        let (of, to) = (lengths(input_lengths, times)?, lengths(target_lengths, labels)?);
        let states = 2 * labels + 1;
        // Blanks are at even states, labels at odd ones.
        let between = |blanks: Var<'s>, odd: Var<'s>, lead: &[usize]| -> Result<Var<'s>> {
            let axis = lead.len();
            let even = blanks.expand(&[lead, &[labels]].concat())?;
            let pairs = s.stack(&[even, odd], axis + 1)?.reshape(&[lead, &[2 * labels]].concat())?;
            pairs.concat(blanks, axis)
        };
        let blanks = self.narrow(2, blank as usize, 1)?;
        let picked = self.take_along_axis(2, targets.expand(&[times, batch, labels])?)?;
        let emitted = between(blanks, picked, &[times, batch])?;
        // 1 where a path may skip the blank before a label: the label before is another one.
        let mut other = s.zeros(&[batch, labels.min(1)])?;
        if labels > 1 {
            let differs = targets.narrow(1, 1, labels - 1)?.ne(targets.narrow(1, 0, labels - 1)?)?;
            other = other.concat(differs, 1)?;
        }
        let skips = between(s.zeros(&[batch, 1])?, other, &[batch])?;
        let step = Pointwise::trace(6, |v| {
            let never = Expr::c(NEVER);
            let two = Expr::where_eq(v[3], Expr::c(0.0), never, v[2]);
            let emitted = Expr::where_gt(never, v[4], never, v[4]);
            let next = log_add(log_add(v[0], v[1]), two) + emitted;
            vec![Expr::where_eq(v[5], Expr::c(0.0), v[0], next)]
        });
        let step = Map::new(step, Shape::new(&[batch, states])?);
        let mut paths = s.zeros(&[batch, 1])?.pad_with(1, 0, states - 1, NEVER)?;
        for time in 0..times {
            let longer = of.gt(s.scalar(time as f64)?)?.unsqueeze(1)?;
            let padded = paths.pad_with(1, 2, 0, NEVER)?;
            let (one, two) = (padded.narrow(1, 1, states)?, padded.narrow(1, 0, states)?);
            paths = s.apply(step.clone(), &[paths, one, two, skips, emitted.select(0, time)?, longer])?;
        }
        // A path ends with the last label or the blank after it.
        let at = |state: Var<'s>| -> Result<Var<'s>> {
            let state = state.to_index_below(states as u32)?.unsqueeze(1)?;
            paths.take_along_axis(1, state)?.squeeze(1)
        };
        let last = to.scale(2.0)?;
        let losses = at(last)?.formula_of(NAME, &[at(last.add_scalar(-1.0)?)?, to], |v| {
            let label = Expr::where_eq(v[2], Expr::c(0.0), Expr::c(NEVER), v[1]);
            let loss = -log_add(v[0], label);
            let instead = Expr::c(if zero_infinity { 0.0 } else { f64::INFINITY });
            Expr::where_gt(loss, Expr::c(-NEVER / 10.0), instead, loss)
        })?;
        match reduction {
            Reduction::Mean => losses.div(to.max(s.scalar(1.0)?)?)?.reduced(reduction),
            _ => losses.reduced(reduction),
        }
    }
}
