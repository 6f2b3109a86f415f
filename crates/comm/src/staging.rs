//! Host memory through which the words of buffers travel, kept from one exchange to the next. Buffers of the CPU need none: transports
//! read and write them.
//!
//! Words of a GPU go through pinned memory, on its transfer stream. Computing goes on meanwhile: what is sent is copied when
//! the mark is reached that was set when the exchange was started, and computing waits for what is received only once somebody
//! waits for the exchange.

use dittograd_device::cuda::{Cuda, Mark, Pinned};
use dittograd_device::{Backend, Buffer};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::reserve::filled;
use std::sync::Arc;

/// A message: the rank it goes to or comes from, and its words.
pub(crate) type Message = (usize, Buffer);

/// Pinned memory comes in steps of so many bytes.
const STEP: usize = 1 << 20;

/// The address and the bytes of a buffer on a GPU.
pub(crate) fn range(buffer: &Buffer) -> Result<(u64, usize)> {
    Ok((buffer.address("exchange")?, buffer.len() * 4))
}

/// A mark on each GPU that messages are on, behind everything submitted to compute so far.
#[track_caller]
pub(crate) fn marks<'m>(messages: impl Iterator<Item = &'m Message>) -> Result<Vec<Mark>> {
    let mut marks: Vec<Mark> = Vec::new();
    for cuda in messages.filter_map(|(_, buffer)| buffer.device().as_cuda()) {
        if mark_of(&marks, cuda).is_err() {
            marks.push(cuda.mark()?);
        }
    }
    Ok(marks)
}

/// The mark on a GPU.
pub(crate) fn mark_of<'m>(marks: &'m [Mark], cuda: &Arc<Cuda>) -> Result<&'m Mark> {
    let mark = marks.iter().find(|mark| Arc::ptr_eq(mark.cuda(), cuda));
    mark.ok_or_else(|| Error::new("exchange", ErrorKind::Internal { what: "a GPU without a mark" }))
}

/// The buffers of those messages that need no staging.
pub(crate) fn direct(messages: &[Message]) -> Vec<&Buffer> {
    messages.iter().map(|m| &m.1).filter(|b| is_direct(b)).collect()
}

/// The ranks and the bytes of all messages, of those that are staged and those that are not.
pub(crate) fn in_order<B>(
    messages: &[Message],
    mut staged: impl Iterator<Item = B>,
    mut direct: impl Iterator<Item = B>,
) -> impl Iterator<Item = (usize, B)> {
    messages.iter().filter_map(move |(rank, buffer)| {
        let bytes = if is_direct(buffer) { direct.next() } else { staged.next() };
        Some((*rank, bytes?))
    })
}

/// Whether transports read and write the words of a buffer where they are.
fn is_direct(buffer: &Buffer) -> bool {
    matches!(buffer.device().backend(), Backend::Cpu(_))
}

/// Whether the words of a buffer go through [`Staging::words`]: those of other number types do, as float32.
fn is_converted(buffer: &Buffer) -> bool {
    matches!(buffer.device().backend(), Backend::Host(_))
}

/// Memory for all messages that are sent, or received, in one exchange.
#[derive(Default)]
pub(crate) struct Staging {
    words: Vec<f32>,
    pinned: Vec<Pinned>,
}

impl Staging {
    /// Has room for these messages: those of a GPU one behind the other in pinned memory of that GPU, converted ones in `words`.
    fn make_room(&mut self, messages: &[Message]) -> Result<()> {
        let mut words = 0;
        let mut gpus: Vec<(&Arc<Cuda>, usize)> = Vec::new();
        for (_, buffer) in messages {
            match buffer.device().as_cuda() {
                None => words += if is_converted(buffer) { buffer.len() } else { 0 },
                Some(cuda) => match gpus.iter_mut().find(|gpu| Arc::ptr_eq(gpu.0, cuda)) {
                    Some(gpu) => gpu.1 += buffer.len() * 4,
                    None => gpus.push((cuda, buffer.len() * 4)),
                },
            }
        }
        if self.words.len() < words {
            self.words = Vec::new();
            self.words = filled("exchange", words, 0.0)?;
        }
        for (cuda, bytes) in gpus {
            let is_small = |p: &Pinned| Arc::ptr_eq(p.cuda(), cuda) && p.bytes().len() < bytes;
            self.pinned.retain(|p| !is_small(p));
            if !self.pinned.iter().any(|p| Arc::ptr_eq(p.cuda(), cuda)) {
                self.pinned.push(cuda.pinned(bytes.next_multiple_of(STEP))?);
            }
        }
        Ok(())
    }

