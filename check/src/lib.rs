//! Checks that hold for every op: value against the f64 reference, gradients against differences, the same bits on all
//! devices, behaviour on bad input and out of memory. The tests, the program's `check` command and users with their own
//! ops call the same functions.
//!
//! Each property takes a [`Subject`], usually converted from an op's name, and returns a [`Report`] of what was run, or
//! a [`Failure`] that says how to reproduce the failing case. Seeds are fixed.

mod ahead;
mod cases;
mod devices;
mod kernels;
mod magnitude;
mod record;
mod rules;

pub use ahead::{kernels_of, with_kernels_ahead};
pub use cases::{Case, Subject, Values};
pub use devices::{all_cpus, cpu_devices, gpu};
pub use kernels::{bits, compiled, faults, guards, rejects, repeat, special};
pub use magnitude::Magnitude;
pub use record::RefRecorder;
pub use rules::{adjoint, device_gradient, forward, gradient, second};

use dittograd_device::{Backend, DType, Device, Meta};
use dittograd_numerics::Numerics;
use dittograd_numerics::error::{Error, Result};
use dittograd_ops::{AnyOp, AnyTensor};
pub use dittograd_ops::{Bound, Cases, Reject, Sample, SampleIn};
use std::fmt;

/// The properties that are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Property {
    /// See [`forward`].
    Forward,
    /// See [`gradient`].
    Gradient,
    /// See [`second`].
    Second,
    /// See [`device_gradient`].
    DeviceGradient,
    /// See [`adjoint`].
    Adjoint,
    /// See [`special`].
    Special,
    /// See [`rejects`].
    Rejects,
    /// See [`bits`].
    Bits,
    /// See [`compiled`].
    Compiled,
    /// See [`faults`].
    Faults,
    /// See [`guards`].
    Guards,
    /// See [`repeat`].
    Repeat,
}

impl Property {
    /// All properties.
    pub const ALL: [Property; 12] = [
        Property::Forward,
        Property::Gradient,
        Property::Second,
        Property::DeviceGradient,
        Property::Adjoint,
        Property::Special,
        Property::Rejects,
        Property::Bits,
        Property::Compiled,
        Property::Faults,
        Property::Guards,
        Property::Repeat,
    ];

    /// Name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Property::Forward => "forward",
            Property::Gradient => "gradient",
            Property::Second => "second",
            Property::DeviceGradient => "device_gradient",
            Property::Adjoint => "adjoint",
            Property::Special => "special",
            Property::Rejects => "rejects",
            Property::Bits => "bits",
            Property::Compiled => "compiled",
            Property::Faults => "faults",
            Property::Guards => "guards",
            Property::Repeat => "repeat",
        }
    }

    /// Checks the property. The devices must not be used by others. [`Property::Bits`] compares all of them with each
    /// other; other properties use the first one or none.
    pub fn check(self, subject: &Subject, devices: &[Device]) -> Outcome {
        let Some(device) = devices.first() else {
            return Err(plain_failure(&subject.name, self, "no device was given".into()));
        };
        match self {
            Property::Forward => forward(subject, device),
            Property::Gradient => gradient(subject),
            Property::Second => second(subject),
            Property::DeviceGradient => device_gradient(subject, device),
            Property::Adjoint => adjoint(subject, device),
            Property::Special => special(subject, device),
            Property::Rejects => rejects(subject),
            Property::Bits => bits(subject, devices),
            Property::Compiled => compiled(subject, device),
            Property::Faults => faults(subject, device),
            Property::Guards => guards(subject, device),
            Property::Repeat => repeat(subject, device, kernels::REPEATS),
        }
    }

    /// Whether the property is about one device, so that it should be checked on each.
    pub fn is_per_device(self) -> bool {
        !matches!(self, Property::Gradient | Property::Second | Property::Rejects | Property::Bits)
    }
}

