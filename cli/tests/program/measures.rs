//! What a run can measure of its gradients and of the hardware while it goes on: no bit of it changes.

use crate::program::*;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

const MLP: &str =
    "train mlp --samples 200 --hidden 8 --batch 20 --steps 30 --eval-every 10 --clip 1 --device cpu";

fn root(run: &Path) -> String {
    dittograd::train::Record::read(run.join("record.jsonl")).unwrap().root()
}

#[test]
fn steps_that_are_computed_twice_have_the_same_bits() {
    let home = TempDir::new().unwrap();
    let here = home.path();
    let want = good(here, &format!("{MLP} --out alone")).fingerprint();
    for (name, options) in [
        ("each", "--paranoid 1"),
        ("some", "--paranoid 7"),
        ("eager", "--paranoid 2 --mode eager"),
        ("unrecorded", "--paranoid 3 --record none"),
    ] {
        let run = good(here, &format!("{MLP} {options} --out {name}"));
        assert_eq!((run.fingerprint(), run.err.as_str()), (want.clone(), ""), "{name}");
        assert!(run.out.contains("\n0 faults of the hardware found, 1 of "), "{}", run.out);
        assert_eq!(measured(&here.join(name)), measured(&here.join("alone")), "{name}");
        if name != "unrecorded" {
            assert_eq!(root(&here.join(name)), root(&here.join("alone")), "{name}");
        }
    }
    // A run may begin without it and go on with it.
    let part = MLP.replace("--steps 30", "--steps 13");
    good(here, &format!("{part} --out parts"));
    let run = good(
        here,
        "train --resume parts --steps 30 --eval-every 10 --paranoid 1 --device cpu --json --quiet",
    );
    let last = run.objects().pop().unwrap();
    assert_eq!((&last["fingerprint"], &last["faults"]), (&Value::from(want), &Value::from(0)));
    refused(here, &format!("{MLP} --paranoid 0"), "0 is not in 1..");
}

#[test]
fn norms_of_gradients_are_measured_where_the_loss_is() {
    let home = TempDir::new().unwrap();
    let here = home.path();
    let want = good(here, &format!("{MLP} --out alone")).fingerprint();
    let mut all: Vec<Vec<Value>> = Vec::new();
    for (name, options) in [
        ("compiled", "--tensorboard"),
        ("eager", "--mode eager"),
        ("paranoid", "--paranoid 1"),
        ("again", "--threads 1"),
    ] {
        let run = good(here, &format!("{MLP} --norms {options} --out {name}"));
        assert_eq!(run.fingerprint(), want, "{name}");
        assert_eq!(root(&here.join(name)), root(&here.join("alone")), "{name}");
        all.push(measured(&here.join(name)));
    }
    assert!(all.iter().all(|lines| *lines == all[0]));
    let names = ["net.0.bias", "net.0.weight", "net.2.bias", "net.2.weight"];
    for line in all[0].iter().filter(|l| l.get("loss").is_some()) {
        let norms: BTreeMap<&str, f64> = line
            .as_object()
            .unwrap()
            .iter()
            .filter_map(|(name, v)| Some((name.strip_prefix("grad_norm/")?, v.as_f64()?)))
            .collect();
        assert!(norms.keys().eq(&names) && norms.values().all(|n| *n > 0.0), "{line}");
    }
    let events = fs::read_dir(here.join("compiled")).unwrap().flatten().map(|e| e.path());
    let events = events.filter(|p| p.to_string_lossy().contains("tfevents")).map(|p| fs::read(p).unwrap());
    let events = events.collect::<Vec<_>>().concat();
    for name in names {
        let tag = format!("grad_norm/{name}");
        assert!(events.windows(tag.len()).any(|w| w == tag.as_bytes()), "{tag}");
    }
}

#[test]
fn measurements_become_a_table() {
    let home = TempDir::new().unwrap();
    let here = home.path();
    good(here, &format!("{MLP} --norms --out run"));
    let said = answer(here, "export run --out table.csv");
    assert_eq!(said, "30 rows\ntable.csv\n");
    let text = fs::read_to_string(here.join("table.csv")).unwrap();
    let mut lines = text.lines().map(|l| l.split(',').collect::<Vec<_>>());
    let names = lines.next().unwrap();
    assert_eq!(names[..3], ["step", "grad_norm/net.0.bias", "grad_norm/net.0.weight"]);
    assert!(["loss", "lr", "seconds", "test_accuracy"].iter().all(|n| names.contains(n)), "{names:?}");
    let rows: Vec<_> = lines.collect();
    assert_eq!(rows.len(), 30);
    let mut lines = fs::read_to_string(here.join("run/metrics.jsonl")).unwrap();
    lines.retain(|c| c != '\r');
    for line in lines.lines() {
        let line: BTreeMap<String, Value> = serde_json::from_str(line).unwrap();
        let row = &rows[line["step"].as_u64().unwrap() as usize - 1];
        for (name, value) in &line {
            let at = names.iter().position(|n| n == name).unwrap();
            assert_eq!(row[at].parse::<f64>().unwrap(), value.as_f64().unwrap(), "{name}");
        }
    }
    // A file of the run names it too.
    answer(here, "export run/best.safetensors --out again.csv --json --quiet");
    assert_eq!(fs::read_to_string(here.join("again.csv")).unwrap(), text);
    refused(here, "export run --out table.csv --batch 3", "--batch and --shape are for models");
    refused(here, "export nowhere --out table.csv", "metrics.jsonl: No such file");
}
