# Written by stubs.py.

from collections.abc import Callable, Sequence
from typing import Literal, overload

from dittograd._native import Tensor

def adaptive_avg_pool1d(input: Tensor, output_size: int | None | Sequence[int | None]) -> Tensor:
    """The means of as many windows of the last axes (L) as `output_size` says, one number
    for all axes or one for each; `None` keeps an axis.
    """
def adaptive_avg_pool2d(input: Tensor, output_size: int | None | Sequence[int | None]) -> Tensor:
    """The means of as many windows of the last axes (H, W) as `output_size` says, one number
    for all axes or one for each; `None` keeps an axis.
    """
def adaptive_avg_pool3d(input: Tensor, output_size: int | None | Sequence[int | None]) -> Tensor:
    """The means of as many windows of the last axes (D, H, W) as `output_size` says, one number
    for all axes or one for each; `None` keeps an axis.
    """
@overload
def adaptive_max_pool1d(
    input: Tensor,
    output_size: int | None | Sequence[int | None],
    return_indices: Literal[False] = False,
) -> Tensor:
    """The largest elements of as many windows of the last axes (L) as `output_size` says, one
    number for all axes or one for each; `None` keeps an axis. With `return_indices` also their positions, counted through these axes.
    """
@overload
def adaptive_max_pool1d(
    input: Tensor,
    output_size: int | None | Sequence[int | None],
    return_indices: Literal[True],
) -> tuple[Tensor, Tensor]: ...
@overload
def adaptive_max_pool2d(
    input: Tensor,
    output_size: int | None | Sequence[int | None],
    return_indices: Literal[False] = False,
) -> Tensor:
    """The largest elements of as many windows of the last axes (H, W) as `output_size` says, one
    number for all axes or one for each; `None` keeps an axis. With `return_indices` also their positions, counted through these axes.
    """
@overload
def adaptive_max_pool2d(
    input: Tensor,
    output_size: int | None | Sequence[int | None],
    return_indices: Literal[True],
) -> tuple[Tensor, Tensor]: ...
@overload
def adaptive_max_pool3d(
    input: Tensor,
    output_size: int | None | Sequence[int | None],
    return_indices: Literal[False] = False,
) -> Tensor:
    """The largest elements of as many windows of the last axes (D, H, W) as `output_size` says, one
    number for all axes or one for each; `None` keeps an axis. With `return_indices` also their positions, counted through these axes.
    """
@overload
def adaptive_max_pool3d(
    input: Tensor,
    output_size: int | None | Sequence[int | None],
    return_indices: Literal[True],
) -> tuple[Tensor, Tensor]: ...
def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Tensor:
    """The grid for `grid_sample` of affine maps `(N, 2, 3)`, for images of the `size` `(N, C, H, W)`; or `(N, 3, 4)` for `(N, C, D, H,
    W)`. `align_corners` is as of `grid_sample`.
    """
def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False) -> Tensor:
    """With `training`, dropout for networks of `selu`, which keeps mean 0 and variance 1."""
