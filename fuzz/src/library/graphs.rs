//! Programs: texts of them, and programs made from bytes that must have one answer however they are run.

use super::choices::{Choices, bits, said};
use super::ops::{devices, samples};
use dittograd::device::{DType, Meta};
use dittograd::graph::{Graph, Pass, Passes, What};
use dittograd::io::onnx;
use dittograd::ops::{AnyOp, AnyTensor, Sample, SampleIn};
use dittograd::prelude::*;

/// Most multiplications or so of a program that is run.
const WORK: usize = 1 << 20;

/// A text is refused with its place, or it is printed as itself for good; what was read can be drawn, exported, differentiated
/// and run, eagerly and compiled to the same bits.
pub fn graph_text(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let graph = match Graph::parse(text) {
        Ok(graph) => graph,
        Err(e) => return said(&e),
    };
    let first = fixed(&graph);
    let work = graph.nodes().iter().fold(0usize, |sum, node| {
        let most = match &node.what {
            What::Op(_, ins) => ins.iter().map(|v| graph.nodes()[v.0 as usize].meta.shape.numel()).max(),
            What::Leaf(_) => None,
        };
        sum.saturating_add(node.meta.shape.numel().saturating_mul(most.unwrap_or(1).max(1)))
    });
    if graph.size() > 200 || work > WORK {
        return;
    }
    assert!(graph.to_dot().contains("digraph") && graph.to_svg().contains("<svg"));
    if let Err(e) = onnx::export(&graph, &onnx::About::default()) {
        said(&e);
    }
    for derived in [graph.vjp(), graph.jvp(), graph.after(Passes::all())] {
        match derived {
            Ok(derived) => drop(fixed(&derived)),
            Err(e) => said(&e),
        }
    }
    let before = devices()[1].memory().live;
    let (eager, compiled) = (run(&first, None), run(&first, Some(Passes::all())));
    match (eager, compiled) {
        (Ok(a), Ok(b)) => assert!(a == b, "compiled to other bits:\n{first}"),
        // Of indices, a compiled program checks what is known before it runs, and leaves out values that nobody wants.
        (a, b) => [a.err(), b.err()].iter().flatten().for_each(said),
    }
    assert_eq!(devices()[1].memory().live, before, "memory is left:\n{first}");
}

/// The text of a program, which reads back as the same program.
fn fixed(graph: &Graph) -> String {
    let text = match graph.text() {
        Ok(text) => text,
        Err(e) => panic!("a program without a text: {e}"),
    };
    let again = Graph::parse(&text).unwrap_or_else(|e| panic!("{e}:\n{text}"));
    assert_eq!(again.text().expect("a program has a text"), text);
    assert_eq!((again.hash().ok(), again.size()), (graph.hash().ok(), graph.size()));
    for (a, b) in again.nodes().iter().zip(graph.nodes()) {
        if let (What::Op(a, _), What::Op(b, _)) = (&a.what, &b.what) {
            // Numbers that are none are not equal to themselves.
            assert!(a == b || format!("{a:?}") == format!("{b:?}"), "{b:?} is read as {a:?}:\n{text}");
        }
    }
    text
}

/// All bits that a program gives with parameters and inputs of small numbers.
fn run(text: &str, passes: Option<Passes>) -> Result<Vec<Vec<u32>>> {
    let device = &devices()[1];
    let mut graph = Graph::parse(text)?;
    let mut params = Params::new(device, 1);
    let number = |i: usize| (i * 5 % 9) as f32 * 0.25 - 1.0;
    for (name, shape) in graph.params() {
        params.value(&name, &Tensor::from_fn(shape, number))?;
    }
    graph.bind(&params)?;
    let inputs: Vec<AnyTensor<f32>> = graph
        .inputs()
        .iter()
        .map(|m| match m.dtype {
            DType::F32 => AnyTensor::Num(Tensor::from_fn(m.shape, number)),
            DType::U32 => AnyTensor::Idx(Tensor::from_fn(m.shape, |i| i as u32 % 2)),
        })
        .collect();
    let values = match passes {
        None => graph.run(device, &inputs)?,
        Some(passes) => graph.compile_with(device, passes)?.call(&inputs)?,
    };
    let words = |v: &AnyTensor<f32>| match v {
        AnyTensor::Num(t) => t.data().iter().map(bits).collect(),
        AnyTensor::Idx(t) => t.data().to_vec(),
    };
    Ok(values.iter().map(words).collect())
}

