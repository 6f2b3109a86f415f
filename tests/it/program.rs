//! Programs as data: text and back, hashes, drawings, functions, derivatives.

use crate::support::{device, f, t};
use dittograd::device::Meta;
use dittograd::error::ErrorKind;
use dittograd::graph::{Graph, Pass, Passes, What};
use dittograd::numerics::rng::Stream;
use dittograd::ops::pointwise::expression::Pointwise;
use dittograd::ops::pointwise::map::Map;
use dittograd::ops::{AnyOp, AnyTensor, SampleIn};
use dittograd::prelude::*;
use dittograd::scalar::Ratio;
use dittograd::session::Nats;

/// What was parsed prints as it was, and means the same.
fn roundtrip(graph: &Graph) -> Graph {
    let text = graph.text().unwrap();
    let parsed = Graph::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert_eq!(parsed.text().unwrap(), text);
    assert_eq!((&parsed, parsed.hash().unwrap()), (graph, graph.hash().unwrap()));
    for (a, b) in graph.nodes().iter().zip(parsed.nodes()) {
        assert_eq!((a.meta, a.requires_grad), (b.meta, b.requires_grad));
        if let (What::Op(a, x), What::Op(b, y)) = (&a.what, &b.what) {
            assert_eq!((format!("{a:?}"), x), (format!("{b:?}"), y));
        }
    }
    parsed
}

#[test]
fn every_op_survives_as_text() {
    let d = device();
    for name in AnyOp::NAMES {
        let mut stream = Stream::new(5, 5);
        let drawn = (0..20).filter_map(|_| AnyOp::random(name, &mut stream));
        for sample in AnyOp::samples(name).into_iter().chain(drawn) {
            let metas: Vec<Meta> = sample.ins.iter().map(SampleIn::meta).collect();
            roundtrip(&Graph::trace(&d, &metas, |s, x| Ok(vec![s.apply(sample.op, x)?])).unwrap());
        }
    }
}

/// Two layers with dropout, and the gradients of their parameters.
fn step(d: &Device, seed: u64) -> (Params, Graph) {
    let mut params = Params::new(d, 3);
    let net = Mlp::new(&mut params, &[4, 8, 3]).unwrap();
    let inputs = [f(&[5, 4]), Meta::u32(Shape::new(&[5]).unwrap())];
    let list: Vec<Param> = params.iter().cloned().collect();
    let graph = Graph::trace_seeded(d, seed, &inputs, |s, x| {
        let h = net.forward(x[0].dropout(0.25)?)?;
        let loss = h.add(s.constant(&t(&[3], &[0.1, -0.0, 1e-40]))?)?.cross_entropy(x[1])?;
        let leaves = list.iter().map(|p| s.param(p)).collect::<Result<Vec<_>>>()?;
        let mut all = vec![loss, h.argmax(&[1], false)?];
        all.extend(s.grad(loss, &leaves)?);
        Ok(all)
    })
    .unwrap();
    (params, graph)
}

fn batch() -> [AnyTensor<f32>; 2] {
    let x = Tensor::from_fn(Shape::new(&[5, 4]).unwrap(), |i| (i as f32 * 0.7).sin());
    [x.into(), Tensor::new(&[5], vec![0u32, 2, 1, 1, 0]).unwrap().into()]
}

