//! Values of several parts, one behind the other: outputs and statistics of a forward pass, gradients of a backward pass.

use crate::{Recorder, Val, dims, layout};
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::{MAX_RANK, Shape};
use dittograd_numerics::tensor::Tensor;

/// The shape of `q` with another last size, or without it.
pub(super) fn like(q: Shape, last: Option<usize>) -> Shape {
    let (mut all, lead) = ([last.unwrap_or(0); MAX_RANK], q.rank() - 1);
    all[..lead].copy_from_slice(&q.dims()[..lead]);
    dims(&all[..lead + usize::from(last.is_some())])
}

/// Parts of the value of [`Attention`] on queries and values of these shapes: outputs, per query the
/// logarithm of the sum of its weights, and per query its largest score.
#[doc(hidden)]
pub fn parts(q: Shape, v: Shape) -> [Shape; 3] {
    [like(q, Some(v.last())), like(q, None), like(q, None)]
}

/// A packed value as its parts, with the words between them zeroed.
pub(super) fn unpack<'a, const N: usize>(out: &'a mut [f32], parts: &[Shape; N]) -> [&'a mut [f32]; N] {
    let mut rest = out;
    parts.map(|s| {
        let (part, tail) = std::mem::take(&mut rest).split_at_mut(s.numel().next_multiple_of(4));
        rest = tail;
        let (part, gap) = part.split_at_mut(s.numel());
        gap.fill(0.0);
        part
    })
}

/// Where the parts of a packed value are that is at `packed`.
pub(super) fn addresses(packed: u64, parts: &[Shape; 3]) -> [u64; 3] {
    let (starts, _) = layout::packed(parts);
    [0, 1, 2].map(|i| packed + starts[i] as u64 * 4)
}

/// The parts one behind the other, as [`layout::packed`] places them.
pub(super) fn pack_reference<T: Scalar>(parts: &[Vec<T>]) -> Result<Tensor<T>> {
    let mut all = Vec::new();
    for part in parts {
        all.extend_from_slice(part);
        all.resize(all.len().next_multiple_of(4), T::c(0.0));
    }
    Tensor::with_shape(dims(&[all.len()]), all)
}

/// The packed value of `parts`, given as values.
pub(super) fn pack(r: &mut dyn Recorder, parts: &[Shape], values: &[Val]) -> Result<Val> {
    let (starts, size) = layout::packed(parts);
    let mut sum = None;
    for (&start, &v) in starts.iter().zip(values) {
        let words = r.meta(v).shape.numel();
        let flat = layout::reshape_to(r, v, dims(&[words]))?;
        let padded = r.record(layout::Pad { axis: 0, start, step: 1, size, value: 0.0 }.into(), &[flat])?;
        sum = Some(match sum {
            None => padded,
            Some(s) => r.record(crate::pointwise::Add {}.into(), &[s, padded])?,
        });
    }
    sum.ok_or_else(|| Error::new("pack", ErrorKind::Internal { what: "no parts" }))
}
