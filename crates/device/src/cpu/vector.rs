//! The SIMD vectors that microkernels are written in: one trait, and a type for each SIMD level.
#![allow(unsafe_code)]

/// A vector register of floats, made of groups of four lanes.
///
/// # Safety
/// All methods may only be called where the processor has the instructions, and on addresses that are valid for the access.
/// `n` is from 1 to the width; bit i of `bits` stands for lane i.
pub(crate) trait Vector: Copy {
    /// The number of lanes.
    const WIDTH: usize;
    /// `x` in all lanes.
    unsafe fn splat(x: f32) -> Self;
    /// The floats at `from`.
    unsafe fn load(from: *const f32) -> Self;
    /// The first `n` floats; the other lanes are zeros.
    unsafe fn load_part(from: *const f32, n: usize) -> Self;
    /// The floats whose bits are set; the other lanes are zeros.
    unsafe fn load_mask(from: *const f32, bits: u32) -> Self;
    /// Like `load_mask`, where lane i is the float at `from + 2 i`.
    unsafe fn load_even(from: *const f32, bits: u32) -> Self;
    /// Stores the lanes whose bits are set.
    unsafe fn store_mask(self, to: *mut f32, bits: u32);
    /// Like `store_mask`, where lane i goes to `to + 2 i`.
    unsafe fn store_even(self, to: *mut f32, bits: u32);
    /// Loads group g from `from[4 * g] + at`.
    unsafe fn load_groups(from: &[*const f32], at: usize) -> Self;
    /// Stores all lanes.
    unsafe fn store(self, to: *mut f32);
    /// Stores the first `n` lanes.
    unsafe fn store_part(self, to: *mut f32, n: usize);
    /// `a * b + self`, rounded once.
    unsafe fn fma(self, a: Self, b: Self) -> Self;
    /// Like `fma`, but keeps `self` in lanes where `a` has the bits of `mark`.
    unsafe fn fma_unless(self, mark: Self, a: Self, b: Self) -> Self;
    /// The sum.
    unsafe fn add(self, other: Self) -> Self;
    /// Transposes each 4×4 square: one group of lanes in all four vectors.
    unsafe fn transpose(x: [Self; 4]) -> [Self; 4];
    /// The transposed squares that begin at `at` in lines: [`load_groups`](Vector::load_groups) of each line of a group, turned.
    #[inline(always)]
    unsafe fn load_transposed(from: &[*const f32], at: usize) -> [Self; 4] {
        // SAFETY: upheld by the caller.
        unsafe {
            Self::transpose([
                Self::load_groups(from, at),
                Self::load_groups(&from[1..], at),
                Self::load_groups(&from[2..], at),
                Self::load_groups(&from[3..], at),
            ])
        }
    }
    /// Prefetches a cache line into all caches.
    unsafe fn prefetch(at: *const f32);
    /// Prefetches a cache line that is needed later into all caches but L1.
    unsafe fn prefetch_far(at: *const f32);
}

/// Moves bit i of the lower half to bit 2 i.
#[inline(always)]
#[cfg(target_arch = "x86_64")]
fn spread_bits(bits: u32) -> u32 {
    let x = (bits | bits << 8) & 0x00ff_00ff;
    let x = (x | x << 4) & 0x0f0f_0f0f;
    let x = (x | x << 2) & 0x3333_3333;
    (x | x << 1) & 0x5555_5555
}

/// A vector by its elements; `std::array::from_fn` is not always inlined.
#[inline(always)]
fn each(f: impl Fn(usize) -> f32) -> [f32; 4] {
    [f(0), f(1), f(2), f(3)]
}

