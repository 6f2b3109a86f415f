//! Derivatives as values, hooks, seeds, and the ways a session can be used: inference, scopes, fresh tapes, whole numbers.

use crate::support::{data, device, t};
use dittograd::device::AnyBuffer;
use dittograd::error::ErrorKind;
use dittograd::graph::TrainStep;
use dittograd::ops::pointwise::expression::{Expr, Pointwise};
use dittograd::ops::pointwise::map::Map;
use dittograd::optim::Optimizer;
use dittograd::prelude::*;
use dittograd::scalar::{Dual, Ratio, Real, Scalar};
use dittograd::session::{Nats, Options};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Slopes of formulas of one's own, on both sides of where they break and there.
#[test]
fn formulas_have_slopes_where_they_break() {
    let d = device();
    let s = Session::eager(&d);
    let x = s.variable(&t(&[5], &[-2.0, 0.0, 3.0, -2.0, 4.0])).unwrap();
    let y = s.variable(&t(&[5], &[-2.0, 1.0, 1.0, -4.0, 4.0])).unwrap();
    let slopes = |f: fn(&[Expr]) -> Expr| {
        let op = Map::new(Pointwise::trace(2, |x| vec![f(x)]), x.shape().unwrap());
        let all = s.grad(s.apply(op, &[x, y]).unwrap().sum().unwrap(), &[x, y]).unwrap();
        [data(all[0]), data(all[1])]
    };
    assert_eq!(slopes(|x| x[0].abs() + x[1]), [[-1.0, 0.0, 1.0, -1.0, 1.0], [1.0; 5]]);
    assert_eq!(slopes(|x| x[0].max(x[1])), [[0.5, 0.0, 1.0, 1.0, 0.5], [0.5, 1.0, 0.0, 0.0, 0.5]]);
    assert_eq!(slopes(|x| x[0].min(x[1])), [[0.5, 1.0, 0.0, 0.0, 0.5], [0.5, 0.0, 1.0, 1.0, 0.5]]);
}

/// What overflows in the branch that is not taken must not reach the second gradient.
#[test]
fn second_gradients_of_elu_are_finite_where_its_exponential_is_not() {
    let d = device();
    let s = Session::eager(&d);
    let x = s.variable(&t(&[3], &[88.0, 89.0, 1e30])).unwrap();
    for y in [x.elu(1.0).unwrap(), x.selu().unwrap(), x.celu(1.0).unwrap()] {
        let first = s.grad(y.sum().unwrap(), &[x]).unwrap()[0];
        let second = s.grad(first.sum().unwrap(), &[x]).unwrap()[0];
        assert_eq!(data(second), [0.0; 3]);
    }
}

/// Formulas whose gradients need more registers than an op has. The numbers are PyTorch's, in float64.
#[test]
fn long_formulas_have_second_and_third_derivatives() {
    type Formula = for<'s> fn(Var<'s>) -> Result<Var<'s>>;
    let all: [(&str, Formula, &[f32], &[f32]); 4] = [
        (
            "log_ndtr",
            |x| x.log_ndtr(),
            &[-9.0, -5.0, -0.5, 2.0],
            &[-0.988_485_2, -0.967_303_6, -0.731_519_6, -0.113_548_05],
        ),
        ("polygamma", |x| x.polygamma(1), &[0.5, 2.0, -1.25], &[97.409_09, 0.493_939_4, 1558.221]),
        ("i1", |x| x.i1(), &[0.0, 1.0], &[0.0, 0.42941143]),
        ("i1e", |x| x.i1e(), &[0.0, 1.0], &[0.0, -0.14981633]),
    ];
    let d = device();
    for (name, f, at, want) in all {
        let s = Session::eager(&d);
        let x = s.variable(&t(&[at.len()], at)).unwrap();
        let first = s.grad(f(x).unwrap().sum().unwrap(), &[x]).unwrap()[0];
        let second = s.grad(first.sum().unwrap(), &[x]).unwrap()[0];
        for (got, want) in data(second).iter().zip(want) {
            assert!((got - want).abs() <= 2e-5 * want.abs(), "{name}: {got}, PyTorch has {want}");
        }
        assert!(s.grad(second.sum().unwrap(), &[x]).is_ok(), "{name}");
    }
}

