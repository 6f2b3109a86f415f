//! The CPU kernels of rows and columns.

use super::{Formula, Given, Row, results};
use crate::pointwise::expression::Scratch;
use dittograd_device::cpu::simd::simd_fn;
use dittograd_numerics::sum;
use dittograd_numerics::sum::{CHUNK, LANES, Tree, elements, part};
use std::array::from_fn;

/// The larger of two; a NaN loses: every row op whose maximum this is gives NaN by its sum.
#[inline(always)]
pub(super) fn larger(x: f32, m: f32) -> f32 {
    if x > m { x } else { m }
}

/// The largest of the lanes, never -0. Which of several equal maxima is met first cannot matter once -0 is made +0.
#[inline(always)]
pub(super) fn fold_max(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = larger(lanes[i + half], lanes[i]);
        }
        half /= 2;
    }
    lanes[0] + 0.0
}

/// `n` elements of slices, filled up with zeros to one per lane.
#[inline(always)]
pub(super) fn padded<const N: usize>(x: &[&[f32]; N], at: usize, n: usize) -> [[f32; LANES]; N] {
    let mut all = [[0.0; LANES]; N];
    for i in 0..N {
        all[i][..n].copy_from_slice(&x[i][at..at + n]);
    }
    all
}

/// Whether the slices go on for a whole vector of lanes.
#[inline(always)]
pub(super) fn reach<const N: usize>(x: &[&[f32]; N], at: usize) -> bool {
    x.iter().all(|x| x.len() >= at + LANES)
}

/// A mask of the first `n` lanes is `ONLY[LANES - n..]`: all ones there, zeros after them.
pub(super) const ONLY: [u32; 2 * LANES] = {
    let mut only = [0; 2 * LANES];
    let mut i = 0;
    while i < LANES {
        only[i] = u32::MAX;
        i += 1;
    }
    only
};

/// Running sums of a row and maxima of the next one, per lane.
pub(super) struct Lanes {
    pub(super) sums: [f32; LANES],
    pub(super) maxima: [f32; LANES],
}

impl Lanes {
    /// Adds an element per lane, or only the first `n` in a tail: the term of the row's, which is stored in `t`, and the score of
    /// the next row's at the same position.
    #[inline(always)]
    pub(super) fn add<const N: usize, const TAIL: bool, F: Formula<N>>(
        &mut self,
        f: F,
        m: f32,
        [x, next]: [[&[f32]; N]; 2],
        t: &mut [f32],
        n: usize,
    ) {
        // Slices of known length, so that the loop is vectorized.
        let (x, next) = (part(&x, 0, LANES), part(&next, 0, LANES));
        let only = &ONLY[LANES - n..][..LANES];
        let t = if F::STORES_TERMS { &mut t[..LANES] } else { t };
        for lane in 0..LANES {
            let mut term = f.term(elements(&x, lane), m);
            let mut score = f.score(elements(&next, lane));
            if F::STORES_TERMS {
                t[lane] = term;
            }
            if TAIL {
                // A sum is never -0, so another +0 changes nothing.
                term = f32::from_bits(term.to_bits() & only[lane]);
                let none = f32::NEG_INFINITY.to_bits() & !only[lane];
                score = f32::from_bits(score.to_bits() & only[lane] | none);
            }
            self.sums[lane] += term;
            if F::MAX {
                self.maxima[lane] = larger(score, self.maxima[lane]);
            }
        }
    }
}

/// Adds the elements of a row to the maxima of its lanes.
#[inline(always)]
pub(super) fn add_to_maxima<const N: usize, F: Formula<N>>(
    f: F,
    x: [&[f32]; N],
    columns: usize,
    maxima: &mut [f32; LANES],
) {
    let mut at = 0;
    while at < columns {
        let n = LANES.min(columns - at);
        let x = part(&x, at, n);
        for (lane, max) in maxima.iter_mut().enumerate().take(n) {
            *max = larger(f.score(elements(&x, lane)), *max);
        }
        at += n;
    }
}

