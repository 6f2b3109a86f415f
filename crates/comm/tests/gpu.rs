//! Worlds whose ranks have GPUs of a fake driver, through host memory and by a fake NCCL; and NCCL on a real GPU, if there is one.

#![allow(clippy::unwrap_used, clippy::panic)]

use dittograd_comm::fake_nccl::Fake as FakeNccl;
use dittograd_comm::{Transport, World, nccl, nccl_by, threads};
use dittograd_device::cuda::fake::{Fake, Live};
use dittograd_device::{Buffer, Device};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use std::time::{Duration, Instant};

/// Long enough for threads on a busy machine.
const LONG: Duration = Duration::from_secs(20);

/// What the ranks of a test compute on, and how messages travel.
#[derive(Clone, Copy, Debug, PartialEq)]
enum By {
    Cpu,
    Staging,
    Nccl,
}

/// The ranks of a test: the fake drivers behind them, and a device for each.
struct Ranks {
    by: By,
    driver: Fake,
    nccl: FakeNccl,
    devices: Vec<Device>,
}

impl Ranks {
    fn new(by: By, size: usize) -> Ranks {
        let (driver, nccl) = (Fake::with(size as i32, 64 << 20), FakeNccl::new());
        let device = |rank| match by {
            By::Cpu => Device::cpu().unwrap(),
            _ => Device::from_cuda(driver.open_at(rank).unwrap()),
        };
        let devices = (0..size).map(device).collect();
        Ranks { by, driver, nccl, devices }
    }

    /// Runs `f` on a thread of each rank, and drops everything it has there.
    fn run<T: Send>(&self, f: impl Fn(&World, &Device) -> T + Sync) -> Vec<T> {
        self.run_by(threads(self.devices.len()), f)
    }

