//! Ranks that are processes, and what the others say when one is killed or stopped.

use crate::free_port;
use dittograd_comm::World;
use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// How long ranks wait for one that does not move.
const TIMEOUT: Duration = Duration::from_secs(4);
/// Set in the processes that the tests below start.
const INSIDE: &str = "DITTOGRAD_TEST_RANK";

/// A rank of the tests below: gathers until that fails, and says why. In a run of all tests there is nothing to do here.
#[test]
fn as_a_rank() {
    if std::env::var_os(INSIDE).is_none() {
        return;
    }
    let world = World::from_env().unwrap().unwrap();
    world.set_timeout(TIMEOUT);
    println!("\n> {world:?}, local rank {}", world.local_rank());
    let mine = vec![1; 100_000];
    loop {
        if let Err(error) = world.all_gather(&mine) {
            println!("> {error}");
            break;
        }
    }
}

/// A process that ends with the test, also if it was stopped.
struct Rank {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Rank {
    fn start(rank: usize, size: usize, port: u16) -> Rank {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["processes::as_a_rank", "--exact", "--nocapture"])
            .env(INSIDE, "")
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", size.to_string())
            .env("MASTER_ADDR", "localhost")
            .env("MASTER_PORT", port.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Rank { process, lines }
    }

    /// What it says next.
    fn says(&mut self) -> String {
        let mut lines = self.lines.by_ref().map(Result::unwrap);
        lines.find_map(|line| line.strip_prefix("> ").map(String::from)).unwrap()
    }

    fn signal(&self, signal: &str) {
        let kill = Command::new("kill").args([signal, &self.process.id().to_string()]).status().unwrap();
        assert!(kill.success());
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What the others say when one of three gets a signal, and after how long.
fn signalled(guilty: usize, signal: &str) -> (Vec<String>, Duration) {
    let port = free_port();
    let mut ranks: Vec<Rank> = (0..3).map(|rank| Rank::start(rank, 3, port)).collect();
    for (i, rank) in ranks.iter_mut().enumerate() {
        assert_eq!(rank.says(), format!("World(rank {i} of 3, tcp), local rank {i}"));
    }
    // Amid their exchanges.
    std::thread::sleep(Duration::from_millis(100));
    let start = Instant::now();
    ranks[guilty].signal(signal);
    let others = ranks.iter_mut().enumerate().filter(|(i, _)| *i != guilty);
    let said = others.map(|(_, rank)| rank.says()).collect();
    (said, start.elapsed())
}

#[test]
fn a_killed_process_is_named_at_once() {
    for guilty in [0, 2] {
        let (said, after) = signalled(guilty, "-KILL");
        for line in said {
            assert!(line.contains(&format!("rank {guilty} has ended")), "{line}");
        }
        assert!(after < TIMEOUT, "{after:?}");
    }
}

#[test]
fn a_stopped_process_is_named_after_the_timeout() {
    let (said, after) = signalled(1, "-STOP");
    for line in said {
        assert!(line.contains("rank 1 did not answer within 4s"), "{line}");
    }
    assert!(after > TIMEOUT / 2 && after < TIMEOUT * 4, "{after:?}");
}
