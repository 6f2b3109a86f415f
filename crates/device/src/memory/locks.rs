//! Locks of buffers: shared access for kernels that read, exclusive access for one that writes.

use super::block::Mem;
use super::buffer::{Buffer, released};
use dittograd_numerics::error::{Error, Result};
use std::ops::Range;
use std::sync::{Mutex, PoisonError, RwLockReadGuard, RwLockWriteGuard};

/// Shared access to a block, held while a kernel reads it.
pub struct ReadGuard<'a> {
    pub(super) guard: RwLockReadGuard<'a, Option<Mem>>,
    pub(super) range: Range<usize>,
}

fn host_words<'a>(mem: &'a Option<Mem>, range: &Range<usize>) -> &'a [f32] {
    match mem {
        Some(Mem::Host(words)) => &words[range.clone()],
        _ => &[],
    }
}

impl ReadGuard<'_> {
    /// The host words; empty on CUDA.
    pub fn host(&self) -> &[f32] {
        host_words(&self.guard, &self.range)
    }
}

/// Buffers that are read together, any number of times. Each block is locked once, even if several buffers share it: a
/// thread must not lock a block for reading twice.
#[doc(hidden)]
pub struct ReadSet {
    /// One buffer of each block.
    blocks: Vec<Buffer>,
    /// Further buffers of these blocks that have owners of their own, who may have released them.
    owned: Vec<Buffer>,
    /// For each buffer: its block, and its range of words in the block.
    of: Vec<(usize, Range<usize>)>,
    /// Memory reused for the guards of the next lock; a guard is two words.
    spare: Mutex<Vec<[usize; 2]>>,
}

impl ReadSet {
    /// A set of these buffers.
    pub fn new<'b>(buffers: impl IntoIterator<Item = &'b Buffer>) -> ReadSet {
        let mut set =
            ReadSet { blocks: Vec::new(), owned: Vec::new(), of: Vec::new(), spare: Mutex::default() };
        for b in buffers {
            let at = match set.blocks.iter().position(|o| o.shares(b)) {
                Some(at) => {
                    set.owned.extend(b.owner.is_some().then(|| b.clone()));
                    at
                }
                None => {
                    set.blocks.push(b.clone());
                    set.blocks.len() - 1
                }
            };
            set.of.push((at, b.range()));
        }
        set
    }

    /// Locks all of them for reading. Errors if one was released.
    #[track_caller]
    pub fn lock(&self, op: &str) -> Result<ReadGuards<'_>> {
        let spare = std::mem::take(&mut *self.spare.lock().unwrap_or_else(PoisonError::into_inner));
        let mut locked = ReadGuards { set: self, guards: emptied(spare) };
        locked.guards.reserve_exact(self.blocks.len());
        for b in &self.blocks {
            locked.guards.push(b.read(op)?.guard);
        }
        if self.owned.iter().any(Buffer::given_up) {
            return Err(released(op));
        }
        Ok(locked)
    }
}

/// An empty list that reuses the memory of `list`. Both element types have the same size.
#[doc(hidden)]
pub fn emptied<A, B>(mut list: Vec<A>) -> Vec<B> {
    list.clear();
    list.into_iter().filter_map(|_| None).collect()
}

/// Shared access to all buffers of a [`ReadSet`].
pub struct ReadGuards<'a> {
    set: &'a ReadSet,
    guards: Vec<RwLockReadGuard<'a, Option<Mem>>>,
}

impl ReadGuards<'_> {
    /// The host words of buffer `i`; empty on CUDA.
    pub fn host(&self, i: usize) -> &[f32] {
        let (block, range) = &self.set.of[i];
        host_words(&self.guards[*block], range)
    }
}

impl Drop for ReadGuards<'_> {
    fn drop(&mut self) {
        let spare = emptied(std::mem::take(&mut self.guards));
        *self.set.spare.lock().unwrap_or_else(PoisonError::into_inner) = spare;
    }
}

