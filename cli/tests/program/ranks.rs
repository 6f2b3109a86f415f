//! The program in many processes, which mpirun starts, over MPI, or over TCP if it was built without. Without mpirun these tests say
//! that they were skipped.

use crate::program::*;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const TINY: &str =
    "train mlp --samples 100 --hidden 8 --batch 16 --shards 8 --steps 12 --eval-every 6 --clip 1 --quiet";
/// What messages travel by.
const TRANSPORT: &str = if cfg!(feature = "mpi") { "mpi (" } else { "tcp" };
/// What becomes known of a rank that was killed: MPI does not tell.
const KILLED: &str =
    if cfg!(feature = "mpi") { "rank 1 did not answer within 2s" } else { "rank 1 has ended" };
/// More steps than anyone waits for.
const LONG: &str =
    "train mlp --samples 100 --hidden 8 --batch 16 --shards 8 --steps 100000000 --eval-every 1000000";
/// What is slow on a machine where many programs run.
const SOON: Duration = Duration::from_secs(60);

/// Whether processes can be started.
fn is_there(test: &str) -> bool {
    let is_there = Command::new("mpirun").arg("--version").output().is_ok();
    if !is_there {
        println!("ranks::{test}: skipped, there is no mpirun");
    }
    is_there
}

/// A program of each rank, some ranks each.
fn mpirun(options: &[&str], programs: &[(usize, Command)]) -> Command {
    let mut all = Command::new("mpirun");
    all.args(["--allow-run-as-root", "--oversubscribe"]).args(options);
    for (i, (ranks, one)) in programs.iter().enumerate() {
        all.args(if i > 0 { &[":"][..] } else { &[] });
        all.args(["-n", &ranks.to_string()]).arg(one.get_program()).args(one.get_args());
        for (name, value) in one.get_envs() {
            match value {
                Some(value) => all.env(name, value),
                None => all.env_remove(name),
            };
        }
        if let Some(folder) = one.get_current_dir() {
            all.current_dir(folder);
        }
    }
    all.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    all
}

fn ranks_in(folder: &Path, ranks: usize, args: &str) -> Command {
    mpirun(&[], &[(ranks, command_in(folder, args))])
}

/// What the program said on stderr; mpirun says more.
fn said(run: &Run) -> Vec<&str> {
    run.err.lines().filter(|l| l.starts_with("dittograd: ")).collect()
}

#[test]
fn one_answer_for_any_number_of_processes() {
    if !is_there("one_answer_for_any_number_of_processes") {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let want = good(home.path(), &format!("{TINY} --out alone")).fingerprint();
    let files = |run: &str| {
        let names = ["checkpoint.safetensors", "best.safetensors", "curves.svg"];
        names.map(|name| fs::read(home.path().join(run).join(name)).unwrap())
    };
    for ranks in [1, 2, 3, 5, 8] {
        let run = finish(&mut ranks_in(home.path(), ranks, &format!("{TINY} --out {ranks}")));
        assert_eq!((run.fingerprint(), run.err.as_str()), (want.clone(), ""), "{ranks}");
        assert!(files("alone") == files(&ranks.to_string()), "{ranks}");
    }
    // Each op by itself, and parameters compared at each step.
    let eager = format!("{TINY} --mode eager --verify-every 1 --out none");
    assert_eq!(finish(&mut ranks_in(home.path(), 3, &eager)).fingerprint(), want);
}

/// Processes that are told who they are by hand, over TCP, where an image of a container has a variable of MPI's.
#[test]
fn processes_that_no_launcher_started() {
    let home = tempfile::tempdir().unwrap();
    let alone = good(home.path(), &format!("{TINY} --keep 1 --out alone"));
    // Not one that the system chooses: those it gives to others, too.
    let first = 20_000 + (std::process::id() % 10_000) as u16;
    let is_free = |port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let port = (first..32_000).find(is_free).unwrap();
    let start = |rank: usize| {
        let mut one = command_in(home.path(), &format!("{TINY} --keep 1 --out together"));
        one.env("RANK", rank.to_string()).env("WORLD_SIZE", "3").env("LOCAL_RANK", rank.to_string());
        one.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string()).env("PMIX_MCA_gds", "hash");
        one.spawn().unwrap()
    };
    let all: Vec<Child> = (0..3).map(start).collect();
    let all: Vec<Run> = all.into_iter().map(|p| Run::of(p.wait_with_output().unwrap())).collect();
    for (rank, run) in all.iter().enumerate() {
        assert_eq!((run.code, &*run.err), (Some(0), ""), "rank {rank}");
        assert_eq!(run.out, if rank == 0 { &*alone.out } else { "" }, "rank {rank}");
    }
    let kept = dittograd::train::kept(home.path().join("alone")).unwrap();
    assert_eq!(kept.len(), 1);
    for path in kept.values().chain([&home.path().join("alone/checkpoint.safetensors")]) {
        let other = home.path().join("together").join(path.file_name().unwrap());
        assert!(fs::read(path).unwrap() == fs::read(&other).unwrap(), "{}", other.display());
    }
}

