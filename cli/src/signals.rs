//! Ctrl-C and similar signals: the first one asks a run to stop, the second one ends the program at once.
#![allow(unsafe_code)]

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

/// Exit code at the second signal.
const EXIT: i32 = 130;

/// A flag that becomes true at the first Ctrl-C, termination request, or hangup. A signal that was ignored when the
/// program started, as with `nohup`, stays ignored.
pub(crate) fn stop() -> Arc<AtomicBool> {
    static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    let flag = FLAG.get_or_init(|| {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in signals().into_iter().filter(|s| !is_ignored(*s)) {
            // In this order: at the first signal the flag is not set yet. A signal that cannot be caught keeps its
            // default effect.
            let _ = flag::register_conditional_shutdown(signal, EXIT, flag.clone());
            let _ = flag::register(signal, flag.clone());
        }
        flag
    });
    flag.clone()
}

#[cfg(unix)]
fn signals() -> [i32; 3] {
    [SIGINT, SIGTERM, signal_hook::consts::SIGHUP]
}

#[cfg(not(unix))]
fn signals() -> [i32; 2] {
    [SIGINT, SIGTERM]
}

/// Whether a signal is ignored.
#[cfg(unix)]
fn is_ignored(signal: i32) -> bool {
    let mut old = std::mem::MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: without a new action the call only writes the current one, and returns 0 if it did.
    unsafe {
        libc::sigaction(signal, std::ptr::null(), old.as_mut_ptr()) == 0
            && old.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

#[cfg(not(unix))]
fn is_ignored(_: i32) -> bool {
    false
}
