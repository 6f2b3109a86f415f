use super::*;
use crate::rng::Stream;

const BOTH: [Digits; 2] = [Digits::Two, Digits::Three];

/// The contract once more, in f64 and i128: `integers` and the exponent of a chunk of a row.
fn integers(d: u32, x: &[f32]) -> Option<(Vec<i128>, i32)> {
    if x.iter().any(|x| !x.is_finite()) {
        return None;
    }
    let largest = x.iter().fold(0.0, |m, &x| f64::max(m, f64::from(x).abs()));
    let e = (-96..).find(|&e| largest < 127.0 * 2f64.powi(e - 7))?;
    let round = |x: f32| {
        let scaled = f64::from(x) * 2f64.powi(8 * d as i32 - 1 - e);
        let (whole, rest) = (scaled.floor(), scaled - scaled.floor());
        let up = rest > 0.5 || (rest == 0.5 && whole as i128 % 2 != 0);
        whole as i128 + i128::from(up)
    };
    Some((x.iter().map(|&x| round(x)).collect(), e))
}

/// `total`·2^s: an integer of 24 bits by shifts, scaled in f64, where that is exact, and rounded to float32 by the conversion.
fn rounded(total: i128, s: i32) -> f32 {
    let size = total.unsigned_abs();
    let over = (128 - size.leading_zeros()).saturating_sub(24);
    let (kept, rest) = (size >> over, size & ((1 << over) - 1));
    let half = (1u128 << over) >> 1;
    let up = over > 0 && (rest > half || (rest == half && kept % 2 == 1));
    let value = (kept + u128::from(up)) as f64 * 2f64.powi(over as i32 + s);
    if total < 0 { -value as f32 } else { value as f32 }
}

/// An output by the contract, in f64 and i128.
fn dot(digits: Digits, a: &[f32], b: &[f32]) -> f32 {
    let d = digits.count() as u32;
    let mut result: Option<f32> = None;
    for (a, b) in a.chunks(32768).zip(b.chunks(32768)) {
        let (Some((x, ea)), Some((y, eb))) = (integers(d, a), integers(d, b)) else { return f32::NAN };
        let low = |x: i128| (x + 128).rem_euclid(256) - 128;
        let mut total: i128 = x.iter().zip(&y).map(|(x, y)| x * y).sum();
        let mut s = ea + eb - 2 * (8 * d as i32 - 1);
        if d == 3 {
            total -= x.iter().zip(&y).map(|(&x, &y)| low(x) * low(y)).sum::<i128>();
            assert_eq!(total % 256, 0);
            total /= 256;
            s += 8;
        }
        assert!(total.abs() < 1 << if d == 3 { 54 } else { 46 }, "{total}");
        let chunk = rounded(total, s);
        result = Some(result.map_or(chunk, |sum| sum + chunk));
    }
    result.unwrap_or(0.0)
}

fn same(got: f32, want: f32, what: &str) {
    assert_eq!(crate::canonical_bits(got), crate::canonical_bits(want), "{what}: {got:e} and not {want:e}");
}

/// One output by [`product`].
fn one(digits: Digits, a: &[f32], b: &[f32]) -> f32 {
    let mut out = [f32::NAN];
    product(digits, [1, 1, a.len()], [false, false], a, b, &mut out);
    out[0]
}

/// Numbers of all kinds: normal draws, ranges of exponents, ties, zeros, subnormal numbers.
fn data(n: usize, kind: usize, stream: &mut Stream) -> Vec<f32> {
    let sign = |stream: &mut Stream, x: f32| if stream.below(2) == 0 { x } else { -x };
    (0..n)
        .map(|_| match kind {
            0 => stream.range(-1.0, 1.0),
            1 => stream.range(-1.0, 1.0) * 2f32.powi(stream.below(60) as i32 - 30),
            // Halves and quarters of the last place of both kinds of integers.
            2 => stream.below(512) as f32 * 2f32.powi(-17) - stream.below(512) as f32 * 2f32.powi(-25),
            3 => f32::from_bits(stream.below(1 << 24) as u32),
            4 => f32::MAX * stream.range(-1.0, 1.0),
            5 => sign(stream, 1.0),
            6 => sign(stream, 0.0),
            _ => 2f32.powi(stream.below(250) as i32 - 125) * stream.range(-1.0, 1.0),
        })
        .collect()
}

