//! Files that promise much and hold little: reading them takes memory in proportion to what they hold, whatever they promise. In a
//! program of its own: it counts every byte of the process.
#![allow(missing_docs, unsafe_code, clippy::unwrap_used, clippy::panic)]

use dittograd::data::{self, Tokenizer};
use dittograd::graph::Graph;
use dittograd::io::safetensors::SafeTensors;
use dittograd::io::{self, npz_bytes};
use dittograd::prelude::*;
use flate2::write::{DeflateEncoder, GzEncoder};
use flate2::{Compression, Crc};
use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counted;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn more(bytes: usize) {
    let live = LIVE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(live, Ordering::Relaxed);
}

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        more(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        more(layout.size());
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both may be there for a moment.
        more(size);
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counted = Counted;

/// Most bytes that deflate makes of one; and what is made of each of these: the byte itself, and a word for an element.
const DEFLATE: usize = 1032;
/// For messages, buffers of files, tables of a decoder.
const SMALL: usize = 1 << 18;

/// The most memory that reading took besides what was there before.
fn peak(read: impl FnOnce() -> Result<()>) -> (usize, Result<()>) {
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let result = read();
    (PEAK.load(Ordering::Relaxed) - before, result)
}

fn headed(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

fn gzip(bytes: &[u8], promised: u32) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
    gzip.write_all(bytes).unwrap();
    let mut file = gzip.finish().unwrap();
    let end = file.len() - 4;
    file[end..].copy_from_slice(&promised.to_le_bytes());
    file
}

/// An archive of one deflated array of bytes, which says that it has `size` of them when inflated.
fn npz(content: &[u8], size: u32) -> Vec<u8> {
    let none: AnyTensor = Tensor::<f32>::new(&[0], vec![]).unwrap().into();
    // The directory of an archive with a stored array, made into that of a deflated one.
    let model = npz_bytes(&[("x", &none)]).unwrap();
    let mut deflate = DeflateEncoder::new(Vec::new(), Compression::best());
    deflate.write_all(content).unwrap();
    let packed = deflate.finish().unwrap();
    let mut crc = Crc::new();
    crc.update(content);
    let stored = model.len() - 22 - (46 + 5) - (30 + 5);
    let local = [&model[..30 + 5], &packed].concat();
    let mut directory = model[30 + 5 + stored..][..46 + 5].to_vec();
    directory[10] = 8;
    directory[16..20].copy_from_slice(&crc.sum().to_le_bytes());
    directory[20..24].copy_from_slice(&(packed.len() as u32).to_le_bytes());
    directory[24..28].copy_from_slice(&size.to_le_bytes());
    let mut end = model[model.len() - 22..].to_vec();
    end[16..20].copy_from_slice(&(local.len() as u32).to_le_bytes());
    [local, directory, end].concat()
}

fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    [b"\x93NUMPY\x01\0", &(header.len() as u16).to_le_bytes()[..], header.as_bytes(), data].concat()
}

