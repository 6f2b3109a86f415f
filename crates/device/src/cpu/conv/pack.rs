//! Packing: puts a convolution's kernel into the order in which tiles read it.
#![allow(unsafe_code)]

use super::Gather;
use crate::cpu::kernels::Kernels;

impl Gather {
    /// Packs `rows` rows of the kernel `w` from (`group`, `row`) on, for `len` terms from `k0` on: `vectors` vectors
    /// per term, which hold its rows.
    ///
    /// # Safety
    /// Rows and terms are inside the kernel, `to` points to `len * vectors` vectors, and the processor has the SIMD level of
    /// `kernels`.
    pub(super) unsafe fn pack(
        &self,
        kernels: &Kernels,
        w: *const f32,
        (group, row, rows): (usize, usize, usize),
        (k0, len): (usize, usize),
        vectors: usize,
        to: *mut f32,
    ) {
        let Gather { view, w_strides: [by_group, by_row, by_channel], .. } = *self;
        let taps = view.taps();
        let w = w.wrapping_add(group * by_group + row * by_row);
        let all = view.has_all_taps();
        // SAFETY: upheld by the caller.
        unsafe {
            if all && taps == 1 && by_row == 1 {
                (kernels.pack_copied)(w.wrapping_add(k0 * by_channel), by_channel, rows, vectors, len, to);
                return;
            }
            if !all {
                for tap in 0..taps {
                    let w = w.wrapping_add(view.w_at(tap));
                    for k in (k0 + (tap + taps - k0 % taps) % taps..k0 + len).step_by(taps) {
                        let from = w.wrapping_add(k / taps * by_channel);
                        let to = to.wrapping_add((k - k0) * vectors * kernels.width);
                        for row in 0..rows {
                            *to.add(row) = *from.add(row * by_row);
                        }
                    }
                }
                return;
            }
            let mut k = k0;
            while k < k0 + len {
                let some = self.contiguous_terms(k).min(k0 + len - k);
                let from = w.wrapping_add(k / taps * by_channel + k % taps);
                let to = to.wrapping_add((k - k0) * vectors * kernels.width);
                (kernels.pack_transposed)(from, by_row, rows, vectors, some, to);
                k += some;
            }
        }
    }

    /// How many terms from `k` on are contiguous in the kernel.
    pub(super) fn contiguous_terms(&self, k: usize) -> usize {
        let taps = self.view.taps();
        match (self.view.has_all_taps(), self.w_strides[2] == taps) {
            (true, true) => self.k() - k,
            (true, false) => taps - k % taps,
            (false, _) => 1,
        }
    }
}
