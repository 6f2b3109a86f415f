"""Models of PyTorch run here: outputs, gradients and running statistics are compared with PyTorch's in float64."""

import copy
import logging
import os

import numpy as np
import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten  # noqa: E402

import dittograd as dg  # noqa: E402
from dittograd.torch import Lowered, LoweringError, lower, lowering, upload  # noqa: E402
from dittograd.torch._ops.table import TABLE  # noqa: E402

torch.set_num_threads(1)
logging.getLogger("transformers").setLevel(logging.ERROR)


# Models. Each function returns a model and its arguments.


def images(batch, size=64, channels=3):
    return torch.randn(batch, channels, size, size)


def vision(name, batch=8, **options):
    models = pytest.importorskip("torchvision", reason="torchvision is not installed").models
    return getattr(models, name)(num_classes=10, **options), (images(batch),), {}


def densenet(batch=8):
    """DenseNet-121 with fewer layers in each block."""
    return vision("DenseNet", batch, growth_rate=32, block_config=(2, 3, 3, 2), num_init_features=64)


def vit():
    models = pytest.importorskip("torchvision", reason="torchvision is not installed").models
    model = models.VisionTransformer(64, 16, num_layers=3, num_heads=4, hidden_dim=64, mlp_dim=128, num_classes=10)
    nn.init.normal_(model.heads.head.weight, std=0.1)
    return model, (images(2),), {}


def convnext():
    """ConvNeXt-tiny with fewer layers in each block."""
    convnext = pytest.importorskip("torchvision.models.convnext", reason="torchvision is not installed")
    blocks = [convnext.CNBlockConfig(*sizes) for sizes in ((48, 96, 1), (96, 192, 1), (192, 384, 2), (384, None, 1))]
    return convnext.ConvNeXt(blocks, num_classes=10), (images(2),), {}


def mixer():
    timm = pytest.importorskip("timm.models.mlp_mixer", reason="timm is not installed")
    model = timm.MlpMixer(num_classes=10, img_size=64, patch_size=16, num_blocks=3, embed_dim=64)
    nn.init.normal_(model.head.weight, std=0.1)
    return model, (images(2),), {}


def timm_model(name, batch=2, size=64, **options):
    timm = pytest.importorskip("timm", reason="timm is not installed")
    return timm.create_model(name, num_classes=10, **options), (images(batch, size),), {}


SMALL = dict(vocab_size=60, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=32)


def language(name, config, labels=True, **options):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = getattr(transformers, config)(use_cache=False, **options)
    model = getattr(transformers, name)(config)
    ids = torch.randint(3, 60, (2, 12))
    return model, (), {"input_ids": ids, **({"labels": ids} if labels else {})}


def gpt2(attention):
    return language(
        "GPT2LMHeadModel", "GPT2Config", n_layer=2, n_embd=32, n_head=4, vocab_size=60, n_positions=16, bos_token_id=1, eos_token_id=2,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation=attention,
    )  # fmt: skip


def llama(attention):
    return language("LlamaForCausalLM", "LlamaConfig", num_key_value_heads=2, attn_implementation=attention, **SMALL)


def qwen2(attention):
    return language("Qwen2ForCausalLM", "Qwen2Config", num_key_value_heads=2, attn_implementation=attention, **SMALL)


def bert(attention):
    model, args, kwargs = language(
        "BertForSequenceClassification", "BertConfig", labels=False, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        attn_implementation=attention, **SMALL,
    )  # fmt: skip
    # The second text is shorter.
    mask = torch.ones(2, 12, dtype=torch.int64)
    mask[1, 8:] = 0
    return model, args, {**kwargs, "attention_mask": mask, "labels": torch.tensor([0, 1])}


class Classifier(nn.Module):
    """An LSTM over embedded tokens."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(50, 16, padding_idx=0)
        self.lstm = nn.LSTM(16, 24, num_layers=2, batch_first=True, bidirectional=True)
        self.out = nn.Linear(48, 5)

    def forward(self, ids):
        y, _ = self.lstm(self.tokens(ids))
        mask = (ids != 0).unsqueeze(-1)
        return self.out((y * mask).sum(1) / mask.sum(1))


def lstm():
    ids = torch.randint(1, 50, (3, 9))
    ids[1, 5:] = 0
    return Classifier(), (ids,), {}


class UNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()

        def block(into, out):
            return nn.Sequential(
                nn.Conv2d(into, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(inplace=True),
                nn.Conv2d(out, out, 3, padding=1), nn.GroupNorm(4, out), nn.SiLU(),
            )  # fmt: skip

        self.first, self.second, self.middle = block(3, width), block(width, 2 * width), block(2 * width, 4 * width)
        self.up = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.third, self.fourth = block(4 * width, 2 * width), block(3 * width, width)
        self.upsample = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        self.out = nn.Conv2d(width, 4, 1)

    def forward(self, x):
        a = self.first(x)
        b = self.second(F.max_pool2d(a, 2))
        c = self.middle(F.max_pool2d(b, 2))
        d = self.third(torch.cat([self.up(c), b], 1))
        return self.out(self.fourth(torch.cat([self.upsample(d), a], 1)))


def unet():
    return UNet(), (images(2, 32),), {}


def condition(model, gain):
    """Makes a deep model smooth, with SiLU in place of ReLU, and gives batch norm a gain, which training lowers at the end of blocks."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, (nn.ReLU, nn.ReLU6)):
                setattr(parent, name, nn.SiLU())
            if isinstance(child, nn.BatchNorm2d):
                nn.init.constant_(child.weight, gain)


# Where a number next to 0 rounds to the other side, ReLU has the other slope, and gradients differ by far more than a rounding error, in
# PyTorch too. Deep models have millions of such numbers, and in training batch norm magnifies rounding errors from layer to layer: there
# the deepest are conditioned first, by the gain that is named. Batches have 8 images in training, since batch norm over few values is
# ill-conditioned, and 2 in evaluation.
MODELS = {
    "resnet18": lambda batch: vision("resnet18", batch),
    "resnet50": lambda batch: vision("resnet50", batch),
    "vit": lambda batch: vit(),
    "convnext": lambda batch: convnext(),
    "mobilenet_v2": lambda batch: vision("mobilenet_v2", batch, dropout=0.0),
    "mobilenet_v3_small": lambda batch: vision("mobilenet_v3_small", batch, dropout=0.0),
    "efficientnet_b0": lambda batch: vision("efficientnet_b0", batch, dropout=0.0, stochastic_depth_prob=0.0),
    "densenet": densenet,
    "gpt2": lambda batch: gpt2("sdpa"),
    "gpt2_eager": lambda batch: gpt2("eager"),
    "llama": lambda batch: llama("sdpa"),
    "llama_eager": lambda batch: llama("eager"),
    "qwen2": lambda batch: qwen2("sdpa"),
    "qwen2_eager": lambda batch: qwen2("eager"),
    "bert": lambda batch: bert("sdpa"),
    "bert_eager": lambda batch: bert("eager"),
    "lstm": lambda batch: lstm(),
    "unet": lambda batch: unet(),
    "deit": lambda batch: timm_model("deit_tiny_patch16_224", img_size=64, depth=3),
    "mixer": lambda batch: mixer(),
    "regnet": lambda batch: timm_model("regnety_002", batch),
    "swin": lambda batch: timm_model(
        "swin_tiny_patch4_window7_224", img_size=56, size=56, depths=(1, 2), num_heads=(2, 4), embed_dim=32, drop_path_rate=0.0
    ),
}
CONDITIONED_IN_TRAINING = {"resnet50": 0.2, "mobilenet_v2": 0.2, "efficientnet_b0": 0.2, "densenet": 1.0}


