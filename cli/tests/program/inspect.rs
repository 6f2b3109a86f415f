//! `inspect`, and what happens to files when writing them fails, as users see it: run as a process.

#[cfg(target_os = "linux")]
use crate::program::{PROGRAM, limited};
use crate::program::{Run, command, finish};
use dittograd::io::DataState;
use dittograd::io::safetensors::{SafeTensors, Writer};
use dittograd::prelude::*;
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

fn inspect(path: &Path, more: &[&str]) -> Run {
    let args = [OsStr::new("inspect"), path.as_os_str()];
    finish(&mut command(args.into_iter().chain(more.iter().map(OsStr::new))))
}

fn refused(path: &Path, want: &str) {
    for more in [&[][..], &["--json"]] {
        let got = inspect(path, more);
        let name = path.file_name().unwrap().to_str().unwrap();
        got.refused(name, want);
        assert!(got.err.contains(name), "{}", got.err);
    }
}

/// A run of some steps.
fn checkpoint() -> Checkpoint {
    let device = Device::cpu().unwrap();
    let mut params = Params::new(&device, 7);
    let net = Mlp::new(&mut params, &[2, 4, 3]).unwrap();
    params.get("net.0.bias").unwrap().set_trainable(false);
    let data = data::spirals(7, 30, 3).unwrap();
    let mut step =
        TrainStep::new(&params, Optimizer::adamw(0.25), |v| net.forward(v[0])?.cross_entropy(v[1])).seeded(5);
    (0..4).for_each(|_| step.run(&[data.x().into(), data.y().into()]).unwrap());
    params.get("net.2.bias").unwrap().set(&Tensor::new(&[3], vec![f32::NAN, -2.0, 4.0]).unwrap()).unwrap();
    let mut checkpoint = Checkpoint::new("mlp", &params).unwrap();
    checkpoint.take(&step).unwrap();
    checkpoint.config = json!({"sizes": [2, 4, 3]});
    checkpoint.data =
        DataState { name: "spirals".into(), seed: 7, batch: 30, shards: 1, hash: String::new() };
    checkpoint.metrics = json!({"loss": 0.5});
    checkpoint
}

#[test]
fn a_checkpoint_is_described() {
    let here = tempfile::tempdir().unwrap();
    let path = here.path().join("run.safetensors");
    let saved = checkpoint();
    saved.save(&path).unwrap();
    let Run { code, out, err } = inspect(&path, &[]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    for line in [
        "model mlp",
        r#"config {"sizes":[2,4,3]}"#,
        "step 4",
        "data spirals, seed 7, batch 30",
        "random seed 5, 0 calls",
        "optimizer step 4, lr 0.25, exp_avg, exp_avg_sq of 3 parameters",
        "frozen net.0.bias",
        r#"metrics {"loss":0.5}"#,
    ] {
        assert!(out.lines().any(|l| l == line), "{out} has no line {line}");
    }
    assert!(out.contains(&format!("numerics strict, version {}", dittograd::numerics::NUMERICS_VERSION)));
    let row = out.lines().find(|l| l.starts_with("net.2.bias")).unwrap();
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(cells, ["net.2.bias", "[3]", "F32", "3", "-2", "4", "1", "4.472136", "1"]);
    assert!(!out.lines().any(|l| l.starts_with("optimizer.")), "{out}");
    assert!(out.contains("4 tensors, 27 elements"), "{out}");
    assert_eq!(out.lines().last().unwrap(), format!("fingerprint {}", saved.fingerprint()));

    let Run { out, .. } = inspect(&path, &["--json"]);
    assert_eq!(out.lines().count(), 1);
    let all: Value = serde_json::from_str(&out).unwrap();
    let checkpoint = &all["checkpoint"];
    assert_eq!((&checkpoint["model"], &checkpoint["step"]), (&json!("mlp"), &json!(4)));
    assert_eq!(checkpoint["optimizer"]["states"], json!(["exp_avg", "exp_avg_sq"]));
    assert_eq!(all["tensors"].as_array().unwrap().len(), 4);
    assert_eq!(all["tensors"][2]["nan"], 1);
    assert_eq!(all["fingerprint"], json!(saved.fingerprint()));
}

#[test]
fn any_safetensors_file_is_described() {
    let here = tempfile::tempdir().unwrap();
    let path = here.path().join("a");
    let (x, i) = (Tensor::new(&[2], vec![-1.5f32, 1e20]).unwrap(), Tensor::new(&[0, 2], vec![]).unwrap());
    let mut file = Writer::new();
    file.numbers("x\n\u{1b}[31m", &x).unwrap().indices("i", &i).unwrap().metadata("by", "a\nb").unwrap();
    file.save(&path).unwrap();
    let Run { code, out, err } = inspect(&path, &[]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[0], r"metadata by a\nb");
    assert_eq!(
        lines[2].split_whitespace().collect::<Vec<_>>(),
        ["i", "[0,", "2]", "U32", "0", "-", "-", "-", "0", "0"]
    );
    assert!(lines[3].starts_with(r"x\n\u{1b}[31m  [2]") && lines[3].contains("1.0000e20"), "{out}");
    assert_eq!(lines.len(), 6, "{out}");
    // Made by another program, with types that we do not convert.
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/torch.safetensors");
    let Run { code, out, .. } = inspect(Path::new(golden), &["--json"]);
    let all: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &all["checkpoint"], &all["metadata"]["format"]), (Some(0), &Value::Null, &json!("pt")));
    assert_eq!(all["tensors"].as_array().unwrap().len(), 13);
    let negative = r#"{"n":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}"#;
    let header = (negative.len() as u64).to_le_bytes();
    std::fs::write(&path, [&header[..], negative.as_bytes(), &[0xff; 8]].concat()).unwrap();
    let Run { code, out, .. } = inspect(&path, &[]);
    assert_eq!((code, out.lines().count()), (Some(0), 3), "{out}");
    // Nobody reads.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut closed = command([OsStr::new("inspect"), path.as_os_str()]);
    let got = finish(closed.stdout(writer));
    assert_eq!((got.code, got.err.as_str()), (Some(0), ""));
}

