"""How operations carry differences on, and what their results do not exceed, against the functions in f64."""

import numpy as np
import pytest

import graphq as gq
from graphq.ir.op import OPS, Curve
from graphq.kernels.family.lower import StatedSum
from graphq.kernels.lanes.expression import acc
from graphq.kernels.numbers.sum_orders import DequantizedSum
from graphq.kernels.ties.error_bounds import SECOND_ORDER, BodyBounds, ErrorBounds
from graphq.kernels.ties.sum_errors import UNIT, sum_error

CASES = {
    **{name: (name, {}) for name, op in OPS.items() if isinstance(op.bound, Curve) and not op.attributes},
    "gelu": ("gelu", {"mode": "gelu_erf"}), "gelu by tanh": ("gelu", {"mode": "gelu_tanh"}),
    "clamp": ("clamp", {"min": -2.0, "max": 0.5}),
    **{f"softplus {beta}": ("softplus", {"beta": beta}) for beta in (1.0, 0.05, -2.0, 9.0)},
    **{f"elu {alpha}": ("elu", {"alpha": alpha}) for alpha in (1.0, 0.2, 3.0)},
    **{f"leaky_relu {alpha}": ("leaky_relu", {"alpha": alpha}) for alpha in (0.1, 2.5, -3.0)},
    **{f"hard_sigmoid {beta}": ("hard_sigmoid", {"alpha": 0.7, "beta": beta}) for beta in (0.5, -1.5)},
}


def test_bounds_times_a_factor_and_plus_a_number():
    """What is added may be infinite, as nothing can be proved of it: then the estimate has nothing of it."""
    found = ErrorBounds(np.array([1.0, 2.0]), np.array([0.5, 0.25]), 0.125).times(np.array([2.0, 4.0]), 0.5)
    assert [x.tolist() for x in found[:2]] == [[2, 8], [1, 1]] and found.relative == 0.5
    found = found.plus(np.array([np.inf, 3.0]), 0.75)
    assert [x.tolist() for x in found[:2]] == [[np.inf, 11], [1, 4]] and found.relative == 0.75


def followed(name, difference, most):
    """A bounds that has followed the operation after a value of this difference and bound, and the operation's node."""
    op, attrs = CASES[name]
    g = gq.Graph()
    y = g.abs(g.input("x", shape=(4,), dtype="f32"))
    node = getattr(g, op)(y, **attrs).node
    bounds = BodyBounds(4, {})
    bounds.errors[y], bounds.largest[y] = difference, most
    bounds.follow(node)
    return bounds, node


def test_all_curves_are_tried():
    curves = {name for name, op in OPS.items() if callable(op.bound) or isinstance(op.bound, Curve)}
    assert curves - {"prelu"} == {op for op, _ in CASES.values()}, "an operation with attributes has lines in CASES"


@pytest.mark.parametrize("most", [0.25, 1.0, 3.0, 50.0])
@pytest.mark.parametrize("name", CASES)
def test_results_keep_to_their_bounds(name, most):
    bounds, node = followed(name, ErrorBounds(np.zeros(()), np.zeros(()), 0.0), most)
    y = node.op.reference(np.linspace(-most, most, 2001), **node.attrs)
    assert y.dtype == np.float64 and np.abs(y).max() <= bounds.largest[node.output]


@pytest.mark.parametrize("by,relative", [(1e-3, 0.0), (0.0, 1e-3), (1e-4, 1e-3)])
@pytest.mark.parametrize("name", CASES)
def test_differences_keep_to_their_bounds(name, by, relative):
    x = np.concatenate([np.linspace(-12, 12, 4001), np.linspace(-300, 300, 4001)])
    bounds, node = followed(name, ErrorBounds(np.asarray(by), np.asarray(by), relative), 300.0)
    found = bounds.errors[node.output]
    y = node.op.reference(x, **node.attrs)
    for sign in (-1, 1):
        again = node.op.reference(x + sign * (by + relative * np.abs(x)), **node.attrs)
        room = found.proved + found.relative * np.abs(y)
        # Bounds are of first order: what remains goes by squares, and by the roundings of references in f32.
        squares = (by + relative * np.abs(x))**2 * (np.abs(x) < 12)
        assert (np.abs(again - y) <= room + squares + 4 * UNIT * (1 + np.abs(x))).all()


