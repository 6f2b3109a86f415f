//! What the processes of a run must have in common, and what one of them gets from all.

use crate::World;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

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
        Err(Error::new("ranks", ErrorKind::Peer { rank, why }))
    }

    /// Whether any rank says so.
    #[track_caller]
    pub fn any(&self, mine: bool) -> Result<bool> {
        let byte: Arc<[u8]> = [u8::from(mine)].into();
        let others = (0..self.size()).filter(|r| *r != self.rank());
        let sends = others.clone().map(|r| (r, byte.clone())).collect();
        let all = self.bytes(sends, others.map(|r| (r, 1)).collect())?;
        Ok(mine || all.iter().any(|b| b.contains(&1)))
    }

    /// What each rank gives, by rank, on rank 0; nothing on the others.
    #[track_caller]
    pub fn gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let is_first = self.rank() == 0;
        let lengths = self.all_gather(&(mine.len() as u64).to_le_bytes())?;
        let number = |b: &Vec<u8>| b.iter().rev().fold(0, |n, byte| n << 8 | *byte as usize);
        let receives = (1..self.size()).map(|r| (r, number(&lengths[r]))).filter(|_| is_first).collect();
        let sends = if is_first { Vec::new() } else { vec![(0, mine.into())] };
        let mut all = self.bytes(sends, receives)?;
        if is_first {
            all.insert(0, mine.to_vec());
        }
        Ok(all)
    }
}
