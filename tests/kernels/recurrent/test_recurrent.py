"""Recurrent kernels give what the operations' references give, bit for bit."""
import numpy as np
import pytest
from guarded_memory import guarded
from levels import at_each_width, pairs_at_each_width

import graphq as gq

rng = np.random.default_rng(5)


def floats(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def graph(op, steps, rows, units, *, states=True, extra=None, lengths=None, **attrs):
    gates = {"lstm": 4, "gru": 3, "rnn": 1}[op]
    g = gq.Graph(op)
    x = g.input("x", shape=(steps, rows, gates * units), dtype="f32")
    first = [g.input(n, shape=(rows, units), dtype="f32") if states else None for n in "hc"[:2 if op == "lstm" else 1]]
    quantized = extra is not None and op == "lstm"
    r = rng.integers(-128, 128, (4 * units, units)) if quantized else floats(gates * units, units)
    more = [lengths] if op == "rnn" else [extra, lengths]
    outs = getattr(g, op)(x, g.constant(np.float32(r)), *first, *more, **attrs)
    for name, v in zip(("y", "last", "cell"), outs, strict=False):
        g.output(v, name=name)
    return g


def check(g, threads, isa=None):
    feeds = {v.name: guarded(floats(*v.shape)) for v in g.inputs}
    model = gq.compile(g, threads=threads, strict=True, isa=isa)
    want, got = gq.reference(g, feeds), model(feeds)
    for name in want:
        np.testing.assert_array_equal(got[name], want[name], err_msg=name)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("steps,rows,units", [(1, 1, 1), (3, 1, 15), (2, 4, 16), (3, 7, 17), (2, 1, 300), (2, 13, 33)])
def test_layers(steps, rows, units, reverse, threads):
    check(graph("lstm", steps, rows, units, reverse=reverse), threads)
    check(graph("gru", steps, rows, units, reverse=reverse, linear_before_reset=True), threads)
    check(graph("rnn", steps, rows, units, reverse=reverse), threads)


def test_many_rows_in_threads():
    check(graph("lstm", 3, 37, 40), 2)
    check(graph("gru", 3, 37, 40, linear_before_reset=True, extra=floats(40)), 2)


@pytest.mark.parametrize("op,quantized", [("lstm", False), ("lstm", True), ("gru", False), ("rnn", False)])
@pytest.mark.parametrize("reverse", [False, True])
def test_lengths(op, quantized, reverse):
    """Of nothing and of all steps, in a block with others."""
    extra = np.float32([0.003]) if quantized else None
    attrs = {"linear_before_reset": True} if op == "gru" else {}
    for by_row in ({}, {"by_row": True})[:1 + quantized]:
        check(graph(op, 4, 6, 20, extra=extra, lengths=np.int32([4, 0, 2, 4, 1, 3]), reverse=reverse, **attrs,
                    **by_row), 2)


@pytest.mark.parametrize("op", ["lstm", "gru"])
def test_without_states(op):
    check(graph(op, 3, 5, 20, states=False, **({} if op == "lstm" else {"linear_before_reset": True})), 1)


@pytest.mark.parametrize("sizes, scales, level", pairs_at_each_width(
    [(1, 1, 1), (4, 1, 40), (3, 6, 17), (2, 2, 520)], ["one", "each"]), indirect=["level"])
def test_quantized_states(level, sizes, scales):
    steps, rows, units = sizes
    extra = np.float32([0.003]) if scales == "one" else np.abs(floats(4 * units)) / 100
    check(graph("lstm", steps, rows, units, extra=extra), 2, level)
    check(graph("lstm", steps, rows, units, extra=extra, reverse=True, states=False), 1, level)
    check(graph("lstm", steps, rows, units, extra=extra, by_row=True), 2, level)


@pytest.mark.parametrize("weights, level", at_each_width(
    [(-255, -254), (254, 255), (-128, 127), (-3, 252), (-200, 55)]), indirect=["level"])
def test_the_largest_sums_of_integers_are_exact(level, weights):
    """255 * 255 * 520 is beyond what f32 holds; weights may be any of 8 bits with any zero point."""
    low, high = weights
    g = gq.Graph()
    x, h = g.input("x", shape=(1, 3, 2080), dtype="f32"), g.input("h", shape=(3, 520), dtype="f32")
    r = np.full((2080, 520), high, np.float32)
    r[:, ::7] = low
    for k, v in enumerate(g.lstm(x, g.constant(r), h, None, np.float32([1e-8]))):
        g.output(v, name=f"y{k}")
    feeds = {"x": floats(1, 3, 2080), "h": np.ones((3, 520), np.float32)}
    feeds["h"][1] = floats(520)
    want, got = gq.reference(g, feeds), gq.compile(g, threads=1, strict=True, isa=level)(feeds)
    for name in want:
        np.testing.assert_array_equal(got[name], want[name])


def test_integers_of_more_than_8_bits_are_refused():
    g = gq.Graph()
    r = np.zeros((8, 2), np.float32)
    r[0, 0] = 256
    g.output(g.lstm(g.input("x", shape=(1, 1, 8), dtype="f32"), r, None, None, np.float32([1]))[0], name="y")
    with pytest.raises(gq.GraphError, match="integer weights must have 8 bits, got 0 to 256"):
        gq.compile(g)


@pytest.mark.parametrize("g,why", [
    (graph("gru", 2, 2, 8), "reset before the products"), (graph("lstm", 0, 2, 8), "no steps"),
    (graph("lstm", 2, 0, 8), "no rows")], ids=lambda x: x if isinstance(x, str) else "")
def test_what_is_left_to_the_reference(g, why):
    feeds = {v.name: floats(*v.shape) for v in g.inputs}
    want, got = gq.reference(g, feeds), gq.compile(g, threads=1)(feeds)
    for name in want:
        np.testing.assert_array_equal(got[name], want[name])


def test_weights_that_are_no_constants():
    g = gq.Graph()
    values = [g.input(n, shape=s, dtype="f32") for n, s in (("x", (2, 1, 32)), ("r", (32, 8)))]
    g.output(g.lstm(*values)[0], name="y")
    feeds = {"x": floats(2, 1, 32), "r": floats(32, 8)}
    np.testing.assert_array_equal(gq.compile(g)(feeds), gq.reference(g, feeds))


def test_scales_that_are_no_constants():
    g = gq.Graph()
    x, scales = (g.input(n, shape=s, dtype="f32") for n, s in (("x", (2, 1, 32)), ("scales", (1,))))
    g.output(g.lstm(x, np.float32(rng.integers(-128, 128, (32, 8))), None, None, scales)[0], name="y")
    feeds = {"x": floats(2, 1, 32), "scales": np.float32([0.01])}
    np.testing.assert_array_equal(gq.compile(g)(feeds), gq.reference(g, feeds))
