//! Programs as ONNX files, read back by a reader of the wire format that is written from its description. Whether another
//! runtime gives the same numbers is for `compare/onnx.py`.

use crate::support::{device, f, t};
use dittograd::device::Meta;
use dittograd::graph::Graph;
use dittograd::io::onnx::{About, OPSET, Onnx, Port, export};
use dittograd::io::write_npz;
use dittograd::numerics::rng::Stream;
use dittograd::ops::{AnyOp, AnyTensor, Sample, SampleIn, draw};
use dittograd::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A field of a message: a whole number, or bytes.
#[derive(Clone, Copy, Debug)]
enum Field<'a> {
    Int(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message, in order.
struct Fields<'a>(Vec<(u64, Field<'a>)>);

fn varint(bytes: &mut &[u8]) -> u64 {
    let (mut x, mut shift) = (0, 0);
    loop {
        let (first, rest) = bytes.split_first().expect("a whole number that ends");
        *bytes = rest;
        x |= u64::from(first & 0x7f) << shift;
        shift += 7;
        if first & 0x80 == 0 {
            return x;
        }
    }
}

impl<'a> Fields<'a> {
    fn of(mut bytes: &'a [u8]) -> Fields<'a> {
        let mut all = Vec::new();
        while !bytes.is_empty() {
            let key = varint(&mut bytes);
            let mut take = |n: usize| {
                let (taken, rest) = bytes.split_at(n);
                bytes = rest;
                taken
            };
            let field = match key & 7 {
                0 => Field::Int(varint(&mut bytes)),
                2 => {
                    let n = varint(&mut bytes) as usize;
                    let (taken, rest) = bytes.split_at(n);
                    bytes = rest;
                    Field::Bytes(taken)
                }
                5 => Field::Bytes(take(4)),
                kind => panic!("a field of kind {kind}"),
            };
            all.push((key >> 3, field));
        }
        Fields(all)
    }

    fn all(&self, field: u64) -> Vec<&'a [u8]> {
        let bytes = |f: &(u64, Field<'a>)| match f.1 {
            Field::Bytes(b) if f.0 == field => Some(b),
            _ => None,
        };
        self.0.iter().filter_map(bytes).collect()
    }

    fn messages(&self, field: u64) -> Vec<Fields<'a>> {
        self.all(field).into_iter().map(Fields::of).collect()
    }

    fn texts(&self, field: u64) -> Vec<String> {
        self.all(field).into_iter().map(|b| String::from_utf8(b.to_vec()).unwrap()).collect()
    }

    fn text(&self, field: u64) -> String {
        self.texts(field).swap_remove(0)
    }

    fn ints(&self, field: u64) -> Vec<u64> {
        let int = |f: &(u64, Field<'a>)| match f.1 {
            Field::Int(x) if f.0 == field => Some(x),
            _ => None,
        };
        self.0.iter().filter_map(int).collect()
    }
}

/// Element type and dimensions of a `ValueInfoProto`.
fn kind(info: &Fields<'_>) -> (u64, Vec<u64>) {
    let tensor = info.messages(2)[0].messages(1).swap_remove(0);
    let dims = tensor.messages(2)[0].messages(1).iter().map(|d| d.ints(1)[0]).collect();
    (tensor.ints(1)[0], dims)
}

