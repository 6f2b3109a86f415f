//! The MPI transport, in processes that mpirun starts: this program starts itself again as ranks. Without mpirun it says that it was
//! skipped.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use dittograd::error::{ErrorKind, Result};
use dittograd::parallel::{Incoming, Outgoing, World};
use dittograd_cli::mpi;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
const SOON: Duration = Duration::from_secs(60);
/// What each rank says that came to its end.
const DONE: &str = "as it should be";

/// What ranks do, how many of them, and in how many cases.
type Part = (&'static str, &'static [usize], usize, fn(usize));

const PARTS: [Part; 6] = [
    ("exchange", &[1, 2, 3, 5, 8], 1, exchange),
    ("gather", &[1, 2, 3, 5, 8], 1, gather),
    ("lengths", &[2], LENGTHS.len(), lengths),
    ("abort", &[2, 3, 5], 1, abort),
    ("silence", &[2, 3], 1, silence),
    ("rate", &[2], 1, rate),
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, name, case] = &arguments[..]
        && first == "rank"
    {
        let part = PARTS.iter().find(|p| p.0 == name).unwrap();
        part.3(case.parse().unwrap());
        println!("{DONE}");
        return;
    }
    if Command::new("mpirun").arg("--version").output().is_err() {
        println!("mpi: skipped, there is no mpirun");
        return;
    }
    let is_wanted = |name: &str| arguments.iter().all(|a| a.starts_with('-') || name.contains(a.as_str()));
    for (name, sizes, cases, _) in PARTS.iter().filter(|p| is_wanted(p.0)) {
        for (size, case) in sizes.iter().flat_map(|size| (0..*cases).map(move |case| (*size, case))) {
            let start = Instant::now();
            let said = mpirun(size, name, case);
            assert_eq!(said.matches(DONE).count(), size, "{name} of {size}: {said}");
            let rate = said.lines().find(|l| l.contains("GB/s")).unwrap_or_default();
            println!("{name} of {size} ranks: ok, {:.1?} {rate}", start.elapsed());
        }
    }
}

/// What this program says as ranks. One that ends without finalizing MPI does not take the others with it, so that each is seen to end
/// by itself.
fn mpirun(size: usize, name: &str, case: usize) -> String {
    let mut command = Command::new("mpirun");
    command.args(["--allow-run-as-root", "--oversubscribe", "--enable-recovery", "-n", &size.to_string()]);
    command.arg(std::env::current_exe().unwrap()).args(["rank", name, &case.to_string()]);
    let Output { stdout, stderr, .. } = command.output().unwrap();
    String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr)
}

/// A message from one rank to another. It repeats after a number of bytes that has nothing to do with pieces.
fn message(from: usize, to: usize, number: usize, length: usize) -> Vec<u8> {
    let byte = |i: usize| ((i ^ i >> 8) * 31 + from * 7 + to * 13 + number * 3) as u8;
    let mut bytes = (0..4099).map(byte).collect::<Vec<_>>().repeat(length.div_ceil(4099));
    bytes.truncate(length);
    bytes
}

/// Everyone with everyone, two messages at once each way, of lengths around those of pieces.
fn exchange(_: usize) {
    let (_runtime, mut transport) = mpi::start().unwrap();
    assert!(transport.name().starts_with("mpi ("), "{}", transport.name());
    let (rank, size) = (transport.rank(), transport.size());
    for length in [0, 1, 4095, 70_000, MIB - 1, MIB, MIB + 1, 9 * MIB + 5] {
        // They differ by the pair of ranks.
        let length = |from: usize, to: usize| length + length.min(1) * (from * size + to);
        let pairs = (0..size).filter(|r| *r != rank).flat_map(|r| [(r, 0), (r, 1)]);
        let out: Vec<_> = pairs.clone().map(|(to, n)| (to, message(rank, to, n, length(rank, to)))).collect();
        let mut into: Vec<_> =
            pairs.clone().map(|(from, _)| (from, vec![0xa5; length(from, rank)])).collect();
        let sends: Vec<_> = out.iter().map(|(to, bytes)| Outgoing { to: *to, bytes }).collect();
        let mut receives: Vec<_> =
            into.iter_mut().map(|(from, bytes)| Incoming { from: *from, bytes }).collect();
        transport.exchange(&sends, &mut receives, SOON).unwrap();
        for ((from, bytes), (_, number)) in into.iter().zip(pairs) {
            assert!(*bytes == message(*from, rank, number, length(*from, rank)), "{from} to {rank}");
        }
    }
    // Around a ring, sends and receives apart.
    let (to, from) = ((rank + 1) % size, (rank + size - 1) % size);
    for round in (0..20).filter(|_| size > 1) {
        let (out, mut into) = (message(rank, to, round, 1000), vec![0; 1000]);
        transport.exchange(&[Outgoing { to, bytes: &out }], &mut [], SOON).unwrap();
        transport.exchange(&[], &mut [Incoming { from, bytes: &mut into }], SOON).unwrap();
        assert_eq!(into, message(from, rank, round, 1000));
    }
}

