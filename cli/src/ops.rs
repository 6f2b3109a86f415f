//! `ops`: the table of all ops, generated from the ops themselves: inputs and attributes from their samples, gradients
//! by running their rules.

use crate::Answer;
use crate::out::{Out, table};
use clap::Args;
use dittograd::device::{DType, Meta};
use dittograd::error::Error;
use dittograd::numerics::functions::{UlpReport, measure_ulp};
use dittograd::ops::{AnyOp, Attr, Io, Recorder, Sample, SampleIn, Val};
use dittograd::torchlean::KNOWN;
use serde_json::{Map, Value, json};

/// List all ops.
#[derive(Args)]
pub(crate) struct Ops {
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
}
