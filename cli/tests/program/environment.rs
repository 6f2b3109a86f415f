//! What is around the program when it starts: arguments that are not what they should be, an environment without the usual things,
//! streams that are closed, pictures that promise more than they hold. One table: the exit code, and one line on stderr.

use crate::program::{Run, behind, command, finish, run};
use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Small and quick.
const TRAIN: &str = "train mlp --steps 2 --samples 40 --batch 8 --hidden 4 --quiet";

fn words(args: &str) -> Vec<OsString> {
    args.split_whitespace().map(OsString::from).collect()
}

/// The program in a folder behind a line of shell, without folders for runs.
fn shell(line: &str, args: &str, folder: &Path) -> Command {
    behind(line, command(args.split_whitespace()).current_dir(folder))
}

#[test]
fn arguments_are_shown_and_not_acted_on() {
    let odd = |prefix: &str, bytes: &[u8]| -> Vec<OsString> {
        words(prefix).into_iter().chain([OsString::from_vec(bytes.to_vec())]).collect()
    };
    let acts = b"\x1b[2J\x07\xc2\x85x";
    for (what, args, want) in [
        ("a command", odd("", acts), "unrecognized subcommand"),
        ("an option", odd("train mlp", b"--\x1b[31m"), r"\u{1b}[31m"),
        ("a number", odd("train mlp --steps", b"\x1b[2J"), r"\u{1b}[2J"),
        ("a large number", words("train mlp --steps 1e30"), "'1e30'"),
        ("a number beyond all", words("train mlp --steps 99999999999999999999"), "99999999999999999999"),
        ("no number", odd("train mlp --steps", b""), "--steps"),
        ("no value", words("train mlp --steps"), "--steps"),
        ("a value that begins as an option does", words("train mlp --lr --seed 1"), "--lr"),
        ("an option twice", words("train mlp --seed 1 --seed 2"), "cannot be used multiple times"),
        ("a device", odd("train mlp --steps 1 --device", acts), r"\u{1b}[2J"),
        ("a device that is not there", words("train mlp --steps 1 --device cuda:99"), "cuda"),
        (
            "a device beyond all",
            words("train mlp --steps 1 --device cuda:99999999999999999999"),
            "is not a device",
        ),
        ("a mode", odd("train mlp --steps 1 --numerics", acts), r"\u{1b}[2J"),
        ("a file", odd("train mlp --data", b"a\n\x1b[31m.csv"), r"\u{1b}[31m.csv"),
        ("a file of no text", odd("train mlp --data", b"\xff.csv"), "No such file"),
        ("a program", odd("graph", b"a\x1b[31m"), r"a\u{1b}[31m: No such file"),
        ("a checkpoint", odd("inspect", b"a\x1b[31m"), r"a\u{1b}[31m: No such file"),
        ("attributes", odd("op exp --out /dev/null --attrs", b"{\"\x1b[2J\":1}"), "--attrs"),
        ("an op", odd("check", acts), r"\u{1b}[2J"),
        ("a workload", odd("bench", acts), r"\u{1b}[2J"),
        ("a long argument", odd("check", &b"a".repeat(100_000)), "aaa…"),
        ("a long workload", odd("bench", &b"a".repeat(100_000)), "aaa…"),
        ("a long number", odd("train mlp --steps", &b"a".repeat(100_000)), "aaa…"),
        ("a long device", odd("train mlp --steps 1 --device", &b"a".repeat(100_000)), "aaa…"),
    ] {
        finish(&mut command(&args)).refused(what, want);
    }
}

#[test]
fn variables_that_are_not_what_they_should_be() {
    let odd = OsString::from_vec(b"\xff\x1b[2J".to_vec());
    for (name, value, want) in [
        ("DITTOGRAD_DEVICE", odd.clone(), "DITTOGRAD_DEVICE="),
        ("DITTOGRAD_THREADS", odd.clone(), "DITTOGRAD_THREADS="),
        ("DITTOGRAD_THREADS", "0".into(), "threads: got 0"),
        ("DITTOGRAD_SIMD", odd.clone(), "DITTOGRAD_SIMD="),
        ("DITTOGRAD_NUMERICS", odd.clone(), "DITTOGRAD_NUMERICS="),
        ("DITTOGRAD_WATCH", odd.clone(), "DITTOGRAD_WATCH="),
        ("DITTOGRAD_RUNS", "/proc/none/runs".into(), "/proc/none"),
        ("DITTOGRAD_RUNS", "/dev/null".into(), "/dev/null"),
    ] {
        let mut command = command(words(TRAIN));
        finish(command.env(name, &value)).refused(&format!("{name}={value:?}"), want);
    }
    // Without a GPU, or with none to be seen, CUDA is an error and everything else goes on without.
    let mut none = command(words("train mlp --steps 1 --device cuda"));
    finish(none.env("CUDA_VISIBLE_DEVICES", "")).refused("no GPU to be seen", "cuda");
}

