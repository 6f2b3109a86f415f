//! The folder of a run: checkpoint, measurements, pictures.

use crate::{Answer, fail};
use dittograd::io::{Checkpoint, atomic};
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The latest state of a run.
pub(super) const CHECKPOINT: &str = "checkpoint.safetensors";
/// The state at the best evaluation.
pub(super) const BEST: &str = "best.safetensors";
/// What was measured, a JSON object a line.
const METRICS: &str = "metrics.jsonl";
/// Most runs of a model in one place.
const MOST: usize = 10_000;

/// A folder that a run writes to.
pub(super) struct Folder {
    path: PathBuf,
    metrics: File,
    /// The lines of [`METRICS`].
    lines: Vec<Value>,
}

fn wrong<T>(path: &Path, e: &std::io::Error) -> Answer<T> {
    fail(format!("{}: {e}", path.display()))
}

impl Folder {
    /// The folder asked for, or a new one of the model's name. None if none is wanted. A folder that holds a run already is an
    /// error: nothing is overwritten.
    pub(super) fn make(asked: Option<&Path>, model: &str) -> Answer<Option<Folder>> {
        let runs = std::env::var_os("DITTOGRAD_RUNS").filter(|v| !v.is_empty());
        let path = match (asked, runs) {
            (Some(path), _) if path.as_os_str() == "none" => return Ok(None),
            (None, Some(runs)) if runs == "none" => return Ok(None),
            (Some(path), _) => {
                if path.join(CHECKPOINT).exists() || path.join(METRICS).exists() {
                    let (at, how) = (path.display(), "use --resume to go on with it, or another --out");
                    return fail(format!("{at}: holds a run already; {how}"));
                }
                path.to_path_buf()
            }
            (None, runs) => {
                let runs = runs.map_or_else(|| PathBuf::from("runs"), PathBuf::from);
                let named =
                    |n: usize| runs.join(if n == 1 { model.to_string() } else { format!("{model}-{n}") });
                if let Err(e) = fs::create_dir_all(&runs) {
                    return wrong(&runs, &e);
                }
                // Making the folder is what takes its name, so two runs at a time never share one.
                let free = (1..MOST).map(named).find_map(|path| match fs::create_dir(&path) {
                    Ok(()) => Some(Ok(path)),
                    Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => None,
                    Err(e) => Some(Err((path, e))),
                });
                match free {
                    Some(Ok(path)) => path,
                    Some(Err((path, e))) => return wrong(&path, &e),
                    None => return fail(format!("{}: is full of runs", runs.display())),
                }
            }
        };
        if fs::metadata(&path).is_ok_and(|meta| !meta.is_dir()) {
            return fail(format!("{}: is a file, not a folder; use another --out", path.display()));
        }
        if let Err(e) = fs::create_dir_all(&path) {
            return wrong(&path, &e);
        }
        Folder::with(path, Vec::new()).map(Some)
    }

    /// The folder of a run that goes on after `step`: what was measured later is measured again.
    pub(super) fn open(path: PathBuf, step: u64) -> Answer<Folder> {
        let file = path.join(METRICS);
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(e) => return wrong(&file, &e),
        };
        // A last line may be cut where the run was.
        let lines = text.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok());
        let before = |v: &Value| v["step"].as_u64().is_some_and(|s| s <= step);
        Folder::with(path, lines.filter(before).collect())
    }

    fn with(path: PathBuf, lines: Vec<Value>) -> Answer<Folder> {
        let file = path.join(METRICS);
        let text: String = lines.iter().map(|l| format!("{l}\n")).collect();
        atomic::write(&file, text.as_bytes())?;
        match OpenOptions::new().append(true).open(&file) {
            Ok(metrics) => Ok(Folder { path, metrics, lines }),
            Err(e) => wrong(&file, &e),
        }
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Everything measured so far.
    pub(super) fn lines(&self) -> &[Value] {
        &self.lines
    }

    /// Adds a measurement.
    pub(super) fn measured(&mut self, line: Value) -> Answer<()> {
        if let Err(e) = self.metrics.write_all(format!("{line}\n").as_bytes()) {
            return wrong(&self.path.join(METRICS), &e);
        }
        self.lines.push(line);
        Ok(())
    }

    /// Saves a checkpoint, whole or not at all.
    pub(super) fn save(&self, checkpoint: &Checkpoint, name: &str) -> Answer<()> {
        Ok(checkpoint.save(self.path.join(name))?)
    }

    /// The names of its files, in order.
    pub(super) fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        names.retain(|n| !n.starts_with('.'));
        names.sort();
        names
    }
}
