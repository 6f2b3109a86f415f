//! The record of a run: a line of JSON for what it computes, one for each step, and hashes of its whole state now and then. Each line
//! ends with a hash of itself and of the line before, so that the last one stands for all.

mod receipt;

pub use receipt::SigningKey;

use crate::data::{Samples, add_bits};
use crate::device::{Buffer, Device, sums};
use crate::error::{Error, Result};
use crate::io::checkpoint::{OPTIMIZER, sorted};
use crate::io::{Checkpoint, DataState};
use crate::optim::{Optimizer, OptimizerState};
use crate::params::Params;
use crate::shape::Shape;
use crate::tensor::AnyTensor;
use receipt::Mark;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// The record of a run.
pub const RECORD: &str = "record.jsonl";
/// The only format.
const FORMAT: u32 = 1;
/// Hex digits of a chained hash.
const DIGITS: usize = 64;

/// A whole state of a run in hashes: parameters, optimizer and random stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StateHash {
    /// A hash of everything.
    pub root: String,
    /// The [sum](crate::device::sums) of each tensor's words, by the name it has in a checkpoint.
    pub tensors: BTreeMap<String, u64>,
}

impl StateHash {
    /// The hash of a saved state.
    pub fn of(state: &Checkpoint) -> StateHash {
        let fresh = OptimizerState { step: 0, lr: 0.0, group_lrs: Vec::new(), params: BTreeMap::new() };
        let optimizer = state.optimizer.as_ref().unwrap_or(&fresh);
        let sums = words_of(state).map(|(name, shape, words)| (name, (shape, sums::of_words(words))));
        StateHash::new(&state.frozen, optimizer, state.random.calls, sums.collect())
    }

    /// The hash of the current state, whose tensors stay on the device. Waits for the device.
    #[track_caller]
    pub(super) fn current(params: &Params, optimizer: &Optimizer, calls: u64) -> Result<StateHash> {
        let mut values: Vec<(String, Shape, Buffer)> = Vec::new();
        for p in params.iter() {
            values.push((p.name().to_string(), p.shape(), p.buffer().buffer().clone()));
        }
        for (param, name, state) in optimizer.states() {
            values.push((format!("{OPTIMIZER}{param}.{name}"), state.shape(), state.buffer().clone()));
        }
        let buffers: Vec<Buffer> = values.iter().map(|v| v.2.clone()).collect();
        let sums = sums::of_buffers(params.device(), &buffers)?;
        let tensors =
            values.into_iter().zip(sums).map(|((name, shape, _), sum)| (name, (shape, sum))).collect();
        let frozen = params.iter().filter(|p| !p.trainable()).map(|p| p.name().to_string()).collect();
        Ok(StateHash::new(&frozen, &optimizer.counters(), calls, tensors))
    }

    /// The first tensor by name whose sum is another one in `other`, and both sums. `None` also if this state has no sums, as that of a
    /// receipt.
    #[doc(hidden)]
    pub fn first_difference(&self, other: &StateHash) -> Option<(String, [String; 2])> {
        let (a, b) = (&self.tensors, &other.tensors);
        let names = a.keys().chain(b.keys()).filter(|_| !a.is_empty());
        let name = names.filter(|name| a.get(*name) != b.get(*name)).min()?;
        let sum = |of: &BTreeMap<String, u64>| of.get(name).map_or("none".into(), |s| format!("{s:016x}"));
        Some((name.clone(), [sum(a), sum(b)]))
    }

    fn new(
        frozen: &BTreeSet<String>,
        optimizer: &OptimizerState,
        calls: u64,
        tensors: BTreeMap<String, (Shape, u64)>,
    ) -> StateHash {
        let mut hash = blake3::Hasher::new();
        let number = |hash: &mut blake3::Hasher, n: u64| {
            hash.update(&n.to_le_bytes());
        };
        let text = |hash: &mut blake3::Hasher, text: &str| {
            hash.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
        };
        text(&mut hash, "dittograd.state");
        number(&mut hash, optimizer.step);
        number(&mut hash, calls);
        for lr in [Some(optimizer.lr)].iter().chain(&optimizer.group_lrs) {
            number(&mut hash, u64::from(lr.is_some()));
            number(&mut hash, lr.unwrap_or(0.0).to_bits());
        }
        number(&mut hash, frozen.len() as u64);
        frozen.iter().for_each(|name| text(&mut hash, name));
        number(&mut hash, optimizer.params.len() as u64);
        for (name, of) in &optimizer.params {
            text(&mut hash, name);
            number(&mut hash, of.step);
        }
        for (name, (shape, sum)) in &tensors {
            text(&mut hash, name);
            number(&mut hash, shape.rank() as u64);
            shape.dims().iter().for_each(|d| number(&mut hash, *d as u64));
            number(&mut hash, *sum);
        }
        let root = hash.finalize().to_hex().to_string();
        StateHash { root, tensors: tensors.into_iter().map(|(name, (_, sum))| (name, sum)).collect() }
    }
}

