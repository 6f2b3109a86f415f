//! The world above a transport.

use crate::{LONG, SHORT, TRANSPORTS, named, on_threads, tcp};
use dittograd_comm::{Incoming, Outgoing, Traffic, Transport, World};
use dittograd_device::{Buffer, Device};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

fn worlds(transports: Vec<Box<dyn Transport>>) -> Vec<World> {
    let worlds: Vec<World> = transports.into_iter().map(|t| World::new(t).unwrap()).collect();
    worlds.iter().for_each(|w| w.set_timeout(LONG));
    worlds
}

/// Whether it is the error of a world that is over.
fn is_over(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Argument { name: "order", .. })
}

#[test]
fn all_give_to_all() {
    for (name, make) in TRANSPORTS {
        for size in [1, 2, 3, 5, 8] {
            let want: Vec<Vec<u8>> = (0..size).map(|rank| vec![rank as u8; rank * rank * 1000]).collect();
            let traffic = on_threads(worlds(make(size)), |world| {
                assert_eq!(
                    (world.name(), world.size(), world.local_rank()),
                    (name.to_string(), size, world.rank())
                );
                assert!(world.all_gather(&want[world.rank()]).unwrap() == want, "{name}");
                assert_eq!(world.all_gather(&[]).unwrap(), vec![vec![]; size]);
                assert_eq!(world.broadcast(&[world.rank() as u8, 5]).unwrap(), [0, 5]);
                assert_eq!(world.broadcast(&[]).unwrap(), []);
                world.traffic()
            });
            let (sent, received) = traffic.iter().fold((0, 0), |(s, r), t| (s + t.sent, r + t.received));
            assert_eq!(sent, received, "{name}");
            assert!(
                if size == 1 { traffic == [Traffic::default()] } else { sent > 0 },
                "{name}: {traffic:?}"
            );
        }
    }
}

#[test]
fn words_of_buffers_arrive() {
    for (name, make) in TRANSPORTS {
        on_threads(worlds(make(3)), |world| {
            let device = Device::cpu().unwrap();
            let (rank, next, last) = (world.rank(), (world.rank() + 1) % 3, (world.rank() + 2) % 3);
            let mine = |rank: usize| -> Vec<f32> { (0..5000).map(|i| (i * (rank + 1)) as f32).collect() };
            let out = Buffer::upload(&device, &mine(rank)).unwrap();
            let all: Vec<_> = (0..4).map(|_| device.alloc(5000).unwrap()).collect();
            // Several are under way at once; one is not waited for.
            let pending: Vec<_> = all
                .iter()
                .map(|into| world.start(vec![(next, out.clone())], vec![(last, into.clone())]).unwrap())
                .collect();
            for (i, pending) in pending.into_iter().enumerate() {
                if i != 1 {
                    pending.wait().unwrap();
                }
            }
            for into in all {
                assert!(into.download().unwrap() == mine(last), "{name}");
            }
            for (rank, words) in [(rank, "to itself"), (3, "no rank 3 among 3")] {
                let error = world.start(vec![(rank, out.clone())], vec![]).err().unwrap();
                assert!(error.to_string().contains(words), "{error}");
            }
            // Neither did any harm.
            assert_eq!(world.all_gather(&[rank as u8]).unwrap(), [[0], [1], [2]]);
        });
    }
}

#[test]
fn a_rank_that_cannot_send_says_so_to_all() {
    for (name, make) in TRANSPORTS {
        let all_know = Barrier::new(2);
        on_threads(worlds(make(2)), |world| {
            let device = Device::cpu().unwrap();
            let buffer = Buffer::upload(&device, &[1.0]).unwrap();
            let other = 1 - world.rank();
            let error = if world.rank() == 0 {
                buffer.release();
                let error = world.start(vec![(other, buffer)], vec![]).unwrap().wait().unwrap_err();
                assert_eq!(error.kind(), &ErrorKind::Released, "{name}");
                error
            } else {
                let error = world.start(vec![], vec![(other, buffer)]).unwrap().wait().unwrap_err();
                let (rank, why) = named(&error);
                assert!(rank == 0 && why.contains("gave up: ") && why.contains("released"), "{name}: {why}");
                error
            };
            // It stays so.
            assert_eq!(world.all_gather(&[1]).unwrap_err(), error);
            all_know.wait();
        });
    }
}