#[test]
fn an_environment_without_the_usual_things() {
    let here = tempfile::tempdir().unwrap();
    let want = run(TRAIN).fingerprint();
    let set = |name: &'static str, value: &'static str| {
        move |c: &mut Command| {
            c.env(name, value);
        }
    };
    type Change = Box<dyn Fn(&mut Command)>;
    let all: Vec<(&str, Change)> = vec![
        (
            "nothing at all",
            Box::new(|c| {
                c.env_clear().env("DITTOGRAD_RUNS", "none");
            }),
        ),
        (
            "no home",
            Box::new(|c| {
                c.env_remove("HOME").env_remove("XDG_CACHE_HOME");
            }),
        ),
        ("a home that is not there", Box::new(set("HOME", "/none/at/all"))),
        ("a cache that cannot be", Box::new(set("DITTOGRAD_CACHE", "/proc/none"))),
        ("no place for temporary files", Box::new(set("TMPDIR", "/none/at/all"))),
        ("no GPU to be seen", Box::new(set("CUDA_VISIBLE_DEVICES", ""))),
        ("a locale with another point", Box::new(set("LC_ALL", "de_DE.UTF-8"))),
        ("a locale with another i", Box::new(set("LC_ALL", "tr_TR.UTF-8"))),
        ("a locale that is none", Box::new(set("LC_ALL", "xx"))),
        ("no locale", Box::new(set("LC_ALL", "C"))),
        (
            "no terminal",
            Box::new(|c| {
                c.env_remove("TERM").env("COLUMNS", "0");
            }),
        ),
    ];
    for (what, change) in all {
        let mut command = command(words(TRAIN));
        change(&mut command);
        let got = finish(&mut command);
        assert_eq!((got.code, got.err.as_str()), (Some(0), ""), "{what}");
        assert_eq!(got.fingerprint(), want, "{what}");
    }
    for (what, line) in [
        ("closed stdin", "exec \"$@\" <&-"),
        ("a folder that is no more", "mkdir gone && cd gone && rmdir ../gone && exec \"$@\""),
        ("few files", "ulimit -n 16 && exec \"$@\""),
        ("a small stack", "ulimit -s 512 && exec \"$@\""),
    ] {
        let got = finish(&mut shell(line, TRAIN, here.path()));
        assert_eq!((got.code, got.err.as_str()), (Some(0), ""), "{what}");
        assert_eq!(got.fingerprint(), want, "{what}");
    }
    // Nothing can be said where everything is closed; the code tells.
    for (line, args, want) in [
        ("exec \"$@\" >&-", TRAIN, 0),
        ("exec \"$@\" >&- 2>&- <&-", TRAIN, 0),
        ("exec \"$@\" 2>&-", "train mlp --steps 0", 2),
        ("exec \"$@\" >&- 2>&- <&-", "train mlp --data none.csv", 2),
    ] {
        let Run { code, out, err } = finish(&mut shell(line, args, here.path()));
        assert_eq!((code, out.as_str(), err.as_str()), (Some(want), "", ""), "{line} {args}");
    }
    // A run that would keep files where there is no folder any more.
    let line = "unset DITTOGRAD_RUNS; mkdir gone && cd gone && rmdir ../gone && exec \"$@\"";
    finish(&mut shell(line, TRAIN, here.path())).refused("no folder for a run", "No such file");
}

/// A PNG of so many pixels in colour, with `data` in the place of what should be deflated.
fn png(width: u32, height: u32, data: &[u8]) -> Vec<u8> {
    let chunk = |name: &[u8], data: &[u8]| {
        let all = [name, data].concat();
        let mut crc = Crc::new();
        crc.update(&all);
        [&(data.len() as u32).to_be_bytes()[..], &all, &crc.sum().to_be_bytes()].concat()
    };
    let head = [&width.to_be_bytes()[..], &height.to_be_bytes(), &[8, 2, 0, 0, 0]].concat();
    [b"\x89PNG\r\n\x1a\n".to_vec(), chunk(b"IHDR", &head), chunk(b"IDAT", data), chunk(b"IEND", &[])].concat()
}

fn zlib(bytes: &[u8]) -> Vec<u8> {
    let mut zlib = ZlibEncoder::new(Vec::new(), Compression::new(6));
    zlib.write_all(bytes).unwrap();
    zlib.finish().unwrap()
}

/// A folder of pictures of one class and of another, of which `bytes` is one.
fn pictures(bytes: &[u8]) -> (TempDir, PathBuf) {
    let here = tempfile::tempdir().unwrap();
    for class in ["a", "b"] {
        let folder = here.path().join("set").join(class);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("0.png"), bytes).unwrap();
    }
    let path = here.path().join("set/a/0.png");
    (here, path)
}