/// The tensors of a saved state by their names in a checkpoint, each with its shape and words.
pub(super) fn words_of(state: &Checkpoint) -> impl Iterator<Item = (String, Shape, &[f32])> {
    let params = state.params.iter().map(|(name, t)| match t {
        AnyTensor::Num(t) => (name.to_string(), t.shape(), t.data()),
        AnyTensor::Idx(t) => (name.to_string(), t.shape(), bytemuck::cast_slice(t.data())),
    });
    let named = |param: &str, name: &str| format!("{OPTIMIZER}{param}.{name}");
    let states =
        state.optimizer.iter().flat_map(|optimizer| &optimizer.params).flat_map(move |(param, of)| {
            of.tensors.iter().map(move |(name, t)| (named(param, name), t.shape(), t.data()))
        });
    params.chain(states)
}

/// A hash of a batch.
pub(super) fn batch_hash((x, y): &Samples) -> String {
    let mut hash = blake3::Hasher::new();
    add_bits(&mut hash, [x, y]);
    hash.finalize().to_hex()[..32].to_string()
}

/// What a run is, and the state it starts from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordHead {
    /// The format of the record.
    record: u32,
    /// The version of dittograd that wrote it.
    pub dittograd: String,
    /// The numerics mode.
    pub numerics: String,
    /// The version of the numerics contract.
    pub numerics_version: u32,
    /// Name of the model.
    pub model: String,
    /// The settings at the start, as in its checkpoints.
    pub settings: Value,
    /// A hash of the program that computes the loss; `None` if it has no text.
    pub program: Option<String>,
    /// The data.
    pub data: DataState,
    /// The seed of the random streams of training.
    pub seed: u64,
    /// Steps done at the start.
    pub step: u64,
    /// The root of the state's hash at the start.
    pub state: String,
    tensors: BTreeMap<String, String>,
}

impl RecordHead {
    pub(super) fn new(
        checkpoint: Checkpoint,
        program: Option<String>,
        seed: u64,
        state: StateHash,
    ) -> RecordHead {
        let Checkpoint { model, config, numerics, numerics_version, data, step, version, .. } = checkpoint;
        RecordHead {
            record: FORMAT,
            dittograd: version,
            numerics: numerics.to_string(),
            numerics_version,
            model,
            settings: sorted(&config),
            program,
            data,
            seed,
            step,
            state: state.root,
            tensors: state.tensors.iter().map(|(name, sum)| (name.clone(), format!("{sum:016x}"))).collect(),
        }
    }

    /// Errors unless it and what it begins, of this format, can be read.
    fn check(&self, format: u32) -> Result<(), String> {
        if let Some(other) = [self.record, format].into_iter().find(|f| *f != FORMAT) {
            return Err(format!("is of format {other}, this program reads {FORMAT}"));
        }
        // Nobody makes so many, and steps can be counted from there.
        if self.step > u64::MAX / 2 {
            return Err(format!("begins after {} steps", self.step));
        }
        Ok(())
    }

    /// The state at the start.
    fn state(&self) -> StateHash {
        state_of(&self.state, &self.tensors)
    }
}

/// A state as it is written.
fn state_of(root: &str, tensors: &BTreeMap<String, String>) -> StateHash {
    let sum =
        |(name, digits): (&String, &String)| (name.clone(), u64::from_str_radix(digits, 16).unwrap_or(0));
    StateHash { root: root.to_string(), tensors: tensors.iter().map(sum).collect() }
}

/// One step.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub step: u64,
    /// A hash of its batch.
    pub batch: String,
    /// The bits of its loss, before the update.
    pub loss: u32,
    /// Random calls after it.
    pub random: u64,
    /// The state after it.
    pub state: Option<StateHash>,
}

