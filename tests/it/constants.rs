//! Constants are uploaded once for all steps that use them, and no longer kept than they are of use.

use crate::support::{device, t};
use dittograd::device::cuda::fake::Fake;
use dittograd::error::ErrorKind;
use dittograd::prelude::*;

#[test]
fn a_constant_of_every_step_is_uploaded_once() {
    let d = device();
    let table = t(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    {
        let s = Session::eager(&d);
        let mut stale = None;
        for step in 0..100 {
            let (c, half) = (s.constant(&table).unwrap(), s.scalar(0.5).unwrap());
            assert_eq!(c.value::<f32>().unwrap(), table);
            assert_eq!(half.item().unwrap(), 0.5);
            // Once more in the same step, and on a tape of its own.
            assert!(
                c.buffer().unwrap().buffer().shares(s.constant(&table).unwrap().buffer().unwrap().buffer())
            );
            s.fresh(|s| s.constant(&table).map(|_| ())).unwrap();
            assert_eq!(d.memory().allocs, 2, "step {step}");
            if let Some(old) = stale.replace(c) {
                assert!(matches!(Var::exp(old).unwrap_err().kind(), ErrorKind::Stale { .. }));
            }
            s.reset();
        }
        assert_eq!(d.memory().live, 28);
    }
    assert_eq!(d.memory().live, 0, "constants end with their session");
}

#[test]
fn on_cuda_a_kept_constant_takes_no_call_of_the_driver() {
    let fake = Fake::new();
    let d = Device::from_cuda(fake.open().unwrap());
    let s = Session::eager(&d);
    let table = t(&[4], &[1.0, 2.0, 3.0, 4.0]);
    s.constant(&table).unwrap();
    let calls = fake.calls();
    for _ in 0..10 {
        s.reset();
        s.constant(&table).unwrap();
    }
    assert_eq!(fake.calls(), calls);
    let c = s.constant(&table).unwrap();
    assert_eq!(c.value::<f32>().unwrap(), table);
    s.constant(&t(&[4], &[1.0, 2.0, 3.0, 5.0])).unwrap();
    assert!(fake.calls() > calls);
    assert_eq!(d.memory().allocs, 2);
    drop(s);
    assert_eq!(d.memory().live, 0);
}

#[test]
fn constants_are_told_by_shape_and_bits() {
    let d = device();
    let s = Session::eager(&d);
    let different = [
        t(&[6], &[0.0; 6]),
        t(&[2, 3], &[0.0; 6]),
        t(&[6], &[0.0, 0.0, -0.0, 0.0, 0.0, 0.0]),
        t(&[6], &[0.0, f32::NAN, 0.0, 0.0, 0.0, 0.0]),
        t(&[6], &[0.0, -f32::NAN, 0.0, 0.0, 0.0, 0.0]),
        t(&[6], &[0.0, 1.0, 0.0, 0.0, 0.0, 0.0]),
        t(&[0], &[]),
    ];
    for _ in 0..2 {
        for want in &different {
            let got = s.constant(want).unwrap().value::<f32>().unwrap();
            assert_eq!(got.shape(), want.shape());
            let bits = |t: &Tensor<f32>| t.data().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&got), bits(want));
        }
        assert_eq!(d.memory().allocs, 6);
    }
    // Numbers of any type count by what they become; f64 numbers live in an f64 device as they are.
    s.constant(&Tensor::new(&[6], vec![0.0f64; 6]).unwrap()).unwrap();
    assert_eq!(d.memory().allocs, 6);
    let exact = Session::eager(&Device::host::<f64>());
    assert_eq!(exact.scalar(0.1).unwrap().value::<f64>().unwrap().data(), [0.1]);
}

