//! Files: tensors in safetensors and in NumPy's `.npy` and `.npz`, checkpoints for exact resumption, programs in ONNX,
//! and atomic writes, which leave either the old file or the new one, whatever happens.

pub mod atomic;
pub(crate) mod bytes;
pub(crate) mod checkpoint;
mod elements;
mod npy;
mod npz;
pub mod onnx;
#[doc(hidden)]
pub mod protobuf;
pub mod safetensors;
mod state_dict;

#[doc(hidden)]
pub use bytes::MAX_RATIO;
pub use checkpoint::{Best, Checkpoint, DataState, Progress, RandomState, Resume};
pub use npy::{npy_bytes, parse_npy, parse_npy_numbers, read_npy, read_npy_numbers, write_npy};
pub use npz::{npz_bytes, parse_npz, read_npz, write_npz};
pub use state_dict::{Loaded, SaveLoad, StateDict};

use crate::error::Result;
use std::path::Path;

/// All bytes of a file, as every reader here gets them. A folder or a named pipe is an error. From a source without a
/// length, such as standard input, at most 1 GiB is read.
#[track_caller]
pub fn read(path: impl AsRef<Path>) -> Result<Vec<u8>> {
    bytes::read("read", path.as_ref())
}

pub(crate) use crate::error::shown_name as shown;

/// Another library's message about a file, as part of an error.
pub(crate) fn said(what: impl std::fmt::Display) -> String {
    crate::error::shown(&what.to_string(), 200)
}