#[test]
fn a_product_is_that_of_the_definition() {
    let mut stream = Stream::new(28, 0);
    for digits in BOTH {
        for k in [0, 1, 2, 31, 257, 1025, DIGIT_CHUNK - 1, DIGIT_CHUNK, DIGIT_CHUNK + 1, 2 * DIGIT_CHUNK + 3]
        {
            for kind in 0..64 {
                let a = data(k, kind % 8, &mut stream);
                let b = data(k, kind / 8, &mut stream);
                same(one(digits, &a, &b), dot(digits, &a, &b), &format!("{digits:?} k = {k}, kinds {kind}"));
            }
        }
    }
}

#[test]
fn transposes_and_sizes() {
    let mut stream = Stream::new(28, 1);
    for digits in BOTH {
        for [m, n, k] in [[3, 5, 7], [1, 4, 64], [4, 1, 3], [0, 3, 2], [3, 0, 2], [2, 3, 0]] {
            let (a, b) = (data(m * k, 1, &mut stream), data(n * k, 1, &mut stream));
            // Both with k contiguous, and their transposes.
            let turned = |x: &[f32], rows: usize| {
                (0..rows * k).map(|i| x[i % rows * k + i / rows]).collect::<Vec<f32>>()
            };
            let (at, bt) = (turned(&a, m), turned(&b, n));
            for (ta, tb) in [(false, false), (true, false), (false, true), (true, true)] {
                let mut out = vec![f32::NAN; m * n];
                let (a_given, b_given) = (if ta { &at } else { &a }, if tb { &b } else { &bt });
                product(digits, [m, n, k], [ta, tb], a_given, b_given, &mut out);
                for (at, got) in out.iter().enumerate() {
                    let (i, j) = (at / n, at % n);
                    same(*got, dot(digits, &a[i * k..][..k], &b[j * k..][..k]), "an output");
                }
            }
        }
    }
}

#[test]
fn exponents_are_least_and_at_least_the_limit() {
    let with = |e: i32| 127.0 * 2f64.powi(e - 7);
    let mut all: Vec<u32> = (0..=254u32)
        .flat_map(|field| [0, 1, 0x7d_ffff, 0x7e_0000, 0x7e_0001, 0x7f_ffff].map(|m| field << 23 | m))
        .collect();
    let mut stream = Stream::new(28, 2);
    all.extend((0..10_000).map(|_| stream.below(0x7f80_0000) as u32));
    for bits in all {
        let (e, x) = (exponent(bits).unwrap(), f64::from(f32::from_bits(bits)));
        assert!(x < with(e) && (e == -96 || x >= with(e - 1)), "{x:e} has exponent {e}");
    }
    assert_eq!(
        (exponent(0), exponent(magnitude(-1.0)), exponent(magnitude(-f32::MAX))),
        (Some(-96), Some(1), Some(129))
    );
    assert_eq!((exponent(magnitude(f32::NEG_INFINITY)), exponent(magnitude(-f32::NAN))), (None, None));
    for e in -126..=127 {
        assert_eq!(f64::from(power(e)), 2f64.powi(e));
    }
}

#[test]
fn integers_and_digits_at_their_limits() {
    for digits in BOTH {
        let d = digits.count() as u32;
        let top = 127 * 256i32.pow(d - 1);
        for e in [-96, -1, 0, 1, 64, 129] {
            let scale = digits.scale(e);
            // The largest number that has this exponent; the limit itself is past the largest float32 at 129.
            let limit = 127.0 * 2f64.powi(e - 7);
            let largest = if e == 129 { f32::MAX } else { f32::from_bits((limit as f32).to_bits() - 1) };
            let want = if e == 129 { 64 * 256i32.pow(d - 1) } else { top };
            assert_eq!(Digits::integer(largest, scale), want, "{digits:?} {e}");
            assert_eq!(Digits::integer(-largest, scale), -want);
            // Ties go to the even integer.
            let unit = 2f64.powi(e - digits.bits());
            for (x, want) in [(0.5, 0), (1.5, 2), (2.5, 2), (-0.5, 0), (-1.5, -2), (0.49, 0), (0.51, 1)] {
                assert_eq!(Digits::integer((x * unit) as f32, scale), want, "{digits:?} {e} {x}");
            }
            assert_eq!(Digits::integer(f32::from_bits(1), scale), 0);
        }
        let check = |x: i32| {
            let parts = digits.split(x);
            let sum = parts.iter().rev().fold(0, |sum, &p| sum * 256 + i32::from(p));
            assert_eq!(sum, x, "{digits:?}: {parts:?}");
            assert!(parts[d as usize - 1] > -128 && (d == 3 || parts[2] == 0), "{digits:?} {x}: {parts:?}");
        };
        (-top..=top).step_by(if d == 3 { 97 } else { 1 }).for_each(check);
        for near in [-top, top, 0, 32768, -32768, 128, -128, 32640, -32896]
            .into_iter()
            .filter(|x: &i32| x.abs() <= top)
        {
            (near - 300..near + 300).filter(|x| x.abs() <= top).for_each(check);
        }
    }
}