#[test]
fn memory_follows_what_a_file_holds() {
    let here = tempfile::tempdir().unwrap();
    let path = here.path().join("a");
    let zeros = vec![0u8; 8 << 20];
    let packed = npy("|u1", "(8388608,)", &zeros);
    let classes = here.path().join("classes");
    std::fs::write(&classes, [0, 0, 8, 1, 0, 0, 0, 1, 0]).unwrap();
    let tensor = |name: &str, shape: &str, to: u64| {
        format!(r#""{name}":{{"dtype":"F32","shape":{shape},"data_offsets":[0,{to}]}}"#)
    };
    let names: Vec<String> = (0..100_000).map(|i| tensor(&i.to_string(), "[0]", 0)).collect();
    let texts: Vec<String> = (0..100_000).map(|i| format!(r#""{i}":"""#)).collect();
    let vocab: Vec<String> = (0..100_000).map(|i| format!(r#""{i}":{i}"#)).collect();
    let pictures =
        |n: u32| [&[0, 0, 8, 3, 0, 0, 0, 1][..], &n.to_be_bytes(), &1024u32.to_be_bytes()].concat();
    type Read<'a> = Box<dyn Fn(&Path) -> Result<()> + 'a>;
    let safe = || -> Read<'_> {
        Box::new(|p| {
            let file = SafeTensors::read(p)?;
            file.iter().try_for_each(|(name, _)| file.tensor(name).map(drop))
        })
    };
    let idx = || -> Read<'_> { Box::new(|p| data::idx(p, &classes).map(drop)) };
    let array = || -> Read<'_> { Box::new(|p| io::read_npy(p).map(drop)) };
    let arrays = || -> Read<'_> { Box::new(|p| io::read_npz(p).map(drop)) };
    let table = || -> Read<'_> { Box::new(|p| data::csv(p).map(drop)) };
    let tokenizer = || -> Read<'_> { Box::new(|p| Tokenizer::read(p).map(drop)) };
    let graph =
        || -> Read<'_> { Box::new(|p| Graph::parse(&String::from_utf8_lossy(&io::read(p)?)).map(drop)) };
    // What a file is, the most bytes for each of its own, the file, who reads it, and whether it is taken.
    let all: Vec<(&str, usize, Vec<u8>, Read<'_>, bool)> = vec![
        ("a header of 2^64 - 1 bytes", 4, [&[0xff; 8][..], b"{}"].concat(), safe(), false),
        (
            "a giant tensor",
            4,
            headed(&format!("{{{}}}", tensor("a", "[268435456]", 4)), &[0; 4]),
            safe(),
            false,
        ),
        (
            "a giant tensor behind the end",
            4,
            headed(&format!("{{{}}}", tensor("a", "[268435456]", 1 << 30)), &[0; 4]),
            safe(),
            false,
        ),
        (
            "a long name",
            8,
            headed(&format!("{{{}}}", tensor(&"n".repeat(1 << 20), "[2]", 4)), &[0; 4]),
            safe(),
            false,
        ),
        (
            "a hundred thousand tensors of nothing",
            12,
            headed(&format!("{{{}}}", names.join(",")), &[]),
            safe(),
            true,
        ),
        (
            "a hundred thousand texts",
            24,
            headed(&format!(r#"{{"__metadata__":{{{}}}}}"#, texts.join(",")), &[]),
            safe(),
            true,
        ),
        ("deep braces", 8, headed(&format!("{{\"a\":{}", "[".repeat(1 << 20)), &[]), safe(), false),
        (
            "many sizes",
            8,
            headed(&format!("{{{}}}", tensor("a", &format!("[{}1]", "1,".repeat(1 << 19)), 4)), &[0; 4]),
            safe(),
            false,
        ),
        ("a giant array", 4, npy("<f4", "(268435456,)", &[0; 64]), array(), false),
        ("an array of bytes", 8, npy("|u1", "(1048576,)", &zeros[..1 << 20]), array(), true),
        ("an array that promises more", 4, npz(&npy("|u1", "(1,)", &[0]), u32::MAX), arrays(), false),
        ("an array that is packed well", 8 * DEFLATE, npz(&packed, packed.len() as u32), arrays(), true),
        (
            "entries beyond the file",
            4,
            {
                let mut end = vec![0x50, 0x4b, 5, 6, 0, 0, 0, 0, 0xff, 0xfe, 0xff, 0xfe];
                end.extend([0; 10]);
                end
            },
            arrays(),
            false,
        ),
        ("pictures that promise more", 4, gzip(&pictures(1), u32::MAX), idx(), false),
        (
            "pictures that are packed well",
            8 * DEFLATE,
            {
                let content = [&pictures(8192)[..], &zeros].concat();
                gzip(&content, content.len() as u32)
            },
            idx(),
            true,
        ),
        ("giant pictures", 4, [&[0, 0, 8, 3][..], &[0x7f; 12], &[0; 64]].concat(), idx(), false),
        ("a line of commas", 100, [b"1,2\n", &b",".repeat(1 << 20)[..]].concat(), table(), false),
        ("a first line of commas", 100, b",".repeat(1 << 20), table(), false),
        ("a long cell", 8, [b"1,2\n1,", &b"z".repeat(1 << 20)[..]].concat(), table(), false),
        ("many rows", 20, b"1,0\n".repeat(1 << 18), table(), true),
        (
            "a vocabulary of numbers",
            40,
            format!("{{\"model\":{{\"vocab\":{{{}}}}}}}", vocab.join(",")).into_bytes(),
            tokenizer(),
            false,
        ),
        ("lists of nothing", 80, format!("[{}0]", "[],".repeat(1 << 18)).into_bytes(), tokenizer(), false),
        ("lists in lists", 8, "[".repeat(1 << 20).into_bytes(), tokenizer(), false),
        (
            "a program of a giant",
            4,
            b"graph 1\n%0: f32[268435456] = constant 0\nreturn %0\n".to_vec(),
            graph(),
            false,
        ),
        (
            "a program of brackets",
            8,
            [b"graph 1\n%0: f32", &b"[".repeat(1 << 20)[..]].concat(),
            graph(),
            false,
        ),
    ];
    // What is made at the first use of anything.
    let _ = data::csv(here.path().join("none")).unwrap_err().to_string();
    let mut wrong = Vec::new();
    for (what, times, bytes, read, taken) in all {
        std::fs::write(&path, &bytes).unwrap();
        let (size, most) = (bytes.len(), bytes.len() * times + SMALL);
        let (took, result) = peak(|| read(&path));
        println!("{what}: {size} bytes took {took}, at most {most}");
        if took > most {
            wrong.push(format!("{what}: {size} bytes took {took}, more than {most}"));
        }
        match result {
            Ok(()) if !taken => wrong.push(format!("{what}: was taken")),
            Err(e) if taken => wrong.push(format!("{what}: {e}")),
            Err(e) if e.to_string().len() > 700 => wrong.push(format!("{what}: says too much")),
            _ => {}
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
