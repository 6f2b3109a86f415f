//! A process's place in a world, and the thread that exchanges messages while the process computes.

use crate::launch::Launch;
use crate::nccl::nccl;
use crate::sockets::sockets;
use crate::staging::{self, Arrived, Message, Staging};
use crate::transport::{Incoming, OnDevice, Outgoing, Transport, check_ranks, farewell};
use bytemuck::{cast_slice, cast_slice_mut};
use dittograd_device::cuda::Mark;
use dittograd_device::{Buffer, Device, with_host_words};
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
    /// The name of the transport, and what there is to say about it.
    about: Mutex<(String, Option<String>)>,
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

enum Job {
    Buffers {
        sends: Vec<Message>,
        receives: Vec<Message>,
        after: Vec<Mark>,
        done: Sender<Result<Arrived>>,
    },
    Bytes {
        sends: Vec<(usize, Arc<[u8]>)>,
        receives: Vec<(usize, usize)>,
        done: Sender<Result<Vec<Vec<u8>>>>,
    },
    Nccl {
        device: Device,
        done: Sender<Result<(String, Option<String>)>>,
    },
    Abort {
        why: String,
    },
}

/// An exchange that is under way.
#[must_use]
pub struct Pending(Receiver<Result<Arrived>>);

impl Pending {
    /// Waits until everything has arrived. On a GPU it may still be on its way: what is computed there from now on waits for it.
    #[track_caller]
    pub fn wait(self) -> Result<()> {
        self.0.recv().unwrap_or_else(|_| Err(over())).located()?.wait()
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
        let about = Mutex::new((transport.name(), transport.note()));
        let (rank, size) = (transport.rank(), transport.size());
        let local_rank = transport.local_rank();
        let shared = Arc::new(Shared {
            timeout: AtomicU64::new(millis(TIMEOUT)),
            aborted: AtomicBool::new(false),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            exchanges: AtomicU64::new(0),
        });
        let (jobs, queue) = channel();
        let (out, into) = (Staging::default(), Staging::default());
        let worker = Worker { transport, shared: shared.clone(), failed: None, out, into };
        let no_thread = |why: &str| Error::argument("world", "thread", format!("could not start: {why}"));
        if !room_for_a_thread() {
            return Err(no_thread("the host has no memory for it"));
        }
        let thread = Builder::new().name("dittograd-comm".into()).spawn(move || worker.run(&queue));
        let thread = thread.map_err(|e| no_thread(&e.to_string()))?;
        let (jobs, thread) = (Mutex::new(Some(jobs)), Mutex::new(Some(thread)));
        Ok(World(Arc::new(Inner { about, rank, size, local_rank, jobs, thread, shared })))
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
    pub fn name(&self) -> String {
        self.0.about.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// Why words of GPUs go through host memory, if more was asked for.
    pub fn note(&self) -> Option<String> {
        self.0.about.lock().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    /// From now on NCCL moves the words of GPUs, where it can: each rank says which device it computes on. All ranks call it. Where NCCL cannot
    /// be used, words go through host memory as before, and [`World::note`] says why.
    #[track_caller]
    pub fn use_nccl(&self, device: &Device) -> Result<()> {
        let (done, pending) = channel();
        self.submit(Job::Nccl { device: device.clone(), done })?;
        let about = pending.recv().unwrap_or_else(|_| Err(over())).located()?;
        *self.0.about.lock().unwrap_or_else(PoisonError::into_inner) = about;
        Ok(())
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
    fn submit(&self, job: Job) -> Result<()> {
        let jobs = self.0.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        match jobs.as_ref().map(|jobs| jobs.send(job)) {
            Some(Ok(())) => Ok(()),
            _ => Err(over()),
        }
    }

    /// Starts an exchange of the words of buffers with other ranks: as they are when all that was submitted so far has been
    /// computed. Until [`Pending::wait`] nobody may write what is sent or touch what is received; on the CPU not even other parts of
    /// such an allocation. A message is on a GPU on both sides or on neither.
    #[track_caller]
    pub fn start(&self, sends: Vec<(usize, Buffer)>, receives: Vec<(usize, Buffer)>) -> Result<Pending> {
        check_ranks(self.rank(), self.size(), sends.iter().chain(&receives).map(|(rank, _)| *rank))?;
        let after = staging::marks(sends.iter().chain(&receives))?;
        let (done, pending) = channel();
        self.submit(Job::Buffers { sends, receives, after, done })?;
        Ok(Pending(pending))
    }

    /// Exchanges messages and waits for them.
    #[track_caller]
    pub(crate) fn bytes(
        &self,
        sends: Vec<(usize, Arc<[u8]>)>,
        receives: Vec<(usize, usize)>,
    ) -> Result<Vec<Vec<u8>>> {
        let (done, pending) = channel();
        self.submit(Job::Bytes { sends, receives, done })?;
        pending.recv().unwrap_or_else(|_| Err(over())).located()
    }

    pub(crate) fn others(&self) -> impl Iterator<Item = usize> + Clone + '_ {
        (0..self.size()).filter(|r| *r != self.rank())
    }

    /// Messages of these bytes to all others.
    pub(crate) fn to_all(&self, bytes: &[u8]) -> Vec<(usize, Arc<[u8]>)> {
        let bytes: Arc<[u8]> = bytes.into();
        self.others().map(|r| (r, bytes.clone())).collect()
    }

    /// The lengths that the others say, in their order.
    #[track_caller]
    pub(crate) fn lengths(&self, mine: usize) -> Result<Vec<u64>> {
        let sends = self.to_all(&(mine as u64).to_le_bytes());
        let said = self.bytes(sends, self.others().map(|r| (r, size_of::<u64>())).collect())?;
        Ok(said.iter().map(|bytes| bytes.iter().rev().fold(0, |n, b| n << 8 | *b as u64)).collect())
    }

    /// What each rank gives, by rank. The lengths may differ.
    #[track_caller]
    pub fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut left = self.lengths(mine.len())?;
        let mut all: Vec<Vec<u8>> = left.iter().map(|_| vec![]).collect();
        let mut pieces = mine.chunks(PIECE);
        loop {
            let sends = pieces.next().map_or(vec![], |piece| self.to_all(piece));
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
    /// Host memory for messages of GPUs and CPUs, to other ranks and from them.
    out: Staging,
    into: Staging,
}

impl Worker {
    fn run(mut self, queue: &Receiver<Job>) {
        // Whoever gave a job may have given up on it.
        for job in queue {
            match job {
                Job::Buffers { sends, receives, after, done } => {
                    let _ = done.send(self.unless_over(|w| w.buffers(sends, receives, &after)));
                }
                Job::Bytes { sends, receives, done } => {
                    let _ = done.send(self.unless_over(|w| w.bytes(&sends, &receives)));
                }
                Job::Nccl { device, done } => {
                    let _ = done.send(self.unless_over(|w| w.use_nccl(&device)));
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

    fn buffers(&mut self, sends: Vec<Message>, receives: Vec<Message>, after: &[Mark]) -> Result<Arrived> {
        let own = self.transport.device().cloned();
        let is_own = |m: &Message| match (&own, m.1.device().as_cuda()) {
            (Some(own), Some(cuda)) => Arc::ptr_eq(own, cuda),
            _ => false,
        };
        let (near, sends): (Vec<Message>, Vec<Message>) = sends.into_iter().partition(is_own);
        let (into_near, receives): (Vec<Message>, Vec<Message>) = receives.into_iter().partition(is_own);
        let moved = self.on_device(&near, &into_near, after);
        let marks = moved.and_then(|()| self.through_host(&sends, &receives, after));
        Ok(Arrived { marks: marks?, buffers: receives })
    }

    /// Messages that the transport moves from GPU to GPU.
    fn on_device(&mut self, sends: &[Message], receives: &[Message], after: &[Mark]) -> Result<()> {
        let Some(own) = self.transport.device().cloned().filter(|_| sends.len() + receives.len() > 0) else {
            return Ok(());
        };
        let ranges = |messages: &[Message]| -> Result<Vec<OnDevice>> {
            let one = |(rank, buffer): &Message| {
                let (address, bytes) = staging::range(buffer)?;
                Ok(OnDevice { rank: *rank, address, bytes })
            };
            messages.iter().map(one).collect()
        };
        let (sends, receives) = (ranges(sends)?, ranges(receives)?);
        self.transport.exchange_on_device(
            staging::mark_of(after, &own)?,
            &sends,
            &receives,
            self.timeout(),
        )?;
        let bytes = |all: &[OnDevice]| all.iter().map(|m| m.bytes).sum();
        self.count(bytes(&sends), bytes(&receives));
        Ok(())
    }

    /// Messages that go through host memory. Computing must wait for the marks.
    fn through_host(&mut self, sends: &[Message], receives: &[Message], after: &[Mark]) -> Result<Vec<Mark>> {
        if sends.len() + receives.len() == 0 {
            return Ok(Vec::new());
        }
        let (mut out, mut into) = (std::mem::take(&mut self.out), std::mem::take(&mut self.into));
        out.fetch(sends, after)?;
        let (sent, received) = (out.parts(sends)?, into.parts(receives)?);
        let (direct, into_direct) = (staging::direct(sends), staging::direct(receives));
        with_host_words("exchange", &direct, &into_direct, |reads, writes| {
            let reads = reads.iter().map(|words| cast_slice(words));
            let writes = writes.into_iter().map(cast_slice_mut);
            let sent = staging::in_order(sends, sent.into_iter().map(|b| &*b), reads);
            let received = staging::in_order(receives, received.into_iter(), writes);
            let sent: Vec<Outgoing<'_>> = sent.map(|(to, bytes)| Outgoing { to, bytes }).collect();
            let mut received: Vec<Incoming<'_>> =
                received.map(|(from, bytes)| Incoming { from, bytes }).collect();
            self.exchange(&sent, &mut received)
        })?;
        let marks = into.put(receives, after)?;
        (self.out, self.into) = (out, into);
        Ok(marks)
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
        self.transport.exchange(sends, receives, self.timeout())?;
        self.count(sends.iter().map(|s| s.bytes.len()).sum(), receives.iter().map(|r| r.bytes.len()).sum());
        Ok(())
    }

    fn use_nccl(&mut self, device: &Device) -> Result<(String, Option<String>)> {
        let timeout = self.timeout();
        let host = std::mem::replace(&mut self.transport, Box::new(Nobody));
        self.transport = nccl(host, device, timeout)?;
        Ok((self.transport.name(), self.transport.note()))
    }

    fn timeout(&self) -> Duration {
        Duration::from_millis(self.shared.timeout.load(Ordering::Relaxed))
    }

    fn count(&self, sent: usize, received: usize) {
        self.shared.sent.fetch_add(sent as u64, Ordering::Relaxed);
        self.shared.received.fetch_add(received as u64, Ordering::Relaxed);
        self.shared.exchanges.fetch_add(1, Ordering::Relaxed);
    }
}

/// In place of a transport that could not be replaced by another.
struct Nobody;

impl Transport for Nobody {
    fn name(&self) -> String {
        "none".into()
    }

    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    #[track_caller]
    fn exchange(&mut self, _: &[Outgoing<'_>], _: &mut [Incoming<'_>], _: Duration) -> Result<()> {
        Err(over())
    }

    fn abort(&mut self, _: &str) {}
}
