//! The whole context over the fake driver: behaviour, and the state after any one call fails.

use super::Source;
use super::context::lock;
use super::driver::{Driver, OUT_OF_MEMORY, SYMBOLS, is_sticky};
use super::fake::{Fake, Launch, Live};
use super::nvrtc::System;
use super::{Args, Cuda};
use dittograd_numerics::Numerics;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

const MIB: usize = 1 << 20;

/// A fresh folder, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("dittograd-cuda-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Folder(path)
    }

    fn files(&self) -> Vec<PathBuf> {
        let listing = std::fs::read_dir(&self.0).expect("a folder");
        listing.map(|entry| entry.expect("an entry").path()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn is_poisoned(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Poisoned { .. })
}

fn is_unsupported<T>(result: Result<T>) -> bool {
    result.is_err_and(|error| matches!(error.kind(), ErrorKind::Unsupported { .. }))
}

fn is_argument<T>(result: Result<T>) -> bool {
    result.is_err_and(|error| matches!(error.kind(), ErrorKind::Argument { .. }))
}

#[test]
fn shared_between_threads() {
    fn check<T: Send + Sync>() {}
    check::<Cuda>();
    check::<Driver>();
    check::<super::CudaGraph>();
    check::<super::Kernel>();
    check::<super::Nvrtc>();
}

#[test]
fn a_machine_without_a_driver_says_so() {
    match Cuda::count() {
        Ok(_) => {}
        Err(error) => match error.kind() {
            ErrorKind::Library { looked, .. } => {
                assert!(looked.iter().any(|path| path.contains("libcuda.so.1")), "{error}");
                assert_eq!(Cuda::open(0, Numerics::Strict).err(), Some(error));
            }
            _ => assert!(matches!(error.kind(), ErrorKind::Cuda { .. }), "{error}"),
        },
    }
}

#[test]
fn the_device_is_described() {
    let fake = Fake::with(2, 1 << 30);
    let cuda = Cuda::with_driver(fake.driver(), 1, Numerics::Strict, fake.stub(), None).expect("opens");
    assert_eq!((cuda.name(), cuda.ordinal(), cuda.arch()), ("Fake GPU", 1, "sm_90a"));
    assert_eq!((cuda.sm_count(), cuda.driver_version()), (4, (13, 0)));
    assert_eq!((cuda.max_shared_per_block(), cuda.total_memory()), (227 << 10, 1 << 30));
    assert_eq!(format!("{cuda:?}"), "Cuda(1: Fake GPU, sm_90a)");
    assert!(is_argument(Cuda::with_driver(fake.driver(), 2, Numerics::Strict, fake.stub(), None)));
    drop(cuda);
    assert_eq!(fake.live(), Live::default());
}

#[test]
fn data_goes_there_and_back() {
    let fake = Fake::new();
    let cuda = fake.open().expect("opens");
    // More data than the whole ring holds, in odd pieces.
    let data: Vec<u8> = (0..19 * MIB + 13).map(|i| (i * 31 % 251) as u8).collect();
    let a = cuda.alloc(data.len()).expect("room");
    for (from, to) in [(0, 5), (5, 5), (5, 3 * MIB), (3 * MIB, 3 * MIB + 1), (3 * MIB + 1, data.len())] {
        let mut piece = data[from..to].to_vec();
        cuda.upload(a + from as u64, &piece).expect("uploads");
        piece.fill(0);
    }
    let mut back = vec![0; data.len()];
    cuda.download(a, &mut back).expect("downloads");
    assert!(back == data);
    assert_eq!(fake.live().pinned, 1);

    let b = cuda.alloc(4096).expect("room");
    cuda.copy(b, a + 100, 1000).expect("copies");
    assert_eq!(fake.read(b, 1000).as_deref(), Some(&data[100..1100]));
    cuda.fill(b + 4, 0x0102_0304, 2).expect("fills");
    cuda.download(b, &mut back[..16]).expect("downloads");
    assert_eq!(&back[..4], &data[100..104]);
    assert_eq!(back[4..12], [4, 3, 2, 1, 4, 3, 2, 1]);
    assert_eq!(back[12..16], data[112..116]);

    // Ranges outside the caller's allocations.
    assert!(is_argument(cuda.upload(b + 4000, &[0; 97])), "past the block");
    assert!(is_argument(cuda.download(7, &mut [0])));
    assert!(is_argument(cuda.fill(b + 2, 0, 1)), "misaligned");
    assert!(is_argument(cuda.fill(b, 0, usize::MAX)));
    assert!(is_argument(cuda.copy(b, b + 1, 2)), "overlap");
    assert!(is_argument(cuda.alloc(0)));
    assert!(is_argument(cuda.alloc(usize::MAX)));
    cuda.free(b);
    assert!(is_argument(cuda.fill(b, 0, 1)), "freed");
    // Empty requests are fine.
    cuda.upload(0, &[]).and_then(|()| cuda.copy(0, 0, 0)).and_then(|()| cuda.fill(0, 0, 0)).expect("no-ops");
    drop(cuda);
    assert_eq!(fake.live(), Live::default());
}

#[test]
fn memory_is_cached_and_returned() {
    let fake = Fake::with(1, 40 * MIB);
    let cuda = fake.open().expect("opens");
    let a = cuda.alloc(20 * MIB).expect("room");
    let small: Vec<u64> = (0..10).map(|_| cuda.alloc(100).expect("room")).collect();
    assert_eq!(fake.live().allocations, 2, "small blocks share a segment");
    assert_eq!(cuda.live_bytes(), 20 * MIB + 10 * 512);
    assert_eq!(cuda.cached_bytes(), 2 * MIB - 10 * 512);
    assert_eq!(cuda.mem_info(), Ok((18 * MIB, 40 * MIB)));
    cuda.free(a);
    let calls = fake.calls();
    assert_eq!(cuda.alloc(19 * MIB), Ok(a), "reused at once");
    assert_eq!(fake.calls(), calls, "without the driver");
    // Work is still queued when it is freed: it goes back to the driver only after that.
    cuda.fill(a, 0, 100).expect("fills");
    cuda.free(a);
    // 18 MiB are left with the driver, 20 in the cache: the cache is returned to serve this.
    let b = cuda.alloc(30 * MIB).expect("after returning the cache");
    assert_eq!(cuda.live_bytes() + cuda.cached_bytes(), 32 * MIB);
    // If that does not help, the driver's error is passed on.
    let error = cuda.alloc(30 * MIB).expect_err("no room");
    assert!(
        matches!(error.kind(), ErrorKind::Cuda { code: OUT_OF_MEMORY, call: "cuMemAlloc_v2", .. }),
        "{error}"
    );
    cuda.fill(b, 0, 100).expect("fills");
    cuda.free(b);
    small.into_iter().for_each(|block| cuda.free(block));
    assert_eq!(cuda.live_bytes(), 0);
    assert_eq!(cuda.collect(), Ok(32 * MIB));
    assert_eq!((cuda.cached_bytes(), fake.live().allocations), (0, 0));
}

/// A captured graph and a module need device memory too: cached memory is returned for them.
#[test]
fn graphs_and_modules_get_the_cached_memory() {
    for graph in [true, false] {
        let fake = Fake::with(1, 64 * MIB);
        let cuda = fake.open().expect("opens");
        let a = cuda.alloc(512).expect("room");
        cuda.free(cuda.alloc(40 * MIB).expect("room"));
        assert!(cuda.cached_bytes() >= 40 * MIB);
        let symbol = if graph { "cuGraphInstantiateWithFlags" } else { "cuModuleLoadData" };
        fake.fail_symbol(symbol, 1, OUT_OF_MEMORY, false);
        let got = match graph {
            true => cuda.capture(|| cuda.fill(a, 0, 100)).map(drop),
            false => cuda.kernel("m", "source", "k").map(drop),
        };
        assert_eq!((got, fake.failed()), (Ok(()), Some(symbol)));
        assert!(cuda.cached_bytes() < 2 * MIB);
    }
}

#[test]
fn a_bad_free_is_reported_by_the_next_call() {
    let fake = Fake::new();
    let cuda = fake.open().expect("opens");
    let a = cuda.alloc(1).expect("room");
    cuda.free(a);
    cuda.free(a);
    cuda.free(12345);
    assert!(is_argument(cuda.synchronize()));
    assert!(cuda.alloc(1).is_err_and(|error| error.to_string().contains("0x3039")));
    assert_eq!(cuda.synchronize(), Ok(()));
    // An error that nobody saw before the device was closed is given to whoever opens it next.
    cuda.free(54321);
    drop(cuda);
    let cuda = fake.open().expect("opens");
    assert!(is_argument(cuda.synchronize()));
    assert_eq!(cuda.synchronize(), Ok(()));
}

#[test]
fn kernels_are_found_launched_and_checked() {
    let fake = Fake::new();
    fake.declare("declared", &[(0, 8), (8, 4)]);
    let cuda = fake.open().expect("opens");
    let kernel = cuda.kernel("m", "source", "k").expect("a kernel");
    let calls = fake.calls();
    let copied = String::from("source").leak();
    cuda.kernel("m", copied, "k").expect("the same");
    assert_eq!(fake.calls(), calls, "from memory");
    cuda.kernel("m", "source", "other").expect("another of the module");
    assert_eq!((cuda.compiled(), fake.live().modules), (1, 1));
    cuda.kernel("m", "changed", "k").expect("another source");
    assert_eq!((cuda.compiled(), fake.live().modules), (2, 2));

    cuda.launch(kernel, [3, 2, 1], 128, 0, Args::new().ptr(7).u32(9)).expect("launches");
    let mut args = 7u64.to_ne_bytes().to_vec();
    args.extend(9u32.to_ne_bytes());
    let want = Launch { name: "k".into(), grid: [3, 2, 1], block: [128, 1, 1], shared: 0, args };
    assert_eq!(fake.launches(), [want]);
    cuda.launch(kernel, [3, 0, 1], 128, 0, &Args::new()).expect("nothing to do");
    assert_eq!((fake.launches().len(), cuda.launches()), (1, 1));

    // The attribute for more shared memory is set once.
    let calls = fake.calls();
    for _ in 0..3 {
        cuda.launch(kernel, [1; 3], 32, 100 << 10, &Args::new()).expect("launches");
    }
    cuda.launch(kernel, [1; 3], 32, 60 << 10, &Args::new()).expect("launches");
    assert_eq!(fake.calls() - calls, 5);
    let error = cuda.launch(kernel, [1; 3], 32, 1 << 20, &Args::new()).expect_err("too much");
    assert!(error.to_string().contains("cuda:0 kernel k"), "{error}");
    let error = cuda.launch(kernel, [1; 3], 4096, 0, &Args::new()).expect_err("too many threads");
    assert_eq!(
        error.to_string(),
        "cuda:0 kernel k: cuLaunchKernel failed with code 1 (CUDA_ERROR_INVALID_VALUE: from the fake driver)"
    );

    let declared = cuda.kernel("m", "source", "declared").expect("a kernel");
    cuda.launch(declared, [1; 3], 32, 0, Args::new().ptr(0).u32(0)).expect("launches");
    let error = cuda.launch(declared, [1; 3], 32, 0, Args::new().ptr(0)).expect_err("one short");
    assert!(error.to_string().contains("got 1 arguments of 8 bytes, the kernel takes 2 of 12"), "{error}");
    assert!(is_argument(cuda.launch(kernel, [1; 3], 32, 0, Args::new().bytes(&[0; 4], 5))));
    let other = fake.open().expect("opens");
    assert!(is_argument(other.launch(kernel, [1; 3], 32, 0, &Args::new())), "another context's kernel");

    let error = cuda.kernel("bad", "#error", "k").expect_err("rejected");
    assert!(matches!(error.kind(), ErrorKind::Compile { .. }), "{error}");
    fake.stub().set_missing(true);
    let error = cuda.kernel("new", "new", "k").expect_err("no compiler");
    assert!(matches!(error.kind(), ErrorKind::Library { .. }), "{error}");
    assert!(cuda.kernel("m", "source", "k").is_ok());
}

#[test]
fn many_modules_compile_at_once() {
    let fake = Fake::new();
    let cuda = fake.open().expect("opens");
    let text = |i: usize| -> &'static str { format!("source {i}").leak() };
    let mut sources: Vec<Source> = (0..40).map(|i| (format!("m{i}"), text(i))).collect();
    sources.push(sources[0].clone());
    cuda.compile_all(&sources).expect("compiles");
    assert_eq!((cuda.compiled(), fake.live().modules), (40, 40));
    cuda.compile_all(&sources).expect("nothing to do");
    cuda.kernel("m7", "source 7", "k").expect("loaded");
    assert_eq!(cuda.compiled(), 40);
    // One failing module does not keep the others from being built.
    sources = vec![("x".into(), "#error"), ("y".into(), "good")];
    assert!(cuda.compile_all(&sources).is_err());
    assert_eq!(cuda.compiled(), 41);
}

/// Whoever compiles them, modules and errors are the same, and each module is compiled once.
#[test]
fn modules_can_be_compiled_ahead() {
    let text = |i: usize| -> &'static str { format!("source {i}").leak() };
    let mut sources: Vec<Source> = (0..60).map(|i| (format!("m{i}"), text(i))).collect();
    sources.insert(20, ("bad".into(), "#error"));
    let run = |is_ahead: bool, order: &dyn Fn(usize) -> usize| {
        let fake = Fake::new();
        let cuda = fake.open().expect("opens");
        let want = || -> Vec<String> {
            let kernel = |at: usize| {
                let (module, source) = &sources[order(at)];
                cuda.kernel(module, source, "k").map_or_else(|error| error.to_string(), |_| module.clone())
            };
            (0..sources.len()).map(kernel).collect()
        };
        let got = match is_ahead {
            // Twice the same: the second time there is nothing to do.
            true => cuda.compile_ahead(sources.iter().chain(&sources).cloned(), want),
            false => want(),
        };
        assert_eq!((cuda.compiled(), fake.live().modules), (60, 60));
        got
    };
    let orders: [&dyn Fn(usize) -> usize; 3] = [&|at| at, &|at| 60 - at, &|at| at * 37 % 61];
    for order in orders {
        for _ in 0..20 {
            assert_eq!(run(true, order), run(false, order));
        }
    }
}

/// What was compiled ahead is loaded without compiling; what is on disk is not compiled ahead.
#[test]
fn compiling_ahead_ends_with_what_it_is_ahead_of() {
    let folder = Folder::new("ahead");
    let fake = Fake::new();
    let cuda = fake.open_cached(folder.0.clone()).expect("opens");
    // Sources without end: nobody waits for the last.
    let endless = (0..).map(|i: usize| (format!("m{i}"), &*format!("source {i}").leak()));
    cuda.compile_ahead(endless, || {
        while cuda.compiled() < 3 {
            std::thread::yield_now();
        }
    });
    let compiled = cuda.compiled();
    fake.stub().set_missing(true);
    cuda.kernel("m0", "source 0", "k").expect("compiled ahead");
    assert_eq!((cuda.compiled(), cuda.loaded_from_disk()), (compiled, 0));
    fake.stub().set_missing(false);
    let other = fake.open_cached(folder.0.clone()).expect("opens");
    let again = || std::iter::once(("m0".to_string(), "source 0")).chain([("new".to_string(), "new")]);
    other.compile_ahead(again(), || {
        while other.compiled() < 1 {
            std::thread::yield_now();
        }
    });
    other.kernel("m0", "source 0", "k").expect("on disk");
    assert_eq!((other.compiled(), other.loaded_from_disk()), (1, 1));
}

#[test]
fn the_disk_cache_serves_without_a_compiler() {
    let folder = Folder::new("disk");
    let fake = Fake::new();
    let sources = [("a".to_string(), "source a"), ("b".to_string(), "source b")];
    let run = |compiled: u64, from_disk: u64| {
        let cuda = fake.open_cached(folder.0.clone()).expect("opens");
        cuda.compile_all(&sources).expect("there");
        cuda.kernel("a", "source a", "k").expect("there");
        assert_eq!((cuda.compiled(), cuda.loaded_from_disk()), (compiled, from_disk));
    };
    run(2, 0);
    assert_eq!(folder.files().len(), 2);
    run(0, 2);
    // The name of a module is not part of the key.
    let cuda = fake.open_cached(folder.0.clone()).expect("opens");
    cuda.kernel("other", "source a", "k").expect("there");
    assert_eq!((cuda.compiled(), cuda.loaded_from_disk()), (0, 1));
    // No compiler at all.
    fake.stub().set_missing(true);
    run(0, 2);
    fake.stub().set_missing(false);

    let file = folder.files().remove(0);
    let good = std::fs::read(&file).expect("read");
    std::fs::write(&file, &good[..good.len() - 1]).expect("written");
    run(1, 1);
    assert_eq!(std::fs::read(&file).expect("read"), good, "repaired");
    let mut bad = good.clone();
    bad[70] ^= 4;
    std::fs::write(&file, bad).expect("written");
    run(1, 1);
    std::fs::write(&file, b"").expect("written");
    run(1, 1);
    run(0, 2);

    // A cubin that the driver does not take is compiled again. (The first call on this context loads.)
    let cuda = fake.open_cached(folder.0.clone()).expect("opens");
    fake.fail_call(1, 209);
    cuda.kernel("a", "source a", "k").expect("compiled again");
    assert_eq!((cuda.compiled(), cuda.loaded_from_disk()), (1, 0));
}

#[test]
fn an_unusable_cache_folder_is_no_error() {
    let folder = Folder::new("unusable");
    std::fs::write(&folder.0, b"in the way").expect("written");
    let fake = Fake::new();
    let cuda = fake.open_cached(folder.0.join("below")).expect("opens");
    cuda.kernel("a", "source", "k").expect("compiles");
    drop(cuda);
    std::fs::remove_file(&folder.0).expect("removed");
}

#[test]
fn a_graph_replays_what_was_captured() {
    let fake = Fake::new();
    let cuda = fake.open().expect("opens");
    let kernel = cuda.kernel("m", "source", "k").expect("a kernel");
    let a = cuda.alloc(64).expect("room");
    let b = cuda.alloc(64).expect("room");
    let graph = cuda
        .capture(|| {
            cuda.fill(a, 5, 16)?;
            cuda.copy(b, a, 64)?;
            cuda.launch(kernel, [2, 1, 1], 64, 0, Args::new().ptr(b))?;
            cuda.kernel("m", "source", "k").map(drop)
        })
        .expect("captures");
    assert_eq!((graph.nodes(), fake.launches().len()), (3, 0));
    let mut words = [0; 64];
    for times in 1..3 {
        graph.launch().expect("launches");
        assert_eq!(fake.launches().len(), times);
        cuda.download(b, &mut words).expect("downloads");
        assert_eq!(words[60..], [5, 0, 0, 0]);
        cuda.fill(b, 0, 16).expect("fills");
    }
    assert_eq!(fake.live().graphs, 1);
    // The graph keeps the device.
    drop(cuda);
    graph.launch().expect("launches");
    drop(graph);
    assert_eq!(fake.live(), Live::default());
}

#[test]
fn a_capture_refuses_what_it_must() {
    let fake = Fake::new();
    let cuda = fake.open().expect("opens");
    let a = cuda.alloc(64).expect("room");
    let kernel = cuda.kernel("m", "source", "k").expect("a kernel");
    let inner = cuda.capture(|| Ok(())).expect("an empty graph");
    let (mark, mut pinned) = (cuda.mark().expect("a mark"), cuda.pinned(4).expect("room"));
    let graph = cuda
        .capture(|| {
            assert!(is_unsupported(cuda.alloc(1)));
            assert!(is_unsupported(cuda.collect()));
            assert!(is_unsupported(cuda.upload(a, &[1])));
            assert!(is_unsupported(cuda.download(a, &mut [0])));
            assert!(is_unsupported(cuda.synchronize()));
            assert!(is_unsupported(cuda.time(|| Ok(()))));
            assert!(is_unsupported(cuda.capture(|| Ok(()))));
            assert!(is_unsupported(cuda.kernel("new", "new", "k")));
            assert!(is_unsupported(cuda.mark()));
            assert!(is_unsupported(cuda.wait(&mark)));
            assert!(is_unsupported(mark.synchronize()));
            assert!(is_unsupported(cuda.pinned(1)));
            assert!(is_unsupported(cuda.fetch(&mark, &[(a, 4)], &mut pinned)));
            assert!(is_unsupported(cuda.put(&mark, &mut pinned, &[(a, 4)])));
            assert!(is_unsupported(cuda.compile_all(&[])));
            assert!(is_unsupported(inner.launch()));
            cuda.launch(kernel, [1; 3], 1, 0, &Args::new())
        })
        .expect("the refusals did not spoil it");
    assert_eq!(graph.nodes(), 1);

    // An error inside is returned, and the stream is usable.
    let error = cuda.capture(|| cuda.alloc(1).map(drop)).expect_err("refused inside");
    assert!(error.to_string().contains("cuda alloc"), "{error}");
    assert_eq!(fake.live().captures, 0);
    cuda.synchronize().expect("works");
    // The same after a panic.
    let panicked =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| cuda.capture(|| panic!("on purpose"))));
    assert!(panicked.is_err());
    assert_eq!(fake.live().captures, 0);
    cuda.synchronize().expect("works");
    cuda.capture(|| Ok(())).expect("captures");
    assert_eq!(fake.live().graphs, 2);
}

