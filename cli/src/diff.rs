//! `diff`: what differs between two runs, checkpoints, files of tensors or programs.

use crate::graph::program_of;
use crate::inspect::{describe, named_values};
use crate::out::{Out, table};
use crate::train::{checkpoint_file, positive};
use crate::{Answer, fail};
use clap::Args;
use dittograd::error::shown;
use dittograd::io::Checkpoint;
use dittograd::io::safetensors::SafeTensors;
use dittograd::numerics::ordered;
use dittograd::prelude::*;
use dittograd::train::{OF_THE_MACHINE, measurements};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Show what differs between two runs, checkpoints, files of tensors (of any framework) or programs; exit 1 if anything does.
///
/// Runs: settings, the first measurement, and tensors of their last states. Tensors: how many elements differ, and the one that is
/// furthest off, in units of the last place (ulps) of float32. All NaNs are one value.
#[derive(Args)]
pub(crate) struct Diff {
    /// The folder of a run, a checkpoint or another safetensors file, or the text of a program
    a: PathBuf,
    /// Another of the same kind
    b: PathBuf,
    /// Tensors to show, those first that are furthest off
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = positive)]
    most: usize,
}

/// The most characters of a name or value in the table.
const MAX_CHARS: usize = 60;

/// What is known of two sides: text for people, and the same as an object.
#[derive(Default)]
pub(crate) struct Report {
    lines: Vec<String>,
    object: BTreeMap<&'static str, Value>,
    differs: bool,
}

impl Report {
    /// As `--json` has it.
    pub(crate) fn object(&self) -> Value {
        json!(self.object)
    }

    /// A table of what differs, if there is anything.
    fn differing(&mut self, name: &'static str, head: [&str; 3], rows: Vec<[String; 3]>) {
        let object = |[name, a, b]: &[String; 3]| json!({"name": name, "a": a, "b": b});
        self.object.insert(name, rows.iter().map(object).collect());
        if rows.is_empty() {
            return;
        }
        self.differs = true;
        let cells = |row: [String; 3]| row.iter().map(|cell| shown(cell, MAX_CHARS)).collect::<Vec<_>>();
        let all: Vec<Vec<String>> =
            std::iter::once(head.map(String::from).to_vec()).chain(rows.into_iter().map(cells)).collect();
        self.lines.push(table(&all));
    }
}

impl Diff {
    /// Of two files or folders.
    pub(crate) fn of(a: &Path, b: &Path) -> Diff {
        Diff { a: a.to_path_buf(), b: b.to_path_buf(), most: usize::MAX }
    }

    /// Runs the command.
    pub(crate) fn run(&self, out: &Out) -> Answer {
        let report = self.report()?;
        out.result(|| report.object(), || report.lines.join("\n"))?;
        Ok(!report.differs)
    }

    /// What differs.
    pub(crate) fn report(&self) -> Answer<Report> {
        let mut report = Report::default();
        match [&self.a, &self.b]
            .map(|path| path.is_dir() || path.extension().is_some_and(|e| e == "safetensors"))
        {
            [true, true] => self.states(&mut report)?,
            [false, false] => self.programs(&mut report)?,
            _ => {
                let (a, b) = (self.a.display(), self.b.display());
                return fail(format!(
                    "{a} and {b}: one is the text of a program and the other is not; give two runs or safetensors files, or two \
                     programs"
                ));
            }
        }
        report.object.insert("same", json!(!report.differs));
        Ok(report)
    }

    /// Runs, checkpoints and other files of tensors.
    fn states(&self, report: &mut Report) -> Answer<()> {
        let sides = [&self.a, &self.b];
        let [a, b] = sides.map(|path| Side::read(path));
        let (a, b) = (a?, b?);
        if let (Some(a), Some(b)) = (&a.checkpoint, &b.checkpoint) {
            report.differing("settings", ["setting", "A", "B"], differing(&settings(a), &settings(b)));
        }
        if let [true, true] = sides.map(|path| path.is_dir()) {
            let [a, b] = sides.map(measurements);
            measured(&a?, &b?, report);
        }
        self.tensors(&a.file, &b.file, report)?;
        if !report.differs {
            let print = StateDict::from_file(&a.file).map(|s| format!(", fingerprint {}", s.fingerprint()));
            report.lines.push(format!("the same: {} tensors{}", a.file.len(), print.unwrap_or_default()));
        }
        Ok(())
    }

