"""Which graphs keep the rows of a batch apart."""
import re

import numpy as np
import onnx.parser
import pytest

import graphq as gq
from graphq.model.padding import padding_of
from graphq.model.row_wise import why_rows_mix


def mixes(build, *shape, dtype="f32"):
    g = gq.Graph()
    outs = build(g, g.input("x", dtype=dtype, shape=(None, *shape)))
    for v in outs if isinstance(outs, tuple) else (outs,):
        g.output(v)
    return why_rows_mix(g)


def weights(*shape):
    return np.ones(shape, np.float32)


def layer(g, x, op, *states, axes=(1, 0, 2), **attrs):
    """A recurrent layer of rows [rows, steps, gates]. Returns all states, rows first, and the last states."""
    w = np.arange(2 * x.shape[2], dtype=np.float32).reshape(-1, 2) - 5
    y, *last = getattr(g, op)(g.static_transpose(x, order=axes), w, *states, **attrs)
    return g.static_transpose(y, order=axes), *last


def by_range(g, x, **attrs):
    return layer(g, x, "lstm", None, None, g.constant(np.float32([0.1])), **attrs)


def first(g, x, dtype="f32"):
    """[rows, 2] elements of x [rows, 4, 8], or one of each as an integer."""
    part = g.slice(x, axes=[1, 2], starts=[0, 0], ends=[1, 2 if dtype == "f32" else 1], steps=[1, 1])
    return g.static_reshape(part, shape=[-1, 2]) if dtype == "f32" else g.cast(
        g.static_reshape(part, shape=[-1]), dtype=dtype)


APART = {
    "elementwise": (lambda g, x: g.relu(x * 2 + weights(5)), (4, 5)),
    "a constant row of each": (lambda g, x: g.add(x, weights(1, 5)), (5,)),
    "matmul": (lambda g, x: g.matmul(x, weights(5, 3)), (5,)),
    "matmul of matrices": (lambda g, x: g.matmul(x, x, transpose_b=True), (4, 5)),
    "weights of all rows": (lambda g, x: g.matmul(g.constant(weights(2, 4)), x), (4, 5)),
    "bias": (lambda g, x: g.matmul(x, g.constant(weights(5, 3)), g.constant(weights(3))), (5,)),
    "softmax": (lambda g, x: g.softmax(x, axis=-1), (5,)),
    "layer norm": (lambda g, x: g.layer_norm(x, use_affine=False, keep_stats=False), (4, 5)),
    "reduction": (lambda g, x: g.reduce_mean(x, axes=[1, -1]), (4, 5)),
    "images": (lambda g, x: g.max_pool(x, strides=1, pads_begin=0, pads_end=0, kernel=2), (6, 6, 3)),
    "heads and back": (lambda g, x: g.static_reshape(g.static_transpose(
        g.static_reshape(x, shape=[0, 4, 2, 3], special_zero=True), order=[0, 2, 1, 3]), shape=[-1, 24]), (4, 6)),
    "tokens merged and split": (lambda g, x: g.static_reshape(
        g.relu(g.static_reshape(x, shape=[-1, 6])), shape=[-1, 4, 6]), (4, 6)),
    "an axis in front split and merged again": (lambda g, x: g.static_transpose(g.static_reshape(
        g.relu(g.static_reshape(g.static_transpose(x, order=[1, 0, 2]), shape=[2, -1, 6])), shape=[4, -1, 6]),
        order=[1, 0, 2]), (4, 6)),
    "another axis first": (lambda g, x: g.static_transpose(
        g.softmax(g.static_transpose(x, order=[1, 0]), axis=0), order=[1, 0]), (5,)),
    "embedding": (lambda g, x: g.gather(g.constant(weights(9, 3)), x, axis=0), (5,), "s64"),
    "one token of each": (lambda g, x: g.gather(x, g.constant(np.array(0)), axis=1), (4, 5)),
    "joined": (lambda g, x: g.concat(x, x, axis=1), (5,)),
    "largest": (lambda g, x: g.arg_max(x, axis=1), (5,)),
    "lstm": (lambda g, x: layer(g, x, "lstm", reverse=True), (4, 8)),
    "lstm with states and lengths": (lambda g, x: layer(
        g, x, "lstm", first(g, x), first(g, x), None, first(g, x, "s32")), (4, 8)),
    "lstm with a range for each row": (lambda g, x: by_range(g, x, by_row=True), (4, 8)),
    "gru": (lambda g, x: layer(g, x, "gru"), (4, 6)), "rnn": (lambda g, x: layer(g, x, "rnn"), (4, 2)),
}