BINARY = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum,
}


@pytest.mark.parametrize("first,second", [((1e-3, 0.0), (0.0, 0.0)), ((0.0, 1e-3), (0.0, 0.0)),
                                          ((1e-3, 2e-3), (3e-3, 1e-3)), ((0.0, 1e-3), (0.0, 2e-3))])
@pytest.mark.parametrize("name", BINARY)
def test_differences_of_two_operands_keep_to_their_bounds(name, first, second):
    """Also where they cancel, which makes a relative difference larger."""
    most, rng = (5.0, 40.0), np.random.default_rng(0)
    g = gq.Graph()
    values = [g.abs(g.input(n, shape=(4,), dtype="f32")) for n in "ab"]
    node = getattr(g, name)(*values).node
    bounds = BodyBounds(4, {})
    for v, (by, relative), size in zip(values, (first, second), most, strict=True):
        bounds.errors[v], bounds.largest[v] = ErrorBounds(np.asarray(by), np.asarray(by), relative), size
    bounds.follow(node)
    found = bounds.errors[node.output]
    a = rng.uniform(-most[0], most[0], 20_000)
    b = np.where(rng.random(a.size) < 0.3, -a, rng.uniform(-most[1], most[1], a.size))
    y = BINARY[name](a, b)
    assert np.abs(y).max() <= bounds.largest[node.output]
    room = found.proved + found.relative * np.abs(y)
    moved = [x + sign * (by + relative * np.abs(x)) for x, (by, relative), sign
             in zip((a, b), (first, second), rng.choice([-1, 1], (2, a.size)), strict=True)]
    squares = 1e-5 * np.abs(a * b) + 1e-5 * (np.abs(a) + np.abs(b)) + 1e-5
    apart = np.abs(BINARY[name](*moved) - y)
    assert (apart <= room + squares).all() and apart.max() > 0.08 * room.max()


def test_a_constant_factor_scales_a_difference_by_column():
    g, factors = gq.Graph(), np.array([0.5, -4.0, 0.0, 100.0], np.float32)
    y = g.abs(g.input("x", shape=(3, 4), dtype="f32"))
    c = g.input("c", shape=(4,), dtype="f32")
    z = g.multiply(y, c)
    bounds = BodyBounds(4, {c: factors})
    bounds.errors[y], bounds.largest[y] = ErrorBounds(np.asarray(0.25), np.asarray(0.125), 0.0), 1.0
    bounds.follow(z.node)
    assert np.array_equal(bounds.errors[z].proved, 0.25 * np.abs(factors))
    assert np.array_equal(bounds.errors[z].estimated, 0.125 * np.abs(factors))


def divided(divisors, error, most):
    """The bounds that have followed a division of a value of these error bounds, at most `most`, and its quotient."""
    g = gq.Graph()
    y = g.abs(g.input("x", shape=(3, 4), dtype="f32"))
    c = g.input("c", shape=divisors.shape, dtype="f32")
    z = g.divide(y, c)
    bounds = BodyBounds(4, {c: divisors})
    bounds.errors[y], bounds.largest[y] = error, most
    bounds.follow(z.node)
    return bounds, z


@pytest.mark.parametrize("divisors", [
    np.float32(11.3), np.float32(-0.37), np.float32(2.0**-126), np.array([0.5, -4.0, 1e-30, 3e38], np.float32),
    np.array([[0.3], [-7.0], [1e4]], np.float32)], ids=["one", "negative", "tiny", "by column", "by row"])