// Plain Rust, which the compiler maps to whatever vectors the target has.
// SAFETY: all of these are upheld by the caller.
impl Vector for [f32; 4] {
    const WIDTH: usize = 4;
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        [x; 4]
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller has 4 floats there.
        unsafe { from.cast::<[f32; 4]>().read() }
    }
    #[inline(always)]
    unsafe fn load_part(from: *const f32, n: usize) -> Self {
        // SAFETY: the caller has n floats there, and only those are read.
        each(|i| if i < n { unsafe { *from.add(i) } } else { 0.0 })
    }
    #[inline(always)]
    unsafe fn load_mask(from: *const f32, bits: u32) -> Self {
        // SAFETY: the caller has floats where bits are set.
        each(|i| if bits >> i & 1 != 0 { unsafe { *from.wrapping_add(i) } } else { 0.0 })
    }
    #[inline(always)]
    unsafe fn load_even(from: *const f32, bits: u32) -> Self {
        let mut x = [0.0; 4];
        for (i, x) in x.iter_mut().enumerate() {
            if bits >> i & 1 != 0 {
                // SAFETY: the caller has floats where bits are set.
                *x = unsafe { *from.wrapping_add(2 * i) };
            }
        }
        x
    }
    #[inline(always)]
    unsafe fn store_mask(self, to: *mut f32, bits: u32) {
        for (i, x) in self.into_iter().enumerate() {
            if bits >> i & 1 != 0 {
                // SAFETY: the caller has floats where bits are set.
                unsafe { *to.add(i) = x };
            }
        }
    }
    #[inline(always)]
    unsafe fn store_even(self, to: *mut f32, bits: u32) {
        for (i, x) in self.into_iter().enumerate() {
            if bits >> i & 1 != 0 {
                // SAFETY: the caller has floats where bits are set.
                unsafe { *to.wrapping_add(2 * i) = x };
            }
        }
    }
    #[inline(always)]
    unsafe fn load_groups(from: &[*const f32], at: usize) -> Self {
        // SAFETY: the caller has 4 floats at each.
        unsafe { Self::load(from[0].add(at)) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller has 4 floats there.
        unsafe { to.cast::<[f32; 4]>().write(self) }
    }
    #[inline(always)]
    unsafe fn store_part(self, to: *mut f32, n: usize) {
        // SAFETY: the caller has n floats there, at most 4.
        unsafe { std::ptr::copy_nonoverlapping(self.as_ptr(), to, n) }
    }
    #[inline(always)]
    unsafe fn fma(self, a: Self, b: Self) -> Self {
        each(|i| a[i].mul_add(b[i], self[i]))
    }
    #[inline(always)]
    unsafe fn fma_unless(self, mark: Self, a: Self, b: Self) -> Self {
        each(|i| if a[i].to_bits() == mark[i].to_bits() { self[i] } else { a[i].mul_add(b[i], self[i]) })
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        each(|i| self[i] + other[i])
    }
    #[inline(always)]
    unsafe fn transpose(x: [Self; 4]) -> [Self; 4] {
        let column = |i: usize| each(|j| x[j][i]);
        [column(0), column(1), column(2), column(3)]
    }
    #[inline(always)]
    unsafe fn prefetch(_: *const f32) {}
    #[inline(always)]
    unsafe fn prefetch_far(_: *const f32) {}
}

