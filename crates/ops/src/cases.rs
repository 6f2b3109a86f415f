//! What the checks run ops on: samples, random shapes around tile edges, inputs that must be refused, and how far a value may be
//! from its reference. Only the crates that test ops compile this: it is behind the feature `cases`.

use crate::*;
use dittograd_device::Meta;
use dittograd_numerics::Numerics;
use dittograd_numerics::digits::Digits;
use dittograd_numerics::error::Result;
use dittograd_numerics::rng::Stream;
use dittograd_numerics::shape::Shape;
use dittograd_numerics::sum::{CHUNK, ROWS};
use dittograd_numerics::tensor::Tensor;
use std::any::TypeId;
use std::sync::PoisonError;

/// The largest size of a number.
pub(crate) fn largest(x: &[f64]) -> f64 {
    x.iter().fold(0.0, |largest, x| x.abs().max(largest))
}

/// Roundings on the longest path through either tree of `n` elements.
pub(crate) fn depth(n: usize) -> f64 {
    let (mut n, mut depth) = (n.max(1), 0.0);
    loop {
        depth += (CHUNK.min(n) as f64 / 32.0).ceil().max((ROWS.min(n)) as f64) + 5.0;
        if n <= ROWS {
            return depth;
        }
        n = n.div_ceil(ROWS);
    }
}

/// An input the checks should draw.
#[derive(Clone, Debug)]
pub enum SampleIn {
    /// Numbers of a shape, uniform in a range.
    Num(Shape, (f64, f64)),
    /// Square matrices in the last two axes, of size `n`: numbers uniform in a range, with `2 sqrt(n)` times the largest one
    /// added at `j = (i + shift) mod n`. These can be solved with, and without a shift they are positive definite.
    Dominant(Shape, (f64, f64), usize),
    /// Indices of a shape, below a bound.
    Idx(Shape, u32),
}

impl SampleIn {
    /// Numbers in `[-2, 2)`.
    pub fn any(shape: Shape) -> SampleIn {
        SampleIn::Num(shape, (-2.0, 2.0))
    }

    /// Shape and element type.
    pub fn meta(&self) -> Meta {
        match self {
            SampleIn::Num(s, _) | SampleIn::Dominant(s, ..) => Meta::f32(*s),
            SampleIn::Idx(s, _) => Meta::u32(*s),
        }
    }
}

/// An op with inputs that the checks run it on.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The op.
    pub op: AnyOp,
    /// Its inputs.
    pub ins: Vec<SampleIn>,
}

impl Sample {
    /// The op with these inputs.
    pub fn new(op: impl Into<AnyOp>, ins: Vec<SampleIn>) -> Sample {
        Sample { op: op.into(), ins }
    }
}

/// An op with inputs it must refuse.
#[derive(Clone, Debug)]
pub struct Reject {
    /// The op.
    pub op: AnyOp,
    /// The inputs.
    pub ins: Vec<Meta>,
    /// Name of the [`ErrorKind`](dittograd_numerics::error::ErrorKind) it must answer with.
    pub want: &'static str,
}

impl Reject {
    /// The op with these inputs, and the kind of error.
    pub fn new(op: impl Into<AnyOp>, ins: Vec<Meta>, want: &'static str) -> Reject {
        Reject { op: op.into(), ins, want }
    }
}

/// How far a result may be from the f64 reference: `|got - want| <= ulps * ulp(want) + terms * 2^-24 * magnitude`,
/// where the magnitude is the reference evaluated on absolute values (Higham's running bound).
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    /// Relative part in units in the last place.
    pub ulps: f64,
    /// Number of roundings of the largest intermediate magnitude.
    pub terms: f64,
}

impl Bound {
    /// No error at all: the op only moves elements or makes them.
    pub const EXACT: Bound = Bound { ulps: 0.0, terms: 0.0 };
}

/// What the checks run an op on, and how exact it must be.
pub trait Cases: Op {
    /// Inputs the checks run the op on: ordinary sizes, zero and one, and sizes around tile edges.
    fn samples() -> Vec<Sample>;

    /// The op with a random shape around tile edges, for comparing bits between devices; `None` where
    /// shapes cannot be drawn.
    fn random(_stream: &mut Stream) -> Option<Sample> {
        None
    }

    /// Inputs the op must refuse.
    fn rejects() -> Vec<Reject>;

    /// How far the value may be from the reference on these inputs.
    fn bound(&self, ins: &[Meta]) -> Bound;

    /// The digits that a mode computes the product of the first two inputs in, if it does, and the number of terms of a sum.
    fn in_digits(&self, _ins: &[Meta], _numerics: Numerics) -> Option<(Digits, usize)> {
        None
    }

