//! Many processes, one run. A [`World`] is a process's place among the processes of one run: its rank, their number, and a
//! [`Transport`] that moves bytes between them. Transports only move: no sum is ever left to a library, so that results do not
//! depend on which transport it is or how many processes there are.

mod agree;
mod launch;
mod sockets;
mod threads;
mod transport;
mod world;

pub use launch::{Address, Launch};
pub use sockets::sockets;
pub use threads::threads;
pub use transport::{Incoming, Outgoing, Transport};
pub use world::{Pending, Traffic, World};
