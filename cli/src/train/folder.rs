//! Which folder a run writes to.

use crate::{Answer, fail};
use dittograd::io::atomic;
use dittograd::prelude::*;
use dittograd::train::{CHECKPOINT, METRICS};
use std::fs;
use std::path::{Path, PathBuf};

/// The most runs of a model in one place.
const MAX_RUNS: usize = 10_000;

/// Where runs are by default: DITTOGRAD_RUNS, or `runs`; `None` if DITTOGRAD_RUNS is `none`.
pub(crate) fn runs() -> Option<PathBuf> {
    let set = std::env::var_os("DITTOGRAD_RUNS").filter(|v| !v.is_empty());
    let runs = set.map_or_else(|| PathBuf::from("runs"), PathBuf::from);
    (runs.as_os_str() != "none").then_some(runs)
}

/// The requested folder for several runs, or a new one; `None` if none is wanted. The file `name` is in every such folder.
pub(super) fn make_for_many(asked: Option<&Path>, model: &str, name: &str) -> Answer<Option<PathBuf>> {
    let path = match asked {
        Some(path) if path.as_os_str() == "none" => return Ok(None),
        Some(path) => path.to_path_buf(),
        None => match runs() {
            Some(runs) => free(&runs, &format!("{model}-seeds"))?,
            None => return Ok(None),
        },
    };
    if fs::metadata(&path).is_ok_and(|meta| !meta.is_dir()) {
        return fail(format!("{}: is a file, not a folder; use another --out", path.display()));
    }
    if [CHECKPOINT, METRICS, name].iter().any(|file| path.join(file).exists()) {
        let how = "use --resume to go on with it, or another --out";
        return fail(format!("{}: holds a run already; {how}", path.display()));
    }
    atomic::create_dir_all(&path)?;
    Ok(Some(path))
}

/// The requested folder, or a new one with the model's name; `None` if none is wanted. A folder that already holds a
/// run is an error: nothing is overwritten.
pub(super) fn make(asked: Option<&Path>, model: &str) -> Answer<Option<RunFolder>> {
    let path = match asked {
        Some(path) if path.as_os_str() == "none" => return Ok(None),
        Some(path) => path.to_path_buf(),
        None => match runs() {
            Some(runs) => free(&runs, model)?,
            None => return Ok(None),
        },
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
