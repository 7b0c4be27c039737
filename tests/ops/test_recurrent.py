"""lstm and gru against their equations in f64, and what they refuse."""
import numpy as np
import pytest

import graphq as gq
from graphq.errors import GraphError, InputError
from graphq.ir.op import lookup

rng = np.random.default_rng(3)


def floats(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(gates, r, h, c):
    out = []
    for x in gates.astype(np.float64):
        i, o, f, g = np.split(x + h @ r.T, 4, axis=1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        out.append(h)
    return np.stack(out), h, c


def gru(gates, r, h, bias, linear):
    out, n = [], h.shape[1]
    for x in gates.astype(np.float64):
        z, s = (sigmoid(x[:, k * n:(k + 1) * n] + h @ r[k * n:(k + 1) * n].T) for k in (0, 1))
        last = s * (h @ r[2 * n:].T + bias) if linear else (s * h) @ r[2 * n:].T + bias
        h = (1 - z) * np.tanh(x[:, 2 * n:] + last) + z * h
        out.append(h)
    return np.stack(out), h


@pytest.mark.parametrize("reverse", [False, True])
def test_lstm(reverse):
    gates, r, h, c = floats(5, 3, 28), floats(28, 7), floats(3, 7), floats(3, 7)
    given = gates[::-1] if reverse else gates
    want = lstm(given, r, h, c)
    got = lookup("lstm").reference(gates, r, h, c, reverse=reverse)
    for x, y in zip(got, (want[0][::-1] if reverse else want[0], *want[1:]), strict=True):
        assert x.dtype == np.float32
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
    zeros = np.zeros((3, 7), np.float32)
    for x, y in zip(lookup("lstm").reference(gates, r), lookup("lstm").reference(gates, r, zeros, zeros),
                    strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("linear", [False, True])
def test_gru(linear):
    gates, r, h, bias = floats(5, 3, 21), floats(21, 7), floats(3, 7), floats(7)
    got = lookup("gru").reference(gates, r, h, bias, linear_before_reset=linear)
    for x, y in zip(got, gru(gates, r, h, bias, linear), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


GATES = {"lstm": 4, "gru": 3, "rnn": 1}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("op", GATES)
def test_sequences_that_end_early(op, reverse):
    """Each is as if alone; a sequence of no steps keeps its first state."""
    gates, r, h = floats(4, 3, 5 * GATES[op]), floats(5 * GATES[op], 5), floats(3, 5)
    run = lookup(op).reference
    states, *last = run(gates, r, h, lengths=np.int32([0, 2, 4]), reverse=reverse)
    assert last[0][0].tolist() == h[0].tolist() and not states[:, 0].any()
    for b, n in ((1, 2), (2, 4)):
        alone, *ends = run(gates[:n, b:b + 1], r, h[b:b + 1], reverse=reverse)
        np.testing.assert_array_equal(states[:n, b], alone[:, 0])
        assert not states[n:, b].any()
        for x, y in zip(last, ends, strict=True):
            np.testing.assert_array_equal(x[b], y[0])


@pytest.mark.parametrize("length", [-1, 5])
@pytest.mark.parametrize("op", GATES)
def test_lengths_outside_of_the_steps(op, length):
    gates, r = floats(4, 3, 5 * GATES[op]), floats(5 * GATES[op], 5)
    with pytest.raises(InputError, match=rf"{op}: lengths must be in \[0, 4\], got {length}"):
        lookup(op).reference(gates, r, lengths=np.int32([4, length, 0]))


def test_a_plain_network():
    gates, r, h = floats(3, 2, 5), floats(5, 5), floats(2, 5)
    states, last = lookup("rnn").reference(gates, r, h)
    for x, got in zip(gates.astype(np.float64), states, strict=True):
        h = np.tanh(x + h @ r.T)
        np.testing.assert_allclose(got, h, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(last, states[-1])
    np.testing.assert_allclose(lookup("rnn").reference(gates, r)[0][0], np.tanh(gates[0]), rtol=1e-5, atol=1e-6)


def test_peepholes_see_the_cell():
    gates, r, h, c, p = floats(1, 2, 20), floats(20, 5), floats(2, 5), floats(2, 5), floats(15)
    (y,), _, cell = lookup("lstm").reference(gates, r, h, c, peepholes=p)
    i, o, f, g = np.split(gates[0] + h @ r.T, 4, axis=1)
    want = sigmoid(f + p[10:] * c) * c + sigmoid(i + p[:5] * c) * np.tanh(g)
    np.testing.assert_allclose(cell, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(y, sigmoid(o + p[5:10] * want) * np.tanh(want), rtol=1e-5, atol=1e-6)


def test_a_quantized_state():
    """One step by hand: the state 0.5, -1, 1.55 has the scale 0.01, the zero point 100."""
    gates, h = np.zeros((1, 1, 12), np.float32), np.float32([[0.5, -1, 1.55]])
    r = np.zeros((12, 3), np.float32)
    r[0:3], r[9:12] = np.float32([-3, 5, 100]), np.float32([7, 0, -2])
    units = np.float32([50, -100, 155])
    scale = (np.float32(1.55) + np.float32(1)) / np.float32(255) * np.float32(0.01)
    x = gates[0].copy()
    x[0, 0:3], x[0, 9:12] = units @ r[0] * scale, units @ r[9] * scale
    got = lookup("lstm").reference(gates, r, h, None, np.float32([0.01]))
    zeros = np.zeros_like(r)
    for a, b in zip(got, lookup("lstm").reference(x[None], zeros, h), strict=True):
        np.testing.assert_array_equal(a, b)


def test_shapes_that_are_open():
    g = gq.Graph()
    x = g.input("x", shape=(None, None, 16), dtype="f32")
    r = g.input("r", shape=None, dtype="f32")
    assert [v.shape for v in g.lstm(x, r)] == [(None, None, 4), (None, 4), (None, 4)]
    assert [v.shape for v in g.gru(r, g.input("w", shape=(12, 4), dtype="f32"))] == [(None, None, 4), (None, 4)]
    assert [v.shape for v in g.rnn(x, r)] == [(None, None, 16), (None, 16)]


@pytest.mark.parametrize("op,shapes,message", [
    ("lstm", [(5, 2, 15), (16, 4)], r"'gates' must have shape \[T, B, 4H\], got \[5,2,15\]"),
    ("lstm", [(5, 2, 16), (16, 3)], r"'recurrent' must have shape \[4H, H\], got \[16,3\], with H = 4"),
    ("lstm", [(5, 2, 16), (16, 4), (3, 4)], r"'h' must have shape \[B, H\], got \[3,4\], with B = 2"),
    ("lstm", [(5, 2, 16), (16, 4), None, None, (3,)], r"'scales' must have shape \[4H\]"),
    ("gru", [(5, 2, 12), (12, 4), None, (3,)], r"'bias' must have shape \[H\], got \[3\], with H = 4"),
    ("rnn", [(5, 2, 4), (4, 3)], r"'recurrent' must have shape \[1H, H\], got \[4,3\]"),
    ("rnn", [(5, 2, 4), (4, 4), (3, 4)], r"'h' must have shape \[B, H\], got \[3,4\], with B = 2"),
    ("gru", [(5, 12), (12, 4)], r"'gates' must have shape \[T, B, 3H\], got \[5,12\]"),
])
def test_what_is_refused(op, shapes, message):
    g = gq.Graph()
    values = [None if s is None else g.input(f"x{k}", shape=s, dtype="f32") for k, s in enumerate(shapes)]
    with pytest.raises(GraphError, match=message):
        getattr(g, op)(*values)


def test_only_f32():
    g = gq.Graph()
    with pytest.raises(GraphError, match="'recurrent' must be f32"):
        g.lstm(g.input("x", shape=(5, 2, 16), dtype="f32"), g.input("r", shape=(16, 4), dtype="f16"))
