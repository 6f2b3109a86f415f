#![allow(unsafe_code)]

use super::Fake;
use crate::cuda::driver::{Handle, attribute, event};
use dittograd_numerics::error::{ErrorKind, Result};

/// The fake is as strict as a driver: a table of calls that every driver refuses.
#[test]
fn the_fake_refuses_what_a_driver_refuses() {
    fn code<T>(result: Result<T>) -> i32 {
        match result.map(drop).expect_err("refused").kind() {
            ErrorKind::Cuda { code, .. } => *code,
            other => panic!("{other:?}"),
        }
    }
    let fake = Fake::with(2, 16 << 20);
    let driver = fake.driver();
    let nobody = Handle(std::ptr::without_provenance_mut(0x99990));
    assert_eq!(code(driver.device_count()), 3, "before cuInit");
    assert_eq!(code(driver.device(0)), 3, "before cuInit");
    driver.init().expect("initialises");
    let before = [
        (code(driver.device(2)), 101, "a device that is not there"),
        (code(driver.device(-1)), 101, "a device that is not there"),
        (code(driver.device_name(2)), 101, "a device that is not there"),
        (code(driver.device_total_mem(7)), 101, "a device that is not there"),
        (code(driver.device_attribute(attribute::MAJOR, 2)), 101, "a device that is not there"),
        (code(driver.device_attribute(12345, 0)), 1, "an attribute that is not there"),
        (code(driver.device_uuid(2)), 101, "a device that is not there"),
        (code(driver.primary_ctx_retain(2)), 101, "a device that is not there"),
        (code(driver.primary_ctx_release(0)), 201, "a context that was not retained"),
        (code(driver.ctx_set_current(nobody)), 201, "a context that was not retained"),
        (code(driver.mem_info()), 201, "no context"),
        (code(driver.mem_alloc(64)), 201, "no context"),
        (code(driver.mem_free(64)), 201, "no context"),
        (code(driver.mem_host_alloc(64)), 201, "no context"),
        (code(driver.stream_create()), 201, "no context"),
        (code(driver.stream_synchronize(nobody)), 201, "no context"),
        (code(driver.event_create(event::TIMED)), 201, "no context"),
        // SAFETY: an image that is refused is not read.
        (code(unsafe { driver.module_load(b"\x7fELF") }), 201, "no context"),
    ];
    for (got, want, what) in before {
        assert_eq!(got, want, "{what}");
    }
    let contexts = [0, 1].map(|device| driver.primary_ctx_retain(device).expect("retains"));
    driver.ctx_set_current(contexts[1]).expect("sets");
    let theirs = driver.mem_alloc(64).expect("room");
    let their_stream = driver.stream_create().expect("a stream");
    // SAFETY: the fake reads the first bytes.
    let their_module = unsafe { driver.module_load(b"\x7fELF") }.expect("loads");
    driver.ctx_set_current(contexts[0]).expect("sets");
    let (a, b) = (driver.mem_alloc(64).expect("room"), driver.mem_alloc(64).expect("room"));
    let gone = driver.mem_alloc(64).expect("room");
    driver.mem_free(gone).expect("frees");
    let stream = driver.stream_create().expect("a stream");
    let dead = driver.stream_create().expect("a stream");
    driver.stream_destroy(dead).expect("destroys");
    // SAFETY: as above.
    let load = |image: &[u8]| unsafe { driver.module_load(image) };
    let module = load(b"\x7fELF").expect("loads");
    let function = driver.module_function(module, "k").expect("a function");
    let unloaded = load(b"\x7fELF").expect("loads");
    let orphan = driver.module_function(unloaded, "k").expect("a function");
    driver.module_unload(unloaded).expect("unloads");
    let (timed, raw) =
        (driver.event_create(event::TIMED).expect("an event"), driver.event_create(event::TIMED));
    driver.event_record(timed, stream).expect("records");
    let raw = raw.expect("an event");
    let pinned = driver.mem_host_alloc(64).expect("room");
    let (host, mut back) = ([0u8; 128], [0u8; 128]);
    // SAFETY: `host` outlives the calls, which copy at once or are refused.
    let up = |dst, bytes, stream| unsafe { driver.memcpy_htod(dst, host.as_ptr(), bytes, stream) };
    // SAFETY: more than the 64 pinned bytes is taken for other memory, and refused since `a` has no more either.
    let past = || unsafe { driver.memcpy_htod(a, pinned.0.cast(), 65, stream) };
    let launch = |function, grid, block, shared| driver.launch(function, grid, block, shared, stream, &[]);
    let table = [
        (code(driver.mem_alloc(0)), 1, "no bytes"),
        (code(driver.mem_alloc(1 << 40)), 2, "more than there is"),
        (code(driver.mem_free(gone)), 1, "freed twice"),
        (code(driver.mem_free(a + 1)), 1, "not the start"),
        (code(driver.mem_free(theirs)), 1, "of another context"),
        (code(driver.mem_host_alloc(0)), 1, "no bytes"),
        (code(driver.mem_free_host(nobody)), 1, "not pinned"),
        (code(up(a, 65, stream)), 1, "past the end"),
        (code(up(a + 60, 5, stream)), 1, "past the end"),
        (code(up(gone, 1, stream)), 1, "freed"),
        (code(up(theirs, 1, stream)), 1, "of another context"),
        (code(up(a, 1, dead)), 400, "a stream that is gone"),
        (code(up(a, 1, their_stream)), 201, "a stream of another context"),
        // SAFETY: refused.
        (code(unsafe { driver.memcpy_htod(a, std::ptr::null(), 4, stream) }), 1, "from nowhere"),
        (code(past()), 1, "past the pinned memory"),
        // SAFETY: refused.
        (code(unsafe { driver.memcpy_dtoh(back.as_mut_ptr(), a, 65, stream) }), 1, "past the end"),
        // SAFETY: refused.
        (code(unsafe { driver.memcpy_dtoh(std::ptr::null_mut(), a, 4, stream) }), 1, "to nowhere"),
        (code(driver.memcpy_dtod(a, b, 65, stream)), 1, "past the end"),
        (code(driver.memcpy_dtod(a, a + 4, 8, stream)), 1, "overlap"),
        (code(driver.memcpy_dtod(a, theirs, 8, stream)), 1, "of another context"),
        (code(driver.memset_d32(a + 2, 0, 1, stream)), 1, "misaligned"),
        (code(driver.memset_d32(a, 0, 17, stream)), 1, "past the end"),
        (code(driver.memset_d32(a, 0, usize::MAX, stream)), 1, "overflow"),
        (code(driver.stream_destroy(dead)), 400, "destroyed twice"),
        (code(driver.stream_synchronize(dead)), 400, "a stream that is gone"),
        (code(driver.stream_synchronize(their_stream)), 201, "a stream of another context"),
        (code(driver.stream_end_capture(stream)), 1, "no capture"),
        (code(driver.stream_capture_after(stream, &mut [])), 1, "no capture"),
        (code(driver.graph_instantiate(nobody)), 400, "no graph"),
        (code(driver.graph_launch(nobody, stream)), 400, "no graph"),
        (code(driver.graph_exec_destroy(nobody)), 400, "no graph"),
        (code(driver.graph_destroy(nobody)), 400, "no graph"),
        (code(driver.graph_node_count(nobody)), 400, "no graph"),
        (code(load(b"text")), 200, "no image"),
        (code(driver.module_unload(unloaded)), 400, "unloaded twice"),
        (code(driver.module_unload(their_module)), 400, "of another context"),
        (code(driver.module_function(unloaded, "k")), 400, "unloaded"),
        (code(driver.function_get(orphan, attribute::FUNCTION_SHARED)), 400, "unloaded"),
        (code(driver.function_get(function, 12345)), 1, "an attribute that is not there"),
        (code(driver.function_set(function, attribute::FUNCTION_DYNAMIC_SHARED, -1)), 1, "below nothing"),
        (code(driver.function_set(function, attribute::FUNCTION_DYNAMIC_SHARED, 1 << 20)), 1, "too much"),
        (code(driver.function_load(nobody)), 400, "no function"),
        (code(launch(orphan, [1; 3], 32, 0)), 400, "unloaded"),
        (code(launch(function, [0, 1, 1], 32, 0)), 1, "no blocks"),
        (code(launch(function, [1 << 31, 1, 1], 32, 0)), 1, "too many blocks"),
        (code(launch(function, [1, 65_536, 1], 32, 0)), 1, "too many blocks"),
        (code(launch(function, [1, 1, 65_536], 32, 0)), 1, "too many blocks"),
        (code(launch(function, [1; 3], 0, 0)), 1, "no threads"),
        (code(launch(function, [1; 3], 1025, 0)), 1, "too many threads"),
        (code(launch(function, [1; 3], 32, (48 << 10) + 1)), 1, "more shared memory than allowed"),
        (code(driver.launch(function, [1; 3], 32, 0, stream, &[0; 4097])), 1, "too many arguments"),
        (code(driver.launch(function, [1; 3], 32, 0, their_stream, &[])), 201, "of another context"),
        (code(driver.event_record(nobody, stream)), 400, "no event"),
        (code(driver.event_query(nobody)), 400, "no event"),
        (code(driver.event_synchronize(nobody)), 400, "no event"),
        (code(driver.stream_wait_event(stream, nobody)), 400, "no event"),
        (code(driver.stream_wait_event(dead, timed)), 400, "a stream that is gone"),
        (code(driver.stream_wait_event(their_stream, timed)), 201, "a stream of another context"),
        (code(driver.event_elapsed(timed, raw)), 400, "not recorded"),
        (code(driver.event_destroy(nobody)), 400, "no event"),
    ];
    for (got, want, what) in &table {
        assert_eq!(got, want, "{what}");
    }
    // Each of them is on record, but for being out of memory.
    assert_eq!(fake.misuses().len(), 2 + before.len() + table.len() - 1);

    // An event that has not happened yet, and work on memory that is freed before it runs.
    driver.memset_d32(a, 7, 1, stream).expect("queued");
    driver.event_record(raw, stream).expect("records");
    assert_eq!(code(driver.event_elapsed(timed, raw)), 600);
    driver.stream_synchronize(stream).expect("waits");
    driver.event_elapsed(timed, raw).expect("passed");
    driver.memset_d32(b, 7, 1, stream).expect("queued");
    assert_eq!(code(driver.mem_free(b)), 1, "with work queued");
    assert_eq!(code(driver.stream_synchronize(stream)), 700, "it was freed");
    // A kernel that gets the address of freed memory. The end of an allocation is allowed.
    let args = |address: u64| address.to_ne_bytes();
    driver.launch(function, [1; 3], 32, 0, stream, &args(a + 64)).expect("queued");
    driver.stream_synchronize(stream).expect("an empty range");
    for address in [b, theirs, a + 65] {
        driver.launch(function, [1; 3], 32, 0, stream, &args(address)).expect("queued");
        assert_eq!(code(driver.stream_synchronize(stream)), 700, "{address:#x}");
    }

    // A call that a capture cannot contain invalidates it. Another thread cannot end a capture.
    driver.stream_begin_capture(stream).expect("begins");
    driver.memset_d32(a, 1, 1, stream).expect("recorded");
    let mut beyond = [Handle(std::ptr::without_provenance_mut(2))];
    assert_eq!(code(driver.stream_capture_after(stream, &mut beyond)), 1, "a node that is not there");
    assert_eq!(code(driver.stream_begin_capture(stream)), 900, "twice");
    assert_eq!(code(driver.stream_end_capture(stream)), 901, "lost");
    let losing: [&dyn Fn() -> i32; 8] = [
        &|| code(driver.mem_alloc(64)),
        &|| code(driver.mem_host_alloc(64)),
        &|| code(load(b"\x7fELF")),
        &|| code(driver.stream_synchronize(stream)),
        &|| code(up(a, 4, stream)),
        &|| code(driver.event_record(timed, stream)),
        &|| code(driver.stream_wait_event(stream, timed)),
        &|| code(driver.mem_free(a)),
    ];
    for lose in losing {
        driver.stream_begin_capture(stream).expect("begins");
        assert_eq!(lose(), 900);
        assert_eq!(code(driver.stream_end_capture(stream)), 901);
    }
    driver.stream_begin_capture(stream).expect("begins");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            driver.ctx_set_current(contexts[0]).expect("sets");
            assert_eq!(code(driver.stream_end_capture(stream)), 908);
        });
    });
    let graph = driver.stream_end_capture(stream).expect("ends");
    driver.graph_destroy(graph).expect("destroys");
    assert_eq!(code(driver.graph_instantiate(graph)), 400);
    // Live objects are counted.
    let live = fake.live();
    assert_eq!((live.contexts, live.allocations, live.pinned, live.streams), (2, 2, 1, 2));
    assert_eq!((live.events, live.modules, live.graphs, live.captures), (2, 2, 0, 0));
    driver.mem_free_host(pinned).expect("frees");
}
