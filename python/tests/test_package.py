"""What the package itself does: sessions, tensors, operators, indices, gradients, errors. `compare/opinfo.py` compares its functions with PyTorch's."""

import re
import threading

import dittograd as dg
import numpy as np
import pytest


@pytest.fixture
def session():
    return dg.Session("cpu", seed=7, threads=2)


def test_a_device_that_is_not_there_says_so():
    with pytest.raises(ValueError, match="use cpu, cuda or cuda:N"):
        dg.Session("gpu")
    with pytest.raises(ValueError, match="`quick` is not a mode"):
        dg.Session("cpu", numerics="quick")


def test_tensors_keep_what_numpy_gives(session):
    for data in (3.0, [1.0, 2.0], [[1.0], [2.0]], np.zeros((0, 3), np.float64), np.arange(6, dtype=np.float32).reshape(2, 3).T):
        tensor = session.tensor(np.asarray(data))
        assert tensor.dtype == "float32"
        assert tensor.shape == np.shape(data)
        np.testing.assert_array_equal(tensor.numpy(), np.asarray(data, np.float32))
    labels = session.tensor([[0, 4294967295]])
    assert labels.dtype == "uint32"
    assert labels.numpy().tolist() == [[0, 4294967295]]
    assert session.tensor(np.array([True, False])).numpy().tolist() == [True, False]
    assert session.tensor([[2.5]]).item() == 2.5


def test_what_no_tensor_can_be_says_so(session):
    with pytest.raises(ValueError, match="-1 is no index"):
        session.tensor([-1])
    with pytest.raises(TypeError, match="complex64"):
        session.tensor(np.zeros(2, np.complex64))
    with pytest.raises(ValueError, match="one element"):
        session.tensor([1, 2]).item()


def test_operators_take_tensors_and_numbers(session):
    x = session.tensor([1.0, -2.0, 3.0])
    for ours, theirs in (
        (2 * x + 1, [3, -3, 7]),
        (1 - x, [0, 3, -2]),
        (x / 2, [0.5, -1, 1.5]),
        (-x, [-1, 2, -3]),
        (abs(x) ** 2, [1, 4, 9]),
        (x > 0, [True, False, True]),
        (x @ x, 14),
    ):
        assert ours.numpy().tolist() == theirs


def test_indices_are_pythons(session):
    data = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    x = session.tensor(data)
    for key in (0, -1, (slice(None), 1), (..., -1), (slice(None), slice(0, 3, 2)), (None, 1), ([1, 0],), (slice(None), [2, 0], 1)):
        np.testing.assert_array_equal(x[key].numpy(), data[key])
    np.testing.assert_array_equal(x[x > 5].numpy(), data[data > 5])
    with pytest.raises(IndexError):
        x[2]


def test_gradients_of_any_order(session):
    x = session.tensor([0.5, -1.5], requires_grad=True)
    (first,) = (x**4).sum().grad([x])
    assert first.numpy().tolist() == [0.5, -13.5]
    (second,) = first.sum().grad([x])
    assert second.numpy().tolist() == [3.0, 27.0]
    other = session.tensor([1.0], requires_grad=True)
    assert x.sum().grad([other]) == [None]


def test_errors_have_the_librarys_texts_and_pythons_classes(session):
    x, y = session.zeros(2, 3), session.zeros(4)
    with pytest.raises(ValueError, match=re.escape("[2, 3] and [4]")):
        x + y
    with pytest.raises(IndexError, match="axis"):
        x.sum(5)
    with pytest.raises(ValueError, match="different sessions"):
        x + dg.Session().zeros(2, 3)
    session.reset()
    with pytest.raises(RuntimeError, match="reset"):
        x.numpy()


def test_the_bits_do_not_depend_on_threads():
    def bits(threads):
        session = dg.Session("cpu", seed=3, threads=threads)
        x = session.randn(64, 100)
        x = session.tensor(x.numpy(), requires_grad=True)
        w = session.tensor(np.linspace(-1, 1, 1000, dtype=np.float32).reshape(100, 10))
        loss = dg.nn.functional.cross_entropy((x @ w).tanh(), session.tensor(np.arange(64) % 10))
        return loss.numpy().tobytes() + loss.grad([x])[0].numpy().tobytes()

    assert bits(1) == bits(2) == bits(3)


def test_every_function_has_a_description():
    places = [dg, dg.linalg, dg.special, dg.fft, dg.masked, dg.signal.windows, dg.nn.functional]
    missing = [
        f"{place.__name__}.{name}"
        for place in places
        for name, function in vars(place).items()
        if not name.startswith("_") and callable(function) and not function.__doc__
    ]
    assert not missing


def test_other_libraries_read_tensors(session):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    ours = session.tensor(x)
    for read in (np.asarray, np.from_dlpack):
        np.testing.assert_array_equal(read(ours), x)
    assert np.asarray(ours, dtype="float64").dtype == "float64"
    with pytest.raises(ValueError, match="is a copy"):
        np.array(ours, dtype="float64", copy=False)
    # One number, no elements, elements that do not lie side by side.
    assert session.tensor(np.float64(2.5)).numpy().shape == ()
    assert session.tensor(np.zeros((0, 4))).numpy().shape == (0, 4)
    np.testing.assert_array_equal(session.tensor(x.T).numpy(), x.T)
    np.testing.assert_array_equal(session.tensor(x[:, ::2]).numpy(), x[:, ::2])


def test_gradients_are_of_one_number(session):
    x = session.tensor([2.0, 3.0], requires_grad=True)
    with pytest.raises(ValueError, match=r"the tensor has shape \[2\]; it needs one element, such as a sum"):
        (x * x).grad([x])
    (gradient,) = (x * x).sum(0, keepdim=True).grad([x])
    assert gradient.numpy().tolist() == [4.0, 6.0]


def test_other_threads_run_while_a_session_computes():
    session = dg.Session(dg.Device("cpu", threads=1), inference=True)
    x, counted, done = session.tensor(np.ones((1500, 1500))), [0], threading.Event()

    def count():
        while not done.is_set():
            counted[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    before = counted[0]
    # One call: Python's own switches between threads come in the middle of it only if it lets them.
    y = x @ x
    after = counted[0]
    done.set()
    thread.join()
    assert y.numpy()[0, 0] == 1500.0
    assert after - before > 1000


def test_constants_and_tracked_values(session):
    assert session.constant([True, False]).dtype == "bool"
    assert session.constant([1, 2]).dtype == "uint32"
    x = session.tensor([2.0, 3.0])
    assert not x.requires_grad
    y = x.tracked()
    (gradient,) = (y * y).sum().grad([y])
    assert gradient.numpy().tolist() == [4.0, 6.0]
