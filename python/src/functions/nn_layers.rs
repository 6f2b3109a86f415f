//! Layers: linear, embeddings, attention, dropout.

use super::nn_images::unknown;
use crate::functions::axes::along;
use crate::tensor::{Answer, Tensor, asked, many, many_with_optional, one, with_optional};
use dittograd::error::Result;
use dittograd::ops::recurrent::Cell;
use dittograd::session::{AttentionOptions, EmbeddingOptions, MultiHeadAttention, Recurrence, Reduce, Var};
use pyo3::exceptions::{PyNotImplementedError, PyValueError};
use pyo3::prelude::*;

/// What dropout makes: the input itself outside of training.
fn dropped(
    input: &Tensor,
    p: f64,
    training: bool,
    f: impl for<'s> FnOnce(Var<'s>) -> Result<Var<'s>> + Send,
) -> Answer {
    if !(0.0..=1.0).contains(&p) {
        return Err(PyValueError::new_err(format!("p is {p}; use a probability from 0 to 1")));
    }
    one(&[input], |v| match training {
        false => Ok(v[0]),
        true if p == 0.0 => Ok(v[0]),
        true => f(v[0]),
    })
}

/// Dropout of channels of images, or of one image if the input has only `single` axes.
fn channels_dropped(input: &Tensor, p: f64, training: bool, single: Option<usize>) -> Answer {
    let alone = single == Some(input.rank()?);
    dropped(input, p, training, |x| match alone {
        true => x.unsqueeze(0)?.channel_dropout(p)?.squeeze(0),
        false => x.channel_dropout(p),
    })
}

/// What `padding_idx` says of a table of `rows` rows.
fn padding_row(padding_idx: Option<i64>, rows: usize) -> PyResult<Option<u32>> {
    let Some(i) = padding_idx else {
        return Ok(None);
    };
    let at = if i < 0 { i.checked_add_unsigned(rows as u64) } else { Some(i) };
    match at.and_then(|at| u32::try_from(at).ok()) {
        Some(at) if (at as usize) < rows => Ok(Some(at)),
        Some(_) | None => {
            Err(PyValueError::new_err(format!("padding_idx is {i}; the table has {rows} rows")))
        }
    }
}

/// Refuses what embeddings do not have.
fn without(max_norm: Option<f64>, norm_type: f64, scale_grad_by_freq: bool, sparse: bool) -> PyResult<()> {
    let refused = if max_norm.is_some() && norm_type != 2.0 {
        "norm_type other than 2 is not supported; scale the rows of the weight beforehand"
    } else if scale_grad_by_freq {
        "scale_grad_by_freq is not supported; divide by the counts of the indices afterwards"
    } else if sparse {
        "gradients are never sparse here; leave out sparse"
    } else {
        return Ok(());
    };
    Err(PyNotImplementedError::new_err(refused))
}

