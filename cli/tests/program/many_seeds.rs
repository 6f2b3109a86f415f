//! `train --seeds`: each run is that of its own command, in a folder of its own, and all of them have a summary.

#[cfg(unix)]
use crate::program::signal;
use crate::program::{command_in, failed, good, refused, run_in};
use serde_json::Value;
use std::path::Path;
use tempfile::TempDir;

const MLP: &str = "train mlp --samples 100 --hidden 8 --batch 20 --device cpu --steps 12 --eval-every 4";

/// The file that tells of all runs in a folder.
fn summary(folder: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(folder.join("seeds.json")).unwrap()).unwrap()
}

/// The fingerprints that it has, by seed.
fn fingerprints(folder: &Path) -> Vec<(u64, String)> {
    let of = |row: &Value| (row["seed"].as_u64().unwrap(), row["fingerprint"].as_str().unwrap().to_string());
    summary(folder)["seeds"].as_array().unwrap().iter().map(of).collect()
}

/// The lines of a record that do not tell of the machine.
fn record(folder: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(folder.join("record.jsonl")).unwrap();
    let is_chained = |l: &&str| !l.starts_with("{\"machine\"") && !l.starts_with("{\"file\"");
    text.lines().filter(is_chained).map(String::from).collect()
}

#[test]
fn are_the_runs_of_each_seed() {
    let home = TempDir::new().unwrap();
    let at = |name: &str| home.path().join(name);
    for mode in ["compiled", "eager"] {
        let train = format!("{MLP} --clip 1 --mode {mode}");
        let all = good(home.path(), &format!("{train} --seed 5 --seeds 3 --out {mode}"));
        let prints = fingerprints(&at(mode));
        assert_eq!(prints.iter().map(|p| p.0).collect::<Vec<_>>(), [5, 6, 7]);
        for (seed, print) in &prints {
            let alone = format!("{mode}-{seed}");
            assert_eq!(
                good(home.path(), &format!("{train} --seed {seed} --out {alone}")).fingerprint(),
                *print
            );
            let run = at(mode).join(format!("seed-{seed}"));
            assert_eq!(record(&run), record(&at(&alone)), "{mode} {seed}");
            for file in ["checkpoint.safetensors", "best.safetensors"] {
                assert_eq!(
                    std::fs::read(run.join(file)).unwrap(),
                    std::fs::read(at(&alone).join(file)).unwrap(),
                    "{mode} {seed} {file}"
                );
            }
            assert!(run.join("curves.svg").exists());
            let line = all
                .out
                .lines()
                .find(|l| l.starts_with(&format!("seed {seed} fingerprint {print}, test loss")));
            assert!(line.is_some(), "{}", all.out);
        }
        assert!(at(mode).join("seeds.svg").exists() && at(mode).join("seeds.png").exists());
        // Means of evaluations, and of the scores at the end.
        assert!(all.out.contains("step 4 loss ") && all.out.contains(" ± "), "{}", all.out);
        assert!(
            all.out.lines().any(|l| l.starts_with("accuracy ") && l.ends_with(" in 3 runs")),
            "{}",
            all.out
        );
    }
    assert_eq!(fingerprints(&at("eager")), fingerprints(&at("compiled")));
    good(home.path(), "verify compiled/seed-6 --device cpu");
    good(home.path(), "predict compiled/seed-6 --device cpu");
}

#[test]
fn have_numbers_of_their_scores() {
    let home = TempDir::new().unwrap();
    let run = good(home.path(), &format!("{MLP} --seeds 4 --out all --json"));
    let objects = run.objects();
    let last = objects.last().unwrap();
    assert_eq!(last["seeds"], summary(&home.path().join("all"))["seeds"]);
    let values: Vec<f64> =
        last["seeds"].as_array().unwrap().iter().map(|s| s["test_loss"].as_f64().unwrap()).collect();
    let mean = values.iter().sum::<f64>() / 4.0;
    let deviation = (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 3.0).sqrt();
    let got = &last["scores"]["test_loss"];
    for (key, want) in [("mean", mean), ("deviation", deviation)] {
        assert!((got[key].as_f64().unwrap() - want).abs() < 1e-12, "{key}: {got}");
    }
    let (least, most) = values.iter().fold((f64::MAX, f64::MIN), |(a, b), v| (a.min(*v), b.max(*v)));
    assert_eq!((got["least"].as_f64(), got["most"].as_f64()), (Some(least), Some(most)));
    assert_eq!(got["runs"], 4);
    // Evaluations are told of for each run.
    let told = |o: &&Value| o["seed"] == 9 && o["step"] == 8 && o["test_loss"].is_number();
    assert_eq!(objects.iter().filter(told).count(), 1);
    assert_eq!(objects[0]["seeds"], serde_json::json!([7, 8, 9, 10]));
}

