//! `ops`: the table of all ops, generated from the ops themselves: inputs and attributes from their samples, gradients
//! by running their rules.

use crate::out::{Out, table};
use crate::{Answer, fail};
use clap::Args;
use dittograd::device::{DType, Meta};
use dittograd::error::Error;
use dittograd::numerics::functions::{UlpReport, measure_ulp};
use dittograd::ops::{AnyOp, Attr, Attrs, Io, Recorder, Sample, SampleIn, Val, attr_meaning};
use dittograd::torchlean::KNOWN;
use serde_json::{Map, Value, json};

/// List all ops, or explain one.
#[derive(Args)]
pub(crate) struct Ops {
    /// An op whose attributes are explained [default: a line for each op]
    name: Option<String>,
    /// Measure the error of elementary functions over every STRIDE-th float now, in units in the last place
    #[arg(long, value_name = "STRIDE", value_parser = clap::value_parser!(u32).range(1..))]
    ulp: Option<u32>,
}

/// A recorder of shapes only, to see what a gradient rule returns.
struct Shapes(Vec<Meta>);

impl Recorder for Shapes {
    fn record(&mut self, op: AnyOp, ins: &[Val]) -> Result<Val, Error> {
        let metas: Vec<Meta> = ins.iter().map(|v| self.meta(*v)).collect();
        self.0.push(op.shape(&metas)?);
        Ok(Val(self.0.len() as u32 - 1))
    }

    fn meta(&self, v: Val) -> Meta {
        self.0.get(v.0 as usize).copied().unwrap_or(Meta::f32(Default::default()))
    }
}

/// Which inputs of the sample get a gradient.
fn gradients(sample: &Sample) -> Result<Vec<bool>, Error> {
    if !sample.op.differentiable() {
        return Ok(vec![false; sample.ins.len()]);
    }
    let metas: Vec<Meta> = sample.ins.iter().map(SampleIn::meta).collect();
    let ins: Vec<Val> = (0..metas.len()).map(|i| Val(i as u32)).collect();
    let mut shapes = Shapes(metas);
    let out = shapes.record(sample.op.clone(), &ins)?;
    shapes.0.push(shapes.meta(out));
    let dy = Val(shapes.0.len() as u32 - 1);
    let answers = sample.op.vjp(&mut shapes, Io { ins: &ins, out }, dy)?;
    Ok(answers.iter().map(Option::is_some).collect())
}

/// An attribute as JSON, the format that `op` reads.
fn value(attr: &Attr) -> Value {
    match attr {
        Attr::Num(x) if x.fract() == 0.0 && x.abs() < 1e15 => json!(*x as i64),
        // Most are float32; their shortest form reads back as the same number.
        Attr::Num(x) => json!((*x as f32).to_string().parse::<f64>().unwrap_or(*x)),
        Attr::Whole(x) => json!(x),
        Attr::Bool(x) => json!(x),
        Attr::List(x) => json!(x),
    }
}

/// An attribute of an op.
pub(crate) struct Attribute {
    pub(crate) name: &'static str,
    /// What it takes.
    kind: &'static str,
    /// Whether the op cannot do without it.
    is_needed: bool,
    /// Its value if it is left out, where it then has one.
    default: Option<Value>,
    pub(crate) meaning: &'static str,
}

/// The attributes of an op, from its samples: what each takes, and what happens without it, by trying.
pub(crate) fn attributes(op: &str) -> Vec<Attribute> {
    let mut all: Vec<Attribute> = Vec::new();
    for sample in AnyOp::samples(op) {
        let attrs = sample.op.attrs();
        for (name, attr) in &attrs {
            if all.iter().any(|a| a.name == *name) {
                continue;
            }
            let with = |new: Option<Attr>| {
                let others = attrs.iter().filter(|a| a.0 != *name).map(|(n, a)| (n.to_string(), a.clone()));
                AnyOp::from_name(op, &Attrs(others.chain(new.map(|a| (name.to_string(), a))).collect()))
            };
            let without = with(None).ok().map(|op| op.attrs());
            let default = without.iter().flatten().find(|a| a.0 == *name).map(|a| value(&a.1));
            let kind = match attr {
                Attr::Bool(_) => "true or false",
                Attr::List(_) => "list of whole numbers",
                Attr::Num(x) if x.fract() != 0.0 || with(Some(Attr::Num(x + 0.125))).is_ok() => "number",
                Attr::Num(_) | Attr::Whole(_) => "whole number",
            };
            let meaning = attr_meaning(op, name).unwrap_or_default();
            all.push(Attribute { name, kind, is_needed: without.is_none(), default, meaning });
        }
    }
    all
}

/// One line of the table.
struct Row {
    name: &'static str,
    inputs: Vec<usize>,
    dtypes: Vec<&'static str>,
    attrs: Map<String, Value>,
    gradient: Vec<bool>,
    ulp: Option<UlpReport>,
}