#[test]
fn constants_out_of_use_are_dropped() {
    let d = device();
    let s = Session::eager(&d);
    let mut most = 0;
    for step in 0..100 {
        s.scalar(f64::from(step)).unwrap();
        s.reset();
        most = most.max(d.memory().live);
    }
    assert!(most <= 10 * 4, "{most} bytes of old constants");
    // Released by someone's hand it is uploaded anew.
    let one = s.scalar(7.0).unwrap();
    assert!(one.buffer().unwrap().buffer().release());
    assert_eq!(s.scalar(7.0).unwrap().item().unwrap(), 7.0);
    // No more than 64 MiB: what does not fit lasts as long as its values.
    let large = |x: f32| Tensor::full(Shape::new(&[6 << 20]).unwrap(), x);
    for x in [1.0, 2.0, 3.0] {
        s.constant(&large(x)).unwrap();
    }
    s.reset();
    assert!(d.memory().live <= 64 << 20);
    let allocs = d.memory().allocs;
    s.constant(&large(1.0)).unwrap();
    assert_eq!(d.memory().allocs, allocs);
    s.constant(&large(3.0)).unwrap();
    s.reset();
    assert_eq!(d.memory().live, 48 << 20, "the second one made room");
    s.constant(&Tensor::full(Shape::new(&[17 << 20]).unwrap(), 0.0f32)).unwrap();
    s.reset();
    assert_eq!(d.memory().live, 48 << 20, "too large to keep");
}

/// Equal constants share memory, but each is released by itself, on the CPU and on CUDA.
#[test]
fn releasing_one_of_two_equal_constants_leaves_the_other() {
    let fake = Fake::computing(1, 1 << 28);
    for d in [device(), Device::from_cuda(fake.open().unwrap())] {
        let s = Session::eager(&d);
        let table = t(&[2], &[1.0, 2.0]);
        let released = |v: Var<'_>| matches!(v.exp().unwrap_err().kind(), ErrorKind::Released);
        let [a, b, c] = [(); 3].map(|()| s.constant(&table).unwrap());
        let view = a.reshape(&[2, 1]).unwrap();
        assert_eq!((d.memory().allocs, d.memory().live), (1, 8));
        let memory = a.buffer().unwrap();
        assert!(memory.buffer().release() && !memory.buffer().release());
        assert!(released(a) && released(view), "its views go with it");
        // Together with a released one, in any order.
        assert!(b.add(a).is_err() && a.add(b).is_err());
        assert_eq!(b.add(c).unwrap().value::<f32>().unwrap().data(), [2.0, 4.0]);
        assert_eq!(s.constant(&table).unwrap().value::<f32>().unwrap(), table);
        // The last one frees the memory, also if some were dropped before; the next constant is uploaded anew.
        s.reset();
        let [b, c] = [(); 2].map(|()| s.constant(&table).unwrap());
        let live = d.memory().live;
        assert!(b.buffer().unwrap().buffer().release());
        assert_eq!((d.memory().live, c.value::<f32>().unwrap()), (live, table.clone()));
        assert!(c.buffer().unwrap().buffer().release());
        assert_eq!(d.memory().live, live - 8);
        assert_eq!(s.constant(&table).unwrap().value::<f32>().unwrap(), table);
        drop((memory, s));
        assert_eq!(d.memory().live, 0);
    }
}

#[test]
fn inference_keeps_constants_and_no_values() {
    let d = device();
    let s = Session::inference(&d);
    let table = t(&[256], &[0.25; 256]);
    let mut live = None;
    for _ in 0..20 {
        s.reset();
        let y = s.scope(|| (s.constant(&table)? * 2.0)?.exp()?.sum()).unwrap();
        assert!(y.item().unwrap() > 0.0);
        assert_eq!(*live.get_or_insert(d.memory().live), d.memory().live);
    }
    assert_eq!(live, Some(1024 + 4), "the constant and the result");
}

#[test]
fn a_constant_used_by_every_layer_is_in_a_program_once() {
    let d = device();
    let mut params = Params::new(&d, 1);
    let w = params.ones("w", &[1024]).unwrap();
    let table = t(&[1024], &[0.5; 1024]);
    let mut step = TrainStep::new(&params, Optimizer::sgd(0.0), |v| {
        let s = v[0].session();
        let mut x = s.param(&w)?;
        for _ in 0..5 {
            x = (x * s.constant(&table)?)?;
        }
        x.sum()
    });
    let before = d.memory().live;
    step.run(&[(&t(&[1], &[0.0])).into()]).unwrap();
    assert_eq!(step.loss().unwrap(), 32.0);
    let program = step.plan().unwrap().arena_bytes;
    let held = d.memory().live - before - program;
    assert!(held < 2 * 4096, "{held} bytes besides the program's block");
}
