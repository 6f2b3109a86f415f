//! Properties of the kernels themselves: the same bits everywhere and every time, special values, and behaviour on bad
//! input, out of memory, and around the edges of buffers.

use crate::cases::{Case, Subject, Values};
use crate::{Failure, Outcome, Property, Report, describe, describe_op, has_samples, label, plain_failure};
use dittograd_device::cpu::simd::Simd;
use dittograd_device::{AnyBuffer, DType, Device, Meta};
use dittograd_engine::graph::{Compiled, Graph, Passes, Source};
use dittograd_engine::params::Fingerprint;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::same_bits;
use dittograd_numerics::tensor::Tensor;
use dittograd_ops::pointwise::{self, Row};
use dittograd_ops::{AnyOp, AnyTensor, DeviceRecorder, Io, Recorder, Val, apply};

/// The results of an op and its gradient rule on a device.
#[derive(Clone, Debug)]
pub(super) struct Ran {
    pub value: Tensor<f32>,
    pub gradients: Vec<Option<Tensor<f32>>>,
}

impl Ran {
    /// The first element whose bits differ (all NaNs count as equal): what it is, its position, both elements.
    fn difference(&self, other: &Ran) -> Option<(String, usize, f32, f32)> {
        let mut pairs = vec![("value".to_string(), Some(&self.value), Some(&other.value))];
        for (i, (a, b)) in self.gradients.iter().zip(&other.gradients).enumerate() {
            pairs.push((format!("gradient of input {i}"), a.as_ref(), b.as_ref()));
        }
        for (what, a, b) in pairs {
            let (Some(a), Some(b)) = (a, b) else { continue };
            let differs = |(_, (a, b)): &(usize, (&f32, &f32))| !same_bits(**a, **b);
            if let Some((at, (a, b))) = a.data().iter().zip(b.data()).enumerate().find(differs) {
                return Some((what, at, *a, *b));
            }
        }
        None
    }
}

/// The inputs of a case on a device.
pub(super) fn upload(device: &Device, ins: &[AnyTensor<f32>]) -> Result<Vec<AnyBuffer>> {
    ins.iter().map(|i| AnyBuffer::upload_any(device, i)).collect()
}

/// A value on the host; indices as numbers.
pub(super) fn numbers(value: &AnyBuffer) -> Result<Tensor<f32>> {
    match value.meta().dtype {
        DType::F32 => value.to_tensor(),
        DType::U32 => {
            let indices = value.to_indices()?;
            Ok(Tensor::from_fn(indices.shape(), |i| indices.data()[i] as f32))
        }
    }
}

/// Runs op and rule on buffers that are already on the device.
fn run_buffers(device: &Device, op: &AnyOp, ins: &[AnyBuffer], upstream: &AnyBuffer) -> Result<Ran> {
    let mut recorder = DeviceRecorder::new(device);
    let ins: Vec<Val> = ins.iter().map(|b| recorder.input(b.clone())).collect();
    let out = recorder.record(op.clone(), &ins)?;
    let upstream = recorder.input(upstream.clone());
    let gradients = op.vjp(&mut recorder, Io { ins: &ins, out }, upstream)?;
    let download = |v: Val| numbers(recorder.value(v)?);
    let gradients = gradients.into_iter().map(|g| g.map(download).transpose()).collect::<Result<_>>()?;
    Ok(Ran { value: download(out)?, gradients })
}

/// The inputs and an upstream gradient on a device.
fn prepare(device: &Device, case: &Case) -> Result<(Vec<AnyBuffer>, AnyBuffer)> {
    let metas: Vec<Meta> = case.ins.iter().map(AnyTensor::meta).collect();
    let upstream = case.upstream(case.op.shape(&metas)?.shape);
    Ok((upload(device, &case.ins)?, AnyBuffer::upload(device, &upstream)?))
}

/// Runs op and rule on a device with the given upstream gradient.
pub(super) fn run_with(device: &Device, case: &Case, upstream: &Tensor<f32>) -> Result<Ran> {
    run_buffers(device, &case.op, &upload(device, &case.ins)?, &AnyBuffer::upload(device, upstream)?)
}

