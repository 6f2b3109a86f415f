"""Memory shared with PyTorch on a GPU: what is copied, in which order of streams, and how long it lives.

It runs alone: `python3 -m pytest -q -p no:cacheprovider python/tests/test_cuda.py`, or without pytest `python3 python/tests/test_cuda.py`.
"""

import contextlib
import gc
import sys
import traceback

import dittograd as dg
import numpy as np

try:
    import pytest
except ImportError:
    pytest = None
if pytest:
    torch = pytest.importorskip("torch")
    pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU")
else:
    import torch

import dittograd.torch  # noqa: E402


@contextlib.contextmanager
def no_numbers_on_host():
    """Fails if PyTorch copies numbers from the GPU. Integers may go: they are checked there."""
    cpu, numpy = torch.Tensor.cpu, torch.Tensor.numpy

    def refusing(method):
        def checked(self, *args, **kwargs):
            assert not (self.is_cuda and self.is_floating_point()), f"{tuple(self.shape)} went to the host"
            return method(self, *args, **kwargs)

        return checked

    torch.Tensor.cpu, torch.Tensor.numpy = refusing(cpu), refusing(numpy)
    try:
        yield
    finally:
        torch.Tensor.cpu, torch.Tensor.numpy = cpu, numpy


@contextlib.contextmanager
def raises(kind, text):
    try:
        yield
    except kind as error:
        assert text in str(error), f"{error!r} does not say {text!r}"
    else:
        raise AssertionError(f"no {kind.__name__}: {text}")


