use super::block::{GUARD, Mem, POISON};
use super::{AnyBuffer, Buffer, MemoryStats, ReadSet, with_host_words};
use crate::Device;
use dittograd_numerics::error::ErrorKind;
use dittograd_numerics::shape::Shape;

fn cpu() -> Device {
    Device::cpu_with(1, crate::cpu::simd::Simd::Scalar).unwrap()
}

#[test]
fn counters_follow_every_buffer() {
    let d = cpu();
    let a = Buffer::upload(&d, &[1.0; 100]).unwrap();
    let b = a.clone();
    let m = d.memory();
    assert_eq!((m.live, m.peak, m.allocs, m.frees), (400, 400, 1, 0));
    drop(a);
    assert_eq!(d.memory().live, 400);
    drop(b);
    let m = d.memory();
    assert_eq!((m.live, m.peak, m.allocs, m.frees), (0, 400, 1, 1));
    assert!(m.cached >= 400);
    assert!(d.collect().unwrap() >= 400);
    assert_eq!(d.memory().cached, 0);
}

#[test]
fn empty_buffers_are_not_counted() {
    let d = cpu();
    let e = Buffer::upload(&d, &[]).unwrap();
    assert!(!e.release());
    assert_eq!(d.memory(), MemoryStats::default());
}

#[test]
fn release_is_idempotent_and_reaches_views() {
    let d = cpu();
    let a = AnyBuffer::full(&d, Shape::new(&[2, 3]).unwrap(), 1.5).unwrap();
    let view = a.view(Shape::new(&[6]).unwrap()).unwrap();
    assert!(a.buffer().release());
    assert!(!a.buffer().release());
    assert!(!view.buffer().release());
    let e = view.to_tensor::<f32>().unwrap_err();
    assert_eq!(*e.kind(), ErrorKind::Released);
    assert_eq!((d.memory().live, d.memory().frees), (0, 1));
}

#[test]
fn parts_share_memory_and_stay_within_it() {
    let d = cpu();
    d.set_checks(true);
    let a = Buffer::upload(&d, &[0.0, 1.0, 2.0, 3.0, 4.0]).unwrap();
    let b = a.part(1, 3).unwrap();
    let c = b.part(1, 2).unwrap();
    assert_eq!(c.download().unwrap(), [2.0, 3.0]);
    c.write_words("test", &[7.0, 8.0]).unwrap();
    assert_eq!(a.download().unwrap(), [0.0, 1.0, 7.0, 8.0, 4.0]);
    assert!(b.part(2, 2).is_err() && b.part(usize::MAX, 2).is_err());
    let set = ReadSet::new([&a, &c]);
    let both = set.lock("test").unwrap();
    assert_eq!((both.host(0).len(), both.host(1)), (5, &[7.0, 8.0][..]));
    drop(both);
    assert_eq!(d.memory().allocs, 1);
    assert!(c.release() && a.is_released());
    assert_eq!((d.memory().live, d.broken_guards()), (0, 0));
}

#[test]
fn the_nth_allocation_fails_on_request() {
    let d = cpu();
    d.fail_allocation(Some(2), false);
    let _a = d.alloc(1).unwrap();
    assert!(matches!(d.alloc(8).unwrap_err().kind(), ErrorKind::OutOfMemory { bytes: 32, .. }));
    let _b = d.alloc(8).unwrap();
    d.fail_allocation(Some(1), true);
    assert!(d.alloc(1).is_err() && d.alloc(1).is_err());
    d.fail_allocation(None, false);
    assert!(d.alloc(1).is_ok());
    assert_eq!(d.memory().live, 36);
}

#[test]
fn check_mode_poisons_and_finds_overruns() {
    let d = cpu();
    d.set_checks(true);
    let a = d.alloc(10).unwrap();
    assert!(a.download().unwrap().iter().all(|x| x.to_bits() == POISON));
    drop(a);
    assert_eq!(d.broken_guards(), 0);
    let b = d.alloc(10).unwrap();
    if let Some(Mem::Host(words)) = &mut *b.block.mem.write().unwrap() {
        words[GUARD + 10] = 0.0;
    }
    drop(b);
    assert_eq!(d.broken_guards(), 1);
}

#[test]
fn impossible_sizes_are_an_error() {
    let d = cpu();
    let e = d.alloc(1 << 58).unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::OutOfMemory { .. }), "{e}");
    assert_eq!(d.memory().live, 0);
}

#[test]
fn parts_of_one_allocation_are_read_and_written_at_once() {
    let device = cpu();
    let whole = Buffer::upload(&device, &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]).unwrap();
    let other = Buffer::upload(&device, &[8.0, 9.0]).unwrap();
    let part = |from: usize, words: usize| whole.part(from, words).unwrap();
    // Twice the same, and what is before, between and after what is written.
    let reads = [part(0, 2), part(4, 1), part(0, 2), part(7, 1), other.clone(), part(3, 0)];
    let writes = [part(5, 2), part(2, 2)];
    let moved = with_host_words("test", &reads.each_ref(), &writes.each_ref(), |reads, mut writes| {
        assert_eq!(reads, [&[0.0, 1.0][..], &[4.0], &[0.0, 1.0], &[7.0], &[8.0, 9.0], &[]]);
        writes[0].copy_from_slice(reads[0]);
        writes[1].copy_from_slice(reads[4]);
        Ok(())
    });
    moved.unwrap();
    assert_eq!(whole.download().unwrap(), [0.0, 1.0, 8.0, 9.0, 4.0, 0.0, 1.0, 7.0]);
    for (reads, writes) in [
        (vec![part(0, 3)], vec![part(2, 2)]),
        (vec![part(3, 3)], vec![part(2, 2)]),
        (vec![], vec![part(0, 4), part(3, 2)]),
        (vec![part(2, 1)], vec![part(0, 8)]),
    ] {
        let (reads, writes): (Vec<&Buffer>, Vec<&Buffer>) = (reads.iter().collect(), writes.iter().collect());
        let error = with_host_words("test", &reads, &writes, |_, _| Ok(())).unwrap_err();
        assert!(error.to_string().contains("overlaps"), "{error}");
    }
    other.release();
    assert!(with_host_words("test", &[&other], &[&whole], |_, _| Ok(())).is_err());
}