def weights(shape, seed):
    """What an output is multiplied with to make one number of all."""
    return np.cos(np.arange(np.prod(shape, dtype=int)) * (0.7 + 0.1 * seed) + seed).reshape(shape)


def theirs(model, args, kwargs, dtype):
    """Outputs that have gradients, gradients of parameters by name, and the state afterwards, as float64."""

    def of_type(x):
        return x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x

    model = copy.deepcopy(model).to(dtype)
    found = model(*[of_type(a) for a in args], **{name: of_type(a) for name, a in kwargs.items()})
    outputs = [y for y in tree_leaves(found) if isinstance(y, torch.Tensor) and y.requires_grad]
    loss = sum((y * torch.tensor(weights(y.shape, i), dtype=dtype)).sum() for i, y in enumerate(outputs))
    parameters = dict(model.named_parameters())
    grads = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    return [y.detach().double() for y in outputs], dict(zip(parameters, grads)), model.state_dict()


def ours(model, args, kwargs):
    program = lower(model, args, kwargs)
    session = dg.Session("cpu", threads=1)
    values = {name: session.tensor(p.detach().numpy(), requires_grad=True) for name, p in program.parameters.items()}
    values |= {name: upload(session, b) for name, b in program.buffers.items()}
    found, updates = program(session, values, program.inputs(session, *args, **kwargs))
    outputs = [y for y in tree_leaves(found) if isinstance(y, dg.Tensor) and y.requires_grad]
    loss = 0.0
    for i, y in enumerate(outputs):
        loss = (y * session.tensor(weights(y.shape, i))).sum() + loss
    grads = dict(zip(program.parameters, loss.grad([values[name] for name in program.parameters])))
    return outputs, grads, updates, program


def distance(x, y):
    """The norm of a difference over the norm of what is right."""
    x = torch.from_numpy(x.numpy()) if isinstance(x, dg.Tensor) else x.detach()
    y = y.detach().double()
    return float((x.double() - y).norm() / max(y.norm(), 1e-30))


def worst(found, right):
    """The largest distance of tensors by name. What is zero but for rounding, beside the largest of them, does not count."""
    right = {name: x for name, x in right.items() if x is not None}
    floor = 1e-6 * max([x.norm() for x in right.values()], default=0.0)
    return max([distance(found[name], x) for name, x in right.items() if x.norm() > floor], default=0.0)


def compare(model, args, kwargs):
    """Errors of outputs, gradients and running statistics, and the errors of PyTorch in float32."""
    right, right_grads, state = theirs(model, args, kwargs, torch.float64)
    single, single_grads, single_state = theirs(model, args, kwargs, torch.float32)
    outputs, grads, updates, program = ours(model, args, kwargs)
    assert len(outputs) == len(right) and all(y.norm() > 0 for y in right)
    assert set(grads) == set(right_grads)
    for name, grad in grads.items():
        assert (grad is None) == (right_grads[name] is None), name
    for name, step in updates.items():
        if isinstance(step, int):
            assert program.counters[name] + step == state[name], name
    statistics = {name: state[name] for name, x in updates.items() if isinstance(x, dg.Tensor)}
    return {
        "outputs": (max(map(distance, outputs, right)), max(map(distance, single, right))),
        "gradients": (worst(grads, right_grads), worst(single_grads, right_grads)),
        "statistics": (worst(updates, statistics), worst(single_state, statistics)),
    }


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", MODELS)
def test_model(name, mode):
    torch.manual_seed(0)
    model, args, kwargs = MODELS[name](8 if mode == "train" else 2)
    if mode == "train" and name in CONDITIONED_IN_TRAINING:
        condition(model, CONDITIONED_IN_TRAINING[name])
    model.train(mode == "train")
    for what, (error, of_torch) in compare(model, args, kwargs).items():
        print(f"{name} {mode} {what} {error:.1e} (PyTorch in float32 {of_torch:.1e})")
        assert error <= 1e-5, f"{what}: {error:.1e}, PyTorch in float32 {of_torch:.1e}"


# Single operations. Each is the name of an overload and a function that makes its arguments; tensors among them become inputs.


def r(*shape):
    """Numbers from -2 to 2, not near whole numbers and their halves, where some functions jump."""
    x = torch.rand(*shape) * 4 - 2
    near = (x * 2).round() / 2
    return torch.where((x - near).abs() < 0.05, near + 0.06 + 0.1 * torch.rand(*shape), x)


def p(*shape):
    """Numbers from 0.1 to 0.9."""
    return torch.rand(*shape) * 0.8 + 0.1


def b(*shape):
    return torch.rand(*shape) > 0.5


def i(below, *shape):
    return torch.randint(0, below, shape)


def signs(*shape):
    return torch.where(b(*shape), 1.0, -1.0)


def square(n=3):
    return torch.eye(n) * 3 + torch.rand(n, n)


def complexes(*shape):
    return torch.complex(r(*shape), r(*shape))


OPS = []


def ops(names, arguments, **named):
    OPS.extend((name if "." in name else f"{name}.default", arguments, named) for name in names.split())


