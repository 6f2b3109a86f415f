//! Every op against PyTorch in float64: `tests/golden/make.py` writes the file that is read here. The reference
//! and the gradient rule are run in f64, which must agree to its last digits, and op and rule are run on the
//! devices, which must agree as float32 can.

use dittograd::device::cpu::simd::Simd;
use dittograd::device::{AnyBuffer, Device};
use dittograd::ops::DeviceRecorder;
use dittograd::ops::{AnyOp, AnyTensor, Attr, Attrs, Io, Recorder, Val};
use dittograd::shape::Shape;
use dittograd::tensor::Tensor;
use dittograd_check::RefRecorder;
use dittograd_check::gpu;
use serde_json::Value;
use std::collections::BTreeSet;

/// Ops without a golden case, and why.
const WITHOUT: &[(&str, &str)] = &[
    ("map", "any program; its instructions are those of the elementwise ops"),
    ("fused", "another op and pointwise expressions"),
    ("global_norm", "the norm of norms"),
    ("detach", "no gradient by definition"),
    ("full", "a constant"),
    ("uniform", "random"),
    ("bernoulli", "random"),
    ("uniform_range", "random"),
    ("bernoulli_mask", "random"),
    ("normal", "random"),
    ("randint", "random"),
    ("permutation", "random"),
    ("scatter_last", "a part of methods that `order.rs` compares"),
    ("flat_index", "a part of methods that `order.rs` compares"),
];

struct Case {
    label: String,
    op: AnyOp,
    ins: Vec<AnyTensor<f64>>,
    y: Tensor<f64>,
    dy: Option<Tensor<f64>>,
    dx: Vec<Option<Vec<f64>>>,
}

fn number(v: &Value) -> f64 {
    v.as_f64().unwrap_or_else(|| v.as_str().unwrap().parse().unwrap())
}

fn numbers(v: &Value) -> Vec<f64> {
    v.as_array().unwrap().iter().map(number).collect()
}

fn sizes(v: &Value) -> Vec<usize> {
    v.as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect()
}

fn attributes(v: &Value) -> Attrs {
    let one = |v: &Value| match v {
        Value::Bool(b) => Attr::Bool(*b),
        Value::Array(_) => Attr::List(sizes(v)),
        _ => Attr::Num(v.as_f64().unwrap()),
    };
    Attrs(v.as_object().unwrap().iter().map(|(name, v)| (name.clone(), one(v))).collect())
}

fn cases() -> Vec<Case> {
    let one = |line: &str| {
        let v: Value = serde_json::from_str(line).unwrap();
        let name = v["op"].as_str().unwrap();
        let label = format!("{name} {}", v["attrs"]);
        let op = AnyOp::from_name(name, &attributes(&v["attrs"])).unwrap_or_else(|e| panic!("{label}: {e}"));
        let input = |i: &Value| {
            let shape = Shape::new(&sizes(&i["shape"])).unwrap();
            match i.get("idx") {
                Some(idx) => {
                    let idx = sizes(idx).into_iter().map(|n| n as u32).collect();
                    AnyTensor::Idx(Tensor::with_shape(shape, idx).unwrap())
                }
                None => AnyTensor::Num(Tensor::with_shape(shape, numbers(&i["data"])).unwrap()),
            }
        };
        let shape = Shape::new(&sizes(&v["y"]["shape"])).unwrap();
        Case {
            op,
            ins: v["ins"].as_array().unwrap().iter().map(input).collect(),
            y: Tensor::with_shape(shape, numbers(&v["y"]["data"])).unwrap(),
            dy: v.get("dy").map(|d| Tensor::with_shape(shape, numbers(d)).unwrap()),
            dx: v.get("dx").map_or(Vec::new(), |dx| {
                dx.as_array().unwrap().iter().map(|g| (!g.is_null()).then(|| numbers(g))).collect()
            }),
            label,
        }
    };
    include_str!("../golden/ops.jsonl").lines().map(one).collect()
}

/// Errors relative to the largest element: an element that cancels has no digits of its own.
fn agree(label: &str, what: &str, got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{label}: {what}");
    let size = want.iter().filter(|w| w.is_finite()).fold(1e-3, |m: f64, w| m.max(w.abs()));
    for (at, (g, w)) in got.iter().zip(want).enumerate() {
        let same = g == w || (g.is_nan() && w.is_nan());
        assert!(same || (g - w).abs() <= tolerance * size, "{label}: {what} at {at} is {g}, PyTorch has {w}");
    }
}

