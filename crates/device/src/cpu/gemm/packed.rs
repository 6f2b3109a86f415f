//! Products with a B that is packed once and used many times, such as the weights of a recurrent layer, which each step
//! multiplies by.
//!
//! Packed B has the chunks of k one after another, a chunk its panels of [`PANEL`] columns, a panel its runs.
#![allow(unsafe_code)]

use super::Gemm;
use super::block::Work;
use super::plan::{Chunk, K_RUN, PANEL, Tiling};
use crate::cpu::LINE;
use crate::cpu::kernels::Kernels;
use crate::cpu::simd::Simd;
use crate::cpu::threads::Pool;
use dittograd_numerics::K_CHUNK;

/// The most vectors of a tile that reads packed B.
pub(super) const MAX_VECTORS: usize = 2;

/// Where panel `panel` of a chunk begins in packed B.
pub(super) fn panel_start(n: usize, chunk: &Chunk, panel: usize) -> usize {
    chunk.k0 * n.next_multiple_of(PANEL) + panel * PANEL * chunk.kc
}

impl Gemm {
    /// Floats of packed B of one product.
    pub fn packed_len(&self) -> usize {
        self.k * self.n.next_multiple_of(PANEL)
    }

    /// Packs B of one product into the first `packed_len()` elements of `to`, for products of this `n`, `k` and `tb` at the same SIMD level.
    ///
    /// # Panics
    /// If `b` does not have the length that the sizes give, or `to` is too short.
    pub fn pack(&self, pool: &Pool, simd: Simd, b: &[f32], to: &mut [f32]) {
        let Gemm { n, k, .. } = *self;
        assert_eq!(Some(b.len()), k.checked_mul(n), "length of b");
        assert!(to.len() >= self.packed_len(), "length of packed b");
        let kernels = Kernels::of(simd);
        for index in 0..k.div_ceil(K_CHUNK) {
            let chunk = Chunk::new(k, index, K_RUN);
            let to = &mut to[panel_start(n, &chunk, 0)..][..chunk.kc * n.next_multiple_of(PANEL)];
            pool.chunks_mut(to, chunk.kc * PANEL, |panel, to| {
                let work = Work {
                    gemm: *self,
                    kernels,
                    a: std::ptr::null(),
                    b: b.as_ptr(),
                    bias: std::ptr::null(),
                    c: std::ptr::null_mut(),
                    scratch: std::ptr::null_mut(),
                };
                let s0 = panel * PANEL;
                let tiling =
                    Tiling { width: kernels.width, max_vectors: MAX_VECTORS, end: (s0 + PANEL).min(n) };
                for r in 0..chunk.runs {
                    let (kr, len) = chunk.run(r);
                    let to = to[r * chunk.run * PANEL..].as_mut_ptr();
                    // SAFETY: the columns and terms are inside B; the panel has `PANEL` floats for each term of the chunk, and is
                    // this task's.
                    unsafe { work.pack_b(b.as_ptr(), tiling, s0, kr, len, to) };
                }
            });
        }
    }

    /// Number of floats of workspace that [`Gemm::run_packed`] needs with a pool of `threads`.
    pub fn packed_scratch_len(&self, threads: usize) -> usize {
        LINE + threads * self.plan(threads).slot_len()
    }

    /// [`Gemm::run`] of one product whose B was packed by [`Gemm::pack`]; the same bits. `scratch` has at least
    /// `packed_scratch_len(pool.threads())` elements, of any value.
    ///
    /// # Panics
    /// If a slice does not have the length that the sizes give, or there are several products.
    #[allow(clippy::too_many_arguments)]
    pub fn run_packed(
        &self,
        pool: &Pool,
        simd: Simd,
        a: &[f32],
        packed: &[f32],
        bias: Option<&[f32]>,
        c: &mut [f32],
        scratch: &mut [f32],
    ) {
        let Gemm { batch, m, n, k, .. } = *self;
        assert_eq!(batch, 1, "number of products");
        assert_eq!(Some(a.len()), m.checked_mul(k), "length of a");
        assert!(packed.len() >= self.packed_len(), "length of packed b");
        assert_eq!(Some(c.len()), m.checked_mul(n), "length of c");
        assert!(bias.is_none_or(|bias| bias.len() == n), "length of bias");
        if c.is_empty() {
            return;
        }
        let skip = scratch.as_ptr().align_offset(4 * LINE).min(LINE);
        let scratch = &mut scratch[skip..];
        let plan = self.plan(pool.threads());
        let slot_len = plan.slot_len();
        assert!(scratch.len() >= pool.threads() * slot_len, "length of scratch");
        let work = Work {
            gemm: *self,
            kernels: Kernels::of(simd),
            a: a.as_ptr(),
            b: packed.as_ptr(),
            bias: bias.map_or(std::ptr::null(), <[f32]>::as_ptr),
            c: c.as_mut_ptr(),
            scratch: scratch.as_mut_ptr(),
        };
        work.for_each_task(pool, plan.row_blocks * plan.col_blocks, slot_len, |task, scratch, packed| {
            // SAFETY: `for_each_task` gives each task once, and the workspace belongs to this call. The slices were checked
            // above and stay borrowed until the pool is done; `b` is packed B.
            unsafe { work.block(&plan, task, scratch, packed, true) };
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dittograd_numerics::rng::Stream;

    #[test]
    fn packed_once_and_packed_each_time_give_the_same_bits() {
        let mut stream = Stream::new(1, 0);
        let sizes = [
            (1, 1, 1),
            (3, 33, 7),
            (8, 100, 300),
            (17, 64, 1030),
            (40, 1, 5),
            (300, 70, 64),
            (2, 5, 0),
            (0, 4, 3),
            (4, 0, 3),
            (29, 300, 2049),
        ];
        for simd in Simd::all_available() {
            for (m, n, k) in sizes {
                for tb in [false, true] {
                    let g = Gemm { batch: 1, m, n, k, ta: false, tb };
                    let mut draw = |n: usize| (0..n).map(|_| stream.range(-1.0, 1.0)).collect::<Vec<f32>>();
                    let (a, b, bias) = (draw(m * k), draw(k * n), draw(n));
                    for threads in [1, 3] {
                        let pool = Pool::new(threads);
                        let (mut want, mut got) = (vec![0.0; m * n], vec![f32::NAN; m * n]);
                        let mut scratch = vec![f32::NAN; g.scratch_len(threads)];
                        g.run(&pool, simd, &a, &b, Some(&bias), &mut want, &mut scratch);
                        let mut packed = vec![f32::NAN; g.packed_len()];
                        g.pack(&pool, simd, &b, &mut packed);
                        let mut scratch = vec![f32::NAN; g.packed_scratch_len(threads)];
                        g.run_packed(&pool, simd, &a, &packed, Some(&bias), &mut got, &mut scratch);
                        assert!(want.iter().zip(&got).all(|(x, y)| x.to_bits() == y.to_bits()), "{g:?}");
                    }
                }
            }
        }
    }
}