#[test]
fn sums_of_one_weight_fit_in_32_bits() {
    // The product of two numbers is the sum over their pairs, and the most that pairs of a weight can add up to is an i32.
    for digits in BOTH {
        let mut most = [0i64; 4];
        for i in 0..digits.count() {
            for j in 0..digits.count() {
                if let Some(weight) = digits.weight(i, j) {
                    most[weight] += 128 * 128 * DIGIT_CHUNK as i64;
                }
            }
        }
        assert!(most.iter().all(|&sum| i32::try_from(sum).is_ok()), "{most:?}");
        let mut stream = Stream::new(28, 3);
        let top = 127 * 256i32.pow(digits.count() as u32 - 1);
        for round in 0..10_000 {
            let mut draw = || {
                if round < 4 {
                    top * (1 - 2 * (round % 2))
                } else {
                    stream.below(2 * top as usize + 1) as i32 - top
                }
            };
            let (x, y) = (draw(), draw());
            let (xs, ys) = (digits.split(x), digits.split(y));
            let mut sums = [0; 4];
            for (i, &x) in xs.iter().enumerate().take(digits.count()) {
                for (j, &y) in ys.iter().enumerate().take(digits.count()) {
                    if let Some(weight) = digits.weight(i, j) {
                        sums[weight] += i32::from(x) * i32::from(y);
                    }
                }
            }
            assert_eq!(Digits::total(sums), term(digits, x, y), "{x} {y}");
        }
    }
    assert_eq!(
        Digits::total([i32::MIN, i32::MAX, -1, 1]),
        -(1 << 31) + 256 * ((1 << 31) - 1) - 65536 + (1 << 24)
    );
}

#[test]
fn finishing_rounds_the_integer_once() {
    let mut stream = Stream::new(28, 4);
    let mut totals = vec![
        0,
        1,
        -1,
        3,
        (1 << 24) + 1,
        (1 << 24) + 3,
        (1 << 25) + 2,
        -(1 << 25) - 6,
        (1 << 54) - 1,
        -(1 << 54) + 1,
        (1 << 53) + (1 << 29),
        (1 << 53) + (1 << 29) + 1,
    ];
    totals.extend((0..2000).map(|_| (stream.bits() >> 9) as i64 >> stream.below(55)));
    for total in totals {
        for s in (-230..=230).step_by(7).chain([-149, -150, -151, -172, -173, 74, 75, 127, 128]) {
            same(finish(total, s), rounded(i128::from(total), s), &format!("{total} times 2^{s}"));
            same(finish(-total, s), rounded(-i128::from(total), s), &format!("{total} times 2^{s}"));
        }
    }
    assert_eq!(finish(0, -230).to_bits(), 0);
}

#[test]
fn whole_numbers_are_exact() {
    let mut stream = Stream::new(28, 5);
    // Below 64 in size and with one of 63 in each row, numbers are integers of few bits in both.
    for digits in BOTH {
        for k in [64, 1000, 40_000] {
            let mut draw = |_| stream.below(127) as f32 - 63.0;
            let (mut a, mut b): (Vec<f32>, Vec<f32>) =
                ((0..k).map(&mut draw).collect(), (0..k).map(&mut draw).collect());
            (a[0], b[0]) = (63.0, -63.0);
            let exact: i64 = a.iter().zip(&b).map(|(x, y)| *x as i64 * *y as i64).sum();
            assert_eq!(one(digits, &a, &b), exact as f32, "{digits:?} {k}");
        }
    }
}

