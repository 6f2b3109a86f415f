//! Handles of values.

use super::Session;
use crate::gradients::Grads;
use dittograd_device::{AnyBuffer, DType, Meta};
use dittograd_numerics::error::{Error, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::{AnyTensor, Tensor};
use std::fmt;

/// A handle of a value in a session. Copying it copies the handle, not the value.
///
/// # Operators
///
/// Any step may fail (shapes, memory, a stale handle), so `+`, `-`, `*` and `/` return a `Result`. One of the operands
/// may be a `Result` too: `a * b + c` is one expression with one `?` at its end. Numbers are `f64`, rounded once to
/// float32.
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
/// `Result + Result`, `Result + f64` and `-Result` involve only types of the standard library, so no crate can define
/// them. They do not compile; use `?` as above. A formula of several terms needs none of this as
/// [one op](Session::pointwise): `session.pointwise(&[a, b, c], |v| v[0] + 10.0 * v[1] + 10.0 * v[2])?`.
///
/// # Axes
///
/// An axis is counted from the outermost, 0, or if it is negative from the last, -1: `x.sum_axes(&[-1])`.
///
/// # Methods by family
///
/// Values themselves come from a [`Session`]: inputs, parameters, constants, random draws.
///
/// | family | methods, for example |
/// |---|---|
/// | the value itself | [`shape`](Var::shape), [`value`](Var::value), [`item`](Var::item) |
/// | values like it | [`zeros_like`](Var::zeros_like), [`one_hot`](Var::one_hot), [`to_index`](Var::to_index), [`to_float`](Var::to_float) |
/// | elementwise | [`add`](Var::add), [`mul`](Var::mul), [`relu`](Var::relu), [`gelu`](Var::gelu), [`exp`](Var::exp), [`where_`](Var::where_) |
/// | reductions, scans | [`sum`](Var::sum), [`mean`](Var::mean), [`amax`](Var::amax), [`argmax`](Var::argmax), [`norm`](Var::norm), [`cumsum`](Var::cumsum) |
/// | shape | [`reshape`](Var::reshape), [`permute`](Var::permute), [`transpose`](Var::transpose), [`expand`](Var::expand) |
/// | parts and joins | [`narrow`](Var::narrow), [`slice`](Var::slice), [`split`](Var::split), [`concat`](Var::concat), [`pad`](Var::pad) |
/// | indexing | [`index_select`](Var::index_select), [`take_along_axis`](Var::take_along_axis), [`embedding`](Var::embedding), [`scatter_add`](Var::scatter_add) |
/// | products | [`matmul`](Var::matmul), [`linear`](Var::linear), [`dot`](Var::dot), [`Session::einsum`] |
/// | linear algebra | [`solve`](Var::solve), [`cholesky`](Var::cholesky), [`lu`](Var::lu), [`qr`](Var::qr), [`det`](Var::det) |
/// | convolution, pooling | [`conv2d`](Var::conv2d), [`conv_transpose`](Var::conv_transpose), [`max_pool2d`](Var::max_pool2d), [`avg_pool2d`](Var::avg_pool2d) |
/// | norms | [`layer_norm`](Var::layer_norm), [`rms_norm`](Var::rms_norm), [`batch_norm`](Var::batch_norm), [`group_norm`](Var::group_norm) |
/// | softmax, attention | [`softmax`](Var::softmax), [`log_softmax`](Var::log_softmax), [`attention`](Var::attention), [`rope`](Var::rope) |
/// | Fourier transforms | [`rfft`](Var::rfft), [`fft`](Var::fft), [`stft`](Var::stft), [`spectral_conv1d`](Var::spectral_conv1d) |
/// | dropout | [`dropout`](Var::dropout) |
/// | losses | [`cross_entropy`](Var::cross_entropy), [`mse`](Var::mse), [`bce_with_logits`](Var::bce_with_logits) |
/// | gradients | [`backward`](Var::backward), [`detach`](Var::detach), [`Session::grad`] |
#[derive(Clone, Copy)]
pub struct Var<'s> {
    pub(super) session: &'s Session,
    id: u32,
    epoch: u32,
}

