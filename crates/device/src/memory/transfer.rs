//! Transfers: elements from the host to a device and back, and from one device to another.

use super::block::Mem;
use super::buffer::Buffer;
use super::value::AnyBuffer;
use crate::host;
use crate::{Backend, Device};
use dittograd_numerics::environment;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::reserve::{collected, copied, filled};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::{AnyTensor, DType, Meta, Tensor};

impl Buffer {
    /// Copies host words into the buffer.
    #[doc(hidden)]
    #[track_caller]
    pub fn write_words(&self, op: &str, words: &[f32]) -> Result<()> {
        if words.len() != self.len() {
            return Err(Error::new(op, ErrorKind::Length { want: self.len(), got: words.len() }));
        }
        match self.device().backend() {
            Backend::Cpu(_) => self.write(op)?.host().copy_from_slice(words),
            Backend::Host(numbers) => {
                let mut guard = self.write(op)?;
                match &mut *guard.guard {
                    Some(Mem::Values(values)) => numbers.set_f32(values, self.range(), words),
                    _ => guard.host().copy_from_slice(words),
                }
            }
            Backend::Cuda(_) if words.is_empty() => {}
            Backend::Cuda(cuda) => cuda.upload(self.address(op)?, bytemuck::cast_slice(words))?,
        }
        Ok(())
    }

    /// Copies the buffer into host words. Waits for the device.
    #[doc(hidden)]
    #[track_caller]
    pub fn read_words(&self, op: &str, words: &mut [f32]) -> Result<()> {
        if words.len() != self.len() {
            return Err(Error::new(op, ErrorKind::Length { want: self.len(), got: words.len() }));
        }
        match self.device().backend() {
            Backend::Cpu(_) => words.copy_from_slice(self.read(op)?.host()),
            Backend::Host(numbers) => {
                let guard = self.read(op)?;
                match &*guard.guard {
                    Some(Mem::Values(values)) => {
                        words.copy_from_slice(&numbers.to_f32(values, self.range())?)
                    }
                    _ => words.copy_from_slice(guard.host()),
                }
            }
            Backend::Cuda(cuda) => {
                let address = self.address(op)?;
                if !words.is_empty() {
                    cuda.download(address, bytemuck::cast_slice_mut(words))?;
                }
            }
        }
        Ok(())
    }

    /// A new buffer on `device` holding `values`.
    #[track_caller]
    pub fn upload(device: &Device, values: &[f32]) -> Result<Buffer> {
        Buffer::upload_for("upload", device, &Shape::new(&[values.len()])?, values)
    }

    /// Like [`Buffer::upload`], for a value of `shape` that messages call `what`.
    #[track_caller]
    fn upload_for(what: &'static str, device: &Device, shape: &Shape, values: &[f32]) -> Result<Buffer> {
        let buffer = device.alloc_for(what, shape)?;
        buffer.write_words(what, values)?;
        Ok(buffer)
    }

    /// The float32 values. Waits for the device.
    #[track_caller]
    pub fn download(&self) -> Result<Vec<f32>> {
        let mut values = self.device().on_host(|| filled("download", self.len(), 0.0))?;
        self.read_words("download", &mut values)?;
        Ok(values)
    }
}

impl AnyBuffer {
    /// A new value on `device` with the elements of `tensor`, rounded to float32. Scalars without a float32 form are
    /// refused. A device of another number type takes numbers of that type unchanged, and others through f64.
    #[track_caller]
    pub fn upload<T: Scalar>(device: &Device, tensor: &Tensor<T>) -> Result<AnyBuffer> {
        AnyBuffer::upload_for("upload", device, tensor)
    }

    /// Like [`AnyBuffer::upload`], for what messages call `what`.
    #[doc(hidden)]
    #[track_caller]
    pub fn upload_for<T: Scalar>(
        what: &'static str,
        device: &Device,
        tensor: &Tensor<T>,
    ) -> Result<AnyBuffer> {
        let _strict = environment::enter();
        let shape = tensor.shape();
        if let Backend::Host(numbers) = device.backend() {
            let values = host::import(&**numbers, tensor)?;
            return AnyBuffer::new(device.hold(what, &shape, &**numbers, values)?, Meta::f32(shape));
        }
        AnyBuffer::upload_words(what, device, shape, &host::to_words(tensor.data())?)
    }

