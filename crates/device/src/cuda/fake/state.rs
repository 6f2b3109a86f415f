//! The state of the fake driver: devices, contexts, memory, streams, events, modules and graphs.

use super::Launch;
use super::codes::{CAPTURE_UNSUPPORTED, INVALID_CONTEXT, INVALID_DEVICE, INVALID_HANDLE, NOT_INITIALIZED};
use super::faults::Fault;
use super::queue::{Captured, Node};
use crate::cuda::driver::{Handle, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, SUCCESS};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ptr;
use std::thread::ThreadId;

/// Where device memory begins. Unusual enough that no other kernel argument looks like an address.
pub(super) const FIRST_ADDRESS: u64 = 0x5eed_0000_0000;

/// A capture of a stream.
pub(super) struct Capture {
    pub thread: ThreadId,
    pub nodes: Vec<Captured>,
    /// Whether something happened that a capture cannot contain.
    pub is_lost: bool,
}

/// A stream and its queue.
pub(super) struct Stream {
    pub device: i32,
    pub capture: Option<Capture>,
    /// What the next recorded node waits for: numbers of nodes (from 1).
    pub after: Vec<Handle>,
    pub queue: VecDeque<Node>,
    /// Number of operations that have left the queue.
    pub done: u64,
}

/// An allocation.
pub(super) struct Memory {
    pub device: i32,
    pub bytes: Vec<u8>,
}

/// A kernel of a module.
pub(super) struct Function {
    pub module: Handle,
    pub name: String,
    /// Dynamic shared memory it is allowed.
    pub shared: i32,
}

/// The stream in which an event was recorded, and the number of operations before it.
pub(super) type Recorded = Option<(Handle, u64)>;

/// The state of the fake driver.
#[derive(Default)]
pub(super) struct State {
    pub devices: i32,
    pub memory: usize,
    /// Multiprocessors of each device, 4 unless set.
    pub multiprocessors: Option<i32>,
    pub computes: bool,
    /// The generator of the order in which streams run, if they do not run as late as possible.
    pub order: Option<u64>,
    pub is_initialized: bool,
    pub calls: u64,
    pub by_symbol: BTreeMap<&'static str, u64>,
    pub fault: Option<Fault>,
    /// Calls that were refused as invalid, as symbol and code.
    pub misuses: Vec<(&'static str, i32)>,
    /// Different for each fake driver.
    pub id: u32,
    pub next: usize,
    pub address: u64,
    pub retained: HashMap<i32, usize>,
    pub current: HashMap<ThreadId, Handle>,
    pub allocations: BTreeMap<u64, Memory>,
    /// Pinned memory in words of 16 bytes.
    pub pinned: BTreeMap<usize, (Handle, usize)>,
    pub streams: HashMap<Handle, Stream>,
    pub events: HashMap<Handle, Recorded>,
    /// Modules and the devices they are loaded on.
    pub modules: HashMap<Handle, i32>,
    pub functions: HashMap<Handle, Function>,
    pub graphs: HashMap<Handle, Vec<Captured>>,
    pub execs: HashMap<Handle, Vec<Node>>,
    pub launches: Vec<Launch>,
    /// Dependencies of all captured nodes.
    pub waits: u64,
    pub params: HashMap<String, Vec<(usize, usize)>>,
}

/// A value, or the error code of a call.
pub(super) type Outcome<T = ()> = std::result::Result<T, i32>;

/// The device of a primary context.
pub(super) fn device_of(context: Handle) -> i32 {
    context.0.addr() as i32 - 1
}

impl State {
    /// The result code of a call. Errors that a correct caller can get are not listed as misuses.
    pub fn answer(&mut self, symbol: &'static str, outcome: Outcome) -> i32 {
        let Err(code) = outcome else { return SUCCESS };
        if !matches!(code, OUT_OF_MEMORY | NOT_SUPPORTED) {
            self.misuses.push((symbol, code));
        }
        code
    }

    /// A new handle.
    pub fn handle(&mut self) -> Handle {
        self.next += 1;
        Handle(ptr::without_provenance_mut(self.next << 4))
    }

    /// The device of the calling thread's context.
    pub fn here(&self) -> Outcome<i32> {
        let context = self.current.get(&std::thread::current().id()).copied().unwrap_or_default();
        let device = device_of(context);
        let is_alive = !context.is_null() && self.retained.get(&device).is_some_and(|count| *count > 0);
        if is_alive { Ok(device) } else { Err(INVALID_CONTEXT) }
    }

    /// Refuses a device that does not exist.
    pub fn device(&self, device: i32) -> Outcome {
        match (self.is_initialized, (0..self.devices).contains(&device)) {
            (false, _) => Err(NOT_INITIALIZED),
            (true, false) => Err(INVALID_DEVICE),
            (true, true) => Ok(()),
        }
    }

    /// A stream of the calling thread's context.
    pub fn stream(&mut self, stream: Handle) -> Outcome<&mut Stream> {
        let here = self.here()?;
        let found = self.streams.get_mut(&stream).ok_or(INVALID_HANDLE)?;
        if found.device == here { Ok(found) } else { Err(INVALID_CONTEXT) }
    }

    /// Bytes inside one allocation on a device.
    pub fn range(&mut self, device: i32, address: u64, bytes: usize) -> Outcome<&mut [u8]> {
        let (&start, memory) = self.allocations.range_mut(..=address).next_back().ok_or(INVALID_VALUE)?;
        if memory.device != device {
            return Err(INVALID_VALUE);
        }
        let offset = (address - start) as usize;
        memory.bytes.get_mut(offset..).and_then(|rest| rest.get_mut(..bytes)).ok_or(INVALID_VALUE)
    }

    /// Whether these bytes are in pinned memory.
    pub fn is_pinned(&self, pointer: Handle, bytes: usize) -> bool {
        let at = pointer.0.addr();
        let found = self.pinned.range(..=at).next_back();
        found.is_some_and(|(&start, &(_, words))| at - start + bytes <= words * 16)
    }

    /// Refuses a call that must not happen on a capturing stream, which invalidates the capture.
    pub fn not_capturing(&mut self, stream: Handle) -> Outcome {
        match &mut self.stream(stream)?.capture {
            Some(capture) => {
                capture.is_lost = true;
                Err(CAPTURE_UNSUPPORTED)
            }
            None => Ok(()),
        }
    }

    /// Refuses a call that a thread must not make while it captures, which invalidates the capture.
    pub fn outside_captures(&mut self) -> Outcome {
        let thread = std::thread::current().id();
        let mut mine = self.streams.values_mut().filter_map(|s| s.capture.as_mut());
        match mine.find(|capture| capture.thread == thread) {
            Some(capture) => {
                capture.is_lost = true;
                Err(CAPTURE_UNSUPPORTED)
            }
            None => Ok(()),
        }
    }
}
