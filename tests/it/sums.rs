//! Sums of words: one for a value wherever it is, and on a GPU at the speed of its memory.

use super::support::device;
use dittograd::device::cuda::fake::Fake;
use dittograd::device::{AnyBuffer, Buffer, Meta, sums};
use dittograd::prelude::*;
use dittograd_check::gpu;
use std::time::{Duration, Instant};

/// Words of all kinds, NaNs included.
fn words(count: usize) -> Vec<f32> {
    (0..count as u32).map(|i| f32::from_bits((i ^ 0x5bd1).wrapping_mul(0x9e37_79b1))).collect()
}

/// Values of odd sizes, more than one launch takes, the last of them a part that is not aligned.
fn values(d: &Device) -> Vec<Buffer> {
    let sizes = [0, 1, 2, 3, 5, 16_383, 16_384, 16_385, 100_001].into_iter().chain(1..140);
    let mut all: Vec<Buffer> = sizes.map(|n| Buffer::upload(d, &words(n)).unwrap()).collect();
    all.push(Buffer::upload(d, &words(40_000)).unwrap().part(3, 33_333).unwrap());
    all
}

#[test]
fn are_those_of_the_cpu_on_a_driver_without_a_gpu() {
    let fake = Fake::computing(1, 1 << 28);
    let (cpu, d) = (device(), Device::from_cuda(fake.open().unwrap()));
    let want = sums::of_buffers(&cpu, &values(&cpu)).unwrap();
    assert_eq!(sums::of_buffers(&d, &values(&d)).unwrap(), want);
    assert_eq!(want[148], sums::of_words(&words(40_000)[3..33_336]));
    assert!(sums::of_buffers(&d, &[]).unwrap().is_empty());
}

#[test]
fn cuda_has_those_of_the_cpu() {
    if let Some((_turn, d)) = gpu() {
        let cpu = device();
        assert_eq!(
            sums::of_buffers(&d, &values(&d)).unwrap(),
            sums::of_buffers(&cpu, &values(&cpu)).unwrap()
        );
    }
}

/// The parameters of GPT-2 small: sums read them at 70 % or more of the bandwidth at which they are copied.
#[test]
fn cuda_forms_them_at_the_speed_of_memory() {
    let Some((_turn, d)) = gpu() else { return };
    let sizes = [38_597_376, 786_432].into_iter().chain([7_077_888; 12]);
    let all: Vec<Buffer> = sizes.map(|n| Buffer::upload(&d, &vec![0.5; n]).unwrap()).collect();
    let bytes = 4.0 * all.iter().map(Buffer::len).sum::<usize>() as f64;
    let best = |f: &dyn Fn()| {
        let once = || {
            d.synchronize().unwrap();
            let start = Instant::now();
            f();
            d.synchronize().unwrap();
            start.elapsed()
        };
        (0..20).map(|_| once()).min().unwrap_or(Duration::ZERO).as_secs_f64()
    };
    let summed = bytes / best(&|| drop(sums::of_buffers(&d, &all).unwrap()));
    let from: Vec<AnyBuffer> = all.iter().map(whole).collect();
    let to: Vec<AnyBuffer> = from.iter().map(|v| v.copy().unwrap()).collect();
    // A copy reads and writes each word.
    let copy = || from.iter().zip(&to).for_each(|(from, to)| to.copy_from("test", from).unwrap());
    let copied = 2.0 * bytes / best(&copy);
    println!("sums {:.0} GB/s, copies {:.0} GB/s", summed / 1e9, copied / 1e9);
    assert!(summed >= 0.7 * copied, "sums {:.0} GB/s, copies {:.0} GB/s", summed / 1e9, copied / 1e9);
}

/// A buffer as a value.
fn whole(buffer: &Buffer) -> AnyBuffer {
    AnyBuffer::new(buffer.clone(), Meta::f32(Shape::new(&[buffer.len()]).unwrap())).unwrap()
}
