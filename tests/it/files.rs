//! Files that are not what they should be, through every reader: cut at every byte, with every byte changed, in odd places
//! (folders, pipes, links that go in circles), and hostile ones by hand. Each answer is an error of one line that names the file, at
//! once and without a panic.

use dittograd::data::{self, Tokenizer};
use dittograd::device::Meta;
use dittograd::error::ErrorKind;
use dittograd::graph::Graph;
use dittograd::io::safetensors::{SafeTensors, Writer};
use dittograd::io::{self, npy_bytes, npz_bytes};
use dittograd::prelude::*;
use flate2::{Compression, GzBuilder};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::mpsc::channel;
use std::time::Duration;
use tempfile::TempDir;

/// Something that reads a file.
struct Reader {
    name: &'static str,
    /// A file that it takes, of some 4 KiB.
    good: Vec<u8>,
    /// What it is called in the folder.
    file: &'static str,
    /// Other files that it needs beside it.
    beside: Vec<(&'static str, Vec<u8>)>,
    /// Reads from a folder.
    read: fn(&Path) -> Result<()>,
    /// Whether every part from the start on is wrong.
    whole: bool,
    /// Whether something behind the end is wrong.
    ends: bool,
}

fn text() -> String {
    "the cat sat on the mat, and the rat that sat there ate the fat of the cat; ".repeat(54)
}

/// Made once: files are read into it thousands of times.
static NET: OnceLock<Params> = OnceLock::new();

fn params() -> (Params, Mlp) {
    let mut params = Params::new(&Device::cpu().unwrap(), 3);
    let net = Mlp::new(&mut params, &[2, 12, 8]).unwrap();
    (params, net)
}

fn weights() -> Vec<u8> {
    let here = tempfile::tempdir().unwrap();
    let path = here.path().join("a");
    params().0.save(&path).unwrap();
    fs::read(path).unwrap()
}

fn checkpoint() -> Vec<u8> {
    let (params, net) = params();
    let data = data::spirals(3, 30, 3).unwrap();
    let mut step = TrainStep::new(&params, Optimizer::adam(0.1), |v| net.forward(v[0])?.cross_entropy(v[1]));
    step.run(&[data.x().into(), data.y().into()]).unwrap();
    let mut checkpoint = Checkpoint::new("mlp", &params).unwrap();
    checkpoint.take(&step).unwrap();
    checkpoint.to_bytes().unwrap()
}

fn tensors() -> Vec<u8> {
    let (x, i) =
        (Tensor::full(Shape::new(&[30, 30]).unwrap(), 0.5f32), Tensor::new(&[3], vec![1u32, 2, 3]).unwrap());
    let mut file = Writer::new();
    file.numbers("layer/weight\0", &x).unwrap().indices("i", &i).unwrap().metadata("k", "v").unwrap();
    file.to_bytes().unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = GzBuilder::new().filename("n").write(Vec::new(), Compression::new(6));
    gzip.write_all(bytes).unwrap();
    gzip.finish().unwrap()
}

/// Bytes that do not compress.
fn noise(count: usize) -> Vec<u8> {
    let mut s = Stream::new(5, 0);
    (0..count).map(|_| s.below(256) as u8).collect()
}

fn pictures() -> Vec<u8> {
    [&[0, 0, 8, 3, 0, 0, 0, 4, 0, 0, 0, 32, 0, 0, 0, 32][..], &noise(4096)].concat()
}

const CLASSES: [u8; 12] = [0, 0, 8, 1, 0, 0, 0, 4, 7, 3, 0, 1];

fn gpt2() -> (Vec<u8>, Vec<u8>) {
    let json: serde_json::Value =
        serde_json::from_str(&Tokenizer::train(text().as_bytes(), 300).unwrap().to_json()).unwrap();
    let merges: Vec<&str> =
        json["model"]["merges"].as_array().unwrap().iter().map(|m| m.as_str().unwrap()).collect();
    (json["model"]["vocab"].to_string().into_bytes(), merges.join("\n").into_bytes())
}

fn graph() -> Vec<u8> {
    let (params, net) = params();
    let x = Meta::f32(Shape::new(&[4, 2]).unwrap());
    let graph = Graph::trace(params.device(), &[x], |_, x| Ok(vec![net.forward(x[0])?.softmax()?])).unwrap();
    graph.text().unwrap().into_bytes()
}

fn readers() -> Vec<Reader> {
    let numbers: AnyTensor = Tensor::from_fn(Shape::new(&[10, 100]).unwrap(), |i| i as f32).into();
    let classes: AnyTensor = Tensor::new(&[10], vec![0u32, 1, 2, 3, 4, 5, 6, 7, 8, 9]).unwrap().into();
    let rows = data::spirals(3, 150, 3).unwrap();
    let (vocab, merges) = gpt2();
    let json = Tokenizer::train(text().as_bytes(), 300).unwrap().to_json().into_bytes();
    let of = |name, file, good, read: fn(&Path) -> Result<()>| Reader {
        name,
        good,
        file,
        beside: Vec::new(),
        read,
        whole: true,
        ends: true,
    };
    vec![
        of("SafeTensors::read", "a.safetensors", tensors(), |f| {
            let file = SafeTensors::read(f.join("a.safetensors"))?;
            file.iter().try_for_each(|(name, _)| file.tensor(name).map(drop))
        }),
        of("StateDict::read", "a.safetensors", tensors(), |f| {
            StateDict::read(f.join("a.safetensors")).map(drop)
        }),
        of("Params::load", "a.safetensors", weights(), |f| {
            NET.get_or_init(|| params().0).load(f.join("a.safetensors"))
        }),
        of("Checkpoint::load", "a.safetensors", checkpoint(), |f| {
            Checkpoint::load(f.join("a.safetensors")).map(drop)
        }),
        of("read_npy", "a.npy", npy_bytes(&numbers), |f| io::read_npy(f.join("a.npy")).map(drop)),
        of("read_npy_numbers", "a.npy", npy_bytes(&classes), |f| {
            io::read_npy_numbers(f.join("a.npy")).map(drop)
        }),
        of("read_npz", "a.npz", npz_bytes(&[("x", &numbers), ("y", &classes)]).unwrap(), |f| {
            io::read_npz(f.join("a.npz")).map(drop)
        }),
        of("data::npz", "a.npz", npz_bytes(&[("x", &numbers), ("y", &classes)]).unwrap(), |f| {
            data::npz_parts(f.join("a.npz")).map(drop)
        }),
        Reader {
            beside: vec![("b.idx", CLASSES.to_vec())],
            ..of("data::idx of pictures", "a.idx", pictures(), |f| {
                data::idx(f.join("a.idx"), f.join("b.idx")).map(drop)
            })
        },
        Reader {
            beside: vec![("b.idx", CLASSES.to_vec())],
            ..of("data::idx of pictures, packed", "a.idx", gzip(&pictures()), |f| {
                data::idx(f.join("a.idx"), f.join("b.idx")).map(drop)
            })
        },
        Reader {
            beside: vec![("b.idx", pictures())],
            ..of("data::idx of classes", "a.idx", CLASSES.to_vec(), |f| {
                data::idx(f.join("b.idx"), f.join("a.idx")).map(drop)
            })
        },
        of("data::cifar10", "a.bin", [&[3][..], &noise(3072)].concat(), |f| {
            data::cifar10(&[f.join("a.bin")]).map(drop)
        }),
        Reader {
            whole: false,
            ..of("data::csv", "a.csv", data::print_csv(&rows).unwrap().into_bytes(), |f| {
                data::csv(f.join("a.csv")).map(drop)
            })
        },
        Reader {
            whole: false,
            ..of("data::csv_table", "a.csv", data::print_csv(&rows).unwrap().into_bytes(), |f| {
                data::csv_table(f.join("a.csv")).map(drop)
            })
        },
        of("Tokenizer::read", "tokenizer.json", json, |f| {
            Tokenizer::read(f.join("tokenizer.json")).map(drop)
        }),
        Reader {
            beside: vec![("merges.txt", merges.clone())],
            ..of("Tokenizer::read of a vocabulary", "vocab.json", vocab.clone(), |f| {
                Tokenizer::read(f).map(drop)
            })
        },
        Reader {
            beside: vec![("vocab.json", vocab)],
            whole: false,
            ..of("Tokenizer::read of merges", "merges.txt", merges, |f| Tokenizer::read(f).map(drop))
        },
        Reader {
            whole: false,
            ..of("Graph::parse", "a.txt", graph(), |f| {
                let path = f.join("a.txt");
                let text = String::from_utf8(io::read(&path)?);
                let wrong = |e: &dyn std::fmt::Display| {
                    Error::new(
                        "graph",
                        ErrorKind::File { path: path.display().to_string(), why: e.to_string() },
                    )
                };
                Graph::parse(&text.map_err(|e| wrong(&e))?).map(drop).map_err(|e| wrong(&e))
            })
        },
        Reader {
            whole: false,
            ends: false,
            ..of("data::text", "a.txt", text().into_bytes(), |f| data::text(f.join("a.txt"), 16).map(drop))
        },
        Reader {
            whole: false,
            ends: false,
            ..of("Tokenizer::train_file", "a.txt", text().into_bytes(), |f| {
                // Any bytes teach something, none do not.
                match io::read(f.join("a.txt"))?.len() {
                    0 | 1 => data::text(f.join("a.txt"), 16).map(drop),
                    _ => Tokenizer::train_file(f.join("a.txt"), 270).map(drop),
                }
            })
        },
    ]
}

impl Reader {
    fn folder(&self) -> (TempDir, PathBuf) {
        let here = tempfile::tempdir().unwrap();
        for (name, bytes) in &self.beside {
            fs::write(here.path().join(name), bytes).unwrap();
        }
        let path = here.path().join(self.file);
        (here, path)
    }

