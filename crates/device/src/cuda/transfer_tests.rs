//! Transfers beside computing, over the fake driver in any order of its streams, and on a real device.

use super::context::lock;
use super::driver::HostMemory;
use super::fake::{Fake, Foreign, Live};
use super::tests::REAL;
use super::{Cuda, Mark, Pinned};
use dittograd_numerics::Numerics;
use dittograd_numerics::error::{ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Work that takes until somebody says that it is over.
#[derive(Default)]
struct Long(AtomicBool);

impl Foreign for Long {
    fn advance(&self, _: &mut dyn HostMemory) -> Option<bool> {
        Some(self.0.load(Ordering::Acquire))
    }
}

fn pinned(cuda: &Arc<Cuda>, bytes: &[u8]) -> Pinned {
    let mut pinned = cuda.pinned(bytes.len()).expect("room");
    pinned.bytes_mut().expect("nothing to wait for").copy_from_slice(bytes);
    pinned
}

#[test]
fn a_fetch_waits_for_its_mark_and_for_nothing_after_it() {
    let fake = Fake::new();
    let cuda = fake.open().expect("opens");
    let (a, b) = (cuda.alloc(64).expect("room"), cuda.alloc(64).expect("room"));
    cuda.fill(a, 0x0101_0101, 16).expect("fills");
    let mark = cuda.mark().expect("a mark");
    let long = Arc::new(Long::default());
    assert!(fake.queue(cuda.stream, long.clone()));
    cuda.fill(b, 0x0202_0202, 16).expect("fills");
    let behind = cuda.mark().expect("a mark");
    let mut into = cuda.pinned(12).expect("room");
    assert_eq!(into.bytes(), [0; 12]);
    std::thread::scope(|scope| {
        scope.spawn(|| cuda.fetch(&mark, &[(a + 4, 5), (0, 0), (b, 3), (a, 4)], &mut into).expect("fetches"));
    });
    assert_eq!(into.bytes(), [1, 1, 1, 1, 1, 0xcd, 0xcd, 0xcd, 1, 1, 1, 1]);
    assert_eq!(mark.is_reached(), Ok(true));
    for _ in 0..3 {
        assert_eq!(behind.is_reached(), Ok(false));
    }
    long.0.store(true, Ordering::Release);
    behind.synchronize().expect("waits");
    assert_eq!(behind.is_reached(), Ok(true));
    assert_eq!(fake.read(b, 4), Some(vec![2; 4]));
    assert_eq!(fake.misuses(), []);
}

/// What a range holds in the end does not depend on the order in which streams run. Every wait that is left out is found by
/// some order: see the next test.
fn exchange(fake: &Fake, wait: bool, after_use: bool) -> Result<Vec<u8>> {
    let cuda = fake.open()?;
    let [a, b, c] = [cuda.alloc(64)?, cuda.alloc(64)?, cuda.alloc(64)?];
    cuda.fill(a, 0x0101_0101, 16)?;
    let early = cuda.mark()?;
    cuda.copy(b, a, 64)?;
    let used = cuda.mark()?;
    // Overwrites `a` after `b` was copied from it.
    let mut new = pinned(&cuda, &[7; 64]);
    let put = cuda.put(if after_use { &used } else { &early }, &mut new, &[(a, 32), (a + 32, 32)])?;
    if wait {
        cuda.wait(&put)?;
    }
    cuda.copy(c, a, 64)?;
    let mut back = [0; 64];
    let mut seen = Vec::new();
    for address in [b, c] {
        cuda.download(address, &mut back)?;
        seen.extend([back[0], back[63]]);
    }
    // The memory is not written before the copies have read it, and not freed either.
    new.bytes_mut()?.fill(9);
    drop(new);
    cuda.download(a, &mut back)?;
    seen.extend([back[0], back[63]]);
    Ok(seen)
}

#[test]
fn no_order_of_the_streams_changes_what_arrives() {
    let mut seen = [0; 2];
    for seed in std::iter::once(None).chain((0..200).map(Some)) {
        let run = |wait, after_use| {
            let fake = Fake::new();
            fake.shuffle(seed);
            let got = exchange(&fake, wait, after_use).expect("runs");
            assert_eq!((fake.live(), fake.misuses()), (Live::default(), vec![]));
            got
        };
        assert_eq!(run(true, true), [1, 1, 7, 7, 7, 7], "{seed:?}");
        // The fake shows a missing wait, of computing for the copy and of the copy for computing.
        seen[0] += usize::from(run(false, true) != [1, 1, 7, 7, 7, 7]);
        seen[1] += usize::from(run(true, false) != [1, 1, 7, 7, 7, 7]);
    }
    assert!(seen[0] > 10 && seen[1] > 10, "{seen:?}");
}

#[test]
fn pinned_memory_outlives_the_copies_that_read_it() {
    let fake = Fake::new();
    let cuda = fake.open().expect("opens");
    let a = cuda.alloc(64).expect("room");
    let put = |mark: &Mark, byte| cuda.put(mark, &mut pinned(&cuda, &[byte; 64]), &[(a, 64)]).expect("puts");
    // Dropped at once: the copy runs before the memory goes.
    let first = put(&cuda.mark().expect("a mark"), 5);
    assert_eq!(first.is_reached(), Ok(true));
    assert_eq!((fake.read(a, 64), fake.live().pinned), (Some(vec![5; 64]), 0));
    // Its last owner is a thread that has not used the device before.
    let mut last = pinned(&cuda, &[6; 64]);
    cuda.put(&first, &mut last, &[(a, 64)]).expect("puts");
    drop((first, cuda));
    std::thread::spawn(move || drop(last)).join().expect("drops");
    assert_eq!((fake.live(), fake.misuses()), (Live::default(), vec![]));
}

#[test]
fn what_does_not_fit_is_refused() {
    let fake = Fake::with(2, 16 << 20);
    let (cuda, other) = (fake.open_at(0).expect("opens"), fake.open_at(1).expect("opens"));
    let (a, gone) = (cuda.alloc(64).expect("room"), cuda.alloc(1024).expect("room"));
    cuda.free(gone);
    let (mark, theirs) = (cuda.mark().expect("a mark"), other.mark().expect("a mark"));
    let (mut mine, mut foreign) = (pinned(&cuda, &[1; 8]), pinned(&other, &[1; 8]));
    let mut empty = cuda.pinned(0).expect("nothing");
    let all = [
        cuda.wait(&theirs),
        cuda.fetch(&theirs, &[(a, 8)], &mut mine),
        cuda.fetch(&mark, &[(a, 8)], &mut foreign),
        cuda.fetch(&mark, &[(a, 4), (a, 5)], &mut mine),
        cuda.fetch(&mark, &[(a, usize::MAX), (a, 1)], &mut mine),
        cuda.fetch(&mark, &[(gone, 8)], &mut mine),
        cuda.fetch(&mark, &[(a, 1)], &mut empty),
        cuda.put(&theirs, &mut mine, &[(a, 8)]).map(drop),
        cuda.put(&mark, &mut foreign, &[(a, 8)]).map(drop),
        cuda.put(&mark, &mut mine, &[(a, 9)]).map(drop),
        cuda.put(&mark, &mut mine, &[(gone, 8)]).map(drop),
    ];
    for (i, result) in all.into_iter().enumerate() {
        let error = result.expect_err("refused");
        assert!(matches!(error.kind(), ErrorKind::Argument { .. }), "{i}: {error}");
    }
    cuda.fetch(&mark, &[], &mut empty).expect("nothing to do");
    cuda.put(&mark, &mut empty, &[(0, 0)]).expect("nothing to do").synchronize().expect("waits");
    assert_eq!(mine.bytes(), [1; 8], "nothing was written");
    assert_eq!(fake.misuses(), []);
    // Out of pinned memory.
    fake.fail_symbol("cuMemHostAlloc", 1, 2, false);
    let error = cuda.pinned(4096).expect_err("no room");
    assert!(matches!(error.kind(), ErrorKind::OutOfMemory { bytes: 4096, .. }), "{error}");
}

/// A copy that nobody could wait for may still write: the memory is given up rather than shown or freed.
#[test]
fn after_a_failed_wait_the_memory_is_given_up() {
    for code in [1, 719] {
        let fake = Fake::new();
        let cuda = fake.open().expect("opens");
        let a = cuda.alloc(64).expect("room");
        let (mark, mut into) = (cuda.mark().expect("a mark"), pinned(&cuda, &[1; 8]));
        cuda.fetch(&mark, &[(a, 8)], &mut into).expect("fetches");
        fake.fail_symbol("cuEventSynchronize", 1, code, true);
        assert!(cuda.fetch(&mark, &[(a, 8)], &mut into).is_err());
        // The stream could be waited for instead, unless the device is lost.
        assert_eq!(into.bytes().len(), if code == 1 { 8 } else { 0 });
        fake.fail_symbol("cuStreamSynchronize", 1, code, true);
        if code == 1 {
            fake.fail_symbol("cuEventRecord", 1, code, true);
            assert!(cuda.put(&mark, &mut into, &[(a, 8)]).is_err());
            assert_eq!(into.bytes().len(), 8);
        }
        drop(into);
        assert_eq!(fake.live().pinned, usize::from(code == 719), "kept until the device is closed");
        fake.recover();
        drop((mark, cuda));
        assert_eq!((fake.live(), fake.misuses()), (Live::default(), vec![]));
    }
}

#[test]
fn transfers_go_on_while_a_graph_is_captured() {
    let fake = Fake::new();
    let cuda = fake.open().expect("opens");
    let (a, b) = (cuda.alloc(64).expect("room"), cuda.alloc(64).expect("room"));
    cuda.fill(a, 3, 16).expect("fills");
    let (mark, mut into) = (cuda.mark().expect("a mark"), cuda.pinned(4).expect("room"));
    let graph = cuda
        .capture(|| {
            cuda.fill(b, 1, 16)?;
            std::thread::scope(|scope| {
                let there = scope.spawn(|| cuda.fetch(&mark, &[(a, 4)], &mut into));
                there.join().expect("no panic")
            })
        })
        .expect("captures");
    assert_eq!((graph.nodes(), into.bytes()), (1, &[3, 0, 0, 0][..]));
    assert_eq!(fake.misuses(), []);
}

/// Transfers of another thread beside kernels that take long.
#[test]
fn beside_computing_on_a_real_device() {
    let _alone = lock(&REAL);
    let cuda: Arc<Cuda> = match Cuda::open(0, Numerics::Strict) {
        Ok(cuda) => cuda,
        Err(error) => {
            eprintln!("skipped: {error}");
            return;
        }
    };
    let source = "extern \"C\" __global__ void spin(unsigned* at, unsigned value, unsigned long long ns) {
        unsigned long long begun, now;
        asm volatile(\"mov.u64 %0, %globaltimer;\" : \"=l\"(begun));
        do { asm volatile(\"mov.u64 %0, %globaltimer;\" : \"=l\"(now)); } while (now - begun < ns);
        *at = value;
    }";
    let spin = cuda.kernel("spin", source, "spin").expect("compiles");
    let wait = |at: u64, value: u32, ms: u64| {
        let mut args = super::Args::new();
        args.ptr(at).u32(value).bytes(&(ms * 1_000_000).to_ne_bytes(), 8);
        cuda.launch(spin, [1; 3], 1, 0, &args)
    };
    let bytes = 16 << 20;
    let [a, b, flag] = [bytes, bytes, 4].map(|n| cuda.alloc(n).expect("room"));
    let (mut out, mut into) = (cuda.pinned(bytes).expect("room"), cuda.pinned(bytes).expect("room"));
    for round in 1..=5u32 {
        // Computing: 20 ms, then `a` is written; a mark; then half a second more.
        wait(flag, round, 20).expect("launches");
        cuda.fill(a, 0x0101_0101 * round, bytes / 4).expect("fills");
        let mark = cuda.mark().expect("a mark");
        let begun = Instant::now();
        wait(flag, 100 + round, 500).expect("launches");
        let late = cuda.mark().expect("a mark");
        let put = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                cuda.fetch(&mark, &[(a, bytes)], &mut out)?;
                assert!(begun.elapsed() < Duration::from_millis(400), "waited for later work");
                assert!(!late.is_reached()?, "later work is not over");
                assert!(out.bytes().iter().all(|byte| u32::from(*byte) == round), "what the mark is behind");
                into.bytes_mut()?.fill(round as u8 + 50);
                cuda.put(&mark, &mut into, &[(b, bytes / 2), (b + bytes as u64 / 2, bytes / 2)])
            });
            other.join().expect("no panic").expect("transfers")
        });
        put.synchronize().expect("waits");
        assert!(!late.is_reached().expect("asks"), "the put ran beside computing");
        cuda.wait(&put).expect("waits");
        cuda.copy(a, b, bytes).expect("copies");
        let mut back = vec![0; bytes];
        cuda.download(a, &mut back).expect("downloads");
        assert!(back.iter().all(|byte| u32::from(*byte) == round + 50));
        assert!(begun.elapsed() >= Duration::from_millis(500));
    }
    // A put that computing has to wait for: it comes behind a mark that is late.
    for round in 0..20u8 {
        into.bytes_mut().expect("waits").fill(round);
        wait(flag, 0, 5).expect("launches");
        let mark = cuda.mark().expect("a mark");
        let put = cuda.put(&mark, &mut into, &[(b, bytes)]).expect("puts");
        cuda.wait(&put).expect("waits");
        cuda.copy(a, b, bytes).expect("copies");
        let copied = cuda.mark().expect("a mark");
        cuda.fetch(&copied, &[(a, bytes)], &mut out).expect("fetches");
        assert!(out.bytes().iter().all(|byte| *byte == round), "round {round}");
    }
    [a, b, flag].into_iter().for_each(|address| cuda.free(address));
    cuda.synchronize().expect("works");
}
