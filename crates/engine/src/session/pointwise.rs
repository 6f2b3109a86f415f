//! Elementwise methods. Those of the table are generated from its rows: `x.tanh()`, `a.add(b)`, `x.clamp(lo, hi)`,
//! `cond.where_(a, b)`. Scalar arguments come before further values.

use super::Var;
use dittograd_device::DType;
use dittograd_numerics::environment::single;
use dittograd_numerics::error::{Error, Located, Result};
use dittograd_numerics::tensor::Tensor;
use dittograd_ops::index::{IndexEq, TakeAlongAxis};
use dittograd_ops::pointwise;

/// Examples for the most common methods.
macro_rules! example {
    (add) => {
        r#"

```
# use dittograd::prelude::*;
# let session = Session::eager(&Device::cpu()?);
let x = session.arange(0.0, 6.0, 1.0)?.reshape(&[2, 3])?; // [[0. 1. 2.] [3. 4. 5.]]
let row = session.constant(&Tensor::new(&[3], vec![-1.0f32, 0.0, 2.0])?)?;
assert_eq!(x.add(row)?.to_string(), "[[-1.  1.  4.]\n [ 2.  4.  7.]]");
# Ok::<(), Error>(())
```"#
    };
    (mul) => {
        r#"

```
# use dittograd::prelude::*;
# let session = Session::eager(&Device::cpu()?);
let x = session.arange(0.0, 6.0, 1.0)?.reshape(&[2, 3])?; // [[0. 1. 2.] [3. 4. 5.]]
let row = session.constant(&Tensor::new(&[3], vec![-1.0f32, 0.0, 2.0])?)?;
assert_eq!(x.mul(row)?.to_string(), "[[-0.  0.  4.]\n [-3.  0. 10.]]");
# Ok::<(), Error>(())
```"#
    };
    (relu) => {
        r#"

```
# use dittograd::prelude::*;
# let session = Session::eager(&Device::cpu()?);
let x = session.constant(&Tensor::new(&[3], vec![-1.0f32, 0.0, 2.0])?)?;
assert_eq!(x.relu()?.to_string(), "[0. 0. 2.]");
# Ok::<(), Error>(())
```"#
    };
    (gelu) => {
        r#"

```
# use dittograd::prelude::*;
# let session = Session::eager(&Device::cpu()?);
let x = session.constant(&Tensor::new(&[3], vec![-1.0f32, 0.0, 2.0])?)?;
assert_eq!(x.gelu()?.to_string(), "[-0.1588  0.      1.9546]");
# Ok::<(), Error>(())
```"#
    };
    ($other:ident) => {
        ""
    };
}

