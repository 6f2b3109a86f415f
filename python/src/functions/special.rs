//! Functions of PyTorch's `torch.special` that are not among those of each element.

use crate::functions::elementwise::{of_each_element, of_pairs};
use pyo3::prelude::*;

/// The functions without further arguments.
mod plain {
    use super::*;
    of_each_element! {
        /// `-x ln x`: 0 at zero, `-inf` below.
        entr;
        /// `e^(x²) erfc(x)`, which does not underflow.
        erfcx;
        /// Another name of `sigmoid`.
        expit = sigmoid;
        /// Another name of `lgamma`.
        gammaln = lgamma;
        /// `e^-|x| i0(x)`.
        i0e;
        /// The modified Bessel function of the first kind, of order 1.
        i1;
        /// `e^-|x| i1(x)`.
        i1e;
        /// The logarithm of `ndtr`, accurate where that is small.
        log_ndtr;
        /// Another name of `i0`.
        modified_bessel_i0 = i0;
        /// Another name of `i1`.
        modified_bessel_i1 = i1;
        /// The distribution function of the standard normal distribution.
        ndtr;
        /// The inverse of `ndtr`.
        ndtri;
        /// Another name of `digamma`.
        psi = digamma;
        /// `sin(x) / x`, 1 at zero.
        spherical_bessel_j0;
    }
}

/// The functions of two tensors without further arguments.
mod pairs {
    use super::*;
    of_pairs! {
        /// `input * ln(1 + other)`, 0 where `input` is 0 and `other` is not NaN.
        xlog1py(other);
    }
}

#[pymodule]
pub mod special {
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::plain::register(module)?;
        super::pairs::register(module)
    }
}
