//! A process's place in a world, and the thread that exchanges messages while the process computes.

use crate::launch::Launch;
use crate::sockets::sockets;
use crate::transport::{Incoming, Outgoing, Transport, check_ranks, farewell};
use dittograd_device::Buffer;
use dittograd_numerics::error::{Error, Located, Result};
use dittograd_numerics::reserve::{filled, grow, room_for_a_thread};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// How long a rank waits for another that does not move, unless said otherwise.
const TIMEOUT: Duration = Duration::from_secs(300);

/// Bytes of a message of any length that are exchanged at once: memory is taken for what has come, not for what a rank says will come.
const PIECE: usize = 64 << 20;

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
    local_rank: usize,
    jobs: Mutex<Option<Sender<Job>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    shared: Arc<Shared>,
}

struct Shared {
    /// Milliseconds that a rank may make no progress.
    timeout: AtomicU64,
    /// This rank ends: what waits its turn is not exchanged any more.
    aborted: AtomicBool,
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
    Buffers {
        sends: Vec<Message>,
        receives: Vec<Message>,
        done: Sender<Result<()>>,
    },
    Bytes {
        sends: Vec<(usize, Arc<[u8]>)>,
        receives: Vec<(usize, usize)>,
        done: Sender<Result<Vec<Vec<u8>>>>,
    },
    Abort {
        why: String,
    },
}

/// An exchange that is under way.
#[must_use]
pub struct Pending<T = ()>(Receiver<Result<T>>);

impl<T> Pending<T> {
    /// Waits until everything has arrived.
    #[track_caller]
    pub fn wait(self) -> Result<T> {
        self.0.recv().unwrap_or_else(|_| Err(over())).located()
    }
}

fn millis(time: Duration) -> u64 {
    time.as_millis().try_into().unwrap_or(u64::MAX)
}

/// The error of a world whose thread has ended.
#[cold]
#[track_caller]
fn over() -> Error {
    Error::argument(
        "world",
        "order",
        "this rank was aborted before, or its thread has ended; start the processes again",
    )
}

impl World {
    /// The place of a process among others, by a transport of any kind.
    #[track_caller]
    pub fn new(transport: Box<dyn Transport>) -> Result<World> {
        let (name, rank, size) = (transport.name(), transport.rank(), transport.size());
        let local_rank = transport.local_rank();
        let shared = Arc::new(Shared {
            timeout: AtomicU64::new(millis(TIMEOUT)),
            aborted: AtomicBool::new(false),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            exchanges: AtomicU64::new(0),
        });
        let (jobs, queue) = channel();
        let worker = Worker { transport, shared: shared.clone(), failed: None };
        let no_thread = |why: &str| Error::argument("world", "thread", format!("could not start: {why}"));
        if !room_for_a_thread() {
            return Err(no_thread("the host has no memory for it"));
        }
        let thread = Builder::new().name("dittograd-comm".into()).spawn(move || worker.run(&queue));
        let thread = thread.map_err(|e| no_thread(&e.to_string()))?;
        let (jobs, thread) = (Mutex::new(Some(jobs)), Mutex::new(Some(thread)));
        Ok(World(Arc::new(Inner { name, rank, size, local_rank, jobs, thread, shared })))
    }

    /// Places for `size` threads of this process.
    #[track_caller]
    pub fn threads(size: usize) -> Result<Vec<World>> {
        if size == 0 {
            return Err(Error::argument("world", "size", "is 0; a world has at least one rank"));
        }
        crate::threads(size).into_iter().map(World::new).collect()
    }

    /// The place that a launcher gave to this process, with the others connected by TCP; `None` if no launcher started it. See
    /// [`Launch::from_env`] for those that are known.
    #[track_caller]
    pub fn from_env() -> Result<Option<World>> {
        match Launch::from_env()? {
            Some(launch) => World::connect(&launch, TIMEOUT).map(Some),
            None => Ok(None),
        }
    }