    /// Copies the words of buffers here. Waits for them.
    pub(crate) fn fetch(&mut self, messages: &[Message], after: &[Mark]) -> Result<()> {
        self.make_room(messages)?;
        let mut at = 0;
        for (_, buffer) in messages.iter().filter(|m| is_converted(&m.1)) {
            buffer.read_words("exchange", &mut self.words[at..at + buffer.len()])?;
            at += buffer.len();
        }
        for pinned in &mut self.pinned {
            let cuda = pinned.cuda().clone();
            let ranges = ranges(messages, &cuda)?;
            if !ranges.is_empty() {
                cuda.fetch(mark_of(after, &cuda)?, &ranges, pinned)?;
            }
        }
        Ok(())
    }

    /// Copies what is here into buffers. Does not wait for GPUs: computing there must wait for the marks.
    pub(crate) fn put(&mut self, messages: &[Message], after: &[Mark]) -> Result<Vec<Mark>> {
        let mut at = 0;
        for (_, buffer) in messages.iter().filter(|m| is_converted(&m.1)) {
            buffer.write_words("exchange", &self.words[at..at + buffer.len()])?;
            at += buffer.len();
        }
        let mut marks = Vec::new();
        for pinned in &mut self.pinned {
            let cuda = pinned.cuda().clone();
            let ranges = ranges(messages, &cuda)?;
            if !ranges.is_empty() {
                marks.push(cuda.put(mark_of(after, &cuda)?, pinned, &ranges)?);
            }
        }
        Ok(marks)
    }

    /// The bytes of each message that is not direct, to be written. Waits until the last ones have been read.
    pub(crate) fn parts(&mut self, messages: &[Message]) -> Result<Vec<&mut [u8]>> {
        self.make_room(messages)?;
        let mut words: &mut [u8] = bytemuck::cast_slice_mut(&mut self.words);
        let mut pinned = Vec::with_capacity(self.pinned.len());
        for p in &mut self.pinned {
            pinned.push((p.cuda().clone(), p.bytes_mut()?));
        }
        let mut parts = Vec::with_capacity(messages.len());
        for (_, buffer) in messages.iter().filter(|m| !is_direct(&m.1)) {
            let of = buffer.device().as_cuda();
            let gpu = pinned.iter_mut().find(|p| of.is_some_and(|cuda| Arc::ptr_eq(cuda, &p.0)));
            let rest = gpu.map_or(&mut words, |p| &mut p.1);
            let (part, after) = std::mem::take(rest).split_at_mut(buffer.len() * 4);
            *rest = after;
            parts.push(part);
        }
        Ok(parts)
    }
}

/// The ranges of the messages that are on a GPU.
fn ranges(messages: &[Message], cuda: &Arc<Cuda>) -> Result<Vec<(u64, usize)>> {
    let here = messages.iter().filter(|m| m.1.device().as_cuda().is_some_and(|c| Arc::ptr_eq(c, cuda)));
    here.map(|m| range(&m.1)).collect()
}

/// Received messages, some of them still on their way to a GPU. The buffers are held until computing waits for them: freed
/// memory is used again at once.
pub(crate) struct Arrived {
    pub(crate) marks: Vec<Mark>,
    pub(crate) buffers: Vec<Message>,
}

impl Arrived {
    /// Makes computing on GPUs wait for what has not arrived there.
    #[track_caller]
    pub(crate) fn wait(mut self) -> Result<()> {
        self.join()
    }

    fn join(&mut self) -> Result<()> {
        let mut outcome = Ok(());
        for mark in self.marks.drain(..) {
            let waits = mark.cuda().wait(&mark);
            if waits.is_err() {
                // Then this thread waits, before the buffers can be freed; that the GPU is lost is told already.
                let _ = mark.synchronize();
            }
            outcome = outcome.and(waits);
        }
        self.buffers.clear();
        outcome
    }
}

impl Drop for Arrived {
    fn drop(&mut self) {
        // Whoever started the exchange has given up on it, and asks for no errors of it.
        let _ = self.join();
    }
}
