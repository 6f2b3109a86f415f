//! Exchanges by every transport.

use crate::{LONG, SHORT, TRANSPORTS, named, on_threads};
use dittograd_comm::{Incoming, Outgoing, Transport};
use dittograd_numerics::error::{ErrorKind, Result};
use std::sync::Barrier;
use std::time::{Duration, Instant};

fn send(transport: &mut Box<dyn Transport>, to: usize, bytes: &[u8]) -> Result<()> {
    transport.exchange(&[Outgoing { to, bytes }], &mut [], LONG)
}

fn receive(
    transport: &mut Box<dyn Transport>,
    from: usize,
    length: usize,
    timeout: Duration,
) -> Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    transport.exchange(&[], &mut [Incoming { from, bytes: &mut bytes }], timeout)?;
    Ok(bytes)
}

/// A message that no other is equal to.
fn message(from: usize, to: usize, number: usize, length: usize) -> Vec<u8> {
    let seed = 1 + from as u32 * 1009 + to as u32 * 9176 + number as u32 * 31;
    (0..length as u32).map(|i| (i.wrapping_add(seed).wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

#[test]
fn messages_of_all_sizes_go_both_ways_at_once_in_order() {
    const SIZES: [usize; 7] = [0, 1, 0, 9, 70_001, 3 << 20, 5];
    for (name, make) in TRANSPORTS {
        for size in [1, 2, 3, 5, 8] {
            let rounds = on_threads(make(size), |mut t| {
                let rank = t.rank();
                assert_eq!((t.name().as_str(), t.size(), t.local_rank()), (name, size, rank));
                let others: Vec<usize> = (0..size).filter(|r| *r != rank).collect();
                for round in 0..4 {
                    // Two to each, and the sizes of a pair differ by direction.
                    let length = |from: usize, to: usize, i: usize| {
                        let length = SIZES[(from * 3 + to * 5 + round * 2 + i) % SIZES.len()];
                        if size > 3 { length.min(200_000) } else { length }
                    };
                    let numbers = [2 * round, 2 * round + 1];
                    let out: Vec<_> = numbers
                        .iter()
                        .flat_map(|i| others.iter().map(move |to| (*to, *i)))
                        .map(|(to, i)| (to, message(rank, to, i, length(rank, to, i))))
                        .collect();
                    let mut into: Vec<_> = numbers
                        .iter()
                        .flat_map(|i| others.iter().rev().map(move |from| (*from, *i)))
                        .map(|(from, i)| (from, i, vec![0; length(from, rank, i)]))
                        .collect();
                    let sends: Vec<_> = out.iter().map(|(to, bytes)| Outgoing { to: *to, bytes }).collect();
                    let mut receives: Vec<_> =
                        into.iter_mut().map(|(from, _, bytes)| Incoming { from: *from, bytes }).collect();
                    t.exchange(&sends, &mut receives, LONG).unwrap();
                    for (from, i, bytes) in &into {
                        assert!(
                            *bytes == message(*from, rank, *i, bytes.len()),
                            "{name}: {from} to {rank} of {size}, message {i}"
                        );
                    }
                }
                4
            });
            assert_eq!(rounds, vec![4; size]);
        }
    }
}

#[test]
fn ranks_without_a_part_stay_away_and_may_end_early() {
    for (name, make) in TRANSPORTS {
        let got = on_threads(make(3), |mut t| match t.rank() {
            0 => {
                for i in 0..5 {
                    send(&mut t, 1, &[i; 100]).unwrap();
                }
                // Rank 2 is long gone.
                receive(&mut t, 1, 3, LONG).unwrap()
            }
            1 => {
                // What rank 2 has sent is for later, and it is no error that it has ended.
                let early: Vec<u8> = (0..5).map(|_| receive(&mut t, 0, 100, LONG).unwrap()[99]).collect();
                assert_eq!(early, [0, 1, 2, 3, 4]);
                let late = [receive(&mut t, 2, 1, LONG).unwrap(), receive(&mut t, 2, 300_000, LONG).unwrap()];
                send(&mut t, 0, &[1, 2, 3]).unwrap();
                late.concat()
            }
            _ => {
                send(&mut t, 1, &[7]).unwrap();
                send(&mut t, 1, &[8; 300_000]).unwrap();
                vec![]
            }
        });
        assert_eq!(got[0], [1, 2, 3], "{name}");
        assert!(got[1][0] == 7 && got[1][1..] == [8; 300_000], "{name}");
    }
}

#[test]
fn a_rank_that_aborts_is_named_to_all_with_its_words() {
    for (name, make) in TRANSPORTS {
        for size in [2, 3, 5, 8] {
            let guilty = size / 2;
            let all_know = Barrier::new(size);
            on_threads(make(size), |mut t| {
                if t.rank() == guilty {
                    // It has sent something before that nobody waits for now.
                    send(&mut t, (guilty + 1) % size, &[1; 10]).unwrap();
                    t.abort("loss is NaN\nat step 3");
                    t.abort("again");
                } else {
                    let next = (t.rank() + 1) % size;
                    if (guilty + 1) % size == t.rank() {
                        assert_eq!(receive(&mut t, guilty, 10, LONG).unwrap(), [1; 10]);
                    }
                    let error = receive(&mut t, next, 4, LONG).unwrap_err();
                    assert_eq!(named(&error), (guilty, r"gave up: loss is NaN\nat step 3"), "{name}");
                }
                all_know.wait();
            });
        }
    }
}

#[test]
fn a_rank_that_ends_is_named_to_those_who_wait_for_it() {
    for (name, make) in TRANSPORTS {
        for size in [2, 3, 5] {
            let all_know = Barrier::new(size - 1);
            on_threads(make(size), |mut t| {
                if t.rank() != 1 {
                    let error = receive(&mut t, 1, 4, LONG).unwrap_err();
                    assert_eq!(named(&error), (1, "has ended"), "{name}");
                    all_know.wait();
                }
            });
        }
    }
}

#[test]
fn a_rank_that_is_slow_is_named_in_time() {
    for (name, make) in TRANSPORTS {
        let all_know = Barrier::new(3);
        on_threads(make(3), |mut t| {
            if t.rank() != 2 {
                let start = Instant::now();
                // The other one answers, so it is not to blame.
                let other = 1 - t.rank();
                let (mut quick, mut slow) = ([0; 2], [0; 2]);
                let mut receives =
                    [Incoming { from: other, bytes: &mut quick }, Incoming { from: 2, bytes: &mut slow }];
                let sends = [Outgoing { to: other, bytes: &[1, 2] }, Outgoing { to: 2, bytes: &[3, 4] }];
                let error = t.exchange(&sends, &mut receives, SHORT * 5).unwrap_err();
                assert_eq!(named(&error), (2, "did not answer within 2s"), "{name}");
                assert!(start.elapsed() >= SHORT * 5 && start.elapsed() < LONG, "{name}");
            }
            all_know.wait();
        });
    }
}

#[test]
fn a_rank_that_waits_itself_is_not_to_blame() {
    for (name, make) in TRANSPORTS {
        let all_know = Barrier::new(4);
        on_threads(make(4), |mut t| {
            match t.rank() {
                // Waits for rank 1 longer than rank 1 for rank 2; hears of rank 2 by rank 1.
                0 => {
                    let error = receive(&mut t, 1, 1, SHORT * 4).unwrap_err();
                    assert_eq!(named(&error), (1, "gave up: rank 2 is slow"), "{name}");
                }
                1 => {
                    std::thread::sleep(SHORT);
                    let error = receive(&mut t, 2, 1, SHORT * 4).unwrap_err();
                    assert_eq!(named(&error), (2, "did not answer within 1s"), "{name}");
                    t.abort("rank 2 is slow");
                }
                _ => {}
            }
            all_know.wait();
        });
        // Nor do two wait for each other for ever.
        let all_know = Barrier::new(2);
        let found = on_threads(make(2), |mut t| {
            let other = 1 - t.rank();
            let error = receive(&mut t, other, 1, SHORT).unwrap_err();
            all_know.wait();
            named(&error) == (other, "did not answer within 300ms")
        });
        assert_eq!(found, [true, true], "{name}");
    }
}

#[test]
fn a_rank_that_has_ended_is_still_heard() {
    for (name, make) in TRANSPORTS {
        on_threads(make(3), |mut t| match t.rank() {
            0 => {
                std::thread::sleep(SHORT * 2);
                send(&mut t, 1, &[1]).unwrap();
            }
            1 => {
                // Long enough to say to all, and rank 2 too, that this one waits.
                assert_eq!(receive(&mut t, 0, 1, SHORT * 7).unwrap(), [1], "{name}");
                assert!(receive(&mut t, 2, 100_000, LONG).unwrap() == [7; 100_000], "{name}");
                assert!(receive(&mut t, 2, 100_000, LONG).unwrap() == [8; 100_000], "{name}");
            }
            _ => {
                send(&mut t, 1, &[7; 100_000]).unwrap();
                send(&mut t, 1, &[8; 100_000]).unwrap();
            }
        });
    }
}

#[test]
fn the_last_words_of_a_rank_are_heard() {
    for (name, make) in TRANSPORTS {
        on_threads(make(3), |mut t| {
            if t.rank() == 1 {
                // The others have said meanwhile that they wait.
                std::thread::sleep(SHORT * 3);
                t.abort("loss is NaN");
            } else {
                let error = receive(&mut t, 1, 1, SHORT * 8).unwrap_err();
                assert_eq!(named(&error), (1, "gave up: loss is NaN"), "{name}");
            }
        });
    }
}

#[test]
fn a_rank_that_does_not_take_what_it_gets_is_named() {
    // Threads hand messages over at once; sockets fill up.
    let all_know = Barrier::new(2);
    on_threads(crate::tcp(2), |mut t| {
        if t.rank() == 0 {
            let bytes = vec![0; 64 << 20];
            let error = t.exchange(&[Outgoing { to: 1, bytes: &bytes }], &mut [], SHORT).unwrap_err();
            assert_eq!(named(&error), (1, "did not answer within 300ms"));
            // The word overtakes the rest of the message.
            t.abort("slow");
        }
        all_know.wait();
        if t.rank() == 1 {
            let error = receive(&mut t, 0, 64 << 20, LONG).unwrap_err();
            assert_eq!(named(&error), (0, "gave up: slow"));
        }
    });
}

#[test]
fn time_counts_from_the_last_bytes() {
    for (name, make) in TRANSPORTS {
        let times = on_threads(make(2), |mut t| {
            let start = Instant::now();
            if t.rank() == 0 {
                for i in 0..4 {
                    std::thread::sleep(SHORT * 2);
                    send(&mut t, 1, &[i]).unwrap();
                }
            } else {
                // Together they take longer than the timeout, each alone does not.
                let mut bytes = [[0]; 4];
                let mut receives: Vec<_> = bytes.iter_mut().map(|b| Incoming { from: 0, bytes: b }).collect();
                t.exchange(&[], &mut receives, SHORT * 7).unwrap();
                assert_eq!(bytes, [[0], [1], [2], [3]]);
            }
            start.elapsed()
        });
        assert!(times[1] > SHORT * 7, "{name}: {times:?}");
    }
}

#[test]
fn messages_of_other_lengths_are_refused() {
    for (name, make) in TRANSPORTS {
        for (sent, expected) in [(5, 6), (6, 5), (0, 1), (1, 0), (1 << 20, 3)] {
            let all_know = Barrier::new(2);
            on_threads(make(2), |mut t| {
                if t.rank() == 0 {
                    send(&mut t, 1, &vec![0; sent]).unwrap();
                } else {
                    let error = receive(&mut t, 0, expected, LONG).unwrap_err();
                    let why = format!("sent {sent} bytes where {expected} were expected");
                    assert_eq!(named(&error), (0, why.as_str()), "{name}");
                }
                all_know.wait();
            });
        }
    }
}

#[test]
fn ranks_that_are_not_there_are_refused() {
    for (name, make) in TRANSPORTS {
        let mut transports = make(2);
        for (rank, words) in [(0, "rank 0 sends to itself"), (2, "there is no rank 2 among 2")] {
            let t = &mut transports[0];
            for error in [send(t, rank, &[1]).unwrap_err(), receive(t, rank, 1, LONG).unwrap_err()] {
                assert!(matches!(error.kind(), ErrorKind::Argument { .. }), "{name}: {error}");
                assert!(error.to_string().contains(words), "{name}: {error}");
            }
        }
    }
}