/// Runs op and rule on a device.
pub(super) fn run_on(device: &Device, case: &Case) -> Result<Ran> {
    let (ins, upstream) = prepare(device, case)?;
    run_buffers(device, &case.op, &ins, &upstream)
}

/// The special values of float32: zeros, the ends of the subnormals and of the normals, one, infinity, NaN.
fn special_values() -> Vec<f32> {
    let positive = [
        0.0,
        f32::from_bits(1),
        f32::from_bits(0x007f_ffff),
        f32::MIN_POSITIVE,
        1.0,
        f32::MAX,
        f32::INFINITY,
    ];
    let mut all: Vec<f32> = positive.iter().flat_map(|&x| [x, -x]).collect();
    all.push(f32::NAN);
    all
}

/// Whether an elementwise op may return a number if one of these inputs is NaN. Every other op must return NaN.
fn may_hide_nan(name: &str, at: &[f32]) -> bool {
    match name {
        // Comparisons, and a sign that is 0.
        "eq" | "ne" | "lt" | "le" | "gt" | "ge" | "sign" => true,
        // The branch that is not selected. A NaN condition is not 0.
        "where_" => !at[if at[0] == 0.0 { 2 } else { 1 }].is_nan(),
        "fmax" | "fmin" => at.iter().any(|x| !x.is_nan()),
        "pow" => at[0] == 1.0 || at[1] == 0.0,
        _ => false,
    }
}

/// Whether an op may return a number although this input is NaN. Every other op must return NaN.
fn may_ignore_nan(name: &str, input: usize) -> bool {
    match name {
        // These are checked at each of their special values instead.
        "eq" | "ne" | "lt" | "le" | "gt" | "ge" | "sign" | "where_" | "fmax" | "fmin" => true,
        // A pivot moves rows, whatever they hold.
        "lu" => true,
        // Arbitrary programs, which may contain selections.
        "map" | "fused" => true,
        // Indices are not numbers.
        "argmax" | "argmin" | "to_index" => true,
        "argsort" | "topk" | "running_extremum" | "searchsorted" => true,
        // Inputs that only decide where an element goes or comes from.
        "max_pool_bwd" | "max_pool_pick" | "adaptive_max_pool_bwd" | "adaptive_max_pool_pick" => input < 2,
        // A place that is NaN adds NaN to the elements at the start of the image, and nothing elsewhere.
        "grid_sample_input_bwd" => input == 1,
        // A threshold for uniform draws.
        "bernoulli_mask" => true,
        // Masks: everything but 0 allows an element.
        "masked_softmax" => input == 1,
        "attention" | "attention_bwd" => input == 3,
        "attention_mask" => true,
        _ => false,
    }
}

/// NaN must not be lost. Elementwise rows are run at the special values of float32 (all pairs of them for two inputs):
/// the device must return the bits of the formula in scalar float32 (all NaNs count as equal) and the stated values at
/// the row's exact pairs. If an input is NaN, the value must be NaN, and so must its gradient if the upstream one is.
/// For all ops, what depends on an element must be NaN if the element is, and its gradient must be NaN if the upstream
/// one is. The exceptions are listed above.
pub fn special(subject: impl Into<Subject>, device: &Device) -> Outcome {
    let (subject, property) = (subject.into(), Property::Special);
    has_samples(&subject, property)?;
    let mut report = Report::new(&subject, property);
    let mut outcome = Ok(());
    pointwise::for_each(|row| {
        if row.name() == subject.name && outcome.is_ok() {
            outcome = special_row(&subject, row, device, &mut report);
        }
    });
    outcome?;
    lost_nans(&subject, device, &mut report)?;
    Ok(report)
}

/// Only samples with at most this many elements are tested with NaNs.
const MAX_NAN_TEST_ELEMENTS: usize = 300;