#[test]
fn other_threads_stay_out_of_a_capture() {
    let fake = Fake::new();
    let cuda = fake.open().expect("opens");
    let kernel = cuda.kernel("m", "source", "k").expect("a kernel");
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let a = cuda.alloc(1000).expect("room");
                    cuda.upload(a, &[3; 1000]).expect("uploads");
                    cuda.launch(kernel, [1; 3], 1, 0, Args::new().ptr(a)).expect("launches");
                    let mut back = [0; 1000];
                    cuda.download(a, &mut back).expect("downloads");
                    assert_eq!(back, [3; 1000]);
                    cuda.free(a);
                }
            });
        }
        for _ in 0..100 {
            let graph = cuda
                .capture(|| {
                    for _ in 0..5 {
                        cuda.launch(kernel, [1; 3], 1, 0, Args::new().ptr(0))?;
                        std::thread::yield_now();
                    }
                    Ok(())
                })
                .expect("captures");
            assert_eq!(graph.nodes(), 5);
        }
    });
    assert_eq!(fake.launches().len(), 600);
    assert_eq!(cuda.live_bytes(), 0);
}

#[test]
fn time_is_measured() {
    let fake = Fake::new();
    let cuda = fake.open().expect("opens");
    assert_eq!(cuda.time(|| cuda.synchronize()), Ok(0.5));
    assert!(is_argument(cuda.time(|| cuda.alloc(0).map(drop))));
    assert_eq!(fake.live().events, 0);
}