# Elementwise.
ops("abs asinh atan ceil cos cosh deg2rad erf erfc exp exp2 expm1 floor frac i0 neg rad2deg reciprocal sigmoid sign sgn", lambda: [r(3, 4)])
ops("sin sinc sinh square tanh trunc isfinite isinf isnan isneginf isposinf logical_not signbit", lambda: [r(3, 4)])
ops("relu relu6 selu silu mish hardswish hardsigmoid leaky_relu celu hardtanh hardshrink softshrink glu", lambda: [r(3, 4)])
ops("nan_to_num log_sigmoid elu gelu softplus rrelu", lambda: [r(3, 4)])
ops("special_erfcx special_i0e special_i1 special_i1e special_log_ndtr round positive detach clone alias", lambda: [r(3, 4)])
ops("acos asin atanh digamma erfinv lgamma log log10 log1p log2 rsqrt sqrt tan logit special_entr special_ndtri", lambda: [p(3, 4)])
ops("acosh", lambda: [p(3) + 1])
ops("threshold", lambda: [r(3, 4), 0.3, 0.7])
ops("elu", lambda: [r(3, 4), 0.5, 1.5, 2.0])
ops("gelu", lambda: [r(3, 4)], approximate="tanh")
ops("softplus", lambda: [r(3, 4), 2.0, 1.0])
ops("round.decimals", lambda: [r(3, 4)], decimals=1)
ops("prelu _prelu_kernel", lambda: [r(2, 4, 3), p(1).reshape(1)])
ops("clamp", lambda: [r(3, 4), -0.7, 0.6])
ops("clamp_min clamp_max", lambda: [r(3, 4), 0.3])
ops("clamp.Tensor", lambda: [r(3, 4), -p(4), p(4)])
ops("clamp_min.Tensor clamp_max.Tensor", lambda: [r(3, 4), r(4)])
ops("add.Tensor sub.Tensor rsub.Tensor mul.Tensor div.Tensor maximum minimum max.other min.other fmax fmin", lambda: [r(3, 4), r(4)])
ops("add.Tensor sub.Tensor", lambda: [r(3, 4), r(4)], alpha=0.5)
ops("add.Scalar sub.Scalar rsub.Scalar mul.Scalar div.Scalar remainder.Scalar fmod.Scalar floor_divide.Scalar", lambda: [r(3, 4), 1.7])
ops("copysign.Tensor atan2 hypot logaddexp logaddexp2 heaviside remainder.Tensor fmod.Tensor floor_divide", lambda: [r(3, 4), r(3, 4)])
ops("eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor logical_and logical_or logical_xor", lambda: [r(3, 4), r(3, 4)])
ops("eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar ge.Scalar", lambda: [i(4, 3, 4), 2])
ops("eq.Tensor ne.Tensor lt.Tensor ge.Tensor", lambda: [i(3, 8), i(3, 8)])
ops("div.Tensor_mode", lambda: [r(3, 4), p(4)], rounding_mode="floor")
ops("div.Scalar_mode", lambda: [r(3, 4), 0.7], rounding_mode="trunc")
ops("xlogy.Tensor special_xlog1py pow.Tensor_Tensor", lambda: [p(3, 4), p(4)])
ops("xlogy.Scalar_Other", lambda: [p(3), 0.3])
ops("xlogy.Scalar_Self pow.Scalar", lambda: [0.3, p(3)])
ops("pow.Tensor_Scalar", lambda: [p(3), 2.5])
ops("addcmul addcdiv", lambda: [r(3, 4), r(3, 4), p(3, 4) + 1], value=0.5)
ops("lerp.Scalar", lambda: [r(3), r(3), 0.3])
ops("lerp.Tensor", lambda: [r(3), r(3), p(3)])
ops("bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor __and__.Tensor __or__.Tensor __xor__.Tensor", lambda: [b(3, 4), b(4)])
ops("bitwise_and.Scalar bitwise_or.Scalar bitwise_xor.Scalar __and__.Scalar __or__.Scalar __xor__.Scalar", lambda: [b(3, 4), True])
ops("bitwise_not", lambda: [b(3, 4)])
ops("true_divide.Tensor", lambda: [r(3), p(3)])
ops("where.self", lambda: [b(3, 4), r(3, 4), r(4)])
ops("where.self", lambda: [b(3, 4), i(9, 3, 4), i(9, 4)])
ops("where.ScalarOther", lambda: [b(3), r(3), 0.5])
ops("where.ScalarSelf", lambda: [b(3), 0.5, r(3)])
ops("where.Scalar", lambda: [b(3), 0.5, 1.5])
ops("masked_fill.Scalar", lambda: [r(3, 4), b(4), 0.5])
ops("masked_fill.Tensor", lambda: [r(3, 4), b(4), torch.tensor(0.5)])
ops("masked_fill.Scalar", lambda: [i(5, 3, 4), b(4), 7])
ops("masked_scatter", lambda: [r(3, 4), b(3, 4), r(12)])
ops("fill.Scalar", lambda: [r(3, 4), 0.5])
ops("fill.Tensor", lambda: [r(3, 4), torch.tensor(0.5)])
ops("copy", lambda: [r(3, 4), r(4)])
ops("_to_copy", lambda: [b(3, 4)], dtype=torch.float32)
ops("_to_copy", lambda: [r(3, 4)], dtype=torch.bool)
ops("_to_copy", lambda: [i(5, 3)], dtype=torch.float32)
ops("to.dtype", lambda: [b(3, 4), torch.float32])
ops("to.device", lambda: [b(3, 4), torch.device("cpu"), torch.float32])
ops("to.dtype_layout", lambda: [b(3, 4)], dtype=torch.float32)
ops("to.other type_as", lambda: [b(3, 4), r(3)])

# Reductions.
ops("sum mean prod amax amin argmax argmin max min median nanmedian aminmax nansum count_nonzero var std", lambda: [r(3, 4)])
ops("all any", lambda: [b(3, 4)])
ops("all.dim any.dim", lambda: [b(3, 4), 1])
ops("all.dims any.dims", lambda: [b(3, 4), [0, 1]])
ops("count_nonzero.dim_IntList", lambda: [b(3, 4), [1]])
ops("sum.dim_IntList mean.dim logsumexp amax amin", lambda: [r(3, 4, 2), [0, -1], True])
ops("prod.dim_int argmax argmin max.dim min.dim median.dim nanmedian.dim", lambda: [r(3, 5), 1, True])
ops("cumsum cumprod cummax cummin logcumsumexp sort argsort softmax.int log_softmax.int", lambda: [r(3, 4), 1])
ops("cumsum", lambda: [b(3, 4), 1])
ops("_softmax _log_softmax", lambda: [r(3, 4), -1, False])
ops("_safe_softmax", lambda: [torch.where(torch.arange(3).unsqueeze(1) == 1, -torch.inf, r(3, 4)), -1])
ops("sort.stable argsort.stable", lambda: [r(3, 4)], stable=True, dim=0, descending=True)
ops("topk", lambda: [r(3, 6), 2])
ops("kthvalue", lambda: [r(3, 6), 2])
ops("copysign.Scalar", lambda: [r(3, 4), -1.0])
ops("mode", lambda: [r(3, 1)])
ops("msort", lambda: [r(3, 4)])
ops("diff", lambda: [r(3, 4)])
ops("trace", lambda: [r(3, 4)])
ops("var_mean std_mean", lambda: [r(3, 4)])
ops("var.dim std.dim var_mean.dim std_mean.dim", lambda: [r(3, 4), [1], False])
ops("var.correction std.correction var_mean.correction std_mean.correction", lambda: [r(3, 4), [0]], correction=0, keepdim=True)
ops("linalg_vector_norm", lambda: [r(3, 4), 2, [1]])
ops("norm.Scalar", lambda: [r(3, 4), 3])
ops("norm.ScalarOpt_dim", lambda: [r(3, 4), 2, [1]])
ops("norm.ScalarOpt_dim_dtype", lambda: [r(3, 4), 2, [1], True], dtype=torch.float64)
ops("norm.ScalarOpt_dtype", lambda: [r(3, 4), 2], dtype=torch.float64)
ops("dist", lambda: [r(3, 4), r(3, 4)])
ops("bucketize.Tensor", lambda: [r(3, 4), torch.arange(-2.0, 2.0)])
ops("searchsorted.Tensor", lambda: [torch.arange(-2.0, 2.0), r(3, 4)])

