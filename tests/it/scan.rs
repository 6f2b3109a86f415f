//! Scans: golden values, the prefix rule word for word, empty cases.

use crate::support::{data, device as cpu, t as tensor};
use dittograd::device::Device;
use dittograd::device::cpu::simd::Simd;
use dittograd::numerics::rng::Stream;
use dittograd::session::Session;
use dittograd::shape::Shape;
use dittograd::tensor::Tensor;

/// The rule of the cumulative sum, word for word.
fn prefix(x: &[f32]) -> Vec<f32> {
    let mut y: Vec<f32> = Vec::new();
    let mut before: Option<f32> = None;
    for chunk in x.chunks(1024) {
        let mut inside: Vec<f32> = Vec::new();
        let mut blocks: Option<f32> = None;
        for block in chunk.chunks(32) {
            let mut sum: Option<f32> = None;
            for &v in block {
                let s = sum.map_or(v, |s| s + v);
                sum = Some(s);
                inside.push(blocks.map_or(s, |b| b + s));
            }
            blocks = inside.last().copied();
        }
        y.extend(inside.iter().map(|v| before.map_or(*v, |b| b + v)));
        before = y.last().copied();
    }
    y
}

#[test]
fn the_prefix_rule_word_for_word() {
    let mut s = Stream::new(9, 0);
    for n in [1, 31, 32, 33, 1000, 1024, 1025, 5000, 40_000] {
        let x: Vec<f32> = (0..n).map(|_| s.range(-1.0, 1.0) * 2f32.powi(s.below(20) as i32)).collect();
        let want = prefix(&x);
        for threads in [1, 3] {
            let device = Device::cpu_with(threads, Simd::best()).unwrap();
            let session = Session::eager(&device);
            let line = session.input(&tensor(&[n], &x)).unwrap();
            assert_eq!(data(line.cumsum(0).unwrap()), want);
            let shifted = data(line.cumsum_with(0, true, false).unwrap());
            assert_eq!((shifted[0].to_bits(), &shifted[1..]), (0, &want[..n - 1]));
            // The same along columns, and from the end.
            let columns: Vec<f32> = x.iter().flat_map(|&v| [v, -v, 2.0 * v]).collect();
            let column = session.input(&tensor(&[n, 3], &columns)).unwrap();
            let got: Vec<f32> = data(column.cumsum(0).unwrap()).chunks(3).map(|r| r[2]).collect();
            assert!(got.iter().zip(&want).all(|(g, w)| *g == 2.0 * w));
            let reversed: Vec<f32> = x.iter().rev().copied().collect();
            let turned = session.input(&tensor(&[n], &reversed)).unwrap();
            let got = data(turned.cumsum_with(0, false, true).unwrap());
            assert!(got.iter().rev().eq(&want));
        }
    }
}

#[test]
fn scan_of_two_states() {
    let device = cpu();
    let s = Session::eager(&device);
    let run = |vary: bool| {
        let rows = |v: &[f32]| if vary { tensor(&[3, 2], &v.repeat(3)) } else { tensor(&[2], v) };
        let a = s.variable(&rows(&[0.5, 0.25])).unwrap();
        let b = s.variable(&rows(&[1.0, 2.0])).unwrap();
        let x = s.variable(&tensor(&[3, 2], &[2.0, 1.0, 4.0, -2.0, 0.0, 3.0])).unwrap();
        let h0 = s.variable(&tensor(&[2], &[1.0, -1.0])).unwrap();
        let h = x.selective_scan(a, b, h0).unwrap();
        let value = data(h);
        let grads = h.backward_from(&tensor(&[3, 2], &[1.0; 6])).unwrap();
        let grads = [a, b, x, h0].map(|v| grads.var(v).unwrap().to_tensor::<f32>().unwrap().into_data());
        (value, grads)
    };
    let (h, [da, db, dx, dh0]) = run(false);
    assert_eq!(h, [2.5, 1.75, 5.25, -3.5625, 2.625, 5.109375]);
    assert_eq!(da, [10.75, -2.6875]);
    assert_eq!(db, [9.5, 1.8125]);
    assert_eq!(dx, [1.75, 2.625, 1.5, 2.5, 1.0, 2.0]);
    assert_eq!(dh0, [0.875, 0.328125]);
    let (same, [da, db, dx_same, dh0_same]) = run(true);
    assert_eq!((same, dx_same, dh0_same), (h, dx, dh0));
    // The gradients of the single steps add up to those of the fixed coefficients.
    let total = |v: &[f32], j: usize| v.iter().skip(j).step_by(2).sum::<f32>();
    assert_eq!([total(&da, 0), total(&da, 1)], [10.75, -2.6875]);
    assert_eq!([total(&db, 0), total(&db, 1)], [9.5, 1.8125]);
}