    /// The place of a process that was launched, with the others connected by TCP. `timeout` is how long it waits for them, now
    /// and in exchanges.
    #[track_caller]
    pub fn connect(launch: &Launch, timeout: Duration) -> Result<World> {
        let world = World::new(sockets(launch, timeout)?)?;
        world.set_timeout(timeout);
        Ok(world)
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

    /// The number of this process among those of its machine, from 0: for example to choose a GPU.
    pub fn local_rank(&self) -> usize {
        self.0.local_rank
    }

    /// Sets how long a rank may make no progress in an exchange before the others give up; 5 minutes unless set.
    pub fn set_timeout(&self, timeout: Duration) {
        self.0.shared.timeout.store(millis(timeout), Ordering::Relaxed);
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
        check_ranks(self.rank(), self.size(), sends.iter().chain(&receives).map(|(rank, _)| *rank))?;
        let (done, pending) = channel();
        self.submit(Job::Buffers { sends, receives, done }, pending)
    }

    /// Exchanges messages and waits for them.
    #[track_caller]
    pub(crate) fn bytes(
        &self,
        sends: Vec<(usize, Arc<[u8]>)>,
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
        let to_all = |bytes: &[u8]| {
            let bytes: Arc<[u8]> = bytes.into();
            self.others().map(|r| (r, bytes.clone())).collect::<Vec<_>>()
        };
        let lengths = self.bytes(
            to_all(&(mine.len() as u64).to_le_bytes()),
            self.others().map(|r| (r, size_of::<u64>())).collect(),
        )?;
        let number = |bytes: &Vec<u8>| bytes.iter().rev().fold(0, |n, b| n << 8 | *b as u64);
        let mut left: Vec<u64> = lengths.iter().map(number).collect();
        let mut all: Vec<Vec<u8>> = left.iter().map(|_| vec![]).collect();
        let mut pieces = mine.chunks(PIECE);
        loop {
            let sends = pieces.next().map_or(vec![], to_all);
            let next = |left: u64| left.min(PIECE as u64) as usize;
            let coming = self.others().zip(&left).filter(|(_, left)| **left > 0);
            let receives: Vec<(usize, usize)> = coming.map(|(r, left)| (r, next(*left))).collect();
            if sends.is_empty() && receives.is_empty() {
                break;
            }
            let came = self.bytes(sends, receives)?;
            let into = all.iter_mut().zip(&mut left).filter(|(_, left)| **left > 0);
            for ((whole, left), piece) in into.zip(came) {
                *left -= piece.len() as u64;
                if whole.is_empty() {
                    *whole = piece;
                } else {
                    // The others go on without knowing, so they are told.
                    grow("all_gather", whole, piece.len()).inspect_err(|e| self.abort(&farewell(e)))?;
                    whole.extend(piece);
                }
            }
        }
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
    /// why. An exchange that is under way goes on until it is over or fails, those after it do not begin.
    pub fn abort(&self, why: &str) {
        self.0.shared.aborted.store(true, Ordering::Relaxed);
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
                    let _ = done.send(self.unless_over(|w| w.buffers(&sends, &receives)));
                }
                Job::Bytes { sends, receives, done } => {
                    let _ = done.send(self.unless_over(|w| w.bytes(&sends, &receives)));
                }
                Job::Abort { why } if self.failed.is_none() => self.transport.abort(&why),
                // The others know.
                Job::Abort { .. } => {}
            }
        }
    }

    /// Runs an exchange. An error of any kind is the end of the world: the others may wait for this rank, which waits no more.
    fn unless_over<T>(&mut self, exchange: impl FnOnce(&mut Worker) -> Result<T>) -> Result<T> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if self.shared.aborted.load(Ordering::Relaxed) {
            return Err(over());
        }
        exchange(self).inspect_err(|error| {
            self.transport.abort(&farewell(error));
            self.failed = Some(error.clone());
        })
    }

    fn buffers(&mut self, sends: &[Message], receives: &[Message]) -> Result<()> {
        let out = sends.iter().map(|(to, b)| Ok((*to, b.download()?))).collect::<Result<Vec<_>>>()?;
        let mut words: Vec<Vec<f32>> =
            receives.iter().map(|(_, b)| filled("exchange", b.len(), 0.0)).collect::<Result<_>>()?;
        let sends: Vec<Outgoing<'_>> =
            out.iter().map(|(to, w)| Outgoing { to: *to, bytes: bytemuck::cast_slice(w) }).collect();
        let mut into: Vec<Incoming<'_>> = Vec::with_capacity(receives.len());
        for ((from, _), words) in receives.iter().zip(&mut words) {
            into.push(Incoming { from: *from, bytes: bytemuck::cast_slice_mut(words) });
        }
        self.exchange(&sends, &mut into)?;
        receives.iter().zip(&words).try_for_each(|((_, b), w)| b.write_words("exchange", w))
    }

    fn bytes(&mut self, sends: &[(usize, Arc<[u8]>)], receives: &[(usize, usize)]) -> Result<Vec<Vec<u8>>> {
        let mut all: Vec<Vec<u8>> =
            receives.iter().map(|r| filled("exchange", r.1, 0)).collect::<Result<_>>()?;
        let sends: Vec<Outgoing<'_>> = sends.iter().map(|(to, bytes)| Outgoing { to: *to, bytes }).collect();
        let mut into: Vec<Incoming<'_>> =
            receives.iter().zip(&mut all).map(|(r, bytes)| Incoming { from: r.0, bytes }).collect();
        self.exchange(&sends, &mut into)?;
        Ok(all)
    }

    fn exchange(&mut self, sends: &[Outgoing<'_>], receives: &mut [Incoming<'_>]) -> Result<()> {
        // A rank that is alone, or has no part in it.
        if sends.is_empty() && receives.is_empty() {
            return Ok(());
        }
        let timeout = Duration::from_millis(self.shared.timeout.load(Ordering::Relaxed));
        self.transport.exchange(sends, receives, timeout)?;
        let add = |n: &AtomicU64, bytes: usize| n.fetch_add(bytes as u64, Ordering::Relaxed);
        add(&self.shared.sent, sends.iter().map(|s| s.bytes.len()).sum());
        add(&self.shared.received, receives.iter().map(|r| r.bytes.len()).sum());
        add(&self.shared.exchanges, 1);
        Ok(())
    }
}
