//! `predict`: a trained model on data from a file, on its test data, or on a text that it continues.

use crate::images::{self, size_text};
use crate::models::{Model, Task};
use crate::out::{Busy, Out};
use crate::task::{self, WINDOW, evaluation, known_folder, predict, spelled};
use crate::train::{Spec, checkpoint_file, positive};
use crate::{Answer, Global, fail};
use clap::Args;
use dittograd::data::{self, arithmetic};
use dittograd::io::{Checkpoint, atomic, read_npy, read_npz, write_npy};
use dittograd::nn::Sampling;
use dittograd::prelude::*;
use dittograd::reserve::grow;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Rows computed at a time.
const ROWS: usize = 256;
/// Classes of a row in JSON, the likeliest first.
const TOP: usize = 5;

/// Use a trained model.
#[derive(Args)]
pub(crate) struct Predict {
    /// A checkpoint that `train` made, or the folder of a run
    #[arg(value_name = "CHECKPOINT")]
    model: PathBuf,
    /// Inputs: .npy, .npz with an array x, .csv with numbers, with or without the targets of training, a PNG or JPEG file, a
    /// folder of them, or a folder with MNIST or CIFAR-10, of which the test part is taken [default: the data the
    /// model was judged by, which gives its scores]
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Where predictions go: .npy with the numbers the model gives (for classes, their logits), or .csv [default: CSV on
    /// stdout]
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
    /// Draw only among the N likeliest tokens; or, of a classifier, show the N likeliest classes of each row and no logits
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
            spec.has_data(&file, "give inputs with --data")?;
            let data = spec.data.load(spec.model, &out.busy("reading the data"))?;
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
        let Inputs { x, files } = Inputs::read(path, &spec, &out.busy("reading the data"))?;
        let x = spec.scales.inputs(x)?;
        let (rows, mut all, mut dims) = (x.shape().dims()[0], Vec::new(), Vec::new());
        for start in (0..rows).step_by(ROWS) {
            let got = predict(&device, eval.as_ref(), &some(&x, start..rows.min(start + ROWS))?)?;
            dims = got.shape().dims()[1..].to_vec();
            grow("predictions", &mut all, got.data().len())?;
            all.extend(got.into_data());
        }
        let y = Tensor::new(&[&[rows], &dims[..]].concat(), all)?;
        let y = spec.scales.outputs(y)?;
        if let Some(path) = self.out.as_ref().filter(|p| p.extension().is_some_and(|e| e == "npy")) {
            write_npy(path, &y.into())?;
            return Ok(true);
        }
        let answers = Answers { spec: &spec, files, y, top: self.top_k };
        match &self.out {
            Some(path) => atomic::write(path, answers.table().as_bytes())?,
            None if out.json() => {
                for i in 0..rows {
                    out.line(&answers.object(i).to_string())?;
                }
            }
            None => out.line(answers.table().trim_end())?,
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

/// Inputs of a model.
struct Inputs {
    x: AnyTensor,
    /// The file of each row, if each has its own.
    files: Option<Vec<PathBuf>>,
}

impl Inputs {
    /// What `train` reads: tokens, or numbers, which may be written as integers, or images.
    fn read(path: &Path, spec: &Spec, busy: &Busy) -> Answer<Inputs> {
        let end = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
        if path.is_dir() {
            return match known_folder(path)? {
                Some((_, test)) => Ok(Inputs { x: test.x().clone(), files: None }),
                None => Inputs::images(images::files(path)?, path, spec, busy),
            };
        }
        if images::is_image(path) {
            return Inputs::images(vec![path.to_path_buf()], path, spec, busy);
        }
        let tokens = spec.model.takes_tokens();
        let numbers = |t: AnyTensor| -> AnyTensor {
            match t {
                AnyTensor::Idx(t) if !tokens => {
                    let shape = t.shape();
                    AnyTensor::Num(Tensor::from_fn(shape, |i| t.data()[i] as f32))
                }
                t => t,
            }
        };
        let x = match (end, spec.input.as_deref()) {
            ("npy", _) => numbers(read_npy(path)?),
            ("npz", _) => match read_npz(path)?.into_iter().find(|(name, _)| name == "x") {
                Some((_, x)) => numbers(x),
                None => return fail(format!("{}: has no array x", path.display())),
            },
            _ if tokens && path.is_file() => {
                let how = "use --prompt for text, and .npy or .npz for tokens";
                return fail(format!("{}: {} reads no such file; {how}", path.display(), spec.model.name()));
            }
            (_, Some([features])) => {
                let outputs = spec.config["sizes"].as_array().and_then(|s| s.last()?.as_u64()).unwrap_or(1);
                let targets = if spec.task == Task::Classes { 1 } else { outputs as usize };
                data::csv_inputs(path, *features, targets)?.into()
            }
            _ => data::csv_table(path)?.into(),
        };
        if x.shape().rank() < 2 || x.shape().numel() == 0 {
            return fail(format!(
                "{}: has shape {}, needs samples along the first axis",
                path.display(),
                x.shape()
            ));
        }
        if let Some(input) = spec.input.as_ref().filter(|input| x.shape().rank() != input.len() + 1) {
            let (at, have, model) = (path.display(), x.shape(), spec.model.name());
            return fail(format!(
                "{at}: has rows of shape {:?}; this {model} takes {input:?}",
                &have.dims()[1..]
            ));
        }
        Ok(Inputs { x, files: None })
    }

    /// Images as the model was trained on them.
    fn images(files: Vec<PathBuf>, path: &Path, spec: &Spec, busy: &Busy) -> Answer<Inputs> {
        if files.is_empty() {
            return fail(format!("{}: holds no PNG or JPEG files", path.display()));
        }
        let takes = match spec.model {
            Model::Program => spec.config["channels"].is_u64(),
            model => matches!(model, Model::Cnn | Model::ResNet | Model::Vit | Model::Autoencoder),
        };
        if !takes {
            return fail(format!("{}: {} takes no images", path.display(), spec.model.name()));
        }
        let channels = spec.config["channels"].as_u64().map(|c| c as usize);
        let x = images::tensor(&files, channels, spec.data.resize, busy)?;
        let &[_, _, height, width] = x.shape().dims() else { return fail("images have four axes") };
        if let Some(&[_, h, w]) = spec.input.as_deref()
            && [h, w] != [height, width]
        {
            let (has, takes) = (size_text([height, width]), size_text([h, w]));
            let how = "scale it to this size, or train with --resize HxW to take images of any size";
            return fail(format!("{}: has {has} pixels, the model takes {takes}; {how}", files[0].display()));
        }
        Ok(Inputs { x: x.into(), files: Some(files) })
    }
}

/// Predictions for all rows.
struct Answers<'a> {
    spec: &'a Spec,
    files: Option<Vec<PathBuf>>,
    y: Tensor<f32>,
    /// How many classes to show of each row, instead of all logits.
    top: Option<usize>,
}

impl Answers<'_> {
    fn row(&self, i: usize) -> &[f32] {
        let wide = self.y.data().len() / self.y.shape().dims()[0].max(1);
        &self.y.data()[i * wide..][..wide]
    }

    fn file(&self, i: usize) -> Option<String> {
        self.files.as_ref().map(|files| files[i].display().to_string())
    }

    /// One object per sample.
    fn object(&self, i: usize) -> Value {
        let row = self.row(i);
        let mut object = json!({});
        if let Some(file) = self.file(i) {
            object["file"] = json!(file);
        }
        if self.spec.task == Task::Classes {
            let top = likeliest(row, self.top.unwrap_or(TOP));
            let has_names = self.spec.class_names.is_some();
            let said = |(class, probability): &(usize, f64)| {
                let mut said = json!({"class": class, "probability": probability});
                if has_names {
                    said["name"] = json!(self.spec.class_name(*class));
                }
                said
            };
            object["class"] = json!(top.first().map(|t| t.0));
            if let Some(first) = top.first() {
                object["probability"] = json!(first.1);
                if has_names {
                    object["name"] = json!(self.spec.class_name(first.0));
                }
            }
            object["top"] = top.iter().map(said).collect();
        }
        object["values"] = json!(row);
        object
    }

    /// CSV with one row per sample. For classes: the likeliest one and its probability, then the logits of all classes, or
    /// the next likely classes.
    fn table(&self) -> String {
        let rows = self.y.shape().dims()[0];
        let wide = self.y.data().len() / rows.max(1);
        let top = self.top.filter(|_| self.spec.task == Task::Classes).map(|n| n.min(wide));
        let mut head: Vec<String> = Vec::new();
        if self.files.is_some() {
            head.push("file".into());
        }
        if self.spec.task == Task::Classes {
            head.extend(["class", "probability"].map(String::from));
        }
        match top {
            Some(top) => {
                head.extend((2..=top).flat_map(|i| [format!("class{i}"), format!("probability{i}")]))
            }
            None => head.extend((0..wide).map(|i| format!("y{i}"))),
        }
        let mut text = head.join(",") + "\n";
        for i in 0..rows {
            let row = self.row(i);
            let mut cells: Vec<String> = self.file(i).iter().map(|f| quoted(f)).collect();
            if self.spec.task == Task::Classes {
                let shown = top.unwrap_or(1);
                let said = likeliest(row, shown);
                let pair =
                    |(class, p): &(usize, f64)| [quoted(&self.spec.class_name(*class)), format!("{p:.6}")];
                cells.extend(said.iter().flat_map(pair));
                cells.extend((said.len()..shown).flat_map(|_| ["nan".to_string(), "nan".to_string()]));
            }
            if top.is_none() {
                cells.extend(row.iter().map(|v| format!("{v:?}")));
            }
            text += &(cells.join(",") + "\n");
        }
        text
    }
}

/// The most probable classes of a row of logits with their probabilities, at most `most`; none if a logit is NaN.
fn likeliest(logits: &[f32], most: usize) -> Vec<(usize, f64)> {
    if logits.iter().any(|v| v.is_nan()) {
        return Vec::new();
    }
    let mut order: Vec<usize> = (0..logits.len()).collect();
    // The order of equal ones stays.
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
    let Some(largest) = order.first().map(|i| f64::from(logits[*i])) else { return Vec::new() };
    let weight = |v: &f32| libm::exp(f64::from(*v) - largest);
    let sum: f64 = logits.iter().map(weight).sum();
    order.truncate(most);
    order.into_iter().map(|i| (i, weight(&logits[i]) / sum)).collect()
}

/// A cell of a CSV file, in quotes if it needs them.
fn quoted(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) || text.trim() != text {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_of_classes() {
        let got = likeliest(&[0.0, 2.0, 2.0, -1000.0], 3);
        let share = libm::exp(2.0) / (2.0 * libm::exp(2.0) + 1.0);
        assert_eq!(got.iter().map(|g| g.0).collect::<Vec<_>>(), [1, 2, 0]);
        assert!((got[0].1 - share).abs() < 1e-12 && got[0].1 == got[1].1);
        assert_eq!(likeliest(&[f32::MAX, 0.0], 9), [(0, 1.0), (1, 0.0)]);
        assert_eq!(likeliest(&[1.0, f32::NAN], 2), []);
        assert_eq!(likeliest(&[], 2), []);
    }

    #[test]
    fn cells_that_need_quotes_have_them() {
        for (text, want) in
            [("a b", "a b"), ("a,b", "\"a,b\""), ("say \"x\"", "\"say \"\"x\"\"\""), (" a", "\" a\"")]
        {
            assert_eq!(quoted(text), want);
        }
    }
}
