"""Forms of operations on channels-last tensors give the numbers of the given layout, or there is none."""
import numpy as np
import pytest

import graphq as gq
from graphq.passes.layouts import Form, aligned, channels_last_form, has_layouts, is_view, moved, to_first, to_last

SHAPES = {"row": (1, 3, 1, 5), "number": (1, 1), "ones": (1, 1, 1, 1),
          "v": (2, 3, 4), "m": (4, 5), "w": (3, 4, 5), "c": (3,), "s": (3,),
          "p": (3,)}
WINDOWS = "kernel=[2,3], strides=[1,1], pads_begin=[0,1], pads_end=[1,0]"
MOVING = {  # by the first letters of the operands' ports
    "m": ["relu(x)", "sin(x)", "softmax(x, axis=1)", "softmax(x, axis=-2)", "log_softmax(x, axis=0)",
          "gen_index(x, axis=1)", f"max_pool(x, {WINDOWS}, data_format=NCX)",
          f"avg_pool(x, {WINDOWS}, exclude_pad=true, data_format=NCX)", "quantize(x, dtype=u8, scales=[0.1], zps=[9])",
          "quantize(x, dtype=s8, qtype=per_channel, axis=1, scales=[0.1,0.2,0.3])",
          "quantize(x, dtype=s8, qtype=per_channel, axis=-1, scales=[0.1,0.2,0.3,0.4,0.5])",
          "reduce_mean(x, axes=[2,3], keep_dims=true)", "reduce_sum(x, axes=[1], keep_dims=true)",
          "reduce_max(x, axes=[-1], keep_dims=false)", "reduce_sum(x, axes=[2,0], keep_dims=true)",
          "static_reshape(x, shape=[2,3,20])", "static_reshape(v, shape=[2,3,2,2])"],
    "mm": ["add(x, y)", "add(x, row)", "add(x, ones)", "maximum(ones, x)",
           "concat(x, y, axis=-3)", "concat(x, y, axis=3)", "add(v, v)",
           "prelu(x, row, data_format=NCX)"],
    "mmm": ["select(b, x, y)"], "ma": ["subtract(x, m)"], "sm": ["subtract(number, x)"],
    "ms": ["add(x, number)", "bias_add(x, c, data_format=NCX)", "prelu(x, c, data_format=NCX)",
           "dynamic_quantize(x, p, dtype=u8, qtype=per_channel, axis=-3)"],
    "mssss": ["batch_norm_inference(x, s, s, s, p, epsilon=0.5, data_format=NCX)"]}
"""Operations whose results move with their operands."""
STAYING = ["reduce_min(x, axes=[1], keep_dims=false)", "reduce_l1(x, axes=[2,3], keep_dims=false)"]
"""Operations of one operand that moves, whose results have no layouts."""
NONE = ["reduce_sum(x, axes=[0,3], keep_dims=false)", "static_reshape(x, shape=[2,12,5])",
        "static_reshape(x, shape=[6,4,5])", "static_reshape(x, shape=[24,5])", "static_reshape(x, shape=[1,3,8,5])",
        "static_reshape(x, shape=[4,3,10])", "static_reshape(x, shape=[1,1,2,3,4,5])", "softmax(x, axis=-1)",
        "softmax(m, axis=0)", "add(x, w)", "add(m, m)", f"max_pool(x, {WINDOWS}, data_format=NXC)"]
KINDS = {**{text: (ports, True) for ports, texts in MOVING.items() for text in texts},
         **dict.fromkeys(STAYING, ("m", False)), **dict.fromkeys(NONE)}


def built(text):
    inputs = ", ".join(f"{n}: {'boolean' if n == 'b' else 'f32'}[{','.join(map(str, SHAPES.get(n, (2, 3, 4, 5))))}]"
                       for n in ("x", "y", "b", *SHAPES))
    for word in ("NCX", "NXC", "per_channel"):
        text = text.replace(f"={word}", f'="{word}"')
    return gq.parse(f"graph({inputs}) {{\n %0 = {text}\n return %0\n}}")


