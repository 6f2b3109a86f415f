//! Handles of values, and what can be done with them.

use super::Session;
use crate::params::Param;
use dittograd_device::{AnyBuffer, Meta};
use dittograd_numerics::environment;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::{AnyTensor, Tensor};
use dittograd_ops::layout::{AxisMap, BroadcastTo, Detach, Permute, Reshape};
use dittograd_ops::softmax::{LogSoftmax, Softmax};
use std::collections::BTreeMap;
use std::fmt;

/// A handle of a value in a session. Copying it copies the handle, not the value.
///
/// # Operators
///
/// Any step may fail (shapes, memory, a stale handle), so `+`, `-`, `*` and `/` give a `Result`, and take one too on one
/// side: `a * b + c` is one expression with one `?` at its end. Numbers are `f64`, rounded once to float32.
///
/// ```
/// use dittograd::prelude::*;
/// # fn main() -> Result<()> {
/// let session = Session::eager(&Device::cpu()?);
/// let x = session.input(&Tensor::new(&[2, 2], vec![1.0f32, 2.0, 3.0, 4.0])?)?;
/// let w = session.full(&[2, 2], 0.5)?;
/// let b = session.full(&[2], -2.0)?;
///
/// let y = (x.matmul(w) + b)?.relu()?; // a result and a handle: one `?` for both
/// let z = ((2.0 * y)? - 1.0)?; // a result and a number: a `?` in between
/// let mse = ((y - z)? * (y - z))?.mean()?; // two results: a `?` after the left one
/// assert_eq!((mse.item()?, y.to_string()), (0.625, "[[0.  0. ]\n [1.5 1.5]]".to_string()));
/// # Ok(())
/// # }
/// ```
///
/// `Result + Result`, `Result + f64` and `-Result` are of the standard library's own types, so no crate can define them:
/// they do not compile, and the `?` above is the answer.
#[derive(Clone, Copy)]
pub struct Var<'s> {
    pub(super) session: &'s Session,
    id: u32,
    epoch: u32,
}

impl fmt::Debug for Var<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Var({} of epoch {})", self.id, self.epoch)
    }
}

/// The elements as [`Tensor`] prints them. Waits for the device and downloads them all, so it is for looking, not for
/// every step; where there is no value (a trace, a freed or stale one) the text says why.
impl fmt::Display for Var<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.buffer() {
            Ok(value) => value.fmt(f),
            Err(e) => write!(f, "<{e}>"),
        }
    }
}

