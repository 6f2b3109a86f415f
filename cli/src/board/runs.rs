//! The runs in a folder: found, and read by the heads and tails of their files.

use super::curves::SPEED;
use crate::inspect::named_values;
use crate::verify::VERIFIED;
use dittograd::error::shown;
use dittograd::io::Checkpoint;
use dittograd::train::{BEST, CHECKPOINT, METRICS, RECORD, Record};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, Metadata};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How deep runs are looked for, and in how many folders.
const MAX_DEPTH: usize = 4;
const MAX_FOLDERS: usize = 50_000;
/// Bytes at the end of the measurements that are read for the last of them, and of the first and last line of a record, which names
/// every tensor.
const TAIL: u64 = 16 << 10;
const RECORD_LINE: u64 = 1 << 20;
/// Bytes that are read if those have fewer lines than this: lines with the norms of many gradients are long.
const LONG_TAIL: u64 = 1 << 20;
const FEW_LINES: usize = 100;
/// The largest checkpoint whose fingerprint is computed before somebody asks, the time for it in each round, and the largest receipt
/// that is read.
const MAX_UNASKED: u64 = 16 << 20;
const UNASKED_TIME: Duration = Duration::from_millis(100);
/// Where no locks can be listed, a run is running if it has written something in so many seconds.
const RECENT: Duration = Duration::from_secs(60);
/// The most characters of a name or text from a file.
const MAX_CHARS: usize = 300;

/// When a file was written, and its length.
pub(super) type Stamp = Option<(SystemTime, u64)>;

/// The stamp of a regular file that is no link.
pub(super) fn stamp(path: &Path) -> Stamp {
    let meta = std::fs::symlink_metadata(path).ok().filter(Metadata::is_file)?;
    Some((meta.modified().unwrap_or(UNIX_EPOCH), meta.len()))
}

/// A folder with a run.
pub(super) struct Run {
    pub(super) folder: PathBuf,
    /// Its path below the folder of all runs.
    pub(super) name: String,
    /// Of checkpoint, measurements, record and what `verify` left; and whether a process is at work in the folder.
    seen: ([Stamp; 4], bool),
    /// The fingerprint of the checkpoint with this stamp, or why there is none.
    fingerprint: Option<(Stamp, Result<String, String>)>,
    /// What the checkpoint says, or why it cannot be read.
    pub(super) head: Result<Option<(Checkpoint, usize)>, String>,
    /// The row in the list.
    pub(super) row: Value,
    /// The change of the list in which it got this row.
    pub(super) change: u64,
}

/// All runs.
pub(super) struct Runs {
    root: PathBuf,
    numbers: BTreeMap<PathBuf, u64>,
    pub(super) all: BTreeMap<u64, Run>,
    /// Runs that went, and in which change of the list.
    pub(super) gone: Vec<(u64, u64)>,
    /// Number of changes of the list.
    pub(super) change: u64,
}

impl Runs {
    /// Those in a folder, none of which has been looked for yet.
    pub(super) fn of(root: &Path) -> Runs {
        Runs {
            root: root.to_path_buf(),
            numbers: BTreeMap::new(),
            all: BTreeMap::new(),
            gone: Vec::new(),
            change: 0,
        }
    }

    /// Looks for new runs and reads again what has changed.
    pub(super) fn scan(&mut self) {
        let locks = locks();
        let found = find(&self.root);
        let next = self.change + 1;
        let mut is_changed = false;
        for folder in &found {
            let is_locked = is_locked(folder, locks.as_ref());
            let seen =
                ([CHECKPOINT, METRICS, RECORD, VERIFIED].map(|name| stamp(&folder.join(name))), is_locked);
            let number = match self.numbers.get(folder) {
                Some(number) => *number,
                None => self.numbers.len() as u64 + 1,
            };
            match self.all.get_mut(&number) {
                Some(run) => is_changed |= run.update(seen, next),
                None => {
                    self.numbers.insert(folder.clone(), number);
                    // It may come back.
                    self.gone.retain(|(n, _)| *n != number);
                    let path = folder.strip_prefix(&self.root).unwrap_or(folder);
                    let name = match path.as_os_str().is_empty() {
                        true => folder.file_name().unwrap_or(folder.as_os_str()).to_string_lossy(),
                        false => path.to_string_lossy(),
                    };
                    self.all.insert(number, Run::read(folder, shown(&name, MAX_CHARS), seen, next));
                    is_changed = true;
                }
            }
        }
        let found: BTreeSet<&PathBuf> = found.iter().collect();
        let lost: Vec<u64> =
            self.all.iter().filter(|(_, run)| !found.contains(&run.folder)).map(|(n, _)| *n).collect();
        for number in lost {
            self.all.remove(&number);
            self.gone.push((number, next));
            is_changed = true;
        }
        self.change += u64::from(is_changed);
    }