#[test]
fn special_values() {
    let k = DIGIT_CHUNK + 2;
    for digits in BOTH {
        let mut a = vec![1.0; k];
        // Anywhere in k, also beside a zero.
        for at in [0, 5, k - 1] {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let (good, mut b) = (a[at], vec![0.0; k]);
                a[at] = bad;
                assert_eq!(one(digits, &a, &b).to_bits(), 0x7fc0_0000, "{bad} at {at}");
                assert_eq!(one(digits, &b, &a).to_bits(), 0x7fc0_0000, "{bad} at {at}");
                (a[at], b[at]) = (good, bad);
                assert_eq!(one(digits, &a, &b).to_bits(), 0x7fc0_0000, "{bad} at {at}");
            }
        }
        // Zeros of any sign give +0, and so does a sum that cancels.
        for (a, b) in [
            ([0.0, 0.0], [1.0, 2.0]),
            ([-0.0, -0.0], [1.0, 2.0]),
            ([-1.0, 0.0], [0.0, 3.0]),
            ([1.0, -1.0], [3.0, 3.0]),
        ] {
            assert_eq!(one(digits, &a, &b).to_bits(), 0, "{a:?} {b:?}");
        }
        // Terms overflow while the sum does not: it is exact.
        let huge = f32::MAX;
        assert_eq!(one(digits, &[huge, huge], &[2.0, -1.5]), 2f32.powi(127));
        assert_eq!(one(digits, &[huge, 1.0], &[2.0, 0.0]), f32::INFINITY);
        assert_eq!(one(digits, &[huge, 1.0], &[-huge, 0.0]), f32::NEG_INFINITY);
        // Powers of two are exact wherever the scale is above its limit, also if the result is subnormal or rounds to zero.
        assert_eq!(one(digits, &[2f32.powi(-90)], &[2f32.powi(-50)]), 2f32.powi(-140));
        assert_eq!(one(digits, &[2f32.powi(-90)], &[-2f32.powi(-90)]).to_bits(), (-0.0f32).to_bits());
        // Below the limit of the scale, digits run out.
        assert_eq!(one(digits, &[2f32.powi(-96 - 8 * digits.count() as i32)], &[1.0]), 0.0);
    }
}

#[test]
fn totals_near_the_limits() {
    for digits in BOTH {
        // The largest integer of both factors in a full chunk, whose digits below the top are 0, and the integer with
        // −128 in all lower digits.
        let below = f32::from_bits((127.0f32 / 128.0).to_bits() - 1);
        let low = 126.0 / 128.0 - 2f32.powi(-8);
        for (x, y) in [(below, below), (below, -below), (low, low), (low, -below)] {
            for k in [DIGIT_CHUNK, 2 * DIGIT_CHUNK] {
                let (a, b) = (vec![x; k], vec![y; k]);
                same(one(digits, &a, &b), dot(digits, &a, &b), &format!("{digits:?} {x} {y} {k}"));
            }
        }
    }
}

#[test]
fn sizes_decide() {
    let cases = [
        ([512, 512, 256], true),
        ([511, 512, 256], false),
        ([128, 128, 1 << 12], true),
        ([128, 128, (1 << 12) - 1], false),
        ([127, 128, 1 << 20], false),
        ([128, 127, 1 << 20], false),
        ([1 << 20, 128, 127], false),
        ([1 << 20, 128, 128], true),
        ([usize::MAX, usize::MAX, 128], true),
        ([0, 0, 0], false),
    ];
    for ([m, n, k], yes) in cases {
        assert_eq!(takes_part(m, n, k), yes, "{m} {n} {k}");
        assert_eq!(Digits::of_product(Numerics::Turbo, m, n, k), yes.then_some(Digits::Two));
        assert_eq!(Digits::of_product(Numerics::Fast, m, n, k), yes.then_some(Digits::Three));
        for other in [Numerics::Strict, Numerics::Tf32] {
            assert_eq!(Digits::of_product(other, m, n, k), None);
        }
    }
}

#[test]
fn sizes_of_convolutions_decide() {
    let cases = [
        ([32, 32], 288, 1 << 28, true),
        ([32, 32], 288, (1 << 28) - 1, false),
        ([31, 64], 288, 1 << 30, false),
        ([64, 31], 288, 1 << 30, false),
        ([4096, 64], DIGIT_CHUNK, usize::MAX, true),
        ([4096, 64], DIGIT_CHUNK + 1, usize::MAX, false),
        ([64, 64], 0, 1 << 30, false),
    ];
    for (channels, terms, work, yes) in cases {
        assert_eq!(conv_takes_part(channels, terms, work), yes, "{channels:?} {terms} {work}");
        assert_eq!(Digits::of_conv(Numerics::Turbo, channels, terms, work), yes.then_some(Digits::Two));
        assert_eq!(Digits::of_conv(Numerics::Strict, channels, terms, work), None);
    }
    for (channels, yes) in [([32, 64], true), ([64, 63], false), ([31, 64], false)] {
        let digits = Digits::of_kernel_grad(Numerics::Fast, channels, 1024, 1 << 28);
        assert_eq!(digits, yes.then_some(Digits::Three), "{channels:?}");
    }
    let images = [(1, 2048), (49, 41), (784, 2), (1024, 2), (1025, 1), (2049, 1), (32768, 1), (0, 2048)];
    images.iter().for_each(|&(positions, run)| assert_eq!(conv_run(positions), run, "{positions}"));
}

