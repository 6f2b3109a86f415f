//! `inspect`: what a checkpoint, another safetensors file or the folder of a run holds.

use crate::out::{Out, bytes, table};
use crate::task;
use crate::train::TOKENIZER;
use crate::{Answer, fail};
use clap::Args;
use dittograd::data::Tokenizer;
use dittograd::error::shown;
use dittograd::io::Checkpoint;
use dittograd::io::safetensors::{Entry, SafeTensors};
use dittograd::prelude::*;
use dittograd::train::{BEST, CHECKPOINT, RECORD, Record, measurements};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Show what the folder of a run, a checkpoint or another safetensors file holds.
#[derive(Args)]
pub(crate) struct Inspect {
    /// Folder of a run, checkpoint, or any safetensors file
    file: PathBuf,
}

/// The most characters of a name in the table; a file may hold names that fill pages.
const MAX_NAME: usize = 100;

/// One tensor: a line of the table.
struct Row {
    name: String,
    shape: Shape,
    dtype: &'static str,
    /// `None` if it cannot be converted.
    stats: Option<Stats>,
}

/// Statistics of the elements without NaNs, computed in f64.
struct Stats {
    min: f64,
    max: f64,
    mean: f64,
    norm: f64,
    nan: usize,
}

impl Stats {
    fn of(values: impl Iterator<Item = f64>) -> Stats {
        let (mut min, mut max, mut sum, mut squares) = (f64::INFINITY, f64::NEG_INFINITY, 0.0, 0.0);
        let (mut count, mut nan) = (0usize, 0);
        for x in values {
            if x.is_nan() {
                nan += 1;
                continue;
            }
            (min, max) = (x.min(min), x.max(max));
            sum += x;
            squares += x * x;
            count += 1;
        }
        let none = if count == 0 { f64::NAN } else { 0.0 };
        Stats { min: min + none, max: max + none, mean: sum / count as f64, norm: squares.sqrt(), nan }
    }
}

impl Row {
    fn new(file: &SafeTensors, name: &str, entry: &Entry) -> Row {
        let stats = match file.tensor(name) {
            Ok(AnyTensor::Num(t)) => Some(Stats::of(t.data().iter().map(|x| f64::from(*x)))),
            Ok(AnyTensor::Idx(t)) => Some(Stats::of(t.data().iter().map(|x| f64::from(*x)))),
            // A file may hold elements that no tensor here can, such as negative integers.
            Err(_) => None,
        };
        Row { name: name.to_string(), shape: entry.shape(), dtype: entry.dtype().name(), stats }
    }

    fn cells(&self) -> Vec<String> {
        let name = shown(&self.name, MAX_NAME);
        let mut cells = vec![name, self.shape.to_string(), self.dtype.into(), self.shape.numel().to_string()];
        match &self.stats {
            Some(s) => {
                cells.extend([s.min, s.max, s.mean, s.norm].map(short).into_iter().chain([s.nan.to_string()]))
            }
            None => cells.extend(["-"; 5].map(String::from)),
        }
        cells
    }

    fn object(&self) -> Value {
        let mut object = json!({
            "name": self.name, "shape": self.shape.dims(), "dtype": self.dtype, "count": self.shape.numel(),
        });
        if let Some(s) = &self.stats {
            object["min"] = json!(s.min);
            object["max"] = json!(s.max);
            object["mean"] = json!(s.mean);
            object["norm"] = json!(s.norm);
            object["nan"] = json!(s.nan);
        }
        object
    }
}

/// Six digits, like `%g`.
fn short(x: f64) -> String {
    if x.is_nan() {
        return "-".to_string();
    }
    match x.abs() {
        a if a != 0.0 && a.is_finite() && !(1e-4..1e6).contains(&a) => format!("{x:.4e}"),
        _ => {
            let digits = format!("{x:.6}");
            let cut = digits.trim_end_matches('0').trim_end_matches('.');
            if digits.contains('.') { cut.to_string() } else { digits }
        }
    }
}

