//! `verify`: computes a run again from its record and compares every step.

mod evidence;
mod sample;

use crate::models::Net;
use crate::out::{Busy, Out, warn};
use crate::task::Data;
use crate::train::fit::trainer;
use crate::train::{Mode, Spec};
use crate::{Answer, Fail, Global, fail};
use clap::Args;
use dittograd::io::{Checkpoint, atomic};
use dittograd::numerics::{NUMERICS_VERSION, Numerics};
use dittograd::prelude::*;
use dittograd::train::{Difference, Event, Record, Segment, SigningKey, StateHash, Verified, data_hash};
use evidence::Evidence;
use sample::{Chosen, share};
use serde_json::json;
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
    /// Only about this share of the steps, such as 5%: parts of the run between its checkpoints, drawn at random. `train --keep N`
    /// keeps checkpoints
    #[arg(long, value_name = "P%", value_parser = share, conflicts_with_all = ["steps", "receipt"])]
    sample: Option<f64>,
    /// The seed that parts are drawn by, to draw the same again [default: from the system]
    #[arg(long, value_name = "SEED", requires = "sample")]
    sample_seed: Option<u32>,
    /// The data, if it was moved
    #[arg(long, value_name = "PATH")]
    data: Option<PathBuf>,
    /// The file with the parameters that the run began with, or with the programs of its model, if it was moved
    #[arg(long, value_name = "FILE")]
    weights: Option<PathBuf>,
    /// Write a receipt of the run, once it is verified: what `verify` needs to do the same again, with the data alone
    #[arg(long, value_name = "FILE", conflicts_with = "steps")]
    receipt: Option<PathBuf>,
    /// Sign the receipt with the secret key in a file, 64 hex digits, such as `openssl rand -hex 32` makes
    #[arg(long, value_name = "KEYFILE", requires = "receipt")]
    sign: Option<PathBuf>,
    /// Refuse a receipt unless this public key has signed it
    #[arg(long, value_name = "PUBLIC", value_parser = public_key)]
    key: Option<String>,
    /// Run each op as it comes, or the whole step as one program; same bits
    #[arg(long, value_enum, default_value = "compiled")]
    mode: Mode,
}

/// A public key in hex digits.
fn public_key(text: &str) -> Result<String, String> {
    match text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit()) {
        true => Ok(text.to_ascii_lowercase()),
        false => Err("use the 64 hex digits that `verify --sign` has printed".into()),
    }
}

/// A range of steps such as 900..1000.
fn steps_of(text: &str) -> Result<RangeInclusive<u64>, String> {
    let (from, to) = text.split_once("..").unwrap_or((text, text));
    match (from.parse(), to.parse()) {
        (Ok(from), Ok(to)) if 1 <= from && from <= to => Ok(from..=to),
        _ => Err("use A..B with 1 <= A <= B, such as 900..1000".into()),
    }
}

/// The receipt that is left in the folder of a run once it is verified.
pub(crate) const VERIFIED: &str = "verified.json";

/// What is added where a tensor differs that no checkpoint has.
const ONLY_SUMS: &str = "; its values are known only at steps with a checkpoint (train --keep N)";

/// Why a run is not verified.
enum No {
    /// Something that was read.
    Said(String),
    /// A step that was computed, and what to add.
    Differs(Difference, &'static str),
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
        if let Some(key) = &self.key {
            let at = self.run.display();
            let why = match evidence.record.signed_by() {
                _ if !evidence.record.is_receipt() => {
                    return fail(format!("--key: {at} is the record of a run, only receipts are signed"));
                }
                Some(by) if by == key => None,
                Some(by) => Some(format!("{at}: is signed by {by}, not by {key}")),
                None => Some(format!("{at}: is not signed")),
            };
            if let Some(why) = why {
                return say_no(out, No::Said(why));
            }
        }
        let signing = self.sign.as_deref().map(signing_key).transpose()?;
        let device = device_for(&evidence.record, global)?;
        self.replay(&evidence, &device, signing.as_ref(), out)
    }

    /// The steps to compare.
    fn chosen(&self, evidence: &Evidence) -> Answer<Chosen> {
        let record = &evidence.record;
        let (first, last) = (record.first(), record.last());
        let option = if self.sample.is_some() { "--sample" } else { "--steps" };
        if record.is_receipt() && (self.sample.is_some() || self.steps.is_some()) {
            let how = "leave it out, or give the folder of the run";
            return fail(format!("{option}: a receipt has no single steps; {how}"));
        }
        if let Some(share) = self.sample {
            return Chosen::drawn(evidence, share, self.sample_seed);
        }
        let Some(steps) = &self.steps else { return Ok(Chosen::one(first, last)) };
        if *steps.start() <= first || *steps.end() > last {
            let (a, b) = (steps.start(), steps.end());
            return fail(format!("--steps {a}..{b}: the record has steps {} to {last}", first + 1));
        }
        Ok(Chosen::one(steps.start() - 1, *steps.end()))
    }