    /// Runs whose fingerprint is not known and is soon computed: number, folder and stamp of the checkpoint, the latest first.
    fn without_fingerprint(&self) -> Vec<(u64, PathBuf, Stamp)> {
        let is_small = |stamp: &Stamp| stamp.is_some_and(|(_, size)| size <= MAX_UNASKED);
        let mut all: Vec<(u64, PathBuf, Stamp)> = self
            .all
            .iter()
            .filter(|(_, run)| run.fingerprint.as_ref().is_none_or(|(of, _)| *of != run.seen.0[0]))
            .map(|(number, run)| (*number, run.folder.clone(), run.seen.0[0]))
            .filter(|(_, _, stamp)| is_small(stamp))
            .collect();
        all.sort_by_key(|(_, _, stamp)| std::cmp::Reverse(*stamp));
        all
    }

    /// Notes the fingerprint of the checkpoint with a stamp.
    fn set_fingerprint(&mut self, number: u64, of: Stamp, fingerprint: Result<String, String>) {
        self.change += 1;
        let change = self.change;
        if let Some(run) = self.all.get_mut(&number) {
            run.fingerprint = Some((of, fingerprint));
            run.row = run.make_row();
            run.change = change;
        }
    }

    /// Rows that have changed since a change of the list, and the numbers of runs that went.
    pub(super) fn since(&self, change: u64) -> Value {
        let rows: Vec<Value> =
            self.all.iter().filter(|(_, run)| run.change > change).map(|(n, run)| run.numbered(*n)).collect();
        let gone: Vec<u64> = self.gone.iter().filter(|(_, at)| *at > change).map(|(n, _)| *n).collect();
        let folder = shown(&self.root.to_string_lossy(), MAX_CHARS);
        json!({"folder": folder, "rows": rows, "gone": gone})
    }
}

/// Computes fingerprints for a while. The list is locked only to note them.
pub(super) fn add_fingerprints(runs: &std::sync::Mutex<Runs>) {
    let start = Instant::now();
    let wanted = super::held(runs).without_fingerprint();
    for (number, folder, stamp) in wanted {
        if start.elapsed() > UNASKED_TIME {
            return;
        }
        fingerprint(runs, number, &folder, stamp);
    }
}

/// Computes the fingerprint of one run.
fn fingerprint(runs: &std::sync::Mutex<Runs>, number: u64, folder: &Path, stamp: Stamp) {
    let read = Checkpoint::load(folder.join(CHECKPOINT)).map(|c| c.fingerprint());
    let read = read.map_err(|e| shown(&e.without_location().to_string(), MAX_CHARS));
    super::held(runs).set_fingerprint(number, stamp, read);
}

/// Computes the fingerprint of a run that somebody looks at, however large it is.
pub(super) fn ask_fingerprint(runs: &std::sync::Mutex<Runs>, number: u64) {
    let wanted = super::held(runs).all.get(&number).and_then(|run| {
        let now = run.seen.0[0];
        let is_known = run.fingerprint.as_ref().is_some_and(|(of, _)| *of == now);
        (now.is_some() && !is_known).then(|| (run.folder.clone(), now))
    });
    if let Some((folder, stamp)) = wanted {
        fingerprint(runs, number, &folder, stamp);
    }
}

