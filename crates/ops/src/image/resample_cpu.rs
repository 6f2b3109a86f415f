//! Resampling on the CPU. The last two axes are made together: rows that were resampled along the last axis stay in cache
//! until the rows of the output that need them are made.

use super::filter::Line;
use super::resample::Planes;
use crate::CpuRun;
use crate::pointwise::expression::Scratch;
use dittograd_device::cpu::simd::{Simd, simd_fn};
use dittograd_device::cpu::threads::Pool;

/// The weights of one axis: output element `o` is the sum of `weights[start[o]..start[o + 1]]` times the input elements
/// from `first[o]` on.
struct Table<'a> {
    first: &'a [u32],
    start: &'a [u32],
    weights: &'a [f32],
    /// The number of weights of each output element, if all have as many.
    even: Option<usize>,
}

/// Words of a table.
fn table_words(line: &Line, transposed: bool) -> usize {
    let rows = if transposed { line.from } else { line.to };
    3 * rows + 1 + line.to * line.most_taps()
}

/// Words of the value that is resampled along all but the first of three axes.
fn middle_words(planes: &Planes) -> usize {
    match (&planes.from()[..], &planes.to()[..]) {
        (&[depth, ..], &[_, height, width]) => planes.count * depth * height * width,
        _ => 0,
    }
}

/// Words of workspace.
pub(super) fn workspace(planes: &Planes) -> usize {
    let tables: usize = planes.lines.iter().map(|l| table_words(l, planes.transposed)).sum();
    tables + middle_words(planes)
}

impl<'a> Table<'a> {
    /// Makes a table in the first words of `room`; returns it and the other words.
    fn make(line: &Line, transposed: bool, room: &'a mut [f32]) -> (Table<'a>, &'a mut [f32]) {
        let rows = if transposed { line.from } else { line.to };
        let (room, rest) = room.split_at_mut(table_words(line, transposed));
        let (places, weights) = room.split_at_mut(3 * rows + 1);
        let places: &mut [u32] = bytemuck::cast_slice_mut(places);
        let (first, places) = places.split_at_mut(rows);
        let (start, next) = places.split_at_mut(rows + 1);
        if !transposed {
            let mut end = 0;
            start[0] = 0;
            for o in 0..rows {
                first[o] = line.taps(o, |w| {
                    weights[end] = w as f32;
                    end += 1;
                }) as u32;
                start[o + 1] = end as u32;
            }
        } else {
            start.fill(0);
            first.fill(u32::MAX);
            for o in 0..line.to {
                let mut count = 0;
                let at = line.taps(o, |_| count += 1);
                for i in at..at + count {
                    start[i + 1] += 1;
                    first[i] = first[i].min(o as u32);
                }
            }
            for i in 0..rows {
                start[i + 1] += start[i];
            }
            next.copy_from_slice(&start[..rows]);
            let mut taps = [0.0; 64];
            for o in 0..line.to {
                let mut count = 0;
                let at = line.taps(o, |w| {
                    if let Some(tap) = taps.get_mut(count) {
                        *tap = w as f32;
                    }
                    count += 1;
                });
                let mut put = |k: usize, w: f32| {
                    let to = &mut next[at + k];
                    weights[*to as usize] = w;
                    *to += 1;
                };
                if count <= taps.len() {
                    taps[..count].iter().enumerate().for_each(|(k, w)| put(k, *w));
                } else {
                    let mut k = 0;
                    line.taps(o, |w| {
                        put(k, w as f32);
                        k += 1;
                    });
                }
            }
        }
        let taps = start[1] as usize;
        let even = start.windows(2).all(|ends| (ends[1] - ends[0]) as usize == taps).then_some(taps);
        (Table { first, start, weights, even }, rest)
    }

    fn rows(&self) -> usize {
        self.first.len()
    }

    /// The first input element of an output element, and the weights.
    fn taps(&self, o: usize) -> (usize, &[f32]) {
        let (from, to) = (self.start[o] as usize, self.start[o + 1] as usize);
        // An element that takes part in nothing has no first one.
        (if from == to { 0 } else { self.first[o] as usize }, &self.weights[from..to])
    }

    fn most_taps(&self) -> usize {
        (0..self.rows()).map(|o| self.taps(o).1.len()).max().unwrap_or(0)
    }
}

/// A row, resampled with `T` weights for each output element.
#[inline(always)]
fn along_evenly<const T: usize>(x: &[f32], table: &Table<'_>, out: &mut [f32]) {
    for ((y, &at), weights) in out.iter_mut().zip(table.first).zip(table.weights.as_chunks::<T>().0) {
        *y = dot(weights, &x[at as usize..][..T]);
    }
}

#[inline(always)]
fn dot(weights: &[f32], x: &[f32]) -> f32 {
    weights.iter().zip(x).fold(0.0, |sum, (w, x)| w.mul_add(*x, sum))
}

