//! The life of a run: stopped, killed, ignored, resumed elsewhere, twice at once, with other data. However it goes, it ends in one
//! place or says why not.

use crate::program::{Run, behind, command_in, failed, finish, good, measured, run_in, signal};
use dittograd::io::Checkpoint;
use dittograd::numerics::rng::mix;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A run that ends by patience, evaluated often.
const PATIENT: &str = "train mlp --samples 100 --batch 20 --hidden 8 --device cpu --threads 1 --steps 2000 --eval-every 10 \
                       --patience 4 --schedule cosine --accumulate 2 --lr 5e-3";

#[test]
fn a_run_that_lost_its_patience_stays_where_it_ended() {
    let home = TempDir::new().unwrap();
    let whole = good(home.path(), &format!("{PATIENT} --out r"));
    assert!(whole.out.contains("4 evaluations without a better one"), "{}", whole.out);
    let lines = measured(&home.path().join("r"));
    for mode in ["compiled", "eager"] {
        let again = good(home.path(), &format!("train --resume r --device cpu --mode {mode}"));
        assert_eq!(again.fingerprint(), whole.fingerprint(), "{mode}");
        assert_eq!(measured(&home.path().join("r")), lines);
    }
    // More patience is another run, which goes on.
    let more = good(home.path(), "train --resume r --device cpu --patience 5");
    assert!(more.out.contains("5 evaluations without a better one"), "{}", more.out);
    assert_ne!(more.fingerprint(), whole.fingerprint());
}

#[test]
fn signals_at_any_moment_change_nothing() {
    let home = TempDir::new().unwrap();
    // Long enough that most of its time is training.
    let long = PATIENT.replace("--steps 2000", "--steps 1000").replace("--patience 4", "--patience 400");
    let whole = good(home.path(), &format!("{long} --out whole"));
    let timed = |i: u64| {
        let start = Instant::now();
        good(home.path(), &format!("{long} --out timed{i}"));
        start.elapsed().as_micros() as u64
    };
    let latest = (0..2).map(timed).min().unwrap_or(2) * 2 / 3;
    let lines = measured(&home.path().join("whole"));
    let bytes = |name: &str, file: &str| std::fs::read(home.path().join(name).join(file)).unwrap();
    let mut state = 20;
    let mut draw = |below: u64| {
        state = mix(state);
        (state >> 32) % below
    };
    let (mut cuts, mut kills) = (0, 0);
    for i in 0..12 {
        let name = format!("run{i}");
        let mut args = format!("{long} --out {name}");
        let end = loop {
            let child = command_in(home.path(), &args).spawn().unwrap();
            std::thread::sleep(Duration::from_micros(draw(latest)));
            let kind = ["-INT", "-TERM", "-HUP", "-KILL"][draw(4) as usize];
            signal(&child, kind);
            let end = Run::of(child.wait_with_output().unwrap());
            match end.code {
                Some(0) => break end,
                Some(1) => {
                    assert!(
                        end.err.contains(&format!("go on with: dittograd train --resume {name}")),
                        "{}",
                        end.err
                    );
                    cuts += 1;
                }
                // Killed, or a signal that came before the run could handle it.
                None => kills += 1,
                code => panic!("{code:?} {}{}", end.out, end.err),
            }
            if home.path().join(&name).join("checkpoint.safetensors").exists() {
                args = format!("train --resume {name} --device cpu --threads 1");
            }
        };
        assert_eq!(end.fingerprint(), whole.fingerprint(), "{name}");
        assert_eq!(measured(&home.path().join(&name)), lines, "{name}");
        for file in ["checkpoint.safetensors", "best.safetensors"] {
            assert!(bytes(&name, file) == bytes("whole", file), "{name}/{file}");
        }
    }
    println!("{cuts} runs were stopped, {kills} killed");
    assert!(cuts + kills > 5);
}

/// A run long enough to be caught in the middle.
const LONG: &str =
    "train mlp --samples 100 --batch 20 --hidden 8 --device cpu --threads 1 --steps 20000 --eval-every 1000";

/// Waits for the first line of a child's progress.
fn first_line(child: &mut Child) -> BufReader<impl Read + use<>> {
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    reader.read_line(&mut String::new()).unwrap();
    reader
}

