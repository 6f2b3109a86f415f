//! Reductions of segments of an axis.

use super::{Reduce, Var};
use dittograd_device::DType;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Real;
use dittograd_numerics::shape::Position;
use dittograd_ops::pointwise::expression::Expr;

/// Where the segments of an axis are, for [`Var::segment_reduce`]. The last axis of these indices counts segments; the axes before
/// it are those of the value.
#[derive(Clone, Copy, Debug)]
pub enum Segments<'s> {
    /// How many elements each has. They follow each other and fill the axis; an eager session waits for the device to see that.
    Lengths(Var<'s>),
    /// Where each begins, in increasing order, and after them where the last one ends. Elements outside belong to none.
    Offsets(Var<'s>),
}

/// # Segments
impl<'s> Var<'s> {
    /// The reductions of segments of an axis, each starting from `initial`, which is no element of a mean's count. Without it an empty
    /// segment gives 0 for a sum, 1 for a product, an infinity for an extreme and NaN for a mean. Where several elements are the
    /// largest or smallest, they share the gradient evenly.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # use dittograd::session::Segments;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let x = session.arange(1.0, 7.0, 1.0)?;
    /// let lengths = session.labels(&Tensor::new(&[4], vec![2, 0, 3, 1])?)?;
    /// let sums = x.segment_reduce(Reduce::Sum, Segments::Lengths(lengths), 0, None)?;
    /// assert_eq!(sums.to_string(), "[ 3.  0. 12.  6.]");
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn segment_reduce(
        self,
        reduce: Reduce,
        segments: Segments<'s>,
        axis: impl Position,
        initial: Option<f64>,
    ) -> Result<Var<'s>> {
        const NAME: &str = "segment_reduce";
        let (axis, n) = self.named_axis(NAME, axis)?;
        if n > 1 << f32::MANTISSA_DIGITS {
            let why = format!("axis {axis} has {n} elements, at most 2^24 can be counted");
            return Err(Error::argument(NAME, "axis", why));
        }
        let shape = self.shape()?;
        let offsets = self.offsets(NAME, segments, axis, n)?;
        let (lead, inner) = (&shape.dims()[..axis], &shape.dims()[axis + 1..]);
        let lines = lead.iter().product();
        let count = offsets.shape()?.last() - 1;
        let offsets = offsets.reshape(&[lines, count + 1])?;
        // The number of offsets up to an element: 0 before the first segment, from 1 in it, and after the last one more than there are.
        let positions = self.session().arange(0.0, n as f64, 1.0)?.expand(&[lines, n])?;
        let width = inner.iter().product();
        let place = offsets.searchsorted(positions, true)?.unsqueeze(2)?.expand(&[lines, n, width])?;
        let start = self.session().full(&[lines, count + 2, width], reduce.neutral())?;
        let rows = self.reshape(&[lines, n, width])?;
        let combined = match reduce {
            Reduce::Mean => start.scatter_add(1, place, rows)?,
            _ => start.scatter_reduce(1, place, rows, reduce, true)?,
        };
        let combined = combined.narrow(1, 1, count)?;
        let lengths = offsets.diff(1, 1)?.unsqueeze(2)?;
        let value = match (reduce, initial) {
            (Reduce::Mean, _) => self.session().pointwise(&[combined, lengths], |v| {
                let (zero, one) = (Expr::c(0.0), Expr::c(1.0));
                let sum = initial.map_or(v[0], |initial| v[0] + Expr::c(initial));
                let mean = sum / Expr::where_eq(v[1], zero, one, v[1]);
                Expr::where_eq(v[1], zero, Expr::c(initial.unwrap_or(f64::NAN)), mean)
            })?,
            (_, None) => combined,
            (_, Some(initial)) => self.session().pointwise(&[combined], |v| {
                let initial = Expr::c(initial);
                match reduce {
                    Reduce::Prod => v[0] * initial,
                    Reduce::Amax => Expr::where_gt(initial, v[0], initial, v[0]),
                    Reduce::Amin => Expr::where_gt(v[0], initial, initial, v[0]),
                    Reduce::Sum | Reduce::Mean => v[0] + initial,
                }
            })?,
        };
        value.reshape(&[lead, &[count], inner].concat())
    }

    /// The offsets of segments of this value, with the end of the last, as numbers.
    #[track_caller]
    fn offsets(self, op: &str, segments: Segments<'s>, axis: usize, n: usize) -> Result<Var<'s>> {
        let (Segments::Lengths(given) | Segments::Offsets(given)) = segments;
        given.meta()?.dtype.require(DType::U32, op, 1)?;
        let (shape, got) = (self.shape()?, given.shape()?);
        let fits = got.rank() == axis + 1 && got.dims()[..axis] == shape.dims()[..axis];
        if !fits {
            let why = "the indices must have the axes of the value up to the one of the segments";
            return Err(Error::new(op, ErrorKind::Shapes { why, left: got, right: shape }));
        }
        match segments {
            Segments::Offsets(_) if got.last() == 0 => {
                Err(Error::argument(op, "segments", "are no offsets; give at least the end"))
            }
            Segments::Offsets(offsets) => offsets.to_float(),
            Segments::Lengths(lengths) => {
                if !self.session().is_trace() && got.last() > 0 {
                    let sum = |line: &[u32]| line.iter().map(|&len| len as usize).sum::<usize>();
                    if let Some(bad) = lengths.indices()?.data().chunks(got.last()).map(sum).find(|&s| s != n)
                    {
                        let why = format!("have lengths of {bad} in all, axis {axis} has {n} elements");
                        return Err(Error::argument(op, "segments", why));
                    }
                }
                lengths.to_float()?.cumsum(axis)?.pad(axis, 1, 0)
            }
        }
    }
}
