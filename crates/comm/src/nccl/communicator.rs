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

    /// Moves memory from GPU to GPU after a mark, and waits until it is over. After an error the communicator is aborted, and
    /// nothing of it uses the memory any more.
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
        let submitted = self.cuda.transfer(after, &ranges, |stream| {
            self.submit(sends, receives, stream, timeout).map_err(Trouble::Nccl)
        });
        let late = || Trouble::Nccl(format!("it was not over within {timeout:.0?}"));
        let outcome = submitted.and_then(|done| {
            poll(timeout.saturating_sub(begun.elapsed()), late, || {
                self.state().map_err(Trouble::Nccl)?;
                Ok(done.is_reached()?)
            })
        });
        if outcome.is_err() {
            self.abort();
            // What was submitted ends soon after an abort; a GPU where it does not is lost anyway.
            if let Ok(end) = self.cuda.transfer(after, &[], |_| Ok::<(), Error>(())) {
                let _ = poll(FAREWELL, || (), || end.is_reached().map_err(drop));
            }
        }
        outcome
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nccl::entry;
    use dittograd_device::{Buffer, Device};
    use dittograd_numerics::Numerics;

    /// A rank by itself, on a machine with a GPU and NCCL: it sends to itself.
    #[test]
    fn one_rank_on_a_real_device() {
        let opened = Cuda::open(0, Numerics::Strict).and_then(|cuda| Ok((cuda, entry::system()?)));
        let (cuda, library) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                eprintln!("skipped: {error}");
                return;
            }
        };
        let device = Device::from_cuda(cuda.clone());
        eprintln!("NCCL {:?} on {cuda:?}", library.version());
        let timeout = Duration::from_secs(60);
        let join = || {
            let id = library.unique_id().expect("a number");
            Communicator::join(library.clone(), cuda.clone(), id, 0, 1, timeout).expect("joins")
        };
        let mut comm = join();
        for round in 0..20 {
            // Messages of several lengths, with words of this round, and an empty one.
            let counts = [1, 1000, 0, 77, 5_000_003];
            let words = |k: usize, count: usize| -> Vec<f32> {
                (0..count).map(|i| (i % 4096 * 8 + k + round) as f32).collect()
            };
            let upload = |k: usize, count: usize, zero: bool| {
                let words = if zero { vec![0.0; count] } else { words(k, count) };
                Buffer::upload(&device, &words).expect("room")
            };
            let out: Vec<Buffer> = counts.iter().enumerate().map(|(k, n)| upload(k, *n, false)).collect();
            let into: Vec<Buffer> = counts.iter().enumerate().map(|(k, n)| upload(k, *n, true)).collect();
            let messages = |buffers: &[Buffer]| -> Vec<OnDevice> {
                let one = |b: &Buffer| OnDevice {
                    rank: 0,
                    address: b.address("test").expect("there"),
                    bytes: b.len() * 4,
                };
                buffers.iter().map(one).collect()
            };
            // The uploads are still under way.
            let after = cuda.mark().expect("a mark");
            let moved = comm.exchange(&after, &messages(&out), &messages(&into), timeout);
            match moved {
                Ok(()) => {}
                Err(Trouble::Device(error)) => panic!("{error}"),
                Err(Trouble::Nccl(why)) => panic!("{why}"),
            }
            for (k, buffer) in into.iter().enumerate() {
                assert!(
                    buffer.download().expect("downloads") == words(k, counts[k]),
                    "message {k}, round {round}"
                );
            }
        }
        // A receive that nobody sends for: it ends with the timeout, and the device goes on.
        let into = Buffer::upload(&device, &[1.0; 1000]).expect("room");
        let message = OnDevice { rank: 0, address: into.address("test").expect("there"), bytes: 4000 };
        let after = cuda.mark().expect("a mark");
        let begun = Instant::now();
        let lonely = comm.exchange(&after, &[], &[message], Duration::from_millis(500));
        match lonely {
            Err(Trouble::Nccl(why)) => eprintln!("{why}, after {:?}", begun.elapsed()),
            Err(Trouble::Device(error)) => panic!("{error}"),
            Ok(()) => panic!("nobody has sent anything"),
        }
        assert!(begun.elapsed() < Duration::from_secs(30));
        assert!(comm.exchange(&after, &[], &[message], timeout).is_err(), "it was aborted");
        cuda.synchronize().expect("the device goes on");
        drop(comm);
        // Another one, which ends as it should.
        drop(join());
        cuda.synchronize().expect("the device goes on");
    }
}