def avg_pool1d(
    input: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean of each window of the last axis, of `(N, C, L)` or `(C, L)`.

    `kernel_size`, `stride` and `padding` are one number for all axes or one for each. `stride` is by default `kernel_size`;
    `padding` adds zeros on both sides, by default none. With `ceil_mode` the last windows may reach over the end. Without
    `count_include_pad` the zeros of the padding do not count.
    """
def avg_pool2d(
    input: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The mean of each window of the last two axes, of `(N, C, H, W)` or `(C, H, W)`. With `divisor_override` the sums are divided by
    that.

    `kernel_size`, `stride` and `padding` are one number for all axes or one for each. `stride` is by default `kernel_size`;
    `padding` adds zeros on both sides, by default none. With `ceil_mode` the last windows may reach over the end. Without
    `count_include_pad` the zeros of the padding do not count.
    """
def avg_pool3d(
    input: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The mean of each window of the last three axes, of `(N, C, D, H, W)` or `(C, D, H, W)`. With `divisor_override` the sums are
    divided by that.

    `kernel_size`, `stride` and `padding` are one number for all axes or one for each. `stride` is by default `kernel_size`;
    `padding` adds zeros on both sides, by default none. With `ceil_mode` the last windows may reach over the end. Without
    `count_include_pad` the zeros of the padding do not count.
    """
def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float | None = 0.1,
    eps: float = 1e-05,
) -> Tensor:
    """Batch norm of `(N, C, …)`: each channel minus its mean, over `sqrt(variance + eps)`, times `weight` `(C)`, plus `bias` `(C)`.

    With `training`, mean and variance are those of the batch, else `running_mean` and `running_var` `(C)`. Unlike in PyTorch these
    are not changed, and `momentum` has no effect: nothing happens in place. `native_batch_norm` returns the statistics of the batch
    too.
    """
def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`y[o] = Σ input1[i] · weight[o, i, j] · input2[j] + bias[o]` along the last axes: `(…, in1)` and `(…, in2)` with `weight` `(out,
    in1, in2)` make `(…, out)`.
    """
def binary_cross_entropy(input: Tensor, target: Tensor, weight: Tensor | None = None, *, reduction: str = "mean") -> Tensor:
    """Cross-entropy of probabilities against targets from 0 to 1, times `weight`. `reduction` is "mean", "sum", or "none", which keeps
    a value for each element.
    """
def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """Cross-entropy of the sigmoids of logits against targets from 0 to 1, times `weight`. `pos_weight` multiplies the part of
    positive targets. `reduction` is "mean", "sum", or "none", which keeps a value for each element.
    """
def celu(input: Tensor, alpha: float = 1.0) -> Tensor:
    """`x` where positive, else `alpha · (e^(x / alpha) - 1)`."""
def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """Takes the channels of `(N, C, …)`, which form `groups` groups, in turns from each group."""
def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """Convolution of images `(N, C, L)`, or of one image without `N`, with
    `weight` `(O, C / groups, kernel sizes…)` and `bias` `(O)`: images `(N, O, …)`.

    `stride`, `padding` and `dilation` are one number for all axes or one for each; by default 1, 0 and 1.
    `padding` adds zeros on both sides. It may also be "valid", which is 0, or "same", which keeps the sizes and needs stride 1.
    """
def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """Convolution of images `(N, C, H, W)`, or of one image without `N`, with
    `weight` `(O, C / groups, kernel sizes…)` and `bias` `(O)`: images `(N, O, …)`.

    `stride`, `padding` and `dilation` are one number for all axes or one for each; by default 1, 0 and 1.
    `padding` adds zeros on both sides. It may also be "valid", which is 0, or "same", which keeps the sizes and needs stride 1.
    """
def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: str | int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """Convolution of images `(N, C, D, H, W)`, or of one image without `N`, with
    `weight` `(O, C / groups, kernel sizes…)` and `bias` `(O)`: images `(N, O, …)`.

    `stride`, `padding` and `dilation` are one number for all axes or one for each; by default 1, 0 and 1.
    `padding` adds zeros on both sides. It may also be "valid", which is 0, or "same", which keeps the sizes and needs stride 1.
    """
def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
) -> Tensor:
    """Transposed convolution of images `(N, C, L)`, or of one image without `N`, with
    `weight` `(C, O / groups, kernel sizes…)` and `bias` `(O)`: images `(N, O, …)`.

    `stride`, `padding`, `output_padding` and `dilation` are one number for all axes or one for each; by default 1, 0, 0 and 1.
    `padding` is that of the convolution whose sizes it undoes; `output_padding` is added to the sizes at the end.
    """
def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
) -> Tensor:
    """Transposed convolution of images `(N, C, H, W)`, or of one image without `N`, with
    `weight` `(C, O / groups, kernel sizes…)` and `bias` `(O)`: images `(N, O, …)`.

    `stride`, `padding`, `output_padding` and `dilation` are one number for all axes or one for each; by default 1, 0, 0 and 1.
    `padding` is that of the convolution whose sizes it undoes; `output_padding` is added to the sizes at the end.
    """
def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
) -> Tensor:
    """Transposed convolution of images `(N, C, D, H, W)`, or of one image without `N`, with
    `weight` `(C, O / groups, kernel sizes…)` and `bias` `(O)`: images `(N, O, …)`.

    `stride`, `padding`, `output_padding` and `dilation` are one number for all axes or one for each; by default 1, 0, 0 and 1.
    `padding` is that of the convolution whose sizes it undoes; `output_padding` is added to the sizes at the end.
    """
