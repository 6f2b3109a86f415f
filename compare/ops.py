#!/usr/bin/env python3
"""Single ops beside PyTorch in float32 (with `--tf32`, on tensor cores), as ratios of times: below 1 we are faster.

usage: python3 compare/ops.py [--device cpu|cuda] [--threads N] [--program PATH] [--tf32] [PART_OF_A_NAME ...]

Both run in turns; medians of each. `+grad` is the op and its gradient rule, for all number inputs.
"""
import argparse, json, statistics, subprocess, time
import torch
import torch.nn.functional as F
from timing import median_ms

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cpu")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--program", default="target/release/dittograd")
parser.add_argument("--turns", type=int, default=3)
parser.add_argument("--tf32", action="store_true")
parser.add_argument("names", nargs="*")
args = parser.parse_args()
torch.set_num_threads(args.threads)
torch.backends.cuda.matmul.allow_tf32 = args.tf32
torch.backends.cudnn.allow_tf32 = args.tf32
torch.backends.cudnn.benchmark = True
GPU = args.device.startswith("cuda")


def ours(workload):
    command = [args.program, "--device", args.device, "--threads", str(args.threads), "--json", "bench", workload]
    command += ["--numerics", "tf32"] if args.tf32 else []
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        return None, done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "failed"
    return json.loads(done.stdout.splitlines()[0])["ms"], ""


def torchs(call):
    if not GPU:
        return median_ms(call)
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = []
    for _ in range(11):
        a.record()
        for _ in range(5):
            call()
        b.record()
        torch.cuda.synchronize()
        times.append(a.elapsed_time(b) / 5)
    return statistics.median(times)


def rand(*shape):
    return (torch.rand(*shape, device=args.device) * 2 - 1).requires_grad_()


def both(name, workload, fn, *ins):
    """The op alone and with its gradients."""
    out = fn(*ins)
    dy = torch.ones_like(out)
    wanted = [i for i in ins if i.requires_grad]

    def forward():
        with torch.no_grad():
            fn(*ins)

    def full():
        torch.autograd.grad(fn(*ins), wanted, dy)

    return [(name, workload, forward), (name + " +grad", workload + "+grad", full)]


def dims(*shape):
    return ",".join(map(str, shape))


