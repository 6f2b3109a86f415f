//! The wire format of protocol buffers, for ONNX and TensorBoard: fields one after the other, each a number with a kind, then a
//! whole number of variable length, four or eight bytes, or a length and so many bytes. Fields keep the order in which they are
//! written, so that the same message gives the same bytes.

/// A message being written.
#[derive(Clone, Debug, Default)]
pub struct Message(Vec<u8>);

impl Message {
    /// Seven bits a byte, the lowest first; the eighth says that more follow.
    fn varint(&mut self, mut x: u64) {
        while x >= 0x80 {
            self.0.push(x as u8 | 0x80);
            x >>= 7;
        }
        self.0.push(x as u8);
    }

    /// The number of a field and how it is written: 0 varint, 1 eight bytes, 2 a length and bytes, 5 four bytes.
    fn key(&mut self, field: u32, kind: u32) {
        self.varint(u64::from(field << 3 | kind));
    }

    /// A whole number.
    pub fn int(mut self, field: u32, x: i64) -> Message {
        self.key(field, 0);
        self.varint(x as u64);
        self
    }

    /// A float32.
    pub fn float(mut self, field: u32, x: f32) -> Message {
        self.key(field, 5);
        self.0.extend(x.to_le_bytes());
        self
    }

    /// A float64.
    pub fn double(mut self, field: u32, x: f64) -> Message {
        self.key(field, 1);
        self.0.extend(x.to_le_bytes());
        self
    }

    /// Bytes.
    pub fn bytes(mut self, field: u32, x: &[u8]) -> Message {
        self.key(field, 2);
        self.varint(x.len() as u64);
        self.0.extend(x);
        self
    }

    /// A text.
    pub fn text(self, field: u32, x: &str) -> Message {
        self.bytes(field, x.as_bytes())
    }

    /// A message within this one.
    pub fn message(self, field: u32, x: Message) -> Message {
        self.bytes(field, &x.0)
    }

    /// A field that is repeated.
    pub fn each<T>(self, all: impl IntoIterator<Item = T>, f: impl Fn(Message, T) -> Message) -> Message {
        all.into_iter().fold(self, f)
    }

    /// All that was written.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_of_variable_length() {
        let mut m = Message::default();
        [0, 127, 128, 300, u64::MAX].into_iter().for_each(|x| m.varint(x));
        assert_eq!(m.into_bytes(), [0, 127, 128, 1, 172, 2, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1]);
    }
}
