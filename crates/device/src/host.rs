//! A device in host memory whose numbers are of any [`Scalar`] type: f64, dual numbers, exact fractions. Ops run by
//! their references, so the tape and the session above it are the same as on a real device.

use super::AnyBuffer;
use dittograd_numerics::environment;
use dittograd_numerics::error::{Error, Result};
use dittograd_numerics::reserve::{collected, copied, reserved};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::tensor::Tensor;
use std::any::{Any, TypeId};
use std::fmt::{self, Display};
use std::marker::PhantomData;
use std::ops::Range;

/// The elements of a block: a `Vec` of the device's number type.
pub(crate) type Values = Box<dyn Any + Send + Sync>;

/// The implementation of ops for a number type, supplied by the layer above.
#[doc(hidden)]
pub type Kernels = Box<dyn Any + Send + Sync>;

/// The number type of a device.
#[doc(hidden)]
pub trait Numbers: Send + Sync {
    /// The Rust type.
    fn id(&self) -> TypeId;
    /// Its name in messages.
    fn name(&self) -> &'static str;
    /// Bytes of one number.
    fn size(&self) -> usize;
    /// A tensor's elements in this type: unchanged if it has this type, else converted through `f64`.
    fn import(&self, tensor: &dyn Any, elements: &dyn Fn() -> Result<Vec<f64>>) -> Result<Values>;
    /// The nearest `f64` numbers.
    fn to_f64(&self, values: &Values, range: Range<usize>) -> Result<Vec<f64>>;
    /// The nearest float32 numbers, if the type has any.
    fn to_f32(&self, values: &Values, range: Range<usize>) -> Result<Vec<f32>>;
    /// Writes float32 numbers.
    fn set_f32(&self, values: &mut Values, range: Range<usize>, words: &[f32]);
    /// Copies elements between blocks of this type; both ranges are of one length.
    fn copy(&self, to: &mut Values, range: Range<usize>, from: &Values, source: Range<usize>);
    /// The implementation of ops for this type, as it was given to [`Device::of_numbers`].
    fn kernels(&self) -> &(dyn Any + Send + Sync);
    /// Writes a value's elements as a tensor of this type.
    fn print(&self, value: &AnyBuffer, f: &mut fmt::Formatter<'_>) -> Result<fmt::Result>;
}

struct Of<T> {
    kernels: Kernels,
    number: PhantomData<fn() -> T>,
}

/// The number type `T`.
pub(super) fn numbers<T: Scalar>(kernels: Kernels) -> Box<dyn Numbers> {
    Box::new(Of::<T> { kernels, number: PhantomData })
}

/// The elements as numbers of type `T`, if they have that type.
pub(super) fn elements<T: Scalar>(values: &Values, range: Range<usize>) -> Option<&[T]> {
    values.downcast_ref::<Vec<T>>().and_then(|all| all.get(range))
}

impl<T: Scalar> Numbers for Of<T> {
    fn id(&self) -> TypeId {
        TypeId::of::<T>()
    }

    fn name(&self) -> &'static str {
        T::NAME
    }

    fn size(&self) -> usize {
        size_of::<T>()
    }

    fn import(&self, tensor: &dyn Any, elements: &dyn Fn() -> Result<Vec<f64>>) -> Result<Values> {
        Ok(Box::new(match tensor.downcast_ref::<Tensor<T>>() {
            Some(tensor) => copied("upload", tensor.data())?,
            None => collected("upload", elements()?.into_iter().map(T::c))?,
        }))
    }

    fn to_f64(&self, values: &Values, range: Range<usize>) -> Result<Vec<f64>> {
        collected("download", elements::<T>(values, range).unwrap_or(&[]).iter().map(|x| x.to_f64()))
    }

    fn to_f32(&self, values: &Values, range: Range<usize>) -> Result<Vec<f32>> {
        to_words(elements::<T>(values, range).unwrap_or(&[]))
    }

    fn set_f32(&self, values: &mut Values, range: Range<usize>, words: &[f32]) {
        let all = values.downcast_mut::<Vec<T>>().and_then(|all| all.get_mut(range));
        for (x, &word) in all.into_iter().flatten().zip(words) {
            *x = T::from_f32(word);
        }
    }

    fn copy(&self, to: &mut Values, range: Range<usize>, from: &Values, source: Range<usize>) {
        let to = to.downcast_mut::<Vec<T>>().and_then(|all| all.get_mut(range));
        for (x, &new) in to.into_iter().flatten().zip(elements::<T>(from, source).unwrap_or(&[])) {
            *x = new;
        }
    }

    fn kernels(&self) -> &(dyn Any + Send + Sync) {
        self.kernels.as_ref()
    }

    fn print(&self, value: &AnyBuffer, f: &mut fmt::Formatter<'_>) -> Result<fmt::Result> {
        Ok(value.to_tensor::<T>()?.fmt(f))
    }
}

/// A tensor's elements in a device's number type.
pub(super) fn import<T: Scalar>(numbers: &dyn Numbers, tensor: &Tensor<T>) -> Result<Values> {
    numbers.import(tensor, &|| collected("upload", tensor.data().iter().map(|x| x.to_f64())))
}

/// Numbers rounded to the nearest float32. An error if the type has no float32 form.
#[doc(hidden)]
pub fn to_words<T: Scalar>(numbers: &[T]) -> Result<Vec<f32>> {
    let _strict = environment::enter();
    let mut words = reserved("upload", numbers.len())?;
    for x in numbers {
        words.push(x.to_f32().ok_or_else(|| no_float32(T::NAME))?);
    }
    Ok(words)
}

/// The error for a number type that has no float32 form.
#[cold]
fn no_float32(name: &str) -> Error {
    Error::unsupported("upload", format!("{name} has no float32 form, so it can live on the host only"))
}