#[test]
fn go_on_in_their_folder() {
    let home = TempDir::new().unwrap();
    good(home.path(), &format!("{MLP} --seeds 2 --out whole"));
    good(home.path(), &format!("{MLP} --seeds 2 --out part"));
    // One has further to go, and one has not begun.
    std::fs::remove_dir_all(home.path().join("part/seed-8")).unwrap();
    failed(home.path(), "train --resume part --device cpu", "train what?");
    good(home.path(), &format!("{MLP} --seeds 2 --resume part"));
    let want = fingerprints(&home.path().join("whole"));
    assert_eq!(fingerprints(&home.path().join("part")), want);
    let longer = good(home.path(), "train --resume part --device cpu --steps 20");
    assert!(longer.out.contains("seed 8 fingerprint "), "{}", longer.out);
    let other = good(home.path(), "train --resume whole --device cpu --steps 20 --out other");
    assert!(other.out.contains("seed 8 fingerprint "), "{}", other.out);
    assert_eq!(fingerprints(&home.path().join("part")), fingerprints(&home.path().join("other")));
    assert_eq!(fingerprints(&home.path().join("whole")), want);
}

#[cfg(unix)]
#[test]
fn stop_together_and_are_saved() {
    let home = TempDir::new().unwrap();
    let long = "train mlp --samples 100 --hidden 8 --batch 20 --device cpu --steps 20000 --eval-every 1000";
    let whole = good(home.path(), &format!("{long} --seeds 2 --out whole"));
    assert!(whole.err.is_empty(), "{}", whole.err);
    let child = command_in(home.path(), &format!("{long} --seeds 2 --out cut")).spawn().unwrap();
    while !home.path().join("cut/seed-8/checkpoint.safetensors").exists() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    signal(&child, "-TERM");
    let cut = crate::program::Run::of(child.wait_with_output().unwrap());
    assert_eq!(cut.code, Some(1), "{}{}", cut.out, cut.err);
    assert!(cut.err.contains("go on with: dittograd train --resume cut"), "{}", cut.err);
    good(home.path(), "train --resume cut --device cpu");
    assert_eq!(fingerprints(&home.path().join("cut")), fingerprints(&home.path().join("whole")));
}

#[test]
fn go_on_when_one_fails() {
    let home = TempDir::new().unwrap();
    let bad = run_in(home.path(), &format!("{MLP} --lr 1e38 --seeds 2 --out bad"));
    assert_eq!(bad.code, Some(2), "{}", bad.out);
    assert!(
        bad.err.contains("seed 7: the loss of step ") && bad.err.contains("seed 8: the loss"),
        "{}",
        bad.err
    );
    assert!(summary(&home.path().join("bad"))["seeds"][1]["error"].is_string());
}

#[test]
fn are_refused_where_they_cannot_be() {
    let home = TempDir::new().unwrap();
    good(home.path(), &format!("{MLP} --out one"));
    good(home.path(), &format!("{MLP} --seeds 2 --out two"));
    for (options, want) in [
        ("--seeds 0", "--seeds"),
        ("--seeds 257", "--seeds"),
        ("--seeds 2 --profile trace.json", "--profile is for one run"),
        ("--seeds 2 --memory 10", "--memory is for one run"),
        ("--seeds 2 --paranoid 10", "--paranoid is for one run"),
        ("--seeds 2 --resume one", "one is one run"),
        ("--seeds 3 --resume two", "--seeds 3: the runs have 2"),
        ("--seed 9 --resume two", "--seed 9: the runs have 7"),
        ("--seeds 2 --out one", "holds a run already"),
        ("--seeds 2 --out two", "holds a run already"),
        ("--seeds 2 --seed 18446744073709551615", "there are no 2 seeds"),
        ("--seeds 2 --keep 2 --out none", "--keep needs a folder"),
    ] {
        failed(home.path(), &format!("{MLP} {options}"), want);
    }
    refused(home.path(), "train --seeds 2", "train what?");
    std::fs::write(home.path().join("two/seeds.json"), "{").unwrap();
    failed(home.path(), "train --resume two", "does not say which seeds there are");
    let none = good(home.path(), &format!("{MLP} --seeds 2 --out none --quiet"));
    assert_eq!(none.out.lines().filter(|l| l.starts_with("seed ")).count(), 2, "{}", none.out);
    assert!(!home.path().join("runs").exists());
    // Folders by name.
    good(home.path(), &format!("{MLP} --seeds 2"));
    assert!(home.path().join("runs/mlp-seeds/seed-8/checkpoint.safetensors").exists());
}
