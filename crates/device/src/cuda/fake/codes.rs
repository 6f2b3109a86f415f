//! The error codes of a driver that the fake answers with.

use crate::cuda::driver::{INVALID_VALUE, NOT_READY, OUT_OF_MEMORY};
use std::ffi::CStr;

pub(super) const NOT_INITIALIZED: i32 = 3;
pub(super) const INVALID_DEVICE: i32 = 101;
pub(super) const INVALID_IMAGE: i32 = 200;
pub(super) const INVALID_CONTEXT: i32 = 201;
pub(super) const INVALID_HANDLE: i32 = 400;
pub(super) const ILLEGAL_ADDRESS: i32 = 700;
pub(super) const OUT_OF_RESOURCES: i32 = 701;
pub(super) const LAUNCH_TIMEOUT: i32 = 702;
pub(super) const CAPTURE_UNSUPPORTED: i32 = 900;
pub(super) const CAPTURE_INVALIDATED: i32 = 901;
pub(super) const CAPTURE_WRONG_THREAD: i32 = 908;

/// The name the driver has for a code.
pub(super) fn code_name(code: i32) -> &'static CStr {
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
        LAUNCH_TIMEOUT => c"CUDA_ERROR_LAUNCH_TIMEOUT",
        719 => c"CUDA_ERROR_LAUNCH_FAILED",
        CAPTURE_UNSUPPORTED => c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        CAPTURE_INVALIDATED => c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
        CAPTURE_WRONG_THREAD => c"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
        _ => c"CUDA_ERROR",
    }
}
