//! The memory plan: every computed value and workspace gets a place in one block, by lifetimes.

/// Words between places: 256 bytes, so that vector loads and the GPU see aligned addresses.
const ALIGN: usize = 64;

/// Hands out places in a block that grows as needed; places are taken back when their value is dead.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    /// Free ranges, in order, none touching another.
    free: Vec<(usize, usize)>,
    size: usize,
}

impl Arena {
    /// Words the block needs.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// A place of `words` words: the smallest free range it fits into, or new room at the end.
    pub(crate) fn take(&mut self, words: usize) -> usize {
        let need = words.div_ceil(ALIGN) * ALIGN;
        if need == 0 {
            return 0;
        }
        let best =
            self.free.iter().enumerate().filter(|(_, r)| r.1 - r.0 >= need).min_by_key(|(_, r)| r.1 - r.0);
        if let Some((i, &(start, end))) = best {
            if end - start == need {
                self.free.remove(i);
            } else {
                self.free[i].0 += need;
            }
            return start;
        }
        // A free range that ends at the end of the block is only lengthened.
        let start = match self.free.last().copied() {
            Some((start, end)) if end == self.size => {
                self.free.pop();
                start
            }
            _ => self.size,
        };
        self.size = start + need;
        start
    }

    /// Takes a place back.
    pub(crate) fn give(&mut self, start: usize, words: usize) {
        let need = words.div_ceil(ALIGN) * ALIGN;
        if need == 0 {
            return;
        }
        let at = self.free.partition_point(|r| r.0 < start);
        self.free.insert(at, (start, start + need));
        if at + 1 < self.free.len() && self.free[at].1 == self.free[at + 1].0 {
            self.free[at].1 = self.free[at + 1].1;
            self.free.remove(at + 1);
        }
        if at > 0 && self.free[at - 1].1 == self.free[at].0 {
            self.free[at - 1].1 = self.free[at].1;
            self.free.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numerics::rng::Stream;

    #[test]
    fn places_never_overlap_and_everything_comes_back() {
        let mut s = Stream::new(1, 1);
        let mut arena = Arena::default();
        let mut live: Vec<(usize, usize)> = Vec::new();
        for _ in 0..5000 {
            if live.len() < 20 && s.below(3) > 0 {
                let words = s.below(1000);
                let at = arena.take(words);
                assert_eq!(at % ALIGN, 0);
                assert!(at + words <= arena.size());
                for &(a, n) in &live {
                    assert!(words == 0 || n == 0 || at + words <= a || a + n <= at);
                }
                live.push((at, words));
            } else if !live.is_empty() {
                let (at, words) = live.swap_remove(s.below(live.len()));
                arena.give(at, words);
            }
        }
        for (at, words) in live {
            arena.give(at, words);
        }
        assert_eq!(arena.free, [(0, arena.size)]);
    }
}