@pytest.mark.parametrize("by,relative", [(1e-3, 0.0), (0.0, 1e-3), (1e-4, 2e-3)])
def test_differences_of_quotients_keep_to_their_bounds(divisors, by, relative):
    most = 40.0
    bounds, z = divided(np.asarray(divisors), ErrorBounds(np.asarray(by), np.asarray(by / 2), relative), most)
    found, rng = bounds.errors[z], np.random.default_rng(0)
    ends = [np.full((3, 4), end) for end in (0.0, most, -most, 2.0**-149)]
    for a in [*ends, *rng.uniform(-most, most, (500, 3, 4)), *(10.0**rng.uniform(-30, 1.5, (500, 3, 4)))]:
        b = divisors.astype(np.float64)
        exact, room = a / b, found.proved + found.relative * np.abs(a / b)
        assert (np.abs(exact) <= bounds.largest[z]).all()
        roundings = 2.0**-50 * (np.abs(exact) + room)  # of this test, in f64
        for sign in (-1, 1):
            assert (np.abs((a + sign * (by + relative * np.abs(a))) / b - exact) <= room + roundings).all()
    assert np.array_equal(found.estimated, found.proved / 2)


def test_both_roundings_of_a_quotient_are_counted():
    """Of f32 numbers that differ relatively: both quotients are rounded to f32, in opposite directions at worst."""
    relative, rng = 2.0**-23, np.random.default_rng(0)
    divisors = rng.uniform(1, 2, 4).astype(np.float32)
    bounds, z = divided(divisors, ErrorBounds(np.zeros(()), np.zeros(()), relative), 2.0)
    a = rng.uniform(1, 2, (100_000, 4)).astype(np.float32)
    quotient, other = (x.astype(np.float64) for x in (a / divisors, np.nextafter(a, np.float32(0)) / divisors))
    apart = np.abs(quotient - other) / quotient
    assert relative < apart.max() <= bounds.errors[z].relative * (1 + 2.0**-20)


@pytest.mark.parametrize("divisors", [[0.5, 0.0, 1.0, 1.0], [0.5, np.nan, 1.0, 1.0], [-0.0] * 4])
def test_divisors_that_are_0_or_nan_have_no_bound(divisors):
    error = ErrorBounds(np.asarray(1e-3), np.asarray(1e-3), 0.0)
    bounds, z = divided(np.array(divisors, np.float32), error, 1.0)
    assert bounds.unbounded[z] == "divide" and bounds.largest[z] == np.inf


def test_divisors_that_are_not_constant_have_no_bound():
    g, error = gq.Graph(), ErrorBounds(np.asarray(1e-3), np.asarray(1e-3), 0.0)
    y, c = g.abs(g.input("x", shape=(3, 4), dtype="f32")), g.input("c", shape=(4,), dtype="f32")
    for z, constants in ((g.divide(y, c), {}), (g.divide(c, y), {c: np.ones(4, np.float32)})):
        bounds = BodyBounds(4, constants)
        bounds.errors[y], bounds.largest[y] = error, 1.0
        bounds.follow(z.node)
        assert bounds.unbounded[z] == "divide" and bounds.largest[z] == np.inf


@pytest.mark.parametrize("divided_first", [False, True])
@pytest.mark.parametrize("by,relative", [(1e-3, 0.0), (0.0, 1e-3), (1e-4, 1e-3)])
def test_a_hard_swish_as_written_carries_little_of_large_values(by, relative, divided_first):
    """x clamp(x + 3, 0, 6) / 6: where x is large the clamp is constant, so that the bound does not grow with x."""
    g, most = gq.Graph(), 300.0
    y, three, six = g.abs(g.input("x", shape=(4,), dtype="f32")), *(g.input(n, shape=(), dtype="f32") for n in "cd")
    moved = g.add(y, three)
    limited = g.clamp(moved, min=0.0, max=6.0)
    share = g.divide(limited, six) if divided_first else limited
    z = g.multiply(y, share)
    out = z if divided_first else g.divide(z, six)
    bounds = BodyBounds(4, {three: np.float32(3), six: np.float32(6)})
    bounds.errors[y], bounds.largest[y] = ErrorBounds(np.asarray(by), np.asarray(by), relative), most
    for node in dict.fromkeys(v.node for v in (moved, limited, share, z, out)):
        bounds.follow(node)
    found = bounds.errors[out]
    assert found.proved <= 3 * (by + 6 * relative)
    x = np.concatenate([np.linspace(-12, 12, 40001), np.linspace(-most, most, 4001)])

    def swish(x):
        return x * np.clip(x + 3, 0, 6) / 6

    squares = (by + relative * np.abs(x))**2 * (np.abs(x) < 12)
    for sign in (-1, 1):
        apart = np.abs(swish(x + sign * (by + relative * np.abs(x))) - swish(x))
        assert (apart <= found.proved + found.relative * np.abs(swish(x)) + squares + 1e-12).all()