/// A formula of one's own may have any length.
#[test]
fn a_formula_that_is_too_long_for_one_op_becomes_several() {
    let d = device();
    let s = Session::eager(&d);
    let x = s.variable(&t(&[3], &[0.5, -1.0, 2.0])).unwrap();
    let (terms, before) = (60, s.size());
    let sum = s
        .pointwise(&[x], |v| {
            let parts: Vec<Expr> = (1..=terms).map(|k| v[0] * Expr::c(f64::from(k))).collect();
            parts[1..].iter().fold(parts[0], |sum, part| sum + *part)
        })
        .unwrap();
    assert!(s.size() > before + 1);
    assert_eq!(data(sum), [915.0, -1830.0, 3660.0]);
    assert_eq!(data(s.grad(sum.sum().unwrap(), &[x]).unwrap()[0]), [1830.0; 3]);
}

#[test]
fn constants_of_formulas_may_be_made_outside_and_nothing_else() {
    let d = device();
    let s = Session::eager(&d);
    let x = s.variable(&t(&[2], &[1.0, 2.0])).unwrap();
    let three = Expr::c(3.0);
    assert_eq!(data(s.pointwise(&[x], |v| v[0] * three).unwrap()), [3.0, 6.0]);
    assert_eq!(data(s.pointwise(&[x], |_| three).unwrap()), [3.0, 3.0]);
    let mut kept = None;
    s.pointwise(&[x], |v| {
        kept = Some(v[0] * Expr::c(2.0));
        v[0]
    })
    .unwrap();
    for foreign in [kept.unwrap(), three * three] {
        let error = s.pointwise(&[x], |v| v[0] + foreign).unwrap_err().to_string();
        assert!(error.contains("make all but constants inside of the closure"), "{error}");
    }
    // A formula that builds another one.
    let inner = |v: &[Expr]| Pointwise::trace(1, |w| vec![w[0] + v[0]]).eval(&[1.0f32])[0];
    let y = s.pointwise(&[x], |v| {
        assert!(inner(v).is_nan());
        v[0] * three
    });
    assert_eq!(data(y.unwrap()), [3.0, 6.0]);
}

#[test]
fn gradients_have_gradients() {
    let d = device();
    let s = Session::eager(&d);
    let x = s.variable(&t(&[2], &[0.5, -1.5])).unwrap();
    // y = sum(x^4): 4x^3, 12x^2, 24x, 24.
    let y = x.mul(x).unwrap().mul(x).unwrap().mul(x).unwrap().sum().unwrap();
    let g1 = s.grad(y, &[x]).unwrap()[0];
    assert_eq!(data(g1), [0.5, -13.5]);
    let g2 = s.grad(g1.sum().unwrap(), &[x]).unwrap()[0];
    assert_eq!(data(g2), [3.0, 27.0]);
    let g3 = s.grad(g2.sum().unwrap(), &[x]).unwrap()[0];
    assert_eq!(data(g3), [12.0, -36.0]);
    let g4 = s.grad(g3.sum().unwrap(), &[x]).unwrap()[0];
    assert_eq!(data(g4), [24.0, 24.0]);
    let e = s.grad(g4.sum().unwrap(), &[x]).unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::Gradient { .. }), "{e}");
    // backward goes through recorded gradients as well.
    let grads = g1.mul(g1).unwrap().sum().unwrap().backward().unwrap();
    assert_eq!(grads.var(x).unwrap().to_tensor::<f32>().unwrap().data(), [3.0, -729.0]);
}

