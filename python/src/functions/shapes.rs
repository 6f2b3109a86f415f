//! Functions that move, join, cut and repeat elements.

use pyo3::prelude::*;

#[pymodule]
pub mod shapes {
    use crate::arguments::{Dims, listed, refs, unsigned, variadic};
    use crate::functions::axes::of_vectors;
    // All but padding keep what elements are.
    use crate::tensor::{Answer, Tensor, asked, moved as one, moved_many as many};
    use dittograd::session::PadMode;
    use dittograd::shape::{Position, Shape};
    use pyo3::exceptions::{PyIndexError, PyValueError};
    use pyo3::prelude::*;
    use pyo3::types::PyTuple;

    /// The same elements in row-major order with another shape, a list or separate numbers; one size may be -1, which stands for what
    /// is left.
    #[pyfunction]
    #[pyo3(signature = (input, shape, *more))]
    fn reshape(input: &Tensor, shape: Dims, more: Vec<i64>) -> Answer {
        let shape = listed("shape", shape, more)?;
        one(&[input], |v| v[0].view(&shape))
    }

    /// The same as `reshape`.
    #[pyfunction]
    #[pyo3(signature = (input, size, *more))]
    fn view(input: &Tensor, size: Dims, more: Vec<i64>) -> Answer {
        reshape(input, size, more)
    }

    /// The same elements with the shape of another tensor.
    #[pyfunction]
    fn view_as(input: &Tensor, other: &Tensor) -> Answer {
        one(&[input, other], |v| v[0].view_as(v[1]))
    }

    /// The same as `view_as`.
    #[pyfunction]
    fn reshape_as(input: &Tensor, other: &Tensor) -> Answer {
        view_as(input, other)
    }

    /// The tensor itself: tensors do not change.
    #[pyfunction]
    fn contiguous(input: &Tensor) -> Answer {
        one(&[input], |v| Ok(v[0]))
    }

    /// The tensor itself: tensors do not change.
    #[pyfunction]
    fn clone(input: &Tensor) -> Answer {
        contiguous(input)
    }

    /// Axes of one element, and new ones in front, repeated to these sizes; -1 keeps the size of an axis. The sizes are a list or
    /// separate numbers.
    #[pyfunction]
    #[pyo3(signature = (input, size, *more))]
    fn expand(input: &Tensor, size: Dims, more: Vec<i64>) -> Answer {
        let size = listed("size", size, more)?;
        one(&[input], |v| v[0].expand(&size))
    }

    /// The tensor expanded to the shape of another.
    #[pyfunction]
    fn expand_as(input: &Tensor, other: &Tensor) -> Answer {
        one(&[input, other], |v| v[0].expand_as(v[1]))
    }

    /// The tensor expanded to a shape.
    #[pyfunction]
    fn broadcast_to(input: &Tensor, size: Dims) -> Answer {
        expand(input, size, Vec::new())
    }

    /// The tensors, each expanded to the shape that they have together.
    #[pyfunction]
    #[pyo3(signature = (*tensors))]
    fn broadcast_tensors(tensors: &Bound<'_, PyTuple>) -> PyResult<Vec<Tensor>> {
        many(&refs(&variadic(tensors)?), |v| match v {
            [] => Ok(Vec::new()),
            [first, ..] => first.session().broadcast_tensors(v),
        })
    }