/// The sum of the terms of at most a chunk, `len` elements from `at` on; the next row's elements at the same positions are added
/// to `maxima`. Where slices go on after the row, a tail reads and stores a whole vector: it costs one vector, not a scalar
/// evaluation per element.
#[inline(always)]
pub(super) fn chunk_terms<const N: usize, F: Formula<N>>(
    f: F,
    m: f32,
    rows: [[&[f32]; N]; 2],
    t: &mut [f32],
    (at, len): (usize, usize),
    maxima: &mut [f32; LANES],
) -> f32 {
    let [x, next] = &rows;
    let whole = at + len / LANES * LANES;
    let mut lanes = Lanes { sums: [0.0; LANES], maxima: *maxima };
    let mut i = at;
    while i < whole {
        let t = if F::STORES_TERMS { &mut t[i..i + LANES] } else { &mut *t };
        lanes.add::<N, false, F>(f, m, [part(x, i, LANES), part(next, i, LANES)], t, LANES);
        i += LANES;
    }
    let n = at + len - whole;
    if n > 0 {
        let direct = reach(x, i) && reach(next, i) && (!F::STORES_TERMS || t.len() >= i + LANES);
        let (buffer, rows);
        if direct {
            rows = [part(x, i, LANES), part(next, i, LANES)];
        } else {
            buffer = [padded(x, i, n), padded(next, i, n)];
            rows = [0, 1].map(|row: usize| from_fn(|k| &buffer[row][k][..]));
        }
        let mut terms = [0.0; LANES];
        let t = if F::STORES_TERMS { &mut t[i..] } else { t };
        let to = if direct { &mut *t } else { &mut terms[..] };
        lanes.add::<N, true, F>(f, m, rows, to, n);
        if F::STORES_TERMS && !direct {
            t[..n].copy_from_slice(&terms[..n]);
        }
    }
    *maxima = lanes.maxima;
    sum::fold::<sum::Add>(lanes.sums)
}

simd_fn! {
    /// The rows from `first` on. The maximum of the next row is found in the loop that computes this row's terms, so that
    /// loads and arithmetic overlap and every element is read from memory once.
    pub(super) fn some_rows<const N: usize, F: Formula<N>>(simd, f: F, given: &Given<'_, N>, first: usize, out: &mut [f32]) {
        let columns = given.columns;
        let width = if F::PER_ROW { 1 } else { columns };
        let rows = out.len() / width;
        let mut maxima = [f32::NEG_INFINITY; LANES];
        if F::MAX {
            add_to_maxima(f, given.from(first), columns, &mut maxima);
        }
        for i in 0..rows {
            let m = if F::MAX { fold_max(maxima) } else { 0.0 };
            maxima = [f32::NEG_INFINITY; LANES];
            // There is no row after the last one; it takes itself.
            let x = given.from(first + i);
            let both = [x, given.from(first + (i + 1).min(rows - 1))];
            let out = &mut out[i * width..];
            let (mut s, mut at, mut tree) = (0.0, 0, (columns > CHUNK).then(Tree::new));
            while at < columns {
                let n = CHUNK.min(columns - at);
                s = chunk_terms(f, m, both, out, (at, n), &mut maxima);
                if let Some(tree) = &mut tree {
                    tree.push(s);
                }
                at += n;
            }
            let s = tree.map_or(s, Tree::finish);
            let label = given.labels.get(first + i).map_or(usize::MAX, |&l| l as usize);
            let scalar = if f.scalar_each() { first + i } else { 0 };
            let g = given.scalars.get(scalar).copied().unwrap_or(0.0);
            let row = Row { m, s, t: 0.0, hit: 0.0, g, r: f.of_row(s) };
            if F::PER_ROW {
                let at = label.min(columns - 1);
                let hit = if at == label { 1.0 } else { 0.0 };
                out[0] = f.post(elements(&x, at), Row { hit, ..row });
                continue;
            }
            let hit = (label < columns)
                .then(|| f.post(elements(&x, label), Row { hit: 1.0, t: out[label], ..row }));
            let (body, rest) = out.split_at_mut(columns / LANES * LANES);
            let at = body.len();
            results(f, x, row, body);
            let n = columns - at;
            if n > 0 && rest.len() >= LANES && reach(&x, at) {
                results(f, part(&x, at, LANES), row, &mut rest[..LANES]);
            } else if n > 0 {
                let (x, mut t) = (padded(&x, at, n), [0.0; LANES]);
                t[..n].copy_from_slice(&rest[..n]);
                results(f, from_fn(|k| &x[k][..]), row, &mut t);
                rest[..n].copy_from_slice(&t[..n]);
            }
            if let Some(y) = hit {
                out[label] = y;
            }
        }
    }
}

