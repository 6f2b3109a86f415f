//! NCCL in host memory, for tests where there are no GPUs.
//!
//! Ranks are threads, each with a GPU of a fake CUDA driver. A group of sends and receives is an operation on a stream of
//! that driver: when the stream reaches it, it offers what it sends, and it is over when everything sent was taken and everything
//! expected has come. Until then the stream stands still. As NCCL does for communicators that do not block, a group is put on the
//! stream only while its caller asks for the state, so an event recorded too early shows.
//!
//! The fake lists what NCCL would refuse, and what it would not notice: sends and receives outside a group or of different
//! lengths, memory or streams of another GPU, a GPU that two ranks have, use after an abort, messages that nobody takes.

use super::entry::{Entry, IN_PROGRESS, Outcome, SUCCESS, UniqueId};
use dittograd_device::cuda::driver::{Handle, HostMemory};
use dittograd_device::cuda::fake::{Fake as Driver, Foreign};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

/// A misuse.
const INVALID_USAGE: i32 = 5;

/// NCCL of all ranks of a test.
#[derive(Clone, Default)]
pub struct Fake(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// Communicators; the handle is the position and 1.
    comms: Vec<Comm>,
    ids: u8,
    /// Messages that were offered, by the number of the communicators, sender and receiver.
    offered: HashMap<(u8, usize, usize), VecDeque<Letter>>,
    /// The groups that threads have begun.
    groups: HashMap<ThreadId, Vec<Call>>,
    misuses: Vec<String>,
    /// A call that fails with a code, on one rank.
    failing: Option<(&'static str, usize, i32)>,
}

struct Comm {
    /// The number that its ranks have met by.
    id: u8,
    rank: usize,
    size: usize,
    /// Which GPU: a number of the driver, and of the device.
    device: i32,
    driver: Driver,
    status: Status,
    /// What the state answers instead.
    error: i32,
    /// Groups that were ended and are not yet on a stream.
    waiting: Vec<(Handle, Arc<Group>)>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Status {
    Alive,
    Finalized,
    Destroyed,
    Aborted,
}

/// What was sent, and whether it was taken.
struct Letter {
    words: Vec<f32>,
    taken: Arc<AtomicBool>,
}

/// A send or a receive.
#[derive(Clone, Copy)]
struct Call {
    is_send: bool,
    address: u64,
    bytes: usize,
    peer: usize,
    comm: Handle,
    stream: Handle,
}

/// A group on a stream.
struct Group {
    state: Arc<Mutex<State>>,
    comm: Handle,
    calls: Vec<Call>,
    /// Whether each send was taken, once it was offered; which receives are over.
    progress: Mutex<Option<Progress>>,
}

struct Progress {
    sent: Vec<Arc<AtomicBool>>,
    received: Vec<bool>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    fn misuse(&mut self, what: String) -> i32 {
        self.misuses.push(what);
        INVALID_USAGE
    }

    fn comm(&mut self, comm: Handle) -> Option<&mut Comm> {
        self.comms.get_mut(comm.0.addr().checked_sub(1)?)
    }

    /// A communicator that may be used, by a thread with the context of a device.
    fn usable(&mut self, call: &str, comm: Handle, here: Option<i32>) -> Outcome<usize> {
        let at = comm.0.addr().wrapping_sub(1);
        let Some(found) = self.comms.get(at) else {
            return Err(self.misuse(format!("{call} of no communicator")));
        };
        let (rank, status) = (found.rank, found.status);
        if matches!(status, Status::Destroyed | Status::Aborted) {
            return Err(self.misuse(format!("{call} of rank {rank}, {status:?}")));
        }
        if here != Some(found.device) {
            return Err(self.misuse(format!("{call} of rank {rank} with the context of another GPU")));
        }
        match self.failing {
            Some((failing, of, code)) if failing == call && of == rank => Err(code),
            _ => Ok(at),
        }
    }

    /// How many of the ranks that one meets are there, and how many have ended.
    fn peers(&self, id: u8) -> (usize, usize) {
        let of = |c: &&Comm| c.id == id;
        let ended = self.comms.iter().filter(of).filter(|c| c.status != Status::Alive).count();
        (self.comms.iter().filter(of).count(), ended)
    }
}

impl Fake {
    /// No communicators yet.
    pub fn new() -> Fake {
        Fake::default()
    }

    /// The library of a rank whose GPU is one of this driver.
    pub fn library(&self, driver: &Driver) -> Arc<dyn Entry> {
        Arc::new(Table { state: self.0.clone(), driver: driver.clone() })
    }

    /// Misuses so far, and messages that nobody has taken.
    pub fn misuses(&self) -> Vec<String> {
        let state = lock(&self.0);
        let left = state.offered.iter().filter(|(_, letters)| !letters.is_empty());
        let left =
            left.map(|((_, from, to), l)| format!("{} messages from {from} to {to} are left", l.len()));
        state.misuses.iter().cloned().chain(left).collect()
    }

    /// Communicators that were neither destroyed nor aborted.
    pub fn live(&self) -> usize {
        let live = |c: &&Comm| !matches!(c.status, Status::Destroyed | Status::Aborted);
        lock(&self.0).comms.iter().filter(live).count()
    }

    /// Communicators that were aborted.
    pub fn aborted(&self) -> usize {
        lock(&self.0).comms.iter().filter(|c| c.status == Status::Aborted).count()
    }

    /// Makes a call, like `ncclSend`, fail on one rank with a code from now on.
    pub fn fail(&self, call: &'static str, rank: usize, code: i32) {
        lock(&self.0).failing = Some((call, rank, code));
    }

    /// Makes the state of a rank's communicators an error.
    pub fn break_rank(&self, rank: usize, code: i32) {
        lock(&self.0).comms.iter_mut().filter(|c| c.rank == rank).for_each(|c| c.error = code);
    }
}

/// The entry points for one rank.
struct Table {
    state: Arc<Mutex<State>>,
    driver: Driver,
}

impl Table {
    fn call(&self, call: Call) -> i32 {
        let name = if call.is_send { "ncclSend" } else { "ncclRecv" };
        // The driver is asked first: its streams run groups, which take the lock below.
        let here = self.driver.current_device();
        let is_held = here.is_some_and(|device| self.driver.holds(device, call.address, call.bytes));
        let mut state = lock(&self.state);
        let at = match state.usable(name, call.comm, here) {
            Ok(at) => at,
            Err(code) => return code,
        };
        let Comm { rank, size, status, .. } = state.comms[at];
        let wrong = if !state.groups.contains_key(&std::thread::current().id()) {
            Some("outside a group")
        } else if call.peer >= size {
            Some("with a rank that is not there")
        } else if call.bytes == 0 {
            Some("of nothing")
        } else if status != Status::Alive || state.peers(state.comms[at].id).0 < size {
            Some("before the others have come, or after the end")
        } else if !is_held {
            Some("of memory that is not on its GPU")
        } else {
            None
        };
        if let Some(wrong) = wrong {
            return state.misuse(format!("{name} of rank {rank} {wrong}"));
        }
        state.groups.entry(std::thread::current().id()).or_default().push(call);
        SUCCESS
    }
}

impl Entry for Table {
    fn version(&self) -> Outcome<i32> {
        Ok(22105)
    }

    fn unique_id(&self) -> Outcome<UniqueId> {
        let mut state = lock(&self.state);
        state.ids += 1;
        match state.failing {
            Some(("ncclGetUniqueId", _, code)) => Err(code),
            _ => Ok(UniqueId([state.ids; 128])),
        }
    }

    fn join(&self, size: usize, id: UniqueId, rank: usize) -> Outcome<Handle> {
        let Some(device) = self.driver.current_device() else {
            return Err(lock(&self.state).misuse("ncclCommInitRankConfig without a context".into()));
        };
        let mut state = lock(&self.state);
        if let Some(("ncclCommInitRankConfig", of, code)) = state.failing
            && of == rank
        {
            return Err(code);
        }
        let id = id.0[0];
        if id == 0 || id > state.ids || rank >= size {
            return Err(state.misuse(format!("rank {rank} of {size} came with a number that nobody made")));
        }
        let here = |c: &Comm| c.device == device && c.driver.is_same(&self.driver);
        if state.comms.iter().any(|c| c.id == id && (c.rank == rank || here(c))) {
            return Err(state.misuse(format!("rank {rank}, or its GPU, came twice")));
        }
        let driver = self.driver.clone();
        let status = Status::Alive;
        state.comms.push(Comm { id, rank, size, device, driver, status, error: 0, waiting: Vec::new() });
        Ok(Handle(std::ptr::without_provenance_mut(state.comms.len())))
    }

    fn state(&self, comm: Handle) -> Outcome<i32> {
        let here = self.driver.current_device();
        let waiting = {
            let mut state = lock(&self.state);
            let at = state.usable("ncclCommGetAsyncError", comm, here)?;
            let (id, size) = (state.comms[at].id, state.comms[at].size);
            let (there, ended) = state.peers(id);
            match &state.comms[at] {
                c if c.error != 0 => return Ok(c.error),
                c if there < size || (c.status == Status::Finalized && ended < size) => {
                    return Ok(IN_PROGRESS);
                }
                _ => {}
            }
            std::mem::take(&mut state.comms[at].waiting)
        };
        // Without the lock: the stream may run what it is given, which takes it.
        let none = waiting.is_empty();
        for (stream, group) in waiting {
            if !self.driver.queue(stream, group) {
                lock(&self.state).misuse("a group on a stream of another GPU".into());
            }
        }
        Ok(if none { SUCCESS } else { IN_PROGRESS })
    }

    fn finalize(&self, comm: Handle) -> i32 {
        let here = self.driver.current_device();
        let mut state = lock(&self.state);
        match state.usable("ncclCommFinalize", comm, here) {
            Ok(at) => {
                state.comms[at].status = Status::Finalized;
                IN_PROGRESS
            }
            Err(code) => code,
        }
    }

    fn destroy(&self, comm: Handle) -> i32 {
        let here = self.driver.current_device();
        let mut state = lock(&self.state);
        match state.usable("ncclCommDestroy", comm, here) {
            Ok(at) if state.comms[at].status == Status::Finalized => {
                state.comms[at].status = Status::Destroyed;
                SUCCESS
            }
            Ok(_) => state.misuse("ncclCommDestroy before the end".into()),
            Err(code) => code,
        }
    }

    fn abort(&self, comm: Handle) -> i32 {
        let mut state = lock(&self.state);
        let Some(found) = state.comm(comm).filter(|c| c.status != Status::Destroyed) else {
            return state.misuse("ncclCommAbort of no communicator".into());
        };
        if found.status == Status::Aborted {
            return state.misuse("ncclCommAbort, twice".into());
        }
        found.status = Status::Aborted;
        found.waiting.clear();
        let (id, rank) = (found.id, found.rank);
        // What it has offered goes with it.
        state.offered.retain(|(of, from, to), _| *of != id || (*from != rank && *to != rank));
        SUCCESS
    }

    fn group_start(&self) -> i32 {
        let mut state = lock(&self.state);
        match state.groups.insert(std::thread::current().id(), Vec::new()) {
            None => SUCCESS,
            Some(_) => state.misuse("a group in a group".into()),
        }
    }

    fn group_end(&self) -> i32 {
        let here = self.driver.current_device();
        let mut state = lock(&self.state);
        let Some(calls) = state.groups.remove(&std::thread::current().id()) else {
            return state.misuse("the end of no group".into());
        };
        let Some(&Call { comm, stream, .. }) = calls.first() else { return SUCCESS };
        if calls.iter().any(|call| (call.comm, call.stream) != (comm, stream)) {
            return state.misuse("a group of several communicators or streams".into());
        }
        let group = Group { state: self.state.clone(), comm, calls, progress: Mutex::default() };
        match state.usable("ncclGroupEnd", comm, here) {
            Ok(at) => {
                state.comms[at].waiting.push((stream, Arc::new(group)));
                IN_PROGRESS
            }
            Err(code) => code,
        }
    }

    fn send(&self, address: u64, bytes: usize, to: usize, comm: Handle, stream: Handle) -> i32 {
        self.call(Call { is_send: true, address, bytes, peer: to, comm, stream })
    }

    fn receive(&self, address: u64, bytes: usize, from: usize, comm: Handle, stream: Handle) -> i32 {
        self.call(Call { is_send: false, address, bytes, peer: from, comm, stream })
    }

    fn text(&self, code: i32) -> String {
        format!("code {code} of the fake NCCL")
    }
}

impl Foreign for Group {
    fn advance(&self, memory: &mut dyn HostMemory) -> Option<bool> {
        let mut state = lock(&self.state);
        let Some(Comm { id, rank, status, .. }) = state.comm(self.comm).map(|c| &*c) else {
            return Some(true);
        };
        let (id, rank) = (*id, *rank);
        if *status == Status::Aborted {
            return Some(true);
        }
        let mut progress = lock(&self.progress);
        if progress.is_none() {
            let mut sent = Vec::new();
            for call in self.calls.iter().filter(|call| call.is_send) {
                let words = memory.words(call.address, call.bytes.div_ceil(4))?;
                let taken = Arc::new(AtomicBool::new(false));
                sent.push(taken.clone());
                state.offered.entry((id, rank, call.peer)).or_default().push_back(Letter { words, taken });
            }
            *progress = Some(Progress { sent, received: vec![false; self.calls.len()] });
        }
        let Some(progress) = &mut *progress else { return Some(false) };
        for (i, call) in self.calls.iter().enumerate().filter(|(_, call)| !call.is_send) {
            let earlier = &self.calls[..i];
            let is_behind =
                |(j, c): (usize, &Call)| !c.is_send && c.peer == call.peer && !progress.received[j];
            if progress.received[i] || earlier.iter().enumerate().any(is_behind) {
                continue;
            }
            let letter = state.offered.get_mut(&(id, call.peer, rank)).and_then(VecDeque::pop_front);
            let Some(letter) = letter else { continue };
            letter.taken.store(true, Ordering::Release);
            progress.received[i] = true;
            if letter.words.len() * 4 != call.bytes {
                let (got, want) = (letter.words.len() * 4, call.bytes);
                state.misuse(format!("rank {rank} gets {got} bytes from {} and wants {want}", call.peer));
                continue;
            }
            memory.set_words(call.address, &letter.words)?;
        }
        let all_received = self.calls.iter().zip(&progress.received).all(|(c, done)| c.is_send || *done);
        Some(all_received && progress.sent.iter().all(|taken| taken.load(Ordering::Acquire)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the fake must not let pass.
    #[test]
    fn the_fake_notices_misuse() {
        let driver = Driver::with(2, 16 << 20);
        let fake = Fake::new();
        let library = fake.library(&driver);
        let (first, second) = (driver.open_at(0).expect("opens"), driver.open_at(1).expect("opens"));
        let (a, b) = (first.alloc(64).expect("room"), second.alloc(64).expect("room"));
        let id = library.unique_id().expect("a number");
        first.make_current().expect("sets");
        let comm = library.join(2, id, 0).expect("joins");
        assert_eq!(library.state(comm), Ok(IN_PROGRESS), "the other has not come");
        let stream = Handle(std::ptr::without_provenance_mut(16));
        let mut noticed = 0;
        let mut misuse = |what: &str, code: i32| {
            let all = fake.misuses();
            noticed += 1;
            assert_eq!((code, all.len()), (INVALID_USAGE, noticed), "{what}: {all:?}");
            assert!(all[noticed - 1].contains(what), "{what}: {all:?}");
        };
        misuse("came twice", library.join(2, id, 1).expect_err("refused"));
        misuse("nobody made", library.join(2, UniqueId([9; 128]), 1).expect_err("refused"));
        second.make_current().expect("sets");
        let other = library.join(2, id, 1).expect("joins");
        misuse("another GPU", library.state(comm).expect_err("refused"));
        assert_eq!(library.state(other), Ok(SUCCESS));
        misuse("outside a group", library.send(b, 8, 0, other, stream));
        misuse("end of no group", library.group_end());
        assert_eq!(library.group_start(), SUCCESS);
        misuse("in a group", library.group_start());
        misuse("not on its GPU", library.send(a, 8, 0, other, stream));
        misuse("not on its GPU", library.receive(b + (2 << 20) - 4, 8, 0, other, stream));
        misuse("not there", library.send(b, 8, 2, other, stream));
        misuse("of nothing", library.send(b, 0, 0, other, stream));
        misuse("context of another GPU", library.send(b, 8, 0, comm, stream));
        assert_eq!(library.send(b, 8, 0, other, stream), SUCCESS);
        assert_eq!(library.group_end(), IN_PROGRESS);
        misuse("before the end", library.destroy(other));
        assert_eq!(library.abort(other), SUCCESS);
        misuse("Aborted", library.state(other).expect_err("refused"));
        misuse("twice", library.abort(other));
        assert_eq!(fake.live(), 1);
        first.make_current().expect("sets");
        assert_eq!(library.finalize(comm), IN_PROGRESS);
        assert_eq!((library.state(comm), library.destroy(comm)), (Ok(SUCCESS), SUCCESS));
        misuse("Destroyed", library.state(comm).expect_err("refused"));
        assert_eq!((fake.live(), fake.aborted()), (0, 1));
    }
}
