//! Derivatives as values: gradients of gradients, directional derivatives, Hessian products. They are recorded like any
//! other op, so they work eagerly, in compiled programs and on every device.

use super::{Grads, Record, Session, Var, lent};
use crate::gradients::gradients;
use crate::graph::Source;
use dittograd_device::{AnyBuffer, DType};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;
use dittograd_ops::Val;
use dittograd_ops::layout::Detach;

impl Session {
    /// Gradients of the scalar `y` with respect to each of `wrt`, as values that can be used and differentiated
    /// further. Errors if `y` does not depend on one of them.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # fn main() -> Result<()> {
    /// let device = Device::cpu()?;
    /// let s = Session::eager(&device);
    /// let x = s.variable(&Tensor::scalar(2.0))?;
    /// let y = x.mul(x)?.mul(x)?;
    /// let dy = s.grad(y, &[x])?[0];
    /// let d2y = s.grad(dy, &[x])?[0];
    /// assert_eq!((dy.item()?, d2y.item()?), (12.0, 12.0));
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn grad<'s>(&'s self, y: Var<'s>, wrt: &[Var<'s>]) -> Result<Vec<Var<'s>>> {
        let shape = y.shape()?;
        if shape != Shape::SCALAR {
            let why = format!("a value of shape {shape} needs a seed, use vjp; only a scalar has the seed 1");
            return Err(Error::new("grad", ErrorKind::Gradient { why }));
        }
        let one = self.scalar(1.0)?;
        let grads = self.vjp(&[(y, one)], wrt)?;
        let unreached = |i: usize| {
            let why = format!("the value does not depend on number {i} of those to differentiate by");
            Error::new("grad", ErrorKind::Gradient { why })
        };
        grads.into_iter().enumerate().map(|(i, g)| g.ok_or_else(|| unreached(i))).collect()
    }

    /// Gradients of `Σ <seed, value>` over `seeds = (value, seed)` with respect to each of `wrt`, as values; `None`
    /// where nothing depends on it.
    #[track_caller]
    pub fn vjp<'s>(&'s self, seeds: &[(Var<'s>, Var<'s>)], wrt: &[Var<'s>]) -> Result<Vec<Option<Var<'s>>>> {
        let val = |v: &Var<'s>| Ok(Val(self.check("grad", *v)? as u32));
        for (i, x) in wrt.iter().enumerate() {
            if !self.requires_grad(*x)? {
                let why = format!(
                    "number {i} of the values to differentiate by requires no gradient; make it with variable or param"
                );
                return Err(Error::new("grad", ErrorKind::Gradient { why }));
            }
        }
        seeds
            .iter()
            .try_for_each(|(v, seed)| alike("the seed has another shape than the value", *v, *seed))?;
        let pairs = seeds.iter().map(|(v, seed)| Ok((val(v)?, val(seed)?))).collect::<Result<Vec<_>>>()?;
        let wrt = wrt.iter().map(val).collect::<Result<Vec<_>>>()?;
        let grads = match &mut self.state.borrow_mut().record {
            Record::Eager(tape) => gradients(tape, &pairs, &wrt)?,
            Record::Trace(graph) => gradients(graph, &pairs, &wrt)?,
            Record::Lent => return Err(lent("grad")),
        };
        Ok(grads.into_iter().map(|g| g.map(|g| self.var(g.0 as usize))).collect())
    }

    /// The directional derivative of `y` along directions `(x, v)`: `Σ (∂y/∂x) v`, in the shape of `y`. It is forward
    /// mode by reverse mode twice: the transposed `∂y/∂x` is linear in its seed, and its gradient by the seed is the
    /// result.
    #[track_caller]
    pub fn jvp<'s>(&'s self, y: Var<'s>, directions: &[(Var<'s>, Var<'s>)]) -> Result<Var<'s>> {
        // Check the shapes of inputs that `y` does not depend on too.
        let why = "the direction has another shape than the value";
        directions.iter().try_for_each(|(x, along)| alike(why, *x, *along))?;
        let wrt: Vec<Var<'s>> = directions.iter().map(|d| d.0).collect();
        let (seed, grads) = self.transposed(y, &wrt)?;
        self.along(seed, &grads, &directions.iter().map(|d| d.1).collect::<Vec<_>>())
    }

    /// A seed of `y`, and the gradients by `wrt` as functions of it: the transposed `∂y/∂x`.
    #[track_caller]
    fn transposed<'s>(&'s self, y: Var<'s>, wrt: &[Var<'s>]) -> Result<(Var<'s>, Vec<Option<Var<'s>>>)> {
        // The gradients are linear in the seed, so any seed will do.
        let zeros = AnyBuffer::zeros(&self.device, y.shape()?)?;
        let seed = self.leaf("seed", Source::Constant(zeros.clone()), || Ok(zeros), true)?;
        Ok((seed, self.vjp(&[(y, seed)], wrt)?))
    }

    /// The directional derivative for each of the gradients of [`Session::transposed`].
    #[track_caller]
    fn along<'s>(
        &'s self,
        seed: Var<'s>,
        grads: &[Option<Var<'s>>],
        directions: &[Var<'s>],
    ) -> Result<Var<'s>> {
        let pairs: Vec<(Var<'s>, Var<'s>)> =
            grads.iter().zip(directions).filter_map(|(g, d)| g.map(|g| (g, *d))).collect();
        match self.vjp(&pairs, &[seed])?.into_iter().next().flatten() {
            Some(along) => Ok(along),
            None => seed.zeros_like(),
        }
    }

    /// The Jacobian: all partial derivatives `∂y/∂x`, with the axes of `y`, then those of `x`. It uses reverse mode,
    /// one backward pass per element of `y`; if `x` has fewer elements, [`Session::jacobian_forward`] is cheaper. It is
    /// zero where `y` does not depend on `x`.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # fn main() -> Result<()> {
    /// let s = Session::eager(&Device::cpu()?);
    /// let x = s.variable(&Tensor::new(&[2], vec![3.0f32, 5.0])?)?;
    /// let y = (x * x.sum()?)?;
    /// assert_eq!(s.jacobian(y, x)?.to_string(), "[[11.  3.]\n [ 5. 13.]]");
    /// assert_eq!(s.hessian(y.sum()?, x)?.to_string(), "[[2. 2.]\n [2. 2.]]");
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "jacrev")]
    #[track_caller]
    pub fn jacobian<'s>(&'s self, y: Var<'s>, x: Var<'s>) -> Result<Var<'s>> {
        let units = self.units(y)?;
        let row = |unit: Var<'s>| match self.vjp(&[(y, unit)], &[x])?.first().copied().flatten() {
            Some(row) => row.flatten(),
            None => x.zeros_like()?.flatten(),
        };
        let rows = units.into_iter().map(row).collect::<Result<Vec<_>>>()?;
        self.matrix(rows, y, x)?.reshape(&joined(y, x)?)
    }

    /// Like [`Session::jacobian`], by forward mode: one pass per element of `x`.
    #[doc(alias = "jacfwd")]
    #[track_caller]
    pub fn jacobian_forward<'s>(&'s self, y: Var<'s>, x: Var<'s>) -> Result<Var<'s>> {
        let (seed, grads) = self.transposed(y, &[x])?;
        let column = |unit: Var<'s>| self.along(seed, &grads, &[unit])?.flatten();
        let columns = self.units(x)?.into_iter().map(column).collect::<Result<Vec<_>>>()?;
        self.matrix(columns, x, y)?.transpose()?.reshape(&joined(y, x)?)
    }

    /// The Hessian: all second derivatives of the scalar `y` by `x`, with the axes of `x` twice. One pass per element
    /// of `x` through the gradient. [`Session::hvp`] computes the product with one direction in a single pass.
    #[track_caller]
    pub fn hessian<'s>(&'s self, y: Var<'s>, x: Var<'s>) -> Result<Var<'s>> {
        let gradient = self.grad(y, &[x])?[0];
        self.jacobian(gradient, x)
    }

    /// One-hot values: for each element of a value, a 1 there and zeros elsewhere.
    #[track_caller]
    fn units<'s>(&'s self, like: Var<'s>) -> Result<Vec<Var<'s>>> {
        let shape = like.shape()?;
        let eye = self.eye(shape.numel())?;
        (0..shape.numel()).map(|i| eye.narrow(0, i, 1)?.reshape(shape.dims())).collect()
    }

    /// Stacks rows of as many elements as `x` has, one per element of `y`.
    #[track_caller]
    fn matrix<'s>(&'s self, rows: Vec<Var<'s>>, y: Var<'s>, x: Var<'s>) -> Result<Var<'s>> {
        if rows.is_empty() {
            return self.zeros(&[y.shape()?.numel(), x.shape()?.numel()]);
        }
        self.stack(&rows, 0)
    }

    /// Hessian-vector product of the scalar `y`: for directions `(x, v)`, the gradient of `Σ <∂y/∂x, v>` with respect
    /// to each `x`; `None` where it does not depend on it.
    #[track_caller]
    pub fn hvp<'s>(&'s self, y: Var<'s>, directions: &[(Var<'s>, Var<'s>)]) -> Result<Vec<Option<Var<'s>>>> {
        let wrt: Vec<Var<'s>> = directions.iter().map(|d| d.0).collect();
        let grads = self.grad(y, &wrt)?;
        let pairs: Vec<(Var<'s>, Var<'s>)> =
            grads.into_iter().zip(directions).map(|(g, d)| (g, d.1)).collect();
        self.vjp(&pairs, &wrt)
    }

    #[track_caller]
    fn requires_grad(&self, v: Var<'_>) -> Result<bool> {
        let id = self.check("grad", v)?;
        match &self.state.borrow().record {
            Record::Eager(tape) => Ok(tape.node(id).is_some_and(|n| n.requires_grad)),
            Record::Trace(graph) => Ok(graph.nodes().get(id).is_some_and(|n| n.requires_grad)),
            Record::Lent => Err(lent("grad")),
        }
    }
}

