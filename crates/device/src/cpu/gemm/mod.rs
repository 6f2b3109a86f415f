//! Matrix products with one fixed order of summation for every element.
//!
//! k is cut into chunks of `K_CHUNK` terms. Within a chunk, an element is one chain of FMAs in increasing k, from +0.0;
//! the sums of chunks are added in order. A chunk is too long for the caches, so it is cut into runs: after a run a
//! tile saves its accumulators in the workspace, and the next run loads them. Only a finished chunk is added to C.
//! Threads divide C into blocks and never split a sum, so neither the number of threads nor the shape of tiles can
//! change a bit.
//!
//! - `plan`: the planner: blocks, chunks and runs, panels, tiles; workspace;
//! - `pack`: packs panels of A and B, by copying or transposing;
//! - `kernel`: the microkernel: a tile of C over a run. Vectors run along n, and elements of A are broadcast. Tiles at
//!   the lower edge have fewer rows, those at the right edge masked columns;
//! - `block`: a block of C whose thread packs its own operands. What is used only once is read in place;
//! - `shared`: large products, for which all threads pack together and share the packed operands;
//! - `packed`: products with a B that is packed once and used many times;
//! - `digits`: products in digits, of modes `fast` and `turbo`, which have an order of their own.

mod block;
#[doc(hidden)]
pub mod digits;
pub(crate) mod kernel;
pub(crate) mod pack;
mod packed;
#[doc(hidden)]
pub mod plan;
mod shared;

#[doc(hidden)]
pub use block::{Factors, add_products};
#[doc(hidden)]
pub use plan::PANEL;

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
        self.check_lengths(a, b, bias, c);
        if c.is_empty() {
            return;
        }
        let gemm = self.as_row();
        if gemm == *self {
            gemm.run_blocks(pool, simd, a, b, bias, c, scratch);
        } else {
            gemm.run_blocks(pool, simd, b, a, None, c, scratch);
            // The only column has one bias.
            for bias in bias.into_iter().flatten() {
                c.iter_mut().for_each(|c| *c += bias);
            }
        }
    }

    /// # Panics
    /// If a slice does not have the length that the sizes give.
    fn check_lengths(&self, a: &[f32], b: &[f32], bias: Option<&[f32]>, c: &[f32]) {
        let Gemm { batch, m, n, k, .. } = *self;
        let len = |x: usize, y: usize| batch.checked_mul(x)?.checked_mul(y);
        assert_eq!(Some(a.len()), len(m, k), "length of a");
        assert_eq!(Some(b.len()), len(k, n), "length of b");
        assert_eq!(Some(c.len()), len(m, n), "length of c");
        assert!(bias.is_none_or(|bias| bias.len() == n), "length of bias");
    }

    /// A product with a single column, rewritten as its transpose: a single row, whose elements fill vectors. The
    /// memory is the same.
    fn as_row(&self) -> Gemm {
        match *self {
            Gemm { batch, m, n: 1, k, ta, tb } if m > 1 => Gemm { batch, m: 1, n: m, k, ta: !tb, tb: !ta },
            gemm => gemm,
        }
    }
}
