//! Properties against the definition: values within their error bound of the f64 reference, and first and second
//! gradient rules against derivatives of the reference.

use crate::cases::{self, Case, Subject, Values};
use crate::kernels::{run_on, run_with};
use crate::{Failure, Magnitude, Outcome, Property, RefRecorder, Report, has_samples, is_number};
use dittograd_device::{Device, Meta};
use dittograd_numerics::error::Result;
use dittograd_numerics::rng::Stream;
use dittograd_numerics::scalar::{Dual, Scalar};
use dittograd_numerics::tensor::Tensor;
use dittograd_ops::pointwise::map::broadcast_index;
use dittograd_ops::pointwise::{self, Row};
use dittograd_ops::{AnyOp, AnyTensor, Io, Recorder, Val, apply};

/// One float32 rounding, relative.
const ROUNDING: f64 = 1.0 / 16_777_216.0;

/// Distance from the float32 nearest to `x` to the next one; constant among subnormals.
fn ulp(x: f64) -> f64 {
    let exponent = if x == 0.0 { -126 } else { libm::ilogb(x).max(-126) };
    libm::ldexp(1.0, exponent.min(127) - 23)
}

/// The distance of `got` from `want`, or `None` if one of them is NaN or infinite as float32 and the other is something
/// else. An overflow next to the largest number counts with the value it stands for.
fn distance(got: f32, want: f64) -> Option<f64> {
    let rounded = want as f32;
    if !rounded.is_finite() {
        return dittograd_numerics::same_bits(got, rounded).then_some(0.0);
    }
    if got.is_nan() {
        return None;
    }
    let got =
        if got.is_infinite() { f64::from(got.signum()) * libm::ldexp(1.0, 128) } else { f64::from(got) };
    Some((got - want).abs())
}

/// The value of every sample, drawn three ways, against the f64 reference:
/// `|got - want| <= ulps * ulp(want) + terms * 2^-24 * magnitude` with the op's
/// [`Bound`](dittograd_ops::Bound) and the [`Magnitude`] of the reference. Wide values are used where the
/// sample's ranges are symmetric. NaN and infinity must be where the reference, as float32, has them.
pub fn forward(subject: impl Into<Subject>, device: &Device) -> Outcome {
    let (subject, property) = (subject.into(), Property::Forward);
    has_samples(&subject, property)?;
    let mut report = Report::new(&subject, property);
    let mut worst_ulps: f64 = 0.0;
    for (index, sample) in subject.samples.iter().enumerate() {
        for values in [Values::Uniform, Values::Wide, Values::Integers] {
            if values == Values::Wide && !cases::is_symmetric(sample)
                || values == Values::Integers && cases::is_narrow(sample)
                || values != Values::Uniform && !sample.ins.iter().any(|i| is_number(i.meta()))
            {
                continue;
            }
            let case = Case::draw(sample, values, subject.seed(index));
            let error = |e| case.error(&subject, property, &e);
            let got = value_on(device, &case).map_err(error)?;
            let want = case.op.reference(&case.widened::<Magnitude>()).map_err(error)?;
            if got.shape() != want.shape() {
                let failure = case.fail(&subject, property, "shape of the value and of the reference");
                return Err(failure.against(got.shape(), want.shape()));
            }
            let metas: Vec<Meta> = case.ins.iter().map(AnyTensor::meta).collect();
            let bound = case.op.bound(&metas);
            let in_digits = digit_error(device, &case.op, &metas, |i| largest(case.ins[i].num()?));
            let in_digits = in_digits.map_err(error)?;
            for (at, (&got, want)) in got.data().iter().zip(want.data()).enumerate() {
                let Some(distance) = distance(got, want.v) else {
                    return Err(case.fail(&subject, property, "NaN or infinity").at(at, got, want.v));
                };
                let allowed = bound.ulps * ulp(want.v) + bound.terms * ROUNDING * want.m + in_digits;
                if want.v.is_finite() {
                    worst_ulps = worst_ulps.max(distance / ulp(want.v));
                }
                if !report.within(distance, allowed) {
                    let what = format!("error {distance:e} is above the bound {allowed:e} on {device}");
                    return Err(case.fail(&subject, property, what).at(at, got, want.v));
                }
            }
            report.cases += 1;
        }
    }
    report.ulps = Some(worst_ulps);
    Ok(report)
}

/// The largest size of a number.
fn largest<T: Copy + Into<f64>>(t: &Tensor<T>) -> Result<f64> {
    Ok(t.data().iter().fold(0.0, |largest, &x| x.into().abs().max(largest)))
}

