"""Transposes that take no step: which do not, and that numbers stay what they are."""
import numpy as np
import pytest
from levels import pairs_at_each_width

import graphq as gq
from graphq.testing import random_inputs

HEADS, WIDTH = 3, 32


def split(g, x, order):
    """Rows of all heads as [batch, heads, rows, width], or with another order of these axes."""
    batch, rows, _ = x.type.shape
    return g.static_transpose(g.static_reshape(x, shape=[batch or 0, rows or 0, HEADS, WIDTH], special_zero=True),
                              order=order)


def quantized(g, x, zp):
    return g.dequantize(g.quantize(x, dtype="u8", scales=[0.05], zps=[zp]), scales=[0.05], zps=[zp])


def attention(batch=2, rows=21, *, integers=False, transpose_b=False, out="product", seed=0):
    """Self-attention of an input of [batch, rows, heads * width] that other products precede and follow."""
    rng = np.random.default_rng(seed)
    g, n = gq.Graph("attention"), HEADS * WIDTH
    x = g.input("x", shape=(batch, rows, n), dtype="f32")
    through = (lambda y, zp: quantized(g, y, zp)) if integers else lambda y, zp: y

    def product(y, scale=0.2):
        w = (scale * rng.standard_normal((n, n))).astype(np.float32)
        return through(g.matmul(y, g.constant(w)), 128)

    order = [0, 2, 1, 3]
    q, v = (split(g, product(x), order) for _ in range(2))
    k = split(g, product(x), order if transpose_b else [0, 2, 3, 1])
    p = g.softmax(g.multiply(g.matmul(q, k, transpose_b=transpose_b), np.float32(0.1)), axis=-1)
    context = through(g.matmul(through(p, 0), v), 120)
    y = g.static_transpose(context, order=order)
    if out == "product":
        y = product(g.static_reshape(y, shape=[batch or 0, rows or 0, n], special_zero=True))
    g.output(y, name="y")
    return g


def equal(g, inputs, **options):
    model = gq.compile(g, **options)
    assert model(inputs).tobytes() == model.formula(inputs).tobytes()
    return model


@pytest.mark.parametrize("integers, transpose_b, level", pairs_at_each_width([False, True], [False, True]),
                         indirect=["level"])
def test_attention_moves_no_heads(level, integers, transpose_b):
    for batch, rows, threads in ((1, 1, 3), (2, 21, 1), (3, 64, 3)):
        g = attention(batch, rows, integers=integers, transpose_b=transpose_b)
        model = equal(g, random_inputs(g), isa=level, threads=threads, strict=True)
        assert sum(n.op.name == "static_transpose" for n in model.graph.nodes) == (4 if rows > 1 else 0)
        assert "reorder" not in model.explain(full=True)


def test_open_sizes():
    g = attention(None, None)
    model = gq.compile(g, threads=2)
    for batch, rows in ((1, 5), (2, 40), (3, 1)):
        x = np.random.default_rng(rows).standard_normal((batch, rows, HEADS * WIDTH)).astype(np.float32)
        assert model(x=x).tobytes() == model.formula(x=x).tobytes()
    assert "reorder" not in model.explain(full=True)


def test_the_result_may_be_an_output():
    """The product writes the array of the output in the other order."""
    g = attention(out="context")
    assert "reorder" not in equal(g, random_inputs(g)).explain(full=True)


def test_operands_of_products_of_inputs():
    g = gq.Graph()
    a, b = (g.input(name, shape=(2, 7, 3, 20), dtype="f32") for name in "ab")
    g.output(g.matmul(g.static_transpose(a, order=[0, 2, 1, 3]), g.static_transpose(b, order=[0, 2, 3, 1])), name="y")
    assert "reorder" not in equal(g, random_inputs(g)).explain(full=True)


@pytest.mark.parametrize("weights", ["a constant", "an input", "a transposed input"])
@pytest.mark.parametrize("rows", [7, None])
def test_zero_points_of_operands_whose_rows_lie_apart(weights, rows):
    """The kernel adds up rows, and columns, that are not adjacent."""
    rng, g, order = np.random.default_rng(3), gq.Graph(), [0, 2, 1, 3]
    a = g.static_transpose(g.input("a", shape=(2, rows, 3, 20), dtype="u8"), order=order)
    if weights == "a constant":
        b = g.constant(rng.integers(0, 256, (20, 9), dtype=np.uint8))
    else:
        b = g.input("b", shape=(2, 9, 3, 20) if "transposed" in weights else (2, 3, 20, 9), dtype="u8")
    last = weights == "a transposed input"
    b = g.static_transpose(b, order=order) if last else b
    a, b = (g.dequantize(v, scales=[0.1], zps=[zp]) for v, zp in ((a, 3), (b, 5)))
    g.output(g.matmul(a, b, transpose_b=last), name="y")
    inputs = {str(v.name): rng.integers(0, 256, [d or 7 for d in v.shape]).astype(np.uint8) for v in g.inputs}
    assert "reorder" not in equal(g, inputs).explain(full=True)


@pytest.mark.parametrize("change", ["columns", "epilogue", "output", "another reader", "two readers of the source"])
def test_transposes_that_are_steps(change):
    """What else reads a value needs it dense, and rows whose elements lie apart are no rows of a product."""
    g = gq.Graph()
    a = g.relu(g.matmul(g.input("a", shape=(2, 3, 8, 8), dtype="f32"), np.eye(8, dtype=np.float32)))
    w = g.input("w", shape=(2, 8, 3, 8), dtype="f32")
    order = [0, 2, 1, 3]
    if change == "columns":
        c = g.static_transpose(g.input("c", shape=(3, 8, 2, 6), dtype="f32"), order=[0, 3, 2, 1])
        y = g.matmul(c, np.ones((8, 5), np.float32))
    elif change == "epilogue":
        moved = g.static_transpose(w, order=order)
        y = g.add(g.matmul(moved, moved), moved)
    elif change == "two readers of the source":
        y = g.static_transpose(a, order=order)
        g.output(g.softmax(a, axis=-1), name="s")
    else:
        moved = g.static_transpose(w, order=order)
        y = g.matmul(a, moved)
        g.output(moved if change == "output" else g.softmax(moved, axis=-1), name="s")
    g.output(y, name="y")
    model, inputs = gq.compile(g), random_inputs(g)
    got, want = model(inputs), model.formula(inputs)
    got, want = (x if isinstance(x, dict) else {"y": x} for x in (got, want))
    assert all(got[name].tobytes() == want[name].tobytes() for name in got)
    assert "layouts: 1 reorder" in model.explain()