impl Run {
    fn read(folder: &Path, name: String, seen: ([Stamp; 4], bool), change: u64) -> Run {
        let folder = folder.to_path_buf();
        let row = Value::Null;
        let mut run = Run { folder, name, seen, fingerprint: None, head: Ok(None), row, change };
        run.head = run.read_head();
        run.row = run.make_row();
        run
    }

    /// Reads again what has changed. Returns whether the row is another one.
    fn update(&mut self, seen: ([Stamp; 4], bool), change: u64) -> bool {
        if seen == self.seen {
            return false;
        }
        let is_same_head = seen.0[0] == self.seen.0[0];
        self.seen = seen;
        if !is_same_head {
            self.head = self.read_head();
        }
        let row = self.make_row();
        let is_new = row != self.row;
        if is_new {
            (self.row, self.change) = (row, change);
        }
        is_new
    }

    fn read_head(&self) -> Result<Option<(Checkpoint, usize)>, String> {
        match self.seen.0[0] {
            None => Ok(None),
            Some(_) => Checkpoint::head(self.folder.join(CHECKPOINT))
                .map(Some)
                .map_err(|e| shown(&e.without_location().to_string(), MAX_CHARS)),
        }
    }

    /// The row with the number of the run, as the page gets it.
    pub(super) fn numbered(&self, number: u64) -> Value {
        let mut row = self.row.clone();
        row["id"] = json!(number);
        row
    }

    fn make_row(&self) -> Value {
        let ([checkpoint, metrics, record, _], is_locked) = self.seen;
        let last = metrics.map_or_else(Last::default, |_| Last::read(&self.folder.join(METRICS)));
        let fingerprint = self.fingerprint.as_ref().filter(|(of, _)| *of == checkpoint).map(|(_, f)| f);
        let written = [checkpoint, metrics, record].into_iter().flatten().map(|(time, _)| time).max();
        let seconds = written.and_then(|t| t.duration_since(UNIX_EPOCH).ok()).map(|t| t.as_secs());
        let mut row = json!({
            "name": self.name, "written": seconds, "has_record": record.is_some(),
            "verified": self.is_verified(fingerprint.and_then(|f| f.as_ref().ok())),
            "loss": last.loss, "scores": last.scores, SPEED: last.speed, "peak_bytes": last.peak_bytes,
        });
        let mut steps = None;
        let mut made = last.step;
        let mut is_over = false;
        match &self.head {
            Ok(Some((state, parameters))) => {
                let text = |text: &str| shown(text, MAX_CHARS);
                let setting = |name: &str| state.config.get(name).cloned().unwrap_or_default();
                let brief = |value: Value| match value {
                    Value::String(s) => json!(text(&s)),
                    Value::Number(_) => value,
                    _ => Value::Null,
                };
                steps = setting("steps").as_u64();
                made = made.max(Some(state.step));
                let patience = setting("patience").as_u64();
                is_over = steps.is_some_and(|steps| state.step >= steps)
                    || patience.is_some_and(|most| state.progress.since_best >= most);
                row["model"] = json!(text(&state.model));
                row["data"] = json!(text(&state.data.name));
                row["batch"] = json!(state.data.batch);
                row["seed"] = json!(state.random.seed);
                row["optimizer"] = brief(setting("optimizer"));
                row["lr"] = brief(setting("lr"));
                row["parameters"] = json!(parameters);
                row["best_step"] = json!(state.progress.best.map(|b| b.step));
                row["numerics"] = json!(state.numerics.to_string());
                if last.scores.is_empty() {
                    row["scores"] = numbers(&state.metrics);
                }
            }
            Ok(None) => {}
            Err(why) => row["why"] = json!(why),
        }
        if let Some(found) = fingerprint {
            match found {
                Ok(fingerprint) => row["fingerprint"] = json!(fingerprint),
                Err(why) => row["why"] = json!(why),
            }
        }
        row["step"] = json!(made);
        row["steps"] = json!(steps);
        row["state"] = json!(match (row.get("why"), is_locked, is_over) {
            (Some(_), ..) => "damaged",
            (_, true, _) => "running",
            (_, _, true) => "finished",
            _ => "stopped",
        });
        row
    }

