//! What the fake driver knows: its devices, contexts, memory, streams, events, modules and graphs.

use super::Launch;
use super::codes::{CAPTURE_UNSUPPORTED, INVALID_CONTEXT, INVALID_DEVICE, INVALID_HANDLE, NOT_INITIALIZED};
use super::faults::Fault;
use super::queue::{Captured, Node};
use crate::cuda::driver::{Handle, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, SUCCESS};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ptr;
use std::thread::ThreadId;

/// Where device memory begins. Odd enough for no other argument of a kernel to look like an address.
pub(super) const FIRST_ADDRESS: u64 = 0x5eed_0000_0000;

/// What is recorded on a stream.
pub(super) struct Capture {
    pub(super) thread: ThreadId,
    pub(super) nodes: Vec<Captured>,
    /// Something happened that no capture can contain.
    pub(super) is_lost: bool,
}

pub(super) struct Stream {
    pub(super) device: i32,
    pub(super) capture: Option<Capture>,
    /// What the next recorded node waits for: numbers of nodes, from 1.
    pub(super) after: Vec<Handle>,
    pub(super) queue: VecDeque<Node>,
    /// Operations that have left the queue.
    pub(super) done: u64,
}

pub(super) struct Memory {
    pub(super) device: i32,
    pub(super) bytes: Vec<u8>,
}

pub(super) struct Function {
    pub(super) module: Handle,
    pub(super) name: String,
    /// Dynamic shared memory it may have.
    pub(super) shared: i32,
}

/// Where in which stream an event was recorded.
pub(super) type Recorded = Option<(Handle, u64)>;

#[derive(Default)]
pub(super) struct State {
    pub(super) devices: i32,
    pub(super) memory: usize,
    pub(super) computes: bool,
    pub(super) is_initialized: bool,
    pub(super) calls: u64,
    pub(super) by_symbol: BTreeMap<&'static str, u64>,
    pub(super) fault: Option<Fault>,
    /// Calls that were refused for what they asked, as symbol and code.
    pub(super) misuses: Vec<(&'static str, i32)>,
    pub(super) next: usize,
    pub(super) address: u64,
    pub(super) retained: HashMap<i32, usize>,
    pub(super) current: HashMap<ThreadId, Handle>,
    pub(super) allocations: BTreeMap<u64, Memory>,
    /// Pinned memory in words of 16 bytes.
    pub(super) pinned: BTreeMap<usize, (Handle, usize)>,
    pub(super) streams: HashMap<Handle, Stream>,
    pub(super) events: HashMap<Handle, Recorded>,
    /// Modules and the devices they are loaded on.
    pub(super) modules: HashMap<Handle, i32>,
    pub(super) functions: HashMap<Handle, Function>,
    pub(super) graphs: HashMap<Handle, Vec<Captured>>,
    pub(super) execs: HashMap<Handle, Vec<Node>>,
    pub(super) launches: Vec<Launch>,
    /// For all nodes that were captured, those that they wait for.
    pub(super) waits: u64,
    pub(super) params: HashMap<String, Vec<(usize, usize)>>,
}

pub(super) type Outcome<T = ()> = std::result::Result<T, i32>;

/// The device of a primary context.
pub(super) fn device_of(context: Handle) -> i32 {
    context.0.addr() as i32 - 1
}

impl State {
    /// Notes an answer. Only what a driver may answer to a caller that did nothing wrong is not held against it.
    pub(super) fn answer(&mut self, symbol: &'static str, outcome: Outcome) -> i32 {
        let Err(code) = outcome else { return SUCCESS };
        if !matches!(code, OUT_OF_MEMORY | NOT_SUPPORTED) {
            self.misuses.push((symbol, code));
        }
        code
    }

    pub(super) fn handle(&mut self) -> Handle {
        self.next += 1;
        Handle(ptr::without_provenance_mut(self.next << 4))
    }

    /// The device of the calling thread's context.
    pub(super) fn here(&self) -> Outcome<i32> {
        let context = self.current.get(&std::thread::current().id()).copied().unwrap_or_default();
        let device = device_of(context);
        let is_alive = !context.is_null() && self.retained.get(&device).is_some_and(|count| *count > 0);
        if is_alive { Ok(device) } else { Err(INVALID_CONTEXT) }
    }

    pub(super) fn device(&self, device: i32) -> Outcome {
        match (self.is_initialized, (0..self.devices).contains(&device)) {
            (false, _) => Err(NOT_INITIALIZED),
            (true, false) => Err(INVALID_DEVICE),
            (true, true) => Ok(()),
        }
    }

    /// A stream of the calling thread's context.
    pub(super) fn stream(&mut self, stream: Handle) -> Outcome<&mut Stream> {
        let here = self.here()?;
        let found = self.streams.get_mut(&stream).ok_or(INVALID_HANDLE)?;
        if found.device == here { Ok(found) } else { Err(INVALID_CONTEXT) }
    }

    /// Bytes inside one allocation on a device.
    pub(super) fn range(&mut self, device: i32, address: u64, bytes: usize) -> Outcome<&mut [u8]> {
        let (&start, memory) = self.allocations.range_mut(..=address).next_back().ok_or(INVALID_VALUE)?;
        if memory.device != device {
            return Err(INVALID_VALUE);
        }
        let offset = (address - start) as usize;
        memory.bytes.get_mut(offset..).and_then(|rest| rest.get_mut(..bytes)).ok_or(INVALID_VALUE)
    }

    pub(super) fn is_pinned(&self, pointer: Handle, bytes: usize) -> bool {
        let at = pointer.0.addr();
        let found = self.pinned.range(..=at).next_back();
        found.is_some_and(|(&start, &(_, words))| at - start + bytes <= words * 16)
    }

    /// Refuses what must not happen on a capturing stream, which loses the capture.
    pub(super) fn not_capturing(&mut self, stream: Handle) -> Outcome {
        match &mut self.stream(stream)?.capture {
            Some(capture) => {
                capture.is_lost = true;
                Err(CAPTURE_UNSUPPORTED)
            }
            None => Ok(()),
        }
    }

    /// Refuses what a thread must not do while it captures anything.
    pub(super) fn outside_captures(&mut self) -> Outcome {
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
