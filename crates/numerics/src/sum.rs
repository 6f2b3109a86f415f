//! The sum trees of the numerics contract. Both are fixed by the length alone, so any number of threads or warps that
//! respects the tree gets the same bits.
//!
//! *Row rule*, for contiguous elements: chunks of [`CHUNK`]; inside a chunk [`LANES`] interleaved
//! lanes, each a chain from +0, folded by halving; the chunk results are summed by the same rule.
//! *Column rule*, for elements a row apart: chains from +0 over [`ROWS`] rows, whose results are summed
//! by the same rule. A partial sum is never -0, so passing it through a further level changes nothing.
//! Products follow the same trees, with chains from 1.

use std::marker::PhantomData;

/// Lanes of the row rule: a warp, two AVX-512 registers, or four AVX2 registers.
pub const LANES: usize = 32;
/// Elements in a chunk of the row rule.
pub const CHUNK: usize = 1024;
/// Rows in a chain of the column rule.
pub const ROWS: usize = 32;

/// Levels that suffice for any addressable length (1024^7 and 32^13 elements).
const ROW_LEVELS: usize = 7;
const COLUMN_LEVELS: usize = 13;

/// What a tree does with two numbers, and what its chains start from.
#[doc(hidden)]
pub trait Combine {
    /// What combining begins with.
    const START: f32;
    /// One number of two.
    fn combine(a: f32, b: f32) -> f32;
}

/// Sums.
#[doc(hidden)]
pub struct Add;
/// Products.
#[doc(hidden)]
pub struct Multiply;

impl Combine for Add {
    const START: f32 = 0.0;
    #[inline(always)]
    fn combine(a: f32, b: f32) -> f32 {
        a + b
    }
}

impl Combine for Multiply {
    const START: f32 = 1.0;
    #[inline(always)]
    fn combine(a: f32, b: f32) -> f32 {
        a * b
    }
}

/// Folds the lanes by halving.
#[doc(hidden)]
#[inline(always)]
pub fn fold<C: Combine>(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = C::combine(lanes[i], lanes[i + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// The `i`-th elements of slices. This and [`part`] are loops and not `std::array::from_fn`, which is not always inlined: as a
/// call in the innermost loop of a kernel it made softmax 37 times slower.
#[doc(hidden)]
#[inline(always)]
pub fn elements<const N: usize>(x: &[&[f32]; N], i: usize) -> [f32; N] {
    let mut all = [0.0; N];
    for n in 0..N {
        all[n] = x[n][i];
    }
    all
}

/// The same part of slices.
#[doc(hidden)]
#[inline(always)]
pub fn part<'a, const N: usize>(x: &[&'a [f32]; N], at: usize, len: usize) -> [&'a [f32]; N] {
    let mut all = *x;
    for n in 0..N {
        all[n] = &x[n][at..at + len];
    }
    all
}

/// Sum of at most [`CHUNK`] elements: one chunk of the row rule. Element `i` is `f` of the `i`-th elements of
/// the slices, which are of one length.
#[inline(always)]
pub fn chunk<const N: usize>(x: [&[f32]; N], f: impl Fn([f32; N]) -> f32) -> f32 {
    chunk_of::<Add, N>(x, f)
}

/// As [`chunk`], of sums or products.
#[doc(hidden)]
#[inline(always)]
pub fn chunk_of<C: Combine, const N: usize>(x: [&[f32]; N], f: impl Fn([f32; N]) -> f32) -> f32 {
    let mut lanes = [C::START; LANES];
    let len = x[0].len();
    let whole = len / LANES * LANES;
    let mut base = 0;
    while base < whole {
        // Slices of known length, so that the loop over the lanes is a few vector additions.
        let rows = part(&x, base, LANES);
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum = C::combine(*sum, f(elements(&rows, lane)));
        }
        base += LANES;
    }
    for i in whole..len {
        lanes[i - whole] = C::combine(lanes[i - whole], f(elements(&x, i)));
    }
    fold::<C>(lanes)
}

/// Sums chunk results as they come, by the same rule, without storing them.
#[doc(hidden)]
pub type Tree = TreeOf<Add>;

/// The same of sums or products.
#[doc(hidden)]
pub struct TreeOf<C: Combine> {
    lanes: [[f32; LANES]; ROW_LEVELS],
    count: [usize; ROW_LEVELS],
    how: PhantomData<C>,
}

impl<C: Combine> Default for TreeOf<C> {
    fn default() -> TreeOf<C> {
        TreeOf::new()
    }
}

