//! Files: tensors in safetensors and in NumPy's `.npy` and `.npz`, checkpoints that training goes on from bit for bit, programs in ONNX, and writing that
//! leaves a whole file, the old one or the new one, whatever happens.

pub mod atomic;
pub(crate) mod bytes;
mod checkpoint;
pub mod checksum;
mod npy;
mod npz;
pub mod onnx;
pub mod safetensors;
mod state_dict;

pub use checkpoint::{Checkpoint, DataState, RandomState, Resume};
pub use npy::{npy_bytes, parse_npy, parse_npy_numbers, read_npy, read_npy_numbers, write_npy};
pub use npz::{npz_bytes, parse_npz, read_npz, write_npz};
pub use state_dict::{Loaded, StateDict};

/// A text from a file as part of a line: escaped, and cut if it is long.
pub(crate) fn shown(text: &str) -> String {
    cut(&text.chars().take(LONG + 1).flat_map(char::escape_debug).collect::<String>(), LONG)
}

/// Characters of a name that are shown.
const LONG: usize = 60;

/// At most the first `count` characters.
pub(crate) fn cut(text: &str, count: usize) -> String {
    match text.char_indices().nth(count) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_string(),
    }
}
