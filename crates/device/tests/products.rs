//! The products of the CPU against the contract, element by element, at every SIMD level. They are not in the crate, or all of
//! its kernels would be compiled once more for its tests.
#![allow(missing_docs)]

use dittograd_device::cpu::gemm::Gemm;
use dittograd_device::cpu::gemm::plan::{MAX_SHARED, OwnPacking};
use dittograd_device::cpu::lanes::{Skip, accumulate};
use dittograd_device::cpu::simd::Simd;
use dittograd_device::cpu::threads::Pool;
use dittograd_numerics::K_CHUNK;

/// An element of a product, by the contract.
fn element(g: &Gemm, a: &[f32], b: &[f32], batch: usize, i: usize, j: usize) -> f32 {
    let Gemm { m, n, k, ta, tb, .. } = *g;
    let (a, b) = (&a[batch * m * k..], &b[batch * k * n..]);
    let term = |p: usize, acc: f32| {
        let x = if ta { a[p * m + i] } else { a[i * k + p] };
        let y = if tb { b[j * k + p] } else { b[p * n + j] };
        x.mul_add(y, acc)
    };
    let chunk = |k0: usize| (k0..k.min(k0 + K_CHUNK)).fold(0.0, |acc, p| term(p, acc));
    (0..k).step_by(K_CHUNK).map(chunk).reduce(|c, sum| c + sum).unwrap_or(0.0)
}

/// All of them.
fn reference(g: &Gemm, a: &[f32], b: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
    let Gemm { batch, m, n, .. } = *g;
    let mut c = Vec::new();
    for x in 0..batch {
        for i in 0..m {
            for j in 0..n {
                let sum = element(g, a, b, x, i, j);
                c.push(bias.map_or(sum, |bias| sum + bias[j]));
            }
        }
    }
    c
}

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as usize
    }
    fn of<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.next() % from.len()]
    }
    fn floats(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| (self.next() % 4001) as f32 / 1999.0 - 1.0).collect()
    }
}

fn bits(c: &[f32]) -> Vec<u32> {
    c.iter().map(|x| if x.is_nan() { 0x7fc0_0000 } else { x.to_bits() }).collect()
}

fn check(pools: &[Pool], g: &Gemm, a: &[f32], b: &[f32], bias: Option<&[f32]>) {
    let want = bits(&reference(g, a, b, bias));
    for pool in pools {
        for simd in Simd::all_available() {
            // Neither the old C nor the workspace may show, nor its alignment.
            let mut scratch = vec![f32::NAN; g.scratch_len(pool.threads()) + 3];
            let skip = g.m % 4;
            let mut c = vec![f32::NAN; want.len()];
            g.run(pool, simd, a, b, bias, &mut c, &mut scratch[skip..]);
            let at = bits(&c).iter().zip(&want).position(|(x, y)| x != y);
            assert_eq!(at, None, "{g:?} {simd} {} threads, bias {}", pool.threads(), bias.is_some());
        }
    }
}

const SIZES: [usize; 22] = [0, 1, 2, 3, 5, 7, 8, 13, 14, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 97];
const TERMS: [usize; 11] = [0, 1, 2, 7, 255, 256, 257, 1023, 1024, 1025, 2049];

#[test]
fn same_bits_as_the_contract() {
    let pools = [1, 2, 3, 8].map(Pool::new);
    let mut rng = Rng(0x1234_5678_9abc_def1);
    for round in 0..400 {
        let (m, n, batch) = (rng.of(&SIZES), rng.of(&SIZES), rng.of(&[1, 1, 1, 2, 3]));
        // Long sums with small matrices, and the other way around, to bound the time.
        let max_vectors = 60_000 / (batch * m * n).max(1);
        let terms: Vec<usize> = TERMS.iter().copied().filter(|&k| k <= max_vectors.max(7)).collect();
        let g = Gemm { batch, m, n, k: rng.of(&terms), ta: round % 2 == 1, tb: round / 2 % 2 == 1 };
        let (a, b) = (rng.floats(batch * m * g.k), rng.floats(batch * g.k * n));
        let bias = rng.floats(n);
        check(&pools, &g, &a, &b, (round / 4 % 2 == 1).then_some(&bias));
    }
}

#[test]
fn long_sums_of_full_tiles() {
    let pools = [1, 3].map(Pool::new);
    let mut rng = Rng(0x9876_5432_1abc_def1);
    for (ta, tb) in [(false, false), (false, true), (true, false), (true, true)] {
        let g = Gemm { batch: 1, m: 29, n: 67, k: 2049, ta, tb };
        let (a, b, bias) = (rng.floats(g.m * g.k), rng.floats(g.k * g.n), rng.floats(g.n));
        check(&pools[..1], &g, &a, &b, Some(&bias));
        // Many blocks of rows and columns.
        let g = Gemm { batch: 1, m: 700, n: 130, k: 5, ta, tb };
        let (a, b) = (rng.floats(g.m * g.k), rng.floats(g.k * g.n));
        check(&pools, &g, &a, &b, None);
        // Several blocks of rows and columns, and several chunks.
        let g = Gemm { batch: 1, m: 211, n: if ta == tb { 131 } else { 66 }, k: 1030, ta, tb };
        let (a, b) = (rng.floats(g.m * g.k), rng.floats(g.k * g.n));
        check(&pools[1..], &g, &a, &b, None);
    }
}

/// Also rows that are read in place, several chunks, batches, and more rows and columns than are packed at a time.
#[test]
fn threads_that_pack_rows_of_their_own() {
    let sizes = [
        (1, 1000, 200, 100),
        (1, 5000, 60, 60),
        (1, 300, 66, 1030),
        (3, 500, 120, 100),
        (1, 1000, 400, 800),
        (1, MAX_SHARED / 64 + 100, 70, 20),
    ];
    threads_share(OwnPacking::Rows, &sizes);
}