    /// What computing in digits, if the mode does so on these inputs, may add to the error of the value.
    fn digit_error(&self, numerics: Numerics, ins: &[AnyTensor<f64>]) -> Result<f64> {
        let metas: Vec<Meta> = ins.iter().map(AnyTensor::meta).collect();
        let Some((digits, k)) = self.in_digits(&metas, numerics) else { return Ok(0.0) };
        Ok(digits.error(k, largest(ins[0].num()?.data()), largest(ins[1].num()?.data())))
    }

    /// Places of the value that only the gradient rule reads. Its gradients there are those that the rule itself gives; the checks
    /// leave them zero.
    fn statistics(&self, _ins: &[Meta]) -> std::ops::Range<usize> {
        0..0
    }

    /// Sets of inputs in which, taken together and with the others held, the value is linear, and exactly so
    /// on whole numbers: the checks then demand `<A x, g> = <x, A^T g>` to the last bit.
    fn linear(&self, _ins: &[Meta]) -> Vec<Vec<usize>> {
        Vec::new()
    }
}

/// Shapes of one tensor that samples draw from: scalars, zero and one, vector lengths around block
/// edges, and several ranks.
pub(crate) fn sample_shapes() -> Vec<Shape> {
    [
        &[][..],
        &[0],
        &[1],
        &[7],
        &[33],
        &[513],
        &[3, 0, 5],
        &[2, 3],
        &[4, 129],
        &[2, 3, 5],
        &[1, 2, 1, 3, 2],
        &[70000],
    ]
    .iter()
    .map(|d| dims(d))
    .collect()
}

/// Draws sample inputs as float32 tensors or indices. Errors if the host has no room for them.
pub fn draw(ins: &[SampleIn], stream: &mut Stream) -> Result<Vec<AnyTensor<f32>>> {
    let one = |i: &SampleIn| match i {
        SampleIn::Num(shape, (lo, hi)) => {
            Tensor::try_from_fn(*shape, |_| stream.range(*lo as f32, *hi as f32)).map(AnyTensor::Num)
        }
        SampleIn::Dominant(shape, (lo, hi), shift) => {
            let n = shape.last();
            let more = (2.0 * (n as f64).sqrt() * lo.abs().max(hi.abs())) as f32;
            let number = |at: usize| {
                let x = stream.range(*lo as f32, *hi as f32);
                if at % n == (at / n + shift) % n { x + more } else { x }
            };
            Tensor::try_from_fn(*shape, number).map(AnyTensor::Num)
        }
        SampleIn::Idx(shape, bound) => {
            Tensor::try_from_fn(*shape, |_| stream.below(*bound as usize) as u32).map(AnyTensor::Idx)
        }
    };
    ins.iter().map(one).collect()
}

/// What [`Cases`] says of the ops of a type that is not in the list.
#[derive(Clone, Copy)]
struct OwnCases {
    bound: fn(&Custom, &[Meta]) -> Bound,
    statistics: fn(&Custom, &[Meta]) -> std::ops::Range<usize>,
    linear: fn(&Custom, &[Meta]) -> Vec<Vec<usize>>,
}

/// [`OwnCases`] by types.
static OWN: Known<TypeId, OwnCases> = Known::new(Default::default);

/// Makes known what [`Cases`] says of an op of one's own.
pub fn register<O: Cases + Send + Sync + 'static>() -> Result<()> {
    crate::register::<O>()?;
    let cases = OwnCases {
        bound: |op, ins| op.get::<O>().map_or(Bound::EXACT, |op| op.bound(ins)),
        statistics: |op, ins| op.get::<O>().map_or(0..0, |op| op.statistics(ins)),
        linear: |op, ins| op.get::<O>().map_or_else(Vec::new, |op| op.linear(ins)),
    };
    OWN.write().unwrap_or_else(PoisonError::into_inner).insert(TypeId::of::<O>(), cases);
    Ok(())
}

fn own<T>(op: &Custom, f: impl FnOnce(OwnCases) -> T) -> Option<T> {
    let cases = OWN.read().unwrap_or_else(PoisonError::into_inner).get(&op.kind()).copied();
    cases.map(f)
}

