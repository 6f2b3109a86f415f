//! Pooling as a program uses it: known values, ties, padding and special values.

use dittograd::device::Device;
use dittograd::device::cpu::simd::Simd;
use dittograd::ops::PoolWindow;
use dittograd::session::{Session, Var};
use dittograd::shape::Shape;
use dittograd::tensor::Tensor;

fn session() -> Session {
    Session::eager(&Device::cpu_with(2, Simd::best()).unwrap())
}

fn tensor(dims: &[usize], data: &[f32]) -> Tensor<f32> {
    Tensor::new(dims, data.to_vec()).unwrap()
}

fn values(v: Var<'_>) -> Vec<f32> {
    v.value::<f32>().unwrap().data().to_vec()
}

/// The gradient of `x` for the given upstream gradient.
fn gradient(y: Var<'_>, x: Var<'_>, g: &[f32]) -> Vec<f32> {
    let seed = Tensor::with_shape(y.shape().unwrap(), g.to_vec()).unwrap();
    let grads = y.backward_from(&seed).unwrap();
    grads.var(x).unwrap().to_tensor::<f32>().unwrap().data().to_vec()
}

#[track_caller]
fn near(got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len());
    for (g, w) in got.iter().zip(want) {
        assert!((g - w).abs() <= 1e-6 * w.abs().max(1.0), "{got:?} {want:?}");
    }
}

#[test]
fn averages_count_padding_or_not() {
    let s = session();
    let x = s.variable(&tensor(&[3, 3], &[1., 2., 3., 4., 5., 6., 7., 8., 9.])).unwrap();
    let y = x.avg_pool2d_pad([2, 2], 2, 1).unwrap();
    near(&values(y), &[0.25, 1.25, 2.75, 7.0]);
    near(&gradient(y, x, &[4.0, 8.0, 12.0, 16.0]), &[1., 2., 2., 3., 4., 4., 3., 4., 4.]);
    let y = x.avg_pool(&[2, 2], &[2, 2], &[1, 1], false).unwrap();
    near(&values(y), &[1.0, 2.5, 5.5, 7.0]);
    near(&gradient(y, x, &[1.0, 2.0, 2.0, 4.0]), &[1., 1., 1., 1., 1., 1., 1., 1., 1.]);
    near(&values(x.adaptive_avg_pool(&[2, 2]).unwrap()), &[3.0, 4.0, 6.0, 7.0]);
    near(&values(x.adaptive_avg_pool(&[1, 1]).unwrap()), &[5.0]);
    near(&values(x.global_avg_pool(2).unwrap()), &[5.0]);
    assert_eq!(values(x.global_max_pool(2).unwrap()), [9.0]);
    assert!(x.global_max_pool(3).is_err() && x.global_avg_pool(0).is_err());
}

#[test]
fn the_first_of_equal_maxima_gets_the_gradient() {
    let s = session();
    let x = s.variable(&tensor(&[4], &[1., 5., 5., 2.])).unwrap();
    let y = x.max_pool(&[3], &[1], &[1]).unwrap();
    assert_eq!(values(y), [5.0; 4]);
    assert_eq!(gradient(y, x, &[1., 2., 3., 4.]), [0., 6., 4., 0.]);
    let x = s.variable(&tensor(&[1, 2, 2], &[7.0; 4])).unwrap();
    let y = x.max_pool2d([2, 2], 2).unwrap();
    assert_eq!(gradient(y, x, &[1.0]), [1., 0., 0., 0.]);
    // Windows that are apart, and cells that no window holds.
    let x = s.variable(&tensor(&[5], &[3., 9., 1., 2., 8.])).unwrap();
    let y = x.max_pool_dilated(&[2], &[1], &[0], &[2]).unwrap();
    assert_eq!(values(y), [3., 9., 8.]);
    assert_eq!(gradient(y, x, &[1., 2., 4.]), [1., 2., 0., 0., 4.]);
    let y = x.max_pool(&[2], &[2], &[0]).unwrap();
    assert_eq!(gradient(y, x, &[1., 2.]), [0., 1., 0., 2., 0.]);
}

#[test]
fn infinities_and_nan_come_through_a_maximum() {
    let s = session();
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let x = s.variable(&tensor(&[4, 2], &[-inf, -inf, 1.0, nan, nan, nan, inf, nan])).unwrap();
    let y = x.max_pool(&[2], &[2], &[0]).unwrap();
    let got = values(y);
    assert!(got[0] == -inf && got[1].is_nan() && got[2].is_nan() && got[3].is_nan());
    assert_eq!(gradient(y, x, &[1., 2., 3., 4.]), [1., 0., 0., 2., 3., 0., 0., 4.]);
}

