//! Which folder a run writes to.

use crate::{Answer, fail};
use dittograd::io::atomic;
use dittograd::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};

/// The most runs of a model in one place.
const MAX_RUNS: usize = 10_000;

/// The requested folder, or a new one with the model's name; `None` if none is wanted. A folder that already holds a
/// run is an error: nothing is overwritten.
pub(super) fn make(asked: Option<&Path>, model: &str) -> Answer<Option<RunFolder>> {
    let runs = std::env::var_os("DITTOGRAD_RUNS").filter(|v| !v.is_empty());
    let path = match (asked, runs) {
        (Some(path), _) if path.as_os_str() == "none" => return Ok(None),
        (None, Some(runs)) if runs == "none" => return Ok(None),
        (Some(path), _) => path.to_path_buf(),
        (None, runs) => free(&runs.map_or_else(|| PathBuf::from("runs"), PathBuf::from), model)?,
    };
    if fs::metadata(&path).is_ok_and(|meta| !meta.is_dir()) {
        return fail(format!("{}: is a file, not a folder; use another --out", path.display()));
    }
    let folder = RunFolder::open(&path)?;
    if !folder.is_new() || !folder.lines().is_empty() {
        let how = "use --resume to go on with it, or another --out";
        return fail(format!("{}: holds a run already; {how}", path.display()));
    }
    Ok(Some(folder))
}

/// A new folder with the model's name. Creating it reserves the name, so two simultaneous runs never share one.
fn free(runs: &Path, model: &str) -> Answer<PathBuf> {
    let named = |n: usize| runs.join(if n == 1 { model.to_string() } else { format!("{model}-{n}") });
    atomic::create_dir_all(runs)?;
    for path in (1..MAX_RUNS).map(named) {
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return fail(format!("{}: {e}", path.display())),
        }
    }
    fail(format!("{}: is full of runs", runs.display()))
}