/// Checks a graph: nodes come after what they read, names are there once. Returns the names of its operators.
fn check(graph: &Fields<'_>, outer: &BTreeSet<String>) -> BTreeMap<String, usize> {
    let mut known = outer.clone();
    let mut operators = BTreeMap::new();
    let define = |known: &mut BTreeSet<String>, name: String| {
        assert!(!name.is_empty() && known.insert(name.clone()), "{name} is there twice");
    };
    graph.messages(11).iter().for_each(|v| define(&mut known, v.text(1)));
    graph.messages(5).iter().for_each(|v| define(&mut known, v.text(8)));
    let mut names = BTreeSet::new();
    for node in graph.messages(1) {
        for read in node.texts(1) {
            assert!(known.contains(&read), "{} reads {read}, which is not there yet", node.text(4));
        }
        for attribute in node.messages(5) {
            for body in attribute.messages(6) {
                for (op, n) in check(&body, &known) {
                    *operators.entry(op).or_default() += n;
                }
            }
        }
        node.texts(2).into_iter().for_each(|name| define(&mut known, name));
        assert!(names.insert(node.text(3)), "node {} is there twice", node.text(3));
        *operators.entry(node.text(4)).or_default() += 1;
    }
    for output in graph.messages(12) {
        assert!(known.contains(&output.text(1)));
    }
    operators
}

/// The graph of a file that says what files of ours say, checked.
fn graph(onnx: &Onnx) -> Fields<'_> {
    let model = Fields::of(&onnx.bytes);
    assert_eq!((model.text(2), model.text(3)), ("dittograd".into(), env!("CARGO_PKG_VERSION").into()));
    let opset = model.messages(8);
    assert_eq!((opset.len(), opset[0].text(1), opset[0].ints(2)), (1, String::new(), vec![OPSET as u64]));
    let graph = model.messages(7).swap_remove(0);
    assert_eq!(graph.messages(1).len(), onnx.nodes);
    for (field, edges) in [(11, &onnx.inputs), (12, &onnx.outputs)] {
        for (info, (name, meta)) in graph.messages(field).iter().zip(edges) {
            let dims = meta.shape.dims().iter().map(|d| *d as u64).collect();
            let dtype = if meta.dtype.name() == "u32" { 7 } else { 1 };
            assert_eq!((info.text(1), kind(info)), (name.clone(), (dtype, dims)));
        }
        assert_eq!(graph.messages(field).len(), edges.len());
    }
    check(&graph, &BTreeSet::new());
    graph
}

/// The elements that a file holds, by name.
fn held<'a>(graph: &Fields<'a>) -> BTreeMap<String, (Vec<u64>, &'a [u8])> {
    graph.messages(5).iter().map(|t| (t.text(8), (t.ints(1), t.all(9)[0]))).collect()
}

#[test]
fn a_model_is_its_parameters_and_its_program() {
    let device = device();
    let mut params = Params::new(&device, 3);
    let net = Mlp::new(&mut params, &[2, 5, 3]).unwrap();
    let program = Graph::trace(&device, &[Meta::f32(Shape::new(&[4, 2]).unwrap())], |_, x| {
        Ok(vec![net.forward(x[0])?])
    })
    .unwrap();
    let about = About {
        name: "net".into(),
        inputs: vec![Port::new("points")],
        outputs: vec![Port::new("scores")],
        metadata: vec![("key".into(), "välue".into())],
    };
    let onnx = export(&program, &about).unwrap();
    assert_eq!(onnx, export(&program, &about).unwrap(), "the same program has the same bytes");
    let graph = graph(&onnx);
    assert_eq!(graph.text(2), "net");
    assert_eq!((onnx.inputs[0].0.as_str(), onnx.outputs[0].0.as_str()), ("points", "scores"));
    let held = held(&graph);
    for p in params.iter() {
        let want: Vec<u8> = p.get::<f32>().unwrap().data().iter().flat_map(|x| x.to_le_bytes()).collect();
        let dims: Vec<u64> = p.shape().dims().iter().map(|d| *d as u64).collect();
        assert_eq!(held[p.name()], (dims, &want[..]), "{}", p.name());
    }
    assert_eq!(onnx.parameters, params.numel());
    let operators = check(&graph, &BTreeSet::new());
    assert_eq!(operators["Gemm"], 2);
    let model = Fields::of(&onnx.bytes);
    let metadata = &model.messages(14)[0];
    assert_eq!((metadata.text(1), metadata.text(2)), ("key".into(), "välue".into()));
    // The text of the program makes the same file.
    let mut again = Graph::parse(&program.text().unwrap()).unwrap();
    let unbound = export(&again, &about).unwrap_err().to_string();
    assert!(unbound.contains("net.0.weight") && unbound.contains("bind"), "{unbound}");
    again.bind(&params).unwrap();
    assert_eq!(onnx, export(&again, &about).unwrap());
}

