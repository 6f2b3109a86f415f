//! Programs as ONNX files, for other runtimes. Parameters keep their names and bits. Values of another runtime agree up
//! to the order of its sums and the roundings of its functions.
//!
//! A program has fixed shapes, including the batch size, and so has the file. Indices are int64 there. NaN passes
//! through elementwise ops as it does here. An extremum over axes or windows is NaN here if one element is; ONNX does
//! not specify this for `ReduceMax`, `ArgMax` and `MaxPool`.

mod lower;
mod proto;

use crate::device::Meta;
use crate::error::{Error, Result};
use crate::graph::{Graph, Source, What};
use crate::io::protobuf::Message;
use crate::numerics::environment;
use lower::{Lowering, dtype};
use proto::{Body, Value};

/// The opset version of the files: the first with dilated average pooling, which is the newest feature needed.
pub const OPSET: i64 = 19;
/// The format version that belongs to this opset.
const IR_VERSION: i64 = 9;
/// The most bytes of a protobuf message.
const MAX_BYTES: usize = i32::MAX as usize;

/// An input or output of a program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Port {
    /// Its name in the file.
    pub name: String,
    /// Mean and deviation per entry of the last axis, if the program works on scaled numbers: the file's input becomes
    /// `(x - mean) / deviation` before the program sees it, and its output is `y · deviation + mean` of the program's
    /// output. Computed in float64 and rounded once, like [`Scaling`](crate::data::Scaling).
    pub scaling: Option<(Vec<f64>, Vec<f64>)>,
}

impl Port {
    /// A value with this name, without scaling.
    pub fn new(name: impl Into<String>) -> Port {
        Port { name: name.into(), scaling: None }
    }
}

/// Names and metadata of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct About {
    /// Name of the program.
    pub name: String,
    /// The inputs, in order. Missing names are `x0`, `x1`, ….
    pub inputs: Vec<Port>,
    /// The outputs, in order. Missing names are `y0`, `y1`, ….
    pub outputs: Vec<Port>,
    /// Further texts by name.
    pub metadata: Vec<(String, String)>,
}

/// A program in ONNX.
#[derive(Clone, Debug, PartialEq)]
pub struct Onnx {
    /// The file.
    pub bytes: Vec<u8>,
    /// Names of the inputs, with shapes and types; indices are int64 in the file.
    pub inputs: Vec<(String, Meta)>,
    /// Names of the outputs, with shapes and types.
    pub outputs: Vec<(String, Meta)>,
    /// Number of nodes.
    pub nodes: usize,
    /// Number of elements of its parameters.
    pub parameters: usize,
}

