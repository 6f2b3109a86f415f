//! Tensors in files: NumPy's `.npy` and `.npz`.

pub(crate) mod bytes;
mod npy;
mod npz;

pub use npy::{npy_bytes, parse_npy, parse_npy_numbers, read_npy, read_npy_numbers, write_npy};
pub use npz::{npz_bytes, parse_npz, read_npz, write_npz};
