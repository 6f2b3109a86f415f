//! Devices whose numbers are of any [`Scalar`] type: f64, dual numbers, exact fractions. Ops and updates run by their definitions,
//! so tape and session are the same as on a real device.

use crate::optim::host::{Update, update};
use dittograd_device::Device;
use dittograd_numerics::scalar::Scalar;
use dittograd_ops::Definitions;

/// Opens devices of other numbers than float32.
pub trait HostDevice {
    /// Host memory with numbers of type `T`, where ops run by their definitions: slow, and as exact as `T` is. With
    /// `f64` it is the reference of every result, with [`Dual`](dittograd_numerics::scalar::Dual) it gives derivatives along a
    /// direction, with [`Ratio`](dittograd_numerics::scalar::Ratio) programs of sums and products are exact. Programs are not
    /// compiled for it.
    fn host<T: Scalar>() -> Device;
}

impl HostDevice for Device {
    fn host<T: Scalar>() -> Device {
        let update: Update = update::<T>;
        Device::of_numbers::<T>(Box::new(Definitions::of::<T>(Box::new(update))))
    }
}