impl<C: Combine> TreeOf<C> {
    /// No numbers yet.
    pub fn new() -> TreeOf<C> {
        TreeOf { lanes: [[C::START; LANES]; ROW_LEVELS], count: [0; ROW_LEVELS], how: PhantomData }
    }

    /// The next number.
    pub fn push(&mut self, mut x: f32) {
        for level in 0..ROW_LEVELS {
            let lane = &mut self.lanes[level][self.count[level] % LANES];
            *lane = C::combine(*lane, x);
            self.count[level] += 1;
            if self.count[level] < CHUNK {
                return;
            }
            x = fold::<C>(self.lanes[level]);
            self.lanes[level] = [C::START; LANES];
            self.count[level] = 0;
        }
    }

    /// All of them combined.
    pub fn finish(mut self) -> f32 {
        for level in 0..ROW_LEVELS - 1 {
            let higher = self.count[level + 1..].iter().any(|&c| c > 0);
            if !higher {
                return fold::<C>(self.lanes[level]);
            }
            if self.count[level] > 0 {
                let x = fold::<C>(self.lanes[level]);
                let lane = &mut self.lanes[level + 1][self.count[level + 1] % LANES];
                *lane = C::combine(*lane, x);
                self.count[level + 1] += 1;
            }
        }
        fold::<C>(self.lanes[ROW_LEVELS - 1])
    }
}

/// Sum of `len` elements by the row rule, given the sums of chunks of them. Zero elements give +0.
pub fn row(len: usize, chunk: impl Fn(std::ops::Range<usize>) -> f32) -> f32 {
    if len <= CHUNK {
        return chunk(0..len);
    }
    let mut tree = Tree::new();
    for start in (0..len).step_by(CHUNK) {
        tree.push(chunk(start..len.min(start + CHUNK)));
    }
    tree.finish()
}

/// Columns that [`columns`] sums side by side.
pub const WIDTH: usize = 64;

/// Sums of up to [`WIDTH`] neighbouring columns by the column rule, row after row.
#[doc(hidden)]
pub type Columns = ColumnsOf<Add>;

/// The same of sums or products.
#[doc(hidden)]
pub struct ColumnsOf<C: Combine> {
    sums: [[f32; WIDTH]; COLUMN_LEVELS],
    count: [usize; COLUMN_LEVELS],
    how: PhantomData<C>,
}

impl<C: Combine> Default for ColumnsOf<C> {
    fn default() -> ColumnsOf<C> {
        ColumnsOf::new()
    }
}

impl<C: Combine> ColumnsOf<C> {
    /// No rows yet.
    #[inline(always)]
    pub fn new() -> ColumnsOf<C> {
        ColumnsOf { sums: [[C::START; WIDTH]; COLUMN_LEVELS], count: [0; COLUMN_LEVELS], how: PhantomData }
    }

    /// Adds a row of at most [`WIDTH`] elements; all rows have the same number.
    #[inline(always)]
    pub fn push(&mut self, row: &[f32]) {
        if row.len() == WIDTH {
            for (s, v) in self.sums[0].iter_mut().zip(&row[..WIDTH]) {
                *s = C::combine(*s, *v);
            }
        } else {
            for (s, v) in self.sums[0].iter_mut().zip(row) {
                *s = C::combine(*s, *v);
            }
        }
        self.count[0] += 1;
        let mut level = 0;
        while self.count[level] == ROWS && level + 1 < COLUMN_LEVELS {
            self.carry(level);
            level += 1;
        }
    }

    /// Adds the sums of `level` to the next level and empties it.
    #[inline(always)]
    fn carry(&mut self, level: usize) {
        let (lower, upper) = self.sums.split_at_mut(level + 1);
        for (from, to) in lower[level].iter_mut().zip(&mut upper[0]) {
            *to = C::combine(*to, std::mem::replace(from, C::START));
        }
        self.count[level] = 0;
        self.count[level + 1] += 1;
    }

    /// The sums; zero rows give +0.
    #[inline(always)]
    pub fn finish(&mut self, out: &mut [f32]) {
        for level in 0..COLUMN_LEVELS - 1 {
            if self.count[level] > 0 && self.count[level + 1..].iter().any(|&c| c > 0) {
                self.carry(level);
            }
        }
        let top = self.count.iter().rposition(|&c| c > 0).unwrap_or(0);
        let width = out.len().min(WIDTH);
        out[..width].copy_from_slice(&self.sums[top][..width]);
    }
}