simd_fn! {
    /// The largest of each column, NaN ignored, -inf for none; never -0. Rows are `stride` apart.
    pub(super) fn column_max(simd, x: &[f32], rows: usize, stride: usize, out: &mut [f32]) {
        out.fill(f32::NEG_INFINITY);
        for r in 0..rows {
            let row = &x[r * stride..][..out.len()];
            for (m, &x) in out.iter_mut().zip(row) {
                *m = if x > *m { x } else { *m };
            }
        }
        out.iter_mut().for_each(|m| *m += 0.0);
    }
}

/// Words that short rows of statistics are repeated to.
pub(super) const REPEATED: usize = 512;

/// Calls `f` with the statistics of all columns, repeated so that loops over them are long.
pub(super) fn repeated<const K: usize>(rows: [&[f32]; K], len: usize, f: impl FnOnce([&[f32]; K])) {
    let inner = rows[0].len();
    let times = (REPEATED / inner).min(len / inner).max(1);
    if times == 1 {
        return f(rows);
    }
    let width = times * inner;
    let mut scratch = Scratch::take(K * width);
    for (words, row) in scratch.words().chunks_exact_mut(width).zip(rows) {
        words.chunks_exact_mut(inner).for_each(|w| w.copy_from_slice(row));
    }
    let words = &*scratch.words();
    f(from_fn(|k| &words[k * width..(k + 1) * width]));
}

simd_fn! {
    /// Terms of whole rows of columns with maxima `m`.
    pub(super) fn terms_by<const N: usize, F: Formula<N>>(simd, f: F, x: [&[f32]; N], m: &[f32], out: &mut [f32]) {
        for (i, out) in out.chunks_mut(m.len()).enumerate() {
            let (x, m) = (part(&x, i * m.len(), out.len()), &m[..out.len()]);
            for j in 0..out.len() {
                out[j] = f.term(elements(&x, j), m[j]);
            }
        }
    }
}

simd_fn! {
    /// Results of whole rows of columns from their terms, in place.
    pub(super) fn results_by<const N: usize, F: Formula<N>>(simd, f: F, x: [&[f32]; N], given: [&[f32]; 3], out: &mut [f32]) {
        let width = given[0].len();
        for (i, out) in out.chunks_mut(width).enumerate() {
            let (x, [m, s, r]) = (part(&x, i * width, out.len()), part(&given, 0, out.len()));
            for j in 0..out.len() {
                let row = Row { m: m[j], s: s[j], t: out[j], hit: 0.0, g: 0.0, r: r[j] };
                out[j] = f.post(elements(&x, j), row);
            }
        }
    }
}

simd_fn! {
    /// [`Formula::of_row`] of some sums.
    pub(super) fn of_rows<const N: usize, F: Formula<N>>(simd, f: F, s: &[f32], r: &mut [f32]) {
        r.iter_mut().zip(s).for_each(|(r, s)| *r = f.of_row(*s));
    }
}
