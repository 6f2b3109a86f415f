//! `predict`: a trained model on data from a file, on its test data, or on a text that it continues.

use crate::models::Task;
use crate::out::Out;
use crate::task::{self, WINDOW, best, evaluation, predict, spelled};
use crate::train::{Spec, checkpoint_file, positive};
use crate::{Answer, Global, fail};
use clap::Args;
use dittograd::data::{self, arithmetic};
use dittograd::io::{Checkpoint, atomic, read_npy, read_npz, write_npy};
use dittograd::nn::Sampling;
use dittograd::prelude::*;
use dittograd::reserve::grow;
use serde_json::json;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Rows computed at a time.
const ROWS: usize = 256;

/// Use a trained model.
#[derive(Args)]
pub(crate) struct Predict {
    /// A checkpoint that `train` made, or the folder of a run
    #[arg(value_name = "CHECKPOINT")]
    model: PathBuf,
    /// Inputs: .npy, .npz with an array x, or .csv with numbers [default: the data the model was judged by, which gives its
    /// scores]
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Where predictions go: .npy, or .csv [default: CSV on stdout]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Text to continue (gpt, mamba)
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Number of tokens to generate after the prompt [default: 200, or an answer]
    #[arg(long, value_name = "N", value_parser = positive)]
    tokens: Option<usize>,
    /// Sampling temperature; at 0 the likeliest token is taken
    #[arg(long, default_value_t = 0.0)]
    temperature: f64,
    /// Draw only among the N likeliest tokens
    #[arg(long, value_name = "N", value_parser = positive)]
    top_k: Option<usize>,
    /// Seed of the draws
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

impl Predict {
    /// Runs the command.
    pub(crate) fn run(&self, global: &Global, out: &Out) -> Answer {
        let file = checkpoint_file(&self.model);
        let checkpoint = Checkpoint::load(&file)?;
        let spec = Spec::of(&checkpoint, &file)?;
        let device = global.device()?;
        let (params, net) = spec.net_of(&checkpoint, &device)?;
        params.load_state_dict(&checkpoint.params, true)?;
        if let Some(prompt) = &self.prompt {
            return self.write(&spec, &net, prompt, out);
        }
        let eval = net.module().eval();
        let Some(path) = &self.data else {
            let data = spec.data.load(spec.model)?;
            spec.check_data(&data, &checkpoint)?;
            let scores = evaluation(spec.task, eval, &data)?.run(&device)?;
            out.result(
                || {
                    let mut object = json!({
                        "model": spec.model.name(), "data": data.test.name(), "rows": data.test.rows(),
                        "fingerprint": checkpoint.fingerprint(),
                    });
                    task::put(&scores, &mut object);
                    object
                },
                || {
                    let (model, data) = (spec.model.name(), &data.test);
                    format!(
                        "{model} on {} test rows of {}: {}",
                        data.rows(),
                        data.name(),
                        task::text(&scores)
                    )
                },
            )?;
            return Ok(true);
        };
        let x = spec.scales.inputs(read(path, spec.model.writes())?)?;
        let (rows, mut all, mut dims) = (x.shape().dims()[0], Vec::new(), Vec::new());
        for start in (0..rows).step_by(ROWS) {
            let got = predict(&device, eval.as_ref(), &some(&x, start..rows.min(start + ROWS))?)?;
            dims = got.shape().dims()[1..].to_vec();
            grow("predictions", &mut all, got.data().len())?;
            all.extend(got.into_data());
        }
        let y = Tensor::new(&[&[rows], &dims[..]].concat(), all)?;
        let task = spec.task;
        let y = spec.scales.outputs(y)?;
        match &self.out {
            Some(path) if path.extension().is_some_and(|e| e == "npy") => {
                write_npy(path, &y.into())?;
            }
            Some(path) => atomic::write(path, table(&y, task).as_bytes())?,
            None if out.json() => {
                for row in y.data().chunks((y.data().len() / rows.max(1)).max(1)) {
                    out.line(
                        &json!({"class": (task == Task::Classes).then(|| best(row)), "values": row})
                            .to_string(),
                    )?;
                }
            }
            None => out.line(table(&y, task).trim_end())?,
        }
        Ok(true)
    }

