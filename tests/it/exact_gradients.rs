//! The laws of the tape on random programs in exact fractions: nothing rounds, so every law is an equality.

use dittograd::device::AnyBuffer;
use dittograd::numerics::rng::Stream;
use dittograd::ops::{self, AnyOp, Io, Recorder, Val};
use dittograd::prelude::*;
use dittograd::scalar::{Ratio, Real, Scalar, Special};
use dittograd::shape::Shape;
use dittograd::tape::{Backward, Tape};
use std::cmp::Ordering;
use std::ops::{Add, Div, Mul, Neg, Sub};

/// A fraction and its derivative along a direction: forward mode, without any rule of an op.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Tangent(Ratio, Ratio);

macro_rules! exact {
    ($($trait:ident $method:ident ($a:ident, $b:ident) = $d:expr;)*) => {$(
        impl $trait for Tangent {
            type Output = Tangent;
            fn $method(self, other: Tangent) -> Tangent {
                let ($a, $b) = (self, other);
                Tangent($trait::$method($a.0, $b.0), $d)
            }
        }
    )*};
}
exact! {
    Add add(a, b) = a.1 + b.1;
    Sub sub(a, b) = a.1 - b.1;
    Mul mul(a, b) = a.1 * b.0 + a.0 * b.1;
    Div div(a, b) = (a.1 * b.0 - a.0 * b.1) / (b.0 * b.0);
}

impl Neg for Tangent {
    type Output = Tangent;
    fn neg(self) -> Tangent {
        Tangent(-self.0, -self.1)
    }
}

impl PartialOrd for Tangent {
    fn partial_cmp(&self, other: &Tangent) -> Option<Ordering> {
        self.0.partial_cmp(&other.0)
    }
}

/// What no law needs.
const NONE: Tangent = Tangent(Ratio::UNDEFINED, Ratio::UNDEFINED);

macro_rules! none {
    ($($name:ident)*) => { $(fn $name(self) -> Tangent { NONE })* };
}

impl Real for Tangent {
    fn c(x: f64) -> Tangent {
        Tangent(Ratio::c(x), Ratio::whole(0))
    }
    fn fma(self, b: Tangent, c: Tangent) -> Tangent {
        self * b + c
    }
    fn abs(self) -> Tangent {
        if self.0 < Ratio::whole(0) { -self } else { self }
    }
    fn max(self, b: Tangent) -> Tangent {
        if self > b { self } else { b }
    }
    fn min(self, b: Tangent) -> Tangent {
        if b > self { self } else { b }
    }
    fn pow(self, _: Tangent) -> Tangent {
        NONE
    }
    fn special(self, _: Special) -> Tangent {
        NONE
    }
    fn atan2(self, _: Tangent) -> Tangent {
        NONE
    }
    fn fmod(self, _: Tangent) -> Tangent {
        NONE
    }
    fn where_gt(a: Tangent, b: Tangent, x: Tangent, y: Tangent) -> Tangent {
        if a > b { x } else { y }
    }
    fn where_le(a: Tangent, b: Tangent, x: Tangent, y: Tangent) -> Tangent {
        if a <= b { x } else { y }
    }
    fn where_eq(a: Tangent, b: Tangent, x: Tangent, y: Tangent) -> Tangent {
        if a.0 == b.0 { x } else { y }
    }
    none!(sqrt exp expm1 log log1p tanh sigmoid softplus sin cos erf floor round);
}

impl Scalar for Tangent {
    const NAME: &'static str = "tangent";
    fn to_f64(self) -> f64 {
        self.0.to_f64()
    }
    fn to_f32(self) -> Option<f32> {
        None
    }
    fn from_f32(x: f32) -> Tangent {
        Tangent::c(f64::from(x))
    }
}

/// Dimensions of the inputs of the random programs.
const INPUTS: [&[usize]; 4] = [&[2, 3], &[3, 2], &[2, 3], &[3]];

fn small(stream: &mut Stream) -> Ratio {
    Ratio::new(stream.below(13) as i128 - 6, 1 + stream.below(3) as i128)
}