#[test]
fn a_training_step_is_the_same_parsed_compiled_and_eager() {
    let d = device();
    let (params, graph) = step(&d, 9);
    let mut parsed = roundtrip(&graph);
    assert_eq!(parsed.params(), graph.params());
    let e = parsed.compile(&d).unwrap_err().to_string();
    assert!(e.contains("bind") && e.contains("0.weight"), "{e}");
    assert!(parsed.run(&d, &batch()).is_err());
    parsed.bind(&params).unwrap();
    let (mut first, mut second) = (graph.compile(&d).unwrap(), parsed.compile(&d).unwrap());
    assert!(first.plan().unwrap().instructions < graph.size());
    let s = Session::eager_seeded(&d, 9);
    for _ in 0..3 {
        // Run by run, dropout draws anew.
        let vars =
            [s.input(batch()[0].num().unwrap()).unwrap(), s.labels(batch()[1].idx().unwrap()).unwrap()];
        let eager = s.replay(&parsed, &vars).unwrap();
        let (a, b) = (first.call(&batch()).unwrap(), second.call(&batch()).unwrap());
        assert_eq!(a, b);
        for (compiled, eager) in a.iter().zip(eager) {
            match compiled {
                AnyTensor::Num(x) => assert_eq!(*x, eager.value().unwrap()),
                AnyTensor::Idx(x) => assert_eq!(*x, eager.indices().unwrap()),
            }
        }
    }
    assert_eq!(s.random_calls(), 3);
    let again = graph.run(&d, &batch()).unwrap();
    first.set_random_calls(0);
    assert_eq!(first.call(&batch()).unwrap(), again);
    assert_ne!(second.call(&batch()).unwrap(), again);
    // Parameters are read where they are.
    let p = params.iter().next().unwrap();
    p.set(&Tensor::full(p.shape(), 0.5f32)).unwrap();
    first.set_random_calls(0);
    let want = graph.run(&d, &batch()).unwrap();
    assert_eq!(first.call(&batch()).unwrap(), want);
    assert_eq!(graph.compile_with(&d, Passes::none()).unwrap().call(&batch()).unwrap(), want);
}

#[test]
fn a_program_replayed_in_a_trace_is_itself() {
    let d = device();
    let (_, graph) = step(&d, 9);
    let again = Graph::trace(&d, &graph.inputs(), |s, x| s.replay(&graph, x)).unwrap();
    assert_eq!(again, graph);
    // After another random call its own come later.
    let after = Graph::trace_seeded(&d, 9, &graph.inputs(), |s, x| {
        s.uniform(&[2])?;
        s.replay(&graph, x)
    })
    .unwrap();
    assert_eq!((after.random_calls(), graph.random_calls()), (2, 1));
    let mut first = graph.compile(&d).unwrap();
    first.set_random_calls(1);
    assert_eq!(first.call(&batch()).unwrap(), after.run(&d, &batch()).unwrap());
}

#[test]
fn fused_programs_survive_as_text() {
    let d = device();
    let mut params = Params::new(&d, 3);
    let net = Mlp::new(&mut params, &[4, 8, 3]).unwrap();
    let mut step = TrainStep::new(&params, Optimizer::sgd(0.1), |v| {
        let y = net.forward(v[0].tracked()?.tanh()?.dropout(0.5)?)?;
        y.square()?.scale(0.3)?.exp()?.mean()?.add(v[0].square()?.sum()?.log()?)
    });
    step.run(&[batch()[0].num().unwrap().into()]).unwrap();
    let text = format!("graph 1\n{}", step.text().unwrap());
    for part in ["map", "fused", "of linear", "epilogue", "of sum", "prologue", "k0 = "] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    assert_eq!(Graph::parse(&text).unwrap().text().unwrap(), text);
}

#[test]
fn programs_follow_softmax_and_norms() {
    let d = device();
    let inputs = [Meta::f32(Shape::new(&[5, 12]).unwrap()), Meta::f32(Shape::new(&[12]).unwrap())];
    let graph = Graph::trace(&d, &inputs, |_, v| {
        let weights = v[0].softmax()?.mul(v[0])?.scale(1.25)?;
        let normed = v[0].layer_norm(1, Some(v[1]), None, 1e-5)?.add(weights)?.tanh()?;
        let squares = v[0].rms_norm(1, None, 1e-6)?.mul(v[1])?;
        Ok(vec![weights, normed, squares])
    })
    .unwrap();
    let values = |n: usize, by: f32| (0..n).map(|i| (i as f32 * by).sin()).collect::<Vec<_>>();
    let ins = [AnyTensor::Num(t(&[5, 12], &values(60, 0.7))), AnyTensor::Num(t(&[12], &values(12, 1.3)))];
    let mut compiled = graph.compile(&d).unwrap();
    let size = |f: &dittograd::graph::Function| f.plan().unwrap().instructions;
    assert_eq!(size(&compiled), 3, "each of the three is one kernel with what follows it");
    let apart = graph.compile_with(&d, Passes::all().without(Pass::Epilogues)).unwrap();
    assert_eq!(size(&apart), 5, "the programs of the first two are one kernel of two results");
    let want = graph.run(&d, &ins).unwrap();
    assert_eq!(compiled.call(&ins).unwrap(), want);
    assert_eq!(graph.compile_with(&d, Passes::none()).unwrap().call(&ins).unwrap(), want);
}

