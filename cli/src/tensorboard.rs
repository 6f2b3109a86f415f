//! Scalars in TensorBoard's format: a file of records, each an `Event` message of protocol buffers.

use crate::{Answer, Fail};
use dittograd::io::protobuf::Message;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// A growing event file.
pub(crate) struct EventWriter {
    path: PathBuf,
    file: BufWriter<File>,
}

impl EventWriter {
    /// Starts a new event file in a folder, which is created if necessary. A resumed run gets another file beside the
    /// old ones; TensorBoard shows them as one.
    pub(crate) fn create(folder: &Path) -> Answer<EventWriter> {
        let failed =
            |path: &Path, e: std::io::Error| Fail::Message(format!("tensorboard: {}: {e}", path.display()));
        std::fs::create_dir_all(folder).map_err(|e| failed(folder, e))?;
        let now = wall_time();
        // TensorBoard reads the files of a folder in the order of their names.
        for number in 0u32.. {
            let name =
                format!("events.out.tfevents.{:010}.{}.{number}.dittograd", now as u64, std::process::id());
            let path = folder.join(name);
            let file = match OpenOptions::new().write(true).create_new(true).open(&path) {
                Err(e) if e.kind() == ErrorKind::AlreadyExists => continue,
                opened => opened.map_err(|e| failed(&path, e))?,
            };
            let mut writer = EventWriter { path, file: BufWriter::new(file) };
            writer.record(&Message::default().double(1, now).text(3, "brain.Event:2").into_bytes())?;
            writer.flush()?;
            return Ok(writer);
        }
        crate::fail("tensorboard: no name left for an event file")
    }

    /// Adds the value of a quantity at a step, at a time in seconds since 1970 ([`wall_time`]).
    pub(crate) fn scalar(&mut self, tag: &str, step: u64, value: f32, wall_time: f64) -> Answer<()> {
        self.record(&event(tag, step, value, wall_time))
    }

    /// Flushes to the system, so that TensorBoard sees everything.
    pub(crate) fn flush(&mut self) -> Answer<()> {
        let done = self.file.flush();
        self.checked(done)
    }

    /// The file.
    #[cfg(test)]
    fn path(&self) -> &Path {
        &self.path
    }

    fn record(&mut self, data: &[u8]) -> Answer<()> {
        let done = self.file.write_all(&framed(data));
        self.checked(done)
    }

    fn checked(&self, done: std::io::Result<()>) -> Answer<()> {
        done.map_err(|e| Fail::Message(format!("tensorboard: {}: {e}", self.path.display())))
    }
}

/// Seconds since 1970.
pub(crate) fn wall_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

/// `Event { wall_time = 1, step = 2, summary = 5 { value = 1 { tag = 1, simple_value = 2 } } }`.
fn event(tag: &str, step: u64, value: f32, wall_time: f64) -> Vec<u8> {
    // Steps are int64.
    let step = step.min(i64::MAX as u64) as i64;
    let one = Message::default().text(1, tag).float(2, value);
    let summary = Message::default().message(1, one);
    Message::default().double(1, wall_time).int(2, step).message(5, summary).into_bytes()
}

/// A record of a TFRecord file: length, its checksum, the data, its checksum.
fn framed(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    [&length[..], &masked(&length).to_le_bytes(), data, &masked(data).to_le_bytes()].concat()
}

/// A masked checksum, as TFRecord requires: rotated, plus a constant.
fn masked(data: &[u8]) -> u32 {
    crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Castagnoli's checksum, bit by bit: records are short.
fn crc32c(bytes: &[u8]) -> u32 {
    let shifted = |c: u32| (c >> 1) ^ if c & 1 == 1 { 0x82f6_3b78 } else { 0 };
    !bytes.iter().fold(!0, |c, b| (0..8).fold(c ^ u32::from(*b), |c, _| shifted(c)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensorboard_checksums() {
        // RFC 3720, appendix B.4.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[255; 32]), 0x62a8_ab43);
        let up: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&up), 0x46dd_794e);
        assert_eq!(crc32c(b""), 0);
        assert_eq!(masked(b""), 0xa282_ead8);
    }

    #[test]
    fn tensorboard_bytes() {
        #[rustfmt::skip] // A field a line.
        let want = [
            9, 0, 0, 0, 0, 0, 0, 248, 63,
            16, 172, 2,
            42, 13,
                10, 11,
                    10, 4, b'l', b'o', b's', b's',
                    21, 0, 0, 0, 63,
        ];
        assert_eq!(event("loss", 300, 0.5, 1.5), want);
        let record = framed(&want);
        assert_eq!(record.len(), 8 + 4 + want.len() + 4);
        assert_eq!(
            (record[..8].to_vec(), &record[12..12 + want.len()]),
            (vec![want.len() as u8, 0, 0, 0, 0, 0, 0, 0], &want[..])
        );
    }

    /// Records of a file, with both checksums tested.
    fn records(mut file: &[u8]) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        while !file.is_empty() {
            let n = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
            assert_eq!(u32::from_le_bytes(file[8..12].try_into().unwrap()), masked(&file[..8]));
            let (data, rest) = file[12..].split_at(n);
            assert_eq!(u32::from_le_bytes(rest[..4].try_into().unwrap()), masked(data));
            all.push(data.to_vec());
            file = &rest[4..];
        }
        all
    }

    /// `DITTOGRAD_EVENTS=/tmp/events` keeps the files, for TensorBoard itself to read.
    #[test]
    fn tensorboard_files() {
        let here = tempfile::tempdir().unwrap();
        let folder = std::env::var_os("DITTOGRAD_EVENTS").map_or(here.path().join("a/b"), PathBuf::from);
        let Ok(mut one) = EventWriter::create(&folder) else { panic!("not made") };
        let Ok(other) = EventWriter::create(&folder) else { panic!("not made beside") };
        assert_ne!(one.path(), other.path());
        assert!(one.path().file_name().unwrap().to_str().unwrap().contains("tfevents"));
        for step in 0..100 {
            let value = if step == 50 { f32::NAN } else { 1.0 / (step + 1) as f32 };
            assert!(one.scalar("loss/train", step, value, 1e9 + step as f64).is_ok());
        }
        assert!(one.scalar("größe", 1 << 40, -0.0, wall_time()).is_ok() && one.flush().is_ok());
        let all = records(&std::fs::read(one.path()).unwrap());
        assert_eq!(all.len(), 102);
        assert!(all[0].ends_with(b"\x1a\x0dbrain.Event:2"));
        assert_eq!(all[2], event("loss/train", 1, 0.5, 1e9 + 1.0));
        assert!(wall_time() > 1.7e9);
        let blocked = here.path().join("file");
        std::fs::write(&blocked, b"").unwrap();
        assert!(
            matches!(EventWriter::create(&blocked), Err(Fail::Message(m)) if m.starts_with("tensorboard: "))
        );
    }
}
