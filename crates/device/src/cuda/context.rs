//! An open CUDA device: opening, closing, errors, and which thread may submit. Memory, kernels and graphs are `impl`
//! blocks in their own files.
//!
//! All computing runs on one non-default stream, in the order of submission; so the pool can reuse freed memory at once.
//! Transfers beside it run on a second one (see `marks`).
//! An error that the driver never recovers from (an illegal address, a hardware fault) poisons the device: the first
//! one is kept and every later call reports it. Errors that cannot be returned where they happen, in `free` or in a
//! `Drop`, are returned by the next call.
//! Lock order: `building`, `turn`, then one of `pool`, `ring`, `transfers`, `modules`, `kernels`, `ahead`, `pending`.

use super::cache::{self, Cache, Key};
use super::driver::{Driver, Fate, Handle, NO_DEVICE, Work, attribute, is_sticky};
use super::kernels::{KernelInfo, Made, Module, Waited};
use super::marks::Transfers;
use super::memory::Ring;
use super::memory_pool::MemoryPool;
use super::nvrtc::{Compiler, System};
use crate::Flips;
use dittograd_numerics::Numerics;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{
    Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak,
};

/// The architecture of compute capability 9.0 with what only that one has.
const HOPPER: &str = "sm_90a";

/// The architecture of a compute capability.
fn arch_of(major: u32, minor: u32) -> String {
    if (major, minor) == (9, 0) { HOPPER.into() } else { format!("sm_{major}{minor}") }
}

/// An open device. Shared through an `Arc`; all methods may be called from any thread.
pub struct Cuda {
    pub(super) driver: Arc<Driver>,
    ordinal: usize,
    numerics: Numerics,
    device: i32,
    context: Handle,
    pub(super) stream: Handle,
    /// Unique in the process and never reused; 0 is no device.
    pub(super) id: u32,
    name: String,
    pub(super) arch: String,
    sm_count: u32,
    driver_version: (i32, i32),
    total_memory: usize,
    max_shared: usize,

    /// The first error that made the device unusable, shared by all contexts on it.
    fate: Arc<Fate>,
    /// Whether `pending` is not empty.
    has_pending: AtomicBool,
    /// Errors of calls that could not return them.
    pending: Mutex<VecDeque<Error>>,
    /// Held shared around every call on the stream, and exclusively during a capture, so that calls of other threads do
    /// not end up in the graph.
    pub(super) turn: RwLock<()>,
    /// The capturing thread, as [`this_thread`] numbers it, or 0.
    pub(super) capturing: AtomicUsize,
    pub(super) pool: Mutex<MemoryPool>,
    pub(super) ring: Mutex<Ring>,
    pub(super) transfers: Mutex<Transfers>,

    pub(super) compiler: Arc<dyn Compiler>,
    pub(super) cache: Option<Cache>,
    /// Held while modules are compiled and loaded, so that none is built twice.
    pub(super) building: Mutex<()>,
    /// Texts that are compiled before anybody wants them, and what became of each.
    pub(super) ahead: Mutex<HashMap<Key, Made>>,
    /// Told when one of `ahead` is no longer being compiled.
    pub(super) made: Condvar,
    /// By name. Several modules with different sources may share a name.
    pub(super) modules: RwLock<HashMap<String, Vec<Module>>>,
    pub(super) kernels: RwLock<Vec<KernelInfo>>,
    pub(super) launches: AtomicU64,
    pub(super) compiled: AtomicU64,
    pub(super) from_disk: AtomicU64,
    pub(super) waited: Waited,
    /// Faults of a driver that computes on the host, in tests.
    flips: Arc<Flips>,
}

/// The right to call on the stream.
pub(super) enum Turn<'a> {
    /// Shared with other threads, while no capture runs.
    Shared(#[allow(dead_code, reason = "held, not read")] RwLockReadGuard<'a, ()>),
    /// The calling thread is inside its own capture.
    Capturing,
}

thread_local! {
    /// Id of the [`Cuda`] whose context is current on this thread.
    static CURRENT: Cell<u32> = const { Cell::new(0) };
}