@pytest.mark.parametrize("text", KINDS)
def test_forms_compute_the_same(text):
    g = built(text)
    (node,) = g.nodes
    form = channels_last_form(node)
    if KINDS[text] is None:
        assert form is None
        return
    ports, moves = KINDS[text]
    assert "".join(p[0] for p in form.operands) == ports and form.outputs == (moves,)
    rng = np.random.default_rng(0)
    feeds = {v.name: rng.normal(size=v.type.dims).astype(np.float32) if v.dtype.name == "f32"
             else rng.integers(0, 2, v.type.dims) > 0 for v in g.inputs}
    feeds["p"] = np.abs(feeds["p"]) + np.float32(0.1)
    other = gq.Graph()
    operands = []
    for v, port in zip(node.inputs, form.operands, strict=True):
        x = feeds[v.name]
        x = x[None, None] if port == "aligned" else x
        x = x if port == "stays" else np.transpose(x, to_last(x.ndim))
        operands.append(other.input(f"i{len(operands)}", dtype=v.dtype, shape=x.shape))
        feeds[f"i{len(operands) - 1}"] = x
    result = other.add_node(node.op, operands, {**node.attrs, **form.attrs})[0]
    other.output(result, name="y")
    want = gq.reference(g, {v.name: feeds[v.name] for v in g.inputs})
    got = gq.reference(other, {v.name: feeds[v.name] for v in other.inputs})
    want = np.transpose(want, to_last(want.ndim)) if moves else want
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_a_constant_is_aligned_whatever_its_shape():
    for constant in (True, False):
        g = gq.Graph()
        x, shape = g.input("x", dtype="f32", shape=(2, 3, 4, 5)), (3, 4, 5)
        w = g.constant(np.ones(shape, np.float32)) if constant else g.input("w", dtype="f32", shape=shape)
        form = channels_last_form(g.add(x, w).node)
        assert form == (Form(("moves", "aligned"), (True,), {}) if constant else None)


def test_what_has_no_form():
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(2, 3, 4, 5))
    axes = g.constant(np.array([1, 2], np.int32))
    scales = g.constant(np.ones((2, 3, 2, 5), np.float32))
    q = g.input("q", dtype="s8", shape=(2, 3, 4, 5))
    grouped = g.dynamic_dequantize(q, scales, qtype="per_group", group_shape=[1, 1, 2, 1])
    for y in (g.reduce_sum(x, axes, keep_dims=True), grouped):
        assert channels_last_form(y.node) is None


def test_a_histogram_reads_elements_in_any_order():
    for shape, form in (("2,3,4,5", ("moves",)), ("2,3,4", ("moves",)), ("4,5", None)):
        g = gq.parse(f"graph(x: f32[{shape}]) {{\n %0, %1 = histogram(x)\n return %0, %1\n}}")
        made = channels_last_form(g.nodes[0])
        assert made == (form and Form(form, (False, False), {}))


def test_orders():
    for rank in (3, 4, 5):
        x = np.arange(2**rank).reshape((2,) * rank)
        assert to_last(rank)[-1] == 1 and np.array_equal(x.transpose(to_last(rank)).transpose(to_first(rank)), x)


@pytest.mark.parametrize("shape, view", [
    ((2, 1, 4, 5), True), ((2, 3, 1, 1), True), ((2, 3, 1, 5), False), ((2, 3, 4), False), ((None, 1, 4), True),
    ((None, 1, None), False), ((2, None, 1), True), ((0, 1, None), False), ((0, 1, 4), True), ((2, 1, None), True),
    ((2, 3, None), False)])
def test_views(shape, view):
    assert is_view(shape) is view


def test_moved():
    g = gq.Graph()
    x, flat = g.input("x", dtype="f32", shape=(2, 3, 4)), g.input("f", dtype="f32", shape=(None, 3, 1))
    made = moved(g, x, to_last(3))
    assert made.node.op.name == "static_transpose" and made.shape == (2, 4, 3)
    made = moved(g, flat, to_last(3))
    assert made.node.op.name == "static_reshape" and made.shape == (None, 1, 3)
    back = moved(g, made, to_first(3))
    assert back.node.op.name == "static_reshape" and back.shape == (None, 3, 1)
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    g.labels.keep(trace=True)
    constant = g.constant(array)
    made = moved(g, constant, to_last(3))
    assert np.array_equal(made.data, array.transpose(0, 2, 1)) and g.labels.origins[made] == (constant, to_last(3))


def test_aligned():
    g = gq.Graph()
    c = g.constant(np.arange(6, dtype=np.float32).reshape(3, 2))
    assert np.array_equal(aligned(g, c, 3).data, c.data.reshape(1, 3, 2).transpose(0, 2, 1))
    x = g.input("x", dtype="f32", shape=(3, 1, 1))
    assert aligned(g, x, 4).shape == (1, 1, 1, 3)
    assert [has_layouts(g.input(n, dtype="f32", shape=s)) for n, s in (
        ("a", (1, 2)), ("b", (1, 2, 3)), ("d", None))] == [False, True, False]