#[test]
fn a_signal_that_was_ignored_stays_ignored() {
    let home = TempDir::new().unwrap();
    for name in ["HUP", "INT"] {
        let plain = command_in(home.path(), &format!("{LONG} --out {name}"));
        let mut child = behind(&format!("trap '' {name}; exec \"$@\""), &plain).spawn().unwrap();
        let mut rest = first_line(&mut child);
        for _ in 0..20 {
            signal(&child, &format!("-{name}"));
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut text = String::new();
        rest.read_to_string(&mut text).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0), "{name}: {text}");
        assert!(text.contains("step 20000 "), "{name}: {text}");
    }
}

#[test]
fn a_run_goes_on_when_nobody_reads() {
    let home = TempDir::new().unwrap();
    let args = LONG.replace("20000", "3000").replace("1000", "100");
    let whole = good(home.path(), &format!("{args} --out whole")).fingerprint();
    let mut child = command_in(home.path(), &format!("{args} --out unread")).spawn().unwrap();
    drop(first_line(&mut child));
    let end = Run::of(child.wait_with_output().unwrap());
    assert_eq!((end.code, end.err.as_str()), (Some(0), ""));
    let state = Checkpoint::load(home.path().join("unread/checkpoint.safetensors")).unwrap();
    assert_eq!((state.step, state.fingerprint()), (3000, whole));
    // A disk without room for the results is an error, but not the end of the run.
    #[cfg(target_os = "linux")]
    {
        let mut full = command_in(home.path(), &format!("{args} --out full"));
        let end = finish(full.stdout(std::fs::File::options().write(true).open("/dev/full").unwrap()));
        assert_eq!((end.code, end.err.lines().count()), (Some(2), 1), "{}", end.err);
        let state = Checkpoint::load(home.path().join("full/checkpoint.safetensors")).unwrap();
        assert_eq!((state.step, state.fingerprint()), (3000, state_of(home.path(), "whole").fingerprint()));
    }
}

fn state_of(home: &Path, name: &str) -> Checkpoint {
    Checkpoint::load(home.join(name).join("checkpoint.safetensors")).unwrap()
}

#[test]
fn one_run_at_a_time_writes_to_a_folder() {
    let home = TempDir::new().unwrap();
    let args = format!("{LONG} --out shared");
    let mut first = command_in(home.path(), &args).spawn().unwrap();
    let mut rest = first_line(&mut first);
    for other in
        [&args[..], "train --resume shared --device cpu", "train --resume shared/checkpoint.safetensors"]
    {
        failed(home.path(), other, "shared: another process is at work in this folder");
    }
    let mut text = String::new();
    rest.read_to_string(&mut text).unwrap();
    assert_eq!(first.wait().unwrap().code(), Some(0), "{text}");
    // A run that has not saved a state yet is one too.
    let young = dittograd::train::RunFolder::create(home.path().join("young")).unwrap();
    failed(home.path(), "train --resume young", "young: another process is at work in this folder");
    drop(young);
    failed(home.path(), "train --resume young", "young/checkpoint.safetensors: No such file");
    // Started at the same moment, one of them runs.
    for i in 0..4 {
        let args = format!("train mlp --samples 100 --steps 300 --device cpu --threads 1 --out both{i}");
        let two = [(); 2].map(|()| command_in(home.path(), &args).spawn().unwrap());
        let [a, b] = two.map(|c| Run::of(c.wait_with_output().unwrap()));
        let codes = [a.code.unwrap(), b.code.unwrap()];
        assert!(codes == [0, 2] || codes == [2, 0], "{codes:?} {}{}", a.err, b.err);
    }
}

#[test]
fn a_checkpoint_that_is_not_the_folders_own_starts_a_folder_of_its_own() {
    let home = TempDir::new().unwrap();
    let at = |name: &str| home.path().join(name);
    let args =
        "train mlp --samples 100 --batch 20 --device cpu --steps 40 --eval-every 10 --schedule constant";
    let whole = good(home.path(), &format!("{args} --out a")).fingerprint();
    let before = std::fs::read(at("a/checkpoint.safetensors")).unwrap();
    // From the best state, which need not be the last one, to the end; the folder it lies in stays as it is.
    let best = Checkpoint::load(at("a/best.safetensors")).unwrap().step;
    let end = good(home.path(), "train --resume a/best.safetensors --device cpu");
    assert_eq!(end.fingerprint(), whole);
    assert!(end.out.contains("files in runs/mlp: ") && end.out.contains(&format!("{} steps in", 40 - best)));
    assert_eq!(std::fs::read(at("a/checkpoint.safetensors")).unwrap(), before);
    // A finished run in another folder: all that belongs to it is there too.
    let end = good(home.path(), "train --resume a --out b --device cpu");
    assert_eq!(end.fingerprint(), whole);
    assert_eq!(measured(&at("b")), measured(&at("a")));
    for file in ["best.safetensors", "checkpoint.safetensors", "curves.svg"] {
        assert_eq!(
            std::fs::read(at("b").join(file)).unwrap(),
            std::fs::read(at("a").join(file)).unwrap(),
            "{file}"
        );
    }
    // And one that is not finished.
    good(home.path(), &format!("{} --out half", args.replace("40", "20")));
    let end = good(home.path(), "train --resume half --out c --steps 40 --device cpu");
    assert_eq!(end.fingerprint(), whole);
    assert_eq!(Checkpoint::load(at("half/checkpoint.safetensors")).unwrap().step, 20);
    failed(home.path(), "train --resume half --out a --device cpu", "a: holds a run already");
}

