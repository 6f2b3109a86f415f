//! Elementwise methods. Those of the table are made from its rows: `x.tanh()`, `a.add(b)`,
//! `x.clamp(lo, hi)`, `cond.where_(a, b)`; scalars come before further values.

use super::Var;
use dittograd_numerics::environment::single;
use dittograd_numerics::error::Result;
use dittograd_ops::pointwise;

/// The example of the methods that are used most.
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

macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident $op:ident { $($attr:ident),* } ($($rest:ident),*);)*) => {
        /// # Elementwise
        ///
        /// Numbers come before further values: `x.clamp(lo, hi)`, `cond.where_(a, b)`.
        // The operators of the standard library are there too; methods chain without parentheses.
        #[allow(clippy::should_implement_trait)]
        impl<'s> Var<'s> {$(
            $(#[$doc])*
            #[doc = example!($name)]
            $(#[doc = concat!("\n\nBroadcasts with `", stringify!($rest), "` by NumPy's rule.")])*
            pub fn $name(self $(, $attr: f64)* $(, $rest: Var<'s>)*) -> Result<Var<'s>> {
                self.session().apply(pointwise::$op { $($attr: single($attr)),* }, &[self $(, $rest)*])
            }
        )*}
    };
}
dittograd_ops::with_rows!(methods);

/// # More elementwise operations
impl<'s> Var<'s> {
    /// The larger of two, NaN if either is: [`Var::max`] under its other name. In [`Var::fmax`] a number wins over NaN.
    pub fn maximum(self, other: Var<'s>) -> Result<Var<'s>> {
        self.max(other)
    }

    /// The smaller of two, NaN if either is: [`Var::min`] under its other name. In [`Var::fmin`] a number wins over NaN.
    pub fn minimum(self, other: Var<'s>) -> Result<Var<'s>> {
        self.min(other)
    }

    /// The value, with `value` where `mask` is not 0. The mask broadcasts by NumPy's rule.
    pub fn masked_fill(self, mask: Var<'s>, value: f64) -> Result<Var<'s>> {
        mask.where_(self.session().full(&[], value)?, self)
    }

    /// From the value at `weight` 0 to `end` at 1, in a straight line: `x + weight (end - x)`, the product and the last
    /// sum with one rounding.
    pub fn lerp(self, weight: f64, end: Var<'s>) -> Result<Var<'s>> {
        self.axpy(weight, end.sub(self)?)
    }

    /// 1 where an element is NaN, else 0.
    pub fn isnan(self) -> Result<Var<'s>> {
        self.ne(self)
    }

    /// `x` held between -1 and 1: [`Var::clamp`].
    pub fn hardtanh(self) -> Result<Var<'s>> {
        self.clamp(-1.0, 1.0)
    }

    /// `x` held between 0 and 6: [`Var::clamp`].
    pub fn relu6(self) -> Result<Var<'s>> {
        self.clamp(0.0, 6.0)
    }
}