    /// What it says about a folder, which must be a line that names the file or the folder; in time.
    fn answer(&self, folder: &Path, what: &str) -> Option<String> {
        let (sender, receiver) = channel();
        let (read, place) = (self.read, folder.to_path_buf());
        // Reading in a thread of its own, so that one that waits for ever fails.
        let thread = std::thread::spawn(move || {
            let result = read(&place);
            let _ = sender.send(());
            result
        });
        let name = self.name;
        if receiver.recv_timeout(Duration::from_secs(20)) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            panic!("{name}, {what}: no answer");
        }
        let Err(e) = thread.join().unwrap_or_else(|_| panic!("{name}, {what}: panicked")) else {
            return None;
        };
        let said = e.to_string();
        assert!(matches!(e.kind(), ErrorKind::File { .. }), "{name}, {what}: {said}");
        assert!(said.contains(folder.to_str().unwrap()), "{name}, {what}: does not name the file: {said}");
        assert!(!said.chars().any(char::is_control), "{name}, {what}: {said:?}");
        assert!(said.len() < 700, "{name}, {what}: {said}");
        Some(said)
    }

    fn refuses(&self, folder: &Path, what: &str) -> String {
        self.answer(folder, what).unwrap_or_else(|| panic!("{}, {what}: was taken", self.name))
    }
}