/// The elements of the value that depend on element `at` of input `i`: those where the reference changes when that
/// element is moved far up or down.
fn dependents(case: &Case, i: usize, at: usize) -> Result<Vec<usize>> {
    let with = |x: f64| {
        let mut ins = case.widened::<f64>();
        if let AnyTensor::Num(t) = &mut ins[i] {
            t.data_mut()[at] += x;
        }
        case.op.reference(&ins)
    };
    let (base, up, down) = (with(0.0)?, with(997.0)?, with(-997.0)?);
    let differ = |o: &usize| {
        let (base, up, down) = (base.data()[*o], up.data()[*o], down.data()[*o]);
        up.to_bits() != base.to_bits() || down.to_bits() != base.to_bits()
    };
    Ok((0..base.data().len()).filter(differ).collect())
}

/// Puts a NaN into two elements of every input of small samples, one at a time.
fn lost_nans(
    subject: &Subject,
    device: &Device,
    report: &mut Report,
) -> std::result::Result<(), Box<Failure>> {
    for (index, sample) in subject.small(MAX_NAN_TEST_ELEMENTS) {
        let drawn = Case::draw(sample, Values::Lattice, subject.seed(index));
        for i in 0..drawn.ins.len() {
            let AnyTensor::Num(t) = &drawn.ins[i] else { continue };
            let len = t.data().len();
            if len == 0 || may_ignore_nan(&subject.name, i) {
                continue;
            }
            for at in [0, (2 * len) / 3] {
                let error = |e: &Error| drawn.error(subject, Property::Special, e);
                let dependents = dependents(&drawn, i, at).map_err(|e| error(&e))?;
                let mut case = drawn.clone();
                if let AnyTensor::Num(t) = &mut case.ins[i] {
                    t.data_mut()[at] = f32::NAN;
                }
                let metas: Vec<Meta> = case.ins.iter().map(AnyTensor::meta).collect();
                let upstream =
                    case.op.shape(&metas).map(|m| Tensor::full(m.shape, f32::NAN)).map_err(|e| error(&e))?;
                let ran = run_with(device, &case, &upstream).map_err(|e| error(&e))?;
                for &o in &dependents {
                    if !ran.value.data()[o].is_nan() {
                        let what = format!("value, with element {at} of input {i} NaN, on {}", label(device));
                        return Err(case.fail(subject, Property::Special, what).at(
                            o,
                            ran.value.data()[o],
                            f32::NAN,
                        ));
                    }
                }
                if let (Some(g), false) = (&ran.gradients[i], dependents.is_empty())
                    && !g.data()[at].is_nan()
                {
                    let what = format!("gradient of input {i}, which is NaN there, on {}", label(device));
                    return Err(case.fail(subject, Property::Special, what).at(at, g.data()[at], f32::NAN));
                }
                report.cases += 1;
            }
        }
    }
    Ok(())
}

