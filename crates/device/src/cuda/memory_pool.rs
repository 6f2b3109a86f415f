//! The bookkeeping of the caching allocator for GPU memory: addresses in, addresses out, no driver.
//!
//! Memory comes from the driver in segments. A segment serves either small blocks (up to 1 MiB, steps of 512 B, carved
//! out of 2 MiB) or large ones (steps of 2 MiB), so that a small long-lived block never splits a large one. Allocation
//! takes the best fit among the free blocks and splits it if it is larger. A freed block is joined with free neighbours
//! in its segment. All work is ordered on one stream, so a block can be reused at once: its earlier users were
//! submitted earlier.

use std::collections::{BTreeMap, BTreeSet};

/// Step of small blocks; also the alignment of every block.
const SMALL_STEP: usize = 512;
/// Largest small block.
const SMALL_MAX: usize = 1 << 20;
/// Step of large blocks, and size of the segments that small ones are carved from.
const LARGE_STEP: usize = 2 << 20;

/// A piece of a segment.
#[derive(Clone, Copy)]
struct Block {
    size: usize,
    segment: u64,
    large: bool,
    free: bool,
}

/// Segments and the blocks they are cut into.
#[derive(Default)]
pub(super) struct MemoryPool {
    /// Every block by address. The blocks of a segment lie end to end.
    blocks: BTreeMap<u64, Block>,
    /// Every segment's size by address.
    segments: BTreeMap<u64, usize>,
    /// Free blocks by size and address: `[0]` in segments of small blocks, `[1]` of large ones.
    free: [BTreeSet<(usize, u64)>; 2],
    held: usize,
    live: usize,
}

/// Size of the block that serves `bytes`, and whether it is a large one. `None` if that overflows.
fn class(bytes: usize) -> Option<(usize, bool)> {
    if bytes <= SMALL_MAX {
        Some((bytes.max(1).next_multiple_of(SMALL_STEP), false))
    } else {
        Some((bytes.checked_next_multiple_of(LARGE_STEP)?, true))
    }
}

/// Size of the segment to ask the driver for when no free block serves `bytes`. `None` if that overflows.
pub(super) fn segment_bytes(bytes: usize) -> Option<usize> {
    class(bytes).map(|(size, large)| if large { size } else { LARGE_STEP })
}

impl MemoryPool {
    /// Takes a free block for `bytes`, if there is one.
    pub(super) fn take(&mut self, bytes: usize) -> Option<u64> {
        let (size, large) = class(bytes)?;
        let &(found, address) = self.free[usize::from(large)].range((size, 0)..).next()?;
        self.free[usize::from(large)].remove(&(found, address));
        let segment = self.blocks.get(&address)?.segment;
        self.blocks.insert(address, Block { size, segment, large, free: false });
        if found > size {
            self.insert_free(address + size as u64, Block { size: found - size, segment, large, free: true });
        }
        self.live += size;
        Some(address)
    }

    /// Adds the segment of [`segment_bytes`] that the driver gave at `address` for a request of `bytes`.
    pub(super) fn add(&mut self, address: u64, bytes: usize) {
        let Some(size) = segment_bytes(bytes) else { return };
        self.segments.insert(address, size);
        self.held += size;
        self.insert_free(address, Block { size, segment: address, large: bytes > SMALL_MAX, free: true });
    }

    /// Gives the block at `address` back. `false` if none is handed out there.
    pub(super) fn give(&mut self, address: u64) -> bool {
        let Some(mut block) = self.blocks.get(&address).copied().filter(|block| !block.free) else {
            return false;
        };
        self.live -= block.size;
        block.free = true;
        let joins = |other: &Block| other.free && other.segment == block.segment;
        let after = address + block.size as u64;
        let next = self.blocks.get(&after).copied().filter(joins);
        let previous = self.blocks.range(..address).next_back().map(|(&at, &other)| (at, other));
        let previous = previous.filter(|(_, other)| joins(other));
        if let Some(next) = next {
            self.remove_free(after, next);
            block.size += next.size;
        }
        self.blocks.remove(&address);
        let mut start = address;
        if let Some((before, previous)) = previous {
            self.remove_free(before, previous);
            (start, block.size) = (before, block.size + previous.size);
        }
        self.insert_free(start, block);
        true
    }

    /// Removes completely free segments, for the caller to return to the driver.
    pub(super) fn drain_free(&mut self) -> Vec<(u64, usize)> {
        let whole: Vec<(u64, usize)> = self
            .segments
            .iter()
            .filter(|&(address, &size)| self.blocks.get(address).is_some_and(|b| b.free && b.size == size))
            .map(|(&address, &size)| (address, size))
            .collect();
        for &(address, size) in &whole {
            if let Some(block) = self.blocks.get(&address).copied() {
                self.remove_free(address, block);
            }
            self.segments.remove(&address);
            self.held -= size;
        }
        whole
    }

    /// Removes all segments, even those with blocks in use.
    pub(super) fn drain_all(&mut self) -> Vec<u64> {
        let segments = std::mem::take(self).segments;
        segments.into_keys().collect()
    }

    /// Whether `bytes` bytes at `address` lie inside one block that is handed out.
    pub(super) fn contains(&self, address: u64, bytes: usize) -> bool {
        self.blocks.range(..=address).next_back().is_some_and(|(&start, block)| {
            let offset = (address - start) as usize;
            !block.free && offset <= block.size && bytes <= block.size - offset
        })
    }

