//! What the properties run ops on: the samples of an op, shapes drawn around tile edges, and values drawn
//! from several distributions. Every case is fixed by the op, its shapes and one seed.

use crate::numerics::rng::{self, Stream};
use crate::ops::map::Map;
use crate::ops::{AnyOp, Attr, Attrs, RefIn, Reject, Sample, SampleIn, draw, elementwise};
use crate::shape::Shape;
use crate::tensor::Tensor;
use std::fmt;

/// An op to check: its name, inputs to run it on and inputs it must refuse. Made from the name of an op
/// of the list, or put together for an op with other attributes or another program.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Name in reports.
    pub name: String,
    /// Inputs to run on.
    pub samples: Vec<Sample<AnyOp>>,
    /// Inputs that must be refused.
    pub rejects: Vec<Reject<AnyOp>>,
}

impl From<&str> for Subject {
    /// The op of that name; without samples if there is none.
    fn from(name: &str) -> Subject {
        Subject { name: name.to_string(), samples: AnyOp::samples(name), rejects: AnyOp::rejects(name) }
    }
}

impl From<&Subject> for Subject {
    fn from(subject: &Subject) -> Subject {
        subject.clone()
    }
}

impl Subject {
    /// Samples whose inputs have at most `limit` elements each.
    pub(super) fn small(&self, limit: usize) -> impl Iterator<Item = (usize, &Sample<AnyOp>)> {
        let fits = move |s: &Sample<AnyOp>| {
            let metas: Vec<_> = s.ins.iter().map(SampleIn::meta).collect();
            let out = s.op.shape(&metas).map_or(0, |m| m.shape.numel());
            out <= limit && metas.iter().all(|m| m.shape.numel() <= limit)
        };
        self.samples.iter().enumerate().filter(move |(_, s)| fits(s))
    }

    /// Seed of sample `index`: a function of the name, so that adding an op changes no other op's cases.
    pub fn seed(&self, index: usize) -> u64 {
        self.name.bytes().fold(rng::mix(index as u64), |h, b| rng::mix(h ^ u64::from(b)))
    }
}

/// How the numbers of a case are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// Uniform in the range of the sample.
    Uniform,
    /// Random signs, magnitudes from 2^-20 to 2^20 with uniform logarithm.
    Wide,
    /// Whole numbers from -8 to 8.
    Integers,
    /// In the range of the sample but on a lattice that stays clear of kinks: off every multiple of 1/32,
    /// by another amount for each input, so that no two inputs are equal either.
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
    pub ins: Vec<RefIn<f32>>,
    /// How they were drawn.
    pub values: Values,
    /// What they were drawn from.
    pub seed: u64,
}

/// Whether the sample's numbers may be drawn from a wider symmetric range than it asks for.
pub(super) fn is_symmetric(sample: &Sample<AnyOp>) -> bool {
    let symmetric = |i: &SampleIn| match i {
        SampleIn::Num(_, (lo, hi)) => *lo == -*hi,
        SampleIn::Idx(..) => true,
    };
    sample.ins.iter().all(symmetric) && sample.ins.iter().any(|i| matches!(i, SampleIn::Num(..)))
}