def cosine_embedding_loss(input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, *, reduction: str = "mean") -> Tensor:
    """With the cosine `c` of the angle between rows: `1 - c` for targets of 1, `max(0, c - margin)` for targets of -1."""
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-08) -> Tensor:
    """The cosine of the angle between two tensors along an axis; norms below `eps` count as `eps`."""
def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Cross-entropy of logits `(N, C, …)` or `(C)` against labels `(N, …)`, or against class probabilities of the logits' shape.

    weight: a factor for each class
    ignore_index: labels equal to it do not count, such as -100. Without it every label is a class, and others are errors; PyTorch
    leaves out -100 by default
    reduction: "mean", of labels weighted by `weight`, "sum" or "none"
    label_smoothing: the part of each label, from 0 to 1, that all classes share
    """
def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor | int | Sequence[int],
    target_lengths: Tensor | int | Sequence[int],
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """CTC loss of log-probabilities `(T, N, C)` against labels `(N, S)`, of which the first `input_lengths` steps and `target_lengths`
    labels count. The gradient is that of this function; PyTorch's assumes that a `log_softmax` comes before.
    """
def dropout(input: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """With `training`, drops each element with probability `p` and scales the others by `1 / (1 - p)`; else `input` itself. The seed
    of the session decides which.
    """
def dropout1d(input: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """With `training`, drops whole channels of `(N, C, L)` or `(C, L)`, each with probability `p`, and scales the others by `1 / (1 -
    p)`.
    """
def dropout2d(input: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """With `training`, drops whole channels of `(N, C, …)`, each with probability `p`, and scales the others by `1 / (1 - p)`."""
def dropout3d(input: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """With `training`, drops whole channels of `(N, C, D, H, W)` or `(C, D, H, W)`, each with probability `p`, and scales the others
    by `1 / (1 - p)`.
    """
def elu(input: Tensor, alpha: float = 1.0) -> Tensor:
    """`x` where positive, else `alpha · (e^x - 1)`."""
def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Rows of a table `weight` `(rows, size)` at indices `(…)`: `(…, size)`.

    padding_idx: a row that gets no gradient; a negative one counts from the end
    max_norm: rows of a larger norm are scaled down to it. Unlike in PyTorch the table itself is not changed
    norm_type, scale_grad_by_freq, sparse: must be as they are by default
    """
