//! MPI as a transport.
//!
//! This is a module behind a feature and no crate of its own: a member of the workspace is built by every `cargo test`, and those
//! must not need MPI.
//!
//! The safe interface of `mpi` has no wait with a deadline and panics if a request is given up, so that exchanges use its
//! bindings. Only this file has unsafe code for them.
//!
//! Messages travel in pieces through memory of the transport, a few to each rank at a time. The copies cost little, since a piece
//! stays in the cache, and gain three things. What MPI may still write to after an exchange was given up is ours to leak, while the
//! caller's memory is free. Progress is seen by the piece, however long a message is and however slow the network. No count exceeds
//! an `int`.
//!
//! Words of a GPU pass through host memory. Some MPI libraries read GPU memory themselves; we do not ask for it.
#![allow(unsafe_code)]

use dittograd::error::{Error, Result};
use dittograd::parallel::{Incoming, Outgoing, Transport};
use dittograd::parallel::{gave_up, peer, rest, was_silent, wrong_length};
use dittograd::reserve::filled;
use mpi::Threading;
use mpi::environment::Universe;
use mpi::ffi::{self, MPI_Comm, MPI_Request, MPI_Status};
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Bytes of a piece.
const PIECE: usize = 256 << 10;
/// Pieces to a rank, and pieces from it, that are under way at once.
const WINDOW: usize = 8;
/// Tags: whether another piece of the message follows.
const LAST: c_int = 0;
const MORE: c_int = 1;
/// The longest text of an abort. MPI libraries send as much without waiting for the receiver.
const ABORT_BYTES: usize = 1000;
/// How long an abort may take.
const ABORT_TIME: Duration = Duration::from_millis(200);

/// MPI, from initialization to finalization, both by the thread that has this. It is not finalized if something failed, since that
/// would wait for ranks that do not come; nor while the transport is in use.
pub struct Runtime {
    universe: Option<Universe>,
    is_done: Arc<AtomicBool>,
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if !self.is_done.load(Ordering::SeqCst) {
            std::mem::forget(self.universe.take());
        }
    }
}

/// Initializes MPI and gives its transport.
pub fn start() -> Result<(Runtime, Box<dyn Transport>)> {
    let Some((universe, threading)) = mpi::initialize_with_threading(Threading::Serialized) else {
        return Err(Error::unsupported("mpi", "MPI can be started once in a process"));
    };
    if threading < Threading::Serialized {
        let why = "this MPI library was built without threads, and a thread of its own exchanges messages";
        return Err(Error::unsupported("mpi", why));
    }
    let failed = |why: String| Error::argument("mpi", "start", why);
    // Each on its own, so that an abort is never taken for a message.
    let (messages, aborts) = (duplicate().map_err(failed)?, duplicate().map_err(failed)?);
    let (mut rank, mut size): (c_int, c_int) = (0, 0);
    // SAFETY: the communicator is valid, and the numbers are written before the calls return.
    let codes = unsafe { [ffi::MPI_Comm_rank(messages, &mut rank), ffi::MPI_Comm_size(messages, &mut size)] };
    codes.into_iter().try_for_each(check).map_err(failed)?;
    let is_done = Arc::new(AtomicBool::new(false));
    let transport = Mpi {
        name: format!("mpi ({})", short(&library())),
        rank: rank as usize,
        size: size as usize,
        messages,
        aborts,
        pool: Vec::new(),
        has_failed: false,
        has_told: false,
        is_done: is_done.clone(),
    };
    Ok((Runtime { universe: Some(universe), is_done }, Box::new(transport)))
}

/// The name of the MPI library, as it says it.
pub fn library() -> String {
    mpi::environment::library_version().unwrap_or_default()
}

/// The name and version of an MPI library: `Open MPI 4.1.4`.
pub fn short(library: &str) -> String {
    let first = library.split(['\n', ',']).next().unwrap_or_default().replace("Version:", " ");
    let word = |w: &str| match w.strip_prefix('v') {
        Some(number) if number.starts_with(|c: char| c.is_ascii_digit()) => number.to_string(),
        _ => w.to_string(),
    };
    first.split_whitespace().map(word).collect::<Vec<_>>().join(" ")
}

