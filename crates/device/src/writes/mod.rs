//! Small writes from the host to many buffers of a device, in one transfer: a copy and a kernel, instead of a copy each.

use crate::cuda::driver::HostMemory;
use crate::cuda::{Args, Source, Work};
use crate::{Backend, Buffer, Device};
use dittograd_numerics::error::Result;
use dittograd_numerics::shape::Shape;
use std::sync::Arc;

/// Words that one block of threads moves.
const PIECE: usize = 2048;
/// Words of an entry of the table of pieces.
const ENTRY: usize = 4;
/// Words of a write that is worth a transfer of its own.
const LARGE: usize = 1 << 16;

/// Words on their way to buffers of one device. Nothing of the device may read the buffers until they are [sent](Writes::send).
#[derive(Default)]
pub struct Writes {
    /// Where each write goes, and its words.
    targets: Vec<(Buffer, usize)>,
    words: Vec<u32>,
    /// What is transferred: the table of pieces, then the words.
    packed: Vec<u32>,
    /// Device memory that they are transferred to.
    staged: Option<Buffer>,
}

/// Writes words into a buffer: now, or with `later` ones.
#[track_caller]
pub fn write(op: &str, buffer: &Buffer, words: &[f32], later: Option<&mut Writes>) -> Result<()> {
    match later {
        Some(writes) => writes.add(op, buffer, words),
        None => buffer.write_words(op, words),
    }
}

impl Writes {
    /// Writes words into a buffer, sooner or later.
    #[track_caller]
    pub fn add(&mut self, op: &str, buffer: &Buffer, words: &[f32]) -> Result<()> {
        let device = buffer.device();
        let is_other = self.targets.first().is_some_and(|(first, _)| !first.device().same(device));
        if is_other || !device.is_cuda() || words.len() != buffer.len() || words.len() >= LARGE {
            return buffer.write_words(op, words);
        }
        // An error of the buffer is one of this call.
        buffer.address(op)?;
        self.targets.push((buffer.clone(), words.len()));
        self.words.extend(bytemuck::cast_slice::<f32, u32>(words));
        Ok(())
    }

    /// Submits all words added since the last call. After an error none of them may have arrived, and they are forgotten.
    #[track_caller]
    pub fn send(&mut self) -> Result<()> {
        let sent = match self.targets.first() {
            Some((first, _)) => self.transfer(&first.device().clone()),
            None => Ok(()),
        };
        self.targets.clear();
        self.words.clear();
        sent
    }

    #[track_caller]
    fn transfer(&mut self, device: &Device) -> Result<()> {
        let Backend::Cuda(cuda) = device.backend() else { return Ok(()) };
        let mut pieces = Vec::new();
        let mut start = 0;
        for (buffer, count) in &self.targets {
            let address = buffer.address("writes")?;
            for at in (0..*count).step_by(PIECE) {
                pieces.push((address + at as u64 * 4, start + at, PIECE.min(count - at)));
            }
            start += count;
        }
        let table = pieces.len() * ENTRY;
        self.packed.clear();
        for (address, at, count) in &mut pieces {
            *at += table;
            self.packed.extend([*address as u32, (*address >> 32) as u32, *at as u32, *count as u32]);
        }
        self.packed.extend(&self.words);
        let words = self.packed.len();
        let staged = match self.staged.take().filter(|s| s.len() >= words && s.device().same(device)) {
            Some(staged) => staged,
            None => device.alloc_for("writes", &Shape::new(&[words.next_power_of_two()])?)?,
        };
        let from = self.staged.insert(staged).address("writes")?;
        let (module, source) = module();
        let kernel = cuda.kernel(&module, source, "spread")?;
        cuda.upload(from, bytemuck::cast_slice(&self.packed))?;
        cuda.launch(kernel, [pieces.len() as u32, 1, 1], 256, 0, Args::new().ptr(from))?;
        cuda.stand_in(|| -> Work {
            Arc::new(move |memory: &mut dyn HostMemory| {
                pieces.iter().try_for_each(|(to, at, count)| {
                    let words = memory.words(from + *at as u64 * 4, *count)?;
                    memory.set_words(*to, &words)
                })
            })
        })
    }
}

/// The CUDA module.
#[doc(hidden)]
pub fn module() -> Source {
    ("writes".to_string(), include_str!("writes.cu"))
}
