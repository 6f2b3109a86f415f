//! Matrix products whose every element is summed in one fixed order.
//!
//! An element is the sum over chunks of `K_CHUNK` terms; in a chunk an FMA chain runs up k from +0.0, and
//! chunk sums are added upwards. Caches want shorter runs of k than a chunk, so a tile parks its unfinished
//! chains in the workspace and takes them up again in the next run; only a finished chunk meets C. Threads
//! share out blocks of C only, so neither their number nor the tile shape can change a bit. Vectors run along
//! n and elements of A are broadcast; tiles at the lower edge have fewer rows, those at the right edge masked
//! columns. Panels of A and B are packed by copying or transposing, as they are stored, by all threads together if
//! blocks of several threads use them, else by the thread that does, where it can as it multiplies; what is used only
//! once is read in place.

mod block;
pub(crate) mod kernel;
pub(crate) mod pack;
pub(crate) mod plan;
mod shared;
#[cfg(test)]
pub(crate) mod tests;

use super::LINE;
use super::simd::Simd;
use super::threads::Pool;

/// A batch of products C = A B, with an optional bias along the columns of C.
///
/// A is row-major (m, k), or (k, m) if `ta`; B is (k, n), or (n, k) if `tb`; C is (m, n). The matrices of a
/// batch follow each other. Any size may be zero; with `k` zero the products are +0.0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Gemm {
    /// Number of products.
    pub batch: usize,
    /// Rows of C.
    pub m: usize,
    /// Columns of C.
    pub n: usize,
    /// Terms of each dot product.
    pub k: usize,
    /// Whether A is stored transposed.
    pub ta: bool,
    /// Whether B is stored transposed.
    pub tb: bool,
}

impl Gemm {
    /// Number of floats of workspace that [`Gemm::run`] needs with a pool of `threads`.
    pub fn scratch_len(&self, threads: usize) -> usize {
        let gemm = self.as_row();
        LINE + match gemm.shared(threads) {
            Some(shared) => shared.len(threads),
            None => threads * gemm.plan(threads).slot_len(),
        }
    }

    /// Computes C. `scratch` has at least `scratch_len(pool.threads())` elements, of any value.
    ///
    /// # Panics
    /// If a slice does not have the length that the sizes give.
    #[allow(clippy::too_many_arguments)]
    pub fn run(
        &self,
        pool: &Pool,
        simd: Simd,
        a: &[f32],
        b: &[f32],
        bias: Option<&[f32]>,
        c: &mut [f32],
        scratch: &mut [f32],
    ) {
        let Gemm { batch, m, n, k, .. } = *self;
        let len = |x: usize, y: usize| batch.checked_mul(x)?.checked_mul(y);
        assert_eq!(Some(a.len()), len(m, k), "length of a");
        assert_eq!(Some(b.len()), len(k, n), "length of b");
        assert_eq!(Some(c.len()), len(m, n), "length of c");
        assert!(bias.is_none_or(|bias| bias.len() == n), "length of bias");
        if c.is_empty() {
            return;
        }
        let gemm = self.as_row();
        if gemm == *self {
            gemm.run_blocks(pool, simd, a, b, bias, c, scratch);
        } else {
            gemm.run_blocks(pool, simd, b, a, None, c, scratch);
            // The bias of the only column.
            for bias in bias.into_iter().flatten() {
                c.iter_mut().for_each(|c| *c += bias);
            }
        }
    }

    /// A single column as a single row, whose elements fill vectors: C' = B' A' has the same memory.
    fn as_row(&self) -> Gemm {
        match *self {
            Gemm { batch, m, n: 1, k, ta, tb } if m > 1 => Gemm { batch, m: 1, n: m, k, ta: !tb, tb: !ta },
            gemm => gemm,
        }
    }
}