/// A communicator of all ranks, whose errors are returned.
fn duplicate() -> Result<MPI_Comm, String> {
    let mut new = MaybeUninit::uninit();
    // SAFETY: MPI is initialized, and all ranks come here. The call returns 0 if it wrote the communicator.
    unsafe {
        check(ffi::MPI_Comm_dup(ffi::RSMPI_COMM_WORLD, new.as_mut_ptr()))?;
        let new = new.assume_init();
        check(ffi::MPI_Comm_set_errhandler(new, ffi::RSMPI_ERRORS_RETURN))?;
        Ok(new)
    }
}

/// What a code that a call returned means, if it is an error.
fn check(code: c_int) -> Result<(), String> {
    if code == ffi::MPI_SUCCESS as c_int {
        return Ok(());
    }
    let mut text = [0u8; ffi::MPI_MAX_ERROR_STRING as usize];
    let mut length: c_int = 0;
    // SAFETY: no text is longer than this array.
    unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast(), &mut length) };
    let text = text.get(..length as usize).unwrap_or_default();
    Err(String::from_utf8_lossy(text).into_owned())
}

/// The class of an error.
fn class(code: c_int) -> u32 {
    let mut class: c_int = 0;
    // SAFETY: it writes a number.
    unsafe { ffi::MPI_Error_class(code, &mut class) };
    class as u32
}

struct Mpi {
    name: String,
    rank: usize,
    size: usize,
    messages: MPI_Comm,
    aborts: MPI_Comm,
    /// Memory for pieces.
    pool: Vec<Vec<u8>>,
    /// Nothing more can be exchanged.
    has_failed: bool,
    /// The others know.
    has_told: bool,
    /// Set when the transport is gone and MPI can be finalized.
    is_done: Arc<AtomicBool>,
}

// SAFETY: the handles are of MPI, which was initialized such that any thread may use them, one at a time.
unsafe impl Send for Mpi {}

/// A message: to another rank or from it.
struct Stream<'a> {
    rank: usize,
    bytes: Bytes<'a>,
    /// The first message to or from that rank.
    first: usize,
    /// The message that goes before this one on the same way.
    before: Option<usize>,
    /// The next piece to start, and their number. An empty message is one piece.
    next: usize,
    pieces: usize,
    under_way: usize,
    /// When a piece was through, or the exchange began.
    moved: Instant,
}

