#!/usr/bin/env python3
"""Golden values of the models, computed by PyTorch in float64.

    python3 tests/golden/models.py            writes tests/golden/models.jsonl
    python3 tests/golden/models.py --check    recomputes and compares with the committed file

One JSON object a line: the model or layer, its parameters' names and shapes, its output, its loss and the gradients of all
parameters and of an input of numbers; with batch norm also the running statistics after that step, and then the output in eval mode.
Parameters and inputs are made by the formula in `fill` of cases.py, the same in the Rust test. Needs torch.
"""
import pathlib
import sys

import torch
from torch import nn
from torch.nn import functional as F

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "compare"))
from cases import fill, finish, whole
from models import Autoencoder, Cnn, Fno1d, Fno2d, Gpt, Mamba, Mlp, ResNet, Vit, label_loss

FILE = HERE / "models.jsonl"
torch.set_default_dtype(torch.float64)


def case(name, net, x, y=None, loss=F.mse_loss):
    """Without `y` the target is made by `fill` as well."""
    with torch.no_grad():
        for k, p in enumerate(net.parameters()):
            p.copy_(fill(p.shape, k))
    if x.is_floating_point():
        x.requires_grad_()
    out = net(x)
    value = loss(out, fill(out.shape, 91) if y is None else y)
    value.backward()
    digits = lambda t: [float(f"{v:.12g}") for v in t.detach().reshape(-1).tolist()]
    parts = [{"name": n, "shape": list(p.shape), "grad": digits(p.grad)} for n, p in net.named_parameters()]
    made = {"name": name, "out": digits(out), "loss": value.item(), "params": parts}
    if x.is_floating_point():
        made["x_grad"] = digits(x.grad)
    running = [{"name": n, "value": digits(b)} for n, b in net.named_buffers() if "running" in n]
    if running:
        net.eval()
        made |= {"running": running, "eval": digits(net(x))}
    return made


class Layer(nn.Module):
    """One layer under the name `layer`; `call` says what is done with it, if not just that."""

    def __init__(self, layer, call=None):
        super().__init__()
        self.layer = layer
        self.call = call or (lambda layer, x: layer(x))

    def forward(self, x):
        return self.call(self.layer, x)