#[test]
fn an_abort_is_told_to_all_and_ends_the_world() {
    for (name, make) in TRANSPORTS {
        for size in [2, 3, 8] {
            let all_know = Barrier::new(size);
            on_threads(worlds(make(size)), |world| {
                if world.rank() == 1 {
                    world.clone().abort("loss is NaN");
                    world.abort("again");
                    assert!(is_over(&world.all_gather(&[]).unwrap_err()), "{name}");
                } else {
                    let error = world.all_gather(&[]).unwrap_err();
                    // Of rank 1 itself, or passed on by another that heard it first.
                    let text = error.to_string();
                    assert!(text.contains("rank 1 gave up: loss is NaN"), "{name}: {text}");
                    assert!(text.matches("gave up").count() <= 2, "{name}: {text}");
                    assert_eq!(world.all_gather(&[]).unwrap_err(), error);
                    world.abort("too late");
                }
                all_know.wait();
            });
        }
    }
}

#[test]
fn an_abort_does_not_wait_for_what_is_queued() {
    for (name, make) in TRANSPORTS {
        let mut transports = make(2);
        let mut other = transports.pop().unwrap();
        let world = worlds(transports).pop().unwrap();
        world.set_timeout(SHORT);
        let device = Device::cpu().unwrap();
        let into = device.alloc(1).unwrap();
        let start = |_| world.start(vec![], vec![(1, into.clone())]).unwrap();
        let pending: Vec<_> = (0..100).map(start).collect();
        // The first waits for rank 1, which does not answer.
        let begun = Instant::now();
        world.abort("loss is NaN");
        assert!(begun.elapsed() < SHORT * 50, "{name}: {:?}", begun.elapsed());
        let errors: Vec<Error> = pending.into_iter().map(|p| p.wait().unwrap_err()).collect();
        assert!(errors.iter().all(|e| is_over(e) || named(e).0 == 1), "{name}: {errors:?}");
        let into = &mut [Incoming { from: 0, bytes: &mut [0; 4] }];
        let error = other.exchange(&[], into, LONG).unwrap_err();
        assert!(error.to_string().contains("rank 0 gave up: "), "{name}: {error}");
    }
}

#[test]
fn who_drops_a_world_has_sent_what_it_started() {
    for (name, make) in TRANSPORTS {
        let mut transports = make(2);
        let mut other = transports.pop().unwrap();
        let world = worlds(transports).pop().unwrap();
        let words = vec![1.5; 1 << 20];
        let buffer = Buffer::upload(&Device::cpu().unwrap(), &words).unwrap();
        drop(world.start(vec![(1, buffer)], vec![]).unwrap());
        let sender = thread::spawn(move || drop(world));
        let mut bytes = vec![0; 4 << 20];
        other.exchange(&[], &mut [Incoming { from: 0, bytes: &mut bytes }], LONG).unwrap();
        assert!(bytes == 1.5f32.to_le_bytes().repeat(1 << 20), "{name}");
        sender.join().unwrap();
    }
}

#[test]
fn a_rank_that_lies_about_a_length_takes_no_memory() {
    for (name, make) in TRANSPORTS {
        let mut transports = make(2);
        let mut liar = transports.pop().unwrap();
        let world = worlds(transports).pop().unwrap();
        world.set_timeout(SHORT);
        let length = (1u64 << 60).to_le_bytes();
        let sends = [Outgoing { to: 0, bytes: &length }, Outgoing { to: 0, bytes: &[0; 100] }];
        liar.exchange(&sends, &mut [], LONG).unwrap();
        let error = world.all_gather(&[]).unwrap_err();
        let want = (1, "sent 100 bytes where 67108864 were expected");
        assert_eq!(named(&error), want, "{name}");
    }
}

