//! The folder of a run: its latest state, its best state, and the measurements.

use super::record::{Entry, RECORD, Start, Writer};
use crate::error::{Error, Result};
use crate::io::{Checkpoint, atomic};
use crate::parallel::World;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The latest state of a run.
pub const CHECKPOINT: &str = "checkpoint.safetensors";
/// The state at the best evaluation.
pub const BEST: &str = "best.safetensors";
/// The measurements, one JSON object per line.
pub const METRICS: &str = "metrics.jsonl";

/// What is measured of the machine, such as time, and its faults. The other measurements of a run are the same wherever it runs.
#[doc(hidden)]
pub const OF_THE_MACHINE: [&str; 3] = ["seconds", "peak_bytes", "fault"];

/// A folder that one run at a time writes to: it is locked until this value is dropped or the process ends. Files are
/// written atomically.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    /// Held open for its lock.
    _lock: Option<File>,
    checkpoint: Option<Checkpoint>,
    is_new: bool,
    /// Whether this process writes to it. Others of the same run only read it.
    is_writer: bool,
    metrics: Option<File>,
    lines: Vec<Value>,
    /// The folder whose record this run goes on with, if it is not this one.
    adopted: Option<PathBuf>,
    record: Option<Writer>,
}

impl RunFolder {
    /// A folder for a new run, created if necessary. If it holds a run, or another process uses it, this is an error
    /// and nothing changes.
    #[track_caller]
    pub fn create(path: impl AsRef<Path>) -> Result<RunFolder> {
        let folder = RunFolder::open(path)?;
        if !folder.is_new || !folder.lines.is_empty() {
            let why = "holds a run already; resume it, or use another folder";
            return Err(Error::file("run", &folder.path, why));
        }
        Ok(folder)
    }

    /// A folder for a new or continued run; reads what is in it. Errors if another process uses it.
    #[track_caller]
    pub fn open(path: impl AsRef<Path>) -> Result<RunFolder> {
        let path = path.as_ref().to_path_buf();
        if fs::metadata(&path).is_ok_and(|meta| !meta.is_dir()) {
            return Err(Error::file("run", &path, "is a file, not a folder; use another name"));
        }
        atomic::create_dir_all(&path)?;
        let lock = lock(&path)?;
        RunFolder::read(path, lock, true)
    }

    /// A folder for a new or continued run of many processes, as [`RunFolder::open`]: the first one locks it and writes to it, the others only read it. All of them must see
    /// the same folder.
    #[track_caller]
    pub fn open_in(world: &World, path: impl AsRef<Path>) -> Result<RunFolder> {
        let path = path.as_ref();
        let first = if world.rank() == 0 { Some(RunFolder::open(path)) } else { None };
        let error = first.as_ref().and_then(|f| f.as_ref().err()).map_or(String::new(), Error::to_string);
        let error = world.broadcast(error.as_bytes())?;
        let folder = match first {
            Some(folder) => folder?,
            None if error.is_empty() => RunFolder::follow(path)?,
            None => {
                let why = format!("rank 0 could not open it: {}", String::from_utf8_lossy(&error));
                return Err(Error::file("run", path, why));
            }
        };
        // Nobody writes before all have read.
        let step = folder.checkpoint.as_ref().map_or("none".into(), |c| format!("of step {}", c.step));
        world.agree(&format!("checkpoint in {}", path.display()), &step)?;
        Ok(folder)
    }

    /// A folder that another process of the same run has opened and writes to: this one only reads it.
    #[track_caller]
    pub fn follow(path: impl AsRef<Path>) -> Result<RunFolder> {
        RunFolder::read(path.as_ref().to_path_buf(), None, false)
    }

