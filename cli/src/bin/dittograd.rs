//! The program itself; everything it does is in the library beside it, where tests and fuzzers reach it.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

/// Large allocations, in proportion to data, are fallible, and a failure is an ordinary error. Allocations below this
/// size (names, lists and the like) are not: if one fails, the program ends with one line and its usual exit code.
const MAX_INFALLIBLE_BYTES: usize = 1 << 20;

struct Memory;

/// The address if there is one. Otherwise, a small request ends the process.
fn given(address: *mut u8, bytes: usize) -> *mut u8 {
    static ENDS: AtomicBool = AtomicBool::new(false);
    if !address.is_null() || bytes >= MAX_INFALLIBLE_BYTES {
        return address;
    }
    if ENDS.swap(true, Ordering::SeqCst) {
        // Another thread is ending the process.
        loop {
            std::thread::sleep(std::time::Duration::from_secs(1));
        }
    }
    // Neither of these allocates. If stderr is closed, nobody can be told.
    let _ =
        writeln!(std::io::stderr(), "dittograd: out of memory asking for {bytes} bytes for lists and names");
    end()
}

/// Ends the process without anything that could allocate again.
#[cfg(unix)]
fn end() -> ! {
    // SAFETY: it takes a number and does not come back.
    unsafe { libc::_exit(2) }
}

#[cfg(not(unix))]
fn end() -> ! {
    std::process::exit(2)
}

// SAFETY: everything is passed on to the system's allocator, and what it gives is returned as it is.
unsafe impl GlobalAlloc for Memory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        given(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        given(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: as the caller promises.
        given(unsafe { System.realloc(at, layout, bytes) }, bytes)
    }
}

#[global_allocator]
static MEMORY: Memory = Memory;

fn main() -> std::process::ExitCode {
    dittograd_cli::main()
}