# Shapes.
ops("view _unsafe_view reshape view_copy", lambda: [r(3, 4), [2, 6]])
ops("flatten.using_ints", lambda: [r(2, 3, 4), 1])
ops("unflatten.int", lambda: [r(2, 6), 1, [2, 3]])
ops("squeeze squeeze_copy", lambda: [r(2, 1, 3, 1)])
ops("squeeze.dim", lambda: [r(2, 1, 3), 1])
ops("squeeze.dims", lambda: [r(2, 1, 3, 1), [1, 3]])
ops("unsqueeze unsqueeze_copy", lambda: [r(2, 3), 1])
ops("view_as reshape_as", lambda: [r(2, 6), r(3, 4)])
ops("ravel atleast_1d atleast_2d atleast_3d t t_copy mT mH numpy_T contiguous fliplr flipud tril triu diag", lambda: [r(3, 4)])
ops("expand expand_copy broadcast_to", lambda: [r(3, 1), [2, 3, 4]])
ops("expand_as", lambda: [r(3, 1), r(2, 3, 4)])
ops("permute permute_copy", lambda: [r(2, 3, 4), [2, 0, -2]])
ops("transpose.int transpose_copy.int swapaxes swapdims", lambda: [r(2, 3, 4), 0, -1])
ops("movedim.int", lambda: [r(2, 3, 4), 0, -1])
ops("movedim.intlist", lambda: [r(2, 3, 4), [0, 1], [-1, 0]])
ops("flip", lambda: [r(3, 4), [0, 1]])
ops("roll", lambda: [r(3, 4), [1, 2], [0, 1]])
ops("rot90", lambda: [r(3, 4), 1, [0, 1]])
ops("repeat tile", lambda: [r(3, 4), [2, 3]])
ops("repeat_interleave.self_int", lambda: [r(3, 4), 2, 1])
ops("unfold unfold_copy", lambda: [r(3, 6), 1, 3, 2])
ops("diag_embed", lambda: [r(3, 4)])
ops("diagflat", lambda: [r(3)])
ops("diagonal diagonal_copy", lambda: [r(3, 4), 1])
ops("diagonal_scatter", lambda: [r(3, 3), r(3)])
ops("block_diag cartesian_prod", lambda: [[r(3), r(2)]])
ops("combinations", lambda: [r(4)])
ops("slice.Tensor slice_copy.Tensor", lambda: [r(5, 6), 1, 1, -1, 2])
ops("select.int select_copy.int", lambda: [r(3, 4), 1, -1])
ops("narrow narrow_copy", lambda: [r(3, 4), 1, 1, 2])
ops("slice_scatter", lambda: [r(3, 6), r(3, 2), 1, 1, 5, 2])
ops("select_scatter", lambda: [r(3, 4), r(3), 1, -1])
ops("cat concat concatenate", lambda: [[r(3, 2), r(3, 4)], 1])
ops("cat", lambda: [[i(5, 3, 2), i(5, 3, 4)], -1])
ops("stack hstack vstack dstack column_stack broadcast_tensors", lambda: [[r(3, 4), r(3, 4)]])
ops("split.Tensor split_copy.Tensor unsafe_split.Tensor", lambda: [r(5, 3), 2])
ops("split_with_sizes split.sizes split_with_sizes_copy unsafe_split_with_sizes", lambda: [r(5, 3), [2, 3]])
ops("chunk unsafe_chunk", lambda: [r(5, 3), 2])
ops("tensor_split.sections", lambda: [r(5, 3), 2])
ops("tensor_split.indices", lambda: [r(5, 3), [1, 3]])
ops("unbind.int unbind_copy.int", lambda: [r(2, 3), 1])
ops("meshgrid.indexing", lambda: [[r(3), r(2)]], indexing="xy")
ops("meshgrid", lambda: [[r(3), r(2)]])
ops("pad", lambda: [r(2, 3, 4), [1, 2], "reflect"])
ops("pad", lambda: [b(2, 3), [1, 2]])
ops("constant_pad_nd", lambda: [r(2, 3), [1, -1, 0, 2], 0.5])
ops("constant_pad_nd", lambda: [i(5, 2, 3), [1, -1, 0, 2], 4])
for rank in (1, 2, 3):
    ops(f"reflection_pad{rank}d replication_pad{rank}d", lambda rank=rank: [r(2, 3, *[4] * rank), [1, 2] * rank])

# Indices.
ops("embedding", lambda: [r(7, 3), i(7, 2, 4), 2])
ops("one_hot", lambda: [i(5, 3), 5])
ops("index_select", lambda: [r(3, 5), 1, i(5, 4)])
ops("gather", lambda: [r(3, 5), 1, i(5, 3, 2)])
ops("take_along_dim", lambda: [r(3, 5), i(5, 3, 2), 1])
ops("take", lambda: [r(3, 5), i(15, 4)])
ops("index.Tensor _unsafe_index.Tensor", lambda: [r(3, 5, 4), [None, i(5, 2, 3), i(4, 3)]])
ops("index.Tensor", lambda: [r(3, 5, 4), [i(3, 2), None, i(4, 2)]])
ops("index_put _unsafe_index_put", lambda: [r(3, 5), [torch.tensor([2, 0])], r(2, 5)])
ops("index_put", lambda: [r(2, 3, 5, 4), [None, torch.tensor([2, 0]), torch.tensor([1, 1])], r(2, 2, 4), True])
ops("index_put", lambda: [r(3, 5, 4), [torch.tensor([2, 0]), None, torch.tensor([1, 3])], r(2, 5)])
ops("index_put", lambda: [r(3, 5), [b(3, 5)], torch.tensor(0.5)])
ops("scatter.src scatter_add", lambda: [r(3, 5), 1, torch.tensor([[0, 2], [1, 3], [4, 0]]), r(3, 2)])
ops("scatter.value", lambda: [r(3, 5), 1, i(5, 3, 2), 0.5])
ops("scatter.reduce", lambda: [r(3, 5), 1, i(5, 3, 2), r(3, 2)], reduce="add")
ops("scatter.value_reduce", lambda: [r(3, 5), 1, i(5, 3, 2), 0.5], reduce="multiply")
ops("scatter_reduce.two", lambda: [r(3, 5), 1, i(5, 3, 2), r(3, 2), "amax"])
ops("index_add", lambda: [r(3, 5), 1, i(5, 4), r(3, 4)])
ops("index_copy", lambda: [r(3, 5), 1, torch.tensor([4, 0]), r(3, 2)])
ops("index_fill.int_Scalar", lambda: [r(3, 5), 1, torch.tensor([4, 0]), 0.5])
ops("index_fill.int_Tensor", lambda: [r(3, 5), 1, torch.tensor([4, 0]), torch.tensor(0.5)])
ops("put", lambda: [r(3, 5), torch.tensor([4, 0]), r(2)])