/// What a mask adds to scores: itself, or if it is truth values, minus infinity where it is true.
fn added(mask: Var<'_>, closing: bool) -> Result<Var<'_>> {
    if closing { mask.zeros_like()?.masked_fill(mask, f64::NEG_INFINITY) } else { Ok(mask) }
}

#[pymodule]
pub mod nn_layers {
    use super::*;

    /// `input · weightᵀ + bias` along the last axis: `(…, in)` with `weight` `(out, in)` and `bias` `(out)` makes `(…, out)`.
    #[pyfunction]
    #[pyo3(signature = (input, weight, bias=None))]
    fn linear(input: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Answer {
        let matrix = weight.rank()? == 2;
        match bias {
            Some(bias) if matrix => one(&[input, weight, bias], |v| v[0].linear(v[1], v[2])),
            Some(bias) => one(&[input, weight, bias], |v| v[0].matmul(v[1])?.add(v[2])),
            None if matrix => one(&[input, weight], |v| v[0].matmul_with(v[1], false, true)),
            None => one(&[input, weight], |v| v[0].matmul(v[1])),
        }
    }

    /// `y[o] = Σ input1[i] · weight[o, i, j] · input2[j] + bias[o]` along the last axes: `(…, in1)` and `(…, in2)` with `weight` `(out,
    /// in1, in2)` make `(…, out)`.
    #[pyfunction]
    #[pyo3(signature = (input1, input2, weight, bias=None))]
    fn bilinear(input1: &Tensor, input2: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Answer {
        let given: Vec<&Tensor> = [input1, input2, weight].into_iter().chain(bias).collect();
        one(&given, |v| v[0].bilinear(v[1], v[2], v.get(3).copied()))
    }

    /// Rows of a table `weight` `(rows, size)` at indices `(…)`: `(…, size)`.
    ///
    /// padding_idx: a row that gets no gradient; a negative one counts from the end
    /// max_norm: rows of a larger norm are scaled down to it. Unlike in PyTorch the table itself is not changed
    /// norm_type, scale_grad_by_freq, sparse: must be as they are by default
    #[pyfunction]
    #[pyo3(signature = (input, weight, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=false, sparse=false))]
    fn embedding(
        input: &Tensor,
        weight: &Tensor,
        padding_idx: Option<i64>,
        max_norm: Option<f64>,
        norm_type: f64,
        scale_grad_by_freq: bool,
        sparse: bool,
    ) -> Answer {
        without(max_norm, norm_type, scale_grad_by_freq, sparse)?;
        let rows = weight.dims()?.first().copied().unwrap_or(0);
        let options = EmbeddingOptions { padding_idx: padding_row(padding_idx, rows)?, max_norm };
        one(&[weight, input], |v| v[0].embedding_with(v[1], options))
    }

    /// Sums, means or maxima (`mode`) of bags of rows of a table `weight` `(rows, size)`: `(bags, size)`.
    ///
    /// input: indices, a row `(bags, n)` for each bag, or a vector with `offsets`
    /// offsets: where each bag begins; with `include_last_offset` the last one is the end of the last bag
    /// per_sample_weights: a factor for each row taken, for the mode "sum"
    /// padding_idx: a row that does not count
    /// max_norm: as of `embedding`; `norm_type`, `scale_grad_by_freq` and `sparse` must be as they are by default
    #[pyfunction]
    #[pyo3(signature = (input, weight, offsets=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=false, mode="mean", sparse=false,
        per_sample_weights=None, include_last_offset=false, padding_idx=None))]
    #[allow(clippy::too_many_arguments)]
    fn embedding_bag(
        input: &Tensor,
        weight: &Tensor,
        offsets: Option<&Tensor>,
        max_norm: Option<f64>,
        norm_type: f64,
        scale_grad_by_freq: bool,
        mode: &str,
        sparse: bool,
        per_sample_weights: Option<&Tensor>,
        include_last_offset: bool,
        padding_idx: Option<i64>,
    ) -> Answer {
        without(max_norm, norm_type, scale_grad_by_freq, sparse)?;
        let rows = weight.dims()?.first().copied().unwrap_or(0);
        let options = EmbeddingOptions { padding_idx: padding_row(padding_idx, rows)?, max_norm };
        let reduce = match mode {
            "sum" => Reduce::Sum,
            "mean" => Reduce::Mean,
            "max" => Reduce::Amax,
            other => return unknown("mode", other, "sum, mean or max"),
        };
        with_optional(input, &[Some(weight), offsets, per_sample_weights], |index, o| {
            let Some(table) = o[0] else { return Ok(index) };
            let offsets = match o[1] {
                Some(offsets) if include_last_offset => {
                    let count = offsets.shape()?.numel();
                    Some(offsets.narrow(0, 0, count.saturating_sub(1))?)
                }
                offsets => offsets,
            };
            table.embedding_bag_with(index, offsets, reduce, o[2], options)
        })
    }

    /// Zeros with a 1 at each index, along a new last axis of `num_classes`: numbers, not integers. Without `num_classes` there are as
    /// many classes as the largest index needs, for which it waits for the device.
    #[pyfunction]
    #[pyo3(signature = (tensor, num_classes=-1))]
    fn one_hot(tensor: &Tensor, num_classes: i64) -> Answer {
        let classes = match usize::try_from(num_classes) {
            Ok(classes) => classes,
            Err(_) if num_classes == -1 => {
                let most = asked(tensor, |x| Ok(x.indices()?.data().iter().copied().max()))?;
                match most {
                    Some(most) => most as usize + 1,
                    None => return Err(PyValueError::new_err("no indices; give num_classes")),
                }
            }
            Err(_) => {
                return Err(PyValueError::new_err(format!("num_classes is {num_classes}; use -1 or more")));
            }
        };
        one(&[tensor], |v| v[0].one_hot(classes))
    }

    /// `softmax(scale · query · keyᵀ) · value`: queries `(…, n, d)`, keys `(…, m, d)` and values `(…, m, dv)` make `(…, n, dv)`.
    ///
    /// attn_mask: truth values, true where a query may attend, or numbers, which are added to the scores; it broadcasts to `(…, n, m)`
    /// dropout_p: the probability with which a weight is dropped, at every call
    /// is_causal: whether query `i` attends to the keys up to `i` only; not with `attn_mask`
    /// scale: by default `1 / sqrt(d)`
    /// enable_gqa: whether keys and values may have fewer heads, the third axis from the end, than queries
    #[pyfunction]
    #[pyo3(signature = (query, key, value, attn_mask=None, dropout_p=0.0, is_causal=false, scale=None, enable_gqa=false))]
    #[allow(clippy::too_many_arguments)]
    fn scaled_dot_product_attention(
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        attn_mask: Option<&Tensor>,
        dropout_p: f64,
        is_causal: bool,
        scale: Option<f64>,
        enable_gqa: bool,
    ) -> Answer {
        if is_causal && attn_mask.is_some() {
            return Err(PyValueError::new_err("give either a mask or is_causal"));
        }
        let heads = |t: &Tensor| t.dims().map(|d| d.iter().rev().nth(2).copied().unwrap_or(1));
        let (of_query, of_key) = (heads(query)?, heads(key)?);
        if !enable_gqa && of_query != of_key && of_query != 1 && of_key != 1 {
            return Err(PyValueError::new_err(format!(
                "query has {of_query} heads, key has {of_key}; enable_gqa lets queries share them"
            )));
        }
        with_optional(query, &[Some(key), Some(value), attn_mask], |q, o| {
            let (Some(k), Some(v)) = (o[0], o[1]) else {
                return Ok(q);
            };
            let (mask, bias) =
                if attn_mask.is_some_and(Tensor::is_truth) { (o[2], None) } else { (None, o[2]) };
            let options = AttentionOptions {
                mask,
                bias,
                dropout: dropout_p,
                causal: is_causal,
                scale,
                ..Default::default()
            };
            q.attention(k, v, options)
        })
    }

    /// Attention of several heads, with projections before and after it, of queries `(n, N, size)` to keys and values `(m, N, size)`, or without
    /// `N`. Returns the outputs, and with `need_weights` the weights, which are the means over the heads with `average_attn_weights`. `attn_mask`
    /// and `key_padding_mask` are truth values, true where nothing may attend, or numbers, which are added to the scores.
    #[pyfunction]
    #[pyo3(signature = (query, key, value, embed_dim_to_check, num_heads, in_proj_weight, in_proj_bias, bias_k, bias_v, add_zero_attn, dropout_p,
        out_proj_weight, out_proj_bias, training=true, key_padding_mask=None, need_weights=true, attn_mask=None, use_separate_proj_weight=false,
        q_proj_weight=None, k_proj_weight=None, v_proj_weight=None, static_k=None, static_v=None, average_attn_weights=true, is_causal=false))]
    #[allow(clippy::too_many_arguments)]
    fn multi_head_attention_forward(
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        embed_dim_to_check: usize,
        num_heads: usize,
        in_proj_weight: Option<&Tensor>,
        in_proj_bias: Option<&Tensor>,
        bias_k: Option<&Tensor>,
        bias_v: Option<&Tensor>,
        add_zero_attn: bool,
        dropout_p: f64,
        out_proj_weight: &Tensor,
        out_proj_bias: Option<&Tensor>,
        training: bool,
        key_padding_mask: Option<&Tensor>,
        need_weights: bool,
        attn_mask: Option<&Tensor>,
        use_separate_proj_weight: bool,
        q_proj_weight: Option<&Tensor>,
        k_proj_weight: Option<&Tensor>,
        v_proj_weight: Option<&Tensor>,
        static_k: Option<&Tensor>,
        static_v: Option<&Tensor>,
        average_attn_weights: bool,
        is_causal: bool,
    ) -> PyResult<(Tensor, Option<Tensor>)> {
        if static_k.is_some() || static_v.is_some() {
            return Err(PyNotImplementedError::new_err(
                "static_k and static_v are not supported; leave them out",
            ));
        }
        if is_causal && attn_mask.is_none() {
            return Err(PyValueError::new_err("is_causal is a hint about attn_mask; give attn_mask too"));
        }
        let size = query.dims()?.last().copied().unwrap_or(0);
        if size != embed_dim_to_check || num_heads == 0 || size % num_heads != 0 {
            return Err(PyValueError::new_err(format!(
                "queries of {size} numbers do not fit embed_dim_to_check={embed_dim_to_check} and num_heads={num_heads}"
            )));
        }
        let weights = match use_separate_proj_weight {
            true => [q_proj_weight, k_proj_weight, v_proj_weight],
            false => [in_proj_weight, None, None],
        };
        let missing = weights.iter().filter(|w| w.is_none()).count();
        if missing != if use_separate_proj_weight { 0 } else { 2 } {
            return Err(PyValueError::new_err("the weights of the projections must be given"));
        }
        let more = [bias_k, bias_v];
        let others = [
            &[Some(key), Some(value), Some(out_proj_weight), in_proj_bias, out_proj_bias],
            &weights[..],
            &more,
            &[attn_mask, key_padding_mask],
        ]
        .concat();
        let closing = [attn_mask, key_padding_mask].map(|mask| mask.is_some_and(Tensor::is_truth));
        let mut found = many_with_optional(query, &others, |q, o| {
            let &[Some(k), Some(v), Some(out), bias, out_bias, wq, wk, wv, more_k, more_v, mask, padding] = o
            else {
                return Ok(vec![q]);
            };
            let weights = match (wq, wk, wv) {
                (Some(q), Some(k), Some(v)) => vec![q, k, v],
                (Some(all), _, _) => all.chunk(0, 3)?,
                (None, _, _) => Vec::new(),
            };
            let biases = match bias {
                Some(bias) => bias.chunk(0, 3)?,
                None => Vec::new(),
            };
            let &[wq, wk, wv] = &weights[..] else {
                return Ok(vec![q]);
            };
            let options = MultiHeadAttention {
                heads: num_heads,
                weights: [wq, wk, wv],
                biases: std::array::from_fn(|i| biases.get(i).copied()),
                out_weight: out,
                out_bias,
                extra: more_k.zip(more_v),
                zero: add_zero_attn,
                dropout: if training { dropout_p } else { 0.0 },
                bias: mask.map(|mask| added(mask, closing[0])).transpose()?,
                key_bias: padding.map(|padding| added(padding, closing[1])).transpose()?,
            };
            let (y, weights) = q.multi_head_attention_to(k, v, options)?;
            Ok(vec![y, if average_attn_weights { weights.mean_axes(&[-3])? } else { weights }])
        })?
        .into_iter();
        let (Some(y), weights) = (found.next(), found.next()) else {
            return Err(PyValueError::new_err("attention returned nothing"));
        };
        Ok((y, weights.filter(|_| need_weights)))
    }

    /// Softmax where a row of nothing but minus infinity gives zeros.
    #[pyfunction]
    #[pyo3(signature = (input, dim))]
    fn _safe_softmax(input: &Tensor, dim: i64) -> Answer {
        along(input, |x| x.safe_softmax(dim))
    }

    /// With `training`, drops each element with probability `p` and scales the others by `1 / (1 - p)`; else `input` itself. The seed
    /// of the session decides which.
    #[pyfunction]
    #[pyo3(signature = (input, p=0.5, training=true))]
    fn dropout(input: &Tensor, p: f64, training: bool) -> Answer {
        dropped(input, p, training, |x| x.dropout(p))
    }

    /// With `training`, drops whole channels of `(N, C, L)` or `(C, L)`, each with probability `p`, and scales the others by `1 / (1 -
    /// p)`.
    #[pyfunction]
    #[pyo3(signature = (input, p=0.5, training=true))]
    fn dropout1d(input: &Tensor, p: f64, training: bool) -> Answer {
        channels_dropped(input, p, training, Some(2))
    }

    /// With `training`, drops whole channels of `(N, C, …)`, each with probability `p`, and scales the others by `1 / (1 - p)`.
    #[pyfunction]
    #[pyo3(signature = (input, p=0.5, training=true))]
    fn dropout2d(input: &Tensor, p: f64, training: bool) -> Answer {
        channels_dropped(input, p, training, None)
    }

    /// With `training`, drops whole channels of `(N, C, D, H, W)` or `(C, D, H, W)`, each with probability `p`, and scales the others
    /// by `1 / (1 - p)`.
    #[pyfunction]
    #[pyo3(signature = (input, p=0.5, training=true))]
    fn dropout3d(input: &Tensor, p: f64, training: bool) -> Answer {
        channels_dropped(input, p, training, Some(4))
    }

    /// With `training`, dropout for networks of `selu`, which keeps mean 0 and variance 1.
    #[pyfunction]
    #[pyo3(signature = (input, p=0.5, training=false))]
    fn alpha_dropout(input: &Tensor, p: f64, training: bool) -> Answer {
        dropped(input, p, training, |x| x.alpha_dropout(p))
    }

    /// `alpha_dropout` of whole channels of `(N, C, …)`.
    #[pyfunction]
    #[pyo3(signature = (input, p=0.5, training=false))]
    fn feature_alpha_dropout(input: &Tensor, p: f64, training: bool) -> Answer {
        dropped(input, p, training, |x| x.feature_alpha_dropout(p))
    }

    /// All steps of a recurrent layer in one direction, as one operation, for inputs that are projected to the gates already, `(T, N, gates
    /// H)`: the outputs `(T, N, H)`, and after them the states after the last step.
    ///
    /// weight: the weights of the state `(gates H, H)`, with gates in PyTorch's order
    /// states: those before the first step, each `(N, H)`: `[h, c]` of an LSTM, else `[h]`
    /// bias: of the state's projection, `(gates H)`
    /// cell: "lstm", "gru", "tanh" or "relu"
    /// reverse: runs from the last step to the first
    #[pyfunction]
    #[pyo3(signature = (inputs, weight, states, bias=None, *, cell="lstm", reverse=false))]
    fn recurrence(
        inputs: &Tensor,
        weight: &Tensor,
        states: Vec<Py<Tensor>>,
        bias: Option<&Tensor>,
        cell: &str,
        reverse: bool,
    ) -> PyResult<Vec<Tensor>> {
        let cell = match cell {
            "lstm" => Cell::Lstm,
            "gru" => Cell::Gru,
            "tanh" => Cell::Tanh,
            "relu" => Cell::Relu,
            other => return unknown("cell", other, "lstm, gru, tanh or relu"),
        };
        let mut all = vec![inputs, weight];
        all.extend(states.iter().map(Py::get));
        all.extend(bias);
        let count = states.len();
        many(&all, |v| {
            let (states, rest) = v[2..].split_at(count);
            let bias = rest.first().copied();
            let (out, last) =
                v[0].recurrence(Recurrence { cell, weight: v[1], bias, states, reverse, live: None })?;
            Ok([vec![out], last].concat())
        })
    }
}