/// [`Entry`] as it is read.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryLine {
    step: u64,
    batch: String,
    loss: String,
    random: u64,
    state: Option<String>,
    tensors: Option<BTreeMap<String, String>>,
    #[serde(rename = "chain")]
    _chain: String,
}

impl Entry {
    /// Its line without the chained hash.
    pub(super) fn text(&self) -> String {
        let Entry { step, batch, loss, random, state } = self;
        let mut text =
            format!("{{\"step\":{step},\"batch\":\"{batch}\",\"loss\":\"{loss:08x}\",\"random\":{random}");
        if let Some(state) = state {
            let _ = write!(text, ",\"state\":\"{}\",\"tensors\":{{", state.root);
            for (i, (name, sum)) in state.tensors.iter().enumerate() {
                let comma = if i > 0 { "," } else { "" };
                let _ = write!(text, "{comma}{}:\"{sum:016x}\"", Value::from(name.as_str()));
            }
            text.push('}');
        }
        text
    }
}

/// A fault of the machine as it is read.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FaultLine {
    fault: String,
    step: u64,
    #[serde(rename = "check")]
    _check: String,
}

/// From a step on, other settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Change {
    settings: Value,
    after: u64,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordEnd {
    /// Why: `finished` or `patience`.
    pub end: String,
    /// Steps done.
    pub steps: u64,
    /// The [fingerprint](Params::fingerprint) of the parameters.
    pub fingerprint: String,
}

/// The hash of all lines so far.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Chain([u8; 32]);

impl Chain {
    fn start() -> Chain {
        Chain([0; 32])
    }

    /// The chain after a line of this text.
    pub(super) fn then(self, text: &str) -> Chain {
        let mut hash = blake3::Hasher::new();
        hash.update(&self.0).update(text.as_bytes());
        Chain(*hash.finalize().as_bytes())
    }

    pub(super) fn hex(self) -> String {
        blake3::Hash::from_bytes(self.0).to_hex().to_string()
    }
}

/// An object as text, to be continued.
fn open_text(value: &impl Serialize) -> Result<String> {
    let mut text = serde_json::to_string(value)
        .map_err(|e| Error::argument("record", "settings", format!("cannot be written as JSON: {e}")))?;
    text.pop();
    Ok(text)
}

/// What a line said, where it ends in the file, and the chain after it.
#[derive(Clone)]
struct Chained<T> {
    value: T,
    end: usize,
    chain: Chain,
}

/// What a record says, or a [receipt](Record::receipt) of one. It was read whole, and each line has the hash that it should have.
#[derive(Clone)]
pub struct Record {
    path: PathBuf,
    head: Chained<RecordHead>,
    steps: Vec<Chained<Entry>>,
    changes: Vec<Change>,
    machines: Vec<Value>,
    faults: Vec<(u64, String)>,
    end: Option<RecordEnd>,
    /// Whether it has its last line.
    is_sealed: bool,
    root: Chain,
    /// A hash of the file; of a receipt, that of the record.
    file: String,
    /// What a receipt has in place of steps.
    marks: Option<Vec<Mark>>,
    /// The public key that a receipt is signed with.
    signed_by: Option<String>,
}

impl std::fmt::Debug for Record {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Record({}, steps {} to {}, root {})",
            self.path.display(),
            self.first(),
            self.last(),
            self.root.hex()
        )
    }
}

/// A part of a run with one set of settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment<'r> {
    /// Steps done before it.
    pub from: u64,
    /// Steps done at its end.
    pub to: u64,
    /// The settings, as in a checkpoint.
    pub settings: &'r Value,
}

impl Record {
    /// Reads a record, or a receipt of one, and checks the hash of each line. A last line that is cut off, as by a crash, is left out.
    #[track_caller]
    pub fn read(path: impl AsRef<Path>) -> Result<Record> {
        let path = path.as_ref();
        let bytes = crate::io::read(path)?;
        Record::parse(path, &bytes)
    }