impl<'s> Var<'s> {
    /// The same value with its shape in its type; an error if it has another. See module `typed`.
    ///
    /// ```
    /// use dittograd::prelude::*;
    /// use dittograd::typed::Vector;
    /// # fn main() -> Result<()> {
    /// let session = Session::eager(&Device::cpu()?);
    /// let v: Vector<3> = session.full(&[3], 2.0)?.typed()?;
    /// assert_eq!(v.sum()?.item()?, 6.0);
    /// let e = session.full(&[4], 2.0)?.typed::<Vector<3>>().unwrap_err();
    /// assert_eq!(e.to_string(), "typed: shape: the value has shape [4], its type says [3]");
    /// # Ok(())
    /// # }
    /// ```
    pub fn typed<T: TryFrom<Var<'s>, Error = Error>>(self) -> Result<T> {
        T::try_from(self)
    }

    pub(super) fn new(session: &'s Session, id: u32, epoch: u32) -> Var<'s> {
        Var { session, id, epoch }
    }

    /// The session it belongs to.
    pub fn session(self) -> &'s Session {
        self.session
    }

    pub(crate) fn id(self) -> usize {
        self.id as usize
    }

    pub(super) fn epoch(self) -> u32 {
        self.epoch
    }

    /// Shape and element type.
    pub fn meta(self) -> Result<Meta> {
        self.session.meta(self)
    }

    /// The shape.
    pub fn shape(self) -> Result<Shape> {
        Ok(self.meta()?.shape)
    }

    /// The value on the device.
    pub fn buffer(self) -> Result<AnyBuffer> {
        self.session.read(self)
    }

    /// The value as a host tensor. Waits for the device.
    #[doc(alias("numpy", "tolist", "cpu", "to_tensor"))]
    pub fn value<T: Scalar>(self) -> Result<Tensor<T>> {
        self.buffer()?.to_tensor()
    }

    /// The value, which holds indices, as a host tensor. Waits for the device.
    pub fn indices(self) -> Result<Tensor<u32>> {
        self.buffer()?.to_indices()
    }

    /// The value as a host tensor, of numbers or of indices, whichever it holds. Waits for the device.
    pub fn to_any<T: Scalar>(self) -> Result<AnyTensor<T>> {
        self.buffer()?.to_any()
    }

    /// The only element of a value with one element. Waits for the device.
    pub fn item(self) -> Result<f32> {
        self.value::<f32>()?.item()
    }

    /// The same elements under other dimensions of equal count. Shares memory.
    #[doc(alias = "view")]
    pub fn reshape(self, dims: &[usize]) -> Result<Var<'s>> {
        self.session.apply(Reshape { shape: Shape::new(dims)? }, &[self])
    }

    /// All elements as one axis. Shares memory.
    pub fn flatten(self) -> Result<Var<'s>> {
        let n = self.shape()?.numel();
        self.reshape(&[n])
    }

    /// The last two axes exchanged.
    #[doc(alias("t", "mT"))]
    pub fn transpose(self) -> Result<Var<'s>> {
        let shape = self.shape()?;
        if shape.rank() < 2 {
            return Err(Error::new("transpose", ErrorKind::Rank { want: "at least 2", got: shape }));
        }
        self.session.apply(Permute::transpose(shape.rank()), &[self])
    }

    /// The axes in another order: axis `j` of the result is axis `order[j]` of the value.
    pub fn permute(self, order: &[usize]) -> Result<Var<'s>> {
        self.session.apply(Permute { order: order.to_vec() }, &[self])
    }

    /// The value repeated to `shape` by NumPy's rule.
    pub fn broadcast_to(self, shape: Shape) -> Result<Var<'s>> {
        let from = self.shape()?;
        if from == shape {
            return Ok(self);
        }
        self.session.apply(BroadcastTo::numpy(&from, shape), &[self])
    }

    /// The value repeated to `dims` by NumPy's rule: [`Var::broadcast_to`].
    pub fn expand(self, dims: &[usize]) -> Result<Var<'s>> {
        self.broadcast_to(Shape::new(dims)?)
    }

    /// The value repeated to `shape` with an explicit map from output axes to input axes.
    pub fn broadcast_axes(self, shape: Shape, map: AxisMap) -> Result<Var<'s>> {
        self.session.apply(BroadcastTo { shape, map }, &[self])
    }

    /// Softmax along the last axis.
    pub fn softmax(self) -> Result<Var<'s>> {
        self.session.apply(Softmax, &[self])
    }

    /// Logarithm of the softmax along the last axis.
    pub fn log_softmax(self) -> Result<Var<'s>> {
        self.session.apply(LogSoftmax, &[self])
    }

    /// Keeps each element with probability `1 - p` and scales what is kept by `1 / (1 - p)`.
    pub fn dropout(self, p: f64) -> Result<Var<'s>> {
        let _strict = environment::enter();
        let keep = 1.0 - p;
        if !(keep > 0.0 && keep <= 1.0) {
            return Err(Error::argument("dropout", "p", format!("got {p}, use at least 0 and below 1")));
        }
        let calls = self.session.random_calls();
        let mask = self.session.bernoulli(self.shape()?.dims(), keep)?;
        // Tried again it draws the same.
        let undone = |e| {
            self.session.seek_random(calls);
            e
        };
        self.mul(mask).and_then(|kept| kept.scale(1.0 / keep)).map_err(undone)
    }

    /// The same value, through which no gradient flows.
    pub fn detach(self) -> Result<Var<'s>> {
        self.session.apply(Detach, &[self])
    }

    /// Gradients of this scalar with respect to all parameters and variables it was computed from. The
    /// values in between are freed as the walk passes them.
    pub fn backward(self) -> Result<Grads> {
        self.session.backward(&[(self, None)], true)
    }

    /// As [`Var::backward`], but values stay, so that a second walk is possible.
    pub fn backward_retain(self) -> Result<Grads> {
        self.session.backward(&[(self, None)], false)
    }

    /// Gradients of `<seed, value>`.
    pub fn backward_from(self, seed: &Tensor<f32>) -> Result<Grads> {
        self.session.backward(&[(self, Some(seed))], true)
    }
}

/// Gradients of one backward pass.
#[derive(Debug)]
pub struct Grads {
    by_node: BTreeMap<usize, AnyBuffer>,
    by_param: BTreeMap<u64, AnyBuffer>,
    epoch: u32,
}

impl Grads {
    pub(super) fn new(
        by_node: BTreeMap<usize, AnyBuffer>,
        params: &BTreeMap<usize, &Param>,
        epoch: u32,
    ) -> Grads {
        let by_param =
            by_node.iter().filter_map(|(i, g)| params.get(i).map(|p| (p.id(), g.clone()))).collect();
        Grads { by_node, by_param, epoch }
    }

    /// The gradient of a parameter, if the value depends on it.
    pub fn param(&self, param: &Param) -> Option<&AnyBuffer> {
        self.by_param.get(&param.id())
    }

    /// The gradient of a variable or parameter leaf, if the value depends on it.
    pub fn var(&self, v: Var<'_>) -> Option<&AnyBuffer> {
        self.by_node.get(&v.id()).filter(|_| v.epoch() == self.epoch)
    }
}