@pytest.mark.parametrize("name", APART)
def test_rows_that_stay_apart(name):
    build, shape, *dtype = APART[name]
    assert mixes(build, *shape, dtype=dtype[0] if dtype else "f32") is None


@pytest.mark.parametrize("name", ["lstm with states and lengths", "lstm with a range for each row", "gru"])
def test_rows_of_recurrent_layers_have_the_same_bits_alone(name):
    build, shape = APART[name]
    g, x = gq.Graph(), np.random.default_rng(5).normal(size=(9, *APART[name][1])).astype(np.float32)
    x[:, 0, 0] = np.arange(9) % 4 + 1  # lengths
    for v in build(g, g.input("x", dtype="f32", shape=(None, *shape))):
        g.output(v)
    model = gq.compile(g, threads=1)
    together = model(x)
    for k in range(9):
        for y, alone in zip(together.values(), model(x[k:k + 1]).values(), strict=True):
            assert np.array_equal(y[k].view(np.int32), alone[0].view(np.int32))


def dynamic(g, x):
    scale, zero = g.dynamic_range(x)
    return g.dynamic_dequantize(g.dynamic_quantize(x, scale, zero, dtype="u8"), scale, zero)


MIXED = {
    "a scale from all rows": (dynamic, (5,), "dynamic_range"),
    "softmax over rows": (lambda g, x: g.softmax(x, axis=0), (5,), "softmax"),
    "sum over rows": (lambda g, x: g.add(x, g.reduce_sum(x, axes=[0], keep_dims=True)), (5,), "reduce_sum"),
    "sum over all": (lambda g, x: g.add(x, g.reduce_sum(x, axes=[0, 1])), (5,), "reduce_sum"),
    "sum over all tokens": (lambda g, x: g.softmax(g.static_reshape(x, shape=[-1, 5]), axis=0), (4, 5), "softmax"),
    "Gram matrix": (lambda g, x: g.matmul(x, x, transpose_b=True), (5,), "matmul"),
    "product over rows": (lambda g, x: g.matmul(x, x, transpose_a=True), (5,), "matmul"),
    "running sum": (lambda g, x: g.cum_sum(x, axis=0), (5,), "cum_sum"),
    "the first row": (lambda g, x: g.add(x, g.slice(x, axes=[0], starts=[0], ends=[1], steps=[1])), (5,), "slice"),
    "a chosen row": (lambda g, x: g.gather(x, g.constant(np.array([0])), axis=0), (5,), "gather"),
    "rows turned": (lambda g, x: g.slice(x, axes=[0], starts=[-1], ends=[-99], steps=[-1]), (5,), "slice"),
    "rows added": (lambda g, x: g.concat(x, x, axis=0), (5,), "concat"),
    "padding": (lambda g, x: g.pad(x, pads_begin=[1, 0], pads_end=[0, 0]), (5,), "pad"),
    "rows last": (lambda g, x: g.static_transpose(x, order=[1, 0]), (5,), "axis 0 of output"),
    "nothing of the rows": (lambda g, x: (g.relu(x), g.relu(g.constant(weights(3)))), (5,), "axis 0 of output"),
    "rows as steps": (lambda g, x: layer(g, x, "lstm", axes=(0, 1, 2)), (4, 8), "lstm"),
    "lstm with one range": (by_range, (4, 8), "lstm"),
    "gru with other states of each row": (
        lambda g, x: layer(g, x, "gru", np.arange(26, dtype=np.float32).reshape(13, 2)), (4, 6), "gru"),
    "no rule": (lambda g, x: g.scatter_nd(x, g.constant(np.array([[0]])), g.constant(weights(1, 5))), (5,), "scatter"),
}


@pytest.mark.parametrize("name", MIXED)
def test_rows_that_may_mix(name):
    build, shape, said = MIXED[name]
    assert said in mixes(build, *shape)


def test_constants_that_differ_from_row_to_row():
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(4, 5))
    g.output(g.add(x, np.arange(20, dtype=np.float32).reshape(4, 5)))
    assert "add" in why_rows_mix(g)
    for element, alike in ((1, True), (2, False)):
        constant = np.ones((4, 5), np.float32)
        constant[1, 3] = element  # neither in the first row nor in the last
        g = gq.Graph()
        g.output(g.add(g.input("x", dtype="f32", shape=(4, 5)), constant))
        assert (why_rows_mix(g) is None) == alike


