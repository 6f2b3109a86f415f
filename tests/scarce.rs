//! Little memory on the host: what a device keeps for reuse is given up before anybody is told that there is none, and where there
//! is none, that is an error. In a program of its own: its allocator refuses on request.
#![allow(missing_docs, unsafe_code, clippy::unwrap_used, clippy::panic)]

use dittograd::data::{self, Batches};
use dittograd::error::ErrorKind;
use dittograd::io::{self, StateDict, safetensors::Writer};
use dittograd::ops;
use dittograd::prelude::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

struct Scarce;

static LIVE: AtomicUsize = AtomicUsize::new(0);
/// Most bytes that may be live; requests below `SMALL` are served all the same.
static MOST: AtomicUsize = AtomicUsize::new(usize::MAX);
const SMALL: usize = 1 << 16;
const MIB: usize = 1 << 20;

fn fits(bytes: usize) -> bool {
    let before = LIVE.fetch_add(bytes, Ordering::SeqCst);
    let fits = bytes < SMALL || before.saturating_add(bytes) <= MOST.load(Ordering::SeqCst);
    if !fits {
        LIVE.fetch_sub(bytes, Ordering::SeqCst);
    }
    fits
}

// SAFETY: what is not refused is passed on to the system's allocator.
unsafe impl GlobalAlloc for Scarce {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        if fits(layout.size()) { unsafe { System.alloc(layout) } } else { std::ptr::null_mut() }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::SeqCst);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Scarce = Scarce;

/// One test at a time has the memory.
static TURN: Mutex<()> = Mutex::new(());

/// Calls `f` while no more than `bytes` beyond what is live now can be had.
fn with_only<T>(bytes: usize, f: impl FnOnce() -> T) -> T {
    MOST.store(LIVE.load(Ordering::SeqCst) + bytes, Ordering::SeqCst);
    let value = f();
    MOST.store(usize::MAX, Ordering::SeqCst);
    value
}

fn cpu() -> Device {
    Device::cpu_with(1, dittograd::device::cpu::simd::Simd::best()).unwrap()
}

#[test]
fn what_is_kept_for_reuse_is_given_up_first() {
    let _turn = TURN.lock().unwrap();
    let d = cpu();
    let words = 24 * MIB;
    drop(d.alloc(words).unwrap());
    assert_eq!(d.memory().cached, 96 * MIB);
    // Another size than the one that is kept, and no room beside it.
    let larger = with_only(20 * MIB, || d.alloc(words + words / 8)).unwrap();
    assert_eq!(d.memory().cached, 0);
    drop(larger);
    let small = d.alloc(10 * MIB).unwrap();
    assert!(d.memory().cached > 80 * MIB);
    let read = with_only(20 * MIB, || small.download()).unwrap();
    assert_eq!((read.len(), d.memory().cached), (10 * MIB, 0));
    // An op, eager: its value and its workspace.
    let s = Session::eager(&d);
    let x = s.full(&[MIB, 4], 0.5).unwrap();
    drop(d.alloc(words).unwrap());
    let y = with_only(MIB, || x.add(x).unwrap().sum().unwrap());
    assert_eq!(y.item().unwrap(), 4.0 * MIB as f32);
    let error = with_only(MIB, || x.exp().map(drop)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::OutOfMemory { bytes, .. } if *bytes == 16 * MIB), "{error}");
}

/// Something that takes memory.
type Call<'a> = Box<dyn FnMut() -> Result<()> + 'a>;

