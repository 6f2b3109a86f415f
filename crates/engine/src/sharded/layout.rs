//! Where gradients lie while they are exchanged, and who owns which part of the parameters.
//!
//! Gradients lie in buckets. A bucket is rows of [`ROW`] words; each gradient begins with a row and is filled up with zeros. Buckets are in the
//! reverse order of the parameters, which is about the order in which a backward pass computes gradients, so that a bucket can
//! be sent while the next one is computed. Each rank owns as many rows of each bucket, and the parts of the parameters that lie there.

use dittograd_numerics::sum::CHUNK;
use std::ops::Range;

/// Words of a row: a chunk of the row rule, so that a row's sum of squares is one term of the norm of a gradient.
pub(crate) const ROW: usize = CHUNK;

/// Most buckets, and fewest rows of one.
const BUCKETS: usize = 8;
const LEAST_ROWS: usize = 1024;

/// Buckets and their owners.
#[derive(Debug, PartialEq)]
pub(crate) struct Layout {
    pub buckets: Vec<Bucket>,
}

/// Gradients that are exchanged together.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Bucket {
    pub places: Vec<Place>,
    pub rows: usize,
    /// For each rank the first row of its part, and at the end the number of rows.
    pub cuts: Vec<usize>,
}

/// Where the gradient of a parameter lies.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Place {
    /// Which parameter.
    pub param: usize,
    pub numel: usize,
    /// Its first row.
    pub row: usize,
}

/// The part of a parameter that a rank owns.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Piece {
    /// Which parameter.
    pub param: usize,
    /// Elements of it.
    pub range: Range<usize>,
    /// Where they begin among the words that the rank owns of the bucket.
    pub start: usize,
}

impl Layout {
    /// The layout of gradients of so many elements, for so many ranks. Those that are `whole` have one owner each.
    pub(crate) fn new(params: &[(usize, bool)], ranks: usize) -> Layout {
        let rows = |numel: usize| numel.div_ceil(ROW);
        let total: usize = params.iter().map(|p| rows(p.0)).sum();
        // Alone there is nobody to send to meanwhile.
        let most = if ranks == 1 { usize::MAX } else { total.div_ceil(BUCKETS).max(LEAST_ROWS) };
        let mut buckets = vec![Bucket::default()];
        for (param, &(numel, _)) in params.iter().enumerate().rev() {
            if buckets.last().is_some_and(|b| b.rows >= most) {
                buckets.push(Bucket::default());
            }
            if let Some(b) = buckets.last_mut() {
                b.places.push(Place { param, numel, row: b.rows });
                b.rows += rows(numel);
            }
        }
        for b in &mut buckets {
            b.cuts = (0..=ranks).map(|rank| b.cut(b.rows * rank / ranks, params)).collect();
        }
        Layout { buckets }
    }
}

impl Bucket {
    pub(crate) fn words(&self) -> usize {
        self.rows * ROW
    }

    /// The first row from `row` on where the bucket may be cut.
    fn cut(&self, row: usize, params: &[(usize, bool)]) -> usize {
        match self.places.iter().rev().find(|p| p.row < row) {
            Some(p) if params[p.param].1 => (p.row + p.numel.div_ceil(ROW)).max(row),
            _ => row,
        }
    }

    /// The words that a rank owns.
    pub(crate) fn part(&self, rank: usize) -> Range<usize> {
        self.cuts[rank] * ROW..self.cuts[rank + 1] * ROW
    }

    /// The parts of parameters that a rank owns, in their order in the bucket.
    pub(crate) fn pieces(&self, rank: usize) -> Vec<Piece> {
        let part = self.part(rank);
        let piece = |p: &Place| {
            let begin = p.row * ROW;
            let range = part.start.max(begin)..part.end.min(begin + p.numel);
            (range.start < range.end).then(|| Piece {
                param: p.param,
                range: range.start - begin..range.end - begin,
                start: range.start - part.start,
            })
        };
        self.places.iter().filter_map(piece).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dittograd_numerics::rng::Stream;

    #[test]
    fn every_element_has_one_owner() {
        let mut s = Stream::new(27, 0);
        for round in 0..300 {
            let params: Vec<(usize, bool)> =
                (0..s.below(20)).map(|_| (s.below([3, 1025, 300_000][round % 3]), s.below(4) == 0)).collect();
            let ranks = 1 + s.below(9);
            let layout = Layout::new(&params, ranks);
            assert!(layout.buckets.len() <= BUCKETS + 1 && (ranks > 1 || layout.buckets.len() == 1));
            let mut owned: Vec<Vec<(Range<usize>, usize)>> = vec![Vec::new(); params.len()];
            for b in &layout.buckets {
                assert!(b.cuts.is_sorted() && b.cuts[0] == 0 && b.cuts[ranks] == b.rows);
                for rank in 0..ranks {
                    for p in b.pieces(rank) {
                        assert!(p.start + p.range.len() <= b.part(rank).len());
                        assert_eq!(p.range.start % ROW, 0);
                        owned[p.param].push((p.range, rank));
                    }
                }
            }
            for (i, (numel, whole)) in params.iter().enumerate() {
                let mut end = 0;
                for (range, _) in &owned[i] {
                    assert_eq!(range.start, end);
                    end = range.end;
                }
                assert_eq!(end, *numel);
                assert!(!whole || owned[i].len() <= 1, "{:?}", owned[i]);
            }
        }
    }

    #[test]
    fn parts_are_even() {
        let layout = Layout::new(&[(50304 * 768, false), (768 * 3072, false), (768, false)], 7);
        for rank in 0..7 {
            let words: usize = layout.buckets.iter().map(|b| b.part(rank).len()).sum();
            let all: usize = layout.buckets.iter().map(Bucket::words).sum();
            assert!(words.abs_diff(all / 7) <= ROW * layout.buckets.len(), "{words} of {all}");
        }
    }
}