#[test]
fn a_run_that_died_at_once_goes_on() {
    let home = TempDir::new().unwrap();
    let args = format!("{} --out r", LONG.replace("20000", "500"));
    let mut child = command_in(home.path(), &args).spawn().unwrap();
    let start = Instant::now();
    while !home.path().join("r/checkpoint.safetensors").exists() {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_micros(200));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let whole = good(home.path(), &args.replace("--out r", "--out whole")).fingerprint();
    assert_eq!(good(home.path(), "train --resume r --device cpu").fingerprint(), whole);
    // Killed before anything was saved, there is nothing to go on from, and nothing in the way.
    std::fs::create_dir(home.path().join("empty")).unwrap();
    assert_eq!(good(home.path(), &args.replace("--out r", "--out empty")).fingerprint(), whole);
}

#[test]
fn other_data_is_refused_by_name() {
    let home = TempDir::new().unwrap();
    let at = |name: &str| home.path().join(name);
    let rows = |flip: usize| -> String {
        (0..60).map(|i| format!("{},{},{}\n", i, (i * 7) % 60, (i + usize::from(i == flip)) % 2)).collect()
    };
    std::fs::write(at("d.csv"), rows(99)).unwrap();
    let args = "train mlp --data d.csv --steps 20 --eval-every 5 --batch 8 --device cpu --schedule constant";
    let whole = good(home.path(), &format!("{args} --out whole")).fingerprint();
    good(home.path(), &format!("{} --out cut", args.replace("20", "10")));
    for flip in [0, 17, 59] {
        std::fs::write(at("d.csv"), rows(flip)).unwrap();
        failed(
            home.path(),
            "train --resume cut --steps 20 --device cpu",
            "d.csv: the data is not what the run was trained on",
        );
        failed(home.path(), "predict cut --device cpu", "d.csv: the data is not what the run was trained on");
    }
    // Moved and unchanged is the same data.
    std::fs::write(at("moved.csv"), rows(99)).unwrap();
    let end = good(home.path(), "train --resume cut --steps 20 --data moved.csv --device cpu");
    assert_eq!(end.fingerprint(), whole);

    let text = "the quick brown fox jumps over the lazy dog. ".repeat(40);
    std::fs::write(at("t.txt"), &text).unwrap();
    let gpt = "train gpt --data t.txt --grid 16 --steps 2 --batch 8 --device cpu --out t --config {\"width\":8,\"heads\":2}";
    good(home.path(), gpt);
    std::fs::write(at("t.txt"), text.replace("fox", "cat")).unwrap();
    failed(
        home.path(),
        "train --resume t --steps 4 --device cpu",
        "t.txt: the data is not what the run was trained on",
    );
}