    /// Continues a text.
    fn write(&self, spec: &Spec, net: &crate::models::Net, prompt: &str, out: &Out) -> Answer {
        let sums = spec.data.name == "additions";
        let tokenizer = spec.data.tokenizer();
        let tokens = match sums {
            true => arithmetic::encode(prompt)?,
            false => tokenizer.encode(prompt.as_bytes()),
        };
        let count = self.tokens.unwrap_or(if sums { arithmetic::ANSWER } else { 200.max(WINDOW) });
        let sampling = Sampling { temperature: self.temperature, top_k: self.top_k, seed: self.seed };
        let more = net.write(&tokens, count, sampling)?;
        let bytes = if sums { arithmetic::decode(&more).into_bytes() } else { spelled(&tokenizer, &more) };
        let number = if sums { arithmetic::answer(&more) } else { None };
        if let Some(path) = &self.out {
            atomic::write(path, &[prompt.as_bytes(), &bytes, b"\n"].concat())?;
            return Ok(true);
        }
        // The last character may be cut off, and the model's output need not be valid UTF-8.
        let text = String::from_utf8_lossy(&bytes);
        out.result(
            || json!({"prompt": prompt, "text": text, "answer": number}),
            || match number {
                Some(n) => format!("{prompt}{n}"),
                None => format!("{prompt}{text}"),
            },
        )?;
        Ok(true)
    }
}

/// Some rows of a tensor.
fn some(x: &AnyTensor, rows: std::ops::Range<usize>) -> Answer<AnyTensor> {
    let wide = x.shape().numel() / x.shape().dims()[0].max(1);
    let dims = [&[rows.len()], &x.shape().dims()[1..]].concat();
    let range = rows.start * wide..rows.end * wide;
    Ok(match x {
        AnyTensor::Num(x) => Tensor::new(&dims, x.data()[range].to_vec())?.into(),
        AnyTensor::Idx(x) => Tensor::new(&dims, x.data()[range].to_vec())?.into(),
    })
}

/// Inputs from a file: tokens, or numbers, which may be written as integers.
fn read(path: &Path, tokens: bool) -> Answer<AnyTensor> {
    let end = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
    let numbers = |t: AnyTensor| -> AnyTensor {
        match t {
            AnyTensor::Idx(t) if !tokens => {
                let shape = t.shape();
                AnyTensor::Num(Tensor::from_fn(shape, |i| t.data()[i] as f32))
            }
            t => t,
        }
    };
    let x = match end {
        "npy" => numbers(read_npy(path)?),
        "npz" => match read_npz(path)?.into_iter().find(|(name, _)| name == "x") {
            Some((_, x)) => numbers(x),
            None => return fail(format!("{}: has no array x", path.display())),
        },
        _ => data::csv_table(path)?.into(),
    };
    if x.shape().rank() < 2 || x.shape().numel() == 0 {
        return fail(format!(
            "{}: has shape {}, needs samples along the first axis",
            path.display(),
            x.shape()
        ));
    }
    Ok(x)
}

/// Predictions as CSV, one row per sample: for classes the class, then the logits of all classes.
fn table(y: &Tensor<f32>, task: Task) -> String {
    let rows = y.shape().dims()[0].max(1);
    let wide = (y.data().len() / rows).max(1);
    let mut head: Vec<String> = (0..wide).map(|i| format!("y{i}")).collect();
    if task == Task::Classes {
        head.insert(0, "class".into());
    }
    let mut text = head.join(",") + "\n";
    for row in y.data().chunks(wide) {
        if task == Task::Classes {
            let _ = write!(text, "{},", best(row).map_or_else(|| "nan".into(), |c| c.to_string()));
        }
        let cells: Vec<String> = row.iter().map(|v| format!("{v:?}")).collect();
        text += &cells.join(",");
        text.push('\n');
    }
    text
}
