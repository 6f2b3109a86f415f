//! How processes find each other over TCP.

use crate::{LONG, SHORT, free_port, launch, named, on_threads};
use dittograd_comm::{Launch, sockets};
use dittograd_numerics::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// The errors of ranks that cannot meet, in time.
fn errors(all: Vec<(Launch, Duration)>) -> Vec<Error> {
    on_threads(all, |(launch, timeout)| {
        let start = Instant::now();
        let error = sockets(&launch, timeout).err().unwrap();
        assert!(start.elapsed() < LONG / 2, "{error}");
        error
    })
}

fn connect(port: u16) -> TcpStream {
    loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => return stream,
            Err(_) => thread::sleep(Duration::from_millis(5)),
        }
    }
}

#[test]
fn ranks_may_come_in_any_order_among_strangers() {
    let port = free_port();
    let size = 4;
    // Some hang on, some send garbage, some say half of a greeting, some go at once; one is of another run.
    let strangers = thread::spawn(move || {
        let kept: Vec<_> = (0..3).map(|_| connect(port)).collect();
        connect(port).write_all(b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n").unwrap();
        connect(port).write_all(b"ditton").unwrap();
        drop(connect(port));
        let other = Launch { run: "another".into(), ..launch(1, size, port) };
        let error = sockets(&other, LONG).err().unwrap();
        let why = "gave up: it belongs to another run; MASTER_PORT chooses another port";
        assert_eq!(named(&error), (0, why));
        kept
    });
    // Rank 3 comes before rank 0 listens, the others after the strangers have gone.
    let last = thread::spawn(move || sockets(&launch(3, size, port), LONG).unwrap());
    thread::sleep(SHORT / 3);
    let first = thread::spawn(move || sockets(&launch(0, size, port), LONG).unwrap());
    let kept = strangers.join().unwrap();
    let between = on_threads([2, 1], |rank| sockets(&launch(rank, size, port), LONG).unwrap());
    let ranks = [first.join().unwrap(), last.join().unwrap()].into_iter().chain(between);
    let mut ranks: Vec<_> = ranks.map(|t| (t.rank(), t.size(), t.local_rank())).collect();
    ranks.sort();
    assert_eq!(ranks, [(0, 4, 0), (1, 4, 1), (2, 4, 2), (3, 4, 3)]);
    drop(kept);
}

#[test]
fn a_launcher_that_knows_the_local_rank_is_believed() {
    let port = free_port();
    let local = on_threads([0, 1], |rank| {
        let launch = Launch { local_rank: Some(7 - rank), ..launch(rank, 2, port) };
        sockets(&launch, LONG).unwrap().local_rank()
    });
    assert_eq!(local, [7, 6]);
    // Nobody is needed to be alone.
    let alone = sockets(&Launch { address: None, ..launch(0, 1, 1) }, SHORT).unwrap();
    assert_eq!((alone.rank(), alone.size(), alone.local_rank()), (0, 1, 0));
}

#[test]
fn two_ranks_of_one_number_are_named_to_all() {
    let port = free_port();
    let ranks = [0, 1, 1].map(|rank| (launch(rank, 3, port), LONG)).to_vec();
    for (error, who) in errors(ranks).iter().zip([1, 0, 0]) {
        assert_eq!(named(error).0, who, "{error}");
        let text = error.to_string();
        assert!(
            text.contains("rank 1 came twice, from 127.0.0.1 and 127.0.0.1; give each process"),
            "{text}"
        );
    }
}

#[test]
fn ranks_of_other_sizes_are_named_to_all() {
    let port = free_port();
    // Rank 1 has come before the mistake, rank 3 comes after it.
    let ranks = [(0, 4, 0), (1, 4, 0), (2, 5, 1), (3, 4, 2)];
    let errors = on_threads(ranks, |(rank, size, late)| {
        thread::sleep(SHORT * late);
        errors(vec![(launch(rank, size, port), LONG)]).remove(0)
    });
    for error in errors {
        let text = error.to_string();
        let words = "rank 2 (from 127.0.0.1) was started as one of 5, and rank 0 as one of 4";
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn ranks_that_do_not_come_are_named_to_all() {
    let port = free_port();
    let ranks = vec![(launch(0, 5, port), SHORT * 10), (launch(2, 5, port), LONG)];
    let mut stranger = None;
    let errors = thread::scope(|s| {
        s.spawn(|| stranger = Some(connect(port).write_all(&[0; 40])));
        errors(ranks)
    });
    for (error, who) in errors.iter().zip([1, 0]) {
        assert_eq!(named(error).0, who, "{error}");
        let text = error.to_string();
        let words =
            format!("rank 1 did not come to 127.0.0.1:{port} within 3s, nor did [3, 4]; see that all 5");
        assert!(text.contains(&words) && text.contains("1 connections were not of this run"), "{text}");
    }
}

#[test]
fn who_is_not_rank_0_is_found_out() {
    let port = free_port();
    let [error] = &errors(vec![(launch(1, 2, port), SHORT)])[..] else { panic!() };
    let text = error.to_string();
    let words = format!("rank 0 could not be reached at 127.0.0.1:{port} within 300ms (Connection refused");
    assert!(named(error).0 == 0 && text.contains(&words) && text.contains("MASTER_ADDR"), "{text}");

    let nowhere = Launch { address: None, ..launch(1, 2, port) };
    let text = sockets(&nowhere, LONG).err().unwrap().to_string();
    assert!(text.contains("MASTER_ADDR: test does not say where rank 0 is"), "{text}");

    for (answer, words) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "is not what listens at"),
        (b"", "does not answer at"),
        // As much text as it likes to announce.
        (b"\x02\xff\xff\xff\xff\xff\xff\xff\x0fgo away", "gave up: go away"),
        // Welcome, and a table of another size; welcome, and gone.
        (b"\x03\0\0\0\0\0\0\0\0\x04\xff\xff\xff\xff\xff\xff\xff\x0f", "sent bytes that are no message"),
        (b"\x03\0\0\0\0\0\0\0\0!", "has ended"),
    ] {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            drop(listener);
            stream.read_exact(&mut [0; 36]).unwrap();
            if answer.ends_with(b"!") {
                stream.write_all(&answer[..9]).unwrap();
            } else {
                stream.write_all(answer).unwrap();
                // Until the other one goes.
                let _ = stream.read(&mut [0]);
            }
        });
        let timeout = if answer.is_empty() { SHORT } else { LONG };
        let error = sockets(&launch(1, 2, port), timeout).err().unwrap();
        assert!(named(&error).0 == 0 && error.to_string().contains(words), "{error}");
        server.join().unwrap();
    }
}

#[test]
fn a_port_that_is_taken_is_named() {
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let text = sockets(&launch(0, 2, port), SHORT).err().unwrap().to_string();
    let words = format!("MASTER_PORT: rank 0 cannot listen at 127.0.0.1:{port}: Address already in use");
    assert!(text.contains(&words), "{text}");
    // It may be free a moment later.
    let waiting =
        thread::spawn(move || on_threads([0, 1], |rank| sockets(&launch(rank, 2, port), LONG).is_ok()));
    thread::sleep(SHORT / 3);
    drop(taken);
    assert_eq!(waiting.join().unwrap(), [true, true]);
}

#[test]
fn all_interfaces_are_open_where_the_host_is_not_the_loopback() {
    let port = free_port();
    let at = |rank| {
        let mut launch = launch(rank, 3, port);
        launch.address.as_mut().unwrap().host = if rank == 0 { "0.0.0.0".into() } else { "127.0.0.1".into() };
        launch
    };
    let ranks = on_threads(0..3, |rank| sockets(&at(rank), LONG).unwrap().local_rank());
    assert_eq!(ranks, [0, 1, 2]);
}