macro_rules! any_cases {
    ($($name:ident: $module:ident::$op:ident,)*) => {
        impl AnyOp {
            /// See [`Cases::linear`].
            pub fn linear(&self, ins: &[Meta]) -> Vec<Vec<usize>> {
                match self {
                    $(AnyOp::$op(op) => op.linear(ins),)*
                    AnyOp::Custom(op) => own(op, |cases| (cases.linear)(op, ins)).unwrap_or_default(),
                }
            }

            /// See [`Cases::bound`].
            pub fn bound(&self, ins: &[Meta]) -> Bound {
                match self {
                    $(AnyOp::$op(op) => op.bound(ins),)*
                    AnyOp::Custom(op) => own(op, |cases| (cases.bound)(op, ins)).unwrap_or(Bound::EXACT),
                }
            }

            /// See [`Cases::in_digits`].
            pub fn in_digits(&self, ins: &[Meta], numerics: Numerics) -> Option<(Digits, usize)> {
                match self {
                    $(AnyOp::$op(op) => op.in_digits(ins, numerics),)*
                    AnyOp::Custom(_) => None,
                }
            }

            /// See [`Cases::digit_error`].
            pub fn digit_error(&self, numerics: Numerics, ins: &[AnyTensor<f64>]) -> Result<f64> {
                match self {
                    $(AnyOp::$op(op) => op.digit_error(numerics, ins),)*
                    AnyOp::Custom(_) => Ok(0.0),
                }
            }

            /// See [`Cases::statistics`].
            pub fn statistics(&self, ins: &[Meta]) -> std::ops::Range<usize> {
                match self {
                    $(AnyOp::$op(op) => op.statistics(ins),)*
                    AnyOp::Custom(op) => own(op, |cases| (cases.statistics)(op, ins)).unwrap_or(0..0),
                }
            }

            /// The samples of the op of that name.
            pub fn samples(name: &str) -> Vec<Sample> {
                $(if name == <$module::$op as Op>::NAME {
                    return <$module::$op as Cases>::samples();
                })*
                Vec::new()
            }

            /// See [`Cases::random`].
            pub fn random(name: &str, stream: &mut Stream) -> Option<Sample> {
                $(if name == <$module::$op as Op>::NAME {
                    return <$module::$op as Cases>::random(stream);
                })*
                None
            }

            /// The rejects of the op of that name.
            pub fn rejects(name: &str) -> Vec<Reject> {
                $(if name == <$module::$op as Op>::NAME {
                    return <$module::$op as Cases>::rejects();
                })*
                Vec::new()
            }
        }
    };
}
with_ops!(any_cases);

/// Dimensions around the edges of vectors, warps, tiles and chunks.
pub(crate) const EDGES: [usize; 21] =
    [1, 2, 3, 5, 7, 8, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 257, 1023, 1025];

/// Lengths at which one row is split between threads.
pub(crate) const LONG: [usize; 4] = [131_071, 131_072, 131_073, 150_001];

/// Inner sizes of products, around the chunk of k.
pub(crate) const INNER: [usize; 7] = [1, 7, 128, 1023, 1024, 1025, 2049];

/// Most elements of a drawn value.
pub(crate) const VOLUME: usize = 200_000;

/// Most multiplications of a drawn product.
pub(crate) const WORK: usize = 3_000_000;

/// One of `from`.
pub(crate) fn pick(from: &[usize], stream: &mut Stream) -> usize {
    from[stream.below(from.len())]
}

/// A shape of `least` to `most` axes and at most [`VOLUME`] elements; one in three is a single long axis,
/// with or without axes of one element after it.
pub(crate) fn edge_dims(least: usize, most: usize, stream: &mut Stream) -> Vec<usize> {
    let rank = least + stream.below(most - least + 1);
    if stream.below(3) == 0 {
        let mut dims = vec![1; rank.max(1)];
        dims[0] = pick(&LONG, stream);
        return dims;
    }
    let mut dims: Vec<usize> = Vec::new();
    let mut volume = 1;
    for _ in 0..rank {
        let mut d = pick(&EDGES, stream);
        while volume * d > VOLUME {
            d = pick(&EDGES, stream);
        }
        volume *= d;
        dims.push(d);
    }
    dims
}

/// [`edge_dims`] as a shape.
pub(crate) fn edge_shape(least: usize, most: usize, stream: &mut Stream) -> Shape {
    dims(&edge_dims(least, most, stream))
}

/// The op with number inputs of these dimensions.
pub(crate) fn sample(op: impl Into<AnyOp>, ins: &[&[usize]]) -> Sample {
    Sample::new(op, inputs(ins))
}

/// Number inputs of these dimensions.
fn inputs(dims: &[&[usize]]) -> Vec<SampleIn> {
    dims.iter().map(|d| SampleIn::any(crate::dims(d))).collect()
}

/// `count` random cases of an op, and one more with a long axis where the op's shapes can have one.
#[doc(hidden)]
pub fn random_cases(name: &str, count: usize, stream: &mut Stream) -> Vec<Sample> {
    let is_long =
        |s: &Sample| s.ins.iter().any(|i| i.meta().shape.dims().first().is_some_and(|d| LONG.contains(d)));
    let mut cases: Vec<_> = (0..count).filter_map(|_| AnyOp::random(name, stream)).collect();
    // One shape in three is long, so so many tries miss it only where there is none.
    cases.extend((0..40).filter_map(|_| AnyOp::random(name, stream)).find(is_long));
    cases
}
