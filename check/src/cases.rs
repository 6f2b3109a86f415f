//! The inputs for the properties: the samples of an op, shapes drawn around tile edges, and values drawn from several
//! distributions. Every case is determined by the op, its shapes and one seed.

use crate::Magnitude;
use dittograd_numerics::environment;
use dittograd_numerics::error::Result;
use dittograd_numerics::rng::{self, Stream};
use dittograd_numerics::shape::Shape;
use dittograd_numerics::tensor::Tensor;
use dittograd_ops::cases::random_cases;
use dittograd_ops::{AnyOp, AnyTensor, Cases, Reject, Sample, SampleIn, draw};
use std::fmt;

/// An op to check: its name, inputs to run it on and inputs it must refuse. It converts from the name of a listed op,
/// or is built by hand for an op with other attributes or another program.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Name in reports.
    pub name: String,
    /// Inputs to run on.
    pub samples: Vec<Sample>,
    /// Inputs of shapes drawn around tile edges, whose bits are compared too.
    pub drawn: Vec<Sample>,
    /// Inputs that must be refused.
    pub rejects: Vec<Reject>,
}

impl From<&str> for Subject {
    /// The op of that name. An unknown name gives no samples.
    fn from(name: &str) -> Subject {
        Subject {
            name: name.to_string(),
            samples: AnyOp::samples(name),
            drawn: random_cases(name, RANDOM_SHAPES, &mut Stream::new(seed(name, usize::MAX), 0)),
            rejects: AnyOp::rejects(name),
        }
    }
}

impl From<&Subject> for Subject {
    fn from(subject: &Subject) -> Subject {
        subject.clone()
    }
}

impl Subject {
    /// An op of one's own. Errors if its name is taken.
    pub fn of<O: Cases + Send + Sync + 'static>() -> Result<Subject> {
        dittograd_ops::cases::register::<O>()?;
        dittograd_ops::register_numbers::<O, Magnitude>();
        let mut shapes = Stream::new(seed(O::NAME, usize::MAX), 0);
        Ok(Subject {
            name: O::NAME.to_string(),
            samples: O::samples(),
            drawn: (0..RANDOM_SHAPES).filter_map(|_| O::random(&mut shapes)).collect(),
            rejects: O::rejects(),
        })
    }

    /// Samples whose inputs have at most `limit` elements each.
    pub(super) fn small(&self, limit: usize) -> impl Iterator<Item = (usize, &Sample)> {
        let fits = move |s: &Sample| {
            let metas: Vec<_> = s.ins.iter().map(SampleIn::meta).collect();
            let out = s.op.shape(&metas).map_or(0, |m| m.shape.numel());
            out <= limit && metas.iter().all(|m| m.shape.numel() <= limit)
        };
        self.samples.iter().enumerate().filter(move |(_, s)| fits(s))
    }

    /// Seed of sample `index`: a function of the name, so that adding an op does not change the cases of others.
    pub fn seed(&self, index: usize) -> u64 {
        seed(&self.name, index)
    }
}

fn seed(name: &str, index: usize) -> u64 {
    name.bytes().fold(rng::mix(index as u64), |h, b| rng::mix(h ^ u64::from(b)))
}

/// Random shapes per op.
const RANDOM_SHAPES: usize = 4;

/// The distribution of the numbers of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// Uniform in the range of the sample.
    Uniform,
    /// Random signs, magnitudes from 2^-20 to 2^20 with uniform logarithm.
    Wide,
    /// Whole numbers from -8 to 8.
    Integers,
    /// In the range of the sample, but on a lattice that avoids kinks: off every multiple of 1/32, by another amount
    /// for each input, so that no two inputs are equal either.
    Lattice,
    /// The special values of float32, in all combinations.
    Special,
}

impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Values::Uniform => "uniform",
            Values::Wide => "wide",
            Values::Integers => "integers",
            Values::Lattice => "lattice",
            Values::Special => "special",
        })
    }
}

/// An op with drawn inputs.
#[derive(Clone, Debug)]
pub struct Case {
    /// The op.
    pub op: AnyOp,
    /// Its inputs.
    pub ins: Vec<AnyTensor<f32>>,
    /// How they were drawn.
    pub values: Values,
    /// The seed they were drawn from.
    pub seed: u64,
}

/// Whether the sample's numbers may be drawn from a wider symmetric range than it asks for.
pub(super) fn is_symmetric(sample: &Sample) -> bool {
    let symmetric = |i: &SampleIn| match i {
        SampleIn::Num(_, (lo, hi)) => *lo == -*hi,
        SampleIn::Dominant(..) => false,
        SampleIn::Idx(..) => true,
    };
    sample.ins.iter().all(symmetric) && sample.ins.iter().any(|i| matches!(i, SampleIn::Num(..)))
}

/// Whether the sample's numbers must be so close together that no integers are among them: long products of integers
/// overflow in some chains while others contain a zero, so that the order would show. Matrices to solve with are no integers either.
pub(super) fn is_narrow(sample: &Sample) -> bool {
    sample.ins.iter().any(|i| match i {
        SampleIn::Num(_, (lo, hi)) => hi - lo < 0.1,
        SampleIn::Dominant(..) => true,
        SampleIn::Idx(..) => false,
    })
}

impl Case {
    /// Draws the inputs of a sample.
    pub fn draw(sample: &Sample, values: Values, seed: u64) -> Case {
        let _strict = environment::enter();
        let mut stream = Stream::new(seed, 0);
        // If drawing fails, the op reports its missing inputs.
        let mut ins = draw(&sample.ins, &mut stream).unwrap_or_default();
        let numbers = ins.iter().filter(|i| matches!(i, AnyTensor::Num(_))).count();
        for (i, value) in ins.iter_mut().enumerate() {
            let AnyTensor::Num(tensor) = value else { continue };
            for x in tensor.data_mut() {
                match values {
                    Values::Uniform | Values::Special => {}
                    Values::Wide => {
                        let size = libm::exp2(f64::from(stream.range(-20.0, 20.0))) as f32;
                        *x = if stream.below(2) == 0 { size } else { -size };
                    }
                    Values::Integers => *x = stream.below(17) as f32 - 8.0,
                    Values::Lattice => {
                        let offset = (i + 1) as f64 / (numbers.max(i + 1) + 1) as f64;
                        *x = (((f64::from(*x) * 32.0).round() + offset) / 32.0) as f32;
                    }
                }
            }
        }
        Case { op: sample.op.clone(), ins, values, seed }
    }

    /// An upstream gradient for the op's value, uniform in `[-1, 1)`, from another stream than the inputs.
    pub fn upstream(&self, shape: Shape) -> Tensor<f32> {
        let metas: Vec<_> = self.ins.iter().map(AnyTensor::meta).collect();
        let (mut stream, none) = (Stream::new(self.seed, 1), self.op.statistics(&metas));
        Tensor::from_fn(shape, |i| {
            let x = stream.range(-1.0, 1.0);
            if none.contains(&i) { 0.0 } else { x }
        })
    }

    /// The inputs in another scalar type.
    pub fn widened<T: dittograd_numerics::scalar::Scalar>(&self) -> Vec<AnyTensor<T>> {
        let widen = |i: &AnyTensor<f32>| match i {
            AnyTensor::Num(t) => AnyTensor::Num(t.map(T::from_f32)),
            AnyTensor::Idx(t) => AnyTensor::Idx(t.clone()),
        };
        self.ins.iter().map(widen).collect()
    }
}