#[test]
fn files_that_are_cut_or_changed_anywhere() {
    for reader in readers() {
        let (here, path) = reader.folder();
        let put = |bytes: &[u8]| {
            // A new file each time: writing over one that is there may wait for the disk.
            let _ = fs::remove_file(&path);
            fs::write(&path, bytes).unwrap();
        };
        put(&reader.good);
        let whole = reader.answer(here.path(), "whole");
        assert_eq!(whole, None, "{}", reader.name);
        put(&[]);
        let empty = reader.answer(here.path(), "empty");
        // No merges are a list of merges too.
        assert!(empty.is_some() || reader.file == "merges.txt", "{}: nothing was taken", reader.name);
        put(b"\x01");
        reader.refuses(here.path(), "a byte");
        put(&[&reader.good[..], b"\x01"].concat());
        let more = reader.answer(here.path(), "a byte more");
        assert!(more.is_some() || !reader.ends, "{}: a byte behind the end was taken", reader.name);
        // Without the thread, which takes most of the time.
        let check = |what: &str, at: usize, must: bool| {
            let read = std::panic::AssertUnwindSafe(|| (reader.read)(here.path()));
            match std::panic::catch_unwind(read) {
                Ok(Ok(())) => assert!(!must, "{}: {what} at byte {at} was taken", reader.name),
                Ok(Err(e)) => {
                    let said = e.to_string();
                    let fine =
                        said.contains(here.path().to_str().unwrap()) && !said.chars().any(char::is_control);
                    assert!(fine && said.len() < 700, "{}: {what} at byte {at}: {said:?}", reader.name);
                }
                Err(_) => panic!("{}: {what} at byte {at} panicked", reader.name),
            }
        };
        // Where any bytes will do, some tell as much as all.
        let every = if reader.ends { 1 } else { 61 };
        for at in (1..reader.good.len()).step_by(every) {
            put(&reader.good[..at]);
            check("cut", at, reader.whole);
        }
        let mut bytes = reader.good.clone();
        for at in (0..bytes.len()).step_by(every) {
            let old = bytes[at];
            for new in [0, 0xff, b'"', old ^ 1, old ^ 0x80, old.wrapping_add(1)] {
                // Lengths and names are at both ends; in the middle a few changes tell as much.
                if at % 16 == 0 || at < 512 || at + 512 > bytes.len() {
                    bytes[at] = new;
                    put(&bytes);
                    check("another byte", at, false);
                }
            }
            bytes[at] = old;
        }
    }
}