def test_scales_by_row():
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(3, 5))
    g.output(g.quantize(x, dtype="u8", qtype="per_channel", axis=0, scales=[1, 2, 3]))
    assert "quantize" in why_rows_mix(g)


@pytest.mark.parametrize("k, apart", [(128, True), (129, False)])
def test_rows_that_are_the_columns_of_a_quantized_product(k, apart):
    """Longer sums are cut into chains, whose length depends on the number of columns."""
    g = gq.Graph()
    x = g.dequantize(g.input("x", dtype="u8", shape=(None, k)), scales=[0.1])
    w = g.dequantize(g.constant(np.ones((5, k), np.int8)), scales=[0.1])
    y = g.quantize(g.matmul(w, x, transpose_b=True), dtype="u8", scales=[0.1])
    g.output(g.static_transpose(y, order=[1, 0]))
    assert (why_rows_mix(g) is None) == apart


def test_a_gather_within_the_row():
    g = gq.Graph()
    x = g.static_reshape(g.input("x", dtype="f32", shape=(4, 5)), shape=[20])
    g.output(g.gather(x, g.constant(np.arange(20).reshape(4, 5)[:, ::-1].copy()), axis=0))
    assert why_rows_mix(g) is None
    g = gq.Graph()
    x = g.static_reshape(g.input("x", dtype="f32", shape=(4, 5)), shape=[20])
    g.output(g.gather(x, g.constant(np.arange(20).reshape(5, 4).T.copy()), axis=0))
    assert "gather" in why_rows_mix(g)
    for turned, apart in ((True, True), (False, False)):
        g = gq.Graph()  # the 5 numbers of the 4 rows, the rows last
        x = g.static_transpose(g.input("x", dtype="f32", shape=(4, 5)), order=[1, 0])
        numbers = np.arange(20).reshape(5, 4).T if turned else np.arange(20).reshape(4, 5)
        g.output(g.gather(g.static_reshape(x, shape=[20]), g.constant(numbers.copy()), axis=0))
        assert (why_rows_mix(g) is None) == apart


def test_what_no_output_needs_mixes_nothing():
    for rows in (None, 4):
        g = gq.Graph()
        x = g.input("x", dtype="f32", shape=(rows, 5))
        g.reduce_sum(x, axes=[0], keep_dims=True)
        g.output(g.relu(x))
        count = len(g.nodes)
        assert why_rows_mix(g) is None and len(g.nodes) == count


def test_a_constant_without_elements():
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(2, 3))
    g.output(g.concat(x, g.constant(np.empty((0, 3), np.float32)), axis=0))
    assert "concat" in why_rows_mix(g)


def test_unknown_ranks():
    g = gq.Graph()
    g.output(g.relu(g.input("x", dtype="f32")))
    assert "ranks" in why_rows_mix(g)


