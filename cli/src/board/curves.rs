//! The curves of a run: measurements as points, read from a file while it grows, and thinned to what a picture can show.

use crate::measurements::points;
use dittograd::train::METRICS;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// The curve of the speed, which is made of that of the time.
pub(super) const SPEED: &str = "ms_per_step";
/// The most curves of a run, and the longest line: a file may hold anything.
const MAX_CURVES: usize = 512;
const MAX_LINE: usize = 1 << 20;
/// The most points kept of a curve. Beyond, it is thinned.
const MAX_POINTS: usize = 1 << 21;
/// Bytes read at a time.
const CHUNK: usize = 1 << 18;

/// A step and what was measured there.
pub(super) type Point = [f64; 2];

/// What is left of points in `from..=to` if each of `buckets` equal parts keeps its lowest and its highest. Points are in order.
pub(super) fn thinned(points: &[Point], [from, to]: [f64; 2], buckets: usize) -> Vec<Point> {
    let first = points.partition_point(|p| p[0] < from);
    let last = points.partition_point(|p| p[0] <= to);
    let points = points.get(first..last).unwrap_or_default();
    let [Some(start), Some(end)] = [points.first(), points.last()].map(|p| p.map(|p| p[0])) else {
        return Vec::new();
    };
    if points.len() <= 2 * buckets {
        return points.to_vec();
    }
    let width = (end - start) / buckets as f64;
    let bucket = |p: &Point| (((p[0] - start) / width) as usize).min(buckets - 1);
    let mut all = Vec::with_capacity(2 * buckets + 2);
    all.push(points[0]);
    for part in points.chunk_by(|a, b| bucket(a) == bucket(b)) {
        let (mut low, mut high) = (0, 0);
        for (i, p) in part.iter().enumerate() {
            low = if p[1] < part[low][1] { i } else { low };
            high = if p[1] > part[high][1] { i } else { high };
        }
        all.push(part[low.min(high)]);
        if low != high {
            all.push(part[low.max(high)]);
        }
    }
    all.push(points[points.len() - 1]);
    all.dedup();
    all
}

/// The lines of a growing file that are new since the last time.
#[derive(Default)]
struct Growing {
    identity: Option<u64>,
    read: u64,
    /// The beginning of a line whose end is not there yet.
    rest: Vec<u8>,
    /// Whether the line was too long and what follows belongs to it.
    is_skipped: bool,
}

/// What distinguishes a file from another one of the same name.
fn identity(meta: &Metadata) -> u64 {
    #[cfg(unix)]
    {
        std::os::unix::fs::MetadataExt::ino(meta)
    }
    #[cfg(not(unix))]
    {
        let since = meta.created().ok().and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok());
        since.map_or(0, |t| t.as_nanos() as u64)
    }
}

impl Growing {
    /// Hands on each whole line that is new. `None` comes first if the file is another one than before, or shorter.
    fn read(&mut self, path: &Path, mut line: impl FnMut(Option<&[u8]>)) -> std::io::Result<()> {
        let mut file = File::open(path)?;
        let meta = file.metadata()?;
        if self.identity != Some(identity(&meta)) || meta.len() < self.read {
            *self = Growing { identity: Some(identity(&meta)), ..Growing::default() };
            line(None);
        }
        if meta.len() == self.read {
            return Ok(());
        }
        file.seek(SeekFrom::Start(self.read))?;
        // No further than it reached at the beginning: it may grow faster than it is read.
        let mut file = file.take(meta.len() - self.read);
        let mut chunk = vec![0; CHUNK];
        loop {
            let count = file.read(&mut chunk)?;
            if count == 0 {
                return Ok(());
            }
            self.read += count as u64;
            for part in chunk[..count].split_inclusive(|b| *b == b'\n') {
                let ends = part.ends_with(b"\n");
                if !self.is_skipped {
                    self.rest.extend_from_slice(part);
                }
                self.is_skipped |= self.rest.len() > MAX_LINE;
                if ends && !self.is_skipped {
                    line(Some(&self.rest));
                }
                if ends || self.is_skipped {
                    self.rest.clear();
                }
                self.is_skipped &= !ends;
            }
        }
    }
}

/// All curves of a run by name.
#[derive(Default)]
pub(super) struct Curves {
    file: Growing,
    curves: BTreeMap<String, Vec<Point>>,
    /// The last time, for the speed.
    time: Option<Point>,
}

impl Curves {
    /// Reads what is new in the folder of a run. What cannot be read is not there.
    pub(super) fn update(&mut self, folder: &Path) {
        let path = folder.join(METRICS);
        // Links are not followed.
        if !std::fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_file()) {
            *self = Curves::default();
            return;
        }
        let Curves { file, curves, time } = self;
        // What cannot be read now may be later.
        let _ = file.read(&path, |line| {
            let Some(line) = line else {
                curves.clear();
                *time = None;
                return;
            };
            let Some((step, values)) = points(line) else { return };
            for (name, value) in values {
                if name == "seconds" {
                    let before = time.replace([step, value]);
                    if let Some([since, start]) = before.filter(|b| step > b[0] && value >= b[1]) {
                        add(curves, SPEED, [step, 1e3 * (value - start) / (step - since)]);
                    }
                }
                add(curves, &name, [step, value]);
            }
        });
    }

    /// Number of points.
    pub(super) fn points(&self) -> usize {
        self.curves.values().map(Vec::len).sum()
    }

    /// The curves between two steps, each thinned to some buckets: lists of steps and of values.
    pub(super) fn object(&self, range: [f64; 2], buckets: usize) -> Value {
        let lists = |points: &Vec<Point>| {
            let points = thinned(points, range, buckets);
            let list = |axis: usize| points.iter().map(|p| p[axis]).collect::<Vec<_>>();
            json!([list(0), list(1)])
        };
        self.curves.iter().map(|(name, points)| (name.clone(), lists(points))).collect()
    }
}