    fn run_by<T: Send>(
        &self,
        transports: Vec<Box<dyn Transport>>,
        f: impl Fn(&World, &Device) -> T + Sync,
    ) -> Vec<T> {
        let f = &f;
        let one = |(host, device): (Box<dyn Transport>, &Device)| {
            let transport = match self.by {
                By::Nccl => nccl_by(Ok(self.nccl.library(&self.driver)), host, device, LONG).unwrap(),
                _ => host,
            };
            let world = World::new(transport).unwrap();
            world.set_timeout(LONG);
            f(&world, device)
        };
        std::thread::scope(|scope| {
            let ranks = transports.into_iter().zip(&self.devices);
            let ranks: Vec<_> = ranks.map(|rank| scope.spawn(|| one(rank))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    /// Everything is gone, and nothing was done that a driver or NCCL would refuse.
    fn check(self) {
        drop(self.devices);
        assert_eq!((self.driver.live(), self.driver.misuses()), (Live::default(), vec![]), "{:?}", self.by);
        assert_eq!((self.nccl.live(), self.nccl.misuses()), (0, vec![]), "{:?}", self.by);
    }
}

/// Words that no other message of a test has.
fn words(from: usize, to: usize, round: usize, count: usize) -> Vec<f32> {
    (0..count).map(|i| (i + 1000 * round + 100_000 * to + 1_000_000 * from) as f32).collect()
}

fn bits(words: &[f32]) -> Vec<u32> {
    words.iter().map(|w| w.to_bits()).collect()
}

/// Rounds of exchanges between all ranks, of several messages each, some empty. What is sent is computed just before, from what was
/// received the round before; what is received is computed with just after.
fn rounds(world: &World, device: &Device) -> Result<Vec<Vec<u32>>> {
    let (rank, size) = (world.rank(), world.size());
    let count =
        |from: usize, to: usize, round: usize, k: usize| (from * 7 + to * 5 + round * 3 + k) % 11 * 97;
    let mut seen = Vec::new();
    for round in 0..6 {
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        for peer in (0..size).filter(|peer| *peer != rank) {
            for k in 0..2 {
                let whole =
                    Buffer::upload(device, &words(rank, peer, round + k, count(rank, peer, round, k) + 9))?;
                sends.push((peer, whole.part(4, count(rank, peer, round, k))?));
                // Memory that was in use a moment ago.
                receives.push((peer, Buffer::upload(device, &vec![-1.0; count(peer, rank, round, k)])?));
            }
        }
        let pending = world.start(sends, receives.clone())?;
        // Other work goes on, in memory of its own.
        let beside = Buffer::upload(device, &words(rank, rank, round, 300))?;
        pending.wait()?;
        for (i, (peer, buffer)) in receives.iter().enumerate() {
            let want = &words(*peer, rank, round + i % 2, count(*peer, rank, round, i % 2) + 9)[4..];
            let got = buffer.download()?;
            assert_eq!(got, want[..buffer.len()], "from {peer} to {rank}, round {round}");
            seen.push(bits(&got));
        }
        assert_eq!(beside.download()?, words(rank, rank, round, 300));
    }
    Ok(seen)
}

#[test]
fn all_ways_move_the_same_words() {
    for size in 1..=4 {
        let mut first = None;
        for by in [By::Cpu, By::Staging, By::Nccl] {
            for seed in [None, Some(1), Some(2), Some(3)] {
                let ranks = Ranks::new(by, size);
                ranks.driver.shuffle(seed);
                let seen = ranks.run(|world, device| {
                    let name = world.name().to_string();
                    assert_eq!(name == "nccl 2.21.5 and threads", by == By::Nccl && size > 1, "{name}");
                    assert_eq!(world.note(), None);
                    let seen = rounds(world, device).unwrap();
                    (seen, world.traffic())
                });
                ranks.check();
                assert_eq!(first.get_or_insert_with(|| seen.clone()), &seen, "{by:?} {seed:?}");
            }
        }
    }
}

/// Staging is reused: after the first exchange no more pinned memory is asked for.
#[test]
fn staging_is_kept() {
    let ranks = Ranks::new(By::Staging, 2);
    let asked = || ranks.driver.calls_by_symbol().get("cuMemHostAlloc").copied().unwrap_or(0);
    let counts = ranks.run(|world, device| {
        let one = || {
            let [out, into] = [(); 2].map(|()| Buffer::upload(device, &[1.0; 5000]).unwrap());
            world
                .start(vec![(1 - world.rank(), out)], vec![(1 - world.rank(), into)])
                .unwrap()
                .wait()
                .unwrap();
            // Both have done so.
            world.all_gather(&[]).unwrap();
        };
        one();
        let before = asked();
        world.all_gather(&[]).unwrap();
        (0..20).for_each(|_| one());
        (before, asked())
    });
    assert!(counts.iter().all(|(before, after)| before == after), "{counts:?}");
    ranks.check();
}

/// Buffers of CPUs go through the host transport beside those of GPUs, in one exchange.
#[test]
fn gpus_and_cpus_in_one_exchange() {
    for by in [By::Staging, By::Nccl] {
        let ranks = Ranks::new(by, 2);
        ranks.run(|world, gpu| {
            let (me, peer) = (world.rank(), 1 - world.rank());
            let cpu = Device::cpu().unwrap();
            let out = [gpu, &cpu, gpu].map(|d| (peer, Buffer::upload(d, &words(me, peer, 0, 50)).unwrap()));
            let into = [gpu, &cpu, gpu].map(|d| (peer, Buffer::upload(d, &[0.0; 50]).unwrap()));
            world.start(out.to_vec(), into.to_vec()).unwrap().wait().unwrap();
            for (_, buffer) in &into {
                assert_eq!(buffer.download().unwrap(), words(peer, me, 0, 50));
            }
        });
        ranks.check();
    }
}

/// Whoever started an exchange may not want it any more. Its memory is not used again too early.
#[test]
fn an_exchange_that_nobody_waits_for() {
    for by in [By::Staging, By::Nccl] {
        let ranks = Ranks::new(by, 2);
        ranks.run(|world, device| {
            let mut others = Vec::new();
            for round in 0..20 {
                // The first block that is freed is the first to be used again.
                let [into, out] = [(); 2].map(|()| Buffer::upload(device, &[1.0; 600]).unwrap());
                drop(world.start(vec![(1 - world.rank(), out)], vec![(1 - world.rank(), into)]).unwrap());
                // It is over for the ranks, and its memory free again.
                world.all_gather(&[]).unwrap();
                let other = Buffer::upload(device, &words(0, 0, round, 600)).unwrap();
                assert_eq!(other.download().unwrap(), words(0, 0, round, 600), "{by:?}");
                others.push((round, other));
            }
            for (round, other) in others {
                assert_eq!(other.download().unwrap(), words(0, 0, round, 600), "{by:?}");
            }
        });
        ranks.check();
    }
}

fn peer_of(error: &Error) -> (usize, String) {
    match error.kind() {
        ErrorKind::Peer { rank, why } => (*rank, why.clone()),
        other => panic!("{other:?}"),
    }
}

/// One exchange with the other rank.
fn swap(world: &World, device: &Device, send: usize, receive: usize) -> Result<()> {
    let out = Buffer::upload(device, &vec![1.0; send])?;
    let into = Buffer::upload(device, &vec![0.0; receive])?;
    world.start(vec![(1 - world.rank(), out)], vec![(1 - world.rank(), into)])?.wait()
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    for by in [By::Staging, By::Nccl] {
        let ranks = Ranks::new(by, 2);
        // Late: rank 1 comes after rank 0 has given up.
        let got = ranks.run(|world, device| {
            swap(world, device, 10, 10).unwrap();
            if world.rank() == 1 {
                std::thread::sleep(Duration::from_millis(600));
                // What rank 0 sent before may have come.
                return swap(world, device, 10, 10).and_then(|()| swap(world, device, 10, 10));
            }
            world.set_timeout(Duration::from_millis(200));
            let begun = Instant::now();
            let outcome = swap(world, device, 10, 10);
            assert!(begun.elapsed() < Duration::from_secs(10));
            outcome
        });
        let (rank, why) = peer_of(got[0].as_ref().unwrap_err());
        assert!(rank == 1 && why.contains("did not answer within"), "{rank} {why}");
        assert_eq!(peer_of(got[1].as_ref().unwrap_err()).0, 0);
        // It aborts, with a reason.
        let got = Ranks::new(by, 2).run(|world, device| {
            if world.rank() == 1 {
                world.abort("has no more data");
                return Ok(());
            }
            swap(world, device, 10, 10)
        });
        assert_eq!(peer_of(got[0].as_ref().unwrap_err()), (1, "gave up: has no more data".into()));
        // It sends something else.
        let got = Ranks::new(by, 2).run(|world, device| match world.rank() {
            0 => swap(world, device, 10, 10),
            _ => swap(world, device, 11, 10),
        });
        let (rank, why) = peer_of(got[0].as_ref().unwrap_err());
        assert_eq!((rank, &*why), (1, "sent 44 bytes where 40 were expected"));
        if by == By::Nccl {
            let (rank, why) = peer_of(got[1].as_ref().unwrap_err());
            assert_eq!((rank, &*why), (0, "expects 40 bytes where 44 are sent"));
        }
    }
}

/// The GPU of a rank fails: that rank gets the error of its GPU, the other one the name of the rank.
#[test]
fn a_rank_whose_gpu_fails_is_named() {
    for by in [By::Staging, By::Nccl] {
        for code in [1, 719] {
            let ranks = Ranks::new(by, 2);
            let got = ranks.run(|world, device| {
                swap(world, device, 10, 10).unwrap();
                world.all_gather(&[]).unwrap();
                world.set_timeout(Duration::from_secs(1));
                if world.rank() == 0 {
                    return swap(world, device, 10, 10);
                }
                let [out, into] = [(); 2].map(|()| Buffer::upload(device, &[1.0; 10]).unwrap());
                let pending = {
                    // The next wait of any kind on this GPU, which is that of the exchange.
                    ranks.driver.fail_device(1, 3, code);
                    world.start(vec![(0, out)], vec![(0, into)])?
                };
                pending.wait()
            });
            let error = got[1].as_ref().unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::Cuda { .. } | ErrorKind::Poisoned { .. }),
                "{by:?} {error}"
            );
            let (rank, why) = peer_of(got[0].as_ref().unwrap_err());
            assert!(rank == 1 && why.contains("gave up: "), "{by:?} {code}: {rank} {why}");
            ranks.driver.recover();
        }
    }
}

/// Every driver call of an exchange fails in turn, once or for good. Nobody hangs, nothing is left, and no error is lost: who has the
/// GPU learns of it, at the latest from the next call.
#[test]
fn any_driver_call_may_fail() {
    for (by, code, stays) in
        [(By::Staging, 1, false), (By::Staging, 719, true), (By::Nccl, 1, false), (By::Nccl, 719, true)]
    {
        for k in 1.. {
            let ranks = Ranks::new(by, 2);
            let (mut transports, driver) = (threads(2), &ranks.driver);
            let (second, first) = (transports.pop().unwrap(), transports.pop().unwrap());
            let what = format!("{by:?}: call {k} fails with {code}, for good: {stays}");
            let got = ranks.run_by(vec![first, second], |world, device| -> Result<()> {
                world.set_timeout(Duration::from_millis(300));
                world.all_gather(&[])?;
                if world.rank() == 0 && !stays {
                    driver.fail_call(k, code);
                } else if world.rank() == 0 {
                    driver.fail_device(0, k, code);
                }
                world.all_gather(&[])?;
                (0..2).try_for_each(|_| swap(world, device, 10, 10))
            });
            let failed = driver.failed();
            driver.recover();
            if failed.is_none() {
                assert_eq!(got, [Ok(()), Ok(())], "{what}");
                assert!(k > 15, "{what}");
                ranks.check();
                break;
            }
            let told = ranks.devices.iter().any(|d| d.synchronize().is_err() || d.synchronize().is_err());
            assert!(told || got.iter().any(Result::is_err), "{what}: {failed:?} was lost");
            drop(ranks.devices);
            // Errors of closing a device are those of whoever opens it next; what matters here is that all is gone.
            assert_eq!((driver.live(), driver.misuses()), (Live::default(), vec![]), "{what}: {got:?}");
            assert_eq!(ranks.nccl.live(), 0, "{what}");
        }
    }
}

/// Faults of NCCL itself, after both ranks have said that they are there.
#[test]
fn faults_of_nccl_end_the_exchange_on_all_ranks() {
    for call in ["ncclSend", "ncclRecv", "ncclGroupEnd", "ncclCommGetAsyncError", "state"] {
        let ranks = Ranks::new(By::Nccl, 2);
        let got = ranks.run(|world, device| {
            swap(world, device, 10, 10).unwrap();
            world.set_timeout(Duration::from_millis(500));
            world.all_gather(&[]).unwrap();
            if world.rank() == 1 {
                match call {
                    "state" => ranks.nccl.break_rank(1, 6),
                    _ => ranks.nccl.fail(call, 1, 3),
                }
            }
            world.all_gather(&[]).unwrap();
            let begun = Instant::now();
            let outcome = swap(world, device, 10, 10);
            assert!(begun.elapsed() < Duration::from_secs(10), "{call}");
            // The world is over.
            assert!(swap(world, device, 10, 10).is_err());
            outcome
        });
        let (rank, why) = peer_of(got[1].as_ref().unwrap_err());
        let name = if call == "state" { "ncclCommGetAsyncError" } else { call };
        assert!(rank == 0 && (why.contains(name) || why.contains("did not answer")), "{call}: {rank} {why}");
        let (rank, why) = peer_of(got[0].as_ref().unwrap_err());
        assert_eq!(rank, 1, "{why}");
        assert_eq!((ranks.nccl.live(), ranks.nccl.aborted()), (0, 2), "{call}");
        ranks.check();
    }
}

/// Where NCCL cannot be used, all ranks say the same reason and go through host memory.
#[test]
fn without_nccl_a_note_says_why() {
    /// A world over NCCL for each device, and what all say.
    fn noted(
        devices: &[Device],
        libraries: &(dyn Fn(usize) -> Result<FakeNccl, String> + Sync),
        driver: &Fake,
    ) -> String {
        let notes: Vec<String> = std::thread::scope(|scope| {
            let ranks: Vec<_> = threads(devices.len())
                .into_iter()
                .enumerate()
                .map(|(rank, host)| {
                    scope.spawn(move || {
                        let library = libraries(rank).map(|nccl| nccl.library(driver));
                        let transport =
                            nccl_by(library, host, &devices[rank], Duration::from_millis(500)).unwrap();
                        let world = World::new(transport).unwrap();
                        assert_eq!(world.name(), "threads");
                        rounds(&world, &devices[rank]).unwrap();
                        world.note().unwrap_or_default().to_string()
                    })
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        assert!(notes.iter().all(|note| *note == notes[0]), "{notes:?}");
        assert_eq!(driver.misuses(), []);
        notes[0].clone()
    }
    let driver = Fake::with(2, 64 << 20);
    let gpu = |ordinal| Device::from_cuda(driver.open_at(ordinal).unwrap());
    let cpu = Device::cpu().unwrap();
    let nccl = FakeNccl::new();
    let there = |_| Ok(nccl.clone());
    let note = noted(&[gpu(0), cpu], &there, &driver);
    assert_eq!(note, "rank 1 computes on cpu");
    let note = noted(&[gpu(0), gpu(1), gpu(0)], &there, &driver);
    assert!(note.starts_with("ranks 0 and 2 have the same GPU, on "), "{note}");
    let missing = |rank| if rank == 1 { Err("found no NCCL".to_string()) } else { Ok(nccl.clone()) };
    assert_eq!(noted(&[gpu(0), gpu(1)], &missing, &driver), "rank 1 found no NCCL");
    for call in ["ncclGetUniqueId", "ncclCommInitRankConfig"] {
        nccl.fail(call, 1, 2);
        let note = noted(&[gpu(0), gpu(1)], &there, &driver);
        assert!(note.starts_with("NCCL did not start on rank ") && note.contains("code 2"), "{note}");
    }
    assert_eq!((nccl.live(), nccl.misuses()), (0, vec![]));
}

/// Two ranks on one real GPU: NCCL does not take them, and host memory moves the same words.
#[test]
fn two_ranks_on_a_real_device() {
    let gpu = match Device::cuda(0) {
        Ok(gpu) => gpu,
        Err(error) => {
            eprintln!("skipped: {error}");
            return;
        }
    };
    let on = |device: &Device| -> Vec<(Vec<Vec<u32>>, Option<String>)> {
        std::thread::scope(|scope| {
            let one = |host| {
                let world = World::new(nccl(host, device, LONG).unwrap()).unwrap();
                (rounds(&world, device).unwrap(), world.note())
            };
            let ranks: Vec<_> = threads(2).into_iter().map(|host| scope.spawn(move || one(host))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    };
    let (there, here) = (on(&gpu), on(&Device::cpu().unwrap()));
    for ((there, note), (here, _)) in there.iter().zip(&here) {
        assert!(there == here, "other words");
        let note = note.as_ref().unwrap();
        eprintln!("{note}");
        assert!(note.contains("the same GPU") || note.contains("found no NCCL"), "{note}");
    }
}
