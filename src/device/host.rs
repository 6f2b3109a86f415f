//! A device whose numbers are of any [`Scalar`] type, in host memory: f64, dual numbers, exact fractions. Ops run by
//! their definitions, so the tape and the session above it are the same as on a real device.

use super::{AnyBuffer, DType, Device, Meta};
use crate::error::{Error, Result};
use crate::numerics::environment;
use crate::ops::{AnyOp, RefIn};
use crate::optim::{Element, HYPERS, Kind};
use crate::reserve::{collected, copied, reserved};
use crate::scalar::Scalar;
use crate::tensor::Tensor;
use std::any::{Any, TypeId};
use std::fmt::{self, Display};
use std::marker::PhantomData;
use std::ops::Range;

/// The elements of a block: a `Vec` of the device's number type.
pub(crate) type Values = Box<dyn Any + Send + Sync>;

/// The number type of a device.
pub(crate) trait Numbers: Send + Sync {
    fn id(&self) -> TypeId;
    fn name(&self) -> &'static str;
    /// Bytes of one number.
    fn size(&self) -> usize;
    /// A tensor's elements in this type: as they are if it is of this type, else each by way of `f64`.
    fn import(&self, tensor: &dyn Any, elements: &dyn Fn() -> Result<Vec<f64>>) -> Result<Values>;
    fn to_f64(&self, values: &Values, range: Range<usize>) -> Result<Vec<f64>>;
    /// The nearest float32 numbers, if the type has any.
    fn to_f32(&self, values: &Values, range: Range<usize>) -> Result<Vec<f32>>;
    fn set_f32(&self, values: &mut Values, range: Range<usize>, words: &[f32]);
    /// Copies elements between blocks of this type; both ranges are of one length.
    fn copy(&self, to: &mut Values, range: Range<usize>, from: &Values, source: Range<usize>);
    /// Updates a parameter by an optimizer's formula: `ins` are the parameter, its gradient and its states.
    fn update(
        &self,
        kind: Kind,
        hypers: &[f64; HYPERS],
        ins: &[&AnyBuffer],
        direction: Option<&AnyBuffer>,
        factor: Option<&AnyBuffer>,
    ) -> Result<()>;
    /// Runs an op whose inputs were checked by its definition.
    fn run(&self, device: &Device, op: &AnyOp, meta: Meta, ins: &[&AnyBuffer]) -> Result<AnyBuffer>;
    /// Writes a value's elements as a tensor of this type.
    fn print(&self, value: &AnyBuffer, f: &mut fmt::Formatter<'_>) -> Result<fmt::Result>;
}

struct Of<T>(PhantomData<fn() -> T>);

/// The number type `T`.
pub(super) fn numbers<T: Scalar>() -> Box<dyn Numbers> {
    Box::new(Of::<T>(PhantomData))
}

/// The elements as numbers of type `T`, if they are.
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

    fn update(
        &self,
        kind: Kind,
        hypers: &[f64; HYPERS],
        ins: &[&AnyBuffer],
        direction: Option<&AnyBuffer>,
        factor: Option<&AnyBuffer>,
    ) -> Result<()> {
        let mut all = ins.iter().map(|x| x.to_tensor::<T>()).collect::<Result<Vec<_>>>()?;
        let direction = direction.map(|d| d.to_tensor::<T>()).transpose()?;
        let factor = factor.map_or(Ok(T::c(1.0)), |f| f.to_tensor::<T>()?.item())?;
        let h = hypers.map(T::c);
        let at = |x: Option<&Tensor<T>>, i: usize| x.map_or(T::c(0.0), |x| x.data()[i]);
        for i in 0..all[0].data().len() {
            let element = Element {
                p: at(all.first(), i),
                g: at(all.get(1), i),
                states: std::array::from_fn(|s| at(all.get(2 + s), i)),
                direction: at(direction.as_ref(), i),
            };
            let (p, states) = kind.formula(element, factor, h);
            let states = std::iter::zip(2.., states);
            for (place, new) in std::iter::once((0, p)).chain(states) {
                if let Some(x) = all.get_mut(place) {
                    x.data_mut()[i] = new;
                }
            }
        }
        let written = |at: &usize| *at != 1;
        (0..ins.len()).filter(written).try_for_each(|at| ins[at].assign("optimizer", &all[at]))
    }

    fn run(&self, device: &Device, op: &AnyOp, meta: Meta, ins: &[&AnyBuffer]) -> Result<AnyBuffer> {
        let read = |x: &&AnyBuffer| match x.meta().dtype {
            DType::F32 => Ok(RefIn::Num(x.to_tensor::<T>()?)),
            DType::U32 => Ok(RefIn::Idx(x.to_indices()?)),
        };
        let ins = ins.iter().map(read).collect::<Result<Vec<RefIn<T>>>>()?;
        let value = op.reference(&ins)?;
        match meta.dtype {
            DType::F32 => AnyBuffer::upload_for(op.name(), device, &value),
            DType::U32 => AnyBuffer::upload_indices(device, &value.map(|x| x.to_f64() as u32)),
        }
    }

    fn print(&self, value: &AnyBuffer, f: &mut fmt::Formatter<'_>) -> Result<fmt::Result> {
        Ok(value.to_tensor::<T>()?.fmt(f))
    }
}

/// A tensor's elements in a device's number type.
pub(super) fn import<T: Scalar>(numbers: &dyn Numbers, tensor: &Tensor<T>) -> Result<Values> {
    numbers.import(tensor, &|| collected("upload", tensor.data().iter().map(|x| x.to_f64())))
}

/// Numbers as float32, rounded to nearest; an error if their type has no such form.
pub(crate) fn to_words<T: Scalar>(numbers: &[T]) -> Result<Vec<f32>> {
    let _strict = environment::enter();
    let mut words = reserved("upload", numbers.len())?;
    for x in numbers {
        words.push(x.to_f32().ok_or_else(|| no_float32(T::NAME))?);
    }
    Ok(words)
}

/// The error of a number type that a device of float32 numbers was asked to hold.
#[cold]
fn no_float32(name: &str) -> Error {
    Error::unsupported("upload", format!("{name} has no float32 form, so it can live on the host only"))
}