def silu(g, y, c):
    return g.multiply(y, g.sigmoid(y))


def scaled_silu(g, y, c):
    return g.multiply(g.sigmoid(g.multiply(y, c(1.7))), y)


def gelu(g, y, c):
    return g.multiply(g.multiply(y, g.add(g.erf(g.divide(y, c(2**0.5))), c(1))), c(0.5))


def moved_tanh(g, y, c):
    return g.multiply(y, g.subtract(c(2), g.divide(g.tanh(g.subtract(c([0.5, 3.0, 0.5, 0.5]), y)), c(-4))))


def hard(alpha, beta):
    return lambda g, y, c: g.multiply(y, g.hard_sigmoid(y, alpha=alpha, beta=beta))


@pytest.mark.parametrize("most", [20.0, 300.0])
@pytest.mark.parametrize("by,relative", [(1e-3, 0.0), (0.0, 1e-3), (1e-4, 1e-3)])
@pytest.mark.parametrize("function, slope, spread", [(silu, 1.5, 0.5), (scaled_silu, 1.55, 0.5), (gelu, 1.6, 0.36),
                                                     (moved_tanh, 3.5, 4), (hard(1 / 6, 0.5), 1.6, 4.6),
                                                     (hard(0.2, 0.9), 1.9, 8.7), (hard(-0.5, 1.0), 2.1, 4.1)])
def test_a_value_times_a_function_of_it_carries_little_of_large_values(function, slope, spread, by, relative, most):
    """Where y is large the function hardly changes, so that the bound does not grow with y."""
    g, numbers = gq.Graph(), {}

    def constant(x):
        x = np.asarray(x, np.float32)
        v = g.input(f"c{len(numbers)}", shape=x.shape, dtype="f32")
        numbers[v] = x
        return v

    y = g.abs(g.input("x", shape=(4,), dtype="f32"))
    out = function(g, y, constant)
    bounds = BodyBounds(4, numbers)
    bounds.errors[y], bounds.largest[y] = ErrorBounds(np.asarray(by), np.asarray(by / 4), relative), most
    nodes = [n for n in g.nodes if n is not y.node]
    for node in nodes:
        bounds.follow(node)
    found = bounds.errors[out]
    assert (found.proved <= slope * by + 1.01 * spread * relative + 40 * UNIT * min(8, most)).all()
    assert (found.estimated <= slope * by / 4 + 1.01 * spread * relative + 40 * UNIT * min(8, most)).all()
    x = np.concatenate([np.linspace(-12, 12, 40001), np.linspace(-most, most, 4001)])[:, None]

    def value(x):
        values = {y: x, **{v: a.astype(np.float64) for v, a in numbers.items()}}
        for n in nodes:
            values[n.output] = n.op.reference(*(values[v] for v in n.inputs), **n.attrs)
        return np.broadcast_to(values[out], (len(x), 4)).astype(np.float64)

    squares = (by + relative * np.abs(x))**2 * (np.abs(x) < 12)
    for sign in (-1, 1):
        apart = np.abs(value(x + sign * (by + relative * np.abs(x))) - value(x))
        assert (apart <= found.proved + found.relative * np.abs(value(x)) + 2 * squares + 4 * UNIT * np.abs(x)).all()


