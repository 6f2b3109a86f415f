//! What the processes of a run must have in common, and what one of them gets from all.

use crate::World;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use std::collections::BTreeMap;

impl World {
    /// Errors, on all ranks, if they do not all give the same text for something that must be one: a hash of the program, of the
    /// data, of the parameters. The error names a rank whose text few others have.
    #[track_caller]
    pub fn agree(&self, what: &str, mine: &str) -> Result<()> {
        let all = self.all_gather(mine.as_bytes())?;
        let mut counts: BTreeMap<&[u8], usize> = BTreeMap::new();
        all.iter().for_each(|text| *counts.entry(text).or_default() += 1);
        // Of equally many, what the lowest rank has.
        let most = |text: &&Vec<u8>| counts[text.as_slice()];
        let Some(usual) = all.iter().rev().max_by_key(most) else { return Ok(()) };
        let Some(rank) = all.iter().position(|text| text != usual) else { return Ok(()) };
        let shown = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
        let (has, usual) = (shown(&all[rank]), shown(usual));
        let others = all.len() - counts[all[rank].as_slice()];
        let why = match 2 * others > all.len() {
            true => format!("has another {what} than the other ranks: {has} instead of {usual}"),
            false => format!(
                "has another {what} than rank 0, and neither has most of the ranks with it: {has} instead of {usual}"
            ),
        };
        // All ranks find this. None leaves before all have: whoever still waits would be told that a rank gave up instead.
        let _ = self.any(true);
        Err(Error::new("ranks", ErrorKind::Peer { rank, why }))
    }

    /// Whether any rank says so.
    #[track_caller]
    pub fn any(&self, mine: bool) -> Result<bool> {
        let all = self.bytes(self.to_all(&[u8::from(mine)]), self.others().map(|r| (r, 1)).collect())?;
        Ok(mine || all.iter().any(|b| b.contains(&1)))
    }

    /// As [`World::all_gather`], of words.
    #[track_caller]
    pub fn all_gather_words(&self, mine: &[f32]) -> Result<Vec<Vec<f32>>> {
        Ok(self.all_gather(bytemuck::cast_slice(mine))?.iter().map(|b| words(b)).collect())
    }

    /// The words that each rank gives, by rank, on rank 0; nothing on the others.
    #[track_caller]
    pub fn gather_words(&self, mine: &[f32]) -> Result<Vec<Vec<f32>>> {
        let is_first = self.rank() == 0;
        let bytes: &[u8] = bytemuck::cast_slice(mine);
        let lengths = self.lengths(bytes.len())?;
        let receives =
            self.others().zip(lengths).filter(|_| is_first).map(|(r, n)| (r, n as usize)).collect();
        let sends = if is_first { Vec::new() } else { vec![(0, bytes.into())] };
        let mut all: Vec<Vec<f32>> = self.bytes(sends, receives)?.iter().map(|b| words(b)).collect();
        if is_first {
            all.insert(0, mine.to_vec());
        }
        Ok(all)
    }
}

fn words(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect()
}