#[test]
fn pictures_that_are_none() {
    let good = png(4, 4, &zlib(&[0; 4 * 13]));
    let train = "train cnn --steps 1 --quiet --device cpu --threads 1 --batch 1 --config {\"widths\":[2,2,2]} --data set";
    let (here, path) = pictures(&good);
    // Memory for the program and a little more.
    let small = "ulimit -v 400000; exec \"$@\"";
    let got = finish(&mut shell(small, train, here.path()));
    assert_eq!((got.code, got.err.as_str()), (Some(0), ""));
    let tiny = zlib(&[0; 8]);
    for (what, bytes, want) in [
        ("empty", vec![], "0.png: "),
        ("a byte", vec![0x89], "0.png: "),
        ("another magic", b"GIF89a..........".to_vec(), "0.png: "),
        ("a promise of 151 MB", png(7100, 7100, &tiny), "cannot hold 7100x7100 pixels"),
        ("a promise of all", png(u32::MAX >> 1, u32::MAX >> 1, &tiny), "0.png: "),
        ("no pixels", png(0, 0, &tiny), "0.png: "),
        ("fewer pixels", png(4, 5, &tiny), "0.png: "),
        ("noise", png(4, 4, &[0xff; 40]), "0.png: "),
    ] {
        std::fs::write(&path, bytes).unwrap();
        finish(&mut shell(small, train, here.path())).refused(what, want);
    }
    // Every part of a good one, but for the end of the last chunk, which says nothing.
    for cut in (1..good.len() - 12).step_by(5) {
        std::fs::write(&path, &good[..cut]).unwrap();
        finish(&mut shell("exec \"$@\"", train, here.path())).refused(&format!("cut at {cut}"), "0.png: ");
    }
    std::fs::remove_file(&path).unwrap();
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    finish(&mut shell("exec \"$@\"", train, here.path())).refused("a pipe", "holds no PNG or JPEG files");
}

/// Files that `train`, `predict`, `graph`, `inspect` and `op` are given and that are pipes: an error at once.
#[test]
fn named_pipes_are_not_waited_for() {
    let here = tempfile::tempdir().unwrap();
    for name in ["p.csv", "p.npz", "p.txt", "p"] {
        assert!(Command::new("mkfifo").arg(here.path().join(name)).status().unwrap().success());
    }
    for (args, want) in [
        ("train mlp --data p.csv", "is a named pipe"),
        ("train mlp --data p.npz", "is a named pipe"),
        ("train gpt --data p.txt", "is a named pipe"),
        ("graph p.txt", "is a named pipe"),
        ("inspect p", "is not a regular file"),
        ("op exp --in p --out /dev/null", "is not a regular file"),
        ("predict p --data p.csv", "p"),
    ] {
        // Ended from outside if it waits.
        finish(&mut shell("exec timeout 20 \"$@\"", args, here.path())).refused(args, want);
    }
}

/// From hardly enough for the program itself to enough for all: done, or an error of one line, whatever asks for memory when it
/// is gone.
#[cfg(target_os = "linux")]
#[test]
fn little_memory() {
    let here = tempfile::tempdir().unwrap();
    let commands = [
        "train mlp --steps 2 --hidden 2000,2000 --samples 3000 --batch 250 --out none --threads 2 --quiet",
        "bench matmul:1500,1500,1500 --threads 2",
        "train cnn --steps 2 --samples 700 --batch 500 --out none --threads 3 --quiet",
    ];
    for args in commands {
        let (mut refused, mut prints) = (0, Vec::new());
        for megabytes in (60..=300).step_by(40) {
            let line = format!("ulimit -v {}; exec \"$@\"", megabytes * 1024);
            let got = finish(&mut shell(&line, args, here.path()));
            match got.code {
                Some(0) if args.starts_with("train") => prints.push(got.fingerprint()),
                Some(0) => {}
                Some(2) => {
                    got.failed(&format!("{args}, {megabytes} MB"), "out of memory asking for");
                    refused += 1;
                }
                other => panic!("{args}, {megabytes} MB: {other:?}, {:?}", got.err),
            }
        }
        // Threads that cannot be started change no bit.
        prints.dedup();
        assert!(prints.len() <= 1, "{args}: {prints:?}");
        assert!(refused > 0, "{args}: there was always enough");
    }
}

#[test]
fn sizes_beyond_all_memory() {
    let here = tempfile::tempdir().unwrap();
    for (args, want) in [
        ("bench mlp_b99999999999", "out of memory asking for"),
        ("bench gpt_b99999999999_t128", "out of memory asking for"),
        ("bench relu:99999999,4000", "are not timed"),
        ("train mlp --steps 1 --samples 999999999999 --out none", "out of memory asking for"),
        ("train cnn --steps 1 --samples 9999999999 --out none", "out of memory asking for"),
        ("train fno1d --steps 1 --samples 9999999999 --out none", "out of memory asking for"),
    ] {
        finish(&mut shell("exec \"$@\"", args, here.path())).refused(args, want);
    }
}
