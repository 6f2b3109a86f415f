//! Losses and distances.

use pyo3::prelude::*;

#[pymodule]
pub mod nn_losses {
    use crate::arguments::Operand;
    use crate::tensor::{Answer, Tensor, one};
    use dittograd::device::DType;
    use dittograd::error::Result;
    use dittograd::ops::Reduction;
    use dittograd::session::{CtcLoss, LabelLoss, MultiMargin, PoissonNll, TripletMargin, Var};
    use dittograd::tensor::Tensor as Host;
    use pyo3::exceptions::PyValueError;
    use pyo3::prelude::*;

    /// How losses are combined, as PyTorch names it.
    fn reduction_of(name: &str) -> PyResult<Reduction> {
        match name {
            "mean" => Ok(Reduction::Mean),
            "sum" => Ok(Reduction::Sum),
            "none" => Ok(Reduction::None),
            other => Err(PyValueError::new_err(format!(
                "reduction is {other:?}, use \"mean\", \"sum\" or \"none\""
            ))),
        }
    }

    /// Runs `f` on the values of `inputs`, and of each tensor of `others` that is given.
    fn given<const N: usize>(
        inputs: &[&Tensor],
        others: [Option<&Tensor>; N],
        f: impl for<'s> FnOnce(&[Var<'s>], [Option<Var<'s>>; N]) -> Result<Var<'s>> + Send,
    ) -> Answer {
        let all: Vec<&Tensor> = inputs.iter().copied().chain(others.into_iter().flatten()).collect();
        one(&all, |v| {
            let (first, rest) = v.split_at(inputs.len());
            let mut rest = rest.iter().copied();
            f(first, others.map(|other| other.and_then(|_| rest.next())))
        })
    }

    /// The label that does not count. A negative one is what inputs of a step make of it: itself plus 2^32.
    fn ignored(index: Option<i64>, target: Var<'_>) -> Option<u32> {
        let index = index?;
        let narrow = u32::try_from(index).ok().or(i32::try_from(index).ok().map(|n| n as u32));
        narrow.filter(|_| target.meta().is_ok_and(|m| m.dtype == DType::U32))
    }

