//! What each op is in ONNX. Elementwise ops are lowered instruction by instruction from their programs, and reductions
//! stage by stage from their folds, so that neither needs a line here; every other op has an arm of [`Lowering::op`] or is
//! refused by name.
//!
//! Shapes are known, so each value here carries its own, and an op whose value has no elements is that value. Whole
//! numbers are int64.

mod attention;
mod index;
mod layout;
mod nodes;
mod norm;
mod op;
mod pointwise;
mod product;
mod reduce;
mod scan;
mod softmax;
mod spectral;
mod window;

use super::proto::{Initializer, Node, Type, Value};
use crate::device::{DType, Meta};
use crate::error::{Error, ErrorKind, Result};
use crate::graph::{Graph, Source, What, unbound};
use crate::ops::Val;
use op::Place;
use std::collections::{BTreeMap, BTreeSet};

/// A graph in the making.
pub(super) struct Lowering<'g> {
    graph: &'g Graph,
    taken: BTreeSet<String>,
    /// Where names of new values come from: the value of the program that is being lowered, and a number.
    place: String,
    count: usize,
    nodes: Vec<Node>,
    initializers: Vec<Initializer>,
    /// Constants by what they hold, so that each is held once.
    constants: BTreeMap<(Type, Vec<usize>, Vec<u8>), String>,
    /// Parameters by name, with their identities.
    params: BTreeMap<String, (u64, Value)>,
    /// What the program's values became.
    values: BTreeMap<u32, Value>,
    /// Parts of packed values, with where they start.
    parts: BTreeMap<u32, Vec<(usize, Value)>>,
}

/// What was made: the nodes that the outputs need, and what they read that is fixed.
pub(super) struct Lowered {
    pub(super) nodes: Vec<Node>,
    pub(super) initializers: Vec<Initializer>,
    /// Types of values between inputs and outputs.
    pub(super) infos: Vec<Value>,
}

/// The type of a value in the file.
pub(super) fn dtype(meta: &Meta) -> Type {
    match meta.dtype {
        DType::F32 => Type::F32,
        DType::U32 => Type::I64,
    }
}

