//! Operations. An op is a small value with rules attached: shape, CPU kernel, CUDA kernel, gradient,
//! f64 reference, samples and rejects. The tape and the compiled graph hold the same [`AnyOp`].
//!
//! [`with_ops!`](crate::with_ops) is the one list of them: the enum, the dispatch, the documentation
//! table and the tests of every op are made from it. To add an op, write it in its family's folder and add
//! its line to the list.

mod attrs;
mod cache;
#[cfg(feature = "cases")]
pub mod cases;
mod custom;
mod definitions;
mod eager;
mod list;
mod magnitudes;
mod meanings;
mod op;
mod record;
mod validate;
mod workspace;

// Families.
pub mod attention;
pub mod conv;
pub mod fused;
pub mod image;
pub mod index;
pub mod layout;
pub mod linalg;
pub mod loss;
pub mod matmul;
pub mod norm;
pub mod order;
pub mod pointwise;
pub mod pool;
pub mod random;
pub mod recurrent;
pub mod reduce;
pub mod scan;
pub mod softmax;
pub mod spectral;

pub use attrs::{Attr, Attrs};
#[doc(hidden)]
pub use cache::module;
pub(crate) use cache::{Generated, Known, known};
#[cfg(feature = "cases")]
pub(crate) use cases::sample_shapes;
#[cfg(feature = "cases")]
pub use cases::{Bound, Cases, Reject, Sample, SampleIn, draw};
pub use custom::{CudaKernel, Custom, Number, register, register_numbers};
pub use definitions::Definitions;
#[doc(hidden)]
pub use dittograd_numerics::tensor::AnyTensor;
pub use eager::{MAX_INS, PerInput, apply, check_bound, check_indices, launch, with_stand_in};
pub use list::AnyOp;
#[doc(hidden)]
pub use magnitudes::Lines;
pub use meanings::attr_meaning;
pub(crate) use op::no_gradient;
pub use op::{CpuRun, CudaRun, Gpu, IndexBound, Io, Kernel, Op, Recorder, Val};
pub use record::DeviceRecorder;
#[doc(hidden)]
pub use validate::dims;
pub(crate) use validate::{arity, floats, mismatch, typed};
