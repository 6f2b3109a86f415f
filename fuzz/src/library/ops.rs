//! Ops and equations: the shape rule of every op of the one list is total, and where it says yes the kernels fill what it
//! said; einsum is the sum that its equation names.

use super::choices::{Choices, bits, said};
use dittograd::device::cpu::simd::Simd;
use dittograd::device::{AnyBuffer, DType, Meta};
use dittograd::graph::{Graph, What};
use dittograd::numerics::rng::Stream;
use dittograd::ops::{self, AnyOp, AnyTensor, Attr, Attrs, Sample};
use dittograd::prelude::*;
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// Most elements of a value that is computed.
const MOST: usize = 2048;
/// What new memory is filled with when checks are on.
const POISON: u32 = 0x7fa5_a5a5;

/// The samples of every op, those with small values only.
pub fn samples() -> &'static [Vec<Sample>] {
    static ALL: OnceLock<Vec<Vec<Sample>>> = OnceLock::new();
    ALL.get_or_init(|| {
        let small = |s: &Sample| {
            let metas: Vec<Meta> = s.ins.iter().map(|i| i.meta()).collect();
            metas.iter().all(|m| m.shape.numel() <= 256)
                && s.op.shape(&metas).is_ok_and(|m| m.shape.numel() <= 512)
        };
        AnyOp::NAMES.iter().map(|n| AnyOp::samples(n).into_iter().filter(small).collect()).collect()
    })
}

/// One thread without SIMD and with checks; and two threads with all there is.
pub fn devices() -> &'static [Device; 2] {
    static DEVICES: OnceLock<[Device; 2]> = OnceLock::new();
    DEVICES.get_or_init(|| {
        let plain = Device::cpu_with(1, Simd::Scalar).expect("a CPU");
        plain.set_checks(true);
        [plain, Device::cpu_with(2, Simd::best()).expect("a CPU")]
    })
}

fn other_attr(c: &mut Choices<'_>, attr: &Attr) -> Attr {
    match (c.below(8), attr) {
        (0, _) => Attr::Num(c.number()),
        (1, _) => Attr::Bool(c.flag()),
        (2, _) => Attr::List((0..c.below(12)).map(|_| c.size()).collect()),
        (_, Attr::Num(_)) => Attr::Num(c.number()),
        (_, Attr::Whole(_)) => Attr::Whole(c.size() as u64),
        (_, Attr::Bool(b)) => Attr::Bool(!b),
        (_, Attr::List(list)) => {
            let mut list = list.clone();
            match c.below(4) {
                0 if !list.is_empty() => drop(list.pop()),
                1 => list.push(c.size()),
                _ => {
                    let at = c.below(list.len().max(1));
                    if let Some(entry) = list.get_mut(at) {
                        *entry = c.size();
                    }
                }
            }
            Attr::List(list)
        }
    }
}

fn other_shape(c: &mut Choices<'_>, shape: Shape) -> Option<Shape> {
    let mut dims = shape.dims().to_vec();
    let at = c.below(dims.len().max(1));
    match c.below(5) {
        0 => return c.shape(10).ok(),
        1 => dims.insert(at.min(dims.len()), c.below(4)),
        2 if !dims.is_empty() => drop(dims.remove(at)),
        _ => *dims.get_mut(at)? = c.size(),
    }
    Shape::new(&dims).ok()
}