/// Exclusive access to a block, held while a kernel writes it.
#[doc(hidden)]
pub struct WriteGuard<'a> {
    pub(super) guard: RwLockWriteGuard<'a, Option<Mem>>,
    pub(super) range: Range<usize>,
}

impl WriteGuard<'_> {
    /// The host words; empty on CUDA.
    pub fn host(&mut self) -> &mut [f32] {
        match &mut *self.guard {
            Some(Mem::Host(words)) => &mut words[self.range.clone()],
            _ => &mut [],
        }
    }
}

/// A block of which some ranges are read and others written.
struct Shared<'b> {
    block: &'b Buffer,
    /// The ranges to read, and their places among all reads.
    reads: Vec<(Range<usize>, usize)>,
    /// Likewise.
    writes: Vec<(Range<usize>, usize)>,
}

/// Calls `f` with the words of CPU buffers to read, and of others to write, which may be other parts of the same allocations. Each
/// allocation is locked meanwhile: for everybody if a part of it is written, for writers if not. Errors if what is written
/// overlaps with something else.
#[doc(hidden)]
#[track_caller]
pub fn with_host_words<T>(
    op: &str,
    reads: &[&Buffer],
    writes: &[&Buffer],
    f: impl FnOnce(&[&[f32]], Vec<&mut [f32]>) -> Result<T>,
) -> Result<T> {
    let mut blocks: Vec<Shared<'_>> = Vec::new();
    for (i, b) in reads.iter().chain(writes).enumerate() {
        let at = blocks.iter().position(|s| s.block.shares(b)).unwrap_or(blocks.len());
        if at == blocks.len() {
            blocks.push(Shared { block: b, reads: Vec::new(), writes: Vec::new() });
        }
        match i.checked_sub(reads.len()) {
            None => blocks[at].reads.push((b.range(), i)),
            Some(i) => blocks[at].writes.push((b.range(), i)),
        }
    }
    let (mut written, mut read) = (Vec::new(), Vec::new());
    for shared in &mut blocks {
        shared.writes.sort_by_key(|w| (w.0.start, w.0.end));
        match shared.writes.is_empty() {
            true => read.push(shared.block.read(op)?.guard),
            false => written.push(shared.block.write(op)?.guard),
        }
    }
    if reads.iter().chain(writes).any(|b| b.given_up()) {
        return Err(released(op));
    }
    let overlap = || Error::argument(op, "buffers", "what is written overlaps with what is read or written");
    let mut sources: Vec<&[f32]> = vec![&[]; reads.len()];
    let mut targets: Vec<(usize, &mut [f32])> = Vec::with_capacity(writes.len());
    let (mut read, mut written) = (read.iter(), written.iter_mut());
    for shared in &blocks {
        // What is not written, and where it begins.
        let mut gaps: Vec<(usize, &[f32])> = Vec::new();
        if shared.writes.is_empty() {
            if let Some(Some(Mem::Host(words))) = read.next().map(|guard| &**guard) {
                gaps.push((0, words));
            }
        } else if let Some(Some(Mem::Host(words))) = written.next().map(|guard| &mut **guard) {
            let (mut rest, mut begin) = (words.as_mut_slice(), 0);
            for (range, place) in &shared.writes {
                let gap = range.start.checked_sub(begin).ok_or_else(overlap)?;
                let (before, after) = rest.split_at_mut(gap);
                gaps.push((begin, before));
                let (target, after) = after.split_at_mut(range.len());
                targets.push((*place, target));
                (rest, begin) = (after, range.end);
            }
            gaps.push((begin, rest));
        }
        for (range, place) in shared.reads.iter().filter(|r| !r.0.is_empty()) {
            let holds = |g: &&(usize, &[f32])| g.0 <= range.start && range.end <= g.0 + g.1.len();
            let (begin, gap) = gaps.iter().find(holds).ok_or_else(overlap)?;
            sources[*place] = &gap[range.start - begin..range.end - begin];
        }
    }
    targets.sort_by_key(|t| t.0);
    f(&sources, targets.into_iter().map(|t| t.1).collect())
}