#[test]
fn grad_gives_the_bits_of_backward() {
    let d = device();
    let s = Session::eager(&d);
    let x = s.variable(&t(&[3, 4], &(0..12).map(|i| i as f32 * 0.37 - 2.0).collect::<Vec<_>>())).unwrap();
    let w = s.variable(&t(&[4, 2], &(0..8).map(|i| 1.1 - i as f32 * 0.3).collect::<Vec<_>>())).unwrap();
    let y = x.matmul(w).unwrap().gelu().unwrap().softmax().unwrap().mul(x.matmul(w).unwrap()).unwrap();
    let loss = y.mean().unwrap();
    let recorded = s.grad(loss, &[x, w]).unwrap();
    let walked = loss.backward_retain().unwrap();
    for (v, g) in [x, w].into_iter().zip(recorded) {
        assert_eq!(data(g), walked.var(v).unwrap().to_tensor::<f32>().unwrap().into_data());
    }
    let size = s.size();
    assert_eq!(s.grad(loss, &[x]).unwrap().len(), 1);
    assert!(s.size() > size);
}

#[test]
fn directions_agree_with_dual_numbers() {
    let d = device();
    fn f(x: Var<'_>) -> Var<'_> {
        x.sin().unwrap().mul(x.exp().unwrap()).unwrap().softmax().unwrap()
    }
    let (at, along) = ([0.3f32, -0.7, 1.1], [1.0f32, -2.0, 0.5]);
    let s = Session::eager(&d);
    let x = s.variable(&t(&[3], &at)).unwrap();
    let v = s.input(&t(&[3], &along)).unwrap();
    let got = data(s.jvp(f(x), &[(x, v)]).unwrap());
    let exact = Session::eager(&Device::host::<Dual>());
    let pairs = at.iter().zip(along).map(|(&v, d)| Dual { v: f64::from(v), d: f64::from(d) }).collect();
    let want = f(exact.input(&Tensor::new(&[3], pairs).unwrap()).unwrap()).value::<Dual>().unwrap();
    for (g, w) in got.iter().zip(want.data()) {
        assert!((f64::from(*g) - w.d).abs() < 1e-6, "{g} {}", w.d);
    }
    // Nothing depends on the direction: zeros.
    let other = s.variable(&t(&[3], &at)).unwrap();
    assert_eq!(data(s.jvp(f(x), &[(other, v)]).unwrap()), [0.0; 3]);
}

#[test]
fn hessian_products_are_rows_of_the_hessian() {
    let d = device();
    let s = Session::eager(&d);
    let x = s.variable(&t(&[2], &[2.0, 3.0])).unwrap();
    let (a, b) = (x.narrow(0, 0, 1).unwrap(), x.narrow(0, 1, 1).unwrap());
    // a^2 b: Hessian [[2b, 2a], [2a, 0]].
    let y = a.mul(a).unwrap().mul(b).unwrap().sum().unwrap();
    let row = |v: [f32; 2]| data(s.hvp(y, &[(x, s.input(&t(&[2], &v)).unwrap())]).unwrap()[0].unwrap());
    assert_eq!(row([1.0, 0.0]), [6.0, 4.0]);
    assert_eq!(row([0.0, 1.0]), [4.0, 0.0]);
}

/// y = (a^2 b, a c, b + 2 c) of x = (a, b, c), whose derivatives are known.
fn three(x: Var<'_>) -> Result<Var<'_>> {
    let part = |i| x.narrow(0, i, 1);
    let (a, b, c) = (part(0)?, part(1)?, part(2)?);
    x.session().concat(&[a.mul(a)?.mul(b)?, a.mul(c)?, b.add(c.scale(2.0)?)?], 0)
}

#[test]
fn jacobians_and_hessians_are_exact_in_fractions() {
    let host = Device::host::<Ratio>();
    let s = Session::eager(&host);
    let (a, b, c) = (Ratio::new(1, 3), Ratio::new(-2, 5), Ratio::whole(7));
    let x = s.variable(&Tensor::new(&[3], vec![a, b, c]).unwrap()).unwrap();
    let (zero, one, two) = (Ratio::whole(0), Ratio::whole(1), Ratio::whole(2));
    let want = [two * a * b, a * a, zero, c, zero, a, zero, one, two];
    let y = three(x).unwrap();
    for got in [s.jacobian(y, x).unwrap(), s.jacobian_forward(y, x).unwrap()] {
        let got = got.value::<Ratio>().unwrap();
        assert_eq!((got.shape().dims(), got.data()), (&[3, 3][..], &want[..]));
    }
    let got = s.hessian(y.sum().unwrap(), x).unwrap().value::<Ratio>().unwrap();
    assert_eq!(got.data(), [two * b, two * a, one, two * a, zero, zero, one, zero, zero]);
    // Shapes are joined; what does not depend has zeros; a linear value has no second derivatives.
    let m = s.variable(&Tensor::from_fn(Shape::new(&[2, 3]).unwrap(), |i| Ratio::whole(i as i64))).unwrap();
    let r = m.sum_axes(&[1]).unwrap();
    let j = s.jacobian(r, m).unwrap().value::<Ratio>().unwrap();
    assert_eq!(j.shape().dims(), [2, 2, 3]);
    assert_eq!(
        j.data().iter().map(|x| x.to_f64()).collect::<Vec<_>>(),
        [1., 1., 1., 0., 0., 0., 0., 0., 0., 1., 1., 1.]
    );
    assert_eq!(s.jacobian_forward(r, m).unwrap().value::<Ratio>().unwrap(), j);
    assert_eq!(
        s.jacobian(r, x).unwrap().value::<Ratio>().unwrap(),
        Tensor::full(Shape::new(&[2, 3]).unwrap(), zero)
    );
    assert_eq!(s.jacobian_forward(r, x).unwrap().value::<Ratio>().unwrap().shape().dims(), [2, 3]);
    assert!(
        s.hessian(r.sum().unwrap(), m).unwrap().value::<Ratio>().unwrap().data().iter().all(|x| *x == zero)
    );
    let none = s.variable(&Tensor::<Ratio>::new(&[0], vec![]).unwrap()).unwrap();
    assert_eq!(s.jacobian(none.neg().unwrap(), x).unwrap().shape().unwrap().dims(), [0, 3]);
    assert_eq!(s.jacobian_forward(y, none).unwrap().shape().unwrap().dims(), [3, 0]);
}

#[test]
fn jacobians_and_hessians_agree_with_differences() {
    let d = device();
    let at = [0.3f32, -0.7, 1.1, 0.4];
    fn f(x: Var<'_>) -> Result<Var<'_>> {
        x.reshape(&[2, 2])?.matmul(x.reshape(&[2, 2])?.sin()?)?.softmax()
    }
    let s = Session::eager(&d);
    let x = s.variable(&t(&[4], &at)).unwrap();
    let y = f(x).unwrap();
    let (reverse, forward) = (data(s.jacobian(y, x).unwrap()), data(s.jacobian_forward(y, x).unwrap()));
    let loss = y.mul(y).unwrap().sum().unwrap();
    let hessian = data(s.hessian(loss, x).unwrap());
    // Central differences in f64: the error is far below that of float32.
    let wide = Session::eager(&Device::host::<f64>());
    let h = 1e-5;
    let moved = |j: usize, by: f64| {
        let x: Vec<f64> =
            at.iter().enumerate().map(|(i, &a)| f64::from(a) + if i == j { by } else { 0.0 }).collect();
        wide.variable(&Tensor::new(&[4], x).unwrap()).unwrap()
    };
    for j in 0..4 {
        let [a, b] = [h, -h].map(|by| f(moved(j, by)).unwrap().value::<f64>().unwrap());
        let [ga, gb] = [h, -h].map(|by| {
            let x = moved(j, by);
            let y = f(x).unwrap();
            wide.grad(y.mul(y).unwrap().sum().unwrap(), &[x]).unwrap()[0].value::<f64>().unwrap()
        });
        for i in 0..4 {
            let (dy, dg) =
                ((a.data()[i] - b.data()[i]) / (2.0 * h), (ga.data()[i] - gb.data()[i]) / (2.0 * h));
            assert!((f64::from(reverse[4 * i + j]) - dy).abs() < 1e-6, "{i} {j}");
            assert!((f64::from(forward[4 * i + j]) - dy).abs() < 1e-6, "{i} {j}");
            assert!((f64::from(hessian[4 * i + j]) - dg).abs() < 1e-5, "{i} {j}");
        }
    }
    // Traced, compiled, they have the same bits.
    let meta = dittograd::device::Meta::f32(Shape::new(&[4]).unwrap());
    let graph = dittograd::graph::Graph::trace(&d, &[meta], |s, x| {
        let x = x[0].tracked()?;
        let y = f(x)?;
        Ok(vec![s.jacobian(y, x)?, s.jacobian_forward(y, x)?, s.hessian(y.mul(y)?.sum()?, x)?])
    })
    .unwrap();
    let compiled = graph.compile(&d).unwrap().call(&[t(&[4], &at).into()]).unwrap();
    for (got, want) in compiled.iter().zip([reverse, forward, hessian]) {
        assert_eq!(got.num().unwrap().data(), want);
    }
}

#[test]
fn what_cannot_be_differentiated_is_said() {
    let d = device();
    let s = Session::eager(&d);
    let (x, fixed) = (s.variable(&t(&[2], &[1.0, 2.0])).unwrap(), s.input(&t(&[2], &[1.0, 2.0])).unwrap());
    let y = x.mul(x).unwrap();
    let e = s.grad(y, &[x]).unwrap_err().to_string();
    assert!(e.contains("needs a seed"), "{e}");
    let loss = y.sum().unwrap();
    let e = s.grad(loss, &[x, fixed]).unwrap_err().to_string();
    assert!(e.contains("number 1") && e.contains("requires no gradient"), "{e}");
    let apart = s.variable(&t(&[1], &[1.0])).unwrap();
    let e = s.grad(loss, &[apart]).unwrap_err().to_string();
    assert!(e.contains("does not depend on number 0"), "{e}");
    let e = s.vjp(&[(y, fixed.sum().unwrap())], &[x]).unwrap_err().to_string();
    assert!(e.contains("seed"), "{e}");
    let own = s
        .with_tape(|tape| {
            let shape = tape.node(0).unwrap().meta.shape;
            tape.unary("own", 0, (shape, shape), |x| Ok(x.clone()), |_, g| Ok(g.clone()))
        })
        .unwrap();
    assert_eq!(s.size(), own + 1);
}

#[test]
fn several_seeds_add_up() {
    let d = device();
    let s = Session::eager(&d);
    let x = s.variable(&t(&[2], &[1.0, 2.0])).unwrap();
    let (a, b) = (x.mul(x).unwrap(), x.scale(3.0).unwrap());
    let seeds = [t(&[2], &[1.0, 10.0]), t(&[2], &[100.0, 1000.0])];
    let grads = s.backward_from(&[(a, &seeds[0]), (b, &seeds[1])]).unwrap();
    assert_eq!(grads.var(x).unwrap().to_tensor::<f32>().unwrap().data(), [302.0, 3040.0]);
}

#[test]
fn hooks_see_whole_gradients_and_replace_them() {
    let d = device();
    let s = Session::eager(&d);
    let x = s.variable(&t(&[2], &[1.0, 2.0])).unwrap();
    let h = x.scale(2.0).unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let (seen, on) = (calls.clone(), d.clone());
    h.hook(move |g| {
        seen.fetch_add(1, Ordering::Relaxed);
        // Both uses of h have come together.
        assert_eq!(g.to_tensor::<f32>()?.data(), [5.0, 5.0]);
        AnyBuffer::full(&on, g.shape(), -1.0)
    })
    .unwrap();
    let y = h.scale(2.0).unwrap().add(h.scale(3.0).unwrap()).unwrap().sum().unwrap();
    let grads = y.backward_retain().unwrap();
    assert_eq!(grads.var(x).unwrap().to_tensor::<f32>().unwrap().data(), [-2.0, -2.0]);
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    x.hook(|g| AnyBuffer::full(g.buffer().device(), dittograd::shape::Shape::SCALAR, 0.0)).unwrap();
    let e = y.backward_retain().unwrap_err().to_string();
    assert!(e.contains("shape"), "{e}");
    let fixed = s.input(&t(&[1], &[0.0])).unwrap();
    assert!(fixed.hook(|g| Ok(g.clone())).is_err());
}

/// u'' = -u with u(0) = 0: the residual needs two derivatives, the step a third. Eager and compiled agree.
#[test]
fn losses_made_of_derivatives_train_compiled_as_eagerly() {
    fn residual<'s>(x: Var<'s>, w: &[Param; 2]) -> Result<Var<'s>> {
        let (s, x) = (x.session(), x.tracked()?);
        let u = x.matmul(s.param(&w[0])?)?.tanh()?.matmul(s.param(&w[1])?)?;
        let du = s.grad(u.sum()?, &[x])?[0];
        let d2u = s.grad(du.sum()?, &[x])?[0];
        let r = d2u.add(u)?;
        r.mul(r)?.mean()
    }
    let d = device();
    let x = t(&[5, 1], &[-1.0, -0.5, 0.1, 0.5, 1.0]);
    let make = || {
        let mut params = Params::new(&d, 3);
        let w = [
            params.uniform("a", &[1, 8], -1.0, 1.0).unwrap(),
            params.uniform("b", &[8, 1], -1.0, 1.0).unwrap(),
        ];
        (params, w)
    };
    let (params, w) = make();
    let mut optimizer = Optimizer::sgd(0.05);
    let s = Session::eager(&d);
    let mut losses = Vec::new();
    for _ in 0..20 {
        s.reset();
        let loss = residual(s.input(&x).unwrap(), &w).unwrap();
        losses.push(loss.item().unwrap());
        optimizer.step(&params, loss.backward().unwrap()).unwrap();
    }
    assert!(losses[19] < 0.8 * losses[0], "{losses:?}");
    let (again, w) = make();
    let mut step = TrainStep::new(&again, Optimizer::sgd(0.05), move |v| residual(v[0], &w));
    for want in losses {
        step.run(&[(&x).into()]).unwrap();
        assert_eq!(step.loss().unwrap(), want);
    }
    assert_eq!(params.fingerprint().unwrap(), again.fingerprint().unwrap());
}

#[test]
fn inference_records_no_rules_and_scopes_free_values() {
    let d = device();
    let s = Session::inference(&d);
    let x = s.variable(&t(&[64, 64], &vec![0.5; 4096])).unwrap();
    assert!(!x.requires_grad().unwrap());
    let live = d.memory().live;
    let y = s.scope(|| x.matmul(x)?.relu()?.softmax()?.sum()).unwrap();
    assert_eq!(d.memory().live, live + 4);
    assert_eq!(y.item().unwrap(), 64.0);
    assert!(y.backward().is_err());
    let e = Session::eager(&d);
    let x = e.variable(&t(&[1], &[1.0])).unwrap();
    let y = e.scope(|| x.square()?.neg()?.sum()).unwrap();
    assert_eq!(y.backward().unwrap().var(x).unwrap().to_tensor::<f32>().unwrap().data(), [-2.0]);
    let options = Options { seed: 5, track_gradients: false };
    assert_eq!(Session::new(&d, options).uniform(&[4]).map(data).unwrap(), {
        Session::eager_seeded(&d, 5).uniform(&[4]).map(data).unwrap()
    });
}

#[test]
fn a_fresh_tape_comes_between() {
    let d = device();
    let s = Session::eager(&d);
    let x = s.variable(&t(&[1], &[3.0])).unwrap();
    let y = x.mul(x).unwrap();
    let inner = s
        .fresh(|s| {
            assert_eq!(s.size(), 0);
            let e = y.value::<f32>().unwrap_err();
            assert!(matches!(e.kind(), ErrorKind::Stale { .. }), "{e}");
            s.scalar(2.0)?.scale(4.0)?.item()
        })
        .unwrap();
    assert_eq!((inner, s.size(), y.value::<f32>().unwrap().data()[0]), (8.0, 2, 9.0));
    assert!(y.sum().unwrap().backward().is_ok());
    assert!(s.fresh(|s| s.scalar(1.0)?.reshape(&[2])?.item()).is_err());
    s.reset();
    assert!(matches!(y.value::<f32>().unwrap_err().kind(), ErrorKind::Stale { .. }));
}

#[test]
fn a_panic_in_a_lent_tape_gives_it_back() {
    let d = device();
    let s = Session::eager(&d);
    let x = s.variable(&t(&[1], &[3.0])).unwrap();
    let hit = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        s.with_tape(|_| -> Result<()> { panic!("on purpose") })
    }));
    assert!(hit.is_err());
    assert_eq!(data(x), [3.0]);
}

