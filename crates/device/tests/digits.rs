//! Products in digits on the CPU against their definition, element by element, at every SIMD level.
#![allow(missing_docs)]

use dittograd_device::cpu::gemm::Gemm;
use dittograd_device::cpu::gemm::digits::{Operand, Order, Small};
use dittograd_device::cpu::simd::Simd;
use dittograd_device::cpu::threads::Pool;
use dittograd_numerics::digits::{DIGIT_CHUNK, Digits, product};

const ALL: [Digits; 2] = [Digits::Two, Digits::Three];

/// What the elements of an operand are.
#[derive(Clone, Copy, Debug)]
enum Values {
    /// Of similar size, with all digits in use.
    Ordinary,
    /// Every bit pattern of finite numbers, subnormal and huge ones too.
    AnyFinite,
    /// Largest digits of either sign, so that sums are as large as they can be.
    Largest,
    /// Zeros of both signs, subnormals, ties, powers of two, and the ends of the range.
    Edges,
    /// `Ordinary`, with a few infinities and NaNs.
    NotFinite,
}

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 20
    }

    fn value(&mut self, values: Values) -> f32 {
        let random = self.next();
        let ordinary = (random & 0xff_ffff) as f32 / 8_388_608.0 - 1.0;
        let sign = if random & 1 == 0 { 1.0 } else { -1.0 };
        match values {
            Values::Ordinary => ordinary,
            Values::AnyFinite => {
                let x = f32::from_bits(random as u32);
                if x.is_finite() { x } else { ordinary }
            }
            // Just below 127/128 and minus 128/256 of it, with low digits of -128.
            Values::Largest => {
                [0.992_187_4, -0.992_187_4, 0.494_140_63, -0.501_953_1][random as usize >> 4 & 3]
            }
            Values::Edges => {
                let edges = [
                    0.0,
                    1.0e-45,
                    f32::MIN_POSITIVE,
                    0.5,
                    1.0 / 65536.0,
                    1.5 / 32768.0,
                    127.0 / 128.0,
                    1.0,
                    3.0e-39,
                ];
                sign * edges[random as usize / 2 % edges.len()]
            }
            Values::NotFinite => match random % 997 {
                0 => f32::NAN,
                1 => sign * f32::INFINITY,
                _ => ordinary,
            },
        }
    }

    fn values(&mut self, len: usize, values: Values) -> Vec<f32> {
        (0..len).map(|_| self.value(values)).collect()
    }
}

fn bits(c: &[f32]) -> Vec<u32> {
    c.iter().map(|x| if x.is_nan() { 0x7fc0_0000 } else { x.to_bits() }).collect()
}

/// Compares with the definition at all levels.
fn check(pools: &[Pool], g: &Gemm, a: &[f32], b: &[f32], bias: Option<&[f32]>) {
    let Gemm { batch, m, n, k, ta, tb } = *g;
    for digits in ALL {
        let mut want = vec![f32::NAN; batch * m * n];
        for x in 0..batch {
            let (a, b, c) = (&a[x * m * k..], &b[x * k * n..], &mut want[x * m * n..]);
            product(digits, [m, n, k], [ta, tb], a, b, c);
        }
        for row in want.chunks_mut(n.max(1)) {
            row.iter_mut().zip(bias.unwrap_or_default()).for_each(|(c, bias)| *c += bias);
        }
        for pool in pools {
            for simd in Simd::all_available() {
                // Neither the old C nor the workspace may show, nor its alignment.
                let mut scratch = vec![f32::NAN; g.digits_scratch_len(digits) + 3];
                let mut c = vec![f32::NAN; want.len()];
                g.run_digits(digits, pool, simd, a, b, bias, &mut c, &mut scratch[m % 4..]);
                let at = bits(&c).iter().zip(&bits(&want)).position(|(x, y)| x != y);
                let values = at.map(|at| (c[at], want[at]));
                assert_eq!(at, None, "{g:?} {digits:?} {simd} {} threads: {values:?}", pool.threads());
            }
        }
    }
}

fn pools() -> Vec<Pool> {
    [1, 2, 3].into_iter().map(Pool::new).collect()
}