/// An op of the list with attributes and shapes of any kind, near those of its samples; a single byte is an op with all of its
/// samples as they are.
pub fn shape_rules(data: &[u8]) {
    let mut c = Choices::new(data);
    let which = c.below(AnyOp::NAMES.len());
    let (name, list) = (AnyOp::NAMES[which], &samples()[which]);
    if data.len() == 1 {
        for sample in list {
            let metas: Vec<Meta> = sample.ins.iter().map(|i| i.meta()).collect();
            fits(&sample.op, &metas, 0);
        }
        return;
    }
    let Some(sample) = list.get(c.below(list.len().max(1))) else { return };
    let mut attrs: Vec<(String, Attr)> =
        sample.op.attrs().into_iter().map(|(n, a)| (n.to_string(), a)).collect();
    let changes = c.below(3);
    for _ in 0..changes.min(attrs.len()) {
        let at = c.below(attrs.len());
        attrs[at].1 = other_attr(&mut c, &attrs[at].1);
    }
    let op = match AnyOp::from_name(name, &Attrs(attrs)) {
        Ok(op) => op,
        Err(e) => {
            said(&e);
            sample.op.clone()
        }
    };
    let mut metas: Vec<Meta> = sample.ins.iter().map(|i| i.meta()).collect();
    for _ in 0..c.below(3) {
        let at = c.below(metas.len().max(1));
        match c.below(8) {
            0 if at < metas.len() => drop(metas.remove(at)),
            1 => metas.push(Meta::f32(c.shape(4).unwrap_or_default())),
            2 => {
                let Some(meta) = metas.get_mut(at) else { continue };
                meta.dtype = if meta.dtype == DType::F32 { DType::U32 } else { DType::F32 };
            }
            3 => {
                // The same change to all, which more ops accept.
                let was = metas.first().map(|m| m.shape).unwrap_or_default();
                let Some(shape) = other_shape(&mut c, was) else { continue };
                metas.iter_mut().filter(|m| m.shape == was).for_each(|m| m.shape = shape);
            }
            _ => {
                let Some(meta) = metas.get_mut(at) else { continue };
                meta.shape = other_shape(&mut c, meta.shape).unwrap_or(meta.shape);
            }
        }
    }
    fits(&op, &metas, c.byte());
}

/// The shape rule answers, and where it says yes the op can be run.
fn fits(op: &AnyOp, metas: &[Meta], seed: u8) {
    let meta = match op.shape(metas) {
        Ok(meta) => meta,
        Err(e) => return said(&e),
    };
    assert_eq!(op.shape(metas).ok(), Some(meta), "one question, two answers: {op:?}");
    let most = metas.iter().map(|m| m.shape.numel()).max().unwrap_or(0);
    if most > MOST || meta.shape.numel() > MOST {
        return;
    }
    let text = read_back(op, metas);
    run(op, metas, meta, seed, &text);
}

/// The text of a program of this op alone, which reads back as the same op.
fn read_back(op: &AnyOp, metas: &[Meta]) -> String {
    let graph = Graph::trace(&devices()[0], metas, |s, v| Ok(vec![s.apply(op.clone(), v)?]));
    let graph = graph.expect("an op whose shapes fit is recorded");
    let text = graph.text().expect("a program has a text");
    let again = Graph::parse(&text).unwrap_or_else(|e| panic!("{e}:\n{text}"));
    assert_eq!(again.text().expect("a program has a text"), text);
    let parsed = again.nodes().iter().find_map(|n| match &n.what {
        What::Op(op, _) => Some(op.clone()),
        What::Leaf(_) => None,
    });
    // Attributes that are no numbers are not equal to themselves.
    assert!(
        parsed.as_ref() == Some(op) || format!("{parsed:?}") == format!("{:?}", Some(op)),
        "{op:?}:\n{text}"
    );
    text
}

/// The bits of a value, and those of the gradient of each input that has one.
type Bits = (Vec<u32>, Vec<Option<Vec<u32>>>);