#[test]
fn indices_scalings_and_repeated_outputs() {
    let device = device();
    let mut params = Params::new(&device, 3);
    let w = params.value("v1", &t(&[5, 2], &[0.5; 10])).unwrap();
    let metas = [Meta::u32(Shape::new(&[3]).unwrap()), Meta::f32(Shape::new(&[3, 2]).unwrap())];
    let program = Graph::trace(&device, &metas, |s, x| {
        let rows = s.param(&w)?.embedding(x[0])?;
        let unused = x[1].exp()?;
        assert_eq!(unused.shape()?.dims(), [3, 2]);
        let y = rows.add(x[1])?.mul(s.param(&w)?.narrow(0, 1, 3)?)?;
        Ok(vec![y, x[1], y, x[0]])
    })
    .unwrap();
    let about = About {
        inputs: vec![
            Port::new("at"),
            Port { name: "x".into(), scaling: Some((vec![1.0, 2.0], vec![0.1, 3.0])) },
        ],
        outputs: vec![Port { name: "y".into(), scaling: Some((vec![0.5, 0.25], vec![2.0, 2.0])) }],
        ..About::default()
    };
    let onnx = export(&program, &about).unwrap();
    let graph = graph(&onnx);
    let names: Vec<&str> = onnx.outputs.iter().map(|o| o.0.as_str()).collect();
    assert_eq!(names, ["y", "y1", "y2", "y3"]);
    let operators = check(&graph, &BTreeSet::new());
    assert!(!operators.contains_key("Exp"), "what no output needs is left out");
    // To float64 and back: the input once, the output once.
    assert_eq!((operators["Cast"], operators["Gather"]), (4, 1));
    let held = held(&graph);
    assert_eq!(held["v1"].0, [5, 2], "a parameter keeps its name, whatever values are called");
    let deviation: Vec<u8> = [0.1f64, 3.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    assert!(held.values().any(|(_, bytes)| *bytes == deviation));
}

/// The program of one op on inputs like these.
fn alone(op: &AnyOp, ins: &[SampleIn]) -> Graph {
    let metas: Vec<Meta> = ins.iter().map(SampleIn::meta).collect();
    Graph::trace(&device(), &metas, |s, x| Ok(vec![s.apply(op.clone(), x)?])).unwrap()
}

#[test]
fn what_has_no_form_says_where_it_is_and_what_to_do() {
    let device = device();
    let x = Meta::f32(Shape::new(&[2, 3]).unwrap());
    let refused = |graph: &Graph, want: &[&str]| {
        let e = export(graph, &About::default()).unwrap_err().to_string();
        assert!(want.iter().all(|w| e.contains(w)), "{e} does not have {want:?}");
    };
    let random = Graph::trace(&device, &[x], |_, x| Ok(vec![x[0].exp()?.dropout(0.5)?])).unwrap();
    refused(&random, &["value ", "eval"]);
    let sample = AnyOp::samples("max_pool_bwd").swap_remove(0);
    refused(&alone(&sample.op, &sample.ins), &["value 3 of the program, max_pool_bwd of shape", "other ops"]);
    // It has no gradient, but is not random.
    let sample = AnyOp::samples("label_weights").swap_remove(0);
    refused(&alone(&sample.op, &sample.ins), &["label_weights", "other ops"]);
    let long =
        Graph::trace(&device, &[Meta::f32(Shape::new(&[5000]).unwrap())], |_, x| Ok(vec![x[0].rfft()?]));
    refused(&long.unwrap(), &["value 1 of the program, rfft", "5000"]);
    let same = Graph::trace(&device, &[x, x], |_, x| Ok(vec![x[0].add(x[1])?])).unwrap();
    for (inputs, outputs, want) in [
        (vec![Port::new("a"), Port::new("a")], vec![], "`a`"),
        (vec![Port::new("")], vec![], "empty"),
        (vec![Port::new("a")], vec![Port::new("a")], "`a`"),
        (vec![Port::new("a"); 3], vec![], "3 names, the program has 2"),
        (vec![Port { name: "a".into(), scaling: Some((vec![1.0], vec![1.0])) }], vec![], "last axis of 3"),
    ] {
        let e = export(&same, &About { inputs, outputs, ..About::default() }).unwrap_err().to_string();
        assert!(e.contains(want), "{e} does not have {want}");
    }
}

/// Ops that only gradients, updates, losses of labels and random numbers are made of, and those of order and of matrices that ONNX
/// has no words for.
const WITHOUT: &[&str] = &[
    "adaptive_avg_pool_bwd",
    "adaptive_max_pool",
    "adaptive_max_pool_bwd",
    "adaptive_max_pool_pick",
    "argsort",
    "attention_bwd",
    "avg_pool_bwd",
    "batch_norm_bwd",
    "bernoulli",
    "bernoulli_mask",
    "cholesky",
    "conv_kernel_grad",
    "cross_entropy",
    "cross_entropy_bwd",
    "flat_index",
    "global_norm",
    "grid_sample",
    "grid_sample_grid_bwd",
    "grid_sample_input_bwd",
    "group_norm_bwd",
    "label_weights",
    "layer_norm_bwd",
    "lu",
    "max_pool_bwd",
    "max_pool_pick",
    "mode_mix_dw",
    "nll",
    "nll_bwd",
    "normal",
    "permutation",
    "pick",
    "place",
    "qr",
    "randint",
    "recurrent_bwd",
    "resample",
    "resample_bwd",
    "rms_norm_bwd",
    "running_extremum",
    "scatter_last",
    "searchsorted",
    "selective_scan_bwd",
    "self_attention_bwd",
    "smooth_max_pool",
    "smooth_max_pool_bwd",
    "smooth_max_pool_sum",
    "topk",
    "triangular_solve",
    "uniform",
    "uniform_range",
    "erfcx",
    "erfinv",
    "ndtri",
    "lgamma",
    "digamma",
    "i0",
    "i0e",
    "i1",
    "i1e",
];
/// Elements of the largest samples that are exported.
const SMALL: usize = 20_000;

/// Every sample of every op gives a file that holds together, or the op is in the list. With a folder in
/// `DITTOGRAD_ONNX_SAMPLES` the files go there, each with inputs and outputs beside it, for another runtime to be tried on.
#[test]
fn every_op_that_models_are_made_of_has_a_form() {
    let folder = std::env::var_os("DITTOGRAD_ONNX_SAMPLES");
    let mut wrong = Vec::new();
    for name in AnyOp::NAMES {
        let samples = AnyOp::samples(name);
        let small = |s: &Sample| s.ins.iter().all(|i| i.meta().shape.numel() <= SMALL);
        for (i, sample) in samples.iter().enumerate().filter(|(_, s)| small(s)) {
            let program = alone(&sample.op, &sample.ins);
            let onnx = match export(&program, &About::default()) {
                Ok(onnx) => onnx,
                Err(e) => {
                    let e = e.to_string();
                    // Some windows are known here only.
                    let is_known = WITHOUT.contains(name) || name.ends_with("_pool") && e.contains("ONNX");
                    if !is_known || !e.starts_with("onnx: ") {
                        wrong.push(format!("{name}, sample {i}: {e}"));
                    }
                    continue;
                }
            };
            // What has no elements needs no op.
            if WITHOUT.contains(name) && onnx.outputs[0].1.shape.numel() > 0 {
                wrong.push(format!("{name} has a form, so it need not be listed"));
            }
            graph(&onnx);
            if let Some(folder) = &folder {
                let mut stream = Stream::new(7, i as u64);
                let ins = draw(&sample.ins, &mut stream).unwrap();
                let outs = program.run(&device(), &ins).unwrap();
                let mut all: Vec<(String, AnyTensor)> = Vec::new();
                for (names, values) in [(&onnx.inputs, &ins), (&onnx.outputs, &outs)] {
                    for ((name, _), value) in names.iter().zip(values) {
                        let value = match value {
                            AnyTensor::Num(t) => AnyTensor::Num(t.clone()),
                            AnyTensor::Idx(t) => AnyTensor::Idx(t.clone()),
                        };
                        all.push((name.clone(), value));
                    }
                }
                let stem = Path::new(folder).join(format!("{name}.{i}"));
                std::fs::write(stem.with_extension(format!("{i}.onnx")), &onnx.bytes).unwrap();
                let pairs: Vec<(&str, &AnyTensor)> = all.iter().map(|(n, t)| (n.as_str(), t)).collect();
                write_npz(stem.with_extension(format!("{i}.npz")), &pairs).unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A gradient is a program like any other.
#[test]
fn gradients_of_elementwise_programs_and_products_have_a_form() {
    let x = Meta::f32(Shape::new(&[2, 3]).unwrap());
    let program = Graph::trace(&device(), &[x, x], |_, x| {
        Ok(vec![x[0].gelu()?.mul(x[1].softplus()?)?.square()?.sum()?])
    });
    let slope = program.unwrap().vjp().unwrap();
    let onnx = export(&slope, &About::default()).unwrap();
    graph(&onnx);
    assert_eq!((onnx.inputs.len(), onnx.outputs.len()), (3, 2));
}

/// What `compare/onnx.py` has tried in another runtime stays as it is.
#[test]
fn the_form_of_no_op_changes() {
    let mut text = String::new();
    for name in AnyOp::NAMES {
        let mut hash = crate::golden_bits::Fnv::new();
        for sample in AnyOp::samples(name) {
            if sample.ins.iter().any(|i| i.meta().shape.numel() > SMALL) {
                continue;
            }
            let onnx = export(&alone(&sample.op, &sample.ins), &About::default());
            // Field 7 of a model is its graph; before it stands who made it.
            let onnx = onnx.map(|onnx| onnx.bytes).unwrap_or_default();
            for (_, field) in Fields::of(&onnx).0.iter().filter(|f| f.0 == 7) {
                if let Field::Bytes(bytes) = field {
                    bytes.iter().for_each(|&b| hash.add(u32::from(b)));
                }
            }
            hash.add(u32::MAX);
        }
        text += &format!("{name} {:016x}\n", hash.0);
    }
    crate::golden_bits::check("onnx.txt", &text, "try compare/onnx.py, DITTOGRAD_ONNX_SAMPLES=FOLDER");
}

/// Names of the model come first; what is made for the file goes round them, and what is the same is held once.
#[test]
fn names_that_are_made_are_nobody_elses() {
    let d = device();
    let mut params = Params::new(&d, 1);
    for name in ["c0", "c1", "v7", "v7.1", "w"] {
        params.uniform(name, &[3], -1.0, 1.0).unwrap();
    }
    // Two leaves are one parameter, and two constants are equal.
    let text = "graph 1\n\
        %0: f32[2, 3] = input\n\
        %1: f32[3] = param \"w\"\n\
        %2: f32[3] = param \"w\"\n\
        %3: f32[3] = param \"c0\"\n\
        %4: f32[3] = param \"c1\"\n\
        %5: f32[3] = param \"v7\"\n\
        %6: f32[3] = param \"v7.1\"\n\
        %7: f32[2, 3] = mul %0 %1\n\
        %8: f32[2, 3] = gelu %7\n\
        %9: f32[3] = constant [0.25, 0.5, 0.75]\n\
        %10: f32[3] = constant [0.25, 0.5, 0.75]\n\
        %11: f32[3] = constant [0.25, 0.5, 1.75]\n\
        %12: f32[2, 3] = mul %8 %9\n\
        %13: f32[2, 3] = mul %12 %10\n\
        %14: f32[2, 3] = mul %13 %11\n\
        %15: f32[2, 3] = mul %14 %2\n\
        %16: f32[2, 3] = mul %15 %3\n\
        %17: f32[2, 3] = mul %16 %4\n\
        %18: f32[2, 3] = mul %17 %5\n\
        %19: f32[2, 3] = mul %18 %6\n\
        return %19\n";
    let mut program = Graph::parse(text).unwrap();
    program.bind(&params).unwrap();
    let onnx = export(&program, &About::default()).unwrap();
    let graph = graph(&onnx);
    let held = held(&graph);
    for p in params.iter() {
        let bytes: Vec<u8> = p.get::<f32>().unwrap().data().iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(held[p.name()], (vec![3], &bytes[..]), "{}", p.name());
    }
    let of_three = held.values().filter(|(dims, _)| *dims == [3]).count();
    assert_eq!(of_three, params.len() + 2, "equal constants are one: {:?}", held.keys());
    let made: Vec<&str> = held.keys().map(String::as_str).filter(|n| params.get(n).is_none()).collect();
    assert!(made.iter().all(|n| n.starts_with('c') && n[1..].parse::<usize>().is_ok()), "{made:?}");
    // Two parameters of one name cannot be told apart.
    let mut others = Params::new(&d, 2);
    let (w, other) = (params.get("w").unwrap().clone(), others.uniform("w", &[3], -1.0, 1.0).unwrap());
    let two = Graph::trace(&d, &[Meta::f32(Shape::new(&[3]).unwrap())], |s, x| {
        Ok(vec![x[0].mul(s.param(&w)?)?.mul(s.param(&other)?)?])
    });
    let e = export(&two.unwrap(), &About::default()).unwrap_err().to_string();
    assert!(e.contains("`w`") && e.contains("two values"), "{e}");
}

#[test]
fn names_of_inputs_are_the_models() {
    let d = device();
    let mut graph = Graph::trace(&d, &[f(&[2]), f(&[2])], |_, x| Ok(vec![x[0].mul(x[1])?])).unwrap();
    graph.name_inputs(&["field"]).unwrap();
    let names =
        |about: &About| export(&graph, about).unwrap().inputs.into_iter().map(|i| i.0).collect::<Vec<_>>();
    assert_eq!(names(&About::default()), ["field", "x1"]);
    let inputs = vec![Port::new("mine")];
    assert_eq!(names(&About { inputs, ..About::default() }), ["mine", "x1"]);
}

/// A convolution of so many modes that it is by FFT has ops that ONNX has too.
#[test]
fn spectral_convolutions_by_fft_are_exported() {
    let d = device();
    let line = Graph::trace(&d, &[f(&[1, 512, 1]), f(&[200, 1, 1]), f(&[200, 1, 1])], |_, x| {
        Ok(vec![x[0].spectral_conv1d(x[1], x[2])?])
    });
    let plane = Graph::trace(&d, &[f(&[512, 2, 1]), f(&[2, 100, 2, 1, 1]), f(&[2, 100, 2, 1, 1])], |_, x| {
        Ok(vec![x[0].spectral_conv2d(x[1], x[2])?])
    });
    for graph in [line.unwrap(), plane.unwrap()] {
        assert!(graph.to_string().contains("rfft"));
        let onnx = export(&graph, &About::default()).unwrap();
        assert_eq!(onnx.outputs[0].1, graph.metas(graph.outputs())[0]);
    }
}
