//! Sorting on the CPU. An element is a 64-bit word: its key above, its position below. Words are distinct, so any correct
//! sort gives the same result.

use super::key;
use dittograd_device::cpu::simd::{Simd, simd_fn};
use dittograd_device::cpu::threads::Pool;

/// Up to this many words are sorted by comparisons; counting digits does not pay for fewer.
const MAX_COMPARED: usize = 512;

/// Bits of a digit of the radix sort, and the number of digits of a key.
const DIGIT: u32 = 11;
const DIGITS: usize = 3;

simd_fn! {
    /// The words of a row; `flip` is all ones to sort from the largest.
    fn encode(simd, row: &[f32], first: u32, flip: u32, words: &mut [u64]) {
        for (i, (w, x)) in words.iter_mut().zip(row).enumerate() {
            *w = (u64::from(key(*x) ^ flip) << 32) | u64::from(first + i as u32);
        }
    }
}

/// All ones for a descending order, which inverts keys.
pub(super) fn flip(descending: bool) -> u32 {
    if descending { u32::MAX } else { 0 }
}

/// Two slices of `n` words each in `4 n + 2` words of float32 memory, or empty ones if there is too little.
pub(super) fn halves(memory: &mut [f32], n: usize) -> (&mut [u64], &mut [u64]) {
    let (_, words, _) = bytemuck::pod_align_to_mut::<f32, u64>(memory);
    let words = words.get_mut(..2 * n).unwrap_or_default();
    let half = words.len() / 2;
    words.split_at_mut(half)
}

/// Words of float32 memory for [`halves`] of `n`.
pub(super) fn memory(n: usize) -> usize {
    4 * n + 2
}

fn digit(word: u64, d: usize) -> usize {
    (word >> (32 + DIGIT * d as u32)) as usize & ((1 << DIGIT) - 1)
}

/// Sorts `a` by radix, lowest digit first. `b` is of the same length. Returns whether the result is in `b`.
fn radix(a: &mut [u64], b: &mut [u64]) -> bool {
    let mut counts = [[0u32; 1 << DIGIT]; DIGITS];
    for &w in a.iter() {
        for (d, counts) in counts.iter_mut().enumerate() {
            counts[digit(w, d)] += 1;
        }
    }
    let (n, mut moved) = (a.len() as u32, false);
    let (mut from, mut to) = (a, b);
    for (d, counts) in counts.iter_mut().enumerate() {
        if counts[digit(from[0], d)] == n {
            continue;
        }
        let mut next = 0;
        for c in counts.iter_mut() {
            next += std::mem::replace(c, next);
        }
        for &w in from.iter() {
            let at = &mut counts[digit(w, d)];
            to[*at as usize] = w;
            *at += 1;
        }
        std::mem::swap(&mut from, &mut to);
        moved = !moved;
    }
    moved
}

/// Sorts the words of a row that fits in a thread's scratch memory. Returns the half that holds them.
pub(super) fn sort_row<'a>(
    simd: Simd,
    row: &[f32],
    flip: u32,
    (a, b): (&'a mut [u64], &'a mut [u64]),
) -> &'a mut [u64] {
    encode(simd, row, 0, flip, a);
    if a.len() <= MAX_COMPARED {
        a.sort_unstable();
        return a;
    }
    if radix(a, b) { b } else { a }
}

/// Sorts a long row on all threads: each sorts a part, then parts are merged in pairs.
pub(super) fn sort_long_row<'a>(
    pool: &Pool,
    simd: Simd,
    row: &[f32],
    flip: u32,
    (a, b): (&'a mut [u64], &'a mut [u64]),
) -> &'a mut [u64] {
    let n = row.len();
    let mut part = n.div_ceil(pool.threads().next_power_of_two()).max(MAX_COMPARED);
    pool.pieces_mut([&mut *a, &mut *b], [part, part], n.div_ceil(part), |i, [a, b]| {
        encode(simd, &row[i * part..][..a.len()], (i * part) as u32, flip, a);
        if radix(a, b) {
            a.copy_from_slice(b);
        }
    });
    let (mut from, mut to) = (a, b);
    while part < n {
        let piece = (2 * part).div_ceil(pool.threads());
        let source = &*from;
        for (pair, out) in to.chunks_mut(2 * part).enumerate() {
            let source = &source[pair * 2 * part..][..out.len()];
            let (left, right) = source.split_at(part.min(source.len()));
            pool.chunks_mut(out, piece, |i, out| merge(left, right, i * piece, out));
        }
        std::mem::swap(&mut from, &mut to);
        part *= 2;
    }
    from
}

/// Writes the part of the merged order of two sorted lists that begins at `start`.
fn merge(left: &[u64], right: &[u64], start: usize, out: &mut [u64]) {
    // How many of the first `start` words come from the left list.
    let (mut low, mut high) = (start.saturating_sub(right.len()), start.min(left.len()));
    while low < high {
        let middle = low + (high - low) / 2;
        if left[middle] < right[start - middle - 1] { low = middle + 1 } else { high = middle }
    }
    let (mut i, mut j) = (low, start - low);
    for y in out {
        let from_left = j >= right.len() || (i < left.len() && left[i] < right[j]);
        *y = if from_left { left[i] } else { right[j] };
        i += usize::from(from_left);
        j += usize::from(!from_left);
    }
}

/// Elements that are looked at together for one that belongs to the first.
const BLOCK: usize = 64;

simd_fn! {
    /// The smallest key of a block.
    fn smallest(simd, row: &[f32], flip: u32) -> u32 {
        row.iter().map(|x| key(*x) ^ flip).fold(u32::MAX, u32::min)
    }
}

/// The first words of a row in its order: as many as `best` has. They are inserted into a sorted list; most blocks have no
/// element that belongs there.
pub(super) fn few_first(simd: Simd, row: &[f32], flip: u32, best: &mut [u64]) {
    best.fill(u64::MAX);
    let Some(last) = best.len().checked_sub(1) else { return };
    for (block, row) in row.chunks(BLOCK).enumerate() {
        // Later elements lose against equal ones.
        if u64::from(smallest(simd, row, flip)) >= best[last] >> 32 && best[last] != u64::MAX {
            continue;
        }
        for (i, x) in row.iter().enumerate() {
            let word = (u64::from(key(*x) ^ flip) << 32) | (block * BLOCK + i) as u64;
            if word < best[last] {
                let mut at = last;
                while at > 0 && best[at - 1] > word {
                    best[at] = best[at - 1];
                    at -= 1;
                }
                best[at] = word;
            }
        }
    }
}

/// The first `k` words of a row in its order, at the front of the half that is returned.
pub(super) fn many_first<'a>(
    simd: Simd,
    row: &[f32],
    flip: u32,
    k: usize,
    a: &'a mut [u64],
) -> &'a mut [u64] {
    encode(simd, row, 0, flip, a);
    if k > 0 && k < a.len() {
        a.select_nth_unstable(k - 1);
    }
    let first = &mut a[..k];
    first.sort_unstable();
    first
}