impl Inspect {
    /// Runs the command.
    pub(crate) fn run(&self, out: &Out) -> Answer {
        if self.file.is_dir() {
            return self.folder(out);
        }
        let file = SafeTensors::read(&self.file)?;
        let checkpoint = if Checkpoint::is_one(&file) { Some(Checkpoint::from_file(&file)?) } else { None };
        let is_param = |name: &str| checkpoint.as_ref().is_none_or(|c| c.params.get(name).is_some());
        let wanted = file.iter().filter(|(name, _)| is_param(name));
        let rows: Vec<Row> = wanted.map(|(name, e)| Row::new(&file, name, e)).collect();
        let elements: usize = rows.iter().map(|r| r.shape.numel()).sum();
        let tokenizer = match checkpoint.as_ref().and_then(|c| c.texts.get(TOKENIZER)) {
            Some(text) => Some(Tokenizer::from_json(text)?),
            None => None,
        };
        let fingerprint = match &checkpoint {
            Some(c) => Some(c.fingerprint()),
            // Tensors that cannot be converted have no fingerprint.
            None => StateDict::from_file(&file).ok().map(|s| s.fingerprint()),
        };
        if out.json() {
            let mut all = json!({
                "file": self.file.display().to_string(),
                "bytes": file.bytes(),
                "checkpoint": checkpoint.as_ref().map(describe),
                "metadata": file.metadata(),
                "tensors": rows.iter().map(Row::object).collect::<Vec<_>>(),
                "elements": elements,
                "fingerprint": fingerprint,
            });
            if let Some(tokenizer) = &tokenizer {
                all["checkpoint"]["tokenizer"] =
                    json!({"tokens": tokenizer.size(), "merges": tokenizer.merges()});
            }
            if checkpoint.is_some() {
                // The checkpoint's own entry already has all of it.
                all["metadata"] = Value::Null;
            }
            out.line(&all.to_string())?;
            return Ok(true);
        }
        match &checkpoint {
            Some(c) => out.line(&text(c))?,
            None => {
                for (key, value) in file.metadata() {
                    out.line(&format!("metadata {}", shown(&format!("{key} {value}"), 200)))?;
                }
            }
        }
        if let Some(tokenizer) = &tokenizer {
            out.line(&format!("tokenizer {} tokens, {} merges", tokenizer.size(), tokenizer.merges()))?;
        }
        let mut shown: Vec<Vec<String>> = vec![
            ["tensor", "shape", "dtype", "count", "min", "max", "mean", "norm", "nan"]
                .map(String::from)
                .into(),
        ];
        shown.extend(rows.iter().map(Row::cells));
        out.line(&table(&shown))?;
        let (count, size) = (rows.len(), bytes(file.bytes()));
        out.line(&format!("{count} tensors, {elements} elements, file of {size}"))?;
        if let Some(fingerprint) = fingerprint {
            out.line(&format!("fingerprint {fingerprint}"))?;
        }
        Ok(true)
    }
}

impl Inspect {
    /// Shows a run: its model and settings, how far it is, its scores, and its files. A run that is under way is not
    /// disturbed.
    fn folder(&self, out: &Out) -> Answer {
        let folder = &self.file;
        let Some(last) = state(folder, CHECKPOINT)? else {
            return fail(format!("{}: is a folder without a run: it has no {CHECKPOINT}", folder.display()));
        };
        let lines = measurements(folder)?;
        let best = last.progress.best.map(|b| b.step);
        let best_print = state(folder, BEST)?.filter(|c| Some(c.step) == best).map(|c| c.fingerprint());
        let scores = |step: Option<u64>| step.and_then(|s| task::scores_at(&lines, s));
        let evaluated =
            lines.iter().filter(|l| l.get("test_loss").is_some()).filter_map(|l| l["step"].as_u64()).max();
        let files = files(folder)?;
        let record = recorded(folder);
        if out.json() {
            let scored = |step: Option<u64>| {
                let mut object = json!({"step": step});
                if let Some(scores) = scores(step) {
                    task::put(&scores, &mut object);
                }
                object
            };
            let mut best_object = scored(best);
            best_object["fingerprint"] = json!(best_print);
            let files: Vec<Value> = files.iter().map(|(n, b)| json!({"name": n, "bytes": b})).collect();
            let all = json!({
                "folder": folder.display().to_string(), "model": last.model, "settings": last.config, "step": last.step,
                "parameters": last.params.numel(), "evaluated": scored(evaluated), "best": best_object,
                "fingerprint": last.fingerprint(), "files": files, "record": record.0,
            });
            out.line(&all.to_string())?;
            return Ok(true);
        }
        let model = if last.model.is_empty() { "a model without a name" } else { &last.model };
        let mut text = vec![format!("run of {model}, {} parameters", last.params.numel())];
        let settings = named_values("", &last.config);
        text.extend(settings.into_iter().map(|(name, value)| format!("{name} {value}")));
        text.push(format!("step {}", last.step));
        let scored = |what: &str, step: Option<u64>| match (step, scores(step)) {
            (Some(step), Some(scores)) => Some(format!("{what} step {step}: {}", task::text(&scores))),
            (Some(step), None) => Some(format!("{what} step {step}")),
            (None, _) => None,
        };
        text.extend(scored("last evaluation at", evaluated));
        text.extend(scored("best at", best));
        text.extend(record.1);
        text.iter_mut().for_each(|l| *l = shown(l, 400));
        text.push(table(
            &files.iter().map(|(name, size)| vec![shown(name, MAX_NAME), bytes(*size)]).collect::<Vec<_>>(),
        ));
        text.extend(best_print.map(|p| format!("fingerprint {p} of the best state")));
        text.push(format!("fingerprint {}", last.fingerprint()));
        out.line(&text.join("\n"))?;
        Ok(true)
    }
}