def test_roundings_of_a_function_count_up_to_where_it_is_flat():
    """1 + erf(y) is 0 for very negative y, with a rounding error of erf's size, as long as erf is not -1."""
    g = gq.Graph()
    y, one = g.abs(g.input("x", shape=(4,), dtype="f32")), g.input("one", shape=(), dtype="f32")
    z = g.multiply(y, g.add(g.erf(y), one))
    bounds = BodyBounds(4, {one: np.float32(1)})
    bounds.errors[y], bounds.largest[y] = ErrorBounds(np.asarray(1e-30), np.asarray(1e-30), 0.0), 300.0
    for node in g.nodes:
        if node is not y.node:
            bounds.follow(node)
    assert 8 * UNIT * 3.925 <= bounds.errors[z].proved < 10 * UNIT * 5


def test_a_clamp_of_another_value_leaves_a_product_its_bound():
    g = gq.Graph()
    y, other = (g.abs(g.input(n, shape=(4,), dtype="f32")) for n in "xy")
    limited = g.clamp(other, min=0.0, max=6.0)
    z = g.multiply(y, limited)
    bounds, error = BodyBounds(4, {}), ErrorBounds(np.asarray(1e-3), np.asarray(1e-3), 0.0)
    for v in (y, other):
        bounds.errors[v], bounds.largest[v] = error, 300.0
    bounds.follow(limited.node)
    bounds.follow(z.node)
    assert bounds.errors[z].proved == pytest.approx(1e-3 * (300 + 6))


@pytest.mark.parametrize("scales,axis", [([0.5], 1), ([0.5, 0.25, 2.0, 1.0], 1), ([0.5, 0.25, 2.0], 0)])
def test_bands_are_in_steps_of_the_scales(scales, axis):
    """By column where the scales are; along another axis all columns have the smallest scale's."""
    g = gq.Graph()
    y = g.abs(g.input("x", shape=(3, 4), dtype="f32"))
    how = {} if len(scales) == 1 else {"qtype": "per_channel", "axis": axis, "zps": [0] * len(scales)}
    q = g.quantize(y, dtype="s8", scales=scales, **how)
    bounds = BodyBounds(4, {})
    bounds.errors[y], bounds.largest[y] = ErrorBounds(np.asarray(1e-5), np.asarray(1e-6), 1e-7), 1.0
    band = bounds.band(q.node)
    steps = np.asarray(scales) if axis == 1 and len(scales) > 1 else min(scales)
    assert band.proved and np.allclose(band.half, (1 + SECOND_ORDER) * (1e-5 / steps + 2 * UNIT), rtol=1e-12, atol=0)
    assert band.relative > 1e-7


@pytest.mark.parametrize("dtype, zps", [("u8", [0]), ("u8", [200]), ("u8", [3, 255]), ("s8", [-128]),
                                        ("s8", [127, -1])])
def test_dequantized_integers_keep_to_their_bound(dtype, zps):
    """Whichever end of the integers is farther from a zero point."""
    g = gq.Graph()
    node = g.dequantize(g.input("x", shape=(2, len(zps)), dtype=dtype), qtype="per_channel", axis=1, zps=zps,
                        scales=[0.5, -2.0][:len(zps)]).node
    bounds = BodyBounds(len(zps), {})
    bounds.follow(node)
    kind = next(node.operands).dtype
    ends = np.repeat([[kind.min], [kind.max]], len(zps), axis=1).astype(kind.numpy)
    assert np.abs(node.op.reference(ends, **node.attrs)).max() <= bounds.largest[node.output]


def product_of_two(bias, starts_at_bias, w):
    """Products of one activation and one weight for each of the columns of w, whose result is a matmul with a bias."""
    g, rng, columns = gq.Graph(), np.random.default_rng(1), len(w)
    operands = [g.input(n, shape=s, dtype="f32") for n, s in (("x", (256, 1)), ("w", (1, columns)), ("b", (columns,)))]
    node = g.matmul(*(operands if bias is not None else operands[:2])).node
    scales = rng.uniform(1e-3, 2e-3, columns).astype(np.float32)
    start = bias if starts_at_bias else np.zeros(1, np.float32)
    sum_ = DequantizedSum("chains", 128, np.float32(0.0137), 0, scales, np.zeros(1, np.int32), start)
    p = StatedSum(node, acc("s32"), sum_, 1, (-128, 127), lambda: w[:, None], 1, np.zeros(1, np.int32), starts_at_bias)
    return p, BodyBounds.after(p, g, columns, [None, None, bias])