/// # Gradients
///
/// [`Session::grad`] gives gradients as values, which can be differentiated again.
impl<'s> Var<'s> {
    /// The same value, cut off from gradients.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let x = session.variable(&Tensor::new(&[2], vec![3.0f32, 5.0])?)?;
    /// let y = (x * x.detach()?)?.sum()?; // the second factor counts as a constant
    /// assert_eq!(session.grad(y, &[x])?[0].to_string(), "[3. 5.]");
    /// # Ok::<(), Error>(())
    /// ```
    #[doc(alias = "stop_gradient")]
    #[track_caller]
    pub fn detach(self) -> Result<Var<'s>> {
        self.session.apply(Detach, &[self])
    }

    /// Gradients of this scalar with respect to all parameters and variables it was computed from. Intermediate values
    /// are freed during the pass.
    ///
    /// ```
    /// # use dittograd::prelude::*;
    /// # let session = Session::eager(&Device::cpu()?);
    /// let x = session.variable(&Tensor::new(&[2], vec![3.0f32, 5.0])?)?;
    /// let grads = x.mul(x)?.sum()?.backward()?;
    /// assert_eq!(grads.var(x).map(|g| g.to_string()).as_deref(), Some("[ 6. 10.]"));
    /// # Ok::<(), Error>(())
    /// ```
    #[track_caller]
    pub fn backward(self) -> Result<Grads> {
        self.session.backward(&[(self, None)], true)
    }

    /// Like [`Var::backward`], but keeps values, so that a second backward pass is possible.
    #[doc(alias = "retain_graph")]
    #[track_caller]
    pub fn backward_retain(self) -> Result<Grads> {
        self.session.backward(&[(self, None)], false)
    }

    /// Gradients of `<seed, value>`.
    #[track_caller]
    pub fn backward_from(self, seed: &Tensor<f32>) -> Result<Grads> {
        self.session.backward(&[(self, Some(seed))], true)
    }

    /// Whether gradients flow to this value.
    #[track_caller]
    pub fn requires_grad(self) -> Result<bool> {
        self.session.requires_grad(self)
    }

    /// This value in a form that can be differentiated by: itself if gradients flow to it, else a leaf that shares its
    /// memory. Values computed before this call do not depend on the leaf.
    #[doc(alias = "requires_grad_")]
    #[track_caller]
    pub fn tracked(self) -> Result<Var<'s>> {
        if self.requires_grad()? {
            return Ok(self);
        }
        let id = self.session.check("tracked", self)?;
        let id = {
            let mut state = self.session.state.borrow_mut();
            let track = state.track_gradients;
            match &mut state.record {
                Record::Eager(tape) => {
                    let value = tape.live_value("tracked", id)?.clone();
                    tape.leaf(value, Some("tracked"), track)?
                }
                Record::Trace(graph) => graph.tracked(Val(id as u32))?.0 as usize,
                Record::Lent => return Err(lent("tracked")),
            }
        };
        Ok(self.session.var(id))
    }

    /// Calls `hook` with this value's complete gradient in every later backward pass, and passes on the gradient that
    /// it returns, which must have the same shape. For eager sessions; [`Session::grad`] does not call hooks.
    #[doc(alias = "register_hook")]
    #[track_caller]
    pub fn hook(self, hook: impl Fn(&AnyBuffer) -> Result<AnyBuffer> + Send + Sync + 'static) -> Result<()> {
        let id = self.session.check("hook", self)?;
        self.session.with_tape(|tape| tape.hook(id, std::sync::Arc::new(hook)))
    }
}

/// Errors unless a value and its seed or direction are numbers of the same shape.
#[track_caller]
fn alike(why: &'static str, v: Var<'_>, other: Var<'_>) -> Result<()> {
    let (want, got) = (v.meta()?, other.meta()?);
    [want, got].iter().try_for_each(|m| m.dtype.require(DType::F32, "grad", 0))?;
    match want.shape == got.shape {
        true => Ok(()),
        false => Err(Error::new("grad", ErrorKind::Shapes { why, left: got.shape, right: want.shape })),
    }
}

/// The axes of one value, then those of another.
#[track_caller]
fn joined(y: Var<'_>, x: Var<'_>) -> Result<Vec<usize>> {
    Ok([y.shape()?.dims(), x.shape()?.dims()].concat())
}
