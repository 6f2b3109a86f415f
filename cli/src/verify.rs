//! `verify`: computes a run again from its record and compares every step.

use crate::out::{Busy, Out};
use crate::task::Data;
use crate::train::fit::trainer;
use crate::train::{Mode, Spec};
use crate::{Answer, Fail, Global, fail};
use clap::Args;
use dittograd::io::{Checkpoint, atomic};
use dittograd::numerics::{NUMERICS_VERSION, Numerics};
use dittograd::prelude::*;
use dittograd::train::{
    BEST, CHECKPOINT, Difference, Event, RECORD, Record, Segment, StateHash, Verified, data_hash,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// Compute a run again from its record, on any device, and compare every step; exit 1 if anything differs.
///
/// First the record is checked by itself, then checkpoints beside it against it. The steps are computed from the state before them
/// that is nearest: the beginning of the run, or a checkpoint.
#[derive(Args)]
pub(crate) struct Verify {
    /// The folder of a run, its record, or a receipt
    run: PathBuf,
    /// Only these steps, both included [default: all]
    #[arg(long, value_name = "A..B", value_parser = steps_of)]
    steps: Option<RangeInclusive<u64>>,
    /// The data, if it was moved
    #[arg(long, value_name = "PATH")]
    data: Option<PathBuf>,
    /// The file with the parameters that the run began with, or with the programs of its model, if it was moved
    #[arg(long, value_name = "FILE")]
    weights: Option<PathBuf>,
    /// Write a receipt of the run, once it is verified: what `verify` needs to do the same again, with the data alone
    #[arg(long, value_name = "FILE", conflicts_with = "steps")]
    receipt: Option<PathBuf>,
    /// Run each op as it comes, or the whole step as one program; same bits
    #[arg(long, value_enum, default_value = "compiled")]
    mode: Mode,
}

/// A range of steps such as 900..1000.
fn steps_of(text: &str) -> Result<RangeInclusive<u64>, String> {
    let (from, to) = text.split_once("..").unwrap_or((text, text));
    match (from.parse(), to.parse()) {
        (Ok(from), Ok(to)) if 1 <= from && from <= to => Ok(from..=to),
        _ => Err("use A..B with 1 <= A <= B, such as 900..1000".into()),
    }
}

/// Why a run is not verified.
enum No {
    /// Something that was read.
    Said(String),
    /// A step that was computed.
    Differs(Difference),
}

/// A run as it was found.
struct Evidence {
    record: Record,
    /// Checkpoints beside it, each with its name.
    kept: Vec<(&'static str, Checkpoint, StateHash)>,
}

impl Evidence {
    /// Reads a record and the checkpoints beside it, and compares them.
    fn read(path: &Path) -> Answer<Result<Evidence, No>> {
        let file = if path.is_dir() { path.join(RECORD) } else { path.to_path_buf() };
        let said = |e: Error| Ok(Err(No::Said(e.without_location().to_string())));
        if !file.exists() {
            return fail(format!("{}: there is no such file; `train` writes it", file.display()));
        }
        let record = match Record::read(&file) {
            Ok(record) => record,
            Err(e) => return said(e),
        };
        if record.end().is_some() && !record.is_sealed() {
            return Ok(Err(No::Said(format!("{}: its last line is missing", file.display()))));
        }
        let folder = file.parent().unwrap_or(Path::new(""));
        let mut kept = Vec::new();
        // A receipt may be anywhere.
        for name in [CHECKPOINT, BEST].into_iter().filter(|_| !record.is_receipt()) {
            let at = folder.join(name);
            if !at.exists() {
                continue;
            }
            let checkpoint = match Checkpoint::load(&at) {
                Ok(checkpoint) => checkpoint,
                Err(e) => return said(e),
            };
            let hash = StateHash::of(&checkpoint);
            if let Some(why) = contradiction(&record, &checkpoint, &hash) {
                return Ok(Err(No::Said(format!("{}: {why}", at.display()))));
            }
            kept.push((name, checkpoint, hash));
        }
        Ok(Ok(Evidence { record, kept }))
    }
}

/// What a checkpoint says that the record beside it does not.
fn contradiction(record: &Record, checkpoint: &Checkpoint, hash: &StateHash) -> Option<String> {
    let (step, head) = (checkpoint.step, record.head());
    if step > record.last() {
        return Some(format!("is of step {step}, the record ends at step {}", record.last()));
    }
    let of_step = |s: &Segment<'_>| s.from < step || s.from == record.first();
    let settings = record.segments().into_iter().rfind(of_step).map(|s| s.settings.clone());
    let facts = [
        ("model", json!(head.model), json!(checkpoint.model)),
        ("settings", settings.unwrap_or(Value::Null), checkpoint.config.clone()),
        ("data", json!(head.data.hash), json!(checkpoint.data.hash)),
        ("seed", json!(head.seed), json!(checkpoint.random.seed)),
    ];
    if let Some((name, was, is)) = facts.into_iter().find(|(_, was, is)| was != is) {
        return Some(format!("{name} {is}, in the record {was}"));
    }
    let was = record.state(step)?;
    if was.root == hash.root {
        return None;
    }
    Some(match was.first_difference(hash) {
        Some((name, [sum, here])) => {
            format!("the sum of tensor {name} is {here}, in the record after step {step} it is {sum}")
        }
        None => format!("its state is not the one that the record has after step {step}"),
    })
}

impl Verify {
    /// Runs the command.
    pub(crate) fn run(&self, global: &Global, out: &Out) -> Answer {
        let evidence = match Evidence::read(&self.run)? {
            Ok(evidence) => evidence,
            Err(no) => return say_no(out, no),
        };
        if self.receipt.is_some() && evidence.record.is_receipt() {
            return fail(format!("--receipt: {} is one already; copy it", self.run.display()));
        }
        let device = device_for(&evidence.record, global)?;
        self.replay(&evidence, &device, out)
    }

    /// The range of steps to compare.
    fn range(&self, record: &Record) -> Answer<(u64, u64)> {
        let (first, last) = (record.first(), record.last());
        let Some(steps) = &self.steps else { return Ok((first, last)) };
        if *steps.start() <= first || *steps.end() > last {
            let (a, b) = (steps.start(), steps.end());
            return fail(format!("--steps {a}..{b}: the record has steps {} to {last}", first + 1));
        }
        if record.is_receipt() {
            return fail(
                "--steps: a receipt has no single steps; leave it out, or give the folder of the run",
            );
        }
        Ok((steps.start() - 1, *steps.end()))
    }

    fn replay(&self, evidence: &Evidence, device: &Device, out: &Out) -> Answer {
        let Evidence { record, kept } = evidence;
        let (from, to) = self.range(record)?;
        let busy = out.busy("reading the data");
        let spec = |settings: &Value| {
            let of = Spec::recorded(settings, self.data.as_deref(), self.weights.as_deref());
            of.map_err(|e| match e {
                Fail::Message(why) => Fail::Message(format!("{}: {why}", record.path().display())),
                other => other,
            })
        };
        let segments = record.segments();
        let first = spec(segments[0].settings)?;
        let data = first.data.load(first.model, &busy)?;
        let here = data_hash(&data.train, Some(&data.test));
        if here != record.head().data.hash {
            let no = format!(
                "the data {} is not what the run was trained on: its hash is {here}, in the record {}",
                data.train.name(),
                record.head().data.hash
            );
            return say_no(out, No::Said(no));
        }
        busy.now("building the model");
        // The nearest state: of the same state in two files, either.
        let start =
            kept.iter().filter(|k| (record.first()..=from).contains(&k.1.step)).max_by_key(|k| k.1.step);
        let mut state = start.map(|k| k.1.clone());
        let (params, net) = match &state {
            Some(state) => first.net_of(state, device)?,
            None => first.begun(device, self.weights.as_deref())?,
        };
        let at = state.as_ref().map_or(record.first(), |s| s.step);
        out.progress(
            || json!({"model": record.head().model, "recorded": record.last() - record.first(), "start": at, "to": to, "device": device.to_string()}),
            || {
                let (model, name, steps) = (&record.head().model, data.train.name(), record.last() - record.first());
                format!("{model} on {name}: {steps} steps recorded, computed from step {at} to {to}; {device}")
            },
        );
        let states: BTreeMap<u64, (String, StateHash)> =
            kept.iter().map(|(name, c, hash)| (c.step, (name.to_string(), hash.clone()))).collect();
        let mut computed = 0;
        for segment in segments.iter().filter(|s| s.to > at && s.from < to || s.from == to && s.to == to) {
            let spec = spec(segment.settings)?;
            let verified = self.segment(
                (&spec, &data),
                (&params, &net),
                record,
                segment.to.min(to),
                &states,
                state.take(),
                &busy,
            )?;
            computed += verified.steps;
            if let Some(difference) = verified.difference {
                return say_no(out, No::Differs(difference));
            }
            state = Some(verified.state);
        }
        drop(busy);
        let is_whole = (from, to) == (record.first(), record.last());
        let fingerprint = params.fingerprint()?;
        if let (Some(end), true) = (record.end(), to == record.last())
            && end.fingerprint != fingerprint
        {
            let (what, recorded) = ("the fingerprint".to_string(), end.fingerprint.clone());
            return say_no(out, No::Differs(Difference { step: to, what, recorded, computed: fingerprint }));
        }
        let root = record.root();
        if let Some(file) = &self.receipt {
            atomic::write(file, record.receipt()?.as_bytes())?;
        }
        out.result(
            || {
                let mut object =
                    json!({"verified": true, "from": from + 1, "to": to, "steps": computed, "root": root});
                if is_whole {
                    object["fingerprint"] = json!(fingerprint);
                }
                object
            },
            || match is_whole {
                true => format!("verified: {computed} steps, root {root}, fingerprint {fingerprint}"),
                false => format!("verified: steps {} to {to} of the record with root {root}", from + 1),
            },
        )?;
        Ok(true)
    }

    /// Computes the steps of one set of settings.
    #[allow(clippy::too_many_arguments)]
    fn segment(
        &self,
        (spec, data): (&Spec, &Data),
        (params, net): (&Params, &crate::models::Net),
        record: &Record,
        to: u64,
        states: &BTreeMap<u64, (String, StateHash)>,
        from: Option<Checkpoint>,
        busy: &Busy,
    ) -> Answer<Verified> {
        let mut trainer = trainer(spec, params, net, data)?;
        if self.mode == Mode::Eager {
            trainer = trainer.eager();
        }
        if let Some(from) = from {
            trainer = trainer.resume(from);
        }
        let trainer = trainer.observe(|event| {
            if let Event::Step { step } = event {
                busy.now("computing steps");
                busy.at(*step as usize, to as usize);
            }
            Ok(())
        });
        Ok(trainer.verify(record, to, states)?)
    }
}

/// Says that a run is not verified.
fn say_no(out: &Out, no: No) -> Answer {
    let (object, text) = match &no {
        No::Said(why) => (json!({"verified": false, "why": why}), why.clone()),
        No::Differs(d) => {
            let difference =
                json!({"step": d.step, "what": d.what, "recorded": d.recorded, "computed": d.computed});
            (json!({"verified": false, "why": d.to_string(), "difference": difference}), d.to_string())
        }
    };
    out.result(|| object, || format!("not verified: {text}"))?;
    Ok(false)
}

/// The requested device, in the mode of a record.
fn device_for(record: &Record, global: &Global) -> Answer<Device> {
    let (at, head) = (record.path().display(), record.head());
    if head.numerics_version != NUMERICS_VERSION {
        let was = head.numerics_version;
        return fail(format!(
            "{at}: was computed by version {was} of the numerics, this is version {NUMERICS_VERSION}; use dittograd {}",
            head.dittograd
        ));
    }
    let mode: Numerics = head.numerics.parse()?;
    let device = global.device()?;
    if global.numerics.is_some() && device.numerics() != mode {
        return fail(format!(
            "{at}: was computed in mode {mode}; leave out --numerics, or use --numerics {mode}"
        ));
    }
    Ok(device.in_mode(mode)?)
}