/// Everything that takes memory in proportion to data gives an error where there is too little, at any amount of it.
#[test]
fn too_little_is_an_error() {
    let _turn = TURN.lock().unwrap();
    let d = cpu();
    let rows = 60_000;
    let set = data::spirals(1, rows, 3).unwrap();
    let wide = Tensor::from_fn(Shape::new(&[rows, 2]).unwrap(), |i| i as f64);
    let mut params = Params::new(&d, 1);
    let w = params.uniform("w", &[400, 300], -1.0, 1.0).unwrap();
    let graph =
        dittograd::graph::Graph::trace(&d, &[], |s, _| Ok(vec![s.full(&[400, 300], 2.0)?.exp()?])).unwrap();
    let mut function = graph.compile(&d).unwrap();
    let mut file = Writer::new();
    let numbers = set.x().num().unwrap();
    file.numbers("x", numbers).unwrap();
    let bytes = file.to_bytes().unwrap();
    let array = io::npy_bytes(set.x());
    let archive = io::npz_bytes(&[("x", set.x())]).unwrap();
    let text = data::print_csv(&set).unwrap();
    let host = Device::host::<f64>();
    let all = set.rows();
    let samples = AnyTensor::from(numbers.clone());
    let scaling = data::Scaling::of(&set).unwrap();
    let ins = ops::AnyOp::samples("relu").remove(0).ins;
    let mut calls: Vec<(&str, Call<'_>)> = vec![
        ("spirals", Box::new(|| data::spirals(1, rows, 3).map(drop))),
        ("regression", Box::new(|| data::regression(data::Regression::ALL[0], 1, rows).map(drop))),
        ("split", Box::new(|| data::split(&set, 0.5, 1).map(drop))),
        ("batch", Box::new(|| Batches::new(set.clone(), all / 2, 1)?.batch(0).map(drop))),
        ("in order", Box::new(|| set.in_order(all)?.try_for_each(|b| b.map(drop)))),
        ("scaling", Box::new(|| scaling.apply_to(numbers).map(drop))),
        ("csv", Box::new(|| data::parse_csv("t", &text).map(drop))),
        ("text", Box::new(|| data::token_windows("t", &[1; 100_000], 2, 10).map(drop))),
        ("upload", Box::new(|| AnyBuffer::upload(&d, &wide).map(drop))),
        ("upload to other numbers", Box::new(|| AnyBuffer::upload(&host, numbers).map(drop))),
        ("full", Box::new(|| AnyBuffer::full(&host, Shape::new(&[rows])?, 1.0).map(drop))),
        ("get", Box::new(|| w.get::<f64>().map(drop))),
        ("fingerprint", Box::new(|| params.fingerprint().map(drop))),
        ("checkpoint", Box::new(|| Checkpoint::new("m", &params)?.to_bytes().map(drop))),
        ("state", Box::new(|| params.state_dict().map(drop))),
        ("orthogonal", Box::new(|| Params::new(&d, 1).orthogonal("o", &[400, 100], 1.0).map(drop))),
        ("call", Box::new(|| function.call::<f32>(&[]).map(drop))),
        ("safetensors", Box::new(|| file.to_bytes().map(drop))),
        (
            "safetensors read",
            Box::new(|| {
                let file =
                    io::safetensors::SafeTensors::parse("f", dittograd::reserve::copied("bytes", &bytes)?)?;
                StateDict::from_file(&file).map(drop)
            }),
        ),
        ("npy", Box::new(|| io::parse_npy("f", &array).map(drop))),
        ("npz", Box::new(|| io::npz_bytes(&[("x", &samples)]).map(drop))),
        ("npz read", Box::new(|| io::parse_npz("f", &archive).map(drop))),
        ("draw", Box::new(|| ops::draw(&ins, &mut Stream::new(1, 1)).map(drop))),
    ];
    for (name, call) in &mut calls {
        println!("{name}");
        let mut failed = 0;
        for kib in [0, 50, 100, 200, 300, 500, 700, 1000, 1500, 2000, 3000, 5000, 8000] {
            d.collect().unwrap();
            match with_only(kib << 10, &mut *call) {
                Ok(()) => {}
                Err(error) => {
                    let text = error.to_string();
                    assert!(text.contains("out of memory asking for"), "{name}, {kib} KiB: {text}");
                    failed += 1;
                }
            }
        }
        call().unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(failed > 0 || *name == "draw", "{name} takes no memory");
    }
}