/// What computing a product in digits may add to the error of the op's value, if the device's mode does so. `largest` gives the largest
/// size of a number in an input.
fn digit_error(
    device: &Device,
    op: &AnyOp,
    metas: &[Meta],
    largest: impl Fn(usize) -> Result<f64>,
) -> Result<f64> {
    match op.in_digits(metas, device.numerics()) {
        Some((digits, k)) => Ok(digits.error(k, largest(0)?, largest(1)?)),
        None => Ok(0.0),
    }
}

/// The op's value on the device.
fn value_on(device: &Device, case: &Case) -> Result<Tensor<f32>> {
    let buffers = crate::kernels::upload(device, &case.ins)?;
    crate::kernels::numbers(&apply(device, &case.op, &buffers.iter().collect::<Vec<_>>())?)
}

/// A rule evaluated by references: the inputs, the value and the rule's gradients.
struct Ruled<T: Scalar> {
    recorder: RefRecorder<T>,
    ins: Vec<Val>,
    out: Val,
    upstream: Val,
    gradients: Vec<Option<Val>>,
}

/// Runs an op and its gradient rule on `ins` in any scalar type.
fn rule<T: Scalar>(op: &AnyOp, ins: &[AnyTensor<T>], upstream: &Tensor<T>) -> Result<Ruled<T>> {
    let mut recorder = RefRecorder::new();
    let ins: Vec<Val> = ins.iter().map(|i| recorder.input(i.clone())).collect();
    let out = recorder.record(op.clone(), &ins)?;
    let upstream = recorder.input(AnyTensor::Num(upstream.clone()));
    let gradients = op.vjp(&mut recorder, Io { ins: &ins, out }, upstream)?;
    Ok(Ruled { recorder, ins, out, upstream, gradients })
}

fn widen(t: &Tensor<f32>) -> Tensor<f64> {
    t.map(f64::from)
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn dot_sizes(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a * b).abs()).sum()
}

/// Directions per input.
const DIRECTIONS: usize = 4;
/// Step of the differences: small compared with the distance of the lattice from kinks, large compared with roundings.
const STEP: f64 = 1.0 / 4096.0;

/// Derivative of `f` at 0 by a four-point formula; the error is of order `STEP^4`.
fn slope(f: impl Fn(f64) -> Result<f64>) -> Result<f64> {
    let odd = |h: f64| -> Result<f64> { Ok(f(h)? - f(-h)?) };
    Ok((8.0 * odd(STEP)? - odd(2.0 * STEP)?) / (12.0 * STEP))
}

/// A copy of the inputs with number input `i` moved by `h` along `direction`.
fn moved(ins: &[AnyTensor<f64>], i: usize, direction: &[f64], h: f64) -> Vec<AnyTensor<f64>> {
    let mut ins = ins.to_vec();
    if let AnyTensor::Num(t) = &mut ins[i] {
        t.data_mut().iter_mut().zip(direction).for_each(|(x, d)| *x += h * d);
    }
    ins
}

/// Checks what a gradient rule returns: one entry per input, `None` for indices, and the input's own shape otherwise.
fn check_gradients<T: Scalar>(
    ruled: &Ruled<T>,
    fail: impl Fn(String) -> Box<Failure>,
) -> std::result::Result<(), Box<Failure>> {
    if ruled.gradients.len() != ruled.ins.len() {
        let what = format!("{} gradients for {} inputs", ruled.gradients.len(), ruled.ins.len());
        return Err(fail(what));
    }
    for (i, (&v, g)) in ruled.ins.iter().zip(&ruled.gradients).enumerate() {
        let Some(g) = g else { continue };
        let (v, g) = (ruled.recorder.meta(v), ruled.recorder.meta(*g));
        if !is_number(v) {
            return Err(fail(format!("input {i} holds indices and got a gradient")));
        }
        if v != g {
            return Err(fail(format!("gradient of input {i}")).against(g.shape, v.shape));
        }
    }
    Ok(())
}