#[test]
fn sizes_around_tiles_in_all_orientations() {
    let (pools, mut rng) = (pools(), Rng(1));
    let sizes = [1, 15, 16, 17, 33, 64, 70];
    let terms = [0, 1, 3, 63, 64, 65, 129, 255, 257, 700];
    let mut cases = 0;
    for m in sizes {
        for n in sizes {
            for k in [terms[cases % terms.len()], terms[(cases / 3 + 5) % terms.len()]] {
                let (ta, tb) = (cases & 1 != 0, cases & 2 != 0);
                let batch = 1 + cases % 3;
                cases += 1;
                let g = Gemm { batch, m, n, k, ta, tb };
                let (a, b) = (
                    rng.values(batch * m * k, Values::Ordinary),
                    rng.values(batch * k * n, Values::Ordinary),
                );
                let bias = rng.values(n, Values::Ordinary);
                check(&pools, &g, &a, &b, (cases % 4 == 0).then_some(&bias));
            }
        }
    }
    for g in [
        Gemm { batch: 0, m: 3, n: 4, k: 5, ta: false, tb: false },
        Gemm { batch: 2, m: 0, n: 4, k: 5, ta: false, tb: false },
    ] {
        let (a, b) = (vec![1.0; g.batch * g.m * g.k], vec![1.0; g.batch * g.k * g.n]);
        check(&pools, &g, &a, &b, None);
    }
}

#[test]
fn values_of_every_kind_in_all_orientations() {
    let (pools, mut rng) = (pools(), Rng(2));
    let kinds = [Values::AnyFinite, Values::Largest, Values::Edges, Values::NotFinite, Values::Ordinary];
    for (ta, tb) in [(false, false), (false, true), (true, false), (true, true)] {
        for of_a in kinds {
            for of_b in kinds {
                // Short sums are rounded in another way than long ones.
                for k in [128, 150] {
                    let g = Gemm { batch: 1, m: 50, n: 37, k, ta, tb };
                    let (a, b) = (rng.values(g.m * g.k, of_a), rng.values(g.k * g.n, of_b));
                    check(&pools[1..2], &g, &a, &b, None);
                }
            }
        }
    }
}

#[test]
fn long_sums_and_several_chunks() {
    let (pools, mut rng) = (pools(), Rng(3));
    for (k, values) in [
        (DIGIT_CHUNK, Values::Largest),
        (DIGIT_CHUNK + 1, Values::NotFinite),
        (2 * DIGIT_CHUNK + 77, Values::Ordinary),
    ] {
        for (ta, tb) in [(false, false), (true, true)] {
            let g = Gemm { batch: 1, m: 17, n: 18, k, ta, tb };
            let (a, b) = (rng.values(g.m * g.k, values), rng.values(g.k * g.n, values));
            let bias = rng.values(g.n, Values::Ordinary);
            check(&pools[1..2], &g, &a, &b, Some(&bias));
        }
    }
    // Equal signs everywhere: sums are at the ends of their range.
    for k in [128, DIGIT_CHUNK] {
        let g = Gemm { batch: 1, m: 16, n: 16, k, ta: false, tb: true };
        for (x, y) in [(0.992_187_4, 0.992_187_4), (-0.501_953_1, 0.992_187_4), (-0.501_968_4, -0.501_968_4)]
        {
            check(&pools[..1], &g, &vec![x; g.m * g.k], &vec![y; g.k * g.n], None);
        }
    }
}

