//! Elementwise ops as a program uses them: broadcasting, selections, and that a row of the table is all an op
//! needs.

use crate::support::{data, device, t};
use dittograd::ops::pointwise;
use dittograd::prelude::*;

/// All text of the sources below a folder, by path.
fn sources(folder: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(path.to_str().unwrap()));
        } else if path.extension().is_some_and(|e| e == "rs" || e == "cu") {
            found.push((path.to_str().unwrap().to_string(), std::fs::read_to_string(&path).unwrap()));
        }
    }
    found
}

/// Whole-word occurrences.
fn count(text: &str, word: &str) -> usize {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| *w == word).count()
}

#[test]
fn an_elementwise_op_is_one_row_and_one_line_of_the_list() {
    let root = env!("CARGO_MANIFEST_DIR");
    let list = std::fs::read_to_string(format!("{root}/crates/ops/src/list.rs")).unwrap();
    let table = std::fs::read_to_string(format!("{root}/crates/ops/src/pointwise/mod.rs")).unwrap();
    let mut types = Vec::new();
    pointwise::for_each(|row| {
        let debug = format!("{:?}", row.op());
        let name = debug.split(|c: char| !c.is_alphanumeric()).next().unwrap().to_string();
        let line = format!("            {}: pointwise::{name},\n", row.name());
        assert_eq!(list.matches(&line).count(), 1, "{line}");
        let row_start = format!("\n    {} {name} {{", row.name());
        assert_eq!(table.matches(&row_start).count(), 1, "{row_start}");
        types.push(name);
    });
    assert!(types.len() > 45);
    // Ops that no other rule needs are named in these two places only, so nothing else had to be written: not
    // for kernels, fusion, gradients or tests, nor for the method of `Var`.
    let all = [sources(&format!("{root}/src")), sources(&format!("{root}/crates"))].concat();
    for name in ["Mish", "Hardswish", "LogSigmoid", "Expm1", "Rsqrt", "LeakyRelu", "ClampTo"] {
        assert!(types.iter().any(|t| t == name));
        for (path, text) in &all {
            let uses = text.lines().filter(|l| l.contains(&format!("pointwise::{name}"))).count();
            let wanted = usize::from(path.ends_with("ops/src/list.rs"));
            assert_eq!(uses, wanted, "{name} in {path}");
            let is_home = path.ends_with("pointwise/mod.rs") || path.ends_with("ops/src/list.rs");
            // The instruction of the same name is another thing.
            let instructions = ["pointwise/expression.rs", "onnx/lower/pointwise.rs"];
            let is_instruction = name == "Expm1" && instructions.iter().any(|p| path.ends_with(p));
            // So is the layer.
            let is_layer = path.ends_with("nn/combine.rs");
            assert!(is_home || is_instruction || is_layer || count(text, name) == 0, "{name} in {path}");
        }
    }
}

#[test]
fn binary_ops_broadcast_without_a_node_and_gradients_sum_down() {
    let d = device();
    let s = Session::eager(&d);
    let a = s.variable(&t(&[2, 1], &[1.0, 2.0])).unwrap();
    let b = s.variable(&t(&[3], &[10.0, 20.0, 30.0])).unwrap();
    let before = s.size();
    let y = a.mul(b).unwrap();
    assert_eq!(s.size(), before + 1);
    assert_eq!(y.shape().unwrap().dims(), [2, 3]);
    assert_eq!(data(y), [10.0, 20.0, 30.0, 20.0, 40.0, 60.0]);
    let grads = y.sum().unwrap().backward().unwrap();
    assert_eq!(grads.var(a).unwrap().to_tensor::<f32>().unwrap().data(), [60.0, 60.0]);
    assert_eq!(grads.var(b).unwrap().to_tensor::<f32>().unwrap().data(), [3.0, 3.0, 3.0]);
}

#[test]
fn what_does_not_broadcast_is_an_error_that_names_the_op() {
    let d = device();
    let s = Session::eager(&d);
    let a = s.input(&t(&[2, 3], &[0.0; 6])).unwrap();
    let b = s.input(&t(&[2], &[0.0; 2])).unwrap();
    let e = a.where_(a, b).unwrap_err().to_string();
    assert!(e.contains("where_") && e.contains("[2, 3]") && e.contains("[2]"), "{e}");
    // The explicit map is the way to align elsewhere.
    let map = dittograd::ops::layout::AxisMap::leading(&b.shape().unwrap(), &a.shape().unwrap());
    assert!(a.add(b.broadcast_axes(a.shape().unwrap(), map).unwrap()).is_ok());
}

