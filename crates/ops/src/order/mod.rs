//! Order along the last axis: sorting, the largest or smallest elements, running extremes, and searches in sorted
//! values. All of them give positions as indices; the elements there are gathered by
//! [`TakeAlongAxis`](crate::index::TakeAlongAxis), which has the gradient.
//!
//! Numbers are ordered by integer keys: -0 equals +0, and NaN is larger than every number. Equal elements keep the
//! order of their positions, so every result is unique and no kernel can give another one.

#[cfg(feature = "cases")]
mod cases;
mod cpu;
mod running;
mod search;
mod sort;
mod topk;

pub use running::RunningExtremum;
pub use search::SearchSorted;
pub use sort::ArgSort;
pub use topk::TopK;

use crate::floats;
use dittograd_device::Meta;
use dittograd_device::cuda::Source;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::ordered;
use dittograd_numerics::scalar::Scalar;
use dittograd_numerics::shape::Shape;
use std::cmp::Ordering;

const ORDER_CU: &str = include_str!("order.cu");

fn module() -> Source {
    ("order".into(), ORDER_CU)
}

/// Most elements that one block sorts in shared memory.
const MAX_BLOCK_SORT: usize = 4096;

/// A word that orders as the numbers do: -0 as +0, NaN above everything.
#[inline(always)]
fn key(x: f32) -> u32 {
    if x.is_nan() { u32::MAX } else { ordered(x + 0.0) }
}

/// The order of two numbers in the references: NaN is the largest.
fn compare<T: Scalar>(a: T, b: T) -> Ordering {
    #[allow(clippy::eq_op)]
    let nan = |x: T| x != x;
    a.partial_cmp(&b).unwrap_or_else(|| nan(a).cmp(&nan(b)))
}

/// The positions of a row in its order.
fn sorted_positions<T: Scalar>(row: &[T], descending: bool) -> Vec<usize> {
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|&a, &b| match descending {
        true => compare(row[b], row[a]),
        false => compare(row[a], row[b]),
    });
    order
}

/// The shape of the one input of numbers, which has a last axis that 32 bits can count.
fn lines(op: &'static str, ins: &[Meta]) -> Result<Shape> {
    let [x] = floats(op, ins)?;
    if x.rank() == 0 {
        return Err(Error::new(op, ErrorKind::Rank { want: "at least 1", got: x }));
    }
    countable(op, x.numel().max(x.last()))?;
    Ok(x)
}

/// Errors if so many elements cannot be counted in 32 bits.
fn countable(op: &'static str, count: usize) -> Result<()> {
    if count < u32::MAX as usize {
        return Ok(());
    }
    Err(Error::argument(op, "input", format!("has {count} elements, more than 32 bits can count; split it")))
}

/// The shape with another size of its last axis.
fn with_last(op: &'static str, shape: &Shape, last: usize) -> Result<Shape> {
    let lead = &shape.dims()[..shape.rank() - 1];
    Shape::new(&[lead, &[last]].concat()).map_err(|e| Error::new(op, e.kind().clone()))
}