impl fmt::Display for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What was run, if all of it held.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The op.
    pub op: String,
    /// The property.
    pub property: Property,
    /// Number of cases; 0 if the property does not apply to the op.
    pub cases: usize,
    /// The largest error as a fraction of what is allowed, from 0 to 1; 0 if bits are compared.
    pub worst: f64,
    /// The largest error in units in the last place of the wanted float32, if it was measured.
    pub ulps: Option<f64>,
    /// The hash of all results, if they were compared over time.
    pub fingerprint: Option<String>,
}

impl Report {
    fn new(subject: &Subject, property: Property) -> Report {
        Report { op: subject.name.clone(), property, cases: 0, worst: 0.0, ulps: None, fingerprint: None }
    }

    /// Records an error. Returns whether it is within what is allowed.
    fn within(&mut self, error: f64, allowed: f64) -> bool {
        if error == 0.0 || allowed == f64::INFINITY {
            return true;
        }
        let part = error / allowed;
        self.worst = self.worst.max(part);
        part <= 1.0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}::{}: {} cases", self.op, self.property, self.cases)?;
        if self.worst > 0.0 {
            write!(f, ", worst error {:.4} of what is allowed", self.worst)?;
        }
        match self.ulps {
            Some(ulps) => write!(f, ", {ulps:.1} ulp"),
            None => Ok(()),
        }
    }
}

/// What did not hold, and how to reproduce it: draw the inputs with [`Case::draw`] from the seed.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// The op.
    pub op: String,
    /// The property.
    pub property: Property,
    /// What went wrong.
    pub what: String,
    /// The op with its attributes.
    pub attributes: String,
    /// Types and shapes of the inputs.
    pub inputs: String,
    /// How the inputs were drawn.
    pub values: Option<Values>,
    /// The seed they were drawn from.
    pub seed: Option<u64>,
    /// Row-major position in the value, if one element is wrong.
    pub element: Option<usize>,
    /// The actual result.
    pub got: String,
    /// The expected result.
    pub want: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}::{} failed: {}", self.op, self.property, self.what)?;
        if let Some(at) = self.element {
            write!(f, ", element {at}")?;
        }
        if !self.got.is_empty() || !self.want.is_empty() {
            write!(f, ", got {}, want {}", self.got, self.want)?;
        }
        if !self.attributes.is_empty() {
            write!(f, "; {} on {}", self.attributes, self.inputs)?;
        }
        if let (Some(values), Some(seed)) = (self.values, self.seed) {
            write!(f, ", {values} values of seed {seed:#018x}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

/// The result of checking a property. The failure is boxed, since it is rare.
pub type Outcome = std::result::Result<Report, Box<Failure>>;

/// A failure that is not about a particular case.
fn plain_failure(op: &str, property: Property, what: String) -> Box<Failure> {
    let empty = String::new;
    Box::new(Failure {
        op: op.to_string(),
        property,
        what,
        attributes: empty(),
        inputs: empty(),
        values: None,
        seed: None,
        element: None,
        got: empty(),
        want: empty(),
    })
}

/// Types and shapes as text.
fn describe(metas: &[Meta]) -> String {
    let one = |m: &Meta| format!("{}{}", m.dtype.name(), m.shape);
    let all: Vec<String> = metas.iter().map(one).collect();
    format!("({})", all.join(", "))
}

/// An op without the text of its programs, which would fill pages.
fn describe_op(op: &AnyOp) -> String {
    format!("{}{:?}", op.name(), op.attrs())
}

impl Case {
    fn fail(&self, subject: &Subject, property: Property, what: impl Into<String>) -> Box<Failure> {
        let metas: Vec<Meta> = self.ins.iter().map(AnyTensor::meta).collect();
        let mut failure = plain_failure(&subject.name, property, what.into());
        failure.attributes = describe_op(&self.op);
        failure.inputs = describe(&metas);
        failure.values = Some(self.values);
        failure.seed = Some(self.seed);
        failure
    }

    /// A failure because of an unexpected error.
    fn error(&self, subject: &Subject, property: Property, error: &Error) -> Box<Failure> {
        self.fail(subject, property, format!("error: {error}"))
    }
}

impl Failure {
    fn at(
        mut self: Box<Failure>,
        element: usize,
        got: impl fmt::Debug,
        want: impl fmt::Debug,
    ) -> Box<Failure> {
        self.element = Some(element);
        self.against(got, want)
    }

    fn against(mut self: Box<Failure>, got: impl fmt::Debug, want: impl fmt::Debug) -> Box<Failure> {
        (self.got, self.want) = (format!("{got:?}"), format!("{want:?}"));
        self
    }
}

/// Errors if there is nothing to run, since then every property would hold.
fn has_samples(subject: &Subject, property: Property) -> std::result::Result<(), Box<Failure>> {
    if subject.samples.is_empty() {
        return Err(plain_failure(&subject.name, property, "no op of that name has samples".into()));
    }
    Ok(())
}

/// A short name of the device: `cpu avx2 x3`, `cuda:0`.
fn label(device: &Device) -> String {
    match device.backend() {
        Backend::Cpu(cpu) => format!("cpu {} x{}", cpu.simd, device.threads()),
        Backend::Cuda(_) | Backend::Host(_) => device.to_string(),
    }
}

/// One line of the table of [`run_all`].
#[derive(Clone, Debug)]
pub struct Row {
    /// The op.
    pub op: &'static str,
    /// The property.
    pub property: Property,
    /// The device, or `all` or `none`.
    pub device: String,
    /// The result.
    pub outcome: Outcome,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:18} {:16} {:16} ", self.op, self.property, self.device)?;
        match &self.outcome {
            Ok(r) => {
                write!(f, "{:6} cases  {:8.4} of bound  ", r.cases, r.worst)?;
                match r.ulps {
                    Some(ulps) => write!(f, "{ulps:8.1} ulp  ok"),
                    None => write!(f, "{:12}  ok", ""),
                }
            }
            Err(failure) => write!(f, "FAILED  {failure}"),
        }
    }
}

