//! CUDA without a toolkit at build time: the driver and NVRTC are opened when first needed.
//!
//! - `driver`: the table of driver entry points and one checked method for each;
//! - `nvrtc`, `cubin` and `cache`: source to cubin, what is in one, and cubins on disk;
//! - `memory_pool` and `args`: bookkeeping without a driver, for memory and for the arguments of a launch;
//! - `context`, `memory`, `marks`, `kernels`, `graph`: a device in use, built from the above;
//! - `foreign`: memory and streams of other libraries in the process;
//! - `search`: where libraries of NVIDIA may be;
//! - `fake`: a driver in host memory, so that all of it is tested where there is no GPU.

mod args;
mod cache;
mod context;
mod cubin;
pub mod driver;
#[doc(hidden)]
pub mod fake;
mod foreign;
mod graph;
mod kernels;
mod marks;
mod memory;
mod memory_pool;
pub mod nvrtc;
#[doc(hidden)]
pub mod search;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod transfer_tests;

pub use args::{Args, MAX_ARGS};
pub use cache::folder as cache_folder;
pub use context::Cuda;
#[doc(hidden)]
pub use cubin::{kernels as kernels_of, stack as stack_of};
pub use driver::Driver;
pub use driver::Work;
#[doc(hidden)]
pub use foreign::DEFAULT_STREAM;
pub use graph::Captured;
pub use graph::CudaGraph;
pub use kernels::{Kernel, Preparation, Source};
pub use marks::Mark;
pub use memory::Pinned;
pub use nvrtc::{Compiler, Nvrtc};