    /// Whether `verify` has computed the run again: the record has grown no further since, and the checkpoint is the one it ended with.
    fn is_verified(&self, fingerprint: Option<&String>) -> bool {
        let [_, _, record, receipt] = self.seen.0;
        if record.is_none() || receipt.is_none_or(|(_, size)| size > MAX_UNASKED) {
            return false;
        }
        let Ok(receipt) = Record::read(self.folder.join(VERIFIED)) else { return false };
        let lines = last_lines(&self.folder.join(RECORD), RECORD_LINE);
        let root = lines.iter().rev().find_map(|line| line["chain"].as_str());
        let is_its_end = |f: &String| receipt.end().is_none_or(|end| end.fingerprint == *f);
        receipt.is_receipt() && root == Some(&receipt.root()) && fingerprint.is_none_or(is_its_end)
    }

    /// A file of the run by its name, which is looked for among those that there are.
    pub(super) fn file(&self, name: &str) -> Option<PathBuf> {
        let found = files(&self.folder).into_iter().find(|(has, _)| has.to_string_lossy() == name)?;
        Some(self.folder.join(found.0))
    }

    /// Everything about a run but its curves.
    pub(super) fn details(&self, number: u64) -> Value {
        let mut all = self.numbered(number);
        let pair =
            |(name, value): (String, String)| json!([shown(&name, MAX_CHARS), shown(&value, MAX_CHARS)]);
        if let Ok(Some((state, _))) = &self.head {
            let mut settings = named_values("", &state.config);
            settings.push(("numerics".into(), state.numerics.to_string()));
            settings.push(("numerics_version".into(), state.numerics_version.to_string()));
            settings.push(("version".into(), state.version.clone()));
            settings.push(("data.hash".into(), state.data.hash.clone()));
            all["settings"] = settings.into_iter().map(pair).collect();
        }
        let files = files(&self.folder);
        let names: Vec<(String, u64)> =
            files.iter().map(|(name, size)| (name.to_string_lossy().into_owned(), *size)).collect();
        all["files"] = json!(names);
        let record = |line: Option<Value>| -> Value {
            line.map_or(Vec::new(), |line| named_values("", &line)).into_iter().map(pair).collect()
        };
        let path = self.folder.join(RECORD);
        if stamp(&path).is_some() {
            all["record"] = json!({"head": record(first_line(&path)), "last": record(last_lines(&path, RECORD_LINE).pop())});
        }
        all["resume"] =
            json!(format!("dittograd train --resume {}", shown(&self.folder.to_string_lossy(), MAX_CHARS)));
        all["has_best"] = json!(stamp(&self.folder.join(BEST)).is_some());
        all
    }
}

/// The names and sizes of the regular files of a run, in order. Hidden files and links are left out.
fn files(folder: &Path) -> Vec<(std::ffi::OsString, u64)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let file = |entry: std::fs::DirEntry| {
        let meta = entry.metadata().ok().filter(Metadata::is_file)?;
        Some((entry.file_name(), meta.len()))
    };
    let mut all: Vec<_> = entries.filter_map(file).collect();
    all.retain(|(name, _)| !name.as_encoded_bytes().starts_with(b"."));
    all.sort();
    all
}

/// The numbers of an object.
fn numbers(object: &Value) -> Value {
    let pairs = object.as_object().into_iter().flatten();
    Value::Object(
        pairs.filter(|(_, v)| v.is_number()).map(|(k, v)| (shown(k, MAX_CHARS), v.clone())).collect(),
    )
}

/// What the last lines of the measurements say.
#[derive(Default)]
struct Last {
    step: Option<u64>,
    loss: Option<f64>,
    peak_bytes: Option<f64>,
    /// Milliseconds of a step.
    speed: Option<f64>,
    /// Of the last evaluation.
    scores: Map<String, Value>,
}

