//! Functions that look up and place elements by index or mask.

use pyo3::prelude::*;

#[pymodule]
pub mod indexing {
    use crate::arguments::{Operand, refs};
    use crate::functions::axes::of_vectors;
    use crate::functions::elementwise::mixed;
    use crate::tensor::{Answer, Tensor, many, one};
    use dittograd::error::Result;
    use dittograd::session::{Reduce, Var};
    use dittograd::tensor::Tensor as Host;
    use pyo3::exceptions::{PyNotImplementedError, PyValueError};
    use pyo3::prelude::*;

    /// Elements along an axis, each at its own index.
    #[pyfunction]
    fn gather(input: &Tensor, dim: i64, index: &Tensor) -> Answer {
        one(&[input, index], |v| {
            let dims = v[1].shape()?;
            if dims.numel() == 0 {
                return v[0].session().zeros(dims.dims());
            }
            v[0].atleast_1d()?.gather(dim, v[1].atleast_1d()?)?.reshape(dims.dims())
        })
    }

    /// Elements at indices of the tensor as one list.
    #[pyfunction]
    fn take(input: &Tensor, index: &Tensor) -> Answer {
        one(&[input, index], |v| v[0].take(v[1]))
    }

    /// Elements along an axis, each at its own index; the other axes broadcast. Without an axis, of the tensor as one list.
    #[pyfunction]
    #[pyo3(signature = (input, indices, dim=None))]
    fn take_along_dim(input: &Tensor, indices: &Tensor, dim: Option<i64>) -> Answer {
        one(&[input, indices], |v| match dim {
            Some(dim) => v[0].take_along_axis(dim, v[1]),
            None => v[0].flatten()?.take_along_axis(0, v[1].flatten()?),
        })
    }

    /// Slices of an axis at indices.
    #[pyfunction]
    fn index_select(input: &Tensor, dim: i64, index: &Tensor) -> Answer {
        one(&[input, index], |v| of_vectors(v, |v| v[0].index_select(dim, v[1].atleast_1d()?)))
    }

    /// The tensor with slices added at indices of an axis.
    #[pyfunction]
    #[pyo3(signature = (input, dim, index, source, *, alpha=1.0))]
    fn index_add(input: &Tensor, dim: i64, index: &Tensor, source: &Tensor, alpha: f64) -> Answer {
        one(&[input, index, source], |v| {
            of_vectors(v, |v| {
                let source = if alpha == 1.0 { v[2] } else { v[2].scale(alpha)? };
                v[0].index_add(dim, v[1].atleast_1d()?, source)
            })
        })
    }

    /// The tensor with slices replaced at indices of an axis; the last one of several wins.
    #[pyfunction]
    fn index_copy(input: &Tensor, dim: i64, index: &Tensor, source: &Tensor) -> Answer {
        one(&[input, index, source], |v| of_vectors(v, |v| v[0].index_copy(dim, v[1].atleast_1d()?, v[2])))
    }

    /// The tensor with a number in the slices at indices of an axis.
    #[pyfunction]
    fn index_fill(input: &Tensor, dim: i64, index: &Tensor, value: Operand<'_>) -> Answer {
        match value {
            Operand::Number(n) => {
                one(&[input, index], |v| of_vectors(v, |v| v[0].index_fill(dim, v[1].atleast_1d()?, n)))
            }
            Operand::Tensor(t) => one(&[input, index, &t], |v| {
                of_vectors(&v[..2], |x| x[0].index_fill_with(dim, x[1].atleast_1d()?, v[2]))
            }),
        }
    }

    /// The reduction of this name.
    fn reduction(name: &str) -> PyResult<Reduce> {
        match name {
            "sum" | "add" => Ok(Reduce::Sum),
            "mean" => Ok(Reduce::Mean),
            "prod" | "multiply" => Ok(Reduce::Prod),
            "amax" => Ok(Reduce::Amax),
            "amin" => Ok(Reduce::Amin),
            other => Err(PyValueError::new_err(format!(
                "reduce is {other:?}; use \"sum\", \"mean\", \"prod\", \"amax\" or \"amin\""
            ))),
        }
    }

