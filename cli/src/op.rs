//! `op`: one op on tensors from a safetensors file, with its gradient if asked for. This is how other
//! programs compare themselves with this one.

use crate::out::Out;
use crate::{Answer, Fail, Global, fail};
use clap::Args;
use dittograd::ops::{AnyOp, Attr, Attrs};
use dittograd::prelude::*;
use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensors, serialize};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// Largest file that is read. A cap, because a path may name an endless device.
const MAX_BYTES: u64 = 1 << 32;
/// Most inputs an op can have.
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

/// A tensor as an op takes it.
enum Input {
    Num(Tensor<f32>),
    Idx(Tensor<u32>),
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

fn file_error<T>(path: &Path, why: impl std::fmt::Display) -> Answer<T> {
    fail(format!("{}: {why}", path.display()))
}

/// The bytes of a file.
pub(crate) fn read(path: &Path) -> Answer<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = std::fs::File::open(path).and_then(|f| f.take(MAX_BYTES + 1).read_to_end(&mut bytes));
    match read {
        Err(e) => file_error(path, e),
        Ok(n) if n as u64 > MAX_BYTES => file_error(path, format!("is larger than {} MiB", MAX_BYTES >> 20)),
        Ok(_) => Ok(bytes),
    }
}

/// The elements of a tensor in a file as `N` bytes each.
fn elements<const N: usize, T>(bytes: &[u8], one: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|b| one(*b)).collect()
}

fn tensor(path: &Path, name: &str, view: &TensorView<'_>) -> Answer<Input> {
    let shape = match Shape::new(view.shape()) {
        Ok(shape) => shape,
        Err(e) => return file_error(path, format!("{name}: {e}")),
    };
    let bytes = view.data();
    let wide: Vec<i64> = match view.dtype() {
        Dtype::F32 => return Ok(Input::Num(Tensor::with_shape(shape, elements(bytes, f32::from_le_bytes))?)),
        Dtype::I64 => elements(bytes, i64::from_le_bytes),
        Dtype::I32 => elements(bytes, |b| i64::from(i32::from_le_bytes(b))),
        Dtype::U32 => elements(bytes, |b| i64::from(u32::from_le_bytes(b))),
        other => {
            return file_error(
                path,
                format!("{name}: has type {other:?}, use F32, or I64, I32 or U32 for indices"),
            );
        }
    };
    let mut indices = Vec::with_capacity(wide.len());
    for (i, v) in wide.into_iter().enumerate() {
        match u32::try_from(v) {
            Ok(v) => indices.push(v),
            Err(_) => {
                return file_error(
                    path,
                    format!("{name}: element {i} is {v}, an index is from 0 to {}", u32::MAX),
                );
            }
        }
    }
    Ok(Input::Idx(Tensor::with_shape(shape, indices)?))
}

/// The inputs in order, and the seed of the gradient.
fn inputs(path: &Path) -> Answer<(Vec<Input>, Option<Tensor<f32>>)> {
    let bytes = read(path)?;
    let file = match SafeTensors::deserialize(&bytes) {
        Ok(file) => file,
        Err(e) => return file_error(path, format!("is not a safetensors file: {e}")),
    };
    let names = file.names();
    let count = names.iter().filter(|n| **n != "dy").count();
    let wanted = |n: &str| n == "dy" || (0..count.min(MAX_INPUTS)).any(|i| n == format!("x{i}"));
    if let Some(odd) = names.iter().find(|n| !wanted(n)) {
        let odd: String = odd.chars().take(40).flat_map(char::escape_debug).collect();
        return file_error(path, format!("has a tensor `{odd}`; expected x0, x1, … without a gap, and dy"));
    }
    let mut found = Vec::new();
    for i in 0..count {
        let name = format!("x{i}");
        match file.tensor(&name) {
            Ok(view) => found.push(tensor(path, &name, &view)?),
            Err(e) => return file_error(path, format!("{name}: {e}")),
        }
    }
    let dy = match file.tensor("dy") {
        Err(_) => None,
        Ok(view) => match tensor(path, "dy", &view)? {
            Input::Num(dy) => Some(dy),
            Input::Idx(_) => return file_error(path, "dy: a gradient has type F32"),
        },
    };
    Ok((found, dy))
}

/// Writes through a temporary file beside `path`, so that nobody sees half of it.
fn write(path: &Path, bytes: &[u8]) -> Answer<()> {
    let Some(name) = path.file_name() else { return file_error(path, "is not the name of a file") };
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(temporary);
    let written = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&temporary)
        .and_then(|mut f| f.write_all(bytes))
        .and_then(|()| std::fs::rename(&temporary, path));
    match written {
        Ok(()) => Ok(()),
        Err(e) => {
            // It may not even be there.
            let _ = std::fs::remove_file(&temporary);
            file_error(path, e)
        }
    }
}

impl Op {
    /// Runs the command.
    pub(crate) fn run(&self, global: &Global, out: &Out) -> Answer {
        let op = AnyOp::from_name(&self.name, &attributes(&self.attrs)?)?;
        let (given, dy) = match &self.input {
            Some(path) => inputs(path)?,
            None => (Vec::new(), None),
        };
        let device = global.device()?;
        let session = Session::eager(&device);
        let mut vars = Vec::new();
        for input in &given {
            vars.push(match input {
                Input::Num(x) => session.variable(x)?,
                Input::Idx(x) => session.labels(x)?,
            });
        }
        let y = session.apply(op, &vars)?;
        let mut results = vec![("y".to_string(), y.value::<f32>()?)];
        if let Some(dy) = &dy {
            let grads = y.backward_from(dy)?;
            for (i, v) in vars.iter().enumerate() {
                if let Some(g) = grads.var(*v) {
                    results.push((format!("dx{i}"), g.to_tensor()?));
                }
            }
        }
        let wire: Vec<(&str, Shape, Vec<u8>)> = results
            .iter()
            .map(|(name, t)| {
                (name.as_str(), t.shape(), t.data().iter().flat_map(|v| v.to_le_bytes()).collect())
            })
            .collect();
        let mut views = Vec::new();
        for (name, shape, bytes) in &wire {
            let view = TensorView::new(Dtype::F32, shape.dims().to_vec(), bytes);
            views.push((*name, view.map_err(|e| Fail::Message(format!("{name}: {e}")))?));
        }
        let file =
            serialize(views, None).map_err(|e| Fail::Message(format!("{}: {e}", self.output.display())))?;
        write(&self.output, &file)?;
        for (name, t) in &results {
            let dims = t.shape();
            out.progress(
                || json!({"tensor": name, "shape": dims.dims(), "file": self.output.display().to_string()}),
                || format!("{name} {dims}"),
            )?;
        }
        Ok(true)
    }
}
