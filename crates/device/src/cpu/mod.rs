//! The CPU: a thread pool, the SIMD levels, and the blocked matrix product, and convolutions made of it.

pub mod conv;
pub mod depthwise;
pub mod gemm;
pub mod pool;
pub mod simd;
mod wide;