def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Sums, means or maxima (`mode`) of bags of rows of a table `weight` `(rows, size)`: `(bags, size)`.

    input: indices, a row `(bags, n)` for each bag, or a vector with `offsets`
    offsets: where each bag begins; with `include_last_offset` the last one is the end of the last bag
    per_sample_weights: a factor for each row taken, for the mode "sum"
    padding_idx: a row that does not count
    max_norm: as of `embedding`; `norm_type`, `scale_grad_by_freq` and `sparse` must be as they are by default
    """
def feature_alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False) -> Tensor:
    """`alpha_dropout` of whole channels of `(N, C, …)`."""
def fold(
    input: Tensor,
    output_size: int | Sequence[int],
    kernel_size: int | Sequence[int],
    dilation: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    stride: int | Sequence[int] = 1,
) -> Tensor:
    """Images `(N, C, output_size)` from the sums of their patches `(N, C · kernel elements, patches)`, as `unfold` makes them.

    `output_size`, `kernel_size`, `dilation`, `padding` and `stride` are one number or one for each axis; the last three are by
    default 1, 0 and 1.
    """
@overload
def fractional_max_pool2d(
    input: Tensor,
    kernel_size: int | Sequence[int],
    output_size: int | Sequence[int] | None = None,
    output_ratio: float | Sequence[float] | None = None,
    return_indices: Literal[False] = False,
    _random_samples: Tensor | None = None,
) -> Tensor:
    """The largest element of each window of the last two axes, with windows at random distances.

    `kernel_size` is one number or one for each axis. The number of windows is `output_size`, or `output_ratio` times the sizes;
    give one of them. With `return_indices` the positions of the elements are a second result, counted through these axes.
    """
@overload
def fractional_max_pool2d(
    input: Tensor,
    kernel_size: int | Sequence[int],
    output_size: int | Sequence[int] | None = None,
    output_ratio: float | Sequence[float] | None = None,
    *,
    return_indices: Literal[True],
    _random_samples: Tensor | None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def fractional_max_pool3d(
    input: Tensor,
    kernel_size: int | Sequence[int],
    output_size: int | Sequence[int] | None = None,
    output_ratio: float | Sequence[float] | None = None,
    return_indices: Literal[False] = False,
    _random_samples: Tensor | None = None,
) -> Tensor:
    """The largest element of each window of the last three axes, with windows at random distances.

    `kernel_size` is one number or one for each axis. The number of windows is `output_size`, or `output_ratio` times the sizes;
    give one of them. With `return_indices` the positions of the elements are a second result, counted through these axes.
    """
@overload
def fractional_max_pool3d(
    input: Tensor,
    kernel_size: int | Sequence[int],
    output_size: int | Sequence[int] | None = None,
    output_ratio: float | Sequence[float] | None = None,
    *,
    return_indices: Literal[True],
    _random_samples: Tensor | None = None,
) -> tuple[Tensor, Tensor]: ...
def gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-06,
    reduction: str = "mean",
) -> Tensor:
    """Negative log-likelihood of targets under normal distributions with means `input` and variances `var`, which are at least `eps`;
    `full` adds its constant.
    """
def gelu(input: Tensor, *, approximate: str = "none") -> Tensor:
    """`x` times the normal distribution function of `x`: exactly (`approximate="none"`) or by a tanh (`"tanh"`)."""
def glu(input: Tensor, dim: int = -1) -> Tensor:
    """The first half of an axis, the last by default, times the sigmoid of the second half."""
def grid_sample(
    input: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Tensor:
    """Reads images `(N, C, H, W)` at the places of a grid `(N, H2, W2, 2)`: images `(N, C, H2, W2)`. Of `(N, C, D, H, W)` the grid has
    three axes and three coordinates.

    grid: coordinates x, y (and z), from -1 to 1 across an image
    mode: "bilinear", "nearest" or "bicubic"
    padding_mode: what is outside: "zeros", "border" or "reflection"
    align_corners: whether -1 and 1 are the centres of the corner elements, not their outer edges
    """
def group_norm(input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-05) -> Tensor:
    """Group norm of `(N, C, …)`: each of `num_groups` groups of channels of each sample by its own mean and variance, times `weight`
    `(C)`, plus `bias` `(C)`.
    """
def gumbel_softmax(logits: Tensor, tau: float = 1.0, hard: bool = False, *, dim: int = -1) -> Tensor:
    """A random sample of the classes along an axis, the last by default, by their logits: with `hard` one-hot, otherwise a softmax
    with noise, at the temperature `tau`. Gradients are those of the softmax.
    """
def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """Each number, 0 if its magnitude is at most `lambd`."""
def hardsigmoid(input: Tensor) -> Tensor:
    """A sigmoid of straight lines: `x / 6 + 1/2`, held between 0 and 1."""
def hardswish(input: Tensor) -> Tensor:
    """`x · hardsigmoid(x)`."""
def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """Numbers held between `min_val`, by default -1, and `max_val`, by default 1."""
def hinge_embedding_loss(input: Tensor, target: Tensor, margin: float = 1.0, *, reduction: str = "mean") -> Tensor:
    """`input` for targets of 1, `max(0, margin - input)` for targets of -1."""
def huber_loss(input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0, weight: Tensor | None = None) -> Tensor:
    """Half the squared error against a target up to `delta`, linear from there on. `reduction` is "mean", "sum", or "none", which
    keeps a value for each element. The mean is over the elements, with weights too.
    """
def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float | None = 0.1,
    eps: float = 1e-05,
) -> Tensor:
    """Instance norm of `(N, C, …)`: each channel of each sample by its own mean and variance, times `weight` `(C)`, plus `bias` `(C)`.

    Without `use_input_stats` it is by `running_mean` and `running_var` `(C)`. Unlike in PyTorch these are not changed.
    """
def interpolate(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """Resizes images `(N, C, sizes…)`, to `size` or by `scale_factor`, one number for all axes or one for each.

    mode: "nearest" or "nearest-exact"; "linear" for one axis, "bilinear" or "bicubic" for two, "trilinear" for three; "area", which
    averages
    align_corners: of linear and cubic modes, whether the centres of the corner elements stay at the corners; by default not
    recompute_scale_factor: whether the scale is that of the sizes after rounding instead of `scale_factor`
    antialias: of linear and cubic modes, whether a smaller image averages over all elements that a new one covers
    """
def kl_div(input: Tensor, target: Tensor, *, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """Kullback-Leibler divergence of log-probabilities from target probabilities, or from their logarithms with `log_target`.
    `reduction="batchmean"` divides the sum by the size of the first axis.
    """
def l1_loss(input: Tensor, target: Tensor, *, reduction: str = "mean", weight: Tensor | None = None) -> Tensor:
    """The absolute error against a target of the same shape. `reduction` is "mean", "sum", or "none", which keeps a value for each
    element. With `weight` the mean is a weighted one.
    """
def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-05,
) -> Tensor:
    """Layer norm: minus the mean, over `sqrt(variance + eps)`, of the last axes, whose sizes are the list `normalized_shape`; times
    `weight` and plus `bias` of that shape.
    """
def leaky_relu(input: Tensor, negative_slope: float = 0.01) -> Tensor:
    """Each number, times `negative_slope` if it is not positive."""
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`input · weightᵀ + bias` along the last axis: `(…, in)` with `weight` `(out, in)` and `bias` `(out)` makes `(…, out)`."""
def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
) -> Tensor:
    """`cross_entropy` of a linear layer's output: logits are `input · linear_weightᵀ + linear_bias`, with the classes as the first
    axis of the weights `(C, …, features)`. The other arguments are those of `cross_entropy`.
    """
