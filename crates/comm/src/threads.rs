//! A group of threads in one process: for tests, and for several GPUs of one machine.

use crate::transport::{Incoming, Outgoing, Transport};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The transports of `size` ranks, each for a thread of its own.
pub fn threads(size: usize) -> Vec<Box<dyn Transport>> {
    let state =
        State { waiting: (0..size * size).map(|_| VecDeque::new()).collect(), ended: vec![None; size] };
    let shared = Arc::new(Shared { state: Mutex::new(state), moved: Condvar::new() });
    let one = |rank| Box::new(Threads { rank, size, shared: shared.clone() }) as Box<dyn Transport>;
    (0..size).map(one).collect()
}

struct Threads {
    rank: usize,
    size: usize,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// Something was sent, or a rank has ended.
    moved: Condvar,
}

struct State {
    /// Messages that were sent and not yet received, by `from * size + to`.
    waiting: Vec<VecDeque<Vec<u8>>>,
    /// Why a rank takes no further part.
    ended: Vec<Option<End>>,
}

#[derive(Clone)]
struct End {
    why: String,
    is_abort: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, rank: usize, why: &str, is_abort: bool) {
        self.lock().ended[rank].get_or_insert_with(|| End { why: why.to_string(), is_abort });
        self.moved.notify_all();
    }
}

#[track_caller]
fn peer(rank: usize, why: impl Into<String>) -> Error {
    Error::new("exchange", ErrorKind::Peer { rank, why: why.into() })
}

impl Transport for Threads {
    fn name(&self) -> String {
        "threads".into()
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
        for send in sends {
            // Copied outside the lock.
            let bytes = send.bytes.to_vec();
            self.shared.lock().waiting[self.rank * self.size + send.to].push_back(bytes);
        }
        if !sends.is_empty() {
            self.shared.moved.notify_all();
        }
        for receive in receives {
            let (from, deadline) = (receive.from, Instant::now() + timeout);
            let mut state = self.shared.lock();
            let bytes = loop {
                if let Some(bytes) = state.waiting[from * self.size + self.rank].pop_front() {
                    break bytes;
                }
                // One that ended well is missed only by who waits for it.
                let is_missed = |rank: usize, end: &End| end.is_abort || rank == from;
                let ended = |(rank, end): (usize, &Option<End>)| Some((rank, end.clone()?));
                let missed = state.ended.iter().enumerate().filter_map(ended).find(|(r, e)| is_missed(*r, e));
                if let Some((rank, end)) = missed {
                    return Err(peer(rank, end.why));
                }
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    let why = format!("did not answer within {:.0?}", timeout);
                    return Err(peer(from, why));
                }
                state = self.shared.moved.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            };
            drop(state);
            if bytes.len() != receive.bytes.len() {
                let (got, want) = (bytes.len(), receive.bytes.len());
                return Err(peer(from, format!("sent {got} bytes where {want} were expected")));
            }
            receive.bytes.copy_from_slice(&bytes);
        }
        Ok(())
    }

    fn abort(&mut self, why: &str) {
        self.shared.end(self.rank, why, true);
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.end(self.rank, "has ended", false);
    }
}
