//! A driver in host memory, for tests where there is no GPU.
//!
//! It implements the same table of entry points as the library. Device memory is a map of byte vectors. Work submitted
//! to a stream stays in its queue until somebody waits for it, and pinned memory is read and written only then, so using it
//! too early shows. A stream runs others only where an event says that it waits for them, and [`Fake::shuffle`] lets streams run
//! sooner than anybody waits: a missing wait shows too. The fake refuses what a driver refuses: unknown, dead or foreign handles, ranges outside an
//! allocation, invalid sizes and flags, a missing context, calls that a capture must not contain. It is stricter in one
//! point: memory must not be freed while work that may use it is queued. All refusals are listed. A chosen call can be made to fail.
//! Such a call creates nothing, but still destroys what it should destroy, like a driver that reports an earlier error.
//! Live objects are counted, so leaks show.
//!
//! Kernels do not run. A computing fake gets their results from the CPU, and runs a captured graph in the most
//! unexpected order that its dependencies allow.
//!
//! - `entry`: the entry points of the driver;
//! - `state`: the objects they work on, and the checks of handles and addresses;
//! - `queue`: the work of streams: queues, captures, and the order in which a graph runs;
//! - `faults`, `codes`: calls that are made to fail, and error codes;
//! - `compiler`: a stand-in for NVRTC.

mod codes;
mod compiler;
mod entry;
mod faults;
mod queue;
mod state;
#[cfg(test)]
mod tests;

pub use compiler::Stub;
pub use queue::Foreign;

use super::context::Cuda;
use super::driver::{Driver, Handle, SUCCESS};
use dittograd_numerics::Numerics;
use dittograd_numerics::error::Result;
use entry::Table;
use queue::Node;
use state::{FIRST_ADDRESS, State};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A launch as the driver saw it.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// Name of the kernel.
    pub name: String,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// The packed arguments.
    pub args: Vec<u8>,
}

/// How many objects of each kind are alive.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Live {
    /// Retained primary contexts.
    pub contexts: usize,
    /// Device allocations.
    pub allocations: usize,
    /// Pinned host allocations.
    pub pinned: usize,
    /// Streams.
    pub streams: usize,
    /// Events.
    pub events: usize,
    /// Modules.
    pub modules: usize,
    /// Graphs, and executable graphs.
    pub graphs: usize,
    /// Captures that were begun and not ended.
    pub captures: usize,
}

/// The fake driver and the handle to steer it.
#[derive(Clone)]
pub struct Fake {
    state: Arc<Mutex<State>>,
    driver: Arc<Driver>,
    stub: Arc<Stub>,
}

impl Fake {
    /// One device with 1 GiB.
    pub fn new() -> Fake {
        Fake::with(1, 1 << 30)
    }

    /// `devices` devices that share `memory` bytes.
    pub fn with(devices: i32, memory: usize) -> Fake {
        Fake::of(State { devices, memory, ..State::default() })
    }

    /// Like [`Fake::with`], with results: the CPU computes what kernels would.
    pub fn computing(devices: i32, memory: usize) -> Fake {
        Fake::of(State { devices, memory, computes: true, ..State::default() })
    }

    fn of(state: State) -> Fake {
        static IDS: AtomicU32 = AtomicU32::new(1);
        let id = IDS.fetch_add(1, Ordering::Relaxed);
        let state = State { address: FIRST_ADDRESS, id, ..state };
        let state = Arc::new(Mutex::new(state));
        let driver = Arc::new(Driver::new(Box::new(Table(state.clone()))));
        Fake { state, driver, stub: Arc::default() }
    }

    /// Gives devices that are opened from now on so many multiprocessors instead of 4.
    pub fn set_multiprocessors(&self, count: i32) {
        self.state().multiprocessors = Some(count);
    }

    /// The driver, to open contexts on.
    pub fn driver(&self) -> Arc<Driver> {
        self.driver.clone()
    }

    /// The stand-in for NVRTC.
    pub fn stub(&self) -> Arc<Stub> {
        self.stub.clone()
    }

    /// A context on device 0 with the stub compiler and no disk cache.
    pub fn open(&self) -> Result<Arc<Cuda>> {
        self.open_at(0)
    }

    /// Like [`Fake::open`], on any of its devices.
    pub fn open_at(&self, ordinal: usize) -> Result<Arc<Cuda>> {
        Cuda::with_driver(self.driver(), ordinal, Numerics::Strict, self.stub(), None)
    }

    /// Like [`Fake::open`], with a disk cache in `folder`.
    pub fn open_cached(&self, folder: PathBuf) -> Result<Arc<Cuda>> {
        Cuda::with_driver(self.driver(), 0, Numerics::Strict, self.stub(), Some(folder))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refused calls so far, as entry point and code. Injected failures are not included.
    pub fn misuses(&self) -> Vec<(&'static str, i32)> {
        self.state().misuses.clone()
    }

    /// How often each entry point has been called.
    pub fn calls_by_symbol(&self) -> BTreeMap<&'static str, u64> {
        self.state().by_symbol.clone()
    }

    /// Driver calls so far, except for those that ask for an error's text.
    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    /// Counts of live objects.
    pub fn live(&self) -> Live {
        let state = self.state();
        Live {
            contexts: state.retained.values().sum(),
            allocations: state.allocations.len(),
            pinned: state.pinned.len(),
            streams: state.streams.len(),
            events: state.events.len(),
            modules: state.modules.len(),
            graphs: state.graphs.len() + state.execs.len(),
            captures: state.streams.values().filter(|stream| stream.capture.is_some()).count(),
        }
    }

    /// The launches so far, including replays. Runs everything queued.
    pub fn launches(&self) -> Vec<Launch> {
        let mut state = self.state();
        state.drain_all();
        state.launches.clone()
    }

    /// Total number of dependencies of all nodes captured so far.
    pub fn waits(&self) -> u64 {
        self.state().waits
    }

    /// `bytes` bytes of device memory at `address`, if they are inside one allocation. Runs everything queued.
    pub fn read(&self, address: u64, bytes: usize) -> Option<Vec<u8>> {
        let mut state = self.state();
        state.drain_all();
        let device = state.allocations.range(..=address).next_back()?.1.device;
        state.range(device, address, bytes).ok().map(|found| found.to_vec())
    }

    /// Whether both are handles of one driver.
    pub fn is_same(&self, other: &Fake) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }

    /// Lets streams run in a random order: whenever something is queued, some of what some stream has queued runs. Without a seed
    /// they run again as late as possible.
    pub fn shuffle(&self, seed: Option<u64>) {
        self.state().order = seed;
    }

    /// The device of the calling thread's context.
    pub fn current_device(&self) -> Option<i32> {
        self.state().here().ok()
    }

    /// Whether these bytes are inside one allocation of a device.
    pub fn holds(&self, device: i32, address: u64, bytes: usize) -> bool {
        self.state().range(device, address, bytes).is_ok()
    }

    /// Queues an operation of another library. Returns whether the stream is one of the calling thread's context that does not
    /// capture.
    pub fn queue(&self, stream: Handle, work: Arc<dyn Foreign>) -> bool {
        let mut state = self.state();
        let outcome = state.not_capturing(stream).and_then(|()| state.submit(stream, Node::Foreign(work)));
        state.answer("queue", outcome) == SUCCESS
    }

    /// Declares the offsets and sizes of the parameters of kernels called `name`.
    pub fn declare(&self, name: &str, params: &[(usize, usize)]) {
        self.state().params.insert(name.to_string(), params.to_vec());
    }
}

impl Default for Fake {
    fn default() -> Fake {
        Fake::new()
    }
}