/// Sum over `rows` rows for each of `out.len() <= WIDTH` neighbouring columns by the column rule; the
/// element at `(r, j)` is `x[r * stride + j]`.
#[inline(always)]
pub fn columns(x: &[f32], rows: usize, stride: usize, out: &mut [f32]) {
    let width = out.len().min(WIDTH);
    let mut sums = Columns::new();
    for r in 0..rows {
        sums.push(&x[r * stride..r * stride + width]);
    }
    sums.finish(out);
}

/// Sums numbers as they come by the column rule.
#[doc(hidden)]
#[derive(Default)]
pub struct Chains {
    sums: [f32; COLUMN_LEVELS],
    count: [usize; COLUMN_LEVELS],
}

impl Chains {
    /// The next number.
    pub fn push(&mut self, x: f32) {
        self.sums[0] += x;
        self.count[0] += 1;
        let mut level = 0;
        while self.count[level] == ROWS && level + 1 < COLUMN_LEVELS {
            self.carry(level);
            level += 1;
        }
    }

    fn carry(&mut self, level: usize) {
        self.sums[level + 1] += std::mem::take(&mut self.sums[level]);
        self.count[level] = 0;
        self.count[level + 1] += 1;
    }

    /// All of them combined.
    pub fn finish(mut self) -> f32 {
        for level in 0..COLUMN_LEVELS - 1 {
            if self.count[level] > 0 && self.count[level + 1..].iter().any(|&c| c > 0) {
                self.carry(level);
            }
        }
        self.sums[self.count.iter().rposition(|&c| c > 0).unwrap_or(0)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The row rule, word for word.
    fn row_literal<C: Combine>(x: &[f32]) -> f32 {
        if x.len() > CHUNK {
            let partial: Vec<f32> = x.chunks(CHUNK).map(row_literal::<C>).collect();
            return row_literal::<C>(&partial);
        }
        let mut lanes = [C::START; LANES];
        for (i, v) in x.iter().enumerate() {
            lanes[i % LANES] = C::combine(lanes[i % LANES], *v);
        }
        fold::<C>(lanes)
    }

    fn column_literal<C: Combine>(x: &[f32]) -> f32 {
        if x.len() > ROWS {
            let partial: Vec<f32> = x.chunks(ROWS).map(column_literal::<C>).collect();
            return column_literal::<C>(&partial);
        }
        x.iter().fold(C::START, |s, v| C::combine(s, *v))
    }

    fn data(n: usize) -> Vec<f32> {
        let mut s = crate::rng::Stream::new(3, n as u64);
        (0..n).map(|_| s.range(-1.0, 1.0) * 2f32.powi(s.below(20) as i32)).collect()
    }

    #[test]
    fn row_follows_the_rule() {
        for n in [
            0,
            1,
            2,
            31,
            32,
            33,
            63,
            1000,
            1023,
            1024,
            1025,
            2047,
            2048,
            2049,
            5000,
            1 << 20,
            (1 << 20) + 1,
            (1 << 20) + 1025,
        ] {
            let x = data(n);
            let got = row(n, |r| chunk([&x[r]], |[x]| x));
            assert_eq!(got.to_bits(), row_literal::<Add>(&x).to_bits(), "n = {n}");
            let near_one: Vec<f32> = x.iter().map(|x| 1.0 + x * 2f32.powi(-30)).collect();
            let mut tree = TreeOf::<Multiply>::new();
            near_one.chunks(CHUNK).for_each(|x| tree.push(chunk_of::<Multiply, 1>([x], |[x]| x)));
            assert_eq!(tree.finish().to_bits(), row_literal::<Multiply>(&near_one).to_bits(), "n = {n}");
        }
        assert_eq!(chunk([&[-0.0; 3]], |[x]| x).to_bits(), 0);
    }

    #[test]
    fn columns_follow_the_rule() {
        for rows in [0, 1, 31, 32, 33, 1023, 1024, 1025, 2000, 33000] {
            for width in [1, 5, WIDTH] {
                let stride = width + 3;
                let x = data(rows * stride);
                let mut out = vec![f32::NAN; width];
                columns(&x, rows, stride, &mut out);
                for (j, got) in out.iter().enumerate() {
                    let column: Vec<f32> = (0..rows).map(|r| x[r * stride + j]).collect();
                    let mut chains = Chains::default();
                    column.iter().for_each(|&v| chains.push(v));
                    assert_eq!(chains.finish().to_bits(), got.to_bits(), "rows {rows} column {j}");
                    assert_eq!(
                        got.to_bits(),
                        column_literal::<Add>(&column).to_bits(),
                        "rows {rows} column {j}"
                    );
                }
            }
        }
    }
}
