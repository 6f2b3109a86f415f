//! The CUDA driver: a table of entry points, and one checked method for each.
//!
//! The table is a trait, [`Entry`]. A macro generates it from one list of name, exported symbol and signature. The
//! library's implementation holds function pointers; the fake driver of the tests is another one. [`Driver`] wraps the
//! table: its methods turn out-parameters into values, and result codes into [`ErrorKind::Cuda`] with the driver's own
//! text. Nothing else in the crate calls an entry point.

#![allow(unsafe_code)]

use dittograd_numerics::error::{Error, ErrorKind, Result};
use libloading::Library;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::path::Path;
use std::ptr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// An opaque object of the driver: a context, stream, event, module, function or graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Handle(pub *mut c_void);

// SAFETY: a handle is a token that is only ever given back to the driver, which may be called from any
// thread; nothing is read through it on the host.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Default for Handle {
    fn default() -> Handle {
        Handle::NULL
    }
}

impl Handle {
    /// No object.
    pub const NULL: Handle = Handle(ptr::null_mut());

    /// Whether this is no object.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }
}

/// The result code of success.
pub const SUCCESS: i32 = 0;
/// An argument is out of range.
pub const INVALID_VALUE: i32 = 1;
/// The device, or the host's pinned memory, has no room left.
pub const OUT_OF_MEMORY: i32 = 2;
/// No device is there.
pub const NO_DEVICE: i32 = 100;
/// The entry point is not offered by this driver.
pub const NOT_SUPPORTED: i32 = 801;
/// CUDA_ERROR_NOT_FOUND.
pub const NOT_FOUND: i32 = 500;
/// What was asked for has not happened yet.
pub const NOT_READY: i32 = 600;

/// Whether `code` leaves the context unusable: faults of kernels and hardware, after which the driver
/// answers every call with the same error.
pub fn is_sticky(code: i32) -> bool {
    // Deinitialised; ECC, NVLink and contained hardware errors; illegal address; timeout; context gone;
    // assert; stack, instruction, alignment, address space, program counter, launch failure; tensor
    // memory; unknown.
    matches!(code, 4 | 214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719 | 721 | 999)
}

/// Attributes of a device, by the driver's numbers.
pub mod attribute {
    /// Multiprocessors.
    pub const MULTIPROCESSORS: i32 = 16;
    /// Compute capability, major part.
    pub const MAJOR: i32 = 75;
    /// Compute capability, minor part.
    pub const MINOR: i32 = 76;
    /// Largest shared memory of a block, when asked for.
    pub const SHARED_OPTIN: i32 = 97;
    /// Of a function: bytes of static shared memory.
    pub const FUNCTION_SHARED: i32 = 1;
    /// Of a function: largest dynamic shared memory it may be launched with.
    pub const FUNCTION_DYNAMIC_SHARED: i32 = 8;
}

/// Kinds of events, by the driver's flags.
pub mod event {
    /// It measures time.
    pub const TIMED: u32 = 0;
    /// It measures no time.
    pub const PLAIN: u32 = 2;
    /// It measures no time, and a thread that waits for it sleeps.
    pub const SLEEPING: u32 = 3;
}

/// Device memory for a host that computes in place of a GPU. Ranges outside of it give `None`.
pub trait HostMemory {
    /// Words from an address on.
    fn words(&mut self, address: u64, count: usize) -> Option<Vec<f32>>;
    /// Writes words from an address on.
    fn set_words(&mut self, address: u64, words: &[f32]) -> Option<()>;
}

/// What kernels compute, for a driver that runs none. `None` if it accesses memory outside all allocations.
pub type Work = Arc<dyn Fn(&mut dyn HostMemory) -> Option<()> + Send + Sync>;

