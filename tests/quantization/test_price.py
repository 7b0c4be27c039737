"""The estimated times by which 16 bits are priced, and what is faster in f32."""
import numpy as np
import pytest
from float_networks import perceptron

import graphq as gq
from graphq.kernels.target.isa import available
from graphq.quantization.price import Price
from graphq.quantization.products import prepared, products
from graphq.quantization.scheme import Scheme, Setting
from graphq.quantization.search import Search


class OfLevel:
    """Stands for a level of instructions."""

    def __init__(self, multiplies):
        self.dot4 = "a dot product of four bytes" if multiplies else None


@pytest.mark.parametrize("vnni, floats, eight, seven, more", [
    (True, (9.6, 55, 0.6), (3.8, 74, 0.76), 3.8, (1.7, 85, 0)),
    (False, (34, 10, 2.9), (27, 190, 2.8), 23, (13, 450, 0))])
def test_times_by_hand(vnni, floats, eight, seven, more, monkeypatch):
    """Of two products: in 8 bits, with 7-bit weights, with 16 bits for both operands of one, and with one in f32."""
    price = Price(stored(("layer",))[0], None, OfLevel(vnni))
    wide = Setting(scheme=Scheme(wide=("a",), wide_weights=("a", "not known")))
    for name, x in (("work", {"a": (1e6, 2e6), "b": (3e6, 0.0)}), ("recurrent", 0.0), ("stored", {})):
        monkeypatch.setitem(price.__dict__, name, x)
    integers, in_f32 = (4 * x + 2 * y + 2 * z for x, y, z in (eight, floats))
    assert price.time(Setting()) == pytest.approx(integers / in_f32)
    assert price.time(Setting(scheme=Scheme(weight_bits=7))) == pytest.approx(
        (integers - 4 * (eight[0] - seven)) / in_f32)
    rest = more[0] + 2 * more[1] + more[2]
    assert price.time(wide) == pytest.approx((integers + 2 * rest) / in_f32)
    mixed = Setting(scheme=Scheme(wide=("a",), exclude=("b",)))
    assert price.time(mixed) == pytest.approx(
        (integers + rest + 3 * (floats[0] - eight[0]) + floats[2] - eight[2]) / in_f32)
    assert price.time(Setting(scheme=Scheme(exclude=("a", "b")))) == pytest.approx(1)


@pytest.mark.parametrize("vnni, floats, quantize", [(True, 9.6 + 0.6, 74 - 55), (False, 34 + 2.9, 190 - 10)])
def test_values_between_layers_and_recurrences_take_time(vnni, floats, quantize, monkeypatch):
    """Half a million elements that are quantized in addition, a million that are not stored in f32 any more."""
    price = Price(stored(("layer",))[0], None, OfLevel(vnni))
    for name, x in (("work", {"a": (1e6, 0.0)}), ("recurrent", 2e6), ("stored", {"x": 500_000, "y": -1_000_000})):
        monkeypatch.setitem(price.__dict__, name, x)
    f32, (eight, seven, both) = floats + 2 * 2.4 * price.rates.floats.macs, (
        price.time(Setting(scheme=Scheme(between=names))) for names in ((), ("x",), ("x", "y")))
    assert seven - eight == pytest.approx(0.5 * quantize / f32) and both - seven == pytest.approx(-quantize / f32)
    assert price.time(Setting(scheme=Scheme(exclude=("a",)))) == pytest.approx(1)


def stored(readers, rows=6):
    """A product whose result, after a ReLU, has these readers; a product and a sum join them."""
    g = gq.Graph("stored")
    w = np.ones((16, 16), np.float32)
    x = g.relu(g.matmul(g.input("x", shape=(None, 16), dtype="f32"), w, name="first"), name="between")
    read = {"layer": lambda: g.matmul(x, w), "sum": lambda: g.tanh(x), "concat": lambda: g.concat(x, x, axis=1)[:, :16]}
    y, *more = (read[name]() for name in readers)
    for z in more:
        y = g.add(y, z)
    g.output(g.matmul(y, w, name="last"))
    return prepared(g), {"x": np.ones((rows, 16), np.float32)}


@pytest.mark.parametrize("readers, elements", [
    (("layer",), {}), (("layer", "sum"), {"between": -96}), (("layer", "concat"), {"between": 96})])
def test_integers_between_layers_save_time_where_a_layer_and_elementwise_operations_read_them(readers, elements):
    graph, batch = stored(readers)
    assert Price(graph, batch, OfLevel(True)).stored == elements


@pytest.mark.parametrize("kind, gates", [("gru", 3), ("lstm", 4)])
def test_recurrences_are_counted(kind, gates):
    """Five steps of three rows: eight states by eight states for each gate."""
    g = gq.Graph(kind)
    x = g.matmul(g.input("x", shape=(None, 3, 16), dtype="f32"), np.ones((16, 8 * gates), np.float32))
    g.output(getattr(g, kind)(x, np.ones((8 * gates, 8), np.float32))[0])
    price = Price(prepared(g), {"x": np.ones((5, 3, 16), np.float32)}, OfLevel(False))
    assert price.recurrent == 5 * 3 * 8 * 8 * gates and len(price.work) == 1


