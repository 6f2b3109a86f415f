//! Fourier transforms and spectral convolutions: golden values, identities, and the same bits on either way.

use crate::support::{data, device as cpu, t as tensor};
use dittograd::numerics::rng::Stream;
use dittograd::ops::spectral::SpectralConv1d;
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
