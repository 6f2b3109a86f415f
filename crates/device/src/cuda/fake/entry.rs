//! The entry points of the driver, each a change of the fake's state.
#![allow(unsafe_code)]

use super::Launch;
use super::codes::{
    CAPTURE_INVALIDATED, CAPTURE_WRONG_THREAD, INVALID_CONTEXT, INVALID_HANDLE, INVALID_IMAGE,
    LAUNCH_TIMEOUT, NOT_INITIALIZED, code_name,
};
use super::queue::{Node, unexpected_order};
use super::state::{Capture, Function, Memory, Outcome, State, Stream, device_of};
use crate::cuda::driver::{
    Entry, Handle, INVALID_VALUE, NOT_READY, NOT_SUPPORTED, OUT_OF_MEMORY, SUCCESS, Work, attribute,
};
use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a call waits for what never happens.
const PATIENCE: Duration = Duration::from_secs(60);

/// The table of entry points over the shared state.
pub(super) struct Table(pub(super) Arc<Mutex<State>>);

impl Table {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call that does `f` unless it is made to fail.
    fn act(&self, symbol: &'static str, f: impl FnOnce(&mut State) -> Outcome) -> i32 {
        self.act_on(None, symbol, f)
    }

    /// Like [`Table::act`], for a call that names a device.
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

    /// A call that does `f` even if it is made to fail.
    fn end(&self, device: Option<i32>, symbol: &'static str, f: impl FnOnce(&mut State) -> Outcome) -> i32 {
        let mut state = self.state();
        let step = state.step(symbol, device);
        let outcome = f(&mut state);
        let done = state.answer(symbol, outcome);
        step.err().unwrap_or(done)
    }

    /// A call that waits for a stream, as far as `until` says, and then does `f`, unless it is made to fail. Other calls
    /// may come meanwhile.
    fn act_after(
        &self,
        symbol: &'static str,
        until: impl Fn(&mut State) -> Outcome<Option<(Handle, u64)>>,
        f: impl FnOnce(&mut State) -> Outcome,
    ) -> i32 {
        let begun = Instant::now();
        let mut state = self.state();
        if let Err(code) = state.step(symbol, None) {
            return code;
        }
        let outcome = until(&mut state);
        let reached = loop {
            match outcome
                .and_then(|to| to.map_or(Ok(true), |(stream, position)| state.drain(stream, position)))
            {
                Ok(true) => break Ok(()),
                Ok(false) if begun.elapsed() > PATIENCE => break Err(LAUNCH_TIMEOUT),
                Err(code) => break Err(code),
                Ok(false) => {}
            }
            drop(state);
            std::thread::sleep(Duration::from_micros(200));
            state = self.state();
        };
        let outcome = reached.and_then(|()| f(&mut state));
        state.answer(symbol, outcome)
    }

    /// A call that writes the value of `f` to `out` unless it is made to fail.
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

    /// Like [`Table::give`], for a call that names a device.
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

// SAFETY (of the raw pointers in every method): out-pointers and host ranges are the caller's
// responsibility by the contract of the trait; they are used within the call only.
impl Entry for Table {
    fn computes(&self) -> bool {
        self.state().computes
    }

