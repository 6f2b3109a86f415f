//! `diff` as users see it.

use crate::program::{answer, command_in, finish, refused};
use serde_json::{Value, json};
use std::path::Path;

/// What differs; the exit code says that something does.
fn differs(folder: &Path, args: &str) -> String {
    let run = finish(&mut command_in(folder, args));
    assert_eq!((run.code, run.err.as_str()), (Some(1), ""), "{}", run.out);
    run.out
}

fn object(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// Writes one tensor of float32 numbers.
fn write(path: &Path, shape: Vec<usize>, values: &[f32]) {
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape, &bytes).unwrap();
    std::fs::write(path, safetensors::serialize([("w", view)], None).unwrap()).unwrap();
}

#[test]
fn runs_differ_by_settings_measurements_and_tensors() {
    let here = tempfile::tempdir().unwrap();
    let here = here.path();
    let train = "train mlp --samples 40 --hidden 8 --steps 4 --eval-every 1 --device cpu";
    answer(here, &format!("{train} --out a"));
    answer(here, &format!("{train} --out same --mode eager --threads 1"));
    answer(here, &format!("{train} --out b --lr 2e-2"));
    let same = answer(here, "diff a same");
    assert!(same.starts_with("the same: 12 tensors, fingerprint "), "{same}");
    assert_eq!(object(&answer(here, "diff a same --json"))["same"], json!(true));

    let text = differs(here, "diff a b");
    for said in [
        "config.lr",
        "0.02",
        "step 1, the first that differs",
        "net.0.weight",
        "12 tensors differ, 0 are the same",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    let all = object(&differs(here, "diff a b --json"));
    assert_eq!(
        (&all["same"], &all["first_step"], &all["tensors_same"]),
        (&json!(false), &json!(1), &json!(0))
    );
    assert!(
        all["settings"].as_array().unwrap().contains(&json!({"name": "config.lr", "a": "0.01", "b": "0.02"}))
    );
    // A folder stands for its checkpoint.
    let few = differs(here, "diff a/checkpoint.safetensors b --most 2");
    assert!(
        few.contains("12 tensors differ, 10 of them not shown (--most)") && !few.contains("step 1,"),
        "{few}"
    );
}

#[test]
fn tensors_are_apart_by_places_of_the_last_bit() {
    let here = tempfile::tempdir().unwrap();
    let here = here.path();
    let next = f32::from_bits(1.0f32.to_bits() + 3);
    write(&here.join("a.safetensors"), vec![2, 3], &[1.0, -0.0, f32::NAN, 5.0, 6.0, f32::MAX]);
    write(&here.join("b.safetensors"), vec![2, 3], &[next, 0.0, -f32::NAN, 5.0, 6.0, f32::INFINITY]);
    let all = object(&differs(here, "diff a.safetensors b.safetensors --json"));
    let w = &all["tensors_differing"][0];
    assert_eq!(
        (&w["differing"], &w["elements"], &w["ulps"], &w["at"]),
        (&json!(3), &json!(6), &json!(3), &json!([0, 0]))
    );
    assert_eq!((&w["a"], &w["b"]), (&json!("1.0 (3f800000)"), &json!("1.0000004 (3f800003)")));
    let text = differs(here, "diff a.safetensors b.safetensors");
    assert!(text.contains("3 of 6") && text.contains("1 tensors differ, 0 are the same"), "{text}");
    assert!(
        answer(here, "diff a.safetensors a.safetensors").starts_with("the same: 1 tensors, fingerprint ")
    );
    write(&here.join("c.safetensors"), vec![6], &[0.0; 6]);
    let all = object(&differs(here, "diff a.safetensors c.safetensors --json"));
    assert_eq!(all["tensors_unlike"], json!([{"name": "w", "a": "F32[2, 3]", "b": "F32[6]"}]));
}

#[test]
fn programs_differ_by_a_line() {
    let here = tempfile::tempdir().unwrap();
    let here = here.path();
    answer(here, "train mlp --samples 40 --hidden 8 --steps 1 --out a --device cpu");
    let text = answer(here, "graph a");
    std::fs::write(here.join("a.txt"), &text).unwrap();
    std::fs::write(here.join("b.txt"), text.replace("= relu %", "= tanh %")).unwrap();
    assert!(answer(here, "diff a.txt a.txt").starts_with("the same program, hash "));
    let said = differs(here, "diff a.txt b.txt");
    assert!(
        said.contains("is the first that differs") && said.contains("= relu %") && said.contains("= tanh %"),
        "{said}"
    );
    refused(here, "diff a.txt a", "one is the text of a program and the other is not");
    refused(here, "diff a nothing.safetensors", "nothing.safetensors");
    refused(here, "diff a.txt nothing.txt", "nothing.txt");
    std::fs::write(here.join("empty.txt"), "no program").unwrap();
    refused(here, "diff a.txt empty.txt", "empty.txt");
}