@pytest.mark.parametrize("bias, starts_at_bias, large, roundings", [
    (None, False, False, 2), (None, False, True, 3), (1.0, False, False, 4), (1.0, True, False, 3)])
def test_the_roundings_after_a_sum_by_hand(bias, starts_at_bias, large, roundings):
    """Of both scales, their product with the sum, additions of a bias, and the conversion of a sum from 2**24 on."""
    w = np.full(4, 2**18 if large else 127, np.int32)
    bias = None if bias is None else np.full(4, bias, np.float32)
    p, bounds = product_of_two(bias, starts_at_bias, w)
    found, before = bounds.errors[p.node.output], (3 if large else 2) * UNIT
    assert found.relative == roundings * UNIT
    of_sum = sum_error(p.sum, *p.activations, w[:, None]).proved
    assert np.array_equal(found.proved, of_sum + (0 if bias is None else before * bias))


@pytest.mark.parametrize("sign", [None, 1, -0.999])
@pytest.mark.parametrize("starts_at_bias", [False, True])
def test_an_anchors_result_keeps_to_its_bound(sign, starts_at_bias):
    """For each product of bytes, with a bias of its size: the sum in the kernel and as written, rounded all the way."""
    rng, columns = np.random.default_rng(0), 2000
    w, x = rng.integers(1, 128, columns).astype(np.int32), np.arange(-128, 128)
    bias = None if sign is None else (rng.uniform(0.1, 3, columns) * sign).astype(np.float32)
    p, bounds = product_of_two(bias, starts_at_bias and sign is not None, w)
    i, j = (n.ravel() for n in np.indices((256, columns)))
    written = p.sum.sums(x[i][:, None], w[j][:, None], j).reshape(256, columns)
    y = np.float32(np.multiply.outer(x, w)) * np.multiply(p.sum.x_scale, p.sum.w_scale, dtype=np.float32)
    if bias is not None:
        y, written = y + bias, written if p.starts_at_bias else written + bias
    found = bounds.errors[p.node.output]
    apart = np.abs(y.astype(float) - written.astype(float))
    room = found.proved + found.relative * np.abs(y.astype(float))
    assert (apart <= room * (1 + SECOND_ORDER)).all() and (apart / room).max() > 0.3


@pytest.mark.parametrize("exact", [False, True])
def test_quotients_keep_to_their_band(exact):
    """Those by a scale and products with its f32 inverse differ by their roundings and by that of the inverse."""
    rng, g = np.random.default_rng(0), gq.Graph()
    scales = rng.uniform(0.0615, 0.0625, 1000).astype(np.float32)  # their inverses have large units
    off = np.abs((1 / scales).astype(float) * scales - 1)
    scale = np.float32(0.0625) if exact else scales[off.argmax()]  # the inverse of a power of two is no rounding
    q = g.quantize(g.abs(g.input("x", shape=(4,), dtype="f32")), dtype="s8", scales=[float(scale)])
    bounds = BodyBounds(4, {})
    bounds.errors[q.node.inputs[0]] = ErrorBounds(np.zeros(()), np.zeros(()), 0.0)
    y = rng.uniform(0, 128 * scale, 1_000_000).astype(np.float32)
    kernel, written = (x.astype(float) for x in (y * (1 / scale), y / scale))
    apart, relative = np.abs(kernel - written), bounds.band(q.node).relative
    assert (apart <= relative * kernel).all() and exact == (apart.max() == 0)
    assert relative == pytest.approx((1 + SECOND_ORDER) * (2 * UNIT + (0 if exact else off.max())), rel=1e-12)
