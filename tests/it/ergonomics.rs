//! What programs are read and debugged by: operators, names, printed tensors and tapes, words of errors, memory reports.

use crate::support::{data, device, t};
use dittograd::device::readable_bytes;
use dittograd::error::ErrorKind;
use dittograd::prelude::*;
use dittograd::scalar::Ratio;
use dittograd::typed::{Matrix, Vector};
use std::sync::{Arc, Mutex};

#[test]
fn operators_are_the_methods() {
    let d = device();
    let s = Session::eager(&d);
    let a = s.variable(&t(&[2, 2], &[1.0, -2.0, 3.0, 0.7])).unwrap();
    let b = s.input(&t(&[2], &[0.3, 7.0])).unwrap();
    let both = |x: Result<Var<'_>>, y: Result<Var<'_>>| assert_eq!(data(x.unwrap()), data(y.unwrap()));
    both(a + b, a.add(b));
    both(a - b, a.sub(b));
    both(a * b, a.mul(b));
    both(a / b, a.div(b));
    both(-a, a.neg());
    both(a + 0.3, a.add_scalar(0.3));
    both(0.3 + a, a.add_scalar(0.3));
    both(a * 3.0, a.scale(3.0));
    both(3.0 * a, a.scale(3.0));
    // One rounding each, as in float32.
    let each = |f: fn(f32) -> f32| [1.0f32, -2.0, 3.0, 0.7].map(f).to_vec();
    assert_eq!(data((a - 0.3).unwrap()), each(|x| x - 0.3));
    assert_eq!(data((0.3 - a).unwrap()), each(|x| 0.3 - x));
    assert_eq!(data((a / 3.0).unwrap()), each(|x| x / 3.0));
    assert_eq!(data((3.0 / a).unwrap()), each(|x| 3.0 / x));
    // Results on one side; precedence as ever.
    both(a + a * b, a.add(a.mul(b).unwrap()));
    both(a * b - a, a.mul(b).unwrap().sub(a));
    both(a.matmul(b) / b, a.matmul(b).unwrap().div(b));
    both(1.0 / (a * b + b).unwrap(), s.full(&[], 1.0).unwrap().div(a.mul(b).unwrap().add(b).unwrap()));
    // Gradients go through numbers on either side.
    let y = ((2.0 / a).unwrap() + (1.0 - a).unwrap() / 4.0).unwrap();
    let g = y.sum().unwrap().backward().unwrap().var(a).unwrap().to_tensor::<f32>().unwrap();
    let want = [1.0f32, -2.0, 3.0, 0.7].map(|x| -2.0 / (x * x) - 0.25);
    assert!(g.data().iter().zip(want).all(|(g, w)| (g - w).abs() <= 1e-5 * w.abs()), "{g}");
    // The first error wins, on either side.
    let other = Session::eager(&d);
    let c = other.input(&t(&[2], &[1.0, 2.0])).unwrap();
    assert_eq!(*(a + c).unwrap_err().kind(), ErrorKind::Foreign);
    assert_eq!(*(b + (a + c)).unwrap_err().kind(), ErrorKind::Foreign);
    assert_eq!(*((a + c) * b).unwrap_err().kind(), ErrorKind::Foreign);
}

#[test]
fn typed_operators_are_the_untyped_ones() {
    let d = device();
    let s = Session::eager(&d);
    let (a, b) = (t(&[2, 2], &[1.0, -2.0, 3.0, 0.7]), t(&[2], &[0.3, 7.0]));
    let (a, b) = (s.input(&a).unwrap(), s.input(&b).unwrap());
    let m: Matrix<2, 2> = a.typed().unwrap();
    let v: Vector<2> = b.typed().unwrap();
    let same = |x: Result<Matrix<'_, 2, 2>>, y: Result<Var<'_>>| {
        assert_eq!(x.unwrap().value::<f32>().unwrap(), y.unwrap().value::<f32>().unwrap());
    };
    same(m + v, a + b);
    same(m * m - v, a * a - b);
    same(m / (m * v), a / (a * b));
    same(-m, -a);
    same(1.0 - m, 1.0 - a);
    same(m / 3.0, a / 3.0);
    assert_eq!(m.to_string(), a.to_string());
}