/// A handle that does not borrow its session, for programs in languages without lifetimes:
/// [`Session::from_id`] makes it a handle again. It is stale after [`Session::reset`], as the handle is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VarId {
    id: u32,
    epoch: u32,
}

impl Session {
    /// The value that [`Var::to_id`] named in this session.
    pub fn from_id(&self, VarId { id, epoch }: VarId) -> Var<'_> {
        Var { session: self, id, epoch }
    }
}

impl fmt::Debug for Var<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Var({} of epoch {})", self.id, self.epoch)
    }
}

/// Prints the elements like [`Tensor`]. This waits for the device and downloads them all, so it is for inspection, not
/// for every step. If there is no value (a trace, a freed or stale one), the text says why.
impl fmt::Display for Var<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.buffer() {
            Ok(value) => value.fmt(f),
            Err(e) => write!(f, "<{e}>"),
        }
    }
}

/// # The value itself
///
/// Shape, device memory, and elements on the host. Reading elements waits for the device.
impl<'s> Var<'s> {
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

    /// The handle without its session.
    pub fn to_id(self) -> VarId {
        VarId { id: self.id, epoch: self.epoch }
    }

    /// Shape and element type.
    #[track_caller]
    pub fn meta(self) -> Result<Meta> {
        self.session.meta(self)
    }

    /// The shape.
    #[track_caller]
    pub fn shape(self) -> Result<Shape> {
        Ok(self.meta()?.shape)
    }

    /// The value on the device.
    #[track_caller]
    pub fn buffer(self) -> Result<AnyBuffer> {
        self.session.read(self)
    }

    /// The value on the device, in memory that belongs to values of this session alone: a copy if the memory is a parameter's, which
    /// updates change, or that of a constant, which others share.
    #[doc(hidden)]
    #[track_caller]
    pub fn unshared(self) -> Result<AnyBuffer> {
        let value = self.buffer()?;
        if value.buffer().is_co_owned() || self.session.reads_param(&value) {
            value.copy()
        } else {
            Ok(value)
        }
    }

    /// The value as a host tensor. Waits for the device.
    #[doc(alias("numpy", "tolist", "cpu", "to_tensor"))]
    #[track_caller]
    pub fn value<T: Scalar>(self) -> Result<Tensor<T>> {
        self.buffer()?.to_tensor()
    }

    /// The indices as a host tensor. Waits for the device.
    #[track_caller]
    pub fn indices(self) -> Result<Tensor<u32>> {
        self.buffer()?.to_indices()
    }

    /// The value as a host tensor, of numbers or indices, whichever it holds. Waits for the device.
    #[track_caller]
    pub fn to_any<T: Scalar>(self) -> Result<AnyTensor<T>> {
        self.buffer()?.to_any()
    }

    /// The element of a value with one element. Waits for the device.
    #[track_caller]
    pub fn item(self) -> Result<f32> {
        self.meta()?.dtype.require(DType::F32, "item", 0)?;
        self.value::<f32>()?.item()
    }

    /// Like [`Var::item`], of indices.
    #[track_caller]
    pub fn index_item(self) -> Result<u32> {
        self.meta()?.dtype.require(DType::U32, "index_item", 0)?;
        self.indices()?.item()
    }

    /// The same value with its shape in its type. Errors if it has another shape. See module `typed`.
    ///
    /// ```
    /// use dittograd::prelude::*;
    /// use dittograd::typed::Vector;
    /// # fn main() -> Result<()> {
    /// let session = Session::eager(&Device::cpu()?);
    /// let v: Vector<3> = session.full(&[3], 2.0)?.typed()?;
    /// assert_eq!(v.sum()?.item()?, 6.0);
    /// let e = session.full(&[4], 2.0)?.typed::<Vector<3>>().unwrap_err();
    /// assert!(e.to_string().ends_with("shape: the value has shape [4], its type says [3]"));
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn typed<T: TryFrom<Var<'s>, Error = Error>>(self) -> Result<T> {
        T::try_from(self)
    }
}

impl Grads {
    /// The gradient of a variable or parameter leaf, if the value depends on it.
    pub fn var(&self, v: Var<'_>) -> Option<&AnyBuffer> {
        self.leaf(v.id(), v.epoch())
    }
}
