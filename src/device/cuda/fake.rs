//! A driver in host memory, for tests where there is no GPU.
//!
//! It implements the same table of entry points as the library. Device memory is a map of byte vectors.
//! What is submitted to a stream waits in its queue, pinned sources included, until somebody waits for
//! it: whoever reuses memory too early is found out. It refuses what a driver refuses (unknown handles,
//! foreign ranges, no current context, waiting in a capture) and, stricter, freeing with work queued. A
//! chosen call can be made to fail; it then creates nothing, but what it was to destroy is destroyed, as
//! when a driver reports an earlier error through it. What is alive is counted, so leaks show.

#![allow(unsafe_code)]

use super::context::Cuda;
use super::driver::{Driver, Entry, Handle, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, SUCCESS, attribute};
use super::nvrtc::Compiler;
use crate::error::{Error, ErrorKind, Result};
use crate::numerics::Numerics;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ffi::{CStr, c_char, c_void};
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

const INVALID_DEVICE: i32 = 101;
const INVALID_CONTEXT: i32 = 201;
const INVALID_HANDLE: i32 = 400;
const ILLEGAL_ADDRESS: i32 = 700;
const CAPTURE_UNSUPPORTED: i32 = 900;

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
}

#[derive(Default)]
struct Stream {
    /// What was recorded, while a capture runs.
    capture: Option<Vec<Node>>,
    /// What the next recorded node waits for: numbers of nodes, from 1.
    after: Vec<Handle>,
    queue: VecDeque<Node>,
    /// Operations that have left the queue.
    done: u64,
}

#[derive(Default)]
struct State {
    devices: i32,
    memory: usize,
    calls: u64,
    /// From which call to fail, with which code, and whether all calls after it fail too.
    fail: Option<(u64, i32, bool)>,
    next: usize,
    address: u64,
    retained: HashMap<i32, usize>,
    current: HashMap<ThreadId, Handle>,
    allocations: BTreeMap<u64, Vec<u8>>,
    /// Pinned memory in words of 16 bytes.
    pinned: BTreeMap<usize, (Handle, usize)>,
    streams: HashMap<Handle, Stream>,
    /// Where in which stream an event was recorded.
    events: HashMap<Handle, Option<(Handle, u64)>>,
    modules: HashSet<Handle>,
    functions: HashMap<Handle, String>,
    dynamic: HashMap<Handle, i32>,
    graphs: HashMap<Handle, Vec<Node>>,
    execs: HashMap<Handle, Vec<Node>>,
    launches: Vec<Launch>,
    params: HashMap<String, Vec<(usize, usize)>>,
}

type Outcome<T = ()> = std::result::Result<T, i32>;

impl State {
    /// Counts a call; the code it is to fail with, if it is.
    fn step(&mut self) -> Outcome {
        self.calls += 1;
        match self.fail {
            Some((at, code, on)) if self.calls == at || (on && self.calls > at) => Err(code),
            _ => Ok(()),
        }
    }

    fn handle(&mut self) -> Handle {
        self.next += 1;
        Handle(ptr::without_provenance_mut(self.next << 4))
    }

    fn current(&self) -> Outcome {
        match self.current.get(&std::thread::current().id()) {
            Some(context) if !context.is_null() => Ok(()),
            _ => Err(INVALID_CONTEXT),
        }
    }

    fn range(&mut self, address: u64, bytes: usize) -> Outcome<&mut [u8]> {
        let (&start, memory) = self.allocations.range_mut(..=address).next_back().ok_or(INVALID_VALUE)?;
        let offset = (address - start) as usize;
        memory.get_mut(offset..).and_then(|rest| rest.get_mut(..bytes)).ok_or(INVALID_VALUE)
    }

