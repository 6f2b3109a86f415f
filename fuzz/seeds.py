#!/usr/bin/env python3
"""Writes the seeds of all fuzz targets: small inputs of each kind, made without the library. `--check` only says whether
the committed ones are these."""

import json
import pathlib
import random
import struct
import sys
import zlib

HERE = pathlib.Path(__file__).parent / "seeds"
# Those of the program's tests.
IMAGES = pathlib.Path(__file__).parent.parent / "cli/tests/images"


def npy(kind, shape, data, version=1, fortran=False):
    head = "{'descr': '%s', 'fortran_order': %s, 'shape': %s, }" % (kind, fortran, tuple(shape))
    length = "<H" if version == 1 else "<I"
    start = 8 + struct.calcsize(length)
    head += " " * (-(start + len(head) + 1) % 64) + "\n"
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack(length, len(head)) + head.encode() + data


def floats(*numbers):
    return struct.pack("<%df" % len(numbers), *numbers)


def archive(files, deflate):
    """A zip archive, byte for byte the same everywhere."""
    out, directory = b"", b""
    for name, content in files:
        name = name.encode()
        packed = content
        if deflate:
            squeeze = zlib.compressobj(6, zlib.DEFLATED, -15)
            packed = squeeze.compress(content) + squeeze.flush()
        fields = struct.pack("<5H3I2H", 20, 0, 8 if deflate else 0, 0, 0x21, zlib.crc32(content), len(packed), len(content),
                             len(name), 0)
        directory += b"PK\1\2" + struct.pack("<H", 20) + fields + bytes(10) + struct.pack("<I", len(out)) + name
        out += b"PK\3\4" + fields + name + packed
    count = len(files)
    return out + directory + b"PK\5\6" + struct.pack("<4H2IH", 0, 0, count, count, len(directory), len(out), 0)


def gzip(content):
    squeeze = zlib.compressobj(6, zlib.DEFLATED, -15)
    packed = squeeze.compress(content) + squeeze.flush()
    return b"\x1f\x8b\x08\0\0\0\0\0\0\x03" + packed + struct.pack("<2I", zlib.crc32(content), len(content))


def png(width, height, kind, depth, rows, extra=b""):
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">2I5B", width, height, depth, kind, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + extra + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def palette(colours):
    data = bytes(colours)
    return struct.pack(">I", len(data)) + b"PLTE" + data + struct.pack(">I", zlib.crc32(b"PLTE" + data))


def safetensors(header, data):
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def byte_names():
    """GPT-2's characters for the 256 bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(rest)}


def tokenizers():
    names = byte_names()
    tokens = [names[b] for b in range(256)]
    pairs = [("h", "e"), ("l", "l"), ("he", "ll"), (names[32], "h")]
    tokens += [a + b for a, b in pairs]
    vocab = {t: i for i, t in enumerate(tokens)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    added = [{"id": len(tokens), "content": "<|endoftext|>", "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True}]
    full = vocab | {"<|endoftext|>": len(tokens)}
    model = {"type": "BPE", "dropout": None, "vocab": full, "merges": ["%s %s" % p for p in pairs]}
    whole = {"version": "1.0", "added_tokens": added, "normalizer": None, "pre_tokenizer": level, "post_processor": None,
             "decoder": level, "model": model}
    show = lambda v: json.dumps(v, ensure_ascii=False, separators=(",", ":")).encode()
    listed = json.loads(show(whole))
    listed["model"]["merges"] = [list(p) for p in pairs]
    listed["added_tokens"] = []
    listed["model"]["vocab"] = vocab
    merges = "#version: 0.2\n" + "\n".join("%s %s" % p for p in pairs) + "\n"
    return [show(whole), show(listed), show(vocab) + b"\n---\n" + merges.encode()]


GRAPHS = [
    """graph 1
%0: f32[2, 3] grad = input
%1: f32[3] grad = param "bias"
%2: f32[2] = constant [0.5, -1.0]
%3: u32[2] = nats [1, 0]
%4: f32[2, 3] = add %0 %1
%5: f32[2, 3] = map %4 %4 shape=[2, 3] { k0 = 0.5; t0 = Mul x0 k0; t1 = Add t0 x1; return t1 }
%6: f32[2] = sum %5 axes=[1]
%7: f32[2] = mul %6 %2
%8: f32[2, 3] = index_select %5 %3 axis=0
return %7 %8
""",
    """graph 1
%0: f32[2, 3] grad = input
%1: f32[3, 2] grad = param "w\\"\\u{7}"
%2: f32[2, 2] = matmul %0 %1 ta=false tb=false
%3: f32[2, 2] = softmax %2
%4: f32[] = fused %3 of sum axes=[0, 1] prologue slot=0 inputs=1 shape=[2, 2] { t0 = Exp x0; return t0 } epilogue inputs=0 shape=[] { t0 = Log x0; return t0 }
return %4
""",
    """graph 1