impl<'g> Lowering<'g> {
    pub(super) fn new(graph: &'g Graph) -> Lowering<'g> {
        Lowering {
            graph,
            taken: BTreeSet::new(),
            place: String::new(),
            count: 0,
            nodes: Vec::new(),
            initializers: Vec::new(),
            constants: BTreeMap::new(),
            params: BTreeMap::new(),
            values: BTreeMap::new(),
            parts: BTreeMap::new(),
        }
    }

    /// Takes a name that is given from outside. Errors if it is taken.
    pub(super) fn take(&mut self, name: &str) -> Result<()> {
        match !name.is_empty() && self.taken.insert(name.to_string()) {
            true => Ok(()),
            false => {
                let why = format!(
                    "`{name}` is empty or names two values; give each input, output and parameter its own"
                );
                Err(Error::argument("onnx", "name", why))
            }
        }
    }

    /// Begins a new source of names.
    pub(super) fn begin(&mut self, place: impl Into<String>) {
        (self.place, self.count) = (place.into(), 0);
    }

    fn fresh(&mut self) -> String {
        loop {
            let name = match self.count {
                0 => self.place.clone(),
                n => format!("{}.{n}", self.place),
            };
            self.count += 1;
            if self.taken.insert(name.clone()) {
                return name;
            }
        }
    }

    /// Says what a value of the program is.
    pub(super) fn set(&mut self, at: u32, value: Value) {
        self.values.insert(at, value);
    }

    /// What a value of the program became.
    pub(super) fn get(&self, v: Val) -> Result<Value> {
        let missing = ErrorKind::Internal { what: "a value that was not lowered" };
        self.values.get(&v.0).cloned().ok_or_else(|| Error::new("onnx", missing))
    }

    /// Which values the outputs need.
    fn live(&self) -> Vec<bool> {
        let nodes = self.graph.nodes();
        let mut live = vec![false; nodes.len()];
        self.graph.outputs().iter().for_each(|v| live[v.0 as usize] = true);
        for (i, node) in nodes.iter().enumerate().rev() {
            if let (true, What::Op(_, ins)) = (live[i], &node.what) {
                ins.iter().for_each(|v| live[v.0 as usize] = true);
            }
        }
        live
    }

    /// Takes the parameters that the outputs need. Their names are the model's, so they come before all that are made here.
    pub(super) fn params(&mut self) -> Result<()> {
        let live = self.live();
        for node in self.graph.nodes().iter().zip(&live).filter(|(_, l)| **l).map(|(n, _)| n) {
            if let What::Leaf(Source::Param(p)) = &node.what
                && self.params.get(p.name()).is_none_or(|(id, _)| *id != p.id())
            {
                self.take(p.name())?;
                let value =
                    Value { name: p.name().into(), dtype: Type::F32, dims: p.shape().dims().to_vec() };
                let bytes = p.get::<f32>()?.data().iter().flat_map(|x| x.to_le_bytes()).collect();
                self.initializers.push(Initializer { value: value.clone(), bytes });
                self.params.insert(p.name().into(), (p.id(), value));
            }
        }
        Ok(())
    }

    /// All that the outputs need, in order, but for the inputs and parameters, which are there.
    pub(super) fn run(&mut self) -> Result<()> {
        let (nodes, live) = (self.graph.nodes(), self.live());
        for (i, node) in nodes.iter().enumerate().filter(|(i, _)| live[*i]) {
            let at = i as u32;
            if self.values.contains_key(&at) {
                continue;
            }
            self.begin(format!("v{i}"));
            let value = match &node.what {
                What::Leaf(source) => self.leaf(i, source)?,
                What::Op(..) if node.meta.shape.numel() == 0 => {
                    self.constant(dtype(&node.meta), node.meta.shape.dims(), Vec::new())
                }
                What::Op(op, ins) => {
                    let metas: Vec<Meta> = ins.iter().map(|v| nodes[v.0 as usize].meta).collect();
                    let values = ins.iter().map(|v| self.get(*v)).collect::<Result<Vec<_>>>()?;
                    self.op(Place { at, op, ins, metas: &metas, out: node.meta }, &values)?
                }
            };
            debug_assert_eq!(value.dims, node.meta.shape.dims(), "value {i}: {:?}", node.what);
            self.set(at, value);
        }
        Ok(())
    }

    /// The outcome, for outputs of these names.
    pub(super) fn finish(self, inputs: &[Value], outputs: &[Value]) -> Lowered {
        let mut wanted: BTreeSet<&str> = outputs.iter().map(|v| v.name.as_str()).collect();
        let mut keep = vec![false; self.nodes.len()];
        for (i, node) in self.nodes.iter().enumerate().rev() {
            if node.outputs.iter().any(|o| wanted.contains(o.as_str())) {
                keep[i] = true;
                wanted.extend(node.reads());
            }
        }
        let held = |t: &&Initializer| wanted.contains(t.value.name.as_str());
        let initializers = self.initializers.iter().filter(held).cloned().collect();
        let kept = || self.nodes.iter().zip(&keep).filter(|(_, k)| **k).map(|(n, _)| n);
        let edges: BTreeSet<&str> = inputs.iter().chain(outputs).map(|v| v.name.as_str()).collect();
        let made: BTreeSet<&str> = kept().flat_map(|n| &n.outputs).map(String::as_str).collect();
        let mut seen = BTreeSet::new();
        let infos = self.values.values().filter(|v| {
            let name = v.name.as_str();
            made.contains(name) && !edges.contains(name) && seen.insert(name)
        });
        Lowered { infos: infos.cloned().collect(), nodes: kept().cloned().collect(), initializers }
    }

    fn leaf(&mut self, at: usize, source: &Source) -> Result<Value> {
        let no = |why: &str| Err(Error::unsupported("onnx", format!("value {at} of the program {why}")));
        match source {
            Source::Param(p) => match self.params.get(p.name()) {
                Some((_, value)) => Ok(value.clone()),
                None => Err(unbound(p.name(), p.shape())),
            },
            Source::Named(name, shape) => Err(unbound(name, *shape)),
            Source::Constant(c) | Source::State(c) => match c.meta().dtype {
                DType::F32 => Ok(self.numbers(c.meta().shape.dims(), c.to_tensor::<f32>()?.data())),
                DType::U32 => {
                    let all: Vec<i64> = c.to_indices()?.data().iter().map(|x| i64::from(*x)).collect();
                    Ok(self.wholes(c.meta().shape.dims(), &all))
                }
            },
            Source::Nats(nats) => {
                let all: Vec<i64> = nats.values().iter().map(|x| i64::from(*x)).collect();
                Ok(self.wholes(&[all.len()], &all))
            }
            Source::Input(_) => no("is an input without a name"),
            Source::RandomBase => no(
                "is the counter of random numbers, which ONNX has none like; export the model as it is after training (`eval`)",
            ),
        }
    }

    /// `(x - mean) / deviation` along the last axis, or its inverse, in float64 and rounded once.
    pub(super) fn scaled(&mut self, x: &Value, mean: &[f64], deviation: &[f64], undo: bool) -> Result<Value> {
        let width = x.dims.last().copied().unwrap_or(1);
        if x.dtype != Type::F32 || [mean.len(), deviation.len()] != [width, width] {
            let why = format!(
                "{} means and {} deviations for a last axis of {width} numbers",
                mean.len(),
                deviation.len()
            );
            return Err(Error::argument("onnx", "scaling", why));
        }
        let doubles = |l: &mut Self, all: &[f64]| {
            l.constant(Type::F64, &[all.len()], all.iter().flat_map(|x| x.to_le_bytes()).collect())
        };
        let (mean, deviation) = (doubles(self, mean), doubles(self, deviation));
        let wide = self.cast(x, Type::F64);
        let steps =
            if undo { [("Mul", &deviation), ("Add", &mean)] } else { [("Sub", &mean), ("Div", &deviation)] };
        let scaled = steps.into_iter().fold(wide, |x, (op, by)| self.binary(op, &x, by));
        Ok(self.cast(&scaled, Type::F32))
    }

    /// The value under the name of an output.
    pub(super) fn output(&mut self, name: &str, v: &Value) -> Value {
        let outputs = vec![name.to_string()];
        self.nodes.push(Node {
            op: "Identity",
            name: name.into(),
            inputs: vec![v.name.clone()],
            outputs,
            attributes: vec![],
        });
        Value { name: name.into(), ..v.clone() }
    }
}