fn check(r: &mut dyn Recorder, case: &Case, ins: &[Val], dy: Option<Val>) -> (Val, Vec<Option<Val>>) {
    let out = r.record(case.op.clone(), ins).unwrap_or_else(|e| panic!("{}: {e}", case.label));
    let grads = dy.map_or(Vec::new(), |dy| {
        case.op.vjp(r, Io { ins, out }, dy).unwrap_or_else(|e| panic!("{}: {e}", case.label))
    });
    (out, grads)
}

#[test]
fn references_and_rules_agree_with_pytorch() {
    for case in cases() {
        let mut r = RefRecorder::<f64>::new();
        let ins: Vec<Val> = case.ins.iter().map(|i| r.input(i.clone())).collect();
        let dy = case.dy.as_ref().map(|dy| r.input(AnyTensor::Num(dy.clone())));
        let (out, grads) = check(&mut r, &case, &ins, dy);
        let got = match r.value(out).unwrap() {
            AnyTensor::Num(t) => t.clone(),
            AnyTensor::Idx(t) => Tensor::from_fn(t.shape(), |i| f64::from(t.data()[i])),
        };
        assert_eq!(got.shape(), case.y.shape(), "{}", case.label);
        agree(&case.label, "y", got.data(), case.y.data(), 1e-11);
        for (i, want) in case.dx.iter().enumerate() {
            let Some(want) = want else { continue };
            let zeros = vec![0.0; want.len()];
            let got = grads[i].map_or(&zeros[..], |g| r.tensor(g).unwrap().data());
            // Rules hold constants that are rounded to float32.
            agree(&case.label, &format!("dx{i}"), got, want, 2e-7);
        }
    }
}

fn devices_agree(device: &Device) {
    for case in cases() {
        let mut r = DeviceRecorder::new(device);
        let upload = |i: &AnyTensor<f64>| match i {
            AnyTensor::Num(t) => AnyBuffer::upload(device, t).unwrap(),
            AnyTensor::Idx(t) => AnyBuffer::upload_indices(device, t).unwrap(),
        };
        let ins: Vec<Val> = case.ins.iter().map(|i| r.input(upload(i))).collect();
        let dy = case.dy.as_ref().map(|dy| r.input(AnyBuffer::upload(device, dy).unwrap()));
        let (out, grads) = check(&mut r, &case, &ins, dy);
        let download = |v: Val| r.value(v).unwrap().to_tensor::<f64>().unwrap();
        match r.value(out).unwrap().to_indices() {
            Ok(places) => {
                let places: Vec<f64> = places.data().iter().map(|&i| f64::from(i)).collect();
                agree(&case.label, "y", &places, case.y.data(), 0.0);
            }
            Err(_) => agree(&case.label, "y", download(out).data(), case.y.data(), 2e-5),
        }
        for (i, want) in case.dx.iter().enumerate() {
            let (Some(want), Some(g)) = (want, grads.get(i).copied().flatten()) else { continue };
            agree(&case.label, &format!("dx{i}"), download(g).data(), want, 2e-5);
        }
    }
}

#[test]
fn the_cpu_agrees_with_pytorch() {
    devices_agree(&Device::cpu_with(2, Simd::best()).unwrap());
}

#[test]
fn cuda_agrees_with_pytorch() {
    if let Some((_turn, gpu)) = gpu() {
        devices_agree(&gpu);
    }
}

#[test]
fn every_op_has_a_golden_case() {
    let covered: BTreeSet<&str> = cases().iter().map(|c| c.op.name()).collect();
    let gradients = |name: &str| name.ends_with("_bwd"); // the gradients of their forward op's cases
    let missing: Vec<&&str> = AnyOp::NAMES
        .iter()
        .filter(|n| !covered.contains(**n) && !gradients(n) && !WITHOUT.iter().any(|w| w.0 == **n))
        .collect();
    assert!(missing.is_empty(), "no golden case of {missing:?}: add one to tests/golden/make.py");
    for (name, why) in WITHOUT {
        assert!(AnyOp::NAMES.contains(name) && !covered.contains(name), "{name}: {why}");
    }
}
