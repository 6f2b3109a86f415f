//! The hash of a file's content.

use super::Dtype;
use crate::shape::Shape;

/// A hash of names, types, shapes, elements and texts. Each part is delimited, so that no part can pass for another.
pub(super) struct Digest(blake3::Hasher);

impl Digest {
    pub(super) fn new<'a>(metadata: impl Iterator<Item = (&'a String, &'a String)>) -> Digest {
        let mut digest = Digest(blake3::Hasher::new());
        for (key, text) in metadata {
            digest.number(1);
            digest.text(key);
            digest.text(text);
        }
        digest
    }

    fn number(&mut self, n: usize) {
        self.0.update(&(n as u64).to_le_bytes());
    }

    /// Elements of the tensor that was named last.
    pub(super) fn elements(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn text(&mut self, text: &str) {
        self.number(text.len());
        self.0.update(text.as_bytes());
    }

    pub(super) fn tensor(&mut self, name: &str, dtype: Dtype, shape: Shape) {
        self.number(2);
        self.text(name);
        self.text(dtype.name());
        self.number(shape.rank());
        shape.dims().iter().for_each(|d| self.number(*d));
    }

    pub(super) fn finish(self) -> String {
        self.0.finalize().to_hex().to_string()
    }
}
