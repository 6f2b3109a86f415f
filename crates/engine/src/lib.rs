//! What runs and differentiates programs of ops: the tape, graphs and their compiler, sessions, parameters, optimizers.

pub mod compiled;
mod effect;
mod gradients;
pub mod graph;
mod host;
mod nats;
pub mod optim;
pub mod params;
pub mod session;
pub mod sharded;
pub mod tape;

#[doc(hidden)]
pub use effect::append_module;
pub use host::HostDevice;
