//! Sums of the words of values: 64 bits by which two devices see whether they hold the same, found at the speed of memory.
//!
//! The sum of `w[0..n]` is, modulo 2^64, that of `mix(pair(i) + i * STEP)` over all `i < ceil(n / 2)`. `pair(i)` is
//! `w[2 i] + 2^32 w[2 i + 1]`; the word after the last one is 0, and all NaNs are 0x7fc00000. `mix` maps 64-bit numbers one to one, so
//! a change of one pair always changes the sum, and any other leaves it with a chance of about 2^-64. Whole numbers are
//! added, so threads, blocks and devices have no say in it.
//!
//! It is no cryptographic hash: whoever wants two values of one sum can make them.

use crate::cpu::simd::simd_fn;
use crate::cuda::driver::HostMemory;
use crate::cuda::{Args, Cuda, Source, Work};
use crate::{Backend, Buffer, Cpu, Device};
use dittograd_numerics::canonical_bits;
use dittograd_numerics::error::Result;
use dittograd_numerics::shape::Shape;
use std::sync::{Arc, LazyLock};

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
const MIX: u64 = 0xd6e8_feb8_6659_fd93;

/// Words that one task or block of threads takes: an even number.
const BLOCK: usize = 16 * 1024;
/// Values one launch takes: their addresses travel as kernel arguments.
const PER_LAUNCH: usize = 128;

#[inline(always)]
fn term(i: u64, low: f32, high: f32) -> u64 {
    let [low, high] = [low, high].map(|word| u64::from(canonical_bits(word)));
    let x = (high << 32 | low).wrapping_add(i.wrapping_mul(STEP));
    let x = (x ^ x >> 32).wrapping_mul(MIX);
    let x = (x ^ x >> 32).wrapping_mul(MIX);
    x ^ x >> 32
}

simd_fn! {
    /// The terms of `words`, the first of which are those of pair `first`.
    fn block(simd, first: u64, words: &[f32]) -> u64 {
        let (pairs, last) = words.as_chunks::<2>();
        let mut sum = 0u64;
        for (i, [low, high]) in pairs.iter().enumerate() {
            sum = sum.wrapping_add(term(first + i as u64, *low, *high));
        }
        match last {
            [low] => sum.wrapping_add(term(first + pairs.len() as u64, *low, 0.0)),
            _ => sum,
        }
    }
}

/// The sum of words on the host.
pub fn of_words(words: &[f32]) -> u64 {
    block(crate::cpu::simd::Simd::best(), 0, words)
}

/// The same by all threads of a device.
fn on_cpu(cpu: &Cpu, words: &[f32]) -> u64 {
    let mut parts = vec![0u64; words.len().div_ceil(BLOCK)];
    cpu.pool.chunks_mut(&mut parts, 1, |task, part| {
        let from = task * BLOCK;
        let words = &words[from..words.len().min(from + BLOCK)];
        part.fill(block(cpu.simd, (from / 2) as u64, words));
    });
    parts.into_iter().fold(0, u64::wrapping_add)
}

/// The sums of values on a device. Waits for the device.
#[track_caller]
pub fn of_buffers(device: &Device, values: &[Buffer]) -> Result<Vec<u64>> {
    match device.backend() {
        Backend::Cpu(cpu) => values.iter().map(|value| Ok(on_cpu(cpu, value.read("sums")?.host()))).collect(),
        Backend::Host(_) => values.iter().map(|value| Ok(of_words(&value.download()?))).collect(),
        Backend::Cuda(cuda) => on_cuda(cuda, device, values),
    }
}

#[track_caller]
fn on_cuda(cuda: &Arc<Cuda>, device: &Device, values: &[Buffer]) -> Result<Vec<u64>> {
    if values.is_empty() {
        return Ok(Vec::new());
    }
    let sums = device.alloc_for("sums", &Shape::new(&[2 * values.len()])?)?;
    let at = sums.address("sums")?;
    cuda.fill(at, 0, sums.len())?;
    let (module, source) = module();
    let kernel = cuda.kernel(&module, source, "sums")?;
    for (n, values) in values.chunks(PER_LAUNCH).enumerate() {
        let at = at + (n * PER_LAUNCH * 8) as u64;
        let (mut addresses, mut lens) = ([0u64; PER_LAUNCH], [0u64; PER_LAUNCH]);
        let (mut first, mut blocks) = ([0u32; PER_LAUNCH], 0);
        for (i, value) in values.iter().enumerate() {
            (addresses[i], lens[i], first[i]) = (value.address("sums")?, value.len() as u64, blocks);
            blocks += value.len().div_ceil(BLOCK) as u32;
        }
        if blocks == 0 {
            continue;
        }
        let count = [values.len() as u32, 0];
        let table: [&[u8]; 4] = [
            bytemuck::cast_slice(&addresses),
            bytemuck::cast_slice(&lens),
            bytemuck::cast_slice(&first),
            bytemuck::cast_slice(&count),
        ];
        let mut args = Args::new();
        args.bytes(&table.concat(), 8).ptr(at);
        cuda.launch(kernel, [blocks, 1, 1], 256, 0, &args)?;
        let all: Vec<(u64, usize)> =
            values.iter().map(|v| Ok((v.address("sums")?, v.len()))).collect::<Result<_>>()?;
        cuda.stand_in(|| stand_in(all, at))?;
    }
    let words: Vec<u32> = sums.download()?.into_iter().map(f32::to_bits).collect();
    Ok(words.as_chunks::<2>().0.iter().map(|[low, high]| u64::from(*high) << 32 | u64::from(*low)).collect())
}

