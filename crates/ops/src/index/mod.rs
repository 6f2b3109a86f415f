//! Gathers and scatters: ops that read elements given by indices, or combine others with them. Casts between indices and
//! numbers.
//!
//! An index that is not below the size of its axis is an error if the op is `checked`
//! ([`Op::index_limit`](crate::Op::index_limit)). Otherwise a gather gives zero there and a scatter drops the element.
//! Elements that go to one place are combined with it in increasing source order.

/// Attributes that all ops here share.
macro_rules! attr_methods {
    ($op:ident: $($attr:ident),*) => {
        fn attrs(&self) -> Vec<(&'static str, Attr)> {
            vec![$((stringify!($attr), Attr::Num(self.$attr as f64)),)* ("checked", Attr::Bool(self.checked))]
        }

        fn from_attrs(attrs: &Attrs) -> Result<$op> {
            attrs.only(&[$(stringify!($attr),)* "checked"])?;
            Ok($op { $($attr: attrs.whole(stringify!($attr))?,)* checked: attrs.flag("checked")? })
        }
    };
}

mod accumulate;
#[cfg(feature = "cases")]
mod cases;
mod cast;
mod flat;
mod gather;
mod last;
mod reduce;
mod scatter;
pub(crate) mod sort;

pub use accumulate::Combine;
pub use cast::{IndexEq, ToFloat, ToIndex};
pub use flat::FlatIndex;
pub use gather::{IndexSelect, TakeAlongAxis};
pub use last::ScatterLast;
pub use reduce::ScatterReduce;
pub use scatter::{IndexAdd, ScatterAdd};

use crate::mismatch;
use dittograd_device::cuda::Source;
use dittograd_numerics::error::{Error, ErrorKind, Result};
use dittograd_numerics::shape::Shape;

const INDEX_CU: &str = concat!(include_str!("../divide.cu"), include_str!("index.cu"));

fn module() -> Source {
    ("index".into(), INDEX_CU)
}

/// How a value and its indices are laid out: the value is (outer, size, inner), the gathered or added elements are
/// (outer, count, inner).
#[derive(Clone, Copy)]
struct Layout {
    outer: usize,
    size: usize,
    count: usize,
    inner: usize,
}

impl Layout {
    /// The layout for a value of shape `long` with `count` indices along `axis`.
    fn new(long: &Shape, axis: usize, count: usize) -> Layout {
        let d = long.dims();
        let (outer, inner) = (d[..axis].iter().product(), d[axis + 1..].iter().product());
        Layout { outer, size: d[axis], count, inner }
    }

    /// Words per thread of a kernel that moves rows: 4 if rows are divisible by four, else 1.
    fn width(&self) -> usize {
        if self.inner.is_multiple_of(4) { 4 } else { 1 }
    }
}

fn axis_of(op: &'static str, x: &Shape, axis: usize) -> Result<()> {
    if axis >= x.rank() {
        return Err(Error::new(op, ErrorKind::Axis { axis, shape: *x }));
    }
    size_fits(op, x.dims()[axis])
}

/// Errors if indices do not fit in 32 bits. The largest u32 is reserved to mean "nowhere".
fn size_fits(op: &'static str, size: usize) -> Result<()> {
    if size < u32::MAX as usize {
        return Ok(());
    }
    Err(Error::argument(op, "axis", format!("has {size} elements, which indices of 32 bits cannot reach")))
}

/// The concatenated dimensions as a shape; errors carry the op's name.
fn shape_of(op: &'static str, pieces: [&[usize]; 3]) -> Result<Shape> {
    Shape::new(&pieces.concat()).map_err(|e| Error::new(op, e.kind().clone()))
}

/// The fewest words a task of the thread pool takes.
const MIN_WORDS_PER_TASK: usize = 16 * 1024;

/// Errors unless `index` has the dimensions of `x` except along `axis`.
fn along(op: &'static str, x: &Shape, index: &Shape, axis: usize) -> Result<()> {
    let same = x.rank() == index.rank() && (0..x.rank()).all(|a| a == axis || x.dims()[a] == index.dims()[a]);
    if same {
        return Ok(());
    }
    Err(mismatch(op, "the indices must have the value's dimensions except along the axis", *x, *index))
}
