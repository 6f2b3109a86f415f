//! Safetensors files: named tensors and a map of texts, as PyTorch, NumPy and others read and write them.
//!
//! A file is the length of a header (8 bytes), the header (JSON: type, shape and position for each name), and the bytes
//! of the tensors, one after another without gaps. Reading takes about as much memory as the file has bytes, whatever
//! the header says, and every error is one line that names the file and the tensor. Writing gives the same bytes for
//! the same content.

mod digest;
mod header;
#[cfg(test)]
mod tests;
mod writer;

pub use super::elements::Dtype;
pub use writer::Writer;

use super::{bytes, elements, shown};
use crate::error::{Error, Result};
use crate::numerics::environment;
use crate::shape::Shape;
use crate::tensor::AnyTensor;
use digest::Digest;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::Path;

/// The longest header, as in other readers.
const MAX_HEADER: u64 = 100_000_000;
/// The most tensors, and the most texts. Their lines in the header may be short, and what is kept of them many times
/// larger.
const MAX_NAMES: usize = 1 << 17;
/// The name the header keeps for the map of texts.
const METADATA: &str = "__metadata__";

/// What the header says about a tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    dtype: Dtype,
    shape: Shape,
    /// Position of its bytes in the file.
    place: Range<usize>,
}

impl Entry {
    /// Type of its elements in the file.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Its shape.
    pub fn shape(&self) -> Shape {
        self.shape
    }
}

type Entries = BTreeMap<String, Entry>;

/// A file that was read and checked. Tensors are converted on request.
pub struct SafeTensors {
    /// For errors.
    name: String,
    bytes: Vec<u8>,
    metadata: BTreeMap<String, String>,
    entries: Entries,
}

impl fmt::Debug for SafeTensors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SafeTensors({}, {} tensors, {} bytes)", self.name, self.entries.len(), self.bytes.len())
    }
}

impl SafeTensors {
    /// Reads a file.
    ///
    /// ```
    /// use dittograd::io::safetensors::{SafeTensors, Writer};
    /// use dittograd::prelude::*;
    /// # fn main() -> Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("dittograd-doc-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder).unwrap();
    /// let path = folder.join("x.safetensors");
    /// let x = Tensor::new(&[2], vec![0.5f32, 2.0])?;
    /// let mut file = Writer::new();
    /// file.numbers("x", &x)?.metadata("made by", "me")?.save(&path)?;
    ///
    /// let file = SafeTensors::read(&path)?;
    /// assert_eq!(file.tensor("x")?, x.into());
    /// assert_eq!(file.metadata()["made by"], "me");
    /// # std::fs::remove_dir_all(&folder).unwrap();
    /// # Ok(())
    /// # }
    /// ```
    pub fn read(path: impl AsRef<Path>) -> Result<SafeTensors> {
        let path = path.as_ref();
        SafeTensors::parse(path.display().to_string(), bytes::read_regular("read", path)?)
    }

    /// Reads a file from bytes in memory; `name` stands for the file in errors.
    pub fn parse(name: impl Into<String>, bytes: Vec<u8>) -> Result<SafeTensors> {
        let size = bytes.len();
        SafeTensors::of(name.into(), bytes, size)
    }

    /// Reads what a file says about its tensors, and none of them: only [`SafeTensors::metadata`], [`SafeTensors::iter`] and
    /// [`SafeTensors::get`] know something.
    pub(crate) fn read_header(path: &Path) -> Result<SafeTensors> {
        let (bytes, size) = bytes::read_prefixed(path)?;
        SafeTensors::of(path.display().to_string(), bytes, size)
    }

    fn of(name: String, bytes: Vec<u8>, size: usize) -> Result<SafeTensors> {
        match header::parse(&bytes, size) {
            Ok((metadata, entries)) => Ok(SafeTensors { name, bytes, metadata, entries }),
            Err(why) => Err(Error::file("read", name, format!("is not a safetensors file: {why}"))),
        }
    }

    /// The map of texts.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// Names and entries of all tensors, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.entries.iter().map(|(name, e)| (name.as_str(), e))
    }

    /// What the header says about a tensor.
    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.entries.get(name)
    }

    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Length of the file.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// An error about this file.
    #[cold]
    pub(crate) fn error(&self, op: &str, why: impl fmt::Display) -> Error {
        Error::file(op, &self.name, why)
    }

    /// A tensor. F32, F16, BF16 and F64 become numbers (F64 is rounded to float32; a number too large for it is an
    /// error). BOOL and integers become indices; a negative one or one above the largest u32 is an error.
    pub fn tensor(&self, name: &str) -> Result<AnyTensor> {
        let _strict = environment::enter();
        let wrong = |why: String| self.error("read", format!("tensor `{}`: {why}", shown(name)));
        let Some(e) = self.entries.get(name) else {
            return Err(wrong(format!("is not among the {} in the file", self.entries.len())));
        };
        let bytes = self.bytes.get(e.place.clone()).unwrap_or_default();
        elements::tensor(e.dtype, e.shape, bytes).map_err(wrong)
    }

    /// A hash of all tensors and of the map of texts without the entry `but`. It does not depend on how the header is
    /// written.
    pub(crate) fn digest(&self, but: &str) -> String {
        let mut digest = Digest::new(self.metadata.iter().filter(|(key, _)| *key != but));
        for (name, e) in &self.entries {
            digest.tensor(name, e.dtype, e.shape);
            digest.elements(self.bytes.get(e.place.clone()).unwrap_or_default());
        }
        digest.finish()
    }
}
