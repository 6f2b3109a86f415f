//! The CPU kernels.

use super::{TASK, Which, larger, same};
use crate::CpuRun;
use crate::reduce::fold::Pass;
use dittograd_device::cpu::simd::simd_fn;
use dittograd_numerics::sum::{LANES, WIDTH};

impl Which {
    /// What turns the bits of the smallest element into those of the largest.
    pub(super) fn flip(self) -> u32 {
        if self == Which::Smallest { 0x8000_0000 } else { 0 }
    }
}

pub(super) fn flipped(x: f32, flip: u32) -> f32 {
    f32::from_bits(x.to_bits() ^ flip)
}

simd_fn! {
    /// The first place of the largest element. A lane takes what is larger than -inf, so where nothing is, all elements are
    /// equal and the place is 0.
    pub(super) fn first_largest(simd, x: &[f32], flip: u32) -> u32 {
        let (mut best, mut places) = ([f32::NEG_INFINITY; LANES], [0; LANES]);
        for (c, piece) in x.chunks(LANES).enumerate() {
            for (lane, &x) in piece.iter().enumerate() {
                let x = f32::from_bits(x.to_bits() ^ flip);
                let above = u32::from(larger(x, best[lane])).wrapping_neg();
                let at = (c * LANES + lane) as u32;
                best[lane] = f32::from_bits((x.to_bits() & above) | (best[lane].to_bits() & !above));
                places[lane] = (at & above) | (places[lane] & !above);
            }
        }
        let top = best.iter().fold(f32::NEG_INFINITY, |m, &x| if larger(x, m) { x } else { m });
        let first = |(x, place): (&f32, &u32)| if same(*x, top) { *place } else { u32::MAX };
        best.iter().zip(&places).map(first).fold(u32::MAX, |a, b| if b < a { b } else { a })
    }
}

simd_fn! {
    /// The same for neighbouring columns of which rows are `stride` apart.
    pub(super) fn first_largest_columns(simd, x: &[f32], rows: usize, stride: usize, flip: u32, places: &mut [u32]) {
        let mut best = [f32::NEG_INFINITY; WIDTH];
        places.fill(0);
        for r in 0..rows {
            for ((best, place), &x) in best.iter_mut().zip(&mut *places).zip(&x[r * stride..]) {
                let x = f32::from_bits(x.to_bits() ^ flip);
                let above = u32::from(larger(x, *best)).wrapping_neg();
                *best = f32::from_bits((x.to_bits() & above) | (best.to_bits() & !above));
                *place = (r as u32 & above) | (*place & !above);
            }
        }
    }
}

pub(super) fn run_cpu(which: Which, pass: Pass, run: CpuRun<'_>) {
    let Pass { outer, rows, inner } = pass;
    let (simd, x, flip) = (run.simd, run.ins[0], which.flip());
    let out: &mut [u32] = bytemuck::cast_slice_mut(run.out);
    let row = |x: &[f32]| first_largest(simd, x, flip);
    if out.is_empty() {
        return;
    }
    if inner == 1 && outer == 1 && rows > TASK {
        let places: &mut [u32] = bytemuck::cast_slice_mut(run.workspace);
        run.pool.chunks_mut(places, 1, |task, place| {
            let start = task * TASK;
            place[0] = (start + row(&x[start..rows.min(start + TASK)]) as usize) as u32;
        });
        let at = |place: u32| flipped(x[place as usize], flip);
        let better = |best: u32, next: u32| if larger(at(next), at(best)) { next } else { best };
        out[0] = places[1..].iter().fold(places[0], |best, &next| better(best, next));
    } else if inner == 1 {
        let per_task = run.pool.share(outer, (TASK / 4 / rows.max(1)).max(1), 1);
        run.pool.chunks_mut(out, per_task, |task, out| {
            for (i, o) in out.iter_mut().enumerate() {
                let at = (task * per_task + i) * rows;
                *o = row(&x[at..at + rows]);
            }
        });
    } else {
        // Tiles do not cross from one matrix into the next.
        let tiles = inner.div_ceil(WIDTH);
        let per_task = if outer == 1 { WIDTH } else { inner };
        run.pool.chunks_mut(out, per_task, |task, out| {
            for (t, out) in out.chunks_mut(WIDTH).enumerate() {
                let (o, tile) = if outer == 1 { (0, task) } else { (task, t) };
                debug_assert!(tile < tiles);
                let x = &x[o * rows * inner + tile * WIDTH..];
                first_largest_columns(simd, x, rows, inner, flip, out);
            }
        });
    }
}