    #[track_caller]
    fn read(path: PathBuf, lock: Option<File>, is_writer: bool) -> Result<RunFolder> {
        let checkpoint = match path.join(CHECKPOINT) {
            file if file.exists() => Some(Checkpoint::load(file)?),
            _ => None,
        };
        let lines = lines_of(&path.join(METRICS))?;
        let is_new = checkpoint.is_none();
        let (metrics, adopted, record) = (None, None, None);
        Ok(RunFolder { path, _lock: lock, checkpoint, is_new, is_writer, metrics, lines, adopted, record })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it held no run when it was opened.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Takes the state that it held when it was opened, once: a state is as large as the model.
    pub fn take_checkpoint(&mut self) -> Option<Checkpoint> {
        self.checkpoint.take()
    }

    /// All measurements so far.
    pub fn lines(&self) -> &[Value] {
        &self.lines
    }

    /// Copies the measurements, record, best state and kept checkpoints of another run, whose folder is `from`, for a run that continues
    /// in this one.
    #[track_caller]
    pub fn adopt(&mut self, from: &Path, best_step: Option<u64>) -> Result<()> {
        self.lines = lines_of(&from.join(METRICS))?;
        self.adopted = Some(from.to_path_buf());
        let best = from.join(BEST);
        if self.is_writer && best_step.is_some() && best.exists() {
            let state = Checkpoint::load(&best)?;
            if Some(state.step) == best_step {
                state.save(self.path.join(BEST))?;
            }
        }
        for (_, file) in kept(from)?.into_iter().filter(|_| self.is_writer) {
            let name = file.file_name().unwrap_or_default();
            atomic::write(self.path.join(name), &crate::io::read(&file)?)?;
        }
        Ok(())
    }

    /// Keeps the measurements and checkpoints up to `step`; later ones are made again.
    #[track_caller]
    pub(super) fn begin(&mut self, step: u64) -> Result<()> {
        self.lines.retain(|l| l["step"].as_u64().is_some_and(|s| s <= step));
        if !self.is_writer {
            return Ok(());
        }
        let file = self.path.join(METRICS);
        let text: String = self.lines.iter().map(|l| format!("{l}\n")).collect();
        atomic::write(&file, text.as_bytes())?;
        let opened = OpenOptions::new().append(true).open(&file);
        self.metrics = Some(opened.map_err(|e| Error::file("run", &file, e))?);
        for (_, later) in kept(&self.path)?.into_iter().filter(|(of, _)| *of > step) {
            fs::remove_file(&later).map_err(|e| Error::file("run", later, e))?;
        }
        Ok(())
    }

    /// Adds a measurement.
    #[track_caller]
    pub(super) fn record(&mut self, line: Value) -> Result<()> {
        if let Some(file) = &mut self.metrics {
            file.write_all(format!("{line}\n").as_bytes())
                .map_err(|e| Error::file("run", self.path.join(METRICS), e))?;
        }
        self.lines.push(line);
        Ok(())
    }

    /// Keeps the record up to the step that this run starts from; later steps are recorded again.
    #[track_caller]
    pub(super) fn begin_record(&mut self, start: Start) -> Result<()> {
        if self.is_writer {
            let path = self.path.join(RECORD);
            let old = self.adopted.as_deref().unwrap_or(&self.path).join(RECORD);
            self.record = Some(Writer::begin(&path, &old, start)?);
        }
        Ok(())
    }

    /// Adds a step to the record.
    #[track_caller]
    pub(super) fn record_step(&mut self, entry: &Entry) -> Result<()> {
        self.record.as_mut().map_or(Ok(()), |record| record.step(entry))
    }

    /// Adds a fault of the machine to measurements and record.
    #[track_caller]
    pub(super) fn fault(&mut self, step: u64, fault: &str) -> Result<()> {
        self.record(json!({"step": step, "fault": fault}))?;
        self.record.as_mut().map_or(Ok(()), |record| record.fault(step, fault))
    }

    /// Ends the record.
    #[track_caller]
    pub(super) fn end_record(&mut self, why: &str, steps: u64, fingerprint: &str) -> Result<()> {
        self.record.as_mut().map_or(Ok(()), |record| record.end(why, steps, fingerprint))
    }

    /// Saves the state of the run. Earlier measurements and the record up to it are on the disk before it.
    #[track_caller]
    pub(super) fn save(&mut self, state: &Checkpoint, is_best: bool, is_kept: bool) -> Result<()> {
        if !self.is_writer {
            return Ok(());
        }
        if let Some(record) = &mut self.record {
            record.flush()?;
        }
        if let Some(file) = &self.metrics {
            // Ignore errors: some files, such as pipes, cannot be synced.
            let _ = file.sync_data();
        }
        // These first: a run that continues from the last file assumes that they are saved.
        if is_best {
            state.save(self.path.join(BEST))?;
        }
        if is_kept {
            state.save(self.path.join(kept_name(state.step)))?;
        }
        state.save(self.path.join(CHECKPOINT))
    }

    /// The names of its files, in order.
    pub fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        names.retain(|n| !n.starts_with('.'));
        names.sort();
        names
    }
}

/// The checkpoints that the run in a folder [keeps](super::Trainer::keep), by the step in their names.
#[track_caller]
pub fn kept(folder: impl AsRef<Path>) -> Result<BTreeMap<u64, PathBuf>> {
    let folder = folder.as_ref();
    // A name alone has an empty folder.
    let entries = fs::read_dir(folder.join(".")).map_err(|e| Error::file("run", folder, e))?;
    let step = |name: &str| {
        let step = name.split(['-', '.']).nth(1)?.parse().ok()?;
        (name == kept_name(step)).then_some(step)
    };
    let of = |name: std::ffi::OsString| Some((step(name.to_str()?)?, folder.join(&name)));
    Ok(entries.flatten().filter_map(|entry| of(entry.file_name())).collect())
}

/// The name of a checkpoint that a run keeps.
fn kept_name(step: u64) -> String {
    format!("checkpoint-{step}.safetensors")
}

/// The measurements of the run in a folder so far. It need not be this process that writes them, and it is not locked.
#[track_caller]
pub fn measurements(folder: impl AsRef<Path>) -> Result<Vec<Value>> {
    lines_of(&folder.as_ref().join(METRICS))
}

/// The readable lines of a file of measurements: the last line may be cut off if the run was killed, and a damaged line
/// must not hide the others.
#[track_caller]
fn lines_of(file: &Path) -> Result<Vec<Value>> {
    let bytes = match fs::read(file) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(Error::file("run", file, e)),
    };
    Ok(bytes.split(|b| *b == b'\n').filter_map(|l| serde_json::from_slice(l).ok()).collect())
}

/// Locks a folder. `None` if the file system has no locks.
#[track_caller]
fn lock(path: &Path) -> Result<Option<File>> {
    // Only Unix can open a folder as a file.
    let file = match cfg!(unix) {
        true => File::open(path),
        false => OpenOptions::new().create(true).append(true).open(path.join(".lock")),
    };
    let file = file.map_err(|e| Error::file("run", path, e))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => {
            let why = "another process is at work in this folder; wait for it, or use another one";
            Err(Error::file("run", path, why))
        }
        Err(TryLockError::Error(_)) => Ok(None),
    }
}
