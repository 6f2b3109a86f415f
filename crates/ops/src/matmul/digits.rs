//! Products in digits (C9 of the contract) on the CPU: the one place where modes `fast` and `turbo` multiply there.

use dittograd_device::cpu::gemm::Gemm;
use dittograd_device::cpu::simd::Simd;
use dittograd_device::cpu::threads::Pool;
use dittograd_numerics::digits::{self, Digits};

/// Words of workspace that [`cpu_product`] needs.
pub(super) fn cpu_workspace(_gemm: &Gemm, _digits: Digits, _threads: usize) -> usize {
    0
}

/// The products of a batch, without a bias. By the definition, which is slow.
#[allow(clippy::too_many_arguments)]
pub(super) fn cpu_product(
    gemm: &Gemm,
    digits: Digits,
    _pool: &Pool,
    _simd: Simd,
    a: &[f32],
    b: &[f32],
    out: &mut [f32],
    _workspace: &mut [f32],
) {
    let Gemm { m, n, k, ta, tb, .. } = *gemm;
    for (t, out) in out.chunks_exact_mut(m * n).enumerate() {
        let (a, b) = (&a[t * m * k..][..m * k], &b[t * k * n..][..k * n]);
        digits::product(digits, [m, n, k], [ta, tb], a, b, out);
    }
}