/// Through a world, whose thread makes the calls.
fn gather(_: usize) {
    let (_runtime, transport) = mpi::start().unwrap();
    let world = World::new(transport).unwrap();
    for length in [0, 3, 100_000, 3 * MIB] {
        let mine = |rank: usize| message(rank, 0, 0, length * rank);
        let all = world.all_gather(&mine(world.rank())).unwrap();
        assert!(all.iter().enumerate().all(|(rank, bytes)| *bytes == mine(rank)));
        assert_eq!(world.broadcast(&mine(world.rank() + 1)).unwrap(), mine(1));
    }
    // Before MPI is finalized.
    drop(world);
}

/// It is the error of a rank, for a reason.
fn ends(result: Result<()>, rank: usize, why: &str) {
    match result.unwrap_err().kind() {
        ErrorKind::Peer { rank: r, why: w } => {
            assert!(*r == rank && w.contains(why), "rank {r} {w}, not {rank} {why}");
        }
        other => panic!("{other:?}"),
    }
}

/// Bytes that are sent, bytes that are expected, and what the error says.
const LENGTHS: [(usize, usize, &str); 6] = [
    (10, 11, "sent 10 bytes where 11"),
    (11, 10, "more than the 10 bytes"),
    (MIB, MIB + 1, "sent 1048576 bytes where 1048577"),
    (MIB + 1, MIB, "more than the 1048576 bytes"),
    (0, 5, "sent 0 bytes where 5"),
    (5, 0, "more than the 0 bytes"),
];

fn lengths(case: usize) {
    let (_runtime, mut transport) = mpi::start().unwrap();
    let (sent, expected, why) = LENGTHS[case];
    if transport.rank() == 0 {
        let bytes = vec![1; sent];
        // What becomes of it is the receiver's business.
        let _ = transport.exchange(&[Outgoing { to: 1, bytes: &bytes }], &mut [], Duration::from_secs(1));
        transport.abort("done");
        return;
    }
    let mut into = vec![0; expected];
    ends(transport.exchange(&[], &mut [Incoming { from: 0, bytes: &mut into }], SOON), 0, why);
}

/// The last rank aborts. The others wait for each other or for it, and all of them are told.
fn abort(_: usize) {
    let (_runtime, mut transport) = mpi::start().unwrap();
    let last = transport.size() - 1;
    if transport.rank() == last {
        transport.abort("no more paper");
        return;
    }
    let (start, from) = (Instant::now(), transport.rank() + 1);
    let mut into = vec![0; 3 * MIB];
    let told = transport.exchange(&[], &mut [Incoming { from, bytes: &mut into }], SOON);
    ends(told, last, "gave up: no more paper");
    assert!(start.elapsed() < SOON / 4, "{:?}", start.elapsed());
}

/// The last rank is there and says nothing. The others find out when their time is over, and end although requests are open.
fn silence(_: usize) {
    let (_runtime, mut transport) = mpi::start().unwrap();
    let (last, timeout) = (transport.size() - 1, Duration::from_secs(1));
    if transport.rank() == last {
        std::thread::sleep(3 * timeout);
        transport.abort("too late");
        return;
    }
    let (start, out, mut into) = (Instant::now(), vec![1; 5 * MIB], vec![0; 5 * MIB]);
    let mut receives = [Incoming { from: last, bytes: &mut into }];
    let late = transport.exchange(&[Outgoing { to: last, bytes: &out }], &mut receives, timeout);
    ends(late, last, "did not answer within 1s");
    assert!((timeout..3 * timeout).contains(&start.elapsed()), "{:?}", start.elapsed());
}

/// How fast it is. It is not judged, since other programs run beside this one.
fn rate(_: usize) {
    let (_runtime, mut transport) = mpi::start().unwrap();
    let (rank, other) = (transport.rank(), 1 - transport.rank());
    let mut time = |length: usize, rounds: u32| {
        let (out, mut into) = (vec![1; length], vec![0; length]);
        let start = Instant::now();
        for _ in 0..rounds {
            let mut receives = [Incoming { from: other, bytes: &mut into }];
            transport.exchange(&[Outgoing { to: other, bytes: &out }], &mut receives, SOON).unwrap();
        }
        start.elapsed() / rounds
    };
    let (small, large) = (time(8, 2000), time(64 * MIB, 10));
    if rank == 0 {
        let rate = (64 * MIB) as f64 / large.as_secs_f64() / 1e9;
        println!("8 bytes in {small:.1?}, 64 MiB in {large:.1?}: {rate:.1} GB/s each way");
    }
}
