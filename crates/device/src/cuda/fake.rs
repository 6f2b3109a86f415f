//! A driver in host memory, for tests where there is no GPU.
//!
//! It implements the same table of entry points as the library. Device memory is a map of byte vectors.
//! What is submitted to a stream waits in its queue, pinned sources included, until somebody waits for
//! it: whoever reuses memory too early is found out. It refuses what a driver refuses (unknown, dead or foreign
//! handles, ranges outside of an allocation, sizes and flags that cannot be, no current context, what a capture
//! must not contain) and, stricter, freeing with work queued; what it refused is listed. A chosen call can be made to
//! fail; it then creates nothing, but what it was to destroy is destroyed, as when a driver reports an earlier error
//! through it. What is alive is counted, so leaks show.
//!
//! Kernels do not run. A computing fake takes what they compute from the CPU instead, and runs a captured graph in an
//! order that its dependencies allow and nobody expects.

#![allow(unsafe_code)]

use super::context::Cuda;
use super::driver::{
    Driver, Entry, Handle, HostMemory, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, SUCCESS, Work, attribute,
};
use super::nvrtc::Compiler;
use dittograd_numerics::Numerics;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::{CStr, c_char, c_void};
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

const NOT_INITIALIZED: i32 = 3;
const INVALID_DEVICE: i32 = 101;
const INVALID_IMAGE: i32 = 200;
const INVALID_CONTEXT: i32 = 201;
const INVALID_HANDLE: i32 = 400;
const NOT_READY: i32 = 600;
const ILLEGAL_ADDRESS: i32 = 700;
const OUT_OF_RESOURCES: i32 = 701;
const CAPTURE_UNSUPPORTED: i32 = 900;
const CAPTURE_INVALIDATED: i32 = 901;
const CAPTURE_WRONG_THREAD: i32 = 908;

/// Where device memory begins. Odd enough for no other argument of a kernel to look like an address.
const FIRST_ADDRESS: u64 = 0x5eed_0000_0000;

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

/// One operation of a stream.
#[derive(Clone)]
enum Node {
    Upload { dst: u64, src: Handle, bytes: usize },
    Launch(Launch),
    Copy { dst: u64, src: u64, bytes: usize },
    Fill { dst: u64, word: u32, count: usize },
    Work(Work),
}

/// An operation that was captured, and the numbers of those it waits for, from 1.
type Captured = (Node, Vec<usize>);

/// What is recorded on a stream.
struct Capture {
    thread: ThreadId,
    nodes: Vec<Captured>,
    /// Something happened that no capture can contain.
    is_lost: bool,
}

struct Stream {
    device: i32,
    capture: Option<Capture>,
    /// What the next recorded node waits for: numbers of nodes, from 1.
    after: Vec<Handle>,
    queue: VecDeque<Node>,
    /// Operations that have left the queue.
    done: u64,
}

struct Memory {
    device: i32,
    bytes: Vec<u8>,
}

struct Function {
    module: Handle,
    name: String,
    /// Dynamic shared memory it may have.
    shared: i32,
}

/// Where in which stream an event was recorded.
type Recorded = Option<(Handle, u64)>;

/// Calls that are to fail.
struct Fault {
    /// Only those of this entry point, if one is named, and on this device, if one is.
    symbol: Option<&'static str>,
    device: Option<i32>,
    /// The first of them that fails, counted from 1, and whether all after it do.
    at: u64,
    stays: bool,
    code: i32,
    /// Such calls so far, and the first that failed.
    seen: u64,
    failed: Option<&'static str>,
}

#[derive(Default)]
struct State {
    devices: i32,
    memory: usize,
    computes: bool,
    is_initialized: bool,
    calls: u64,
    by_symbol: BTreeMap<&'static str, u64>,
    fault: Option<Fault>,
    /// Calls that were refused for what they asked, as symbol and code.
    misuses: Vec<(&'static str, i32)>,
    next: usize,
    address: u64,
    retained: HashMap<i32, usize>,
    current: HashMap<ThreadId, Handle>,
    allocations: BTreeMap<u64, Memory>,
    /// Pinned memory in words of 16 bytes.
    pinned: BTreeMap<usize, (Handle, usize)>,
    streams: HashMap<Handle, Stream>,
    events: HashMap<Handle, Recorded>,
    /// Modules and the devices they are loaded on.
    modules: HashMap<Handle, i32>,
    functions: HashMap<Handle, Function>,
    graphs: HashMap<Handle, Vec<Captured>>,
    execs: HashMap<Handle, Vec<Node>>,
    launches: Vec<Launch>,
    /// For all nodes that were captured, those that they wait for.
    waits: u64,
    params: HashMap<String, Vec<(usize, usize)>>,
}

type Outcome<T = ()> = std::result::Result<T, i32>;

/// The device of a primary context.
fn device_of(context: Handle) -> i32 {
    context.0.addr() as i32 - 1
}

impl State {
    /// Counts a call; the code it is to fail with, if it is.
    fn step(&mut self, symbol: &'static str, device: Option<i32>) -> Outcome {
        self.calls += 1;
        *self.by_symbol.entry(symbol).or_default() += 1;
        let device = device.or_else(|| self.here().ok());
        let Some(fault) = &mut self.fault else { return Ok(()) };
        if fault.symbol.is_some_and(|s| s != symbol) || (fault.device.is_some() && fault.device != device) {
            return Ok(());
        }
        fault.seen += 1;
        if fault.seen == fault.at || (fault.stays && fault.seen > fault.at) {
            fault.failed.get_or_insert(symbol);
            return Err(fault.code);
        }
        Ok(())
    }

    /// Notes an answer. Only what a driver may answer to a caller that did nothing wrong is not held against it.
    fn answer(&mut self, symbol: &'static str, outcome: Outcome) -> i32 {
        let Err(code) = outcome else { return SUCCESS };
        if !matches!(code, OUT_OF_MEMORY | NOT_SUPPORTED) {
            self.misuses.push((symbol, code));
        }
        code
    }

    fn handle(&mut self) -> Handle {
        self.next += 1;
        Handle(ptr::without_provenance_mut(self.next << 4))
    }

    /// The device of the calling thread's context.
    fn here(&self) -> Outcome<i32> {
        let context = self.current.get(&std::thread::current().id()).copied().unwrap_or_default();
        let device = device_of(context);
        let is_alive = !context.is_null() && self.retained.get(&device).is_some_and(|count| *count > 0);
        if is_alive { Ok(device) } else { Err(INVALID_CONTEXT) }
    }

    fn device(&self, device: i32) -> Outcome {
        match (self.is_initialized, (0..self.devices).contains(&device)) {
            (false, _) => Err(NOT_INITIALIZED),
            (true, false) => Err(INVALID_DEVICE),
            (true, true) => Ok(()),
        }
    }

    /// A stream of the calling thread's context.
    fn stream(&mut self, stream: Handle) -> Outcome<&mut Stream> {
        let here = self.here()?;
        let found = self.streams.get_mut(&stream).ok_or(INVALID_HANDLE)?;
        if found.device == here { Ok(found) } else { Err(INVALID_CONTEXT) }
    }

    /// Bytes inside one allocation on a device.
    fn range(&mut self, device: i32, address: u64, bytes: usize) -> Outcome<&mut [u8]> {
        let (&start, memory) = self.allocations.range_mut(..=address).next_back().ok_or(INVALID_VALUE)?;
        if memory.device != device {
            return Err(INVALID_VALUE);
        }
        let offset = (address - start) as usize;
        memory.bytes.get_mut(offset..).and_then(|rest| rest.get_mut(..bytes)).ok_or(INVALID_VALUE)
    }