impl Row {
    fn new(name: &'static str, stride: Option<u32>) -> Result<Row, Error> {
        let samples = AnyOp::samples(name);
        let mut inputs: Vec<usize> = samples.iter().map(|s| s.ins.len()).collect();
        inputs.sort_unstable();
        inputs.dedup();
        // Among the small samples, the one with the most elements shows the attributes best.
        let small = |s: &&Sample| s.ins.iter().all(|i| (1..1000).contains(&i.meta().shape.numel()));
        let rank = |s: &&Sample| s.ins.iter().map(|i| i.meta().shape.rank()).max();
        let shown = samples.iter().filter(small).max_by_key(rank).or(samples.first());
        let attrs = shown.map(|s| s.op.attrs()).unwrap_or_default();
        let dtype = |i: &SampleIn| match i.meta().dtype {
            DType::F32 => "f32",
            DType::U32 => "u32",
        };
        Ok(Row {
            name,
            inputs,
            dtypes: shown.map(|s| s.ins.iter().map(dtype).collect()).unwrap_or_default(),
            attrs: attrs.iter().map(|(n, a)| (n.to_string(), value(a))).collect(),
            gradient: shown.map(gradients).transpose()?.unwrap_or_default(),
            ulp: stride.and_then(|stride| measure_ulp(name, stride)),
        })
    }

    fn has_gradient(&self) -> bool {
        self.gradient.iter().any(|g| *g)
    }

    fn json(&self) -> Value {
        let mut object = json!({
            "name": self.name, "inputs": self.inputs, "dtypes": self.dtypes, "attrs": self.attrs,
            "gradient": self.has_gradient(), "gradient_inputs": self.gradient, "cpu": true, "cuda": true,
        });
        if let Some(r) = &self.ulp {
            object["ulp"] = json!({"max": r.max_ulp, "at": format!("{:#010x}", r.worst), "tested": r.tested});
        }
        object
    }

    fn cells(&self, ulp: bool) -> Vec<String> {
        let yes = |b: bool| if b { "yes" } else { "no" }.to_string();
        let inputs = self.inputs.iter().map(usize::to_string).collect::<Vec<_>>().join(" or ");
        let attrs =
            if self.attrs.is_empty() { "-".into() } else { Value::from(self.attrs.clone()).to_string() };
        let mut cells = vec![self.name.to_string(), inputs, yes(self.has_gradient()), yes(true), yes(true)];
        if ulp {
            cells.push(self.ulp.map_or("-".into(), |r| format!("{:.3}", r.max_ulp)));
        }
        cells.push(attrs);
        cells
    }
}

impl Ops {
    /// Runs the command.
    pub(crate) fn run(&self, out: &Out) -> Answer {
        if let Some(name) = &self.name {
            return self.explain(name, out);
        }
        let mut rows = Vec::new();
        for name in AnyOp::NAMES {
            let row = Row::new(name, self.ulp)?;
            if out.json() {
                out.line(&row.json().to_string())?;
            }
            rows.push(row);
        }
        if !out.json() {
            let mut head = vec!["op", "inputs", "gradient", "cpu", "cuda"];
            if self.ulp.is_some() {
                head.push("ulp");
            }
            head.push("attributes (of a sample)");
            let mut cells: Vec<Vec<String>> = vec![head.into_iter().map(String::from).collect()];
            cells.extend(rows.iter().map(|r| r.cells(self.ulp.is_some())));
            out.line(&table(&cells))?;
            let mut cells = vec![["known as", "method", "op"].map(String::from).to_vec()];
            cells.extend(
                KNOWN.iter().map(|(name, method, op)| [*name, *method, *op].map(String::from).to_vec()),
            );
            out.line("")?;
            out.line(&table(&cells))?;
        }
        Ok(true)
    }

    /// Shows one op with all its attributes.
    fn explain(&self, name: &str, out: &Out) -> Answer {
        let Some(name) = AnyOp::NAMES.iter().find(|n| **n == name) else {
            return fail(format!("`{name}` is not an op; `dittograd ops` lists them"));
        };
        let (row, all) = (Row::new(name, self.ulp)?, attributes(name));
        if out.json() {
            let object = |a: &Attribute| {
                json!({
                    "name": a.name, "kind": a.kind, "needed": a.is_needed, "default": a.default, "meaning": a.meaning,
                })
            };
            let mut whole = row.json();
            whole["attributes"] = all.iter().map(object).collect();
            out.line(&whole.to_string())?;
            return Ok(true);
        }
        let inputs = row.inputs.iter().map(usize::to_string).collect::<Vec<_>>().join(" or ");
        let dtypes =
            if row.dtypes.is_empty() { String::new() } else { format!(" ({})", row.dtypes.join(", ")) };
        let gradient = if row.has_gradient() { "a gradient" } else { "no gradient" };
        out.line(&format!("{name}: {inputs} inputs{dtypes}, {gradient}"))?;
        if let Some(ulp) = &row.ulp {
            out.line(&format!("largest error {:.3} ulp", ulp.max_ulp))?;
        }
        if all.is_empty() {
            out.line("it has no attributes")?;
            return Ok(true);
        }
        let mut cells = vec![["attribute", "takes", "default", "meaning"].map(String::from).to_vec()];
        for a in &all {
            let default = match (&a.default, a.is_needed) {
                (_, true) => "needed".to_string(),
                (Some(value), _) => value.to_string(),
                (None, false) => "none".to_string(),
            };
            cells.push(vec![a.name.into(), a.kind.into(), default, a.meaning.into()]);
        }
        out.line(&table(&cells))?;
        let sample = Value::from(row.attrs);
        out.line(&format!(
            "for example: dittograd op {name} --attrs '{sample}' --in x.safetensors --out y.safetensors"
        ))?;
        Ok(true)
    }
}
