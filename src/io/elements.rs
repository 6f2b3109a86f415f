//! Element types in files, and tensors from their bytes.

use super::said;
use crate::reserve::{collected, reserved};
use crate::shape::Shape;
use crate::tensor::{AnyTensor, Tensor};
use std::fmt::{self, Display};
use std::io;

macro_rules! dtypes {
    ($($name:ident $bytes:literal $text:literal,)*) => {
        /// Types of elements in a file.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Dtype {
            $(#[doc = concat!("`", $text, "`.")] $name,)*
        }

        impl Dtype {
            pub(super) fn parse(text: &str) -> Option<Dtype> {
                match text { $($text => Some(Dtype::$name),)* _ => None }
            }

            /// Its name in files.
            pub fn name(self) -> &'static str {
                match self { $(Dtype::$name => $text,)* }
            }

            /// Bytes of an element.
            pub fn bytes(self) -> usize {
                match self { $(Dtype::$name => $bytes,)* }
            }
        }
    };
}

dtypes! {
    Bool 1 "BOOL",
    U8 1 "U8",
    I8 1 "I8",
    F8E4M3 1 "F8_E4M3",
    F8E5M2 1 "F8_E5M2",
    U16 2 "U16",
    I16 2 "I16",
    F16 2 "F16",
    Bf16 2 "BF16",
    U32 4 "U32",
    I32 4 "I32",
    F32 4 "F32",
    U64 8 "U64",
    I64 8 "I64",
    F64 8 "F64",
    C64 8 "C64",
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A tensor from little-endian bytes. Floats become numbers (F64 is rounded to float32; a number too large for it is an
/// error). BOOL and integers become indices; a negative one or one above the largest u32 is an error.
#[track_caller]
pub(super) fn tensor(dtype: Dtype, shape: Shape, bytes: &[u8]) -> Result<AnyTensor, String> {
    let all = match dtype {
        Dtype::Bool => booleans(bytes).and_then(|bytes| indices(bytes, u8::from_le_bytes)),
        Dtype::U8 => indices(bytes, u8::from_le_bytes),
        Dtype::I8 => indices(bytes, i8::from_le_bytes),
        Dtype::U16 => indices(bytes, u16::from_le_bytes),
        Dtype::I16 => indices(bytes, i16::from_le_bytes),
        Dtype::U32 => indices(bytes, u32::from_le_bytes),
        Dtype::I32 => indices(bytes, i32::from_le_bytes),
        Dtype::U64 => indices(bytes, u64::from_le_bytes),
        Dtype::I64 => indices(bytes, i64::from_le_bytes),
        _ => return numbers(dtype, shape, bytes).map(AnyTensor::Num),
    };
    shaped(shape, all?).map(AnyTensor::Idx)
}

/// The same as numbers, whatever their type: BOOL and integers are rounded to float32.
#[track_caller]
pub(super) fn numbers(dtype: Dtype, shape: Shape, bytes: &[u8]) -> Result<Tensor<f32>, String> {
    let all = match dtype {
        Dtype::F32 => values(bytes, f32::from_le_bytes),
        Dtype::F16 => values(bytes, |b| from_half(u16::from_le_bytes(b))),
        Dtype::Bf16 => values(bytes, |b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16)),
        Dtype::F64 => {
            let wide = |b: &[u8; 8]| f64::from_le_bytes(*b);
            let large = |b: &[u8; 8]| wide(b).is_finite() && !(wide(b) as f32).is_finite();
            let all = bytes.as_chunks::<8>().0;
            if let Some(i) = all.iter().position(large) {
                return Err(format!("element {i} is {:e}, beyond the range of float32", wide(&all[i])));
            }
            values(bytes, |b| f64::from_le_bytes(b) as f32)
        }
        Dtype::Bool => booleans(bytes).and_then(|bytes| values(bytes, |[b]| f32::from(b))),
        Dtype::U8 => values(bytes, |[b]| f32::from(b)),
        Dtype::I8 => values(bytes, |b| f32::from(i8::from_le_bytes(b))),
        Dtype::U16 => values(bytes, |b| f32::from(u16::from_le_bytes(b))),
        Dtype::I16 => values(bytes, |b| f32::from(i16::from_le_bytes(b))),
        Dtype::U32 => values(bytes, |b| u32::from_le_bytes(b) as f32),
        Dtype::I32 => values(bytes, |b| i32::from_le_bytes(b) as f32),
        Dtype::U64 => values(bytes, |b| u64::from_le_bytes(b) as f32),
        Dtype::I64 => values(bytes, |b| i64::from_le_bytes(b) as f32),
        Dtype::F8E4M3 | Dtype::F8E5M2 | Dtype::C64 => Err(format!(
            "has elements of type {dtype}, which are not converted; use F32, F16, BF16, F64, BOOL or whole numbers"
        )),
    };
    shaped(shape, all?)
}

#[track_caller]
fn shaped<T: Clone>(shape: Shape, all: Vec<T>) -> Result<Tensor<T>, String> {
    Tensor::with_shape(shape, all).map_err(|e| e.to_string())
}

/// Elements of `N` bytes each.
#[track_caller]
fn values<const N: usize>(bytes: &[u8], one: impl Fn([u8; N]) -> f32) -> Result<Vec<f32>, String> {
    collected("tensor", bytes.as_chunks::<N>().0.iter().map(|b| one(*b))).map_err(said)
}

#[track_caller]
fn indices<const N: usize, T: TryInto<u32> + Display + Copy>(
    bytes: &[u8],
    one: impl Fn([u8; N]) -> T,
) -> Result<Vec<u32>, String> {
    let mut all = reserved("tensor", bytes.len() / N).map_err(said)?;
    for (i, b) in bytes.as_chunks::<N>().0.iter().enumerate() {
        let v = one(*b);
        let outside = |_| {
            format!(
                "element {i} is {v}: whole numbers are read as indices, 0 to {}; store floats for numbers",
                u32::MAX
            )
        };
        all.push(v.try_into().map_err(outside)?);
    }
    Ok(all)
}

/// The bytes, if all are booleans.
#[track_caller]
fn booleans(bytes: &[u8]) -> Result<&[u8], String> {
    match bytes.iter().position(|b| *b > 1) {
        Some(i) => Err(format!("element {i} is the byte {}, a bool is 0 or 1", bytes[i])),
        None => Ok(bytes),
    }
}

/// The float32 of a half-precision number; the conversion is exact.
fn from_half(bits: u16) -> f32 {
    let bits = u32::from(bits);
    let (sign, exponent, fraction) = ((bits >> 15) << 31, (bits >> 10) & 31, bits & 1023);
    f32::from_bits(
        sign | match exponent {
            0 => (fraction as f32 * (1.0 / 16_777_216.0)).to_bits(),
            31 => 0x7f80_0000 | fraction << 13,
            _ => (exponent + 112) << 23 | fraction << 13,
        },
    )
}

/// Calls `f` with the little-endian bytes of all words.
pub(super) fn little_endian(words: &[u32], mut f: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    if cfg!(target_endian = "little") {
        return f(bytemuck::cast_slice(words));
    }
    words.chunks(1024).try_for_each(|some| {
        let bytes: Vec<u8> = some.iter().flat_map(|w| w.to_le_bytes()).collect();
        f(&bytes)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All halves against their definition, in f64.
    #[test]
    fn every_half_is_its_float() {
        for bits in 0..=u16::MAX {
            let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023) / 1024.0);
            let size = match exponent {
                0 => fraction * 2f64.powi(-14),
                31 if fraction == 0.0 => f64::INFINITY,
                31 => f64::NAN,
                e => (1.0 + fraction) * 2f64.powi(e - 15),
            };
            let got = from_half(bits);
            assert_eq!(got.is_sign_negative(), bits >> 15 == 1);
            assert!(f64::from(got.abs()) == size || (got.is_nan() && size.is_nan()), "{bits:#x}");
        }
    }

    #[test]
    fn halves_are_exact() {
        for (bits, want) in [
            (0x0001u16, 5.960_464_5e-8f32),
            (0x03ff, 6.097_555e-5),
            (0x0400, 6.103_515_6e-5),
            (0x7bff, 65504.0),
            (0x3555, 0.333_251_95),
            (0x8000, -0.0),
            (0x7c00, f32::INFINITY),
            (0xfc00, f32::NEG_INFINITY),
        ] {
            assert_eq!(from_half(bits).to_bits(), want.to_bits(), "{bits:#x}");
        }
        assert!(from_half(0x7e00).is_nan());
    }
}
