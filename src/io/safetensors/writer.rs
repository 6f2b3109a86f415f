//! Writes a file.
//!
//! The crate `safetensors` is not used for this: it sorts tensors by type, and checkpoints would have other bytes.

use super::digest::Digest;
use super::{Dtype, MAX_HEADER, MAX_NAMES, METADATA};
use crate::error::{Error, ErrorKind, Result};
use crate::io::elements::little_endian;
use crate::io::{atomic, shown};
use crate::reserve::reserved;
use crate::shape::Shape;
use crate::tensor::{AnyTensor, Tensor};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};
use std::path::Path;

/// The content of a file to write. Tensors are sorted by name.
#[derive(Clone, Default)]
pub struct Writer<'a> {
    metadata: BTreeMap<String, String>,
    /// The elements as words: all written types have 4 bytes.
    tensors: BTreeMap<String, (Dtype, Shape, &'a [u32])>,
}

impl fmt::Debug for Writer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Writer({} tensors)", self.tensors.len())
    }
}

#[derive(Serialize)]
struct Written {
    dtype: &'static str,
    shape: Vec<usize>,
    data_offsets: (usize, usize),
}

impl<'a> Writer<'a> {
    /// Nothing yet.
    pub fn new() -> Writer<'a> {
        Writer::default()
    }

    /// Adds a text.
    pub fn metadata(&mut self, key: &str, text: &str) -> Result<&mut Writer<'a>> {
        match self.metadata.insert(key.to_string(), text.to_string()) {
            None => Ok(self),
            Some(_) => {
                Err(Error::argument("safetensors", "key", format!("`{}` is there already", shown(key))))
            }
        }
    }

    /// Adds numbers, as F32.
    pub fn numbers(&mut self, name: &str, tensor: &'a Tensor<f32>) -> Result<&mut Writer<'a>> {
        self.add(name, Dtype::F32, tensor.shape(), bytemuck::cast_slice(tensor.data()))
    }

    /// Adds indices, as U32.
    pub fn indices(&mut self, name: &str, tensor: &'a Tensor<u32>) -> Result<&mut Writer<'a>> {
        self.add(name, Dtype::U32, tensor.shape(), tensor.data())
    }

    /// Adds either.
    pub fn tensor(&mut self, name: &str, tensor: &'a AnyTensor) -> Result<&mut Writer<'a>> {
        match tensor {
            AnyTensor::Num(t) => self.numbers(name, t),
            AnyTensor::Idx(t) => self.indices(name, t),
        }
    }

    fn add(&mut self, name: &str, dtype: Dtype, shape: Shape, words: &'a [u32]) -> Result<&mut Writer<'a>> {
        if name == METADATA || self.tensors.contains_key(name) {
            let why = format!("`{}` is reserved or there already", shown(name));
            return Err(Error::argument("safetensors", "name", why));
        }
        self.tensors.insert(name.to_string(), (dtype, shape, words));
        Ok(self)
    }

    /// [`SafeTensors::digest`](super::SafeTensors::digest) of the content.
    pub(crate) fn digest(&self) -> String {
        let mut digest = Digest::new(self.metadata.iter());
        for (name, (dtype, shape, words)) in &self.tensors {
            digest.tensor(name, *dtype, *shape);
            // Hashing does not fail.
            let _ = little_endian(words, |bytes| {
                digest.elements(bytes);
                Ok(())
            });
        }
        digest.finish()
    }

    /// The length of the header, and the header, padded to a multiple of 8 bytes.
    fn header(&self) -> Result<Vec<u8>> {
        let mut at = 0;
        let mut parts: Vec<(&str, serde_json::Result<String>)> = Vec::new();
        if !self.metadata.is_empty() {
            parts.push((METADATA, serde_json::to_string(&self.metadata)));
        }
        for (name, (dtype, shape, words)) in &self.tensors {
            let from = at;
            at += words.len() * 4;
            let (dtype, shape, data_offsets) = (dtype.name(), shape.dims().to_vec(), (from, at));
            parts.push((name, serde_json::to_string(&Written { dtype, shape, data_offsets })));
        }
        let internal = |_| Error::new("safetensors", ErrorKind::Internal { what: "a header is not text" });
        let mut text = String::from("{");
        for (i, (name, value)) in parts.into_iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            let name = serde_json::to_string(name).map_err(internal)?;
            text.push_str(&format!("{comma}{name}:{}", value.map_err(internal)?));
        }
        text.push('}');
        while !text.len().is_multiple_of(8) {
            text.push(' ');
        }
        if text.len() as u64 > MAX_HEADER || self.tensors.len().max(self.metadata.len()) > MAX_NAMES {
            let (tensors, texts) = (self.tensors.len(), self.metadata.len());
            let why = format!(
                "{tensors} tensors and {texts} texts with a header of {} bytes would not be read again; at most {MAX_NAMES} \
                 of each and {MAX_HEADER} bytes are",
                text.len()
            );
            return Err(Error::argument("safetensors", "header", why));
        }
        Ok([&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat())
    }

    fn write(&self, header: &[u8], file: &mut dyn Write) -> io::Result<()> {
        file.write_all(header)?;
        self.tensors.values().try_for_each(|(_, _, words)| little_endian(words, |b| file.write_all(b)))
    }

    /// Writes the file [atomically](atomic).
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let header = self.header()?;
        atomic::write_with(path, |file| self.write(&header, file))
    }

    /// The bytes of the file.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let header = self.header()?;
        let words: usize = self.tensors.values().map(|(_, _, words)| words.len()).sum();
        let mut bytes = reserved("safetensors", header.len() + 4 * words)?;
        // Writing to memory cannot fail.
        let _ = self.write(&header, &mut bytes);
        Ok(bytes)
    }
}