    /// A new value of float32 numbers, on a device that has these.
    #[doc(hidden)]
    #[track_caller]
    pub fn upload_words(
        what: &'static str,
        device: &Device,
        shape: Shape,
        words: &[f32],
    ) -> Result<AnyBuffer> {
        AnyBuffer::new(Buffer::upload_for(what, device, &shape, words)?, Meta::f32(shape))
    }

    /// A new value on `device`, of numbers (as by [`AnyBuffer::upload`]) or of indices.
    #[track_caller]
    pub fn upload_any<T: Scalar>(device: &Device, tensor: &AnyTensor<T>) -> Result<AnyBuffer> {
        match tensor {
            AnyTensor::Num(t) => AnyBuffer::upload(device, t),
            AnyTensor::Idx(t) => AnyBuffer::upload_indices(device, t),
        }
    }

    /// The elements as a host tensor of numbers or indices. Waits for the device.
    #[track_caller]
    pub fn to_any<T: Scalar>(&self) -> Result<AnyTensor<T>> {
        match self.meta.dtype {
            DType::F32 => self.to_tensor().map(AnyTensor::Num),
            DType::U32 => self.to_indices().map(AnyTensor::Idx),
        }
    }

    /// A new index value on `device`.
    #[track_caller]
    pub fn upload_indices(device: &Device, tensor: &Tensor<u32>) -> Result<AnyBuffer> {
        let shape = tensor.shape();
        let buffer = Buffer::upload_for("upload", device, &shape, bytemuck::cast_slice(tensor.data()))?;
        let mut value = AnyBuffer::new(buffer, Meta::u32(shape))?;
        value.bound = index_bound(tensor.data());
        Ok(value)
    }

    /// Zeros of `shape` on `device`.
    #[track_caller]
    pub fn zeros(device: &Device, shape: Shape) -> Result<AnyBuffer> {
        AnyBuffer::full(device, shape, 0.0)
    }

    /// A float32 value of `shape` on `device` with every element `value`.
    #[track_caller]
    pub fn full(device: &Device, shape: Shape, value: f32) -> Result<AnyBuffer> {
        let _strict = environment::enter();
        if matches!(device.backend(), Backend::Host(_)) {
            return AnyBuffer::upload_for("full", device, &Tensor::try_from_fn(shape, |_| value)?);
        }
        let buffer = device.alloc_for("full", &shape)?;
        match device.backend() {
            Backend::Cpu(_) | Backend::Host(_) => buffer.write("full")?.host().fill(value),
            Backend::Cuda(cuda) => {
                if !buffer.is_empty() {
                    cuda.fill(buffer.address("full")?, value.to_bits(), buffer.len())?;
                }
            }
        }
        AnyBuffer::new(buffer, Meta::f32(shape))
    }

    /// Replaces the elements by those of `tensor`, in place, converted as by [`AnyBuffer::upload`]. Errors if the
    /// counts differ.
    #[doc(hidden)]
    #[track_caller]
    pub fn assign<T: Scalar>(&self, op: &str, tensor: &Tensor<T>) -> Result<()> {
        let _strict = environment::enter();
        let len = tensor.data().len();
        if len != self.buffer.len() {
            return Err(Error::new(op, ErrorKind::Length { want: self.buffer.len(), got: len }));
        }
        if let Backend::Host(numbers) = self.buffer.device().backend() {
            let new = host::import(&**numbers, tensor)?;
            if let Some(Mem::Values(values)) = &mut *self.buffer.write(op)?.guard {
                numbers.copy(values, self.buffer.range(), &new, 0..len);
                return Ok(());
            }
        }
        self.buffer.write_words(op, &host::to_words(tensor.data())?)
    }

