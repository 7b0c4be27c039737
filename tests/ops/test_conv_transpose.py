"""conv_transpose against a loop over pixels and taps, in every layout, with groups, and its sizes and rules."""
from itertools import product

import numpy as np
import pytest

import graphq as gq
from graphq.base.budget import budget
from graphq.errors import CompileError, GraphError
from graphq.ops.conv import weight_axes
from graphq.ops.conv_transpose import conv_transpose, more_at_end, transposed_padding


def by_loops(x, w, strides, dilations, begins, ends, more, groups):
    """x [n, c, h, w], w [outputs of a group, c, kh, kw]."""
    n, c, *sizes = x.shape
    o, _, *taps = w.shape
    full = [(size - 1) * stride + (k - 1) * d + 1 + m
            for size, stride, k, d, m in zip(sizes, strides, taps, dilations, more, strict=True)]
    y = np.zeros((n, o * groups, *full))
    for ch, (i, j), (a, b) in product(range(c), product(*map(range, sizes)), product(*map(range, taps))):
        first = ch // (c // groups) * o
        at = i * strides[0] + a * dilations[0], j * strides[1] + b * dilations[1]
        y[:, first:first + o, at[0], at[1]] += np.outer(x[:, ch, i, j], w[:, ch, a, b])
    return y[:, :, begins[0]:full[0] - ends[0], begins[1]:full[1] - ends[1]]


ORDERS = {"OIX": (0, 1, 2, 3), "XIO": (2, 3, 1, 0), "IOX": (1, 0, 2, 3), "XOI": (2, 3, 0, 1)}


@pytest.mark.parametrize("weights_format", ORDERS)
@pytest.mark.parametrize("data_format, groups, strides, dilations, begins, ends, more", [
    ("NCX", 1, (1, 1), (1, 1), (0, 0), (0, 0), (0, 0)), ("NXC", 2, (2, 3), (1, 2), (1, 0), (0, 2), (1, 0)),
    ("NCX", 4, (3, 1), (2, 1), (0, 1), (2, 1), (0, 2))])
def test_by_loops(weights_format, data_format, groups, strides, dilations, begins, ends, more):
    rng = np.random.default_rng(0)
    x, w = rng.integers(-5, 6, (2, 4, 3, 4)).astype(np.float32), rng.integers(-5, 6, (3, 4, 2, 3)).astype(np.float32)
    bias = rng.integers(-5, 6, 3 * groups).astype(np.float32)
    want = by_loops(x, w, strides, dilations, begins, ends, more, groups) + bias[:, None, None]
    g = gq.Graph()
    given = x if data_format == "NCX" else np.moveaxis(x, 1, -1)
    packed = w.transpose(ORDERS[weights_format])
    assert np.array_equal(packed.transpose(weight_axes(weights_format, 2)), w)
    v, k, b = (g.input(n, dtype="f32", shape=a.shape) for n, a in (("x", given), ("w", packed), ("b", bias)))
    y = g.conv_transpose(v, k, b, strides=list(strides), dilations=list(dilations), pads_begin=list(begins),
                         pads_end=list(ends), output_padding=list(more), groups=groups, data_format=data_format,
                         weights_format=weights_format)
    g.output(y, name="y")
    got = gq.reference(g, {"x": given, "w": packed, "b": bias})
    assert got.shape == y.shape and np.array_equal(got if data_format == "NCX" else np.moveaxis(got, -1, 1), want)


@pytest.mark.parametrize("span, stride", [(3, 1), (3, 2), (4, 2), (2, 3), (5, 3)])
def test_automatic_padding(span, stride):
    total = span - stride if span > stride else 0
    upper, lower = (transposed_padding(pad, span, stride, 7, 9) for pad in ("same_upper", "same_lower"))
    assert sum(upper) == sum(lower) == total and upper == lower[::-1] and upper[0] <= upper[1]
    assert transposed_padding("none", span, stride, 7, 9) == (7, 9)
    assert transposed_padding("valid", span, stride, 7, 9) == (0, 0)


def test_padding_of_outputs():
    assert more_at_end(None, 2) == (0, 0) and more_at_end((1, 2), 2) == (1, 2)
    assert more_at_end((1, 2, *[0] * 10), 2) == (1, 2)
    for bad in ((1,), (-1, 0), (1, 2, 3)):
        with pytest.raises(GraphError, match=r"output_padding must be 2 values >= 0, one a spatial axis, got \["):
            more_at_end(bad, 2)


def test_memory_counts_before_it_is_taken():
    x, w = np.ones((2, 4, 5, 3), np.float32), np.ones((4, 2, 2, 3), np.float32)

    def run():
        return conv_transpose.reference(x, w, strides=[2, 3], pads_begin=[0, 0], pads_end=[0, 0], dilations=[1, 2],
                                        output_padding=[1, 0], groups=2, data_format="NCX", weights_format="IOX")

    full = 8 * 2 * 4 * (4 * 2 + 2 + 1) * (2 * 3 + 5)
    with budget(full):
        assert run().shape == (2, 4, 11, 11)
    with budget(full - 1), pytest.raises(CompileError, match=r"the full result of \[2, 4, 5, 3\] at strides \[2, 3\]"):
        run()