/// Vectors of eight floats.
#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{Vector, spread_bits};
    use std::arch::x86_64::*;

    /// A mask of the first n lanes.
    #[inline(always)]
    unsafe fn first_lanes(n: usize) -> __m256i {
        const LANES: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
        // SAFETY: n is from 1 to 8, so the eight lanes are inside.
        unsafe { _mm256_loadu_si256(LANES.as_ptr().add(8 - n).cast()) }
    }

    /// A mask of the lanes whose bits are set.
    #[inline(always)]
    unsafe fn lane_mask(bits: u32) -> __m256i {
        // SAFETY: the caller has AVX2.
        unsafe {
            let for_each_task = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
            _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(bits as i32), for_each_task), for_each_task)
        }
    }

    impl Vector for __m256 {
        const WIDTH: usize = 8;
        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            // SAFETY: the caller has AVX2.
            unsafe { _mm256_set1_ps(x) }
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            // SAFETY: the caller has AVX2 and 8 floats there.
            unsafe { _mm256_loadu_ps(from) }
        }
        #[inline(always)]
        unsafe fn load_part(from: *const f32, n: usize) -> Self {
            // SAFETY: the caller has AVX2 and n floats there; the others are not accessed.
            unsafe { _mm256_maskload_ps(from, first_lanes(n)) }
        }
        #[inline(always)]
        unsafe fn load_mask(from: *const f32, bits: u32) -> Self {
            // SAFETY: the caller has AVX2 and floats where bits are set; the others are not accessed.
            unsafe { _mm256_maskload_ps(from, lane_mask(bits)) }
        }
        #[inline(always)]
        unsafe fn load_even(from: *const f32, bits: u32) -> Self {
            let bits = spread_bits(bits);
            // SAFETY: the caller has AVX2 and floats where bits are set; the others are not accessed.
            unsafe {
                let a = _mm256_maskload_ps(from, lane_mask(bits & 0xff));
                let b = _mm256_maskload_ps(from.wrapping_add(8), lane_mask(bits >> 8));
                let x = _mm256_shuffle_ps::<0b10_00_10_00>(a, b);
                _mm256_castpd_ps(_mm256_permute4x64_pd::<0b11_01_10_00>(_mm256_castps_pd(x)))
            }
        }
        #[inline(always)]
        unsafe fn store_mask(self, to: *mut f32, bits: u32) {
            // SAFETY: the caller has AVX2 and floats where bits are set; the others are not accessed.
            unsafe { _mm256_maskstore_ps(to, lane_mask(bits), self) }
        }
        #[inline(always)]
        unsafe fn store_even(self, to: *mut f32, bits: u32) {
            let bits = spread_bits(bits);
            // SAFETY: the caller has AVX2 and floats where bits are set; the others are not accessed.
            unsafe {
                let a = _mm256_permutevar8x32_ps(self, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
                let b = _mm256_permutevar8x32_ps(self, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7));
                _mm256_maskstore_ps(to, lane_mask(bits & 0xff), a);
                _mm256_maskstore_ps(to.wrapping_add(8), lane_mask(bits >> 8), b);
            }
        }
        #[inline(always)]
        unsafe fn load_groups(from: &[*const f32], at: usize) -> Self {
            // SAFETY: the caller has AVX2 and 4 floats at each.
            unsafe { _mm256_set_m128(_mm_loadu_ps(from[4].add(at)), _mm_loadu_ps(from[0].add(at))) }
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: the caller has AVX2 and 8 floats there.
            unsafe { _mm256_storeu_ps(to, self) }
        }
        #[inline(always)]
        unsafe fn store_part(self, to: *mut f32, n: usize) {
            // SAFETY: the caller has AVX2 and n floats there; the others are not accessed.
            unsafe { _mm256_maskstore_ps(to, first_lanes(n), self) }
        }
        #[inline(always)]
        unsafe fn fma(self, a: Self, b: Self) -> Self {
            // SAFETY: the caller has FMA.
            unsafe { _mm256_fmadd_ps(a, b, self) }
        }
        #[inline(always)]
        unsafe fn fma_unless(self, mark: Self, a: Self, b: Self) -> Self {
            // SAFETY: the caller has AVX2 and FMA.
            unsafe {
                let marked = _mm256_cmpeq_epi32(_mm256_castps_si256(a), _mm256_castps_si256(mark));
                _mm256_blendv_ps(_mm256_fmadd_ps(a, b, self), self, _mm256_castsi256_ps(marked))
            }
        }
        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            // SAFETY: the caller has AVX2.
            unsafe { _mm256_add_ps(self, other) }
        }
        #[inline(always)]
        unsafe fn transpose(x: [Self; 4]) -> [Self; 4] {
            // SAFETY: the caller has AVX2.
            unsafe {
                let (a, b) = (_mm256_unpacklo_ps(x[0], x[1]), _mm256_unpackhi_ps(x[0], x[1]));
                let (c, d) = (_mm256_unpacklo_ps(x[2], x[3]), _mm256_unpackhi_ps(x[2], x[3]));
                [
                    _mm256_shuffle_ps::<0b01_00_01_00>(a, c),
                    _mm256_shuffle_ps::<0b11_10_11_10>(a, c),
                    _mm256_shuffle_ps::<0b01_00_01_00>(b, d),
                    _mm256_shuffle_ps::<0b11_10_11_10>(b, d),
                ]
            }
        }
        #[inline(always)]
        unsafe fn prefetch(at: *const f32) {
            // SAFETY: a prefetch does not fault.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
        }
        #[inline(always)]
        unsafe fn prefetch_far(at: *const f32) {
            // SAFETY: a prefetch does not fault.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
        }
    }
}

