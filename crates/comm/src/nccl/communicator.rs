//! A communicator of NCCL, and its exchanges.

use super::entry::{Entry, IN_PROGRESS, SUCCESS, UniqueId, checked};
use crate::transport::OnDevice;
use dittograd_device::cuda::driver::Handle;
use dittograd_device::cuda::{Cuda, Mark};
use dittograd_numerics::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How a rank begins that has waited for others in vain.
pub(super) const LATE: &str = "NCCL was not ready within";

/// How long the others have to end together with this rank.
const FAREWELL: Duration = Duration::from_secs(2);

/// Why an exchange failed.
pub(super) enum Trouble {
    /// The GPU of this rank.
    Device(Error),
    /// What NCCL says, or how long it took.
    Nccl(String),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Trouble {
        Trouble::Device(error)
    }
}

/// A place among the GPUs of a world.
pub(super) struct Communicator {
    library: Arc<dyn Entry>,
    cuda: Arc<Cuda>,
    /// Null once it is over.
    comm: Handle,
}

/// Asks again and again until `ask` says that it is over: often at first, then about a thousand times a second.
fn poll<E>(
    timeout: Duration,
    late: impl Fn() -> E,
    mut ask: impl FnMut() -> Result<bool, E>,
) -> Result<(), E> {
    let begun = Instant::now();
    while !ask()? {
        let passed = begun.elapsed();
        if passed > timeout {
            return Err(late());
        }
        match passed.as_micros() {
            0..100 => std::thread::yield_now(),
            100..2000 => std::thread::sleep(Duration::from_micros(50)),
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    Ok(())
}

impl Communicator {
    /// Meets the other ranks.
    pub(super) fn join(
        library: Arc<dyn Entry>,
        cuda: Arc<Cuda>,
        id: UniqueId,
        rank: usize,
        size: usize,
        timeout: Duration,
    ) -> Result<Communicator, String> {
        cuda.make_current().map_err(|error| error.to_string())?;
        let text =
            |code: i32| format!("ncclCommInitRankConfig failed with code {code} ({})", library.text(code));
        let comm = library.join(size, id, rank).map_err(text)?;
        // Aborted when it goes out of scope before it is ready.
        let mut made = Communicator { library, cuda, comm };
        match made.ready(timeout) {
            Ok(()) => Ok(made),
            Err(why) => {
                made.abort();
                Err(why)
            }
        }
    }

    pub(super) fn cuda(&self) -> &Arc<Cuda> {
        &self.cuda
    }

    /// Waits until the last call is over.
    fn ready(&self, timeout: Duration) -> Result<(), String> {
        let late = || format!("{LATE} {timeout:.0?}");
        poll(timeout, late, || match self.state()? {
            IN_PROGRESS => Ok(false),
            _ => Ok(true),
        })
    }

    /// Success or in progress.
    fn state(&self) -> Result<i32, String> {
        match self.library.state(self.comm) {
            Ok(state @ (SUCCESS | IN_PROGRESS)) => Ok(state),
            Ok(code) | Err(code) => Err(self.said("ncclCommGetAsyncError", code)),
        }
    }

    fn said(&self, call: &str, code: i32) -> String {
        format!("{call} gave code {code} ({})", self.library.text(code))
    }

    /// Moves memory from GPU to GPU after a mark, and waits until it is over.
    pub(super) fn exchange(
        &mut self,
        after: &Mark,
        sends: &[OnDevice],
        receives: &[OnDevice],
        timeout: Duration,
    ) -> Result<(), Trouble> {
        if self.comm.is_null() {
            return Err(Trouble::Nccl("the communicator was aborted before".into()));
        }
        let ranges: Vec<(u64, usize)> = sends.iter().chain(receives).map(|m| (m.address, m.bytes)).collect();
        if ranges.iter().all(|range| range.1 == 0) {
            return Ok(());
        }
        let begun = Instant::now();
        let done = self.cuda.transfer(after, &ranges, |stream| {
            self.submit(sends, receives, stream, timeout).map_err(Trouble::Nccl)
        })?;
        let late = || Trouble::Nccl(format!("it was not over within {timeout:.0?}"));
        poll(timeout.saturating_sub(begun.elapsed()), late, || {
            self.state().map_err(Trouble::Nccl)?;
            Ok(done.is_reached()?)
        })
    }

    /// Queues one group of sends and receives.
    fn submit(
        &self,
        sends: &[OnDevice],
        receives: &[OnDevice],
        stream: Handle,
        timeout: Duration,
    ) -> Result<(), String> {
        let library = &self.library;
        let check = |call: &str, code: i32| checked(code).map_err(|code| self.said(call, code));
        check("ncclGroupStart", library.group_start())?;
        let mut outcome = Ok(());
        for m in sends.iter().filter(|m| m.bytes > 0) {
            let code = library.send(m.address, m.bytes, m.rank, self.comm, stream);
            outcome = outcome.and_then(|()| check("ncclSend", code));
        }
        for m in receives.iter().filter(|m| m.bytes > 0) {
            let code = library.receive(m.address, m.bytes, m.rank, self.comm, stream);
            outcome = outcome.and_then(|()| check("ncclRecv", code));
        }
        // A group that was begun is ended, whatever happened in it.
        let ended = match library.group_end() {
            IN_PROGRESS => Ok(()),
            code => check("ncclGroupEnd", code),
        };
        outcome.and(ended)?;
        // Nothing may follow on the stream before the group is on it.
        self.ready(timeout)
    }

    /// Ends it at once, with whatever still runs. Then it is of no more use.
    pub(super) fn abort(&mut self) {
        if !self.comm.is_null() {
            // There is nothing else to try.
            let _ = self.cuda.make_current();
            self.library.abort(self.comm);
            self.comm = Handle::NULL;
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if self.comm.is_null() {
            return;
        }
        // The others may still read memory of this one: they end together, or not at all.
        let current = self.cuda.make_current().is_ok();
        let together = current
            && matches!(self.library.finalize(self.comm), SUCCESS | IN_PROGRESS)
            && self.ready(FAREWELL).is_ok();
        if together {
            self.library.destroy(self.comm);
            self.comm = Handle::NULL;
        }
        self.abort();
    }
}
