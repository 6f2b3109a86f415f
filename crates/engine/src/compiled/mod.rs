//! Closures over sessions, compiled: traced into graphs once for each set of input shapes, and run many times with the bits of
//! running them eagerly.

mod function;
mod shards;
mod together;
mod traced;
mod train;

pub use function::Function;
#[doc(hidden)]
pub use together::Together;
pub use traced::Traced;
pub use train::{Batch, TrainStep};
