"""The models of `dittograd::nn` in PyTorch, with the same parameter names."""
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


def label_loss(logits, labels):
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten())
