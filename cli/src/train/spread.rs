//! Scores and curves of several runs: their mean, and how far they are apart.

use super::report::{SCORES, points};
use crate::Answer;
use crate::out::Out;
use crate::picture::{self, Spread};
use crate::task;
use dittograd::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// The mean of a score over several runs, and how far they are apart.
struct Numbers {
    count: usize,
    mean: f64,
    /// The standard deviation of a sample: of `count - 1` degrees of freedom, 0 for one run.
    deviation: f64,
    least: f64,
    most: f64,
}

impl Numbers {
    fn of(values: &[f64]) -> Numbers {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let squares: f64 = values.iter().map(|v| (v - mean) * (v - mean)).sum();
        Numbers {
            count: values.len(),
            mean,
            deviation: (squares / (n - 1.0).max(1.0)).sqrt(),
            least: values.iter().copied().fold(f64::INFINITY, f64::min),
            most: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        }
    }

    /// The mean and the deviation of a score.
    fn text(&self, name: &str) -> String {
        let [mean, deviation] = [self.mean, self.deviation].map(|v| task::number(name, v));
        task::phrase(name, &format!("{mean} ± {deviation}"))
    }
}

/// The numbers of each score, by its name, in the order of the scores.
pub(super) struct Spreads(Vec<(String, Numbers)>);

impl Spreads {
    pub(super) fn of(all: &[Scores]) -> Spreads {
        let mut values: Vec<(String, Vec<f64>)> = Vec::new();
        for (name, value) in all.iter().flat_map(|s| &s.values) {
            match values.iter_mut().find(|(known, _)| known == name) {
                Some((_, values)) => values.push(*value),
                None => values.push((name.clone(), vec![*value])),
            }
        }
        Spreads(values.into_iter().map(|(name, values)| (name, Numbers::of(&values))).collect())
    }

    pub(super) fn object(&self) -> Value {
        let numbers = |n: &Numbers| json!({"runs": n.count, "mean": n.mean, "deviation": n.deviation, "least": n.least, "most": n.most});
        Value::Object(self.0.iter().map(|(name, n)| (format!("test_{name}"), numbers(n))).collect())
    }

    /// A line for each score.
    pub(super) fn lines(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|(name, n)| {
            let [least, most] = [n.least, n.most].map(|v| task::number(name, v));
            format!("{}, from {least} to {most} in {} runs", n.text(name), n.count)
        })
    }

    /// Means and deviations in one line.
    fn text(&self) -> String {
        self.0.iter().map(|(name, n)| n.text(name)).collect::<Vec<_>>().join(", ")
    }
}

/// Evaluations on their way to the output: as text their means, once all runs have made one of a step.
pub(super) struct Means<'a> {
    out: &'a Out,
    /// The number of runs.
    count: usize,
    /// By step, then by seed: sums have one order.
    at: BTreeMap<u64, BTreeMap<u64, (f32, Scores)>>,
}

impl<'a> Means<'a> {
    pub(super) fn new(out: &'a Out, count: usize) -> Means<'a> {
        Means { out, count, at: BTreeMap::new() }
    }

    /// An evaluation. Runs that make their steps `in_turns` never come back to an earlier one.
    pub(super) fn add(&mut self, seed: u64, step: u64, loss: f32, scores: &Scores, in_turns: bool) {
        if self.out.json() {
            let line = || {
                let mut line = json!({"seed": seed, "step": step, "loss": loss});
                task::put(scores, &mut line);
                line
            };
            return self.out.progress(line, String::new);
        }
        let all = self.at.entry(step).or_default();
        all.insert(seed, (loss, scores.clone()));
        match all.len() == self.count {
            true => self.flush(step + 1),
            false if in_turns => self.flush(step),
            false => {}
        }
    }

    /// Tells of all steps before `until`.
    pub(super) fn flush(&mut self, until: u64) {
        let later = self.at.split_off(&until);
        for (step, all) in std::mem::replace(&mut self.at, later) {
            let losses: Vec<f64> = all.values().map(|(loss, _)| f64::from(*loss)).collect();
            let loss = Numbers::of(&losses);
            let scores: Vec<Scores> = all.into_values().map(|(_, scores)| scores).collect();
            let text = Spreads::of(&scores).text();
            let (mean, deviation, count) = (loss.mean, loss.deviation, loss.count);
            let of = if count < self.count { format!(" ({count} runs)") } else { String::new() };
            self.out.progress(
                || Value::Null,
                || format!("step {step}{of} loss {mean:.6} ± {deviation:.6}, {text}"),
            );
        }
    }
}

/// Draws the measurements of runs against the step.
pub(super) fn curves(home: &Path, title: &str, lines: &[&[Value]]) -> Answer<()> {
    let all = |name: &str, key: &str| (name.to_string(), lines.iter().map(|l| points(l, key)).collect());
    let mut panels = vec![Spread {
        title: "Loss".into(),
        log: true,
        lines: vec![all("training", "loss"), all("test", "test_loss")],
    }];
    for (key, title, log) in SCORES {
        panels.push(Spread { title: title.into(), log, lines: vec![all(title, key)] });
    }
    if panels.iter().all(|p| p.lines.iter().all(|(_, runs)| runs.iter().all(Vec::is_empty))) {
        return Ok(());
    }
    picture::spreads(&home.join("seeds"), title, &panels)
}
