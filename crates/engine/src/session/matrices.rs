//! Batches of matrices, as the ops of linear algebra take them.

use super::Var;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::shape::Shape;

/// Matrices in the last two axes as one batch: the leading axes, and the value (batch, rows, columns).
pub(super) struct Matrices<'s> {
    pub(super) lead: Vec<usize>,
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) all: Var<'s>,
}

impl<'s> Matrices<'s> {
    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.lead.iter().product()
    }

    #[track_caller]
    pub(super) fn of(op: &'static str, x: Var<'s>) -> Result<Matrices<'s>> {
        let shape = x.shape()?;
        let Some((lead, &[rows, columns])) = shape.dims().split_last_chunk() else {
            return Err(Error::new(op, ErrorKind::Rank { want: "at least 2", got: shape }));
        };
        let all = x.reshape(&[lead.iter().product(), rows, columns])?;
        Ok(Matrices { lead: lead.to_vec(), rows, columns, all })
    }

    /// Square ones.
    #[track_caller]
    pub(super) fn square(op: &'static str, x: Var<'s>) -> Result<Matrices<'s>> {
        let m = Matrices::of(op, x)?;
        if m.rows != m.columns {
            let why = format!("the last two axes of {} differ; a square matrix is needed", x.shape()?);
            return Err(Error::argument(op, "matrix", why));
        }
        Ok(m)
    }

    /// A value of one entry per matrix of the batch, with the leading axes.
    #[track_caller]
    pub(super) fn unfold(&self, v: Var<'s>) -> Result<Var<'s>> {
        let shape = v.shape()?;
        v.reshape(&[&self.lead, &shape.dims()[1..]].concat())
    }

    /// Both with the leading axes of both, broadcast.
    #[track_caller]
    pub(super) fn pair(op: &'static str, a: Var<'s>, b: Var<'s>) -> Result<[Matrices<'s>; 2]> {
        let [left, right] = [Matrices::of(op, a)?, Matrices::of(op, b)?];
        if left.lead == right.lead {
            return Ok([left, right]);
        }
        let lead = Shape::new(&left.lead)?.broadcast(&Shape::new(&right.lead)?).map_err(|_| {
            let why = "the leading axes do not broadcast";
            let (left, right) = (a.shape().unwrap_or_default(), b.shape().unwrap_or_default());
            Error::new(op, ErrorKind::Shapes { why, left, right })
        })?;
        let spread = |v: Var<'s>, m: &Matrices<'s>| {
            v.broadcast_to(Shape::new(&[lead.dims(), &[m.rows, m.columns]].concat())?)
        };
        Ok([Matrices::of(op, spread(a, &left)?)?, Matrices::of(op, spread(b, &right)?)?])
    }
}
