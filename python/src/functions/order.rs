//! Order, selections by value, and counts.

use crate::tensor::Tensor;
use dittograd::prelude::QuantileRule;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// Which quantiles.
#[derive(FromPyObject)]
pub enum Quantiles<'py> {
    Number(f64),
    Tensor(PyRef<'py, Tensor>),
}

/// What a quantile between two elements is.
fn rule(interpolation: &str) -> PyResult<QuantileRule> {
    match interpolation {
        "linear" => Ok(QuantileRule::Linear),
        "lower" => Ok(QuantileRule::Lower),
        "higher" => Ok(QuantileRule::Higher),
        "midpoint" => Ok(QuantileRule::Midpoint),
        "nearest" => Ok(QuantileRule::Nearest),
        other => Err(PyValueError::new_err(format!(
            "interpolation is {other:?}; use \"linear\", \"lower\", \"higher\", \"midpoint\" or \"nearest\""
        ))),
    }
}

/// Bins of a histogram.
#[derive(FromPyObject)]
pub enum Bins<'py> {
    Count(usize),
    Edges(PyRef<'py, Tensor>),
}

/// Bins of a histogram of points.
#[derive(FromPyObject)]
pub enum GridBins<'py> {
    Count(usize),
    Counts(Vec<usize>),
    Edges(Vec<PyRef<'py, Tensor>>),
}

/// The values of `all` (values, inverse, counts), with those of the others that are wanted.
fn chosen<'py>(py: Python<'py>, all: Vec<Tensor>, wanted: [bool; 2]) -> PyResult<Bound<'py, PyAny>> {
    let wanted = [true, wanted[0], wanted[1]];
    let results: Vec<Tensor> = all.into_iter().zip(wanted).filter_map(|(t, w)| w.then_some(t)).collect();
    let results = PyTuple::new(py, results)?;
    if results.len() == 1 { results.get_item(0) } else { Ok(results.into_any()) }
}

#[pymodule]
pub mod order {
    use super::{Bins, GridBins, Quantiles, chosen, rule};
    use crate::arguments::Operand;
    use crate::functions::axes::{Object, along, along_two, named};
    use crate::tensor::{Answer, Tensor, many, one, with_optional};
    use dittograd::prelude::Reduce;
    use dittograd::session::Segments;
    use pyo3::exceptions::PyValueError;
    use pyo3::prelude::*;

