"""Programs: traced, compiled, trained, saved and continued."""

import threading

import dittograd as dg
import numpy as np
import pytest

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(64, 10)).astype("float32")
Y = GENERATOR.integers(0, 3, 64)


def model(device="cpu", optimizer=None, seed=3):
    """A linear model with a running mean, its step and what the step's function has seen."""
    generator = np.random.default_rng(1)
    params = dg.Params(device)
    weight = params.add("weight", generator.normal(size=(10, 3)))
    bias = params.add("bias", np.zeros(3))
    mean = params.add("mean", np.zeros(3), trainable=False)
    traced = []

    def loss(session, x, y):
        traced.append(x.shape)
        scores = dg.nn.functional.dropout(x, 0.1) @ session.param(weight) + session.param(bias)
        session.assign(mean, scores.mean(0))
        return dg.nn.functional.cross_entropy(scores, y), scores

    step = dg.TrainStep(params, optimizer or dg.optim.AdamW(lr=1e-2, clip_norm=1.0), loss, seed=seed)
    return params, step, traced


def test_a_step_trains():
    params, step, traced = model()
    step.run(X, Y)
    first, mean = step.loss(), params["mean"].numpy()
    np.testing.assert_allclose(mean, step.metric(0).mean(0), rtol=1e-5, atol=1e-6)
    for _ in range(100):
        step.run(X, Y)
    assert step.loss() < 0.5 * first
    assert traced == [(64, 10)]
    assert step.steps == 101
    step.run(X[:32], Y[:32])
    assert traced == [(64, 10), (32, 10)]


def test_one_answer():
    prints = set()
    for device in [dg.Device("cpu", threads=1), dg.Device("cpu", threads=2), "cpu"]:
        params, step, _ = model(device)
        for _ in range(10):
            step.run(X, Y)
        prints.add(step.fingerprint())
        assert step.fingerprint() == params.fingerprint()
    assert len(prints) == 1
    _, step, _ = model(seed=4)
    for _ in range(10):
        step.run(X, Y)
    assert step.fingerprint() not in prints


def test_a_checkpoint_goes_on(tmp_path):
    params, step, _ = model()
    for _ in range(5):
        step.run(X, Y)
    step.save(tmp_path / "state.safetensors")
    step.run(X, Y)
    end = step.fingerprint()
    _, other, _ = model()
    other.load(tmp_path / "state.safetensors")
    other.run(X, Y)
    assert other.fingerprint() == end
    params.save(tmp_path / "weights.safetensors")
    fresh, _, _ = model()
    fresh.load(tmp_path / "weights.safetensors")
    assert fresh.fingerprint() == end
    with pytest.raises(ValueError, match="seed"):
        model(seed=5)[1].load(tmp_path / "state.safetensors")


def test_a_step_is_that_of_numpy():
    """One step of each rule whose formula is short."""
    w = np.array([1.0, -2.0, 0.5], "float32")
    x = np.array([0.5, 0.25, -1.0], "float32")  # the gradient
    cases = {
        "sgd": (dg.optim.SGD(lr=0.1), w - 0.1 * x),
        "momentum": (dg.optim.SGD(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1), w - 0.1 * 1.9 * (x + 0.1 * w)),
        "adamw": (dg.optim.AdamW(lr=0.1, weight_decay=0.5), w * (1 - 0.05) - 0.1 * np.sign(x)),
        "adam": (dg.optim.Adam(lr=0.1), w - 0.1 * np.sign(x)),
        "adagrad": (dg.optim.Adagrad(lr=0.1), w - 0.1 * np.sign(x)),
        "rmsprop": (dg.optim.RMSprop(lr=0.01, alpha=0.75), w - 0.02 * np.sign(x)),
        "lion": (dg.optim.Lion(lr=0.1), w - 0.1 * np.sign(x)),
        "clipped": (dg.optim.SGD(lr=1.0, clip_value=0.3), w - np.clip(x, -0.3, 0.3)),
        "group": (dg.optim.SGD(lr=1.0, groups=[{"params": ["w"], "lr": 0.5, "weight_decay": 1.0}]), w - 0.5 * (x + w)),
    }
    for name, (optimizer, expected) in cases.items():
        params = dg.Params()
        p = params.add("w", w)
        step = dg.TrainStep(params, optimizer, lambda s, x: (s.param(p) * x).sum())
        step.run(x)
        np.testing.assert_allclose(p.numpy(), expected, rtol=2e-6, atol=1e-7, err_msg=name)


def test_learning_rates_change():
    params = dg.Params()
    a, b = params.add("a", [1.0]), params.add("b", [1.0])
    optimizer = dg.optim.SGD(lr=1.0, groups=[{"params": [b], "lr": 0.5}])
    step = dg.TrainStep(params, optimizer, lambda s, x: ((s.param(a) + s.param(b)) * x).sum())
    step.run(np.ones(1, "float32"))
    assert (a.numpy(), b.numpy()) == (0.0, 0.5)
    step.set_lr(0.25)
    step.set_group_lr(0, 0.125)
    step.run(np.ones(1, "float32"))
    assert (a.numpy(), b.numpy()) == (-0.25, 0.375)
    with pytest.raises(ValueError, match="there is no group 1"):
        step.set_group_lr(1, 0.1)


