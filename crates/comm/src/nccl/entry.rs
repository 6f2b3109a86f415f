//! NCCL: a table of entry points, opened at run time, and one safe method for each.
//!
//! [`Entry`] is what the rest of the crate calls; the fake of the tests is another implementation. Result codes are NCCL's.
//! Communicators do not block: calls answer [`IN_PROGRESS`], and [`Entry::state`] tells when they are over. So a
//! rank that never comes holds nobody up for longer than a timeout.

#![allow(unsafe_code)]

use dittograd_device::cuda::driver::Handle;
use dittograd_device::cuda::search::{self, Wanted};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use libloading::Library;
use std::ffi::{CStr, c_char, c_void};
use std::path::Path;
use std::ptr;
use std::sync::{Arc, OnceLock};

/// The result code of success.
pub const SUCCESS: i32 = 0;
/// A call that goes on in the background.
pub const IN_PROGRESS: i32 = 7;
/// NCCL's type of bytes.
const BYTES: i32 = 0;

/// What the ranks of a communicator know each other by.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct UniqueId(pub [u8; 128]);

/// The part of NCCL's settings that version 2.14 has. Later versions take the rest as not set.
#[repr(C)]
struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: i32,
}

/// A value, or a result code.
pub type Outcome<T = ()> = std::result::Result<T, i32>;

/// The entry points of NCCL that this crate uses. The calling thread's CUDA context is that of the GPU; handles are alive, and
/// addresses are of that GPU and stay allocated until the work is over.
pub trait Entry: Send + Sync {
    /// `ncclGetVersion`: like 22105 for 2.21.5.
    fn version(&self) -> Outcome<i32>;
    /// `ncclGetUniqueId`.
    fn unique_id(&self) -> Outcome<UniqueId>;
    /// `ncclCommInitRankConfig`, not blocking: the communicator may still be in progress.
    fn join(&self, size: usize, id: UniqueId, rank: usize) -> Outcome<Handle>;
    /// `ncclCommGetAsyncError`: the state of a communicator.
    fn state(&self, comm: Handle) -> Outcome<i32>;
    /// `ncclCommFinalize`.
    fn finalize(&self, comm: Handle) -> i32;
    /// `ncclCommDestroy`.
    fn destroy(&self, comm: Handle) -> i32;
    /// `ncclCommAbort`.
    fn abort(&self, comm: Handle) -> i32;
    /// `ncclGroupStart`.
    fn group_start(&self) -> i32;
    /// `ncclGroupEnd`.
    fn group_end(&self) -> i32;
    /// `ncclSend`.
    fn send(&self, address: u64, bytes: usize, to: usize, comm: Handle, stream: Handle) -> i32;
    /// `ncclRecv`.
    fn receive(&self, address: u64, bytes: usize, from: usize, comm: Handle, stream: Handle) -> i32;
    /// `ncclGetErrorString`, and `ncclGetLastError`: what NCCL says about a result code.
    fn text(&self, code: i32) -> String;
}

macro_rules! entries {
    ($($name:ident = $symbol:literal ($($ty:ty),*) -> $out:ty;)*) => {
        /// The entry points of the library.
        struct Loaded {
            $($name: unsafe extern "C" fn($($ty),*) -> $out,)*
            // Keeps the code mapped. Last field, so that it is dropped last.
            _library: Library,
        }

        impl Loaded {
            fn new(library: Library) -> Result<Loaded, String> {
                $(
                    // SAFETY: the type is the C declaration of the symbol in nccl.h.
                    let $name = *unsafe { library.get::<unsafe extern "C" fn($($ty),*) -> $out>($symbol) }
                        .map_err(|_| format!("has no {}; 2.14 or later is needed", $symbol))?;
                )*
                Ok(Loaded { $($name,)* _library: library })
            }
        }
    };
}

entries! {
    get_version = "ncclGetVersion" (*mut i32) -> i32;
    get_unique_id = "ncclGetUniqueId" (*mut UniqueId) -> i32;
    get_error_string = "ncclGetErrorString" (i32) -> *const c_char;
    get_last_error = "ncclGetLastError" (Handle) -> *const c_char;
    comm_init_rank = "ncclCommInitRankConfig" (*mut Handle, i32, UniqueId, i32, *mut Config) -> i32;
    comm_get_async_error = "ncclCommGetAsyncError" (Handle, *mut i32) -> i32;
    comm_finalize = "ncclCommFinalize" (Handle) -> i32;
    comm_destroy = "ncclCommDestroy" (Handle) -> i32;
    comm_abort = "ncclCommAbort" (Handle) -> i32;
    start = "ncclGroupStart" () -> i32;
    end = "ncclGroupEnd" () -> i32;
    send = "ncclSend" (*const c_void, usize, i32, i32, Handle, Handle) -> i32;
    recv = "ncclRecv" (*mut c_void, usize, i32, i32, Handle, Handle) -> i32;
}

/// `Ok` for success.
pub(super) fn checked(code: i32) -> Outcome {
    if code == SUCCESS { Ok(()) } else { Err(code) }
}

// SAFETY (of all calls): out-pointers point to live locals; handles, addresses and the CUDA context are what the trait asks
// for, and the sizes are those that the owner of the memory has checked.
impl Entry for Loaded {
    fn version(&self) -> Outcome<i32> {
        let mut version = 0;
        // SAFETY: as above.
        checked(unsafe { (self.get_version)(&mut version) })?;
        Ok(version)
    }

