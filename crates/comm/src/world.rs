//! A process's place in a world, and the thread that exchanges messages while the process computes.

use crate::transport::{Incoming, Outgoing, Transport};
use dittograd_device::Buffer;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// How long a rank waits for another that does not move, unless said otherwise.
const TIMEOUT: Duration = Duration::from_secs(300);

/// A process's place among the processes of one run. Clones are the same place.
///
/// All ranks make the same calls in the same order. Messages are exchanged by a thread of the world, so that a process computes
/// meanwhile.
///
/// ```
/// use dittograd::parallel::World;
/// # fn main() -> dittograd::error::Result<()> {
/// let ranks: Vec<_> = World::threads(3)?
///     .into_iter()
///     .map(|world| std::thread::spawn(move || world.all_gather(&[world.rank() as u8])))
///     .collect();
/// for rank in ranks {
///     assert_eq!(rank.join().unwrap()?, [[0], [1], [2]]);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct World(Arc<Inner>);

struct Inner {
    name: String,
    rank: usize,
    size: usize,
    jobs: Mutex<Option<Sender<Job>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    shared: Arc<Shared>,
}

struct Shared {
    /// Milliseconds that a rank may make no progress.
    timeout: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
    exchanges: AtomicU64,
}

/// Bytes that this rank has sent and received so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes sent.
    pub sent: u64,
    /// Bytes received.
    pub received: u64,
    /// Exchanges made.
    pub exchanges: u64,
}

/// A message: the rank it goes to or comes from, and its words.
type Message = (usize, Buffer);

enum Job {
    Buffers { sends: Vec<Message>, receives: Vec<Message>, done: Sender<Result<()>> },
    Bytes { sends: Vec<(usize, Vec<u8>)>, receives: Vec<(usize, usize)>, done: Sender<Result<Vec<Vec<u8>>>> },
    Abort { why: String },
}

/// An exchange that is under way.
#[must_use]
pub struct Pending<T = ()>(Receiver<Result<T>>);

impl<T> Pending<T> {
    /// Waits until everything has arrived.
    #[track_caller]
    pub fn wait(self) -> Result<T> {
        self.0.recv().unwrap_or_else(|_| Err(over()))
    }
}

/// The error of a world whose thread has ended.
#[cold]
#[track_caller]
fn over() -> Error {
    Error::argument(
        "world",
        "order",
        "an exchange failed before, so that the world is over; start the processes again",
    )
}

impl World {
    /// The place of a process among others, by a transport of any kind.
    #[track_caller]
    pub fn new(transport: Box<dyn Transport>) -> Result<World> {
        let (name, rank, size) = (transport.name(), transport.rank(), transport.size());
        let shared = Arc::new(Shared {
            timeout: AtomicU64::new(TIMEOUT.as_millis() as u64),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            exchanges: AtomicU64::new(0),
        });
        let (jobs, queue) = channel();
        let worker = Worker { transport, shared: shared.clone(), failed: None };
        let thread = Builder::new().name("dittograd-comm".into()).spawn(move || worker.run(&queue));
        let thread =
            thread.map_err(|e| Error::argument("world", "thread", format!("could not start: {e}")))?;
        let (jobs, thread) = (Mutex::new(Some(jobs)), Mutex::new(Some(thread)));
        Ok(World(Arc::new(Inner { name, rank, size, jobs, thread, shared })))
    }

    /// Places for `size` threads of this process.
    #[track_caller]
    pub fn threads(size: usize) -> Result<Vec<World>> {
        crate::threads(size).into_iter().map(World::new).collect()
    }

    /// How messages travel, for people.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The number of this process, from 0.
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    /// The number of processes.
    pub fn size(&self) -> usize {
        self.0.size
    }

    /// Sets how long a rank may make no progress in an exchange before the others give up; 5 minutes unless set.
    pub fn set_timeout(&self, timeout: Duration) {
        self.0.shared.timeout.store(timeout.as_millis() as u64, Ordering::Relaxed);
    }

    /// What this rank has sent and received so far.
    pub fn traffic(&self) -> Traffic {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let s = &self.0.shared;
        Traffic { sent: get(&s.sent), received: get(&s.received), exchanges: get(&s.exchanges) }
    }

    #[track_caller]
    fn submit<T>(&self, job: Job, pending: Receiver<Result<T>>) -> Result<Pending<T>> {
        let jobs = self.0.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        match jobs.as_ref().map(|jobs| jobs.send(job)) {
            Some(Ok(())) => Ok(Pending(pending)),
            _ => Err(over()),
        }
    }

    /// Starts an exchange of the words of buffers with other ranks. Until it is over nobody may write what is sent or
    /// touch what is received.
    #[track_caller]
    pub fn start(&self, sends: Vec<(usize, Buffer)>, receives: Vec<(usize, Buffer)>) -> Result<Pending> {
        let (done, pending) = channel();
        self.submit(Job::Buffers { sends, receives, done }, pending)
    }

    /// Exchanges messages and waits for them.
    #[track_caller]
    pub(crate) fn bytes(
        &self,
        sends: Vec<(usize, Vec<u8>)>,
        receives: Vec<(usize, usize)>,
    ) -> Result<Vec<Vec<u8>>> {
        let (done, pending) = channel();
        self.submit(Job::Bytes { sends, receives, done }, pending)?.wait()
    }