fn special_row(
    subject: &Subject,
    row: &dyn Row,
    device: &Device,
    report: &mut Report,
) -> std::result::Result<(), Box<Failure>> {
    let specials = special_values();
    let mut points: Vec<Vec<f32>> = vec![Vec::new()];
    for _ in 0..row.arity() {
        points = points.iter().flat_map(|p| specials.iter().map(|&x| [&p[..], &[x]].concat())).collect();
    }
    let mut wanted: Vec<f32> = points.iter().map(|p| row.value(p)).collect();
    for (at, value) in row.pairs() {
        points.push(at);
        wanted.push(value);
    }
    let column = |i: usize| points.iter().map(|p| p[i]).collect::<Vec<f32>>();
    let case = |ins| Case { op: row.op(), ins, values: Values::Special, seed: 0 };
    let ins: Result<Vec<AnyTensor<f32>>> =
        (0..row.arity()).map(|i| Ok(AnyTensor::Num(Tensor::new(&[points.len()], column(i))?))).collect();
    let case = match ins {
        Ok(ins) => case(ins),
        Err(e) => return Err(case(Vec::new()).error(subject, Property::Special, &e)),
    };
    let run = || -> Result<Tensor<f32>> {
        let buffers = upload(device, &case.ins)?;
        apply(device, &case.op, &buffers.iter().collect::<Vec<_>>())?.to_tensor()
    };
    let got = run().map_err(|e| case.error(subject, Property::Special, &e))?;
    for (at, (&got, &want)) in got.data().iter().zip(&wanted).enumerate() {
        if !same_bits(got, want) {
            let what = format!("value at {:?} on {}", points[at], label(device));
            return Err(case.fail(subject, Property::Special, what).at(at, got, want));
        }
    }
    let is_lost =
        |at: &usize| points[*at].iter().any(|x| x.is_nan()) && !may_hide_nan(&subject.name, &points[*at]);
    let upstream = Tensor::full(got.shape(), f32::NAN);
    let ran = run_with(device, &case, &upstream).map_err(|e| case.error(subject, Property::Special, &e))?;
    // Only the selected one has a gradient.
    let is_choice = matches!(subject.name.as_str(), "where_" | "fmax" | "fmin");
    for at in (0..points.len()).filter(is_lost) {
        if !got.data()[at].is_nan() {
            let what = format!("value at {:?} on {}", points[at], label(device));
            return Err(case.fail(subject, Property::Special, what).at(at, got.data()[at], f32::NAN));
        }
        let with_gradient = ran.gradients.iter().zip(&points[at]).filter(|(_, x)| x.is_nan());
        let slopes: Vec<f32> = with_gradient.filter_map(|(g, _)| g.as_ref().map(|g| g.data()[at])).collect();
        let is_kept = match is_choice {
            true => slopes.is_empty() || slopes.iter().any(|g| g.is_nan()),
            false => slopes.iter().all(|g| g.is_nan()),
        };
        if !is_kept {
            let what = format!("gradients of NaN at {:?} from NaN on {}", points[at], label(device));
            return Err(case.fail(subject, Property::Special, what).against(format!("{slopes:?}"), "NaN"));
        }
    }
    report.cases += points.len();
    Ok(())
}

/// The name of an error kind.
fn kind_name(kind: &ErrorKind) -> String {
    format!("{kind:?}").chars().take_while(|c| c.is_alphanumeric()).collect()
}

/// A value of zeros, of either type.
fn zeros(device: &Device, meta: &Meta) -> Result<AnyBuffer> {
    match meta.dtype {
        DType::F32 => AnyBuffer::zeros(device, meta.shape),
        DType::U32 => AnyBuffer::upload_indices(device, &Tensor::full(meta.shape, 0)),
    }
}

/// Inputs that must be refused: the error has the stated kind and names the op, both from [`AnyOp::shape`] and from
/// running the op on a device, which must not leak memory.
pub fn rejects(subject: impl Into<Subject>) -> Outcome {
    let (subject, property) = (subject.into(), Property::Rejects);
    let fail = |what: String| plain_failure(&subject.name, property, what);
    if subject.rejects.is_empty() {
        return Err(fail("no inputs to refuse are given".into()));
    }
    let device = Device::cpu_with(1, Simd::Scalar).map_err(|e| fail(e.to_string()))?;
    let mut report = Report::new(&subject, property);
    for reject in &subject.rejects {
        let check = |through: &str, outcome: Result<()>| {
            let mut failure = fail(format!("refusal through {through}"));
            failure.attributes = describe_op(&reject.op);
            failure.inputs = describe(&reject.ins);
            match outcome {
                Ok(()) => Err(failure.against("no error", reject.want)),
                Err(e) if kind_name(e.kind()) != reject.want => Err(failure.against(e, reject.want)),
                Err(e) if !e.to_string().contains(reject.op.name()) => {
                    Err(failure.against(e, "a message that names the op"))
                }
                Err(_) => Ok(()),
            }
        };
        check("shape", reject.op.shape(&reject.ins).map(|_| ()))?;
        let buffers: Result<Vec<AnyBuffer>> = reject.ins.iter().map(|m| zeros(&device, m)).collect();
        if let Ok(buffers) = buffers {
            let before = device.memory().live;
            check("apply", apply(&device, &reject.op, &buffers.iter().collect::<Vec<_>>()).map(|_| ()))?;
            if device.memory().live != before {
                let failure = fail("live bytes after a refusal".into());
                return Err(failure.against(device.memory().live, before));
            }
        }
        report.cases += 1;
    }
    index_rejects(&subject, &device, &mut report)?;
    Ok(report)
}