MEASURED = """
    relu(x)
    add(x, c)
    add(x, same)
    add(x, each)
    add(x, c6)
    multiply(v, x6)
    select(greater(x, c), x, x)
    quantize(x, dtype=s8, qtype="per_channel", axis=1, scales=[1,2,3,4])
    quantize(x, dtype=s8, qtype="per_channel", axis=-2, scales=[1,2,3,4])
    prelu(x, c6)
    bias_add(x, c6)
    softmax(x, axis=0)
    softmax(x, axis=1)
    softmax(x, axis=-3)
    cum_sum(x, axis=2)
    cum_sum(x, axis=-3)
    arg_max(x, axis=1, keep_dims=false)
    arg_max(x, axis=0, keep_dims=false)
    arg_min(x, axis=-3)
    arg_max(static_transpose(x, order=[1,0,2]), axis=0, keep_dims=false)
    arg_max(static_transpose(x, order=[1,0,2]), axis=0)
    arg_max(static_transpose(x, order=[1,0,2]), axis=1)
    static_transpose(arg_max(static_transpose(x, order=[1,0,2]), axis=2, keep_dims=false), order=[1,0])
    layer_norm(x, use_affine=false, keep_stats=false, begin_norm_axis=1)
    layer_norm(x, use_affine=false, keep_stats=false, begin_norm_axis=0)
    layer_norm(static_transpose(x, order=[1,0,2]), use_affine=false, keep_stats=false, begin_norm_axis=1)
    static_transpose(layer_norm(static_transpose(x, order=[1,0,2]), use_affine=false, keep_stats=false), order=[1,0,2])
    reduce_sum(x, axes=[1])
    reduce_sum(x, axes=[-3])
    reduce_sum(x, axes=[0,1], keep_dims=true)
    reduce_max(static_transpose(x, order=[1,0,2]), axes=[0])
    reduce_max(static_transpose(x, order=[1,2,0]), axes=[0,1])
    static_transpose(reduce_max(static_transpose(x, order=[1,0,2]), axes=[2]), order=[1,0])
    static_transpose(reduce_max(static_transpose(x, order=[1,0,2]), axes=[0], keep_dims=true), order=[1,0,2])
    reduce_sum(x)
    static_transpose(x, order=[0,2,1])
    static_transpose(x, order=[-3,-1,-2])
    static_transpose(x, order=[1,0,2])
    concat(x, x, axis=2)
    concat(x, x, axis=0)
    concat(x, x, axis=-3)
    concat(x, same, axis=1)
    slice(x, axes=[1,2], starts=[1,0], ends=[3,5], steps=[1,2])
    slice(x, axes=[1,-3], starts=[1,0], ends=[3,2], steps=[1,1])
    slice(x, axes=[0], starts=[1], ends=[99], steps=[1])
    pad(x, pads_begin=[0,1,0], pads_end=[0,0,2])
    pad(x, pads_begin=[0,0,0], pads_end=[1,0,0])
    pad(x, pads_begin=[1,0,0], pads_end=[-1,0,0])
    gather(x, k, axis=1)
    gather(x, k, axis=-1)
    gather(x, k, axis=0)
    gather(x, k, axis=-3)
    gather(table, n, axis=0)
    gather(table, n, axis=1)
    static_transpose(gather(static_transpose(x, order=[1,0,2]), k, axis=0), order=[1,0,2])
    static_transpose(gather(static_transpose(x, order=[1,0,2]), kk, axis=0), order=[2,0,1,3])
    gather(static_transpose(x, order=[1,0,2]), kk, axis=0)
    matmul(x, w)
    matmul(w2, x)
    matmul(x, x, transpose_b=true)
    matmul(x, w3)
    matmul(x6, w)
    matmul(x6, w, b2)
    matmul(v2, w46, c6)
    matmul(w4, v2, transpose_b=true)
    static_transpose(matmul(w4, v2, transpose_b=true), order=[1,0])
    static_transpose(matmul(w4, v2, b3, transpose_b=true), order=[1,0])
    matmul(v2, v2, transpose_b=true)
    matmul(v2, v2, transpose_a=true)
    matmul(static_transpose(v2, order=[1,0]), w5, transpose_a=true)
    static_transpose(matmul(w5, static_transpose(v2, order=[1,0]), transpose_a=true), order=[1,0])
    static_transpose(matmul(static_transpose(x, order=[1,0,2]), w), order=[1,0,2])
    matmul(static_transpose(x, order=[1,0,2]), static_transpose(x, order=[1,2,0]))
    matmul(static_transpose(x, order=[1,2,0]), static_transpose(x, order=[1,0,2]))
    static_reshape(x, shape=[-1,24])
    static_reshape(x, shape=[-1,6])
    static_reshape(x, shape=[4,-1,6])
    static_reshape(relu(static_reshape(x, shape=[-1,6])), shape=[-1,4,6])
    static_reshape(softmax(static_reshape(x, shape=[-1,6]), axis=1), shape=[-1,4,6])
    static_reshape(softmax(static_reshape(x, shape=[-1,6]), axis=0), shape=[-1,4,6])
    static_reshape(static_reshape(x, shape=[-1,6]), shape=[-1,2,12])
    static_reshape(static_reshape(x, shape=[-1,8]), shape=[-1,4,6])
    static_reshape(static_reshape(x, shape=[-1]), shape=[-1,6,4])
    add(static_reshape(x, shape=[-1,8]), static_reshape(x, shape=[-1,8]))
    static_reshape(add(static_reshape(x, shape=[-1,8]), static_reshape(relu(x), shape=[-1,8])), shape=[-1,24])
    convolution(image, kernel)
    conv_transpose(image, kernel)
    avg_pool(image, kernel=[2,2], exclude_pad=true)
    interpolate(image, mode="nearest", sizes=[7,8])
    batch_norm_inference(image, three, three, three, square, epsilon=0.1)
    log_softmax(x, axis=0)
    log_softmax(x, axis=2)
    rms_norm(x, c6)
    reduce_l1(x, axes=[1,2])
    reduce_l1(x, axes=[0])
    reduce_l2(x, axes=[1,2])
    reduce_mean(x, axes=[0,2])
    reduce_min(x, axes=[-1])
    reduce_min(x, axes=[-3,1])
    reduce_prod(x, axes=[1])
    reorder(x)
    max_pool(image, kernel=[2,2])
    group_norm(image, groups=3, keep_stats=false, use_affine=false)
    max_pool(static_transpose(image, order=[1,0,2,3]), kernel=[2,2])
    expand(x, shape=[1,4,1])
    expand(reduce_sum(x, axes=[0], keep_dims=true), shape=[6,1,1])
    squared_difference(x, reduce_mean(x, axes=[1], keep_dims=true))
    squared_difference(x, reduce_mean(x, axes=[0], keep_dims=true))
    lrn(image, size=3)
    lrn(static_transpose(image, order=[1,0,2,3]), size=3)
    conv_integer(cast(image, dtype=u8), cast(five, dtype=s8))
    matmul_integer(cast(x6, dtype=s8), cast(w, dtype=s8))
    matmul_integer(cast(v2, dtype=s8), cast(static_transpose(v2, order=[1,0]), dtype=s8))
    static_transpose(layer_norm(static_transpose(v2, order=[1,0]), use_affine=false, keep_stats=false), order=[1,0])
    rms_norm(static_transpose(x, order=[1,2,0]), c6)
    prelu(x, each)
    expand(v, shape=[6,6])
    expand(v, shape=[2,6,1])
    pad(x, pads_begin=[0,0,1], pads_end=[0,1,0], mode="edge")
    pad(x, pads_begin=[0,0,0], pads_end=[2,0,0], mode="wrap")
    add(x6, static_transpose(x6, order=[1,0]))
    add(static_transpose(x6, order=[1,0]), x6)
    static_transpose(add(static_transpose(x, order=[1,0,2]), x6), order=[1,0,2])
    static_transpose(matmul(c, x6), order=[1,0])
    matmul(static_transpose(x6, order=[1,0]), w)
    static_reshape(add(static_reshape(x, shape=[-1,6]), \
static_reshape(static_transpose(x, order=[1,0,2]), shape=[-1,6])), shape=[-1,4,6])
    static_transpose(static_reshape(add(static_reshape(x, shape=[-1,6]), \
static_reshape(static_transpose(x, order=[1,0,2]), shape=[-1,6])), shape=[4,-1,6]), order=[1,0,2])
    matmul(x6, w66, x6)
""".strip().split("\n    ")
"""Statements whose answer running them tells. The inputs have 6 rows, as many as other dimensions."""

