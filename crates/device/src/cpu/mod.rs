//! The CPU: threads, SIMD levels and vectors, the blocked matrix product, and convolutions.
//!
//! - `threads`: the thread pool;
//! - `simd`: the SIMD levels, and the macro that compiles plain loops for each of them;
//! - `vector` and `kernels`: the vectors that microkernels are written in, and the table of microkernels of each level;
//! - `gemm`: matrix products;
//! - `conv`: convolutions and the gradients of their kernels;
//! - `lanes`: products too thin for tiles, of attention and of depthwise convolutions.

pub mod conv;
pub mod gemm;
mod kernels;
#[doc(hidden)]
pub mod lanes;
pub mod simd;
pub mod threads;
mod vector;

/// Floats in a cache line.
#[doc(hidden)]
pub const LINE: usize = 16;
