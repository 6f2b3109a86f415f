//! Fourier transforms and spectral convolutions: golden values, identities, and the same bits on either way.

use crate::support::{data, device as cpu, t as tensor};
use dittograd::device::Meta;
use dittograd::graph::Graph;
use dittograd::numerics::rng::Stream;
use dittograd::ops::AnyTensor;
use dittograd::ops::spectral::{DftTable, SpectralConv1d};
use dittograd::session::Session;
use dittograd::tensor::Tensor;

fn random(dims: &[usize], seed: u64) -> Tensor<f32> {
    let mut s = Stream::new(seed, 0);
    Tensor::from_fn(dittograd::shape::Shape::new(dims).unwrap(), |_| s.range(-1.0, 1.0))
}

fn close(got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len());
    let near = got.iter().zip(want).all(|(g, w)| (g - w).abs() <= tolerance);
    assert!(near, "got {got:?}, want {want:?}");
}

/// Value and gradients of a convolution of one channel.
fn conv(x: &[f32], re: &[f32], im: &[f32], dy: &[f32]) -> [Vec<f32>; 4] {
    let device = cpu();
    let s = Session::eager(&device);
    let x = s.variable(&tensor(&[x.len(), 1], x)).unwrap();
    let re = s.variable(&tensor(&[re.len(), 1, 1], re)).unwrap();
    let im = s.variable(&tensor(&[im.len(), 1, 1], im)).unwrap();
    let y = x.spectral_conv1d(re, im).unwrap();
    let value = data(y);
    let grads = y.backward_from(&tensor(&[dy.len(), 1], dy)).unwrap();
    let grad = |v| grads.var(v).unwrap().to_tensor::<f32>().unwrap().into_data();
    [value, grad(x), grad(re), grad(im)]
}

#[test]
fn even_grid_with_all_modes() {
    let [y, dx, dre, dim] =
        conv(&[0.2, -0.4, 0.7, 1.1], &[0.75, -0.3, 0.2], &[0.0, 0.45, 0.0], &[1.0, -0.5, 0.25, 0.75]);
    close(&y, &[0.0475, 0.6275, 0.5725, -0.0475], 1e-6);
    close(&dx, &[0.5, 0.5875, 0.1625, -0.125], 1e-6);
    close(&dre, &[0.6, 0.75, 0.05], 1e-6);
    close(&dim, &[0.0, -0.875, 0.0], 1e-6);
    assert_eq!((dim[0], dim[2]), (0.0, 0.0), "no leakage at the edges");
}

#[test]
fn odd_grid_with_few_modes() {
    let [y, dx, dre, dim] =
        conv(&[1.0, 2.0, -1.0, 0.5, 3.0], &[0.5, -0.25], &[0.7, 1.5], &[1.0, -1.0, 0.5, 0.25, 2.0]);
    close(&y, &[-0.8445998, -1.38979, 0.7457439, 2.610766, 1.62788], 2e-6);
    close(&dx, &[1.828508, 1.413168, -0.5750823, -1.388548, 0.0969533], 2e-6);
    close(&dre, &[3.025, 2.812461], 2e-6);
    close(&dim, &[0.0, 2.678086], 2e-6);
}

#[test]
fn no_modes_give_zeros() {
    let [y, dx, dre, _] = conv(&[1.0, 2.0, 3.0], &[], &[], &[1.0, 1.0, 1.0]);
    assert_eq!((y, dx, dre.len()), (vec![0.0; 3], vec![0.0; 3], 0));
}