macro_rules! entries {
    // The stand-in for a symbol that the library does not have.
    (@absent required $symbol:literal ($($arg:ident: $ty:ty),*) $path:ident) => {
        return Err(Error::new(
            "cuda",
            ErrorKind::Library {
                name: "a recent enough CUDA driver",
                looked: vec![format!("{} in {}", $symbol, $path)],
            },
        ))
    };
    (@absent optional $symbol:literal ($($arg:ident: $ty:ty),*) $path:ident) => {{
        unsafe extern "C" fn absent($(_: $ty),*) -> i32 {
            NOT_SUPPORTED
        }
        absent
    }};
    ($($need:ident $name:ident = $symbol:literal ($($arg:ident: $ty:ty),* $(,)?);)*) => {
        /// The driver entry points that this crate uses. Each takes the arguments of the C function and returns its
        /// result code.
        #[allow(clippy::too_many_arguments)]
        pub trait Entry: Send + Sync {
            $(
                #[doc = concat!("`", $symbol, "`.")]
                ///
                /// # Safety
                /// The arguments must be what the CUDA driver API documents for this function.
                unsafe fn $name(&self, $($arg: $ty),*) -> i32;
            )*

            /// Whether [`Entry::compute`] is used: no GPU runs the kernels.
            fn computes(&self) -> bool {
                false
            }

            /// Queues what the last launches compute. Returns a result code.
            fn compute(&self, _stream: Handle, _work: Work) -> i32 {
                SUCCESS
            }
        }

        /// The entry points of the library.
        struct Loaded {
            $($name: unsafe extern "C" fn($($ty),*) -> i32,)*
            // Keeps the code mapped. Last field, so that it is dropped last.
            _library: Library,
        }

        impl Loaded {
            fn new(library: Library, path: &str) -> Result<Loaded> {
                $(
                    // SAFETY: the type is the C declaration of the symbol in the driver API.
                    let found = unsafe {
                        library.get::<unsafe extern "C" fn($($ty),*) -> i32>($symbol).map(|symbol| *symbol)
                    };
                    let $name = match found {
                        Ok(found) => found,
                        Err(_) => entries!(@absent $need $symbol ($($arg: $ty),*) path),
                    };
                )*
                Ok(Loaded { $($name,)* _library: library })
            }
        }

        impl Entry for Loaded {
            $(
                unsafe fn $name(&self, $($arg: $ty),*) -> i32 {
                    // SAFETY: the caller upholds the contract of the C function.
                    unsafe { (self.$name)($($arg),*) }
                }
            )*
        }

        /// The symbols to look up in the library.
        pub const SYMBOLS: &[&str] = &[$($symbol),*];
    };
}