    /// As [`Record::read`], of bytes that were read from `path`.
    #[track_caller]
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Record> {
        let wrong = |line: usize, why: &dyn std::fmt::Display| {
            Error::file("record", path, format!("line {line}: {}", crate::io::said(why)))
        };
        if bytes.starts_with(b"{\"receipt\"") {
            return Record::parse_receipt(path, bytes).map_err(|why| Error::file("receipt", path, why));
        }
        let mut read: Option<Record> = None;
        let (mut chain, mut at) = (Chain::start(), 0);
        let whole = &bytes[..bytes.iter().rposition(|b| *b == b'\n').map_or(0, |last| last + 1)];
        for (n, line) in whole.split_inclusive(|b| *b == b'\n').enumerate() {
            let (n, end) = (n + 1, at + line.len());
            let line = std::str::from_utf8(&line[..line.len() - 1]).map_err(|e| wrong(n, &e))?;
            if read.as_ref().is_some_and(|r| r.is_sealed) {
                return Err(wrong(n, &"comes after the last line"));
            }
            let (text, hash, name) = cut(line).ok_or_else(|| wrong(n, &"does not end with its hash"))?;
            let next = chain.then(text);
            if next.hex() != hash {
                let why = "its hash is not that of the lines up to it: it, or one before it, was changed, moved or removed";
                return Err(wrong(n, &why));
            }
            let kind = line.get(2..).and_then(|l| l.split('"').next()).unwrap_or_default();
            // What depends on the machine is not part of the chain.
            let is_chained = !matches!(kind, "machine" | "fault" | "file");
            let said = |e: serde_json::Error| wrong(n, &e);
            let expected = match &read {
                Some(record) => record.last() + 1,
                None => 0,
            };
            match (kind, &mut read) {
                _ if is_chained != (name == "chain") => {
                    return Err(wrong(n, &"has a hash of another kind of line"));
                }
                (kind, Some(Record { end: Some(_), .. })) if kind != "file" => {
                    return Err(wrong(n, &"comes after the end"));
                }
                ("record", None) => {
                    let head: RecordHead = serde_json::from_str(&format!("{text}}}")).map_err(said)?;
                    head.check(head.record).map_err(|why| wrong(n, &why))?;
                    read = Some(Record {
                        path: path.to_path_buf(),
                        head: Chained { value: head, end, chain: next },
                        steps: Vec::new(),
                        changes: Vec::new(),
                        machines: Vec::new(),
                        faults: Vec::new(),
                        end: None,
                        is_sealed: false,
                        root: next,
                        file: blake3::hash(bytes).to_hex().to_string(),
                        marks: None,
                        signed_by: None,
                    });
                }
                ("step", Some(record)) => {
                    let line: EntryLine = serde_json::from_str(line).map_err(said)?;
                    if line.step != expected {
                        return Err(wrong(n, &format!("is of step {}, expected {expected}", line.step)));
                    }
                    let loss = u32::from_str_radix(&line.loss, 16).map_err(|e| wrong(n, &e))?;
                    let state = line.state.map(|root| state_of(&root, &line.tensors.unwrap_or_default()));
                    let EntryLine { step, batch, random, .. } = line;
                    let value = Entry { step, batch, loss, random, state };
                    record.steps.push(Chained { value, end, chain: next });
                }
                ("settings", Some(record)) => {
                    let change: Change = serde_json::from_str(&format!("{text}}}")).map_err(said)?;
                    if change.after != expected - 1 {
                        return Err(wrong(
                            n,
                            &format!("is of step {}, expected {}", change.after, expected - 1),
                        ));
                    }
                    record.changes.push(change);
                }
                ("machine", Some(record)) => {
                    let mut object: Value = serde_json::from_str(line).map_err(said)?;
                    record.machines.push(object["machine"].take());
                }
                ("fault", Some(record)) => {
                    let fault: FaultLine = serde_json::from_str(line).map_err(said)?;
                    record.faults.push((fault.step, fault.fault));
                }
                ("end", Some(record)) => {
                    let end: RecordEnd = serde_json::from_str(&format!("{text}}}")).map_err(said)?;
                    if end.steps != expected - 1 {
                        return Err(wrong(
                            n,
                            &format!("ends at step {}, expected {}", end.steps, expected - 1),
                        ));
                    }
                    record.end = Some(end);
                }
                ("file", Some(record)) => {
                    let object: Value = serde_json::from_str(line).map_err(said)?;
                    if object["file"] != blake3::hash(&whole[..at]).to_hex().as_str() {
                        return Err(wrong(n, &"the lines before are not those that it was written for"));
                    }
                    record.is_sealed = true;
                }
                (_, None) => return Err(wrong(n, &"is no head of a record")),
                _ => return Err(wrong(n, &"is of no known kind")),
            }
            at = end;
            if is_chained {
                chain = next;
            }
            if let Some(record) = &mut read {
                record.root = chain;
            }
        }
        read.ok_or_else(|| wrong(1, &"is no head of a record"))
    }