impl Case {
    /// Draws the inputs of a sample.
    pub fn draw(sample: &Sample<AnyOp>, values: Values, seed: u64) -> Case {
        let mut stream = Stream::new(seed, 0);
        let mut ins = draw(&sample.ins, &mut stream);
        let numbers = ins.iter().filter(|i| matches!(i, RefIn::Num(_))).count();
        for (i, value) in ins.iter_mut().enumerate() {
            let RefIn::Num(tensor) = value else { continue };
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

    /// An upstream gradient for the op's value, uniform in `[-1, 1)`, of another stream than the inputs.
    pub fn upstream(&self, shape: Shape) -> Tensor<f32> {
        let mut stream = Stream::new(self.seed, 1);
        Tensor::from_fn(shape, |_| stream.range(-1.0, 1.0))
    }

    /// The inputs in another scalar type.
    pub fn widened<T: crate::scalar::Scalar>(&self) -> Vec<RefIn<T>> {
        let widen = |i: &RefIn<f32>| match i {
            RefIn::Num(t) => RefIn::Num(t.map(T::from_f32)),
            RefIn::Idx(t) => RefIn::Idx(t.clone()),
        };
        self.ins.iter().map(widen).collect()
    }
}

/// Dimensions around the edges of vectors, warps, tiles and chunks.
const EDGES: [usize; 21] =
    [1, 2, 3, 5, 7, 8, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 257, 1023, 1025];
/// Lengths at which one row is split between threads.
const LONG: [usize; 4] = [131_071, 131_072, 131_073, 150_001];
/// Inner sizes of products, around the chunk of k.
const INNER: [usize; 7] = [1, 7, 128, 1023, 1024, 1025, 2049];
/// Most elements of a drawn value.
const VOLUME: usize = 200_000;
/// Most multiplications of a drawn product.
const WORK: usize = 3_000_000;

fn pick(from: &[usize], stream: &mut Stream) -> usize {
    from[stream.below(from.len())]
}

/// A shape of `least` to `most` axes and at most [`VOLUME`] elements; one in three is a single long axis,
/// with or without axes of one element after it.
fn edge_dims(least: usize, most: usize, stream: &mut Stream) -> Vec<usize> {
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

fn shape(dims: &[usize]) -> Option<Shape> {
    Shape::new(dims).ok()
}

fn list(name: &str, values: Vec<usize>) -> (String, Attr) {
    (name.to_string(), Attr::List(values))
}

/// An op of the given name with a random shape around tile edges, or `None` for ops whose shapes cannot
/// be drawn.
pub fn random_case(name: &str, stream: &mut Stream) -> Option<Sample<AnyOp>> {
    let first = AnyOp::samples(name).into_iter().next()?;
    let mut is_row = false;
    elementwise::for_each(|row| is_row |= row.name() == name);
    if is_row {
        return same_shape(first, shape(&edge_dims(1, 3, stream))?);
    }
    match name {
        "softmax" | "log_softmax" | "softmax_bwd" | "log_softmax_bwd" | "mse" => {
            same_shape(first, shape(&edge_dims(1, 3, stream))?)
        }
        "sum" | "mean" => {
            let dims = edge_dims(1, 4, stream);
            let axes = (0..dims.len()).filter(|_| stream.below(2) == 0).collect();
            with_attrs(name, vec![list("axes", axes)], &[dims])
        }
        "permute" => {
            let dims = edge_dims(2, 4, stream);
            let order = stream.permutation(dims.len());
            with_attrs(name, vec![list("order", order)], &[dims])
        }
        "broadcast_to" => {
            let to = edge_dims(1, 4, stream);
            let mut from = Vec::new();
            let mut map = Vec::new();
            for &d in &to {
                match stream.below(3) {
                    0 => map.push(0),
                    narrow => {
                        from.push(if narrow == 1 { 1 } else { d });
                        map.push(from.len());
                    }
                }
            }
            with_attrs(name, vec![list("shape", to), list("map", map)], &[from])
        }
        "reshape" => {
            let dims = edge_dims(1, 3, stream);
            let mut turned = dims.clone();
            turned.rotate_left(1);
            with_attrs(name, vec![list("shape", turned)], &[dims])
        }
        "map" => {
            let to = edge_dims(1, 3, stream);
            let AnyOp::Map(map) = &first.op else { return None };
            let op = Map { program: map.program.clone(), shape: shape(&to)? };
            let mut ins = Vec::new();
            for _ in &first.ins {
                let mut from: Vec<usize> = to[stream.below(to.len() + 1)..].to_vec();
                from.iter_mut().for_each(|d| *d = if stream.below(3) == 0 { 1 } else { *d });
                ins.push(SampleIn::any(shape(&from)?));
            }
            Some(Sample { op: op.into(), ins })
        }
        "matmul" | "bmm" | "linear" => product(name, stream),
        "cross_entropy" | "cross_entropy_bwd" => {
            let mut dims = edge_dims(2, 3, stream);
            // The loss of a row with one class is zero, whose sum shows nothing.
            if let Some(classes) = dims.last_mut().filter(|d| **d == 1) {
                *classes = 2;
            }
            let (x, lead) = (shape(&dims)?, shape(&dims[..dims.len() - 1])?);
            let mut ins = vec![SampleIn::Num(x, (-4.0, 4.0)), SampleIn::Idx(lead, x.last() as u32)];
            ins.extend(first.ins.into_iter().skip(2));
            Some(Sample { op: first.op, ins })
        }
        "full" | "uniform" | "bernoulli" => {
            let mut attrs: Vec<(String, Attr)> =
                first.op.attrs().into_iter().map(|(n, a)| (n.to_string(), a)).collect();
            attrs.retain(|(n, _)| n != "shape");
            attrs.push(list("shape", edge_dims(1, 3, stream)));
            with_attrs(name, attrs, &[])
        }
        _ => None,
    }
}

/// `count` random cases of an op, and one more with a long axis where the op's shapes can have one.
pub(super) fn random_cases(name: &str, count: usize, stream: &mut Stream) -> Vec<Sample<AnyOp>> {
    let is_long = |s: &Sample<AnyOp>| {
        s.ins.iter().any(|i| i.meta().shape.dims().first().is_some_and(|d| LONG.contains(d)))
    };
    let mut cases: Vec<_> = (0..count).filter_map(|_| random_case(name, stream)).collect();
    // One shape in three is long, so so many tries miss it only where there is none.
    cases.extend((0..40).filter_map(|_| random_case(name, stream)).find(is_long));
    cases
}

/// The sample with all inputs of one shape.
fn same_shape(mut sample: Sample<AnyOp>, shape: Shape) -> Option<Sample<AnyOp>> {
    for i in &mut sample.ins {
        if let SampleIn::Num(s, _) = i {
            *s = shape;
        }
    }
    Some(sample)
}

fn with_attrs(name: &str, attrs: Vec<(String, Attr)>, ins: &[Vec<usize>]) -> Option<Sample<AnyOp>> {
    let op = AnyOp::from_name(name, &Attrs(attrs)).ok()?;
    let ins = ins.iter().map(|d| shape(d).map(SampleIn::any)).collect::<Option<_>>()?;
    Some(Sample { op, ins })
}

fn product(name: &str, stream: &mut Stream) -> Option<Sample<AnyOp>> {
    let (batch, m, n, k) = loop {
        let batch = if name == "bmm" { pick(&[1, 2, 3, 8], stream) } else { 1 };
        let (m, n) = (pick(&EDGES, stream), pick(&EDGES, stream));
        let k = if stream.below(2) == 0 { pick(&INNER, stream) } else { pick(&EDGES, stream) };
        let largest = (m * n).max(m * k).max(k * n);
        if batch * largest <= VOLUME && batch * m * n * k <= WORK {
            break (batch, m, n, k);
        }
    };
    if name == "linear" {
        return with_attrs(name, Vec::new(), &[vec![m, k], vec![n, k], vec![n]]);
    }
    let (ta, tb) = (stream.below(2) == 1, stream.below(2) == 1);
    let attrs = vec![("ta".to_string(), Attr::Bool(ta)), ("tb".to_string(), Attr::Bool(tb))];
    let matrix = |rows: usize, columns: usize, turned: bool| {
        let mut dims = if turned { vec![columns, rows] } else { vec![rows, columns] };
        if name == "bmm" {
            dims.insert(0, batch);
        }
        dims
    };
    with_attrs(name, attrs, &[matrix(m, k, ta), matrix(k, n, tb)])
}