#[test]
fn threads_that_pack_columns_of_their_own() {
    let sizes = [
        (1, 130, 1100, 300),
        (2, 150, 900, 300),
        (1, 40, 500, 1030),
        (8, 700, 60, 60),
        (1, 60, MAX_SHARED / 64 + 5, 20),
    ];
    threads_share(OwnPacking::Columns, &sizes);
}

#[test]
fn threads_that_pack_nothing_of_their_own() {
    threads_share(OwnPacking::Nothing, &[(1, 250, 340, 1030), (2, 230, 330, 1030)]);
}

/// Products of these batches and sizes (m, n, k), on any number of threads. The scalar level, which takes most of the time, has
/// one of these numbers in turn: how threads share does not depend on the level.
fn threads_share(own: OwnPacking, sizes: &[(usize, usize, usize, usize)]) {
    let pools = [1, 2, 3, 8].map(Pool::new);
    let mut rng = Rng(0x1111_5432_1abc_def1);
    let mut turns = pools.iter().map(Pool::threads).cycle();
    for &(batch, m, n, k) in sizes {
        for (ta, tb) in [(false, true), (true, false)] {
            let turn = turns.next();
            let g = Gemm { batch, m, n, k, ta, tb };
            assert_eq!(g.own_packing(2), Some(own), "{g:?}");
            let (a, b, bias) = (rng.floats(batch * m * k), rng.floats(batch * k * n), rng.floats(n));
            // All columns of some rows, and all rows of some columns.
            let edge = |i: usize, len: usize| i < 2 || i % 211 == 13 || i + 1 == len;
            let mut some = Vec::new();
            for x in 0..batch {
                for i in 0..m {
                    for j in (0..n).filter(|&j| edge(i, m) || edge(j, n)) {
                        some.push(((x * m + i) * n + j, element(&g, &a, &b, x, i, j) + bias[j]));
                    }
                }
            }
            for pool in &pools {
                let is_run = |s: &Simd| *s != Simd::Scalar || Some(pool.threads()) == turn;
                for simd in Simd::all_available().into_iter().filter(is_run) {
                    let mut scratch = vec![f32::NAN; g.scratch_len(pool.threads())];
                    let mut c = vec![f32::NAN; batch * m * n];
                    g.run(pool, simd, &a, &b, Some(&bias), &mut c, &mut scratch);
                    let wrong = some.iter().find(|(at, want)| c[*at].to_bits() != want.to_bits());
                    assert_eq!(wrong, None, "{g:?} {simd} {} threads", pool.threads());
                    assert!(!c.iter().any(|c| c.is_nan()), "{g:?} {simd} {} threads", pool.threads());
                }
            }
        }
    }
}

#[test]
fn nan_and_infinity_go_through() {
    let pools = [1, 2].map(Pool::new);
    let mut rng = Rng(77);
    let odd = [0.0, -0.0, 1.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN_POSITIVE];
    for round in 0..40 {
        let (m, n, k) = (rng.of(&SIZES), rng.of(&SIZES), rng.of(&[1, 2, 7, 33]));
        let g = Gemm { batch: 1, m, n, k, ta: round % 2 == 1, tb: round / 2 % 2 == 1 };
        let (mut a, mut b) = (rng.floats(m * k), rng.floats(k * n));
        for _ in 0..2 {
            let len = a.len().max(1);
            if let Some(x) = a.get_mut(rng.next() % len) {
                *x = rng.of(&odd);
            }
            let len = b.len().max(1);
            if let Some(x) = b.get_mut(rng.next() % len) {
                *x = rng.of(&odd);
            }
        }
        check(&pools, &g, &a, &b, None);
    }
}

#[test]
fn accumulated_lanes() {
    const MARK: u32 = 0xff80_0001;
    let mut rng = Rng(0x2222_5432_1abc_def1);
    for round in 0..60 {
        let lanes = rng.of(&[16, 32, 48, 64, 112]);
        let (terms, columns) = (rng.of(&[0, 1, 2, 5, 33]), rng.of(&[0, 1, 3, 4, 5, 9]));
        let strides = rng.of(&[[1, 40], [12, 1]]);
        let (mut a, mut x) = (rng.floats(terms * lanes), rng.floats(40 * 12));
        for marked in [&mut a, &mut x] {
            for at in marked.iter_mut().filter(|_| rng.next().is_multiple_of(5)) {
                *at = f32::from_bits(MARK);
            }
        }
        let old = rng.floats(columns * lanes);
        for skip in [Skip::Nothing, Skip::Lanes(MARK), Skip::Factors(MARK)] {
            let begin = round % 2 == 0;
            let mut want = if begin { vec![0.0; columns * lanes] } else { old.clone() };
            for (at, sum) in want.iter_mut().enumerate() {
                for k in 0..terms {
                    let (lane, factor) =
                        (a[k * lanes + at % lanes], x[k * strides[0] + at / lanes * strides[1]]);
                    let out = match skip {
                        Skip::Nothing => false,
                        Skip::Lanes(mark) => lane.to_bits() == mark,
                        Skip::Factors(mark) => factor.to_bits() == mark,
                    };
                    *sum = if out { *sum } else { lane.mul_add(factor, *sum) };
                }
            }
            for simd in Simd::all_available() {
                let mut acc = old.clone();
                accumulate(simd, skip, lanes, &a, &x, strides, begin, &mut acc);
                assert_eq!(
                    bits(&acc),
                    bits(&want),
                    "{simd} {skip:?} {lanes} lanes {terms} {columns} {strides:?}"
                );
            }
        }
    }
}