/// A random program of `steps` ops on `INPUTS`; every value that fits can be used again. The same stream gives the same
/// program on any device.
fn program<'s>(inputs: &[Var<'s>], stream: &mut Stream, steps: usize) -> Vec<Var<'s>> {
    let mut values = inputs.to_vec();
    for _ in 0..steps {
        let a = values[stream.below(values.len())];
        let b = values[stream.below(values.len())];
        let (da, db) = (a.shape().unwrap(), b.shape().unwrap());
        let same = da == db;
        let made = match stream.below(12) {
            0 if same => a.add(b),
            1 if same => a.sub(b),
            2 if same => a.mul(b),
            3 if same => a.maximum(b),
            4 => a.scale(0.5),
            5 => a.relu(),
            6 if da.rank() == 2 => a.transpose(),
            7 if da.rank() == 2 && db.rank() == 2 && da.dims()[1] == db.dims()[0] => a.matmul(b),
            8 if da.rank() > 1 => a.flatten(),
            9 if da.rank() > 0 => a.sum_dim(&[0], true).and_then(|s| s.broadcast_to(da)),
            10 if da.rank() == 1 && da.dims()[0] > 1 => a.narrow(0, 1, da.dims()[0] - 1),
            11 if da.rank() == 1 && db.rank() == 1 && da.numel() + db.numel() < 9 => a.concat(b, 0),
            _ => a.neg(),
        };
        values.push(made.unwrap());
    }
    values
}

fn inputs<T: Scalar>(stream: &mut Stream, make: impl Fn(Ratio, &mut Stream) -> T) -> Vec<Tensor<T>> {
    let one = |dims: &&[usize]| {
        let n = dims.iter().product();
        Tensor::new(
            dims,
            (0..n)
                .map(|_| {
                    let x = small(stream);
                    make(x, stream)
                })
                .collect(),
        )
        .unwrap()
    };
    INPUTS.iter().map(one).collect()
}

fn dot(a: &[Ratio], b: &[Ratio]) -> Ratio {
    a.iter().zip(b).fold(Ratio::whole(0), |s, (&x, &y)| s + x * y)
}

/// Runs rules at once.
struct Now<'a> {
    device: &'a Device,
    values: Vec<AnyBuffer>,
}

impl Recorder for Now<'_> {
    fn record(&mut self, op: AnyOp, ins: &[Val]) -> dittograd::error::Result<Val> {
        let ins: Vec<&AnyBuffer> = ins.iter().map(|v| &self.values[v.0 as usize]).collect();
        self.values.push(ops::apply(self.device, &op, &ins)?);
        Ok(Val(self.values.len() as u32 - 1))
    }
    fn meta(&self, v: Val) -> dittograd::device::Meta {
        self.values[v.0 as usize].meta()
    }
}

/// Reverse mode as it is defined: from the last value to the first, every rule is run and whole contexts are added.
fn naive(tape: &Tape, seeds: &[Tensor<Ratio>]) -> Vec<Tensor<Ratio>> {
    let mut context = seeds.to_vec();
    for id in (0..tape.size()).rev() {
        let node = tape.node(id).unwrap();
        let Backward::Op(op) = &node.backward else { continue };
        let mut now = Now { device: tape.device(), values: Vec::new() };
        now.values.extend(node.parents.iter().map(|&p| tape.value(p).unwrap().clone()));
        now.values.push(tape.value(id).unwrap().clone());
        now.values.push(AnyBuffer::upload(tape.device(), &context[id]).unwrap());
        let n = node.parents.len() as u32;
        let ins: Vec<Val> = (0..n).map(Val).collect();
        let grads = op.vjp(&mut now, Io { ins: &ins, out: Val(n) }, Val(n + 1)).unwrap();
        for (&p, g) in node.parents.iter().zip(grads) {
            assert!(p < id, "a rule reaches forward");
            let mut contribution = Tensor::full(context[p].shape(), Ratio::whole(0));
            if let Some(g) = g {
                contribution = now.values[g.0 as usize].to_tensor().unwrap();
            }
            let sum = context[p].data().iter().zip(contribution.data()).map(|(&a, &b)| a + b).collect();
            context[p] = Tensor::with_shape(context[p].shape(), sum).unwrap();
        }
    }
    context
}

fn is_exact(t: &Tensor<Ratio>) -> bool {
    t.data().iter().all(|x| x.is_defined())
}

/// Programs whose numbers stay within 127 bits, by number.
fn programs(f: impl Fn(u64, &mut Stream)) {
    (0..60).for_each(|seed| f(seed, &mut Stream::new(seed, 7)));
}