#[test]
fn operators_compile_to_the_same_bits() {
    let d = device();
    let mut params = Params::new(&d, 1);
    let w = params.uniform("w", &[3], -1.0, 1.0).unwrap();
    fn f<'s>(x: Var<'s>, w: Var<'s>) -> Result<Var<'s>> {
        let line = ((x * w)? - 0.5 * x)?;
        ((line / 3.0)? + 2.0 / (w * w + w.ones_like()?)?)?.mean()
    }
    let x = t(&[3], &[0.1, 0.2, 0.3]);
    let s = Session::eager(&d);
    let eager = f(s.input(&x).unwrap(), s.param(&w).unwrap()).unwrap().item().unwrap();
    let p = w.clone();
    let mut step = TrainStep::new(&params, Optimizer::sgd(0.0), move |v| f(v[0], v[0].session().param(&p)?));
    step.run(&[(&x).into()]).unwrap();
    assert_eq!(step.loss().unwrap().to_bits(), eager.to_bits());
}

#[test]
fn tensors_print_like_numpy() {
    // From NumPy 2.4 with a precision of 4.
    const INF: f32 = f32::INFINITY;
    const NAN: f32 = f32::NAN;
    let count = |n: usize, dims: &[usize], by: f32| {
        Tensor::new(dims, (0..n).map(|i| i as f32 / by).collect::<Vec<f32>>()).unwrap()
    };
    for (tensor, text) in [
        (
            t(&[2, 3], &[1.0, -0.5, 2.25, 0.0, NAN, 100.0]),
            "[[  1.    -0.5    2.25]\n [  0.      nan 100.  ]]",
        ),
        (t(&[3], &[0.123456, 1.0 / 3.0, 2.0 / 3.0]), "[0.1235 0.3333 0.6667]"),
        (t(&[3], &[1e-5, 1.0, 123456.0]), "[1.0000e-05 1.0000e+00 1.2346e+05]"),
        (t(&[3], &[-1e-5, INF, 3e38]), "[-1.e-05     inf  3.e+38]"),
        (t(&[3], &[INF, -INF, 1.5]), "[ inf -inf  1.5]"),
        (t(&[2], &[NAN, NAN]), "[nan nan]"),
        (t(&[2], &[-0.0, 0.0]), "[-0.  0.]"),
        (t(&[2], &[100000.01, 99999.0]), "[100000.01  99999.  ]"),
        (count(8, &[2, 2, 2], 1.0), "[[[0. 1.]\n  [2. 3.]]\n\n [[4. 5.]\n  [6. 7.]]]"),
        (count(1001, &[1001], 1.0), "[   0.    1.    2. ...  998.  999. 1000.]"),
        (
            count(30, &[30], 4.0),
            "[0.   0.25 0.5  0.75 1.   1.25 1.5  1.75 2.   2.25 2.5  2.75 3.   3.25\n \
             3.5  3.75 4.   4.25 4.5  4.75 5.   5.25 5.5  5.75 6.   6.25 6.5  6.75\n \
             7.   7.25]",
        ),
        (
            count(1200, &[40, 30], 8.0),
            "[[0.0000e+00 1.2500e-01 2.5000e-01 ... 3.3750e+00 3.5000e+00 3.6250e+00]\n \
             [3.7500e+00 3.8750e+00 4.0000e+00 ... 7.1250e+00 7.2500e+00 7.3750e+00]\n \
             [7.5000e+00 7.6250e+00 7.7500e+00 ... 1.0875e+01 1.1000e+01 1.1125e+01]\n \
             ...\n \
             [1.3875e+02 1.3888e+02 1.3900e+02 ... 1.4212e+02 1.4225e+02 1.4238e+02]\n \
             [1.4250e+02 1.4262e+02 1.4275e+02 ... 1.4588e+02 1.4600e+02 1.4612e+02]\n \
             [1.4625e+02 1.4638e+02 1.4650e+02 ... 1.4962e+02 1.4975e+02 1.4988e+02]]",
        ),
        // Ours: one number like any other, and empty tensors with their shape.
        (t(&[], &[1.0 / 3.0]), "0.3333"),
        (t(&[0], &[]), "[]"),
        (t(&[3, 0], &[]), "[] of shape [3, 0]"),
    ] {
        assert_eq!(tensor.to_string(), text);
    }
    assert_eq!(Tensor::new(&[2, 2], vec![1u32, 20, 300, 4]).unwrap().to_string(), "[[  1  20]\n [300   4]]");
    assert_eq!(Tensor::new(&[2], vec![100000.0078125f64, 1.0]).unwrap().to_string(), "[1.e+05 1.e+00]");
    assert_eq!(format!("{:.1}", t(&[2], &[0.25, 10.0])), "[ 0.2 10. ]");
    let thirds = Tensor::new(&[2], vec![Ratio::new(1, 3), Ratio::new(-22, 7)]).unwrap();
    assert_eq!(thirds.to_string(), "[  1/3 -22/7]");
}

