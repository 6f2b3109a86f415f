"""Recurrent layers. The inputs of all steps are projected at once, and all steps are one operation, but for projected outputs."""

import dittograd as dg

from .table import lowering

F = dg.nn.functional


def _lstm_step(gates, state, hidden, projection):
    _, cell = state
    i, f, g, o = (gates + hidden).chunk(4, -1)
    cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
    h = o.sigmoid() * cell.tanh()
    return (h if projection is None else F.linear(h, projection), cell)


def _gru_step(gates, state, hidden, _):
    (h,) = state
    (r, z, n), (hr, hz, hn) = gates.chunk(3, -1), hidden.chunk(3, -1)
    n = (n + (r + hr).sigmoid() * hn).tanh()
    z = (z + hz).sigmoid()
    return (n + z * (h - n),)


def _tanh_step(gates, state, hidden, _):
    return ((gates + hidden).tanh(),)


def _relu_step(gates, state, hidden, _):
    return (F.relu(gates + hidden),)


_CELLS = {_lstm_step: "lstm", _gru_step: "gru", _tanh_step: "tanh", _relu_step: "relu"}


def _direction(step, x, state, weights, backward):
    """One layer in one direction: its outputs `(steps, N, size)` and its last state."""
    into, of_state, bias, state_bias, projection = weights
    gates = F.linear(x, into, bias)
    if projection is None:
        outputs, *state = F.recurrence(gates, of_state, state, state_bias, cell=_CELLS[step], reverse=backward)
        return outputs, state
    outputs, gates = [], gates.unbind(0)
    for gate in reversed(gates) if backward else gates:
        state = step(gate, state, F.linear(state[0], of_state, state_bias), projection)
        outputs.append(state[0])
    return dg.stack(outputs[::-1] if backward else outputs), state


def _layers(step, x, states, params, biases, layers, dropout, train, both, batch_first):
    """All layers. `states` has a tensor `(layers, N, size)` for each part of the state, and so have the results."""
    single = x.ndim == 2
    if single:
        x, states = x.unsqueeze(1), [s.unsqueeze(1) for s in states]
    elif batch_first:
        x = x.transpose(0, 1)
    directions = 2 if both else 1
    count = len(params) // (layers * directions)
    projected = count == (5 if biases else 3)
    last = []
    for layer in range(layers):
        if layer and train and dropout:
            x = F.dropout(x, dropout)
        found = []
        for direction in range(directions):
            at = layer * directions + direction
            mine = list(params[at * count : (at + 1) * count])
            projection = mine.pop() if projected else None
            weights = [*mine[:2], *(mine[2:4] if biases else (None, None)), projection]
            y, state = _direction(step, x, tuple(s.select(0, at) for s in states), weights, direction == 1)
            found.append(y)
            last.append(state)
        x = found[0] if len(found) == 1 else dg.cat(found, -1)
    ends = [dg.stack(list(part)) for part in zip(*last)]
    if single:
        x, ends = x.squeeze(1), [s.squeeze(1) for s in ends]
    elif batch_first:
        x = x.transpose(0, 1)
    return x, *ends


@lowering("lstm.input")
def _lstm(c, x, states, params, biases, layers, dropout, train, both, batch_first):
    return _layers(_lstm_step, x, states, params, biases, layers, dropout, train, both, batch_first)


def _one_state(step):
    def run(c, x, state, params, biases, layers, dropout, train, both, batch_first):
        return _layers(step, x, [state], params, biases, layers, dropout, train, both, batch_first)

    return run


lowering("gru.input")(_one_state(_gru_step))
lowering("rnn_tanh.input")(_one_state(_tanh_step))
lowering("rnn_relu.input")(_one_state(_relu_step))


@lowering("lstm_cell.default")
def _lstm_cell(c, x, state, into, of_state, bias=None, state_bias=None):
    return _lstm_step(F.linear(x, into, bias), state, F.linear(state[0], of_state, state_bias), None)


def _cell(step):
    def run(c, x, state, into, of_state, bias=None, state_bias=None):
        return step(F.linear(x, into, bias), (state,), F.linear(state, of_state, state_bias), None)[0]

    return run


lowering("gru_cell.default")(_cell(_gru_step))
lowering("rnn_tanh_cell.default")(_cell(_tanh_step))
lowering("rnn_relu_cell.default")(_cell(_relu_step))