#[test]
fn the_walk_is_reverse_mode_from_any_seeds() {
    let device = Device::host::<Ratio>();
    let exact = std::cell::Cell::new(0);
    programs(|_, stream| {
        let s = Session::eager(&device);
        let leaves: Vec<Var<'_>> = inputs(stream, |x, _| x).iter().map(|t| s.variable(t).unwrap()).collect();
        let before = s.size();
        assert_eq!(before, INPUTS.len());
        let values = program(&leaves, stream, 12);
        // A value is one node or more; the last is where the tape ends.
        assert_eq!(values.last().unwrap().shape().is_ok(), s.size() > before);
        s.with_tape(|tape| {
            let seeds: Vec<Tensor<Ratio>> = (0..tape.size())
                .map(|id| Tensor::from_fn(tape.node(id).unwrap().meta.shape, |_| small(stream)))
                .collect();
            let given = seeds.iter().map(|t| AnyBuffer::upload(&device, t)).collect::<Result<Vec<_>>>()?;
            let dense = tape.backward_dense_from(given)?;
            assert_eq!(dense.len(), tape.size());
            let want = naive(tape, &seeds);
            if want.iter().all(is_exact) {
                exact.set(exact.get() + 1);
                for (id, (got, want)) in dense.iter().zip(&want).enumerate() {
                    // Where nothing requires a gradient the seed stays.
                    assert_eq!(got.to_tensor::<Ratio>()?, *want, "node {id}");
                }
            }
            Ok(())
        })
        .unwrap();
    });
    assert!(exact.get() > 40, "{} programs stayed exact", exact.get());
}

#[test]
fn reverse_mode_is_the_adjoint_of_forward_mode() {
    let (plain, forward) = (Device::host::<Ratio>(), Device::host::<Tangent>());
    let exact = std::cell::Cell::new(0);
    programs(|seed, stream| {
        let points = inputs(stream, |x, stream| Tangent(x, small(stream)));
        let rest = Stream::new(seed, 8);
        let dual = Session::eager(&forward);
        let vars: Vec<Var<'_>> = points.iter().map(|t| dual.variable(t).unwrap()).collect();
        let y = *program(&vars, &mut rest.clone(), 12).last().unwrap();
        let along: Tensor<Ratio> = y.value::<Tangent>().unwrap().map(|t| t.1);

        let s = Session::eager(&plain);
        let leaves: Vec<Var<'_>> = points.iter().map(|t| s.variable(&t.map(|x| x.0)).unwrap()).collect();
        let dx: Vec<Tensor<Ratio>> = points.iter().map(|t| t.map(|x| x.1)).collect();
        let y = *program(&leaves, &mut rest.clone(), 12).last().unwrap();
        let seed = Tensor::from_fn(y.shape().unwrap(), |_| small(stream));
        if !is_exact(&along) || !y.requires_grad().unwrap() {
            return;
        }
        let grads = s.vjp(&[(y, s.input(&seed).unwrap())], &leaves).unwrap();
        let zero = Ratio::whole(0);
        let right = grads.iter().zip(&dx).fold(zero, |sum, (g, dx)| {
            sum + g.map_or(zero, |g| dot(g.value::<Ratio>().unwrap().data(), dx.data()))
        });
        let left = dot(along.data(), seed.data());
        if !(left.is_defined() && right.is_defined()) {
            return;
        }
        exact.set(exact.get() + 1);
        assert_eq!(left, right);
        let directions: Vec<(Var<'_>, Var<'_>)> =
            leaves.iter().zip(&dx).map(|(x, d)| (*x, s.input(d).unwrap())).collect();
        assert_eq!(s.jvp(y, &directions).unwrap().value::<Ratio>().unwrap(), along);
    });
    assert!(exact.get() > 40, "{} programs stayed exact", exact.get());
}