/// Runs the op and its gradient on two CPUs.
fn run(op: &AnyOp, metas: &[Meta], meta: Meta, seed: u8, text: &str) {
    let [plain, wide] = devices();
    if [plain, wide].iter().any(|d| op.workspace(metas, d) > 1 << 20) {
        return;
    }
    let mut stream = Stream::new(u64::from(seed), 0);
    let limit = op.index_limit(metas);
    let mut odd = |x: f32| match (seed % 8, stream.below(16)) {
        (7, 0) => f32::NAN,
        (7, 1) => f32::INFINITY,
        (7, 2) => -0.0,
        (6, 0) => 1e-42,
        (6, 1) => 3e38,
        _ => x,
    };
    let mut values = Stream::new(u64::from(seed), 1);
    let ins: Vec<AnyTensor<f32>> = metas
        .iter()
        .enumerate()
        .map(|(i, m)| match m.dtype {
            DType::F32 => AnyTensor::Num(Tensor::from_fn(m.shape, |_| odd(values.range(-2.0, 2.0)))),
            DType::U32 => {
                let below = limit.filter(|l| l.0 == i && seed != 5).map_or(7, |l| l.1.clamp(1, 1 << 20));
                AnyTensor::Idx(Tensor::from_fn(m.shape, |_| values.below(below) as u32))
            }
        })
        .collect();
    let before = [plain, wide].map(|d| d.memory().live);
    let on = |d: &Device| -> Result<Bits> {
        let up = |i: &AnyTensor<f32>| match i {
            AnyTensor::Num(t) => AnyBuffer::upload(d, t),
            AnyTensor::Idx(t) => AnyBuffer::upload_indices(d, t),
        };
        let buffers = ins.iter().map(up).collect::<Result<Vec<_>>>()?;
        let value = ops::apply(d, op, &buffers.iter().collect::<Vec<_>>())?;
        assert_eq!(value.meta(), meta, "{text}");
        let words: Vec<u32> = match meta.dtype {
            DType::F32 => value.to_tensor::<f32>()?.data().iter().map(|x| x.to_bits()).collect(),
            DType::U32 => value.to_indices()?.into_data(),
        };
        assert_eq!(words.len(), meta.shape.numel());
        assert!(!words.contains(&POISON), "an element was not written:\n{text}");
        if meta.dtype == DType::U32 {
            assert!(words.iter().all(|w| *w < value.bound()), "an index beyond its bound:\n{text}");
            return Ok((words, Vec::new()));
        }
        let words = words.iter().map(|w| bits(&f32::from_bits(*w))).collect();
        let s = Session::eager(d);
        let mut leaves = Vec::new();
        for i in &ins {
            leaves.push(match i {
                AnyTensor::Num(t) => s.variable(t)?,
                AnyTensor::Idx(t) => s.indices(t)?,
            });
        }
        let y = s.apply(op.clone(), &leaves)?;
        let ones = Tensor::full(meta.shape, 1.0f32);
        let grads = match y.backward_from(&ones) {
            Ok(grads) => grads,
            Err(e) => {
                said(&e);
                return Ok((words, Vec::new()));
            }
        };
        let mut all = Vec::new();
        for (leaf, meta) in leaves.iter().zip(metas) {
            all.push(match grads.var(*leaf) {
                None => None,
                Some(g) => {
                    assert_eq!(g.shape(), meta.shape, "the gradient has another shape:\n{text}");
                    Some(g.to_tensor::<f32>()?.data().iter().map(bits).collect())
                }
            });
        }
        Ok((words, all))
    };
    let (a, b) = (on(plain), on(wide));
    match (&a, &b) {
        (Ok(a), Ok(b)) => assert!(a == b, "other bits on another CPU:\n{text}"),
        (Err(a), Err(_)) => said(a),
        _ => panic!("one CPU refuses what the other runs: {a:?} {b:?}\n{text}"),
    }
    assert_eq!([plain, wide].map(|d| d.memory().live), before, "memory is left:\n{text}");
    assert_eq!(plain.broken_guards(), 0, "written beyond the end:\n{text}");
    // The definition, where it does not take long.
    let work = metas.iter().map(|m| m.shape.numel()).max().unwrap_or(1).saturating_mul(meta.shape.numel());
    if work <= 1 << 14 && a.is_ok() && meta.dtype == DType::F32 {
        let exact: Vec<AnyTensor<f64>> = ins
            .iter()
            .map(|i| match i {
                AnyTensor::Num(t) => AnyTensor::Num(t.map(f64::from)),
                AnyTensor::Idx(t) => AnyTensor::Idx(t.clone()),
            })
            .collect();
        match op.reference(&exact) {
            Ok(value) => assert_eq!(value.shape(), meta.shape, "the definition has another shape:\n{text}"),
            Err(e) => said(&e),
        }
    }
}