#[test]
fn a_fault_poisons_the_device() {
    let fake = Fake::new();
    let cuda = fake.open().expect("opens");
    let a = cuda.alloc(64).expect("room");
    let kernel = cuda.kernel("m", "source", "k").expect("a kernel");
    let graph = cuda.capture(|| Ok(())).expect("captures");
    let (mark, mut pinned) = (cuda.mark().expect("a mark"), cuda.pinned(4).expect("room"));
    // Not this one: it concerns only one launch.
    fake.fail_call(1, 701);
    assert!(cuda.launch(kernel, [1; 3], 1, 0, &Args::new()).is_err());
    cuda.synchronize().expect("works");

    fake.fail_call(1, 700);
    let first = cuda.synchronize().expect_err("the fault");
    assert!(
        matches!(first.kind(), ErrorKind::Cuda { code: 700, call: "cuStreamSynchronize", .. }),
        "{first}"
    );
    let calls = fake.calls();
    let all: [Result<()>; 21] = [
        cuda.alloc(1).map(drop),
        cuda.collect().map(drop),
        cuda.mem_info().map(drop),
        cuda.upload(a, &[0]),
        cuda.download(a, &mut [0]),
        cuda.copy(a, a + 32, 1),
        cuda.fill(a, 0, 1),
        cuda.synchronize(),
        cuda.kernel("m", "source", "k").map(drop),
        cuda.compile_all(&[]),
        cuda.launch(kernel, [1; 3], 1, 0, &Args::new()),
        cuda.capture(|| Ok(())).map(drop),
        cuda.time(|| Ok(())).map(drop),
        graph.launch(),
        cuda.uuid().map(drop),
        cuda.mark().map(drop),
        cuda.wait(&mark),
        mark.is_reached().map(drop),
        cuda.pinned(1).map(drop),
        cuda.fetch(&mark, &[(a, 4)], &mut pinned),
        cuda.put(&mark, &mut pinned, &[(a, 4)]).map(drop),
    ];
    for result in all {
        let error = result.expect_err("poisoned");
        assert!(is_poisoned(&error) && error.to_string().contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{error}");
    }
    cuda.free(a);
    cuda.free(a);
    assert_eq!(fake.calls(), calls, "the driver is left alone");
    drop(graph);
    drop((mark, pinned));
    drop(cuda);
    assert_eq!(fake.live(), Live::default());
    for _ in 0..2 {
        assert!(fake.open().is_err_and(|error| is_poisoned(&error)), "for the rest of the process");
    }
}

/// Uses a bit of everything.
fn scenario(fake: &Fake, cache: Option<PathBuf>) -> Result<()> {
    let cuda = Cuda::with_driver(fake.driver(), 0, Numerics::Strict, fake.stub(), cache)?;
    let a = cuda.alloc(3 * MIB)?;
    let b = cuda.alloc(100)?;
    // One and a half times round the ring.
    for _ in 0..8 {
        cuda.upload(a, &[1; 3 * MIB])?;
    }
    cuda.fill(b, 7, 25)?;
    cuda.copy(a, b, 100)?;
    cuda.compile_all(&[("m".into(), "source"), ("n".into(), "another")])?;
    let kernel = cuda.kernel("m", "source", "k")?;
    cuda.launch(kernel, [1; 3], 32, 100 << 10, Args::new().ptr(a))?;
    cuda.time(|| cuda.launch(kernel, [1; 3], 32, 0, Args::new().ptr(a)))?;
    let graph = cuda.capture(|| {
        cuda.fill(b, 8, 25)?;
        if let Some(nodes) = cuda.captured()? {
            cuda.capture_after(&nodes)?;
        }
        cuda.launch(kernel, [1; 3], 32, 0, Args::new().ptr(b))
    })?;
    graph.launch()?;
    let mut back = [0; 4];
    cuda.download(b, &mut back)?;
    assert_eq!(back, [8, 0, 0, 0]);
    cuda.uuid()?;
    let mark = cuda.mark()?;
    let (mut out, mut into) = (cuda.pinned(100)?, cuda.pinned(4)?);
    cuda.fetch(&mark, &[(b, 100)], &mut out)?;
    assert_eq!(out.bytes()[96..], [8, 0, 0, 0]);
    into.bytes_mut()?.fill(3);
    let put = cuda.put(&mark, &mut into, &[(b, 4)])?;
    cuda.wait(&put)?;
    put.is_reached()?;
    cuda.download(b, &mut back)?;
    assert_eq!(back, [3; 4]);
    cuda.free(a);
    // Fits only if cached memory is returned.
    let c = cuda.alloc(12 * MIB)?;
    cuda.mem_info()?;
    cuda.synchronize()?;
    cuda.synchronize_all()?;
    drop(graph);
    cuda.free(b);
    cuda.free(c);
    cuda.collect()?;
    Ok(())
}

/// Whether an error says which call on which device it was.
fn is_named(error: &Error, symbol: &str) -> bool {
    let text = error.to_string();
    let by_kind = match error.kind() {
        ErrorKind::Cuda { call, .. } => *call == symbol,
        ErrorKind::OutOfMemory { bytes, .. } => *bytes > 0 && symbol == "cuMemHostAlloc",
        ErrorKind::Poisoned { first } => first.contains(symbol),
        _ => false,
    };
    by_kind && text.contains("cuda:0")
}

/// An entry point that is never called can never fail.
#[test]
fn something_of_everything_calls_every_entry_point() {
    let fake = Fake::with(1, 16 * MIB);
    fake.declare("k", &[(0, 8)]);
    scenario(&fake, None).expect("runs");
    let mut called: Vec<&str> = fake.calls_by_symbol().into_keys().collect();
    // These are called only after a failure.
    called.extend(["cuGetErrorName", "cuGetErrorString"]);
    if !cfg!(debug_assertions) {
        called.push("cuFuncGetParamInfo");
    }
    let mut all = SYMBOLS.to_vec();
    called.sort();
    all.sort();
    assert_eq!(called, all);
    assert_eq!(fake.misuses(), []);
}

#[test]
fn any_one_call_may_fail() {
    // Sticky errors stay, as on a device. Each is also reported by one call only, like that of an earlier launch.
    let passing = [1, OUT_OF_MEMORY, 600, 701].map(|code| (code, false));
    let sticky = [(214, true), (700, true), (719, true), (719, false)];
    let mut swept = 0;
    for (code, stays) in passing.into_iter().chain(sticky) {
        for k in 1.. {
            let fake = Fake::with(1, 16 * MIB);
            if stays {
                fake.fail_from(k, code)
            } else {
                fake.fail_call(k, code)
            };
            let result = scenario(&fake, None);
            let what = format!("call {k} failed with {code}, stays {stays}: {result:?}");
            assert_eq!((fake.live(), fake.misuses()), (Live::default(), vec![]), "{what}");
            let Some(symbol) = fake.failed() else {
                assert_eq!(result, Ok(()), "{what}");
                assert!(k > 50, "{what}");
                break;
            };
            // The end of a parameter list, and an event that has not happened, have the same code.
            if matches!((symbol, code), ("cuFuncGetParamInfo", 1) | ("cuEventQuery", 600)) {
                continue;
            }
            swept += 1;
            fake.recover();
            // The error is not lost: it is returned, or waits for the next call. Only an allocation may have succeeded
            // after all, by returning cached memory.
            let next = fake.open().and_then(|cuda| cuda.synchronize());
            match (&result, &next) {
                (Err(error), _) | (Ok(()), Err(error)) => {
                    assert!(is_named(error, symbol), "{what}: {error}")
                }
                (Ok(()), Ok(())) => assert!(code == OUT_OF_MEMORY, "{what}"),
            }
            if is_sticky(code) {
                let error = next.expect_err("poisoned");
                let is_first = error.to_string().contains(&format!("{symbol} failed with code {code}"));
                assert!(is_poisoned(&error) && is_first, "{what}: {error}");
            }
            assert_eq!(fake.live(), Live::default(), "{what}");
        }
    }
    println!("{swept} failing calls");
}

/// Two contexts on one device are one to the driver: after a fatal error, both report the first cause, at once. A
/// context on another device goes on.
#[test]
fn the_end_of_a_device_is_told_by_all_contexts_on_it() {
    let fake = Fake::with(2, 64 * MIB);
    let open = |ordinal, numerics| {
        Cuda::with_driver(fake.driver(), ordinal, numerics, fake.stub(), None).expect("opens")
    };
    let (first, second) = (open(0, Numerics::Strict), open(0, Numerics::Tf32));
    let other = open(1, Numerics::Strict);
    let a = other.alloc(64).expect("room");
    first.synchronize().expect("works");
    fake.fail_device(0, 1, 719);
    assert!(first.synchronize().is_err());
    // Later errors of another kind do not replace the first.
    fake.fail_device(0, 1, 700);
    for cuda in [&first, &second] {
        let error = cuda.alloc(1).expect_err("poisoned");
        assert!(error.to_string().contains("cuStreamSynchronize failed with code 719"), "{error}");
    }
    let error = fake.open().expect_err("while others are still open");
    assert!(is_poisoned(&error) && error.op() == "cuda:0", "{error}");
    other.fill(a, 7, 16).and_then(|()| other.synchronize()).expect("another device");
    drop((first, second));
    assert!(fake.open_at(1).is_ok());
    other.free(a);
    drop(other);
    assert_eq!((fake.live(), fake.misuses()), (Live::default(), vec![]));
}

#[test]
fn any_one_call_may_fail_with_a_warm_cache() {
    let folder = Folder::new("warm");
    scenario(&Fake::with(1, 16 * MIB), Some(folder.0.clone())).expect("runs");
    for k in 1.. {
        let fake = Fake::with(1, 16 * MIB);
        fake.fail_call(k, 719);
        let result = scenario(&fake, Some(folder.0.clone()));
        assert_eq!(fake.live(), Live::default(), "call {k}: {result:?}");
        if !fake.has_failed() {
            assert_eq!(fake.stub().compiled(), 0);
            break;
        }
        assert!(fake.open().is_err_and(|error| is_poisoned(&error)), "call {k}: {result:?}");
    }
}

/// Held by tests on a real device: what one frees makes the driver wait for all that the others compute.
pub(super) static REAL: Mutex<()> = Mutex::new(());

/// The same on a machine with a GPU and NVRTC.
#[test]
fn on_a_real_device() {
    let _alone = lock(&REAL);
    let cuda: Arc<Cuda> = match Cuda::open(0, Numerics::Strict) {
        Ok(cuda) => cuda,
        Err(error) => {
            eprintln!("skipped: {error}");
            return;
        }
    };
    let again = Cuda::open(0, Numerics::Strict).expect("opens");
    assert!(Arc::ptr_eq(&cuda, &again), "one per process");
    let source = "extern \"C\" __global__ void axpy(float* y, const float* x, float a, unsigned n) {
        unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) y[i] = a * x[i] + y[i];
    }
    struct Pair { unsigned long long a; unsigned b; };
    extern \"C\" __global__ void wide(unsigned* out, unsigned char c, Pair p, float f) {
        extern __shared__ unsigned s[];
        s[threadIdx.x + 20000] = threadIdx.x;
        __syncthreads();
        if (threadIdx.x != 0) return;
        out[0] = c; out[1] = (unsigned)p.a; out[2] = p.b; out[3] = __float_as_uint(f); out[4] = s[20031];
    }";
    // With what NVRTC this machine has, and without a disk cache.
    let own = Cuda::with_driver(
        Driver::system().expect("a driver"),
        0,
        Numerics::Strict,
        Arc::new(System::new(cuda.driver_version().0)),
        None,
    )
    .expect("opens");
    let axpy = own.kernel("test", source, "axpy").expect("compiles");
    let wide = own.kernel("test", source, "wide").expect("a kernel");
    assert!(own.kernel("test", source, "nothing").is_err());

    let n = 5_000_003u32;
    let bytes = 4 * n as usize;
    let x: Vec<f32> = (0..n).map(|i| (i % 1009) as f32 * 0.37 - 100.0).collect();
    let raw: Vec<u8> = x.iter().flat_map(|value| value.to_ne_bytes()).collect();
    let (dx, dy) = (own.alloc(bytes).expect("room"), own.alloc(bytes).expect("room"));
    own.upload(dx, &raw).expect("uploads");
    own.fill(dy, 1f32.to_bits(), n as usize).expect("fills");
    let blocks = [n.div_ceil(256), 1, 1];
    own.launch(axpy, blocks, 256, 0, Args::new().ptr(dy).ptr(dx).f32(1.5).u32(n)).expect("launches");
    let graph = own
        .capture(|| own.launch(axpy, blocks, 256, 0, Args::new().ptr(dy).ptr(dx).f32(0.1).u32(n)))
        .expect("captures");
    assert_eq!(graph.nodes(), 1);
    graph.launch().and_then(|()| graph.launch()).expect("launches");
    let mut back = vec![0; bytes];
    own.download(dy, &mut back).expect("downloads");
    for (i, value) in back.chunks_exact(4).enumerate() {
        let mut want = 1.5 * x[i] + 1.0;
        want += 0.1 * x[i];
        want += 0.1 * x[i];
        assert_eq!(
            f32::from_ne_bytes([value[0], value[1], value[2], value[3]]).to_bits(),
            want.to_bits(),
            "{i}"
        );
    }
    let ms = own.time(|| graph.launch()).expect("times");
    eprintln!("{own:?}: axpy of {n} in {ms} ms");
    assert!(ms > 0.0 && ms < 1000.0);

    let out = own.alloc(20).expect("room");
    let mut pair = 77u64.to_ne_bytes().to_vec();
    pair.extend(88u32.to_ne_bytes());
    pair.extend([0; 4]);
    let mut args = Args::new();
    args.ptr(out).bytes(&[5], 1).bytes(&pair, 8).f32(2.0);
    own.launch(wide, [1; 3], 32, 100 << 10, &args).expect("launches with 100 KiB of shared memory");
    let mut words = [0; 20];
    own.download(out, &mut words).expect("downloads");
    let words: Vec<u32> =
        words.chunks_exact(4).map(|w| u32::from_ne_bytes([w[0], w[1], w[2], w[3]])).collect();
    assert_eq!(words, [5, 77, 88, 2f32.to_bits(), 31]);
    // Drivers since CUDA 12.4 report the parameters.
    if own.driver_version() >= (12, 4) {
        assert!(is_argument(own.launch(axpy, blocks, 256, 0, Args::new().ptr(dy))), "arguments are counted");
    }

    // The cost of a launch on the host.
    let mut args = Args::new();
    args.ptr(dy).ptr(dx).f32(0.0).u32(1);
    own.synchronize().expect("waits");
    let start = std::time::Instant::now();
    for _ in 0..1000 {
        own.launch(axpy, [1; 3], 32, 0, &args).expect("launches");
    }
    eprintln!("{:?} per launch", start.elapsed() / 1000);
    own.synchronize().expect("waits");

    own.free(dx);
    own.free(dy);
    own.free(out);
    own.collect().expect("collects");
    assert_eq!((own.live_bytes(), own.cached_bytes()), (0, 0));
    // More than any device has: the driver reports it, and the device goes on.
    let error = own.alloc(1 << 46).expect_err("no room");
    assert!(matches!(error.kind(), ErrorKind::Cuda { code: OUT_OF_MEMORY, .. }), "{error}");
    own.synchronize().expect("works");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let a = own.alloc(4).expect("room on another thread");
            own.upload(a, &[1, 2, 3, 4]).expect("uploads");
            own.free(a);
        });
    });
}