/// A number for the calling thread that no other living thread has; never 0.
pub(super) fn this_thread() -> usize {
    CURRENT.with(|cell| std::ptr::from_ref(cell).addr())
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// The code in an error of the driver.
pub(super) fn code(error: &Error) -> Option<i32> {
    match error.kind() {
        ErrorKind::Cuda { code, .. } => Some(*code),
        _ => None,
    }
}

/// Opening, and properties of the device.
impl Cuda {
    /// Number of devices. Errors with [`ErrorKind::Library`] where there is no driver.
    pub fn count() -> Result<usize> {
        let driver = Driver::system()?;
        match driver.init() {
            Err(error) if code(&error) == Some(NO_DEVICE) => Ok(0),
            Err(error) => Err(error),
            Ok(()) => driver.device_count(),
        }
    }

    /// The device `ordinal` in a mode. It is shared by everybody in the process: the first opens it, the last closes
    /// it.
    pub fn open(ordinal: usize, numerics: Numerics) -> Result<Arc<Cuda>> {
        type Open = ((usize, Numerics), Weak<Cuda>);
        static OPEN: Mutex<Vec<Open>> = Mutex::new(Vec::new());
        let wanted = (ordinal, numerics);
        let driver = Driver::system()?;
        if let Some(first) = driver.fate(ordinal).get() {
            return Err(poisoned(ordinal, first));
        }
        let mut open = lock(&OPEN);
        open.retain(|(_, cuda)| cuda.strong_count() > 0);
        if let Some(cuda) = open.iter().filter(|(at, _)| *at == wanted).find_map(|(_, cuda)| cuda.upgrade()) {
            return Ok(cuda);
        }
        driver.init()?;
        let compiler = Arc::new(System::new(driver.version()?.0));
        let cuda = Cuda::with_driver(driver, ordinal, numerics, compiler, cache::folder())?;
        open.push((wanted, Arc::downgrade(&cuda)));
        Ok(cuda)
    }

    /// Like [`Cuda::open`], on any driver and compiler, with an optional disk cache, and not shared with other callers.
    #[doc(hidden)]
    pub fn with_driver(
        driver: Arc<Driver>,
        ordinal: usize,
        numerics: Numerics,
        compiler: Arc<dyn Compiler>,
        cache: Option<PathBuf>,
    ) -> Result<Arc<Cuda>> {
        static IDS: AtomicU32 = AtomicU32::new(1);
        let id = IDS.fetch_add(1, Ordering::Relaxed);
        let fate = driver.fate(ordinal);
        if let Some(first) = fate.get() {
            return Err(poisoned(ordinal, first));
        }
        let earlier = driver.left(ordinal);
        match Cuda::make(&driver, (ordinal, numerics), id, compiler, cache) {
            Ok(cuda) => {
                earlier.into_iter().for_each(|error| cuda.keep(error));
                Ok(Arc::new(cuda))
            }
            Err(error) => {
                let error = named(ordinal, error);
                if code(&error).is_some_and(is_sticky) {
                    fate.get_or_init(|| error.to_string());
                }
                earlier.into_iter().for_each(|error| driver.leave(ordinal, error));
                Err(error)
            }
        }
    }

    fn make(
        driver: &Arc<Driver>,
        (ordinal, numerics): (usize, Numerics),
        id: u32,
        compiler: Arc<dyn Compiler>,
        cache: Option<PathBuf>,
    ) -> Result<Cuda> {
        driver.init()?;
        let count = driver.device_count()?;
        let number = i32::try_from(ordinal).ok().filter(|_| ordinal < count).ok_or_else(|| {
            Error::argument(
                "cuda open",
                "ordinal",
                format!("{ordinal} was asked for, there are {count} devices"),
            )
        })?;
        let device = driver.device(number)?;
        let get =
            |attribute| -> Result<u32> { Ok(driver.device_attribute(attribute, device)?.max(0) as u32) };
        let (major, minor) = (get(attribute::MAJOR)?, get(attribute::MINOR)?);
        let (sm_count, max_shared) = (get(attribute::MULTIPROCESSORS)?, get(attribute::SHARED_OPTIN)?);
        let name = driver.device_name(device)?;
        let driver_version = driver.version()?;
        let total_memory = driver.device_total_mem(device)?;

        let context = driver.primary_ctx_retain(device)?;
        let stream = driver.ctx_set_current(context).and_then(|()| driver.stream_create());
        let stream = match stream {
            Ok(stream) => stream,
            Err(error) => {
                CURRENT.set(0);
                if let Err(second) = driver.primary_ctx_release(device) {
                    driver.leave(ordinal, named(ordinal, second));
                }
                return Err(error);
            }
        };
        CURRENT.set(id);
        Ok(Cuda {
            driver: driver.clone(),
            ordinal,
            numerics,
            device,
            context,
            stream,
            id,
            name,
            arch: arch_of(major, minor),
            sm_count,
            driver_version,
            total_memory,
            max_shared: max_shared as usize,
            fate: driver.fate(ordinal),
            has_pending: AtomicBool::new(false),
            pending: Mutex::default(),
            turn: RwLock::default(),
            capturing: AtomicUsize::new(0),
            pool: Mutex::default(),
            ring: Mutex::default(),
            transfers: Mutex::default(),
            compiler,
            cache: cache.map(Cache::new),
            building: Mutex::default(),
            ahead: Mutex::default(),
            made: Condvar::new(),
            modules: RwLock::default(),
            kernels: RwLock::default(),
            launches: AtomicU64::new(0),
            compiled: AtomicU64::new(0),
            from_disk: AtomicU64::new(0),
            waited: Waited::default(),
            flips: Arc::default(),
        })
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its number among the devices.
    pub fn ordinal(&self) -> usize {
        self.ordinal
    }

    /// Whether it has the tensor cores of compute capability 9.0, which later ones do not have.
    pub fn is_hopper(&self) -> bool {
        self.arch == HOPPER
    }

    /// Its architecture, like `sm_80` or `sm_90a`: the latter has all that compute capability 9.0 has.
    pub fn arch(&self) -> &str {
        &self.arch
    }

    /// How its products are computed.
    pub fn numerics(&self) -> Numerics {
        self.numerics
    }

    /// Its multiprocessors.
    pub fn sm_count(&self) -> u32 {
        self.sm_count
    }

    /// The CUDA version the driver is made for, major and minor.
    pub fn driver_version(&self) -> (i32, i32) {
        self.driver_version
    }

    /// The number that no other GPU in the world has.
    pub fn uuid(&self) -> Result<[u8; 16]> {
        self.good()?;
        self.noted(self.driver.device_uuid(self.device))
    }

    /// Its memory in bytes.
    pub fn total_memory(&self) -> usize {
        self.total_memory
    }

    /// The most shared memory a block can have, in bytes.
    pub fn max_shared_per_block(&self) -> usize {
        self.max_shared
    }
}

#[cold]
fn poisoned(ordinal: usize, first: &str) -> Error {
    Error::new(format!("cuda:{ordinal}"), ErrorKind::Poisoned { first: first.to_string() })
}

/// The driver's error with the name of the device it concerns.
#[cold]
fn named(ordinal: usize, error: Error) -> Error {
    match error.kind() {
        kind @ ErrorKind::Cuda { .. } if error.op() == "cuda" => {
            Error::new(format!("cuda:{ordinal}"), kind.clone())
        }
        _ => error,
    }
}

/// Errors, turns and the current context.
impl Cuda {
    /// Errors if the device cannot be used, or with a pending error.
    pub(crate) fn good(&self) -> Result<()> {
        if self.fate.get().is_none() && !self.has_pending.load(Ordering::Acquire) {
            return Ok(());
        }
        self.report()
    }

    #[cold]
    fn report(&self) -> Result<()> {
        if let Some(first) = self.fate.get() {
            return Err(poisoned(self.ordinal, first));
        }
        let mut pending = lock(&self.pending);
        let error = pending.pop_front();
        self.has_pending.store(!pending.is_empty(), Ordering::Release);
        error.map_or(Ok(()), Err)
    }

    /// Passes on a driver's result. Adds the device's name to an error, and records an error that poisons the device.
    pub(super) fn noted<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| {
            let error = named(self.ordinal, error);
            if code(&error).is_some_and(is_sticky) {
                self.fate.get_or_init(|| error.to_string());
            }
            error
        })
    }

    /// Keeps an error for the next call to return.
    #[doc(hidden)]
    #[cold]
    pub fn keep(&self, error: Error) {
        let mut pending = lock(&self.pending);
        pending.push_back(error);
        self.has_pending.store(true, Ordering::Release);
    }

    /// For clean-up that cannot return an error: records a poisoning error, keeps any other.
    pub(super) fn settle(&self, result: Result<()>) {
        match self.noted(result) {
            Err(error) if !code(&error).is_some_and(is_sticky) => self.keep(error),
            _ => {}
        }
    }

    pub(super) fn poisoned(&self) -> bool {
        self.fate.get().is_some()
    }

    /// Makes its context that of the calling thread.
    #[doc(hidden)]
    pub fn make_current(&self) -> Result<()> {
        if CURRENT.get() != self.id {
            self.noted(self.driver.ctx_set_current(self.context))?;
            CURRENT.set(self.id);
        }
        Ok(())
    }

    pub(super) fn capturing_here(&self) -> bool {
        self.capturing.load(Ordering::Acquire) == this_thread()
    }

    /// Begins a call on the stream that a capture may contain.
    pub(super) fn enter(&self) -> Result<Turn<'_>> {
        self.good()?;
        self.turn()
    }

    /// Like [`Cuda::enter`], even if an error is pending.
    pub(super) fn turn(&self) -> Result<Turn<'_>> {
        let turn = if self.capturing_here() { Turn::Capturing } else { Turn::Shared(read(&self.turn)) };
        self.make_current()?;
        Ok(turn)
    }

    /// Begins a call that a capture must not contain.
    pub(super) fn enter_outside(&self, op: &str) -> Result<Turn<'_>> {
        self.outside(op)?;
        self.enter()
    }

    /// On a driver that runs no kernels: queues the host computation that replaces the last launches.
    #[doc(hidden)]
    pub fn stand_in(&self, work: impl FnOnce() -> Work) -> Result<()> {
        if !self.driver.computes {
            return Ok(());
        }
        let _turn = self.enter()?;
        self.noted(self.driver.compute(self.stream, work()))
    }

    /// What such host computations are struck by.
    #[doc(hidden)]
    pub fn flips(&self) -> &Arc<Flips> {
        &self.flips
    }

    /// Refuses `op` inside a capture.
    pub(super) fn outside(&self, op: &str) -> Result<()> {
        if !self.capturing_here() {
            return Ok(());
        }
        let what = "not possible while a graph is captured; do it before the capture begins or after it ends";
        Err(Error::unsupported(op, what))
    }
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cuda({}: {}, {})", self.ordinal, self.name, self.arch)
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        // Every step is tried, even if an earlier one failed. Graphs are already gone: they own an `Arc`.
        let driver = self.driver.clone();
        self.settle(driver.ctx_set_current(self.context));
        self.settle(driver.stream_synchronize(self.stream));
        let transfers = std::mem::take(&mut *lock(&self.transfers));
        if !transfers.stream.is_null() {
            self.settle(driver.stream_synchronize(transfers.stream));
        }
        for event in transfers.events {
            self.settle(driver.event_destroy(event));
        }
        for pinned in transfers.abandoned {
            self.settle(driver.mem_free_host(pinned));
        }
        let modules = std::mem::take(&mut *write(&self.modules));
        for module in modules.into_values().flatten() {
            self.settle(driver.module_unload(module.handle()));
        }
        let (base, events) = lock(&self.ring).objects();
        for event in events {
            self.settle(driver.event_destroy(event));
        }
        if !base.is_null() {
            self.settle(driver.mem_free_host(base));
        }
        let segments = lock(&self.pool).drain_all();
        for segment in segments {
            self.settle(driver.mem_free(segment));
        }
        if !transfers.stream.is_null() {
            self.settle(driver.stream_destroy(transfers.stream));
        }
        self.settle(driver.stream_destroy(self.stream));
        self.settle(driver.ctx_set_current(Handle::NULL));
        self.settle(driver.primary_ctx_release(self.device));
        CURRENT.set(0);
        // Errors that nobody was told are left for whoever opens the device next.
        lock(&self.pending).drain(..).for_each(|error| driver.leave(self.ordinal, error));
    }
}
