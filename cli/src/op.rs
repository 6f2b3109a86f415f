//! `op`: one op on tensors from a safetensors file, optionally with its gradient. Other programs use this to compare
//! themselves with this one.

use crate::out::Out;
use crate::{Answer, Global, fail, ops};
use clap::Args;
use dittograd::error::{ErrorKind, shown};
use dittograd::io::safetensors::{Dtype, SafeTensors, Writer};
use dittograd::ops::{AnyOp, Attr, Attrs};
use dittograd::prelude::*;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The most inputs of an op.
const MAX_INPUTS: usize = 32;

/// Run one op, and its gradient, on tensors from a file.
#[derive(Args)]
pub(crate) struct Op {
    /// Name of the op, as `dittograd ops` lists it
    name: String,
    /// Attributes as a JSON object, like {"ta": true}
    #[arg(long, value_name = "JSON", default_value = "{}")]
    attrs: String,
    /// Tensors x0, x1, … (F32, or I64, I32, U32 for indices), and dy to get gradients
    #[arg(long = "in", value_name = "FILE")]
    input: Option<PathBuf>,
    /// File that gets y, and dx0, dx1, … where there is a gradient
    #[arg(long = "out", value_name = "FILE")]
    output: PathBuf,
}

pub(crate) fn attributes(text: &str) -> Answer<Attrs> {
    let value: Value = match serde_json::from_str(text) {
        Ok(value) => value,
        Err(e) => return fail(format!("--attrs: is not JSON: {e}")),
    };
    let Value::Object(map) = value else {
        return fail("--attrs: is not a JSON object, use something like {\"ta\": true}");
    };
    let mut attrs = Attrs::default();
    for (name, value) in map {
        let size = |v: &Value| v.as_u64().and_then(|n| usize::try_from(n).ok());
        let attr = match &value {
            Value::Bool(b) => Some(Attr::Bool(*b)),
            Value::Number(n) => n.as_u64().map(Attr::Whole).or_else(|| n.as_f64().map(Attr::Num)),
            Value::Array(list) => list.iter().map(size).collect::<Option<Vec<_>>>().map(Attr::List),
            _ => None,
        };
        match attr {
            Some(attr) => attrs.0.push((name, attr)),
            None => {
                let want = "a number, true, false or a list of whole numbers from 0";
                return fail(format!("--attrs: `{name}` is {value}, use {want}"));
            }
        }
    }
    Ok(attrs)
}

/// The op of that name with attributes. What is wrong with them is said in terms of `--attrs`.
fn named(name: &str, attrs: &Attrs) -> Answer<AnyOp> {
    AnyOp::from_name(name, attrs).or_else(|e| {
        let ErrorKind::Argument { name: attr, why } = e.kind() else { return Err(e.into()) };
        let known = ops::attributes(name);
        let names: Vec<&str> = known.iter().map(|a| a.name).collect();
        let see = format!("`dittograd ops {name}` explains them");
        if let Some((odd, _)) = attrs.0.iter().find(|(n, _)| !names.contains(&n.as_str())) {
            let has = if names.is_empty() {
                "it has none".into()
            } else {
                format!("it has {}; {see}", names.join(", "))
            };
            // An op that is none has no samples either.
            return match AnyOp::NAMES.contains(&name) {
                true => fail(format!("op {name}: `{}` is not one of its attributes; {has}", shown(odd, 60))),
                false => Err(e.into()),
            };
        }
        match known.iter().find(|a| a.name == *attr) {
            Some(a) => {
                let state = if attrs.has(attr) { "" } else { "is missing: " };
                fail(format!("op {name}: attribute `{attr}`: {state}{why} ({}); {see}", a.meaning))
            }
            None => Err(e.into()),
        }
    })
}

fn file_error<T>(path: &Path, why: impl std::fmt::Display) -> Answer<T> {
    fail(format!("{}: {why}", path.display()))
}

/// The inputs in order, and the upstream gradient.
fn inputs(path: &Path) -> Answer<(Vec<AnyTensor>, Option<Tensor<f32>>)> {
    let file = SafeTensors::read(path)?;
    let count = file.iter().filter(|(n, _)| *n != "dy").count();
    let wanted = |n: &str| n == "dy" || (0..count.min(MAX_INPUTS)).any(|i| n == format!("x{i}"));
    if let Some((odd, _)) = file.iter().find(|(n, _)| !wanted(n)) {
        let odd = shown(odd, 60);
        return file_error(path, format!("has a tensor `{odd}`; expected x0, x1, … without a gap, and dy"));
    }
    // Other floats would be rounded, and then compared with results of a program that did not round.
    let whole = [Dtype::I64, Dtype::I32, Dtype::U32];
    if let Some((name, e)) = file.iter().find(|(_, e)| e.dtype() != Dtype::F32 && !whole.contains(&e.dtype()))
    {
        let dtype = e.dtype();
        return file_error(
            path,
            format!("{name}: has type {dtype}, use F32, or I64, I32 or U32 for indices"),
        );
    }
    let found = (0..count).map(|i| file.tensor(&format!("x{i}"))).collect::<Result<_>>()?;
    let dy = match file.get("dy").map(|_| file.tensor("dy")).transpose()? {
        None => None,
        Some(AnyTensor::Num(dy)) => Some(dy),
        Some(AnyTensor::Idx(_)) => return file_error(path, "dy: a gradient has type F32"),
    };
    Ok((found, dy))
}

impl Op {
    /// Errors if the op or one of its attributes is unknown.
    pub(crate) fn look(&self) -> Answer<()> {
        named(&self.name, &attributes(&self.attrs)?)?;
        Ok(())
    }

    /// Runs the command.
    pub(crate) fn run(&self, global: &Global, out: &Out) -> Answer {
        let op = named(&self.name, &attributes(&self.attrs)?)?;
        let (given, dy) = match &self.input {
            Some(path) => inputs(path)?,
            None => (Vec::new(), None),
        };
        let device = global.device()?;
        let session = Session::eager(&device);
        let mut vars = Vec::new();
        for input in &given {
            vars.push(match input {
                AnyTensor::Num(x) => session.variable(x)?,
                AnyTensor::Idx(x) => session.labels(x)?,
            });
        }
        let y = session.apply(op, &vars)?;
        let mut results = vec![("y".to_string(), y.to_any()?)];
        if let Some(dy) = &dy {
            if y.shape()? != dy.shape() {
                let (want, got) = (y.shape()?, dy.shape());
                return fail(format!("dy has shape {got}, but the result of {} has shape {want}", self.name));
            }
            if let AnyTensor::Idx(_) = &results[0].1 {
                return fail(format!("{} gives indices, which have no gradient; leave out dy", self.name));
            }
            let grads = y.backward_from(dy)?;
            for (i, v) in vars.iter().enumerate() {
                if let Some(g) = grads.var(*v) {
                    results.push((format!("dx{i}"), AnyTensor::Num(g.to_tensor()?)));
                }
            }
        }
        let mut file = Writer::new();
        results.iter().try_for_each(|(name, t)| file.tensor(name, t).map(|_| ()))?;
        file.save(&self.output)?;
        for (name, t) in &results {
            let dims = t.shape();
            out.progress(
                || json!({"tensor": name, "shape": dims.dims(), "file": self.output.display().to_string()}),
                || format!("{name} {dims}"),
            );
        }
        Ok(true)
    }
}