#[test]
fn whole_numbers_are_read_when_a_program_runs() {
    let d = device();
    let nats = Nats::new(&[2, 0]);
    assert_eq!((nats.len(), nats.get(0).unwrap(), nats.values()), (2, 2, vec![2, 0]));
    assert!(nats.get(2).is_err() && nats.set(2, 1).is_err() && nats.set_values(&[1]).is_err());
    let mut params = Params::new(&d, 0);
    let table = params.value("table", &t(&[3, 1], &[1.0, 10.0, 100.0])).unwrap();
    let (list, p) = (nats.clone(), table.clone());
    let mut step = TrainStep::new(&params, Optimizer::sgd(0.0), move |v| {
        let s = v[0].session();
        s.param(&p)?.index_select(0, s.nats(&list)?)?.sum()?.mul(v[0])
    });
    let one = Tensor::scalar(1.0f32);
    step.run(&[(&one).into()]).unwrap();
    assert_eq!(step.loss().unwrap(), 101.0);
    nats.set(1, 1).unwrap();
    step.run(&[(&one).into()]).unwrap();
    assert_eq!(step.loss().unwrap(), 110.0);
    nats.set_values(&[1, 1]).unwrap();
    step.again().unwrap();
    assert_eq!(step.loss().unwrap(), 20.0);
    nats.set(0, 3).unwrap();
    let e = step.again().unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::Index { index: 3, bound: 3, .. }), "{e}");
    nats.set(0, 0).unwrap();
    step.again().unwrap();
    assert_eq!(step.loss().unwrap(), 11.0);
    // An eager session reads them when they are used.
    let s = Session::eager(&d);
    let picked = s.param(&table).unwrap().index_select(0, s.nats(&nats).unwrap()).unwrap();
    nats.set(0, 2).unwrap();
    assert_eq!(data(picked), [1.0, 10.0]);
}

#[test]
fn floats_become_indices_if_they_are_whole() {
    let d = device();
    let s = Session::eager(&d);
    let ids = s.input(&t(&[3], &[0.0, 7.0, 16_777_216.0])).unwrap().to_index().unwrap();
    assert_eq!(ids.indices().unwrap().data(), [0, 7, 16_777_216]);
    for (bad, at) in [(-1.0f32, 1), (0.5, 1), (f32::NAN, 1), (f32::INFINITY, 1), (33_554_432.0, 1)] {
        let e = s.input(&t(&[2], &[1.0, bad])).unwrap().to_index().unwrap_err().to_string();
        assert!(e.contains(&format!("element {at}")), "{e}");
    }
    assert_eq!(Nats::try_from(&t(&[2], &[3.0, 4.0])).unwrap().values(), [3, 4]);
    assert!(Nats::try_from(&t(&[1], &[3.5])).is_err());
}