#[test]
fn passes_have_names_and_a_default() {
    let names: Vec<&str> = Pass::ALL.into_iter().map(Pass::name).collect();
    let want = [
        "dead_code",
        "batch_norm",
        "layout",
        "constants",
        "common",
        "elementwise",
        "results",
        "epilogues",
        "reductions",
        "prologues",
        "copies",
        "checkpoints",
        "peak",
        "recompute",
    ];
    assert_eq!(names, want);
    assert_eq!(Passes::default(), Passes::all());
}

/// Kernels take in what they can read, and the rest is made before: the numbers are the same.
#[test]
fn fused_kernels_read_what_the_program_says() {
    let d = device();
    let check = |dims: &[&[usize]], f: &dyn for<'s> Fn(&[Var<'s>]) -> Result<Vec<Var<'s>>>| {
        let metas: Vec<Meta> = dims.iter().map(|d| self::f(d)).collect();
        let graph = Graph::trace(&d, &metas, |_, x| f(x)).unwrap();
        let shapes = metas.iter().map(|m| m.shape);
        let ins: Vec<AnyTensor<f32>> =
            shapes.map(|s| Tensor::from_fn(s, |i| (i as f32 * 0.7).sin()).into()).collect();
        let want = graph.run(&d, &ins).unwrap();
        assert_eq!(graph.compile(&d).unwrap().call(&ins).unwrap(), want, "{dims:?}");
    };
    // Another shape between: what repeats along the middle is neither a row nor a column of it.
    for (dims, to) in [([[4, 2, 4], [1, 2, 4]], [8, 4]), ([[2, 3, 4], [2, 1, 1]], [6, 4])] {
        check(&[&dims[0], &dims[1]], &|x| Ok(vec![x[0].mul(x[1])?.reshape(&to)?.softmax()?]));
    }
    // A kernel of three inputs, two of which are made by one other.
    check(&[&[4, 4], &[4, 4]], &|x| {
        let (a, c) = (x[0].exp()?, x[1].tanh()?);
        let b = a.mul(x[0])?;
        let op = Map::new(Pointwise::trace(3, |v| vec![v[0] * v[1] + v[2]]), a.shape()?);
        Ok(vec![a.session().apply(op, &[a, b, c])?, a, b])
    });
}

#[test]
fn programs_lead_into_softmax_and_norms() {
    let d = device();
    let shapes: [&[usize]; 4] = [&[2, 3, 4, 4], &[4, 4], &[24, 4], &[2, 3, 4, 1]];
    let inputs = shapes.map(f);
    let graph = Graph::trace(&d, &inputs, |_, v| {
        // Scale, mask and dropout-like factor around a softmax: one kernel.
        let weights = v[0].scale(0.125)?.add(v[1])?.softmax()?.mul(v[0])?;
        // Another shape between the sum and the norm, which stays a row of four.
        let normed = v[0].add(v[3])?.tanh()?.reshape(&[24, 4])?.layer_norm(1, None, None, 1e-5)?;
        let squares = v[2].square()?.sub(v[2])?.rms_norm(1, None, 1e-6)?;
        // This one is wanted too, so it is made.
        let wanted = v[2].exp()?;
        Ok(vec![weights, normed, squares, wanted.log_softmax()?, wanted])
    })
    .unwrap();
    let ins: Vec<AnyTensor<f32>> = shapes
        .iter()
        .map(|d| Tensor::from_fn(Shape::new(d).unwrap(), |i| (i as f32 * 0.7).sin()).into())
        .collect();
    let text = |passes| {
        let function = graph.compile_with(&d, passes).unwrap();
        format!("graph 1\n{}", function.text().unwrap())
    };
    let all = text(Passes::all());
    assert_eq!(all.matches(" prologue ").count(), 3, "{all}");
    let both = |line: &str| line.contains(" prologue slot=0 inputs=2 ") && line.contains(" epilogue ");
    assert!(all.lines().any(both), "what follows is in the same kernel:\n{all}");
    assert_eq!(Graph::parse(&all).unwrap().text().unwrap(), all);
    assert!(!text(Passes::all().without(Pass::Prologues)).contains(" prologue "));
    let want = graph.run(&d, &ins).unwrap();
    for passes in [Passes::all(), Passes::none(), Passes::none().with(Pass::Prologues)] {
        assert_eq!(graph.compile_with(&d, passes).unwrap().call(&ins).unwrap(), want);
    }
}

