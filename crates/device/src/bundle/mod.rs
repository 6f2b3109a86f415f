//! Small copies between the host and many buffers of a device, in one transfer: a copy and a kernel, instead of a copy each.

use crate::cuda::driver::HostMemory;
use crate::cuda::{Args, Cuda, Source, Work};
use crate::{Backend, Buffer, Device};
use dittograd_numerics::error::Result;
use dittograd_numerics::shape::Shape;
use std::sync::Arc;

/// Words that one block of threads moves.
const PIECE: usize = 2048;
/// Words of a piece's entry in the table.
const ENTRY: usize = 6;
/// Words of a write that is worth a transfer of its own.
const LARGE: usize = 1 << 16;

/// Where words go, where they come from, and how many.
type Piece = (u64, u64, usize);

/// Words on their way to buffers of one device. Nothing of the device may read the buffers until they are [sent](Bundle::send).
#[derive(Default)]
pub struct Bundle {
    /// Where each write goes.
    targets: Vec<Buffer>,
    words: Vec<u32>,
    /// What is transferred: the table of pieces, then the words.
    packed: Vec<u32>,
    /// Device memory for the table and the words.
    staged: Option<Buffer>,
}

/// Writes words into a buffer: now, or with `later` ones.
#[track_caller]
pub fn write(op: &str, buffer: &Buffer, words: &[f32], later: Option<&mut Bundle>) -> Result<()> {
    match later {
        Some(bundle) => bundle.write(op, buffer, words),
        None => buffer.write_words(op, words),
    }
}

impl Bundle {
    /// Writes words into a buffer, at once or when the bundle is sent.
    #[track_caller]
    pub fn write(&mut self, op: &str, buffer: &Buffer, words: &[f32]) -> Result<()> {
        let device = buffer.device();
        let is_other = self.targets.first().is_some_and(|first| !first.device().same(device));
        if is_other || !device.is_cuda() || words.len() != buffer.len() || words.len() >= LARGE {
            return buffer.write_words(op, words);
        }
        // A buffer that was released is an error of this call.
        buffer.address(op)?;
        self.targets.push(buffer.clone());
        self.words.extend(bytemuck::cast_slice::<f32, u32>(words));
        Ok(())
    }

    /// Submits all words written since the last call. After an error none of them may have arrived, and they are forgotten.
    #[track_caller]
    pub fn send(&mut self) -> Result<()> {
        let (targets, words) = (std::mem::take(&mut self.targets), std::mem::take(&mut self.words));
        let Some(device) = targets.first().map(|first| first.device().clone()) else { return Ok(()) };
        let Backend::Cuda(cuda) = device.backend() else { return Ok(()) };
        let count = pieces_of(&targets).count() * ENTRY;
        let staged = self.staged(&device, count + words.len())?.address("bundle")?;
        let mut from = staged + count as u64 * 4;
        let mut pieces = Vec::new();
        for (buffer, at, words) in pieces_of(&targets) {
            pieces.push((buffer.address("bundle")? + at as u64 * 4, from, words));
            from += words as u64 * 4;
        }
        let sent = self.transfer(cuda, pieces, &words);
        // The memory is used again.
        (self.targets, self.words) = (targets, words);
        self.targets.clear();
        self.words.clear();
        sent
    }

    /// The words of buffers of one device. Waits for the device.
    #[track_caller]
    pub fn read(&mut self, buffers: &[Buffer]) -> Result<Vec<Vec<f32>>> {
        let Some(Backend::Cuda(cuda)) = buffers.first().map(|b| b.device().backend()) else {
            return buffers.iter().map(Buffer::download).collect();
        };
        let device = buffers[0].device();
        if buffers.len() == 1 || buffers.iter().any(|b| !b.device().same(device)) {
            return buffers.iter().map(Buffer::download).collect();
        }
        let (count, words) =
            (pieces_of(buffers).count() * ENTRY, buffers.iter().map(Buffer::len).sum::<usize>());
        let staged = self.staged(device, count + words)?;
        let mut to = staged.address("bundle")? + count as u64 * 4;
        let mut pieces = Vec::new();
        for (buffer, at, words) in pieces_of(buffers) {
            pieces.push((to, buffer.address("bundle")? + at as u64 * 4, words));
            to += words as u64 * 4;
        }
        self.transfer(cuda, pieces, &[])?;
        let all = staged.part(count, words)?.download()?;
        let mut rest = &all[..];
        let mut next = |b: &Buffer| {
            let (words, after) = rest.split_at(b.len());
            rest = after;
            words.to_vec()
        };
        Ok(buffers.iter().map(&mut next).collect())
    }

    /// Device memory for so many words.
    #[track_caller]
    fn staged(&mut self, device: &Device, words: usize) -> Result<Buffer> {
        let staged = match self.staged.take().filter(|s| s.len() >= words && s.device().same(device)) {
            Some(staged) => staged,
            None => device.alloc_for("bundle", &Shape::new(&[words.next_power_of_two()])?)?,
        };
        Ok(self.staged.insert(staged).clone())
    }

    /// Copies the table of pieces and words to the device, and moves the pieces there.
    #[track_caller]
    fn transfer(&mut self, cuda: &Arc<Cuda>, pieces: Vec<Piece>, words: &[u32]) -> Result<()> {
        let Some(staged) = &self.staged else { return Ok(()) };
        let staged = staged.address("bundle")?;
        let (module, source) = module();
        let kernel = cuda.kernel(&module, source, "move_words")?;
        self.packed.clear();
        for (to, from, words) in &pieces {
            let entry = [*to, *from, *words as u64];
            self.packed.extend(bytemuck::cast_slice::<u64, u32>(&entry));
        }
        self.packed.extend(words);
        cuda.upload(staged, bytemuck::cast_slice(&self.packed))?;
        cuda.launch(kernel, [pieces.len() as u32, 1, 1], 256, 0, Args::new().ptr(staged))?;
        cuda.stand_in(|| -> Work {
            Arc::new(move |memory: &mut dyn HostMemory| {
                pieces.iter().try_for_each(|(to, from, count)| {
                    let words = memory.words(*from, *count)?;
                    memory.set_words(*to, &words)
                })
            })
        })
    }
}

/// The pieces that the words of buffers are moved in, each by its first word and its length.
fn pieces_of(buffers: &[Buffer]) -> impl Iterator<Item = (&Buffer, usize, usize)> {
    let of = |b| (0..Buffer::len(b)).step_by(PIECE).map(move |at| (b, at, PIECE.min(b.len() - at)));
    buffers.iter().flat_map(of)
}

/// The CUDA module.
#[doc(hidden)]
pub fn module() -> Source {
    ("bundle".to_string(), include_str!("bundle.cu"))
}