#[test]
fn long_messages_go_in_pieces() {
    // Longer than one piece, by a part of another.
    let long = |rank: usize| vec![rank as u8 + 1; if rank == 1 { (64 << 20) + 5 } else { 3 }];
    on_threads(worlds(tcp(2)), |world| {
        let all = world.all_gather(&long(world.rank())).unwrap();
        assert!(all == [long(0), long(1)]);
        assert_eq!(world.broadcast(&long(world.rank())).unwrap(), long(0));
    });
}

#[test]
fn a_rank_that_goes_amid_long_messages_is_named_by_all() {
    for (name, make) in TRANSPORTS {
        for _ in 0..10 {
            let mut transports = make(3);
            drop_later(transports.pop().unwrap());
            let all_know = Barrier::new(2);
            on_threads(worlds(transports), |world| {
                let device = Device::cpu().unwrap();
                let out = Buffer::upload(&device, &vec![1.0; 1 << 20]).unwrap();
                let others = [1 - world.rank(), 2];
                let error = loop {
                    let into = || device.alloc(1 << 20).unwrap();
                    let sends = others.iter().map(|r| (*r, out.clone())).collect();
                    let receives = others.iter().map(|r| (*r, into())).collect();
                    if let Err(error) = world.start(sends, receives).unwrap().wait() {
                        break error;
                    }
                };
                assert!(error.to_string().contains("rank 2 has ended"), "{name}: {error}");
                all_know.wait();
            });
        }
    }
}

fn drop_later(transport: Box<dyn Transport>) {
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(20));
        drop(transport);
    });
}

/// Panics as soon as it is used.
struct Broken;

impl Transport for Broken {
    fn name(&self) -> String {
        "broken".into()
    }

    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        2
    }

    fn exchange(&mut self, _: &[Outgoing<'_>], _: &mut [Incoming<'_>], _: Duration) -> Result<()> {
        panic!("a bug of a transport, on purpose")
    }

    fn abort(&mut self, _: &str) {}
}

#[test]
fn a_panic_of_a_transport_is_an_error_of_the_world() {
    let world = World::new(Box::new(Broken)).unwrap();
    for _ in 0..2 {
        assert!(is_over(&world.all_gather(&[1]).unwrap_err()));
    }
    world.abort("nobody hears it");
    assert!(World::threads(0).unwrap_err().to_string().contains("at least one rank"));
}

/// A rank that sends to the last one late.
struct LateToLast(Box<dyn Transport>);

impl Transport for LateToLast {
    fn name(&self) -> String {
        self.0.name()
    }

    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn size(&self) -> usize {
        self.0.size()
    }

    fn exchange(
        &mut self,
        sends: &[Outgoing<'_>],
        receives: &mut [Incoming<'_>],
        timeout: Duration,
    ) -> Result<()> {
        let (last, others): (Vec<_>, Vec<_>) = sends.iter().partition(|s| s.to + 1 == self.0.size());
        self.0.exchange(&others, &mut [], timeout)?;
        thread::sleep(Duration::from_millis(20));
        self.0.exchange(&last, receives, timeout)
    }

    fn abort(&mut self, why: &str) {
        self.0.abort(why);
    }
}

/// A rank that finds a difference and gives up at once does not take the finding from those that are slower.
#[test]
fn all_ranks_find_what_differs() {
    for (name, make) in TRANSPORTS {
        let mut transports = make(4);
        let first = transports.remove(0);
        transports.insert(0, Box::new(LateToLast(first)));
        on_threads(worlds(transports), |world| {
            let mine = if world.rank() == 2 { "b" } else { "a" };
            let error = world.agree("text", mine).unwrap_err();
            world.abort(&error.to_string());
            let is_named = matches!(error.kind(), ErrorKind::Peer { rank: 2, .. });
            assert!(is_named && error.to_string().contains("another text"), "{name}: {error}");
        });
    }
}