    fn compute(&self, stream: Handle, work: Work) -> i32 {
        // Not a driver call: it is not counted and does not fail.
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
                attribute::MULTIPROCESSORS => Ok(state.multiprocessors.unwrap_or(4)),
                attribute::MAJOR => Ok(9),
                attribute::MINOR => Ok(0),
                attribute::SHARED_OPTIN => Ok(227 << 10),
                _ => Err(INVALID_VALUE),
            }
        };
        // SAFETY: the contract of the trait.
        unsafe { self.give_on(Some(device), "cuDeviceGetAttribute", value, get) }
    }

    unsafe fn device_get_uuid(&self, uuid: *mut [u8; 16], device: i32) -> i32 {
        let get = |state: &mut State| {
            state.device(device)?;
            let mut uuid = [0; 16];
            uuid[..4].copy_from_slice(&state.id.to_be_bytes());
            uuid[12..].copy_from_slice(&device.to_be_bytes());
            Ok(uuid)
        };
        // SAFETY: the contract of the trait.
        unsafe { self.give_on(Some(device), "cuDeviceGetUuid", uuid, get) }
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

    unsafe fn ctx_synchronize(&self) -> i32 {
        self.act("cuCtxSynchronize", |state| {
            state.drain_all();
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
            // Allocations are adjacent, so code that takes two for one is found out.
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
            is_waiting = state.is_used(here, address);
            if state.allocations.get(&address).is_none_or(|memory| memory.device != here) {
                return Err(INVALID_VALUE);
            }
            state.allocations.remove(&address);
            Ok(())
        });
        // Stricter than a driver, which would wait.
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
        let src = Handle(src.cast_mut());
        // From memory that is not pinned, the copy has happened when the call returns.
        let until = |state: &mut State| {
            state.not_capturing(stream)?;
            if src.is_null() {
                return Err(INVALID_VALUE);
            }
            Ok((!state.is_pinned(src, bytes)).then_some((stream, u64::MAX)))
        };
        self.act_after("cuMemcpyHtoDAsync_v2", until, |state| {
            if state.is_pinned(src, bytes) {
                return state.submit(stream, Node::Upload { dst, src, bytes });
            }
            let device = state.here()?;
            let range = state.range(device, dst, bytes)?;
            // SAFETY: the contract of the trait.
            range.copy_from_slice(unsafe { std::slice::from_raw_parts(src.0.cast::<u8>(), bytes) });
            Ok(())
        })
    }

    unsafe fn memcpy_dtoh(&self, dst: *mut c_void, src: u64, bytes: usize, stream: Handle) -> i32 {
        let until = |state: &mut State| {
            state.not_capturing(stream)?;
            if dst.is_null() {
                return Err(INVALID_VALUE);
            }
            Ok((!state.is_pinned(Handle(dst), bytes)).then_some((stream, u64::MAX)))
        };
        self.act_after("cuMemcpyDtoHAsync_v2", until, |state| {
            if state.is_pinned(Handle(dst), bytes) {
                return state.submit(stream, Node::Download { dst: Handle(dst), src, bytes });
            }
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
        let until = |state: &mut State| state.not_capturing(stream).map(|()| Some((stream, u64::MAX)));
        self.act_after("cuStreamSynchronize", until, |_| Ok(()))
    }

    unsafe fn stream_wait_event(&self, stream: Handle, event: Handle, flags: u32) -> i32 {
        self.act("cuStreamWaitEvent", |state| {
            state.not_capturing(stream)?;
            if flags != 0 {
                return Err(INVALID_VALUE);
            }
            match *state.events.get(&event).ok_or(INVALID_HANDLE)? {
                Some((other, position)) => state.submit(stream, Node::Wait { stream: other, position }),
                None => Ok(()),
            }
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
        // A failing end still ends the capture and destroys its graph.
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
                true => unexpected_order(nodes),
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
                // The end of the list is no misuse.
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

    unsafe fn event_query(&self, event: Handle) -> i32 {
        let mut is_ready = true;
        let code = self.act("cuEventQuery", |state| {
            state.here()?;
            if let Some((stream, position)) = *state.events.get(&event).ok_or(INVALID_HANDLE)? {
                // What runs now is told by the next query.
                is_ready = state.streams.get(&stream).is_none_or(|s| s.done >= position);
                state.drain(stream, position)?;
            }
            Ok(())
        });
        if code == SUCCESS && !is_ready { NOT_READY } else { code }
    }

    unsafe fn event_synchronize(&self, event: Handle) -> i32 {
        let until = |state: &mut State| {
            state.here()?;
            Ok(*state.events.get(&event).ok_or(INVALID_HANDLE)?)
        };
        self.act_after("cuEventSynchronize", until, |_| Ok(()))
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