#[test]
fn selections_choose_values_and_gradients() {
    let d = device();
    let s = Session::eager(&d);
    let x = s.variable(&t(&[4], &[-1.0, 0.0, 2.0, f32::NAN])).unwrap();
    let zero = s.scalar(0.0).unwrap();
    let (a, b) = (s.variable(&t(&[4], &[1.0; 4])).unwrap(), s.variable(&t(&[1], &[5.0])).unwrap());
    let y = x.gt(zero).unwrap().where_(a, b).unwrap();
    assert_eq!(data(y), [5.0, 5.0, 1.0, 5.0]);
    let grads = y.sum().unwrap().backward().unwrap();
    assert!(grads.var(x).is_none());
    assert_eq!(grads.var(a).unwrap().to_tensor::<f32>().unwrap().data(), [0.0, 0.0, 1.0, 0.0]);
    assert_eq!(grads.var(b).unwrap().to_tensor::<f32>().unwrap().data(), [3.0]);
    // A condition that is NaN is not 0.
    assert_eq!(data(x.where_(a, b).unwrap()), [1.0, 5.0, 1.0, 1.0]);
}

/// One NaN in the data is NaN in the loss and in the gradients of what it went through.
#[test]
fn a_nan_is_not_hidden_by_selections() {
    let d = device();
    let nan = f32::NAN;
    type Selection = for<'s> fn(Var<'s>) -> Result<Var<'s>>;
    let all: [(&str, Selection); 7] = [
        ("relu", |x| x.relu()),
        ("relu6", |x| x.relu6()),
        ("hardtanh", |x| x.hardtanh()),
        ("hardswish", |x| x.hardswish()),
        ("abs", |x| x.abs()),
        ("max", |x| x.max(x.full_like(0.0)?)),
        ("clamp", |x| x.clamp(f64::NEG_INFINITY, 1.0)),
    ];
    for (name, f) in all {
        let s = Session::eager(&d);
        let x = s.variable(&t(&[3], &[0.5, nan, -0.5])).unwrap();
        let y = f(x).unwrap();
        let value = data(y);
        assert!(value[1].is_nan() && !value[0].is_nan() && !value[2].is_nan(), "{name}: {value:?}");
        let loss = y.square().unwrap().mean().unwrap();
        assert!(loss.item().unwrap().is_nan(), "{name}");
        let grads = loss.backward().unwrap();
        let slopes = grads.var(x).unwrap().to_tensor::<f32>().unwrap();
        assert!(slopes.data()[1].is_nan() && !slopes.data()[0].is_nan(), "{name}: {slopes:?}");
    }
    let s = Session::eager(&d);
    let (a, b) = (s.input(&t(&[3], &[nan, 1.0, nan])).unwrap(), s.input(&t(&[3], &[2.0, nan, nan])).unwrap());
    assert!(data(a.max(b).unwrap()).iter().chain(&data(a.min(b).unwrap())).all(|x| x.is_nan()));
    for y in [a.fmax(b).unwrap(), a.fmin(b).unwrap()] {
        assert!(data(y)[..2] == [2.0, 1.0] && data(y)[2].is_nan());
    }
    // A clipped gradient that is NaN makes the parameter NaN, and by its norm all of them.
    for mut optimizer in [Optimizer::sgd(0.1).clip_value(1.0), Optimizer::sgd(0.1).clip_norm(1.0)] {
        let mut params = Params::new(&d, 7);
        let w = params.value("w", &t(&[2], &[1.0, 2.0])).unwrap();
        let s = Session::eager(&d);
        let loss = s.param(&w).unwrap().mul(s.input(&t(&[2], &[nan, 1.0])).unwrap()).unwrap().sum().unwrap();
        optimizer.step(&params, loss.backward().unwrap()).unwrap();
        assert!(w.get::<f32>().unwrap().data()[0].is_nan());
    }
}