    /// Queues a node, or records it if the stream captures.
    fn submit(&mut self, stream: Handle, node: Node) -> Outcome {
        self.current()?;
        let (dst, bytes) = match node {
            Node::Upload { dst, bytes, .. } => (dst, bytes),
            Node::Copy { dst, src, bytes } => {
                self.range(src, bytes)?;
                (dst, bytes)
            }
            Node::Fill { dst, count, .. } => (dst, count.checked_mul(4).ok_or(INVALID_VALUE)?),
            Node::Launch(_) => (0, 0),
        };
        if bytes > 0 {
            self.range(dst, bytes)?;
        }
        let stream = self.streams.get_mut(&stream).ok_or(INVALID_HANDLE)?;
        match &mut stream.capture {
            Some(recorded) => {
                recorded.push(node);
                stream.after = vec![Handle(std::ptr::without_provenance_mut(recorded.len()))];
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
            self.execute(node).map_err(|_| ILLEGAL_ADDRESS)?;
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

    fn execute(&mut self, node: Node) -> Outcome {
        match node {
            Node::Launch(launch) => self.launches.push(launch),
            Node::Upload { dst, src, bytes } => {
                if !self.is_pinned(src, bytes) {
                    return Err(INVALID_VALUE);
                }
                // SAFETY: the range lies in pinned memory that was not freed. That nobody writes it now
                // is what the tests are to show.
                let data = unsafe { std::slice::from_raw_parts(src.0.cast::<u8>(), bytes) };
                self.range(dst, bytes)?.copy_from_slice(data);
            }
            Node::Copy { dst, src, bytes } => {
                let data = self.range(src, bytes)?.to_vec();
                self.range(dst, bytes)?.copy_from_slice(&data);
            }
            Node::Fill { dst, word, count } => {
                let words = self.range(dst, count.checked_mul(4).ok_or(INVALID_VALUE)?)?;
                words.chunks_exact_mut(4).for_each(|slot| slot.copy_from_slice(&word.to_ne_bytes()));
            }
        }
        Ok(())
    }

    fn is_pinned(&self, pointer: Handle, bytes: usize) -> bool {
        let at = pointer.0.addr();
        let found = self.pinned.range(..=at).next_back();
        found.is_some_and(|(&start, &(_, words))| at - start + bytes <= words * 16)
    }

    /// Refuses what must not happen on a capturing stream.
    fn not_capturing(&self, stream: Handle) -> Outcome {
        match self.streams.get(&stream).ok_or(INVALID_HANDLE)?.capture {
            Some(_) => Err(CAPTURE_UNSUPPORTED),
            None => Ok(()),
        }
    }
}

/// The table of entry points over the shared state.
struct Table(Arc<Mutex<State>>);

impl Table {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call that does `f` unless it is to fail.
    fn act(&self, f: impl FnOnce(&mut State) -> Outcome) -> i32 {
        let mut state = self.state();
        state.step().and_then(|()| f(&mut state)).err().unwrap_or(SUCCESS)
    }

    /// A call that does `f` even if it is to fail.
    fn end(&self, f: impl FnOnce(&mut State) -> Outcome) -> i32 {
        let mut state = self.state();
        let step = state.step();
        let done = f(&mut state);
        step.and(done).err().unwrap_or(SUCCESS)
    }

    /// A call that writes the value of `f` to `out` unless it is to fail.
    ///
    /// # Safety
    /// `out` must be writable.
    unsafe fn give<T>(&self, out: *mut T, f: impl FnOnce(&mut State) -> Outcome<T>) -> i32 {
        self.act(|state| {
            let value = f(state)?;
            // SAFETY: the caller's contract.
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
        INVALID_DEVICE => c"CUDA_ERROR_INVALID_DEVICE",
        INVALID_CONTEXT => c"CUDA_ERROR_INVALID_CONTEXT",
        INVALID_HANDLE => c"CUDA_ERROR_INVALID_HANDLE",
        ILLEGAL_ADDRESS => c"CUDA_ERROR_ILLEGAL_ADDRESS",
        719 => c"CUDA_ERROR_LAUNCH_FAILED",
        CAPTURE_UNSUPPORTED => c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        _ => c"CUDA_ERROR",
    }
}

// SAFETY (of the raw pointers in every method): out-pointers and host ranges are the caller's
// responsibility by the contract of the trait; they are used within the call only.
impl Entry for Table {
    unsafe fn init(&self, _: u32) -> i32 {
        self.act(|_| Ok(()))
    }

    unsafe fn driver_get_version(&self, version: *mut i32) -> i32 {
        // SAFETY: the contract of the trait.
        unsafe { self.give(version, |_| Ok(13000)) }
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
        // SAFETY: the contract of the trait.
        unsafe { self.give(count, |state| Ok(state.devices)) }
    }

    unsafe fn device_get(&self, device: *mut i32, ordinal: i32) -> i32 {
        let get = |state: &mut State| {
            if (0..state.devices).contains(&ordinal) { Ok(ordinal) } else { Err(INVALID_DEVICE) }
        };
        // SAFETY: the contract of the trait.
        unsafe { self.give(device, get) }
    }

    unsafe fn device_get_name(&self, name: *mut c_char, len: i32, _: i32) -> i32 {
        let text = c"Fake GPU".to_bytes_with_nul();
        self.act(|_| {
            if (len as usize) < text.len() {
                return Err(INVALID_VALUE);
            }
            // SAFETY: `name` has `len` bytes by the contract of the trait.
            unsafe { name.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len()) };
            Ok(())
        })
    }

    unsafe fn device_total_mem(&self, bytes: *mut usize, _: i32) -> i32 {
        // SAFETY: the contract of the trait.
        unsafe { self.give(bytes, |state| Ok(state.memory)) }
    }

    unsafe fn device_get_attribute(&self, value: *mut i32, which: i32, _: i32) -> i32 {
        let get = |_: &mut State| match which {
            attribute::MULTIPROCESSORS => Ok(4),
            attribute::MAJOR => Ok(9),
            attribute::MINOR => Ok(0),
            attribute::SHARED_OPTIN => Ok(227 << 10),
            _ => Err(INVALID_VALUE),
        };
        // SAFETY: the contract of the trait.
        unsafe { self.give(value, get) }
    }

    unsafe fn primary_ctx_retain(&self, context: *mut Handle, device: i32) -> i32 {
        let retain = |state: &mut State| {
            *state.retained.entry(device).or_default() += 1;
            Ok(Handle(ptr::without_provenance_mut(device as usize + 1)))
        };
        // SAFETY: the contract of the trait.
        unsafe { self.give(context, retain) }
    }

    unsafe fn primary_ctx_release(&self, device: i32) -> i32 {
        self.end(|state| match state.retained.get_mut(&device) {
            Some(count) if *count > 0 => {
                *count -= 1;
                Ok(())
            }
            _ => Err(INVALID_CONTEXT),
        })
    }

    unsafe fn ctx_set_current(&self, context: Handle) -> i32 {
        self.act(|state| {
            state.current.insert(std::thread::current().id(), context);
            Ok(())
        })
    }

    unsafe fn mem_get_info(&self, free: *mut usize, total: *mut usize) -> i32 {
        self.act(|state| {
            state.current()?;
            let used: usize = state.allocations.values().map(Vec::len).sum();
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
            state.current()?;
            let used: usize = state.allocations.values().map(Vec::len).sum();
            if bytes == 0 {
                return Err(INVALID_VALUE);
            }
            if bytes > state.memory - used {
                return Err(OUT_OF_MEMORY);
            }
            // Allocations lie end to end: whoever takes two for one is found out.
            let at = state.address;
            state.address += (bytes as u64).next_multiple_of(512);
            state.allocations.insert(at, vec![0xCD; bytes]);
            Ok(at)
        };
        // SAFETY: the contract of the trait.
        unsafe { self.give(address, alloc) }
    }

    unsafe fn mem_free(&self, address: u64) -> i32 {
        self.end(|state| {
            let waiting = state.streams.values().any(|stream| !stream.queue.is_empty());
            let freed = state.allocations.remove(&address).map(drop).ok_or(INVALID_VALUE);
            if waiting { Err(INVALID_VALUE) } else { freed }
        })
    }

    unsafe fn mem_host_alloc(&self, pointer: *mut *mut c_void, bytes: usize, _: u32) -> i32 {
        let alloc = |state: &mut State| {
            state.current()?;
            let words = bytes.div_ceil(16);
            let pointer = Box::into_raw(vec![0u128; words].into_boxed_slice()).cast::<c_void>();
            state.pinned.insert(pointer.addr(), (Handle(pointer), words));
            Ok(pointer)
        };
        // SAFETY: the contract of the trait.
        unsafe { self.give(pointer, alloc) }
    }

    unsafe fn mem_free_host(&self, pointer: *mut c_void) -> i32 {
        self.end(|state| {
            let (memory, words) = state.pinned.remove(&pointer.addr()).ok_or(INVALID_VALUE)?;
            // SAFETY: pointer and length are those of the box it was made from, and it is freed once.
            drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(memory.0.cast::<u128>(), words)) });
            Ok(())
        })
    }

    unsafe fn memcpy_htod(&self, dst: u64, src: *const c_void, bytes: usize, stream: Handle) -> i32 {
        self.act(|state| {
            state.not_capturing(stream)?;
            let src = Handle(src.cast_mut());
            if state.is_pinned(src, bytes) {
                return state.submit(stream, Node::Upload { dst, src, bytes });
            }
            // From other memory the copy is done when the call returns.
            state.drain(stream, u64::MAX)?;
            // SAFETY: the contract of the trait.
            let data = unsafe { std::slice::from_raw_parts(src.0.cast::<u8>(), bytes) };
            state.range(dst, bytes)?.copy_from_slice(data);
            Ok(())
        })
    }

    unsafe fn memcpy_dtoh(&self, dst: *mut c_void, src: u64, bytes: usize, stream: Handle) -> i32 {
        self.act(|state| {
            state.current()?;
            state.not_capturing(stream)?;
            state.drain(stream, u64::MAX)?;
            let data = state.range(src, bytes)?;
            // SAFETY: the contract of the trait.
            unsafe { dst.cast::<u8>().copy_from_nonoverlapping(data.as_ptr(), bytes) };
            Ok(())
        })
    }

    unsafe fn memcpy_dtod(&self, dst: u64, src: u64, bytes: usize, stream: Handle) -> i32 {
        self.act(|state| state.submit(stream, Node::Copy { dst, src, bytes }))
    }

    unsafe fn memset_d32(&self, dst: u64, word: u32, count: usize, stream: Handle) -> i32 {
        self.act(|state| state.submit(stream, Node::Fill { dst, word, count }))
    }

    unsafe fn stream_create(&self, stream: *mut Handle, _: u32) -> i32 {
        let create = |state: &mut State| {
            state.current()?;
            let stream = state.handle();
            state.streams.insert(stream, Stream::default());
            Ok(stream)
        };
        // SAFETY: the contract of the trait.
        unsafe { self.give(stream, create) }
    }

    unsafe fn stream_destroy(&self, stream: Handle) -> i32 {
        self.end(|state| state.streams.remove(&stream).map(drop).ok_or(INVALID_HANDLE))
    }

    unsafe fn stream_synchronize(&self, stream: Handle) -> i32 {
        self.act(|state| {
            state.not_capturing(stream)?;
            state.drain(stream, u64::MAX)
        })
    }

    unsafe fn stream_begin_capture(&self, stream: Handle, _: i32) -> i32 {
        self.act(|state| {
            state.not_capturing(stream)?;
            let stream = state.streams.get_mut(&stream).ok_or(INVALID_HANDLE)?;
            (stream.capture, stream.after) = (Some(Vec::new()), Vec::new());
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
        self.act(|state| {
            let stream = state.streams.get(&stream).ok_or(INVALID_HANDLE)?;
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
        _: u32,
    ) -> i32 {
        self.act(|state| {
            let stream = state.streams.get_mut(&stream).ok_or(INVALID_HANDLE)?;
            let recorded = stream.capture.as_ref().ok_or(INVALID_VALUE)?.len();
            // SAFETY: the contract of the trait; an empty list may come as any address.
            let nodes = if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(nodes, count) } };
            if nodes.iter().any(|n| !(1..=recorded).contains(&n.0.addr())) {
                return Err(INVALID_VALUE);
            }
            stream.after = nodes.to_vec();
            Ok(())
        })
    }

    unsafe fn stream_end_capture(&self, stream: Handle, graph: *mut Handle) -> i32 {
        // A failing end still ends the capture, and gives no graph.
        let mut state = self.state();
        let step = state.step();
        let Some(nodes) = state.streams.get_mut(&stream).and_then(|stream| stream.capture.take()) else {
            return INVALID_VALUE;
        };
        if let Err(code) = step {
            return code;
        }
        let handle = state.handle();
        state.graphs.insert(handle, nodes);
        // SAFETY: the contract of the trait.
        unsafe { graph.write(handle) };
        SUCCESS
    }

    unsafe fn graph_instantiate(&self, exec: *mut Handle, graph: Handle, _: u64) -> i32 {
        let instantiate = |state: &mut State| {
            let nodes = state.graphs.get(&graph).cloned().ok_or(INVALID_HANDLE)?;
            let exec = state.handle();
            state.execs.insert(exec, nodes);
            Ok(exec)
        };
        // SAFETY: the contract of the trait.
        unsafe { self.give(exec, instantiate) }
    }

    unsafe fn graph_launch(&self, exec: Handle, stream: Handle) -> i32 {
        self.act(|state| {
            state.current()?;
            state.not_capturing(stream)?;
            let nodes = state.execs.get(&exec).cloned().ok_or(INVALID_HANDLE)?;
            nodes.into_iter().try_for_each(|node| state.submit(stream, node))
        })
    }

    unsafe fn graph_exec_destroy(&self, exec: Handle) -> i32 {
        self.end(|state| state.execs.remove(&exec).map(drop).ok_or(INVALID_HANDLE))
    }

    unsafe fn graph_destroy(&self, graph: Handle) -> i32 {
        self.end(|state| state.graphs.remove(&graph).map(drop).ok_or(INVALID_HANDLE))
    }

    unsafe fn graph_get_nodes(&self, graph: Handle, _: *mut Handle, count: *mut usize) -> i32 {
        let get = |state: &mut State| state.graphs.get(&graph).map(Vec::len).ok_or(INVALID_HANDLE);
        // SAFETY: the contract of the trait.
        unsafe { self.give(count, get) }
    }

    unsafe fn module_load_data(&self, module: *mut Handle, _: *const c_void) -> i32 {
        let load = |state: &mut State| {
            state.current()?;
            let module = state.handle();
            state.modules.insert(module);
            Ok(module)
        };
        // SAFETY: the contract of the trait.
        unsafe { self.give(module, load) }
    }

    unsafe fn module_unload(&self, module: Handle) -> i32 {
        self.end(|state| if state.modules.remove(&module) { Ok(()) } else { Err(INVALID_HANDLE) })
    }

    unsafe fn module_get_function(&self, function: *mut Handle, module: Handle, name: *const c_char) -> i32 {
        // SAFETY: the contract of the trait.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        let get = |state: &mut State| {
            if !state.modules.contains(&module) {
                return Err(INVALID_HANDLE);
            }
            let function = state.handle();
            state.functions.insert(function, name);
            Ok(function)
        };
        // SAFETY: the contract of the trait.
        unsafe { self.give(function, get) }
    }

    unsafe fn func_set_attribute(&self, function: Handle, which: i32, value: i32) -> i32 {
        self.act(|state| {
            if which != attribute::FUNCTION_DYNAMIC_SHARED || value > 227 << 10 {
                return Err(INVALID_VALUE);
            }
            state.dynamic.insert(function, value);
            Ok(())
        })
    }

    unsafe fn func_get_attribute(&self, value: *mut i32, _: i32, _: Handle) -> i32 {
        // SAFETY: the contract of the trait.
        unsafe { self.give(value, |_| Ok(0)) }
    }

    unsafe fn func_get_param_info(
        &self,
        function: Handle,
        index: usize,
        offset: *mut usize,
        size: *mut usize,
    ) -> i32 {
        self.act(|state| {
            let name = state.functions.get(&function).ok_or(INVALID_HANDLE)?;
            let params = state.params.get(name).ok_or(NOT_SUPPORTED)?;
            let &(at, bytes) = params.get(index).ok_or(INVALID_VALUE)?;
            // SAFETY: the contract of the trait.
            unsafe {
                offset.write(at);
                size.write(bytes);
            }
            Ok(())
        })
    }

    unsafe fn func_load(&self, function: Handle) -> i32 {
        self.act(|state| state.functions.get(&function).map(drop).ok_or(INVALID_HANDLE))
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
        _: *mut *mut c_void,
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
        self.act(|state| {
            let name = state.functions.get(&function).cloned().ok_or(INVALID_HANDLE)?;
            let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
            let threads: u64 = block.iter().map(|&size| u64::from(size)).product();
            let allowed = state.dynamic.get(&function).copied().unwrap_or(48 << 10);
            if grid.contains(&0) || !(1..=1024).contains(&threads) || i64::from(shared) > i64::from(allowed) {
                return Err(INVALID_VALUE);
            }
            state.submit(stream, Node::Launch(Launch { name, grid, block, shared, args }))
        })
    }

    unsafe fn event_create(&self, event: *mut Handle, _: u32) -> i32 {
        let create = |state: &mut State| {
            state.current()?;
            let event = state.handle();
            state.events.insert(event, None);
            Ok(event)
        };
        // SAFETY: the contract of the trait.
        unsafe { self.give(event, create) }
    }

    unsafe fn event_record(&self, event: Handle, stream: Handle) -> i32 {
        self.act(|state| {
            state.not_capturing(stream)?;
            let found = state.streams.get(&stream).ok_or(INVALID_HANDLE)?;
            let position = found.done + found.queue.len() as u64;
            *state.events.get_mut(&event).ok_or(INVALID_HANDLE)? = Some((stream, position));
            Ok(())
        })
    }

    unsafe fn event_synchronize(&self, event: Handle) -> i32 {
        self.act(|state| match *state.events.get(&event).ok_or(INVALID_HANDLE)? {
            Some((stream, position)) => state.drain(stream, position),
            None => Ok(()),
        })
    }

    unsafe fn event_elapsed_time(&self, milliseconds: *mut f32, _: Handle, _: Handle) -> i32 {
        // SAFETY: the contract of the trait.
        unsafe { self.give(milliseconds, |_| Ok(0.5)) }
    }

    unsafe fn event_destroy(&self, event: Handle) -> i32 {
        self.end(|state| state.events.remove(&event).map(drop).ok_or(INVALID_HANDLE))
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
        let state = State { devices, memory, address: 0x7000_0000_0000, ..State::default() };
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
        Cuda::with_driver(self.driver(), 0, Numerics::Strict, self.stub(), None)
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
        let mut state = self.state();
        state.fail = Some((state.calls + k, code, false));
    }

    /// Makes the `k`-th driver call from now and all after it fail with `code`.
    pub fn fail_from(&self, k: u64, code: i32) {
        let mut state = self.state();
        state.fail = Some((state.calls + k, code, true));
    }

    /// Makes no call fail any more.
    pub fn recover(&self) {
        self.state().fail = None;
    }

    /// Whether the call that was to fail has been made.
    pub fn has_failed(&self) -> bool {
        let state = self.state();
        state.fail.is_some_and(|(at, ..)| state.calls >= at)
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

    /// `bytes` bytes of device memory at `address`, if they are inside one allocation. Runs what is queued.
    pub fn read(&self, address: u64, bytes: usize) -> Option<Vec<u8>> {
        let mut state = self.state();
        state.drain_all();
        state.range(address, bytes).ok().map(|found| found.to_vec())
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
