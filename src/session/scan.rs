//! Scans of values.

use super::Var;
use crate::error::{Error, ErrorKind, Result};
use crate::ops::random::Full;
use crate::ops::scan::{CumSum, SelectiveScan};
use crate::shape::Shape;

impl<'s> Var<'s> {
    /// Running sums along an axis: `y[i] = x[0] + … + x[i]`.
    pub fn cumsum(self, axis: usize) -> Result<Var<'s>> {
        self.cumsum_with(axis, false, false)
    }

    /// [`Var::cumsum`] without the element itself (`exclusive`), from the end of the axis (`reverse`), or both.
    pub fn cumsum_with(self, axis: usize, exclusive: bool, reverse: bool) -> Result<Var<'s>> {
        self.session().apply(CumSum { axis, exclusive, reverse }, &[self])
    }

    /// Running products along an axis, `y[i] = x[0] · … · x[i]`, in order. The gradient is right at zeros too.
    pub fn cumprod(self, axis: usize) -> Result<Var<'s>> {
        let shape = self.shape()?;
        let d = shape.dims();
        if axis >= d.len() {
            return Err(Error::new("cumprod", ErrorKind::Axis { axis, shape }));
        }
        let (outer, inner) = (d[..axis].iter().product(), d[axis + 1..].iter().product());
        // y[i] = x[i] y[i-1] + 0 from 1: a recurrence whose coefficient is x.
        let full =
            |dims: &[usize], value| self.session().apply(Full { shape: Shape::new(dims)?, value }, &[]);
        let x = self.reshape(&[outer, d[axis], inner])?;
        let zero = full(&[inner], 0.0)?;
        let nothing = full(&[outer, d[axis], inner], 0.0)?;
        let one = full(&[outer, inner], 1.0)?;
        self.session().apply(SelectiveScan, &[x, zero, nothing, one])?.reshape(d)
    }

    /// The diagonal recurrence `h[t] = a ∘ h[t-1] + b ∘ x[t]` from `h0`, for a value `x` (…, T, S): see
    /// [`SelectiveScan`]. `a` and `b` are each (S), or vary with time and have the shape of `x`; `h0` is (…, S).
    pub fn selective_scan(self, a: Var<'s>, b: Var<'s>, h0: Var<'s>) -> Result<Var<'s>> {
        self.session().apply(SelectiveScan, &[a, b, self, h0])
    }
}