    /// The options of losses of labels. PyTorch's axis of the classes is the second, or the only one.
    fn labelled<'s>(
        [x, target]: [Var<'s>; 2],
        weight: Option<Var<'s>>,
        ignore_index: Option<i64>,
        label_smoothing: f64,
        reduction: Reduction,
    ) -> Result<LabelLoss<'s>> {
        let axis = (x.shape()?.rank() > 1).then_some(1);
        Ok(LabelLoss { weight, ignore: ignored(ignore_index, target), label_smoothing, reduction, axis })
    }

    /// Cross-entropy of logits `(N, C, …)` or `(C)` against labels `(N, …)`, or against class probabilities of the logits' shape.
    ///
    /// weight: a factor for each class
    /// ignore_index: labels equal to it do not count, such as -100. Without it every label is a class, and others are errors; PyTorch
    /// leaves out -100 by default
    /// reduction: "mean", of labels weighted by `weight`, "sum" or "none"
    /// label_smoothing: the part of each label, from 0 to 1, that all classes share
    #[pyfunction]
    #[pyo3(signature = (input, target, weight=None, *, ignore_index=None, reduction="mean", label_smoothing=0.0))]
    fn cross_entropy(
        input: &Tensor,
        target: &Tensor,
        weight: Option<&Tensor>,
        ignore_index: Option<i64>,
        reduction: &str,
        label_smoothing: f64,
    ) -> Answer {
        let how = reduction_of(reduction)?;
        given(&[input, target], [weight], |v, [weight]| {
            v[0].cross_entropy_loss(v[1], labelled([v[0], v[1]], weight, ignore_index, label_smoothing, how)?)
        })
    }

    /// `cross_entropy` of a linear layer's output: logits are `input · linear_weightᵀ + linear_bias`, with the classes as the first
    /// axis of the weights `(C, …, features)`. The other arguments are those of `cross_entropy`.
    #[pyfunction]
    #[pyo3(signature = (input, linear_weight, target, *, linear_bias=None, weight=None, reduction="mean", ignore_index=None, label_smoothing=0.0))]
    #[allow(clippy::too_many_arguments)]
    fn linear_cross_entropy(
        input: &Tensor,
        linear_weight: &Tensor,
        target: &Tensor,
        linear_bias: Option<&Tensor>,
        weight: Option<&Tensor>,
        reduction: &str,
        ignore_index: Option<i64>,
        label_smoothing: f64,
    ) -> Answer {
        let how = reduction_of(reduction)?;
        given(&[input, linear_weight, target], [linear_bias, weight], |v, [bias, weight]| {
            // As of other losses, the second axis of the logits has the classes, or the only one.
            let axes = v[0].shape()?.rank() + v[1].shape()?.rank();
            let axis = (axes > 3).then_some(1);
            let ignore = ignored(ignore_index, v[2]);
            let options = LabelLoss { weight, ignore, label_smoothing, reduction: how, axis };
            v[0].linear_cross_entropy(v[1], bias, v[2], options)
        })
    }

    /// Negative log-likelihood of log-probabilities `(N, C, …)` or `(C)` at labels `(N, …)`. `weight` has a factor for each class.
    /// Labels equal to `ignore_index` do not count, such as -100; without it every label is a class. `reduction` is "mean",
    /// "sum" or "none".
    #[pyfunction]
    #[pyo3(signature = (input, target, weight=None, *, ignore_index=None, reduction="mean"))]
    fn nll_loss(
        input: &Tensor,
        target: &Tensor,
        weight: Option<&Tensor>,
        ignore_index: Option<i64>,
        reduction: &str,
    ) -> Answer {
        let how = reduction_of(reduction)?;
        given(&[input, target], [weight], |v, [weight]| {
            v[0].nll_loss(v[1], labelled([v[0], v[1]], weight, ignore_index, 0.0, how)?)
        })
    }

    /// Cross-entropy of probabilities against targets from 0 to 1, times `weight`. `reduction` is "mean", "sum", or "none", which keeps
    /// a value for each element.
    #[pyfunction]
    #[pyo3(signature = (input, target, weight=None, *, reduction="mean"))]
    fn binary_cross_entropy(
        input: &Tensor,
        target: &Tensor,
        weight: Option<&Tensor>,
        reduction: &str,
    ) -> Answer {
        let how = reduction_of(reduction)?;
        given(&[input, target], [weight], |v, [weight]| v[0].bce_loss(v[1], weight, how))
    }

    /// Cross-entropy of the sigmoids of logits against targets from 0 to 1, times `weight`. `pos_weight` multiplies the part of
    /// positive targets. `reduction` is "mean", "sum", or "none", which keeps a value for each element.
    #[pyfunction]
    #[pyo3(signature = (input, target, weight=None, *, reduction="mean", pos_weight=None))]
    fn binary_cross_entropy_with_logits(
        input: &Tensor,
        target: &Tensor,
        weight: Option<&Tensor>,
        reduction: &str,
        pos_weight: Option<&Tensor>,
    ) -> Answer {
        let how = reduction_of(reduction)?;
        given(&[input, target], [weight, pos_weight], |v, [weight, pos_weight]| {
            v[0].bce_with_logits_loss(v[1], weight, pos_weight, how)
        })
    }

    /// The squared error against a target of the same shape. `reduction` is "mean", "sum", or "none", which keeps a value for each
    /// element. With `weight` the mean is a weighted one.
    #[pyfunction]
    #[pyo3(signature = (input, target, *, reduction="mean", weight=None))]
    fn mse_loss(input: &Tensor, target: &Tensor, reduction: &str, weight: Option<&Tensor>) -> Answer {
        let how = reduction_of(reduction)?;
        given(&[input, target], [weight], |v, [weight]| match weight {
            Some(weight) => v[0].mse_loss_weighted(v[1], weight, how),
            None => v[0].mse_loss(v[1], how),
        })
    }

    /// The absolute error against a target of the same shape. `reduction` is "mean", "sum", or "none", which keeps a value for each
    /// element. With `weight` the mean is a weighted one.
    #[pyfunction]
    #[pyo3(signature = (input, target, *, reduction="mean", weight=None))]
    fn l1_loss(input: &Tensor, target: &Tensor, reduction: &str, weight: Option<&Tensor>) -> Answer {
        let how = reduction_of(reduction)?;
        given(&[input, target], [weight], |v, [weight]| match weight {
            Some(weight) => v[0].l1_loss_weighted(v[1], weight, how),
            None => v[0].l1_loss(v[1], how),
        })
    }

    /// The error `d` against a target: squared and divided by `2 beta` below `beta`, `|d| - beta / 2` from there on. `reduction` is
    /// "mean", "sum", or "none", which keeps a value for each element.
    #[pyfunction]
    #[pyo3(signature = (input, target, *, reduction="mean", beta=1.0))]
    fn smooth_l1_loss(input: &Tensor, target: &Tensor, reduction: &str, beta: f64) -> Answer {
        let how = reduction_of(reduction)?;
        one(&[input, target], |v| match beta {
            0.0 => v[0].l1_loss(v[1], how),
            beta => v[0].smooth_l1_loss(v[1], beta, how),
        })
    }

    /// Half the squared error against a target up to `delta`, linear from there on. `reduction` is "mean", "sum", or "none", which
    /// keeps a value for each element. The mean is over the elements, with weights too.
    #[pyfunction]
    #[pyo3(signature = (input, target, reduction="mean", delta=1.0, weight=None))]
    fn huber_loss(
        input: &Tensor,
        target: &Tensor,
        reduction: &str,
        delta: f64,
        weight: Option<&Tensor>,
    ) -> Answer {
        let how = reduction_of(reduction)?;
        given(&[input, target], [weight], |v, [weight]| match weight {
            Some(weight) => v[0].huber_loss_weighted(v[1], weight, delta, how),
            None => v[0].huber_loss(v[1], delta, how),
        })
    }

    /// Kullback-Leibler divergence of log-probabilities from target probabilities, or from their logarithms with `log_target`.
    /// `reduction="batchmean"` divides the sum by the size of the first axis.
    #[pyfunction]
    #[pyo3(signature = (input, target, *, reduction="mean", log_target=false))]
    fn kl_div(input: &Tensor, target: &Tensor, reduction: &str, log_target: bool) -> Answer {
        if reduction == "batchmean" {
            return one(&[input, target], |v| v[0].kl_div_batchmean(v[1], log_target));
        }
        let how = reduction_of(reduction)?;
        one(&[input, target], |v| match log_target {
            true => v[0].kl_div_log(v[1], how),
            false => v[0].kl_div(v[1], how),
        })
    }

    /// Lengths of sequences: indices, or Python's numbers.
    #[derive(FromPyObject)]
    enum Lengths<'py> {
        Tensor(PyRef<'py, Tensor>),
        Number(u32),
        List(Vec<u32>),
    }

    impl Lengths<'_> {
        fn tensor(&self) -> Option<&Tensor> {
            match self {
                Lengths::Tensor(tensor) => Some(tensor),
                Lengths::Number(_) | Lengths::List(_) => None,
            }
        }

        /// The numbers, if no tensor was given.
        fn numbers(&self) -> Result<Host<u32>> {
            match self {
                Lengths::Number(one) => Host::new(&[], vec![*one]),
                Lengths::List(list) => Host::new(&[list.len()], list.clone()),
                Lengths::Tensor(_) => Host::new(&[0], Vec::new()),
            }
        }
    }

    /// CTC loss of log-probabilities `(T, N, C)` against labels `(N, S)`, of which the first `input_lengths` steps and `target_lengths`
    /// labels count. The gradient is that of this function; PyTorch's assumes that a `log_softmax` comes before.
    #[pyfunction]
    #[pyo3(signature = (log_probs, targets, input_lengths, target_lengths, blank=0, reduction="mean", zero_infinity=false))]
    fn ctc_loss(
        log_probs: &Tensor,
        targets: &Tensor,
        input_lengths: Lengths<'_>,
        target_lengths: Lengths<'_>,
        blank: u32,
        reduction: &str,
        zero_infinity: bool,
    ) -> Answer {
        let options = CtcLoss { blank, zero_infinity, reduction: reduction_of(reduction)? };
        let lengths = [input_lengths.tensor(), target_lengths.tensor()];
        let numbers = [input_lengths.numbers(), target_lengths.numbers()];
        given(&[log_probs, targets], lengths, |v, tensors| {
            let session = v[0].session();
            let [of, to] = numbers;
            let of = tensors[0].map_or_else(|| session.indices(&of?), Ok)?;
            let to = tensors[1].map_or_else(|| session.indices(&to?), Ok)?;
            v[0].ctc_loss(v[1], of, to, options)
        })
    }

    /// `max(0, margin + |anchor - positive| - |anchor - negative|)` of rows. With `swap` the distance from the positive to the negative
    /// counts if it is the smaller one.
    #[pyfunction]
    #[pyo3(signature = (anchor, positive, negative, margin=1.0, p=2.0, eps=1e-6, swap=false, *, reduction="mean"))]
    #[allow(clippy::too_many_arguments)]
    fn triplet_margin_loss(
        anchor: &Tensor,
        positive: &Tensor,
        negative: &Tensor,
        margin: f64,
        p: f64,
        eps: f64,
        swap: bool,
        reduction: &str,
    ) -> Answer {
        let options = TripletMargin { margin, p, eps, swap, reduction: reduction_of(reduction)? };
        one(&[anchor, positive, negative], |v| v[0].triplet_margin_loss(v[1], v[2], options))
    }

    /// `triplet_margin_loss` with a distance of your own: a function of two tensors, by default `pairwise_distance`.
    #[pyfunction]
    #[pyo3(signature = (anchor, positive, negative, *, distance_function=None, margin=1.0, swap=false, reduction="mean"))]
    #[allow(clippy::too_many_arguments)]
    fn triplet_margin_with_distance_loss(
        py: Python<'_>,
        anchor: Py<Tensor>,
        positive: Py<Tensor>,
        negative: Py<Tensor>,
        distance_function: Option<Bound<'_, PyAny>>,
        margin: f64,
        swap: bool,
        reduction: &str,
    ) -> Answer {
        let how = reduction_of(reduction)?;
        let distance = |a: &Py<Tensor>, b: &Py<Tensor>| -> PyResult<Py<Tensor>> {
            match &distance_function {
                Some(f) => Ok(f.call1((a, b))?.extract()?),
                None => Py::new(py, pairwise_distance(a.get(), b.get(), 2.0, 1e-6, false)?),
            }
        };
        let (near, far) = (distance(&anchor, &positive)?, distance(&anchor, &negative)?);
        let other = if swap { Some(distance(&positive, &negative)?) } else { None };
        given(&[near.get(), far.get()], [other.as_ref().map(Py::get)], |v, [other]| {
            v[0].triplet_margin_of_distances(v[1], other, margin, how)
        })
    }

    /// `max(0, margin - target · (input1 - input2))`: a target is 1 if the first should be the larger, -1 if the second.
    #[pyfunction]
    #[pyo3(signature = (input1, input2, target, margin=0.0, *, reduction="mean"))]
    fn margin_ranking_loss(
        input1: &Tensor,
        input2: &Tensor,
        target: &Tensor,
        margin: f64,
        reduction: &str,
    ) -> Answer {
        let how = reduction_of(reduction)?;
        one(&[input1, input2, target], |v| v[0].margin_ranking_loss(v[1], v[2], margin, how))
    }

    /// Hinges of scores `(N, C)` or `(C)` against labels: how far the others are above the label's score less `margin`, to the power of
    /// `p`, 1 or 2.
    #[pyfunction]
    #[pyo3(signature = (input, target, p=1, margin=1.0, weight=None, *, reduction="mean"))]
    fn multi_margin_loss(
        input: &Tensor,
        target: &Tensor,
        p: usize,
        margin: f64,
        weight: Option<&Tensor>,
        reduction: &str,
    ) -> Answer {
        let squared = match p {
            1 => false,
            2 => true,
            other => {
                return Err(PyValueError::new_err(format!("multi_margin_loss: p is {other}, use 1 or 2")));
            }
        };
        let how = reduction_of(reduction)?;
        given(&[input, target], [weight], |v, [weight]| {
            // One row of scores may have its label in an axis of one.
            let x = if v[0].shape()?.rank() == 0 { v[0].reshape(&[1])? } else { v[0] };
            let labels = if x.shape()?.rank() == 1 { v[1].reshape(&[])? } else { v[1] };
            x.multi_margin_loss(labels, MultiMargin { margin, squared, weight, reduction: how })
        })
    }

    /// Hinges of scores `(N, C)` or `(C)` against lists of labels of the same shape. A list ends before its first entry that is no class,
    /// such as 4294967295, which stands for PyTorch's -1.
    #[pyfunction]
    #[pyo3(signature = (input, target, *, reduction="mean"))]
    fn multilabel_margin_loss(input: &Tensor, target: &Tensor, reduction: &str) -> Answer {
        let how = reduction_of(reduction)?;
        one(&[input, target], |v| match v[0].shape()?.rank() {
            0 => v[0].reshape(&[1])?.multilabel_margin_loss(v[1].reshape(&[1])?, how)?.reshape(&[]),
            _ => v[0].multilabel_margin_loss(v[1], how),
        })
    }

    /// The mean over the classes, the last axis, of `binary_cross_entropy_with_logits`, with a weight for each class.
    #[pyfunction]
    #[pyo3(signature = (input, target, weight=None, *, reduction="mean"))]
    fn multilabel_soft_margin_loss(
        input: &Tensor,
        target: &Tensor,
        weight: Option<&Tensor>,
        reduction: &str,
    ) -> Answer {
        let how = reduction_of(reduction)?;
        given(&[input, target], [weight], |v, [weight]| v[0].multilabel_soft_margin_loss(v[1], weight, how))
    }

    /// `ln(1 + e^(-target · input))` for targets of 1 and -1.
    #[pyfunction]
    #[pyo3(signature = (input, target, *, reduction="mean"))]
    fn soft_margin_loss(input: &Tensor, target: &Tensor, reduction: &str) -> Answer {
        let how = reduction_of(reduction)?;
        one(&[input, target], |v| v[0].soft_margin_loss(v[1], how))
    }

    /// `input` for targets of 1, `max(0, margin - input)` for targets of -1.
    #[pyfunction]
    #[pyo3(signature = (input, target, margin=1.0, *, reduction="mean"))]
    fn hinge_embedding_loss(input: &Tensor, target: &Tensor, margin: f64, reduction: &str) -> Answer {
        let how = reduction_of(reduction)?;
        one(&[input, target], |v| v[0].hinge_embedding_loss(v[1], margin, how))
    }

    /// With the cosine `c` of the angle between rows: `1 - c` for targets of 1, `max(0, c - margin)` for targets of -1.
    #[pyfunction]
    #[pyo3(signature = (input1, input2, target, margin=0.0, *, reduction="mean"))]
    fn cosine_embedding_loss(
        input1: &Tensor,
        input2: &Tensor,
        target: &Tensor,
        margin: f64,
        reduction: &str,
    ) -> Answer {
        let how = reduction_of(reduction)?;
        one(&[input1, input2, target], |v| v[0].cosine_embedding_loss(v[1], v[2], margin, how))
    }

    /// Negative log-likelihood of targets under normal distributions with means `input` and variances `var`, which are at least `eps`;
    /// `full` adds its constant.
    #[pyfunction]
    #[pyo3(signature = (input, target, var, full=false, eps=1e-6, reduction="mean"))]
    fn gaussian_nll_loss(
        input: &Tensor,
        target: &Tensor,
        var: Operand<'_>,
        full: bool,
        eps: f64,
        reduction: &str,
    ) -> Answer {
        let how = reduction_of(reduction)?;
        match var {
            Operand::Tensor(var) => {
                one(&[input, target, &var], |v| v[0].gaussian_nll_loss(v[1], v[2], full, eps, how))
            }
            Operand::Number(var) => {
                one(&[input, target], |v| v[0].gaussian_nll_loss(v[1], v[0].full_like(var)?, full, eps, how))
            }
        }
    }

    /// Negative log-likelihood of counts under Poisson distributions, whose rates are `input` or, with `log_input`, `e^input`; `full`
    /// adds an approximation of its constant.
    #[pyfunction]
    #[pyo3(signature = (input, target, log_input=true, full=false, *, eps=1e-8, reduction="mean"))]
    fn poisson_nll_loss(
        input: &Tensor,
        target: &Tensor,
        log_input: bool,
        full: bool,
        eps: f64,
        reduction: &str,
    ) -> Answer {
        let options = PoissonNll { log_input, full, eps, reduction: reduction_of(reduction)? };
        one(&[input, target], |v| v[0].poisson_nll_loss(v[1], options))
    }

    /// The cosine of the angle between two tensors along an axis; norms below `eps` count as `eps`.
    #[pyfunction]
    #[pyo3(signature = (x1, x2, dim=1, eps=1e-8))]
    fn cosine_similarity(x1: &Tensor, x2: &Tensor, dim: i64, eps: f64) -> Answer {
        one(&[x1, x2], |v| match (v[0].shape()?.rank(), v[1].shape()?.rank()) {
            (0, 0) => v[0].reshape(&[1])?.cosine_similarity(v[1].reshape(&[1])?, dim, eps),
            _ => v[0].cosine_similarity(v[1], dim, eps),
        })
    }

    /// The `p`-norm of the difference of two tensors along the last axis, after `eps` is added to it.
    #[pyfunction]
    #[pyo3(signature = (x1, x2, p=2.0, eps=1e-6, keepdim=false))]
    fn pairwise_distance(x1: &Tensor, x2: &Tensor, p: f64, eps: f64, keepdim: bool) -> Answer {
        one(&[x1, x2], |v| v[0].pairwise_distance(v[1], p, eps, keepdim))
    }

    /// The `p`-norms of the differences of all pairs of rows of a matrix: of the first row and each later one, then of the second, and so
    /// on.
    #[pyfunction]
    #[pyo3(signature = (input, p=2.0))]
    fn pdist(input: &Tensor, p: f64) -> Answer {
        one(&[input], |v| v[0].pdist(p))
    }
}