    /// What the run is.
    pub fn head(&self) -> &RecordHead {
        &self.head.value
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Steps done at its start.
    pub fn first(&self) -> u64 {
        self.head.value.step
    }

    /// Steps done at its end.
    pub fn last(&self) -> u64 {
        match self.marks.as_ref().and_then(|marks| marks.last()) {
            Some(mark) => mark.step,
            None => self.first() + self.steps.len() as u64,
        }
    }

    /// The last of the chained hashes, which stands for all that was computed, wherever it was.
    pub fn root(&self) -> String {
        self.root.hex()
    }

    /// How the run ended; `None` if it has not.
    pub fn end(&self) -> Option<&RecordEnd> {
        self.end.as_ref()
    }

    /// Whether the file is as it was when the run ended: it has its last line, which has a hash of all others.
    pub fn is_sealed(&self) -> bool {
        self.is_sealed
    }

    /// The machines that computed it, in order.
    pub fn machines(&self) -> &[Value] {
        &self.machines
    }

    /// Faults of the hardware that were found by [`Trainer::paranoid`](super::Trainer::paranoid), each with its step.
    pub fn faults(&self) -> &[(u64, String)] {
        &self.faults
    }

    /// Steps after which it has a hash of the state.
    pub fn states(&self) -> impl Iterator<Item = u64> {
        let marks = self.marks.iter().flatten().skip(1).filter(|m| m.state.is_some()).map(|m| m.step);
        let with_state = self.steps.iter().filter(|s| s.value.state.is_some()).map(|s| s.value.step);
        std::iter::once(self.first()).chain(with_state).chain(marks)
    }

    /// The hash of the state after `step`, if it has it; of a receipt, without the sums of tensors.
    pub fn state(&self, step: u64) -> Option<StateHash> {
        if step == self.first() {
            return Some(self.head.value.state());
        }
        match self.mark(step) {
            Some(mark) => Some(StateHash { root: mark.state.clone()?, tensors: BTreeMap::new() }),
            None => self.entry(step)?.state.clone(),
        }
    }

    /// Whether it has a hash of the state after `step`.
    pub(super) fn has_state(&self, step: u64) -> bool {
        self.mark(step).is_some_and(|m| m.state.is_some())
            || self.entry(step).is_some_and(|e| e.state.is_some())
    }

    /// The bits of the loss of a step.
    pub fn loss(&self, step: u64) -> Option<u32> {
        self.entry(step).map(|e| e.loss)
    }

    pub(super) fn entry(&self, step: u64) -> Option<&Entry> {
        let at = step.checked_sub(self.first() + 1)?;
        self.steps.get(usize::try_from(at).ok()?).map(|s| &s.value)
    }

    /// The run in parts that have one set of settings each.
    pub fn segments(&self) -> Vec<Segment<'_>> {
        let settings = &self.head.value.settings;
        let mut all = vec![Segment { from: self.first(), to: self.last(), settings }];
        for Change { settings, after } in &self.changes {
            let to = *after;
            if let Some(before) = all.last_mut() {
                before.to = to;
            }
            all.push(Segment { from: to, to: self.last(), settings });
        }
        all
    }

    /// Where the line of a step ends in the file, the chain there, and the settings of the run up to there.
    fn up_to(&self, step: u64) -> Option<(usize, Chain, &Value)> {
        let change = self.changes.iter().rfind(|c| c.after < step);
        let settings = change.map_or(&self.head.value.settings, |c| &c.settings);
        if step == self.first() {
            return Some((self.head.end, self.head.chain, settings));
        }
        let at = usize::try_from(step.checked_sub(self.first() + 1)?).ok()?;
        self.steps.get(at).map(|s| (s.end, s.chain, settings))
    }
}

/// A line without its hash, the hash, and the hash's name.
fn cut(line: &str) -> Option<(&str, &str, &str)> {
    let rest = line.strip_suffix("\"}")?;
    let at = rest.len().checked_sub(DIGITS)?;
    let (rest, hash) = (rest.get(..at)?, rest.get(at..)?);
    ["chain", "check"].into_iter().find_map(|name| {
        let text = rest.strip_suffix(format!(",\"{name}\":\"").as_str())?;
        Some((text, hash, name))
    })
}