    fn replay(
        &self,
        evidence: &Evidence,
        device: &Device,
        signing: Option<&SigningKey>,
        out: &Out,
    ) -> Answer {
        let record = &evidence.record;
        let chosen = self.chosen(evidence)?;
        let busy = out.busy("reading the data");
        let mut segments = Vec::new();
        for segment in record.segments() {
            let spec = Spec::recorded(segment.settings, self.data.as_deref(), self.weights.as_deref());
            let spec = spec.map_err(|e| match e {
                Fail::Message(why) => Fail::Message(format!("{}: {why}", record.path().display())),
                other => other,
            })?;
            segments.push((segment, spec));
        }
        let first = &segments[0].1;
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
        let (model, recorded) = (&record.head().model, record.last() - record.first());
        let starts: Vec<u64> = chosen.parts.iter().map(|(from, _)| evidence.start(*from)).collect();
        let ends = chosen.parts.iter().map(|(_, to)| *to);
        let computed: u64 = ends.zip(&starts).map(|(to, start)| to - start).sum();
        out.progress(
            || {
                let mut object = json!({"model": model, "recorded": recorded, "device": device.to_string()});
                match &chosen.sample {
                    Some(sample) => object["sample"] = sample.object(&chosen.parts),
                    None => (object["start"], object["to"]) = (json!(starts[0]), json!(chosen.parts[0].1)),
                }
                object
            },
            || {
                let which = match &chosen.sample {
                    Some(sample) => format!("{computed} of them computed, {sample}"),
                    None => format!("computed from step {} to {}", starts[0], chosen.parts[0].1),
                };
                format!("{model} on {}: {recorded} steps recorded, {which}; {device}", data.train.name())
            },
        );
        let states = evidence.kept.iter().map(|k| (k.step, (k.name.clone(), k.hash.clone()))).collect();
        let replay = Replay {
            command: self,
            evidence,
            segments: &segments,
            data: &data,
            states: &states,
            device,
            busy: &busy,
        };
        let (mut steps, mut fingerprint) = (0, String::new());
        for part in &chosen.parts {
            match replay.part(*part)? {
                Ok(done) => (steps, fingerprint) = (steps + done.0, done.1),
                Err(no) => {
                    // What was verified before is so no longer.
                    evidence.verified.iter().for_each(|at| drop(std::fs::remove_file(at)));
                    return say_no(out, no);
                }
            }
        }
        drop(busy);
        let root = record.root();
        let (from, to) = chosen.parts[0];
        let is_whole = (from, to) == (record.first(), record.last());
        if let (Some(at), true) = (&evidence.verified, is_whole) {
            let receipt = record.receipt(signing)?;
            if let Some(file) = &self.receipt {
                atomic::write(file, receipt.as_bytes())?;
            }
            if let Err(e) = atomic::write(at, receipt.as_bytes()) {
                warn(&format!("{}; `board` will show the run as unverified", e.without_location()));
            }
        }
        let signed_by = signing.map(SigningKey::public).or(record.signed_by().map(String::from));
        out.result(
            || {
                let mut object = json!({"verified": true, "steps": steps, "root": root});
                match &chosen.sample {
                    Some(sample) => {
                        (object["of"], object["sample"]) = (json!(recorded), sample.object(&chosen.parts));
                    }
                    None => (object["from"], object["to"]) = (json!(from + 1), json!(to)),
                }
                if is_whole {
                    object["fingerprint"] = json!(fingerprint);
                }
                if let Some(key) = &signed_by {
                    object["signed_by"] = json!(key);
                }
                object
            },
            || match &chosen.sample {
                _ if is_whole => {
                    let signed = signed_by.as_ref().map_or(String::new(), |key| format!(", signed by {key}"));
                    format!("verified: {steps} steps, root {root}, fingerprint {fingerprint}{signed}")
                }
                Some(sample) => {
                    let ranges: Vec<String> =
                        chosen.parts.iter().map(|(from, to)| format!("{}..{to}", from + 1)).collect();
                    format!("verified: {steps} of {recorded} steps ({}), {sample}, of the record with root {root}", ranges.join(", "))
                }
                None => format!("verified: steps {} to {to} of the record with root {root}", from + 1),
            },
        )?;
        Ok(true)
    }
}