/// The op's gradient rule, evaluated in f64, against derivatives of the reference: along random directions by
/// four-point differences for every sample of at most 2000 elements, to 1e-6 of the sum of the absolute terms of the
/// derivative (constants of rules are rounded to float32, which alone is 6e-8), and for elementwise rows also by dual
/// numbers to 1e-9. An op that is not differentiable must return no gradients, and no op may return one for indices.
pub fn gradient(subject: impl Into<Subject>) -> Outcome {
    let (subject, property) = (subject.into(), Property::Gradient);
    has_samples(&subject, property)?;
    let mut report = Report::new(&subject, property);
    let mut by_dual = Ok(());
    pointwise::for_each(|row| {
        if row.name() == subject.name && by_dual.is_ok() {
            by_dual = row_gradient(&subject, row, &mut report);
        }
    });
    by_dual?;
    for (index, sample) in subject.small(2000) {
        let case = Case::draw(sample, Values::Lattice, subject.seed(index));
        let error = |e| case.error(&subject, property, &e);
        let ins = case.widened::<f64>();
        let value = case.op.reference(&ins).map_err(error)?;
        let upstream = widen(&case.upstream(value.shape()));
        let ruled = rule(&case.op, &ins, &upstream).map_err(error)?;
        check_gradients(&ruled, |what| case.fail(&subject, property, what))?;
        report.cases += 1;
        if !case.op.differentiable() {
            if ruled.gradients.iter().any(Option::is_some) {
                return Err(case.fail(&subject, property, "a gradient of an op that has none"));
            }
            continue;
        }
        let size = dot_sizes(upstream.data(), value.data());
        let mut stream = Stream::new(case.seed, 2);
        for (i, input) in ins.iter().enumerate().filter(|(_, input)| is_number(input.meta())) {
            let zeros = vec![0.0; input.meta().shape.numel()];
            let rule_says = match ruled.gradients[i] {
                Some(g) => ruled.recorder.tensor(g).map_err(error)?.data(),
                None => &zeros[..],
            };
            for _ in 0..DIRECTIONS {
                let direction: Vec<f64> = zeros.iter().map(|_| f64::from(stream.range(-1.0, 1.0))).collect();
                let got = dot(rule_says, &direction);
                let want = slope(|h| {
                    let value = case.op.reference(&moved(&ins, i, &direction, h))?;
                    Ok(dot(upstream.data(), value.data()))
                });
                let want = want.map_err(error)?;
                // f64 roundings in the value, divided by the step, limit the accuracy of any difference.
                let allowed = 1e-6 * dot_sizes(rule_says, &direction) + 1e-11 * size + 1e-8;
                if !report.within((got - want).abs(), allowed) {
                    let what = format!("derivative by input {i}, allowed {allowed:e}");
                    return Err(case.fail(&subject, property, what).against(got, want));
                }
            }
        }
    }
    Ok(report)
}

/// A row's gradient formula against dual numbers.
fn row_gradient(
    subject: &Subject,
    row: &dyn Row,
    report: &mut Report,
) -> std::result::Result<(), Box<Failure>> {
    for (index, sample) in subject.small(2000) {
        let case = Case::draw(sample, Values::Lattice, subject.seed(index));
        let error = |e| case.error(subject, Property::Gradient, &e);
        let ins = case.widened::<f64>();
        let tensors: Vec<&Tensor<f64>> =
            ins.iter().map(AnyTensor::num).collect::<Result<_>>().map_err(error)?;
        let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
        let shape = case.op.shape(&metas).map_err(error)?.shape;
        for at in 0..shape.numel() {
            let read = |t: &&Tensor<f64>| t.data()[broadcast_index(at, &t.shape(), &shape)];
            let x: Vec<f64> = tensors.iter().map(read).collect();
            for (i, got) in row.rule(&x).into_iter().enumerate() {
                let dual: Vec<Dual> =
                    x.iter().enumerate().map(|(j, &v)| Dual { v, d: f64::from(u8::from(i == j)) }).collect();
                let want = row.dual(&dual).d;
                if !report.within((got - want).abs(), 1e-9 * want.abs() + 1e-12) {
                    let what = format!("derivative by input {i} at {x:?} by dual numbers");
                    return Err(case.fail(subject, Property::Gradient, what).at(at, got, want));
                }
            }
        }
        report.cases += 1;
    }
    Ok(())
}