entries! {
    required init = "cuInit" (flags: u32);
    required driver_get_version = "cuDriverGetVersion" (version: *mut i32);
    required get_error_name = "cuGetErrorName" (code: i32, text: *mut *const c_char);
    required get_error_string = "cuGetErrorString" (code: i32, text: *mut *const c_char);

    required device_get_count = "cuDeviceGetCount" (count: *mut i32);
    required device_get = "cuDeviceGet" (device: *mut i32, ordinal: i32);
    required device_get_name = "cuDeviceGetName" (name: *mut c_char, len: i32, device: i32);
    required device_total_mem = "cuDeviceTotalMem_v2" (bytes: *mut usize, device: i32);
    required device_get_attribute = "cuDeviceGetAttribute" (value: *mut i32, attribute: i32, device: i32);
    required device_get_uuid = "cuDeviceGetUuid" (uuid: *mut [u8; 16], device: i32);
    required primary_ctx_retain = "cuDevicePrimaryCtxRetain" (context: *mut Handle, device: i32);
    required primary_ctx_release = "cuDevicePrimaryCtxRelease_v2" (device: i32);
    required ctx_set_current = "cuCtxSetCurrent" (context: Handle);
    required ctx_synchronize = "cuCtxSynchronize" ();

    required mem_get_info = "cuMemGetInfo_v2" (free: *mut usize, total: *mut usize);
    required mem_alloc = "cuMemAlloc_v2" (address: *mut u64, bytes: usize);
    required mem_free = "cuMemFree_v2" (address: u64);
    required mem_host_alloc = "cuMemHostAlloc" (pointer: *mut *mut c_void, bytes: usize, flags: u32);
    required mem_free_host = "cuMemFreeHost" (pointer: *mut c_void);
    required memcpy_htod = "cuMemcpyHtoDAsync_v2"
        (dst: u64, src: *const c_void, bytes: usize, stream: Handle);
    required memcpy_dtoh = "cuMemcpyDtoHAsync_v2" (dst: *mut c_void, src: u64, bytes: usize, stream: Handle);
    required memcpy_dtod = "cuMemcpyDtoDAsync_v2" (dst: u64, src: u64, bytes: usize, stream: Handle);
    required memset_d32 = "cuMemsetD32Async" (dst: u64, word: u32, count: usize, stream: Handle);

    required stream_create = "cuStreamCreate" (stream: *mut Handle, flags: u32);
    required stream_destroy = "cuStreamDestroy_v2" (stream: Handle);
    required stream_synchronize = "cuStreamSynchronize" (stream: Handle);
    required stream_wait_event = "cuStreamWaitEvent" (stream: Handle, event: Handle, flags: u32);
    required stream_begin_capture = "cuStreamBeginCapture_v2" (stream: Handle, mode: i32);
    required stream_end_capture = "cuStreamEndCapture" (stream: Handle, graph: *mut Handle);
    optional stream_get_capture_info = "cuStreamGetCaptureInfo_v2" (
        stream: Handle,
        status: *mut i32,
        id: *mut u64,
        graph: *mut Handle,
        nodes: *mut *const Handle,
        count: *mut usize,
    );
    optional stream_update_capture_dependencies = "cuStreamUpdateCaptureDependencies"
        (stream: Handle, nodes: *mut Handle, count: usize, flags: u32);

    required graph_instantiate = "cuGraphInstantiateWithFlags" (exec: *mut Handle, graph: Handle, flags: u64);
    required graph_launch = "cuGraphLaunch" (exec: Handle, stream: Handle);
    required graph_exec_destroy = "cuGraphExecDestroy" (exec: Handle);
    required graph_destroy = "cuGraphDestroy" (graph: Handle);
    required graph_get_nodes = "cuGraphGetNodes" (graph: Handle, nodes: *mut Handle, count: *mut usize);

    required module_load_data = "cuModuleLoadData" (module: *mut Handle, image: *const c_void);
    required module_unload = "cuModuleUnload" (module: Handle);
    required module_get_function = "cuModuleGetFunction"
        (function: *mut Handle, module: Handle, name: *const c_char);
    required func_set_attribute = "cuFuncSetAttribute" (function: Handle, attribute: i32, value: i32);
    required func_get_attribute = "cuFuncGetAttribute" (value: *mut i32, attribute: i32, function: Handle);
    optional func_get_param_info = "cuFuncGetParamInfo"
        (function: Handle, index: usize, offset: *mut usize, size: *mut usize);
    optional func_load = "cuFuncLoad" (function: Handle);
    required launch_kernel = "cuLaunchKernel" (
        function: Handle,
        grid_x: u32, grid_y: u32, grid_z: u32,
        block_x: u32, block_y: u32, block_z: u32,
        shared: u32,
        stream: Handle,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    );

    required event_create = "cuEventCreate" (event: *mut Handle, flags: u32);
    required event_record = "cuEventRecord" (event: Handle, stream: Handle);
    required event_query = "cuEventQuery" (event: Handle);
    required event_synchronize = "cuEventSynchronize" (event: Handle);
    required event_elapsed_time = "cuEventElapsedTime" (milliseconds: *mut f32, start: Handle, end: Handle);
    required event_destroy = "cuEventDestroy_v2" (event: Handle);
}

/// Folders to search for the driver's library after the loader's own search.
const FOLDERS: [&str; 4] =
    ["/usr/lib/x86_64-linux-gnu", "/usr/local/nvidia/lib64", "/usr/lib64", "/usr/lib/wsl/lib"];

/// The driver with every call checked, and errors left behind by earlier contexts on it.
pub struct Driver {
    entry: Box<dyn Entry>,
    /// Whether the host computes the results.
    pub(super) computes: bool,
    left: Mutex<HashMap<usize, Vec<Error>>>,
    fates: Mutex<HashMap<usize, Arc<Fate>>>,
}

/// The first error that made a device unusable. All contexts on the device share it, since the driver gives them one
/// context.
pub(super) type Fate = OnceLock<String>;

/// Calls an entry point and checks its result code.
macro_rules! checked {
    ($self:ident, $symbol:literal, $name:ident($($arg:expr),* $(,)?)) => {{
        // SAFETY: handles come from the same driver and are alive, out-pointers point to live locals of
        // the right type, and host ranges are those of the caller's slices or its own safety contract.
        let code = unsafe { $self.entry.$name($($arg),*) };
        if code == SUCCESS { Ok(()) } else { Err($self.error($symbol, code)) }
    }};
}

impl Driver {
    /// A driver over any implementation of the entry points.
    pub fn new(entry: Box<dyn Entry>) -> Driver {
        let computes = entry.computes();
        Driver { entry, computes, left: Mutex::default(), fates: Mutex::default() }
    }