/// A step of a program: an op with the shapes of one of its samples, and which values it takes.
struct Step {
    sample: &'static Sample,
    /// Of each input: which value, and whether it is brought into the sample's range.
    takes: Vec<(usize, bool)>,
}

/// Steps of a program, and the indices that it reads.
fn program(c: &mut Choices<'_>) -> (Vec<Step>, Vec<Tensor<u32>>) {
    let (mut steps, mut indices) = (Vec::new(), Vec::new());
    while !c.is_empty() && steps.len() < 8 {
        let list = &samples()[c.below(AnyOp::NAMES.len())];
        let Some(sample) = list.get(c.below(list.len().max(1))) else { continue };
        let mut takes = Vec::new();
        for input in &sample.ins {
            match input {
                SampleIn::Num(..) | SampleIn::Dominant(..) => takes.push((c.below(256), c.below(4) > 0)),
                SampleIn::Idx(shape, bound) => {
                    let start = c.below(256);
                    let below = *bound as usize;
                    indices.push(Tensor::from_fn(*shape, |i| ((i * 7 + start) % below.max(1)) as u32));
                    takes.push((indices.len() - 1, false));
                }
            }
        }
        steps.push(Step { sample, takes });
    }
    (steps, indices)
}

/// Some value with as many elements as a shape has: cut, or with others behind it.
fn fit<'s>(v: Var<'s>, shape: Shape) -> Result<Var<'s>> {
    if v.shape()? == shape {
        return Ok(v);
    }
    let (have, want) = (v.shape()?.numel(), shape.numel());
    let flat = v.reshape(&[have])?;
    let flat = if have > want { flat.narrow(0, 0, want)? } else { flat.pad_with(0, 0, want - have, 0.5)? };
    flat.reshape(shape.dims())
}

/// Runs the steps; the loss reaches all values of numbers.
fn loss<'s>(params: &[Param], steps: &[Step], inputs: &[Var<'s>]) -> Result<Var<'s>> {
    let s = inputs[0].session();
    let mut values = vec![inputs[0]];
    for p in params {
        values.push(s.param(p)?);
    }
    for step in steps {
        let mut ins = Vec::new();
        for (input, (which, into)) in step.sample.ins.iter().zip(&step.takes) {
            ins.push(match input {
                SampleIn::Num(shape, (lo, hi)) | SampleIn::Dominant(shape, (lo, hi), _) => {
                    let v = fit(values[which % values.len()], *shape)?;
                    if *into { v.sigmoid()?.scale(hi - lo)?.add_scalar(*lo)? } else { v }
                }
                SampleIn::Idx(..) => inputs[1 + which],
            });
        }
        let v = s.apply(step.sample.op.clone(), &ins)?;
        if v.meta()?.dtype == DType::F32 {
            values.push(v);
        }
    }
    let mut loss = s.scalar(0.0)?;
    for v in values {
        loss = loss.add(v.square()?.mean()?)?;
    }
    Ok(loss)
}