#[test]
fn what_is_no_such_file_is_one_line_and_exit_2() {
    let here = tempfile::tempdir().unwrap();
    let path = here.path().join("a");
    let good = checkpoint().to_bytes().unwrap();
    let put = |bytes: &[u8], want: &str| {
        std::fs::write(&path, bytes).unwrap();
        refused(&path, want);
    };
    put(&[], "is not a safetensors file: it is empty");
    put(&good[..5], "it has 5 bytes");
    put(&good[..100], "a header of");
    put(&good[..good.len() - 1], "is the file cut short?");
    put(&[&good[..], &[0]].concat(), "1 bytes after the last tensor belong to none");
    let mut flipped = good.clone();
    *flipped.last_mut().unwrap() ^= 4;
    put(&flipped, "is a damaged checkpoint: its content is not what was saved");
    put(&[0xff; 64], "a header of 18446744073709551615 bytes is announced");
    let header = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    put(&header(&format!("{{\"a\":{}", "[".repeat(1 << 20))), "tensor `a`");
    let wild = r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}}"#;
    put(&header(wild), "tensor `a`: a shape of [4294967296, 4294967296] does not fit the address space");
    let name =
        format!(r#"{{"{}":{{"dtype":"F32","shape":[9],"data_offsets":[0,4]}}}}"#, "x\\n".repeat(1 << 18));
    put(&header(&name), "tensor `x\\nx\\n");
    refused(here.path(), "is a folder without a run: it has no checkpoint.safetensors");
    refused(&here.path().join("none"), "No such file");
    if cfg!(unix) {
        refused(Path::new("/dev/zero"), "is not a regular file");
    }
    let Run { code, err, .. } = finish(&mut command(["inspect"]));
    assert!(code == Some(2) && err.contains("<FILE>"), "{err}");
}

/// Elements of a file that is written while things happen.
const MANY: usize = 1_000_000;

