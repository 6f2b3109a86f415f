//! What each op is in ONNX. Elementwise ops are lowered instruction by instruction from their programs, and reductions
//! stage by stage from their folds, so that neither needs a line here; every other op has an arm of [`Lowering::op`] or is
//! refused by name.
//!
//! Shapes are known, so each value here carries its own, and an op whose value has no elements is that value. Whole
//! numbers are int64.

use super::proto::{Attribute, Body, Initializer, Node, Type, Value};
use crate::device::{DType, Meta};
use crate::error::{Error, Result};
use crate::graph::{Graph, Source, What};
use crate::ops::attention::{self, AttentionMask};
use crate::ops::fused::Fused;
use crate::ops::layout::{Pad, packed};
use crate::ops::pointwise::program::{Instr, Program, Reg};
use crate::ops::pool::PoolWindow;
use crate::ops::reduce::fold::{self, Fold, Kind};
use crate::ops::spectral::DftTable;
use crate::ops::{AnyOp, Attrs, Op, Val};
use crate::session::unbound;
use crate::shape::Shape;
use crate::tensor::Tensor;
use std::collections::{BTreeMap, BTreeSet};

/// Longest line whose transform is written as a product with a table, which has the square of so many elements.
const MAX_LINE: usize = 4096;

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

fn ints(all: &[usize]) -> Vec<i64> {
    all.iter().map(|x| *x as i64).collect()
}

/// The shape of two values together, by NumPy's rule.
fn broadcast(a: &[usize], b: &[usize]) -> Vec<usize> {
    let rank = a.len().max(b.len());
    let at = |d: &[usize], axis: usize| (axis + d.len()).checked_sub(rank).map_or(1, |i| d[i]);
    (0..rank).map(|axis| if at(a, axis) == 1 { at(b, axis) } else { at(a, axis) }).collect()
}