/// If an op takes indices below a limit, an index at the limit must be refused, with its name and position.
fn index_rejects(
    subject: &Subject,
    device: &Device,
    report: &mut Report,
) -> std::result::Result<(), Box<Failure>> {
    for (index, sample) in subject.small(2000) {
        let mut case = Case::draw(sample, Values::Uniform, subject.seed(index));
        let metas: Vec<Meta> = case.ins.iter().map(AnyTensor::meta).collect();
        let Some((i, limit)) = case.op.index_limit(&metas) else { continue };
        let AnyTensor::Idx(indices) = &mut case.ins[i] else { continue };
        let at = indices.data().len() / 2;
        let Some(bad) = indices.data_mut().get_mut(at) else { continue };
        *bad = limit as u32;
        let error = |e: Error| case.error(subject, Property::Rejects, &e);
        let buffers = upload(device, &case.ins).map_err(error)?;
        let before = device.memory().live;
        let outcome = apply(device, &case.op, &buffers.iter().collect::<Vec<_>>());
        let refused = match &outcome {
            Err(e) => matches!(e.kind(), ErrorKind::Index { at: a, index, bound }
                if (*a, *index, *bound) == (at, limit, limit)),
            Ok(_) => false,
        };
        if !refused {
            let failure = case.fail(subject, Property::Rejects, format!("index {limit} at position {at}"));
            return Err(failure.against(outcome.map(|b| b.shape()), "an index error"));
        }
        if device.memory().live != before {
            return Err(case.fail(subject, Property::Rejects, "live bytes changed by a refusal"));
        }
        report.cases += 1;
    }
    Ok(())
}

/// Value and gradients of every sample, and of some shapes around tile edges, have the same bits on all given devices.
pub fn bits(subject: impl Into<Subject>, devices: &[Device]) -> Outcome {
    let (subject, property) = (subject.into(), Property::Bits);
    has_samples(&subject, property)?;
    let Some((first, others)) = devices.split_first() else {
        return Err(plain_failure(&subject.name, property, "no device was given".into()));
    };
    let mut report = Report::new(&subject, property);
    for (index, sample) in subject.samples.iter().chain(&subject.drawn).enumerate() {
        let case = Case::draw(sample, Values::Uniform, subject.seed(index));
        let error = |e: Error| case.error(&subject, property, &e);
        let want = run_on(first, &case).map_err(error)?;
        for device in others {
            let got = run_on(device, &case).map_err(error)?;
            if let Some((what, at, got, want)) = got.difference(&want) {
                let what = format!("{what} on {} and on {}", label(device), label(first));
                return Err(case.fail(&subject, property, what).at(at, bits_of(got), bits_of(want)));
            }
            report.cases += 1;
        }
    }
    Ok(report)
}

/// Op and rule as one compiled program give the same bits as run step by step.
pub fn compiled(subject: impl Into<Subject>, device: &Device) -> Outcome {
    let (subject, property) = (subject.into(), Property::Compiled);
    has_samples(&subject, property)?;
    let mut report = Report::new(&subject, property);
    for (index, sample) in subject.small(20_000) {
        let case = Case::draw(sample, Values::Uniform, subject.seed(index));
        let error = |e: Error| case.error(&subject, property, &e);
        let want = run_on(device, &case).map_err(error)?;
        let got = run_compiled(device, &case).map_err(error)?;
        if let Some((what, at, got, want)) = got.difference(&want) {
            let what = format!("{what} compiled and step by step on {}", label(device));
            return Err(case.fail(&subject, property, what).at(at, bits_of(got), bits_of(want)));
        }
        report.cases += 1;
    }
    Ok(report)
}

