//! Random streams: counter-based, so element `i` of a tensor is a pure function of the seed, the
//! invocation counter and `i`, on every device and in any order of evaluation.

use super::environment::strict;
use crate::error::Result;
use crate::reserve::collected;

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
const FIRST: u64 = 0xbf58_476d_1ce4_e5b9;
const SECOND: u64 = 0x94d0_49bb_1331_11eb;
/// Keeps seeds and counters apart.
const COUNTER: u64 = 0x5851_f42d_4c95_7f2d;

/// The SplitMix64 step: adds the golden-ratio increment, then mixes all bits.
pub const fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(GOLDEN);
    z = (z ^ (z >> 30)).wrapping_mul(FIRST);
    z = (z ^ (z >> 27)).wrapping_mul(SECOND);
    z ^ (z >> 31)
}

/// Key of one random tensor. Seed and counter are mixed one after the other, so swapping or shifting
/// them between each other gives another key.
pub const fn key(seed: u64, counter: u64) -> u64 {
    mix(mix(seed) ^ mix(counter.wrapping_add(COUNTER)))
}

/// Element `i` of the uniform tensor of `key`: the top 24 bits over 2^24, so in `[0, 1)` exactly.
#[inline(always)]
pub const fn uniform(key: u64, i: u64) -> f32 {
    (mix(key.wrapping_add(i)) >> 40) as f32 * (1.0 / 16_777_216.0)
}

/// The same functions as CUDA text, with the same constants.
pub fn cuda_text() -> String {
    format!(
        "
__device__ __forceinline__ unsigned long long ditto_mix(unsigned long long x) {{
    unsigned long long z = x + {GOLDEN:#x}ull;
    z = (z ^ (z >> 30)) * {FIRST:#x}ull;
    z = (z ^ (z >> 27)) * {SECOND:#x}ull;
    return z ^ (z >> 31);
}}
__device__ __forceinline__ unsigned long long ditto_key(unsigned long long seed, unsigned long long counter) {{
    return ditto_mix(ditto_mix(seed) ^ ditto_mix(counter + {COUNTER:#x}ull));
}}
__device__ __forceinline__ float ditto_uniform(unsigned long long key, unsigned long long i) {{
    return __fmul_rn((float)(unsigned)(ditto_mix(key + i) >> 40), 1.0f / 16777216.0f);
}}
"
    )
}

/// A sequence of draws on the host, for data sets and shuffles.
#[derive(Clone, Debug)]
pub struct Stream {
    key: u64,
    next: u64,
}

impl Stream {
    /// The stream of `seed` and `counter`, at its beginning.
    pub fn new(seed: u64, counter: u64) -> Stream {
        Stream { key: key(seed, counter), next: 0 }
    }

    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        let x = mix(self.key.wrapping_add(self.next));
        self.next += 1;
        x
    }

    /// The next uniform in `[0, 1)`.
    pub fn uniform(&mut self) -> f32 {
        (self.bits() >> 40) as f32 * (1.0 / 16_777_216.0)
    }

    /// The next uniform in `[lo, hi)`.
    pub fn range(&mut self, lo: f32, hi: f32) -> f32 {
        let u = self.uniform();
        strict(|| lo + (hi - lo) * u)
    }

    /// The next integer below `n` (0 for `n = 0`). The bias is below `n / 2^64`.
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.bits()) * n as u128) >> 64) as usize
    }

    /// The next standard normal draw (Box–Muller, cosine branch, in f64).
    pub fn normal(&mut self) -> f32 {
        let (a, b) = (self.bits() >> 11, self.bits() >> 11);
        strict(|| {
            let u1 = (a as f64 + 1.0) * (1.0 / 9_007_199_254_740_992.0);
            let u2 = b as f64 * (1.0 / 9_007_199_254_740_992.0);
            ((-2.0 * libm::log(u1)).sqrt() * libm::cos(std::f64::consts::TAU * u2)) as f32
        })
    }

    /// A permutation of `0..n` (Fisher–Yates).
    pub fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        self.shuffle(&mut order);
        order
    }

    /// As [`Stream::permutation`], of rows that a user has: an error if the host has no room.
    #[doc(hidden)]
    pub fn try_permutation(&mut self, n: usize) -> Result<Vec<usize>> {
        let mut order = collected("permutation", 0..n)?;
        self.shuffle(&mut order);
        Ok(order)
    }

    fn shuffle(&mut self, order: &mut [usize]) {
        for i in (1..order.len()).rev() {
            order.swap(i, self.below(i + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers_of_the_mixer() {
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(mix(0x0123_4567_89ab_cdef), 0x157a_3807_a48f_aa9d);
    }

    #[test]
    fn seed_and_counter_do_not_commute() {
        assert_ne!(key(0, 1), key(1, 0));
        assert_ne!(key(1, 2), key(2, 1));
    }

    #[test]
    fn uniforms_stay_below_one_and_fill_the_interval() {
        let k = key(7, 3);
        let (mut lo, mut hi, mut sum) = (1.0f32, 0.0f32, 0.0f64);
        for i in 0..1 << 20 {
            let u = uniform(k, i);
            lo = lo.min(u);
            hi = hi.max(u);
            sum += f64::from(u);
        }
        assert!((0.0..1e-5).contains(&lo) && hi < 1.0 && hi > 1.0 - 1e-5);
        assert!((sum / f64::from(1 << 20) - 0.5).abs() < 2e-3);
        // The largest possible draw is below one.
        assert!((u64::MAX >> 40) as f32 * (1.0 / 16_777_216.0) < 1.0);
    }

    #[test]
    fn a_permutation_holds_every_index_once() {
        let mut p = Stream::new(1, 2).permutation(1000);
        assert_ne!(p[..5], [0, 1, 2, 3, 4]);
        p.sort_unstable();
        assert!(p.iter().enumerate().all(|(i, &x)| i == x));
    }
}