/// A draw from the standard normal distribution.
fn normal(stream: &mut Stream) -> f64 {
    let (u, v) = (1.0 - f64::from(stream.uniform()), f64::from(stream.uniform()));
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

/// What errors are measured on: a name, and draws of both operands.
type Draw = fn(&mut Stream) -> f64;
const DATA: [(&str, Draw, Draw); 4] = [
    ("normal", normal, normal),
    ("relu × weights", |s| normal(s).max(0.0), |s| 0.02 * normal(s)),
    ("Student t3", student, student),
    ("lognormal(2), signed", lognormal, lognormal),
];

fn student(stream: &mut Stream) -> f64 {
    let square: f64 = (0..3).map(|_| normal(stream).powi(2)).sum();
    normal(stream) / (square / 3.0).sqrt()
}

fn lognormal(stream: &mut Stream) -> f64 {
    let size = (2.0 * normal(stream)).exp();
    if stream.below(2) == 0 { size } else { -size }
}

/// Relative errors (Frobenius) of products `(rows, k)` by `(k, rows)` against f64: by float32 (C4), with factors rounded to TF32,
/// in two and in three digits.
fn errors(rows: usize, k: usize, (_, left, right): (&str, Draw, Draw)) -> [f64; 4] {
    let mut stream = Stream::new(29, k as u64);
    let a: Vec<f32> = (0..rows * k).map(|_| left(&mut stream) as f32).collect();
    let b: Vec<f32> = (0..rows * k).map(|_| right(&mut stream) as f32).collect();
    // Eleven bits, the nearest.
    let tf32 = |x: f32| f32::from_bits((x.to_bits() + 0x0fff + (x.to_bits() >> 13 & 1)) & !0x1fff);
    let strict = |a: &[f32], b: &[f32]| {
        let chain = |a: &[f32], b: &[f32]| a.iter().zip(b).fold(0f32, |sum, (&x, &y)| x.mul_add(y, sum));
        let chunks = a.chunks(crate::K_CHUNK).zip(b.chunks(crate::K_CHUNK));
        chunks.map(|(a, b)| chain(a, b)).reduce(|sum, next| sum + next).unwrap_or(0.0)
    };
    let mut digits = BOTH.map(|_| vec![0.0; rows * rows]);
    for (which, out) in BOTH.into_iter().zip(&mut digits) {
        product(which, [rows, rows, k], [false, true], &a, &b, out);
    }
    let (mut wrong, mut all) = ([0.0; 4], 0.0);
    for at in 0..rows * rows {
        let (a, b) = (&a[at / rows * k..][..k], &b[at % rows * k..][..k]);
        let exact: f64 = a.iter().zip(b).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum();
        let got = [
            f64::from(strict(a, b)),
            a.iter().zip(b).map(|(&x, &y)| f64::from(tf32(x)) * f64::from(tf32(y))).sum(),
            f64::from(digits[0][at]),
            f64::from(digits[1][at]),
        ];
        all += exact * exact;
        wrong.iter_mut().zip(got).for_each(|(wrong, got)| *wrong += (got - exact) * (got - exact));
    }
    wrong.map(|wrong| (wrong / all).sqrt())
}

#[test]
fn errors_on_normal_data_are_small() {
    for k in [768, 8192] {
        let [_, tf32, turbo, fast] = errors(24, k, DATA[0]);
        assert!(fast <= 6e-7 && turbo <= 1.5e-4 && turbo < tf32, "{k}: {fast:e} {turbo:e} {tf32:e}");
    }
}

/// The table of C9.
#[test]
#[ignore = "takes a minute; it prints the table of NUMERICS.md"]
fn table_of_errors() {
    println!("| data | K | float32 | TF32 | `turbo` | `fast` |\n|---|---|---|---|---|---|");
    for data in DATA {
        for k in [768, 2048, 4096, 8192] {
            let [strict, tf32, turbo, fast] = errors(128, k, data);
            println!("| {} | {k} | {strict:.1e} | {tf32:.1e} | {turbo:.1e} | {fast:.1e} |", data.0);
        }
    }
}