/// The program as the bytes of an ONNX file; the same program gives the same bytes. Parameters are stored with their
/// names and current values, as are [`Nats`](crate::session::Nats). Ops that the outputs do not need are left out;
/// inputs stay.
///
/// If an op has no ONNX form, the error names its value (as numbered by [`Graph::text`]). These are gradients of
/// convolutions and the like, and random numbers, which a model in evaluation (`eval`) does not use.
///
/// ```
/// use dittograd::device::Meta;
/// use dittograd::graph::Graph;
/// use dittograd::io::onnx::{self, About};
/// use dittograd::prelude::*;
/// # fn main() -> Result<()> {
/// let device = Device::cpu()?;
/// let mut params = Params::new(&device, 1);
/// let net = Mlp::new(&mut params, &[2, 16, 3])?;
/// let graph = Graph::trace(&device, &[Meta::f32(Shape::new(&[8, 2])?)], |_, x| Ok(vec![net.forward(x[0])?]))?;
/// let onnx = onnx::export(&graph, &About::default())?;
/// assert_eq!((onnx.inputs[0].0.as_str(), onnx.outputs[0].1.shape.dims()), ("x0", &[8, 3][..]));
/// assert_eq!(onnx.parameters, params.numel());
/// # Ok(())
/// # }
/// ```
pub fn export(graph: &Graph, about: &About) -> Result<Onnx> {
    let _strict = environment::enter();
    let mut lowering = Lowering::new(graph);
    let port = |ports: &[Port], i: usize, letter: &str| {
        ports.get(i).cloned().unwrap_or_else(|| Port::new(format!("{letter}{i}")))
    };
    let is_input = |(_, n): &(usize, &crate::graph::Node)| matches!(n.what, What::Leaf(Source::Input(_)));
    let leaves: Vec<usize> = graph.nodes().iter().enumerate().filter(is_input).map(|(i, _)| i).collect();
    for (given, there, what) in
        [(&about.inputs, leaves.len(), "inputs"), (&about.outputs, graph.outputs().len(), "outputs")]
    {
        if given.len() > there {
            let why = format!("has {} names, the program has {there}", given.len());
            return Err(Error::argument("onnx", what, why));
        }
    }
    let value = |name: &str, meta: &Meta| Value {
        name: name.into(),
        dtype: dtype(meta),
        dims: meta.shape.dims().to_vec(),
    };
    let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
    let named = |(i, name): (usize, Option<&str>)| match name {
        Some(name) if i >= about.inputs.len() => Port::new(name.to_string()),
        _ => port(&about.inputs, i, "x"),
    };
    let ports: Vec<Port> = graph.input_names().into_iter().enumerate().map(named).collect();
    let results: Vec<Port> = (0..graph.outputs().len()).map(|i| port(&about.outputs, i, "y")).collect();
    ports.iter().chain(&results).try_for_each(|p| lowering.take(&p.name))?;
    lowering.params()?;
    for (at, port) in leaves.iter().zip(&ports) {
        let given = value(&port.name, &graph.nodes()[*at].meta);
        lowering.begin(format!("v{at}"));
        let seen = match &port.scaling {
            Some((mean, deviation)) => lowering.scaled(&given, mean, deviation, false)?,
            None => given.clone(),
        };
        lowering.set(*at as u32, seen);
        inputs.push(given);
    }
    lowering.run()?;
    for (v, port) in graph.outputs().iter().zip(&results) {
        let mut said = lowering.get(*v)?;
        lowering.begin(format!("{}.scaled", port.name));
        if let Some((mean, deviation)) = &port.scaling {
            said = lowering.scaled(&said, mean, deviation, true)?;
        }
        outputs.push(lowering.output(&port.name, &said));
    }
    let lowered = lowering.finish(&inputs, &outputs);
    let named = graph.params();
    let is_param = |name: &str| named.iter().any(|(n, _)| n == name);
    let held = lowered.initializers.iter().filter(|t| is_param(&t.value.name));
    let parameters = held.map(|t| t.value.numel()).sum();
    let nodes = lowered.nodes.len();
    let metas = |all: &[Value], metas: Vec<Meta>| -> Vec<(String, Meta)> {
        all.iter().map(|v| v.name.clone()).zip(metas).collect()
    };
    let edges = (metas(&inputs, graph.inputs()), metas(&outputs, graph.metas(graph.outputs())));
    let name = if about.name.is_empty() { "dittograd" } else { &about.name };
    let body = Body { nodes: lowered.nodes, inputs, outputs };
    let bytes = Message::default()
        .int(1, IR_VERSION)
        .text(2, "dittograd")
        .text(3, env!("CARGO_PKG_VERSION"))
        .message(7, body.with(name, &lowered.initializers, &lowered.infos))
        .message(8, Message::default().text(1, "").int(2, OPSET))
        .each(&about.metadata, |m, (key, value)| {
            m.message(14, Message::default().text(1, key).text(2, value))
        })
        .into_bytes();
    if bytes.len() > MAX_BYTES {
        let what = format!("a program of {} bytes; an ONNX file in one piece holds {MAX_BYTES}", bytes.len());
        return Err(Error::unsupported("onnx", what));
    }
    Ok(Onnx { bytes, inputs: edges.0, outputs: edges.1, nodes, parameters })
}
