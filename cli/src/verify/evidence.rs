//! What a run left behind: its record and checkpoints, compared with each other.

use super::{No, VERIFIED};
use crate::{Answer, fail};
use dittograd::io::Checkpoint;
use dittograd::prelude::*;
use dittograd::train::{BEST, CHECKPOINT, RECORD, Record, Segment, StateHash, kept};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// A checkpoint beside a record. It is as large as the model, so it is read again when it is needed.
pub(super) struct Kept {
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) step: u64,
    pub(super) hash: StateHash,
}

/// A run as it was found.
pub(super) struct Evidence {
    pub(super) record: Record,
    pub(super) kept: Vec<Kept>,
    /// Where the receipt is left once it is verified, if this is not one.
    pub(super) verified: Option<PathBuf>,
}

impl Evidence {
    /// Reads a record and the checkpoints beside it, and compares them.
    pub(super) fn read(path: &Path) -> Answer<Result<Evidence, No>> {
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
        let verified = (!record.is_receipt()).then(|| folder.join(VERIFIED));
        if let Some(at) = verified.as_ref().filter(|at| at.is_file()) {
            match Record::read(at) {
                Ok(receipt) if receipt.is_receipt() => {}
                Ok(_) => return Ok(Err(No::Said(format!("{}: is not a receipt; remove it", at.display())))),
                Err(e) => return Ok(Err(No::Said(format!("{}; remove it", e.without_location())))),
            }
        }
        let mut files: Vec<(Option<u64>, PathBuf)> = Vec::new();
        // A receipt may be anywhere.
        if !record.is_receipt() {
            files.extend(kept(folder)?.into_iter().map(|(step, path)| (Some(step), path)));
            files.extend([CHECKPOINT, BEST].map(|name| (None, folder.join(name))));
        }
        let mut all = Vec::new();
        for (named, path) in files.into_iter().filter(|(_, path)| path.exists()) {
            let checkpoint = match Checkpoint::load(&path) {
                Ok(checkpoint) => checkpoint,
                Err(e) => return said(e),
            };
            let (step, hash) = (checkpoint.step, StateHash::of(&checkpoint));
            let why = match named.filter(|named| *named != step) {
                Some(named) => Some(format!("is of step {step}, not {named}")),
                None => contradiction(&record, &checkpoint, &hash),
            };
            if let Some(why) = why {
                return Ok(Err(No::Said(format!("{}: {why}", path.display()))));
            }
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            all.push(Kept { name, path, step, hash });
        }
        Ok(Ok(Evidence { record, kept: all, verified }))
    }

    /// The checkpoint nearest before `step`, or of it. None is of the beginning, which comes from the settings.
    pub(super) fn nearest(&self, step: u64) -> Option<&Kept> {
        let is_before = |k: &&Kept| (self.record.first().max(1)..=step).contains(&k.step);
        self.kept.iter().filter(is_before).max_by_key(|k| k.step)
    }

    /// The step that steps after `step` are computed from.
    pub(super) fn start(&self, step: u64) -> u64 {
        self.nearest(step).map_or(self.record.first(), |k| k.step)
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
