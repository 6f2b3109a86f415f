//! Matrix products as NumPy defines them, on values of any rank.

use crate::support::{device, fractions};
use dittograd::device::cpu::simd::Simd;
use dittograd::prelude::*;

fn value(dims: &[usize], from: usize) -> Tensor<f32> {
    Tensor::from_fn(Shape::new(dims).unwrap(), |i| ((i + from) * 7 % 11) as f32 - 5.0)
}

/// The definition: for each index of the broadcast leading axes a plain product.
fn naive(a: &Tensor<f32>, b: &Tensor<f32>, ta: bool, tb: bool) -> (Vec<usize>, Vec<f32>) {
    let (sa, sb) = (a.shape(), b.shape());
    let (da, db) = (sa.dims().to_vec(), sb.dims().to_vec());
    let ra = if da.len() == 1 { vec![1, da[0]] } else { da.clone() };
    let rb = if db.len() == 1 { vec![db[0], 1] } else { db.clone() };
    let (ta, tb) = (ta && da.len() > 1, tb && db.len() > 1);
    let (la, lb) = (&ra[..ra.len() - 2], &rb[..rb.len() - 2]);
    let lead = Shape::new(la).unwrap().broadcast(&Shape::new(lb).unwrap()).unwrap();
    let turn = |m: &[usize], t: bool| if t { (m[1], m[0]) } else { (m[0], m[1]) };
    let ((m, k), (_, n)) = (turn(&ra[la.len()..], ta), turn(&rb[lb.len()..], tb));
    let offset = |from: &[usize], at: usize| {
        let (mut rest, mut index, mut stride) = (at, 0, 1);
        for (i, &d) in lead.dims().iter().rev().enumerate() {
            let c = rest % d;
            rest /= d;
            if i < from.len() {
                let size = from[from.len() - 1 - i];
                index += if size == 1 { 0 } else { c * stride };
                stride *= size;
            }
        }
        index
    };
    let mut out = Vec::new();
    for t in 0..lead.numel() {
        let (a, b) = (&a.data()[offset(la, t) * m * k..], &b.data()[offset(lb, t) * k * n..]);
        for i in 0..m {
            for j in 0..n {
                let at = |x: usize| {
                    a[if ta { x * m + i } else { i * k + x }] * b[if tb { j * k + x } else { x * n + j }]
                };
                out.push((0..k).map(at).sum());
            }
        }
    }
    let mut shape = lead.dims().to_vec();
    shape.extend((da.len() > 1).then_some(m));
    shape.extend((db.len() > 1).then_some(n));
    (shape, out)
}

#[test]
fn leading_axes_broadcast_and_vectors_lose_their_axis() {
    let s = Session::eager(&Device::cpu().unwrap());
    let cases: [(&[usize], &[usize], bool, bool); 14] = [
        (&[3], &[3], false, false),
        (&[3], &[3, 4], false, false),
        (&[3], &[4, 3], false, true),
        (&[2, 3], &[3], false, false),
        (&[2, 3], &[3, 4], false, false),
        (&[3, 2], &[4, 3], true, true),
        (&[5, 2, 3], &[3, 4], false, false),
        (&[5, 2, 3], &[1, 4, 3], false, true),
        (&[5, 3, 2], &[3, 4], true, false),
        (&[2, 3], &[5, 3, 4], false, false),
        (&[2, 1, 2, 3], &[5, 3, 4], false, false),
        (&[2, 5, 2, 3], &[2, 5, 3, 4], false, false),
        (&[3], &[5, 3, 4], false, false),
        (&[2, 5, 2, 3], &[3], false, false),
    ];
    for (da, db, ta, tb) in cases {
        let (a, b) = (value(da, 0), value(db, 3));
        let (x, y) = (s.variable(&a).unwrap(), s.variable(&b).unwrap());
        let product = x.matmul_with(y, ta, tb).unwrap();
        let (shape, want) = naive(&a, &b, ta, tb);
        assert_eq!(product.shape().unwrap().dims(), shape, "{da:?} {db:?}");
        assert_eq!(product.value::<f32>().unwrap().data(), want, "{da:?} {db:?}");
        // <g, AB> = <A, dA> = <B, dB>, exactly on whole numbers.
        let g = value(&shape, 5);
        let grads = product.backward_from(&g).unwrap();
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        let left = dot(g.data(), &want);
        for (v, t) in [(x, &a), (y, &b)] {
            let dv = grads.var(v).unwrap().to_tensor::<f32>().unwrap();
            assert_eq!(dot(dv.data(), t.data()), left, "{da:?} {db:?}");
        }
        s.reset();
    }
}

#[test]
fn empty_products_have_their_shape() {
    let s = Session::eager(&Device::cpu().unwrap());
    for (da, db, want) in [
        (&[2, 0][..], &[0, 3][..], &[2, 3][..]),
        (&[4, 2, 0], &[0, 3], &[4, 2, 3]),
        (&[0, 2, 3], &[3, 5], &[0, 2, 5]),
        (&[0, 2, 3], &[0, 3, 5], &[0, 2, 5]),
    ] {
        let product = s.input(&value(da, 0)).unwrap().matmul(s.input(&value(db, 0)).unwrap()).unwrap();
        assert_eq!(product.shape().unwrap().dims(), want);
        assert!(product.value::<f32>().unwrap().data().iter().all(|x| *x == 0.0));
    }
}

#[test]
fn operands_that_do_not_fit_are_errors() {
    let s = Session::eager(&Device::cpu().unwrap());
    for (da, db) in [(&[][..], &[3][..]), (&[2, 3], &[4, 2]), (&[2, 2, 3], &[3, 3, 2]), (&[3], &[4])] {
        let product = s.input(&value(da, 0)).unwrap().matmul(s.input(&value(db, 0)).unwrap());
        assert!(product.is_err(), "{da:?} {db:?}");
    }
}

/// Several products that are large enough for threads to share each of them: as one thread computes them.
#[test]
fn threads_share_large_products_of_a_batch() {
    let (a, b) = (value(&[3, 300, 310], 1), value(&[3, 310, 320], 2));
    let product = |threads: usize| {
        let s = Session::eager(&Device::cpu_with(threads, Simd::best()).unwrap());
        s.input(&a).unwrap().matmul(s.input(&b).unwrap()).unwrap().value::<f32>().unwrap()
    };
    let want = product(1);
    for threads in [2, 4] {
        assert_eq!(product(threads), want, "{threads} threads");
    }
}

/// Products that take a GPU's largest tiles, in every layout, with and without whole vectors.
#[test]
fn large_products_on_a_gpu_have_the_bits_of_the_cpu() {
    let Some((_turn, gpu)) = dittograd_check::gpu() else { return };
    let cpu = device();
    for (m, n, k) in [(768, 768, 8192), (765, 767, 8191), (1100, 1000, 1030)] {
        for (ta, tb) in [(false, false), (false, true), (true, false), (true, true)] {
            let some = |rows: usize, columns: usize, turned: bool, by: usize| {
                let dims = if turned { [columns, rows] } else { [rows, columns] };
                fractions(&dims, by)
            };
            let (a, b) = (some(m, k, ta, 7919), some(k, n, tb, 4099));
            let product = |device: &Device| {
                let s = Session::eager(device);
                let product = s.input(&a).unwrap().matmul_with(s.input(&b).unwrap(), ta, tb).unwrap();
                product.value::<f32>().unwrap()
            };
            assert!(product(&gpu) == product(&cpu), "{m} {n} {k} {ta} {tb}");
        }
    }
}