/// Operands that a caller packs, in both orders, whose lines or terms are further apart than they need be.
#[test]
fn small_operands() {
    let mut rng = Rng(5);
    let kinds = [Values::Ordinary, Values::Largest, Values::NotFinite, Values::AnyFinite];
    for (case, [m, n, k]) in
        [[64, 64, 64], [1, 130, 32], [128, 63, 40], [65, 16, 128], [17, 48, 1], [3, 5, 200]]
            .into_iter()
            .enumerate()
    {
        for (values, orders) in kinds.into_iter().flat_map(|v| [0, 1, 2, 3].map(|orders| (v, orders))) {
            let along = [orders & 1 == 0, orders & 2 == 0];
            let gap = case % 3;
            let strides = [if along[0] { k } else { m } + gap, if along[1] { k } else { n } + gap];
            let len = |i: usize, lines: usize| strides[i] * if along[i] { lines } else { k };
            let (a, b) = (rng.values(len(0, m), values), rng.values(len(1, n), values));
            // As the definition takes them, rows of A and columns of B along k.
            let dense = |x: &[f32], i: usize, lines: usize| -> Vec<f32> {
                let at = |line: usize, l: usize| {
                    if along[i] { line * strides[i] + l } else { l * strides[i] + line }
                };
                (0..lines * k).map(|e| x[at(e / k, e % k)]).collect()
            };
            let (rows, columns) = (Operand::rows(m, k), Operand::columns(n, k));
            for digits in ALL {
                let mut want = vec![0.0; m * n];
                product(digits, [m, n, k], [false, true], &dense(&a, 0, m), &dense(&b, 1, n), &mut want);
                for simd in Simd::all_available() {
                    let small = Small::new(simd, digits);
                    let order =
                        |i: usize| if along[i] { Order::Lines(strides[i]) } else { Order::Terms(strides[i]) };
                    let mut packed = [rows, columns].map(|o| vec![f32::NAN; o.packed_len(digits) + 3]);
                    let [pa, pb] = packed.each_mut().map(|p| &mut p[case % 4..]);
                    small.pack(rows, &a, order(0), pa);
                    small.pack(columns, &b, order(1), pb);
                    // What is between rows of the product stays.
                    let mut c = vec![7.0; m * (n + gap)];
                    small.multiply((rows, pa), (columns, pb), false, &mut c, n + gap);
                    small.multiply((rows, pa), (columns, pb), true, &mut c, n + gap);
                    let what = format!("{m} {n} {k} {values:?} {along:?} {digits:?} {simd}");
                    for (c, want) in c.chunks(n + gap).zip(want.chunks(n)) {
                        let twice: Vec<f32> = want.iter().map(|x| x + x).collect();
                        assert_eq!(bits(&c[..n]), bits(&twice), "{what}");
                        assert!(c[n..].iter().all(|&x| x == 7.0), "{what}");
                    }
                }
            }
        }
    }
}

#[test]
fn small_operands_must_fit() {
    let small = Small::new(Simd::best(), Digits::Two);
    let (rows, columns) = (Operand::rows(4, 8), Operand::columns(4, 8));
    let refuses = |f: &mut dyn FnMut()| {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).err().map(|_| ()).unwrap();
    };
    let mut memory = vec![0.0; rows.packed_len(Digits::Two).max(columns.packed_len(Digits::Two))];
    refuses(&mut || small.pack(rows, &[0.0; 31], Order::Lines(8), &mut memory));
    refuses(&mut || small.pack(rows, &[0.0; 31], Order::Terms(4), &mut memory));
    refuses(&mut || small.pack(rows, &[0.0; 32], Order::Lines(8), &mut [0.0; 64]));
    refuses(&mut || small.pack(Operand::rows(4, 0), &[0.0; 32], Order::Lines(8), &mut memory));
    let packed = memory.clone();
    refuses(&mut || small.multiply((rows, &packed), (rows, &packed), false, &mut [0.0; 16], 4));
    refuses(&mut || small.multiply((rows, &packed), (columns, &packed), false, &mut [0.0; 15], 4));
    refuses(&mut || {
        small.multiply((rows, &packed), (Operand::columns(4, 9), &packed), false, &mut [0.0; 16], 4)
    });
    refuses(&mut || small.multiply((rows, &packed[..64]), (columns, &packed), false, &mut [0.0; 16], 4));
}

#[test]
fn blocks_of_larger_products() {
    let (pools, mut rng) = (pools(), Rng(4));
    for (m, n, k, ta, tb) in
        [(300, 150, 1100, false, false), (120, 500, 700, true, false), (700, 70, 90, false, true)]
    {
        let g = Gemm { batch: 1, m, n, k, ta, tb };
        let (a, b) = (rng.values(m * k, Values::Ordinary), rng.values(k * n, Values::Ordinary));
        check(&pools, &g, &a, &b, None);
    }
}