class Residual(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x + self.inner(x)


def attention(layer, x, memory=None, mask=None):
    memory = x if memory is None else memory
    return layer(x, memory, memory, attn_mask=mask, need_weights=False)[0]


def flat(layer, x, state=None):
    """Outputs and last states of a recurrent layer, one behind the other."""
    out, last = layer(x, state)
    last = last if isinstance(last, tuple) else (last,)
    return torch.cat([v.flatten() for v in (out, *last)])


def waves(length, width):
    """The sinusoidal encoding."""
    turns = torch.arange(length)[:, None] * 10000.0 ** (-torch.arange(0, width, 2) / width)
    return torch.stack([turns.sin(), turns.cos()], -1).reshape(length, -1)[:, :width]


def models():
    yield case("mlp", Mlp([5, 7, 3]), fill([4, 5], 90), whole([4], 1, 3), label_loss)
    cnn = Cnn(channels=2, image=(6, 5), widths=(3, 4, 5), classes=3)
    yield case("cnn", cnn, fill([2, 2, 6, 5], 90), whole([2], 1, 3), label_loss)
    fno = Fno1d(inputs=2, outputs=1, width=4, modes=3, layers=2, hidden=5)
    yield case("fno1d", fno, 8 * fill([2, 9, 2], 90), fill([2, 9, 1], 91), F.mse_loss)
    gpt = Gpt(7, 5, 4, 2, 2)
    yield case("gpt", gpt, whole([3, 4], 0, 7), whole([3, 4], 3, 7), label_loss)
    fno = Fno2d(inputs=2, outputs=1, width=3, modes=(2, 3), layers=2, hidden=4)
    yield case("fno2d", fno, 8 * fill([2, 6, 5, 2], 90))
    net = ResNet(channels=2, depth=8, width=2, classes=3)
    yield case("resnet", net, 4 * fill([3, 2, 8, 6], 90), whole([3], 1, 3), label_loss)
    for name, pool in (("vit", "class"), ("vit_mean", "mean")):
        net = Vit(2, (6, 4), (3, 2), 4, 2, 2, 6, 3, pool)
        yield case(name, net, 4 * fill([2, 2, 6, 4], 90), whole([2], 1, 3), label_loss)
    net = Autoencoder(channels=2, image=(8, 4), widths=(3, 4), latent=3)
    yield case("autoencoder", net, fill([2, 2, 8, 4], 90))
    yield case("mamba", Mamba(7, 6, 2, 3, 3, 2), whole([3, 5], 0, 7), whole([3, 5], 3, 7), label_loss)


def layers():
    one = lambda name, layer, x, call=None: case(name, Layer(layer, call), x)
    yield one("linear_without_bias", nn.Linear(3, 4, bias=False), fill([2, 3], 90))
    yield one("conv1d", nn.Conv1d(4, 6, 3, 1, 2, 2, 2, bias=False), fill([2, 4, 7], 90))
    yield one("conv3d", nn.Conv3d(2, 3, (2, 1, 3), 1, 1), fill([1, 2, 2, 3, 2], 90))
    yield one("conv_transpose1d", nn.ConvTranspose1d(3, 4, 3, 2, 1, 1), fill([2, 3, 5], 90))
    layer = nn.ConvTranspose2d(4, 6, (3, 2), 2, 1, 0, groups=2, bias=False)
    yield one("conv_transpose2d", layer, fill([2, 4, 3, 4], 90))
    yield one("conv_transpose3d", nn.ConvTranspose3d(2, 3, 2, 1, 0), fill([1, 2, 2, 3, 2], 90))
    yield one("batch_norm1d", nn.BatchNorm1d(3), 4 * fill([5, 3], 90))
    yield one("batch_norm2d", nn.BatchNorm2d(3), 4 * fill([2, 3, 4, 5], 90))
    yield one("batch_norm3d", nn.BatchNorm3d(2), 4 * fill([2, 2, 2, 3, 2], 90))
    # Twice in one step, as a layer that two branches share.
    yield one("batch_norm_twice", nn.BatchNorm2d(3), 4 * fill([2, 3, 4, 5], 90), lambda f, x: f(f(x)))
    yield one("group_norm", nn.GroupNorm(2, 4), 4 * fill([2, 4, 3, 2], 90))
    yield one("instance_norm", nn.InstanceNorm2d(3, affine=True), 4 * fill([2, 3, 3, 4], 90))
    yield one("rms_norm", nn.RMSNorm(5, eps=1e-6), fill([2, 3, 5], 90))
    heads = lambda: nn.MultiheadAttention(6, 2, batch_first=True)
    yield one("attention", heads(), 4 * fill([2, 5, 6], 90), attention)
    mask = torch.ones(5, 5).triu(1).bool()
    yield one("attention_causal", heads(), 4 * fill([2, 5, 6], 90), lambda f, x: attention(f, x, mask=mask))
    memory = 4 * fill([2, 3, 6], 92)
    yield one("attention_cross", heads(), 4 * fill([2, 5, 6], 90), lambda f, x: attention(f, x, memory))
    for name, first, activation in (("encoder_layer", False, "relu"), ("encoder_layer_first", True, "gelu")):
        layer = nn.TransformerEncoderLayer(6, 2, 8, 0.0, activation, batch_first=True, norm_first=first)
        yield one(name, layer, 4 * fill([2, 5, 6], 90))
    yield one("rnn", nn.RNN(3, 4, batch_first=True), fill([2, 5, 3], 90), flat)
    yield one("gru", nn.GRU(3, 4, 2, batch_first=True, bidirectional=True), fill([2, 5, 3], 90), flat)
    yield one("lstm", nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True), fill([2, 5, 3], 90), flat)
    state = (fill([2, 2, 4], 92), fill([2, 2, 4], 93))
    lstm = nn.LSTM(3, 4, 2, batch_first=True)
    yield one("lstm_from", lstm, fill([2, 5, 3], 90), lambda f, x: flat(f, x, state))
    yield one("sinusoidal", nn.Linear(5, 5), fill([2, 4, 5], 90), lambda f, x: f(x + waves(4, 5)))
    places = lambda f, x: x + f.weight[: x.shape[1]]
    yield one("learnt", nn.Embedding(6, 5), fill([2, 4, 5], 90), places)
    net = nn.Sequential(nn.Linear(3, 4), nn.SiLU(), Residual(nn.Linear(4, 4)), nn.Sigmoid(), nn.Flatten())
    yield one("sequential", net, 4 * fill([2, 3, 3], 90))


def packed(layer, x, lengths):
    """`flat` of sequences of different lengths."""
    given = nn.utils.rnn.pack_padded_sequence(x, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
    out, last = layer(given)
    out, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])
    last = last if isinstance(last, tuple) else (last,)
    return torch.cat([v.flatten() for v in (out, *last)])