#[test]
fn smooth_maxima_are_logarithms_of_sums() {
    let s = session();
    let x = s.input(&tensor(&[2, 2], &[1.0; 4])).unwrap();
    near(&values(x.smooth_max_pool2d([2, 2], 1, 2.0).unwrap()), &[1.693_147_2]);
    let x = s.variable(&tensor(&[1, 1, 1], &[1.0])).unwrap();
    let y = x.smooth_max_pool2d_pad([2, 2], 1, 1, 1.0).unwrap();
    near(&values(y), &[1.743_668_4; 4]);
    near(&gradient(y, x, &[1.0; 4]), &[1.901_468]);
    let x = s.input(&tensor(&[2, 2], &[1., 2., 3., 4.])).unwrap();
    near(&values(x.smooth_max_pool2d([2, 2], 1, -2.0).unwrap()), &[0.927_461]);
    for beta in [0.0, -0.0, 1e-50, f64::NAN, f64::INFINITY] {
        assert!(x.smooth_max_pool2d([2, 2], 1, beta).is_err());
    }
    // Infinite values stay what they are.
    let inf = f32::INFINITY;
    let x = s.input(&tensor(&[3, 2], &[-inf, -inf, inf, 1.0, -inf, 1.0])).unwrap();
    let got = values(x.smooth_max_pool(&[2], &[1], &[0], 3.0).unwrap());
    assert_eq!(got, [-inf, inf, 1.0]);
}

/// Padding is cells of value 0, so a smooth maximum of padded windows is that of an input with these zeros in it.
#[test]
fn smooth_maxima_take_any_padding_as_zeros() {
    let s = session();
    let data: Vec<f32> = (0..2 * 5 * 4).map(|i| (i * 7 % 31) as f32 * 0.25 - 3.0).collect();
    let cases = [
        ([2, 2], [1, 1], [2, 2], 1.0),
        ([3, 2], [2, 1], [4, 0], 2.0),
        ([2, 3], [1, 3], [0, 5], -1.5),
        ([1, 1], [1, 2], [3, 1], 0.5),
        ([7, 2], [1, 1], [1, 7], 3.0),
        ([2, 2], [3, 2], [9, 9], 1.0),
    ];
    for (kernel, stride, padding, beta) in cases {
        let of = |by_op: bool| {
            let x = s.variable(&tensor(&[2, 5, 4], &data)).unwrap();
            let y = match by_op {
                true => x.smooth_max_pool(&kernel, &stride, &padding, beta).unwrap(),
                false => (0..2)
                    .fold(x, |v, a| v.pad_with(a + 1, padding[a], padding[a], 0.0).unwrap())
                    .smooth_max_pool(&kernel, &stride, &[0, 0], beta)
                    .unwrap(),
            };
            let (shape, value) = (y.shape().unwrap(), values(y));
            let g: Vec<f32> = (0..value.len()).map(|i| (i % 5) as f32 - 1.5).collect();
            (shape, value, gradient(y, x, &g))
        };
        assert_eq!(of(true), of(false), "{kernel:?} {stride:?} {padding:?}");
    }
    // A window of padding only has the logarithm of its cells.
    let x = s.input(&tensor(&[1], &[5.0])).unwrap();
    near(&values(x.smooth_max_pool(&[2], &[3], &[2], 2.0).unwrap()), &[2f32.ln() / 2.0; 2]);
    // Other pools refuse such windows: a maximum of nothing has no value.
    assert!(x.max_pool(&[2], &[3], &[2]).is_err());
}

#[test]
fn leading_axes_are_independent() {
    let s = session();
    let data: Vec<f32> = (0..2 * 3 * 4 * 4).map(|i| (i * 7 % 31) as f32).collect();
    let x = s.input(&tensor(&[2, 3, 4, 4], &data)).unwrap();
    let all = values(x.max_pool2d_pad([3, 3], 2, 1).unwrap());
    for (i, plane) in data.chunks(16).enumerate() {
        let one = s.input(&tensor(&[4, 4], plane)).unwrap();
        assert_eq!(values(one.max_pool2d_pad([3, 3], 2, 1).unwrap())[..], all[i * 4..(i + 1) * 4]);
    }
    // Three pooled axes with windows of their own.
    let x = s.input(&tensor(&[3, 4, 4], &data[..48])).unwrap();
    assert_eq!(
        x.avg_pool(&[2, 2, 4], &[1, 2, 1], &[0, 0, 1], true).unwrap().shape().unwrap().dims(),
        [2, 2, 3]
    );
}

/// Of equal numbers the first one stays, which can be seen of zeros.
#[test]
fn the_first_of_equal_numbers_is_the_largest() {
    let s = session();
    for (x, want) in [([-0.0f32, 0.0], -0.0f32), ([0.0, -0.0], 0.0)] {
        let y = s.variable(&tensor(&[1, 2], &x)).unwrap().max_pool(&[2], &[2], &[0]).unwrap();
        assert_eq!(values(y)[0].to_bits(), want.to_bits());
    }
}

#[test]
fn unpooling_finds_its_sizes() {
    let s = session();
    let x = s.input(&Tensor::from_fn(Shape::new(&[2, 5, 6]).unwrap(), |i| (i * 7 % 31) as f32)).unwrap();
    let window = PoolWindow::new(&[3, 2], &[1, 2], &[1, 0]);
    let (y, at) = x.max_pool_with_indices(window.clone(), false).unwrap();
    let back = y.max_unpool_with(at, window.clone()).unwrap();
    assert_eq!(back.shape().unwrap().dims(), [2, 5, 6]);
    let given = y.max_unpool(at, &[5, 6]).unwrap();
    assert_eq!(back.value::<f32>().unwrap(), given.value::<f32>().unwrap());
    let e = y.max_unpool_with(at, PoolWindow::new(&[1, 1], &[1, 1], &[9, 9])).unwrap_err().to_string();
    assert!(e.contains("there is no plane"), "{e}");
    assert!(y.max_unpool_with(at, PoolWindow::new(&[1; 4], &[1; 4], &[0; 4])).is_err());
}
