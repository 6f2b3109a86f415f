//! What moves bytes between the processes of a world.

use dittograd_device::cuda::{Cuda, Mark};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use std::sync::Arc;
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

    /// Sends and receives all of these messages at once. Returns when every message has been received, and when those sent need
    /// their memory no more. Errors are of kind [`Peer`](dittograd_numerics::error::ErrorKind::Peer), which names a rank: one that
    /// ended, one that [aborted](Transport::abort), or one from or to which nothing moved for `timeout`. A message of another length than expected
    /// is such an error too. After an error the transport is of no more use, except to abort.
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
