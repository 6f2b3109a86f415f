//! The tree that the values of shards are added in. It depends on the number of shards alone: its left half is over the first
//! `2^k` of them, the largest power of two below their number, its right half over the rest, and both are cut in the same way.

use dittograd_numerics::error::Result;
use std::ops::Range;

/// Shards in the left half of a tree over `shards`, which are more than one.
fn left(shards: usize) -> usize {
    1 << (shards - 1).ilog2()
}

/// The halves of a subtree over more than one shard.
pub(crate) fn halves(all: Range<usize>) -> (Range<usize>, Range<usize>) {
    let middle = all.start + left(all.len());
    (all.start..middle, middle..all.end)
}

/// The largest subtrees, from left to right, that lie in `part` of the tree over `whole`.
pub(crate) fn subtrees(whole: Range<usize>, part: &Range<usize>) -> Vec<Range<usize>> {
    if whole.is_empty() || part.end <= whole.start || whole.end <= part.start {
        return Vec::new();
    }
    if part.start <= whole.start && whole.end <= part.end {
        return vec![whole];
    }
    let (left, right) = halves(whole);
    [subtrees(left, part), subtrees(right, part)].concat()
}

/// Whether two ranges are the halves of a subtree of the tree over `whole`.
fn are_halves(whole: Range<usize>, a: &Range<usize>, b: &Range<usize>) -> bool {
    let both = a.start..b.end;
    let is_subtree = subtrees(whole, &both) == [both.clone()];
    a.end == b.start && is_subtree && a.len() == left(both.len())
}

/// The shards of a rank: as even as they can be, in order.
pub(crate) fn shards_of(rank: usize, ranks: usize, shards: usize) -> Range<usize> {
    rank * shards / ranks..(rank + 1) * shards / ranks
}

/// Adds values of shards in the order of the tree as they come, from left to right.
#[derive(Debug)]
pub(crate) struct Sums<T> {
    /// The tree, or the subtree of it that is added up.
    whole: Range<usize>,
    /// Subtrees that are not halves of the same one yet.
    parts: Vec<(Range<usize>, T)>,
}

impl<T> Sums<T> {
    pub(crate) fn new(shards: usize) -> Sums<T> {
        Sums::over(0..shards)
    }

    /// Sums over a subtree.
    pub(crate) fn over(whole: Range<usize>) -> Sums<T> {
        Sums { whole, parts: Vec::new() }
    }

    /// Takes the sum over the next subtree in.
    pub(crate) fn push(
        &mut self,
        range: Range<usize>,
        value: T,
        mut add: impl FnMut(&T, &T) -> Result<T>,
    ) -> Result<()> {
        let (mut range, mut value) = (range, value);
        while let Some((before, sum)) = self.parts.last()
            && are_halves(self.whole.clone(), before, &range)
        {
            (range, value) = (before.start..range.end, add(sum, &value)?);
            self.parts.pop();
        }
        self.parts.push((range, value));
        Ok(())
    }

    /// Replaces the value of a single shard, which can only be the last sum, by a copy.
    pub(crate) fn keep_single(&mut self, copy: impl FnOnce(&T) -> Result<T>) -> Result<()> {
        if let Some((_, value)) = self.parts.last_mut().filter(|p| p.0.len() == 1) {
            *value = copy(value)?;
        }
        Ok(())
    }

    /// The sums over subtrees as they are now, from left to right.
    pub(crate) fn parts(&self) -> &[(Range<usize>, T)] {
        &self.parts
    }

    /// The sums over subtrees as they are now, from left to right; none are left.
    pub(crate) fn take(&mut self) -> Vec<(Range<usize>, T)> {
        std::mem::take(&mut self.parts)
    }
}

/// The sum of one number for each shard.
pub(crate) fn sum(values: &[f32]) -> Result<f32> {
    let mut sums = Sums::new(values.len());
    for (i, v) in values.iter().enumerate() {
        sums.push(i..i + 1, *v, |a, b| Ok(a + b))?;
    }
    Ok(sums.take().first().map_or(0.0, |s| s.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tree as it is defined, as a text.
    fn defined(range: Range<usize>) -> String {
        if range.len() == 1 {
            return range.start.to_string();
        }
        let middle = range.start + left(range.len());
        format!("({}+{})", defined(range.start..middle), defined(middle..range.end))
    }

    #[test]
    fn any_cut_among_ranks_gives_one_tree() {
        assert_eq!(defined(0..6), "(((0+1)+(2+3))+(4+5))");
        let text = |a: &String, b: &String| Ok(format!("({a}+{b})"));
        for shards in 1..40 {
            for ranks in 1..=shards {
                let mut whole = Sums::new(shards);
                let mut end = 0;
                for rank in 0..ranks {
                    let mine = shards_of(rank, ranks, shards);
                    assert!(mine.start == end && !mine.is_empty());
                    end = mine.end;
                    let mut sums = Sums::new(shards);
                    for shard in mine.clone() {
                        sums.push(shard..shard + 1, shard.to_string(), text).unwrap();
                    }
                    let parts = sums.take();
                    let ranges: Vec<Range<usize>> = parts.iter().map(|p| p.0.clone()).collect();
                    assert_eq!(ranges, subtrees(0..shards, &mine));
                    assert!(ranges.len() <= 2 * shards.ilog2() as usize + 1);
                    parts.into_iter().for_each(|(range, t)| whole.push(range, t, text).unwrap());
                }
                assert_eq!(end, shards);
                assert_eq!(whole.take(), [(0..shards, defined(0..shards))], "{shards} shards, {ranks} ranks");
            }
        }
    }

    #[test]
    fn equal_parts_of_a_power_of_two_are_one_sum_each() {
        for (shards, ranks) in [(8, 1), (8, 2), (8, 4), (8, 8), (64, 16)] {
            for rank in 0..ranks {
                assert_eq!(subtrees(0..shards, &shards_of(rank, ranks, shards)).len(), 1);
            }
        }
    }
}