#[test]
fn a_run_goes_on_in_another_number_of_processes() {
    if !is_there("a_run_goes_on_in_another_number_of_processes") {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let want = good(home.path(), &format!("{TINY} --out whole")).fingerprint();
    let part = TINY.replace("--steps 12", "--steps 6");
    // In its own folder, and in another one.
    for (first, second, out) in [(3, 2, ""), (1, 8, ""), (5, 1, "--out b"), (1, 3, "--out c")] {
        let name = format!("{first}-{second}");
        let start = finish(&mut ranks_in(home.path(), first, &format!("{part} --out {name}")));
        assert_ne!(start.fingerprint(), want);
        let resume = format!("train --resume {name} --steps 12 --quiet {out}");
        assert_eq!(finish(&mut ranks_in(home.path(), second, &resume)).fingerprint(), want, "{name}");
        let folder = home.path().join(out.strip_prefix("--out ").unwrap_or(&name));
        assert_eq!(measured(&folder), measured(&home.path().join("whole")), "{name}");
    }
}

#[test]
fn rank_0_speaks_for_all() {
    if !is_there("rank_0_speaks_for_all") {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let run = finish(&mut ranks_in(home.path(), 2, &TINY.replace("--quiet", "--out none")));
    let first = run.out.lines().next().unwrap();
    assert!(first.contains(&format!("2 ranks over {TRANSPORT}")) && first.contains("8 shards"), "{first}");
    assert_eq!(run.out.matches("fingerprint").count(), 1);

    let run = finish(&mut ranks_in(home.path(), 3, &format!("{TINY} --out none --json")));
    let last = run.objects().pop().unwrap();
    assert_eq!((&last["ranks"], &last["shards"]), (&json!(3), &json!(8)));
    assert!(last["transport"].as_str().unwrap().starts_with(TRANSPORT), "{last}");
    assert!(last["bytes_sent"].as_u64().unwrap() > 1000, "{last}");
    // Two words for each of the parameters, shared by three.
    let parameters = last["parameters"].as_u64().unwrap();
    assert!(last["optimizer_bytes"].as_u64().unwrap() < 8 * parameters, "{last}");

    let run = finish(&mut ranks_in(home.path(), 3, "devices --device cpu --json"));
    let shown = &run.objects()[0];
    let ranks = shown["ranks"].as_array().unwrap();
    let is_right = |(i, r): (usize, &Value)| r["rank"] == json!(i) && r["device"] == json!("cpu");
    assert!(ranks.len() == 3 && ranks.iter().enumerate().all(is_right), "{shown}");
    assert!(shown["transports"].to_string().contains(TRANSPORT), "{shown}");

    let run = finish(&mut ranks_in(home.path(), 3, "train --help"));
    assert_eq!((run.code, run.out.matches("--verify-every").count()), (Some(0), 1));
}

#[test]
fn cores_are_shared_by_the_ranks_that_may_use_them() {
    if !is_there("cores_are_shared_by_the_ranks_that_may_use_them") {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let threads = |options: &[&str], first: &str| -> Vec<u64> {
        let programs = [
            (1, command_in(home.path(), first)),
            (1, command_in(home.path(), "devices --device cpu --json")),
        ];
        let run = finish(&mut mpirun(options, &programs));
        let shown = run.objects().pop().unwrap();
        shown["ranks"].as_array().unwrap().iter().map(|r| r["threads"].as_u64().unwrap()).collect()
    };
    let cores = std::thread::available_parallelism().unwrap().get() as u64;
    let half = (cores / 2).max(1);
    assert_eq!(threads(&["--bind-to", "none"], "devices --device cpu --json"), [half, half]);
    // One that is told how many takes as many.
    assert_eq!(threads(&["--bind-to", "none"], "devices --device cpu --json --threads 3"), [3, half]);
    if cores > 1 {
        assert_eq!(threads(&["--bind-to", "core"], "devices --device cpu --json"), [1, 1]);
    }
}

#[test]
fn an_error_is_said_once_and_ends_all() {
    if !is_there("an_error_is_said_once_and_ends_all") {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let part = TINY.replace("--steps 12", "--steps 6");
    assert_eq!(finish(&mut ranks_in(home.path(), 2, &format!("{part} --out run"))).code, Some(0));
    let few = TINY.replace("--shards 8", "--shards 2");
    for (args, want) in [
        ("trains", "unrecognized subcommand"),
        (
            few.as_str(),
            "3 processes need a shard each, and there are 2; use --shards 3 or more, or mpirun -n 2",
        ),
        ("train mlp --samples 100 --batch 1000 --shards 8", "--batch 1000: there are"),
        ("train mlp --data no.csv --shards 8", "no.csv"),
        ("train mlp --shards 8 --out run", "holds a run already"),
        ("train --resume run --seed 8", "--seed 8: the run has 7"),
        ("train --resume nowhere", "nowhere"),
        ("train mlp --shards 8 --device cuda:77", "cuda"),
        ("train mlp --shards 8 --batch 16 --lr 1e30 --steps 30 --out none --quiet", "the loss of step"),
    ] {
        let run = finish(&mut ranks_in(home.path(), 3, args));
        assert_eq!((run.code, run.out.as_str()), (Some(2), ""), "{args}: {}", run.err);
        let lines = said(&run);
        assert!(lines[0].contains(want) && !lines[0].contains(": rank "), "{args}: {}", run.err);
        assert_eq!(lines.len(), 1, "{args}: {}", run.err);
    }
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);

    // Only rank 1 has something wrong.
    for (args, want) in [
        ("train mlp --samples 100 --shards 8 --config {", "dittograd: rank 1: --config {"),
        ("train mlp --samples 101 --shards 8 --batch 16", "another"),
        ("train mlp --samples 100 --shards 4 --batch 16", "another"),
        ("train cnn --shards 8", "another"),
    ] {
        let first = command_in(
            home.path(),
            "train mlp --samples 100 --shards 8 --batch 16 --steps 5 --out none --quiet",
        );
        let run = finish(&mut mpirun(&[], &[(1, first), (1, command_in(home.path(), args))]));
        assert_eq!((run.code, run.out.as_str()), (Some(2), ""), "{args}: {}", run.err);
        assert!(said(&run).iter().any(|l| l.contains(want)), "{args}: {}", run.err);
    }
}

/// Processes that mpirun has started, by rank.
fn pids(mpirun: &Child, ranks: usize) -> Vec<String> {
    let start = Instant::now();
    loop {
        let out = Command::new("pgrep").args(["-P", &mpirun.id().to_string()]).output().unwrap().stdout;
        let mut of_rank: Vec<(usize, String)> = Vec::new();
        for pid in String::from_utf8(out).unwrap().lines() {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let text = String::from_utf8_lossy(&environment).into_owned();
            let rank = text.split('\0').find_map(|v| v.strip_prefix("OMPI_COMM_WORLD_RANK=")?.parse().ok());
            of_rank.extend(rank.map(|rank| (rank, pid.to_string())));
        }
        of_rank.sort();
        if of_rank.len() == ranks {
            return of_rank.into_iter().map(|(_, pid)| pid).collect();
        }
        assert!(start.elapsed() < SOON, "{of_rank:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A long run of so many ranks that has begun to train, and their processes.
fn begun(folder: &Path, ranks: usize, options: &[&str], args: &str) -> (Child, Vec<String>) {
    let child = mpirun(options, &[(ranks, command_in(folder, &format!("{LONG} {args}")))]).spawn().unwrap();
    let pids = pids(&child, ranks);
    let (start, metrics) = (Instant::now(), folder.join("run").join("checkpoint.safetensors"));
    while !metrics.exists() {
        assert!(start.elapsed() < SOON);
        std::thread::sleep(Duration::from_millis(10));
    }
    // It is there before the first step.
    std::thread::sleep(Duration::from_millis(300));
    (child, pids)
}

fn kill(pid: &str, signal: &str) {
    // It may be gone already.
    Command::new("kill").args([signal, pid]).stderr(Stdio::null()).status().unwrap();
}

#[test]
fn a_signal_to_one_rank_stops_all_after_the_same_step() {
    if !is_there("a_signal_to_one_rank_stops_all_after_the_same_step") {
        return;
    }
    for rank in [0, 2] {
        let home = tempfile::tempdir().unwrap();
        let (child, pids) = begun(home.path(), 3, &[], "--out run");
        kill(&pids[rank], "-TERM");
        let run = Run::of(child.wait_with_output().unwrap());
        assert_eq!(run.code, Some(1), "{}", run.err);
        let lines = said(&run);
        assert!(lines.len() == 1 && lines[0].starts_with("dittograd: stopped at step"), "{}", run.err);
        let steps: u64 = lines[0].split_whitespace().nth(4).unwrap().parse().unwrap();
        // It can go on, to where it would have been.
        let steps = steps + 5;
        let more =
            finish(&mut ranks_in(home.path(), 2, &format!("train --resume run --steps {steps} --quiet")));
        let whole = LONG.replace("100000000", &steps.to_string());
        assert_eq!(
            more.fingerprint(),
            good(home.path(), &format!("{whole} --out none --quiet")).fingerprint()
        );
    }
}

#[test]
fn an_error_of_one_while_all_train_ends_the_others() {
    if !is_there("an_error_of_one_while_all_train_ends_the_others") {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let args = format!("{LONG} --quiet --out none --profile nowhere/trace.json");
    let run = finish(&mut mpirun(&["--enable-recovery"], &[(3, command_in(home.path(), &args))]));
    let lines = said(&run);
    let why = "write: nowhere/trace.json: ";
    for want in [
        format!("dittograd: {why}"),
        "dittograd: rank 1: exchange: rank ".into(),
        "dittograd: rank 2: exchange: rank ".into(),
    ] {
        // A rank may hear of it from another.
        let is_right = |l: &&str| {
            l.starts_with(&want) && (want.contains(why) || l.contains("rank 0 gave up: ") && l.contains(why))
        };
        assert_eq!(lines.iter().copied().filter(|l| is_right(l)).count(), 1, "{want}: {}", run.err);
    }
    assert_eq!(lines.len(), 3, "{}", run.err);
}

#[test]
fn a_rank_that_is_lost_is_named_and_ends_the_others() {
    if !is_there("a_rank_that_is_lost_is_named_and_ends_the_others") {
        return;
    }
    // Mpirun ends all ranks if one fails, or leaves it to them, and then has no exit code of theirs. If one is killed, either
    // mpirun or the other ranks are first to notice.
    let stays: &[&str] = &["--enable-recovery"];
    for (signal, lost, options, codes, want) in [
        ("-STOP", 1, &[][..], &[2][..], "rank 1 did not answer within 2s"),
        ("-STOP", 0, stays, &[0], "rank 0 did not answer within 2s"),
        ("-KILL", 1, stays, &[0], KILLED),
        ("-KILL", 2, &[][..], &[137, 2], ""),
    ] {
        let home = tempfile::tempdir().unwrap();
        let (child, pids) = begun(home.path(), 3, options, "--out run --timeout 2");
        let start = Instant::now();
        kill(&pids[lost], signal);
        if options == stays {
            // Nobody ends what is stopped but us, once the others are gone.
            let is_running =
                |rank: usize| rank != lost && Path::new("/proc").join(&pids[rank]).join("exe").exists();
            while (0..3).any(is_running) {
                assert!(start.elapsed() < SOON, "{signal} of {lost}");
                std::thread::sleep(Duration::from_millis(10));
            }
            kill(&pids[lost], "-KILL");
        }
        let run = Run::of(child.wait_with_output().unwrap());
        assert!(
            run.code.is_some_and(|c| codes.contains(&c)),
            "{signal} of {lost}: {:?} {}",
            run.code,
            run.err
        );
        assert!(run.err.contains(want), "{signal} of {lost}: {}", run.err);
        assert!(start.elapsed() < SOON, "{signal} of {lost}: {:?}", start.elapsed());
        // What was saved is whole.
        let inspected = good(home.path(), "inspect run");
        assert!(inspected.out.contains("mlp"), "{}", inspected.out);
    }
}