/// The dimensions as three: before some neighbouring axes, along them, behind them.
fn around(d: &[usize], axes: std::ops::Range<usize>) -> [usize; 3] {
    [&d[..axes.start], &d[axes.clone()], &d[axes.end..]].map(|d| d.iter().product())
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
        let missing = crate::error::ErrorKind::Internal { what: "a value that was not lowered" };
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

    /// A constant from its bytes.
    fn constant(&mut self, dtype: Type, dims: &[usize], bytes: Vec<u8>) -> Value {
        let key = (dtype, dims.to_vec(), bytes);
        if let Some(name) = self.constants.get(&key) {
            return Value { name: name.clone(), dtype, dims: key.1 };
        }
        let mut n = self.constants.len();
        let name = loop {
            let name = format!("c{n}");
            if self.taken.insert(name.clone()) {
                break name;
            }
            n += 1;
        };
        self.constants.insert(key.clone(), name.clone());
        let value = Value { name, dtype, dims: key.1 };
        self.initializers.push(Initializer { value: value.clone(), bytes: key.2 });
        value
    }

    fn numbers(&mut self, dims: &[usize], all: &[f32]) -> Value {
        self.constant(Type::F32, dims, all.iter().flat_map(|x| x.to_le_bytes()).collect())
    }

    fn wholes(&mut self, dims: &[usize], all: &[i64]) -> Value {
        self.constant(Type::I64, dims, all.iter().flat_map(|x| x.to_le_bytes()).collect())
    }

    fn list(&mut self, all: &[i64]) -> Value {
        self.wholes(&[all.len()], all)
    }

    fn truths(&mut self, dims: &[usize], f: impl Fn(usize) -> bool) -> Value {
        let count: usize = dims.iter().product();
        self.constant(Type::Bool, dims, (0..count).map(|i| u8::from(f(i))).collect())
    }

    /// A single number.
    fn c(&mut self, x: f32) -> Value {
        self.numbers(&[], &[x])
    }

    /// Zeros of a type.
    fn zero(&mut self, dtype: Type) -> Value {
        if dtype == Type::I64 { self.wholes(&[], &[0]) } else { self.c(0.0) }
    }

    /// A node with one result.
    fn node(
        &mut self,
        op: &'static str,
        ins: &[&Value],
        attributes: Vec<(&'static str, Attribute)>,
        dtype: Type,
        dims: &[usize],
    ) -> Value {
        let name = self.fresh();
        let inputs = ins.iter().map(|v| v.name.clone()).collect();
        self.nodes.push(Node { op, name: name.clone(), inputs, outputs: vec![name.clone()], attributes });
        Value { name, dtype, dims: dims.to_vec() }
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

    fn unary(&mut self, op: &'static str, x: &Value) -> Value {
        self.node(op, &[x], vec![], x.dtype, &x.dims)
    }

    fn binary(&mut self, op: &'static str, a: &Value, b: &Value) -> Value {
        self.node(op, &[a, b], vec![], a.dtype, &broadcast(&a.dims, &b.dims))
    }

    fn compare(&mut self, op: &'static str, a: &Value, b: &Value) -> Value {
        self.node(op, &[a, b], vec![], Type::Bool, &broadcast(&a.dims, &b.dims))
    }

    fn choose(&mut self, truth: &Value, a: &Value, b: &Value) -> Value {
        let dims = broadcast(&truth.dims, &broadcast(&a.dims, &b.dims));
        self.node("Where", &[truth, a, b], vec![], a.dtype, &dims)
    }

    fn cast(&mut self, x: &Value, to: Type) -> Value {
        self.node("Cast", &[x], vec![("to", Attribute::Int(to as i64))], to, &x.dims)
    }

    fn reshape(&mut self, x: &Value, dims: &[usize]) -> Value {
        if x.dims == dims {
            return x.clone();
        }
        if x.numel() == 0 {
            // A 0 would say that the dimension stays as it is.
            return self.constant(x.dtype, dims, Vec::new());
        }
        let shape = self.list(&ints(dims));
        self.node("Reshape", &[x, &shape], vec![], x.dtype, dims)
    }

    fn expand(&mut self, x: &Value, dims: &[usize]) -> Value {
        if x.dims == dims {
            return x.clone();
        }
        let shape = self.list(&ints(dims));
        self.node("Expand", &[x, &shape], vec![], x.dtype, dims)
    }

    fn transpose(&mut self, x: &Value, order: &[usize]) -> Value {
        if order.iter().enumerate().all(|(i, o)| i == *o) {
            return x.clone();
        }
        let dims: Vec<usize> = order.iter().map(|o| x.dims[*o]).collect();
        self.node("Transpose", &[x], vec![("perm", Attribute::Ints(ints(order)))], x.dtype, &dims)
    }

    /// With its last two axes exchanged if `yes`.
    fn turned(&mut self, x: &Value, yes: bool) -> Value {
        let mut order: Vec<usize> = (0..x.rank()).collect();
        if yes && order.len() >= 2 {
            order.swap(x.rank() - 2, x.rank() - 1);
        }
        self.transpose(x, &order)
    }

    /// Elements of an axis from `start` on.
    fn slice(&mut self, x: &Value, axis: usize, start: usize, len: usize, step: usize) -> Value {
        if len == x.dims[axis] {
            return x.clone();
        }
        let end = start + len.saturating_sub(1) * step + 1;
        let args = [start, end, axis, step].map(|n| self.list(&[n as i64]));
        let mut dims = x.dims.clone();
        dims[axis] = len;
        let [start, end, axis, step] = &args;
        self.node("Slice", &[x, start, end, axis, step], vec![], x.dtype, &dims)
    }

    /// With `before` and `after` elements more along an axis.
    fn pad(&mut self, x: &Value, axis: usize, before: usize, after: usize, value: f32) -> Value {
        if before + after == 0 {
            return x.clone();
        }
        let pads = self.list(&ints(&[before, after]));
        let value = if x.dtype == Type::I64 { self.wholes(&[], &[value as i64]) } else { self.c(value) };
        let axes = self.list(&[axis as i64]);
        let mut dims = x.dims.clone();
        dims[axis] += before + after;
        self.node("Pad", &[x, &pads, &value, &axes], vec![], x.dtype, &dims)
    }

    fn concat(&mut self, all: &[&Value], axis: usize) -> Value {
        let Some(first) = all.first() else { return self.c(0.0) };
        let mut dims = first.dims.clone();
        dims[axis] = all.iter().map(|v| v.dims[axis]).sum();
        self.node("Concat", all, vec![("axis", Attribute::Int(axis as i64))], first.dtype, &dims)
    }

    fn matmul(&mut self, a: &Value, b: &Value) -> Value {
        let (lead_a, m) = a.dims.split_at(a.rank() - 2);
        let (lead_b, n) = b.dims.split_at(b.rank() - 2);
        let dims = [&broadcast(lead_a, lead_b)[..], &[m[0], n[1]]].concat();
        if m[1] == 0 {
            // Sums of nothing, which runtimes are not sure of.
            return self.zeros(&dims);
        }
        self.node("MatMul", &[a, b], vec![], Type::F32, &dims)
    }

    fn zeros(&mut self, dims: &[usize]) -> Value {
        let zero = self.c(0.0);
        self.expand(&zero, dims)
    }

    /// Folded over axes, which stay as ones.
    fn reduce(&mut self, op: &'static str, x: &Value, axes: &[usize]) -> Value {
        if axes.is_empty() {
            return x.clone();
        }
        let list = self.list(&ints(axes));
        let mut dims = x.dims.clone();
        axes.iter().for_each(|a| dims[*a] = 1);
        self.node(op, &[x, &list], vec![("keepdims", Attribute::Int(1))], x.dtype, &dims)
    }

    /// What an elementwise program gives.
    fn program(&mut self, program: &Program, ins: &[Value]) -> Vec<Value> {
        let consts: Vec<Value> = program.consts().iter().map(|k| self.c(*k)).collect();
        let mut steps: Vec<Value> = Vec::new();
        let read = |reg: &Reg, steps: &[Value]| match reg {
            Reg::In(i) => ins[*i as usize].clone(),
            Reg::Const(c) => consts[*c as usize].clone(),
            Reg::Step(s) => steps[*s as usize].clone(),
        };
        for step in program.steps() {
            let args = step.args.each_ref().map(|r| read(r, &steps));
            steps.push(self.instr(step.instr, &args));
        }
        program.results().iter().map(|r| read(r, &steps)).collect()
    }

    /// One instruction of a program.
    fn instr(&mut self, instr: Instr, [a, b, c, d]: &[Value; 4]) -> Value {
        match instr {
            Instr::Neg => self.unary("Neg", a),
            Instr::Abs => self.unary("Abs", a),
            Instr::Sqrt => self.unary("Sqrt", a),
            Instr::Exp | Instr::Decay => self.unary("Exp", a),
            Instr::Expm1 => {
                // tanh(x / 2) (e^x + 1), which keeps small results accurate.
                let (half, one) = (self.c(0.5), self.c(1.0));
                let half = self.binary("Mul", a, &half);
                let tanh = self.unary("Tanh", &half);
                let exp = self.unary("Exp", a);
                let sum = self.binary("Add", &exp, &one);
                self.binary("Mul", &tanh, &sum)
            }
            Instr::Log => self.unary("Log", a),
            Instr::Log1p => {
                // With u = 1 + x rounded, ln(u) x / (u - 1): what was rounded off cancels. Where u is 1 it is x, and
                // where nothing was rounded off, as at infinity, ln(u).
                let (one, zero) = (self.c(1.0), self.c(0.0));
                let u = self.binary("Add", a, &one);
                let back = self.binary("Sub", &u, &one);
                let log = self.unary("Log", &u);
                let ratio = self.binary("Div", a, &back);
                let value = self.binary("Mul", &log, &ratio);
                let exact = self.compare("Equal", &back, a);
                let value = self.choose(&exact, &log, &value);
                let tiny = self.compare("Equal", &back, &zero);
                self.choose(&tiny, a, &value)
            }
            Instr::Tanh => self.unary("Tanh", a),
            Instr::Sigmoid => self.unary("Sigmoid", a),
            Instr::Softplus => self.unary("Softplus", a),
            Instr::Sin => self.unary("Sin", a),
            Instr::Cos => self.unary("Cos", a),
            Instr::Erf => self.unary("Erf", a),
            Instr::Floor => self.unary("Floor", a),
            Instr::Round => self.unary("Round", a),
            Instr::Add => self.binary("Add", a, b),
            Instr::Sub => self.binary("Sub", a, b),
            Instr::Mul => self.binary("Mul", a, b),
            Instr::Div => self.binary("Div", a, b),
            Instr::Pow => self.binary("Pow", a, b),
            Instr::Max => self.binary("Max", a, b),
            Instr::Min => self.binary("Min", a, b),
            Instr::Fma => {
                let product = self.binary("Mul", a, b);
                self.binary("Add", &product, c)
            }
            Instr::WhereGt => {
                let truth = self.compare("Greater", a, b);
                self.choose(&truth, c, d)
            }
            Instr::WhereLe => {
                let truth = self.compare("LessOrEqual", a, b);
                self.choose(&truth, c, d)
            }
            Instr::WhereEq => {
                let truth = self.compare("Equal", a, b);
                self.choose(&truth, c, d)
            }
        }
    }

    /// What a fold over axes of values of shape `dims` gives; the axes stay as ones.
    fn fold(&mut self, fold: &Fold, dims: &[usize], axes: &[usize], ins: &[Value]) -> Result<Value> {
        let kept = fold::kept(&Shape::new(dims)?, axes);
        let (all, aux) = ins.split_at(fold.ins);
        let mut given: Vec<Value> = aux.iter().map(|v| self.reshape(v, kept.dims())).collect();
        for stage in &fold.stages {
            let mut element = self.program(&stage.load, &[all, &given[..]].concat());
            let element = self.expand(&element.swap_remove(0), dims);
            let op = match stage.kind {
                Kind::Sum => "ReduceSum",
                Kind::Product => "ReduceProd",
                Kind::Max => "ReduceMax",
                Kind::Min => "ReduceMin",
            };
            let folded = self.reduce(op, &element, axes);
            let mut result = self.program(&stage.post, &[&[folded], &given[..]].concat());
            let result = self.expand(&result.swap_remove(0), kept.dims());
            given.push(result);
        }
        Ok(given.swap_remove(given.len() - 1))
    }

    /// Results one behind the other in a flat value, each from a multiple of four words on.
    fn pack(&mut self, at: u32, parts: Vec<Value>) -> Result<Value> {
        let shapes = parts.iter().map(|v| Shape::new(&v.dims)).collect::<Result<Vec<_>>>()?;
        let (starts, _) = packed(&shapes);
        let mut flat = Vec::new();
        for part in &parts {
            let (n, line) = (part.numel(), self.reshape(part, &[part.numel()]));
            flat.push(self.pad(&line, 0, 0, n.next_multiple_of(4) - n, 0.0));
        }
        let whole = self.concat(&flat.iter().collect::<Vec<_>>(), 0);
        self.parts.insert(at, starts.iter().copied().zip(parts).collect());
        Ok(whole)
    }

    /// Less its mean over axes if `centered`, over the root of the mean square.
    fn normalized(&mut self, x: &Value, axes: &[usize], centered: bool, eps: f32) -> Value {
        let (x, var) = self.spread(x, axes, centered);
        let eps = self.c(eps);
        let sum = self.binary("Add", &var, &eps);
        let root = self.unary("Sqrt", &sum);
        self.binary("Div", &x, &root)
    }

    /// The distance from the mean over axes, or from 0, and the mean of its square.
    fn spread(&mut self, x: &Value, axes: &[usize], centered: bool) -> (Value, Value) {
        let mut x = x.clone();
        if centered {
            let mean = self.reduce("ReduceMean", &x, axes);
            x = self.binary("Sub", &x, &mean);
        }
        let square = self.binary("Mul", &x, &x);
        (x, self.reduce("ReduceMean", &square, axes))
    }

    /// `x gain + shift`, as many of them as there are, under a shape that they are broadcast by.
    fn affine(&mut self, x: Value, gains: &[Value], dims: &[usize]) -> Value {
        ["Mul", "Add"].into_iter().zip(gains).fold(x, |x, (op, by)| {
            let by = self.reshape(by, dims);
            self.binary(op, &x, &by)
        })
    }

    /// Where a mask lets through.
    fn open(&mut self, mask: &Value) -> Value {
        let size = if mask.dtype == Type::I64 { mask.clone() } else { self.unary("Abs", mask) };
        let zero = self.zero(mask.dtype);
        self.compare("Greater", &size, &zero)
    }

    /// Softmax along the last axis of what is open, and zeros elsewhere.
    fn open_softmax(&mut self, x: &Value, open: Option<&Value>, axis: usize) -> Value {
        let axis = vec![("axis", Attribute::Int(axis as i64))];
        let Some(open) = open else { return self.node("Softmax", &[x], axis, Type::F32, &x.dims) };
        let (none, zero) = (self.c(f32::NEG_INFINITY), self.c(0.0));
        let x = self.choose(open, x, &none);
        let weights = self.node("Softmax", &[&x], axis, Type::F32, &x.dims);
        // A row where nothing is open has no weights but these zeros.
        self.choose(open, &weights, &zero)
    }

    /// Outputs, logarithms and largest scores of an attention.
    fn attention(
        &mut self,
        [q, k, v]: [&Value; 3],
        mask: Option<&Value>,
        causal: bool,
        scale: Option<f64>,
    ) -> Result<Vec<Value>> {
        let rank = q.rank();
        let (n, d, m) = (q.dims[rank - 2], q.dims[rank - 1], k.dims[rank - 2]);
        let shapes = [q, v].map(|x| Shape::new(&x.dims));
        let [outputs, logs, tops] = attention::parts(shapes[0].clone()?, shapes[1].clone()?);
        if m == 0 {
            return Ok([outputs, logs, tops].map(|s| self.zeros(s.dims())).into());
        }
        let mut open = mask.map(|mask| self.open(mask));
        let (mut q, mut k, mut v) = (q.clone(), k.clone(), v.clone());
        if rank > 2 && q.dims[rank - 3] != k.dims[rank - 3] {
            // Heads that share keys stand behind them, as one more axis.
            let (lead, heads, shared) = (&q.dims[..rank - 3], q.dims[rank - 3], k.dims[rank - 3]);
            let split = |last: &[usize]| [lead, &[shared, heads / shared], last].concat();
            if let Some(mask) = open {
                let full = [lead, &[heads, n, m]].concat();
                let mask = self.expand(&mask, &full);
                open = Some(self.reshape(&mask, &split(&[n, m])));
            }
            let spread = |x: &Value| [lead, &[shared, 1], &x.dims[rank - 2..]].concat();
            let (k_dims, v_dims, q_dims) = (spread(&k), spread(&v), split(&[n, d]));
            (k, v, q) = (self.reshape(&k, &k_dims), self.reshape(&v, &v_dims), self.reshape(&q, &q_dims));
        }
        if causal {
            let below = self.truths(&[n, m], |at| at % m <= at / m);
            open = Some(match open {
                Some(mask) => self.compare("And", &mask, &below),
                None => below,
            });
        }
        let keys = self.turned(&k, true);
        let products = self.matmul(&q, &keys);
        let scale = scale.unwrap_or_else(|| 1.0 / (d.max(1) as f64).sqrt());
        let scores = if scale < 0.0 { self.unary("Neg", &products) } else { products };
        let scale = self.c(scale.abs() as f32);
        let scaled = self.binary("Mul", &scores, &scale);
        let weights = self.open_softmax(&scaled, open.as_ref(), scaled.rank() - 1);
        let sums = self.matmul(&weights, &v);
        let sums = self.reshape(&sums, outputs.dims());
        let none = self.c(f32::NEG_INFINITY);
        let scores = match &open {
            Some(open) => self.choose(open, &scores, &none),
            None => scores,
        };
        let top = self.reduce("ReduceMax", &scores, &[scores.rank() - 1]);
        let below = self.binary("Sub", &scores, &top);
        let below = self.binary("Mul", &below, &scale);
        let log = self.reduce("ReduceLogSumExp", &below, &[below.rank() - 1]);
        let (factor, zero) = (self.c(std::f32::consts::LOG2_E), self.c(0.0));
        let log = self.binary("Mul", &log, &factor);
        let empty = self.compare("Equal", &top, &none);
        let [log, top] = [log, top].map(|x| self.choose(&empty, &zero, &x));
        Ok(vec![sums, self.reshape(&log, logs.dims()), self.reshape(&top, tops.dims())])
    }

    /// A spectrum (batch, 2, modes, c) times complex weights (modes, c, o), mode by mode.
    fn mode_mix(&mut self, x: &Value, [re, im]: [&Value; 2], adjoint: bool) -> Value {
        let (batch, modes, inner) = (x.dims[0], x.dims[2], x.dims[3]);
        let x = self.transpose(x, &[1, 2, 0, 3]);
        let part = |l: &mut Self, i: usize| {
            let one = l.slice(&x, 0, i, 1, 1);
            l.reshape(&one, &[modes, batch, inner])
        };
        let (xr, xi) = (part(self, 0), part(self, 1));
        let (re, mut im) = (self.turned(re, adjoint), self.turned(im, adjoint));
        if adjoint {
            im = self.unary("Neg", &im);
        }
        let mut both = Vec::new();
        for (a, b, op) in [(&re, &im, "Sub"), (&im, &re, "Add")] {
            let (first, second) = (self.matmul(&xr, a), self.matmul(&xi, b));
            let sum = self.binary(op, &first, &second);
            let dims = [&[1], &sum.dims[..]].concat();
            both.push(self.reshape(&sum, &dims));
        }
        let both = self.concat(&both.iter().collect::<Vec<_>>(), 0);
        self.transpose(&both, &[2, 0, 1, 3])
    }

    /// The plain table of a transform, or the weighted one.
    fn table(&mut self, n: usize, modes: usize, weighted: bool) -> Result<Value> {
        let op = DftTable { n, low: modes, high: 0, complex: false };
        let both = rounded(&op.reference::<f64>(&[])?);
        let (plain, scaled) = both.split_at(2 * modes * n);
        Ok(self.numbers(&[2 * modes, n], if weighted { scaled } else { plain }))
    }

    /// Indices along an axis of `x` that are within it: those out of range read a zero behind its end.
    fn within(&mut self, x: &Value, index: &Value, axis: usize) -> (Value, Value) {
        let beyond = self.wholes(&[], &[x.dims[axis] as i64]);
        (self.pad(x, axis, 0, 1, 0.0), self.binary("Min", index, &beyond))
    }

    /// Elements added along an axis of a value with `size` elements there, each at an index of its own.
    fn scatter(
        &mut self,
        (src, index): (&Value, &Value),
        base: Option<&Value>,
        (axis, size, checked): (usize, usize, bool),
    ) -> Value {
        let mut dims = src.dims.clone();
        dims[axis] = size;
        let base = match base {
            Some(base) => self.reshape(base, &dims),
            None => self.zeros(&dims),
        };
        if src.numel() == 0 {
            return base;
        }
        let (base, index) = if checked { (base, index.clone()) } else { self.within(&base, index, axis) };
        let attributes = vec![("axis", Attribute::Int(axis as i64)), ("reduction", Attribute::Text("add"))];
        let sum = self.node("ScatterElements", &[&base, &index, src], attributes, Type::F32, &base.dims);
        self.slice(&sum, axis, 0, size, 1)
    }

    /// The attributes of windows, and the value with two axes before those that are pooled.
    fn pooled(&mut self, x: &Value, axes: usize) -> Value {
        let (lead, sizes) = x.dims.split_at(x.rank() - axes);
        if lead.len() == 2 {
            return x.clone();
        }
        let dims = [&[lead.iter().product(), 1], sizes].concat();
        self.reshape(x, &dims)
    }

    fn pool(
        &mut self,
        place: &Place<'_>,
        op: &'static str,
        x: &Value,
        window: &PoolWindow,
        more: Option<(&'static str, Attribute)>,
    ) -> Result<Value> {
        let axes = window.kernel.len();
        if axes > 3 {
            return Err(place.none("ONNX runtimes pool at most three axes"));
        }
        if (0..axes).any(|a| window.padding[a] >= window.kernel[a]) {
            return Err(place.none("ONNX has no padding as wide as the window; pad the value first"));
        }
        let four = self.pooled(x, axes);
        let pads = [&window.padding[..], &window.padding].concat();
        let lists = [
            ("kernel_shape", &window.kernel),
            ("strides", &window.stride),
            ("dilations", &window.dilation),
            ("pads", &pads),
        ];
        let mut attributes: Vec<_> = lists.map(|(name, all)| (name, Attribute::Ints(ints(all)))).into();
        attributes.extend(more);
        let out = place.out.shape.dims();
        let dims = [&four.dims[..2], &out[out.len() - axes..]].concat();
        let value = self.node(op, &[&four], attributes, Type::F32, &dims);
        Ok(self.reshape(&value, out))
    }

    /// A convolution, or with the sizes of its value a transposed one.
    fn conv(
        &mut self,
        place: &Place<'_>,
        ins: &[Value],
        window: &crate::ops::conv::ConvWindow,
        size: Option<&[u32]>,
    ) -> Value {
        if ins[1].numel() == 0 {
            // Without channels there is nothing but the bias.
            let value = self.zeros(place.out.shape.dims());
            let dims = [&[ins.get(2).map_or(1, Value::numel)], &vec![1; ins[1].rank() - 2][..]].concat();
            let bias = ins.get(2).map(|bias| self.reshape(bias, &dims));
            return bias.map_or(value.clone(), |bias| self.binary("Add", &value, &bias));
        }
        let wide = |s: &[u32]| s.iter().map(|x| i64::from(*x)).collect::<Vec<i64>>();
        let (w, axes) = (&ins[1], ins[1].rank() - 2);
        // The batch axis may be absent.
        let batched = if ins[0].rank() == w.rank() {
            ins[0].clone()
        } else {
            self.reshape(&ins[0], &[&[1], &ins[0].dims[..]].concat())
        };
        let [stride, padding, dilation] =
            [&window.stride, &window.padding, &window.dilation].map(|s| wide(s.get()));
        let kernel = ints(&w.dims[2..]);
        let mut attributes = vec![];
        if let Some(size) = size {
            let rest = (0..axes).map(|a| {
                let least = (batched.dims[2 + a] as i64 - 1) * stride[a] - 2 * padding[a]
                    + dilation[a] * (kernel[a] - 1)
                    + 1;
                i64::from(size[a]) - least
            });
            attributes.push(("output_padding", Attribute::Ints(rest.collect())));
        }
        attributes.extend([
            ("kernel_shape", Attribute::Ints(kernel)),
            ("strides", Attribute::Ints(stride)),
            ("pads", Attribute::Ints([&padding[..], &padding].concat())),
            ("dilations", Attribute::Ints(dilation)),
            ("group", Attribute::Int(window.groups as i64)),
        ]);
        let out = place.out.shape.dims();
        let dims = if ins[0].rank() == w.rank() { out.to_vec() } else { [&[1], out].concat() };
        let all: Vec<&Value> = [&batched].into_iter().chain(&ins[1..]).collect();
        let op = if size.is_some() { "ConvTranspose" } else { "Conv" };
        let value = self.node(op, &all, attributes, Type::F32, &dims);
        self.reshape(&value, out)
    }

    /// The recurrence as a loop over time.
    fn scan(&mut self, [a, b, x, h0]: [&Value; 4]) -> Value {
        let rank = x.rank();
        let [batch, steps, states] = around(&x.dims, rank - 2..rank - 1);
        let inflow = self.binary("Mul", b, x);
        let inflow = self.reshape(&inflow, &[batch, steps, states]);
        let first = self.reshape(h0, &[batch, states]);
        let varies = a.rank() == rank;
        let factor = if varies { self.reshape(a, &[batch, steps, states]) } else { a.clone() };
        let line = |l: &mut Self| Value { name: l.fresh(), dtype: Type::F32, dims: vec![batch, states] };
        let (before, inflow_now, factor_now) = (line(self), line(self), line(self));
        let mut body = Lowering::new(self.graph);
        std::mem::swap(&mut body.taken, &mut self.taken);
        body.begin(format!("{}.step", self.place));
        let kept = body.binary("Mul", if varies { &factor_now } else { &factor }, &before);
        let now = body.binary("Add", &kept, &inflow_now);
        let seen = body.unary("Identity", &now);
        std::mem::swap(&mut body.taken, &mut self.taken);
        let mut inputs = vec![before, inflow_now];
        let mut all = vec![first.name, inflow.name];
        if varies {
            inputs.push(factor_now);
            all.push(factor.name);
        }
        let body = Body { nodes: body.nodes, inputs, outputs: vec![now, seen] };
        let scanned = all.len() - 1;
        let attributes = vec![
            ("body", Attribute::Graph(body)),
            ("num_scan_inputs", Attribute::Int(scanned as i64)),
            ("scan_input_axes", Attribute::Ints(vec![1; scanned])),
            ("scan_output_axes", Attribute::Ints(vec![1])),
        ];
        let (last, value) = (self.fresh(), self.fresh());
        let outputs = vec![last, value.clone()];
        self.nodes.push(Node { op: "Scan", name: value.clone(), inputs: all, outputs, attributes });
        let value = Value { name: value, dtype: Type::F32, dims: vec![batch, steps, states] };
        self.reshape(&value, &x.dims)
    }

    /// An op with the expressions before and after it, one after the other.
    fn fused(&mut self, place: Place<'_>, fused: &Fused, ins: &[Value]) -> Result<Value> {
        let ([own, before, after], [metas, _, _]) = (fused.parts(ins), fused.parts(place.metas));
        let (mut all, mut types) = (own.to_vec(), metas.to_vec());
        if let Some(p) = &fused.prologue {
            let mut made = self.program(&p.program, before);
            all.insert(p.slot, self.expand(&made.swap_remove(0), p.shape.dims()));
            types.insert(p.slot, Meta::f32(p.shape));
        }
        let out = fused.op.shape(&types)?;
        let value = self.op(Place { op: &fused.op, metas: &types, out, ..place }, &all)?;
        let Some(e) = &fused.epilogue else { return Ok(value) };
        let value = self.reshape(&value, e.shape.dims());
        let results = self.program(&e.program, &[&[value], after].concat());
        self.results(place.at, results, &e.shape)
    }

    /// One op of the program. Its value has elements.
    fn op(&mut self, place: Place<'_>, ins: &[Value]) -> Result<Value> {
        let (op, metas, out) = (place.op, place.metas, place.out.shape);
        if let AnyOp::Fused(fused) = op
            && fused.fold(metas).is_none()
        {
            return self.fused(place, fused, ins);
        }
        if let AnyOp::Map(map) = op {
            let results = self.program(&map.program, ins);
            return self.results(place.at, results, &map.shape);
        }
        if let AnyOp::BroadcastTo(to) = op {
            // Ones where an axis is inserted, then repeated.
            let dim = |entry: Option<usize>| entry.map_or(1, |axis| ins[0].dims[axis]);
            let dims: Vec<usize> = to.map.entries().map(dim).collect();
            let x = self.reshape(&ins[0], &dims);
            return Ok(self.expand(&x, out.dims()));
        }
        if let Some(program) = op.as_program(metas) {
            let results = self.program(&program, ins);
            return self.results(place.at, results, &out);
        }
        let fold = match op {
            AnyOp::Fused(fused) => fused.fold(metas),
            _ => op.as_fold(metas),
        };
        if let Some((fold, axes)) = fold {
            let value = self.fold(&fold, metas[0].shape.dims(), &axes, ins)?;
            return Ok(self.reshape(&value, out.dims()));
        }
        use AnyOp::{LogSoftmax, LogSoftmaxBwd, MaskedSoftmax, Softmax, SoftmaxBwd};
        if out.rank() == 0
            && matches!(op, Softmax(_) | LogSoftmax(_) | SoftmaxBwd(_) | LogSoftmaxBwd(_) | MaskedSoftmax(_))
        {
            // A single number is a row of one.
            let rows: Vec<Value> = ins.iter().map(|v| self.reshape(v, &[1])).collect();
            let value = self.op(Place { out: Meta::f32(Shape::new(&[1])?), ..place }, &rows)?;
            return Ok(self.reshape(&value, &[]));
        }
        Ok(match op {
            AnyOp::Reshape(_) | AnyOp::Detach(_) => self.reshape(&ins[0], out.dims()),
            AnyOp::Permute(p) => self.transpose(&ins[0], &p.order),
            AnyOp::Slice(s) => {
                let parts = self.parts.get(&place.ins[0].0);
                let part = parts
                    .into_iter()
                    .flatten()
                    .find(|(start, v)| (s.axis, s.start, s.len, s.step) == (0, *start, v.numel(), 1));
                match part.map(|(_, v)| v.clone()) {
                    Some(part) => self.reshape(&part, out.dims()),
                    None => self.slice(&ins[0], s.axis, s.start, s.len, s.step),
                }
            }
            AnyOp::Pad(p) => self.spaced(&ins[0], p),
            AnyOp::Concat(c) => self.concat(&ins.iter().collect::<Vec<_>>(), c.axis),
            AnyOp::Flip(f) => {
                let n = f.axes.len();
                let args =
                    [vec![-1; n], vec![i64::MIN; n], ints(&f.axes), vec![-1; n]].map(|all| self.list(&all));
                let [start, end, axes, step] = &args;
                match n {
                    0 => ins[0].clone(),
                    _ => self.node(
                        "Slice",
                        &[&ins[0], start, end, axes, step],
                        vec![],
                        ins[0].dtype,
                        out.dims(),
                    ),
                }
            }
            AnyOp::Triangle(t) => {
                // Further than every size is as good as the size, and takes a runtime less time.
                let most = ins[0].dims[out.rank() - 2..].iter().sum::<usize>() as i64;
                let shift = self.wholes(&[], &[t.shift.clamp(-most, most)]);
                let upper = vec![("upper", Attribute::Int(i64::from(t.upper)))];
                self.node("Trilu", &[&ins[0], &shift], upper, ins[0].dtype, out.dims())
            }
            AnyOp::IndexSelect(s) => {
                let (x, index) = match s.checked {
                    true => (ins[0].clone(), ins[1].clone()),
                    false => self.within(&ins[0], &ins[1], s.axis),
                };
                let axis = vec![("axis", Attribute::Int(s.axis as i64))];
                self.node("Gather", &[&x, &index], axis, x.dtype, out.dims())
            }
            AnyOp::TakeAlongAxis(t) => {
                let (x, index) = match t.checked {
                    true => (ins[0].clone(), ins[1].clone()),
                    false => self.within(&ins[0], &ins[1], t.axis),
                };
                let axis = vec![("axis", Attribute::Int(t.axis as i64))];
                self.node("GatherElements", &[&x, &index], axis, x.dtype, out.dims())
            }
            AnyOp::ScatterAdd(s) => self.scatter((&ins[0], &ins[1]), ins.get(2), (s.axis, s.size, s.checked)),
            AnyOp::IndexAdd(s) => {
                let [outer, _, inner] = around(out.dims(), s.axis..s.axis + 1);
                let count = ins[1].numel();
                let src = self.reshape(&ins[0], &[outer, count, inner]);
                let index = self.reshape(&ins[1], &[1, count, 1]);
                let index = self.expand(&index, &[outer, count, inner]);
                let sum = self.scatter((&src, &index), ins.get(2), (1, s.size, s.checked));
                self.reshape(&sum, out.dims())
            }
            AnyOp::Argmax(_) | AnyOp::Argmin(_) => {
                let axes =
                    Attrs(op.attrs().into_iter().map(|(n, a)| (n.to_string(), a)).collect()).list("axes")?;
                let Some((first, last)) = axes.first().zip(axes.last()) else {
                    let zero = self.zero(Type::I64);
                    return Ok(self.expand(&zero, out.dims()));
                };
                let three = self.reshape(&ins[0], &around(&ins[0].dims, *first..last + 1));
                let name = if matches!(op, AnyOp::Argmax(_)) { "ArgMax" } else { "ArgMin" };
                let attributes = vec![("axis", Attribute::Int(1)), ("keepdims", Attribute::Int(0))];
                let place =
                    self.node(name, &[&three], attributes, Type::I64, &[three.dims[0], three.dims[2]]);
                self.reshape(&place, out.dims())
            }
            AnyOp::MatMul(m) => self.product(ins, m.ta, m.tb),
            AnyOp::Bmm(m) => self.product(ins, m.ta, m.tb),
            AnyOp::Linear(_) if ins[1].numel() == 0 => self.expand(&ins[2], out.dims()),
            AnyOp::Linear(_) if ins[0].rank() == 2 => {
                let attributes = vec![("transB", Attribute::Int(1))];
                self.node("Gemm", &[&ins[0], &ins[1], &ins[2]], attributes, Type::F32, out.dims())
            }
            AnyOp::Linear(_) => {
                let rows = self
                    .reshape(&ins[0], &[ins[0].dims[..ins[0].rank() - 1].iter().product(), ins[1].dims[1]]);
                let attributes = vec![("transB", Attribute::Int(1))];
                let dims = [rows.dims[0], ins[1].dims[0]];
                let y = self.node("Gemm", &[&rows, &ins[1], &ins[2]], attributes, Type::F32, &dims);
                self.reshape(&y, out.dims())
            }
            AnyOp::AxisMatMul(m) => {
                let a = self.turned(&ins[0], m.ta);
                self.matmul(&a, &ins[1])
            }
            AnyOp::ModeMix(m) => {
                let (lead, last) = ins[0].dims.split_at(ins[0].rank() - 3);
                let dims = [&[lead.iter().product()], last].concat();
                let x = self.reshape(&ins[0], &dims);
                let y = self.mode_mix(&x, [&ins[1], &ins[2]], m.adjoint);
                self.reshape(&y, out.dims())
            }
            AnyOp::SpectralConv1d(_) => {
                let rank = ins[0].rank();
                let [batch, n, c] = around(&ins[0].dims, rank - 2..rank - 1);
                let (modes, o) = (ins[1].dims[0], ins[1].dims[2]);
                if modes == 0 {
                    return Ok(self.zeros(out.dims()));
                }
                let (plain, weighted) = (self.table(n, modes, false)?, self.table(n, modes, true)?);
                let x = self.reshape(&ins[0], &[batch, n, c]);
                let x = self.matmul(&plain, &x);
                let x = self.reshape(&x, &[batch, 2, modes, c]);
                let z = self.mode_mix(&x, [&ins[1], &ins[2]], false);
                let z = self.reshape(&z, &[batch, 2 * modes, o]);
                let back = self.turned(&weighted, true);
                let y = self.matmul(&back, &z);
                self.reshape(&y, out.dims())
            }
            AnyOp::Rfft(f) => {
                let (rows, n) = (metas[0].shape.rows(), metas[0].shape.last());
                let modes = self.line(&place, n)?;
                let table = self.table(n, modes, f.scaled)?;
                let table = self.turned(&table, true);
                let x = self.reshape(&ins[0], &[rows, n]);
                let x = self.matmul(&x, &table);
                let x = self.reshape(&x, &[rows, 2, modes]);
                let x = self.turned(&x, true);
                self.reshape(&x, out.dims())
            }
            AnyOp::Irfft(f) => {
                let modes = self.line(&place, f.n)?;
                let table = self.table(f.n, modes, f.scaled)?;
                let rows = ins[0].numel() / (2 * modes);
                let x = self.reshape(&ins[0], &[rows, modes, 2]);
                let x = self.turned(&x, true);
                let x = self.reshape(&x, &[rows, 2 * modes]);
                let x = self.matmul(&x, &table);
                self.reshape(&x, out.dims())
            }
            AnyOp::CumSum(s) => {
                let axis = self.wholes(&[], &[s.axis as i64]);
                let flag = |name, on: bool| (name, Attribute::Int(i64::from(on)));
                let attributes = vec![flag("exclusive", s.exclusive), flag("reverse", s.reverse)];
                self.node("CumSum", &[&ins[0], &axis], attributes, Type::F32, out.dims())
            }
            AnyOp::SelectiveScan(_) => self.scan([&ins[0], &ins[1], &ins[2], &ins[3]]),
            AnyOp::Conv(c) => self.conv(&place, ins, &c.window, None),
            AnyOp::ConvTranspose(c) => self.conv(&place, ins, &c.window, Some(c.size.get())),
            AnyOp::Softmax(_) => self.open_softmax(&ins[0], None, out.rank() - 1),
            AnyOp::SoftmaxAxis(s) => self.open_softmax(&ins[0], None, s.axis),
            AnyOp::LogSoftmax(_) => self.log_softmax(&ins[0], out.rank() - 1),
            AnyOp::LogSoftmaxAxis(s) => self.log_softmax(&ins[0], s.axis),
            AnyOp::SoftmaxBwd(_) => self.softmax_slope(&ins[0], &ins[1], out.rank() - 1),
            AnyOp::SoftmaxAxisBwd(s) => self.softmax_slope(&ins[0], &ins[1], s.axis),
            AnyOp::LogSoftmaxBwd(_) => self.log_softmax_slope(&ins[0], &ins[1], out.rank() - 1),
            AnyOp::LogSoftmaxAxisBwd(s) => self.log_softmax_slope(&ins[0], &ins[1], s.axis),
            AnyOp::MaskedSoftmax(_) => {
                let open = self.open(&ins[1]);
                self.open_softmax(&ins[0], Some(&open), out.rank() - 1)
            }
            AnyOp::Attention(a) => {
                let parts = self.attention([&ins[0], &ins[1], &ins[2]], ins.get(3), a.causal, a.scale)?;
                self.pack(place.at, parts)?
            }
            AnyOp::SelfAttention(a) => {
                // (3, …, heads, n, d) from (…, n, 3, heads, d), and the outputs' heads behind n again.
                let rank = ins[0].rank();
                let tail = [rank - 2, rank - 4, rank - 1];
                let order: Vec<usize> = std::iter::once(rank - 3).chain(0..rank - 4).chain(tail).collect();
                let turned = self.transpose(&ins[0], &order);
                let one = |l: &mut Self, i| {
                    let part = l.slice(&turned, 0, i, 1, 1);
                    l.reshape(&part, &turned.dims[1..])
                };
                let (q, k, v) = (one(self, 0), one(self, 1), one(self, 2));
                let mut parts = self.attention([&q, &k, &v], None, a.causal, a.scale)?;
                let mut order: Vec<usize> = (0..rank - 1).collect();
                order.swap(rank - 4, rank - 3);
                parts[0] = self.transpose(&parts[0], &order);
                self.pack(place.at, parts)?
            }
            AnyOp::AttentionMask(a) => self.attention_mask(a, ins.first(), out.dims()),
            AnyOp::Rope(r) => {
                let (x, half) = (&ins[0], out.last() / 2);
                let [cos, sin] = [0, half].map(|at| self.slice(&ins[1], 1, at, half, 1));
                let sin = if r.inverse { self.unary("Neg", &sin) } else { sin };
                // The two members of all pairs: halves, or every other element.
                let (axis, step) = (x.rank() - 1, if r.interleaved { 2 } else { 1 });
                let second = if r.interleaved { 1 } else { half };
                let (a, b) = (self.slice(x, axis, 0, half, step), self.slice(x, axis, second, half, step));
                let mut turned = Vec::new();
                for (first, other, op) in [(&a, &b, "Sub"), (&b, &a, "Add")] {
                    let (along, across) = (self.binary("Mul", first, &cos), self.binary("Mul", other, &sin));
                    let sum = self.binary(op, &along, &across);
                    let dims = if r.interleaved { [&sum.dims[..], &[1]].concat() } else { sum.dims.clone() };
                    turned.push(self.reshape(&sum, &dims));
                }
                let axis = turned[0].rank() - 1;
                let y = self.concat(&[&turned[0], &turned[1]], axis);
                self.reshape(&y, out.dims())
            }
            AnyOp::LayerNorm(n) => {
                let rows = &ins[0].dims[out.rank() - n.axes..];
                let gain = match ins.get(1) {
                    Some(gain) => gain.clone(),
                    None => self.numbers(rows, &vec![1.0; rows.iter().product()]),
                };
                let attributes = vec![
                    ("axis", Attribute::Int((out.rank() - n.axes) as i64)),
                    ("epsilon", Attribute::Float(n.eps)),
                ];
                let all: Vec<&Value> = [&ins[0], &gain].into_iter().chain(ins.get(2)).collect();
                self.node("LayerNormalization", &all, attributes, Type::F32, out.dims())
            }
            AnyOp::RmsNorm(n) => {
                let axes: Vec<usize> = (out.rank() - n.axes..out.rank()).collect();
                let y = self.normalized(&ins[0], &axes, false, n.eps);
                self.affine(y, &ins[1..], &out.dims()[out.rank() - n.axes..])
            }
            AnyOp::BatchNorm(n) => {
                let axes: Vec<usize> = (0..out.rank()).filter(|a| *a != 1).collect();
                let y = self.normalized(&ins[0], &axes, true, n.eps);
                self.per_channel(y, &ins[1..])
            }
            AnyOp::GroupNorm(n) => {
                let groups = [out.dims()[0], n.groups, out.numel() / (out.dims()[0] * n.groups)];
                let x = self.reshape(&ins[0], &groups);
                let y = self.normalized(&x, &[2], true, n.eps);
                let y = self.reshape(&y, out.dims());
                self.per_channel(y, &ins[1..])
            }
            AnyOp::Moments(_) if ins[0].numel() == 0 => {
                // Of nothing there is no mean.
                let nan = self.c(f32::NAN);
                let each = self.expand(&nan, &[ins[0].dims[1]]);
                self.pack(place.at, vec![each.clone(), each])?
            }
            AnyOp::Moments(_) => {
                let axes: Vec<usize> = (0..ins[0].rank()).filter(|a| *a != 1).collect();
                let mean = self.reduce("ReduceMean", &ins[0], &axes);
                let (_, var) = self.spread(&ins[0], &axes, true);
                let flat = [mean, var].map(|v| self.reshape(&v, &[v.numel()]));
                self.pack(place.at, flat.into())?
            }
            AnyOp::MaxPool(p) => self.pool(&place, "MaxPool", &ins[0], &p.window, None)?,
            AnyOp::AvgPool(p) => {
                let count = ("count_include_pad", Attribute::Int(i64::from(p.count_include_pad)));
                self.pool(&place, "AveragePool", &ins[0], &p.window, Some(count))?
            }
            AnyOp::AdaptiveAvgPool(p) => {
                // The mean of a box is that of means along its sides: a product with a matrix of them along each axis.
                let first = out.rank() - p.sizes.len();
                let mut x = ins[0].clone();
                for (axis, m) in (first..).zip(&p.sizes) {
                    let (mut dims, n) = (x.dims.clone(), x.dims[axis]);
                    dims[axis] = *m;
                    let cells = |o: usize| o * n / m..((o + 1) * n).div_ceil(*m);
                    let share = |at: usize| {
                        let cells = cells(at / n);
                        if cells.contains(&(at % n)) { (1.0 / cells.len() as f64) as f32 } else { 0.0 }
                    };
                    let means = self.numbers(&[*m, n], &(0..m * n).map(share).collect::<Vec<_>>());
                    let three = self.reshape(&x, &around(&x.dims, axis..axis + 1));
                    let y = self.matmul(&means, &three);
                    x = self.reshape(&y, &dims);
                }
                x
            }
            AnyOp::Full(f) => {
                let one = self.c(f.value);
                self.expand(&one, out.dims())
            }
            AnyOp::DftTable(t) => self.numbers(out.dims(), &rounded(&t.reference::<f64>(&[])?)),
            _ if !op.differentiable() && place.ins.iter().any(|v| is_random(self.graph, *v)) => {
                return Err(place.none("ONNX has no random numbers like these; export the model as it is after training (`eval`)"));
            }
            _ => {
                return Err(place.none(
                    "it has no ONNX form here; export the values before it, or write it with other ops",
                ));
            }
        })
    }

    /// Results of one shape: the value itself, or several packed.
    fn results(&mut self, at: u32, results: Vec<Value>, shape: &Shape) -> Result<Value> {
        let mut full: Vec<Value> = results.iter().map(|v| self.expand(v, shape.dims())).collect();
        if full.len() == 1 { Ok(full.swap_remove(0)) } else { self.pack(at, full) }
    }

    fn product(&mut self, ins: &[Value], ta: bool, tb: bool) -> Value {
        let (a, b) = (self.turned(&ins[0], ta), self.turned(&ins[1], tb));
        self.matmul(&a, &b)
    }

    fn log_softmax(&mut self, x: &Value, axis: usize) -> Value {
        self.node("LogSoftmax", &[x], vec![("axis", Attribute::Int(axis as i64))], Type::F32, &x.dims)
    }

    /// `y (dy - Σ y dy)`.
    fn softmax_slope(&mut self, y: &Value, dy: &Value, axis: usize) -> Value {
        let product = self.binary("Mul", y, dy);
        let sum = self.reduce("ReduceSum", &product, &[axis]);
        let rest = self.binary("Sub", dy, &sum);
        self.binary("Mul", y, &rest)
    }

    /// `dy - e^y Σ dy`.
    fn log_softmax_slope(&mut self, y: &Value, dy: &Value, axis: usize) -> Value {
        let sum = self.reduce("ReduceSum", dy, &[axis]);
        let weights = self.unary("Exp", y);
        let share = self.binary("Mul", &weights, &sum);
        self.binary("Sub", dy, &share)
    }

    /// Gains and shifts of channels, which are axis 1.
    fn per_channel(&mut self, y: Value, gains: &[Value]) -> Value {
        let mut dims = vec![1; y.rank()];
        dims[1] = y.dims[1];
        self.affine(y, gains, &dims)
    }

    /// Elements at a distance from each other, and a number around and between them.
    fn spaced(&mut self, x: &Value, p: &Pad) -> Value {
        let len = x.dims[p.axis];
        let mut x = x.clone();
        let mut long = len;
        if p.step > 1 && len > 1 {
            let [outer, _, inner] = around(&x.dims, p.axis..p.axis + 1);
            let mut dims = x.dims.clone();
            let four = self.reshape(&x, &[outer, len, 1, inner]);
            let wide = self.pad(&four, 2, 0, p.step - 1, p.value);
            dims[p.axis] = len * p.step;
            let line = self.reshape(&wide, &dims);
            long = (len - 1) * p.step + 1;
            x = self.slice(&line, p.axis, 0, long, 1);
        }
        if len == 0 {
            let value =
                if x.dtype == Type::I64 { self.wholes(&[], &[p.value as i64]) } else { self.c(p.value) };
            let mut dims = x.dims.clone();
            dims[p.axis] = p.size;
            return self.expand(&value, &dims);
        }
        self.pad(&x, p.axis, p.start, p.size - p.start - long, p.value)
    }

    fn attention_mask(&mut self, a: &AttentionMask, mask: Option<&Value>, out: &[usize]) -> Value {
        let below = self.truths(&[a.n, a.m], |at| !a.causal || at % a.m <= at / a.m);
        let open = match mask {
            Some(mask) => {
                let open = self.open(mask);
                self.compare("And", &open, &below)
            }
            None => below,
        };
        let numbers = self.cast(&open, Type::F32);
        self.expand(&numbers, out)
    }

    /// Modes of the transform of a line, if it is not too long for a table.
    fn line(&self, place: &Place<'_>, n: usize) -> Result<usize> {
        if n <= MAX_LINE {
            return Ok(n / 2 + 1);
        }
        Err(place.none(&format!(
            "its line of {n} points is longer than {MAX_LINE}; use spectral_conv, which keeps few modes"
        )))
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
}

/// Each number rounded to float32.
fn rounded(t: &Tensor<f64>) -> Vec<f32> {
    t.data().iter().map(|x| *x as f32).collect()
}

/// Whether a value is the counter of random numbers.
fn is_random(graph: &Graph, v: Val) -> bool {
    matches!(graph.nodes()[v.0 as usize].what, What::Leaf(Source::RandomBase))
}

/// An op where it stands in the program.
#[derive(Clone, Copy)]
struct Place<'a> {
    at: u32,
    op: &'a AnyOp,
    ins: &'a [Val],
    metas: &'a [Meta],
    out: Meta,
}

impl Place<'_> {
    /// That there is no ONNX form.
    #[cold]
    fn none(&self, why: &str) -> Error {
        let (at, name, shape) = (self.at, self.op.name(), self.out.shape);
        Error::unsupported("onnx", format!("value {at} of the program, {name} of shape {shape}: {why}"))
    }
}