/// Second derivatives: the gradient rule is recorded, contracted with random vectors, and differentiated by the
/// gradient rules of the ops it consists of. The result must be the derivative of the first-order rule, taken by
/// four-point differences along random directions of every input and of the upstream gradient, to 1e-4 of the sum of
/// the absolute terms.
pub fn second(subject: impl Into<Subject>) -> Outcome {
    let (subject, property) = (subject.into(), Property::Second);
    has_samples(&subject, property)?;
    let mut report = Report::new(&subject, property);
    for (index, sample) in subject.small(600) {
        if !sample.op.differentiable() {
            continue;
        }
        let case = Case::draw(sample, Values::Lattice, subject.seed(index));
        let error = |e| case.error(&subject, property, &e);
        let mut ins = case.widened::<f64>();
        let value = case.op.reference(&ins).map_err(error)?;
        let upstream = widen(&case.upstream(value.shape()));
        let mut ruled = rule(&case.op, &ins, &upstream).map_err(error)?;
        let mut stream = Stream::new(case.seed, 3);
        let mut weights: Vec<Tensor<f64>> = Vec::new();
        let mut seeds = Vec::new();
        let mut size = 0.0;
        for &g in ruled.gradients.iter().flatten() {
            let shape = ruled.recorder.meta(g).shape;
            let weight = Tensor::from_fn(shape, |_| f64::from(stream.range(-1.0, 1.0)));
            size += dot_sizes(weight.data(), ruled.recorder.tensor(g).map_err(error)?.data());
            seeds.push((g, ruled.recorder.input(AnyTensor::Num(weight.clone()))));
            weights.push(weight);
        }
        if seeds.is_empty() {
            continue;
        }
        let found = ruled.recorder.gradients(&seeds).map_err(error)?;
        // The upstream gradient is one more input, in which the rule is linear.
        ins.push(AnyTensor::Num(upstream));
        let last = ins.len() - 1;
        let contracted = |ins: &[AnyTensor<f64>]| -> Result<f64> {
            let ruled = rule(&case.op, &ins[..last], ins[last].num()?)?;
            let gradients = ruled.gradients.iter().flatten();
            gradients.zip(&weights).map(|(&g, w)| Ok(dot(w.data(), ruled.recorder.tensor(g)?.data()))).sum()
        };
        let wrt: Vec<Val> = ruled.ins.iter().copied().chain([ruled.upstream]).collect();
        for (i, v) in wrt.into_iter().enumerate() {
            if !is_number(ins[i].meta()) {
                continue;
            }
            let zeros = vec![0.0; ins[i].meta().shape.numel()];
            let walked = match found[v.0 as usize] {
                Some(g) => ruled.recorder.tensor(g).map_err(error)?.data(),
                None => &zeros[..],
            };
            for _ in 0..DIRECTIONS / 2 {
                let direction: Vec<f64> = zeros.iter().map(|_| f64::from(stream.range(-1.0, 1.0))).collect();
                let got = dot(walked, &direction);
                let want = slope(|h| contracted(&moved(&ins, i, &direction, h))).map_err(error)?;
                let allowed = 1e-4 * dot_sizes(walked, &direction) + 1e-10 * size + 1e-8;
                if !report.within((got - want).abs(), allowed) {
                    let what = format!("second derivative by input {i}, allowed {allowed:e}");
                    return Err(case.fail(&subject, property, what).against(got, want));
                }
            }
        }
        report.cases += 1;
    }
    Ok(report)
}

/// The gradient rule run in float32 on the device, against the rule evaluated over [`Magnitude`]. Each op of the rule
/// adds its own [`Bound`](dittograd_ops::Bound) to the errors of its inputs. Let `n` be the sum of `2 * ulps + terms`
/// over all of them (an ulp is at most two roundings). Then the first-order error is at most `n * 2^-24 * m`; twice
/// that is allowed, for second-order terms.
pub fn device_gradient(subject: impl Into<Subject>, device: &Device) -> Outcome {
    let (subject, property) = (subject.into(), Property::DeviceGradient);
    has_samples(&subject, property)?;
    let mut report = Report::new(&subject, property);
    for (index, sample) in subject.small(20_000) {
        let case = Case::draw(sample, Values::Uniform, subject.seed(index));
        let error = |e| case.error(&subject, property, &e);
        let got = run_on(device, &case).map_err(error)?;
        let upstream = case.upstream(got.value.shape());
        let ruled = rule(&case.op, &case.widened::<Magnitude>(), &upstream.map(Magnitude::from_f32))
            .map_err(error)?;
        let roundings: f64 = ruled
            .recorder
            .ops()
            .map(|(op, ins)| {
                let metas: Vec<Meta> = ins.iter().map(|&v| ruled.recorder.meta(v)).collect();
                let bound = op.bound(&metas);
                2.0 * bound.ulps + bound.terms
            })
            .sum();
        // Such a rule is products and reshapes, so that an error of one of its ops stays as it is.
        let mut in_digits = 0.0;
        for (op, ins) in ruled.recorder.ops() {
            let metas: Vec<Meta> = ins.iter().map(|&v| ruled.recorder.meta(v)).collect();
            let size = |i: usize| largest(&ruled.recorder.tensor(ins[i])?.map(|x| x.v));
            in_digits += digit_error(device, op, &metas, size).map_err(error)?;
        }
        debug_assert_eq!(ruled.recorder.meta(ruled.out).shape, got.value.shape());
        for (i, (got, want)) in got.gradients.iter().zip(&ruled.gradients).enumerate() {
            let (got, want) = match (got, want) {
                (Some(got), Some(want)) => (got, ruled.recorder.tensor(*want).map_err(error)?),
                (None, None) => continue,
                _ => {
                    return Err(case.fail(
                        &subject,
                        property,
                        format!("gradient of input {i} on one side only"),
                    ));
                }
            };
            for (at, (&got, want)) in got.data().iter().zip(want.data()).enumerate() {
                let what = || case.fail(&subject, property, format!("gradient of input {i} on {device}"));
                let Some(distance) = distance(got, want.v) else { return Err(what().at(at, got, want.v)) };
                if !report.within(distance, 2.0 * roundings * ROUNDING * want.m + ulp(want.v) + in_digits) {
                    return Err(what().at(at, got, want.v));
                }
            }
        }
        report.cases += 1;
    }
    Ok(report)
}