#[cfg(unix)]
#[test]
fn places_that_are_no_files() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    for reader in readers() {
        let (here, path) = reader.folder();
        let said = |what: &str, want: &str| {
            let said = reader.refuses(here.path(), what);
            // A tokenizer in a folder says what it did not find there.
            assert!(
                said.contains(want) || said.contains("has no tokenizer.json"),
                "{}, {what}: {said}",
                reader.name
            );
        };
        said("missing", "No such file");
        fs::create_dir(&path).unwrap();
        said(
            "a folder",
            if reader.file == "tokenizer.json" { "tokenizer.json: has no" } else { "is a folder" },
        );
        fs::remove_dir(&path).unwrap();
        symlink(reader.file, &path).unwrap();
        said("a link to itself", "symbolic links");
        fs::remove_file(&path).unwrap();
        symlink("/dev/null", &path).unwrap();
        assert!(
            reader.answer(here.path(), "nothing").is_some() || reader.file == "merges.txt",
            "{}",
            reader.name
        );
        fs::remove_file(&path).unwrap();
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        let regular = reader.file == "a.safetensors";
        said("a pipe", if regular { "is not a regular file" } else { "is a named pipe" });
        fs::remove_file(&path).unwrap();
        fs::write(&path, &reader.good).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
        match fs::read(&path) {
            Err(_) => said("unreadable", "Permission denied"),
            Ok(_) => eprintln!("skipped: this user may read everything"),
        }
    }
    let said = |path: &str| data::csv(path).unwrap_err().to_string();
    assert_eq!(said("a\n\u{1b}[31m.csv"), r"csv: a\n\u{1b}[31m.csv: No such file or directory (os error 2)");
    assert!(said("a\0b").contains(r"a\0b: "), "{}", said("a\0b"));
    assert!(said(&"a".repeat(5000)).contains("File name too long"));
}