    /// Queues a node, or records it if the stream captures.
    fn submit(&mut self, stream: Handle, node: Node) -> Outcome {
        let device = self.stream(stream)?.device;
        let (dst, bytes) = match node {
            Node::Upload { dst, bytes, .. } => (dst, bytes),
            Node::Copy { dst, src, bytes } => {
                self.range(device, src, bytes)?;
                if dst.abs_diff(src) < bytes as u64 {
                    return Err(INVALID_VALUE);
                }
                (dst, bytes)
            }
            Node::Fill { dst, count, .. } if dst % 4 == 0 => {
                (dst, count.checked_mul(4).ok_or(INVALID_VALUE)?)
            }
            Node::Fill { .. } => return Err(INVALID_VALUE),
            Node::Launch(_) | Node::Work(_) => (0, 0),
        };
        if bytes > 0 {
            self.range(device, dst, bytes)?;
        }
        let stream = self.stream(stream)?;
        match &mut stream.capture {
            Some(capture) => {
                let after: Vec<usize> = stream.after.iter().map(|n| n.0.addr()).collect();
                let waits = after.len() as u64;
                capture.nodes.push((node, after));
                stream.after = vec![Handle(ptr::without_provenance_mut(capture.nodes.len()))];
                self.waits += waits;
            }
            None => stream.queue.push_back(node),
        }
        Ok(())
    }

    /// Runs what is queued up to the operation numbered `until`.
    fn drain(&mut self, stream: Handle, until: u64) -> Outcome {
        loop {
            let found = self.streams.get_mut(&stream).ok_or(INVALID_HANDLE)?;
            if found.done >= until {
                return Ok(());
            }
            let Some(node) = found.queue.pop_front() else { return Ok(()) };
            found.done += 1;
            let device = found.device;
            self.execute(device, node).map_err(|_| ILLEGAL_ADDRESS)?;
        }
    }

    /// Runs everything queued anywhere.
    fn drain_all(&mut self) {
        let streams: Vec<Handle> = self.streams.keys().copied().collect();
        for stream in streams {
            // An operation on memory that is gone is dropped.
            while self.drain(stream, u64::MAX).is_err() {}
        }
    }

    fn execute(&mut self, device: i32, node: Node) -> Outcome {
        match node {
            Node::Launch(launch) => {
                self.check_addresses(device, &launch.args)?;
                self.launches.push(launch);
            }
            Node::Upload { dst, src, bytes } => {
                if !self.is_pinned(src, bytes) {
                    return Err(INVALID_VALUE);
                }
                // SAFETY: the range lies in pinned memory that was not freed. That nobody writes it now
                // is what the tests are to show.
                let data = unsafe { std::slice::from_raw_parts(src.0.cast::<u8>(), bytes) };
                self.range(device, dst, bytes)?.copy_from_slice(data);
            }
            Node::Copy { dst, src, bytes } => {
                let data = self.range(device, src, bytes)?.to_vec();
                self.range(device, dst, bytes)?.copy_from_slice(&data);
            }
            Node::Fill { dst, word, count } => {
                let words = self.range(device, dst, count.checked_mul(4).ok_or(INVALID_VALUE)?)?;
                words.chunks_exact_mut(4).for_each(|slot| slot.copy_from_slice(&word.to_ne_bytes()));
            }
            Node::Work(work) => work(&mut OnDevice(self, device)).ok_or(INVALID_VALUE)?,
        }
        Ok(())
    }

    /// Refuses arguments that are addresses of memory which is not, or no longer, there. The end of an allocation is where
    /// an empty part of it is.
    fn check_addresses(&self, device: i32, args: &[u8]) -> Outcome {
        for word in args.chunks_exact(8) {
            let address = u64::from_ne_bytes(word.try_into().map_err(|_| INVALID_VALUE)?);
            if !(FIRST_ADDRESS..self.address).contains(&address) {
                continue;
            }
            let found = self.allocations.range(..=address).next_back();
            let is_there = found.is_some_and(|(&start, memory)| {
                memory.device == device && address - start <= memory.bytes.len() as u64
            });
            if !is_there {
                return Err(ILLEGAL_ADDRESS);
            }
        }
        Ok(())
    }

    fn is_pinned(&self, pointer: Handle, bytes: usize) -> bool {
        let at = pointer.0.addr();
        let found = self.pinned.range(..=at).next_back();
        found.is_some_and(|(&start, &(_, words))| at - start + bytes <= words * 16)
    }

    /// Refuses what must not happen on a capturing stream, which loses the capture.
    fn not_capturing(&mut self, stream: Handle) -> Outcome {
        match &mut self.stream(stream)?.capture {
            Some(capture) => {
                capture.is_lost = true;
                Err(CAPTURE_UNSUPPORTED)
            }
            None => Ok(()),
        }
    }

    /// Refuses what a thread must not do while it captures anything.
    fn outside_captures(&mut self) -> Outcome {
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

/// The memory of one device.
struct OnDevice<'a>(&'a mut State, i32);

impl HostMemory for OnDevice<'_> {
    fn words(&mut self, address: u64, count: usize) -> Option<Vec<f32>> {
        if count == 0 {
            return Some(Vec::new());
        }
        let bytes = self.0.range(self.1, address, count.checked_mul(4)?).ok()?;
        Some(bytes.chunks_exact(4).map(|w| f32::from_ne_bytes([w[0], w[1], w[2], w[3]])).collect())
    }

    fn set_words(&mut self, address: u64, words: &[f32]) -> Option<()> {
        if words.is_empty() {
            return Some(());
        }
        let bytes = self.0.range(self.1, address, words.len() * 4).ok()?;
        bytes.chunks_exact_mut(4).zip(words).for_each(|(b, w)| b.copy_from_slice(&w.to_ne_bytes()));
        Some(())
    }
}

/// The nodes of a graph in an order that they may run in: always the last one that waits for nothing.
fn unexpected(nodes: &[Captured]) -> Vec<Node> {
    let mut order = Vec::with_capacity(nodes.len());
    let mut is_done = vec![false; nodes.len()];
    let is_ready = |is_done: &[bool], i: usize| {
        !is_done[i] && nodes[i].1.iter().all(|&n| is_done.get(n.wrapping_sub(1)).copied().unwrap_or(true))
    };
    while let Some(next) = (0..nodes.len()).rev().find(|&i| is_ready(&is_done, i)) {
        is_done[next] = true;
        order.push(nodes[next].0.clone());
    }
    order
}

/// The table of entry points over the shared state.
struct Table(Arc<Mutex<State>>);

impl Table {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call that does `f` unless it is to fail.
    fn act(&self, symbol: &'static str, f: impl FnOnce(&mut State) -> Outcome) -> i32 {
        self.act_on(None, symbol, f)
    }

    /// As [`Table::act`], for a call that names a device.
    fn act_on(
        &self,
        device: Option<i32>,
        symbol: &'static str,
        f: impl FnOnce(&mut State) -> Outcome,
    ) -> i32 {
        let mut state = self.state();
        if let Err(code) = state.step(symbol, device) {
            return code;
        }
        let outcome = f(&mut state);
        state.answer(symbol, outcome)
    }

    /// A call that does `f` even if it is to fail.
    fn end(&self, device: Option<i32>, symbol: &'static str, f: impl FnOnce(&mut State) -> Outcome) -> i32 {
        let mut state = self.state();
        let step = state.step(symbol, device);
        let outcome = f(&mut state);
        let done = state.answer(symbol, outcome);
        step.err().unwrap_or(done)
    }

