//! `export` as users see it: run as a process. What is in the file is for the library's tests.

use crate::program::{answer, refused};
use serde_json::{Value, json};

#[test]
fn a_run_becomes_a_file() {
    let here = tempfile::tempdir().unwrap();
    let here = here.path();
    answer(here, "train mlp --data friedman1 --samples 40 --hidden 8 --steps 2 --out run --device cpu");
    let text = answer(here, "export run");
    let file = std::fs::read(here.join("run/checkpoint.onnx")).unwrap();
    assert!(text.contains("input   x  float32[1, 10]\noutput  y  float32[1, 1]\n"), "{text}");
    assert!(text.contains(" 97 parameters, opset 19, ") && text.ends_with("run/checkpoint.onnx\n"), "{text}");
    let json = answer(here, "export run/checkpoint.safetensors --batch 3 --out three.onnx --json");
    let all: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(all["inputs"], json!([{"name": "x", "type": "float32", "shape": [3, 10]}]));
    assert_eq!(all["outputs"], json!([{"name": "y", "type": "float32", "shape": [3, 1]}]));
    assert_eq!(all["bytes"], std::fs::metadata(here.join("three.onnx")).unwrap().len());
    answer(here, "export run --out again.onnx");
    assert_eq!(file, std::fs::read(here.join("again.onnx")).unwrap(), "the same bytes every time");
}

#[test]
fn tokens_are_whole_numbers_and_data_that_is_gone_has_a_shape_still() {
    let here = tempfile::tempdir().unwrap();
    let here = here.path();
    let config = r#"{"width":8,"heads":2,"layers":1}"#;
    answer(
        here,
        &format!("train gpt --samples 20 --batch 4 --config {config} --steps 1 --out run --device cpu"),
    );
    let json = answer(here, "export run --json");
    let all: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&all["inputs"][0]["name"], &all["inputs"][0]["type"]), (&json!("tokens"), &json!("int64")));

    std::fs::write(here.join("a.csv"), "a,b,c\n1,2,0\n2,1,1\n3,3,0\n4,1,1\n0,5,0\n1,1,1\n").unwrap();
    answer(here, "train mlp --data a.csv --hidden 4 --batch 2 --steps 1 --out rows --device cpu");
    std::fs::remove_file(here.join("a.csv")).unwrap();
    let json = answer(here, "export rows --json");
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["inputs"][0]["shape"], json!([1, 2]));
    refused(here, "export rows --shape 3", "");
}

#[test]
fn what_cannot_be_exported_says_why() {
    let here = tempfile::tempdir().unwrap();
    let here = here.path();
    refused(here, "export nowhere", "nowhere");
    std::fs::write(here.join("text"), "not a checkpoint").unwrap();
    refused(here, "export text", "text");
    answer(here, "train mlp --samples 40 --hidden 8 --steps 1 --out run --device cpu");
    refused(here, "export run --out no/such/folder.onnx", "folder.onnx: No such file");
    refused(here, "export run --out run", "run: is a folder");
    refused(here, "export run --batch 0", "at least 1");
    assert!(!here.join("run/checkpoint.onnx").exists());
}

#[test]
fn a_run_is_shown_as_a_program() {
    let here = tempfile::tempdir().unwrap();
    let here = here.path();
    answer(here, "train mlp --data friedman1 --samples 40 --hidden 8 --steps 2 --out run --device cpu");
    let plain = answer(here, "graph run --batch 3");
    assert!(plain.contains("%0: f32[3, 10] = input\n") && plain.contains("= relu %"), "{plain}");
    // What is shown can be given back, and is the same program.
    std::fs::write(here.join("program.txt"), &plain).unwrap();
    assert_eq!(answer(here, "graph program.txt"), plain);
    assert_eq!(answer(here, "graph program.txt --hash"), answer(here, "graph run --batch 3 --hash"));
    let compiled = answer(here, "graph run/checkpoint.safetensors --batch 3 --compiled");
    assert!(
        compiled.contains("of linear epilogue inputs=0 ") && !compiled.contains("= relu %"),
        "{compiled}"
    );
    assert_eq!(answer(here, "graph program.txt --compiled"), compiled);
    assert!(answer(here, "graph run --compiled --svg").starts_with("<svg"));
    refused(here, "graph nothing.safetensors", "nothing.safetensors");
    refused(here, "graph run --batch 0", "at least 1");
}