#[test]
fn values_print_where_they_are() {
    let d = device();
    let s = Session::eager(&d);
    let x = s.input(&t(&[2], &[1.0, 2.5])).unwrap();
    assert_eq!(format!("{x} {x:.0}"), "[1.  2.5] [1. 2.]");
    assert_eq!(x.buffer().unwrap().to_string(), "[1.  2.5]");
    assert_eq!(s.labels(&Tensor::new(&[2], vec![3, 10]).unwrap()).unwrap().to_string(), "[ 3 10]");
    let kept = x.exp().unwrap().buffer().unwrap();
    kept.buffer().release();
    assert!(kept.to_string().starts_with("<download: the buffer was released"), "{kept}");
    s.reset();
    assert!(x.to_string().starts_with("<value: the handle is from epoch 0"), "{x}");
    let exact = Device::host::<Ratio>();
    let s = Session::eager(&exact);
    let third = (s.scalar(1.0).unwrap() / s.scalar(3.0).unwrap()).unwrap();
    assert_eq!(third.to_string(), "1/3");
}

#[test]
fn tapes_print_one_node_a_line() {
    let d = device();
    let s = Session::eager(&d);
    let mut params = Params::new(&d, 0);
    let w = params.zeros("layer.weight", &[2, 3]).unwrap();
    let x = s.input(&t(&[4, 2], &[1.0; 8])).unwrap();
    let y = x.matmul(s.param(&w).unwrap()).unwrap().tanh().unwrap();
    let shape = Shape::new(&[12]).unwrap();
    let flat = y.flatten().unwrap();
    s.with_tape(|tape| tape.unary("mine", 4, (shape, shape), |x| Ok(x.clone()), |_, up| Ok(up.clone())))
        .unwrap();
    flat.sum().unwrap().backward().unwrap();
    assert_eq!(
        s.to_string(),
        "%0  input            f32[4, 2]  -     32 B\n\
         %1  layer.weight     f32[2, 3]  grad  24 B\n\
         %2  matmul           f32[4, 3]  grad  freed  %0 %1\n\
         %3  tanh             f32[4, 3]  grad  freed  %2\n\
         %4  reshape          f32[12]    grad  freed  %3\n\
         %5  mine (own rule)  f32[12]    grad  freed  %4\n\
         %6  sum              f32[]      grad  4 B    %4\n\
         7 nodes, 6 with gradient, 60 B live, 4 without a value"
    );
    let text = s.with_tape(|tape| Ok(tape.to_string())).unwrap();
    assert_eq!(text, s.to_string());
    s.reset();
    assert_eq!(s.to_string(), "0 nodes, 0 with gradient, 0 B live");
}

