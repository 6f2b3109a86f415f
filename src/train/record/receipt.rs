//! A receipt: a record without most of its steps, perhaps signed.

use super::{Chain, Chained, Change, FORMAT, Record, RecordEnd, RecordHead, cut, open_text};
use crate::error::{Error, Result};
use ed25519_compact::{KeyPair, PublicKey, Seed, Signature};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

/// What stands before the signature of a receipt.
const SIGNATURE: &str = ",\"signature\":\"";

/// A secret key that signs [receipts](Record::receipt), of ed25519.
pub struct SigningKey(KeyPair);

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SigningKey(of {})", self.public())
    }
}

impl SigningKey {
    /// The key of a secret: 64 hex digits that nobody can guess, such as `openssl rand -hex 32` gives.
    #[track_caller]
    pub fn from_hex(secret: &str) -> Result<SigningKey> {
        let pair = bytes_of(secret).and_then(|seed| KeyPair::try_from_seed(Seed::new(seed)).ok());
        let why = "is not a key: use 64 random hex digits, such as `openssl rand -hex 32` gives";
        pair.map(SigningKey).ok_or_else(|| Error::argument("receipt", "key", why))
    }

    /// The public key, in hex digits. Others check signatures with it.
    pub fn public(&self) -> String {
        hex(&*self.0.pk)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The bytes of so many hex digits.
fn bytes_of<const N: usize>(digits: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if digits.len() != 2 * N || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(bytes)
}

/// Errors unless a receipt is not signed, or its text ends with the right signature of what is before it.
fn check_signature(text: &str, key: Option<&str>, signature: Option<&str>) -> Result<(), String> {
    let (key, signature) = match (key, signature) {
        (None, None) => return Ok(()),
        (Some(key), Some(signature)) => (key, signature),
        (Some(_), None) => return Err("says who signed it, and has no signature".into()),
        (None, Some(_)) => return Err("has a signature, and does not say whose".into()),
    };
    let signed = text.strip_suffix('"').and_then(|t| t.strip_suffix(signature)?.strip_suffix(SIGNATURE));
    let signed = signed.ok_or("its signature is not the last that it says")?;
    let public = bytes_of(key).map(PublicKey::new).ok_or("has a key that is not 64 hex digits")?;
    let is_right =
        bytes_of(signature).is_some_and(|bytes| public.verify(signed, &Signature::new(bytes)).is_ok());
    if is_right { Ok(()) } else { Err(format!("its signature is not one by {key} of what it says")) }
}

/// The chained hash after a step, and before other settings begin there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Mark {
    pub(super) step: u64,
    chain: String,
    /// The root of the state's hash, if the record has it.
    pub(super) state: Option<String>,
}

/// A record without most of its steps.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Receipt {
    receipt: u32,
    head: RecordHead,
    changes: Vec<Change>,
    marks: Vec<Mark>,
    end: Option<RecordEnd>,
    root: String,
    /// A hash of the file of the record.
    record: String,
    machines: Vec<Value>,
    /// Who signs it, and the signature of the text before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    signed_by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signature: Option<String>,
}

