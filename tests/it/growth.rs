//! Programs of thousands of ops: what is done to them takes time in proportion to their length, or little more.

use crate::support::{device, f};
use dittograd::graph::{Graph, Pass, Passes};
use dittograd::prelude::*;
use std::time::Duration;

/// Time that this thread has computed for.
fn clock() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// What the shorter one takes at least, in all its turns.
const LEAST: Duration = Duration::from_millis(20);

/// Four times the length may take ten times as long, since it leaves the caches; what is quadratic takes sixteen times as long.
fn grows_gently(what: &str, mut make: impl FnMut(usize) -> Box<dyn FnMut()>) {
    let (mut short, mut long) = (make(2000), make(8000));
    let mut turns = 1;
    let spent = |f: &mut dyn FnMut(), turns: usize| {
        let before = clock();
        (0..turns).for_each(|_| f());
        clock() - before
    };
    while spent(&mut *short, turns) < LEAST {
        turns *= 2;
    }
    // The least of several: whatever else the machine does only adds.
    let mut least = [Duration::MAX; 2];
    for _ in 0..12 {
        least[0] = least[0].min(spent(&mut *short, turns));
        least[1] = least[1].min(spent(&mut *long, turns));
        if least[1] < least[0] * 10 {
            break;
        }
    }
    let [a, b] = least.map(|t| t.as_secs_f64() * 1e3 / turns as f64);
    println!("{what}: {a:.1} and {b:.1} ms");
    assert!(least[1] < least[0] * 10, "{what}: {a:.1} and {b:.1} ms");
}

fn chain(n: usize) -> Graph {
    Graph::trace(&device(), &[f(&[64])], |_, x| Ok(vec![(0..n).try_fold(x[0], |y, _| y.relu())?])).unwrap()
}

/// Independent ops of one value, summed up.
fn wide(n: usize) -> Graph {
    fn term(x: Var<'_>, i: usize) -> Result<Var<'_>> {
        x.scale(1.0 + i as f64)?.exp()
    }
    Graph::trace(&device(), &[f(&[64])], |_, x| {
        Ok(vec![(1..n / 3).try_fold(term(x[0], 0)?, |y, i| y.add(term(x[0], i)?))?])
    })
    .unwrap()
}

/// A chain, of which every link reads one early value, and products that do not join.
fn reads(n: usize) -> Graph {
    Graph::trace(&device(), &[f(&[8, 8])], |_, x| {
        let early = x[0].exp()?;
        let mut y = x[0];
        for i in 0..n {
            y = if i % 8 == 0 { y.matmul(x[0]) } else { y.mul(early) }?;
        }
        Ok(vec![y, early])
    })
    .unwrap()
}

#[test]
fn passes_and_plans() {
    for (name, make) in [("chain", chain as fn(usize) -> Graph), ("wide", wide), ("reads", reads)] {
        for pass in Pass::ALL {
            grows_gently(&format!("{name}, {}", pass.name()), |n| {
                let graph = make(n);
                Box::new(move || drop(graph.after(Passes::none().with(pass)).unwrap()))
            });
        }
        grows_gently(&format!("{name}, all passes"), |n| {
            let graph = make(n);
            Box::new(move || drop(graph.after(Passes::all()).unwrap()))
        });
        grows_gently(&format!("{name}, text"), |n| {
            let graph = make(n);
            Box::new(move || drop(Graph::parse(&graph.text().unwrap()).unwrap()))
        });
        grows_gently(&format!("{name}, gradients"), |n| {
            let graph = make(n);
            Box::new(move || drop(graph.vjp().unwrap()))
        });
    }
}

#[test]
fn compiling_and_running() {
    let d = device();
    for (name, make) in [("chain", chain as fn(usize) -> Graph), ("wide", wide), ("reads", reads)] {
        let d = &d;
        grows_gently(&format!("{name}, compiled"), |n| {
            let (graph, d) = (make(n), d.clone());
            Box::new(move || drop(graph.compile(&d).unwrap()))
        });
        grows_gently(&format!("{name}, run"), |n| {
            let mut function = make(n).compile(d).unwrap();
            let x: Vec<_> =
                function.graph().inputs().iter().map(|m| Tensor::full(m.shape, 0.5f32).into()).collect();
            Box::new(move || (0..20).for_each(|_| drop(function.call::<f32>(&x).unwrap())))
        });
    }
}

#[test]
fn many_parameters() {
    grows_gently("parameters", |n| {
        let d = device();
        Box::new(move || {
            let mut params = Params::new(&d, 1);
            let all: Vec<Param> =
                (0..n / 4).map(|i| params.full(&format!("w{i}"), &[4], 0.5).unwrap()).collect();
            let mut step = TrainStep::new(&params, Optimizer::sgd(0.1), |v| {
                let s = v[0].session();
                all.iter().try_fold(v[0], |y, w| y.mul(s.param(w)?))?.sum()
            });
            step.run(&[(&Tensor::full(Shape::new(&[4]).unwrap(), 1.0f32)).into()]).unwrap();
        })
    });
}

/// Joined programs have an end, and where that is changes no bit.
#[test]
fn a_long_chain_is_several_kernels() {
    let d = device();
    let graph = Graph::trace(&d, &[f(&[64])], |_, x| {
        Ok(vec![(0..1000).try_fold(x[0], |y, i| y.scale(1.0 + 1e-3 * f64::from(i % 7 - 3)))?])
    })
    .unwrap();
    let x = [crate::support::fractions(&[64], 7).into()];
    let plain = graph.run::<f32>(&d, &x).unwrap();
    let mut compiled = graph.compile(&d).unwrap();
    let steps = compiled.plan().unwrap().instructions;
    assert!((2..50).contains(&steps), "{steps}");
    assert_eq!(format!("{plain:?}"), format!("{:?}", compiled.call::<f32>(&x).unwrap()));
}

/// Ops whose numbers are equal but not the same are not one.
#[test]
fn factors_of_zero_and_of_minus_zero_differ() {
    let d = device();
    let graph = Graph::trace(&d, &[f(&[3])], |_, x| Ok(vec![x[0].scale(0.0)?, x[0].scale(-0.0)?])).unwrap();
    let x = [crate::support::t(&[3], &[1.0, -2.0, 0.0]).into()];
    let plain = graph.run::<f32>(&d, &x).unwrap();
    let compiled = graph.compile(&d).unwrap().call::<f32>(&x).unwrap();
    assert_eq!(format!("{plain:?}"), format!("{compiled:?}"));
    assert!(format!("{plain:?}").contains("-0.0"));
}
