//! Differences of neighbours, slopes and integrals.

use super::Var;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Real;
use dittograd_numerics::shape::Position;
use dittograd_ops::pointwise::expression::Expr;

/// Where the elements of an axis are, for [`Var::gradient_with`].
#[derive(Clone, Copy, Debug)]
pub enum Spacing<'s> {
    /// This far apart.
    Step(f64),
    /// At these places, a vector.
    Places(Var<'s>),
}

/// # Differences and integrals
impl<'s> Var<'s> {
    /// An axis without its first element and without its last.
    #[track_caller]
    fn neighbours(self, axis: usize, size: usize) -> Result<(Var<'s>, Var<'s>)> {
        let steps = size.saturating_sub(1);
        Ok((self.narrow(axis, size.min(1), steps)?, self.narrow(axis, 0, steps)?))
    }

    /// Differences of neighbours along an axis, taken `n` times.
    #[track_caller]
    pub fn diff(self, n: usize, axis: impl Position) -> Result<Var<'s>> {
        let (axis, size) = self.named_axis("diff", axis)?;
        let mut x = self;
        for done in 0..n.min(size) {
            let (after, before) = x.neighbours(axis, size - done)?;
            x = after.sub(before)?;
        }
        Ok(x)
    }

    /// The slope along an axis of numbers `spacing` apart: half the difference of both neighbours, at the ends the
    /// difference to the one.
    #[track_caller]
    pub fn gradient(self, spacing: f64, axis: impl Position) -> Result<Var<'s>> {
        self.gradient_with(Spacing::Step(spacing), axis, 1)
    }

    /// The slope along an axis of numbers at any places: that of the parabola through an element and both neighbours; at the
    /// ends that of the line through the last two elements, or with `edge_order` 2 of the parabola through the last three.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # use dittograd::session::Spacing;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let places = session.input(&Tensor::new(&[4], vec![0.0f32, 1.0, 3.0, 4.0])?)?;
    /// let slope = places.square()?.gradient_with(Spacing::Places(places), 0, 2)?;
    /// assert_eq!(slope.to_string(), "[0. 2. 6. 8.]");
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn gradient_with(
        self,
        spacing: Spacing<'s>,
        axis: impl Position,
        edge_order: usize,
    ) -> Result<Var<'s>> {
        const NAME: &str = "gradient";
        let (axis, size) = self.named_axis(NAME, axis)?;
        if !(1..=2).contains(&edge_order) {
            return Err(Error::argument(NAME, "edge_order", format!("is {edge_order}, use 1 or 2")));
        }
        if size <= edge_order {
            let why = format!(
                "axis {axis} has {size} elements; there must be {} or more for edge_order {edge_order}",
                edge_order + 1
            );
            return Err(Error::argument(NAME, "axis", why));
        }
        match spacing {
            Spacing::Step(0.0) => Err(Error::argument(NAME, "spacing", "is 0; the elements must be apart")),
            Spacing::Step(step) => self.gradient_by_step(step, axis, size, edge_order),
            Spacing::Places(places) => self.gradient_by_places(places, axis, size, edge_order),
        }
    }

    #[track_caller]
    fn gradient_by_step(self, step: f64, axis: usize, size: usize, edge_order: usize) -> Result<Var<'s>> {
        let end = |at: usize| self.narrow(axis, at, 2)?.diff(1, axis)?.scale(1.0 / step);
        // From the end inwards; `towards` is 1 at the first element, -1 at the last.
        let parabola = |a: usize, b: usize, c: usize, towards: f64| {
            let ins = [self.narrow(axis, a, 1)?, self.narrow(axis, b, 1)?, self.narrow(axis, c, 1)?];
            self.session().pointwise(&ins, |v| {
                (v[1] * Expr::c(2.0) - v[0] * Expr::c(1.5) - v[2] * Expr::c(0.5)) * Expr::c(towards / step)
            })
        };
        let (first, last) = match edge_order {
            1 => (end(0)?, end(size - 2)?),
            _ => (parabola(0, 1, 2, 1.0)?, parabola(size - 1, size - 2, size - 3, -1.0)?),
        };
        let inner =
            self.narrow(axis, 2, size - 2)?.sub(self.narrow(axis, 0, size - 2)?)?.scale(0.5 / step)?;
        self.session().concat(&[first, inner, last], axis)
    }

    #[track_caller]
    fn gradient_by_places(
        self,
        places: Var<'s>,
        axis: usize,
        size: usize,
        edge_order: usize,
    ) -> Result<Var<'s>> {
        if places.vector("gradient")? != size {
            let why = "there must be one place for each element of the axis";
            let kind = ErrorKind::Shapes { why, left: places.shape()?, right: self.shape()? };
            return Err(Error::new("gradient", kind));
        }
        let mut dims = vec![1; self.shape()?.rank()];
        dims[axis] = size - 1;
        // The widths between neighbours, and the slopes of the lines between them.
        let widths = places.diff(1, 0)?.reshape(&dims)?;
        let slopes = self.diff(1, axis)?.div(widths)?;
        let end = |at: usize, next: usize| {
            let part = |v: Var<'s>, at: usize| v.narrow(axis, at, 1);
            if edge_order == 1 {
                return part(slopes, at);
            }
            let ins = [part(slopes, at)?, part(slopes, next)?, part(widths, at)?, part(widths, next)?];
            self.session().pointwise(&ins, |v| v[0] + v[2] * (v[0] - v[1]) / (v[2] + v[3]))
        };
        let (after, before) = slopes.neighbours(axis, size - 1)?;
        let (right, left) = widths.neighbours(axis, size - 1)?;
        let ins = [before, after, left, right];
        let inner = self.session().pointwise(&ins, |v| (v[3] * v[0] + v[2] * v[1]) / (v[2] + v[3]))?;
        let (first, last) = (end(0, 1)?, end(size - 2, size.saturating_sub(3))?);
        self.session().concat(&[first, inner, last], axis)
    }

    /// The areas under neighbours along an axis by the trapezoid rule. `x` has their places, a vector or a value that
    /// broadcasts; without it they are `dx` apart.
    #[track_caller]
    fn trapezoids(self, op: &str, x: Option<Var<'s>>, dx: f64, axis: usize) -> Result<Var<'s>> {
        let (axis, size) = self.named_axis(op, axis)?;
        let (after, before) = self.neighbours(axis, size)?;
        let Some(x) = x else {
            return self.session().pointwise(&[after, before], |v| (v[0] + v[1]) * Expr::c(0.5 * dx));
        };
        let x = match x.shape()? {
            shape if shape.rank() == 1 => {
                let dims: Vec<usize> =
                    (0..self.shape()?.rank()).map(|a| if a == axis { shape.last() } else { 1 }).collect();
                x.reshape(&dims)?
            }
            _ => x,
        };
        let along = x.shape()?.rank().checked_sub(self.shape()?.rank() - axis);
        let Some(along) = along.filter(|&a| x.shape().is_ok_and(|s| s.dims()[a] == size)) else {
            let why = "there must be one place for each element of the axis";
            let kind = ErrorKind::Shapes { why, left: x.shape()?, right: self.shape()? };
            return Err(Error::new(op, kind));
        };
        let (right, left) = x.neighbours(along, size)?;
        let ins = [after, before, right, left];
        self.session().pointwise(&ins, |v| (v[0] + v[1]) * Expr::c(0.5) * (v[2] - v[3]))
    }

    /// The integral along an axis by the trapezoid rule. `x` has the places of the elements, a vector or a value that
    /// broadcasts; without it they are `dx` apart.
    #[doc(alias = "trapz")]
    #[track_caller]
    pub fn trapezoid(self, x: Option<Var<'s>>, dx: f64, axis: impl Position) -> Result<Var<'s>> {
        let axis = self.axis("trapezoid", axis)?;
        self.trapezoids("trapezoid", x, dx, axis)?.sum_axes(&[axis])
    }

    /// The integrals up to each element but the first, as in [`Var::trapezoid`].
    #[track_caller]
    pub fn cumulative_trapezoid(self, x: Option<Var<'s>>, dx: f64, axis: impl Position) -> Result<Var<'s>> {
        let axis = self.axis("cumulative_trapezoid", axis)?;
        self.trapezoids("cumulative_trapezoid", x, dx, axis)?.cumsum(axis)
    }
}