def local_response_norm(input: Tensor, size: int, alpha: float = 0.0001, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """Divides `(N, C, …)` by a power of the mean of the squares of `size` neighbouring channels."""
def log_softmax(input: Tensor, dim: int, dtype: str | None = None) -> Tensor:
    """The logarithm of the softmax along the axis `dim`, without overflow."""
def logsigmoid(input: Tensor) -> Tensor:
    """The logarithm of the sigmoid, without overflow."""
def lp_pool1d(
    input: Tensor,
    norm_type: float,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    """The norm of power `norm_type` of each window of the last axes (L), of signed powers."""
def lp_pool2d(
    input: Tensor,
    norm_type: float,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    """The norm of power `norm_type` of each window of the last axes (H, W), of signed powers."""
def lp_pool3d(
    input: Tensor,
    norm_type: float,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    """The norm of power `norm_type` of each window of the last axes (D, H, W), of signed powers."""
def margin_ranking_loss(input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, *, reduction: str = "mean") -> Tensor:
    """`max(0, margin - target · (input1 - input2))`: a target is 1 if the first should be the larger, -1 if the second."""
@overload
def max_pool1d(
    input: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: Literal[False] = False,
) -> Tensor:
    """The largest element of each window of the last axes (L); with `return_indices` also its position, counted through these axes.

    `kernel_size`, `stride`, `padding` and `dilation` are one number for all axes or one for each. `stride` is by default
    `kernel_size`, `padding` 0, `dilation` 1. With `ceil_mode` the last windows may reach over the end.
    """
@overload
def max_pool1d(
    input: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    *,
    return_indices: Literal[True],
) -> tuple[Tensor, Tensor]: ...
def max_pool1d_with_indices(
    input: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = True,
) -> tuple[Tensor, Tensor]:
    """The largest element of each window of the last axes (L), and its position, counted through these axes. Arguments as of the pooling without indices."""
@overload
def max_pool2d(
    input: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: Literal[False] = False,
) -> Tensor:
    """The largest element of each window of the last axes (H, W); with `return_indices` also its position, counted through these axes.

    `kernel_size`, `stride`, `padding` and `dilation` are one number for all axes or one for each. `stride` is by default
    `kernel_size`, `padding` 0, `dilation` 1. With `ceil_mode` the last windows may reach over the end.
    """
@overload
def max_pool2d(
    input: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    *,
    return_indices: Literal[True],
) -> tuple[Tensor, Tensor]: ...
def max_pool2d_with_indices(
    input: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = True,
) -> tuple[Tensor, Tensor]:
    """The largest element of each window of the last axes (H, W), and its position, counted through these axes. Arguments as of the pooling without indices."""
@overload
def max_pool3d(
    input: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: Literal[False] = False,
) -> Tensor:
    """The largest element of each window of the last axes (D, H, W); with `return_indices` also its position, counted through these axes.

    `kernel_size`, `stride`, `padding` and `dilation` are one number for all axes or one for each. `stride` is by default
    `kernel_size`, `padding` 0, `dilation` 1. With `ceil_mode` the last windows may reach over the end.
    """
@overload
def max_pool3d(
    input: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    *,
    return_indices: Literal[True],
) -> tuple[Tensor, Tensor]: ...
def max_pool3d_with_indices(
    input: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
    return_indices: bool = True,
) -> tuple[Tensor, Tensor]:
    """The largest element of each window of the last axes (D, H, W), and its position, counted through these axes. Arguments as of the pooling without indices."""
def max_unpool1d(
    input: Tensor,
    indices: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """Puts elements back to the positions (L) that max pooling returned, among zeros. Elements with one position are averaged."""
def max_unpool2d(
    input: Tensor,
    indices: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """Puts elements back to the positions (H, W) that max pooling returned, among zeros. Elements with one position are averaged."""
def max_unpool3d(
    input: Tensor,
    indices: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """Puts elements back to the positions (D, H, W) that max pooling returned, among zeros. Elements with one position are averaged."""
def mish(input: Tensor) -> Tensor:
    """`x · tanh(softplus(x))`."""
def mse_loss(input: Tensor, target: Tensor, *, reduction: str = "mean", weight: Tensor | None = None) -> Tensor:
    """The squared error against a target of the same shape. `reduction` is "mean", "sum", or "none", which keeps a value for each
    element. With `weight` the mean is a weighted one.
    """
def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Attention of several heads, with projections before and after it, of queries `(n, N, size)` to keys and values `(m, N, size)`, or without
    `N`. Returns the outputs, and with `need_weights` the weights, which are the means over the heads with `average_attn_weights`. `attn_mask`
    and `key_padding_mask` are truth values, true where nothing may attend, or numbers, which are added to the scores.
    """
def multi_margin_loss(
    input: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    *,
    reduction: str = "mean",
) -> Tensor:
    """Hinges of scores `(N, C)` or `(C)` against labels: how far the others are above the label's score less `margin`, to the power of
    `p`, 1 or 2.
    """
def multilabel_margin_loss(input: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """Hinges of scores `(N, C)` or `(C)` against lists of labels of the same shape. A list ends before its first entry that is no class,
    such as 4294967295, which stands for PyTorch's -1.
    """
def multilabel_soft_margin_loss(input: Tensor, target: Tensor, weight: Tensor | None = None, *, reduction: str = "mean") -> Tensor:
    """The mean over the classes, the last axis, of `binary_cross_entropy_with_logits`, with a weight for each class."""
def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Negative log-likelihood of log-probabilities `(N, C, …)` or `(C)` at labels `(N, …)`. `weight` has a factor for each class.
    Labels equal to `ignore_index` do not count, such as -100; without it every label is a class. `reduction` is "mean",
    "sum" or "none".
    """
def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """Divides by the norm of power `p` along the axis `dim`, by default the second, or by `eps` if that is larger."""
def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """Zeros with a 1 at each index, along a new last axis of `num_classes`: numbers, not integers. Without `num_classes` there are as
    many classes as the largest index needs, for which it waits for the device.
    """
def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """Pads the last axes. `pad` has two counts for each of them, before and after, from the last one back: `(left, right, top,
    bottom)`.

    mode: "constant", with `value`, by default 0; "reflect", "replicate" or "circular"
    """
def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-06, keepdim: bool = False) -> Tensor:
    """The `p`-norm of the difference of two tensors along the last axis, after `eps` is added to it."""
def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """The `p`-norms of the differences of all pairs of rows of a matrix: of the first row and each later one, then of the second, and so
    on.
    """
def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """Moves channels into positions: `(…, C · r², H, W)` to `(…, C, H · r, W · r)`."""
def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """Moves positions into channels: `(…, C, H · r, W · r)` to `(…, C · r², H, W)`."""
def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    *,
    eps: float = 1e-08,
    reduction: str = "mean",
) -> Tensor:
    """Negative log-likelihood of counts under Poisson distributions, whose rates are `input` or, with `log_input`, `e^input`; `full`
    adds an approximation of its constant.
    """
def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """`x` where positive, else `weight · x`, with one weight or one for each channel (axis 1)."""
def recurrence(
    inputs: Tensor,
    weight: Tensor,
    states: Sequence[Tensor],
    bias: Tensor | None = None,
    *,
    cell: str = "lstm",
    reverse: bool = False,
) -> list[Tensor]:
    """All steps of a recurrent layer in one direction, as one operation, for inputs that are projected to the gates already, `(T, N, gates
    H)`: the outputs `(T, N, H)`, and after them the states after the last step.

    weight: the weights of the state `(gates H, H)`, with gates in PyTorch's order
    states: those before the first step, each `(N, H)`: `[h, c]` of an LSTM, else `[h]`
    bias: of the state's projection, `(gates H)`
    cell: "lstm", "gru", "tanh" or "relu"
    reverse: runs from the last step to the first
    """
def relu(input: Tensor) -> Tensor:
    """Each number, or 0 if it is negative."""
def relu6(input: Tensor) -> Tensor:
    """Numbers held between 0 and 6."""
def rms_norm(input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """RMS norm: over the root of the mean square plus `eps` of the last axes, whose sizes are the list `normalized_shape`; times
    `weight` of that shape. `eps` is by default the distance from 1 to the next float32.
    """
def rrelu(input: Tensor, lower: float = 0.125, upper: float = 0.3333333333333333, training: bool = False) -> Tensor:
    """`x` where positive, else `x` times a slope: while training a random one from `lower` to `upper` for each element, otherwise
    the mean of both.
    """
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`softmax(scale · query · keyᵀ) · value`: queries `(…, n, d)`, keys `(…, m, d)` and values `(…, m, dv)` make `(…, n, dv)`.

    attn_mask: truth values, true where a query may attend, or numbers, which are added to the scores; it broadcasts to `(…, n, m)`
    dropout_p: the probability with which a weight is dropped, at every call
    is_causal: whether query `i` attends to the keys up to `i` only; not with `attn_mask`
    scale: by default `1 / sqrt(d)`
    enable_gqa: whether keys and values may have fewer heads, the third axis from the end, than queries
    """
def selu(input: Tensor) -> Tensor:
    """The activation that keeps mean 0 and variance 1: `elu` with fixed constants."""
def silu(input: Tensor) -> Tensor:
    """`x · sigmoid(x)`, also known as swish."""
def smooth_l1_loss(input: Tensor, target: Tensor, *, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """The error `d` against a target: squared and divided by `2 beta` below `beta`, `|d| - beta / 2` from there on. `reduction` is
    "mean", "sum", or "none", which keeps a value for each element.
    """
def soft_margin_loss(input: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """`ln(1 + e^(-target · input))` for targets of 1 and -1."""
def softmax(input: Tensor, dim: int, dtype: str | None = None) -> Tensor:
    """Softmax along the axis `dim`: positive numbers whose sum is 1."""
def softmin(input: Tensor, dim: int, dtype: str | None = None) -> Tensor:
    """The softmax of `-input` along the axis `dim`."""
def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """`ln(1 + e^(beta x)) / beta`, without overflow; `x` itself where `beta x` is above `threshold`."""
def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """Each number moved towards 0 by `lambd`, 0 where it would pass it."""
def softsign(input: Tensor) -> Tensor:
    """`x / (1 + |x|)`."""
def tanhshrink(input: Tensor) -> Tensor:
    """`x - tanh(x)`."""
def threshold(input: Tensor, threshold: float, value: float) -> Tensor:
    """Each number above `threshold`, `value` in place of the others."""
def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-06,
    swap: bool = False,
    *,
    reduction: str = "mean",
) -> Tensor:
    """`max(0, margin + |anchor - positive| - |anchor - negative|)` of rows. With `swap` the distance from the positive to the negative
    counts if it is the smaller one.
    """
def triplet_margin_with_distance_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """`triplet_margin_loss` with a distance of your own: a function of two tensors, by default `pairwise_distance`."""
def unfold(
    input: Tensor,
    kernel_size: int | Sequence[int],
    dilation: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    stride: int | Sequence[int] = 1,
) -> Tensor:
    """The patches of images `(N, C, H, W)` that a convolution would read, each a column: `(N, C · kernel elements, patches)`.

    `kernel_size`, `dilation`, `padding` and `stride` are one number or one for each axis; by default 1, 0 and 1. `x.unfold` is
    another function, the windows of an axis.
    """
def upsample(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> Tensor:
    """`interpolate`, with fewer arguments."""
def upsample_bilinear(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
) -> Tensor:
    """`interpolate` of mode "bilinear" with `align_corners`."""
def upsample_nearest(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
) -> Tensor:
    """`interpolate` of mode "nearest"."""