    fn unique_id(&self) -> Outcome<UniqueId> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: as above.
        checked(unsafe { (self.get_unique_id)(&mut id) })?;
        Ok(id)
    }

    fn join(&self, size: usize, id: UniqueId, rank: usize) -> Outcome<Handle> {
        let size_of = std::mem::size_of::<Config>();
        let mut config = Config { size: size_of, magic: 0xcafe_beef, version: 21400, blocking: 0 };
        let mut comm = Handle::NULL;
        // SAFETY: as above; NCCL reads as many bytes of the settings as they say.
        let code = unsafe { (self.comm_init_rank)(&mut comm, size as i32, id, rank as i32, &mut config) };
        if code == IN_PROGRESS { Ok(comm) } else { checked(code).map(|()| comm) }
    }

    fn state(&self, comm: Handle) -> Outcome<i32> {
        let mut state = 0;
        // SAFETY: as above.
        checked(unsafe { (self.comm_get_async_error)(comm, &mut state) })?;
        Ok(state)
    }

    fn finalize(&self, comm: Handle) -> i32 {
        // SAFETY: as above.
        unsafe { (self.comm_finalize)(comm) }
    }

    fn destroy(&self, comm: Handle) -> i32 {
        // SAFETY: as above.
        unsafe { (self.comm_destroy)(comm) }
    }

    fn abort(&self, comm: Handle) -> i32 {
        // SAFETY: as above.
        unsafe { (self.comm_abort)(comm) }
    }

    fn group_start(&self) -> i32 {
        // SAFETY: no arguments.
        unsafe { (self.start)() }
    }

    fn group_end(&self) -> i32 {
        // SAFETY: no arguments.
        unsafe { (self.end)() }
    }

    fn send(&self, address: u64, bytes: usize, to: usize, comm: Handle, stream: Handle) -> i32 {
        let buffer = ptr::without_provenance(address as usize);
        // SAFETY: as above.
        unsafe { (self.send)(buffer, bytes, BYTES, to as i32, comm, stream) }
    }

    fn receive(&self, address: u64, bytes: usize, from: usize, comm: Handle, stream: Handle) -> i32 {
        let buffer = ptr::without_provenance_mut(address as usize);
        // SAFETY: as above.
        unsafe { (self.recv)(buffer, bytes, BYTES, from as i32, comm, stream) }
    }

    fn text(&self, code: i32) -> String {
        let read = |text: *const c_char| {
            if text.is_null() {
                return String::new();
            }
            // SAFETY: NCCL gives zero-terminated strings; the last error is that of this thread.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_string()
        };
        // SAFETY: any code has a text.
        let name = read(unsafe { (self.get_error_string)(code) });
        // SAFETY: no communicator is needed.
        let last = read(unsafe { (self.get_last_error)(Handle::NULL) });
        if last.is_empty() { name } else { format!("{name}: {last}") }
    }
}

/// NCCL's names and places.
const NCCL: Wanted<'_> =
    Wanted { names: &["libnccl.so.2", "libnccl.so"], variable: "DITTOGRAD_NCCL", packages: "nccl" };

/// NCCL of this machine, opened once. Errors with [`ErrorKind::Library`] where there is none.
#[track_caller]
pub(super) fn system() -> Result<Arc<dyn Entry>> {
    static SYSTEM: OnceLock<Result<Arc<dyn Entry>>> = OnceLock::new();
    SYSTEM.get_or_init(open).clone()
}

fn open() -> Result<Arc<dyn Entry>> {
    let mut looked = Vec::new();
    for path in NCCL.candidates(&search::variable) {
        let bare = path.components().count() == 1;
        if !bare && !path.exists() {
            looked.push(path.display().to_string());
            continue;
        }
        match load(&path) {
            Ok(found) => return Ok(Arc::new(found)),
            Err(_) if bare => looked.push(format!("{} on the loader's path", path.display())),
            Err(why) => looked.push(format!("{} ({why})", path.display())),
        }
    }
    if search::variable(NCCL.variable).is_none() {
        let remedy = "pip install nvidia-nccl-cu12 or nvidia-nccl-cu13, or set DITTOGRAD_NCCL to its folder";
        looked.push(format!("nvidia/nccl/lib in the site-packages of $VIRTUAL_ENV and others ({remedy})"));
    }
    Err(Error::new("nccl", ErrorKind::Library { name: "NCCL (libnccl)", looked }))
}

fn load(path: &Path) -> Result<Loaded, String> {
    // SAFETY: the library is NCCL by its name; its initialisers have no preconditions.
    let library = unsafe { Library::new(path) }.map_err(|why| why.to_string())?;
    Loaded::new(library)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_search_covers_the_known_places() {
        let root = std::env::temp_dir().join(format!("dittograd-nccl-{}", std::process::id()));
        let lib = root.join("lib/python3.11/site-packages/nvidia/nccl/lib");
        std::fs::create_dir_all(&lib).expect("a folder");
        std::fs::write(lib.join("libnccl.so.2"), b"").expect("a file");
        let base = root.clone();
        let found = NCCL.candidates(&|name| (name == "VIRTUAL_ENV").then(|| base.clone().into_os_string()));
        assert_eq!(found[0], Path::new("libnccl.so.2"));
        assert!(found.contains(&lib.join("libnccl.so.2")));
        assert!(found.contains(&"/usr/lib/x86_64-linux-gnu/libnccl.so.2".into()));
        let only = NCCL.candidates(&|name| (name == "DITTOGRAD_NCCL").then(|| "/given".into()));
        assert_eq!(only, ["/given/libnccl.so.2", "/given/libnccl.so"].map(Path::new));
        assert!(load(&lib.join("libnccl.so.2")).is_err(), "not a library");
        std::fs::remove_dir_all(&root).expect("removed");
    }
}