/// An op and its gradient rule as one program of the op's inputs and the upstream gradient; the values to read of it, which
/// are the op's and the gradients there are; and the gradients.
pub(super) fn program(op: &AnyOp, ins: &[Meta]) -> Result<(Graph, Vec<Val>, Vec<Option<Val>>)> {
    let mut graph = Graph::new();
    let input = |graph: &mut Graph, meta: Meta| Val(graph.leaf(Source::Input(meta), true) as u32);
    let ins: Vec<Val> = ins.iter().map(|meta| input(&mut graph, *meta)).collect();
    let out = graph.record(op.clone(), &ins)?;
    let upstream = Meta::f32(graph.meta(out).shape);
    let dy = input(&mut graph, upstream);
    let gradients = op.vjp(&mut graph, Io { ins: &ins, out }, dy)?;
    let wanted: Vec<Val> = std::iter::once(out).chain(gradients.iter().flatten().copied()).collect();
    Ok((graph, wanted, gradients))
}

/// Runs op and rule on a device as one program.
fn run_compiled(device: &Device, case: &Case) -> Result<Ran> {
    let ins: Vec<Meta> = case.ins.iter().map(AnyTensor::meta).collect();
    let (graph, wanted, gradients) = program(&case.op, &ins)?;
    let metas: Vec<Meta> = wanted.iter().map(|v| graph.meta(*v)).collect();
    let upstream = case.upstream(metas[0].shape);
    let program = Compiled::new(device, &graph, &wanted, Vec::new(), Passes::all(), None)?;
    for (i, x) in case.ins.iter().enumerate() {
        match x {
            AnyTensor::Num(t) => program.set_input(i, x.meta(), t.data())?,
            AnyTensor::Idx(t) => program.set_input(i, x.meta(), bytemuck::cast_slice(t.data()))?,
        }
    }
    program.set_input(ins.len(), Meta::f32(metas[0].shape), upstream.data())?;
    program.run(0)?;
    let read = |i: usize| {
        let words = program.output(i)?;
        let words = match metas[i].dtype {
            DType::F32 => words,
            DType::U32 => words.into_iter().map(|w| w.to_bits() as f32).collect(),
        };
        Tensor::with_shape(metas[i].shape, words)
    };
    let mut next = 1..;
    let gradient = |g: Option<Val>| g.and_then(|_| next.next()).map(read).transpose();
    Ok(Ran { value: read(0)?, gradients: gradients.into_iter().map(gradient).collect::<Result<_>>()? })
}

/// A number with its bits, since two different floats can print the same.
fn bits_of(x: f32) -> String {
    format!("{x:e} ({:#010x})", x.to_bits())
}

/// Fails each allocation of an op and its rule in turn, once and from then on. The result must be an out-of-memory
/// error, live bytes must be as before, and the next try must have the bits of an undisturbed run. The device must not
/// be used by others.
pub fn faults(subject: impl Into<Subject>, device: &Device) -> Outcome {
    let (subject, property) = (subject.into(), Property::Faults);
    has_samples(&subject, property)?;
    let mut report = Report::new(&subject, property);
    // More allocations than any rule makes: an op that still fails after this many never stops failing.
    const MAX_ALLOCATIONS: u64 = 200;
    for (index, sample) in subject.small(5_000) {
        let case = Case::draw(sample, Values::Uniform, subject.seed(index));
        let error = |e: Error| case.error(&subject, property, &e);
        let (ins, upstream) = prepare(device, &case).map_err(error)?;
        let want = run_buffers(device, &case.op, &ins, &upstream).map_err(error)?;
        let live = device.memory().live;
        for persistent in [false, true] {
            let mut done = false;
            for n in 1..MAX_ALLOCATIONS {
                device.fail_allocation(Some(n), persistent);
                let outcome = run_buffers(device, &case.op, &ins, &upstream);
                device.fail_allocation(None, false);
                let fail =
                    |what: &str| case.fail(&subject, property, format!("{what}, allocation {n} failing"));
                if device.memory().live != live {
                    return Err(fail("live bytes").against(device.memory().live, live));
                }
                done = match outcome {
                    Ok(got) => match got.difference(&want) {
                        Some((what, at, got, want)) => return Err(fail(&what).at(at, got, want)),
                        None => true,
                    },
                    Err(e) if matches!(e.kind(), ErrorKind::OutOfMemory { .. }) => {
                        let again = run_buffers(device, &case.op, &ins, &upstream).map_err(error)?;
                        if let Some((what, at, got, want)) = again.difference(&want) {
                            return Err(fail(&format!("{what} of the next try")).at(at, got, want));
                        }
                        false
                    }
                    Err(e) => return Err(fail("another error than out of memory").against(e, "OutOfMemory")),
                };
                report.cases += 1;
                if done {
                    break;
                }
            }
            if !done {
                return Err(case.fail(
                    &subject,
                    property,
                    format!("still failing after {MAX_ALLOCATIONS} allocations"),
                ));
            }
        }
    }
    Ok(report)
}

