//! Ops that rearrange, repeat or relabel elements without changing them.

mod broadcast;
#[cfg(feature = "cases")]
mod cases;
mod concat;
mod flip;
mod pad;
mod permute;
mod reshape;
mod run;
mod slice;
mod triangle;

use crate::pointwise::map::Access;
use crate::reduce::Sum;
use crate::{PerInput, Recorder, Val};
pub use broadcast::BroadcastTo;
pub use concat::Concat;
use dittograd_numerics::error::{Error, Result};
use dittograd_numerics::shape::{MAX_RANK, Shape};
pub use flip::Flip;
pub use pad::Pad;
pub use permute::Permute;
pub use reshape::{Detach, Reshape};
pub use slice::Slice;
pub use triangle::Triangle;

/// For each axis of a broadcast value: the input axis it reads, or `None` if the axis is new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AxisMap {
    axes: [Option<u8>; MAX_RANK],
    rank: u8,
}

impl AxisMap {
    /// The map with the given entries, one per output axis.
    pub fn new(axes: &[Option<usize>]) -> Result<AxisMap> {
        if axes.len() > MAX_RANK || axes.iter().flatten().any(|&a| a >= MAX_RANK) {
            return Err(Error::argument(
                "broadcast_to",
                "map",
                format!("{axes:?} has axes beyond {MAX_RANK}"),
            ));
        }
        let mut out = [None; MAX_RANK];
        for (o, a) in out.iter_mut().zip(axes) {
            *o = a.map(|a| a as u8);
        }
        Ok(AxisMap { axes: out, rank: axes.len() as u8 })
    }

    /// The entries, one per output axis.
    pub fn entries(&self) -> impl Iterator<Item = Option<usize>> + '_ {
        self.axes[..self.rank as usize].iter().map(|a| a.map(usize::from))
    }

    /// The input's strides along the output's axes.
    fn access(&self, from: &Shape) -> Access {
        let strides = from.strides();
        let mut access = [0; MAX_RANK];
        for (a, entry) in access.iter_mut().zip(self.entries()) {
            if let Some(axis) = entry.filter(|&axis| from.dims()[axis] != 1) {
                *a = strides[axis];
            }
        }
        access
    }
}

// Keep in step with `MOST_AXES` in the kernels.
const _: () = assert!(MAX_RANK == 10);

/// The start of each part of a packed value, and the total number of words. An op with several results packs them one
/// after another into a flat value. Each part starts at a multiple of four words, so that kernels can use vector loads.
/// The words between parts are zero.
#[doc(hidden)]
pub fn packed(parts: &[Shape]) -> (PerInput<usize>, usize) {
    let mut starts = PerInput::new(parts.len(), 0);
    let mut end = 0;
    for (start, s) in starts.all_mut().iter_mut().zip(parts) {
        *start = end;
        end += s.numel().next_multiple_of(4);
    }
    (starts, end)
}

/// Part `i` of a packed value. It shares memory with the value.
#[doc(hidden)]
pub fn part(r: &mut dyn Recorder, value: Val, parts: &[Shape], i: usize) -> Result<Val> {
    let slice = Slice { axis: 0, start: packed(parts).0[i], len: parts[i].numel(), step: 1 };
    let flat = r.record(slice.into(), &[value])?;
    reshape_to(r, flat, parts[i])
}

/// `v` reshaped to `shape`. Records nothing if it has that shape already.
#[doc(hidden)]
pub fn reshape_to(r: &mut dyn Recorder, v: Val, shape: Shape) -> Result<Val> {
    if r.meta(v).shape == shape { Ok(v) } else { r.record(Reshape { shape }.into(), &[v]) }
}

/// `v` broadcast to `shape` by NumPy's rule. Records nothing if it has that shape already.
pub(crate) fn broadcast_to(r: &mut dyn Recorder, v: Val, shape: Shape) -> Result<Val> {
    let from = r.meta(v).shape;
    if from == shape { Ok(v) } else { r.record(BroadcastTo::numpy(&from, shape).into(), &[v]) }
}

/// The axes of `from` along which NumPy's broadcasting repeats a value of shape `shape`, which broadcasts to it.
#[doc(hidden)]
pub fn broadcast_axes(from: &Shape, shape: &Shape) -> Vec<usize> {
    let shift = from.rank() - shape.rank();
    (0..from.rank()).filter(|&a| a < shift || (shape.dims()[a - shift] == 1 && from.dims()[a] != 1)).collect()
}

/// The adjoint of NumPy's broadcasting: `v` summed down to `shape`.
pub(crate) fn sum_to(r: &mut dyn Recorder, v: Val, shape: Shape) -> Result<Val> {
    let from = r.meta(v).shape;
    if from == shape {
        return Ok(v);
    }
    let axes = broadcast_axes(&from, &shape);
    let sum = if axes.is_empty() { v } else { r.record(Sum::new(&axes)?.into(), &[v])? };
    reshape_to(r, sum, shape)
}