# a comment
%0: u32[2] = random base
%1: f32[18] = constant 0x3f8000003f8000003f8000003f8000003f8000003f8000003f8000003f8000003f8000003f8000003f8000003f8000003f8000003f8000003f8000003f8000003f8000003f800000
%2: f32[3, 6] = reshape %1 shape=[3, 6]
%3: f32[6, 3] = permute %2 order=[1, 0]
%4: f32[6, 3] = scale %3 c=0.1234567f
return %4
""",
]

ARGUMENTS = [
    "@a\n@x\n--steps\n10\n--lr\n1e-3\n--hidden\n8,8\n@u\nnone\n@k\ncpu\n@m\n2",
    "@j\nmatmul:4,5,6,ta+grad\nsum:3,4\nindex_select:4,3/2%4@{\"axis\":0}\ngpt_b2_t16_eager",
    "@f\nconv\n@o\n{\"stride\":[1],\"padding\":[0],\"dilation\":[1],\"groups\":1}\n--out\ny.safetensors",
    "@g\nx.txt\n--svg\n@n", "@b\nruns/x\n--prompt\n47+85=", "--help", "@a\n--help", "@h\nx.safetensors", "@i\nadd\n@l\ntf32", "", "@j\nmlp_b8_\u00e9\nsum:\u00e9", "@a\n\u00e9\n--lr\n\u221e",
]


def seeds():
    x = floats(1, 2, -3.5, 0, float("inf"), 1e-42)
    arrays = [("x.npy", npy("<f4", [2, 3], x)), ("y.npy", npy("<i8", [2], struct.pack("<2q", 0, 1)))]
    yield "npy", [
        npy("<f4", [2, 3], x), npy("<f8", [2], struct.pack("<2d", 0.5, -1)), npy("|u1", [2, 2], b"\0\1\2\3"),
        npy("<i8", [2], struct.pack("<2q", 0, 7)), npy(">f4", [2], struct.pack(">2f", 1, 2)), npy("<f4", [2, 3], x, fortran=True),
        npy("<f4", [], floats(2)), npy("|b1", [3], b"\0\1\1"), npy("<f2", [2], b"\0\x3c\0\x40", version=2), npy("<u4", [0, 3], b""),
    ]
    yield "npz", [archive(arrays, False), archive(arrays, True), archive([], False), archive(arrays[:1], True) ]
    yield "csv", [
        bytes([kind]) + text.encode() for kind, text in [
            (0, "a,b,class\n1,2,0\n3,4.5,1\n"), (0, "1;2;0\n-1e3;+.5;2\n"), (1, "x,y,z\n1,2,3\n4,5,6\n"), (2, "1\t2\t3\n4\t5\t6\r\n"),
            (0, '\ufeff"a","b ""c"""\r\n"1","0"\r\n\r\n'), (0, "# note\n1 2 0\nnan inf 1\n"), (0, "1.17549435e-38,-0.1234567,3\n3.4e38,1e-45,0\n"),
        ]
    ]
    images = bytes([0, 0, 8, 3]) + struct.pack(">3I", 2, 2, 3) + bytes(range(12))
    labels = bytes([0, 0, 8, 1]) + struct.pack(">I", 2) + b"\7\3"
    pair = lambda a, b: struct.pack(">H", len(a)) + a + b
    yield "idx", [pair(images, labels), pair(gzip(images), gzip(labels)), pair(bytes([3]) + bytes(3072), b"")]
    tensors = {
        "__metadata__": {"format": "pt"},
        "w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "i": {"dtype": "I64", "shape": [2], "data_offsets": [24, 40]},
        "h": {"dtype": "BF16", "shape": [2], "data_offsets": [40, 44]},
        "b": {"dtype": "BOOL", "shape": [4], "data_offsets": [44, 48]},
    }
    files = [
        safetensors(tensors, x + struct.pack("<2q", 1, 2) + bytes(4) + b"\0\1\0\1"), safetensors({}, b""),
        safetensors({"s": {"dtype": "F64", "shape": [], "data_offsets": [0, 8]}}, struct.pack("<d", 0.5)),
        safetensors({"s": {"dtype": "F16", "shape": [0, 2], "data_offsets": [0, 0]}}, b""),
    ]
    yield "safetensors", files
    dice = random.Random(7)
    some = lambda count: bytes(dice.randrange(256) for _ in range(count))
    yield "checkpoint", [b"\0" + files[0], b"\1" + bytes(60), *(b"\1" + some(80) for _ in range(6))]
    yield "record", records()
    yield "tokenizer", tokenizers()
    yield "tokenizer_train", [bytes([20]) + b"the cat sat on the mat, the cat's hat", bytes([255]) + "höhö 12 12\n\n ".encode() * 3, b"\0"]
    yield "graph_text", [text.encode() for text in GRAPHS]
    letters = {c: i for i, c in enumerate("abcd----e,->. ")} | {"e": 8, ",": 9, "-": 10, ">": 11, ".": 12, " ": 15}
    equation = lambda text: bytes([2, 3, 2, 1, 3, 0, 0]) + bytes(letters[c] for c in text)
    yield "einsum", [equation(t) for t in ["ab,bc->ac", "abc,acd->abd", "aa->", "ab->ba", "...ab,...bc->...ac", "a,b,c->abc", "ab,b", "......", "abc->cab", "abc,ca->bca"]]
    yield "arguments", [a.encode() for a in ARGUMENTS]
    grey = [bytes([0, 128, 255])] * 2
    yield "picture", [
        png(3, 2, 0, 8, grey), png(1, 2, 2, 8, [b"\1\2\3"] * 2), png(1, 1, 6, 8, [b"\1\2\3\4"]), png(3, 1, 0, 1, [b"\xa0"]),
        png(1, 1, 4, 16, [bytes(4)]), png(2, 1, 3, 8, [b"\0\1"], palette([1, 2, 3, 4, 5, 6])), b"\xff\xd8\xff",
        *(IMAGES.joinpath(f"{name}.jpg").read_bytes() for name in ["420", "grey", "progressive", "restarts", "cmyk"]),
    ]
    gpt = {"vocab": 9, "context": 4, "width": 16777215, "heads": 4, "layers": 2, "dropout": 0.0}
    yield "settings", [
        settings(), settings(accumulate=0), settings(accumulate=1 << 63), settings(eval_every=0), settings(lr=-1.0),
        settings(config={"sizes": [2, 1 << 24, 3]}), settings(model="gpt", task="text", config=gpt), settings(patience=0), b"{}",
    ]
    yield "shape_rules", [*(bytes([op]) for op in range(155)), *(some(24) for _ in range(40))]
    yield "random_graph", [bytes([n % 4]) + some(30 + 20 * n) for n in range(8)]
    yield "session", [some(60 + 40 * n) for n in range(8)]
    yield "allocator", [some(40 + 40 * n) for n in range(6)]