#[test]
fn functions_pass_values_on_without_the_host() {
    let d = device();
    let inputs = [f(&[2, 3]), Meta::u32(Shape::new(&[2]).unwrap())];
    let graph = Graph::trace_seeded(&d, 5, &inputs, |s, v| {
        let picked = v[0].index_select(0, v[1])?.add(s.uniform(&[2, 3])?)?;
        Ok(vec![picked, v[0], v[1]])
    })
    .unwrap();
    let (x, rows) = (t(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), Tensor::new(&[2], vec![1u32, 0]).unwrap());
    for d in [d, Device::host::<f32>()] {
        let (mut by_host, mut on_device) = (graph.compile(&d).unwrap(), graph.compile(&d).unwrap());
        let mut host: Vec<AnyTensor<f32>> = vec![x.clone().into(), AnyTensor::Idx(rows.clone())];
        let mut values =
            vec![AnyBuffer::upload(&d, &x).unwrap(), AnyBuffer::upload_indices(&d, &rows).unwrap()];
        for _ in 0..3 {
            let got = by_host.call(&host).unwrap();
            values = on_device.call_on(&[&values[0], &values[1]]).unwrap();
            host[0] = got[0].clone();
            for (want, value) in got.iter().zip(&values) {
                match want {
                    AnyTensor::Num(want) => assert_eq!(value.to_tensor::<f32>().unwrap(), *want),
                    AnyTensor::Idx(want) => assert_eq!(value.to_indices().unwrap(), *want),
                }
            }
            values.swap(1, 2);
        }
        let far = AnyBuffer::upload_indices(&d, &Tensor::new(&[2], vec![0u32, 2]).unwrap()).unwrap();
        let e = on_device.call_on(&[&values[0], &far]).unwrap_err().to_string();
        assert!(e.contains("index_select") && e.contains('2'), "{e}");
        assert!(on_device.call_on(&[&values[0]]).is_err() && on_device.call_on(&[&far, &values[0]]).is_err());
    }
}

#[test]
fn all_leaves_survive_as_text() {
    let d = device();
    let mut params = Params::new(&d, 0);
    let odd = params.value("an \"odd\" \\ name\n€", &t(&[2], &[1.0, 2.0])).unwrap();
    let special = [f32::INFINITY, -0.0, f32::from_bits(0x7fc0_0001), f32::from_bits(0xffa0_0000), 1.5e-45];
    let (few, many) = (t(&[5], &special), Tensor::from_fn(Shape::new(&[40]).unwrap(), |i| i as f32 / 3.0));
    let nats = Nats::new(&[1, 4]);
    let graph = Graph::trace_seeded(&d, u64::MAX - 1, &[f(&[])], |s, x| {
        let x = x[0].tracked()?;
        let picked = s.constant(&many)?.index_select(0, s.nats(&nats)?)?.add(s.param(&odd)?)?;
        let fixed = s.buffer(&AnyBuffer::upload_indices(&d, &Tensor::new(&[2], vec![7u32, 8])?)?)?;
        let more = s.constant(&many)?.index_select(0, fixed)?.mul(x)?.scale(0.1)?.add_scalar(1e300)?;
        Ok(vec![picked, s.constant(&few)?, more, s.uniform(&[3])?])
    })
    .unwrap();
    let mut parsed = roundtrip(&graph);
    parsed.bind(&params).unwrap();
    let one: AnyTensor<f32> = Tensor::scalar(2.0f32).into();
    let bits = |g: &Graph| {
        let all = g.run(&d, std::slice::from_ref(&one)).unwrap();
        all.iter().map(|v| v.num().unwrap().map(f32::to_bits)).collect::<Vec<_>>()
    };
    assert_eq!(bits(&graph), bits(&parsed));
    parsed.nats()[0].set(0, 9).unwrap();
    assert_ne!(bits(&graph), bits(&parsed));
    let changed = graph.text().unwrap().replace("1e-45", "3e-45");
    assert_ne!(Graph::parse(&changed).unwrap(), graph);
    assert!(graph.to_string().contains("constant …") && Graph::parse(&format!("graph 1\n{graph}")).is_err());
}