    /// Bytes held from the driver.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Bytes handed out, in whole blocks.
    pub(super) fn live(&self) -> usize {
        self.live
    }

    fn insert_free(&mut self, address: u64, block: Block) {
        self.blocks.insert(address, block);
        self.free[usize::from(block.large)].insert((block.size, address));
    }

    fn remove_free(&mut self, address: u64, block: Block) {
        self.blocks.remove(&address);
        self.free[usize::from(block.large)].remove(&(block.size, address));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small deterministic generator.
    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: usize) -> usize {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((self.0 >> 33) as usize) % bound
        }
    }

    /// Every invariant of the structure, the slow way.
    fn check(pool: &MemoryPool) {
        let mut free = [BTreeSet::new(), BTreeSet::new()];
        let (mut live, mut held) = (0, 0);
        for (&segment, &size) in &pool.segments {
            held += size;
            let end = segment + size as u64;
            let (mut at, mut after_free) = (segment, false);
            while at < end {
                let block = pool.blocks[&at];
                assert_eq!(block.segment, segment);
                assert_eq!(block.size % SMALL_STEP, 0);
                assert!(!(after_free && block.free), "free neighbours were not joined");
                after_free = block.free;
                if block.free {
                    free[usize::from(block.large)].insert((block.size, at));
                } else {
                    live += block.size;
                }
                at += block.size as u64;
            }
            assert_eq!(at, end, "blocks cover their segment");
        }
        assert_eq!(free, pool.free);
        assert_eq!((live, held), (pool.live, pool.held));
        let total: usize = pool.blocks.values().map(|block| block.size).sum();
        assert_eq!(total, held);
    }

    #[test]
    fn random_sequences_against_a_model() {
        for seed in 0..20 {
            let mut random = Random(seed);
            let mut pool = MemoryPool::default();
            let mut next = 0x7000_0000_0000u64;
            let mut model: Vec<(u64, usize)> = Vec::new();
            for step in 0..600 {
                match random.below(20) {
                    0 => {
                        let before = pool.held();
                        let freed: usize = pool.drain_free().iter().map(|&(_, size)| size).sum();
                        assert_eq!(pool.held(), before - freed);
                    }
                    1..=11 => {
                        let bytes = 1 + match random.below(4) {
                            0 => random.below(2000),
                            1 => random.below(SMALL_MAX + 2),
                            2 => random.below(8 * LARGE_STEP),
                            _ => [511, 512, SMALL_MAX - 1, SMALL_MAX, LARGE_STEP - 1, LARGE_STEP]
                                [random.below(6)],
                        };
                        let address = pool.take(bytes).unwrap_or_else(|| {
                            // Segments lie end to end, so joining across them would show.
                            pool.add(next, bytes);
                            next += segment_bytes(bytes).expect("small") as u64;
                            pool.take(bytes).expect("a fresh segment serves it")
                        });
                        assert_eq!(address % 512, 0);
                        assert!(pool.contains(address, bytes));
                        for &(other, size) in &model {
                            let apart = address + bytes as u64 <= other || other + size as u64 <= address;
                            assert!(apart, "seed {seed} step {step}: overlap");
                        }
                        model.push((address, bytes));
                    }
                    _ if !model.is_empty() => {
                        let (address, bytes) = model.swap_remove(random.below(model.len()));
                        assert!(pool.give(address));
                        assert!(!pool.give(address), "given back twice");
                        assert!(!pool.contains(address, bytes));
                    }
                    _ => {}
                }
                check(&pool);
                let rounded: usize = model.iter().map(|&(_, bytes)| class(bytes).expect("small").0).sum();
                assert_eq!(rounded, pool.live());
            }
            for (address, _) in model {
                assert!(pool.give(address));
            }
            check(&pool);
            assert_eq!(pool.live(), 0);
            pool.drain_free();
            assert_eq!(pool.held(), 0, "joining gives whole segments back");
            assert!(pool.blocks.is_empty() && pool.segments.is_empty());
        }
    }

    #[test]
    fn the_best_fit_is_reused() {
        let mut pool = MemoryPool::default();
        let base = 1 << 40;
        pool.add(base, 8 * LARGE_STEP);
        let a = pool.take(4 * LARGE_STEP).expect("fits");
        let b = pool.take(LARGE_STEP).expect("fits");
        let c = pool.take(LARGE_STEP).expect("fits");
        assert_eq!((a, b), (base, base + 4 * LARGE_STEP as u64));
        pool.give(a);
        pool.give(b);
        // a and b have joined to 5 steps; the rest of the segment is 2 steps, the better fit for 2.
        assert_eq!(pool.take(2 * LARGE_STEP), Some(c + LARGE_STEP as u64));
        assert_eq!(pool.take(5 * LARGE_STEP), Some(base));
        assert_eq!(pool.take(LARGE_STEP), None);
        // Small requests do not touch large segments.
        pool.give(base);
        assert_eq!(pool.take(512), None);
    }

    #[test]
    fn sizes_that_overflow_are_refused() {
        assert_eq!(segment_bytes(usize::MAX), None);
        assert_eq!(MemoryPool::default().take(usize::MAX), None);
    }
}