# Products.
ops("matmul mm linalg_matmul", lambda: [r(3, 4), r(4, 2)])
ops("matmul", lambda: [r(2, 1, 3, 4), r(5, 4, 2)])
ops("bmm", lambda: [r(2, 3, 4), r(2, 4, 5)])
ops("mv", lambda: [r(3, 4), r(4)])
ops("dot vdot inner outer ger", lambda: [r(4), r(4)])
ops("addmm", lambda: [r(2), r(3, 4), r(4, 2)], beta=0.5, alpha=2.0)
ops("addmv", lambda: [r(3), r(3, 4), r(4)])
ops("addbmm", lambda: [r(3, 2), r(5, 3, 4), r(5, 4, 2)])
ops("baddbmm", lambda: [r(5, 3, 2), r(5, 3, 4), r(5, 4, 2)], alpha=0.5)
ops("addr", lambda: [r(3, 4), r(3), r(4)])
ops("kron", lambda: [r(2, 2), r(2, 3)])
ops("linear", lambda: [r(2, 3, 4), r(5, 4), r(5)])
ops("bilinear", lambda: [r(3, 4), r(3, 5), r(2, 4, 5), r(2)])
ops("cosine_similarity pairwise_distance", lambda: [r(3, 4), r(3, 4)])
ops("pdist", lambda: [r(3, 4)])
ops("cdist", lambda: [r(3, 4), r(5, 4)])
ops("_cdist_forward", lambda: [r(3, 4), r(5, 4), 2.0, None])
ops("det logdet inverse linalg_det linalg_inv matrix_exp", lambda: [square()])
ops("matrix_power", lambda: [square(), 3])
ops("linalg_cholesky", lambda: [torch.eye(3) * 2 + 0.1])
ops("linalg_solve", lambda: [square(), r(3, 2)])
ops("linalg_cross", lambda: [r(4, 3), r(4, 3)])
ops("tensordot", lambda: [r(3, 4), r(4, 2), [1], [0]])
ops("einsum", lambda: ["bij,bjk->bik", [r(2, 3, 4), r(2, 4, 5)]])
ops("scaled_dot_product_attention", lambda: [r(2, 4, 5, 8), r(2, 2, 6, 8), r(2, 2, 6, 8)], enable_gqa=True, scale=0.3)
ops("scaled_dot_product_attention", lambda: [r(2, 4, 5, 8), r(2, 4, 5, 8), r(2, 4, 5, 8), None, 0.0, True])
ops("scaled_dot_product_attention", lambda: [r(2, 4, 5, 8), r(2, 4, 6, 8), r(2, 4, 6, 8), torch.ones(5, 6).tril(1) > 0])
ops("scaled_dot_product_attention", lambda: [r(2, 4, 5, 8), r(2, 4, 6, 8), r(2, 4, 6, 8), r(2, 1, 5, 6)])

# Images.
for rank, up in ((1, "linear1d"), (2, "bilinear2d"), (3, "trilinear3d")):
    size = [6, 7, 5][:rank]
    kernel, ones, twos = [3] * rank, [1] * rank, [2] * rank
    ops(f"conv{rank}d", lambda s=size, k=kernel, a=ones, b=twos: [r(2, 4, *s), r(6, 2, *k), r(6), b, a, a, 2])
    ops(f"conv{rank}d.padding", lambda s=size, k=kernel, a=ones: [r(2, 4, *s), r(6, 4, *k), None, a, "same"])
    transposed = "default" if rank == 1 else "input"
    ops(f"conv_transpose{rank}d.{transposed}", lambda s=size, k=kernel, a=ones, b=twos: [r(2, 4, *s), r(4, 3, *k), r(3), b, a, a])
    ops(f"max_pool{rank}d max_pool{rank}d_with_indices avg_pool{rank}d", lambda s=size, a=ones, b=twos: [r(2, 3, *s), b, a])
    ops(f"adaptive_avg_pool{rank}d adaptive_max_pool{rank}d", lambda size=size, rank=rank: [r(2, 3, *size), [2, 3, 2][:rank]])
    nearest = (f"upsample_nearest{rank}d", f"_upsample_nearest_exact{rank}d")
    ops(".vec ".join([*nearest, ""]), lambda size=size, rank=rank: [r(2, 3, *size), None, [1.5] * rank])
    ops(" ".join(nearest), lambda size=size: [r(2, 3, *size), [n + 3 for n in size]])
    ops(f"upsample_{up}.vec", lambda size=size, rank=rank: [r(2, 3, *size), None, False, [2.0] * rank])
    ops(f"upsample_{up}", lambda size=size: [r(2, 3, *size), [n + 3 for n in size], True])
ops("_adaptive_avg_pool2d", lambda: [r(2, 3, 5, 6), [2, 3]])
ops("_adaptive_avg_pool3d", lambda: [r(2, 3, 5, 6, 4), [2, 3, 2]])
ops("avg_pool2d", lambda: [r(2, 3, 5, 6), [2, 2], [], [1, 1], True, False, 3])
ops("upsample_bicubic2d.vec", lambda: [r(2, 3, 5, 6), [7, 8], False, None])
ops("upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa", lambda: [r(2, 3, 5, 6), [7, 4], False])
ops("_upsample_bilinear2d_aa.vec _upsample_bicubic2d_aa.vec", lambda: [r(2, 3, 5, 6), [7, 4], False, None])
ops("convolution", lambda: [r(2, 4, 6), r(6, 4, 3), r(6), [1], [1], [1], False, [0], 1])
ops("convolution", lambda: [r(2, 4, 6, 6), r(4, 3, 3, 3), None, [2, 2], [1, 1], [1, 1], True, [1, 1], 1])
ops("_convolution", lambda: [r(2, 4, 6), r(6, 4, 3), r(6), [1], [1], [1], False, [0], 1, False, False, False, False])
ops("max_unpool2d", lambda: [r(1, 1, 2, 2), torch.tensor([[[[0, 3], [8, 15]]]]), [4, 4]])
ops("im2col", lambda: [r(2, 3, 5, 6), [2, 3], [1, 1], [1, 0], [1, 2]])
ops("col2im", lambda: [r(2, 12, 20), [5, 6], [2, 2], [1, 1], [0, 0], [1, 1]])
ops("pixel_shuffle", lambda: [r(2, 8, 3, 4), 2])
ops("pixel_unshuffle", lambda: [r(2, 2, 4, 6), 2])
ops("channel_shuffle native_channel_shuffle", lambda: [r(2, 6, 3, 3), 3])
ops("grid_sampler grid_sampler_2d", lambda: [r(2, 3, 5, 6), r(2, 4, 4, 2) * 0.4, 0, 0, False])
ops("grid_sampler_3d", lambda: [r(2, 3, 5, 6, 4), r(2, 4, 4, 2, 3) * 0.4, 0, 1, True])
ops("affine_grid_generator", lambda: [r(2, 2, 3), [2, 3, 4, 5], False])