#[test]
fn a_node_is_appended_at_the_end_and_leaves_come_first() {
    let device = Device::host::<Ratio>();
    let s = Session::eager(&device);
    let stream = &mut Stream::new(1, 1);
    let leaves: Vec<Var<'_>> = inputs(stream, |x, _| x).iter().map(|t| s.variable(t).unwrap()).collect();
    let fixed = s.input(&Tensor::scalar(Ratio::whole(2))).unwrap();
    for step in 0..20 {
        let before = s.size();
        let x = leaves[step % leaves.len()];
        x.add(x).unwrap();
        assert_eq!(s.size(), before + 1);
    }
    s.with_tape(|tape| {
        for id in 0..tape.size() {
            let node = tape.node(id).unwrap();
            assert_eq!(node.parents.is_empty(), id <= leaves.len());
            assert_eq!(node.requires_grad, id != leaves.len());
        }
        Ok(())
    })
    .unwrap();
    assert!(!fixed.requires_grad().unwrap());
}

#[test]
fn a_scalar_seed_of_one_is_the_gradient_and_seeds_are_linear() {
    let device = Device::host::<Ratio>();
    programs(|_, stream| {
        let s = Session::eager(&device);
        let leaves: Vec<Var<'_>> = inputs(stream, |x, _| x).iter().map(|t| s.variable(t).unwrap()).collect();
        let values = program(&leaves, stream, 8);
        let y = values.last().unwrap().sum().unwrap();
        if !y.requires_grad().unwrap() || !y.value::<Ratio>().unwrap().data()[0].is_defined() {
            return;
        }
        let by_one = y.backward_retain().unwrap();
        let (two, three) = (Ratio::whole(2), Ratio::whole(3));
        let seeds = [two, three].map(|x| s.input(&Tensor::scalar(x)).unwrap());
        let both = s.vjp(&[(y, seeds[0]), (y, seeds[1])], &leaves).unwrap();
        for (x, g) in leaves.iter().zip(both) {
            let one = by_one.var(*x).map(|g| g.to_tensor::<Ratio>().unwrap());
            let five = g.map(|g| g.value::<Ratio>().unwrap());
            assert_eq!(one.map(|t| t.map(|x| x * Ratio::whole(5))), five);
        }
    });
}

/// Also what programs in exact fractions cannot do is said.
#[test]
fn other_numbers_stay_on_the_host() {
    let cpu = Device::cpu_with(1, dittograd::device::cpu::simd::Simd::Scalar).unwrap();
    let third = Tensor::new(&[1], vec![Ratio::new(1, 3)]).unwrap();
    let e = Session::eager(&cpu).input(&third).unwrap_err().to_string();
    assert!(e.contains("ratio has no float32 form"), "{e}");
    let host = Device::host::<Ratio>();
    let value = AnyBuffer::upload(&host, &third).unwrap();
    let e = value.to_device(&cpu).unwrap_err().to_string();
    assert!(e.contains("ratio has no float32 form"), "{e}");
    let e = Session::eager(&cpu).buffer(&value).unwrap_err().to_string();
    assert!(e.contains("cpu") && e.contains("host ratio"), "{e}");
    assert_eq!(host.memory().live, size_of::<Ratio>());
    drop(value);
    assert_eq!(host.memory().live, 0);
    assert_eq!(Shape::SCALAR.numel(), 1);
}

/// To float32 and back: f64 rounds to nearest even on the way to a device and comes back exactly.
#[test]
fn the_bridge_between_f64_and_float32_rounds_once() {
    let (cpu, wide) =
        (Device::cpu_with(1, dittograd::device::cpu::simd::Simd::Scalar).unwrap(), Device::host::<f64>());
    let x = Tensor::new(&[4], vec![0.1f64, 1.0 + 2f64.powi(-24), 1.0 + 3.0 * 2f64.powi(-24), 1e300]).unwrap();
    let there = AnyBuffer::upload(&wide, &x).unwrap().to_device(&cpu).unwrap();
    assert_eq!(there.to_tensor::<f32>().unwrap().data(), [0.1f32, 1.0, 1.0 + 2f32.powi(-22), f32::INFINITY]);
    let back = there.to_device(&wide).unwrap().to_tensor::<f64>().unwrap();
    assert_eq!(back.data()[0], f64::from(0.1f32));
    let s = Session::eager(&wide);
    let v = s.variable(&x).unwrap();
    assert_eq!(v.value::<f64>().unwrap(), x);
    let y = v.sin().unwrap().sum().unwrap();
    let g = y.backward().unwrap().var(v).unwrap().to_tensor::<f64>().unwrap();
    assert!((g.data()[0] - 0.1f64.cos()).abs() < 1e-15);
}
