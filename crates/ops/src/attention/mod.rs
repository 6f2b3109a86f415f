//! Scaled dot-product attention by blocks of keys: nothing of the size queries by keys is stored, forward or
//! backward. `NUMERICS.md` has the order of every sum; here lanes are rows, on CUDA they are pairs, with the
//! same bits.
//!
//! Query heads that share a key head are seen as one long list of rows: `(…, heads, n, d)` is `batch` lists of
//! `group * n` rows, since the heads of a group are neighbours in memory.

mod backward;
#[cfg(feature = "cases")]
mod cases;
mod cpu;
mod cpu_digits;
mod cuda;
mod cuda_digits;
mod forward;
mod geometry;
mod launch;
mod mask;
mod packed;
pub mod rope;
mod self_attention;

pub use backward::AttentionBwd;
pub use forward::Attention;
#[doc(hidden)]
pub use geometry::MAX_HEAD;
pub use mask::AttentionMask;
#[doc(hidden)]
pub use packed::parts;
pub use rope::Rope;
pub use self_attention::{SelfAttention, SelfAttentionBwd, outputs_alone};