def records():
    """Records and receipts, whose lines get their hashes by the target."""
    plain = lambda value: json.dumps(value, separators=(",", ":"))[:-1]
    data = {"name": "d", "seed": 7, "batch": 8, "hash": "00"}
    head = {
        "record": 1, "dittograd": "0.1.0", "numerics": "strict", "numerics_version": 5, "model": "mlp", "settings": {"lr": 0.01}, "program": None,
        "data": data, "seed": 7, "step": 0, "state": "00", "tensors": {"w": "0123456789abcdef"},
    }
    step = lambda n, **more: {"step": n, "batch": "00", "loss": "3f800000", "random": 0} | more
    state = {"state": "11", "tensors": {"w": "fedcba9876543210"}}
    change = lambda after: {"settings": {"lr": 0.02}, "after": after}
    end = lambda steps: {"end": "finished", "steps": steps, "fingerprint": "0123456789abcdef"}
    machine = {"machine": {"device": "cpu"}}
    lines = [
        [head, machine, step(1), step(2, **state), step(3), end(3)], [head, step(1, **state), change(1), step(2), machine, step(3)],
        [head], [head, change(0), end(0)], [head | {"step": 9}, step(10)], [head | {"step": (1 << 64) - 1}, step(0), change(0)],
        [head, change((1 << 64) - 1)], [head, end((1 << 64) - 1)], [head, step(1, state="22")], [head, {"file": "00"}], [step(1)],
    ]
    mark = lambda n, **more: {"step": n, "chain": "0" * 64, "state": None} | more
    receipt = {
        "receipt": 1, "head": head, "changes": [], "marks": [mark(0, state="00"), mark(3)], "end": end(3), "root": "0" * 64, "record": "00",
        "machines": [],
    }
    receipts = [
        receipt, receipt | {"changes": [change(3)]}, receipt | {"signed_by": "0" * 64}, receipt | {"signed_by": "0" * 64, "signature": "0" * 128},
        receipt | {"signature": ""}, receipt | {"marks": []},
    ]
    return ["\n".join(map(plain, all)).encode() for all in lines] + [plain(r).encode() for r in receipts]


def settings(**changes):
    """The settings of a run as a checkpoint has them."""
    data = {"grid": None, "name": "spirals", "samples": 60, "seed": 7, "targets": None}
    plain = {
        "accumulate": 1, "batch": 8, "clip": None, "config": {"sizes": [2, 4, 3]}, "data": data, "eval_every": 5, "lr": 0.01,
        "model": "mlp", "optimizer": "adamw", "patience": None, "scales": {"x": None, "y": None}, "schedule": "constant",
        "seed": 7, "steps": 10, "task": "classes", "warmup": 0, "weight_decay": None, "weights": None,
    }
    return json.dumps(plain | changes).encode()


def main():
    wrong = 0
    for target, inputs in seeds():
        folder = HERE / target
        folder.mkdir(parents=True, exist_ok=True)
        names = {"%03d" % i for i in range(len(inputs))}
        wrong += len({p.name for p in folder.iterdir()} - names)
        for i, data in enumerate(inputs):
            path = folder / ("%03d" % i)
            if "--check" in sys.argv:
                wrong += not path.exists() or path.read_bytes() != data
            else:
                path.write_bytes(data)
    if wrong:
        sys.exit("%d files differ; run fuzz/seeds.py" % wrong)


main()