CAUTIOUS = {"reduce_sum(x)", "matmul(x6, w66, x6)"}
"""Those which keep rows apart, but for which no rule says so."""

INPUTS = {"x": (6, 4, 6), "v": (6, 1), "x6": (6, 6), "v2": (6, 4), "image": (6, 5, 5, 3), "n": (6, 2)}
CONSTANTS = {"c": (4, 6), "same": (6, 4, 6), "each": (6, 1, 1), "c6": (6,), "w": (6, 3), "w2": (2, 4), "w3": (6, 6, 3),
             "w4": (3, 4), "w5": (4, 5), "b3": (6,), "kernel": (2, 2, 3, 3), "three": (3,),
             "square": (3,), "b2": (3,), "five": (2, 5, 2, 2), "w46": (4, 6), "w66": (6, 6), "table": (7, 5), "k": (3,),
             "kk": (2, 2)}


def test_each_result_counts():
    """Both of top_k lie as their source; a third output may be the one whose axis 0 is not that of the rows."""
    for order in ([0, 1], [1, 0]):
        g = gq.Graph()
        values, places = g.top_k(g.input("x", dtype="f32", shape=(6, 5)), k=2, axis=1)
        for v in (values, places, g.static_transpose(places, order=order)):
            g.output(v)
        assert why_rows_mix(g) == (None if order == [0, 1] else "axis 0 of output 'out2' does not have the rows")
    g = gq.Graph()
    for v in g.top_k(g.input("x", dtype="f32", shape=(6, 5)), k=2, axis=0):
        g.output(v)
    assert "top_k" in why_rows_mix(g)


