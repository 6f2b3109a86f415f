//! The CPU: a thread pool, the SIMD levels, and the blocked matrix product.

pub mod gemm;
pub mod pool;
pub mod simd;
