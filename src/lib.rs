//! A neural-network runtime with one answer, bit for bit, on every device.

pub mod device;
pub mod error;
pub mod numerics;
pub mod ops;
pub mod scalar;
pub mod shape;
pub mod tensor;
