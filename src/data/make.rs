//! Shared by the sets generated from a seed: one random stream per sample, so that a sample depends only on the seed
//! and its number, and threads that each generate some samples.

use crate::error::{Error, Result};
use crate::numerics::environment;
use crate::numerics::rng::{self, Stream};
use crate::reserve::{filled, room_for_a_thread};
use crate::shape::Shape;
use crate::tensor::Tensor;
use std::num::NonZero;
use std::sync::{Mutex, PoisonError};

/// The random stream of sample `i`. `set` separates the data sets.
pub(super) fn stream(seed: u64, set: u64, i: usize) -> Stream {
    Stream::new(rng::key(seed, set), i as u64)
}

/// Memory for `samples` of `width` numbers each, all zero.
#[track_caller]
fn zeros(op: &str, samples: usize, dims: &[usize]) -> Result<Tensor<f32>> {
    let shape = Shape::new(&[&[samples], dims].concat())?;
    if samples == 0 {
        return Err(Error::argument(op, "samples", "got 0, use 1 or more"));
    }
    let data = filled(op, shape.numel(), 0.0)
        .map_err(|e| Error::argument(op, "samples", format!("no memory for {samples} samples: {e}")))?;
    Tensor::with_shape(shape, data)
}

/// Inputs `(samples, x…)` and targets `(samples, y…)`, generated on all processors. `maker` is called once per thread
/// and returns the function that generates sample `i`, which must depend on `i` alone.
#[track_caller]
pub(super) fn parallel<F>(
    op: &str,
    samples: usize,
    x: &[usize],
    y: &[usize],
    maker: impl Fn() -> F + Sync,
) -> Result<(Tensor<f32>, Tensor<f32>)>
where
    F: FnMut(usize, &mut [f32], &mut [f32]),
{
    let (mut inputs, mut targets) = (zeros(op, samples, x)?, zeros(op, samples, y)?);
    let (width_x, width_y) = (x.iter().product::<usize>(), y.iter().product::<usize>());
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(samples);
    let rows = samples.div_ceil(threads);
    let parts =
        inputs.data_mut().chunks_mut(rows * width_x).zip(targets.data_mut().chunks_mut(rows * width_y));
    let work = |first: usize, x: &mut [f32], y: &mut [f32]| {
        let _strict = environment::enter();
        let mut make = maker();
        for (i, (x, y)) in x.chunks_exact_mut(width_x).zip(y.chunks_exact_mut(width_y)).enumerate() {
            make(first + i, x, y);
        }
    };
    // Parts wait in a list, so that if a thread cannot be started, the others do its part.
    let parts = Mutex::new(parts.enumerate());
    let take_parts = || {
        loop {
            let Some((part, (x, y))) = parts.lock().unwrap_or_else(PoisonError::into_inner).next() else {
                return;
            };
            work(part * rows, x, y);
        }
    };
    std::thread::scope(|scope| {
        let started = |_: &usize| {
            room_for_a_thread() && std::thread::Builder::new().spawn_scoped(scope, take_parts).is_ok()
        };
        (1..threads).take_while(started).for_each(drop);
        take_parts();
    });
    Ok((inputs, targets))
}

/// The first 16 digits of the hash of a tensor's words, for golden bits.
#[cfg(test)]
pub(super) fn hash(t: &crate::tensor::AnyTensor) -> String {
    use crate::tensor::AnyTensor;
    let words: Vec<u32> = match t {
        AnyTensor::Num(t) => t.data().iter().map(|v| v.to_bits()).collect(),
        AnyTensor::Idx(t) => t.data().to_vec(),
    };
    let mut hash = blake3::Hasher::new();
    for word in words {
        hash.update(&word.to_le_bytes());
    }
    hash.finalize().to_hex()[..16].to_string()
}
