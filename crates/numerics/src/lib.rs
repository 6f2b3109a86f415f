//! The numerics contract: elementary functions, the sum tree, random streams, modes. Everything here
//! is defined down to the bit and is the same on every device; `NUMERICS.md` is its prose form. Below it, what all layers speak
//! in: errors, shapes, number types, host tensors.

pub mod digits;
pub mod environment;
pub mod error;
pub mod functions;
pub mod lane;
pub mod reserve;
pub mod rng;
pub mod scalar;
pub mod shape;
pub mod sum;
pub mod tensor;

use crate::error::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// Version of the contract. It changes whenever any result bit of any operation changes.
pub const NUMERICS_VERSION: u32 = 5;

/// Number of terms of a dot product that form one FMA chain. Longer products are cut into chunks of this length, whose sums are
/// added in order.
pub const K_CHUNK: usize = 1024;

/// How products of float32 values are computed. Belongs to a device handle. All modes but `Tf32` give the same bits on every device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Numerics {
    /// IEEE float32 in the fixed order of the contract.
    #[default]
    Strict,
    /// As `Strict`, but matrix products, convolutions and attention of some size are computed in three 8-bit [digits] of each factor and exact integer sums:
    /// about the error of float32.
    Fast,
    /// As `Fast`, in two digits: less error than tensor cores of TF32 on ordinary data.
    Turbo,
    /// As `Strict`, but matrix products and attention multiply on tensor cores, which keep 11 bits of each factor and
    /// add in an order of their own. The same bits from run to run on one GPU only; only on CUDA.
    Tf32,
}

/// The names of the modes, for messages.
#[doc(hidden)]
pub const MODES: &str = "strict, fast, turbo or tf32";

impl fmt::Display for Numerics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Numerics::Strict => "strict",
            Numerics::Fast => "fast",
            Numerics::Turbo => "turbo",
            Numerics::Tf32 => "tf32",
        })
    }
}

impl FromStr for Numerics {
    type Err = Error;
    fn from_str(s: &str) -> Result<Numerics> {
        match s {
            "strict" => Ok(Numerics::Strict),
            "fast" => Ok(Numerics::Fast),
            "turbo" => Ok(Numerics::Turbo),
            "tf32" => Ok(Numerics::Tf32),
            _ => Err(Error::argument("numerics", "numerics", format!("`{s}` is not a mode, use {MODES}"))),
        }
    }
}

/// Whether two floats count as the same result: equal bits, or both NaN (all NaNs are one value).
pub fn same_bits(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

/// The bits of a float with all NaNs made one, for comparing and hashing.
#[inline(always)]
pub fn canonical_bits(x: f32) -> u32 {
    if x.is_nan() { 0x7fc0_0000 } else { x.to_bits() }
}

/// A word that orders as float32 numbers do: neighbours are one apart, -0 is just below +0, NaN are beyond the infinity of their sign.
#[inline(always)]
pub fn ordered(x: f32) -> u32 {
    let sign = ((x.to_bits() as i32) >> 31) as u32;
    x.to_bits() ^ (sign | 0x8000_0000)
}