/// Runs every sample in memory that is poisoned with NaN and surrounded by guard words. The bits must be those of an
/// ordinary run, so nothing was read before it was written, and the guards must be intact, so nothing was written
/// outside. The device must not be used by others; check mode is off afterwards.
pub fn guards(subject: impl Into<Subject>, device: &Device) -> Outcome {
    let (subject, property) = (subject.into(), Property::Guards);
    has_samples(&subject, property)?;
    let mut report = Report::new(&subject, property);
    for (index, sample) in subject.samples.iter().enumerate() {
        let case = Case::draw(sample, Values::Uniform, subject.seed(index));
        let error = |e: Error| case.error(&subject, property, &e);
        let want = run_on(device, &case).map_err(error)?;
        let broken = device.broken_guards();
        device.set_checks(true);
        let got = run_on(device, &case);
        device.set_checks(false);
        if let Some((what, at, got, want)) = got.map_err(error)?.difference(&want) {
            let what = format!("{what} in poisoned memory");
            return Err(case.fail(&subject, property, what).at(at, bits_of(got), bits_of(want)));
        }
        if device.broken_guards() != broken {
            let failure = case.fail(&subject, property, "buffers written outside");
            return Err(failure.against(device.broken_guards() - broken, 0));
        }
        report.cases += 1;
    }
    Ok(report)
}

/// Default number of runs per sample.
pub(super) const REPEATS: usize = 20;

/// Many runs of every sample give one result: `times` runs of samples of moderate size, a twentieth of that for larger
/// ones. The report has the fingerprint of all results, which is the same for all devices, thread counts and processes.
pub fn repeat(subject: impl Into<Subject>, device: &Device, times: usize) -> Outcome {
    let (subject, property) = (subject.into(), Property::Repeat);
    has_samples(&subject, property)?;
    let mut report = Report::new(&subject, property);
    let mut print = Fingerprint::default();
    let small: Vec<usize> = subject.small(10_000).map(|(index, _)| index).collect();
    for (index, sample) in subject.samples.iter().enumerate() {
        let case = Case::draw(sample, Values::Uniform, subject.seed(index));
        let error = |e: Error| case.error(&subject, property, &e);
        let (ins, upstream) = prepare(device, &case).map_err(error)?;
        let run = || run_buffers(device, &case.op, &ins, &upstream).map_err(error);
        let first = run()?;
        let runs = if small.contains(&index) { times } else { times.div_ceil(20) };
        for n in 1..runs {
            if let Some((what, at, got, want)) = run()?.difference(&first) {
                let what = format!("{what} of run {n} and of the first on {}", label(device));
                return Err(case.fail(&subject, property, what).at(at, bits_of(got), bits_of(want)));
            }
        }
        for t in std::iter::once(&first.value).chain(first.gradients.iter().flatten()) {
            print.add(&subject.name, t);
        }
        report.cases += 1;
    }
    report.fingerprint = Some(print.finish());
    Ok(report)
}
