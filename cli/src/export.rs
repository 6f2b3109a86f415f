//! `export`: a trained model as an ONNX file, which computes what `predict` computes; or the measurements of a run as CSV.

use crate::measurements::csv;
use crate::out::{Out, bytes, table};
use crate::task::program;
use crate::train::{Spec, checkpoint_file, positive};
use crate::{Answer, Global, fail};
use clap::Args;
use dittograd::device::Meta;
use dittograd::graph::Graph;
use dittograd::io::onnx::{self, About, OPSET, Port};
use dittograd::io::{Checkpoint, atomic};
use dittograd::prelude::*;
use dittograd::train::METRICS;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Write a trained model as an ONNX file. It takes inputs as `predict` does and gives the same predictions: scaling of inputs and
/// outputs is part of it. Shapes are fixed, the number of rows in a batch too. With `--out NAME.csv`, write the measurements of a run
/// instead, a row for each step at which something was measured.
#[derive(Args)]
pub(crate) struct Export {
    /// A checkpoint that `train` made, or the folder of a run
    #[arg(value_name = "CHECKPOINT")]
    model: PathBuf,
    /// Rows of its inputs [default: 1]
    #[arg(long, value_name = "N", value_parser = positive)]
    batch: Option<usize>,
    /// Shape of one row, such as 3,32,32 [default: that of the data it was trained on]
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', value_parser = positive)]
    shape: Option<Vec<usize>>,
    /// The file; the ending .csv asks for measurements [default: beside the checkpoint, with the ending .onnx]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// The name of a type in the file.
fn dtype(meta: &Meta) -> &'static str {
    if meta.dtype.name() == "u32" { "int64" } else { "float32" }
}

/// An input or output as a JSON object.
fn object((name, meta): &(String, Meta)) -> Value {
    json!({"name": name, "type": dtype(meta), "shape": meta.shape.dims()})
}

/// A trained model and its program for batches of a given number of rows.
pub(crate) struct Traced {
    file: PathBuf,
    checkpoint: Checkpoint,
    spec: Spec,
    pub graph: Graph,
}

impl Traced {
    /// Loads a checkpoint or the folder of a run, for rows of the given shape, or of the shape of its data.
    pub(crate) fn load(
        global: &Global,
        model: &Path,
        batch: usize,
        shape: Option<&[usize]>,
    ) -> Answer<Traced> {
        let file = checkpoint_file(model);
        let checkpoint = Checkpoint::load(&file)?;
        let spec = Spec::of(&checkpoint, &file)?;
        // Nothing is computed, so no GPU is needed.
        let device = global.cpu()?;
        let (params, net) = spec.net_of(&checkpoint, &device)?;
        params.load_state_dict(&checkpoint.params, true)?;
        let row = match shape.or(spec.input.as_deref()) {
            Some(shape) => shape.to_vec(),
            // A run of an earlier version does not say it.
            None => spec.data.row(spec.model).or_else(|e| {
                let why = e.message().unwrap_or_default();
                fail(format!("{why}; the data has the shape of the model's inputs, or give it with --shape"))
            })?,
        };
        let shape = Shape::new(&[&[batch], &row[..]].concat())?;
        let meta = if spec.model.takes_tokens() { Meta::u32(shape) } else { Meta::f32(shape) };
        let graph = program(&device, net.module().eval().as_ref(), meta)?;
        Ok(Traced { file, checkpoint, spec, graph })
    }
}

impl Export {
    /// Writes the measurements of a run as CSV.
    fn measurements(&self, target: &Path, out: &Out) -> Answer {
        if self.batch.is_some() || self.shape.is_some() {
            return fail("--batch and --shape are for models; a .csv file gets the measurements of a run");
        }
        let folder = match self.model.is_dir() {
            true => &self.model,
            false => self.model.parent().unwrap_or(Path::new("")),
        };
        let source = folder.join(METRICS);
        let text = match csv(&source) {
            Ok(text) => text,
            Err(e) => return fail(format!("{}: {e}; `train` writes it", source.display())),
        };
        atomic::write(target, &text)?;
        let rows = text.iter().filter(|b| **b == b'\n').count() - 1;
        let file = target.display().to_string();
        out.result(|| json!({"file": file, "rows": rows}), || format!("{rows} rows\n{file}"))?;
        Ok(true)
    }

    /// Runs the command.
    pub(crate) fn run(&self, global: &Global, out: &Out) -> Answer {
        if let Some(target) = self.out.as_deref().filter(|t| t.extension().is_some_and(|e| e == "csv")) {
            return self.measurements(target, out);
        }
        let Traced { file, checkpoint, spec, graph } =
            Traced::load(global, &self.model, self.batch.unwrap_or(1), self.shape.as_deref())?;
        let writes = spec.model.takes_tokens();
        let [inputs, outputs] = spec.scales.parts();
        let about = About {
            name: spec.model.name(),
            inputs: vec![Port { name: if writes { "tokens" } else { "x" }.into(), scaling: inputs }],
            outputs: vec![Port { name: "y".into(), scaling: outputs }],
            metadata: vec![
                ("model".into(), spec.model.name()),
                ("config".into(), spec.config.to_string()),
                ("step".into(), checkpoint.step.to_string()),
                ("fingerprint".into(), checkpoint.fingerprint()),
            ],
        };
        let made = onnx::export(&graph, &about)?;
        let target = self.out.clone().unwrap_or_else(|| file.with_extension("onnx"));
        atomic::write(&target, &made.bytes)?;
        out.result(
            || {
                json!({
                    "file": target.display().to_string(), "bytes": made.bytes.len(), "opset": OPSET,
                    "nodes": made.nodes, "parameters": made.parameters,
                    "inputs": made.inputs.iter().map(object).collect::<Vec<_>>(),
                    "outputs": made.outputs.iter().map(object).collect::<Vec<_>>(),
                })
            },
            || {
                let edge = |kind: &str, (name, meta): &(String, Meta)| {
                    vec![kind.into(), name.clone(), format!("{}{}", dtype(meta), meta.shape)]
                };
                let ins = made.inputs.iter().map(|e| edge("input", e));
                let rows: Vec<Vec<String>> =
                    ins.chain(made.outputs.iter().map(|e| edge("output", e))).collect();
                let (size, nodes, parameters) = (bytes(made.bytes.len()), made.nodes, made.parameters);
                let what = format!("{nodes} nodes, {parameters} parameters, opset {OPSET}, file of {size}");
                format!("{}\n{what}\n{}", table(&rows), target.display())
            },
        )?;
        Ok(true)
    }
}