simd_fn! {
    /// A row, resampled.
    fn along_row(simd, x: &[f32], table: &Table<'_>, out: &mut [f32]) {
        match table.even {
            Some(1) => return along_evenly::<1>(x, table, out),
            Some(2) => return along_evenly::<2>(x, table, out),
            _ => {}
        }
        let ends = table.start.iter().zip(&table.start[1..]);
        for ((y, &at), (&low, &high)) in out.iter_mut().zip(table.first).zip(ends) {
            let weights = &table.weights[low as usize..high as usize];
            *y = match *weights {
                [] => 0.0,
                [w] => w.mul_add(x[at as usize], 0.0),
                [v, w] => {
                    let x = &x[at as usize..at as usize + 2];
                    w.mul_add(x[1], v.mul_add(x[0], 0.0))
                }
                _ => dot(weights, &x[at as usize..][..weights.len()]),
            };
        }
    }
}

simd_fn! {
    /// The weighted sum of rows `first…`. Row `r` is at `r % slots` in `rows`.
    fn across_rows(simd, rows: &[f32], slots: usize, first: usize, weights: &[f32], out: &mut [f32]) {
        let width = out.len();
        let row = |k: usize| &rows[(first + k) % slots * width..][..width];
        match *weights {
            [] => out.fill(0.0),
            [w] => out.iter_mut().zip(row(0)).for_each(|(y, a)| *y = w.mul_add(*a, 0.0)),
            [v, w] => {
                for ((y, a), b) in out.iter_mut().zip(row(0)).zip(row(1)) {
                    *y = w.mul_add(*b, v.mul_add(*a, 0.0));
                }
            }
            [t, u, v, w] => {
                let ends = row(2).iter().zip(row(3));
                for (((y, a), b), (c, d)) in out.iter_mut().zip(row(0)).zip(row(1)).zip(ends) {
                    *y = w.mul_add(*d, v.mul_add(*c, u.mul_add(*b, t.mul_add(*a, 0.0))));
                }
            }
            _ => {
                out.fill(0.0);
                for (k, w) in weights.iter().enumerate() {
                    out.iter_mut().zip(row(k)).for_each(|(y, a)| *y = w.mul_add(*a, *y));
                }
            }
        }
    }
}

/// The fewest output elements of a task.
const MIN_WORDS_PER_TASK: usize = 8 * 1024;

/// Resamples lines.
fn lines(pool: &Pool, simd: Simd, x: &[f32], from: usize, table: &Table<'_>, out: &mut [f32]) {
    let to = table.rows();
    let per = pool.share(out.len() / to, (MIN_WORDS_PER_TASK / to).max(1), 1);
    pool.chunks_mut(out, per * to, |task, out| {
        for (i, out) in out.chunks_mut(to).enumerate() {
            let x = &x[(task * per + i) * from..][..from];
            along_row(simd, x, table, out);
        }
    });
}

/// Resamples planes along both of their axes.
fn images(
    pool: &Pool,
    simd: Simd,
    x: &[f32],
    from: [usize; 2],
    [rows, columns]: [&Table<'_>; 2],
    out: &mut [f32],
) {
    let (height, width) = (rows.rows(), columns.rows());
    let slots = rows.most_taps().max(1);
    let per = pool.share(out.len() / width, (MIN_WORDS_PER_TASK / width).max(1), 1);
    pool.chunks_mut(out, per * width, |task, out| {
        let mut scratch = Scratch::take(slots * width);
        let kept = &mut scratch.words()[..slots * width];
        let (mut plane, mut next) = (usize::MAX, 0);
        for (i, out) in out.chunks_mut(width).enumerate() {
            let at = task * per + i;
            let (first, weights) = rows.taps(at % height);
            if plane != at / height {
                (plane, next) = (at / height, 0);
            }
            for r in next.max(first)..first + weights.len() {
                let x = &x[(plane * from[0] + r) * from[1]..][..from[1]];
                let to = &mut kept[r % slots * width..][..width];
                along_row(simd, x, columns, to);
            }
            next = next.max(first + weights.len());
            across_rows(simd, kept, slots, first, weights, out);
        }
    });
}

/// Fills the output.
pub(super) fn run(planes: &Planes, run: CpuRun<'_>) {
    if run.out.is_empty() {
        return;
    }
    let (from, pool, simd) = (planes.from(), run.pool, run.simd);
    let make = |a: usize, room| Table::make(&planes.lines[a], planes.transposed, room);
    let (first, room) = make(0, run.workspace);
    match from[..] {
        [n] => lines(pool, simd, run.ins[0], n, &first, run.out),
        [h, w] => {
            let (second, _) = make(1, room);
            images(pool, simd, run.ins[0], [h, w], [&first, &second], run.out);
        }
        [d, h, w] => {
            let (second, room) = make(1, room);
            let (third, room) = make(2, room);
            let middle = &mut room[..middle_words(planes)];
            images(pool, simd, run.ins[0], [h, w], [&second, &third], middle);
            let (middle, depth) = (&*middle, first.rows());
            let width = second.rows() * third.rows();
            let per = pool.share(planes.count * depth, (MIN_WORDS_PER_TASK / width).max(1), 1);
            pool.chunks_mut(run.out, per * width, |task, out| {
                for (i, out) in out.chunks_mut(width).enumerate() {
                    let at = task * per + i;
                    let (at, weights) = (at / depth, first.taps(at % depth));
                    across_rows(simd, &middle[at * d * width..][..d * width], d, weights.0, weights.1, out);
                }
            });
        }
        _ => {}
    }
}