#[test]
fn what_is_wrong_with_a_text_is_said_with_its_place() {
    let text = "graph 1\n%0: f32[2, 3] = input\n%1: f32[3] grad = param \"w\"\n%2: f32[2, 3] = add %0 %1\nreturn %2\n";
    Graph::parse(text).unwrap();
    Graph::parse(&text.replace("return", "# said\n\n  return")).unwrap();
    let cases = [
        ("graph 1", "graph 2", 1, 7, "first line"),
        ("%1:", "%2:", 3, 1, "value %1"),
        ("%0 %1", "%0 %2", 4, 24, "not there yet"),
        ("%0 %1", "%0", 4, 17, "2 inputs"),
        ("add", "adds", 4, 17, "not an op"),
        ("%0 %1", "%0 %1 alpha=1", 4, 17, "alpha"),
        ("%0 %1", "%0 %1 alpha", 4, 32, "`=`"),
        ("%0 %1", "%0 %1 a=[1", 4, 31, "`,` or `]`"),
        ("f32[2, 3] = add", "f32[2, 4] = add", 4, 1, "gives f32[2, 3]"),
        ("f32[3] grad", "f32[4] grad", 4, 17, "broadcast"),
        ("f32[3] grad", "u32[3] grad", 3, 1, "gives f32[3]"),
        ("f32[3] grad = param \"w\"", "u32[3] grad = input", 3, 12, "no gradient"),
        ("param \"w\"", "param \"w", 3, 27, "ends the name"),
        ("param \"w\"", "param \"\\x\"", 3, 26, "escapes"),
        ("f32[2, 3] = input", "f32[2, 9999999999999999] = input", 4, 17, "broadcast"),
        ("f32[2, 3] = input", "f32[4294967296, 4294967296] = input", 2, 8, "does not fit"),
        ("f32[2, 3] = input", "f32[2, 99999999999999999999] = input", 2, 12, "whole number"),
        ("f32[2, 3] = input", "f32[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1] = input", 2, 8, "axes"),
        ("f32[2, 3] = input", "f64[2, 3] = input", 2, 5, "type"),
        ("param \"w\"", "constant [1.0, 2.0]", 3, 28, "3 elements"),
        ("param \"w\"", "constant [1.0, 2.0, x]", 3, 39, "a number"),
        ("param \"w\"", "constant 0x12345", 3, 28, "eight"),
        ("param \"w\"", "constant …", 3, 28, "left out"),
        ("add %0 %1", "map %0 %1 shape=[2, 3] { t0 = Add x0 x2; return t0 }", 4, 54, "x2"),
        ("add %0 %1", "map %0 %1 shape=[2, 3] { t1 = Add x0 x1; return t0 }", 4, 42, "out of order"),
        ("add %0 %1", "map %0 %1 shape=[2, 3] { t0 = Plus x0 x1; return t0 }", 4, 47, "instruction"),
        ("add %0 %1", "map %0 %1 shape=[2, 3] { t0 = Add x0 x1; return t1 }", 4, 65, "earlier step"),
        (
            "add %0 %1",
            "fused %0 %1 of add epilogue inputs=33 shape=[2, 3] { return x0 }",
            4,
            52,
            "epilogue's",
        ),
        (
            "add %0 %1",
            "fused %0 %1 of add epilogue inputs=0 shape=[2, 3] { return x0 }",
            4,
            17,
            "cannot follow add",
        ),
        (
            "add %0 %1",
            "fused %0 of exp prologue slot=0 inputs=33 shape=[2, 3] { return x0 }",
            4,
            56,
            "prologue's",
        ),
        (
            "add %0 %1",
            "fused %0 of exp prologue slot=0 inputs=1 shape=[2, 3] { return x0 }",
            4,
            17,
            "cannot compute input 0 of exp",
        ),
        ("add %0 %1", "fused %0 %1 of add", 4, 17, "no expression"),
        ("add %0 %1", "fused %0 of fused of exp", 4, 38, "`=`"),
        ("return %2", "return %3", 5, 8, "not there yet"),
        ("return %2\n", "return %2\n%3: f32[] = input", 6, 1, "follow"),
        ("return %2", "what", 5, 1, "found `what`"),
    ];
    let mut wrong = Vec::new();
    for (from, to, line, column, why) in cases {
        let broken = text.replace(from, to);
        let e = Graph::parse(&broken).expect_err(&broken);
        let ErrorKind::Parse { line: l, column: c, .. } = e.kind() else { panic!("{e}") };
        if (*l, *c) != (line, column) || !e.to_string().contains(why) {
            wrong.push(format!("{to}: {e}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// What was accepted prints as itself.
fn answered(text: &str) -> bool {
    let Ok(graph) = Graph::parse(text) else { return false };
    let printed = graph.text().unwrap();
    assert_eq!(Graph::parse(&printed).unwrap().text().unwrap(), printed, "{text}");
    true
}

/// Whatever a text says, parsing answers: every number of every op with sizes that nothing has, and texts cut and
/// mixed at random.
#[test]
fn broken_texts_are_answered() {
    let d = device();
    let mut texts = vec![step(&d, 1).1.text().unwrap()];
    for name in AnyOp::NAMES {
        for sample in AnyOp::samples(name).into_iter().rev().take(2) {
            let metas: Vec<Meta> = sample.ins.iter().map(SampleIn::meta).collect();
            let graph = Graph::trace(&d, &metas, |s, x| Ok(vec![s.apply(sample.op, x)?])).unwrap();
            texts.push(graph.text().unwrap());
        }
    }
    let sizes =
        ["0", "1", "3", "4294967295", "9007199254740991", "9223372036854775807", "18446744073709551615"];
    let mut accepted = 0;
    for text in &texts[1..] {
        let digit = |i: usize| text.as_bytes().get(i).is_some_and(u8::is_ascii_digit);
        let starts = (1..text.len()).filter(|&i| digit(i) && !digit(i - 1));
        for start in starts {
            let end = (start..).find(|&i| !digit(i)).unwrap();
            for size in sizes {
                accepted += usize::from(answered(&format!("{}{size}{}", &text[..start], &text[end..])));
            }
        }
    }
    assert!(accepted > texts.len(), "{accepted}");
    let words =
        ["%", "[", "]", "-1", "nan", "f32", "u32", "grad", " ", "\n", "=", "1e999", "0x", "é", "", "\"", "{"];
    let mut stream = Stream::new(77, 0);
    for round in 0..2000 {
        let mut text = texts[round % texts.len()].clone();
        for _ in 0..1 + stream.below(3) {
            let places: Vec<usize> = text.char_indices().map(|(i, _)| i).collect();
            let mut place = || places[stream.below(places.len())];
            let (a, b) = (place(), place());
            match stream.below(4) {
                0 => text.truncate(a.max(9)),
                1 => text.insert_str(a, words[stream.below(words.len())]),
                _ => text.replace_range(
                    a..a + text[a..].chars().next().map_or(0, char::len_utf8),
                    words[stream.below(words.len())],
                ),
            }
            if text.len() > b && text.is_char_boundary(b) && stream.below(4) == 0 {
                text = format!("{}{}", &text[..b], &texts[stream.below(texts.len())]);
            }
        }
        answered(&text);
    }
    // Indices that are joined with themselves again and again.
    let mut joined = "graph 1\n%0: f32[9] = input\n%1: u32[0] = input\n".to_string();
    (2..70).for_each(|i| joined.push_str(&format!("%{i}: u32[0] = concat %{0} %{0} axis=0\n", i - 1)));
    joined.push_str("%70: f32[0] = index_select %0 %69 axis=0\n");
    Graph::parse(&joined).unwrap();
}

#[test]
fn parameters_are_bound_by_name_and_shape() {
    let d = device();
    let mut graph =
        Graph::parse("graph 1\n%0: f32[2] = param \"a\"\n%1: f32[2] = neg %0\nreturn %1\n").unwrap();
    let none = Params::new(&d, 0);
    let e = graph.bind(&none).unwrap_err().to_string();
    assert!(e.contains("no parameter a of shape [2]") && e.contains("none"), "{e}");
    let mut wrong = Params::new(&d, 0);
    wrong.value("a", &t(&[3], &[1.0, 2.0, 3.0])).unwrap();
    assert!(graph.bind(&wrong).unwrap_err().to_string().contains("another shape"));
    let mut right = Params::new(&d, 0);
    right.value("a", &t(&[2], &[1.0, 2.0])).unwrap();
    graph.bind(&right).unwrap();
    assert_eq!(graph.compile(&d).unwrap().call::<f32>(&[]).unwrap()[0].num().unwrap().data(), [-1.0, -2.0]);
    let e = graph.run::<f32>(&d, &[t(&[1], &[0.0]).into()]).unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::Arity { want: 0, got: 1 }), "{e}");
}

#[test]
fn inputs_that_do_not_fit_are_refused() {
    let d = device();
    let graph = Graph::trace(&d, &[f(&[2])], |_, x| Ok(vec![x[0].neg()?])).unwrap();
    let mut function = graph.compile(&d).unwrap();
    let indices: AnyTensor<f32> = Tensor::new(&[2], vec![0u32, 1]).unwrap().into();
    for bad in [vec![], vec![indices], vec![t(&[3], &[0.0; 3]).into()]] {
        let (a, b) = (function.call(&bad).unwrap_err(), graph.run(&d, &bad).unwrap_err());
        assert_eq!(a.without_location().to_string(), b.without_location().to_string());
    }
    assert_eq!(function.call(&[t(&[2], &[1.0, 2.0]).into()]).unwrap()[0].num().unwrap().data(), [-1.0, -2.0]);
}

#[test]
fn programs_are_drawn() {
    let (_, graph) = step(&device(), 1);
    let (dot, svg) = (graph.to_dot(), graph.to_svg());
    let edges: usize =
        graph.nodes().iter().map(|n| if let What::Op(_, ins) = &n.what { ins.len() } else { 0 }).sum();
    assert_eq!((dot.matches("label=").count(), dot.matches(" -> ").count()), (graph.size(), edges));
    assert_eq!((svg.matches("<g>").count(), svg.matches("<path").count()), (graph.size(), edges));
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n") && svg.contains("f32[5, 4]"));
    assert!(Graph::new().to_svg().contains("<svg"));
    let odd = Graph::parse("graph 1\n%0: f32[2] = param \"<a & \\\"b\\\">\"\n").unwrap();
    assert!(odd.to_svg().contains("&lt;a &amp; &quot;b&quot;&gt;"));
    assert!(odd.to_dot().contains("<a & \\\"b\\\">"));
}

#[test]
fn derivatives_of_programs_are_programs() {
    let host = Device::host::<Ratio>();
    let q = |dims: &[usize], data: &[i64]| -> AnyTensor<Ratio> {
        Tensor::new(dims, data.iter().map(|&x| Ratio::whole(x)).collect()).unwrap().into()
    };
    // y = x^2 w, one number for each row.
    let graph = Graph::trace(&Device::cpu().unwrap(), &[f(&[2]), f(&[2])], |_, x| {
        Ok(vec![(x[0] * x[0] * x[1])?.sum()?, x[1].neg()?])
    })
    .unwrap();
    let (x, w, one, seed) = (q(&[2], &[3, 5]), q(&[2], &[7, 11]), q(&[], &[1]), q(&[2], &[0, 100]));
    let gradient = graph.vjp().unwrap();
    roundtrip(&gradient);
    let got = gradient.run(&host, &[x.clone(), w.clone(), one.clone(), seed]).unwrap();
    assert_eq!(got, [q(&[2], &[42, 110]), q(&[2], &[9, -75])]);
    let along = graph.jvp().unwrap();
    let got = along.run(&host, &[x.clone(), w.clone(), q(&[2], &[1, 0]), q(&[2], &[0, 1])]).unwrap();
    assert_eq!(got, [q(&[], &[42 + 25]), q(&[2], &[0, -1])]);
    // The gradient's gradient: of <dy/dx, (1, 1)> by x is 2 w.
    let second = Graph::trace(&Device::cpu().unwrap(), &[f(&[2]), f(&[2])], |s, x| {
        let gradient = s.replay(&gradient, &[x[0], x[1], s.ones(&[])?, s.zeros(&[2])?])?;
        Ok(vec![gradient[0].sum()?])
    })
    .unwrap()
    .vjp()
    .unwrap();
    let got = second.compile(&host).unwrap().call(&[x, w, one]).unwrap();
    assert_eq!(got, [q(&[2], &[14, 22]), q(&[2], &[6, 10])]);
}

#[test]
fn inputs_may_have_names() {
    let d = device();
    let make = || Graph::trace(&d, &[f(&[2]), f(&[2])], |_, x| Ok(vec![x[0].mul(x[1])?.neg()?])).unwrap();
    let (plain, mut graph) = (make(), make());
    graph.name_inputs(&["field", "a\n<b>"]).unwrap();
    let names = [Some("field"), Some("a\n<b>")];
    assert_eq!((graph.input_names(), plain.input_names()), (names.to_vec(), vec![None, None]));

    // The text has them, and nothing else is other in it; the hash of a program without names is as ever.
    let text = graph.text().unwrap();
    assert_eq!(text.replace(" \"field\"", "").replace(" \"a\\u{a}<b>\"", ""), plain.text().unwrap());
    let again = Graph::parse(&text).unwrap();
    assert_eq!((again.text().unwrap(), again.input_names()), (text.clone(), names.to_vec()));
    assert!(graph == again && graph != plain);
    assert_ne!(graph.hash().unwrap(), plain.hash().unwrap());
    let twice = Graph::parse(&text.replace("\"a\\u{a}<b>\"", "\"field\"")).unwrap_err().to_string();
    assert!(twice.contains("line 3, column 20: another input has this name"), "{twice}");

    // Passes and derivatives keep them, and the bits.
    assert_eq!(graph.after(Passes::all()).unwrap().input_names(), names);
    assert_eq!(graph.vjp().unwrap().input_names(), [names[0], names[1], None]);
    let args: [AnyTensor<f32>; 2] = [t(&[2], &[1.0, 2.0]).into(), t(&[2], &[3.0, 4.0]).into()];
    assert_eq!(graph.run(&d, &args).unwrap(), plain.run(&d, &args).unwrap());

    // Drawings and messages show them.
    assert!(graph.to_dot().contains("label=\"field\\nf32[2]\""), "{}", graph.to_dot());
    assert!(graph.to_svg().contains(">field</text>") && graph.to_svg().contains("a &lt;b&gt;"));
    let wrong: [AnyTensor<f32>; 2] = [t(&[3], &[0.0; 3]).into(), t(&[2], &[3.0, 4.0]).into()];
    let message = "graph: inputs: input 0 \"field\" has shape [3], the program takes [2]";
    assert_eq!(graph.run(&d, &wrong).unwrap_err().without_location().to_string(), message);
    assert_eq!(graph.compile(&d).unwrap().call(&wrong).unwrap_err().without_location().to_string(), message);

    // What are no names changes nothing.
    for (bad, why) in [
        (vec!["", "w"], "a name is empty"),
        (vec!["w", "w"], "\"w\" is there twice"),
        (vec!["a\n<b>"], "is there twice"),
        (vec!["a", "b", "c"], "there are 3 names, the program has 2 inputs"),
    ] {
        let e = graph.name_inputs(&bad).unwrap_err().to_string();
        assert!(e.contains(why), "{e}");
        assert_eq!(graph.input_names(), names);
    }
}