/// Ops that are linear in some of their inputs, on integers, where float32 makes no error: the value on the device must
/// equal the reference exactly, and for every such set of inputs `<A x, g> = <x, A^T g>` must hold exactly, where
/// `A^T g` is what the gradient rule gives on the device. Other ops have nothing to check.
pub fn adjoint(subject: impl Into<Subject>, device: &Device) -> Outcome {
    let (subject, property) = (subject.into(), Property::Adjoint);
    has_samples(&subject, property)?;
    let mut report = Report::new(&subject, property);
    for (index, sample) in subject.small(200_000) {
        let case = Case::draw(sample, Values::Integers, subject.seed(index));
        let metas: Vec<Meta> = case.ins.iter().map(AnyTensor::meta).collect();
        let sets = case.op.linear(&metas);
        if sets.is_empty() {
            continue;
        }
        let error = |e| case.error(&subject, property, &e);
        let want = case.op.reference(&case.widened::<f64>()).map_err(error)?;
        let mut stream = Stream::new(case.seed, 3);
        let upstream = Tensor::from_fn(want.shape(), |_| stream.below(17) as f32 - 8.0);
        let got = run_with(device, &case, &upstream).map_err(error)?;
        let differs = |(_, (got, want)): &(usize, (&f32, &f64))| f64::from(**got) != **want;
        if let Some((at, (got, want))) = got.value.data().iter().zip(want.data()).enumerate().find(differs) {
            return Err(case.fail(&subject, property, "value of whole numbers").at(at, *got, *want));
        }
        let left = dot(&widened(&got.value), &widened(&upstream));
        for set in sets {
            let mut right = 0.0;
            for i in &set {
                let x = case.ins[*i].num().map_err(error)?;
                let Some(g) = got.gradients.get(*i).and_then(Option::as_ref) else {
                    return Err(case.fail(&subject, property, format!("input {i} has no gradient")));
                };
                right += dot(&widened(x), &widened(g));
            }
            if left != right {
                let what = format!("<A x, g> and <x, A^T g> for inputs {set:?} on {device}");
                return Err(case.fail(&subject, property, what).against(left, right));
            }
            report.cases += 1;
        }
    }
    Ok(report)
}

fn widened(t: &Tensor<f32>) -> Vec<f64> {
    t.data().iter().map(|&x| f64::from(x)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_in_the_last_place() {
        assert_eq!(ulp(1.0), f64::from(f32::EPSILON));
        assert_eq!(ulp(-1.99), f64::from(f32::EPSILON));
        assert_eq!(ulp(2.0), 2.0 * f64::from(f32::EPSILON));
        assert_eq!(ulp(0.0), f64::from(f32::from_bits(1)));
        assert_eq!(ulp(1e-42), f64::from(f32::from_bits(1)));
    }

    #[test]
    fn distances_know_classes() {
        assert_eq!(distance(1.0, 1.0), Some(0.0));
        assert_eq!(distance(f32::NAN, f64::NAN), Some(0.0));
        assert_eq!(distance(f32::INFINITY, 1e60), Some(0.0));
        assert_eq!(distance(f32::NEG_INFINITY, 1e60), None);
        assert_eq!(distance(f32::MAX, 1e60), None);
        assert_eq!(distance(f32::NAN, 0.0), None);
    }

    #[test]
    fn four_points_are_exact_for_quartics() {
        let d = slope(|h| Ok((2.0 + h).powi(4))).unwrap();
        assert!((d - 32.0).abs() < 1e-9, "{d}");
    }
}