    /// The elements along an axis, the last by default, in increasing order or `descending`, and where they were. The result is a pair
    /// `values`, `indices`.
    ///
    /// Equal elements always keep their order, whatever `stable` is.
    #[pyfunction]
    #[pyo3(signature = (input, dim=-1, descending=false, *, stable=false))]
    fn sort<'py>(py: Python<'py>, input: &Tensor, dim: i64, descending: bool, stable: bool) -> Object<'py> {
        let _always = stable;
        named(py, "Places", along_two(input, |x| x.sort(dim, descending))?)
    }

    /// The positions of the elements along an axis, the last by default, in increasing order or `descending`. Equal elements always
    /// keep their order, whatever `stable` is.
    #[pyfunction]
    #[pyo3(signature = (input, dim=-1, descending=false, *, stable=false))]
    fn argsort(input: &Tensor, dim: i64, descending: bool, stable: bool) -> Answer {
        let _always = stable;
        along(input, |x| x.argsort(dim, descending))
    }

    /// The elements sorted along the first axis.
    #[pyfunction]
    fn msort(input: &Tensor) -> Answer {
        along(input, |x| x.msort())
    }

    /// The `k` largest elements along an axis, the last by default, or without `largest` the smallest, and where they are. The result
    /// is a pair `values`, `indices`.
    ///
    /// They are always sorted, whatever `sorted` is.
    #[pyfunction]
    #[pyo3(signature = (input, k, dim=-1, largest=true, sorted=true))]
    fn topk<'py>(
        py: Python<'py>,
        input: &Tensor,
        k: usize,
        dim: i64,
        largest: bool,
        sorted: bool,
    ) -> Object<'py> {
        let _always = sorted;
        named(py, "Places", along_two(input, |x| x.topk(k, dim, largest))?)
    }

    /// The `k`-th smallest element along an axis, the last by default, counted from 1, and where it is. The result is a pair `values`,
    /// `indices`.
    #[pyfunction]
    #[pyo3(signature = (input, k, dim=-1, keepdim=false))]
    fn kthvalue<'py>(py: Python<'py>, input: &Tensor, k: usize, dim: i64, keepdim: bool) -> Object<'py> {
        named(py, "Places", along_two(input, |x| x.kthvalue(k, dim, keepdim))?)
    }

    /// The most frequent element along an axis, the last by default, the smallest of several, and its last position. The result is a
    /// pair `values`, `indices`.
    #[pyfunction]
    #[pyo3(signature = (input, dim=-1, keepdim=false))]
    fn mode<'py>(py: Python<'py>, input: &Tensor, dim: i64, keepdim: bool) -> Object<'py> {
        named(py, "Places", along_two(input, |x| x.mode(dim, keepdim))?)
    }

    /// The median of all elements, or along an axis with its position, as a pair `values`, `indices`; the lower of two in the middle.
    /// With `keepdim` the axis stays, with one element.
    #[pyfunction]
    #[pyo3(signature = (input, dim=None, keepdim=false))]
    fn median<'py>(py: Python<'py>, input: &Tensor, dim: Option<i64>, keepdim: bool) -> Object<'py> {
        match dim {
            Some(dim) => named(py, "Places", along_two(input, |x| x.median(dim, keepdim))?),
            None => {
                let value = one(&[input], |v| Ok(v[0].flatten()?.median(0, false)?.0))?;
                Ok(Bound::new(py, value)?.into_any())
            }
        }
    }

    /// Like `median`, of the elements that are not NaN.
    #[pyfunction]
    #[pyo3(signature = (input, dim=None, keepdim=false))]
    fn nanmedian<'py>(py: Python<'py>, input: &Tensor, dim: Option<i64>, keepdim: bool) -> Object<'py> {
        match dim {
            Some(dim) => named(py, "Places", along_two(input, |x| x.nanmedian(dim, keepdim))?),
            None => {
                let value = one(&[input], |v| Ok(v[0].flatten()?.nanmedian(0, false)?.0))?;
                Ok(Bound::new(py, value)?.into_any())
            }
        }
    }

    fn quantiles(
        input: &Tensor,
        q: Quantiles<'_>,
        dim: Option<i64>,
        keepdim: bool,
        interpolation: &str,
        skip_nans: bool,
    ) -> Answer {
        let (rule, rank) = (rule(interpolation)?, input.rank()?);
        let (number, list) = match &q {
            Quantiles::Number(number) => (*number, None),
            Quantiles::Tensor(list) => (0.0, Some(&**list)),
        };
        let flat = dim.is_none() || rank == 0;
        with_optional(input, &[list], |x, q| {
            let (x, dim, kept) = if flat { (x.flatten()?, 0, false) } else { (x, dim.unwrap_or(0), keepdim) };
            let value = match q[0] {
                Some(q) if skip_nans => x.nanquantile_by(q, dim, kept, rule)?,
                Some(q) => x.quantile_by(q, dim, kept, rule)?,
                None if skip_nans => x.nanquantile(&[number], dim, kept, rule)?.squeeze(0)?,
                None => x.quantile(&[number], dim, kept, rule)?.squeeze(0)?,
            };
            if !(flat && keepdim) {
                return Ok(value);
            }
            value.reshape(&[value.shape()?.dims(), &vec![1; rank]].concat())
        })
    }

    /// The quantiles `q`, a number, or a scalar or vector from 0 to 1, along an axis or of all elements. With `keepdim` the axis stays,
    /// with one element.
    ///
    /// `interpolation` says what is between two elements: "linear", "lower", "higher", "nearest" or "midpoint".
    #[pyfunction]
    #[pyo3(signature = (input, q, dim=None, keepdim=false, *, interpolation="linear"))]
    fn quantile(
        input: &Tensor,
        q: Quantiles<'_>,
        dim: Option<i64>,
        keepdim: bool,
        interpolation: &str,
    ) -> Answer {
        quantiles(input, q, dim, keepdim, interpolation, false)
    }

    /// Like `quantile`, of the elements that are not NaN.
    #[pyfunction]
    #[pyo3(signature = (input, q, dim=None, keepdim=false, *, interpolation="linear"))]
    fn nanquantile(
        input: &Tensor,
        q: Quantiles<'_>,
        dim: Option<i64>,
        keepdim: bool,
        interpolation: &str,
    ) -> Answer {
        quantiles(input, q, dim, keepdim, interpolation, true)
    }

    /// The different elements, always in increasing order; with `return_inverse` which of them each element is, with `return_counts`
    /// how often each is there.
    #[pyfunction]
    #[pyo3(signature = (input, sorted=true, return_inverse=false, return_counts=false, dim=None))]
    fn unique<'py>(
        py: Python<'py>,
        input: &Tensor,
        sorted: bool,
        return_inverse: bool,
        return_counts: bool,
        dim: Option<i64>,
    ) -> Object<'py> {
        let _always = sorted;
        let all = many(&[input], |v| {
            let u = match dim {
                Some(dim) => v[0].unique_axis(dim)?,
                None => v[0].unique()?,
            };
            Ok(vec![u.values, u.inverse, u.counts])
        })?;
        chosen(py, all, [return_inverse, return_counts])
    }

    /// The first element of every run of equal elements; with `return_inverse` which run each element is in, with `return_counts` how
    /// long each is.
    #[pyfunction]
    #[pyo3(signature = (input, return_inverse=false, return_counts=false, dim=None))]
    fn unique_consecutive<'py>(
        py: Python<'py>,
        input: &Tensor,
        return_inverse: bool,
        return_counts: bool,
        dim: Option<i64>,
    ) -> Object<'py> {
        let all = many(&[input], |v| {
            let u = match dim {
                Some(dim) => v[0].unique_consecutive_axis(dim)?,
                None => v[0].unique_consecutive()?,
            };
            Ok(vec![u.values, u.inverse, u.counts])
        })?;
        chosen(py, all, [return_inverse, return_counts])
    }

    /// Where each element of `input`, a tensor or a number, would be inserted into a sequence that is sorted along its last axis, or
    /// that `sorter` sorts: before equal elements, or after them with `right` or `side="right"`.
    #[pyfunction]
    #[pyo3(signature = (sorted_sequence, input, *, out_int32=false, right=false, side=None, sorter=None))]
    fn searchsorted(
        sorted_sequence: &Tensor,
        input: Operand<'_>,
        out_int32: bool,
        right: bool,
        side: Option<&str>,
        sorter: Option<&Tensor>,
    ) -> Answer {
        let _always = out_int32;
        let right = match side {
            None => right,
            Some("right") => true,
            Some("left") if !right => false,
            Some(other) => {
                return Err(PyValueError::new_err(format!(
                    "side is {other:?} and right is {right}; use \"left\" or \"right\", and only one of both"
                )));
            }
        };
        let (values, number) = match &input {
            Operand::Tensor(values) => (Some(&**values), 0.0),
            Operand::Number(number) => (None, *number),
        };
        with_optional(sorted_sequence, &[values, sorter], |sequence, given| {
            let values = match given[0] {
                Some(values) => values,
                None => sequence.session().full(&[], number)?,
            };
            match given[1] {
                Some(sorter) => sequence.take_along_axis(-1, sorter)?.searchsorted(values, right),
                None => sequence.searchsorted(values, right),
            }
        })
    }

    /// The bucket of each element between sorted `boundaries`: with `right` an element that equals one belongs to the bucket after it.
    #[pyfunction]
    #[pyo3(signature = (input, boundaries, *, out_int32=false, right=false))]
    fn bucketize(input: &Tensor, boundaries: &Tensor, out_int32: bool, right: bool) -> Answer {
        let _always = out_int32;
        one(&[input, boundaries], |v| v[0].bucketize(v[1], right))
    }

    /// How many elements are in each of `bins` bins of equal width from `min` to `max`, or if both are 0, of the range of the elements.
    #[pyfunction]
    #[pyo3(signature = (input, bins=100, min=0.0, max=0.0))]
    fn histc(input: &Tensor, bins: usize, min: f64, max: f64) -> Answer {
        one(&[input], |v| v[0].histc(bins, min, max))
    }

    /// The counts of elements, or sums of their weights, between edges: `bins` has the edges, or is the number of bins of equal width in
    /// `range`, which is by default that of the elements. The results are `hist` and `bin_edges`.
    #[pyfunction]
    #[pyo3(signature = (input, bins, *, range=None, weight=None, density=false))]
    fn histogram<'py>(
        py: Python<'py>,
        input: &Tensor,
        bins: Bins<'py>,
        range: Option<(f64, f64)>,
        weight: Option<&Tensor>,
        density: bool,
    ) -> Object<'py> {
        let edges = match &bins {
            Bins::Count(count) => one(&[input], |v| v[0].bin_edges(*count, range))?,
            Bins::Edges(edges) => one(&[edges], |v| Ok(v[0]))?,
        };
        let given: Vec<&Tensor> = [input, &edges].into_iter().chain(weight).collect();
        let counts = one(&given, |v| v[0].histogram(v[1], v.get(2).copied(), density))?;
        named(py, "Histogram", (counts, edges))
    }

    /// The histogram of points, whose coordinates are the last axis, in a grid: `bins` has the edges along each coordinate, or the number of
    /// bins of equal width along each, or along all, in `range`. The results are `hist` and a list `bin_edges`.
    #[pyfunction]
    #[pyo3(signature = (input, bins, *, range=None, weight=None, density=false))]
    fn histogramdd<'py>(
        py: Python<'py>,
        input: &Tensor,
        bins: GridBins<'py>,
        range: Option<Vec<f64>>,
        weight: Option<&Tensor>,
        density: bool,
    ) -> Object<'py> {
        let columns = input.dims()?.last().copied().unwrap_or(0);
        if range.as_ref().is_some_and(|r| r.len() != 2 * columns) {
            return Err(PyValueError::new_err(format!(
                "range must have {} numbers, two per column",
                2 * columns
            )));
        }
        let counts = match &bins {
            GridBins::Count(count) => vec![*count; columns],
            GridBins::Counts(counts) => counts.clone(),
            GridBins::Edges(_) => Vec::new(),
        };
        let edges = match &bins {
            GridBins::Edges(edges) => {
                let edges: Vec<&Tensor> = edges.iter().map(|e| &**e).collect();
                many(&edges, |v| Ok(v.to_vec()))?
            }
            _ => many(&[input], |v| {
                let column = |(i, &count): (usize, &usize)| {
                    let range = range.as_ref().map(|r| (r[2 * i], r[2 * i + 1]));
                    v[0].select(-1, i)?.bin_edges(count, range)
                };
                counts.iter().enumerate().map(column).collect()
            })?,
        };
        let given: Vec<&Tensor> = core::iter::once(input).chain(&edges).chain(weight).collect();
        let hist =
            one(&given, |v| v[0].histogramdd(&v[1..=edges.len()], v.get(edges.len() + 1).copied(), density))?;
        py.import("dittograd._results")?.call_method1("Histogram", (hist, edges))
    }

    /// Reductions of segments of an axis, given by `lengths`, which fill the axis, or by `offsets`: "sum", "mean", "prod", "max" or "min".
    #[pyfunction]
    #[pyo3(signature = (data, reduce, *, lengths=None, indices=None, offsets=None, axis=0, r#unsafe=false, initial=None))]
    #[allow(clippy::too_many_arguments)]
    fn segment_reduce(
        data: &Tensor,
        reduce: &str,
        lengths: Option<&Tensor>,
        indices: Option<&Tensor>,
        offsets: Option<&Tensor>,
        axis: i64,
        r#unsafe: bool,
        initial: Option<f64>,
    ) -> Answer {
        let reduce = match reduce {
            "sum" => Reduce::Sum,
            "mean" => Reduce::Mean,
            "prod" => Reduce::Prod,
            "max" => Reduce::Amax,
            "min" => Reduce::Amin,
            other => {
                return Err(PyValueError::new_err(format!(
                    "reduce is {other:?}; use \"sum\", \"mean\", \"prod\", \"max\" or \"min\""
                )));
            }
        };
        match (lengths, offsets, indices) {
            // As offsets they may end before the axis does.
            (Some(lengths), None, None) if r#unsafe => one(&[data, lengths], |v| {
                let most = u32::try_from(v[0].shape()?.numel()).unwrap_or(u32::MAX);
                let offsets =
                    v[1].to_float()?.cumsum(-1)?.pad(-1, 1, 0)?.to_index_below(most.saturating_add(1))?;
                v[0].segment_reduce(reduce, Segments::Offsets(offsets), axis, initial)
            }),
            (Some(lengths), None, None) => {
                one(&[data, lengths], |v| v[0].segment_reduce(reduce, Segments::Lengths(v[1]), axis, initial))
            }
            (None, Some(offsets), None) => {
                one(&[data, offsets], |v| v[0].segment_reduce(reduce, Segments::Offsets(v[1]), axis, initial))
            }
            _ => Err(PyValueError::new_err("give lengths or offsets, one of both, and no indices")),
        }
    }

    /// How often each index is there, or the sums of its weights, as numbers.
    #[pyfunction]
    #[pyo3(signature = (input, weights=None, minlength=0))]
    fn bincount(input: &Tensor, weights: Option<&Tensor>, minlength: usize) -> Answer {
        let whole = match weights {
            Some(weights) => weights.is_index()?,
            None => false,
        };
        with_optional(input, &[weights], |x, weights| match weights[0] {
            Some(weights) if whole => x.bincount(Some(weights.to_float()?), minlength),
            weights => x.bincount(weights, minlength),
        })
    }
}
