#!/usr/bin/env python3
"""Files that carry tensors between PyTorch and us.

    python3 tests/golden/safetensors_files.py            writes tests/golden/torch.safetensors and gpt2.safetensors
    python3 tests/golden/safetensors_files.py --check    compares them, and reads tests/golden/ours.safetensors as we wrote it

`ours.safetensors` is made by `DITTOGRAD_UPDATE=1 cargo test --lib our_file_is_the_one`. Needs torch and safetensors.
"""
import math
import pathlib
import sys

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "compare"))
from models import Gpt


def all_types():
    halves = (torch.arange(6, dtype=torch.float64).reshape(2, 3) - 2) * 0.375
    whole = torch.tensor([0, 1, 100])
    floats = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
    ints = {"i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "u32": torch.uint32}
    tensors = {n: halves.to(t) for n, t in floats.items()} | {n: whole.to(t) for n, t in ints.items()}
    tensors |= {"bool": torch.tensor([True, False]), "scalar": torch.tensor(0.1), "none": torch.zeros(0, 4)}
    return save(tensors, {"format": "pt"})


def gpt2():
    """A tiny GPT under the names and in the layouts of Hugging Face's GPT-2, with its output on some tokens."""
    torch.manual_seed(1)
    net = Gpt(7, 5, 4, 2, 2).float()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randint(-64, 64, p.shape) / 128)
    names = [("tok.", "wte."), ("pos.", "wpe."), ("blocks.", "h."), ("ln1.", "ln_1."), ("ln2.", "ln_2."), ("qkv.", "attn.c_attn."),
             (".o.", ".attn.c_proj."), ("up.", "mlp.c_fc."), ("down.", "mlp.c_proj.")]
    tensors = {}
    for name, p in net.named_parameters():
        for ours, theirs in names:
            name = name.replace(ours, theirs)
        name = name.replace("ln.", "ln_f.") if name.startswith("ln.") else name
        # Their layers between blocks hold weights as (in, out).
        is_conv1d = name.startswith("h.") and name.endswith("weight") and p.dim() == 2
        tensors["transformer." + name] = (p.T if is_conv1d else p).detach().contiguous()
    for i in range(2):
        tensors[f"transformer.h.{i}.attn.bias"] = torch.ones(1, 1, 5, 5).tril()
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"].clone()
    tokens = torch.tensor([[0, 6, 3, 2], [5, 5, 1, 4]])
    tensors["tokens"], tensors["logits"] = tokens, net.double()(tokens).float().detach()
    return save(tensors, {"format": "pt"})


def check_ours(path):
    tensors = load_file(path)
    with safe_open(path, "pt") as f:
        assert f.metadata() == {"format": "pt", "text": "ein \"Wort\" – 字"}, f.metadata()
    want = torch.arange(6, dtype=torch.float32) * torch.tensor(0.1) - torch.tensor(0.2)
    assert torch.equal(tensors["layer.weight"], want.reshape(2, 3))
    assert tensors["labels"].to(torch.int64).tolist() == [0, 1, 2**32 - 1]
    assert tensors["none"].shape == (0, 4) and tensors["scalar"].item() == -math.inf
    assert len(tensors) == 4


def main():
    made = {"torch.safetensors": all_types(), "gpt2.safetensors": gpt2()}
    if "--check" not in sys.argv[1:]:
        for name, data in made.items():
            (HERE / name).write_bytes(data)
            print(f"{name}: {len(data)} bytes")
        return 0
    wrong = [name for name, data in made.items() if (HERE / name).read_bytes() != data]
    if wrong:
        print(f"other bytes in {wrong}")
        return 1
    check_ours(HERE / "ours.safetensors")
    print("the files agree, and ours is read")
    return 0


if __name__ == "__main__":
    sys.exit(main())