def conv(name, n, cin, size, cout, k, stride=1, groups=1):
    attrs = json.dumps({"stride": [stride] * 2, "padding": [k // 2] * 2, "dilation": [1, 1], "groups": groups})
    work = f"conv:{dims(n, cin, size, size)}/{dims(cout, cin // groups, k, k)}/{dims(cout)}@{attrs}"
    fn = lambda x, w, b: F.conv2d(x, w, b, stride=stride, padding=k // 2, groups=groups)
    return both(name, work, fn, rand(n, cin, size, size), rand(cout, cin // groups, k, k), rand(cout))


def attention(name, b, h, n, d):
    work = f"attention:{dims(b, h, n, d)}/{dims(b, h, n, d)}/{dims(b, h, n, d)}" + '@{"causal": true}'
    fn = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return both(name, work, fn, *(rand(b, h, n, d) for _ in range(3)))


def spectral(x, wr, wi):
    modes, n = wr.shape[0], x.shape[1]
    X = torch.fft.rfft(x, dim=1)
    Y = torch.zeros_like(X)
    Y[:, :modes] = torch.einsum("bmi,mio->bmo", X[:, :modes], torch.complex(wr, wi))
    return torch.fft.irfft(Y, n=n, dim=1)


def product(name, m, n, k, ta=False, tb=False):
    flags = ",ta" * ta + ",tb" * tb
    a, b = rand(*((k, m) if ta else (m, k))).detach(), rand(*((n, k) if tb else (k, n))).detach()
    left, right = a.t() if ta else a, b.t() if tb else b
    out = torch.empty(m, n, device=args.device)
    return [(f"matmul {name} {m}x{n}x{k}{flags.replace(',', ' ')}", f"matmul:{m},{n},{k}{flags}", lambda: torch.mm(left, right, out=out))]


def layer(name, rows, inputs, outputs):
    """The three products of a linear layer: forward, and the gradients of its input and its weight."""
    yield from product(name, rows, outputs, inputs, tb=True)
    yield from product(name + " dx", rows, inputs, outputs)
    yield from product(name + " dw", outputs, inputs, rows, ta=True)


def products():
    for size in (4096, 8192) if GPU else (256, 512, 1024, 2048):
        for ta, tb in ((False, False), (False, True), (True, False), (True, True)):
            yield from product("square", size, size, size, ta, tb)
    rows = 8192 if GPU else 512
    yield from layer("gpt2 qkv", rows, 768, 2304)
    yield from layer("gpt2 o", rows, 768, 768)
    yield from layer("gpt2 up", rows, 768, 3072)
    yield from layer("gpt2 down", rows, 3072, 768)
    yield from layer("gpt2 head", rows, 768, 50304)
    rows = 16384 if GPU else 1024
    yield from layer("babygpt qkv", rows, 384, 1152)
    yield from layer("babygpt o", rows, 384, 384)
    yield from layer("babygpt up", rows, 384, 1536)
    yield from layer("babygpt down", rows, 1536, 384)


def resnet(n):
    """The layers of ResNet-50 that are told apart by their sizes."""
    for width, size in ((64, 56), (128, 28), (256, 14), (512, 7)):
        yield from conv(f"resnet {width}-{width} 3x3 {size} b{n}", n, width, size, width, 3)
        yield from conv(f"resnet {width}-{4 * width} 1x1 {size} b{n}", n, width, size, 4 * width, 1)
        yield from conv(f"resnet {4 * width}-{width} 1x1 {size} b{n}", n, 4 * width, size, width, 1)
    for width, size in ((128, 56), (256, 28), (512, 14)):
        yield from conv(f"resnet {width}-{width} 3x3 {size} /2 b{n}", n, width, size, width, 3, stride=2)
        yield from conv(f"resnet {2 * width}-{4 * width} 1x1 {size} /2 b{n}", n, 2 * width, size, 4 * width, 1, stride=2)


def positions(name, work, fn, rows, n):
    """An op whose value is positions: it has no gradient."""
    x = rand(rows, n).detach()
    return [(f"{name} {rows}x{n}", f"{work[0]}:{rows},{n}@{work[1]}", lambda: fn(x))]


def order():
    for rows, n in ((4096, 1024), (64, 65536), (1, 1 << 22)) if GPU else ((512, 1024), (16, 65536), (1, 1 << 20)):
        yield from positions("argsort", ("argsort", '{"descending": false}'), lambda x: x.argsort(dim=-1, stable=True), rows, n)
        for k in (8, 256):
            yield from positions(f"topk {k} of", ("topk", '{"k": %d, "largest": true}' % k), lambda x: x.topk(k), rows, n)


def images():
    """Resampling, and reading at the places of a grid."""
    n = 32 if GPU else 4
    for mode, number, size in (("nearest", 0, 112), ("bilinear", 2, 112), ("bicubic", 3, 112), ("bilinear", 2, 28)):
        flags = '{"filter": %d, "align_corners": false, "antialias": false, "step0": 0, "step1": 0, "sizes": [%d, %d]}' % (number, size, size)
        fn = lambda x: F.interpolate(x, size=(size, size), mode=mode)
        yield from both(f"interpolate {mode} 56-{size} b{n}", f"resample:{dims(n, 64, 56, 56)}@{flags}", fn, rand(n, 64, 56, 56))
    for mode, number in (("bilinear", 0), ("nearest", 1), ("bicubic", 2)):
        flags = '{"mode": %d, "padding_mode": 0, "align_corners": false, "orders": [0, 0]}' % number
        fn = lambda x, g: F.grid_sample(x, g, mode=mode, align_corners=False)
        work = f"grid_sample:{dims(n, 64, 56, 56)}/{dims(n, 56, 56, 2)}@{flags}"
        yield from both(f"grid_sample {mode} 56 b{n}", work, fn, rand(n, 64, 56, 56), rand(n, 56, 56, 2))


def scatters():
    rows, n, m = (8192, 1024, 1024) if GPU else (512, 1024, 1024)
    index = torch.randint(m, (rows, n), device=args.device)
    for name, number in (("prod", 1), ("amax", 2), ("amin", 3)):
        fn = lambda src, base: base.scatter_reduce(1, index, src, name)
        work = f"scatter_reduce:{rows},{n}/{rows},{n}%{m}/{rows},{m}" + '@{"axis": 1, "combine": %d, "checked": false}' % number
        yield from both(f"scatter_reduce {name} {rows}x{n}", work, fn, rand(rows, n), rand(rows, m))


def factors():
    """Factors of matrices, and systems; those that must be positive definite have a large diagonal."""
    for batch, n in ((1, 512), (1, 2048), (64, 128)):
        a = rand(batch, n, n).detach()
        a = (a + a.mT + n * torch.eye(n, device=args.device)).requires_grad_()
        work = f"cholesky:{batch},{n},{n}^{n}" + '@{"upper": false}'
        yield from both(f"cholesky {batch}x{n}", work, torch.linalg.cholesky, a)
    for batch, m, n in ((1, 512, 512), (1, 2048, 64), (64, 128, 128)):
        a = rand(batch, m, n)
        yield both(f"qr {batch}x{m}x{n}", f"qr:{batch},{m},{n}", lambda x: torch.linalg.qr(x)[0], a)[0]
    for batch, n in ((1, 512), (1, 2048), (64, 128)):
        yield both(f"lu {batch}x{n}", f"lu:{batch},{n},{n}", lambda x: torch.linalg.lu_factor(x)[0], rand(batch, n, n))[0]
    for batch, n, m in ((1, 1024, 1024), (1, 1024, 1), (64, 128, 32)):
        a = (rand(batch, n, n).detach() + n * torch.eye(n, device=args.device)).requires_grad_()
        flags = '{"upper": false, "ta": false, "unit": false, "right": false}'
        fn = lambda a, b: torch.linalg.solve_triangular(a, b, upper=False)
        work = f"triangular_solve:{batch},{n},{n}^{n}/{batch},{n},{m}@{flags}"
        yield from both(f"triangular_solve {batch}x{n} {m}", work, fn, a, rand(batch, n, m))


def cases():
    yield from order()
    yield from images()
    yield from scatters()
    yield from factors()
    yield from products()
    big = GPU
    n = 128 if big else 32
    yield from conv(f"conv 3-32 3x3 32x32 b{n}", n, 3, 32, 32, 3)
    yield from conv(f"conv 32-64 3x3 32x32 b{n}", n, 32, 32, 64, 3)
    yield from conv(f"conv 64-128 3x3 16x16 b{n}", n, 64, 16, 128, 3)
    m = 32 if big else 4
    yield from resnet(m)
    yield from conv(f"depthwise 96 3x3 56 b{m}", m, 96, 56, 96, 3, groups=96)
    rows = 32768 if big else 4096
    ln = lambda x, g, b: F.layer_norm(x, (768,), g, b)
    work = f"layer_norm:{rows},768/768/768" + '@{"axes": 1, "eps": 1e-5}'
    yield from both(f"layer_norm {rows}x768", work, ln, rand(rows, 768), rand(768), rand(768))
    yield from both(f"softmax {rows}x1024", f"softmax:{rows},1024", lambda x: torch.softmax(x, -1), rand(rows, 1024))
    yield from both(f"log_softmax {rows}x1024", f"log_softmax:{rows},1024", lambda x: torch.log_softmax(x, -1), rand(rows, 1024))
    yield from both("softmax 8192x1001", "softmax:8192,1001", lambda x: torch.softmax(x, -1), rand(8192, 1001))
    tokens, vocab = (8192, 50304) if big else (512, 50304)
    labels = torch.randint(vocab, (tokens,), device=args.device)
    yield from both(f"cross_entropy {tokens}x{vocab}", f"cross_entropy:{tokens},{vocab}/{tokens}%{vocab}", lambda x: F.cross_entropy(x, labels), rand(tokens, vocab))
    table = rand(vocab, 768)
    work = f"index_select:{vocab},768/{tokens}%{vocab}" + '@{"axis": 0, "checked": false}'
    yield from both(f"embedding {vocab}x768 {tokens}", work, lambda t: F.embedding(labels, t), table)
    b, h, t = (8, 12, 1024) if big else (2, 6, 512)
    yield from attention(f"attention {b}x{h}x{t}x64 causal", b, h, t, 64)
    b = 32 if big else 8
    work = f"spectral_conv1d:{b},1024,64/16,64,64/16,64,64"
    yield from both(f"spectral b{b} g1024 w64 m16", work, spectral, rand(b, 1024, 64), rand(16, 64, 64), rand(16, 64, 64))
    pool = "max_pool:%s" % dims(n, 64, 32, 32) + '@{"kernel": [2, 2], "stride": [2, 2], "padding": [0, 0], "dilation": [1, 1]}'
    yield from both("max_pool 2x2", pool, lambda x: F.max_pool2d(x, 2), rand(n, 64, 32, 32))
    bn = lambda x, g, c: F.batch_norm(x, None, None, g, c, training=True)
    yield from both("batch_norm", f"batch_norm:{dims(n, 64, 32, 32)}/64/64" + '@{"eps": 1e-5}', bn, rand(n, 64, 32, 32), rand(64), rand(64))


print(f"torch {torch.__version__} on {args.device}" + ("" if GPU else f", {args.threads} threads"))
for name, workload, call in cases():
    if args.names and not any(n in name for n in args.names):
        continue
    pairs = []
    for _ in range(args.turns):
        mine, why = ours(workload)
        if mine is None:
            break
        theirs = torchs(call)
        if not GPU:
            time.sleep(0.05)
        pairs.append((mine, theirs))
    if not pairs:
        print(f"{name:36} not run: {why}")
        continue
    mine, theirs = (statistics.median(p[i] for p in pairs) for i in (0, 1))
    print(f"{name:36} ours {mine:9.4f} ms   torch {theirs:9.4f} ms   ratio {mine / theirs:6.3f}", flush=True)