/// What steps are computed with.
struct Replay<'r> {
    command: &'r Verify,
    evidence: &'r Evidence,
    /// Parts of the run with one set of settings each.
    segments: &'r [(Segment<'r>, Spec)],
    data: &'r Data,
    /// States of checkpoints, by step, each with the name of its file.
    states: &'r BTreeMap<u64, (String, StateHash)>,
    device: &'r Device,
    busy: &'r Busy,
}

impl Replay<'_> {
    /// Computes the steps of a part from the state before it that is nearest. Returns their number, and the fingerprint after them.
    fn part(&self, (from, to): (u64, u64)) -> Answer<Result<(u64, String), No>> {
        let record = &self.evidence.record;
        self.busy.now("building the model");
        let mut state = match self.evidence.nearest(from) {
            Some(kept) => Some(Checkpoint::load(&kept.path)?),
            None => None,
        };
        let (first, at) = (&self.segments[0].1, self.evidence.start(from));
        let (params, net) = match &state {
            Some(state) => first.net_of(state, self.device)?,
            None => first.begun(self.device, self.command.weights.as_deref())?,
        };
        let mut steps = 0;
        let is_in = |s: &Segment<'_>| s.to > at && s.from < to || s.from == to && s.to == to;
        for (segment, spec) in self.segments.iter().filter(|(segment, _)| is_in(segment)) {
            let verified = self.segment(spec, (&params, &net), segment.to.min(to), state.take())?;
            steps += verified.steps;
            // Sums can be forged, bits cannot.
            let bits = self.differing_bits(&verified.state)?;
            match (verified.difference, bits) {
                (None, None) => {}
                (Some(sum), Some(bits)) if sum.step == bits.step && sum.tensor == bits.tensor => {
                    return Ok(Err(No::Differs(Difference { op: sum.op, ..bits }, "")));
                }
                (Some(sum), None) if sum.tensor.is_some() => return Ok(Err(No::Differs(sum, ONLY_SUMS))),
                (Some(other), _) | (None, Some(other)) => return Ok(Err(No::Differs(other, ""))),
            }
            state = Some(verified.state);
        }
        let fingerprint = params.fingerprint()?;
        match record.end().filter(|end| to == record.last() && end.fingerprint != fingerprint) {
            None => Ok(Ok((steps, fingerprint))),
            Some(end) => {
                let (what, recorded) = ("the fingerprint".to_string(), end.fingerprint.clone());
                let (tensor, op, computed) = (None, None, fingerprint);
                Ok(Err(No::Differs(Difference { step: to, what, tensor, recorded, computed, op }, "")))
            }
        }
    }

    /// What differs between a state that was computed and the checkpoint of this step, if there is one.
    fn differing_bits(&self, state: &Checkpoint) -> Answer<Option<Difference>> {
        let Some(kept) = self.evidence.kept.iter().find(|k| k.step == state.step) else { return Ok(None) };
        let found = Difference::between(&Checkpoint::load(&kept.path)?, state);
        Ok(found.map(|d| Difference { what: format!("{}: {}", kept.name, d.what), ..d }))
    }

    /// Computes the steps of one set of settings.
    fn segment(
        &self,
        spec: &Spec,
        (params, net): (&Params, &Net),
        to: u64,
        from: Option<Checkpoint>,
    ) -> Answer<Verified> {
        let mut trainer = trainer(spec, params, net, self.data)?;
        if self.command.mode == Mode::Eager {
            trainer = trainer.eager();
        }
        if let Some(from) = from {
            trainer = trainer.resume(from);
        }
        let trainer = trainer.observe(|event| {
            if let Event::Step { step } = event {
                self.busy.now("computing steps");
                self.busy.at(*step as usize, to as usize);
            }
            Ok(())
        });
        Ok(trainer.verify(&self.evidence.record, to, self.states)?)
    }
}

/// The key in a file.
fn signing_key(path: &Path) -> Answer<SigningKey> {
    let at = path.display();
    let text = std::fs::read_to_string(path).or_else(|e| fail(format!("--sign {at}: {e}")))?;
    SigningKey::from_hex(text.trim()).or_else(|e| fail(format!("--sign {at}: {}", e.without_location())))
}

/// Says that a run is not verified.
fn say_no(out: &Out, no: No) -> Answer {
    let (object, text) = match &no {
        No::Said(why) => (json!({"verified": false, "why": why}), why.clone()),
        No::Differs(d, more) => {
            let difference = json!({
                "step": d.step, "what": d.what, "tensor": d.tensor, "recorded": d.recorded, "computed": d.computed, "op": d.op,
            });
            let why = format!("{d}{more}");
            (json!({"verified": false, "why": why, "difference": difference}), why)
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
