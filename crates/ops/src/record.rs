//! A recorder that computes at once, by the kernels of a device.

use crate::{AnyOp, Recorder, Val, apply};
use dittograd_device::{AnyBuffer, Device, Meta};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::shape::Shape;

/// Records by running each op on a device at once.
#[derive(Clone, Debug)]
pub struct DeviceRecorder {
    device: Device,
    values: Vec<AnyBuffer>,
}

impl DeviceRecorder {
    /// A recorder on `device` without values.
    pub fn new(device: &Device) -> DeviceRecorder {
        DeviceRecorder { device: device.clone(), values: Vec::new() }
    }

    /// A new input.
    pub fn input(&mut self, value: AnyBuffer) -> Val {
        self.values.push(value);
        Val(self.values.len() as u32 - 1)
    }

    /// A value that was recorded. Errors if there is none of that number.
    pub fn value(&self, v: Val) -> Result<&AnyBuffer> {
        self.values.get(v.0 as usize).ok_or_else(|| {
            let kind = ErrorKind::Node { id: v.0 as usize, size: self.values.len() };
            Error::new("record", kind)
        })
    }
}

impl Recorder for DeviceRecorder {
    fn record(&mut self, op: AnyOp, ins: &[Val]) -> Result<Val> {
        let args: Vec<&AnyBuffer> = ins.iter().map(|&v| self.value(v)).collect::<Result<_>>()?;
        let value = apply(&self.device, &op, &args)?;
        Ok(self.input(value))
    }

    fn meta(&self, v: Val) -> Meta {
        self.values.get(v.0 as usize).map_or(Meta::f32(Shape::SCALAR), AnyBuffer::meta)
    }
}
