//! Which steps of a run are computed: all, some, or a sample.

use super::evidence::Evidence;
use crate::{Answer, fail};
use dittograd::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fmt;

/// Steps to compare: parts of the run, in order, each from a step that is done to another.
pub(super) struct Chosen {
    pub(super) parts: Vec<(u64, u64)>,
    pub(super) sample: Option<Sample>,
}

/// How parts were drawn.
pub(super) struct Sample {
    drawn: usize,
    of: usize,
    seed: u32,
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} parts drawn by seed {}", self.drawn, self.of, self.seed)
    }
}

impl Sample {
    /// As `--json` has it.
    pub(super) fn object(&self, parts: &[(u64, u64)]) -> Value {
        let ranges: Vec<[u64; 2]> = parts.iter().map(|(from, to)| [from + 1, *to]).collect();
        json!({"seed": self.seed, "parts": self.of, "drawn": self.drawn, "steps": ranges})
    }
}

/// A share such as 5%.
pub(super) fn share(text: &str) -> Result<f64, String> {
    match text.strip_suffix('%').and_then(|n| n.trim().parse::<f64>().ok()) {
        Some(percent) if percent > 0.0 && percent <= 100.0 => Ok(percent / 100.0),
        _ => Err("use a share above 0 and up to 100, such as 5%".into()),
    }
}

impl Chosen {
    /// The steps after `from` up to `to`.
    pub(super) fn one(from: u64, to: u64) -> Chosen {
        Chosen { parts: vec![(from, to)], sample: None }
    }

    /// About a share of the steps. A part reaches from one state that a replay can start from to the next, so that it is computed as a
    /// whole and no step of the run is less likely to be found than others. Who made the run must not know the seed.
    pub(super) fn drawn(evidence: &Evidence, share: f64, seed: Option<u32>) -> Answer<Chosen> {
        let record = &evidence.record;
        let (first, last) = (record.first(), record.last());
        let is_start = |step: &u64| first < *step && *step < last && record.state(*step).is_some();
        let starts: BTreeSet<u64> =
            evidence.kept.iter().map(|k| k.step).filter(is_start).chain([first]).collect();
        let ends = starts.iter().skip(1).chain([&last]);
        let all: Vec<(u64, u64)> = starts.iter().copied().zip(ends.copied()).collect();
        if all.len() < 2 {
            let how = "verify all of it, or train with --keep N";
            return fail(format!(
                "--sample: the run has no checkpoint between its first and last step; {how}"
            ));
        }
        let seed = match seed {
            Some(seed) => seed,
            None => getrandom::u32().or_else(|e| fail(format!("the system has no random numbers: {e}")))?,
        };
        let wanted = share * (last - first) as f64;
        let (mut parts, mut steps): (Vec<(u64, u64)>, u64) = (Vec::new(), 0);
        for i in Stream::new(seed.into(), 0).permutation(all.len()) {
            let (from, to) = all[i];
            // Rounded to the nearest number of parts, but one at least.
            if !parts.is_empty() && (steps as f64 + 0.5 * (to - from) as f64) > wanted {
                break;
            }
            parts.push((from, to));
            steps += to - from;
        }
        let sample = Sample { drawn: parts.len(), of: all.len(), seed };
        parts.sort_unstable();
        // Neighbours are one part.
        parts.dedup_by(|next, part| {
            let joins = next.0 == part.1;
            if joins {
                part.1 = next.1;
            }
            joins
        });
        Ok(Chosen { parts, sample: Some(sample) })
    }
}