/// What the record in a folder is, as an object and as text.
fn recorded(folder: &Path) -> (Value, Option<String>) {
    let file = folder.join(RECORD);
    if !file.exists() {
        return (Value::Null, None);
    }
    let record = match Record::read(file) {
        Ok(record) => record,
        Err(e) => {
            let why = e.without_location().to_string();
            return (json!({"damaged": why}), Some(format!("record damaged: {why}")));
        }
    };
    let (first, last, root) = (record.first(), record.last(), record.root());
    let (states, head) = (record.states().count(), record.head());
    let ended = record.end().map_or("not ended", |end| &end.end);
    let object = json!({
        "first": first, "last": last, "states": states, "end": record.end().map(|e| &e.end), "root": root, "program": head.program,
        "data": head.data.hash, "numerics": head.numerics, "numerics_version": head.numerics_version, "dittograd": head.dittograd,
        "machines": record.machines(), "faults": record.faults(),
    });
    let mut text = format!("record of steps {} to {last}, {states} states, {ended}, root {root}", first + 1);
    for (step, fault) in record.faults() {
        text += &format!("\nfault of the hardware in step {step}, which was repeated: {fault}");
    }
    (object, Some(text))
}

/// A state in the folder of a run, if it has it.
fn state(folder: &Path, name: &str) -> Answer<Option<Checkpoint>> {
    let file = folder.join(name);
    Ok(if file.exists() { Some(Checkpoint::load(file)?) } else { None })
}

/// Names and sizes of the files in a folder, in order.
fn files(folder: &Path) -> Answer<Vec<(String, usize)>> {
    let read = || -> std::io::Result<Vec<(String, usize)>> {
        let mut all = Vec::new();
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            all.push((entry.file_name().to_string_lossy().into_owned(), entry.metadata()?.len() as usize));
        }
        all.retain(|(name, _)| !name.starts_with('.'));
        all.sort();
        Ok(all)
    };
    read().or_else(|e| fail(format!("{}: {e}", folder.display())))
}

/// The values of an object by their names, with those of the objects that they are in; what is not set is left out.
pub(crate) fn named_values(before: &str, object: &Value) -> Vec<(String, String)> {
    let Some(all) = object.as_object() else { return Vec::new() };
    let values = |(name, value): (&String, &Value)| match value {
        Value::Null => Vec::new(),
        Value::Object(_) => named_values(&format!("{before}{name}."), value),
        Value::String(text) => vec![(format!("{before}{name}"), text.clone())],
        value => vec![(format!("{before}{name}"), value.to_string())],
    };
    all.iter().flat_map(values).collect()
}

/// Names of the optimizer's tensors for any parameter.
fn states(c: &Checkpoint) -> Vec<&str> {
    let all = c.optimizer.iter().flat_map(|o| o.params.values());
    let mut names: Vec<&str> = all.flat_map(|p| p.tensors.keys().map(String::as_str)).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// What a checkpoint says besides its tensors.
pub(crate) fn describe(c: &Checkpoint) -> Value {
    let optimizer = c.optimizer.as_ref().map(|o| {
        json!({"step": o.step, "lr": o.lr, "group_lrs": o.group_lrs, "parameters": o.params.len(), "states": states(c)})
    });
    json!({
        "model": c.model, "config": c.config, "step": c.step,
        "random": {"seed": c.random.seed, "calls": c.random.calls},
        "numerics": c.numerics.to_string(), "numerics_version": c.numerics_version,
        "data": {"name": c.data.name, "seed": c.data.seed, "batch": c.data.batch},
        "frozen": c.frozen, "metrics": c.metrics, "version": c.version, "optimizer": optimizer,
    })
}

fn text(c: &Checkpoint) -> String {
    let mut lines = vec![format!("checkpoint of dittograd {}", c.version), format!("model {}", c.model)];
    if !c.config.is_null() {
        lines.push(format!("config {}", c.config));
    }
    lines.push(format!("step {}", c.step));
    if !c.data.name.is_empty() {
        lines.push(format!("data {}, seed {}, batch {}", c.data.name, c.data.seed, c.data.batch));
    }
    lines.push(format!("random seed {}, {} calls", c.random.seed, c.random.calls));
    lines.push(format!("numerics {}, version {}", c.numerics, c.numerics_version));
    lines.push(match &c.optimizer {
        None => "optimizer none".to_string(),
        Some(o) => {
            let states = states(c);
            let kept = if states.is_empty() { "nothing".to_string() } else { states.join(", ") };
            format!("optimizer step {}, lr {}, {kept} of {} parameters", o.step, o.lr, o.params.len())
        }
    });
    if !c.frozen.is_empty() {
        lines.push(format!("frozen {}", c.frozen.iter().cloned().collect::<Vec<_>>().join(", ")));
    }
    if !c.metrics.is_null() {
        lines.push(format!("metrics {}", c.metrics));
    }
    let plain = |l: String| l.chars().map(|ch| if ch.is_control() { ' ' } else { ch }).collect::<String>();
    lines.into_iter().map(plain).collect::<Vec<_>>().join("\n")
}