#[test]
fn forged_settings_are_refused_as_if_they_were_typed() {
    let home = TempDir::new().unwrap();
    let at = |name: &str| home.path().join(name);
    good(home.path(), "train mlp --samples 60 --batch 8 --hidden 4 --steps 10 --device cpu --out kept");
    let kept = state_of(home.path(), "kept");
    let sizes = json!([2, 16_000_000, 3]);
    let huge = json!(u64::MAX);
    for (i, (path, value)) in [
        ("/shards", json!(0)),
        ("/shards", json!(1u64 << 63)),
        ("/shards", json!(3)),
        ("/eval_every", json!(0)),
        ("/batch", json!(0)),
        ("/batch", huge.clone()),
        ("/steps", json!(0)),
        ("/steps", json!(9)),
        ("/patience", json!(0)),
        ("/lr", json!(-1.0)),
        ("/lr", json!(1e300)),
        ("/weight_decay", json!(-0.5)),
        ("/clip", json!(1e39)),
        ("/seed", json!(8)),
        ("/data/samples", json!(0)),
        ("/data/samples", json!(61)),
        ("/data/seed", json!(8)),
        ("/data/grid", json!(0)),
        ("/data/name", json!("nothing")),
        ("/config/sizes", sizes),
        ("/config/sizes", json!([])),
        ("/config/sizes", json!([2, 0, 3])),
        ("/task", json!("text")),
        ("/model", json!("gpt")),
        ("/scales/x", json!({"mean": [0.0], "deviation": [0.0]})),
    ]
    .into_iter()
    .enumerate()
    {
        let mut forged = kept.clone();
        *forged.config.pointer_mut(path).unwrap() = value.clone();
        let name = format!("forged{i}.safetensors");
        forged.save(at(&name)).unwrap();
        // Little memory must do.
        let args = format!("train --resume {name} --device cpu --out none --threads 1");
        let mut shell = behind("ulimit -v 1000000; exec \"$@\"", &command_in(home.path(), &args));
        finish(&mut shell).failed(&format!("{path} {value}"), "");
    }
    // What a checkpoint says beside its settings.
    type Change<'a> = &'a dyn Fn(&mut Checkpoint);
    let changes: [(&str, Change); 6] = [
        ("step", &|c| c.step = 4),
        ("seed", &|c| c.random.seed = 1),
        ("batch", &|c| c.data.batch = 9),
        ("rate", &|c| c.optimizer.as_mut().unwrap().lr = f64::NAN),
        ("hash", &|c| c.data.hash.clear()),
        ("steps", &|c| c.step = u64::MAX),
    ];
    for (what, change) in changes {
        let mut forged = kept.clone();
        change(&mut forged);
        forged.save(at("forged.safetensors")).unwrap();
        let end = run_in(home.path(), "train --resume forged.safetensors --device cpu --out none --steps 20");
        end.failed(what, "");
    }
}

#[test]
fn shards_have_another_name_in_runs_of_earlier_versions() {
    let home = TempDir::new().unwrap();
    let args = "train mlp --samples 100 --batch 16 --device cpu --schedule constant";
    let whole = good(home.path(), &format!("{args} --steps 6 --out none")).fingerprint();
    good(home.path(), &format!("{args} --steps 4 --out kept"));
    let mut old = Checkpoint::load(home.path().join("kept/checkpoint.safetensors")).unwrap();
    let settings = old.config.as_object_mut().unwrap();
    let shards = settings.remove("shards").unwrap();
    settings.insert("accumulate".into(), shards);
    old.save(home.path().join("old.safetensors")).unwrap();
    let more = good(home.path(), "train --resume old.safetensors --steps 6 --device cpu --out none");
    assert_eq!(more.fingerprint(), whole);
}

#[test]
fn errors_come_early_and_paths_need_not_be_text() {
    use std::os::unix::ffi::OsStrExt;
    let home = TempDir::new().unwrap();
    for (model, config) in [("gpt", "{\"width\":16777215}"), ("vit", "{\"width\":16777215}")] {
        let args =
            format!("train {model} --config {config} --device cpu --out none --threads 1 --samples 60");
        let end = finish(&mut behind("ulimit -v 600000; exec \"$@\"", &command_in(home.path(), &args)));
        assert_eq!(end.code, Some(2), "{}", end.err);
        assert!(end.err.contains("heads"), "{}", end.err);
    }
    good(home.path(), "train mlp --samples 100 --steps 2 --device cpu --out kept");
    let name = std::ffi::OsStr::from_bytes(b"w\xff.safetensors");
    std::fs::copy(home.path().join("kept/best.safetensors"), home.path().join(name)).unwrap();
    let mut odd =
        command_in(home.path(), "train mlp --samples 100 --steps 2 --device cpu --out odd --weights");
    let end = finish(odd.arg(name));
    assert_eq!(end.code, Some(0), "{}", end.err);
    good(home.path(), "train --resume odd --steps 3 --device cpu");
}

#[test]
fn a_short_run_has_a_profile_too() {
    let home = TempDir::new().unwrap();
    for steps in 1..=6 {
        let args = format!(
            "train mlp --samples 100 --steps {steps} --device cpu --out none --profile t{steps}.json"
        );
        good(home.path(), &args);
        let text = std::fs::read_to_string(home.path().join(format!("t{steps}.json"))).unwrap();
        let trace: Value = serde_json::from_str(&text).unwrap();
        assert!(
            trace.to_string().contains("linear") || trace.to_string().contains("matmul"),
            "{steps}: {text}"
        );
    }
}