    fn others(&self) -> impl Iterator<Item = usize> + Clone + '_ {
        (0..self.size()).filter(|r| *r != self.rank())
    }

    /// What each rank gives, by rank. The lengths may differ.
    #[track_caller]
    pub fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let length = (mine.len() as u64).to_le_bytes().to_vec();
        let sends = self.others().map(|r| (r, length.clone())).collect();
        let lengths = self.bytes(sends, self.others().map(|r| (r, 8)).collect())?;
        let number = |b: &Vec<u8>| b.iter().rev().fold(0, |n, byte| n << 8 | *byte as usize);
        let sends = self.others().map(|r| (r, mine.to_vec())).collect();
        let receives = self.others().zip(lengths.iter().map(number)).collect();
        let mut all = self.bytes(sends, receives)?;
        all.insert(self.rank(), mine.to_vec());
        Ok(all)
    }

    /// What rank 0 gives, on all ranks.
    #[track_caller]
    pub fn broadcast(&self, mine: &[u8]) -> Result<Vec<u8>> {
        let mine = if self.rank() == 0 { mine } else { &[] };
        let mut all = self.all_gather(mine)?;
        Ok(all.swap_remove(0))
    }

    /// Tells the other ranks that this one ends with an error. Their exchanges fail with an error that names this rank and says
    /// why.
    pub fn abort(&self, why: &str) {
        let jobs = self.0.jobs.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(jobs) = jobs {
            // A thread that is gone has told them.
            let _ = jobs.send(Job::Abort { why: why.into() });
        }
        self.0.join();
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "World(rank {} of {}, {})", self.rank(), self.size(), self.name())
    }
}

impl Inner {
    fn join(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic there was told to whoever waited.
            let _ = thread.join();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        *self.jobs.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.join();
    }
}

/// What the thread of a world holds.
struct Worker {
    transport: Box<dyn Transport>,
    shared: Arc<Shared>,
    /// The error that ended the world.
    failed: Option<Error>,
}

impl Worker {
    fn run(mut self, queue: &Receiver<Job>) {
        // Whoever gave a job may have given up on it.
        for job in queue {
            match job {
                Job::Buffers { sends, receives, done } => {
                    let _ = done.send(self.buffers(&sends, &receives));
                }
                Job::Bytes { sends, receives, done } => {
                    let _ = done.send(self.bytes(&sends, &receives));
                }
                Job::Abort { why } => self.transport.abort(&why),
            }
        }
    }

    fn buffers(&mut self, sends: &[Message], receives: &[Message]) -> Result<()> {
        let out = sends.iter().map(|(to, b)| Ok((*to, b.download()?))).collect::<Result<Vec<_>>>()?;
        let mut words: Vec<Vec<f32>> = receives.iter().map(|(_, b)| vec![0.0; b.len()]).collect();
        let sends: Vec<Outgoing<'_>> =
            out.iter().map(|(to, w)| Outgoing { to: *to, bytes: bytemuck::cast_slice(w) }).collect();
        let mut into: Vec<Incoming<'_>> = Vec::with_capacity(receives.len());
        for ((from, _), words) in receives.iter().zip(&mut words) {
            into.push(Incoming { from: *from, bytes: bytemuck::cast_slice_mut(words) });
        }
        self.exchange(&sends, &mut into)?;
        receives.iter().zip(&words).try_for_each(|((_, b), w)| b.write_words("exchange", w))
    }

    fn bytes(&mut self, sends: &[(usize, Vec<u8>)], receives: &[(usize, usize)]) -> Result<Vec<Vec<u8>>> {
        let mut all: Vec<Vec<u8>> = receives.iter().map(|r| vec![0; r.1]).collect();
        let sends: Vec<Outgoing<'_>> = sends.iter().map(|(to, bytes)| Outgoing { to: *to, bytes }).collect();
        let mut into: Vec<Incoming<'_>> =
            receives.iter().zip(&mut all).map(|(r, bytes)| Incoming { from: r.0, bytes }).collect();
        self.exchange(&sends, &mut into)?;
        Ok(all)
    }

    fn exchange(&mut self, sends: &[Outgoing<'_>], receives: &mut [Incoming<'_>]) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let timeout = Duration::from_millis(self.shared.timeout.load(Ordering::Relaxed));
        let moved = self.transport.exchange(sends, receives, timeout);
        if let Err(error) = &moved {
            self.failed = Some(error.clone());
            if let ErrorKind::Peer { rank, why } = error.kind() {
                // The others may wait for this rank, which waits no more.
                self.transport.abort(&format!("rank {rank} {why}"));
            }
            return moved;
        }
        let add = |n: &AtomicU64, bytes: usize| n.fetch_add(bytes as u64, Ordering::Relaxed);
        add(&self.shared.sent, sends.iter().map(|s| s.bytes.len()).sum());
        add(&self.shared.received, receives.iter().map(|r| r.bytes.len()).sum());
        add(&self.shared.exchanges, 1);
        Ok(())
    }
}