/// Writes a record.
pub(super) struct Writer {
    path: PathBuf,
    file: BufWriter<File>,
    chain: Chain,
    /// Of all bytes so far.
    all: blake3::Hasher,
    /// The machine that goes on, told with the first line that it computes.
    machine: Option<Value>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Writer({})", self.path.display())
    }
}

/// Where a record begins.
pub(super) struct Start {
    pub head: RecordHead,
    pub machine: Value,
}

impl Writer {
    /// Goes on with the record in the file `old`, up to the step of the head, or begins one if it does not reach that far. The
    /// record is then in `path`.
    #[track_caller]
    pub(super) fn begin(path: &Path, old: &Path, start: Start) -> Result<Writer> {
        let Start { head, machine } = start;
        let bytes = if old.exists() { crate::io::read(old)? } else { Vec::new() };
        let kept = match Record::parse(old, &bytes) {
            _ if !bytes.contains(&b'\n') => None,
            Ok(record) => Some(record),
            Err(error) => {
                let why = format!("{}; remove the file to go on without it", error.without_location());
                return Err(Error::argument("resume", "record", why));
            }
        };
        let kept = kept.as_ref().and_then(|record| record.up_to(head.step));
        let (text, chain) = kept.map_or((&[][..], Chain::start()), |(end, chain, _)| (&bytes[..end], chain));
        let settings = kept.map(|(.., settings)| settings);
        crate::io::atomic::write(path, text)?;
        let opened = OpenOptions::new().append(true).open(path);
        let file = BufWriter::new(opened.map_err(|e| Error::file("run", path, e))?);
        let mut all = blake3::Hasher::new();
        all.update(text);
        let mut writer = Writer { path: path.to_path_buf(), file, chain, all, machine: Some(machine) };
        match settings {
            None => writer.chained(&open_text(&head)?)?,
            Some(settings) if *settings != head.settings => {
                writer.chained(&open_text(&Change { settings: head.settings, after: head.step })?)?;
            }
            Some(_) => {}
        }
        Ok(writer)
    }

    #[track_caller]
    fn line(&mut self, line: &str) -> Result<()> {
        self.all.update(line.as_bytes());
        self.file.write_all(line.as_bytes()).map_err(|e| Error::file("run", &self.path, e))
    }

    #[track_caller]
    fn chained(&mut self, text: &str) -> Result<()> {
        self.chain = self.chain.then(text);
        self.line(&format!("{text},\"chain\":\"{}\"}}\n", self.chain.hex()))
    }

    /// A line that is not part of the chain.
    #[track_caller]
    fn checked(&mut self, text: &str) -> Result<()> {
        let check = self.chain.then(text).hex();
        self.line(&format!("{text},\"check\":\"{check}\"}}\n"))
    }

    /// Adds a step.
    #[track_caller]
    pub(super) fn step(&mut self, entry: &Entry) -> Result<()> {
        if let Some(machine) = self.machine.take() {
            self.checked(&format!("{{\"machine\":{machine}"))?;
        }
        self.chained(&entry.text())
    }

    /// Adds a fault of the machine.
    #[track_caller]
    pub(super) fn fault(&mut self, step: u64, what: &str) -> Result<()> {
        self.checked(&format!("{{\"fault\":{},\"step\":{step}", Value::from(what)))
    }

    /// Ends the run.
    #[track_caller]
    pub(super) fn end(&mut self, why: &str, steps: u64, fingerprint: &str) -> Result<()> {
        let end = RecordEnd { end: why.into(), steps, fingerprint: fingerprint.into() };
        self.chained(&open_text(&end)?)?;
        let text = format!("{{\"file\":\"{}\"", self.all.finalize().to_hex());
        self.checked(&text)?;
        self.flush()
    }

    /// Brings all lines to the disk.
    #[track_caller]
    pub(super) fn flush(&mut self) -> Result<()> {
        self.file.flush().map_err(|e| Error::file("run", &self.path, e))?;
        // Ignore errors: some files, such as pipes, cannot be synced.
        let _ = self.file.get_ref().sync_data();
        Ok(())
    }
}

/// The machine that a device belongs to.
pub(super) fn machine(device: &Device, is_eager: bool, ranks: usize) -> Value {
    let gpu = device.as_cuda().map(|cuda| cuda.name().to_string());
    serde_json::json!({
        "device": device.to_string(), "gpu": gpu, "threads": device.threads(), "mode": if is_eager { "eager" } else { "compiled" },
        "ranks": ranks, "os": std::env::consts::OS, "arch": std::env::consts::ARCH,
    })
}