@pytest.mark.parametrize("vnni, saved", [(True, 9.6 - 3.8), (False, 34 - 27)])
def test_integer_states_of_lstms_save_time(vnni, saved, monkeypatch):
    """An LSTM of 5 steps, 3 rows and 8 states; a GRU, and an LSTM whose input is not multiplied in 8 bits, stay."""
    g = gq.Graph("two")
    x = g.input("x", shape=(None, 3, 16), dtype="f32")
    for name, gates in (("lstm", 4), ("gru", 3)):
        product = g.matmul(x, np.ones((16, 8 * gates), np.float32), name=f"of_{name}")
        g.output(getattr(g, name)(product, np.ones((8 * gates, 8), np.float32))[0])
    price = Price(prepared(g), {"x": np.ones((5, 3, 16), np.float32)}, OfLevel(vnni))
    rates, states = price.rates.floats, 5 * 3 * 8 * 8 * 4
    f32 = rates.of(price.work.values()) + 2.4e-6 * rates.macs * price.recurrent
    kept, integers = (price.time(Setting(scheme=Scheme(states=s, exclude=["of_gru"]))) for s in (False, True))
    assert kept - integers == pytest.approx(2.4e-6 * states * saved / f32)
    kept, integers = (price.time(Setting(scheme=Scheme(states=s, wide=["of_gru"]))) for s in (False, True))
    assert kept - integers == pytest.approx(2.4e-6 * states * saved / f32)


@pytest.mark.parametrize("macs, elements, wide, faster, exact", [
    (1e6, 1e5, 1, True, 5.8 - 1.9 - 0.16), (1e6, 2e5, 1, True, 5.8 - 3.8 - 0.16), (1e6, 1e4, 1, False, 1.7 + 0.85),
    (1e6, 1e4, 2, False, 1.7 + 0.85), (1e6, 5e4, 2, True, 5.8 - 0.95 - 0.16), (0, 1e6, 1, True, 1e-3),
    (1e6, 3e4, 1, False, 1.7 + 2.55), (1e6, 3e4, 2, True, 1.7 + 2.55)])
def test_exact_operands_take_16_bits_or_f32(macs, elements, wide, faster, exact, monkeypatch):
    price = Price(None, None, OfLevel(True))
    monkeypatch.setitem(price.__dict__, "work", {"a": (macs, elements), "b": (1e6, 0.0), "c": (1e9, 1e9)})
    assert price.faster_exact({"a": wide, "b": 0, "not known": 2}) == ["a"] * faster
    assert price.exact("a") == pytest.approx(exact)


def test_at_most_half_of_the_work_is_in_floats_in_place_of_16_bits(monkeypatch):
    price = Price(None, None, OfLevel(True))
    monkeypatch.setitem(price.__dict__, "work", {"a": (3e6, 1e6), "b": (3e6, 1e6), "c": (2e6, 1e6), "d": (3e6, 1e6)})
    assert price.faster_exact(dict.fromkeys("abcd", 1)) == ["a", "c"]
    monkeypatch.setitem(price.__dict__, "work", {"a": (1e3, 1e3)})
    assert price.faster_exact({"a": 2}) == []


def depthwise(channels, size, after="relu", before="clamp", kernel=3, groups=None):
    """A product, `before`, a convolution with a group for each channel, `after`, a product."""
    g = gq.Graph("depthwise")
    steps = {"relu": g.relu, "clamp": lambda x: g.clamp(x, min=0.0, max=6.0), "gelu": g.gelu,
             "silu": lambda x: g.multiply(x, g.sigmoid(x)), "sum": lambda x: g.add(x, x)}

    def product(x, name, groups=1, kernel=1):
        w = np.ones((channels, channels // groups, kernel, kernel), np.float32)
        pads = [kernel // 2] * 2
        return g.convolution(x, w, name=name, groups=groups, pads_begin=pads, pads_end=pads, data_format="NCX",
                             weights_format="OIX")

    y = steps[before](product(g.input("x", shape=(1, channels, size, size), dtype="f32"), "first"))
    y = steps[after](product(y, "depthwise", groups or channels, kernel))
    g.output(product(y, "last"), name="y")
    return prepared(g), {"x": np.ones((1, channels, size, size), np.float32)}


@pytest.mark.parametrize("given, vnni, faster", [
    (dict(channels=64, size=28), True, False), (dict(channels=64, size=28), False, True),
    (dict(channels=64, size=28, after="sum"), True, False), (dict(channels=48, size=56), True, True),
    (dict(channels=64, size=8), True, True), (dict(channels=64, size=14, kernel=7), True, False),
    (dict(channels=64, size=28, after="silu"), True, True), (dict(channels=64, size=28, before="silu"), True, True),
    (dict(channels=64, size=28, before="gelu"), True, True), (dict(channels=64, size=28, groups=32), False, False)])
def test_what_is_faster_in_floats(given, vnni, faster):
    """Depthwise convolutions where 8 bits do not pay; products around them never."""
    graph, batch = depthwise(**given)
    price = Price(graph, batch, OfLevel(vnni))
    assert [price.faster_in_floats(p) for p in products(graph)] == [False, faster, False]


@pytest.mark.parametrize("scheme, left", [
    (Scheme(), ("depthwise",)), (Scheme(wide=["depthwise"]), ()), (Scheme(wide_weights=["depthwise"]), ()),
    (Scheme(limits={"clamp": (0, 6)}), ()), (Scheme(exclude=["first"]), ("first", "depthwise"))])
def test_what_is_faster_in_floats_stays_so_unless_the_scheme_says_something_of_it(scheme, left):
    graph, batch = depthwise(8, 8)
    graph.rename(next(n for n in graph.nodes if n.op.name == "clamp").output, "clamp")
    work = Search(graph, [batch, batch], scheme)
    assert work.scheme.exclude == left and set(work.products) == {"first", "depthwise", "last"} - set(left)


def test_work_of_a_graph():
    graph, batches = perceptron()
    price = Price(prepared(graph), batches[0], available()[0])
    assert len(price.work) == 2
    assert price.work["hidden"] == (6 * 16 * 32, 6 * 16 + 6 * 32)