def test_a_graph_is_data(tmp_path):
    params = dg.Params()
    params.add("w", np.arange(3.0))

    def f(session, x):
        return ((x * session.param(params["w"])).relu().sum(1), x.argmax(1))

    graph = dg.Graph.trace(f, X[:, :3])
    assert graph.inputs == [("float32", [64, 3])]
    assert graph.params == [("w", [3])]
    again = dg.Graph.parse(graph.text()).bind(params)
    assert again == graph and again.hash() == graph.hash()
    total, at = graph.compile()(X[:, :3])
    np.testing.assert_allclose(total, np.maximum(X[:, :3] * np.arange(3.0), 0).sum(1), rtol=1e-6)
    np.testing.assert_array_equal(at, X[:, :3].argmax(1))
    assert at.dtype == np.uint32
    # The value of the parameter is read at each call.
    function = again.compile()
    params["w"].set(np.zeros(3))
    assert not function(X[:, :3])[0].any()
    graph.save(tmp_path / "program.txt")
    assert (tmp_path / "program.txt").read_text() == graph.text()
    assert graph.to_svg().startswith("<svg")
    with pytest.raises(ValueError, match="no value yet"):
        dg.Graph.parse(graph.text()).compile()


def test_a_program_is_its_function_run_at_once():
    def f(session, x):
        return dg.nn.functional.dropout(dg.fft.rfft(x.softmax(-1))[..., 0], 0.5)

    session = dg.Session(seed=11)
    eager = [f(session, session.tensor(X)).numpy() for _ in range(3)]
    function = dg.Graph.trace(f, X, seed=11).compile()
    for expected in eager:
        np.testing.assert_array_equal(function(X)[0], expected)


def test_a_program_assigns():
    params = dg.Params()
    count = params.add("count", np.zeros(()), trainable=False)

    def f(session, x):
        session.assign(count, session.param(count) + 1.0)
        return x * session.param(count)

    function = dg.Graph.trace(f, np.ones(2)).compile()
    assert function(np.ones(2))[0].tolist() == [1, 1]
    assert function(np.ones(2))[0].tolist() == [2, 2]
    assert count.numpy() == 2


def test_errors_are_those_of_the_function():
    params, step, _ = model()

    def raises(session, x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        dg.TrainStep(params, dg.optim.SGD(), raises).run(X)
    with pytest.raises(ValueError, match=r"columns of the left and rows of the right differ: \[64, 5\] and \[10, 3\]"):
        step.run(X[:, :5], Y)
    with pytest.raises(IndexError, match="3"):
        step.run(X, Y + 1)
    kept = []
    dg.Graph.trace(lambda session, x: kept.append(x) or x, X)
    with pytest.raises(RuntimeError, match="Return from the function what you want to see"):
        kept[0].numpy()
    with pytest.raises(TypeError, match="the function returned str"):
        dg.Graph.trace(lambda session, x: "x", X)
    with pytest.raises(ValueError, match="another session"):
        dg.Graph.trace(lambda session, x: dg.Session().tensor(X), X)
    with pytest.raises(RuntimeError, match="make one for each step"):
        optimizer = dg.optim.SGD()
        [dg.TrainStep(params, optimizer, raises) for _ in range(2)]
    with pytest.raises(ValueError, match="adam has no option gamma; it has beta1, beta2, eps"):
        dg.optim.Optimizer("adam", 1e-3, options={"gamma": 1.0})
    with pytest.raises(TypeError, match="a parameter holds numbers"):
        params.add("whole", [1, 2])
    with pytest.raises(KeyError, match="absent"):
        params["absent"]
    # Advice is about Python.
    with pytest.raises(ValueError, match="`weight` is taken; use another name"):
        params.add("weight", [1.0])
    session = dg.Session()
    with pytest.raises(TypeError, match=r"or from indices by x.float\(\)"):
        session.tensor([1, 2]).exp()
    with pytest.raises(TypeError, match=r"or from numbers by x.long\(\)"):
        dg.gather(session.tensor([1.0]), 0, session.tensor([0.0]))
    with pytest.raises(RuntimeError, match="depend on trainable parameter"):
        dg.TrainStep(params, dg.optim.SGD(), lambda s, x: x.sum()).run(X)
    with pytest.raises(ValueError, match="at least one"):
        step.run()


def test_threads_share_a_step():
    _, step, _ = model()
    step.run(X, Y)
    threads = [threading.Thread(target=lambda: [(step.run(X, Y), step.loss()) for _ in range(50)]) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert step.steps == 201
    _, other, _ = model()
    for _ in range(201):
        other.run(X, Y)
    assert other.fingerprint() == step.fingerprint()


def test_labels_are_left_out():
    params = dg.Params()
    params.add("weight", np.random.default_rng(1).normal(size=(10, 3)))

    def loss(session, x, y):
        return dg.nn.functional.cross_entropy(x @ session.param(params["weight"]), y, ignore_index=-100)

    found = []
    for x, y in [(X, np.where(np.arange(64) < 32, Y, -100)), (X[:32], Y[:32])]:
        step = dg.TrainStep(params, dg.optim.SGD(lr=0.0), loss)
        step.run(x, y)
        found.append(step.loss())
    assert abs(found[0] - found[1]) < 1e-6