/// What a shell's `|` and `<( )` give a program is read as a file is.
#[cfg(target_os = "linux")]
#[test]
fn pipes_of_a_shell_are_read() {
    use std::io::Write;
    use std::os::fd::AsRawFd;
    let (reader, mut writer) = std::io::pipe().unwrap();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        writer.write_all(b"1,2,0\n3,4,1\n").unwrap();
    });
    let data = data::csv(format!("/dev/fd/{}", reader.as_raw_fd())).unwrap();
    assert_eq!(data.x().num().unwrap().data(), [1.0, 2.0, 3.0, 4.0]);
    thread.join().unwrap();
}

/// A header and data of the safetensors format.
fn headed(header: &[u8], data: usize) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header, &vec![0; data]].concat()
}

fn entry(name: &str, dtype: &str, shape: &str, from: u64, to: u64) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{from},{to}]}}"#)
}

fn npy(header: &str, data: &[u8]) -> Vec<u8> {
    [b"\x93NUMPY\x01\0", &(header.len() as u16).to_le_bytes()[..], header.as_bytes(), data].concat()
}

fn descr(descr: &str, fortran: &str, shape: &str) -> String {
    format!("{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}")
}

#[test]
fn hostile_files_of_every_format() {
    let f32s = |name: &str, from, to| entry(name, "F32", "[1]", from, to);
    let tree = |parts: &[String]| format!("{{{}}}", parts.join(",")).into_bytes();
    let mega = "n".repeat(1 << 20);
    let csv = |text: &str| text.as_bytes().to_vec();
    let all: Vec<(&[&str], &str, Vec<u8>, &str)> = vec![
        (&["a.safetensors"], "a header beyond the file", headed(b"{}", 0)[..9].to_vec(), "announced"),
        (&["a.safetensors"], "the longest header", [&[0xff; 8][..], b"{}"].concat(), "18446744073709551615"),
        (
            &["a.safetensors"],
            "an overlap",
            headed(&tree(&[f32s("a", 0, 4), f32s("b", 2, 6)]), 6),
            "an overlap",
        ),
        (&["a.safetensors"], "a hole", headed(&tree(&[f32s("a", 0, 4), f32s("b", 8, 12)]), 12), "a hole"),
        (&["a.safetensors"], "twice", headed(&tree(&[f32s("a", 0, 4), f32s("a", 4, 8)]), 8), "twice"),
        (&["a.safetensors"], "outside", headed(&tree(&[f32s("a", u64::MAX - 3, u64::MAX)]), 4), "cut short"),
        (
            &["a.safetensors"],
            "a giant",
            headed(&tree(&[entry("a", "F32", "[1099511627776]", 0, 4)]), 4),
            "takes 4398046511104",
        ),
        (
            &["a.safetensors"],
            "other bytes",
            headed(&tree(&[entry("a", "F32", "[3]", 0, 8)]), 8),
            "takes 12 bytes",
        ),
        (&["a.safetensors"], "a long name", headed(&tree(&[f32s(&mega, 0, 5)]), 5), "nnnn…"),
        (
            &["a.safetensors"],
            "a name that acts",
            headed(&tree(&[f32s("\\u001b[2J\\n", 0, 5)]), 5),
            r"\u{1b}[2J\n",
        ),
        (&["a.safetensors"], "no UTF-8", headed(b"{\"\xff\":1}", 0), "its header"),
        (
            &["a.safetensors"],
            "deep",
            headed(format!("{{\"a\":{}", "[".repeat(1 << 20)).as_bytes(), 0),
            "its header",
        ),
        (
            &["a.safetensors"],
            "deeper",
            headed(format!("{{\"a\":{}", "{\"a\":".repeat(1 << 18)).as_bytes(), 0),
            "its header",
        ),
        (
            &["a.safetensors"],
            "a type of none",
            headed(&tree(&[entry("a", "\\u001b", "[1]", 0, 4)]), 4),
            r"`\u{1b}` is not a known type",
        ),
        (
            &["a.npy"],
            "Fortran's order of fewer",
            npy(&descr("'<f4'", "True", "(2, 3)"), &[0; 20]),
            "24 bytes|6 elements",
        ),
        (&["a.npy"], "version 9", [&b"\x93NUMPY\x09\0"[..], &[0; 100]].concat(), "version 9.0"),
        (&["a.npy"], "another magic", b"\x93NUMPI\x01\0\0\0".to_vec(), "is not a .npy file"),
        (&["a.npy"], "a header beyond the file", b"\x93NUMPY\x01\0\xff\xff{".to_vec(), "cut off"),
        (&["a.npy"], "a giant header", b"\x93NUMPY\x02\0\xff\xff\xff\xff{".to_vec(), "at most 65536"),
        (
            &["a.npy"],
            "complex numbers",
            npy(&descr("'<c8'", "False", "(1,)"), &[0; 8]),
            "`<c8` is not supported",
        ),
        (&["a.npy"], "objects", npy(&descr("'|O'", "False", "(1,)"), &[0; 8]), "is not supported"),
        (&["a.npy"], "records", npy(&descr("[('a', '<f4')]", "False", "(1,)"), &[0; 4]), "byte"),
        (&["a.npy"], "no order of bytes", npy(&descr("'f4'", "False", "(1,)"), &[0; 4]), "type"),
        (&["a.npy"], "a type that acts", npy(&descr("'\u{1b}[2J'", "False", "(1,)"), &[0; 4]), r"\u{1b}"),
        (&["a.npy"], "a giant", npy(&descr("'<f8'", "False", "(1152921504606846975,)"), &[0; 8]), "elements"),
        (&["a.npy"], "beyond all", npy(&descr("'<f4'", "False", "(99999999999999999999,)"), &[]), "byte"),
        (
            &["a.npy"],
            "a product beyond all",
            npy(&descr("'|u1'", "False", "(4294967296, 4294967296, 4)"), &[]),
            "too large",
        ),
        (&["a.npy"], "below 0", npy(&descr("'<f4'", "False", "(-1,)"), &[]), "byte"),
        (&["a.npy"], "deep", npy(&descr("'<f4'", "False", &"(".repeat(20_000)), &[]), "byte"),
        (&["a.npz"], "no archive", vec![0x50, 0x4b, 5, 6], "is not a .npz file"),
        (
            &["a.npz"],
            "entries beyond the file",
            {
                let mut end = vec![0x50, 0x4b, 5, 6, 0, 0, 0, 0, 0xff, 0xfe, 0xff, 0xfe];
                end.extend([0; 10]);
                end
            },
            "damaged",
        ),
        (
            &["a.idx"],
            "giant pictures",
            [&[0, 0, 8, 3][..], &[0xff; 12], &[0; 16]].concat(),
            "dimensions|axes",
        ),
        (&["a.idx"], "floats", [&[0, 0, 0x0d, 3][..], &[0; 12]].concat(), "type 0x0d"),
        (&["a.idx"], "the other end first", [&[3, 8, 0, 0][..], &[0; 12]].concat(), "is not an IDX file"),
        (&["a.idx"], "packed in vain", gzip(&[]), "has 0 bytes"),
        (
            &["a.idx"],
            "packed bytes that promise more",
            {
                let mut bytes = gzip(&pictures());
                let end = bytes.len() - 4;
                bytes[end..].copy_from_slice(&u32::MAX.to_le_bytes());
                bytes
            },
            "cannot be the stated",
        ),
        (&["a.bin"], "a class beyond", [&[10][..], &[0; 3072]].concat(), "class 10"),
        (&["a.csv"], "ragged", csv("1,2,0\n1,0\n"), "line 2, column 2"),
        (&["a.csv"], "an open quote", csv("1,\"2\n3,4\n"), "is not closed"),
        (&["a.csv"], "quotes inside", csv("1,2\"3\n"), "a quote inside"),
        (&["a.csv"], "a mark and nothing", csv("\u{feff}\r\n\r\n"), "is empty"),
        (&["a.csv"], "a cell that acts", csv("1,2\n\u{1b}[2J,1\n"), r"`\u{1b}[2J` is not a number"),
        (&["a.csv"], "no UTF-8", b"1,2\n\xff,1\n".to_vec(), "line 2: is not UTF-8"),
        (
            &["a.csv"],
            "a long cell",
            csv(&format!("1,2\n{},1\n", "z".repeat(10 << 20))),
            "zzz…` is not a number",
        ),
        (
            &["a.csv"],
            "many cells",
            csv(&format!("1,2\n{}\n", ",".repeat(10 << 20))),
            "the row has 10485761 columns",
        ),
        (&["tokenizer.json", "vocab.json"], "deep", "[".repeat(1 << 20).into_bytes(), "recursion limit"),
        (&["tokenizer.json", "vocab.json"], "no UTF-8", b"{\"\xff\":1}".to_vec(), "is not UTF-8"),
        (&["tokenizer.json", "vocab.json"], "a list", b"[]".to_vec(), "no `model`|no JSON object"),
        (&["vocab.json"], "a number that is none", b"{\"a\":\"\\u001b\"}".to_vec(), r"\u001b"),
        (&["vocab.json"], "a giant number", b"{\"a\":18446744073709551615}".to_vec(), "18446744073709551615"),
        (&["merges.txt"], "a merge that acts", b"a \x1b[2J\n".to_vec(), r"\u{1b}[2J"),
        (&["merges.txt"], "a long merge", [mega.as_bytes(), b" x\n"].concat(), "nnn…"),
    ];
    let readers = readers();
    let mut count = 0;
    for (files, what, bytes, want) in all {
        for reader in readers.iter().filter(|r| files.contains(&r.file)) {
            // One file of classes is not one of pictures.
            if reader.name == "data::idx of classes" && !what.contains("packed") {
                continue;
            }
            let (here, path) = reader.folder();
            fs::write(&path, &bytes).unwrap();
            let said = reader.refuses(here.path(), what);
            assert!(want.split('|').any(|w| said.contains(w)), "{}, {what}: {said}", reader.name);
            count += 1;
        }
    }
    println!("{count} answers");
}