def arguments():
    """Layers with arguments other than the defaults, and those that are made of others."""
    one = lambda name, layer, x, call=None: case(name, Layer(layer, call), x)
    yield one("layer_norm_axes", nn.LayerNorm((3, 5), eps=1e-3, bias=False), 4 * fill([2, 3, 5], 90))
    plain = nn.Sequential(nn.Linear(5, 5), nn.LayerNorm(5, elementwise_affine=False))
    yield one("layer_norm_plain", plain, 4 * fill([2, 3, 5], 90))
    yield one("rms_norm_axes", nn.RMSNorm((3, 5), eps=1e-6), 4 * fill([2, 3, 5], 90))
    plain = nn.Sequential(nn.Linear(3, 3), nn.GroupNorm(2, 4, eps=1e-3, affine=False))
    yield one("group_norm_plain", plain, 4 * fill([2, 4, 3], 90))
    yield one("batch_norm_momentum", nn.BatchNorm2d(3, eps=1e-3, momentum=0.25), 4 * fill([2, 3, 4, 5], 90))
    heads = lambda: nn.MultiheadAttention(6, 2, batch_first=True)
    x, memory = 4 * fill([2, 5, 6], 90), 4 * fill([2, 3, 6], 92)
    padding = torch.tensor([[False, False, True], [False, True, False]])
    closed = torch.tensor([[False, False, True]] * 2 + [[True, False, False]] * 3)
    masked = lambda f, x: f(x, memory, memory, key_padding_mask=padding, attn_mask=closed, need_weights=False)[0]
    yield one("attention_masked", heads(), x.clone(), masked)
    values, bias = 4 * fill([2, 3, 6], 93), 4 * fill([5, 3], 94)
    biased = lambda f, x: f(x, memory, values, attn_mask=bias, need_weights=False)[0]
    yield one("attention_values", heads(), x.clone(), biased)
    # At probability 0; the Rust tests have others as well.
    yield one("attention_dropout", heads(), x.clone(), attention)
    causal = torch.ones(5, 5).triu(1).bool()
    for name, first, activation in (("decoder_layer", False, "relu"), ("decoder_layer_first", True, "gelu")):
        layer = nn.TransformerDecoderLayer(6, 2, 8, 0.0, activation, batch_first=True, norm_first=first)
        call = lambda f, x: f(x, memory, tgt_mask=causal, memory_key_padding_mask=padding)
        yield one(name, layer, x.clone(), call)
    layer = nn.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True)
    layer = nn.TransformerEncoder(layer, 2, nn.LayerNorm(6), enable_nested_tensor=False)
    tail = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    yield one("encoder", layer, x.clone(), lambda f, x: f(x, src_key_padding_mask=tail))
    layer = nn.Transformer(6, 2, 1, 2, 8, 0.0, batch_first=True)
    yield one("transformer", layer, x.clone(), lambda f, x: f(memory, x, tgt_mask=causal))
    yield one("bilinear", nn.Bilinear(3, 4, 5), fill([2, 3, 3], 90), lambda f, x: f(x, fill([2, 3, 4], 92)))
    yield one("rnn_relu", nn.RNN(3, 4, 1, "relu", False, True), fill([2, 5, 3], 90), flat)
    lstm = nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True, proj_size=2)
    yield one("lstm_projected", lstm, fill([2, 5, 3], 90), flat)
    gru = nn.GRU(3, 4, 2, batch_first=True, bidirectional=True)
    yield one("gru_lengths", gru, fill([2, 5, 3], 90), lambda f, x: packed(f, x, [3, 5]))
    lstm = nn.LSTM(3, 4, 2, batch_first=True)
    yield one("lstm_lengths", lstm, fill([2, 5, 3], 90), lambda f, x: packed(f, x, [5, 2]))
    yield one("rnn_cell", nn.RNNCell(3, 4), fill([2, 3], 90), lambda f, x: f(x))
    yield one("gru_cell", nn.GRUCell(3, 4), fill([2, 3], 90), lambda f, x: f(x, fill([2, 4], 92)))
    states = (fill([2, 4], 92), fill([2, 4], 93))
    yield one("lstm_cell", nn.LSTMCell(3, 4), fill([2, 3], 90), lambda f, x: torch.cat(f(x, states)))
    yield one("prelu", nn.PReLU(3), fill([2, 3, 4], 90))
    made = [nn.LogSigmoid(), nn.Mish(), nn.Hardsigmoid(), nn.Hardswish(), nn.Hardtanh(), nn.ReLU6(), nn.LeakyReLU(), nn.ELU()]
    made += [nn.Softmax(-1), nn.LogSoftmax(-1)]
    yield one("activations", nn.Linear(3, 4), 8 * fill([2, 3], 90), lambda f, x: torch.cat([g(f(x)) for g in made]))


def cases():
    yield from models()
    yield from layers()
    yield from arguments()


if __name__ == "__main__":
    sys.exit(finish(FILE, list(cases()), 1e-10))
