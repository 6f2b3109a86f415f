//! dittograd as a Python package: sessions, tensors, and functions with the names and arguments of PyTorch's.

mod arguments;
mod arrays;
mod device;
mod dlpack;
mod errors;
mod functions;
mod graph;
mod held;
mod optim;
mod params;
mod record;
mod session;
mod step;
mod tensor;

use pyo3::prelude::*;

#[pymodule]
mod _native {
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("NUMERICS_VERSION", dittograd::numerics::NUMERICS_VERSION)
    }

    // Functions of `torch`.
    #[pymodule_export]
    use crate::functions::creation::creation;
    #[pymodule_export]
    use crate::functions::elementwise::elementwise;
    #[pymodule_export]
    use crate::functions::fft::frames;
    #[pymodule_export]
    use crate::functions::indexing::indexing;
    #[pymodule_export]
    use crate::functions::nn_native::nn_native;
    #[pymodule_export]
    use crate::functions::order::order;
    #[pymodule_export]
    use crate::functions::products::products;
    #[pymodule_export]
    use crate::functions::reductions::reductions;
    #[pymodule_export]
    use crate::functions::shapes::shapes;

    // Functions of its namespaces.
    #[pymodule_export]
    use crate::functions::fft::fft;
    #[pymodule_export]
    use crate::functions::linalg::linalg;
    #[pymodule_export]
    use crate::functions::nn_activations::nn_activations;
    #[pymodule_export]
    use crate::functions::nn_images::nn_images;
    #[pymodule_export]
    use crate::functions::nn_layers::nn_layers;
    #[pymodule_export]
    use crate::functions::nn_losses::nn_losses;
    #[pymodule_export]
    use crate::functions::nn_norms::nn_norms;
    #[pymodule_export]
    use crate::functions::special::special;

    #[pymodule_export]
    use crate::device::Device;
    #[pymodule_export]
    use crate::graph::{Function, Graph};
    #[pymodule_export]
    use crate::optim::Optimizer;
    #[pymodule_export]
    use crate::params::{Param, Params};
    #[pymodule_export]
    use crate::session::Session;
    #[pymodule_export]
    use crate::step::TrainStep;
    #[pymodule_export]
    use crate::tensor::Tensor;
}