    /// A call that writes the value of `f` to `out` unless it is to fail.
    ///
    /// # Safety
    /// `out` must be null or writable.
    unsafe fn give<T>(
        &self,
        symbol: &'static str,
        out: *mut T,
        f: impl FnOnce(&mut State) -> Outcome<T>,
    ) -> i32 {
        // SAFETY: the caller's contract.
        unsafe { self.give_on(None, symbol, out, f) }
    }

    /// As [`Table::give`], for a call that names a device.
    ///
    /// # Safety
    /// `out` must be null or writable.
    unsafe fn give_on<T>(
        &self,
        device: Option<i32>,
        symbol: &'static str,
        out: *mut T,
        f: impl FnOnce(&mut State) -> Outcome<T>,
    ) -> i32 {
        self.act_on(device, symbol, |state| {
            if out.is_null() {
                return Err(INVALID_VALUE);
            }
            let value = f(state)?;
            // SAFETY: not null, and the caller's contract.
            unsafe { out.write(value) };
            Ok(())
        })
    }
}

/// The name the driver has for a code.
fn code_name(code: i32) -> &'static CStr {
    match code {
        INVALID_VALUE => c"CUDA_ERROR_INVALID_VALUE",
        OUT_OF_MEMORY => c"CUDA_ERROR_OUT_OF_MEMORY",
        NOT_INITIALIZED => c"CUDA_ERROR_NOT_INITIALIZED",
        INVALID_DEVICE => c"CUDA_ERROR_INVALID_DEVICE",
        INVALID_IMAGE => c"CUDA_ERROR_INVALID_IMAGE",
        INVALID_CONTEXT => c"CUDA_ERROR_INVALID_CONTEXT",
        214 => c"CUDA_ERROR_ECC_UNCORRECTABLE",
        INVALID_HANDLE => c"CUDA_ERROR_INVALID_HANDLE",
        NOT_READY => c"CUDA_ERROR_NOT_READY",
        ILLEGAL_ADDRESS => c"CUDA_ERROR_ILLEGAL_ADDRESS",
        OUT_OF_RESOURCES => c"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
        719 => c"CUDA_ERROR_LAUNCH_FAILED",
        CAPTURE_UNSUPPORTED => c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        CAPTURE_INVALIDATED => c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
        CAPTURE_WRONG_THREAD => c"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
        _ => c"CUDA_ERROR",
    }
}

// SAFETY (of the raw pointers in every method): out-pointers and host ranges are the caller's
// responsibility by the contract of the trait; they are used within the call only.
impl Entry for Table {
    fn computes(&self) -> bool {
        self.state().computes
    }

    fn compute(&self, stream: Handle, work: Work) -> i32 {
        // Not a call of a driver: it is not counted and does not fail.
        let mut state = self.state();
        let outcome = state.submit(stream, Node::Work(work));
        state.answer("compute", outcome)
    }

    unsafe fn init(&self, flags: u32) -> i32 {
        self.act("cuInit", |state| {
            if flags != 0 {
                return Err(INVALID_VALUE);
            }
            state.is_initialized = true;
            Ok(())
        })
    }

    unsafe fn driver_get_version(&self, version: *mut i32) -> i32 {
        // SAFETY: the contract of the trait.
        unsafe { self.give("cuDriverGetVersion", version, |_| Ok(13000)) }
    }

    unsafe fn get_error_name(&self, code: i32, text: *mut *const c_char) -> i32 {
        // SAFETY: the contract of the trait.
        unsafe { text.write(code_name(code).as_ptr()) };
        SUCCESS
    }

    unsafe fn get_error_string(&self, _: i32, text: *mut *const c_char) -> i32 {
        // SAFETY: the contract of the trait.
        unsafe { text.write(c"from the fake driver".as_ptr()) };
        SUCCESS
    }

    unsafe fn device_get_count(&self, count: *mut i32) -> i32 {
        let get = |state: &mut State| {
            if state.is_initialized { Ok(state.devices) } else { Err(NOT_INITIALIZED) }
        };
        // SAFETY: the contract of the trait.
        unsafe { self.give("cuDeviceGetCount", count, get) }
    }

    unsafe fn device_get(&self, device: *mut i32, ordinal: i32) -> i32 {
        let get = |state: &mut State| state.device(ordinal).map(|()| ordinal);
        // SAFETY: the contract of the trait.
        unsafe { self.give_on(Some(ordinal), "cuDeviceGet", device, get) }
    }