/// Vectors of sixteen floats.
#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::{Vector, spread_bits};
    use std::arch::x86_64::*;

    impl Vector for __m512 {
        const WIDTH: usize = 16;
        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            // SAFETY: the caller has AVX-512.
            unsafe { _mm512_set1_ps(x) }
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            // SAFETY: the caller has AVX-512 and 16 floats there.
            unsafe { _mm512_loadu_ps(from) }
        }
        #[inline(always)]
        unsafe fn load_part(from: *const f32, n: usize) -> Self {
            // SAFETY: the caller has AVX-512 and n floats there; the others are not accessed.
            unsafe { _mm512_maskz_loadu_ps(((1u32 << n) - 1) as __mmask16, from) }
        }
        #[inline(always)]
        unsafe fn load_mask(from: *const f32, bits: u32) -> Self {
            // SAFETY: the caller has AVX-512 and floats where bits are set; the others are not accessed.
            unsafe { _mm512_maskz_loadu_ps(bits as __mmask16, from) }
        }
        #[inline(always)]
        unsafe fn load_even(from: *const f32, bits: u32) -> Self {
            let bits = spread_bits(bits);
            // SAFETY: the caller has AVX-512 and floats where bits are set; the others are not accessed.
            unsafe {
                let a = _mm512_maskz_loadu_ps(bits as __mmask16, from);
                let b = _mm512_maskz_loadu_ps((bits >> 16) as __mmask16, from.wrapping_add(16));
                let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
                _mm512_permutex2var_ps(a, even, b)
            }
        }
        #[inline(always)]
        unsafe fn store_mask(self, to: *mut f32, bits: u32) {
            // SAFETY: the caller has AVX-512 and floats where bits are set; the others are not accessed.
            unsafe { _mm512_mask_storeu_ps(to, bits as __mmask16, self) }
        }
        #[inline(always)]
        unsafe fn store_even(self, to: *mut f32, bits: u32) {
            let bits = spread_bits(bits);
            // SAFETY: the caller has AVX-512 and floats where bits are set; the others are not accessed.
            unsafe {
                let low = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
                let high = _mm512_setr_epi32(8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15);
                _mm512_mask_storeu_ps(to, bits as __mmask16, _mm512_permutexvar_ps(low, self));
                let b = _mm512_permutexvar_ps(high, self);
                _mm512_mask_storeu_ps(to.wrapping_add(16), (bits >> 16) as __mmask16, b);
            }
        }
        #[inline(always)]
        unsafe fn load_groups(from: &[*const f32], at: usize) -> Self {
            // SAFETY: the caller has AVX-512 and 4 floats at each.
            unsafe {
                let x = _mm512_castps128_ps512(_mm_loadu_ps(from[0].add(at)));
                let x = _mm512_insertf32x4::<1>(x, _mm_loadu_ps(from[4].add(at)));
                let x = _mm512_insertf32x4::<2>(x, _mm_loadu_ps(from[8].add(at)));
                _mm512_insertf32x4::<3>(x, _mm_loadu_ps(from[12].add(at)))
            }
        }
        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: the caller has AVX-512 and 16 floats there.
            unsafe { _mm512_storeu_ps(to, self) }
        }
        #[inline(always)]
        unsafe fn store_part(self, to: *mut f32, n: usize) {
            // SAFETY: the caller has AVX-512 and n floats there; the others are not accessed.
            unsafe { _mm512_mask_storeu_ps(to, ((1u32 << n) - 1) as __mmask16, self) }
        }
        #[inline(always)]
        unsafe fn fma(self, a: Self, b: Self) -> Self {
            // SAFETY: the caller has AVX-512.
            unsafe { _mm512_fmadd_ps(a, b, self) }
        }
        #[inline(always)]
        unsafe fn fma_unless(self, mark: Self, a: Self, b: Self) -> Self {
            // SAFETY: the caller has AVX-512.
            unsafe {
                let open = _mm512_cmpneq_epi32_mask(_mm512_castps_si512(a), _mm512_castps_si512(mark));
                _mm512_mask3_fmadd_ps(a, b, self, open)
            }
        }
        #[inline(always)]
        unsafe fn add(self, other: Self) -> Self {
            // SAFETY: the caller has AVX-512.
            unsafe { _mm512_add_ps(self, other) }
        }
        #[inline(always)]
        unsafe fn transpose(x: [Self; 4]) -> [Self; 4] {
            // SAFETY: the caller has AVX-512.
            unsafe {
                let (a, b) = (_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
                let (c, d) = (_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
                [
                    _mm512_shuffle_ps::<0b01_00_01_00>(a, c),
                    _mm512_shuffle_ps::<0b11_10_11_10>(a, c),
                    _mm512_shuffle_ps::<0b01_00_01_00>(b, d),
                    _mm512_shuffle_ps::<0b11_10_11_10>(b, d),
                ]
            }
        }
        #[inline(always)]
        unsafe fn prefetch(at: *const f32) {
            // SAFETY: a prefetch does not fault.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
        }
        #[inline(always)]
        unsafe fn prefetch_far(at: *const f32) {
            // SAFETY: a prefetch does not fault.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
        }
    }
}