# Norms.
ops("layer_norm", lambda: [r(2, 3, 4), [3, 4], p(3, 4), r(3, 4)])
ops("rms_norm _fused_rms_norm", lambda: [r(2, 3, 4), [4], p(4), 1e-5])
ops("group_norm", lambda: [r(2, 6, 4), 3, p(6), r(6)])
ops("native_layer_norm", lambda: [r(2, 3, 4), [4], p(4), r(4), 1e-5])
ops("native_group_norm", lambda: [r(2, 6, 4), p(6), r(6), 2, 6, 4, 3, 1e-5])
ops("instance_norm", lambda: [r(2, 3, 9), p(3), r(3), None, None, True, 0.1, 1e-5, False])
ops("batch_norm", lambda: [r(4, 3, 5), p(3), r(3), r(3), p(3), False, 0.1, 1e-5, False])
ops("_native_batch_norm_legit_functional", lambda: [r(4, 3, 5), p(3), r(3), r(3), p(3), True, 0.1, 1e-5])
ops("_batch_norm_with_update_functional", lambda: [r(4, 3, 5), p(3), r(3), r(3), p(3), 0.1, 1e-5])
ops("_native_batch_norm_legit_no_training _batch_norm_no_update", lambda: [r(4, 3, 5), p(3), r(3), r(3), p(3), 0.1, 1e-5])
ops("_native_batch_norm_legit.no_stats", lambda: [r(4, 3, 5), p(3), r(3), True, 0.1, 1e-5])
ops("native_batch_norm", lambda: [r(4, 3, 5), p(3), r(3), r(3), p(3), False, 0.1, 1e-5])
ops("renorm", lambda: [r(3, 4), 2.0, 0, 1.0])

# Losses.
ops("cross_entropy_loss", lambda: [r(4, 5), torch.tensor([0, 3, -100, 2]), p(5), 1, -100, 0.1])
ops("cross_entropy_loss", lambda: [r(2, 5, 3), i(5, 2, 3)])
ops("cross_entropy_loss", lambda: [r(4, 5), torch.softmax(r(4, 5), 1)])
ops("nll_loss nll_loss_nd nll_loss_forward", lambda: [r(4, 5), i(5, 4), p(5), 2, -100])
ops("nll_loss2d nll_loss2d_forward", lambda: [r(2, 5, 3, 3), i(5, 2, 3, 3), p(5), 0, -100])
ops("mse_loss l1_loss smooth_l1_loss huber_loss kl_div", lambda: [r(3, 4), p(3, 4)])
ops("poisson_nll_loss", lambda: [r(3, 4), p(3, 4), True, False, 1e-8, 1])
ops("smooth_l1_loss huber_loss", lambda: [r(3, 4), r(3, 4), 2, 0.5])
ops("binary_cross_entropy", lambda: [p(3, 4), p(3, 4), p(4), 0])
ops("binary_cross_entropy_with_logits", lambda: [r(3, 4), p(3, 4), p(4), p(4)])
ops("soft_margin_loss hinge_embedding_loss", lambda: [r(3, 4), signs(3, 4)])
ops("margin_ranking_loss", lambda: [r(4), r(4), signs(4), 0.3])
ops("cosine_embedding_loss", lambda: [r(3, 4), r(3, 4), signs(3), 0.1])
ops("triplet_margin_loss", lambda: [r(3, 4), r(3, 4), r(3, 4)])
ops("multi_margin_loss", lambda: [r(3, 4), i(4, 3)])

# Recurrent layers.
for gates, name in ((4, "lstm"), (3, "gru"), (1, "rnn_tanh"), (1, "rnn_relu")):

    def layer(gates=gates, state=name == "lstm", biases=True):
        params = []
        for into in (3, 3, 10, 10):
            params += [r(5 * gates, into), r(5 * gates, 5), *([r(5 * gates), r(5 * gates)] if biases else [])]
        h = r(4, 2, 5)
        return [r(6, 2, 3), [h, r(4, 2, 5)] if state else h, params, biases, 2, 0.0, False, True, False]

    def cell(gates=gates, state=name == "lstm"):
        h = r(2, 5)
        return [r(2, 3), [h, r(2, 5)] if state else h, r(5 * gates, 3), r(5 * gates, 5), r(5 * gates), r(5 * gates)]

    ops(f"{name}.input", layer)
    ops(f"{name}.input", lambda layer=layer: layer(biases=False))
    ops(f"{name}_cell", cell)


def projected():
    """An LSTM whose outputs are projected from 5 numbers to 3."""
    params = [p for into in (3, 3, 6, 6) for p in (r(20, into), r(20, 3), r(20), r(20), r(3, 5))]
    return [r(6, 2, 3), [r(4, 2, 3), r(4, 2, 5)], params, True, 2, 0.0, False, True, False]


ops("lstm.input", projected)

# Fourier transforms and complex numbers.
ops("fft_rfft fft_ihfft fft_rfft2 fft_rfftn", lambda: [r(3, 4, 6)])
ops("fft_fft fft_ifft fft_irfft fft_hfft fft_fft2 fft_ifft2 fft_irfft2 fft_fftn fft_ifftn fft_irfftn", lambda: [complexes(3, 4, 6)])
ops("complex polar", lambda: [p(3, 4), r(3, 4)])
ops("real imag conj _conj conj_physical view_as_real abs resolve_conj", lambda: [complexes(3, 4)])
ops("view_as_complex", lambda: [r(3, 4, 2)])
ops("mul.Tensor add.Tensor sub.Tensor", lambda: [complexes(3, 4), complexes(4)])
ops("mul.Tensor add.Tensor", lambda: [complexes(3, 4), r(3, 4)])
ops("permute", lambda: [complexes(2, 3, 4), [2, 0, 1]])
ops("cat", lambda: [[complexes(2, 3), complexes(1, 3)]])