/// `op` that writes a file of 4 MB full of `value`.
fn fill(path: &Path, value: u32) -> Command {
    let attrs = format!(r#"{{"shape":[{MANY}],"value":{value}}}"#);
    let mut all = command(["op", "full", "--device", "cpu", "--threads", "1", "--attrs", &attrs, "--out"]);
    all.arg(path);
    all
}

/// What every element of the file is.
fn filled(path: &Path) -> f32 {
    let AnyTensor::Num(y) = SafeTensors::read(path).unwrap().tensor("y").unwrap() else {
        panic!("no numbers")
    };
    assert!(y.shape().dims() == [MANY] && y.data().iter().all(|x| *x == y.data()[0]));
    y.data()[0]
}

fn names(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect()
}

/// Processes that are killed, each at another time.
const POINTS: u32 = 200;

#[test]
fn a_process_killed_while_it_writes_leaves_the_old_file_or_the_new_one() {
    let here = tempfile::tempdir().unwrap();
    let path = here.path().join("y");
    let start = Instant::now();
    assert_eq!(finish(&mut fill(&path, 0)).code, Some(0));
    let whole = start.elapsed();
    let (mut old, mut left, mut new) = (0.0, 0, 0);
    let mut random = Stream::new(1, 0);
    for round in 1..=POINTS {
        let mut child = fill(&path, round).spawn().unwrap();
        // Anywhere in its life, and a little beyond.
        std::thread::sleep(whole.min(Duration::from_secs(2)).mul_f32(1.1 * random.uniform()));
        // It may have ended by itself.
        let _ = child.kill();
        child.wait().unwrap();
        let now = filled(&path);
        assert!(now == old || now == round as f32, "{now}");
        new += u32::from(now != old);
        left += names(here.path()).len() - 1;
        assert!(names(here.path()).len() <= 2, "the leftover of an earlier process was not removed");
        old = now;
    }
    eprintln!("of {POINTS} processes {new} had replaced the file, {left} left a temporary one");
    assert!(new > 0 && new < POINTS, "{new}: they were killed too early or too late to tell anything");
    assert_eq!(finish(&mut fill(&path, 999)).code, Some(0));
    assert_eq!((filled(&path), names(here.path())), (999.0, vec![path]));
}

/// A disk that is full, and one that cannot be written: file systems of their own, where this user may have some.
#[cfg(target_os = "linux")]
#[test]
fn a_full_and_a_read_only_disk_leave_the_old_file() {
    let here = tempfile::tempdir().unwrap();
    let script = r#"
        mount -t tmpfs -o size=256k none "$1" || exit 77
        cd "$1"
        small='{"shape":[10],"value":1}'
        "$2" op full --device cpu --threads 1 --attrs "$small" --out y || exit 1
        cp y ../old
        "$2" op full --device cpu --threads 1 --attrs '{"shape":[1000000],"value":2}' --out y && exit 2
        cmp y ../old && test "$(ls -A)" = y || exit 3
        mount -o remount,ro "$1" || exit 77
        "$2" op full --device cpu --threads 1 --attrs "$small" --out y && exit 4
        "$2" op full --device cpu --threads 1 --attrs "$small" --out z && exit 5
        cmp y ../old && test "$(ls -A)" = y || exit 6
    "#;
    let disk = here.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let mut shell = Command::new("unshare");
    shell.args(["-r", "-m", "sh", "-c", script, "sh"]).arg(&disk).arg(PROGRAM);
    let Ok(output) = shell.output() else {
        eprintln!("skipped: there is no unshare here");
        return;
    };
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.code() == Some(77) || err.starts_with("unshare: ") {
        eprintln!("skipped: this user may not mount: {err}");
        return;
    }
    assert_eq!(output.status.code(), Some(0), "{err}");
    let lines: Vec<&str> = err.lines().collect();
    assert_eq!(lines.len(), 3, "{err}");
    assert!(lines[0].contains("write: y: No space left on device"), "{err}");
    assert!(
        lines[1].contains("y: Read-only file system") && lines[2].contains("z: Read-only file system"),
        "{err}"
    );
}

#[cfg(target_os = "linux")]
#[test]
fn a_disk_that_takes_no_more_leaves_the_old_file() {
    let here = tempfile::tempdir().unwrap();
    let path = here.path().join("y");
    assert_eq!(finish(&mut fill(&path, 1)).code, Some(0));
    let got = limited(100, &fill(&path, 2));
    got.failed("a limit on the size of files", &format!("write: {}: File too large", path.display()));
    assert_eq!((filled(&path), names(here.path())), (1.0, vec![path.clone()]));
    // The folder of the process cannot be written.
    let Run { code, err, .. } = finish(&mut fill(Path::new("/proc/y"), 1));
    assert!(code == Some(2) && err.contains("/proc/y: "), "{err}");
}