    /// The tensor with slices reduced into those at indices of an axis.
    #[pyfunction]
    #[pyo3(signature = (input, dim, index, source, reduce, *, include_self=true))]
    fn index_reduce(
        input: &Tensor,
        dim: i64,
        index: &Tensor,
        source: &Tensor,
        reduce: &str,
        include_self: bool,
    ) -> Answer {
        let reduce = reduction(reduce)?;
        one(&[input, index, source], |v| {
            of_vectors(v, |v| v[0].index_reduce(dim, v[1].atleast_1d()?, v[2], reduce, include_self))
        })
    }

    /// The tensor with elements replaced along an axis, each at its own index, by those of `src` or by a number; the last one of
    /// several wins. With `reduce` they are added ("add") or multiplied ("multiply").
    #[pyfunction]
    #[pyo3(signature = (input, dim, index, src=None, *, value=None, reduce=None))]
    fn scatter(
        input: &Tensor,
        dim: i64,
        index: &Tensor,
        src: Option<Operand<'_>>,
        value: Option<f64>,
        reduce: Option<&str>,
    ) -> Answer {
        let src = match (src, value) {
            (Some(src), None) => src,
            (None, Some(value)) => Operand::Number(value),
            (Some(_), Some(_)) | (None, None) => {
                return Err(PyValueError::new_err("scatter: give either src or value"));
            }
        };
        let reduce = reduce.map(reduction).transpose()?;
        fn with<'s>(v: &[Var<'s>], dim: i64, reduce: Option<Reduce>) -> Result<Var<'s>> {
            match reduce {
                None => v[0].scatter(dim, v[1], v[2]),
                Some(reduce) => v[0].scatter_reduce(dim, v[1], v[2], reduce, true),
            }
        }
        match src {
            Operand::Tensor(t) => one(&[input, index, &t], |v| of_vectors(v, |v| with(v, dim, reduce))),
            Operand::Number(n) => one(&[input, index], |v| {
                let src = v[0].session().full(v[1].shape()?.dims(), n)?;
                of_vectors(&[v[0], v[1], src], |v| with(v, dim, reduce))
            }),
        }
    }

    /// The tensor with elements added along an axis, each at its own index.
    #[pyfunction]
    fn scatter_add(input: &Tensor, dim: i64, index: &Tensor, src: &Tensor) -> Answer {
        one(&[input, index, src], |v| of_vectors(v, |v| v[0].scatter_add(dim, v[1], v[2])))
    }

    /// The tensor with elements reduced along an axis, each at its own index.
    #[pyfunction]
    #[pyo3(signature = (input, dim, index, src, reduce, *, include_self=true))]
    fn scatter_reduce(
        input: &Tensor,
        dim: i64,
        index: &Tensor,
        src: &Tensor,
        reduce: &str,
        include_self: bool,
    ) -> Answer {
        let reduce = reduction(reduce)?;
        one(&[input, index, src], |v| {
            of_vectors(v, |v| v[0].scatter_reduce(dim, v[1], v[2], reduce, include_self))
        })
    }

    /// The tensor with `values` put at indices of its first axes; a mask stands for the indices where it is not 0. The last one of
    /// several wins, or all are added.
    #[pyfunction]
    #[pyo3(signature = (input, indices, values, accumulate=false))]
    fn index_put(input: &Tensor, indices: Vec<Py<Tensor>>, values: &Tensor, accumulate: bool) -> Answer {
        let all = [&[input, values], &refs(&indices)[..]].concat();
        one(&all, |v| v[0].index_put(&v[2..], v[1], accumulate))
    }

    /// The tensor with the elements of `source` put at indices of the tensor as one list; the last one of several wins, or all are
    /// added.
    #[pyfunction]
    #[pyo3(signature = (input, index, source, accumulate=false))]
    fn put(input: &Tensor, index: &Tensor, source: &Tensor, accumulate: bool) -> Answer {
        one(&[input, index, source], |v| v[0].put(v[1], v[2], accumulate))
    }

    /// `value` where the mask is not 0, otherwise the input.
    #[pyfunction]
    fn masked_fill(input: &Tensor, mask: &Tensor, value: Operand<'_>) -> Answer {
        match value {
            Operand::Number(n) => one(&[input, mask], |v| v[0].masked_fill(v[1], n)),
            Operand::Tensor(t) => one(&[input, mask, &t], |v| v[1].where_(v[2], v[0])),
        }
    }

    /// The tensor with the elements where the mask is not 0 replaced by the first elements of `source`.
    #[pyfunction]
    fn masked_scatter(input: &Tensor, mask: &Tensor, source: &Tensor) -> Answer {
        one(&[input, mask, source], |v| {
            let both = v[0].session().broadcast_tensors(&v[..2])?;
            both[0].masked_scatter(both[1], v[2])
        })
    }

    /// The elements where the mask is not 0, as a vector.
    #[pyfunction]
    fn masked_select(input: &Tensor, mask: &Tensor) -> Answer {
        one(&[input, mask], |v| v[0].masked_select(v[1]))
    }

    /// One tensor or several.
    #[derive(IntoPyObject)]
    enum Found {
        One(Tensor),
        Many(Vec<Tensor>),
    }

    /// The indices of the elements that are not 0: a row for each, or with `as_tuple` a vector for each axis.
    #[pyfunction]
    #[pyo3(signature = (input, *, as_tuple=false))]
    fn nonzero(input: &Tensor, as_tuple: bool) -> PyResult<Found> {
        if !as_tuple {
            return argwhere(input).map(Found::One);
        }
        many(&[input], |v| v[0].atleast_1d()?.nonzero()?.unbind(1)).map(Found::Many)
    }

    /// The indices of the elements that are not 0, a row for each.
    #[pyfunction]
    fn argwhere(input: &Tensor) -> Answer {
        one(&[input], |v| v[0].nonzero())
    }

    /// The first `size` rows of `nonzero`; rows that are missing are filled with an index.
    #[pyfunction]
    #[pyo3(signature = (input, *, size, fill_value=-1))]
    fn nonzero_static(input: &Tensor, size: usize, fill_value: i64) -> Answer {
        let have = argwhere(input)?.dims()?[0];
        let fill = match u32::try_from(fill_value) {
            Ok(fill) => fill,
            Err(_) if size <= have => 0,
            Err(_) => {
                return Err(PyNotImplementedError::new_err(format!(
                    "fill_value {fill_value} for the rows that are missing: indices are not negative; give one from 0 up"
                )));
            }
        };
        one(&[input], |v| v[0].nonzero_static(size, fill))
    }

    /// `input` where the condition is not 0, otherwise `other`. With the condition alone, the indices where it is not 0, a vector
    /// for each axis.
    #[pyfunction]
    #[pyo3(name = "where", signature = (condition, input=None, other=None))]
    fn choose(
        condition: &Bound<'_, Tensor>,
        input: Option<Operand<'_>>,
        other: Option<Operand<'_>>,
    ) -> PyResult<Found> {
        let chosen = match (input, other) {
            (None, None) => return nonzero(condition.get(), true),
            (Some(a), Some(b)) => {
                let condition = Operand::Tensor(condition.borrow());
                mixed(&[&condition, &a, &b], |v| v[0].where_(v[1], v[2]))?
            }
            (Some(_), None) | (None, Some(_)) => {
                return Err(PyValueError::new_err("where: give both input and other, or neither"));
            }
        };
        Ok(Found::One(chosen))
    }

    /// Indices of a tensor of this shape as one list, as a vector of indices for each axis.
    #[pyfunction]
    fn unravel_index(indices: &Tensor, shape: crate::arguments::Dims) -> PyResult<Vec<Tensor>> {
        let shape = crate::arguments::unsigned("shape", &shape.list())?;
        many(&[indices], |v| v[0].unravel_index(&shape))
    }

    /// Elements at indices of these axes, as `x[i, :, j]` selects them.
    #[pyfunction]
    fn _take(input: &Tensor, axes: Vec<usize>, indices: Vec<Py<Tensor>>) -> Answer {
        let all = [&[input], &refs(&indices)[..]].concat();
        one(&all, |v| v[0].index_axes(&axes, &v[1..]))
    }

    /// Indices in the session of a tensor.
    #[pyfunction]
    fn _indices(input: &Tensor, list: Vec<u32>, shape: Vec<usize>) -> Answer {
        one(&[input], |v| v[0].session().indices(&Host::new(&shape, list)?))
    }
}