# Random numbers: only shapes are compared.
EARLIER = len(OPS)
ops("rand_like randn_like", lambda: [r(3, 4)])
ops("uniform normal_functional exponential", lambda: [r(3, 4)])
ops("bernoulli.p", lambda: [r(3, 4), 0.5])
ops("bernoulli", lambda: [p(3, 4)])
ops("dropout feature_dropout alpha_dropout feature_alpha_dropout", lambda: [r(3, 4, 5), 0.5, True])
ops("native_dropout", lambda: [r(3, 4), 0.5, True])
ops("native_dropout", lambda: [r(3, 4), 0.5, False])
ops("rand randn", lambda: [[3, 4]])
ops("randint", lambda: [7, [3, 4]])
ops("randint.low", lambda: [2, 7, [3, 4]])
ops("randint_like", lambda: [r(3, 4), 7])
ops("randint_like.low_dtype", lambda: [r(3, 4), 2, 7])
ops("randperm", lambda: [7])
ops("multinomial", lambda: [p(3, 4), 2])
RANDOM = {name for name, *_ in OPS[EARLIER:]}


class Each(nn.Module):
    """Calls of overloads, each with its own inputs."""

    def __init__(self, calls):
        super().__init__()
        self.calls = calls

    def forward(self, *tensors):
        tensors = iter(tensors)
        results = []
        for name, leaves, spec, named in self.calls:
            leaves = [next(tensors) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
            overload = getattr(getattr(torch.ops.aten, name.split(".")[0]), name.split(".")[1])
            results.append(overload(*tree_unflatten(leaves, spec), **named))
        return results


GROUP = 24
EXERCISED = set()
# As the package declares it: the guide adds an entry of its own.
DECLARED = set(TABLE)


@pytest.mark.parametrize("start", range(0, len(OPS), GROUP))
def test_operations(start):
    torch.manual_seed(start)
    calls = [(name, *tree_flatten(arguments()), named) for name, arguments, named in OPS[start : start + GROUP]]
    program = lower(Each(calls), tensors_of(calls))
    check_operations(program, calls)
    # What PyTorch takes apart beforehand, which may depend on its version.
    apart = [call for call in calls if f"aten.{call[0]}" not in overloads(program)]
    if apart:
        check_operations(Lowered(torch.export.export(Each(apart), tensors_of(apart))), apart)


def tensors_of(calls):
    return tuple(x for _, leaves, *_ in calls for x in leaves if isinstance(x, torch.Tensor))


def overloads(program):
    return {str(node.target) for node, *_ in program._steps}


def check_operations(program, calls):
    EXERCISED.update(overloads(program))
    inputs = tensors_of(calls)
    session = dg.Session("cpu", threads=1)
    found_inputs = [
        session.tensor(x.numpy(), requires_grad=True) if x.is_floating_point() else y
        for x, y in zip(inputs, program.inputs(session, *inputs))
    ]
    results, _ = program(session, {}, found_inputs)
    at, wrong = 0, []
    for call, found in zip(calls, results):
        mine = [x for x in call[1] if isinstance(x, torch.Tensor)]
        try:
            check_operation(session, call, mine, found_inputs[at : at + len(mine)], found)
        except Exception as error:
            wrong.append(f"{call[0]}: {error}")
        at += len(mine)
    assert not wrong, "\n".join(wrong)


def check_operation(session, call, inputs, ours, found):
    def wide(x):
        x = x.to(torch.complex128) if x.is_complex() else x.double() if x.is_floating_point() else x
        return x.requires_grad_() if x.is_floating_point() else x

    inputs = [wide(x.clone()) for x in inputs]
    if "batch_norm" in call[0]:
        for x in inputs[3:]:
            x.requires_grad_(False)
    try:
        right = Each([call])(*inputs)
    except RuntimeError as error:
        # Of most losses only the first input has a gradient.
        assert "is not differentiable with respect to argument" in str(error)
        for x in inputs[1:]:
            x.requires_grad_(False)
        right = Each([call])(*inputs)
    right = [x for x in tree_leaves(right) if isinstance(x, torch.Tensor)]
    found = tree_leaves(found)
    assert len(found) == len(right), "the number of results"
    loss, loss_of_torch = 0.0, 0.0
    for n, (x, y) in enumerate(zip(found, right)):
        if x is None:
            # A result that only PyTorch's own gradients read.
            continue
        y = torch.view_as_real(y.resolve_conj()) if y.is_complex() else y
        assert x.shape == tuple(y.shape), f"result {n} has shape {x.shape}, not {tuple(y.shape)}"
        if call[0] in RANDOM:
            continue
        x_, y_ = torch.from_numpy(x.numpy()).double(), y.detach().double()
        assert torch.equal(x_.isfinite(), y_.isfinite()) and torch.equal(x_.isnan(), y_.isnan()), f"result {n}: {x_}, not {y_}"
        x_, y_ = x_[x_.isfinite()], y_[y_.isfinite()]
        assert distance(x_, y_) <= 1e-5 or (x_ - y_).norm() < 1e-6, f"result {n} is {distance(x_, y_):.1e} away: {x_}, not {y_}"
        if x.requires_grad and y.requires_grad and y.dtype == torch.float64:
            weight = weights(x.shape, n)
            loss = (x * session.tensor(weight)).sum() + loss
            loss_of_torch = loss_of_torch + (y * torch.tensor(weight)).sum()
    if isinstance(loss, float):
        return
    wanted = [n for n, x in enumerate(inputs) if x.requires_grad]
    try:
        right = torch.autograd.grad(loss_of_torch, [inputs[n] for n in wanted], allow_unused=True)
    except RuntimeError as error:
        assert "is not implemented" in str(error)
        return
    for n, x, y in zip(wanted, loss.grad([ours[n] for n in wanted]), right):
        y = torch.zeros_like(inputs[n]) if y is None else y
        x = torch.zeros_like(y) if x is None else torch.from_numpy(x.numpy()).double()
        assert distance(x, y) <= 2e-5 or (x - y).norm() < 3e-6, f"gradient of input {n}: {x}, not {y}"


# The program itself.


def run(model, *args):
    """Outputs and updates, the values they were made of, and the program."""
    program = lower(model, args)
    EXERCISED.update(overloads(program))
    session = dg.Session("cpu", threads=1)
    values = {name: session.tensor(x.detach().numpy(), requires_grad=True) for name, x in {**program.parameters, **program.buffers}.items()}
    return program(session, values, program.inputs(session, *args)), values, program


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1.0, 1.0, 12).reshape(3, 4))
        self.function = function

    def forward(self, *args):
        return self.function(self.weight, *args)


