"""Memory shared with NumPy and PyTorch: what is copied and what is not, and how long it lives. `test_cuda.py` has the same on a GPU."""

import gc
import weakref

import dittograd as dg
import numpy as np
import pytest


@pytest.fixture
def session():
    return dg.Session("cpu", seed=7, threads=1)


def views(x):
    """The memory of a tensor, as each library has it, with its address."""
    array = np.from_dlpack(x)
    yield array, array.ctypes.data
    try:
        import torch
    except ImportError:
        return
    tensor = torch.from_dlpack(x)
    yield tensor.numpy(), tensor.data_ptr()


def test_a_view_copies_nothing(session):
    x = session.randn(3, 5)
    assert x.__dlpack_device__() == (1, 0)
    addresses = set()
    for view, address in views(x):
        np.testing.assert_array_equal(view, x.numpy())
        assert view.dtype == np.float32
        addresses.add(address)
    assert len(addresses) == 1
    # Reshapes and runs of leading rows are the same memory.
    assert np.from_dlpack(x.reshape(5, 3)).ctypes.data in addresses
    assert np.asarray(x, copy=False).ctypes.data in addresses


def test_numpy_has_one_copy_of_its_own(session):
    x = session.randn(4)
    before = x.numpy()
    before[:] = 0
    assert x.numpy().any()
    assert not np.from_dlpack(x).flags.writeable
    assert np.asarray(x).flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        np.from_dlpack(x)[0] = 1


def test_memory_outlives_tensor_and_session():
    session = dg.Session("cpu", seed=7, threads=1)
    expected = dg.Session("cpu", seed=7, threads=1).randn(1000).numpy()
    x = session.randn(1000)
    kept = list(views(x))
    del x
    session.reset()
    # Would have the memory now if it were free.
    for _ in range(3):
        session.zeros(1000)
    for view, _ in kept:
        np.testing.assert_array_equal(view, expected)
    del session
    gc.collect()
    dg.Session("cpu", threads=1).zeros(1000)
    for view, _ in kept:
        np.testing.assert_array_equal(view, expected)


def test_memory_is_free_when_the_last_view_is_gone():
    device = dg.Device("cpu", threads=1)
    session = dg.Session(device)
    kept = list(views(session.ones(1000)))
    capsule = session.ones(1000).__dlpack__()
    session.reset()
    assert device.memory()["live"] == 8000
    del capsule
    assert device.memory()["live"] == 4000
    del kept
    gc.collect()
    assert device.memory()["live"] == 0


def test_every_shape_and_type(session):
    for data in (3.0, np.zeros((0, 3)), np.ones((2, 1, 3)), np.arange(6.0).reshape(2, 3).T, [[1, 2], [3, 4294967295]], [True, False]):
        x = session.tensor(np.asarray(data))
        for view, _ in views(x):
            assert view.shape == x.shape
            assert view.dtype == x.dtype
            np.testing.assert_array_equal(view, np.asarray(data))
        np.testing.assert_array_equal(x.numpy(), np.asarray(data))
        assert x.numpy().dtype == x.dtype
    assert np.from_dlpack(session.zeros(2, 3)[:, 1]).tolist() == [0, 0]


def test_what_others_share_is_copied(session):
    """PyTorch writes to memory that is for reading, so it must be nobody else's."""
    torch = pytest.importorskip("torch")
    params = dg.Params("cpu")
    weight = params.add("weight", np.ones(3))
    x = session.param(weight)
    for shared in (x, x.reshape(3, 1), x.detach()):
        view = torch.from_dlpack(shared)
        view += 1
        assert weight.numpy().tolist() == [1, 1, 1]
    step = dg.TrainStep(params, dg.optim.SGD(lr=0.5), lambda session, y: (session.param(weight) * y).sum())
    view = np.from_dlpack(x)
    step.run(np.ones(3))
    assert weight.numpy().tolist() == [0.5, 0.5, 0.5]
    assert view.tolist() == [1, 1, 1]

    view = torch.from_dlpack(session.constant([1.0, 2.0]))
    view += 1
    assert session.constant([1.0, 2.0]).numpy().tolist() == [1, 2]