/// Sizes of the letters, then an equation; operands have the shapes that it names, but for a change now and then.
pub fn einsum(data: &[u8]) {
    const SIGNS: &[u8; 16] = b"abcdabcde,->... ";
    let mut c = Choices::new(data);
    let sizes: Vec<usize> = (0..5).map(|_| c.below(4)).collect();
    let (plain, change) = (c.flag(), c.below(8) == 7);
    let mut equation = Vec::new();
    while !c.is_empty() && equation.len() < 60 {
        let byte = c.byte();
        equation.push(if plain { byte } else { SIGNS[usize::from(byte % 16)] });
    }
    let equation = String::from_utf8_lossy(&equation).into_owned();
    let left = equation.split("->").next().unwrap_or_default();
    let size = |letter: char| sizes[(letter as usize) % sizes.len()];
    let terms: Vec<&str> = left.split(',').take(5).collect();
    let [_, device] = devices();
    let s = Session::eager(device);
    let (mut tensors, mut count) = (Vec::new(), 1usize);
    for (i, term) in terms.iter().enumerate() {
        let mut dims = Vec::new();
        if term.contains("...") {
            dims.extend([2].repeat(i % 3));
        }
        dims.extend(term.chars().filter(char::is_ascii_alphabetic).map(size));
        if change && i == 0 {
            dims.push(3);
        }
        dims.truncate(8);
        count = count.saturating_mul(dims.iter().product::<usize>().max(1));
        let Ok(shape) = Shape::new(&dims) else { return };
        tensors.push(Tensor::from_fn(shape, |k| ((k * 5 + i * 3) % 7) as f32 - 3.0));
    }
    if count > 1 << 14 {
        return;
    }
    let values = tensors.iter().map(|t| s.input(t)).collect::<Result<Vec<_>>>().expect("inputs");
    let got = match s.einsum(&equation, &values) {
        Ok(value) => value.value::<f32>().expect("a value"),
        Err(e) => return said(&e),
    };
    if let Some(want) = sum_of_products(&equation, &tensors) {
        assert_eq!(got.data(), want, "{equation}");
    }
}

/// The definition of einsum for equations without an ellipsis: all places of all letters, one after the other. Whole numbers,
/// so that every order of sums gives the same.
fn sum_of_products(equation: &str, tensors: &[Tensor<f32>]) -> Option<Vec<f32>> {
    let equation: String = equation.chars().filter(|c| *c != ' ').collect();
    if equation.contains('.') {
        return None;
    }
    let (left, right) = match equation.split_once("->") {
        Some((left, right)) => (left, right.to_string()),
        None => {
            let mut once: Vec<char> =
                equation.chars().filter(|c| *c != ',' && equation.matches(*c).count() == 1).collect();
            once.sort_unstable();
            (&equation[..], once.into_iter().collect())
        }
    };
    let mut sizes: BTreeMap<char, usize> = BTreeMap::new();
    for (term, tensor) in left.split(',').zip(tensors) {
        sizes.extend(term.chars().zip(tensor.shape().dims().iter().copied()));
    }
    let letters: Vec<char> = sizes.keys().copied().collect();
    let all: usize = sizes.values().product();
    if all > 1 << 16 {
        return None;
    }
    let place = |term: &str, at: &BTreeMap<char, usize>| {
        term.chars().fold(0, |place, letter| place * sizes[&letter] + at[&letter])
    };
    let mut out = vec![0.0f32; right.chars().map(|letter| sizes[&letter]).product()];
    for number in 0..all {
        let mut rest = number;
        let at: BTreeMap<char, usize> = letters
            .iter()
            .map(|letter| {
                let here = rest % sizes[letter];
                rest /= sizes[letter];
                (*letter, here)
            })
            .collect();
        let product: f32 = left.split(',').zip(tensors).map(|(term, t)| t.data()[place(term, &at)]).product();
        out[place(&right, &at)] += product;
    }
    // Products of up to five numbers of up to 3, summed fewer than 2^16 times.
    out.iter().all(|x| x.abs() < 16_777_216.0).then_some(out)
}
