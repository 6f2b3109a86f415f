//! Mode `tf32`: close to the exact products, the same from run to run, and refused where there are no tensor cores.

use dittograd::device::AnyBuffer;
use dittograd::numerics::Numerics;
use dittograd::numerics::rng::Stream;
use dittograd::ops::{self, AnyOp, Attr, Attrs};
use dittograd::prelude::*;
use dittograd_check::gpu;

/// What roundings of both factors can do to a product, and a little for the sums.
const ALLOWED: f64 = 1.35 / 1024.0;

fn draw(dims: &[usize], seed: u64) -> Tensor {
    let mut stream = Stream::new(seed, 0);
    Tensor::from_fn(Shape::new(dims).unwrap(), |_| stream.uniform() * 2.0 - 1.0)
}

fn down(b: &AnyBuffer) -> Vec<f32> {
    b.buffer().download().unwrap()
}

#[test]
fn the_cpu_refuses() {
    let error = Device::cpu().unwrap().in_mode(Numerics::Tf32).unwrap_err();
    assert!(error.to_string().contains("needs a CUDA device"), "{error}");
    assert_eq!(Device::cpu().unwrap().in_mode(Numerics::Strict).unwrap().numerics(), Numerics::Strict);
    assert_eq!("tf32".parse::<Numerics>().unwrap().to_string(), "tf32");
}

#[test]
fn products_are_close_and_repeat() {
    let Some((_turn, strict)) = gpu() else { return };
    let device = strict.in_mode(Numerics::Tf32).unwrap();
    assert_eq!((device.numerics(), strict.numerics()), (Numerics::Tf32, Numerics::Strict));
    let sizes = [
        (1, 1, 1),
        (17, 31, 33),
        (65, 64, 63),
        (128, 10, 257),
        (3, 2, 2049),
        (300, 500, 96),
        (130, 132, 4100),
        (512, 768, 1024),
    ];
    for (i, (m, n, k)) in sizes.into_iter().enumerate() {
        for (ta, tb) in [(false, false), (true, false), (false, true), (true, true)] {
            let a = draw(&if ta { [k, m] } else { [m, k] }, i as u64);
            let b = draw(&if tb { [n, k] } else { [k, n] }, 100 + i as u64);
            let on = |name: &str, on| (name.to_string(), Attr::Bool(on));
            let op = AnyOp::from_name("matmul", &Attrs(vec![on("ta", ta), on("tb", tb)])).unwrap();
            let ins = [&a, &b].map(|t| AnyBuffer::upload(&device, t).unwrap());
            let run = || down(&ops::apply(&device, &op, &[&ins[0], &ins[1]]).unwrap());
            let (got, again) = (run(), run());
            assert_eq!(got, again, "{m} {n} {k}: the same from run to run");
            for r in 0..m {
                for c in 0..n {
                    let (mut sum, mut size) = (0.0, 0.0);
                    for l in 0..k {
                        let x = f64::from(a.data()[if ta { l * m + r } else { r * k + l }]);
                        let y = f64::from(b.data()[if tb { c * k + l } else { l * n + c }]);
                        sum += x * y;
                        size += (x * y).abs();
                    }
                    let off = (f64::from(got[r * n + c]) - sum).abs();
                    assert!(off <= ALLOWED * size, "{m} {n} {k} {ta} {tb} at {r} {c}: {off} of {size}");
                }
            }
        }
    }
}