    /// The tensors of two files, by name.
    fn tensors(&self, a: &SafeTensors, b: &SafeTensors, report: &mut Report) -> Answer<()> {
        let names: BTreeSet<&str> = a.iter().chain(b.iter()).map(|(name, _)| name).collect();
        let (mut kinds, mut apart, mut same) = (Vec::new(), Vec::new(), 0);
        for name in names {
            let kind = |file: &SafeTensors| {
                file.get(name).map_or("-".into(), |e| format!("{}{}", e.dtype().name(), e.shape()))
            };
            if kind(a) != kind(b) {
                kinds.push([name.to_string(), kind(a), kind(b)]);
                continue;
            }
            match Distance::of(&a.tensor(name)?, &b.tensor(name)?) {
                Some(distance) => apart.push((name, kind(a), distance)),
                None => same += 1,
            }
        }
        report.differing("tensors_unlike", ["tensor", "A", "B"], kinds);
        apart.sort_by_key(|(name, _, d)| (Reverse(d.ulps), *name));
        report.object.insert("tensors_same", json!(same));
        let object = |(name, kind, d): &(&str, String, Distance)| d.object(name, kind);
        report.object.insert("tensors_differing", apart.iter().map(object).collect());
        if apart.is_empty() {
            return Ok(());
        }
        report.differs = true;
        let head = ["tensor", "elements", "differ", "ulps", "at", "A", "B"].map(String::from).to_vec();
        let row = |(name, kind, d): &(&str, String, Distance)| d.cells(name, kind);
        let rows: Vec<Vec<String>> =
            std::iter::once(head).chain(apart.iter().take(self.most).map(row)).collect();
        report.lines.push(table(&rows));
        let more = apart.len().saturating_sub(self.most);
        let hidden = if more > 0 { format!(", {more} of them not shown (--most)") } else { String::new() };
        report.lines.push(format!("{} tensors differ{hidden}, {same} are the same", apart.len()));
        Ok(())
    }

    /// The texts of two programs.
    fn programs(&self, report: &mut Report) -> Answer<()> {
        let (a, b) = (program_of(&self.a)?, program_of(&self.b)?);
        let hashes = [a.hash()?, b.hash()?];
        report.object.insert("hashes", json!(hashes));
        let (a, b) = (a.text()?, b.text()?);
        if a == b {
            report.lines.push(format!("the same program, hash {}", hashes[0]));
            return Ok(());
        }
        report.differs = true;
        let (mut left, mut right) = (a.lines(), b.lines());
        let mut at = 1;
        let (one, other) = loop {
            match (left.next(), right.next()) {
                (a, b) if a != b => break (a.unwrap_or("(its end)"), b.unwrap_or("(its end)")),
                (None, _) => break ("", ""),
                _ => at += 1,
            }
        };
        report.object.insert("line", json!(at));
        report.object.insert("lines", json!([one, other]));
        report.lines.push(format!(
            "line {at} is the first that differs\nA {}\nB {}",
            shown(one, 400),
            shown(other, 400)
        ));
        report.lines.push(format!("hashes {} and {}", hashes[0], hashes[1]));
        Ok(())
    }
}

/// A run or a file of tensors.
struct Side {
    file: SafeTensors,
    checkpoint: Option<Checkpoint>,
}

impl Side {
    fn read(path: &Path) -> Answer<Side> {
        let file = SafeTensors::read(checkpoint_file(path))?;
        let checkpoint = if Checkpoint::is_one(&file) { Some(Checkpoint::from_file(&file)?) } else { None };
        Ok(Side { file, checkpoint })
    }
}

/// What a checkpoint says besides its tensors, a value for each name.
fn settings(checkpoint: &Checkpoint) -> BTreeMap<String, String> {
    let texts = checkpoint.texts.iter().map(|(name, text)| (format!("text {name}"), text.clone()));
    named_values("", &describe(checkpoint)).into_iter().chain(texts).collect()
}

