//! What moves bytes between the processes of a world.

use dittograd_numerics::error::{Error, ErrorKind, Result, shown};
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

    /// Tells all other ranks, as well as possible and without waiting long, that this one ends, and why. Their exchanges fail with
    /// that text.
    fn abort(&mut self, why: &str);
}

/// What ends an exchange because of another rank.
#[cold]
#[track_caller]
pub(crate) fn peer(rank: usize, why: impl Into<String>) -> Error {
    Error::new("exchange", ErrorKind::Peer { rank, why: why.into() })
}

/// The rank went away without a word.
#[cold]
#[track_caller]
pub(crate) fn has_ended(rank: usize) -> Error {
    peer(rank, "has ended")
}

/// Nothing moved from or to the rank.
#[cold]
#[track_caller]
pub(crate) fn was_silent(rank: usize, timeout: Duration) -> Error {
    peer(rank, format!("did not answer within {timeout:.0?}"))
}

/// The rank and this one do not make the same exchanges.
#[cold]
#[track_caller]
pub(crate) fn wrong_length(rank: usize, got: u64, want: usize) -> Error {
    peer(rank, format!("sent {got} bytes where {want} were expected"))
}

/// What is before the text of a rank that aborted.
const GAVE_UP: &str = "gave up: ";
/// Characters that are shown of the text of a rank that aborted.
const MOST: usize = 500;

/// The rank aborted, and said why.
#[cold]
#[track_caller]
pub(crate) fn gave_up(rank: usize, why: &str) -> Error {
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