#[test]
fn the_op_and_its_parts_have_the_same_bits() {
    let device = cpu();
    let s = Session::eager(&device);
    let (x, re, im) = (random(&[3, 2, 40, 5], 1), random(&[9, 5, 6], 2), random(&[9, 5, 6], 3));
    let seed = random(&[3, 2, 40, 6], 4);
    let run = |parts: bool| {
        let [x, re, im] = [&x, &re, &im].map(|t| s.variable(t).unwrap());
        let y = if parts {
            x.spectral_conv1d(re, im).unwrap()
        } else {
            s.apply(SpectralConv1d, &[x, re, im]).unwrap()
        };
        let value = data(y);
        let grads = y.backward_from(&seed).unwrap();
        let all = [x, re, im].map(|v| grads.var(v).unwrap().to_tensor::<f32>().unwrap().into_data());
        (value, all)
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn identity_weights_keep_a_band_limited_value() {
    let device = cpu();
    let s = Session::eager(&device);
    for n in [1, 2, 5, 8, 33, 64] {
        let modes = n / 2 + 1;
        let x = random(&[2, n, 1], n as u64);
        let one =
            s.input(&Tensor::full(dittograd::shape::Shape::new(&[modes, 1, 1]).unwrap(), 1.0f32)).unwrap();
        let zero = one.scale(0.0).unwrap();
        let y = s.input(&x).unwrap().spectral_conv1d(one, zero).unwrap();
        close(&data(y), x.data(), 3e-6);
    }
}

#[test]
fn channels_first_is_the_transposed_value() {
    let device = cpu();
    let s = Session::eager(&device);
    let (x, re, im) = (random(&[2, 3, 16], 1), random(&[5, 3, 4], 2), random(&[5, 3, 4], 3));
    let [x, re, im] = [&x, &re, &im].map(|t| s.input(t).unwrap());
    let first = x.spectral_conv1d_channels_first(re, im).unwrap();
    let last = x.transpose().unwrap().spectral_conv1d(re, im).unwrap().transpose().unwrap();
    assert_eq!(first.shape().unwrap().dims(), [2, 4, 16]);
    assert_eq!(data(first), data(last));
}

/// The plane by its definition in f64.
fn plane(x: &Tensor<f32>, re: &Tensor<f32>, im: &Tensor<f32>) -> Vec<f32> {
    let [gx, gy, c] = [0, 1, 2].map(|i| x.shape().dims()[i]);
    let [mx, my, o] = [1, 2, 4].map(|i| re.shape().dims()[i]);
    let tau = std::f64::consts::TAU;
    let mut y = vec![0.0f64; gx * gy * o];
    for corner in 0..2 {
        for i in 0..mx {
            let kx = if corner == 0 { i as f64 } else { i as f64 - mx as f64 };
            for ky in 0..my {
                let phase =
                    |a: usize, b: usize| tau * (kx * a as f64 / gx as f64 + (ky * b) as f64 / gy as f64);
                let mut z = vec![(0.0, 0.0); o];
                for ch in 0..c {
                    let (mut real, mut imaginary) = (0.0, 0.0);
                    for a in 0..gx {
                        for b in 0..gy {
                            let v = f64::from(x.data()[(a * gy + b) * c + ch]);
                            real += v * phase(a, b).cos();
                            imaginary -= v * phase(a, b).sin();
                        }
                    }
                    for (j, z) in z.iter_mut().enumerate() {
                        let at = (((corner * mx + i) * my + ky) * c + ch) * o + j;
                        let (wr, wi) = (f64::from(re.data()[at]), f64::from(im.data()[at]));
                        z.0 += real * wr - imaginary * wi;
                        z.1 += real * wi + imaginary * wr;
                    }
                }
                let edge = ky == 0 || 2 * ky == gy;
                let weight = if edge { 1.0 } else { 2.0 } / (gx * gy) as f64;
                for a in 0..gx {
                    for b in 0..gy {
                        for (j, z) in z.iter().enumerate() {
                            y[(a * gy + b) * o + j] +=
                                weight * (z.0 * phase(a, b).cos() - z.1 * phase(a, b).sin());
                        }
                    }
                }
            }
        }
    }
    y.into_iter().map(|v| v as f32).collect()
}

#[test]
fn a_plane_follows_its_definition() {
    let device = cpu();
    let s = Session::eager(&device);
    for (gx, gy, mx, my) in [(8, 8, 3, 4), (6, 5, 3, 3), (5, 6, 2, 4), (4, 4, 0, 2)] {
        let (c, o) = (2, 3);
        let x = random(&[gx, gy, c], 1);
        let (re, im) = (random(&[2, mx, my, c, o], 2), random(&[2, mx, my, c, o], 3));
        let y = s.input(&x).unwrap().spectral_conv2d(s.input(&re).unwrap(), s.input(&im).unwrap()).unwrap();
        assert_eq!(y.shape().unwrap().dims(), [gx, gy, o]);
        close(&data(y), &plane(&x, &re, &im), 1e-5);
    }
    // Leading axes are a batch.
    let (x, w) = (random(&[2, 3, 4, 4, 2], 1), random(&[2, 2, 2, 2, 1], 2));
    let w = s.input(&w).unwrap();
    let all = s.input(&x).unwrap().spectral_conv2d(w, w).unwrap();
    let one = s.input(&tensor(&[4, 4, 2], &x.data()[32 * 4..32 * 5])).unwrap().spectral_conv2d(w, w).unwrap();
    assert_eq!(all.shape().unwrap().dims(), [2, 3, 4, 4, 1]);
    assert_eq!(data(all)[16 * 4..16 * 5], data(one)[..]);
}

#[test]
fn a_plane_refuses_what_does_not_fit() {
    let device = cpu();
    let s = Session::eager(&device);
    let v = |d: &[usize]| s.input(&random(d, 1)).unwrap();
    assert!(v(&[4, 2]).spectral_conv2d(v(&[2, 1, 1, 2, 2]), v(&[2, 1, 1, 2, 2])).is_err());
    assert!(v(&[4, 4, 2]).spectral_conv2d(v(&[1, 1, 2, 2]), v(&[1, 1, 2, 2])).is_err());
    assert!(v(&[4, 4, 2]).spectral_conv2d(v(&[2, 1, 1, 3, 2]), v(&[2, 1, 1, 3, 2])).is_err());
    assert!(v(&[4, 4, 2]).spectral_conv2d(v(&[2, 3, 1, 2, 2]), v(&[2, 3, 1, 2, 2])).is_err());
    assert!(v(&[4, 4, 2]).spectral_conv2d(v(&[2, 1, 4, 2, 2]), v(&[2, 1, 4, 2, 2])).is_err());
    assert!(v(&[4, 4, 2]).spectral_conv2d(v(&[2, 1, 1, 2, 2]), v(&[2, 1, 1, 2, 1])).is_err());
}

#[test]
fn rfft_of_four() {
    let device = cpu();
    let s = Session::eager(&device);
    let x = s.input(&tensor(&[4], &[1.0, 2.0, 3.0, 4.0])).unwrap();
    assert_eq!(data(x.rfft().unwrap()), [10.0, 0.0, -2.0, 2.0, -2.0, 0.0]);
}

#[test]
fn there_and_back() {
    let device = cpu();
    let s = Session::eager(&device);
    for n in [1, 2, 7, 64, 129, 144, 210, 256, 1000, 1009, 4096] {
        let x = random(&[3, n], n as u64);
        let spectrum = s.input(&x).unwrap().rfft().unwrap();
        assert_eq!(spectrum.shape().unwrap().dims(), [3, n / 2 + 1, 2]);
        close(&data(spectrum.irfft(n).unwrap()), x.data(), 3e-6);
        let edges = data(spectrum);
        assert_eq!(edges[1], 0.0);
        assert!(n % 2 == 1 || edges[(n / 2 + 1) * 2 - 1] == 0.0);
    }
}

#[test]
fn imaginary_parts_at_the_edges_do_not_count() {
    let device = cpu();
    let s = Session::eager(&device);
    for n in [4, 144, 135, 136] {
        let mut x = random(&[n / 2 + 1, 2], 5);
        let back = |x: &Tensor<f32>| data(s.input(x).unwrap().irfft(n).unwrap());
        let want = back(&x);
        x.data_mut()[1] += 3.0;
        if n % 2 == 0 {
            x.data_mut()[n + 1] -= 5.0;
        }
        assert_eq!(back(&x), want);
    }
}

/// The sizes of a transform along one axis: its points, and the modes that are kept.
fn sizes(n: usize, modes: usize) -> DftTable {
    DftTable { n, low: modes, high: 0, complex: false }
}

#[test]
fn the_kind_of_transform_follows_from_the_sizes() {
    // The first number of modes that is transformed by FFT, if any. Lengths up to 128 and primes never are.
    let cases = [
        (64, None),
        (128, None),
        (256, None),
        (512, Some(174)),
        (1000, Some(183)),
        (1009, None),
        (1024, Some(180)),
        (2048, Some(214)),
        (4096, Some(228)),
        (8192, Some(294)),
        (8191, None),
        // 8 · 1021: the second factor is long.
        (8168, Some(1410)),
    ];
    for (n, want) in cases {
        let first = (0..=n / 2 + 1).find(|&m| sizes(n, m).is_faster_by_fft());
        assert_eq!(first, want, "{n} points");
        let rest = first.map_or(0..0, |m| m..n / 2 + 2);
        assert!(rest.into_iter().all(|m| sizes(n, m).is_faster_by_fft()), "{n} points");
    }
    // A complex line has modes of both signs.
    let plane = |low| DftTable { n: 512, low, high: low, complex: true }.is_faster_by_fft();
    assert_eq!((plane(86), plane(87)), (false, true));
}

/// Value, gradients and a second derivative of a convolution, by the op, which is always by tables, or by the method.
fn both_forms(n: usize, modes: usize) -> [Vec<Vec<f32>>; 2] {
    let device = cpu();
    let s = Session::eager(&device);
    let (c, o) = (3, 2);
    let (x, re, im) = (random(&[2, n, c], 1), random(&[modes, c, o], 2), random(&[modes, c, o], 3));
    let (seed, direction) = (random(&[2, n, o], 4), random(&[2, n, c], 5));
    [false, true].map(|method| {
        let [x, re, im] = [&x, &re, &im].map(|t| s.variable(t).unwrap());
        let y =
            if method { x.spectral_conv1d(re, im) } else { s.apply(SpectralConv1d, &[x, re, im]) }.unwrap();
        let loss = y.mul(y).unwrap().mul(s.input(&seed).unwrap()).unwrap().sum().unwrap();
        let first = s.grad(loss, &[x, re, im]).unwrap();
        let along = first[0].mul(s.input(&direction).unwrap()).unwrap().sum().unwrap();
        let second = s.grad(along, &[x, re, im]).unwrap();
        [y].into_iter().chain(first).chain(second).map(data).collect()
    })
}

#[test]
fn both_forms_agree_around_the_threshold() {
    for (n, first) in [(512, 174), (1000, 183)] {
        let [op, method] = both_forms(n, first - 1);
        assert_eq!(op, method, "{n} points: by tables, to the bit");
        for modes in [first, n / 2 + 1] {
            let [op, method] = both_forms(n, modes);
            assert_ne!(op, method, "{n} points, {modes} modes: other roundings");
            for (which, (op, method)) in op.iter().zip(&method).enumerate() {
                let most = op.iter().fold(0.0f32, |m, x| m.max(x.abs()));
                let off = op.iter().zip(method).fold(0.0f32, |m, (a, b)| m.max((a - b).abs()));
                assert!(off <= 1e-5 * most, "{n} points, {modes} modes, value {which}: {off} of {most}");
            }
        }
    }
}

#[test]
fn planes_by_fft_follow_their_definition() {
    let device = cpu();
    let s = Session::eager(&device);
    // By FFT along x, at all its modes and at fewer; along y; along an odd x.
    for (gx, gy, mx, my) in [(512, 2, 256, 2), (512, 3, 87, 1), (2, 512, 1, 174), (765, 1, 110, 1)] {
        let (c, o) = (1, 2);
        let [x, re, im] =
            [random(&[gx, gy, c], 1), random(&[2, mx, my, c, o], 2), random(&[2, mx, my, c, o], 3)];
        let [vx, vre, vim] = [&x, &re, &im].map(|t| s.variable(t).unwrap());
        let y = vx.spectral_conv2d(vre, vim).unwrap();
        let value = data(y);
        close(&value, &plane(&x, &re, &im), 3e-6);
        // It is linear in the value, and in the weights: <y, dy> = <x, dx> = <re, dre> + <im, dim>.
        let dy = random(&[gx, gy, o], 4);
        let grads = y.backward_from(&dy).unwrap();
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
        let with =
            |v, t: &Tensor<f32>| dot(grads.var(v).unwrap().to_tensor::<f32>().unwrap().data(), t.data());
        let want = dot(&value, dy.data());
        for got in [with(vx, &x), with(vre, &re) + with(vim, &im)] {
            assert!((got - want).abs() <= 1e-4 * want.abs().max(1.0), "{got} {want}");
        }
        // Compiled it is the same.
        let metas = [&x, &re, &im].map(|t| Meta::f32(t.shape()));
        let graph =
            Graph::trace(&device, &metas, |_, v| Ok(vec![v[0].spectral_conv2d(v[1], v[2])?])).unwrap();
        let args = [x, re, im].map(AnyTensor::Num);
        let compiled = graph.compile(&device).unwrap().call(&args).unwrap();
        assert_eq!(compiled[0].num().unwrap().data(), value);
        assert_eq!(Graph::parse(&graph.text().unwrap()).unwrap().hash().unwrap(), graph.hash().unwrap());
    }
}

#[test]
fn long_lines_with_all_modes_take_little_memory() {
    let device = cpu();
    let (n, modes) = (8192, 4097);
    let (x, w) = (random(&[n, 1], 1), random(&[modes, 1, 1], 2));
    let s = Session::eager(&device);
    let [x, re, im] = [&x, &w, &w].map(|t| s.variable(t).unwrap());
    let y = x.spectral_conv1d(re, im).unwrap().sum().unwrap();
    y.backward().unwrap();
    let peak = device.memory().peak;
    assert!(peak < 4 << 20, "{peak} bytes");
}

#[test]
fn eager_steps_compute_the_tables_of_a_transform_once() {
    let device = cpu();
    let (n, modes) = (40, 9);
    let table = 2 * 2 * modes * n * 4;
    let (x, w) = (random(&[2, n, 1], 1), random(&[modes, 1, 1], 2));
    let s = Session::eager(&device);
    let mut allocs = Vec::new();
    for _ in 0..20 {
        let before = device.memory().allocs;
        let [x, w] = [&x, &w].map(|t| s.variable(t).unwrap());
        let y = x.spectral_conv1d(w, w).unwrap().spectral_conv1d(w, w).unwrap();
        y.sum().unwrap().backward().unwrap();
        s.reset();
        allocs.push(device.memory().allocs - before);
        assert_eq!(device.memory().live, table, "one table for both layers and all steps");
    }
    assert!(allocs[1] < allocs[0] && allocs[1..].iter().all(|a| *a == allocs[1]), "{allocs:?}");
    // Without use it goes, as other constants do.
    (0..20).for_each(|_| s.reset());
    assert_eq!(device.memory().live, 0);
}