/// Adds a point to a curve, in the order of steps: a run that went on from an earlier step measures again.
fn add(curves: &mut BTreeMap<String, Vec<Point>>, name: &str, point: Point) {
    if !curves.contains_key(name) {
        if curves.len() == MAX_CURVES {
            return;
        }
        curves.insert(name.to_string(), Vec::new());
    }
    let Some(points) = curves.get_mut(name) else { return };
    if points.last().is_some_and(|last| last[0] >= point[0]) {
        points.truncate(points.partition_point(|p| p[0] < point[0]));
    }
    points.push(point);
    if points.len() > MAX_POINTS {
        *points = thinned(points, [f64::NEG_INFINITY, f64::INFINITY], MAX_POINTS / 8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const ALL: [f64; 2] = [f64::NEG_INFINITY, f64::INFINITY];

    #[test]
    fn extremes_are_kept() {
        let value = |i: usize| match i {
            123_456 => 50.0,
            765_432 => -50.0,
            i => (i as f64 / 1e4).sin(),
        };
        let points: Vec<Point> = (0..1_000_000).map(|i| [i as f64, value(i)]).collect();
        let few = thinned(&points, ALL, 1000);
        assert!(few.len() <= 2002, "{}", few.len());
        assert!(few.windows(2).all(|w| w[0][0] < w[1][0]));
        assert!(few.contains(&[123_456.0, 50.0]) && few.contains(&[765_432.0, -50.0]));
        assert_eq!((few[0], few[few.len() - 1]), (points[0], points[999_999]));
        // Each part keeps its own.
        for part in (0..999).step_by(100) {
            let of = |all: &[Point]| {
                let inside = |p: &Point| (p[0] / 999.999) as usize == part;
                all.iter().filter(|p| inside(p)).map(|p| p[1]).fold(f64::NEG_INFINITY, f64::max)
            };
            assert_eq!(of(&few), of(&points), "{part}");
        }
        // A part of it, with all of its points if they are few.
        assert_eq!(thinned(&points, [10.0, 19.0], 1000), points[10..20]);
        assert_eq!(thinned(&points, [3.0, 2.0], 1000), Vec::<Point>::new());
        assert_eq!(thinned(&[], ALL, 10), Vec::<Point>::new());
        assert_eq!(thinned(&[[1.0, 2.0]; 50], ALL, 2), [[1.0, 2.0]]);
    }

    #[test]
    fn a_growing_file_is_read_once() {
        let here = tempfile::tempdir().unwrap();
        let path = here.path().join(METRICS);
        let mut file = File::create(&path).unwrap();
        let mut curves = Curves::default();
        let loss = |c: &Curves| c.curves.get("loss").cloned().unwrap_or_default();
        file.write_all(b"{\"step\":1,\"loss\":2.0,\"seconds\":1.0}\n{\"step\":2,\"lo").unwrap();
        curves.update(here.path());
        assert_eq!(loss(&curves), [[1.0, 2.0]]);
        file.write_all(b"ss\":1.0,\"seconds\":1.5}\n\xff\xfe\nnot JSON\n[1]\n{\"step\":\"3\",\"loss\":9}\n")
            .unwrap();
        curves.update(here.path());
        assert_eq!(loss(&curves), [[1.0, 2.0], [2.0, 1.0]]);
        assert_eq!(curves.curves[SPEED], [[2.0, 500.0]]);
        // A line of any length, in pieces.
        file.write_all(b"{\"step\":3,\"x\":\"").unwrap();
        for _ in 0..40 {
            file.write_all(&vec![b'x'; 100_000]).unwrap();
            curves.update(here.path());
            assert!(curves.file.rest.capacity() < 4 * MAX_LINE);
        }
        file.write_all(b"\"}\n{\"step\":4,\"loss\":null}\n{\"step\":5,\"loss\":0.5}\n").unwrap();
        curves.update(here.path());
        assert_eq!(loss(&curves), [[1.0, 2.0], [2.0, 1.0], [5.0, 0.5]]);
        let at = curves.file.read;
        curves.update(here.path());
        assert_eq!((at, curves.points()), (std::fs::metadata(&path).unwrap().len(), 6));
        // A run that goes on from an earlier step has a new file.
        let other = here.path().join("other");
        std::fs::write(&other, b"{\"step\":1,\"loss\":3.0}\n").unwrap();
        std::fs::rename(&other, &path).unwrap();
        curves.update(here.path());
        assert_eq!(loss(&curves), [[1.0, 3.0]]);
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(b"{\"step\":9,\"loss\":1}\n{\"step\":5,\"loss\":2}\n").unwrap();
        curves.update(here.path());
        assert_eq!(loss(&curves), [[1.0, 3.0], [5.0, 2.0]]);
        std::fs::remove_file(&path).unwrap();
        curves.update(here.path());
        assert_eq!(curves.points(), 0);
    }

    #[test]
    fn names_without_end_are_not_kept() {
        let here = tempfile::tempdir().unwrap();
        let text: String = (0..2000).map(|i| format!("{{\"step\":{i},\"a{i}\":1}}\n")).collect();
        std::fs::write(here.path().join(METRICS), text).unwrap();
        let mut curves = Curves::default();
        curves.update(here.path());
        assert_eq!(curves.curves.len(), MAX_CURVES);
    }
}
