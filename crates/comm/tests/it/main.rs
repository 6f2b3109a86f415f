//! What holds for every transport, for the world above them, and for the way that processes meet.
//!
//! Timeouts are long where success is expected, and short only where the timeout is what is tested.

#![allow(clippy::unwrap_used, clippy::panic)]

mod exchange;
mod meeting;
#[cfg(unix)]
mod processes;
mod world;

use dittograd_comm::{Address, Launch, Transport, sockets, threads};
use dittograd_numerics::error::{Error, ErrorKind};
use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread::scope;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(120);
const SHORT: Duration = Duration::from_millis(300);

/// A port that nobody has, and that the system does not give to others meanwhile, as it is below those.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = (std::process::id() % 100) as u16 * 100;
    loop {
        let port = 10_000 + (first + NEXT.fetch_add(1, Ordering::Relaxed)) % 20_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// What rank `rank` of `size` knows, who all meet at `port` of this machine.
fn launch(rank: usize, size: usize, port: u16) -> Launch {
    let address = Some(Address { host: "127.0.0.1".into(), port });
    Launch { rank, size, local_rank: None, local_size: None, by: "test", run: "test".into(), address }
}

fn tcp(size: usize) -> Vec<Box<dyn Transport>> {
    let port = free_port();
    on_threads(0..size, |rank| sockets(&launch(rank, size, port), LONG).unwrap())
}

/// The transports of so many ranks.
type Make = fn(usize) -> Vec<Box<dyn Transport>>;

const TRANSPORTS: [(&str, Make); 2] = [("threads", threads), ("tcp", tcp)];

/// What `f` makes of each of these, on a thread for each.
fn on_threads<T: Send, U: Send>(all: impl IntoIterator<Item = T>, f: impl Fn(T) -> U + Sync) -> Vec<U> {
    let f = &f;
    scope(|scope| {
        let threads: Vec<_> = all.into_iter().map(|one| scope.spawn(move || f(one))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// The rank that an error names, and what it did.
fn named(error: &Error) -> (usize, &str) {
    match error.kind() {
        ErrorKind::Peer { rank, why } => (*rank, why),
        _ => panic!("{error}"),
    }
}