impl Last {
    fn read(path: &Path) -> Last {
        let mut last = Last::default();
        let mut time = None;
        let mut lines = last_lines(path, TAIL);
        if lines.len() < FEW_LINES && std::fs::metadata(path).is_ok_and(|meta| meta.len() > TAIL) {
            lines = last_lines(path, LONG_TAIL);
        }
        for line in lines.iter().rev() {
            let Some(step) = line["step"].as_u64() else { continue };
            last.step = last.step.max(Some(step));
            last.loss = last.loss.or(line["loss"].as_f64());
            last.peak_bytes = last.peak_bytes.or(line["peak_bytes"].as_f64());
            if let (Some(seconds), None) = (line["seconds"].as_f64(), last.speed) {
                match time {
                    Some((end, to)) if step < end && seconds <= to => {
                        last.speed = Some(1e3 * (to - seconds) / (end - step) as f64);
                    }
                    _ => time = Some((step, seconds)),
                }
            }
            if last.scores.is_empty() {
                let score = |(name, v): (&String, &Value)| {
                    Some((shown(name.strip_prefix("test_")?, MAX_CHARS), json!(v.as_f64()?)))
                };
                last.scores = line.as_object().into_iter().flatten().filter_map(score).collect();
            }
        }
        last
    }
}

/// The whole lines among the last bytes of a file that are JSON.
fn last_lines(path: &Path, most: u64) -> Vec<Value> {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let size = file.metadata()?.len();
        file.seek(SeekFrom::Start(size.saturating_sub(most)))?;
        let mut bytes = Vec::new();
        file.take(most).read_to_end(&mut bytes)?;
        if size > most {
            let cut = bytes.iter().position(|b| *b == b'\n').unwrap_or(bytes.len());
            bytes.drain(..cut);
        }
        Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    bytes.split(|b| *b == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

/// The first line of a file, if it is JSON.
fn first_line(path: &Path) -> Option<Value> {
    let mut line = Vec::new();
    BufReader::new(File::open(path).ok()?).take(RECORD_LINE).read_until(b'\n', &mut line).ok()?;
    serde_json::from_slice(&line).ok()
}

/// The folders below `root`, itself included, that hold a run. Links and hidden folders are not followed.
fn find(root: &Path) -> Vec<PathBuf> {
    let mut runs = Vec::new();
    let mut open = vec![(root.to_path_buf(), 0)];
    let mut seen = 0;
    while let Some((folder, depth)) = open.pop() {
        seen += 1;
        if seen > MAX_FOLDERS {
            break;
        }
        let (mut below, mut is_run) = (Vec::new(), false);
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let Ok(kind) = entry.file_type() else { continue };
            let name = entry.file_name();
            is_run |= kind.is_file() && [CHECKPOINT, METRICS, RECORD].iter().any(|n| name == **n);
            if kind.is_dir() && depth < MAX_DEPTH && !name.as_encoded_bytes().starts_with(b".") {
                below.push((entry.path(), depth + 1));
            }
        }
        match is_run {
            true => runs.push(folder),
            false => open.extend(below),
        }
    }
    runs.sort();
    runs
}

/// The numbers of files that are locked on this machine, if they can be listed. Trying to lock a folder would disturb a run that is
/// about to begin.
fn locks() -> Option<BTreeSet<u64>> {
    let text =
        if cfg!(target_os = "linux") { std::fs::read_to_string("/proc/locks").ok()? } else { return None };
    // `1: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE 0 EOF`. The device is not compared: file systems in layers show another one there.
    let inode = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        words.next().filter(|kind| *kind == "FLOCK")?;
        words.nth(3)?.rsplit(':').next()?.parse().ok()
    };
    Some(text.lines().filter_map(inode).collect())
}

/// Whether a process is at work in the folder of a run.
fn is_locked(folder: &Path, locks: Option<&BTreeSet<u64>>) -> bool {
    #[cfg(unix)]
    if let Some(locks) = locks {
        let inode = |meta: Metadata| std::os::unix::fs::MetadataExt::ino(&meta);
        return std::fs::metadata(folder).is_ok_and(|meta| locks.contains(&inode(meta)));
    }
    let _ = locks;
    let age = stamp(&folder.join(METRICS)).and_then(|(time, _)| SystemTime::now().duration_since(time).ok());
    age.is_some_and(|age| age < RECENT)
}