/// Whether a filter selects a property of an op: `softmax::gradient` selects just that, `softmax::` all properties of
/// that op, and text without `::` all op or property names that contain it.
fn matches(filter: &str, op: &str, property: Property) -> bool {
    match filter.split_once("::") {
        Some((name, part)) => op == name && (part.is_empty() || property.name() == part),
        None => op.contains(filter) || property.name().contains(filter),
    }
}

/// Checks properties of ops, on each device if the property is about one, and passes each line to `each` as soon as it
/// is known. [`bits`] compares all the devices with all SIMD levels and several thread counts of the CPU. `filter` is
/// `softmax::` for one op, `softmax::gradient` for one property of it, a part of the name of an op or a property, or
/// empty for all. Returns the number of failures.
pub fn run_all(devices: &[Device], filter: &str, mut each: impl FnMut(&Row)) -> Result<usize> {
    // All devices have one mode, which the CPU has too, unless it is tf32.
    let mode =
        devices.first().map(Device::numerics).filter(|mode| *mode != Numerics::Tf32).unwrap_or_default();
    let cpus = cpu_devices()?;
    let mut everywhere = cpus.iter().map(|cpu| cpu.in_mode(mode)).collect::<Result<Vec<Device>>>()?;
    everywhere.extend(devices.iter().cloned());
    let mut failed = 0;
    let mut report = |op, property, device: String, outcome: Outcome| {
        failed += usize::from(outcome.is_err());
        each(&Row { op, property, device, outcome });
    };
    for &op in AnyOp::NAMES {
        let subject = Subject::from(op);
        for property in Property::ALL {
            if !matches(filter, op, property) {
                continue;
            }
            if property == Property::Bits {
                report(op, property, "all".into(), property.check(&subject, &everywhere));
            } else if property.is_per_device() {
                for device in devices {
                    let outcome = property.check(&subject, std::slice::from_ref(device));
                    report(op, property, label(device), outcome);
                }
            } else {
                report(op, property, "none".into(), property.check(&subject, &everywhere));
            }
        }
    }
    Ok(failed)
}

/// Whether an input can have a gradient.
fn is_number(meta: Meta) -> bool {
    meta.dtype == DType::F32
}