@pytest.mark.parametrize(
    "function",
    [
        lambda w: w[[2, 0]],
        lambda w: w[:, torch.tensor([-1, 1])],
        lambda w: w[torch.tensor([True, False, True])],
        lambda w: w * torch.arange(4) + torch.arange(3).unsqueeze(1),
        lambda w: w.masked_fill(torch.ones(3, 4).tril() == 0, -1e9).softmax(-1),
        lambda w: torch.where(torch.ones(3, 4).triu() > 0, w, torch.zeros_like(w)),
        lambda w: w.repeat_interleave(torch.tensor([1, 0, 2]), dim=0),
        lambda w: torch.cat([w, torch.ones(1, 4)]) @ torch.eye(4),
        lambda w: F.scaled_dot_product_attention(w, w, w, torch.ones(3, 3, dtype=torch.bool).tril()),
        lambda w: F.scaled_dot_product_attention(w, w, w, torch.ones(3, 3, dtype=torch.bool)),
        lambda w: w.double().exp().float() + w.half() * torch.finfo(torch.float32).eps,
        lambda w: torch.polar(torch.ones(3, 4), w).real * torch.tensor([1.0 + 2j]).imag,
        lambda w: w.index_put((torch.tensor([0, 2]), torch.tensor([1, 3])), torch.tensor(0.5)),
    ],
)
def test_constants_meet_values(function):
    model = Function(function)
    (found, _), values, _ = run(model)
    right = model()
    torch.testing.assert_close(torch.from_numpy(found.numpy()), right.float().detach(), rtol=1e-5, atol=1e-6)
    (mine,) = (found * found).sum().grad([values["weight"]])
    (theirs,) = torch.autograd.grad((right.float() ** 2).sum(), [model.weight])
    torch.testing.assert_close(torch.from_numpy(mine.numpy()), theirs, rtol=1e-5, atol=1e-5)


def test_gradients_stop_where_pytorch_stops_them():
    def function(w):
        with torch.no_grad():
            still = w.sin()
        return w * still + w.detach().cos() * w

    model = Function(function)
    (found, _), values, _ = run(model)
    (mine,) = found.sum().grad([values["weight"]])
    (theirs,) = torch.autograd.grad(model().sum(), [model.weight])
    torch.testing.assert_close(torch.from_numpy(mine.numpy()), theirs)


def test_changes_in_place_become_values():
    class Average(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(4))
            self.register_buffer("count", torch.tensor(3))

        def forward(self, x):
            self.mean.mul_(0.9).add_(0.1 * x.mean(0))
            self.count += 2
            y = x.clone()
            y[:, 0] = 1.0
            y[y > 1.5] = 0.0
            return {"y": y, "nothing": None, "constant": torch.ones(2)}

    x = r(3, 4)
    (outputs, updates), _, program = run(Average(), x)
    right = Average()
    expected = right(x)
    assert outputs["nothing"] is None
    np.testing.assert_allclose(outputs["y"].numpy(), expected["y"].numpy(), rtol=1e-6)
    np.testing.assert_allclose(outputs["constant"].numpy(), [1.0, 1.0])
    np.testing.assert_allclose(updates["mean"].numpy(), right.mean.numpy(), rtol=1e-6)
    assert updates["count"] == 2 and set(program.counters) == {"count"}


def test_tied_parameters_are_one():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(7, 4)
            self.out = nn.Linear(4, 7, bias=False)
            self.out.weight = self.tokens.weight

        def forward(self, ids):
            return self.out(self.tokens(ids))

    _, _, program = run(Tied(), i(7, 2, 3))
    assert set(program.parameters) == {"tokens.weight"}


def test_labels_may_be_left_out():
    def loss(w, ids, labels):
        return F.cross_entropy(w, labels.masked_fill(ids == 1, -100))

    def of_numbers(w, ids, labels):
        return F.cross_entropy(w, (labels + 1).masked_fill(ids == 1, -100))

    def padded(w, ids, labels):
        return F.cross_entropy(w, F.pad(labels, (0, 1), value=-100)[1:]) * F.pad(ids, (1, 0), value=-2).sum()

    args = torch.tensor([0, 1, 2]), torch.tensor([3, 2, -100])
    for model in (Function(loss), Function(padded)):
        (found, _), _, _ = run(model, *args)
        assert found.item() == pytest.approx(model(*args).item(), rel=1e-6)
    args = torch.tensor([0, 1, 2]), torch.tensor([2, 2, 0])
    model = Function(of_numbers)
    (found, _), _, _ = run(model, *args)
    assert found.item() == pytest.approx(model(*args).item(), rel=1e-6)
    with pytest.raises(ValueError, match="negative integers"):
        run(Function(lambda w, ids: w * ids.sum()), torch.tensor([-1, 2]))


def test_arithmetic_of_integers():
    def positions(w, ids):
        mask = ids.ne(1).int()
        places = (torch.cumsum(mask, dim=1).type_as(mask) * mask).long() + 1
        return F.embedding(places % 3, w)

    ids = torch.tensor([[4, 5, 1, 6], [7, 1, 1, 1]])
    model = Function(positions)
    (found, _), _, _ = run(model, ids)
    np.testing.assert_array_equal(found.numpy(), model(ids).detach().numpy())


def test_one_error_names_all_that_is_missing():
    class Inner(nn.Module):
        def forward(self, x):
            return torch.special.bessel_j0(x).long()

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def forward(self, x):
            return torch.igamma(x, x), self.inner(x)

    with pytest.raises(LoweringError) as error:
        lower(Outer(), (p(3),))
    text = str(error.value)
    for part in ("special_bessel_j0", "igamma", "_to_copy", "test_torch_lowering.py:", "module `inner` (Inner)", "integers"):
        assert part in text
    assert len(error.value.problems) == 3


def test_an_operation_can_be_declared():
    with pytest.raises(LoweringError):
        lower(Function(torch.special.bessel_j0))
    lowering("special_bessel_j0.default")(lambda c, x: dg.sin(x) / x)
    try:
        run(Function(torch.special.bessel_j0))
    finally:
        del TABLE["aten.special_bessel_j0.default"]


def test_inputs_must_be_those_of_the_example():
    (_, _), values, program = run(Function(lambda w, x: w + x), r(3, 4))
    session = dg.Session("cpu")
    with pytest.raises(ValueError, match="shape"):
        program(session, {"weight": session.zeros(3, 4)}, [session.zeros(2, 4)])
    with pytest.raises(ValueError, match="inputs"):
        program(session, {"weight": session.zeros(3, 4)}, [])
    with pytest.raises(KeyError, match="weight"):
        program(session, {}, [session.zeros(3, 4)])


def test_every_entry_is_exercised():
    if len(EXERCISED) < len(DECLARED) / 2:
        pytest.skip("needs all of test_operations")
    missing = " ".join(sorted(DECLARED - EXERCISED))
    assert not missing, missing