def test_options_of_the_protocol(session):
    x = session.randn(4)
    address = np.from_dlpack(x).ctypes.data
    copy = np.from_dlpack(x, copy=True)
    assert copy.ctypes.data != address
    assert copy.flags.writeable
    assert np.from_dlpack(x, device="cpu", copy=False).ctypes.data == address
    # Without a version, as libraries of before 2023 ask: they do not know which memory is for reading.
    assert '"dltensor"' in repr(x.__dlpack__())
    assert '"dltensor"' in repr(x.__dlpack__(max_version=(0, 8)))
    assert '"dltensor_versioned"' in repr(x.__dlpack__(max_version=(2, 0)))
    with pytest.raises(ValueError, match="stream: values in host memory have none"):
        x.__dlpack__(stream=1)
    with pytest.raises(BufferError, match=r"on DLPack device \(1, 0\), not on \(2, 0\)"):
        x.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError, match="copy=False: truth values"):
        (x > 0).__dlpack__(copy=False)
    with pytest.raises(ValueError, match="as int64 it is a copy"):
        np.asarray(x, dtype="int64", copy=False)


def test_a_recorded_program_has_no_memory(session):
    def function(session, x):
        return session.tensor(np.from_dlpack(x))

    with pytest.raises(RuntimeError, match="a traced program has no values yet"):
        dg.Graph.trace(function, np.ones(2))


def test_gradients_can_be_shared(session):
    x = session.tensor([1.0, 2.0], requires_grad=True)
    (gradient,) = x.square().sum().grad([x])
    assert np.from_dlpack(gradient).tolist() == [2, 4]
    assert np.from_dlpack(x).tolist() == [1, 2]


def test_tensors_of_pytorch_become_ours(session):
    torch = pytest.importorskip("torch")
    x = torch.arange(6.0).reshape(2, 3)
    for given in (x, x.T, x[:, ::2], x[0, 0], x[:0], x.double(), x > 2, x.long()):
        np.testing.assert_array_equal(session.tensor(given).numpy(), given.numpy())
    ours = session.tensor(x)
    x += 1
    assert ours[0, 0].item() == 0
    with pytest.raises(RuntimeError, match="requires grad"):
        session.tensor(torch.ones(2, requires_grad=True))
    with pytest.raises(TypeError, match="complex64"):
        session.tensor(torch.ones(2, dtype=torch.complex64))
    with pytest.raises(TypeError, match="BFloat16"):
        session.tensor(torch.ones(2, dtype=torch.bfloat16))


def test_functions_of_tensors_return_tensors(session):
    function = dg.Graph.trace(lambda session, x, i: [x * 2, x[i], i], np.ones((3, 2)), np.array([0, 1])).compile()
    x, i = session.randn(3, 2), np.array([2, 0])
    arrays = function(x.numpy(), i)
    for given in ((x, i), (x, session.tensor(i)), (x.numpy(), session.tensor(i))):
        results = function(*given)
        for tensor, array in zip(results, arrays):
            assert isinstance(tensor, dg.Tensor)
            assert tensor.session is not None
            np.testing.assert_array_equal(tensor.numpy(), array)
    assert (results[0] + x).shape == (3, 2)
    assert isinstance(arrays[0], np.ndarray)
    with pytest.raises(IndexError):
        function(x, session.tensor([3, 0]))
    # The program's memory is used again at the next call, the results are not.
    view = np.from_dlpack(function(x, i)[0])
    function(session.zeros(3, 2), i)
    np.testing.assert_array_equal(view, arrays[0])


def test_steps_take_tensors(session):
    def trained(convert):
        params = dg.Params("cpu")
        params.add("weight", np.ones((2, 3)))

        def loss(session, x, labels):
            return dg.nn.functional.cross_entropy(x @ session.param(params["weight"]), labels)

        step = dg.TrainStep(params, dg.optim.Adam(lr=0.1), loss)
        for _ in range(3):
            step.run(convert(x), convert(labels))
        return step.fingerprint()

    x, labels = session.randn(4, 2).numpy(), np.array([0, 2, 1, 1])
    assert trained(lambda array: array) == trained(session.tensor)
    with pytest.raises(RuntimeError, match="an input lives on cpu in mode fast"):
        trained(dg.Session(dg.Device("cpu", numerics="fast")).tensor)


def test_a_view_is_not_kept_by_the_tensor(session):
    x = session.randn(2)
    view = weakref.ref(np.from_dlpack(x))
    gc.collect()
    assert view() is None