    /// The driver of this machine, opened and initialised once. Errors with [`ErrorKind::Library`] where
    /// there is none.
    pub fn system() -> Result<Arc<Driver>> {
        static SYSTEM: OnceLock<Result<Arc<Driver>>> = OnceLock::new();
        SYSTEM.get_or_init(|| Ok(Arc::new(Driver::load()?))).clone()
    }

    fn load() -> Result<Driver> {
        let mut looked = Vec::new();
        let folders = FOLDERS.iter().map(|folder| format!("{folder}/libcuda.so.1"));
        for path in std::iter::once("libcuda.so.1".to_string()).chain(folders) {
            // SAFETY: the library is NVIDIA's driver; its initialisers have no preconditions.
            match unsafe { Library::new(path.as_str()) } {
                Ok(library) => return Ok(Driver::new(Box::new(Loaded::new(library, &path)?))),
                Err(why) if Path::new(&path).exists() => looked.push(format!("{path} ({why})")),
                Err(_) => looked.push(path),
            }
        }
        Err(Error::new("cuda", ErrorKind::Library { name: "the CUDA driver", looked }))
    }

    /// The error for result `code` of `call`, with the driver's name and text for it.
    #[cold]
    fn error(&self, call: &'static str, code: i32) -> Error {
        let text = |name: bool| {
            let mut text: *const c_char = ptr::null();
            // SAFETY: the out-pointer points to a live local.
            let answer = unsafe {
                if name {
                    self.entry.get_error_name(code, &mut text)
                } else {
                    self.entry.get_error_string(code, &mut text)
                }
            };
            if answer != SUCCESS || text.is_null() {
                return "unknown to the driver".to_string();
            }
            // SAFETY: on success the driver gives a static, zero-terminated string.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        let message = format!("{}: {}", text(true), text(false));
        Error::new("cuda", ErrorKind::Cuda { call, code, message })
    }

    /// Keeps an error that nobody was told, from a context on device `ordinal` that was dropped.
    pub(super) fn leave(&self, ordinal: usize, error: Error) {
        self.left.lock().unwrap_or_else(PoisonError::into_inner).entry(ordinal).or_default().push(error);
    }

    /// Takes the errors that earlier contexts on device `ordinal` left.
    pub(super) fn left(&self, ordinal: usize) -> Vec<Error> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner).remove(&ordinal).unwrap_or_default()
    }

    /// The fatal error of device `ordinal`, if any.
    pub(super) fn fate(&self, ordinal: usize) -> Arc<Fate> {
        self.fates.lock().unwrap_or_else(PoisonError::into_inner).entry(ordinal).or_default().clone()
    }

    /// Queues what the last launches compute, on a driver that runs no kernels.
    pub(super) fn compute(&self, stream: Handle, work: Work) -> Result<()> {
        match self.entry.compute(stream, work) {
            SUCCESS => Ok(()),
            code => Err(self.error("compute", code)),
        }
    }
}

// Checked calls, for this folder only. The owners of handles keep the contract of the driver API, that a handle is
// alive and of the right kind. Methods that take a host address are unsafe.
impl Driver {
    /// Starts the driver.
    pub(super) fn init(&self) -> Result<()> {
        checked!(self, "cuInit", init(0))
    }

    pub(super) fn version(&self) -> Result<(i32, i32)> {
        let mut version = 0;
        checked!(self, "cuDriverGetVersion", driver_get_version(&mut version))?;
        Ok((version / 1000, version % 1000 / 10))
    }