/// What looks odd and is not: it is read, to these numbers.
#[test]
fn odd_files_that_are_right() {
    let here = tempfile::tempdir().unwrap();
    let path = here.path().join("a");
    let put = |bytes: &[u8]| fs::write(&path, bytes).unwrap();
    let columns: Vec<u8> = [1.0f32, 4.0, 2.0, 5.0, 3.0, 6.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    put(&npy(&descr("'<f4'", "True", "(2, 3)"), &columns));
    let want: AnyTensor = Tensor::new(&[2, 3], vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap().into();
    assert_eq!(io::read_npy(&path).unwrap(), want);
    put(&npy(&descr("'>f4'", "False", "(1,)"), &1.5f32.to_be_bytes()));
    assert_eq!(io::read_npy(&path).unwrap(), Tensor::new(&[1], vec![1.5f32]).unwrap().into());
    // Offsets in another order than names.
    let header = format!("{{{},{}}}", entry("b", "U8", "[1]", 0, 1), entry("a/\\u0000", "U8", "[1]", 1, 2));
    put(&[&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[7, 9]].concat());
    let file = SafeTensors::read(&path).unwrap();
    assert_eq!(file.tensor("a/\0").unwrap(), Tensor::new(&[1], vec![9u32]).unwrap().into());
    put("\u{feff}\"a\",b\r\n1,\"2\"\r\n\r\n".as_bytes());
    assert_eq!(data::csv_table(&path).unwrap().data(), [1.0, 2.0]);
}

#[test]
fn arrays_are_written_whole_or_not_at_all() {
    let here = tempfile::tempdir().unwrap();
    let array: AnyTensor = Tensor::new(&[1], vec![1.5f32]).unwrap().into();
    for (name, write) in [
        ("a.npy", &(|p: &Path| io::write_npy(p, &array)) as &dyn Fn(&Path) -> Result<()>),
        ("a.npz", &|p: &Path| io::write_npz(p, &[("x", &array)])),
    ] {
        let path = here.path().join(name);
        fs::write(&path, b"old").unwrap();
        let before = fs::File::open(&path).unwrap();
        write(&path).unwrap();
        // Whoever had it open still has the old one.
        let mut old = String::new();
        std::io::Read::read_to_string(&mut &before, &mut old).unwrap();
        assert_eq!(old, "old", "{name} was written over");
        assert!(write(here.path()).unwrap_err().to_string().contains("is a folder"));
        assert!(write(&here.path().join("no").join(name)).unwrap_err().to_string().contains("No such file"));
        if cfg!(target_os = "linux") {
            assert!(write(Path::new("/dev/full")).unwrap_err().to_string().contains("No space left"));
        }
    }
}

/// Where a checkpoint cannot be written: an error that names the place, and what was there is as it was.
#[cfg(unix)]
#[test]
fn places_that_take_no_checkpoint() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let here = tempfile::tempdir().unwrap();
    let place = |name: &str| here.path().join(name);
    let saved = Checkpoint::new("mlp", &params().0).unwrap();
    fs::create_dir(place("folder")).unwrap();
    fs::write(place("file"), b"old").unwrap();
    fs::write(place("read-only"), b"old").unwrap();
    fs::set_permissions(place("read-only"), fs::Permissions::from_mode(0o444)).unwrap();
    for (name, target) in
        [("loop", "loop"), ("a", "b"), ("b", "a"), ("to-folder", "folder"), ("to-nothing", "nothing")]
    {
        symlink(target, place(name)).unwrap();
    }
    let list = || {
        let mut names: Vec<_> = fs::read_dir(here.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = list();
    for (name, want) in [
        ("folder", "is a folder"),
        ("to-folder", "is a folder"),
        ("loop", "symbolic links"),
        ("a", "symbolic links"),
        ("to-nothing", "No such file"),
        ("nothing/c", "No such file"),
        ("file/c", "Not a directory"),
        ("read-only", "is read-only"),
        ("nul\0", r"nul\0: "),
        ("..", "is a folder"),
        ("", "is a folder"),
    ] {
        let e = saved.save(place(name)).unwrap_err();
        assert!(matches!(e.kind(), ErrorKind::File { .. }) && e.to_string().contains(want), "{name}: {e}");
        let weights = params().0.save(place(name)).unwrap_err().to_string();
        assert_eq!(weights, e.to_string());
    }
    assert_eq!((list(), fs::read(place("read-only")).unwrap()), (before, b"old".to_vec()));
    // Through a link the file behind it is replaced, and the link stays.
    symlink("file", place("link")).unwrap();
    saved.save(place("link")).unwrap();
    assert!(fs::symlink_metadata(place("link")).unwrap().is_symlink());
    assert_eq!(Checkpoint::load(place("file")).unwrap(), saved);
}

/// A pipe takes a file in parts, as small as it likes.
#[cfg(target_os = "linux")]
#[test]
fn what_takes_only_parts_gets_the_whole() {
    use std::io::Read;
    use std::os::fd::AsRawFd;
    let bytes = noise(1 << 20);
    let (mut reader, writer) = std::io::pipe().unwrap();
    let thread = std::thread::spawn(move || {
        let (mut got, mut part) = (Vec::new(), [0; 1013]);
        while let Ok(n @ 1..) = reader.read(&mut part) {
            got.extend_from_slice(&part[..n]);
        }
        got
    });
    io::atomic::write(format!("/dev/fd/{}", writer.as_raw_fd()), &bytes).unwrap();
    drop(writer);
    assert_eq!(thread.join().unwrap(), bytes);
}