    /// The shape that these shapes have together.
    #[pyfunction]
    #[pyo3(signature = (*shapes))]
    fn broadcast_shapes<'py>(py: Python<'py>, shapes: Vec<Dims>) -> PyResult<Bound<'py, PyTuple>> {
        let mut all = Shape::SCALAR;
        for shape in shapes {
            let shape = Shape::new(&unsigned("shapes", &shape.list())?).map_err(crate::errors::raised)?;
            all = all.broadcast(&shape).map_err(crate::errors::raised)?;
        }
        PyTuple::new(py, all.dims())
    }

    /// The axes in another order: axis `i` of the result is axis `dims[i]`.
    #[pyfunction]
    #[pyo3(signature = (input, dims, *more))]
    fn permute(input: &Tensor, dims: Dims, more: Vec<i64>) -> Answer {
        let dims = listed("dims", dims, more)?;
        one(&[input], |v| v[0].permute(&dims))
    }

    /// Two axes swapped.
    #[pyfunction]
    fn transpose(input: &Tensor, dim0: i64, dim1: i64) -> Answer {
        one(&[input], |v| of_vectors(v, |v| v[0].swap_axes(dim0, dim1)))
    }

    /// A matrix transposed; vectors and scalars as they are.
    #[pyfunction]
    fn t(input: &Tensor) -> Answer {
        match input.rank()? {
            0 | 1 => contiguous(input),
            2 => one(&[input], |v| v[0].transpose()),
            rank => Err(PyValueError::new_err(format!("t is for matrices, not for {rank} axes; use mT"))),
        }
    }

    /// Axes moved to other places; the others keep their order.
    #[pyfunction]
    fn movedim(input: &Tensor, source: Dims, destination: Dims) -> Answer {
        let (source, destination) = (source.list(), destination.list());
        one(&[input], |v| v[0].movedim_axes(&source, &destination))
    }

    /// Without the axes of one element: all of them, or those of `dim`, an axis or several.
    #[pyfunction]
    #[pyo3(signature = (input, dim=None))]
    fn squeeze(input: &Tensor, dim: Option<Dims>) -> Answer {
        match dim.map(Dims::list) {
            None => one(&[input], |v| v[0].squeeze_all()),
            Some(dims) => one(&[input], |v| of_vectors(v, |v| v[0].squeeze_axes(&dims))),
        }
    }

    /// With a new axis of one element before axis `dim`; -1 puts it last.
    #[pyfunction]
    fn unsqueeze(input: &Tensor, dim: i64) -> Answer {
        one(&[input], |v| v[0].unsqueeze(dim))
    }

    /// The axes from `start_dim` to `end_dim`, by default the last, as one.
    #[pyfunction]
    #[pyo3(signature = (input, start_dim=0, end_dim=-1))]
    fn flatten(input: &Tensor, start_dim: i64, end_dim: i64) -> Answer {
        one(&[input], |v| v[0].flatten_axes(start_dim, end_dim))
    }

    /// All elements as one axis.
    #[pyfunction]
    fn ravel(input: &Tensor) -> Answer {
        one(&[input], |v| v[0].flatten())
    }

    /// An axis as several; one of their sizes may be -1.
    #[pyfunction]
    fn unflatten(input: &Tensor, dim: i64, sizes: Dims) -> Answer {
        let sizes = sizes.list();
        one(&[input], |v| v[0].unflatten(dim, &sizes))
    }

    /// One tensor or several.
    #[derive(IntoPyObject)]
    enum Made {
        One(Tensor),
        Many(Vec<Tensor>),
    }

    /// What `f` makes of one tensor, or of each of several.
    fn each(tensors: &Bound<'_, PyTuple>, f: impl Fn(&Tensor) -> Answer) -> PyResult<Made> {
        let single = tensors.len() == 1 && tensors.get_item(0)?.is_instance_of::<Tensor>();
        let mut made: Vec<Tensor> = refs(&variadic(tensors)?).into_iter().map(f).collect::<PyResult<_>>()?;
        match made.pop() {
            Some(last) if single => Ok(Made::One(last)),
            last => Ok(Made::Many(made.into_iter().chain(last).collect())),
        }
    }

    /// Scalars as vectors; other tensors as they are.
    #[pyfunction]
    #[pyo3(signature = (*tensors))]
    fn atleast_1d(tensors: &Bound<'_, PyTuple>) -> PyResult<Made> {
        each(tensors, |t| one(&[t], |v| v[0].atleast_1d()))
    }

    /// Scalars and vectors as rows of a matrix; other tensors as they are.
    #[pyfunction]
    #[pyo3(signature = (*tensors))]
    fn atleast_2d(tensors: &Bound<'_, PyTuple>) -> PyResult<Made> {
        each(tensors, |t| one(&[t], |v| v[0].atleast_2d()))
    }

    /// Scalars and vectors as `(1, N, 1)`, matrices as `(M, N, 1)`; other tensors as they are.
    #[pyfunction]
    #[pyo3(signature = (*tensors))]
    fn atleast_3d(tensors: &Bound<'_, PyTuple>) -> PyResult<Made> {
        each(tensors, |t| one(&[t], |v| v[0].atleast_3d()))
    }

    /// Tensors joined along an axis; their other sizes must be equal. Vectors without elements are left out.
    #[pyfunction]
    #[pyo3(signature = (tensors, dim=0))]
    fn cat(tensors: Vec<Py<Tensor>>, dim: i64) -> Answer {
        let all = refs(&tensors);
        let mut kept = Vec::new();
        for t in &all {
            if t.dims()? != [0] {
                kept.push(*t);
            }
        }
        one(if kept.is_empty() { &all } else { &kept }, |v| v[0].session().concat(v, dim))
    }

    /// Tensors of one shape joined along a new axis `dim`.
    #[pyfunction]
    #[pyo3(signature = (tensors, dim=0))]
    fn stack(tensors: Vec<Py<Tensor>>, dim: i64) -> Answer {
        one(&refs(&tensors), |v| v[0].session().stack(v, dim))
    }

    /// Tensors joined along the second axis, vectors along their only one.
    #[pyfunction]
    fn hstack(tensors: Vec<Py<Tensor>>) -> Answer {
        one(&refs(&tensors), |v| v[0].session().hstack(v))
    }

    /// Tensors joined along the first axis; vectors count as rows.
    #[pyfunction]
    fn vstack(tensors: Vec<Py<Tensor>>) -> Answer {
        one(&refs(&tensors), |v| v[0].session().vstack(v))
    }

    /// Tensors joined along the third axis.
    #[pyfunction]
    fn dstack(tensors: Vec<Py<Tensor>>) -> Answer {
        one(&refs(&tensors), |v| v[0].session().dstack(v))
    }

    /// Vectors as columns, joined with matrices along the second axis.
    #[pyfunction]
    fn column_stack(tensors: Vec<Py<Tensor>>) -> Answer {
        one(&refs(&tensors), |v| v[0].session().column_stack(v))
    }

    /// Matrices along the diagonal of one that is zero elsewhere.
    #[pyfunction]
    #[pyo3(signature = (*tensors))]
    fn block_diag(tensors: &Bound<'_, PyTuple>) -> Answer {
        one(&refs(&variadic(tensors)?), |v| v[0].session().block_diag(v))
    }

    /// All combinations of the elements of vectors, as rows.
    #[pyfunction]
    #[pyo3(signature = (*tensors))]
    fn cartesian_prod(tensors: &Bound<'_, PyTuple>) -> Answer {
        one(&refs(&variadic(tensors)?), |v| v[0].session().cartesian_prod(v))
    }

    /// All choices of `r` elements of a vector, as rows.
    #[pyfunction]
    #[pyo3(signature = (input, r=2, with_replacement=false))]
    fn combinations(input: &Tensor, r: usize, with_replacement: bool) -> Answer {
        one(&[input], |v| v[0].combinations(r, with_replacement))
    }

    /// Coordinates of the grid of vectors: for each of them a tensor with an axis for each. `indexing="xy"` swaps the first two axes.
    #[pyfunction]
    #[pyo3(signature = (*tensors, indexing="ij"))]
    fn meshgrid(tensors: &Bound<'_, PyTuple>, indexing: &str) -> PyResult<Vec<Tensor>> {
        let xy = match indexing {
            "ij" => false,
            "xy" => true,
            other => {
                return Err(PyValueError::new_err(format!("indexing is {other:?}; use \"ij\" or \"xy\"")));
            }
        };
        many(&refs(&variadic(tensors)?), |v| match v {
            [] => Ok(Vec::new()),
            [first, ..] => first.session().meshgrid(v, xy),
        })
    }

    /// An axis cut into at most `chunks` pieces of equal size, as a list; the last one may be shorter.
    #[pyfunction]
    #[pyo3(signature = (input, chunks, dim=0))]
    fn chunk(input: &Tensor, chunks: usize, dim: i64) -> PyResult<Vec<Tensor>> {
        many(&[input], |v| v[0].chunk(dim, chunks))
    }

    /// An axis cut into pieces of one size, of which the last may be shorter, or of given sizes, as a list.
    #[pyfunction]
    #[pyo3(signature = (input, split_size_or_sections, dim=0))]
    fn split(input: &Tensor, split_size_or_sections: Dims, dim: i64) -> PyResult<Vec<Tensor>> {
        match split_size_or_sections {
            Dims::One(size) => {
                let size = unsigned("split_size", &[size])?[0];
                many(&[input], |v| v[0].chunks(dim, size))
            }
            Dims::Many(sizes) => split_with_sizes(input, sizes, dim),
        }
    }

    /// An axis cut into pieces of given sizes.
    #[pyfunction]
    #[pyo3(signature = (input, split_sizes, dim=0))]
    fn split_with_sizes(input: &Tensor, split_sizes: Vec<i64>, dim: i64) -> PyResult<Vec<Tensor>> {
        let sizes = unsigned("split_sizes", &split_sizes)?;
        many(&[input], |v| v[0].split(dim, &sizes))
    }

    /// How to cut an axis: a number of pieces, or the places before which to cut.
    #[derive(FromPyObject)]
    enum Cuts<'py> {
        Given(Dims),
        Tensor(PyRef<'py, Tensor>),
    }

    impl Cuts<'_> {
        fn known(self) -> PyResult<Dims> {
            let found = match self {
                Cuts::Given(dims) => return Ok(dims),
                Cuts::Tensor(t) => asked(&t, |x| x.indices())?,
            };
            let places: Vec<i64> = found.data().iter().map(|&i| i64::from(i)).collect();
            Ok(if found.shape().rank() == 0 { Dims::One(places[0]) } else { Dims::Many(places) })
        }
    }

    /// The size of an axis.
    fn size_of(input: &Tensor, dim: i64) -> PyResult<usize> {
        let dims = input.dims()?;
        let size = dim.among(dims.len()).and_then(|a| dims.get(a));
        size.copied().ok_or_else(|| {
            PyIndexError::new_err(format!("{dim} is no axis of a tensor of {} axes", dims.len()))
        })
    }

    /// Where a slice of an axis begins and ends, as Python's slices say it: negative ends count from the end, all are clamped.
    fn range(input: &Tensor, dim: i64, start: Option<i64>, end: Option<i64>) -> PyResult<(usize, usize)> {
        let size = size_of(input, dim)?;
        let place = |at: i64| at.among(size).unwrap_or(0).min(size);
        let (start, end) = (start.map_or(0, place), end.map_or(size, place));
        Ok((start, end.max(start)))
    }

    /// Cuts an axis before places, negative ones counted from the end.
    fn cut(input: &Tensor, dim: i64, places: &[i64]) -> PyResult<Vec<Tensor>> {
        let size = size_of(input, dim)?;
        let places: Vec<usize> = places.iter().map(|p| p.among(size).unwrap_or(0)).collect();
        many(&[input], |v| v[0].split_at(dim, &places))
    }

    /// An axis cut into a number of pieces, as equal as possible, or before given places.
    #[pyfunction]
    #[pyo3(signature = (input, indices_or_sections, dim=0))]
    fn tensor_split(input: &Tensor, indices_or_sections: Cuts<'_>, dim: i64) -> PyResult<Vec<Tensor>> {
        match indices_or_sections.known()? {
            Dims::One(count) => {
                let count = unsigned("indices_or_sections", &[count])?[0];
                many(&[input], |v| v[0].tensor_split(dim, count))
            }
            Dims::Many(places) => cut(input, dim, &places),
        }
    }

    /// The second axis, of a vector its only one, cut into equal pieces or before given places.
    #[pyfunction]
    fn hsplit(input: &Tensor, indices_or_sections: Dims) -> PyResult<Vec<Tensor>> {
        match indices_or_sections {
            Dims::One(count) => {
                let count = unsigned("indices_or_sections", &[count])?[0];
                many(&[input], |v| v[0].hsplit(count))
            }
            Dims::Many(places) => cut(input, i64::from(input.rank()? > 1), &places),
        }
    }

    /// The first axis cut into equal pieces or before given places.
    #[pyfunction]
    fn vsplit(input: &Tensor, indices_or_sections: Dims) -> PyResult<Vec<Tensor>> {
        match indices_or_sections {
            Dims::One(count) => {
                let count = unsigned("indices_or_sections", &[count])?[0];
                many(&[input], |v| v[0].vsplit(count))
            }
            Dims::Many(places) => cut(input, 0, &places),
        }
    }

    /// The third axis cut into equal pieces or before given places.
    #[pyfunction]
    fn dsplit(input: &Tensor, indices_or_sections: Dims) -> PyResult<Vec<Tensor>> {
        match indices_or_sections {
            Dims::One(count) => {
                let count = unsigned("indices_or_sections", &[count])?[0];
                many(&[input], |v| v[0].dsplit(count))
            }
            Dims::Many(places) => cut(input, 2, &places),
        }
    }

    /// The slices of an axis, which is dropped.
    #[pyfunction]
    #[pyo3(signature = (input, dim=0))]
    fn unbind(input: &Tensor, dim: i64) -> PyResult<Vec<Tensor>> {
        many(&[input], |v| v[0].unbind(dim))
    }

    /// A whole number, or a tensor that holds one.
    #[derive(FromPyObject)]
    enum Start<'py> {
        Number(i64),
        Tensor(PyRef<'py, Tensor>),
    }

    /// `length` elements of an axis from `start`.
    #[pyfunction]
    fn narrow(input: &Tensor, dim: i64, start: Start<'_>, length: usize) -> Answer {
        let start = match start {
            Start::Number(n) => n,
            Start::Tensor(t) => i64::from(asked(&t, |x| x.index_item())?),
        };
        let start = start
            .among(size_of(input, dim)?)
            .ok_or_else(|| PyIndexError::new_err(format!("start is {start}, before the axis begins")))?;
        one(&[input], |v| v[0].narrow(dim, start, length))
    }

    /// The slice at an index of an axis, which is dropped.
    #[pyfunction]
    fn select(input: &Tensor, dim: i64, index: i64) -> Answer {
        one(&[input], |v| v[0].select(dim, index))
    }

    /// Elements of an axis from `start` up to, not including, `end`, one every `step`.
    #[pyfunction]
    #[pyo3(signature = (input, dim=0, start=None, end=None, step=1))]
    fn slice(input: &Tensor, dim: i64, start: Option<i64>, end: Option<i64>, step: usize) -> Answer {
        let (start, end) = range(input, dim, start, end)?;
        one(&[input], |v| v[0].slice(dim, start, end, step))
    }

    /// The tensor with the slice at an index of an axis replaced by `src`.
    #[pyfunction]
    fn select_scatter(input: &Tensor, src: &Tensor, dim: i64, index: i64) -> Answer {
        one(&[input, src], |v| v[0].select_scatter(v[1], dim, index))
    }

    /// The tensor with elements of an axis, as `slice` takes them, replaced by `src`.
    #[pyfunction]
    #[pyo3(signature = (input, src, dim=0, start=None, end=None, step=1))]
    fn slice_scatter(
        input: &Tensor,
        src: &Tensor,
        dim: i64,
        start: Option<i64>,
        end: Option<i64>,
        step: usize,
    ) -> Answer {
        let (start, end) = range(input, dim, start, end)?;
        one(&[input, src], |v| v[0].slice_scatter(v[1], dim, start, end, step))
    }

    /// The tensor with a diagonal of two axes replaced by `src`.
    #[pyfunction]
    #[pyo3(signature = (input, src, offset=0, dim1=0, dim2=1))]
    fn diagonal_scatter(input: &Tensor, src: &Tensor, offset: i64, dim1: i64, dim2: i64) -> Answer {
        one(&[input, src], |v| v[0].diagonal_scatter(v[1], offset, dim1, dim2))
    }

    /// A tensor of these sizes whose element at `i` is element `storage_offset + Σ stride[a] i[a]` of the input as one list.
    #[pyfunction]
    #[pyo3(signature = (input, size, stride, storage_offset=0))]
    fn as_strided(input: &Tensor, size: Vec<usize>, stride: Vec<usize>, storage_offset: usize) -> Answer {
        one(&[input], |v| v[0].as_strided(&size, &stride, storage_offset))
    }

    /// The tensor with the elements that `as_strided` takes replaced by `src`.
    #[pyfunction]
    #[pyo3(signature = (input, src, size, stride, storage_offset=0))]
    fn as_strided_scatter(
        input: &Tensor,
        src: &Tensor,
        size: Vec<usize>,
        stride: Vec<usize>,
        storage_offset: usize,
    ) -> Answer {
        one(&[input, src], |v| v[0].as_strided_scatter(v[1], &size, &stride, storage_offset))
    }

    /// A vector on a diagonal of a matrix, or a diagonal of a matrix as a vector.
    #[pyfunction]
    #[pyo3(signature = (input, diagonal=0))]
    fn diag(input: &Tensor, diagonal: i64) -> Answer {
        one(&[input], |v| v[0].diag(diagonal))
    }

    /// Matrices with the last axis of the input on a diagonal; `dim1` and `dim2` are their axes, by default the last two.
    #[pyfunction]
    #[pyo3(signature = (input, offset=0, dim1=-2, dim2=-1))]
    fn diag_embed(input: &Tensor, offset: i64, dim1: i64, dim2: i64) -> Answer {
        one(&[input], |v| v[0].diag_embed(offset, dim1, dim2))
    }

    /// A matrix with all elements of the input on a diagonal.
    #[pyfunction]
    #[pyo3(signature = (input, offset=0))]
    fn diagflat(input: &Tensor, offset: i64) -> Answer {
        one(&[input], |v| v[0].diagflat(offset))
    }

    /// A diagonal of two axes, as the last axis.
    #[pyfunction]
    #[pyo3(signature = (input, offset=0, dim1=0, dim2=1))]
    fn diagonal(input: &Tensor, offset: i64, dim1: i64, dim2: i64) -> Answer {
        one(&[input], |v| v[0].diagonal(offset, dim1, dim2))
    }

    /// The lower triangle of matrices, zero above the diagonal.
    #[pyfunction]
    #[pyo3(signature = (input, diagonal=0))]
    fn tril(input: &Tensor, diagonal: i64) -> Answer {
        one(&[input], |v| v[0].tril(diagonal))
    }

    /// The upper triangle of matrices, zero below the diagonal.
    #[pyfunction]
    #[pyo3(signature = (input, diagonal=0))]
    fn triu(input: &Tensor, diagonal: i64) -> Answer {
        one(&[input], |v| v[0].triu(diagonal))
    }

    /// The order of elements reversed along axes.
    #[pyfunction]
    #[pyo3(signature = (input, dims, *more))]
    fn flip(input: &Tensor, dims: Dims, more: Vec<i64>) -> Answer {
        let dims = listed("dims", dims, more)?;
        one(&[input], |v| v[0].flip(&dims))
    }

    /// The columns in reverse order.
    #[pyfunction]
    fn fliplr(input: &Tensor) -> Answer {
        one(&[input], |v| v[0].flip(&[1]))
    }

    /// The rows in reverse order.
    #[pyfunction]
    fn flipud(input: &Tensor) -> Answer {
        one(&[input], |v| v[0].flip(&[0]))
    }

    /// Elements shifted along axes, or as one list if none is given; what is pushed out comes back at the other side.
    #[pyfunction]
    #[pyo3(signature = (input, shifts, dims=None))]
    fn roll(input: &Tensor, shifts: Dims, dims: Option<Dims>) -> Answer {
        let (shifts, dims) = (shifts.list(), dims.map_or(Vec::new(), Dims::list));
        one(&[input], |v| match (&shifts[..], &dims[..]) {
            ([shift], []) => v[0].flatten()?.roll(0, *shift)?.view_as(v[0]),
            (shifts, dims) => v[0].roll_axes(dims, shifts),
        })
    }

    /// The tensor turned by `k` quarter turns in the plane of two axes, by default the first two.
    #[pyfunction]
    #[pyo3(signature = (input, k=1, dims=[0, 1]))]
    fn rot90(input: &Tensor, k: i64, dims: [i64; 2]) -> Answer {
        one(&[input], |v| v[0].rot90(k, dims[0], dims[1]))
    }

    /// The whole tensor repeated along each axis; the counts are a list or separate numbers.
    #[pyfunction]
    #[pyo3(signature = (input, repeats, *more))]
    fn repeat(input: &Tensor, repeats: Dims, more: Vec<i64>) -> Answer {
        let repeats = unsigned("repeats", &listed("repeats", repeats, more)?)?;
        one(&[input], |v| v[0].repeat(&repeats))
    }

    /// The whole tensor repeated along its last axes, or along all and new ones.
    #[pyfunction]
    #[pyo3(signature = (input, dims, *more))]
    fn tile(input: &Tensor, dims: Dims, more: Vec<i64>) -> Answer {
        let dims = unsigned("dims", &listed("dims", dims, more)?)?;
        one(&[input], |v| v[0].tile(&dims))
    }

    /// How often to repeat: all elements, or each.
    #[derive(FromPyObject)]
    enum Times<'py> {
        All(usize),
        Each(Vec<usize>),
        Tensor(PyRef<'py, Tensor>),
    }

    /// Each element of an axis repeated; without an axis, of the tensor as one list.
    #[pyfunction]
    #[pyo3(signature = (input, repeats, dim=None, *, output_size=None))]
    fn repeat_interleave(
        input: &Tensor,
        repeats: Times<'_>,
        dim: Option<i64>,
        output_size: Option<usize>,
    ) -> Answer {
        let times = match repeats {
            Times::All(n) => vec![n],
            Times::Each(each) => each,
            Times::Tensor(t) => asked(&t, |x| x.indices())?.data().iter().map(|&n| n as usize).collect(),
        };
        let made = one(&[input], |v| {
            let (x, axis) = match dim {
                Some(dim) => (v[0], dim),
                None => (v[0].flatten()?, 0),
            };
            match &times[..] {
                [n] => x.repeat_interleave(axis, *n),
                each => x.repeat_interleave_by(axis, each),
            }
        })?;
        let size = made.dims()?;
        let axis = dim.unwrap_or(0).among(size.len()).unwrap_or(0);
        match output_size {
            Some(want) if size.get(axis) != Some(&want) => {
                Err(PyValueError::new_err(format!("output_size is {want}, the result has {}", size[axis])))
            }
            _ => Ok(made),
        }
    }

    /// Windows of `size` elements of an axis, one every `step`, as a new last axis.
    #[pyfunction]
    fn unfold(input: &Tensor, dimension: i64, size: usize, step: usize) -> Answer {
        one(&[input], |v| match v[0].shape()?.rank() {
            0 => v[0].atleast_1d()?.unfold(dimension, size, step)?.reshape(&[size]),
            _ => v[0].unfold(dimension, size, step),
        })
    }

    /// The last axes padded with a number: two counts for each axis, from the last one back; negative ones crop.
    #[pyfunction]
    #[pyo3(signature = (input, pad, value=0.0))]
    fn constant_pad_nd(input: &Tensor, pad: Vec<i64>, value: f64) -> Answer {
        crate::tensor::one(&[input], |v| v[0].pad_mode(&pad, PadMode::Constant(value)))
    }
}