def measured(graph, feeds):
    """Whether rows in another order give results in that order, and what other rows hold changes none."""
    rng = np.random.default_rng(3)
    order, y = rng.permutation(6), gq.reference(graph, feeds)
    if y.shape[:1] != (6,) or not np.allclose(gq.reference(graph, {k: x[order] for k, x in feeds.items()}), y[order]):
        return False
    for row in range(6):
        others = {name: np.where(np.arange(6).reshape(-1, *[1] * (x.ndim - 1)) == row, x, rng.permuted(x + 3) % 5
                                 ).astype(x.dtype) for name, x in feeds.items()}
        if not np.allclose(gq.reference(graph, others)[row], y[row]):
            return False
    return True


@pytest.mark.parametrize("statement", MEASURED)
def test_what_is_said_is_what_running_tells(statement):
    lines, rest = [], statement
    while call := re.search(r"\w+\([^()]*\)", rest):
        rest = rest.replace(call[0], f"%{len(lines)}", 1)
        lines.append(f" %{len(lines)} = {call[0]}")
    used = set(re.findall(r"\w+", statement))
    types = ", ".join(f"{name}: {'s64' if name in ('n', 'k', 'kk') else 'f32'}[{','.join(map(str, shape))}]"
                      for name, shape in {**INPUTS, **CONSTANTS}.items() if name in used)
    rng = np.random.default_rng(1)
    g = gq.parse("\n".join([f"graph({types}) {{", *lines, f" return {rest}", "}"]))
    arrays = {str(v.name): (rng.integers(0, 3, v.type.dims) if v.dtype == gq.dtypes.s64 else
                            rng.standard_normal(v.type.dims).astype(np.float32)) for v in g.inputs}
    if "same" in arrays:
        arrays["same"][:] = arrays["same"][0]
    if "square" in arrays:
        arrays["square"] = np.square(arrays["square"])
    g = g.specialize({}, {name: x for name, x in arrays.items() if name in CONSTANTS})
    apart = measured(g, {name: x for name, x in arrays.items() if name in INPUTS})
    assert (why_rows_mix(g) is None) == (apart and statement not in CAUTIOUS), why_rows_mix(g)
    assert apart or statement not in CAUTIOUS


@pytest.mark.parametrize("body", [
    "s = Shape <end = 1> (x) f = Cast <to = 1> (s) y = Div(x, f)",
    "s = Shape <end = 1> (x) f = Cast <to = 1> (s) l = Log(f) y = Mul(x, l)",
    "t = Reshape(x, a) u = Softmax <axis = 1> (t) y = Reshape(u, b)",
    "s = Shape <start = 1, end = 2> (x) t = ReduceSum <keepdims = 0> (s) l = Greater(t, c) y = If (l) "
    "<then_branch = g () => (float[n,m,13] z) { r = ReduceMean <axes = [0]> (x) z = Sub(x, r) }, "
    "else_branch = h () => (float[n,m,13] z) { z = Identity(x) }>",
    "s = Shape <start = 1, end = 2> (x) l = Greater(s, d) k = Where(l, p, q) y = Mul(x, k)",
    "s = Shape <end = 1> (x) l = LessOrEqual(d, s) k = Cast <to = 1> (l) y = Mul(x, k)",
    "s = Shape <start = 1, end = 2> (x) t = Max(s, d) f = Cast <to = 1> (t) k = Sub(f, f) y = Add(x, k)",
    "s = Shape <end = 1> (x) f = Cast <to = 1> (s) l = Less(f, v) k = Cast <to = 1> (l) y = Mul(x, k)"], ids=range(8))
def test_sizes_that_decide_what_the_graph_computes(body):
    """The number of rows as a number, a reshape that fits some numbers of rows, branches and numbers by comparisons.

    The analysis tries no row of 512 positions, no 512 rows, and no 5 rows.
    """
    shape = "n,m,13" if "start = 1" in body else "n,13"
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 17]> agraph (float[{shape}] x) => (float[{shape}] y) '
        f"<int64[2] a = {{13, -1}}, int64[2] b = {{-1, 13}}, int64 c = {{100}}, int64[1] d = {{512}}, "
        f"float[1] p = {{2}}, float[1] q = {{1}}, float[1] v = {{5}}> {{ {body} }}")
    graph = gq.load_onnx(model)
    assert why_rows_mix(graph) is not None and padding_of(graph).mixes is not None