@contextlib.contextmanager
def either_stream(side):
    """PyTorch's default stream or another one."""
    stream = torch.cuda.Stream() if side else torch.cuda.current_stream()
    stream.wait_stream(torch.cuda.default_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.synchronize()


def busy():
    """Work of some milliseconds on PyTorch's current stream."""
    torch.cuda._sleep(20_000_000)


def same(tensor, array):
    """The same bits."""
    array = np.asarray(array)
    ours = tensor.detach().cpu().numpy() if isinstance(tensor, torch.Tensor) else tensor.numpy()
    assert ours.dtype == array.dtype and ours.shape == array.shape, (ours.dtype, array.dtype, ours.shape, array.shape)
    assert ours.tobytes() == array.tobytes(), f"the largest difference is {np.abs(ours.astype(float) - array.astype(float)).max()}"


def test_a_view_copies_nothing():
    session = dg.Session("cuda", seed=7)
    x = session.randn(300, 5)
    assert x.__dlpack_device__() == (2, 0)
    view = torch.from_dlpack(x)
    assert view.is_cuda and view.dtype == torch.float32 and view.is_contiguous()
    assert view.data_ptr() == torch.from_dlpack(x.reshape(1500)).data_ptr()
    same(view, dg.Session("cpu", seed=7).randn(300, 5).numpy())
    for stream in (None, 1, 2, -1, torch.cuda.Stream().cuda_stream):
        same(torch.from_dlpack(x.__dlpack__(stream=stream, max_version=(1, 0))), x.numpy())
        same(torch.from_dlpack(x.__dlpack__(stream=stream)), x.numpy())
    for shape in ((), (0, 3), (2, 1, 3)):
        same(torch.from_dlpack(session.tensor(np.ones(shape, np.float32))), np.ones(shape, np.float32))
    indices = torch.from_dlpack(session.tensor([3, 4294967295]))
    assert indices.is_cuda and indices.dtype == torch.uint32
    assert indices.to(torch.int64).tolist() == [3, 4294967295]
    truths = torch.from_dlpack(x > 0)
    assert truths.dtype == torch.bool
    same(truths, x.numpy() > 0)


def test_other_places():
    session = dg.Session("cuda", seed=7)
    x = session.randn(10)
    on_host = torch.from_dlpack(x.__dlpack__(dl_device=(1, 0), max_version=(1, 0)))
    assert not on_host.is_cuda
    same(on_host, x.numpy())
    copy = torch.from_dlpack(x, copy=True)
    assert copy.is_cuda and copy.data_ptr() != torch.from_dlpack(x).data_ptr()
    same(copy, x.numpy())
    with raises(BufferError, "copy=False"):
        x.__dlpack__(dl_device=(1, 0), copy=False)
    with raises(BufferError, "is on DLPack device (2, 0), not on (2, 9)"):
        x.__dlpack__(dl_device=(2, 9))
    with raises(ValueError, "stream: 0 is no stream"):
        x.__dlpack__(stream=0)


def test_parameters_and_constants_are_copied():
    session, params = dg.Session("cuda"), dg.Params("cuda")
    weight = params.add("weight", np.ones(3))
    for shared in (session.param(weight), session.constant([1.0, 1.0, 1.0])):
        view = torch.from_dlpack(shared)
        view += 1
        torch.cuda.synchronize()
        assert weight.numpy().tolist() == [1, 1, 1]
        assert session.constant([1.0, 1.0, 1.0]).numpy().tolist() == [1, 1, 1]


def test_the_stream_of_pytorch_waits_for_the_value():
    for side in (False, True):
        session = dg.Session("cuda", seed=7)
        x = session.randn(2048, 2048) / 64
        with either_stream(side):
            for _ in range(5):
                for _ in range(10):
                    x = (x @ x).tanh()
                read = torch.from_dlpack(x) + 0
                same(read, x.numpy())


def test_memory_lives_until_pytorch_has_read_it():
    for side in (False, True):
        session = dg.Session("cuda", seed=7)
        expected = dg.Session("cpu", seed=7).randn(1 << 18).numpy()
        view = torch.from_dlpack(session.randn(1 << 18))
        session.reset()
        session.zeros(1 << 18)
        with either_stream(side):
            same(view, expected)
            for _ in range(20):
                session = dg.Session("cuda", seed=7)
                view = torch.from_dlpack(session.randn(1 << 18))
                busy()
                read = view + 0
                del view, session
                # Has the memory next.
                session = dg.Session("cuda")
                zeros = [session.zeros(1 << 18) for _ in range(4)]
                same(read, expected)
                assert not zeros[0].numpy().any()


def test_memory_is_free_when_the_last_view_is_gone():
    device = dg.Device("cuda")
    session = dg.Session(device)
    gc.collect()
    before = device.memory()["live"]
    views = [torch.from_dlpack(session.ones(1000)), session.ones(1000).__dlpack__()]
    session.reset()
    assert device.memory()["live"] == before + 8000
    views.clear()
    assert device.memory()["live"] == before


def test_numbers_of_pytorch_are_copied_on_the_gpu():
    session = dg.Session("cuda")
    for shape in ((), (3,), (0, 3), (200, 300)):
        x = torch.randn(shape, device="cuda")
        with no_numbers_on_host():
            ours = session.tensor(x)
        same(x, ours.numpy())
        assert ours.dtype == "float32"
        assert x.numel() == 0 or torch.from_dlpack(ours).data_ptr() != x.data_ptr()
    x = torch.randn(3, device="cuda")
    tracked = session.tensor(x, requires_grad=True)
    (gradient,) = tracked.square().sum().grad([tracked])
    same(gradient, (2 * x).cpu().numpy())


def test_all_else_goes_through_the_host():
    session = dg.Session("cuda")
    x = torch.arange(6.0, device="cuda").reshape(2, 3)
    for given in (x.T, x[:, ::2], x[0, 1], x.double(), x.half(), x > 2, x.long(), x.int()):
        same(session.tensor(given), session.tensor(given.cpu()).numpy())
    assert session.tensor(x > 2).dtype == "bool" and session.tensor(x.long()).dtype == "uint32"
    with raises(ValueError, "-1 is no index"):
        session.tensor(torch.tensor([-1], device="cuda"))
    with raises(ValueError, "4294967296 is no index"):
        session.tensor(torch.tensor([1 << 32], device="cuda"))
    with raises(BufferError, "require gradient"):
        session.tensor(x.requires_grad_())
    with raises(TypeError, "cuda:0"):
        dg.Session("cpu").tensor(x.detach())
    with raises(RuntimeError, "this code is traced"):
        dg.Graph.trace(lambda session, y: y + session.tensor(x.detach()), np.ones((2, 3)), device="cuda")


def test_copies_have_their_place_in_the_streams():
    session = dg.Session("cuda")
    for side in (False, True):
        with either_stream(side):
            for ordered in (False, True):
                x = torch.zeros(1 << 20, device="cuda")
                for i in range(10):
                    busy()
                    x.fill_(i)
                    if ordered:
                        ours = session._tensor_on_stream(x, torch.cuda.current_stream().cuda_stream or 1)
                    else:
                        ours = session.tensor(x)
                    # Overwritten at once, and the memory given to others.
                    x.fill_(-1)
                    del x
                    x = torch.full((1 << 20,), -2.0, device="cuda")
                    assert (ours.numpy() == i).all(), (side, ordered, i, ours.numpy()[:3])


def classifier(device="cpu"):
    """A small model with equal weights everywhere."""
    draw = dg.Session("cpu", seed=3)
    layers = torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.Tanh(), torch.nn.Linear(16, 3)
    model = torch.nn.Sequential(*layers)
    for p in model.parameters():
        p.data = torch.from_numpy(draw.randn(*p.shape).numpy())
    x, y = draw.randn(8, 6).numpy(), np.arange(8) % 3
    return model.to(device), torch.from_numpy(x).to(device), torch.from_numpy(y).to(device)


def test_modules_answer_where_they_are_asked():
    model, x, _ = classifier()
    expected = dittograd.torch.load(model.eval(), x)(x)
    for place in ("cpu", "cuda"):
        module = dittograd.torch.load(classifier(place)[0].eval(), device="cuda")
        same(module(x), expected.numpy())
        with no_numbers_on_host():
            answer = module(x.cuda())
        assert answer.is_cuda
        same(answer, expected.numpy())
        kept = [module(torch.full_like(x, i).cuda()) for i in range(3)]
        same(kept[0], dittograd.torch.load(model, x)(torch.zeros_like(x)).numpy())
    on_cpu = dittograd.torch.load(model, device="cpu")(x.cuda())
    assert on_cpu.is_cuda
    same(on_cpu, expected.numpy())


class Tokens(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(10, 4)

    def forward(self, tokens):
        scores = self.embed(tokens)
        return scores, scores.argmax(-1), tokens


def test_integers_in_and_out():
    model = Tokens()
    tokens = torch.tensor([[1, 2, 9], [0, 3, 3]])
    expected = dittograd.torch.load(model, tokens)(tokens)
    with no_numbers_on_host():
        answer = dittograd.torch.load(model, device="cuda")(tokens.cuda())
    for ours, cpu in zip(answer, expected):
        assert ours.is_cuda
        same(ours, cpu.numpy())


def test_steps_train_on_batches_on_the_gpu():
    def trained(device, place, side=False):
        model, x, y = classifier(place)
        step = dittograd.torch.TrainStep(model, torch.nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters(), lr=1e-2), device=device)
        # The first step makes the program.
        step(x, y)
        with either_stream(side), no_numbers_on_host() if device == place == "cuda" else contextlib.nullcontext():
            for i in range(10):
                batch = x + i
                step(batch, y)
                # The step has its own copy.
                batch.fill_(1e9)
        return step.loss(), step.fingerprint()

    expected = trained("cpu", "cpu")
    assert trained("cuda", "cpu") == expected
    assert trained("cuda", "cuda") == expected
    assert trained("cuda", "cuda", side=True) == expected
    assert trained("cpu", "cuda") == expected


def test_compiled_models_stay_on_the_gpu():
    def computed(device, place):
        model, x, _ = classifier(place)
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="dittograd", options={"device": device})
        x.requires_grad_()
        found = []
        for i in range(3):
            model.zero_grad()
            x.grad = None
            with no_numbers_on_host() if device == place == "cuda" and i else contextlib.nullcontext():
                y = compiled(x)
                y.backward(torch.ones_like(y) * (1 + i))
            assert all(t.device.type == place for t in (y, x.grad, *(p.grad for p in model.parameters())))
            found += [t.detach().cpu().numpy() for t in (y, x.grad, *(p.grad for p in model.parameters()))]
        return found + [b.detach().cpu().numpy() for b in model.buffers()]

    expected = computed("cpu", "cpu")
    for device, place in (("cuda", "cuda"), ("cuda", "cpu"), ("cpu", "cuda")):
        for ours, cpu in zip(computed(device, place), expected, strict=True):
            assert ours.dtype == cpu.dtype and ours.tobytes() == cpu.tobytes(), (device, place)


def test_functions_and_steps_of_tensors():
    session = dg.Session("cuda", seed=7)
    function = dg.Graph.trace(lambda session, x: [x * 2, x.argmax(-1)], np.ones((3, 2)), device="cuda").compile()
    x = session.randn(3, 2)
    results, arrays = function(x), function(x.numpy())
    for tensor, array in zip(results, arrays):
        same(tensor, array)
    with raises(RuntimeError, "an input lives on cpu"):
        function(dg.Session("cpu").randn(3, 2))


def test_memory_does_not_grow():
    model, x, _ = classifier("cuda")
    module = dittograd.torch.load(model.eval(), x, device="cuda")
    device = module.params.device
    module(x)
    gc.collect()
    before = device.memory()["live"]
    for _ in range(50):
        module(x)
    gc.collect()
    assert device.memory()["live"] == before


def main():
    if not torch.cuda.is_available():
        print("skipped: PyTorch finds no GPU")
        return 0
    failed = 0
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            try:
                test()
                print(f"ok      {name}", flush=True)
            except Exception:
                failed += 1
                print(f"FAILED  {name}\n{traceback.format_exc()}", flush=True)
    print(f"{failed} failed" if failed else "all passed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
