"""The models of `dittograd::nn` in PyTorch, with the same parameter names."""
from collections import OrderedDict

import torch
from torch import nn
from torch.nn import functional as F


class Mlp(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        layers = []
        for inputs, outputs in zip(sizes, sizes[1:]):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.net = nn.Sequential(*layers[:-1])

    def forward(self, x):
        return self.net(x)


class Cnn(nn.Module):
    def __init__(self, channels=3, image=(32, 32), widths=(32, 64, 128), classes=10):
        super().__init__()
        conv = lambda inputs, outputs: [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
        features = widths[2] * (image[0] // 4) * (image[1] // 4)
        self.net = nn.Sequential(
            *conv(channels, widths[0]),
            *conv(widths[0], widths[1]),
            nn.MaxPool2d(2),
            *conv(widths[1], widths[2]),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(features, classes),
        )

    def forward(self, x):
        return self.net(x)


class SpectralConv1d(nn.Module):
    def __init__(self, width, modes):
        super().__init__()
        self.wr = nn.Parameter(torch.randn(modes, width, width) / width)
        self.wi = nn.Parameter(torch.randn(modes, width, width) / width)

    def forward(self, x):
        modes, points = self.wr.shape[0], x.shape[1]
        spectrum = torch.fft.rfft(x, dim=1)
        kept = torch.einsum("bki,kio->bko", spectrum[:, :modes], torch.complex(self.wr, self.wi))
        mixed = torch.zeros(*spectrum.shape[:2], self.wr.shape[2], dtype=spectrum.dtype, device=x.device)
        mixed[:, :modes] = kept
        return torch.fft.irfft(mixed, n=points, dim=1)


class Fno1d(nn.Module):
    def __init__(self, inputs=2, outputs=1, width=64, modes=16, layers=4, hidden=128):
        super().__init__()
        self.lift = nn.Linear(inputs, width)
        self.p1 = nn.Linear(width, hidden)
        self.p2 = nn.Linear(hidden, outputs)
        self.sp = nn.ModuleList([SpectralConv1d(width, modes) for _ in range(layers)])
        self.lin = nn.ModuleList([nn.Linear(width, width) for _ in range(layers)])

    def forward(self, x):
        x = self.lift(x)
        for spectral, linear in zip(self.sp, self.lin):
            x = F.gelu(spectral(x) + linear(x), approximate="tanh")
        return self.p2(F.gelu(self.p1(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln1 = nn.LayerNorm(width)
        self.ln2 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.o = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def attention(self, x):
        batch, length, width = x.shape
        parts = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(mixed.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x):
        x = x + self.attention(self.ln1(x))
        return x + self.down(F.gelu(self.up(self.ln2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, vocab, context, width, heads, layers):
        super().__init__()
        self.tok = nn.Embedding(vocab, width)
        self.pos = nn.Embedding(context, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.tok.weight
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens):
        x = self.tok(tokens) + self.pos.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))


class Recurrent(nn.Module):
    """The outputs of a recurrent layer."""

    def __init__(self, kind, width):
        super().__init__()
        self.layer = kind(width, width, batch_first=True)

    def forward(self, x):
        return self.layer(x)[0]


class SpectralConv2d(nn.Module):
    def __init__(self, width, modes):
        super().__init__()
        self.wr = nn.Parameter(torch.randn(2, *modes, width, width) / width)
        self.wi = nn.Parameter(torch.randn(2, *modes, width, width) / width)

    def forward(self, x):
        mx, my = self.wr.shape[1:3]
        spectrum = torch.fft.rfft2(x, dim=(1, 2))
        mixed = torch.zeros_like(spectrum)
        weights = torch.complex(self.wr, self.wi)
        for rows, weight in ((slice(0, mx), weights[0]), (slice(-mx, None), weights[1])):
            mixed[:, rows, :my] = torch.einsum("bxyi,xyio->bxyo", spectrum[:, rows, :my], weight)
        return torch.fft.irfft2(mixed, s=x.shape[1:3], dim=(1, 2))


class Fno2d(nn.Module):
    def __init__(self, inputs=3, outputs=1, width=32, modes=(12, 12), layers=4, hidden=128):
        super().__init__()
        self.lift = nn.Linear(inputs, width)
        self.p1 = nn.Linear(width, hidden)
        self.p2 = nn.Linear(hidden, outputs)
        self.sp = nn.ModuleList([SpectralConv2d(width, modes) for _ in range(layers)])
        self.lin = nn.ModuleList([nn.Linear(width, width) for _ in range(layers)])

    forward = Fno1d.forward


class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = nn.Identity()
        if stride != 1 or inputs != outputs:
            around = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(around, nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.downsample(x))


class ResNet(nn.Module):
    def __init__(self, channels=3, depth=20, width=16, classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        inputs = width
        for stage in range(3):
            blocks = []
            for i in range(depth // 6):
                outputs = width << stage
                blocks.append(BasicBlock(inputs, outputs, 2 if stage > 0 and i == 0 else 1))
                inputs = outputs
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(x.mean((2, 3)))


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        conv = lambda a, b, size, stride=1: nn.Sequential(nn.Conv2d(a, b, size, stride, size // 2, bias=False), nn.BatchNorm2d(b))
        self.a, self.b, self.c = conv(inputs, width, 1), conv(width, width, 3, stride), conv(width, 4 * width, 1)
        self.around = conv(inputs, 4 * width, 1, stride) if stride != 1 or inputs != 4 * width else nn.Identity()

    def forward(self, x):
        return F.relu(self.c(F.relu(self.b(F.relu(self.a(x))))) + self.around(x))


class ResNet50(nn.Module):
    """As torchvision's `resnet50`, with other names."""

    def __init__(self, classes=1000):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        blocks, inputs = [], 64
        for stage, count in enumerate((3, 4, 6, 3)):
            for i in range(count):
                blocks.append(Bottleneck(inputs, 64 << stage, 2 if stage > 0 and i == 0 else 1))
                inputs = 256 << stage
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x):
        return self.fc(self.blocks(self.stem(x)).mean((2, 3)))


class LlamaBlock(nn.Module):
    def __init__(self, width, heads, kv_heads, hidden):
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, width // heads
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, kv_heads * self.size, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x, cos, sin):
        batch, length, width = x.shape
        split = lambda y: y.view(batch, length, -1, self.size).transpose(1, 2)
        turn = lambda y: y * cos + torch.cat([-y[..., self.size // 2 :], y[..., : self.size // 2]], -1) * sin
        y = self.norm1(x)
        q, k, v = turn(split(self.q(y))), turn(split(self.k(y))), split(self.v(y))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(mixed.transpose(1, 2).reshape(batch, length, width))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """The layers of Llama: rotary positions, grouped heads, gated hidden layers."""

    def __init__(self, vocab, context, width, heads, kv_heads, layers, hidden):
        super().__init__()
        self.tok = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList([LlamaBlock(width, heads, kv_heads, hidden) for _ in range(layers)])
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.head = nn.Linear(width, vocab, bias=False)
        size = width // heads
        angles = torch.outer(torch.arange(context), 10000.0 ** (-torch.arange(0, size, 2) / size)).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens):
        x = self.tok(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.head(self.norm(x))


class EncoderBlock(nn.Module):
    def __init__(self, width, heads, hidden):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, eps=1e-6)
        self.self_attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.ln_2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(width, hidden), nn.GELU(), nn.Dropout(0.0), nn.Linear(hidden, width), nn.Dropout(0.0)
        )

    def forward(self, x):
        y = self.ln_1(x)
        x = x + self.self_attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class Encoder(nn.Module):
    def __init__(self, rows, width, heads, layers, hidden):
        super().__init__()
        self.pos_embedding = nn.Parameter(0.02 * torch.randn(1, rows, width))
        blocks = {f"encoder_layer_{i}": EncoderBlock(width, heads, hidden) for i in range(layers)}
        self.layers = nn.Sequential(OrderedDict(blocks))
        self.ln = nn.LayerNorm(width, eps=1e-6)

    def forward(self, x):
        return self.ln(self.layers(x + self.pos_embedding))


class Vit(nn.Module):
    def __init__(self, channels, image, patch, width, heads, layers, hidden, classes, pool="class"):
        super().__init__()
        rows = (image[0] // patch[0]) * (image[1] // patch[1])
        self.class_token = nn.Parameter(torch.zeros(1, 1, width)) if pool == "class" else None
        self.conv_proj = nn.Conv2d(channels, width, patch, patch)
        self.encoder = Encoder(rows + (pool == "class"), width, heads, layers, hidden)
        self.heads = nn.Sequential(OrderedDict(head=nn.Linear(width, classes)))

    def forward(self, x):
        x = self.conv_proj(x).flatten(2).transpose(1, 2)
        if self.class_token is None:
            return self.heads(self.encoder(x).mean(1))
        x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], 1)
        return self.heads(self.encoder(x)[:, 0])


class Autoencoder(nn.Module):
    def __init__(self, channels=1, image=(28, 28), widths=(16, 32), latent=16):
        super().__init__()
        sizes, parts = [channels, *widths], 2 ** len(widths)
        inner = (widths[-1], image[0] // parts, image[1] // parts)
        flat = inner[0] * inner[1] * inner[2]
        layers = []
        for a, b in zip(sizes, sizes[1:]):
            layers += [nn.Conv2d(a, b, 3, 2, 1), nn.ReLU()]
        self.encoder = nn.Sequential(*layers, nn.Flatten(), nn.Linear(flat, latent))
        layers = []
        for a, b in zip(sizes[::-1], sizes[-2::-1]):
            layers += [nn.ConvTranspose2d(a, b, 3, 2, 1, output_padding=1), nn.ReLU()]
        self.decoder = nn.Sequential(nn.Linear(latent, flat), nn.ReLU(), nn.Unflatten(1, inner), *layers[:-1])

    def forward(self, x):
        return self.decoder(self.encoder(x))


class MambaMixer(nn.Module):
    def __init__(self, width, state, conv, expand):
        super().__init__()
        inner, self.rank, self.state = width * expand, -(-width // 16), state
        self.A_log = nn.Parameter(torch.log(torch.arange(1.0, state + 1)).repeat(inner, 1))
        self.D = nn.Parameter(torch.ones(inner))
        self.in_proj = nn.Linear(width, 2 * inner, bias=False)
        self.conv1d = nn.Conv1d(inner, inner, conv, padding=conv - 1, groups=inner)
        self.x_proj = nn.Linear(inner, self.rank + 2 * state, bias=False)
        self.dt_proj = nn.Linear(self.rank, inner)
        self.out_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        length = x.shape[1]
        u, gate = self.in_proj(x).chunk(2, -1)
        u = F.silu(self.conv1d(u.transpose(1, 2))[..., :length].transpose(1, 2))
        step, b, c = self.x_proj(u).split([self.rank, self.state, self.state], -1)
        delta, a = F.softplus(self.dt_proj(step)), -torch.exp(self.A_log)
        h = torch.zeros(x.shape[0], *self.A_log.shape, dtype=x.dtype, device=x.device)
        rows = []
        for t in range(length):
            h = torch.exp(delta[:, t, :, None] * a) * h + (delta * u)[:, t, :, None] * b[:, t, None]
            rows.append((h * c[:, t, None]).sum(-1))
        return self.out_proj((torch.stack(rows, 1) + self.D * u) * F.silu(gate))


class MambaLayer(nn.Module):
    def __init__(self, width, state, conv, expand):
        super().__init__()
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.mixer = MambaMixer(width, state, conv, expand)

    def forward(self, x):
        return x + self.mixer(self.norm(x))


class Mamba(nn.Module):
    def __init__(self, vocab, width, layers, state=16, conv=4, expand=2):
        super().__init__()
        self.backbone = nn.Module()
        self.backbone.embedding = nn.Embedding(vocab, width)
        self.backbone.layers = nn.ModuleList([MambaLayer(width, state, conv, expand) for _ in range(layers)])
        self.backbone.norm_f = nn.RMSNorm(width, eps=1e-5)
        self.lm_head = nn.Linear(width, vocab, bias=False)
        self.lm_head.weight = self.backbone.embedding.weight

    def forward(self, tokens):
        x = self.backbone.embedding(tokens)
        for layer in self.backbone.layers:
            x = layer(x)
        return self.lm_head(self.backbone.norm_f(x))


def label_loss(logits, labels):
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten())


def numbers(device, *dims):
    return torch.rand(*dims, device=device) * 2 - 1


def indices(device, below, *dims):
    return torch.randint(below, dims, device=device)


def mlp(batch):
    return lambda d: (Mlp([784, 512, 512, 10]).to(d), numbers(d, batch, 784), indices(d, 10, batch), label_loss)


def cnn(batch):
    return lambda d: (Cnn().to(d), numbers(d, batch, 3, 32, 32), indices(d, 10, batch), label_loss)


def fno(batch, grid):
    return lambda d: (Fno1d().to(d), numbers(d, batch, grid, 2), numbers(d, batch, grid, 1), F.mse_loss)


def gpt(batch, vocab, context, *sizes):
    tokens = lambda d: indices(d, vocab, batch, context)
    return lambda d: (Gpt(vocab, context, *sizes).to(d), tokens(d), tokens(d), label_loss)


def recurrent(kind, batch, times, width):
    return lambda d: (Recurrent(kind, width).to(d), numbers(d, batch, times, width), numbers(d, batch, times, width), F.mse_loss)


def images(model, batch, size, classes):
    return lambda d: (model().to(d), numbers(d, batch, 3, size, size), indices(d, classes, batch), label_loss)


def llama(batch, vocab, context, *sizes):
    tokens = lambda d: indices(d, vocab, batch, context)
    return lambda d: (Llama(vocab, context, *sizes).to(d), tokens(d), tokens(d), label_loss)


def vit(size, patch, *sizes):
    return lambda: Vit(3, (size, size), (patch, patch), *sizes)


# What `dittograd bench` calls so, and models that only the Python package runs: by the device, the model, its input, what it should say, and the loss.
WORKLOADS = {
    "mlp_b128": mlp(128),
    "cnn_b128": cnn(128),
    "cnn_b32": cnn(32),
    "fno1d_b32_g1024": fno(32, 1024),
    "fno1d_b8_g1024": fno(8, 1024),
    "babygpt_b64_t256": gpt(64, 65, 256, 384, 6, 6),
    "gpt2s_b8_t1024": gpt(8, 50304, 1024, 768, 12, 12),
    "gpt_b8_t128": gpt(8, 65, 128, 192, 6, 4),
    "lstm_b32_t128": recurrent(nn.LSTM, 32, 128, 256),
    "gru_b32_t128": recurrent(nn.GRU, 32, 128, 256),
    "resnet50_b32": images(ResNet50, 32, 224, 1000),
    "vitb16_b32": images(vit(224, 16, 768, 12, 12, 3072, 1000), 32, 224, 1000),
    "llama125m_b8_t1024": llama(8, 32000, 1024, 768, 12, 4, 12, 2048),
    "resnet50_b2_s64": images(ResNet50, 2, 64, 1000),
    "vit_b4_s64": images(vit(64, 16, 192, 3, 4, 768, 10), 4, 64, 10),
    "llama_b2_t128": llama(2, 1000, 128, 192, 6, 2, 4, 512),
}


def training_step(forward, x, y, loss, optimizer):
    """Forward, backward, and an update."""

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss(forward(x), y).backward()
        optimizer.step()

    return step