/// Where the squares in the formula are infinite or zero.
#[test]
fn gradients_of_angles_of_any_size() {
    let d = device();
    let (inf, nan, tiny) = (f32::INFINITY, f32::NAN, 1e-40);
    let s = Session::eager(&d);
    let y = s.variable(&t(&[7], &[inf, 0.5, inf, 0.0, tiny, nan, 3.0])).unwrap();
    let x = s.variable(&t(&[7], &[0.5, -inf, inf, tiny, 0.0, inf, 4.0])).unwrap();
    let slopes = s.grad(y.atan2(x).unwrap().sum().unwrap(), &[y, x]).unwrap();
    let (by_y, by_x) = (data(slopes[0]), data(slopes[1]));
    assert_eq!(by_y[..5], [0.0, 0.0, 0.0, inf, 0.0]);
    assert_eq!(by_x[..5], [0.0, 0.0, 0.0, 0.0, -inf]);
    assert!(by_y[5].is_nan() && by_x[5].is_nan());
    assert!((by_y[6] - 0.16).abs() < 1e-7 && (by_x[6] + 0.12).abs() < 1e-7);
}

/// A power that is NaN has slopes that are; one of a negative base and a whole exponent has none in the exponent.
#[test]
fn gradients_of_powers_without_a_value_are_nan() {
    let d = device();
    let s = Session::eager(&d);
    let a = s.variable(&t(&[3], &[-2.0, -2.0, f32::NAN])).unwrap();
    let b = s.variable(&t(&[3], &[0.5, 3.0, 2.0])).unwrap();
    let slopes = s.grad(a.pow(b).unwrap().sum().unwrap(), &[a, b]).unwrap();
    let (by_a, by_b) = (data(slopes[0]), data(slopes[1]));
    assert!(by_a[0].is_nan() && by_b[0].is_nan() && by_a[2].is_nan() && by_b[2].is_nan());
    assert_eq!((by_a[1], by_b[1]), (12.0, 0.0));
}

/// Slopes that are small differences of large terms, beside numbers of forty digits.
#[test]
fn slopes_have_their_digits_where_terms_cancel() {
    type Formula = for<'s> fn(Var<'s>) -> Result<Var<'s>>;
    let all: [(&str, Formula, &[f32], &[f32]); 4] = [
        ("erfcx", |x| x.erfcx(), &[9.0, 100.0, 1e3], &[-0.006_840_134_5, -5.641_05e-5, -5.641_887e-7]),
        ("i0e", |x| x.i0e(), &[-40.0, 1e3, 1e7], &[7.960_508e-4, -6.310_199e-6, -6.307_831_5e-12]),
        ("i1e", |x| x.i1e(), &[-40.0, 1e3, 1e7], &[-0.000_766_004_9, -6.300_731_4e-6, -6.307_830_7e-12]),
        ("sinc", |x| x.sinc(), &[1e-3, -0.25, 0.3125], &[-0.003_289_865, 0.772_838_1, -0.932_344_8]),
    ];
    let d = device();
    for (name, f, at, want) in all {
        let s = Session::eager(&d);
        let x = s.variable(&t(&[at.len()], at)).unwrap();
        let slopes = data(s.grad(f(x).unwrap().sum().unwrap(), &[x]).unwrap()[0]);
        for ((at, got), want) in at.iter().zip(slopes).zip(want) {
            assert!((got - want).abs() <= 1e-6 * want.abs(), "{name} at {at}: {got}, not {want}");
        }
    }
}

/// Of zeros the sign, and every part of numbers below the normal ones.
#[test]
fn mantissas_and_quotients_to_the_bit() {
    let d = device();
    let s = Session::eager(&d);
    let all = [
        0.0,
        -0.0,
        1.0,
        -0.99999994,
        0.9999999,
        1.0000001,
        f32::MIN_POSITIVE,
        -1e-40,
        f32::from_bits(1),
        f32::MAX,
    ];
    let x = s.input(&t(&[all.len()], &all)).unwrap();
    let (mantissa, exponent) = x.frexp().unwrap();
    for ((m, e), x) in data(mantissa).into_iter().zip(data(exponent)).zip(all) {
        assert_eq!((f64::from(m) * f64::from(e).exp2()) as f32, x);
        assert!(x == 0.0 || (0.5..1.0).contains(&m.abs()), "{x}: {m}, {e}");
        assert!(x != 0.0 || (e == 0.0 && m.to_bits() == x.to_bits()), "{x}: {m}, {e}");
    }
    let a = s.input(&t(&[6], &[-1.0, 1.0, -0.0, 0.0, -1e-30, -7.0])).unwrap();
    let b = s.input(&t(&[6], &[-3.0, 3.0, 3.0, -3.0, 1.0, f32::INFINITY])).unwrap();
    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&data(a.floor_divide(b).unwrap())), bits(&[0.0, 0.0, -0.0, -0.0, -1.0, -1.0]));
}