/// On a driver that runs no kernels: the sums of values of so many words.
fn stand_in(values: Vec<(u64, usize)>, at: u64) -> Work {
    Arc::new(move |memory: &mut dyn HostMemory| {
        for (i, (address, len)) in values.iter().enumerate() {
            let sum = of_words(&memory.words(*address, *len)?);
            let words = [sum as u32, (sum >> 32) as u32].map(f32::from_bits);
            memory.set_words(at + i as u64 * 8, &words)?;
        }
        Some(())
    })
}

/// The CUDA module.
#[doc(hidden)]
pub fn module() -> Source {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        format!("#define DITTO_TABLE {PER_LAUNCH}\n#define DITTO_BLOCK {BLOCK}\n{}", include_str!("sums.cu"))
    });
    ("sums".to_string(), &TEXT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::simd::Simd;

    /// The definition, word for word.
    fn defined(words: &[u32]) -> u64 {
        let word =
            |i: usize| words.get(i).map_or(0, |w| if f32::from_bits(*w).is_nan() { 0x7fc0_0000 } else { *w });
        let mix = |mut x: u64| {
            for _ in 0..2 {
                x ^= x >> 32;
                x = x.wrapping_mul(MIX);
            }
            x ^ x >> 32
        };
        let pair = |i: usize| u64::from(word(2 * i)) | u64::from(word(2 * i + 1)) << 32;
        (0..words.len().div_ceil(2))
            .map(|i| mix(pair(i).wrapping_add((i as u64).wrapping_mul(STEP))))
            .fold(0, u64::wrapping_add)
    }

    fn words(count: usize) -> Vec<u32> {
        (0..count as u32).map(|i| (i ^ 0x5bd1).wrapping_mul(0x9e37_79b1)).collect()
    }

    fn floats(words: &[u32]) -> Vec<f32> {
        words.iter().map(|w| f32::from_bits(*w)).collect()
    }

    #[test]
    fn one_sum_for_any_threads_and_level() {
        for count in [0, 1, 2, 3, 63, 1000, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK + 7] {
            let words = words(count);
            let want = defined(&words);
            let words = floats(&words);
            assert_eq!(of_words(&words), want, "{count}");
            for (threads, simd) in [(1, Simd::Scalar), (2, Simd::Avx2), (5, Simd::best())] {
                let device = Device::cpu_with(threads, simd).unwrap();
                let value = Buffer::upload(&device, &words).unwrap();
                assert_eq!(of_buffers(&device, &[value]).unwrap(), [want], "{count} {threads} {simd:?}");
            }
        }
        // As it is, tomorrow too.
        assert_eq!(defined(&words(1000)), 0xb887_abe8_3756_67cb);
    }

    #[test]
    fn a_flipped_bit_is_another_sum() {
        let words = words(301);
        let sum = of_words(&floats(&words));
        for (i, bit) in (0..words.len()).flat_map(|i| (0..32).map(move |bit| (i, bit))) {
            let mut other = words.clone();
            other[i] ^= 1 << bit;
            let is_nan = |w: u32| f32::from_bits(w).is_nan();
            if !(is_nan(other[i]) && is_nan(words[i])) {
                assert_ne!(of_words(&floats(&other)), sum, "{i} {bit}");
            }
        }
        let mut moved = words.clone();
        moved.swap(4, 6);
        assert_ne!(of_words(&floats(&moved)), sum);
        let nan = |bits: u32| of_words(&floats(&[bits, 1, 2]));
        assert_eq!(nan(0x7fc0_0000), nan(0xffff_ffff));
    }
}