    unsafe fn device_get_name(&self, name: *mut c_char, len: i32, device: i32) -> i32 {
        let text = c"Fake GPU".to_bytes_with_nul();
        self.act_on(Some(device), "cuDeviceGetName", |state| {
            state.device(device)?;
            if name.is_null() || usize::try_from(len).map_or(true, |len| len < text.len()) {
                return Err(INVALID_VALUE);
            }
            // SAFETY: `name` has `len` bytes by the contract of the trait.
            unsafe { name.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len()) };
            Ok(())
        })
    }

    unsafe fn device_total_mem(&self, bytes: *mut usize, device: i32) -> i32 {
        let get = |state: &mut State| state.device(device).map(|()| state.memory);
        // SAFETY: the contract of the trait.
        unsafe { self.give_on(Some(device), "cuDeviceTotalMem_v2", bytes, get) }
    }

    unsafe fn device_get_attribute(&self, value: *mut i32, which: i32, device: i32) -> i32 {
        let get = |state: &mut State| {
            state.device(device)?;
            match which {
                attribute::MULTIPROCESSORS => Ok(4),
                attribute::MAJOR => Ok(9),
                attribute::MINOR => Ok(0),
                attribute::SHARED_OPTIN => Ok(227 << 10),
                _ => Err(INVALID_VALUE),
            }
        };
        // SAFETY: the contract of the trait.
        unsafe { self.give_on(Some(device), "cuDeviceGetAttribute", value, get) }
    }

    unsafe fn primary_ctx_retain(&self, context: *mut Handle, device: i32) -> i32 {
        let retain = |state: &mut State| {
            state.device(device)?;
            *state.retained.entry(device).or_default() += 1;
            Ok(Handle(ptr::without_provenance_mut(device as usize + 1)))
        };
        // SAFETY: the contract of the trait.
        unsafe { self.give_on(Some(device), "cuDevicePrimaryCtxRetain", context, retain) }
    }

    unsafe fn primary_ctx_release(&self, device: i32) -> i32 {
        self.end(Some(device), "cuDevicePrimaryCtxRelease_v2", |state| {
            match state.retained.get_mut(&device) {
                Some(count) if *count > 0 => {
                    *count -= 1;
                    Ok(())
                }
                _ => Err(INVALID_CONTEXT),
            }
        })
    }

    unsafe fn ctx_set_current(&self, context: Handle) -> i32 {
        let device = Some(device_of(context)).filter(|_| !context.is_null());
        self.end(device, "cuCtxSetCurrent", |state| {
            if !context.is_null() && state.retained.get(&device_of(context)).is_none_or(|count| *count == 0) {
                return Err(INVALID_CONTEXT);
            }
            state.current.insert(std::thread::current().id(), context);
            Ok(())
        })
    }

    unsafe fn mem_get_info(&self, free: *mut usize, total: *mut usize) -> i32 {
        self.act("cuMemGetInfo_v2", |state| {
            state.here()?;
            if free.is_null() || total.is_null() {
                return Err(INVALID_VALUE);
            }
            let used: usize = state.allocations.values().map(|m| m.bytes.len()).sum();
            // SAFETY: the contract of the trait.
            unsafe {
                free.write(state.memory - used);
                total.write(state.memory);
            }
            Ok(())
        })
    }

    unsafe fn mem_alloc(&self, address: *mut u64, bytes: usize) -> i32 {
        let alloc = |state: &mut State| {
            let device = state.here()?;
            state.outside_captures()?;
            let used: usize = state.allocations.values().map(|m| m.bytes.len()).sum();
            if bytes == 0 {
                return Err(INVALID_VALUE);
            }
            if bytes > state.memory - used {
                return Err(OUT_OF_MEMORY);
            }
            // Allocations lie end to end: whoever takes two for one is found out.
            let at = state.address;
            state.address += (bytes as u64).next_multiple_of(512);
            state.allocations.insert(at, Memory { device, bytes: vec![0xCD; bytes] });
            Ok(at)
        };
        // SAFETY: the contract of the trait.
        unsafe { self.give("cuMemAlloc_v2", address, alloc) }
    }

    unsafe fn mem_free(&self, address: u64) -> i32 {
        let mut is_waiting = false;
        let code = self.end(None, "cuMemFree_v2", |state| {
            let here = state.here()?;
            state.outside_captures()?;
            is_waiting = state.streams.values().any(|s| s.device == here && !s.queue.is_empty());
            if state.allocations.get(&address).is_none_or(|memory| memory.device != here) {
                return Err(INVALID_VALUE);
            }
            state.allocations.remove(&address);
            Ok(())
        });
        // Stricter than a driver, which would wait: no mistake, but to be known.
        if is_waiting && code == SUCCESS { INVALID_VALUE } else { code }
    }

    unsafe fn mem_host_alloc(&self, pointer: *mut *mut c_void, bytes: usize, flags: u32) -> i32 {
        let alloc = |state: &mut State| {
            state.here()?;
            state.outside_captures()?;
            if bytes == 0 || flags > 7 {
                return Err(INVALID_VALUE);
            }
            let words = bytes.div_ceil(16);
            let pointer = Box::into_raw(vec![0u128; words].into_boxed_slice()).cast::<c_void>();
            state.pinned.insert(pointer.addr(), (Handle(pointer), words));
            Ok(pointer)
        };
        // SAFETY: the contract of the trait.
        unsafe { self.give("cuMemHostAlloc", pointer, alloc) }
    }

    unsafe fn mem_free_host(&self, pointer: *mut c_void) -> i32 {
        self.end(None, "cuMemFreeHost", |state| {
            state.here()?;
            let (memory, words) = state.pinned.remove(&pointer.addr()).ok_or(INVALID_VALUE)?;
            // SAFETY: pointer and length are those of the box it was made from, and it is freed once.
            drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(memory.0.cast::<u128>(), words)) });
            Ok(())
        })
    }

    unsafe fn memcpy_htod(&self, dst: u64, src: *const c_void, bytes: usize, stream: Handle) -> i32 {
        self.act("cuMemcpyHtoDAsync_v2", |state| {
            state.not_capturing(stream)?;
            if src.is_null() {
                return Err(INVALID_VALUE);
            }
            let src = Handle(src.cast_mut());
            if state.is_pinned(src, bytes) {
                return state.submit(stream, Node::Upload { dst, src, bytes });
            }
            // From other memory the copy is done when the call returns.
            state.drain(stream, u64::MAX)?;
            let device = state.here()?;
            let range = state.range(device, dst, bytes)?;
            // SAFETY: the contract of the trait.
            range.copy_from_slice(unsafe { std::slice::from_raw_parts(src.0.cast::<u8>(), bytes) });
            Ok(())
        })
    }

    unsafe fn memcpy_dtoh(&self, dst: *mut c_void, src: u64, bytes: usize, stream: Handle) -> i32 {
        self.act("cuMemcpyDtoHAsync_v2", |state| {
            state.not_capturing(stream)?;
            if dst.is_null() {
                return Err(INVALID_VALUE);
            }
            state.drain(stream, u64::MAX)?;
            let device = state.here()?;
            let data = state.range(device, src, bytes)?;
            // SAFETY: the contract of the trait.
            unsafe { dst.cast::<u8>().copy_from_nonoverlapping(data.as_ptr(), bytes) };
            Ok(())
        })
    }

    unsafe fn memcpy_dtod(&self, dst: u64, src: u64, bytes: usize, stream: Handle) -> i32 {
        self.act("cuMemcpyDtoDAsync_v2", |state| state.submit(stream, Node::Copy { dst, src, bytes }))
    }

    unsafe fn memset_d32(&self, dst: u64, word: u32, count: usize, stream: Handle) -> i32 {
        self.act("cuMemsetD32Async", |state| state.submit(stream, Node::Fill { dst, word, count }))
    }

    unsafe fn stream_create(&self, stream: *mut Handle, flags: u32) -> i32 {
        let create = |state: &mut State| {
            let device = state.here()?;
            if flags > 1 {
                return Err(INVALID_VALUE);
            }
            let stream = state.handle();
            let fresh = Stream { device, capture: None, after: Vec::new(), queue: VecDeque::new(), done: 0 };
            state.streams.insert(stream, fresh);
            Ok(stream)
        };
        // SAFETY: the contract of the trait.
        unsafe { self.give("cuStreamCreate", stream, create) }
    }

    unsafe fn stream_destroy(&self, stream: Handle) -> i32 {
        self.end(None, "cuStreamDestroy_v2", |state| {
            state.stream(stream)?;
            state.streams.remove(&stream);
            Ok(())
        })
    }

    unsafe fn stream_synchronize(&self, stream: Handle) -> i32 {
        self.act("cuStreamSynchronize", |state| {
            state.not_capturing(stream)?;
            state.drain(stream, u64::MAX)
        })
    }

    unsafe fn stream_begin_capture(&self, stream: Handle, mode: i32) -> i32 {
        self.act("cuStreamBeginCapture_v2", |state| {
            state.not_capturing(stream)?;
            if !(0..=2).contains(&mode) {
                return Err(INVALID_VALUE);
            }
            let thread = std::thread::current().id();
            let stream = state.stream(stream)?;
            stream.capture = Some(Capture { thread, nodes: Vec::new(), is_lost: false });
            stream.after = Vec::new();
            Ok(())
        })
    }

    unsafe fn stream_get_capture_info(
        &self,
        stream: Handle,
        status: *mut i32,
        _: *mut u64,
        _: *mut Handle,
        nodes: *mut *const Handle,
        count: *mut usize,
    ) -> i32 {
        self.act("cuStreamGetCaptureInfo_v2", |state| {
            if status.is_null() || nodes.is_null() || count.is_null() {
                return Err(INVALID_VALUE);
            }
            let stream = state.stream(stream)?;
            // SAFETY: the contract of the trait; the nodes stay where they are until the stream is used again.
            unsafe {
                status.write(i32::from(stream.capture.is_some()));
                nodes.write(stream.after.as_ptr());
                count.write(stream.after.len());
            }
            Ok(())
        })
    }

    unsafe fn stream_update_capture_dependencies(
        &self,
        stream: Handle,
        nodes: *mut Handle,
        count: usize,
        flags: u32,
    ) -> i32 {
        self.act("cuStreamUpdateCaptureDependencies", |state| {
            let stream = state.stream(stream)?;
            let recorded = stream.capture.as_ref().ok_or(INVALID_VALUE)?.nodes.len();
            if flags > 1 || (count > 0 && nodes.is_null()) {
                return Err(INVALID_VALUE);
            }
            // SAFETY: the contract of the trait; an empty list may come as any address.
            let nodes = if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(nodes, count) } };
            if nodes.iter().any(|n| !(1..=recorded).contains(&n.0.addr())) {
                return Err(INVALID_VALUE);
            }
            if flags == 0 {
                stream.after.extend(nodes);
            } else {
                stream.after = nodes.to_vec();
            }
            Ok(())
        })
    }

    unsafe fn stream_end_capture(&self, stream: Handle, graph: *mut Handle) -> i32 {
        let thread = std::thread::current().id();
        let mut made = Handle::NULL;
        // A failing end still ends the capture; its graph goes with it.
        let code = self.end(None, "cuStreamEndCapture", |state| {
            let found = state.stream(stream)?;
            if found.capture.as_ref().is_some_and(|capture| capture.thread != thread) {
                return Err(CAPTURE_WRONG_THREAD);
            }
            let capture = found.capture.take().ok_or(INVALID_VALUE)?;
            if capture.is_lost {
                return Err(CAPTURE_INVALIDATED);
            }
            if graph.is_null() {
                return Err(INVALID_VALUE);
            }
            made = state.handle();
            state.graphs.insert(made, capture.nodes);
            Ok(())
        });
        if code == SUCCESS {
            // SAFETY: not null, and the contract of the trait.
            unsafe { graph.write(made) };
        } else {
            self.state().graphs.remove(&made);
        }
        code
    }

    unsafe fn graph_instantiate(&self, exec: *mut Handle, graph: Handle, flags: u64) -> i32 {
        let instantiate = |state: &mut State| {
            state.here()?;
            if flags != 0 {
                return Err(INVALID_VALUE);
            }
            let nodes = state.graphs.get(&graph).ok_or(INVALID_HANDLE)?;
            let nodes = match state.computes {
                true => unexpected(nodes),
                false => nodes.iter().map(|node| node.0.clone()).collect(),
            };
            let exec = state.handle();
            state.execs.insert(exec, nodes);
            Ok(exec)
        };
        // SAFETY: the contract of the trait.
        unsafe { self.give("cuGraphInstantiateWithFlags", exec, instantiate) }
    }

    unsafe fn graph_launch(&self, exec: Handle, stream: Handle) -> i32 {
        self.act("cuGraphLaunch", |state| {
            state.not_capturing(stream)?;
            let nodes = state.execs.get(&exec).cloned().ok_or(INVALID_HANDLE)?;
            nodes.into_iter().try_for_each(|node| state.submit(stream, node))
        })
    }

    unsafe fn graph_exec_destroy(&self, exec: Handle) -> i32 {
        self.end(None, "cuGraphExecDestroy", |state| {
            state.here()?;
            state.execs.remove(&exec).map(drop).ok_or(INVALID_HANDLE)
        })
    }

    unsafe fn graph_destroy(&self, graph: Handle) -> i32 {
        self.end(None, "cuGraphDestroy", |state| {
            state.here()?;
            state.graphs.remove(&graph).map(drop).ok_or(INVALID_HANDLE)
        })
    }

    unsafe fn graph_get_nodes(&self, graph: Handle, _: *mut Handle, count: *mut usize) -> i32 {
        let get = |state: &mut State| {
            let nodes = state.graphs.get(&graph).ok_or(INVALID_HANDLE)?;
            Ok(nodes.iter().filter(|node| !matches!(node.0, Node::Work(_))).count())
        };
        // SAFETY: the contract of the trait.
        unsafe { self.give("cuGraphGetNodes", count, get) }
    }

    unsafe fn module_load_data(&self, module: *mut Handle, image: *const c_void) -> i32 {
        let load = |state: &mut State| {
            let device = state.here()?;
            state.outside_captures()?;
            // SAFETY: an image is at least as long as its header, by the contract of the trait.
            if image.is_null() || unsafe { image.cast::<[u8; 4]>().read() } != *b"\x7fELF" {
                return Err(INVALID_IMAGE);
            }
            let module = state.handle();
            state.modules.insert(module, device);
            Ok(module)
        };
        // SAFETY: the contract of the trait.
        unsafe { self.give("cuModuleLoadData", module, load) }
    }

    unsafe fn module_unload(&self, module: Handle) -> i32 {
        self.end(None, "cuModuleUnload", |state| {
            let here = state.here()?;
            if state.modules.get(&module).is_none_or(|device| *device != here) {
                return Err(INVALID_HANDLE);
            }
            state.modules.remove(&module);
            state.functions.retain(|_, function| function.module != module);
            Ok(())
        })
    }

    unsafe fn module_get_function(&self, function: *mut Handle, module: Handle, name: *const c_char) -> i32 {
        let get = |state: &mut State| {
            let here = state.here()?;
            if state.modules.get(&module).is_none_or(|device| *device != here) {
                return Err(INVALID_HANDLE);
            }
            if name.is_null() {
                return Err(INVALID_VALUE);
            }
            // SAFETY: the contract of the trait.
            let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
            let function = state.handle();
            state.functions.insert(function, Function { module, name, shared: 48 << 10 });
            Ok(function)
        };
        // SAFETY: the contract of the trait.
        unsafe { self.give("cuModuleGetFunction", function, get) }
    }

    unsafe fn func_set_attribute(&self, function: Handle, which: i32, value: i32) -> i32 {
        self.act("cuFuncSetAttribute", |state| {
            let function = state.functions.get_mut(&function).ok_or(INVALID_HANDLE)?;
            if which != attribute::FUNCTION_DYNAMIC_SHARED || !(0..=227 << 10).contains(&value) {
                return Err(INVALID_VALUE);
            }
            function.shared = value;
            Ok(())
        })
    }

    unsafe fn func_get_attribute(&self, value: *mut i32, which: i32, function: Handle) -> i32 {
        let get = |state: &mut State| {
            state.functions.get(&function).ok_or(INVALID_HANDLE)?;
            if which == attribute::FUNCTION_SHARED { Ok(0) } else { Err(INVALID_VALUE) }
        };
        // SAFETY: the contract of the trait.
        unsafe { self.give("cuFuncGetAttribute", value, get) }
    }

    unsafe fn func_get_param_info(
        &self,
        function: Handle,
        index: usize,
        offset: *mut usize,
        size: *mut usize,
    ) -> i32 {
        let mut is_end = false;
        let code = self.act("cuFuncGetParamInfo", |state| {
            let name = &state.functions.get(&function).ok_or(INVALID_HANDLE)?.name;
            let params = state.params.get(name).ok_or(NOT_SUPPORTED)?;
            let Some(&(at, bytes)) = params.get(index) else {
                // What a list ends with is no mistake.
                is_end = true;
                return Ok(());
            };
            if offset.is_null() || size.is_null() {
                return Err(INVALID_VALUE);
            }
            // SAFETY: the contract of the trait.
            unsafe {
                offset.write(at);
                size.write(bytes);
            }
            Ok(())
        });
        if is_end { INVALID_VALUE } else { code }
    }

    unsafe fn func_load(&self, function: Handle) -> i32 {
        self.act("cuFuncLoad", |state| state.functions.get(&function).map(drop).ok_or(INVALID_HANDLE))
    }

    unsafe fn launch_kernel(
        &self,
        function: Handle,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared: u32,
        stream: Handle,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> i32 {
        // SAFETY: `extra`, if there, is pairs of key and value up to a null key: the buffer under 1, its
        // size under 2.
        let args = unsafe {
            let (mut buffer, mut size, mut at) = (ptr::null::<u8>(), 0, extra);
            while !at.is_null() && !(*at).is_null() {
                match (*at).addr() {
                    1 => buffer = (*at.add(1)).cast(),
                    _ => size = *(*at.add(1)).cast::<usize>(),
                }
                at = at.add(2);
            }
            if buffer.is_null() { Vec::new() } else { std::slice::from_raw_parts(buffer, size).to_vec() }
        };
        self.act("cuLaunchKernel", |state| {
            let found = state.functions.get(&function).ok_or(INVALID_HANDLE)?;
            let (name, module, allowed) = (found.name.clone(), found.module, found.shared);
            if state.modules.get(&module) != Some(&state.here()?) {
                return Err(INVALID_CONTEXT);
            }
            let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
            let within = |sizes: [u32; 3], most: [u32; 3]| {
                sizes.iter().zip(most).all(|(&size, most)| (1..=most).contains(&size))
            };
            let threads: u64 = block.iter().map(|&size| u64::from(size)).product();
            let size = state.params.get(&name).map(|all| all.last().map_or(0, |last| last.0 + last.1));
            if !within(grid, [i32::MAX as u32, 65_535, 65_535])
                || !within(block, [1024, 1024, 64])
                || threads > 1024
                || i64::from(shared) > i64::from(allowed)
                || !params.is_null()
                || args.len() > 4096
                || size.is_some_and(|size| size != args.len())
            {
                return Err(INVALID_VALUE);
            }
            state.submit(stream, Node::Launch(Launch { name, grid, block, shared, args }))
        })
    }

    unsafe fn event_create(&self, event: *mut Handle, flags: u32) -> i32 {
        let create = |state: &mut State| {
            state.here()?;
            if flags > 7 {
                return Err(INVALID_VALUE);
            }
            let event = state.handle();
            state.events.insert(event, None);
            Ok(event)
        };
        // SAFETY: the contract of the trait.
        unsafe { self.give("cuEventCreate", event, create) }
    }

    unsafe fn event_record(&self, event: Handle, stream: Handle) -> i32 {
        self.act("cuEventRecord", |state| {
            state.not_capturing(stream)?;
            let found = state.stream(stream)?;
            let position = found.done + found.queue.len() as u64;
            *state.events.get_mut(&event).ok_or(INVALID_HANDLE)? = Some((stream, position));
            Ok(())
        })
    }

    unsafe fn event_synchronize(&self, event: Handle) -> i32 {
        self.act("cuEventSynchronize", |state| {
            state.here()?;
            match *state.events.get(&event).ok_or(INVALID_HANDLE)? {
                Some((stream, position)) => state.drain(stream, position),
                None => Ok(()),
            }
        })
    }

    unsafe fn event_elapsed_time(&self, milliseconds: *mut f32, start: Handle, end: Handle) -> i32 {
        let get = |state: &mut State| {
            for event in [start, end] {
                let recorded = state.events.get(&event).copied().flatten();
                let (stream, position) = recorded.ok_or(INVALID_HANDLE)?;
                if state.streams.get(&stream).ok_or(INVALID_HANDLE)?.done < position {
                    return Err(NOT_READY);
                }
            }
            Ok(0.5)
        };
        // SAFETY: the contract of the trait.
        unsafe { self.give("cuEventElapsedTime", milliseconds, get) }
    }

    unsafe fn event_destroy(&self, event: Handle) -> i32 {
        self.end(None, "cuEventDestroy_v2", |state| {
            state.here()?;
            state.events.remove(&event).map(drop).ok_or(INVALID_HANDLE)
        })
    }
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

    /// As [`Fake::with`], with results: what kernels would compute, the CPU does.
    pub fn computing(devices: i32, memory: usize) -> Fake {
        Fake::of(State { devices, memory, computes: true, ..State::default() })
    }

    fn of(state: State) -> Fake {
        let state = State { address: FIRST_ADDRESS, ..state };
        let state = Arc::new(Mutex::new(state));
        let driver = Arc::new(Driver::new(Box::new(Table(state.clone()))));
        Fake { state, driver, stub: Arc::default() }
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

    /// As [`Fake::open`], on any of its devices.
    pub fn open_at(&self, ordinal: usize) -> Result<Arc<Cuda>> {
        Cuda::with_driver(self.driver(), ordinal, Numerics::Strict, self.stub(), None)
    }

    /// As [`Fake::open`], with a disk cache in `folder`.
    pub fn open_cached(&self, folder: PathBuf) -> Result<Arc<Cuda>> {
        Cuda::with_driver(self.driver(), 0, Numerics::Strict, self.stub(), Some(folder))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the `k`-th driver call from now (1 is the next) fail with `code`.
    pub fn fail_call(&self, k: u64, code: i32) {
        self.fail(None, None, k, code, false);
    }

    /// Makes the `k`-th driver call from now and all after it fail with `code`.
    pub fn fail_from(&self, k: u64, code: i32) {
        self.fail(None, None, k, code, true);
    }

    /// Makes the `k`-th call of one entry point, such as `cuMemAlloc_v2`, fail with `code`, and those after it if it `stays`.
    pub fn fail_symbol(&self, symbol: &'static str, k: u64, code: i32, stays: bool) {
        self.fail(Some(symbol), None, k, code, stays);
    }

    /// Makes one device fail with `code`, at the `k`-th call that concerns it and for good.
    pub fn fail_device(&self, device: i32, k: u64, code: i32) {
        self.fail(None, Some(device), k, code, true);
    }

    fn fail(&self, symbol: Option<&'static str>, device: Option<i32>, at: u64, code: i32, stays: bool) {
        self.state().fault = Some(Fault { symbol, device, at, stays, code, seen: 0, failed: None });
    }

    /// Makes no call fail any more.
    pub fn recover(&self) {
        self.state().fault = None;
    }

    /// Whether the call that was to fail has been made.
    pub fn has_failed(&self) -> bool {
        self.failed().is_some()
    }

    /// The entry point of the first call that was made to fail.
    pub fn failed(&self) -> Option<&'static str> {
        self.state().fault.as_ref().and_then(|fault| fault.failed)
    }

    /// Calls so far that were refused for what they asked, as entry point and code; not those that were made to fail.
    pub fn misuses(&self) -> Vec<(&'static str, i32)> {
        self.state().misuses.clone()
    }

    /// How often each entry point has been called.
    pub fn calls_by_symbol(&self) -> BTreeMap<&'static str, u64> {
        self.state().by_symbol.clone()
    }

    /// Driver calls so far; asking for the text of an error does not count.
    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    /// What is alive.
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

    /// The launches so far, replayed ones included. Runs what is queued.
    pub fn launches(&self) -> Vec<Launch> {
        let mut state = self.state();
        state.drain_all();
        state.launches.clone()
    }

    /// How many others all nodes that were captured so far wait for, each counted by itself.
    pub fn waits(&self) -> u64 {
        self.state().waits
    }

    /// `bytes` bytes of device memory at `address`, if they are inside one allocation. Runs what is queued.
    pub fn read(&self, address: u64, bytes: usize) -> Option<Vec<u8>> {
        let mut state = self.state();
        state.drain_all();
        let device = state.allocations.range(..=address).next_back()?.1.device;
        state.range(device, address, bytes).ok().map(|found| found.to_vec())
    }

    /// Gives kernels called `name` parameters with these offsets and sizes.
    pub fn declare(&self, name: &str, params: &[(usize, usize)]) {
        self.state().params.insert(name.to_string(), params.to_vec());
    }
}

