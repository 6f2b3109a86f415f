//! What moves bytes between the processes of a world.

use dittograd_device::cuda::{Cuda, Mark};
use dittograd_numerics::error::{Error, ErrorKind, Result, shown};
use std::sync::Arc;
use std::thread::{sleep, yield_now};
use std::time::Duration;

/// A message to another rank.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// The rank it goes to.
    pub to: usize,
    /// What it holds.
    pub bytes: &'a [u8],
}

/// A message from another rank.
#[derive(Debug)]
pub struct Incoming<'a> {
    /// The rank it comes from.
    pub from: usize,
    /// Where it goes. It must be as long as the message.
    pub bytes: &'a mut [u8],
}

/// Memory of a GPU that goes to another rank or comes from there.
#[derive(Clone, Copy, Debug)]
pub struct OnDevice {
    /// The other rank.
    pub rank: usize,
    /// Where it begins.
    pub address: u64,
    /// Its length.
    pub bytes: usize,
}

/// Moves bytes between the processes of a world. One thread at a time calls it.
///
/// Messages from one rank to another arrive in the order they were sent. All ranks make the same exchanges in the same order; a
/// rank that has nothing to send or receive in one does not take part. Nobody sends to itself.
pub trait Transport: Send {
    /// What it is, for people: `threads`, `tcp`, `mpi (Open MPI 4.1.4)`.
    fn name(&self) -> String;

    /// The number of this process, from 0.
    fn rank(&self) -> usize;

    /// The number of processes.
    fn size(&self) -> usize;

    /// The number of this process among those of its machine, from 0.
    fn local_rank(&self) -> usize {
        self.rank()
    }

    /// Sends and receives all of these messages at once. Returns when every message has been received, and when those sent need
    /// their memory no more.
    ///
    /// Errors are of kind [`Peer`](dittograd_numerics::error::ErrorKind::Peer), which names a rank: one that ended though
    /// messages from or to it are left, any that [aborted](Transport::abort), or one from or to which nothing moved for `timeout`. A rank
    /// that is known to wait itself may have twice that time, so that whom it waits for is named first. A message of
    /// another length than expected is such an error too. After an error the transport is of no more use, except to abort.
    fn exchange(
        &mut self,
        sends: &[Outgoing<'_>],
        receives: &mut [Incoming<'_>],
        timeout: Duration,
    ) -> Result<()>;

    /// The GPU of this rank whose memory it moves by itself, by [`Transport::exchange_on_device`]. If one rank has such a GPU, all
    /// have.
    fn device(&self) -> Option<&Arc<Cuda>> {
        None
    }

    /// Why memory of GPUs goes through host memory, if somebody asked for more.
    fn note(&self) -> Option<String> {
        None
    }

    /// Like [`Transport::exchange`], for memory of the GPU that [`Transport::device`] names. What is sent is read, and what is
    /// received is written, after the mark is reached. Returns when all of it is over.
    #[track_caller]
    fn exchange_on_device(
        &mut self,
        after: &Mark,
        sends: &[OnDevice],
        receives: &[OnDevice],
        timeout: Duration,
    ) -> Result<()> {
        let _ = (after, sends, receives, timeout);
        let what = "a transport of host memory was given memory of a GPU";
        Err(Error::new("exchange", ErrorKind::Internal { what }))
    }

    /// Tells all other ranks, as well as possible and without waiting long, that this one ends, and why. Their exchanges fail with
    /// that text.
    fn abort(&mut self, why: &str);
}

/// Waits a moment, the longer the longer nothing has moved: a short wait costs no time, a long one no processor.
#[doc(hidden)]
pub fn rest(idle: Duration) {
    if idle < Duration::from_micros(50) {
        yield_now();
    } else {
        // After a wait the answer is late by a 32nd of it at most.
        sleep((idle / 32).clamp(Duration::from_micros(20), Duration::from_millis(1)));
    }
}

/// What ends an exchange because of another rank.
#[doc(hidden)]
#[cold]
#[track_caller]
pub fn peer(rank: usize, why: impl Into<String>) -> Error {
    Error::new("exchange", ErrorKind::Peer { rank, why: why.into() })
}

/// The rank went away without a word.
#[cold]
#[track_caller]
pub(crate) fn has_ended(rank: usize) -> Error {
    peer(rank, "has ended")
}

/// Nothing moved from or to the rank.
#[doc(hidden)]
#[cold]
#[track_caller]
pub fn was_silent(rank: usize, timeout: Duration) -> Error {
    peer(rank, format!("did not answer within {timeout:.0?}"))
}

/// The rank and this one do not make the same exchanges.
#[doc(hidden)]
#[cold]
#[track_caller]
pub fn wrong_length(rank: usize, got: u64, want: usize) -> Error {
    peer(rank, format!("sent {got} bytes where {want} were expected"))
}

/// What is before the text of a rank that aborted.
const GAVE_UP: &str = "gave up: ";
/// Characters that are shown of the text of a rank that aborted.
const MOST: usize = 500;

/// The rank aborted, and said why.
#[doc(hidden)]
#[cold]
#[track_caller]
pub fn gave_up(rank: usize, why: &str) -> Error {
    peer(rank, format!("{GAVE_UP}{}", shown(why, MOST)))
}

/// What a rank that stops because of `error` says to the others. The rank that was the first to give up is named once, however
/// many pass it on.
pub(crate) fn farewell(error: &Error) -> String {
    match error.kind() {
        ErrorKind::Peer { why, .. } if why.strip_prefix(GAVE_UP).is_some_and(|w| w.starts_with("rank ")) => {
            why[GAVE_UP.len()..].to_string()
        }
        ErrorKind::Peer { rank, why } => format!("rank {rank} {why}"),
        _ => error.to_string(),
    }
}

/// Refuses messages to or from ranks that are not there, and to this one.
#[track_caller]
pub(crate) fn check_ranks(me: usize, size: usize, others: impl IntoIterator<Item = usize>) -> Result<()> {
    for rank in others {
        if rank >= size {
            let why = format!("there is no rank {rank} among {size} (they are counted from 0)");
            return Err(Error::argument("exchange", "rank", why));
        }
        if rank == me {
            let why = format!("rank {rank} sends to itself; leave such messages out");
            return Err(Error::argument("exchange", "rank", why));
        }
    }
    Ok(())
}
