use super::cases::Case;
use super::*;
use crate::cases::pick;
use dittograd_device::cpu::depthwise::ThinGrad;
use dittograd_device::cpu::pool::Pool;
use dittograd_device::cpu::simd::Simd;
use dittograd_numerics::rng::Stream;

fn bits(v: &[f32]) -> Vec<u32> {
    v.iter().map(|x| if x.is_nan() { u32::MAX } else { x.to_bits() }).collect()
}

/// Numbers of either sign and of all sizes, some zeros, and now and then one that is not finite.
fn values(len: usize, stream: &mut Stream) -> Vec<f32> {
    let one = |stream: &mut Stream| match stream.below(1000) {
        0 => f32::INFINITY,
        1 => -f32::INFINITY,
        2..60 => 0.0,
        60..100 => -1e-30,
        n => (stream.below(20_001) as f32 - 10_000.0) / [7.0, 3e4, 1e-3][n % 3],
    };
    (0..len).map(|_| one(stream)).collect()
}

/// The three ops of a case, thin and not: whether there was a thin one of each, and the same bits.
fn same(case: &Case, stream: &mut Stream) -> [bool; 3] {
    let of = |i: usize| case.axes.iter().map(|a| a[i]).collect::<Vec<_>>();
    let Ok(g) = Geometry::new("conv", &case.window(), case.batch, case.channels, &of(0), &of(1)) else {
        return [false; 3];
    };
    let Some([x, w, y, b, bt]) = case.shapes().map(|s| s.map(|s| values(s.numel(), stream))) else {
        return [false; 3];
    };
    let mut found = [false; 3];
    for (threads, simd) in [1, 3].into_iter().zip(Simd::all_available().into_iter().rev().cycle()) {
        let pool = Pool::new(threads);
        let classes = [vec![g.forward()], g.transposed().collect::<Vec<_>>()];
        for (i, ((classes, from), (bias, out))) in
            classes.iter().zip([&x, &y]).zip([(&b, y.len()), (&bt, x.len())]).enumerate()
        {
            let bias = case.bias.then_some(&bias[..]);
            let Some(thin) = Thin::new(classes.iter().copied()).filter(|t| t.feeds(threads)) else {
                continue;
            };
            found[i] = true;
            let (mut got, mut want) = (vec![f32::NAN; out], vec![f32::NAN; out]);
            let mut scratch = vec![f32::NAN; thin.scratch_len(threads)];
            thin.run(&pool, simd, from, &w, bias, &mut got, &mut scratch);
            for class in classes {
                let mut scratch = vec![f32::NAN; class.scratch_len(threads)];
                class.run(&pool, simd, from, &w, bias, &mut want, &mut scratch);
            }
            assert_eq!(bits(&got), bits(&want), "{case:?} {threads} {simd} op {i}");
        }
        let grad = g.kernel_grad();
        if let Some(thin) = ThinGrad::new(&grad) {
            found[2] = true;
            let (mut got, mut want) = (vec![f32::NAN; w.len()], vec![f32::NAN; w.len()]);
            let mut scratch = vec![f32::NAN; thin.scratch_len(threads)];
            thin.run(&pool, simd, &y, &x, &mut got, &mut scratch);
            let mut scratch = vec![f32::NAN; grad.scratch_len(threads)];
            grad.run(&pool, simd, &y, &x, &mut want, &mut scratch);
            assert_eq!(bits(&got), bits(&want), "{case:?} {threads} {simd} gradient");
        }
    }
    found
}

#[test]
fn thin_groups_have_the_bits_of_products() {
    let case = |batch, channels, groups, axes: &[[usize; 5]]| Case {
        batch: Some(batch),
        channels,
        groups,
        axes: axes.to_vec(),
        bias: channels[0] % 2 == 0,
    };
    let all = [
        // Widths around vectors, a stride and a skip each, and padding wider than the kernel.
        case(1, [5, 5], 5, &[[3, 3, 1, 1, 1], [15, 3, 1, 1, 1]]),
        case(2, [6, 6], 6, &[[9, 3, 2, 1, 1], [16, 3, 2, 1, 1]]),
        case(1, [17, 17], 17, &[[4, 3, 1, 2, 2], [17, 5, 3, 4, 2]]),
        case(2, [4, 4], 4, &[[5, 1, 1, 3, 1], [7, 2, 2, 5, 1]]),
        case(1, [16, 16], 16, &[[7, 1, 1, 0, 1], [7, 1, 2, 0, 1]]),
        // Several channels of either kind.
        case(2, [8, 16], 8, &[[12, 3, 1, 1, 1], [13, 3, 1, 1, 1]]),
        case(2, [18, 9], 9, &[[12, 3, 2, 1, 1], [13, 2, 1, 1, 1]]),
        case(1, [8, 8], 4, &[[6, 3, 1, 1, 1], [33, 3, 1, 1, 1]]),
        // Many taps, several boxes, several chunks that end inside lines.
        case(2, [4, 4], 4, &[[40, 7, 1, 3, 1], [47, 7, 1, 3, 1]]),
        case(1, [4, 4], 4, &[[40, 3, 1, 1, 1], [300, 3, 1, 1, 1]]),
        case(5, [33, 33], 33, &[[15, 3, 1, 1, 1], [16, 3, 1, 1, 1]]),
        // Lines longer than a piece, and other numbers of axes.
        case(2, [5, 5], 5, &[[1500, 5, 1, 2, 1]]),
        case(1, [4, 8], 4, &[[3, 2, 1, 1, 1], [1100, 3, 2, 1, 3]]),
        case(2, [4, 4], 4, &[[5, 3, 1, 1, 1], [6, 3, 2, 1, 1], [7, 3, 1, 1, 2]]),
        case(1, [4, 4], 4, &[[3, 2, 1, 1, 1], [4, 1, 1, 0, 1], [5, 2, 2, 0, 1], [6, 3, 1, 1, 1]]),
    ];
    let mut stream = Stream::new(7, 0);
    for case in &all {
        assert_eq!(same(case, &mut stream), [true; 3], "{case:?}");
    }
    let mut found = [0; 3];
    for _ in 0..150 {
        let mut case = Case::random(&mut stream);
        if case.groups < 4 {
            case.groups = pick(&[4, 7, 16, 18], &mut stream);
            let m = [pick(&[1, 1, 2, 3], &mut stream), pick(&[1, 1, 2], &mut stream)];
            case.channels = m.map(|m| m * case.groups);
        }
        for (n, found) in found.iter_mut().zip(same(&case, &mut stream)) {
            *n += usize::from(found);
        }
    }
    assert!(found.iter().all(|&n| n > 60), "{found:?}");
}