impl Default for Fake {
    fn default() -> Fake {
        Fake::new()
    }
}

/// A compiler that makes something up. A source with `#error` in it is rejected.
#[derive(Default)]
pub struct Stub {
    compiled: AtomicU64,
    missing: AtomicBool,
}

impl Stub {
    /// Modules compiled so far.
    pub fn compiled(&self) -> u64 {
        self.compiled.load(Ordering::Relaxed)
    }

    /// Makes it as if no NVRTC were installed, or one again.
    pub fn set_missing(&self, missing: bool) {
        self.missing.store(missing, Ordering::Relaxed);
    }

    fn there(&self) -> Result<()> {
        if self.missing.load(Ordering::Relaxed) {
            let looked = vec!["nowhere".to_string()];
            return Err(Error::new("nvrtc", ErrorKind::Library { name: "NVRTC (libnvrtc)", looked }));
        }
        Ok(())
    }
}

impl Compiler for Stub {
    fn version(&self) -> Result<(i32, i32)> {
        self.there().map(|()| (13, 0))
    }

    fn compile(&self, name: &str, source: &str, arch: &str) -> Result<Vec<u8>> {
        self.there()?;
        if source.contains("#error") {
            let log = format!("{name}.cu(1): error: #error directive");
            return Err(Error::new("nvrtc", ErrorKind::Compile { module: name.to_string(), log }));
        }
        self.compiled.fetch_add(1, Ordering::Relaxed);
        let mut image = image(&kernel_names(source));
        image.extend(format!("stub cubin for {arch} of {source}").bytes());
        Ok(image)
    }
}

