//! Many processes, one run. A [`World`] is a process's place among the processes of one run: its rank, their number, and a
//! [`Transport`] that moves bytes between them. Transports only move: no sum is ever left to a library, so that results do not
//! depend on which transport it is or how many processes there are.

mod agree;
mod launch;
mod nccl;
mod sockets;
mod staging;
mod threads;
mod transport;
mod world;

pub use launch::{Address, Launch};
#[doc(hidden)]
pub use nccl::{fake as fake_nccl, nccl_by};
pub use nccl::{nccl, nccl_version};
pub use sockets::sockets;
pub use threads::threads;
pub use transport::{Incoming, OnDevice, Outgoing, Transport};
// For transports of other crates.
#[doc(hidden)]
pub use transport::{gave_up, peer, rest, was_silent, wrong_length};
pub use world::{Pending, Traffic, World};