enum Bytes<'a> {
    Out(&'a [u8]),
    In(&'a mut [u8]),
}

impl<'a> Stream<'a> {
    fn new(rank: usize, bytes: Bytes<'a>) -> Stream<'a> {
        let now = Instant::now();
        let mut stream =
            Stream { rank, bytes, first: 0, before: None, next: 0, pieces: 0, under_way: 0, moved: now };
        stream.pieces = stream.len().div_ceil(PIECE).max(1);
        stream
    }

    fn len(&self) -> usize {
        match &self.bytes {
            Bytes::Out(bytes) => bytes.len(),
            Bytes::In(bytes) => bytes.len(),
        }
    }

    fn range(&self, piece: usize) -> Range<usize> {
        piece * PIECE..((piece + 1) * PIECE).min(self.len())
    }

    fn tag(&self, piece: usize) -> c_int {
        if piece + 1 < self.pieces { MORE } else { LAST }
    }
}

/// A piece that is under way.
struct Piece {
    /// The place of its message among all.
    stream: usize,
    /// Its place in the message.
    number: usize,
    memory: Vec<u8>,
}

/// A piece that is through.
struct Done {
    piece: Piece,
    code: c_int,
    tag: c_int,
    count: usize,
}

/// Pieces under way. MPI may use their memory at any time, so that it is leaked if they are given up.
#[derive(Default)]
struct UnderWay {
    requests: Vec<MPI_Request>,
    /// At the same places.
    pieces: Vec<Piece>,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        std::mem::forget(std::mem::take(&mut self.pieces));
    }
}

impl UnderWay {
    /// Sends the first `length` bytes of the piece's memory to a rank.
    fn send(
        &mut self,
        comm: MPI_Comm,
        to: usize,
        tag: c_int,
        length: usize,
        piece: Piece,
    ) -> Result<(), String> {
        let memory: &[u8] = &piece.memory[..length];
        let (at, mut request) = (memory.as_ptr().cast::<c_void>(), MaybeUninit::uninit());
        // SAFETY: the memory is on the heap and stays in `pieces`, untouched, until the request is done.
        let code = unsafe {
            ffi::MPI_Isend(
                at,
                length as c_int,
                ffi::RSMPI_UINT8_T,
                to as c_int,
                tag,
                comm,
                request.as_mut_ptr(),
            )
        };
        self.add(code, request, piece)
    }

    /// Receives up to `length` bytes from a rank into the piece's memory.
    fn receive(
        &mut self,
        comm: MPI_Comm,
        from: usize,
        length: usize,
        mut piece: Piece,
    ) -> Result<(), String> {
        let memory: &mut [u8] = &mut piece.memory[..length];
        let (at, mut request) = (memory.as_mut_ptr().cast::<c_void>(), MaybeUninit::uninit());
        // SAFETY: as for sending.
        let code = unsafe {
            let (byte, any) = (ffi::RSMPI_UINT8_T, ffi::RSMPI_ANY_TAG);
            ffi::MPI_Irecv(at, length as c_int, byte, from as c_int, any, comm, request.as_mut_ptr())
        };
        self.add(code, request, piece)
    }

    fn add(&mut self, code: c_int, request: MaybeUninit<MPI_Request>, piece: Piece) -> Result<(), String> {
        check(code)?;
        // SAFETY: the call that started it went well.
        self.requests.push(unsafe { request.assume_init() });
        self.pieces.push(piece);
        Ok(())
    }

    /// Takes out what is through, without waiting.
    fn take_done(&mut self) -> Result<Vec<Done>, String> {
        let all = self.requests.len();
        let mut indices = vec![0 as c_int; all];
        let mut statuses = vec![MaybeUninit::<MPI_Status>::zeroed(); all];
        let mut count: c_int = 0;
        // SAFETY: the three lists have as many places as the call is told.
        let code = unsafe {
            let (requests, statuses) = (self.requests.as_mut_ptr(), statuses.as_mut_ptr().cast());
            ffi::MPI_Testsome(all as c_int, requests, &mut count, indices.as_mut_ptr(), statuses)
        };
        let has_errors = code != ffi::MPI_SUCCESS as c_int;
        if has_errors && class(code) != ffi::MPI_ERR_IN_STATUS {
            check(code)?;
        }
        let mut through: Vec<(usize, MPI_Status)> = Vec::new();
        for (index, status) in indices.into_iter().zip(statuses).take(count.max(0) as usize) {
            // SAFETY: a status is numbers, and was zero before it was written.
            through.push((index as usize, unsafe { status.assume_init() }));
        }
        // From the last, so that taking one out does not move those to come.
        through.sort_by_key(|(index, _)| std::cmp::Reverse(*index));
        let take = |(index, status): (usize, MPI_Status)| {
            self.requests.swap_remove(index);
            let piece = self.pieces.swap_remove(index);
            // Only if there are errors is this field written.
            let code = if has_errors { status.MPI_ERROR } else { ffi::MPI_SUCCESS as c_int };
            Done { piece, code, tag: status.MPI_TAG, count: bytes_of(&status) }
        };
        Ok(through.into_iter().map(take).collect())
    }
}

/// The bytes that were received.
fn bytes_of(status: &MPI_Status) -> usize {
    let mut count: c_int = 0;
    // SAFETY: the status is one that MPI wrote, or of a message that was sent, whose count nobody reads.
    unsafe { ffi::MPI_Get_count(status, ffi::RSMPI_UINT8_T, &mut count) };
    count.max(0) as usize
}

impl Mpi {
    /// Memory for a piece.
    fn memory(&mut self) -> Result<Vec<u8>> {
        self.pool.pop().map_or_else(|| filled("exchange", PIECE, 0), Ok)
    }

    fn move_all(&mut self, mut streams: Vec<Stream<'_>>, timeout: Duration) -> Result<()> {
        let mut under_way = UnderWay::default();
        // Pieces under way to or from a rank, at the place of its first message.
        let mut window = vec![0usize; streams.len()];
        let (mut moved, mut aborted) = (Instant::now(), None);
        loop {
            for i in 0..streams.len() {
                // Pieces arrive in the order in which they were started, on both sides.
                if streams[i].before.is_some_and(|b| streams[b].next < streams[b].pieces) {
                    continue;
                }
                let stream = &mut streams[i];
                while stream.next < stream.pieces && window[stream.first] < WINDOW {
                    self.begin(i, stream, &mut under_way)?;
                    window[stream.first] += 1;
                }
            }
            let Some(first) = under_way.pieces.first() else { return Ok(()) };
            let suspect = streams[first.stream].rank;
            let done = under_way.take_done().map_err(|why| peer(suspect, why))?;
            let now = Instant::now();
            if !done.is_empty() {
                moved = now;
                for one in done {
                    let stream = &mut streams[one.piece.stream];
                    window[stream.first] -= 1;
                    self.end(stream, one)?;
                    stream.moved = now;
                }
                continue;
            }
            // What a rank sent before it aborted is there by now, so that it is taken first.
            if let Some(why) = aborted {
                return Err(why);
            }
            aborted = self.abort_of_another();
            if aborted.is_some() {
                continue;
            }
            let is_late = |s: &&Stream<'_>| s.under_way > 0 && now - s.moved >= timeout;
            if let Some(late) = streams.iter().find(is_late) {
                return Err(was_silent(late.rank, timeout));
            }
            rest(now - moved);
        }
    }

    /// Starts the next piece of a message.
    fn begin(&mut self, i: usize, stream: &mut Stream<'_>, under_way: &mut UnderWay) -> Result<()> {
        let (number, range) = (stream.next, stream.range(stream.next));
        let length = range.len();
        let mut piece = Piece { stream: i, number, memory: self.memory()? };
        let begun = match &stream.bytes {
            Bytes::Out(bytes) => {
                piece.memory[..length].copy_from_slice(&bytes[range]);
                under_way.send(self.messages, stream.rank, stream.tag(number), length, piece)
            }
            Bytes::In(_) => under_way.receive(self.messages, stream.rank, length, piece),
        };
        begun.map_err(|why| peer(stream.rank, why))?;
        if stream.under_way == 0 {
            stream.moved = Instant::now();
        }
        stream.next += 1;
        stream.under_way += 1;
        Ok(())
    }

    /// Takes what a piece has brought.
    fn end(&mut self, stream: &mut Stream<'_>, done: Done) -> Result<()> {
        let Done { piece: Piece { number, memory, .. }, code, tag, count } = done;
        let (range, last, rank, want) = (stream.range(number), stream.tag(number), stream.rank, stream.len());
        let is_longer = class(code) == ffi::MPI_ERR_TRUNCATE;
        if !is_longer {
            check(code).map_err(|why| peer(rank, why))?;
        }
        if let Bytes::In(bytes) = &mut stream.bytes {
            if is_longer || tag > last {
                return Err(peer(rank, format!("sent more than the {want} bytes that were expected")));
            }
            if count != range.len() || tag != last {
                let got = range.start + count;
                return Err(wrong_length(rank, got as u64, want));
            }
            bytes[range].copy_from_slice(&memory[..count]);
        }
        stream.under_way -= 1;
        self.pool.push(memory);
        Ok(())
    }

    /// The error of another rank that has aborted.
    fn abort_of_another(&self) -> Option<Error> {
        let (mut flag, mut status): (c_int, _) = (0, MaybeUninit::<MPI_Status>::zeroed());
        let mut text = [0u8; ABORT_BYTES];
        // SAFETY: numbers are written. The message that is received is there, and nobody sends a longer one.
        let (rank, length) = unsafe {
            let (any, tag) = (ffi::RSMPI_ANY_SOURCE, ffi::RSMPI_ANY_TAG);
            let code = ffi::MPI_Iprobe(any, tag, self.aborts, &mut flag, status.as_mut_ptr());
            if check(code).is_err() || flag == 0 {
                return None;
            }
            let status = status.assume_init();
            let (from, at, byte) = (status.MPI_SOURCE, text.as_mut_ptr().cast(), ffi::RSMPI_UINT8_T);
            let ignore = ffi::RSMPI_STATUS_IGNORE;
            ffi::MPI_Recv(at, ABORT_BYTES as c_int, byte, from, status.MPI_TAG, self.aborts, ignore);
            (from as usize, bytes_of(&status).min(ABORT_BYTES))
        };
        Some(gave_up(rank, &String::from_utf8_lossy(&text[..length])))
    }
}

impl Transport for Mpi {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    #[track_caller]
    fn exchange(
        &mut self,
        sends: &[Outgoing<'_>],
        receives: &mut [Incoming<'_>],
        timeout: Duration,
    ) -> Result<()> {
        let sends = sends.iter().map(|s| Stream::new(s.to, Bytes::Out(s.bytes)));
        let receives = receives.iter_mut().map(|r| Stream::new(r.from, Bytes::In(r.bytes)));
        let mut streams: Vec<_> = receives.chain(sends).collect();
        let mut ways: HashMap<(usize, bool), (usize, usize)> = HashMap::new();
        for (i, stream) in streams.iter_mut().enumerate() {
            let way = (stream.rank, matches!(stream.bytes, Bytes::Out(_)));
            let (first, last) = ways.get(&way).map_or((i, None), |(first, last)| (*first, Some(*last)));
            (stream.first, stream.before) = (first, last);
            ways.insert(way, (first, i));
        }
        let moved = self.move_all(streams, timeout);
        self.has_failed |= moved.is_err();
        moved
    }

    fn abort(&mut self, why: &str) {
        self.has_failed = true;
        if std::mem::replace(&mut self.has_told, true) {
            return;
        }
        let text = &why.as_bytes()[..why.len().min(ABORT_BYTES)];
        let (mut under_way, start) = (UnderWay::default(), Instant::now());
        for to in (0..self.size).filter(|to| *to != self.rank) {
            let piece = Piece { stream: 0, number: 0, memory: text.to_vec() };
            // A rank that cannot be told finds out by its timeout.
            let _ = under_way.send(self.aborts, to, LAST, text.len(), piece);
        }
        while !under_way.pieces.is_empty() && start.elapsed() < ABORT_TIME {
            if under_way.take_done().is_err() {
                return;
            }
            rest(start.elapsed());
        }
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        self.is_done.store(!self.has_failed, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_by_name_and_version() {
        for (library, want) in [
            ("Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4\n", "Open MPI 4.1.4"),
            ("MPICH Version:\t4.0.2\nMPICH Release date:\tThu\n", "MPICH 4.0.2"),
            ("Intel(R) MPI Library 2021.5 for Linux* OS\n", "Intel(R) MPI Library 2021.5 for Linux* OS"),
            ("", ""),
        ] {
            assert_eq!(short(library), want);
        }
    }

    #[test]
    fn a_message_in_pieces() {
        for (length, want) in
            [(0, vec![0]), (1, vec![1]), (PIECE, vec![PIECE]), (2 * PIECE + 3, vec![PIECE, PIECE, 3])]
        {
            let bytes = vec![0; length];
            let stream = Stream::new(1, Bytes::Out(&bytes));
            let lengths: Vec<usize> = (0..stream.pieces).map(|p| stream.range(p).len()).collect();
            let tags: Vec<c_int> = (0..stream.pieces).map(|p| stream.tag(p)).collect();
            assert_eq!(lengths, want);
            assert_eq!((tags.iter().filter(|t| **t == LAST).count(), tags.last()), (1, Some(&LAST)));
        }
    }
}
