//! Scans of values.

use super::Var;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::shape::{Position, Shape};
use dittograd_ops::random::Full;
use dittograd_ops::scan::{CumSum, SelectiveScan};

/// # Scans and recurrences
impl<'s> Var<'s> {
    /// Cumulative sum along an axis: `y[i] = x[0] + … + x[i]`.
    #[track_caller]
    pub fn cumsum(self, axis: impl Position) -> Result<Var<'s>> {
        self.cumsum_with(axis, false, false)
    }

    /// [`Var::cumsum`] without the element itself (`exclusive`), from the end of the axis (`reverse`), or both.
    #[track_caller]
    pub fn cumsum_with(self, axis: impl Position, exclusive: bool, reverse: bool) -> Result<Var<'s>> {
        let axis = self.axis("cumsum_with", axis)?;
        self.session().apply(CumSum { axis, exclusive, reverse }, &[self])
    }

    /// Cumulative product along an axis, `y[i] = x[0] · … · x[i]`, in order. The gradient is also correct at zeros.
    #[track_caller]
    pub fn cumprod(self, axis: impl Position) -> Result<Var<'s>> {
        let axis = self.axis("cumprod", axis)?;
        let shape = self.shape()?;
        let d = shape.dims();
        if axis >= d.len() {
            return Err(Error::new("cumprod", ErrorKind::Axis { axis, shape }));
        }
        let (outer, inner) = (d[..axis].iter().product(), d[axis + 1..].iter().product());
        // y[i] = x[i] y[i-1] + 0, starting at 1: a recurrence with coefficient x.
        let full =
            |dims: &[usize], value| self.session().apply(Full { shape: Shape::new(dims)?, value }, &[]);
        let x = self.reshape(&[outer, d[axis], inner])?;
        let zero = full(&[inner], 0.0)?;
        let nothing = full(&[outer, d[axis], inner], 0.0)?;
        let one = full(&[outer, inner], 1.0)?;
        self.session().apply(SelectiveScan, &[x, zero, nothing, one])?.reshape(d)
    }

    /// The diagonal recurrence `h[t] = a ∘ h[t-1] + b ∘ x[t]` from `h0`, for a value `x` (…, T, S): see
    /// [`SelectiveScan`]. `a` and `b` are (S), or vary with time and have the shape of `x`; `h0` is (…, S).
    #[track_caller]
    pub fn selective_scan(self, a: Var<'s>, b: Var<'s>, h0: Var<'s>) -> Result<Var<'s>> {
        self.session().apply(SelectiveScan, &[a, b, self, h0])
    }

    /// The selective state space of Mamba for an input `u` (B, L, D), with `delta` (B, L, D), `a` (D, N), `b` and `c`
    /// (B, L, N). The states are `h[t] = exp(delta a) ∘ h[t-1] + (delta u) b` (B, D, N), starting at zero, and the
    /// value is `y[t] = Σ_n c h[t]` (B, L, D). The states of all steps are stored.
    #[track_caller]
    pub fn selective_ssm(self, delta: Var<'s>, a: Var<'s>, b: Var<'s>, c: Var<'s>) -> Result<Var<'s>> {
        const NAME: &str = "selective_ssm";
        let u = self.shape()?;
        let [batch, len, width] = u.dims()[..] else {
            return Err(Error::new(NAME, ErrorKind::Rank { want: "exactly 3", got: u }));
        };
        let states = a.shape()?.last();
        let wanted = [(delta, u), (a, Shape::new(&[width, states])?)];
        let per_step = Shape::new(&[batch, len, states])?;
        for (v, want) in wanted.into_iter().chain([(b, per_step), (c, per_step)]) {
            let got = v.shape()?;
            if got != want {
                let why = "delta is (B, L, D), a (D, N), b and c are (B, L, N) for an input (B, L, D); not";
                return Err(Error::new(NAME, ErrorKind::Shapes { why, left: got, right: want }));
            }
        }
        let each = |v: Var<'s>| v.reshape(&[batch, len, width, 1]);
        let lines = |v: Var<'s>| v.reshape(&[batch, len, 1, states]);
        let full =
            |dims: &[usize], value| self.session().apply(Full { shape: Shape::new(dims)?, value }, &[]);
        let flat = [batch, len, width * states];
        let decay = each(delta)?.mul(a)?.exp()?.reshape(&flat)?;
        let inflow = each(delta.mul(self)?)?.mul(lines(b)?)?.reshape(&flat)?;
        let one = full(&[width * states], 1.0)?;
        let h = inflow.selective_scan(decay, one, full(&[batch, width * states], 0.0)?)?;
        h.reshape(&[batch, len, width, states])?.mul(lines(c)?)?.sum_axes(&[3])
    }
}