#[test]
fn no_steps_have_zero_gradients() {
    let device = cpu();
    let s = Session::eager(&device);
    let a = s.variable(&tensor(&[2], &[1.0, 2.0])).unwrap();
    let b = s.variable(&tensor(&[2], &[1.0, 2.0])).unwrap();
    let x = s.variable(&tensor(&[0, 2], &[])).unwrap();
    let h0 = s.variable(&tensor(&[2], &[3.0, 4.0])).unwrap();
    let h = x.selective_scan(a, b, h0).unwrap();
    assert_eq!(h.shape().unwrap().dims(), [0, 2]);
    let grads = h.backward_from(&tensor(&[0, 2], &[])).unwrap();
    for v in [a, b, h0] {
        assert_eq!(grads.var(v).unwrap().to_tensor::<f32>().unwrap().data(), [0.0, 0.0]);
    }
}

#[test]
fn products_run_on_through_zeros() {
    let device = cpu();
    let s = Session::eager(&device);
    let x = s.variable(&tensor(&[4, 1], &[2.0, 0.0, 3.0, 4.0])).unwrap();
    let y = x.cumprod(0).unwrap();
    assert_eq!(data(y), [2.0, 0.0, 0.0, 0.0]);
    let grads = y.backward_from(&tensor(&[4, 1], &[1.0; 4])).unwrap();
    // d/dx0: 1 + 0; d/dx1: 2 (1 + 3 + 12); d/dx2, d/dx3: 0
    assert_eq!(grads.var(x).unwrap().to_tensor::<f32>().unwrap().data(), [1.0, 32.0, 0.0, 0.0]);
    let rows = s.input(&tensor(&[2, 3], &[1.0, 2.0, 3.0, -1.0, 2.0, -3.0])).unwrap();
    assert_eq!(data(rows.cumprod(1).unwrap()), [1.0, 2.0, 6.0, -1.0, -2.0, 6.0]);
    assert_eq!(data(rows.cumprod(0).unwrap()), [1.0, 2.0, 3.0, -1.0, 4.0, -9.0]);
    assert!(rows.cumprod(2).is_err());
    assert_eq!(
        s.input(&Tensor::<f32>::full(Shape::new(&[0, 3]).unwrap(), 0.0))
            .unwrap()
            .cumprod(0)
            .unwrap()
            .shape()
            .unwrap()
            .dims(),
        [0, 3]
    );
}

#[test]
fn a_state_space_follows_its_definition() {
    let device = cpu();
    let session = Session::eager(&device);
    let (batch, len, width, states) = (2, 5, 3, 4);
    let mut s = Stream::new(3, 0);
    let mut draw =
        |dims: &[usize], lo: f32, hi: f32| Tensor::from_fn(Shape::new(dims).unwrap(), |_| s.range(lo, hi));
    let u = draw(&[batch, len, width], -1.0, 1.0);
    let delta = draw(&[batch, len, width], 0.0, 1.0);
    let a = draw(&[width, states], -2.0, 0.0);
    let b = draw(&[batch, len, states], -1.0, 1.0);
    let c = draw(&[batch, len, states], -1.0, 1.0);
    let [v, d, p, q, r] = [&u, &delta, &a, &b, &c].map(|t| session.input(t).unwrap());
    let y = data(v.selective_ssm(d, p, q, r).unwrap());
    for i in 0..batch {
        for j in 0..width {
            let mut h = vec![0.0f64; states];
            for t in 0..len {
                let at = (i * len + t) * width + j;
                let mut want = 0.0;
                for (n, h) in h.iter_mut().enumerate() {
                    let (dt, x) = (f64::from(delta.data()[at]), f64::from(u.data()[at]));
                    let k = (i * len + t) * states + n;
                    *h = (dt * f64::from(a.data()[j * states + n])).exp() * *h
                        + dt * x * f64::from(b.data()[k]);
                    want += f64::from(c.data()[k]) * *h;
                }
                assert!((f64::from(y[at]) - want).abs() < 1e-6, "{} {want}", y[at]);
            }
        }
    }
    assert!(v.selective_ssm(d, p, q, v).is_err());
    assert!(p.selective_ssm(d, p, q, r).is_err());
}