/// An ELF file with nothing in it but the symbols of these kernels.
fn image(names: &[String]) -> Vec<u8> {
    let mut strings = vec![0u8];
    let mut symbols = vec![0u8; 24];
    for name in names {
        symbols.extend((strings.len() as u32).to_le_bytes());
        symbols.extend([0x12, 0x10]);
        symbols.extend([0; 18]);
        strings.extend(name.bytes().chain([0]));
    }
    let section = |kind: u32, at: usize, size: usize, link: u32, entry: u64| {
        let mut words = [0u64; 8];
        words[0] = u64::from(kind) << 32;
        (words[3], words[4], words[5], words[7]) = (at as u64, size as u64, u64::from(link), entry);
        words.map(u64::to_le_bytes).concat()
    };
    let mut image = vec![0u8; 64];
    image[..6].copy_from_slice(b"\x7fELF\x02\x01");
    (image[40], image[58], image[60]) = (64, 64, 3);
    let start = image.len() + 3 * 64;
    image.extend([0; 64]);
    image.extend(section(2, start, symbols.len(), 2, 24));
    image.extend(section(3, start + symbols.len(), strings.len(), 0, 0));
    image.extend(symbols);
    image.extend(strings);
    image
}

/// Names of the kernels of a source as far as they can be told from its text: the first name after `__global__` that is no
/// keyword and no launch bound, what that is defined as, and for a name that a macro makes the usual widths of a vector.
fn kernel_names(source: &str) -> Vec<String> {
    let mut names = Vec::new();
    for rest in source.split("__global__").skip(1) {
        let mut rest = rest.trim_start().strip_prefix("void").unwrap_or(rest).trim_start();
        if let Some(bounds) = rest.strip_prefix("__launch_bounds__") {
            rest = bounds.split_once(')').map_or("", |(_, after)| after).trim_start();
        }
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        if after.starts_with("##") {
            names.extend([1, 2, 4].map(|width| format!("{name}{width}")));
        } else if !name.is_empty() && after.trim_start().starts_with('(') {
            names.push(name.to_string());
        }
    }
    let words = |line: &str| line.split(' ').map(str::to_string).collect::<Vec<_>>();
    for line in source.lines().filter_map(|line| line.strip_prefix("#define ")).map(words) {
        if let [name, other] = &line[..]
            && names.contains(name)
        {
            names.push(other.clone());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fake is as strict as a driver, and says so: a table of calls that no driver takes.
    #[test]
    fn the_fake_refuses_what_a_driver_refuses() {
        fn code<T>(result: Result<T>) -> i32 {
            match result.map(drop).expect_err("refused").kind() {
                ErrorKind::Cuda { code, .. } => *code,
                other => panic!("{other:?}"),
            }
        }
        let fake = Fake::with(2, 16 << 20);
        let driver = fake.driver();
        let nobody = Handle(std::ptr::without_provenance_mut(0x99990));
        assert_eq!(code(driver.device_count()), 3, "before cuInit");
        assert_eq!(code(driver.device(0)), 3, "before cuInit");
        driver.init().expect("initialises");
        let before = [
            (code(driver.device(2)), 101, "a device that is not there"),
            (code(driver.device(-1)), 101, "a device that is not there"),
            (code(driver.device_name(2)), 101, "a device that is not there"),
            (code(driver.device_total_mem(7)), 101, "a device that is not there"),
            (code(driver.device_attribute(attribute::MAJOR, 2)), 101, "a device that is not there"),
            (code(driver.device_attribute(12345, 0)), 1, "an attribute that is not there"),
            (code(driver.primary_ctx_retain(2)), 101, "a device that is not there"),
            (code(driver.primary_ctx_release(0)), 201, "a context that was not retained"),
            (code(driver.ctx_set_current(nobody)), 201, "a context that was not retained"),
            (code(driver.mem_info()), 201, "no context"),
            (code(driver.mem_alloc(64)), 201, "no context"),
            (code(driver.mem_free(64)), 201, "no context"),
            (code(driver.mem_host_alloc(64)), 201, "no context"),
            (code(driver.stream_create()), 201, "no context"),
            (code(driver.stream_synchronize(nobody)), 201, "no context"),
            (code(driver.event_create(true)), 201, "no context"),
            // SAFETY: an image that is refused is not read.
            (code(unsafe { driver.module_load(b"\x7fELF") }), 201, "no context"),
        ];
        for (got, want, what) in before {
            assert_eq!(got, want, "{what}");
        }
        let contexts = [0, 1].map(|device| driver.primary_ctx_retain(device).expect("retains"));
        driver.ctx_set_current(contexts[1]).expect("sets");
        let theirs = driver.mem_alloc(64).expect("room");
        let their_stream = driver.stream_create().expect("a stream");
        // SAFETY: the fake reads the first bytes.
        let their_module = unsafe { driver.module_load(b"\x7fELF") }.expect("loads");
        driver.ctx_set_current(contexts[0]).expect("sets");
        let (a, b) = (driver.mem_alloc(64).expect("room"), driver.mem_alloc(64).expect("room"));
        let gone = driver.mem_alloc(64).expect("room");
        driver.mem_free(gone).expect("frees");
        let stream = driver.stream_create().expect("a stream");
        let dead = driver.stream_create().expect("a stream");
        driver.stream_destroy(dead).expect("destroys");
        // SAFETY: as above.
        let load = |image: &[u8]| unsafe { driver.module_load(image) };
        let module = load(b"\x7fELF").expect("loads");
        let function = driver.module_function(module, "k").expect("a function");
        let unloaded = load(b"\x7fELF").expect("loads");
        let orphan = driver.module_function(unloaded, "k").expect("a function");
        driver.module_unload(unloaded).expect("unloads");
        let (event, raw) = (driver.event_create(true).expect("an event"), driver.event_create(true));
        driver.event_record(event, stream).expect("records");
        let raw = raw.expect("an event");
        let pinned = driver.mem_host_alloc(64).expect("room");
        let (host, mut back) = ([0u8; 128], [0u8; 128]);
        // SAFETY: `host` outlives the calls, which copy at once or are refused.
        let up = |dst, bytes, stream| unsafe { driver.memcpy_htod(dst, host.as_ptr(), bytes, stream) };
        // SAFETY: more than the 64 pinned bytes is taken for other memory, and refused since `a` has no more either.
        let past = || unsafe { driver.memcpy_htod(a, pinned.0.cast(), 65, stream) };
        let launch =
            |function, grid, block, shared| driver.launch(function, grid, block, shared, stream, &[]);
        let table = [
            (code(driver.mem_alloc(0)), 1, "no bytes"),
            (code(driver.mem_alloc(1 << 40)), 2, "more than there is"),
            (code(driver.mem_free(gone)), 1, "freed twice"),
            (code(driver.mem_free(a + 1)), 1, "not the start"),
            (code(driver.mem_free(theirs)), 1, "of another context"),
            (code(driver.mem_host_alloc(0)), 1, "no bytes"),
            (code(driver.mem_free_host(nobody)), 1, "not pinned"),
            (code(up(a, 65, stream)), 1, "past the end"),
            (code(up(a + 60, 5, stream)), 1, "past the end"),
            (code(up(gone, 1, stream)), 1, "freed"),
            (code(up(theirs, 1, stream)), 1, "of another context"),
            (code(up(a, 1, dead)), 400, "a stream that is gone"),
            (code(up(a, 1, their_stream)), 201, "a stream of another context"),
            // SAFETY: refused.
            (code(unsafe { driver.memcpy_htod(a, std::ptr::null(), 4, stream) }), 1, "from nowhere"),
            (code(past()), 1, "past the pinned memory"),
            // SAFETY: refused.
            (code(unsafe { driver.memcpy_dtoh(back.as_mut_ptr(), a, 65, stream) }), 1, "past the end"),
            // SAFETY: refused.
            (code(unsafe { driver.memcpy_dtoh(std::ptr::null_mut(), a, 4, stream) }), 1, "to nowhere"),
            (code(driver.memcpy_dtod(a, b, 65, stream)), 1, "past the end"),
            (code(driver.memcpy_dtod(a, a + 4, 8, stream)), 1, "overlap"),
            (code(driver.memcpy_dtod(a, theirs, 8, stream)), 1, "of another context"),
            (code(driver.memset_d32(a + 2, 0, 1, stream)), 1, "misaligned"),
            (code(driver.memset_d32(a, 0, 17, stream)), 1, "past the end"),
            (code(driver.memset_d32(a, 0, usize::MAX, stream)), 1, "overflow"),
            (code(driver.stream_destroy(dead)), 400, "destroyed twice"),
            (code(driver.stream_synchronize(dead)), 400, "a stream that is gone"),
            (code(driver.stream_synchronize(their_stream)), 201, "a stream of another context"),
            (code(driver.stream_end_capture(stream)), 1, "no capture"),
            (code(driver.stream_capture_after(stream, &mut [])), 1, "no capture"),
            (code(driver.graph_instantiate(nobody)), 400, "no graph"),
            (code(driver.graph_launch(nobody, stream)), 400, "no graph"),
            (code(driver.graph_exec_destroy(nobody)), 400, "no graph"),
            (code(driver.graph_destroy(nobody)), 400, "no graph"),
            (code(driver.graph_node_count(nobody)), 400, "no graph"),
            (code(load(b"text")), 200, "no image"),
            (code(driver.module_unload(unloaded)), 400, "unloaded twice"),
            (code(driver.module_unload(their_module)), 400, "of another context"),
            (code(driver.module_function(unloaded, "k")), 400, "unloaded"),
            (code(driver.function_get(orphan, attribute::FUNCTION_SHARED)), 400, "unloaded"),
            (code(driver.function_get(function, 12345)), 1, "an attribute that is not there"),
            (code(driver.function_set(function, attribute::FUNCTION_DYNAMIC_SHARED, -1)), 1, "below nothing"),
            (code(driver.function_set(function, attribute::FUNCTION_DYNAMIC_SHARED, 1 << 20)), 1, "too much"),
            (code(driver.function_load(nobody)), 400, "no function"),
            (code(launch(orphan, [1; 3], 32, 0)), 400, "unloaded"),
            (code(launch(function, [0, 1, 1], 32, 0)), 1, "no blocks"),
            (code(launch(function, [1 << 31, 1, 1], 32, 0)), 1, "too many blocks"),
            (code(launch(function, [1, 65_536, 1], 32, 0)), 1, "too many blocks"),
            (code(launch(function, [1, 1, 65_536], 32, 0)), 1, "too many blocks"),
            (code(launch(function, [1; 3], 0, 0)), 1, "no threads"),
            (code(launch(function, [1; 3], 1025, 0)), 1, "too many threads"),
            (code(launch(function, [1; 3], 32, (48 << 10) + 1)), 1, "more shared memory than allowed"),
            (code(driver.launch(function, [1; 3], 32, 0, stream, &[0; 4097])), 1, "too many arguments"),
            (code(driver.launch(function, [1; 3], 32, 0, their_stream, &[])), 201, "of another context"),
            (code(driver.event_record(nobody, stream)), 400, "no event"),
            (code(driver.event_synchronize(nobody)), 400, "no event"),
            (code(driver.event_elapsed(event, raw)), 400, "not recorded"),
            (code(driver.event_destroy(nobody)), 400, "no event"),
        ];
        for (got, want, what) in &table {
            assert_eq!(got, want, "{what}");
        }
        // Each of them is on record, but for being out of memory.
        assert_eq!(fake.misuses().len(), 2 + before.len() + table.len() - 1);

        // An event that has not passed, and work on memory that is freed before it runs.
        driver.memset_d32(a, 7, 1, stream).expect("queued");
        driver.event_record(raw, stream).expect("records");
        assert_eq!(code(driver.event_elapsed(event, raw)), 600);
        driver.stream_synchronize(stream).expect("waits");
        driver.event_elapsed(event, raw).expect("passed");
        driver.memset_d32(b, 7, 1, stream).expect("queued");
        assert_eq!(code(driver.mem_free(b)), 1, "with work queued");
        assert_eq!(code(driver.stream_synchronize(stream)), 700, "it was freed");
        // A kernel that is given an address that is no more; the end of what is there is not one.
        let args = |address: u64| address.to_ne_bytes();
        driver.launch(function, [1; 3], 32, 0, stream, &args(a + 64)).expect("queued");
        driver.stream_synchronize(stream).expect("an empty range");
        for address in [b, theirs, a + 65] {
            driver.launch(function, [1; 3], 32, 0, stream, &args(address)).expect("queued");
            assert_eq!(code(driver.stream_synchronize(stream)), 700, "{address:#x}");
        }

        // What a capture cannot contain loses it; another thread cannot end it.
        driver.stream_begin_capture(stream).expect("begins");
        driver.memset_d32(a, 1, 1, stream).expect("recorded");
        let mut beyond = [Handle(std::ptr::without_provenance_mut(2))];
        assert_eq!(code(driver.stream_capture_after(stream, &mut beyond)), 1, "a node that is not there");
        assert_eq!(code(driver.stream_begin_capture(stream)), 900, "twice");
        assert_eq!(code(driver.stream_end_capture(stream)), 901, "lost");
        let losing: [&dyn Fn() -> i32; 7] = [
            &|| code(driver.mem_alloc(64)),
            &|| code(driver.mem_host_alloc(64)),
            &|| code(load(b"\x7fELF")),
            &|| code(driver.stream_synchronize(stream)),
            &|| code(up(a, 4, stream)),
            &|| code(driver.event_record(event, stream)),
            &|| code(driver.mem_free(a)),
        ];
        for lose in losing {
            driver.stream_begin_capture(stream).expect("begins");
            assert_eq!(lose(), 900);
            assert_eq!(code(driver.stream_end_capture(stream)), 901);
        }
        driver.stream_begin_capture(stream).expect("begins");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                driver.ctx_set_current(contexts[0]).expect("sets");
                assert_eq!(code(driver.stream_end_capture(stream)), 908);
            });
        });
        let graph = driver.stream_end_capture(stream).expect("ends");
        driver.graph_destroy(graph).expect("destroys");
        assert_eq!(code(driver.graph_instantiate(graph)), 400);
        // What is alive is on the books.
        let live = fake.live();
        assert_eq!((live.contexts, live.allocations, live.pinned, live.streams), (2, 2, 1, 2));
        assert_eq!((live.events, live.modules, live.graphs, live.captures), (2, 2, 0, 0));
        driver.mem_free_host(pinned).expect("frees");
    }
}