/// A tiny denominator: the gradient is formed as a quotient of the value where that of the upstream one overflows.
#[test]
fn gradients_of_quotients_by_tiny_numbers() {
    let d = device();
    let slope = |a: f32, b: f32| {
        let s = Session::eager(&d);
        let (a, b) = (s.variable(&t(&[1], &[a])).unwrap(), s.variable(&t(&[1], &[b])).unwrap());
        let grads = a.div(b).unwrap().sum().unwrap().backward().unwrap();
        grads.var(b).unwrap().to_tensor::<f32>().unwrap().data()[0]
    };
    assert_eq!(slope(0.0, 1e-40).to_bits(), (-0.0f32).to_bits());
    assert_eq!(slope(1.0, 1e-40), f32::NEG_INFINITY);
    let (a, b) = (1e-44f32, 1e-40f32);
    let want = -f64::from(a) / f64::from(b) / f64::from(b);
    assert!((f64::from(slope(a, b)) / want - 1.0).abs() < 1e-6);
    assert_eq!(slope(3.0, 2.0), -0.75);
}

#[test]
fn other_names_and_fixed_bounds() {
    let d = device();
    let s = Session::eager(&d);
    let x = s.input(&t(&[4], &[-9.0, -0.5, 3.0, 9.0])).unwrap();
    let y = s.input(&t(&[1], &[1.0])).unwrap();
    assert_eq!(data(x.maximum(y).unwrap()), [1.0, 1.0, 3.0, 9.0]);
    assert_eq!(data(x.minimum(y).unwrap()), [-9.0, -0.5, 1.0, 1.0]);
    assert_eq!(data(x.hardtanh().unwrap()), [-1.0, -0.5, 1.0, 1.0]);
    assert_eq!(data(x.relu6().unwrap()), [0.0, 0.0, 3.0, 6.0]);
    assert_eq!(data(x.round().unwrap()), [-9.0, -0.0, 3.0, 9.0]);
    assert_eq!(data(x.add_scalar(1.0).unwrap().pow_scalar(2.0).unwrap()), [64.0, 0.25, 16.0, 100.0]);
}

#[test]
fn membership_angles_and_decimals() {
    let s = Session::eager(&device());
    let x = s.input(&t(&[2, 2], &[1.25, -3.0, f32::NAN, 0.0])).unwrap();
    let pi = std::f32::consts::PI;
    assert_eq!(
        data(x.isin(s.input(&t(&[3], &[-3.0, 0.0, f32::NAN])).unwrap()).unwrap()),
        [0.0, 1.0, 0.0, 1.0]
    );
    assert_eq!(data(x.isin(s.zeros(&[0]).unwrap()).unwrap()), [0.0; 4]);
    let i = s.labels(&Tensor::new(&[2], vec![4, u32::MAX]).unwrap()).unwrap();
    assert_eq!(data(i.isin(i.narrow(0, 1, 1).unwrap()).unwrap()), [0.0, 1.0]);
    assert!(x.isin(i).is_err());
    let angle = data(x.angle().unwrap());
    assert!(angle[2].is_nan());
    assert_eq!([angle[0], angle[1], angle[3]], [0.0, pi, 0.0]);
    let y = s.input(&t(&[3], &[1.26, -1234.5, 2.5])).unwrap();
    assert_eq!(data(y.round_to(1).unwrap()), [1.3, -1234.5, 2.5]);
    assert_eq!(data(y.round_to(0).unwrap()), [1.0, -1234.0, 2.0]);
    assert_eq!(data(y.round_to(-2).unwrap()), [0.0, -1200.0, 0.0]);
    let z = y.complex(s.scalar(0.5).unwrap()).unwrap();
    assert_eq!((z.shape().unwrap().dims(), &data(z)[..2]), (&[3, 2][..], &[1.26, 0.5][..]));
    let z = s.full(&[2], 2.0).unwrap().polar(s.input(&t(&[2], &[0.0, pi / 2.0])).unwrap()).unwrap();
    for (got, want) in data(z).iter().zip([2.0, 0.0, 0.0, 2.0]) {
        assert!((got - want).abs() < 1e-6, "{got}, not {want}");
    }
    assert!(y.complex(s.ones(&[2]).unwrap()).is_err() && y.polar(s.ones(&[2]).unwrap()).is_err());
}