    pub(super) fn device_count(&self) -> Result<usize> {
        let mut count = 0;
        checked!(self, "cuDeviceGetCount", device_get_count(&mut count))?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    pub(super) fn device(&self, ordinal: i32) -> Result<i32> {
        let mut device = 0;
        checked!(self, "cuDeviceGet", device_get(&mut device, ordinal))?;
        Ok(device)
    }

    pub(super) fn device_name(&self, device: i32) -> Result<String> {
        let mut text = [0u8; 256];
        let pointer = text.as_mut_ptr().cast::<c_char>();
        checked!(self, "cuDeviceGetName", device_get_name(pointer, 255, device))?;
        let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
        Ok(String::from_utf8_lossy(&text[..end]).into_owned())
    }

    pub(super) fn device_total_mem(&self, device: i32) -> Result<usize> {
        let mut bytes = 0;
        checked!(self, "cuDeviceTotalMem_v2", device_total_mem(&mut bytes, device))?;
        Ok(bytes)
    }

    pub(super) fn device_attribute(&self, attribute: i32, device: i32) -> Result<i32> {
        let mut value = 0;
        checked!(self, "cuDeviceGetAttribute", device_get_attribute(&mut value, attribute, device))?;
        Ok(value)
    }

    /// The number that no other GPU in the world has.
    pub(super) fn device_uuid(&self, device: i32) -> Result<[u8; 16]> {
        let mut uuid = [0; 16];
        checked!(self, "cuDeviceGetUuid", device_get_uuid(&mut uuid, device))?;
        Ok(uuid)
    }

    pub(super) fn primary_ctx_retain(&self, device: i32) -> Result<Handle> {
        let mut context = Handle::NULL;
        checked!(self, "cuDevicePrimaryCtxRetain", primary_ctx_retain(&mut context, device))?;
        Ok(context)
    }

    pub(super) fn primary_ctx_release(&self, device: i32) -> Result<()> {
        checked!(self, "cuDevicePrimaryCtxRelease_v2", primary_ctx_release(device))
    }

    pub(super) fn ctx_set_current(&self, context: Handle) -> Result<()> {
        checked!(self, "cuCtxSetCurrent", ctx_set_current(context))
    }

    /// Waits for all streams of the current context.
    pub(super) fn ctx_synchronize(&self) -> Result<()> {
        checked!(self, "cuCtxSynchronize", ctx_synchronize())
    }

    pub(super) fn mem_info(&self) -> Result<(usize, usize)> {
        let (mut free, mut total) = (0, 0);
        checked!(self, "cuMemGetInfo_v2", mem_get_info(&mut free, &mut total))?;
        Ok((free, total))
    }

    pub(super) fn mem_alloc(&self, bytes: usize) -> Result<u64> {
        let mut address = 0;
        checked!(self, "cuMemAlloc_v2", mem_alloc(&mut address, bytes))?;
        Ok(address)
    }

    pub(super) fn mem_free(&self, address: u64) -> Result<()> {
        checked!(self, "cuMemFree_v2", mem_free(address))
    }

    /// Pinned host memory, usable from every context.
    pub(super) fn mem_host_alloc(&self, bytes: usize) -> Result<Handle> {
        let mut pointer = ptr::null_mut();
        checked!(self, "cuMemHostAlloc", mem_host_alloc(&mut pointer, bytes, 1))?;
        Ok(Handle(pointer))
    }

    pub(super) fn mem_free_host(&self, pointer: Handle) -> Result<()> {
        checked!(self, "cuMemFreeHost", mem_free_host(pointer.0))
    }

    /// # Safety
    /// `bytes` bytes at `src` must stay readable and unchanged until the copy has run.
    pub(super) unsafe fn memcpy_htod(
        &self,
        dst: u64,
        src: *const u8,
        bytes: usize,
        stream: Handle,
    ) -> Result<()> {
        checked!(self, "cuMemcpyHtoDAsync_v2", memcpy_htod(dst, src.cast(), bytes, stream))
    }

    /// # Safety
    /// `bytes` bytes at `dst` must stay writable, and not be looked at, until the copy has run.
    pub(super) unsafe fn memcpy_dtoh(
        &self,
        dst: *mut u8,
        src: u64,
        bytes: usize,
        stream: Handle,
    ) -> Result<()> {
        checked!(self, "cuMemcpyDtoHAsync_v2", memcpy_dtoh(dst.cast(), src, bytes, stream))
    }

    pub(super) fn memcpy_dtod(&self, dst: u64, src: u64, bytes: usize, stream: Handle) -> Result<()> {
        checked!(self, "cuMemcpyDtoDAsync_v2", memcpy_dtod(dst, src, bytes, stream))
    }

    pub(super) fn memset_d32(&self, dst: u64, word: u32, count: usize, stream: Handle) -> Result<()> {
        checked!(self, "cuMemsetD32Async", memset_d32(dst, word, count, stream))
    }

    /// A stream that does not wait for the default stream.
    pub(super) fn stream_create(&self) -> Result<Handle> {
        let mut stream = Handle::NULL;
        checked!(self, "cuStreamCreate", stream_create(&mut stream, 1))?;
        Ok(stream)
    }

    pub(super) fn stream_destroy(&self, stream: Handle) -> Result<()> {
        checked!(self, "cuStreamDestroy_v2", stream_destroy(stream))
    }

    pub(super) fn stream_synchronize(&self, stream: Handle) -> Result<()> {
        checked!(self, "cuStreamSynchronize", stream_synchronize(stream))
    }

    /// Makes what is submitted to the stream from now on wait for the last record of the event.
    pub(super) fn stream_wait_event(&self, stream: Handle, event: Handle) -> Result<()> {
        checked!(self, "cuStreamWaitEvent", stream_wait_event(stream, event, 0))
    }

    /// Begins a capture that only restricts what the calling thread may do.
    pub(super) fn stream_begin_capture(&self, stream: Handle) -> Result<()> {
        checked!(self, "cuStreamBeginCapture_v2", stream_begin_capture(stream, 1))
    }

    pub(super) fn stream_end_capture(&self, stream: Handle) -> Result<Handle> {
        let mut graph = Handle::NULL;
        checked!(self, "cuStreamEndCapture", stream_end_capture(stream, &mut graph))?;
        Ok(graph)
    }

    /// What the next captured operation will wait for; `None` if the driver cannot tell.
    pub(super) fn stream_captured(&self, stream: Handle) -> Result<Option<Vec<Handle>>> {
        let (mut status, mut id, mut graph) = (0, 0, Handle::NULL);
        let (mut nodes, mut count) = (ptr::null(), 0);
        let told = checked!(
            self,
            "cuStreamGetCaptureInfo_v2",
            stream_get_capture_info(stream, &mut status, &mut id, &mut graph, &mut nodes, &mut count)
        );
        match told {
            Err(error) if matches!(error.kind(), ErrorKind::Cuda { code: NOT_SUPPORTED, .. }) => Ok(None),
            Err(error) => Err(error),
            Ok(()) if count == 0 || nodes.is_null() => Ok(Some(Vec::new())),
            // SAFETY: on success the driver gives an array of `count` nodes, which is valid until the next call that
            // uses the stream.
            Ok(()) => Ok(Some(unsafe { std::slice::from_raw_parts(nodes, count) }.to_vec())),
        }
    }

    /// Makes the next captured operation wait for these nodes and nothing else.
    pub(super) fn stream_capture_after(&self, stream: Handle, nodes: &mut [Handle]) -> Result<()> {
        const SET: u32 = 1;
        checked!(
            self,
            "cuStreamUpdateCaptureDependencies",
            stream_update_capture_dependencies(stream, nodes.as_mut_ptr(), nodes.len(), SET)
        )
    }

    pub(super) fn graph_instantiate(&self, graph: Handle) -> Result<Handle> {
        let mut exec = Handle::NULL;
        checked!(self, "cuGraphInstantiateWithFlags", graph_instantiate(&mut exec, graph, 0))?;
        Ok(exec)
    }

    pub(super) fn graph_launch(&self, exec: Handle, stream: Handle) -> Result<()> {
        checked!(self, "cuGraphLaunch", graph_launch(exec, stream))
    }

    pub(super) fn graph_exec_destroy(&self, exec: Handle) -> Result<()> {
        checked!(self, "cuGraphExecDestroy", graph_exec_destroy(exec))
    }

    pub(super) fn graph_destroy(&self, graph: Handle) -> Result<()> {
        checked!(self, "cuGraphDestroy", graph_destroy(graph))
    }

    pub(super) fn graph_node_count(&self, graph: Handle) -> Result<usize> {
        let mut count = 0;
        checked!(self, "cuGraphGetNodes", graph_get_nodes(graph, ptr::null_mut(), &mut count))?;
        Ok(count)
    }

    /// # Safety
    /// `image` must be a complete cubin: the driver trusts the sizes written in it.
    pub(super) unsafe fn module_load(&self, image: &[u8]) -> Result<Handle> {
        let mut module = Handle::NULL;
        checked!(self, "cuModuleLoadData", module_load_data(&mut module, image.as_ptr().cast()))?;
        Ok(module)
    }

    pub(super) fn module_unload(&self, module: Handle) -> Result<()> {
        checked!(self, "cuModuleUnload", module_unload(module))
    }

    pub(super) fn module_function(&self, module: Handle, name: &str) -> Result<Handle> {
        let text = CString::new(name)
            .map_err(|_| Error::argument("cuda", "name", format!("{name:?} holds a zero byte")))?;
        let mut function = Handle::NULL;
        checked!(self, "cuModuleGetFunction", module_get_function(&mut function, module, text.as_ptr()))?;
        Ok(function)
    }

    pub(super) fn function_set(&self, function: Handle, attribute: i32, value: i32) -> Result<()> {
        checked!(self, "cuFuncSetAttribute", func_set_attribute(function, attribute, value))
    }

    pub(super) fn function_get(&self, function: Handle, attribute: i32) -> Result<i32> {
        let mut value = 0;
        checked!(self, "cuFuncGetAttribute", func_get_attribute(&mut value, attribute, function))?;
        Ok(value)
    }

    /// Number and bytes of a function's parameters, if the driver tells (CUDA 12.4 and later). Used in debug builds
    /// only: the end of the list is reported as a driver error, which memory checkers show.
    pub(super) fn function_params(&self, function: Handle) -> Result<Option<(usize, usize)>> {
        if !cfg!(debug_assertions) {
            return Ok(None);
        }
        let (mut count, mut end) = (0, 0);
        loop {
            let (mut offset, mut size) = (0, 0);
            match checked!(
                self,
                "cuFuncGetParamInfo",
                func_get_param_info(function, count, &mut offset, &mut size)
            ) {
                Ok(()) => (count, end) = (count + 1, offset + size),
                Err(error) => match error.kind() {
                    ErrorKind::Cuda { code: NOT_SUPPORTED, .. } => return Ok(None),
                    // The index after the last parameter.
                    ErrorKind::Cuda { code: INVALID_VALUE, .. } => return Ok(Some((count, end))),
                    _ => return Err(error),
                },
            }
        }
    }

    /// Loads a function now rather than at its first launch, if the driver can.
    pub(super) fn function_load(&self, function: Handle) -> Result<()> {
        match checked!(self, "cuFuncLoad", func_load(function)) {
            Err(error) if matches!(error.kind(), ErrorKind::Cuda { code: NOT_SUPPORTED, .. }) => Ok(()),
            other => other,
        }
    }

    /// Launches with the parameters packed in one buffer. The driver is told its size, so it never reads past it,
    /// whatever the kernel declares.
    pub(super) fn launch(
        &self,
        function: Handle,
        [x, y, z]: [u32; 3],
        block: u32,
        shared: u32,
        stream: Handle,
        params: &[u8],
    ) -> Result<()> {
        let mut size = params.len();
        let mut extra = [
            ptr::without_provenance_mut(1),
            params.as_ptr().cast_mut().cast::<c_void>(),
            ptr::without_provenance_mut(2),
            (&raw mut size).cast::<c_void>(),
            ptr::null_mut(),
        ];
        let extra = if params.is_empty() { ptr::null_mut() } else { extra.as_mut_ptr() };
        checked!(
            self,
            "cuLaunchKernel",
            launch_kernel(function, x, y, z, block, 1, 1, shared, stream, ptr::null_mut(), extra)
        )
    }

    /// An event of a kind of [`event`].
    pub(super) fn event_create(&self, kind: u32) -> Result<Handle> {
        let mut event = Handle::NULL;
        checked!(self, "cuEventCreate", event_create(&mut event, kind))?;
        Ok(event)
    }

    pub(super) fn event_record(&self, event: Handle, stream: Handle) -> Result<()> {
        checked!(self, "cuEventRecord", event_record(event, stream))
    }

    /// Whether the last record of the event has happened.
    pub(super) fn event_query(&self, event: Handle) -> Result<bool> {
        match checked!(self, "cuEventQuery", event_query(event)) {
            Ok(()) => Ok(true),
            Err(error) if matches!(error.kind(), ErrorKind::Cuda { code: NOT_READY, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(super) fn event_synchronize(&self, event: Handle) -> Result<()> {
        checked!(self, "cuEventSynchronize", event_synchronize(event))
    }

    pub(super) fn event_elapsed(&self, start: Handle, end: Handle) -> Result<f32> {
        let mut milliseconds = 0.0;
        checked!(self, "cuEventElapsedTime", event_elapsed_time(&mut milliseconds, start, end))?;
        Ok(milliseconds)
    }

    pub(super) fn event_destroy(&self, event: Handle) -> Result<()> {
        checked!(self, "cuEventDestroy_v2", event_destroy(event))
    }
}