/// Two updates, eager or compiled: the parameters and the loss.
fn train(
    device: &Device,
    steps: &[Step],
    indices: &[Tensor<u32>],
    compiled: Option<Passes>,
) -> Result<(String, u32)> {
    let mut params = Params::new(device, 11);
    let list = [
        params.uniform("row", &[4], -1.0, 1.0)?,
        params.uniform("square", &[4, 4], -1.0, 1.0)?,
        params.uniform("scalar", &[], -1.0, 1.0)?,
    ];
    let x = Tensor::new(&[3, 4], (0..12).map(|i| (i * 5 % 9) as f32 * 0.25 - 1.0).collect())?;
    let mut last = 0.0;
    if let Some(passes) = compiled {
        let step = TrainStep::new(&params, Optimizer::adamw(0.01), |v| loss(&list, steps, v));
        let mut step = step.seeded(4).passes(passes);
        let mut batch = vec![Batch::from(&x)];
        batch.extend(indices.iter().map(Batch::from));
        for _ in 0..2 {
            step.run(&batch)?;
            last = step.loss()?;
        }
    } else {
        let s = Session::eager_seeded(device, 4);
        let mut optimizer = Optimizer::adamw(0.01);
        for _ in 0..2 {
            let mut inputs = vec![s.input(&x)?];
            for i in indices {
                inputs.push(s.indices(i)?);
            }
            let loss = loss(&list, steps, &inputs)?;
            last = loss.item()?;
            optimizer.step(&params, loss.backward()?)?;
            s.reset();
        }
    }
    Ok((params.fingerprint()?, bits(&last)))
}

/// A program of any ops of the list, each reading what others computed. Eager on one thread without SIMD and compiled on two
/// with it, with any passes, it has the same bits; an allocation that fails costs an error and no memory.
pub fn random_graph(data: &[u8]) {
    let mut c = Choices::new(data);
    let fault = c.below(4);
    let at = 1 + c.below(256) as u64;
    let chosen = c.below(65536);
    let some = Pass::ALL.into_iter().enumerate().filter(|(i, _)| chosen >> (i % 16) & 1 == 0);
    // Half of the programs have all passes, as programs of users do.
    let mut passes = match c.flag() {
        false => Passes::all(),
        true => some.fold(Passes::none(), |p, (_, pass)| p.with(pass)),
    };
    if chosen >> 15 == 1 {
        passes = passes.large(1);
    }
    let (steps, indices) = program(&mut c);
    let ops: Vec<&AnyOp> = steps.iter().map(|s| &s.sample.op).collect();
    let [plain, wide] = devices();
    let before = [plain, wide].map(|d| d.memory().live);
    if fault > 0 {
        let compiled = (fault > 1).then_some(passes);
        wide.fail_allocation(Some(at), fault == 3);
        let failed = train(wide, &steps, &indices, compiled);
        wide.fail_allocation(None, false);
        if let Err(e) = failed {
            said(&e);
        }
        assert_eq!(wide.memory().live, before[1], "a failed allocation leaves memory: {ops:?}");
    }
    let want = train(plain, &steps, &indices, None);
    let got = train(wide, &steps, &indices, Some(passes));
    match (&want, &got) {
        (Ok(want), Ok(got)) => assert_eq!(want, got, "other bits with {passes:?}: {ops:?}"),
        (Err(a), Err(b)) => [a, b].into_iter().for_each(said),
        (a, b) => panic!("eager {a:?}, compiled {b:?} with {passes:?}: {ops:?}"),
    }
    assert_eq!([plain, wide].map(|d| d.memory().live), before, "memory is left: {ops:?}");
    assert_eq!(plain.broken_guards(), 0, "written beyond the end: {ops:?}");
    let metas: Vec<Meta> = indices.iter().map(|t| Meta::u32(t.shape())).collect();
    let takes = [&[Meta::f32(Shape::new(&[3, 4]).expect("small"))], &metas[..]].concat();
    let mut params = Params::new(plain, 11);
    let list = [
        params.uniform("row", &[4], -1.0, 1.0).expect("a parameter"),
        params.uniform("square", &[4, 4], -1.0, 1.0).expect("a parameter"),
        params.uniform("scalar", &[], -1.0, 1.0).expect("a parameter"),
    ];
    if at.is_multiple_of(4)
        && let Ok(graph) = Graph::trace(plain, &takes, |_, v| Ok(vec![loss(&list, &steps, v)?]))
    {
        fixed(&graph);
        if let Ok(after) = graph.after(passes) {
            fixed(&after);
        }
    }
}