    /// Replaces the elements by those of `from`, in place: on the device if both are on the same one, else through the
    /// host.
    #[doc(hidden)]
    #[track_caller]
    pub fn copy_from(&self, op: &str, from: &AnyBuffer) -> Result<()> {
        let (to, source) = (&self.buffer, &from.buffer);
        if to.len() != source.len() {
            return Err(Error::new(op, ErrorKind::Length { want: to.len(), got: source.len() }));
        }
        if to.is_empty() || (to.shares(source) && to.start == source.start) {
            return Ok(());
        }
        if !to.device().accepts(source.device()) || to.shares(source) {
            return match to.device().backend() {
                Backend::Host(_) if self.meta.dtype == DType::F32 => {
                    self.assign(op, &from.to_tensor::<f64>()?)
                }
                _ => to.write_words(op, &source.download()?),
            };
        }
        match to.device().backend() {
            Backend::Cpu(_) => to.write(op)?.host().copy_from_slice(source.read(op)?.host()),
            Backend::Cuda(cuda) => cuda.copy(to.address(op)?, source.address(op)?, to.len() * 4)?,
            Backend::Host(numbers) => {
                let (mut to_guard, from_guard) = (to.write(op)?, source.read(op)?);
                match (&mut *to_guard.guard, &*from_guard.guard) {
                    (Some(Mem::Values(values)), Some(Mem::Values(new))) => {
                        numbers.copy(values, to.range(), new, source.range());
                    }
                    _ => to_guard.host().copy_from_slice(from_guard.host()),
                }
            }
        }
        Ok(())
    }

    /// The elements as a host tensor, widened exactly from float32. Waits for the device. From a device of another
    /// number type, they are unchanged if `T` is that type, and go through f64 otherwise.
    #[track_caller]
    pub fn to_tensor<T: Scalar>(&self) -> Result<Tensor<T>> {
        let _strict = environment::enter();
        self.meta.dtype.require(DType::F32, "download", 0)?;
        if let Backend::Host(numbers) = self.buffer.device().backend() {
            let guard = self.buffer.read("download")?;
            if let Some(Mem::Values(values)) = &*guard.guard {
                let range = self.buffer.range();
                let data = match host::elements::<T>(values, range.clone()) {
                    Some(data) => copied("download", data)?,
                    None => collected("download", numbers.to_f64(values, range)?.into_iter().map(T::c))?,
                };
                return Tensor::with_shape(self.meta.shape, data);
            }
        }
        let values = self.buffer.download()?;
        Tensor::with_shape(self.meta.shape, collected("download", values.into_iter().map(T::from_f32))?)
    }

    /// The indices as a host tensor. Waits for the device.
    #[track_caller]
    pub fn to_indices(&self) -> Result<Tensor<u32>> {
        self.meta.dtype.require(DType::U32, "download", 0)?;
        let values = self.buffer.download()?;
        Tensor::with_shape(self.meta.shape, collected("download", values.into_iter().map(f32::to_bits))?)
    }

    /// A copy with memory of its own on the same device. It is made there: nothing goes through the host, and nothing
    /// waits.
    #[doc(alias = "clone")]
    #[track_caller]
    pub fn copy(&self) -> Result<AnyBuffer> {
        self.copy_to("copy", self.buffer.device())
    }

    /// A copy of the value on another device, through the host, or on the same one, as by [`AnyBuffer::copy`]. It is
    /// rounded to nearest from other number types to float32, and exact the other way. Between two devices of different
    /// other number types it goes through f64.
    #[track_caller]
    pub fn to_device(&self, device: &Device) -> Result<AnyBuffer> {
        self.copy_to("upload", device)
    }

    #[track_caller]
    fn copy_to(&self, op: &'static str, device: &Device) -> Result<AnyBuffer> {
        let copy = match device.backend() {
            Backend::Host(_) if self.meta.dtype == DType::F32 => AnyBuffer::zeros(device, self.meta.shape)?,
            _ => AnyBuffer::new(device.alloc_for(op, &self.meta.shape)?, self.meta)?,
        };
        copy.copy_from(op, self)?;
        Ok(copy.with_bound(self.bound))
    }
}

/// The smallest number above all `indices`, 0 if there are none.
fn index_bound(indices: &[u32]) -> u32 {
    indices.iter().max().map_or(0, |m| m.saturating_add(1))
}
