//! Frames of bytes over sockets that do not block.

use crate::transport::{peer, rest};
use dittograd_numerics::error::Error;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// The longest text of a rank that aborts, in bytes.
const LONGEST_TEXT: usize = 4096;

/// Time for what should not take long: to say why this rank ends, to hear why another did.
pub(super) const FAREWELL: Duration = Duration::from_secs(1);

pub(super) const HEADER: usize = 9;

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Kind {
    Data = 1,
    Abort = 2,
    /// Rank 0 has taken note of a greeting.
    Welcome = 3,
    Table = 4,
    /// The rank itself waits for another, which is the one to blame.
    Waiting = 5,
}

pub(super) fn header(kind: Kind, length: usize) -> [u8; HEADER] {
    let mut bytes = [kind as u8; HEADER];
    bytes[1..].copy_from_slice(&(length as u64).to_le_bytes());
    bytes
}

pub(super) fn parsed(bytes: [u8; HEADER]) -> Option<(Kind, u64)> {
    let [kind, length @ ..] = bytes;
    let kinds = [Kind::Data, Kind::Abort, Kind::Welcome, Kind::Table, Kind::Waiting];
    let kind = kinds.into_iter().find(|k| *k as u8 == kind)?;
    Some((kind, u64::from_le_bytes(length)))
}

/// The header of a frame, as far as it has come.
#[derive(Default)]
pub(super) struct Header {
    pub(super) bytes: [u8; HEADER],
    pub(super) have: usize,
}

impl Header {
    /// Reads on; whether it is whole. Says if nothing more comes.
    pub(super) fn read(&mut self, mut stream: &TcpStream, ended: &mut bool) -> bool {
        while self.have < HEADER {
            match moved(stream.read(&mut self.bytes[self.have..])) {
                Moved::Bytes(n) => self.have += n,
                Moved::Nothing => return false,
                Moved::Ended => {
                    *ended = true;
                    return false;
                }
            }
        }
        true
    }
}

/// What a read or write that did not block came to.
pub(super) enum Moved {
    /// So many bytes, at least one.
    Bytes(usize),
    /// Nothing can move now.
    Nothing,
    /// The connection has ended, in order or not.
    Ended,
}

pub(super) fn moved(result: io::Result<usize>) -> Moved {
    match result {
        Ok(0) => Moved::Ended,
        Ok(n) => Moved::Bytes(n),
        Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            Moved::Nothing
        }
        Err(_) => Moved::Ended,
    }
}

pub(super) fn after(time: Duration) -> Instant {
    let now = Instant::now();
    // What does not fit the clock is as good as never.
    now.checked_add(time).unwrap_or_else(|| now + Duration::from_secs(1 << 30))
}

/// Calls `step` until it has something, or until `end`.
pub(super) fn poll<T>(end: Instant, mut step: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        if let Some(done) = step() {
            return Some(done);
        }
        if Instant::now() >= end {
            return None;
        }
        rest(start.elapsed());
    }
}

/// Writes all of this before `end`, if it can.
pub(super) fn write_all(mut stream: &TcpStream, mut bytes: &[u8], end: Instant) -> bool {
    let done = poll(end, || {
        while !bytes.is_empty() {
            match moved(stream.write(bytes)) {
                Moved::Bytes(n) => bytes = &bytes[n..],
                Moved::Nothing => return None,
                Moved::Ended => return Some(false),
            }
        }
        Some(true)
    });
    done == Some(true)
}

/// Fills `bytes` before `end`: whether they all came, or the connection ended; `None` if neither.
pub(super) fn read_all(mut stream: &TcpStream, bytes: &mut [u8], end: Instant) -> Option<bool> {
    let mut have = 0;
    poll(end, || {
        while have < bytes.len() {
            match moved(stream.read(&mut bytes[have..])) {
                Moved::Bytes(n) => have += n,
                Moved::Nothing => return None,
                Moved::Ended => return Some(false),
            }
        }
        Some(true)
    })
}

/// Tells a process why this one ends, or does not want it. What cannot be sent before `end` is not.
pub(super) fn tell(stream: &TcpStream, why: &str, end: Instant) {
    let text = &why.as_bytes()[..why.len().min(LONGEST_TEXT)];
    let frame = [&header(Kind::Abort, text.len()), text].concat();
    write_all(stream, &frame, end);
    // Both may be gone.
    let _ = stream.shutdown(Shutdown::Write);
}

/// The text of a frame of kind [`Kind::Abort`] after its header, as far as it comes.
pub(super) fn read_text(stream: &TcpStream, length: u64) -> String {
    let mut text = vec![0; (length as usize).min(LONGEST_TEXT)];
    read_all(stream, &mut text, after(FAREWELL));
    String::from_utf8_lossy(&text).trim_end_matches('\0').to_string()
}

#[cold]
pub(super) fn garbled(rank: usize) -> Error {
    peer(rank, "sent bytes that are no message; start one build everywhere")
}