/// Operations that take two values of indices as well.
macro_rules! of_indices {
    (eq, $a:expr, $b:expr) => {
        if $a.is_index()? && $b.is_index()? {
            return $a.index_eq($b);
        }
    };
    (ne, $a:expr, $b:expr) => {
        if $a.is_index()? && $b.is_index()? {
            return $a.index_eq($b)?.scale(-1.0)?.add_scalar(1.0);
        }
    };
    (where_, $condition:expr, $a:expr, $b:expr) => {
        if $a.is_index()? && $b.is_index()? {
            return $condition.index_where($a, $b);
        }
    };
    ($($other:tt)*) => {};
}

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident $op:ident { $($attr:ident),* } ($($rest:ident),*);)*) => {
        /// # Elementwise
        ///
        /// Scalar arguments come before further values: `x.clamp(lo, hi)`, `cond.where_(a, b)`.
        // The operators of the standard library are there too; methods chain without parentheses.
        #[allow(clippy::should_implement_trait)]
        impl<'s> Var<'s> {$(
            $(#[$doc])*
            #[doc = example!($name)]
            $(#[doc = concat!("\n\nBroadcasts with `", stringify!($rest), "` by NumPy's rule.")])*
            #[track_caller]
            pub fn $name(self $(, $attr: f64)* $(, $rest: Var<'s>)*) -> Result<Var<'s>> {
                of_indices!($name, self $(, $rest)*);
                self.session().apply(pointwise::$op { $($attr: single($attr)),* }, &[self $(, $rest)*])
            }
        )*}
    };
}
dittograd_ops::with_rows!(methods);

impl<'s> Var<'s> {
    #[track_caller]
    fn is_index(self) -> Result<bool> {
        Ok(self.meta()?.dtype == DType::U32)
    }

    /// [`Var::eq`] of indices.
    #[track_caller]
    fn index_eq(self, other: Var<'s>) -> Result<Var<'s>> {
        let shape = self.shape()?.broadcast(&other.shape()?);
        let shape = shape.map_err(|e| Error::new("eq", e.kind().clone())).located()?;
        self.session().apply(IndexEq {}, &[self.expand(shape.dims())?, other.expand(shape.dims())?])
    }

    /// [`Var::where_`] of indices. They are only moved: gathered from both values.
    #[track_caller]
    fn index_where(self, a: Var<'s>, b: Var<'s>) -> Result<Var<'s>> {
        const NAME: &str = "where_";
        self.meta()?.dtype.require(DType::F32, NAME, 0)?;
        let session = self.session();
        let all = session.broadcast_tensors(&[self, a, b]);
        let all = all.map_err(|e| Error::new(NAME, e.kind().clone())).located()?;
        let which = all[0].ne(session.scalar(0.0)?)?.to_index_below(2)?.unsqueeze(0)?;
        let both = session.stack(&[all[2], all[1]], 0)?;
        session.apply(TakeAlongAxis { axis: 0, checked: false }, &[both, which])?.squeeze(0)
    }

    /// A number as a scalar of this value's element type.
    #[track_caller]
    pub(super) fn number_like(self, op: &str, number: f64) -> Result<Var<'s>> {
        if !self.is_index()? {
            return self.session().full(&[], number);
        }
        let index = number as u32;
        if f64::from(index) != number {
            let why =
                format!("got {number} for a value of indices, use a whole number from 0 to {}", u32::MAX);
            return Err(Error::argument(op, "value", why));
        }
        self.session().indices(&Tensor::new(&[], vec![index])?)
    }
}

/// # More elementwise operations
impl<'s> Var<'s> {
    /// The larger of two elements, NaN if either is: another name of [`Var::max`]. [`Var::fmax`] prefers a number over
    /// NaN.
    #[track_caller]
    pub fn maximum(self, other: Var<'s>) -> Result<Var<'s>> {
        self.max(other)
    }

    /// The smaller of two elements, NaN if either is: another name of [`Var::min`]. [`Var::fmin`] prefers a number over
    /// NaN.
    #[track_caller]
    pub fn minimum(self, other: Var<'s>) -> Result<Var<'s>> {
        self.min(other)
    }

    /// `value` where `mask` is not 0, otherwise this value, of numbers or indices. The mask broadcasts by NumPy's rule.
    #[track_caller]
    pub fn masked_fill(self, mask: Var<'s>, value: f64) -> Result<Var<'s>> {
        mask.where_(self.number_like("masked_fill", value)?, self)
    }

    /// Linear interpolation from this value (`weight` 0) to `end` (`weight` 1): `x + weight (end - x)`, where the
    /// product and the last sum round once.
    #[track_caller]
    pub fn lerp(self, weight: f64, end: Var<'s>) -> Result<Var<'s>> {
        self.axpy(weight, end.sub(self)?)
    }

    /// 1 where an element is NaN, else 0.
    #[track_caller]
    pub fn isnan(self) -> Result<Var<'s>> {
        self.ne(self)
    }

    /// Clamps `x` to `[-1, 1]`, like [`Var::clamp`].
    #[track_caller]
    pub fn hardtanh(self) -> Result<Var<'s>> {
        self.clamp(-1.0, 1.0)
    }

    /// Clamps `x` to `[0, 6]`, like [`Var::clamp`].
    #[track_caller]
    pub fn relu6(self) -> Result<Var<'s>> {
        self.clamp(0.0, 6.0)
    }
}