/// The entries of two lists that are not in both with the same value.
fn differing(a: &BTreeMap<String, String>, b: &BTreeMap<String, String>) -> Vec<[String; 3]> {
    let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let of = |side: &BTreeMap<String, String>, name: &String| side.get(name).cloned().unwrap_or("-".into());
    let row = |name: &String| [name.clone(), of(a, name), of(b, name)];
    names.into_iter().filter(|name| a.get(*name) != b.get(*name)).map(row).collect()
}

/// The first step at which both runs have measured something, and not the same.
fn measured(a: &[Value], b: &[Value], report: &mut Report) {
    let (a, b) = (by_step(a), by_step(b));
    let first = a.iter().find_map(|(step, one)| {
        let rows = differing(one, b.get(step)?);
        (!rows.is_empty()).then_some((step, rows))
    });
    report.object.insert("first_step", json!(first.as_ref().map(|f| f.0)));
    if let Some((step, rows)) = first {
        let head = format!("step {step}, the first that differs");
        report.differing("measurements", [&head, "A", "B"], rows);
    }
}

/// The measurements of each step, without time and memory.
fn by_step(lines: &[Value]) -> BTreeMap<u64, BTreeMap<String, String>> {
    let mut all: BTreeMap<u64, BTreeMap<String, String>> = BTreeMap::new();
    for line in lines {
        if let Some(step) = line["step"].as_u64() {
            let of = all.entry(step).or_default();
            of.extend(named_values("", line));
            OF_THE_MACHINE.iter().for_each(|name| drop(of.remove(*name)));
        }
    }
    all
}

/// How far two tensors are apart.
struct Distance {
    differing: usize,
    elements: usize,
    /// The largest distance, and where it is.
    ulps: u64,
    at: Vec<usize>,
    values: [String; 2],
}

impl Distance {
    /// The distance of two tensors of one type and shape, unless they are the same.
    fn of(a: &AnyTensor, b: &AnyTensor) -> Option<Distance> {
        match (a, b) {
            (AnyTensor::Num(a), AnyTensor::Num(b)) => {
                let shown = |x: f32| format!("{x:?} ({:08x})", x.to_bits());
                Distance::furthest(
                    a,
                    b,
                    |a, b| {
                        if a.is_nan() && b.is_nan() { 0 } else { u64::from(ordered(a).abs_diff(ordered(b))) }
                    },
                    shown,
                )
            }
            (AnyTensor::Idx(a), AnyTensor::Idx(b)) => {
                Distance::furthest(a, b, |a, b| u64::from(a.abs_diff(b)), |x| x.to_string())
            }
            _ => None,
        }
    }

    fn furthest<T: Copy>(
        a: &Tensor<T>,
        b: &Tensor<T>,
        apart: impl Fn(T, T) -> u64,
        shown: impl Fn(T) -> String,
    ) -> Option<Distance> {
        let distances = || a.data().iter().zip(b.data()).map(|(a, b)| apart(*a, *b)).enumerate();
        let differing = distances().filter(|(_, d)| *d > 0).count();
        // The first of those that are furthest apart.
        let (i, ulps) = distances().fold((0, 0), |most, (i, d)| if d > most.1 { (i, d) } else { most });
        (differing > 0).then(|| Distance {
            differing,
            elements: a.data().len(),
            ulps,
            at: a.shape().place(i),
            values: [shown(a.data()[i]), shown(b.data()[i])],
        })
    }

    fn cells(&self, name: &str, kind: &str) -> Vec<String> {
        let [a, b] = &self.values;
        let differ = format!("{} of {}", self.differing, self.elements);
        let at = format!("{:?}", self.at);
        [&shown(name, MAX_CHARS), kind, &differ, &self.ulps.to_string(), &at, a, b]
            .map(|s| s.to_string())
            .to_vec()
    }

    fn object(&self, name: &str, kind: &str) -> Value {
        json!({
            "name": name, "kind": kind, "differing": self.differing, "elements": self.elements, "ulps": self.ulps, "at": self.at,
            "a": self.values[0], "b": self.values[1],
        })
    }
}
