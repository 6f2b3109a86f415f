//! The commands: one fingerprint for every way to run, what each of them says, and what it refuses.

use crate::program::{Run, command, finish, run};
use dittograd::data::{print_csv, spirals};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The fingerprint of `train mlp --steps 300 --seed 7`, on every machine, device and build. It changes only
/// with the numerics contract, the spirals or the defaults of the command.
const GOLDEN: &str = "27130afe71a78dde";

fn run_env(args: &str, name: &str, value: impl AsRef<OsStr>) -> Run {
    let mut command = command(args.split_whitespace());
    command.env(name, value);
    finish(&mut command)
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn has_gpu() -> bool {
    let gpus = run("devices --json").objects()[0]["gpus"].as_array().unwrap().len();
    if gpus == 0 {
        eprintln!("skipped: no GPU here");
    }
    gpus > 0
}

#[test]
fn one_fingerprint_for_every_way_to_run() {
    let train = "train mlp --steps 60 --seed 7 --device cpu";
    let want = run(train).fingerprint();
    for mode in ["eager", "compiled"] {
        for threads in [1, 2, 3, 8] {
            let got = run(&format!("{train} --mode {mode} --threads {threads}")).fingerprint();
            assert_eq!(got, want, "{mode}, {threads} threads");
        }
        for simd in ["scalar", "avx2", "avx512", "amx"] {
            let got = run_env(&format!("{train} --mode {mode}"), "DITTOGRAD_SIMD", simd);
            if got.err.contains("this processor has no") {
                eprintln!("skipped: {}", got.err.trim());
                continue;
            }
            assert_eq!(got.fingerprint(), want, "{mode}, {simd}");
        }
    }
    assert_eq!(run_env(train, "DITTOGRAD_THREADS", "2").fingerprint(), want);
    assert_ne!(run("train mlp --steps 60 --seed 8 --device cpu").fingerprint(), want);
    if has_gpu() {
        for mode in ["eager", "compiled"] {
            let got = run(&format!("train mlp --steps 60 --seed 7 --device cuda --mode {mode}"));
            assert_eq!(got.fingerprint(), want, "cuda, {mode}");
        }
    }
}

#[test]
fn every_optimizer_is_the_same_eager_and_compiled() {
    let rules =
        ["sgd", "momentum", "nesterov", "adam", "adamw", "adagrad", "rmsprop", "adadelta", "lion", "muon"];
    for rule in rules {
        let train =
            format!("train mlp --steps 25 --device cpu --hidden 16 --batch 32 --quiet --optimizer {rule}");
        let (a, b) = (run(&format!("{train} --mode eager")), run(&format!("{train} --mode compiled")));
        assert_eq!(a.fingerprint(), b.fingerprint(), "{rule}");
        assert_eq!(a.out, b.out);
    }
}

#[test]
fn the_golden_fingerprint() {
    let got = run("train mlp --steps 300 --seed 7");
    assert_eq!(got.fingerprint(), GOLDEN);
    assert!(got.out.contains("live at the end 0 bytes"), "{}", got.out);
    assert!(got.out.contains("numerics strict"));
    let accuracy = got.out.split("accuracy ").last().unwrap().split(' ').next().unwrap();
    assert!(accuracy.parse::<f64>().unwrap() > 95.0, "{accuracy}");
}

#[test]
fn training_shows_its_memory_on_request() {
    for mode in ["eager", "compiled"] {
        let train = format!("train mlp --steps 30 --device cpu --hidden 16 --mode {mode}");
        let plain = run(&train).fingerprint();
        let got = run(&format!("{train} --memory 10"));
        assert_eq!(got.fingerprint(), plain);
        assert_eq!(got.err, "");
        let lines: Vec<&str> = got.out.lines().filter(|l| l.contains(" memory live ")).collect();
        assert_eq!(lines.len(), 3, "{}", got.out);
        // Steps after the first one are alike.
        let (second, third) = (lines[1].split_once(' '), lines[2].split_once(' '));
        let rest = |line: Option<(&str, &str)>| line.unwrap().1.split_once(' ').unwrap().1.to_string();
        assert_eq!(rest(second), rest(third));
        assert!(
            lines[1].starts_with("step 20 memory live ") && lines[1].contains(" allocations, "),
            "{}",
            lines[1]
        );
        let objects = run(&format!("{train} --memory 15 --json")).objects();
        let with = objects.iter().filter(|o| o.get("peak_bytes").is_some() && o.get("allocations").is_some());
        assert_eq!(with.count(), 2);
    }
    assert_eq!(run("train mlp --memory 0").code, Some(2));
    let mut odd = command(["train", "mlp", "--steps", "1", "--device", "cpu"]);
    odd.env("DITTOGRAD_WATCH", "2");
    let odd = finish(&mut odd);
    assert_eq!(odd.code, Some(2));
    assert!(odd.err.contains("DITTOGRAD_WATCH=2 is not understood, use 0 or 1"), "{}", odd.err);
}

#[test]
fn json_is_one_object_a_line() {
    let got = run("train mlp --steps 20 --json --device cpu");
    let objects = got.objects();
    let last = objects.last().unwrap();
    assert_eq!(last["fingerprint"].as_str().unwrap(), run("train mlp --steps 20 --device cpu").fingerprint());
    assert_eq!((last["live_bytes"].as_u64(), last["numerics"].as_str()), (Some(0), Some("strict")));
    assert!(last["test_accuracy"].is_number() && last["peak_bytes"].as_u64().unwrap() > 0);
    assert_eq!(objects.iter().filter(|o| o["step"].is_u64()).count(), 10);
    assert_eq!(run("train mlp --steps 20 --json --quiet --device cpu").objects().len(), 1);
    let quiet = run("train mlp --steps 20 --quiet --device cpu").out;
    assert_eq!(quiet.lines().count(), 2, "{quiet}");
}

#[test]
fn what_cannot_run_is_one_line_and_exit_2() {
    let here = folder();
    let file = |name: &str, text: &str| {
        std::fs::write(here.path().join(name), text).unwrap();
    };
    file("ragged.csv", "1,2,0\n1,0\n");
    file("text.csv", "a,b\n1,0\nx,1\n");
    file("label.csv", "1,0\n2,-1\n");
    file("one.csv", "1,0\n");
    file("empty.csv", "");
    file("small.csv", "1,0\n2,1\n3,0\n4,1\n5,0\n");
    let table = [
        ("", "a command is needed"),
        ("nonsense", "unrecognized subcommand 'nonsense'"),
        ("--foo", "unexpected argument '--foo'"),
        ("train", "name a model"),
        ("train rnn", "invalid value 'rnn'"),
        ("train mlp --steps 0", "0 is not in 1.."),
        ("train mlp --steps -1", "'-1'"),
        ("train mlp --steps 1e3", "'1e3'"),
        ("train mlp --steps 5 --steps 6", "cannot be used multiple times"),
        ("train mlp --batch 0", "use at least 1"),
        ("train mlp --batch 2401", "there are 2400 training rows"),
        ("train mlp --lr nan", "use a finite number"),
        ("train mlp --lr inf", "use a finite number"),
        ("train mlp --lr 1e39", "use a finite number"),
        ("train mlp --lr -0.1", "use a finite number"),
        ("train mlp --seed -1", "'-1'"),
        ("train mlp --hidden 0", "use at least 1"),
        ("train mlp --hidden 64,,64", "use a whole number from 1"),
        ("train mlp --hidden 999999,999999", "would have more than 4294967296 parameters"),
        ("train mlp --hidden 18446744073709551615,2", "a size above"),
        ("train mlp --mode fast", "possible values: eager, compiled"),
        ("train mlp --optimizer tiger", "possible values: sgd"),
        ("train mlp --device cpu --numerics tf32", "mode tf32 needs a CUDA device"),
        ("train mlp --numerics half", "`half` is not a mode, use strict, fast, turbo or tf32"),
        ("train mlp --device tpu", "`tpu` is not a device"),
        ("train mlp --device cuda:x", "is not a device"),
        ("train mlp --device cuda:99", "cuda"),
        ("train mlp --device cpu --threads 0", "use 1 to 1024"),
        ("train mlp --device cpu --threads 99999", "use 1 to 1024"),
        ("train mlp --threads many", "'many'"),
        ("train mlp --data DIR", "a folder of data has"),
        ("train mlp --data DIR/none.csv", "none.csv: No such file"),
        ("train mlp --data DIR/ragged.csv", "ragged.csv: line 2, column 2: the row has 2 columns"),
        ("train mlp --data DIR/text.csv", "line 3, column 1: `x` is not a number"),
        ("train mlp --data DIR/label.csv", "line 2, column 2: `-1` is not a class"),
        ("train mlp --data DIR/one.csv", "one row cannot be split"),
        ("train mlp --data DIR/empty.csv", "is empty"),
        ("train mlp --data DIR/small.csv --batch 5", "there are 4 training rows"),
        ("op nothing --out DIR/y", "`nothing` is not an op"),
        ("op exp --out DIR/y", "takes 1 inputs, got 0"),
        ("op exp --in DIR/none --out DIR/y", "none: No such file"),
        ("op exp --in DIR --out DIR/y", "is a folder"),
        ("op exp --in DIR/ragged.csv --out DIR/y", "is not a safetensors file"),
        ("op exp --in DIR/empty.csv --out DIR/y", "is not a safetensors file"),
        ("op exp --attrs {", "--out"),
        ("op exp --attrs { --out DIR/y", "--attrs: is not JSON"),
        ("op exp --attrs [] --out DIR/y", "--attrs: is not a JSON object"),
        ("op scale --attrs {\"c\":\"x\"} --out DIR/y", "`c` is \"x\", use a number"),
        ("op sum --attrs {\"axes\":[-1]} --out DIR/y", "list of whole numbers from 0"),
        ("op scale --attrs {\"d\":1} --out DIR/y", "`d` is not one of"),
        ("op full --attrs {\"shape\":[2],\"value\":1} --out DIR", "DIR"),
        ("op full --attrs {\"shape\":[2],\"value\":1} --out DIR/no/y", "No such file"),
        ("op full --attrs {\"shape\":[9999999999,9999999999],\"value\":1} --out DIR/y", "does not fit"),
        ("check nothing", "is not an op and property"),
        ("bench nothing", "is not a workload"),
        ("bench exp:x", "`x` is not a size"),
        ("bench matmul:1,2", "use matmul:M,N,K"),
        ("bench matmul:99999,99999,1", "are not timed"),
        ("bench linear:3", "exactly 2"),
        ("bench softmax:4@{", "is not JSON"),
        ("bench cross_entropy:2,3/2%x", "`x` is not a size"),
        ("bench cholesky:4,4^x", "`x` is not a number to add to a diagonal"),
        ("bench exp:4^2", "`4` has no matrices with a diagonal"),
        ("ops --ulp 0", "0 is not in 1.."),
    ];
    let place = here.path().to_str().unwrap();
    for (args, want) in table {
        run(&args.replace("DIR", place)).refused(args, &want.replace("DIR", place));
    }
    for (name, value, want) in [
        ("DITTOGRAD_SIMD", "sse", "DITTOGRAD_SIMD=sse is not understood"),
        ("DITTOGRAD_THREADS", "many", "DITTOGRAD_THREADS=many is not understood"),
        ("DITTOGRAD_NUMERICS", "half", "DITTOGRAD_NUMERICS=half is not understood"),
        ("DITTOGRAD_DEVICE", "tpu", "`tpu` is not a device"),
    ] {
        run_env("train mlp --steps 1", name, value).failed(name, want);
    }
    assert_eq!(run_env("train mlp --steps 1 --threads 2", "DITTOGRAD_SIMD", "sse").code, Some(2));
    assert!(!here.path().join("y").exists());
}

#[cfg(unix)]
#[test]
fn arguments_that_are_not_text_are_errors_but_paths_need_not_be_text() {
    use std::os::unix::ffi::OsStringExt;
    let odd = OsString::from_vec(b"\xff\xfe".to_vec());
    for args in [vec![odd.clone()], vec!["train".into(), odd.clone()], vec!["check".into(), odd.clone()]] {
        finish(&mut command(&args)).failed(&format!("{args:?}"), "");
    }
    let here = folder();
    let path = here.path().join(odd);
    std::fs::write(&path, print_csv(&spirals(1, 60, 2).unwrap()).unwrap()).unwrap();
    let args = ["train", "mlp", "--steps", "2", "--device", "cpu", "--data"].map(OsString::from);
    finish(&mut command(args.into_iter().chain([path.into_os_string()]))).fingerprint();
}

#[test]
fn help_and_version_are_answers() {
    for args in ["--help", "train --help", "op --help", "--version"] {
        let got = run(args);
        assert_eq!((got.code, got.err.as_str()), (Some(0), ""), "{args}");
        assert!(got.out.contains("dittograd"), "{}", got.out);
    }
}

#[test]
fn a_csv_file_is_trained_on() {
    let here = folder();
    let path = here.path().join("spirals.csv");
    std::fs::write(&path, print_csv(&spirals(11, 1500, 2).unwrap()).unwrap().replace('\n', "\r\n")).unwrap();
    let train = format!("train mlp --device cpu --data {} --json --quiet", path.display());
    let eager = run(&format!("{train} --mode eager --threads 1")).objects().remove(0);
    let compiled = run(&format!("{train} --threads 3")).objects().remove(0);
    assert_eq!(eager["fingerprint"], compiled["fingerprint"]);
    assert_eq!(eager["test_loss"], compiled["test_loss"]);
    assert!(eager["test_accuracy"].as_f64().unwrap() > 0.95, "{eager}");
    assert_eq!(eager["live_bytes"], 0);
    // Fewer rows than the usual batch.
    std::fs::write(&path, "x,class\n1,0\n2,1\n3,0\n4,1\n5,1\n").unwrap();
    run(&format!("train mlp --device cpu --steps 3 --data {}", path.display())).fingerprint();
}

/// Writes tensors to a file.
fn store(path: &Path, tensors: &[(&str, Dtype, &[usize], Vec<u8>)]) {
    let view = |(name, dtype, shape, bytes): &(&str, Dtype, &[usize], Vec<u8>)| {
        (name.to_string(), *dtype, shape.to_vec(), bytes.clone())
    };
    let owned: Vec<_> = tensors.iter().map(view).collect();
    let views = owned.iter().map(|(n, d, s, b)| (n.as_str(), TensorView::new(*d, s.clone(), b).unwrap()));
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn i64s(values: &[i64]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Names, shapes and values of a file, by name.
fn load(path: &Path) -> Vec<(String, Vec<usize>, Vec<f32>)> {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut all: Vec<_> = file
        .tensors()
        .into_iter()
        .map(|(name, t)| {
            assert_eq!(t.dtype(), Dtype::F32);
            let values = t.data().chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
            (name, t.shape().to_vec(), values)
        })
        .collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

/// Runs an op on a file in `here` and gives what it wrote.
fn op(here: &Path, args: &str) -> Vec<(String, Vec<usize>, Vec<f32>)> {
    let (a, b) = (here.join("a.safetensors"), here.join("b.safetensors"));
    let got = run(&format!("op {args} --device cpu --in {} --out {}", a.display(), b.display()));
    assert_eq!((got.code, got.err.as_str()), (Some(0), ""), "{args}");
    let left: Vec<PathBuf> = std::fs::read_dir(here).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
    load(&b)
}

#[test]
fn an_op_runs_on_files_with_its_gradient() {
    let here = folder();
    let a = here.path().join("a.safetensors");
    let of =
        |name: &str, shape: &[usize], values: &[f32]| (name.to_string(), shape.to_vec(), values.to_vec());

    let (x, w) = (f32s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), f32s(&[1.0, 0.5, -1.0]));
    store(&a, &[("x0", Dtype::F32, &[3, 2], x.clone()), ("x1", Dtype::F32, &[3, 1], w.clone())]);
    assert_eq!(op(here.path(), r#"matmul --attrs {"ta":true}"#), [of("y", &[2, 1], &[-2.5, -2.0])]);

    let dy = ("dy", Dtype::F32, &[2, 1][..], f32s(&[1.0, 10.0]));
    store(&a, &[("x1", Dtype::F32, &[3, 1], w), dy, ("x0", Dtype::F32, &[3, 2], x)]);
    assert_eq!(
        op(here.path(), r#"matmul --attrs {"ta":true}"#),
        [
            of("dx0", &[3, 2], &[1.0, 10.0, 0.5, 5.0, -1.0, -10.0]),
            of("dx1", &[3, 1], &[21.0, 43.0, 65.0]),
            of("y", &[2, 1], &[-2.5, -2.0]),
        ]
    );

    let logits = ("x0", Dtype::F32, &[2, 2][..], f32s(&[0.0, 0.0, 0.0, 0.0]));
    let labels = ("x1", Dtype::I64, &[2][..], i64s(&[0, 1]));
    store(&a, &[logits, labels, ("dy", Dtype::F32, &[], f32s(&[1.0]))]);
    let got = op(here.path(), "cross_entropy");
    assert_eq!(got[0], of("dx0", &[2, 2], &[-0.25, 0.25, 0.25, -0.25]));
    assert_eq!((got.len(), &got[1].1[..]), (2, &[][..]), "labels have no gradient");
    assert!((got[1].2[0] - std::f32::consts::LN_2).abs() < 1e-6);

    // Indices are written as such.
    store(&a, &[("x0", Dtype::F32, &[2, 2], f32s(&[1.0, 9.0, 3.0, 2.0]))]);
    let b = here.path().join("b.safetensors");
    let files = format!("--in {} --out {}", a.display(), b.display());
    assert_eq!(run(&format!(r#"op argmax --attrs {{"axes":[1]}} --device cpu {files}"#)).code, Some(0));
    let bytes = std::fs::read(&b).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let y = file.tensor("y").unwrap();
    assert_eq!((y.dtype(), y.shape(), y.data()), (Dtype::U32, &[2][..], &[1, 0, 0, 0, 0, 0, 0, 0][..]));

    // No elements are fine.
    store(&a, &[("x0", Dtype::F32, &[0, 3], vec![])]);
    assert_eq!(op(here.path(), "exp"), [of("y", &[0, 3], &[])]);

    // Without inputs no file is needed, and the output is replaced as a whole.
    let text = r#"op uniform --attrs {"shape":[4],"seed":1,"counter":0} --out "#;
    assert_eq!(run(&format!("{text}{} --device cpu", b.display())).code, Some(0));
    assert!(load(&b)[0].2.iter().all(|v| (0.0..1.0).contains(v)));
    if has_gpu() {
        let c = here.path().join("c.safetensors");
        assert_eq!(run(&format!("{text}{} --device cuda", c.display())).code, Some(0));
        assert_eq!(load(&b), load(&c));
    }
}

#[test]
fn files_that_an_op_cannot_take_are_errors() {
    let here = folder();
    let (a, b) = (here.path().join("a"), here.path().join("b"));
    let refuse = |name: &str, want: &str| {
        run(&format!("op {name} --device cpu --in {} --out {}", a.display(), b.display())).failed(name, want);
        assert!(!b.exists());
    };
    let one = |name| (name, Dtype::F32, &[1][..], f32s(&[1.0]));
    for (tensors, name, want) in [
        (vec![one("x0"), one("x1")], "exp", "takes 1 inputs, got 2"),
        (vec![one("x1")], "exp", "has a tensor `x1`"),
        (vec![one("x0"), one("x2")], "add", "has a tensor `x2`"),
        (vec![one("x0"), one("weights")], "add", "has a tensor `weights`"),
        (vec![one("x00")], "exp", "has a tensor `x00`"),
        (vec![one("dy")], "exp", "takes 1 inputs, got 0"),
        (vec![("x0", Dtype::F64, &[1], vec![0; 8])], "exp", "x0: has type F64, use F32"),
        (vec![("x0", Dtype::I64, &[1], i64s(&[1]))], "exp", "holds u32 elements, needs f32"),
        (vec![one("x0"), ("dy", Dtype::I64, &[1], i64s(&[1]))], "exp", "dy: a gradient has type F32"),
        (
            vec![one("x0"), ("dy", Dtype::F32, &[2], f32s(&[1.0, 1.0]))],
            "exp",
            "dy has shape [2], but the result of exp has shape [1]",
        ),
        (vec![("x0", Dtype::F32, &[1; 11], f32s(&[1.0]))], "exp", "at most 10 are supported"),
        (
            vec![("x0", Dtype::F32, &[1, 2], f32s(&[0.0; 2])), ("x1", Dtype::I64, &[1], i64s(&[-1]))],
            "cross_entropy",
            "tensor `x1`: element 0 is -1: whole numbers are read as indices, 0 to 4294967295",
        ),
        (
            vec![("x0", Dtype::F32, &[1, 2], f32s(&[0.0; 2])), ("x1", Dtype::I64, &[1], i64s(&[1 << 32]))],
            "cross_entropy",
            "tensor `x1`: element 0 is 4294967296",
        ),
        (
            vec![("x0", Dtype::F32, &[1, 2], f32s(&[0.0; 2])), ("x1", Dtype::I64, &[1], i64s(&[2]))],
            "cross_entropy",
            "index 2 at position 0 is outside 0..2",
        ),
    ] {
        store(&a, &tensors);
        refuse(name, want);
    }
    let header = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let wild = "18446744073709551615";
    for bytes in [
        vec![],
        vec![0xff; 7],
        vec![0xff; 64],
        (1u64 << 60).to_le_bytes().to_vec(),
        header("{"),
        header("[]"),
        header(r#"{"x0":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#),
        header(r#"{"x0":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}"#),
        header(r#"{"x0":{"dtype":"Q9","shape":[0],"data_offsets":[0,0]}}"#),
        header(&format!(r#"{{"x0":{{"dtype":"F32","shape":[{wild},{wild}],"data_offsets":[0,0]}}}}"#)),
        header(&format!(r#"{{"x0":{{"dtype":"F32","shape":[1],"data_offsets":[{wild},{wild}]}}}}"#)),
        header(&"[".repeat(100_000)),
    ] {
        std::fs::write(&a, &bytes).unwrap();
        refuse("exp", "is not a safetensors file");
    }
}

#[test]
fn ops_are_listed() {
    let table = run("ops").out;
    let names = dittograd::ops::AnyOp::NAMES.len() + dittograd::torchlean::KNOWN.len();
    // Two heads, and an empty line between the tables.
    assert_eq!(table.lines().count(), names + 3);
    let line = |name: &str| table.lines().find(|l| l.starts_with(&format!("{name} "))).unwrap().to_string();
    assert!(line("matmul").contains(r#""ta":"#) && line("matmul").contains("yes"));
    assert!(line("detach").contains("no"));
    let objects = run("ops --json --ulp 1000003").objects();
    let of = |name: &str| objects.iter().find(|o| o["name"] == name).unwrap();
    assert_eq!(
        (&of("linear")["inputs"], &of("linear")["gradient"]),
        (&Value::from(vec![3]), &Value::from(true))
    );
    assert_eq!(of("cross_entropy")["gradient_inputs"], Value::from(vec![true, false]));
    assert_eq!(of("uniform")["gradient"], false);
    assert!(of("exp")["ulp"]["max"].as_f64().unwrap() < 1.0);
    assert!(of("relu")["ulp"].is_null());
}

#[test]
fn devices_are_described() {
    let text = run("devices").out;
    for part in ["cpu ", "cores ", "simd ", "nvrtc ", "nccl ", "cache ", "default "] {
        assert!(text.contains(part), "{text}");
    }
    let mut three = command(["devices", "--json", "--threads", "3"]);
    three.env("DITTOGRAD_CACHE", "/some/where");
    let object = finish(&mut three).objects().remove(0);
    assert_eq!((&object["cpu"]["threads"], &object["cache"]), (&Value::from(3), &Value::from("/some/where")));
    assert_eq!(object["gpus_missing"].is_null(), !object["gpus"].as_array().unwrap().is_empty());
}

#[test]
fn checks_end_with_a_summary() {
    let got = run("check neg --device cpu --json");
    assert_eq!(got.code, Some(0), "{}{}", got.out, got.err);
    let objects = got.objects();
    let (last, rows) = objects.split_last().unwrap();
    assert_eq!((last["failed"].as_u64(), last["checks"].as_u64()), (Some(0), Some(rows.len() as u64)));
    assert!(rows.len() >= 5 && rows.iter().all(|r| r["op"] == "neg" && r["ok"] == true));
    assert!(run("check neg --device cpu --quiet").last_line().ends_with("0 failed"));
    let one = run("check neg::rejects --device cpu --json").objects();
    assert_eq!((one.len(), &one[0]["property"]), (2, &Value::from("rejects")));
}

#[test]
fn benchmarks_say_what_they_measured() {
    let got = run(
        "bench --device cpu --json --steps 2 mlp_b128 mlp_b128_eager matmul:33,17,5,tb add:1000 mean:30,40 linear:4,3/5,3/5+grad cross_entropy:4,3/4%3+grad sum:3,4@{\"axes\":[0]} cholesky:2,4,4^4@{\"upper\":false}+grad",
    );
    let objects = got.objects();
    assert_eq!((got.code, objects.len()), (Some(0), 9), "{}", got.err);
    assert!(objects.iter().all(|o| o["live_bytes"] == 0 && o["ms"].as_f64().unwrap() > 0.0));
    assert!(objects[0]["arena_bytes"].as_u64().unwrap() > 0);
    assert_eq!(objects[0]["fingerprint"], objects[1]["fingerprint"]);
    assert!(objects[2]["gflops"].as_f64().unwrap() > 0.0 && objects[3]["gb_per_s"].as_f64().unwrap() > 0.0);
}

#[test]
fn benchmarks_of_other_sizes_say_where_the_time_goes() {
    let got =
        run("bench --device cpu --json --steps 1 --profile mlp_b3 mlp_b3_eager fno1d_b2_g64 gpt_b2_t16");
    let objects = got.objects();
    assert_eq!((got.code, objects.len()), (Some(0), 4), "{}", got.err);
    assert_eq!(objects[0]["fingerprint"], objects[1]["fingerprint"]);
    for object in &objects {
        let ops = object["ops"].as_array().unwrap();
        let times: Vec<f64> = ops.iter().map(|o| o["ms"].as_f64().unwrap()).collect();
        assert!(times.is_sorted_by(|a, b| a >= b) && times[0] > 0.0, "{object}");
        assert!(ops.iter().any(|o| o["op"] == "update" && o["calls"] == 1), "{object}");
    }
    assert!(
        objects[3]["ops"].as_array().unwrap().iter().any(|o| o["shape"] == "[2, 16, 192]"),
        "{}",
        objects[3]
    );
    for name in ["mlp_t3", "cnn_g2", "gpt_b0", "gpt_b2_", "mlp_b2_b"] {
        assert!(run(&format!("bench {name}")).err.contains("is not a workload"), "{name}");
    }
}

#[test]
fn nobody_reading_is_not_an_error() {
    for args in ["ops", "ops --json", "devices", "train mlp --steps 20 --device cpu", "--help", "--version"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = command(args.split(' '));
        let got = finish(command.stdout(writer));
        assert_eq!((got.code, got.err.as_str()), (Some(0), ""), "{args}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error() {
    let mut command = command(["ops"]);
    let got = finish(command.stdout(std::fs::File::options().write(true).open("/dev/full").unwrap()));
    assert_eq!(got.code, Some(2));
    assert!(got.err.starts_with("dittograd: stdout: "), "{}", got.err);
}

#[test]
fn programs_in_files_are_checked_and_shown() {
    let folder = folder();
    let file = folder.path().join("program.txt");
    let text = "graph 1\n%0: f32[2, 3] = input\n%1: f32[2] = sum %0 axes=[1]\nreturn %1\n";
    std::fs::write(&file, format!("# rows\n{}", text.replace(" = ", "  =  "))).unwrap();
    let show = |form: &str| {
        let mut args = vec![OsString::from("graph"), file.clone().into()];
        args.extend(form.split_whitespace().map(OsString::from));
        finish(&mut command(args))
    };
    let plain = show("");
    assert_eq!((plain.code, plain.out.as_str(), plain.err.as_str()), (Some(0), text, ""));
    let hash = show("--hash").out;
    assert!(hash.trim().len() == 16 && show("--json").objects()[0]["hash"] == *hash.trim(), "{hash}");
    assert!(show("--dot").out.starts_with("digraph") && show("--svg").out.starts_with("<svg"));
    assert_eq!(show("--dot --svg").code, Some(2));
    std::fs::write(&file, text.replace("axes=[1]", "axes=[2]")).unwrap();
    let broken = show("");
    assert_eq!(broken.code, Some(2));
    assert!(broken.err.contains("line 3, column") && broken.err.contains("axis 2"), "{}", broken.err);
    assert_eq!(broken.err.lines().count(), 1);
}