impl Record {
    pub(super) fn parse_receipt(path: &Path, bytes: &[u8]) -> Result<Record, String> {
        let line = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let line = std::str::from_utf8(line).map_err(|e| e.to_string())?;
        let (text, hash, _) = cut(line).filter(|c| c.2 == "check").ok_or("does not end with its hash")?;
        if Chain::start().then(text).hex() != hash {
            return Err("its hash is not that of its content: it was changed".into());
        }
        let said = |e: serde_json::Error| crate::io::said(e);
        let read: Receipt = serde_json::from_str(&format!("{text}}}")).map_err(said)?;
        read.head.check(read.receipt)?;
        let Receipt { head, changes, marks, end, root, record, machines, signed_by, signature, .. } = read;
        check_signature(text, signed_by.as_deref(), signature.as_deref())?;
        let start = Chain::start().then(&open_text(&head).map_err(|e| e.to_string())?);
        let is_sorted = marks.is_sorted_by(|a, b| a.step < b.step);
        let (Some(first), Some(last), true) = (marks.first(), marks.last(), is_sorted) else {
            return Err("has no steps in order".into());
        };
        let first_is = (head.step, start.hex(), Some(head.state.clone()));
        if (first.step, first.chain.clone(), first.state.clone()) != first_is {
            return Err("its steps do not begin with its head".into());
        }
        if let Some(change) = changes.iter().find(|c| marks.iter().all(|m| m.step != c.after)) {
            return Err(format!("has no chained hash of step {}, where settings change", change.after));
        }
        if end.as_ref().is_some_and(|end| end.steps != last.step) {
            return Err(format!("its steps end at {}, its run does not", last.step));
        }
        let root = blake3::Hash::from_hex(&root).map_err(|e| format!("root: {e}"))?;
        Ok(Record {
            path: path.to_path_buf(),
            head: Chained { value: head, end: 0, chain: start },
            steps: Vec::new(),
            changes,
            machines,
            faults: Vec::new(),
            end,
            is_sealed: true,
            root: Chain(*root.as_bytes()),
            file: record,
            marks: Some(marks),
            signed_by,
        })
    }

    /// The receipt of the run: settings, data and results, and chained hashes at the steps with a hash of the state. Who has it, the
    /// data and this program can [verify](crate::train::Trainer::verify) the run without the rest of the record. With a key it is signed.
    #[track_caller]
    pub fn receipt(&self, key: Option<&SigningKey>) -> Result<String> {
        if Chain::start().then(&open_text(&self.head.value)?) != self.head.chain {
            let why =
                "its head is written in another way than this version writes it; verify it from the record";
            return Err(Error::file("receipt", &self.path, why));
        }
        let mut steps: BTreeSet<u64> = self.states().chain([self.last()]).collect();
        steps.extend(self.changes.iter().map(|c| c.after));
        let mark = |step: u64| {
            let chain = self.up_to(step).map_or_else(String::new, |(_, chain, _)| chain.hex());
            Mark { step, chain, state: self.state(step).map(|s| s.root) }
        };
        let receipt = Receipt {
            receipt: FORMAT,
            head: self.head.value.clone(),
            changes: self.changes.clone(),
            marks: steps.into_iter().map(mark).collect(),
            end: self.end.clone(),
            root: self.root(),
            record: self.file.clone(),
            machines: self.machines.clone(),
            signed_by: key.map(SigningKey::public),
            signature: None,
        };
        let mut text = open_text(&receipt)?;
        if let Some(key) = key {
            text += &format!("{SIGNATURE}{}\"", hex(&*key.0.sk.sign(&text, None)));
        }
        Ok(format!("{text},\"check\":\"{}\"}}\n", Chain::start().then(&text).hex()))
    }

    /// Whether it is a receipt, which has few steps.
    pub fn is_receipt(&self) -> bool {
        self.marks.is_some()
    }

    /// The public key that a receipt is signed with, in hex digits. The signature was found right when it was read.
    pub fn signed_by(&self) -> Option<&str> {
        self.signed_by.as_deref()
    }

    /// What a receipt says of the state after a step.
    pub(super) fn mark(&self, step: u64) -> Option<&Mark> {
        self.marks.iter().flatten().find(|mark| mark.step == step)
    }

    /// The chained hash before the step after `step`, of a receipt.
    pub(in crate::train) fn chain_of_receipt(&self, step: u64) -> Result<Option<Chain>> {
        let Some(mark) = self.mark(step) else { return Ok(None) };
        let mut chain =
            blake3::Hash::from_hex(&mark.chain).map_or(Chain::start(), |hash| Chain(*hash.as_bytes()));
        for change in self.changes.iter().filter(|c| c.after == step) {
            chain = chain.then(&open_text(change)?);
        }
        Ok(Some(chain))
    }

    /// The chained hash after a step that a receipt has, and the step of the one before.
    pub(in crate::train) fn chained(&self, step: u64) -> Option<(&str, u64)> {
        let mark = self.mark(step)?;
        let before = self.marks.iter().flatten().rfind(|m| m.step < step)?;
        Some((&mark.chain, before.step))
    }
}