#[test]
fn guessed_names_are_there() {
    let d = device();
    let s = Session::eager(&d);
    assert_eq!(data(s.zeros(&[2]).unwrap()), [0.0, 0.0]);
    assert_eq!(data(s.ones(&[2]).unwrap()), [1.0, 1.0]);
    assert_eq!(data(s.eye(2).unwrap()), [1.0, 0.0, 0.0, 1.0]);
    assert!(data(s.eye(0).unwrap()).is_empty());
    assert_eq!(data(s.arange(0.0, 1.0, 0.25).unwrap()), [0.0, 0.25, 0.5, 0.75]);
    assert_eq!(data(s.arange(3.0, 0.0, -1.5).unwrap()), [3.0, 1.5]);
    assert!(data(s.arange(0.0, -1.0, 1.0).unwrap()).is_empty());
    assert!(s.arange(0.0, 1.0, 0.0).is_err() && s.arange(0.0, f64::INFINITY, 1.0).is_err());
    assert!(s.arange(0.0, f64::NAN, 1.0).is_err());
    assert_eq!(data(s.linspace(0.0, 1.0, 5).unwrap()), [0.0, 0.25, 0.5, 0.75, 1.0]);
    assert_eq!(data(s.linspace(0.1, 0.7, 1).unwrap()), [0.1]);
    assert!(data(s.linspace(0.0, 1.0, 0).unwrap()).is_empty());
    let thirds = data(s.linspace(-0.1, 0.3, 4).unwrap());
    assert_eq!((thirds[0], thirds[3]), (-0.1, 0.3));

    let x = s.input(&t(&[2, 3], &[1.0, 2.0, 3.0, 4.0, f32::NAN, 6.0])).unwrap();
    assert_eq!(x.zeros_like().unwrap().shape().unwrap().dims(), [2, 3]);
    assert_eq!(data(x.ones_like().unwrap()), [1.0; 6]);
    assert_eq!(data(x.isnan().unwrap()), [0.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
    assert_eq!(data(x.masked_fill(x.isnan().unwrap(), -1.0).unwrap()), [1.0, 2.0, 3.0, 4.0, -1.0, 6.0]);
    let row = s.input(&t(&[3], &[3.0, 4.0, 0.0])).unwrap();
    assert_eq!(data(row.expand(&[2, 3]).unwrap()), [3.0, 4.0, 0.0, 3.0, 4.0, 0.0]);
    assert_eq!(data(row.normalize(2.0, 0, 1e-12).unwrap()), [0.6, 0.8, 0.0]);
    assert_eq!(data(row.zeros_like().unwrap().normalize(2.0, 0, 1e-12).unwrap()), [0.0; 3]);
    assert_eq!(data(row.lerp(0.5, row.ones_like().unwrap()).unwrap()), [2.0, 2.5, 0.5]);
    let labels = s.labels(&Tensor::new(&[2, 1], vec![2, 0]).unwrap()).unwrap();
    let hot = labels.one_hot(3).unwrap();
    assert_eq!(hot.shape().unwrap().dims(), [2, 1, 3]);
    assert_eq!(data(hot), [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
    assert!(matches!(labels.one_hot(2).unwrap_err().kind(), ErrorKind::Index { index: 2, bound: 2, .. }));
    assert!(matches!(row.one_hot(5).unwrap_err().kind(), ErrorKind::DType { .. }));
    let m = s.arange(0.0, 24.0, 1.0).unwrap().reshape(&[2, 3, 4]).unwrap();
    assert_eq!(data(m.trace().unwrap()), [0.0 + 5.0 + 10.0, 12.0 + 17.0 + 22.0]);
    assert!(row.trace().is_err());
    let moved = m.movedim(0, 2).unwrap();
    assert_eq!(moved.shape().unwrap().dims(), [3, 4, 2]);
    assert_eq!(data(moved), data(m.permute(&[1, 2, 0]).unwrap()));
    assert!(m.movedim(0, 3).is_err());
    let sizes =
        |n| -> Vec<usize> { m.chunk(2, n).unwrap().iter().map(|c| c.shape().unwrap().last()).collect() };
    assert_eq!((sizes(1), sizes(2), sizes(3), sizes(9)), (vec![4], vec![2, 2], vec![2, 2], vec![1; 4]));
    assert!(m.chunk(2, 0).is_err() && m.chunk(3, 1).is_err());
}

#[test]
fn common_mistakes_are_told_with_shapes_and_a_way_out() {
    let d = device();
    let s = Session::eager(&d);
    let x = s.variable(&t(&[2, 3], &[1.0; 6])).unwrap();
    let row = s.input(&t(&[2], &[1.0; 2])).unwrap();
    let batch = s.input(&t(&[5, 2, 3], &[1.0; 30])).unwrap();
    let says =
        |r: Result<Var<'_>>, text: &str| assert_eq!(r.unwrap_err().without_location().to_string(), text);
    says(
        x + row,
        "add: shapes do not broadcast (from the last axis on, sizes must be equal or 1): [2, 3] and [2]",
    );
    says(x.matmul(x), "matmul: columns of the left and rows of the right differ: [2, 3] and [2, 3]");
    says(
        x.matmul_with(row, true, false).and_then(|y| x.matmul_with(y, false, true)).and(x.matmul(row)),
        "matmul: columns of the left and rows of the right differ: [2, 3] and [2]",
    );
    says(batch.matmul(x), "matmul: columns of the left and rows of the right differ: [5, 2, 3] and [2, 3]");
    says(
        batch.matmul(s.input(&t(&[4, 3, 1], &[1.0; 12])).unwrap()),
        "matmul: shapes do not broadcast (from the last axis on, sizes must be equal or 1): [5, 2, 3] and [4, 3, 1]",
    );
    says(
        x.linear(row.reshape(&[1, 2]).unwrap(), row),
        "linear: the last axis of the input and of the weight (outputs, inputs) differ: [2, 3] and [1, 2]",
    );
    says(x.reshape(&[4, 2]), "reshape: element counts differ: [2, 3] and [4, 2]");
    says(x.expand(&[2, 4]), "broadcast_to: sizes must be equal or 1 to broadcast: [2, 3] and [2, 4]");
    says(
        x.sum_axes(&[2]),
        "sum: axis 2 is out of range or repeated for shape [2, 3] of rank 2; axes are counted from the outermost, 0, to 1",
    );
    says(
        row.transpose(),
        "transpose: got shape [2] of rank 1, needs rank at least 2 (reshape, unsqueeze and squeeze change it)",
    );
    says(
        x.cross_entropy(row),
        "cross_entropy: input 1 holds f32 elements, needs u32; indices come from Session::labels or Session::indices, or \
         from numbers by to_index()",
    );
    let label = s.labels(&Tensor::new(&[2], vec![0, 3]).unwrap()).unwrap();
    says(x.cross_entropy(label), "cross_entropy: index 3 at position 1 is outside 0..3");
    says(
        s.concat(&[x, row], 0),
        "concat: inputs must agree in all axes but the one they are joined along: [2, 3] and [2]",
    );

    let text = |e: Error| e.without_location().to_string();
    assert_eq!(
        text(Tensor::new(&[2, 3], vec![1.0f32; 5]).unwrap_err()),
        "tensor of shape [2, 3]: got 5 elements, needs 6"
    );
    assert_eq!(
        text(x.item().unwrap_err()),
        "item: value: of shape [2, 3] has 6 elements, item() reads one; use value(), or sum() or mean() first"
    );
    assert_eq!(
        text(x.exp().unwrap().backward().unwrap_err()),
        "backward: a value of shape [2, 3] needs a seed of that shape: backward_from; only a scalar, as sum() and \
         mean() give, has the seed 1"
    );
    assert_eq!(
        text(row.sum().unwrap().backward().unwrap_err()),
        "backward: nothing this value was computed from requires a gradient; use trainable parameters, or \
         Session::variable"
    );
    let square = x.square().unwrap();
    let twice = square.exp().unwrap().sum().unwrap();
    twice.backward().unwrap();
    let e = text(twice.backward().unwrap_err());
    assert!(
        e.ends_with("was freed by a backward pass or a scope; compute it again, or use backward_retain"),
        "{e}"
    );
    s.reset();
    assert_eq!(
        text(x.exp().unwrap_err()),
        "exp: the handle is from epoch 0, the session is at epoch 1: it was reset; record the value again"
    );
}

#[test]
fn a_watched_device_knows_its_holders() {
    let d = device();
    let before = AnyBuffer::full(&d, Shape::new(&[100]).unwrap(), 1.0).unwrap();
    assert_eq!(d.memory_report().holders, []);
    d.watch();
    let s = Session::eager(&d);
    let x = s.input(&t(&[8, 4], &[1.0; 32])).unwrap();
    let y = x.exp().unwrap();
    let kept = y.exp().unwrap().buffer().unwrap();
    let report = d.memory_report();
    assert_eq!(report.now.live, 400 + 3 * 128);
    let first = report.holders[0];
    assert_eq!((first.what, first.shape.dims(), first.count, first.bytes), ("exp", &[8, 4][..], 2, 256));
    assert_eq!(report.holders[1].what, "upload");
    assert!(report.to_string().contains("largest: exp [8, 4] x 2 256 B, upload [8, 4] 128 B"), "{report}");
    s.reset();
    let step = d.memory_report().step.unwrap();
    assert_eq!((step.step, step.live, step.peak), (1, 400 + 128, 400 + 3 * 128));
    assert_eq!((step.allocs, step.frees), (3, 2));
    assert_eq!(step.to_string(), "step 1: live 528 B, peak 784 B, 3 allocations, 2 frees");
    s.reset();
    let step = d.memory_report().step.unwrap();
    assert_eq!((step.step, step.peak, step.allocs, step.frees), (2, 528, 0, 0));
    // What was counted is taken off after the end of the watch, and nothing is counted twice or after it.
    d.unwatch();
    let after = AnyBuffer::full(&d, Shape::new(&[100]).unwrap(), 1.0).unwrap();
    assert_eq!(d.memory_report().holders.len(), 1);
    drop(kept);
    assert_eq!(d.memory_report().holders, []);
    d.watch();
    drop((before, after));
    assert_eq!((d.memory_report().holders.len(), d.memory().live), (0, 0));
}

/// A device whose warnings are collected.
fn warned() -> (Device, Arc<Mutex<Vec<String>>>) {
    let (d, warnings) = (device(), Arc::new(Mutex::new(Vec::new())));
    let list = warnings.clone();
    d.watch_with(move |w| list.lock().unwrap().push(w.to_string()));
    (d, warnings)
}

#[test]
fn growing_memory_is_warned_of_with_its_origin() {
    let (d, warnings) = warned();
    let s = Session::eager(&d);
    let x = t(&[64, 128], &[0.5; 64 * 128]);
    let (mut kept, mut small) = (Vec::new(), Vec::new());
    for _ in 0..19 {
        let x = s.input(&x).unwrap();
        kept.push(x.matmul_with(x, false, true).unwrap().buffer().unwrap());
        small.push(x.mean().unwrap().buffer().unwrap());
        s.reset();
    }
    assert_eq!(*warnings.lock().unwrap(), Vec::<String>::new());
    for _ in 19..59 {
        kept.push(s.full(&[64, 64], 1.0).unwrap().exp().unwrap().buffer().unwrap());
        s.reset();
    }
    let found = warnings.lock().unwrap().clone();
    // After 20 steps and after 40; the next one is due after 80.
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("live memory grew for 20 steps in a row: +16.0 KiB each, most of it from matmul [64, 64] (304.0 KiB more)"), "{}", found[0]);
    assert!(found[1].contains("grew for 40 steps"), "{}", found[1]);
    assert!(found[0].contains("kept across Session::reset"));
}

#[test]
fn training_that_keeps_nothing_is_not_warned_of() {
    let (d, warnings) = warned();
    let mut params = Params::new(&d, 1);
    let net = Mlp::new(&mut params, &[4, 8, 3]).unwrap();
    let x = t(&[5, 4], &[0.25; 20]);
    let y = Tensor::new(&[5], vec![0, 1, 2, 0, 1]).unwrap();
    let s = Session::eager(&d);
    let mut optimizer = Optimizer::adamw(1e-2);
    for _ in 0..60 {
        let loss = net.forward(s.input(&x).unwrap()).unwrap().cross_entropy(s.labels(&y).unwrap()).unwrap();
        optimizer.step(&params, loss.backward().unwrap()).unwrap();
        s.reset();
    }
    let step = d.memory_report().step.unwrap();
    assert_eq!((step.step, step.allocs), (60, step.frees));
    let mut step =
        TrainStep::new(&params, Optimizer::adamw(1e-2), |v| net.forward(v[0])?.cross_entropy(v[1]));
    for _ in 0..60 {
        step.run(&[(&x).into(), (&y).into()]).unwrap();
    }
    let in_step = d.memory_report().step.unwrap();
    assert_eq!((in_step.step, in_step.allocs, in_step.frees), (120, 0, 0));
    assert_eq!(*warnings.lock().unwrap(), Vec::<String>::new());
}

#[test]
fn running_out_of_memory_names_the_largest_holders() {
    let d = device();
    let s = Session::eager(&d);
    let x = s.full(&[64, 64], 1.0).unwrap();
    d.fail_allocation(Some(1), false);
    let e = x.exp().unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::OutOfMemory { bytes: 16384, .. }));
    assert_eq!(
        e.without_location().to_string(),
        "exp: out of memory asking for 16.0 KiB for shape [64, 64] on cpu: live 16.0 KiB, peak 16.0 KiB, cached 0 B, \
         1 allocations, 0 frees; DITTOGRAD_WATCH=1 or Device::watch() shows what holds it; release values or use a \
         smaller batch"
    );
    d.watch();
    let _kept = [x.exp().unwrap(), x.exp().unwrap(), x.sum().unwrap()];
    d.fail_allocation(Some(1), false);
    let e = x.matmul(x).unwrap_err().without_location().to_string();
    assert!(
        e.starts_with("matmul: out of memory asking for 16.0 KiB for shape [64, 64] on cpu: live 48.0 KiB"),
        "{e}"
    );
    assert!(e.contains("; largest: exp [64, 64] x 2 32.0 KiB, sum [] 4 B; release"), "{e}");
    assert_eq!(
        [readable_bytes(1), readable_bytes(3 << 20), readable_bytes(5 << 30)],
        ["1 B", "3.0 MiB", "5.0 GiB"]
    );
}
