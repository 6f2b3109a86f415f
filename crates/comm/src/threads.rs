//! A group of threads in one process: for tests, and for several GPUs of one machine.

use crate::transport::{
    Incoming, Outgoing, Transport, check_ranks, gave_up, has_ended, was_silent, wrong_length,
};
use dittograd_numerics::error::Result;
use dittograd_numerics::reserve::copied;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The transports of `size` ranks, each for a thread of its own.
pub fn threads(size: usize) -> Vec<Box<dyn Transport>> {
    let state = State {
        waiting: (0..size * size).map(|_| VecDeque::new()).collect(),
        aborted: None,
        ended: vec![false; size],
        waits: vec![false; size],
    };
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
    /// Something was sent, or a rank takes no further part.
    moved: Condvar,
}

struct State {
    /// Messages that were sent and not yet received, by `from * size + to`.
    waiting: Vec<VecDeque<Vec<u8>>>,
    /// The first rank that aborted, and why.
    aborted: Option<(usize, String)>,
    /// Whether a rank is gone. Others that do not wait for it may go on.
    ended: Vec<bool>,
    /// Whether a rank waits for another, which is the one to blame.
    waits: Vec<bool>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
        check_ranks(self.rank, self.size, sends.iter().map(|s| s.to))?;
        check_ranks(self.rank, self.size, receives.iter().map(|r| r.from))?;
        for send in sends {
            // Copied outside the lock.
            let bytes = copied("exchange", send.bytes)?;
            self.shared.lock().waiting[self.rank * self.size + send.to].push_back(bytes);
            self.shared.moved.notify_all();
        }
        // When something last came from a rank.
        let mut moved = vec![Instant::now(); self.size];
        for receive in receives {
            let from = receive.from;
            let mut state = self.shared.lock();
            let bytes = loop {
                if let Some(bytes) = state.waiting[from * self.size + self.rank].pop_front() {
                    break bytes;
                }
                if let Some((rank, why)) = &state.aborted {
                    return Err(gave_up(*rank, why));
                }
                if state.ended[from] {
                    return Err(has_ended(from));
                }
                // One that waits itself gets more time, so that whom it waits for is found first.
                let waited = moved[from].elapsed();
                let late = waited >= timeout;
                if late && (!state.waits[from] || waited >= timeout.saturating_mul(2)) {
                    return Err(was_silent(from, timeout));
                }
                let left = timeout.saturating_mul(if late { 2 } else { 1 }).saturating_sub(waited);
                state.waits[self.rank] = true;
                state = self.shared.moved.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
                state.waits[self.rank] = false;
            };
            drop(state);
            moved[from] = Instant::now();
            if bytes.len() != receive.bytes.len() {
                return Err(wrong_length(from, bytes.len() as u64, receive.bytes.len()));
            }
            receive.bytes.copy_from_slice(&bytes);
        }
        Ok(())
    }

    fn abort(&mut self, why: &str) {
        self.shared.lock().aborted.get_or_insert_with(|| (self.rank, why.to_string()));
        self.shared.moved.notify_all();
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.lock().ended[self.rank] = true;
        self.shared.moved.notify_all();
    }
}
