//! A cache of constants on the device, so that a step which uses a constant again does not upload it again.

use dittograd_device::{AnyBuffer, Backend, Device, to_words};
use dittograd_numerics::error::Result;
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;
use dittograd_ops::spectral::DftTable;
use std::collections::HashMap;

/// The most bytes kept.
const MOST: usize = 64 << 20;
/// Steps for which an unused constant is kept. Fewer than the steps of growing memory before a warning, so that a new
/// constant at every step is no leak.
const PATIENCE: u64 = 8;

/// The constants of a session, identified by shape and bits. All bits are compared. Equal ones share memory, but each is
/// released by itself.
#[derive(Default)]
pub(super) struct Constants {
    /// By shape and a few elements, which tell most constants apart.
    kept: HashMap<(Shape, [u32; 3]), Vec<Kept>>,
    /// Tables of transforms, which the device computes.
    tables: HashMap<DftTable, Kept>,
    bytes: usize,
    /// Steps ended so far.
    step: u64,
}

struct Kept {
    value: AnyBuffer,
    /// The elements, if those of the value are not in host memory.
    words: Option<Vec<f32>>,
    /// The last step that used it.
    used: u64,
}

fn bytes_of(value: &AnyBuffer) -> usize {
    value.shape().numel() * 4
}

fn bits(words: &[f32]) -> &[u32] {
    bytemuck::cast_slice(words)
}

impl Kept {
    /// A value of its own, if these are the elements. A released value has none.
    fn lend(&mut self, words: &[f32], now: u64) -> Option<AnyBuffer> {
        let read = self.value.buffer().read("constant").ok()?;
        if bits(self.words.as_deref().unwrap_or(read.host())) != bits(words) {
            return None;
        }
        drop(read);
        self.used = now;
        self.value.co_owned()
    }
}

impl Constants {
    /// The value of a constant on `device`, from the cache or new.
    #[track_caller]
    pub(super) fn get<T: Scalar>(&mut self, device: &Device, tensor: &Tensor<T>) -> Result<AnyBuffer> {
        let (shape, bytes) = (tensor.shape(), tensor.shape().numel() * 4);
        let has_words = !matches!(device.backend(), Backend::Host(_));
        if !has_words || bytes == 0 || bytes > MOST {
            return AnyBuffer::upload_for("constant", device, tensor);
        }
        let words = to_words(tensor.data())?;
        let key = (shape, [0, words.len() / 2, words.len() - 1].map(|i| words[i].to_bits()));
        let now = self.step;
        let equal = self.kept.get_mut(&key).and_then(|all| all.iter_mut().find_map(|k| k.lend(&words, now)));
        if let Some(value) = equal {
            return Ok(value);
        }
        let value = AnyBuffer::upload_words("constant", device, shape, &words)?;
        if self.makes_room(bytes) {
            let words = device.is_cuda().then_some(words);
            let lent = value.co_owned().unwrap_or_else(|| value.clone());
            self.kept.entry(key).or_default().push(Kept { value, words, used: now });
            return Ok(lent);
        }
        Ok(value)
    }

    /// The tables of a transform on `device`, from the cache or computed.
    #[track_caller]
    pub(super) fn table(&mut self, device: &Device, table: DftTable) -> Result<AnyBuffer> {
        if let Some(kept) = self.tables.get_mut(&table)
            && let Some(value) = kept.value.co_owned()
        {
            kept.used = self.step;
            return Ok(value);
        }
        let value = dittograd_ops::apply(device, &table.into(), &[])?;
        if self.makes_room(bytes_of(&value)) {
            let lent = value.co_owned().unwrap_or_else(|| value.clone());
            self.tables.insert(table, Kept { value, words: None, used: self.step });
            return Ok(lent);
        }
        Ok(value)
    }

    /// Counts so many more bytes as kept, if they fit; constants that this step has not used make room.
    fn makes_room(&mut self, bytes: usize) -> bool {
        if self.bytes + bytes > MOST {
            let now = self.step;
            self.retain(|k| k.used == now);
        }
        let fits = self.bytes + bytes <= MOST;
        self.bytes += if fits { bytes } else { 0 };
        fits
    }

    /// Drops constants that the last steps did not use.
    pub(super) fn end_step(&mut self) {
        self.step += 1;
        let now = self.step;
        self.retain(|k| k.used + PATIENCE >= now);
    }

    fn retain(&mut self, keep: impl Fn(&Kept) -> bool) {
        let mut bytes = 0;
        let mut keep = |k: &Kept| {
            let stays = keep(k) && !k.value.buffer().is_released();
            bytes += if stays { bytes_of(&k.value) } else { 0 };
            stays
        };
        self.kept.retain(|_, all| {
            all.retain(&mut keep);
            !all.is_empty()
        });
        self.tables.retain(|_, k| keep(k));
        self.bytes = bytes;
    }
}
