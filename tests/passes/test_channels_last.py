"""channels_last: where reorders go, text in and text out; each operation's form; networks by their reorders."""
from itertools import product

import numpy as np
import pytest

from graphq.ir.interpret import reference
from graphq.ir.parse import parse
from graphq.ir.text import to_text
from graphq.ir.verify import verify
from graphq.kernels.families import CHANNELS_LAST
from graphq.passes import channels_last
from graphq.passes.channels_last import GIVEN, LAST, _given_side
from graphq.testing import check_pass, check_round_trip, check_same_numbers, random_inputs

ONE = 'strides=[1,1], pads_begin=[0,0], pads_end=[0,0]'
CONV = f'{ONE}, dilations=[1,1], weights_format="OIX"'
POOL = f'{ONE}, kernel=[2,2]'
NCX = 'data_format="NCX"'


def check(before, after=None, **kwargs):
    """And what the pass gives it leaves as it is."""
    graph = check_pass(channels_last, before, after, **kwargs)
    again = graph.copy()
    assert channels_last(again) == 0 and to_text(again) == to_text(graph)
    return graph


def reorders(g):
    """The transposes and reshapes of a copy after the pass, whose numbers are those of `g`."""
    out = g.copy()
    assert channels_last(out) > 0
    verify(out)
    check_round_trip(out)
    check_same_numbers(g, out, rtol=1e-6, atol=1e-6)
    assert not any(n.attrs["data_format"] == "NCX" for n in out.nodes if n.op.name in CHANNELS_LAST)
    return [n.op.name for n in out.nodes if n.op.name.startswith("static")]


# -- anchors ----------------------------------------------------------------------------------------------------


def test_a_lone_convolution_is_wrapped():
    check(f"%y = convolution(x, w, {CONV}, {NCX})\n return %y",
          f"""%0 = static_transpose(x, order=[0,2,3,1])
              %1 = convolution(%0, w, {CONV})
              %y = static_transpose(%1, order=[0,3,1,2])
              return %y""", inputs="x: f32[2,3,4,5], w: f32[6,3,1,1]", count=1)


@pytest.mark.parametrize("op, inputs", [
    ('convolution(x, w, b, strides={1}, pads_begin={1}, pads_end={0}, dilations={1}, weights_format="OIX"',
     "w: f32[6,4,{1}], b: f32[6]"),
    ('conv_transpose(x, w, strides={2}, pads_begin={0}, pads_end={1}, dilations={1}, weights_format="IOX"',
     "w: f32[4,3,{2}]"),
    ('max_pool(x, strides={2}, pads_begin={0}, pads_end={1}, kernel={2}, rounding_type="ceil"', ""),
    ("avg_pool(x, strides={2}, pads_begin={1}, pads_end={1}, kernel={2}, exclude_pad=true", ""),
    ('interpolate(x, mode="linear", sizes={7}', ""),
    ('interpolate(x, mode="nearest", scales={2}', ""),
])
@pytest.mark.parametrize("rank", [3, 4, 5])
def test_every_anchor_at_every_rank(op, inputs, rank):
    for k in range(8):
        op = op.replace(f"{{{k}}}", str([k] * (rank - 2)))
        inputs = inputs.replace(f"{{{k}}}", ",".join([str(k)] * (rank - 2)))
    shape = [2, 4, 5, 6, 3][:rank]
    g = parse(f"graph(x: f32{shape}{', ' * bool(inputs)}{inputs}) {{ %y = {op}, {NCX})\n return %y }}")
    assert reorders(g) == ["static_transpose"] * 2


LINES = f'strides=[1], pads_begin=[3], pads_end=[0], dilations=[1], groups=4, weights_format="OIX", {NCX}'
ALONG = f"%y = convolution(x, w, {LINES})\n return %y"


def test_depthwise_lines_stay():
    """Kernels compute them channels first as well, unless they are short."""
    check(ALONG, inputs="x: f32[2,4,?], w: f32[4,1,4]", sizes={"x": (2, 4, 20)})
    check(ALONG, inputs="x: f32[2,4,16], w: f32[4,1,4]")


@pytest.mark.parametrize("text, inputs", [
    (ALONG, "x: f32[2,4,15], w: f32[4,1,4]"),
    (ALONG, "x: f32[2,4,20], w: f32[4,1,9]"),
    (ALONG, "x: f32[2,4,20], w: f32[8,1,4]"),
    (ALONG.replace("strides=[1]", "strides=[2]"), "x: f32[2,4,20], w: f32[4,1,4]"),
    (ALONG.replace("pads_end=[0]", "pads_end=[-1]"), "x: f32[2,4,20], w: f32[4,1,4]"),
    (f"%d = dequantize(x, scales=[0.1])\n {ALONG.replace('(x', '(%d')}", "x: u8[2,4,20], w: f32[4,1,4]"),
])
def test_other_lines_are_reordered(text, inputs):
    assert reorders(parse(f"graph({inputs}) {{ {text} }}")) == ["static_transpose"] * 2


def test_depthwise_lines_between_others_compute_channels_last():
    one = LINES.replace("groups=4, ", "").replace("[3]", "[0]")
    g = parse(f"""graph(x: f32[2,4,20], v: f32[4,4,1], w: f32[4,1,4]) {{
        %a = convolution(x, v, {one})
        %b = convolution(%a, w, {LINES})
        %y = convolution(%b, v, {one})
        return %y }}""")
    assert reorders(g) == ["static_transpose"] * 2


def test_sizes_of_interpolate_stay():
    g = parse(f'graph(x: f32[2,3,4], s: s32[1]) {{ %y = interpolate(x, s, mode="nearest", {NCX})\n return %y }}')
    out = g.copy()
    assert channels_last(out) == 1
    data = random_inputs(g) | {"s": np.array([7], np.int32)}
    np.testing.assert_array_equal(reference(out, data), reference(g, data))


@pytest.mark.parametrize("text", [
    f"%y = convolution(x, w, {CONV})\n return %y",
    "%0 = static_transpose(x, order=[0,2,3,1])\n %1 = static_transpose(%0, order=[0,3,1,2])\n return %1",
    "%0 = relu(x)\n %1 = softmax(%0)\n return %1",
])
def test_graphs_without_channels_first_anchors_stay(text):
    check(text, inputs="x: f32[2,4,5,3], w: f32[6,3,1,1]")


def test_an_anchor_of_unknown_rank_stays():
    g = parse(f"graph(x: f32[*], w: f32[6,3,1,1]) {{ %y = convolution(x, w, {CONV}, {NCX})\n return %y }}")
    assert channels_last(g) == 0


def test_unknown_dimensions():
    check(f"""%0 = convolution(x, w, {CONV}, {NCX})
              %1 = relu(%0)
              return %1""",
          f"""%0 = static_transpose(x, order=[0,2,3,1])
              %1 = convolution(%0, w, {CONV})
              %2 = relu(%1)
              %3 = static_transpose(%2, order=[0,3,1,2])
              return %3""", inputs="x: f32[?,3,?,?], w: f32[6,3,1,1]", sizes={"x": (2, 3, 4, 5)}, count=2)


# -- placement --------------------------------------------------------------------------------------------------


def test_reorders_move_to_the_8_bit_side():
    check(f"""%q = quantize(x, dtype=u8, scales=[0.1])
              %d = dequantize(%q, scales=[0.1])
              %c = convolution(%d, w, {CONV}, {NCX})
              %r = relu(%c)
              %s = quantize(%r, dtype=u8, scales=[0.2])
              %y = dequantize(%s, scales=[0.2])
              return %y""",
          f"""%q = quantize(x, dtype=u8, scales=[0.1])
              %0 = static_transpose(%q, order=[0,2,3,1])
              %d = dequantize(%0, scales=[0.1])
              %c = convolution(%d, w, {CONV})
              %r = relu(%c)
              %1 = quantize(%r, dtype=u8, scales=[0.2])
              %s = static_transpose(%1, order=[0,3,1,2])
              %y = dequantize(%s, scales=[0.2])
              return %y""", inputs="x: f32[1,3,4,5], w: f32[6,3,1,1]", count=4)


def test_a_value_of_several_users_is_reordered_once():
    check(f"""%0 = convolution(x, w, {CONV}, {NCX})
              %1 = convolution(x, v, {CONV}, {NCX})
              %2 = matmul(x, x, transpose_b=true)
              return %0, %1, %2, %0 as again""",
          f"""%0 = static_transpose(x, order=[0,2,3,1])
              %1 = convolution(%0, w, {CONV})
              %2 = static_transpose(%1, order=[0,3,1,2])
              %3 = convolution(%0, v, {CONV})
              %4 = static_transpose(%3, order=[0,3,1,2])
              %5 = matmul(x, x, transpose_b=true)
              return %2, %4, %5, %2 as again""",
          inputs="x: f32[1,3,4,5], w: f32[6,3,1,1], v: f32[2,3,1,1]", count=2)


def test_the_smaller_value_is_reordered():
    """The pool's result is a fourth of its source, and softmax over the channels goes either way."""
    check(f"""%0 = softmax(x)
              %1 = max_pool(%0, {ONE.replace("1,1", "2,2")}, kernel=[2,2], {NCX})
              %2 = matmul(%1, %1)
              return %2""",
          f"""%0 = static_transpose(x, order=[0,2,3,1])
              %1 = softmax(%0, axis=3)
              %2 = max_pool(%1, {ONE.replace("1,1", "2,2")}, kernel=[2,2])
              %3 = static_transpose(%2, order=[0,3,1,2])
              %4 = matmul(%3, %3)
              return %4""", inputs="x: f32[1,3,4,4]", count=2, rtol=1e-6)


def test_transposes_of_the_user_cancel():
    """[n, h, w, c] -> [n, c, h, w] -> convolution -> [n, h, w, c]: nothing moves."""
    check(f"""%0 = static_transpose(x, order=[0,3,1,2])
              %1 = convolution(%0, w, {CONV}, {NCX})
              %2 = static_transpose(%1, order=[0,-2,-1,1])
              %3 = softmax(%2, axis=3)
              return %3""",
          f"""%0 = convolution(x, w, {CONV})
              %1 = softmax(%0, axis=3)
              return %1""", inputs="x: f32[1,4,5,3], w: f32[6,3,1,1]", count=1)


def test_transposes_of_rank_3_cancel_on_both_sides():
    """[n, t, c] -> [n, c, t] and back are one order: which is meant, the neighbors tell."""
    text = 'strides=[1], pads_begin=[1], pads_end=[1], dilations=[1], weights_format="OIX"'
    check(f"""%0 = static_transpose(x, order=[0,2,1])
              %1 = convolution(%0, w, {text}, {NCX})
              %2 = relu(%1)
              %3 = static_transpose(%2, order=[0,2,1])
              return %3""",
          f"""%0 = convolution(x, w, {text})
              %1 = relu(%0)
              return %1""", inputs="x: f32[2,7,4], w: f32[5,4,3]", count=2)


def test_a_transpose_of_the_user_serves_others():
    check(f"""%0 = static_transpose(x, order=[0,2,3,1])
              %1 = convolution(x, w, {CONV}, {NCX})
              %2 = static_transpose(%1, order=[0,2,3,1])
              %3 = static_transpose(%1, order=[0,2,3,1])
              return %0, %2, %3, %1""",
          f"""%0 = static_transpose(x, order=[0,2,3,1])
              %1 = convolution(%0, w, {CONV})
              %2 = static_transpose(%1, order=[0,3,1,2])
              return %0, %1, %1 as again, %2""".replace(" as again", " as out2"),
          inputs="x: f32[1,3,4,5], w: f32[6,3,1,1]", count=1)


CONV_1D = f'strides=[1], pads_begin=[0], pads_end=[0], dilations=[1], weights_format="OIX", {NCX}'
TURN = "order=[0,2,1]"


@pytest.mark.parametrize("inputs, text, count, transposes", [
    ("x: f32[1,9,4], w: f32[6,4,3]",
     f"%a = relu(x)\n %b = static_transpose(%a, {TURN})\n %c = convolution(%b, w, {CONV_1D})\n"
     f"%d = static_transpose(%c, {TURN})\n return %d", 1, 0),
    ("x: f32[1,4,9], w: f32[4,4,1], v: f32[5,4,1]",
     f"%a = convolution(x, w, {CONV_1D})\n %b = static_reshape(%a, shape=[1,9,4], special_zero=false)\n"
     f"%c = static_transpose(%b, {TURN})\n %d = convolution(%c, v, {CONV_1D})\n return %d", 2, 3),
    ("x: f32[1,9,4], z: f32[1,4,9], w: f32[4,4,1]",
     f"%a = static_transpose(x, {TURN})\n %b = relu(%a)\n %c = static_transpose(%b, {TURN})\n"
     f"%d = convolution(z, w, {CONV_1D})\n return %c, %d", 2, 2),
    ("x: f32[1,9,7,4], z: f32[1,4,9,7], w: f32[4,4,1,1]",
     f"%a = static_transpose(x, order=[0,3,1,2])\n %b = add(%a, z)\n %c = convolution(%b, w, {CONV}, {NCX})\n"
     f"%d = static_transpose(%c, order=[0,2,3,1])\n return %d", 2, 1),
    ("x: f32[1,4,9,7], w: f32[4,4,1,1], v: f32[1,9,7,4]",
     f"%a = convolution(x, w, {CONV}, {NCX})\n %b = static_transpose(%a, order=[0,2,3,1])\n %c = add(%b, v)\n"
     "return %c", 1, 1),
    ("x: f32[1,4,9,7], w: f32[4,4,1,1]", f"%h = relu(w)\n %a = convolution(x, %h, {CONV}, {NCX})\n return %a", 1, 2),
    ("x: f32[1,4,4,5], w: f32[4,4,1,1], k: f32[1,4,4,5]",
     f"%a = convolution(x, w, {CONV}, {NCX})\n %b = add(%a, k)\n %c = matmul(%b, %b, transpose_b=true)\n"
     "return %c", 2, 2)],
    ids=["given", "after_a_reshape", "given_then_last", "added_to_given", "last", "weights", "constant"])
def test_layouts_that_a_graph_has(inputs, text, count, transposes):
    """Constants cost nothing to reorder; weights, and what has no channels first, keep their layout."""
    g = parse(f"graph({inputs}) {{ {text} }}")
    g = g.specialize({}, {"k": np.ones((1, 4, 4, 5), np.float32)} if "k:" in inputs else {})
    out = g.copy()
    assert channels_last(out) == count
    assert sum(n.op.name == "static_transpose" and n.inputs[0].data is None for n in out.nodes) == transposes
    check_same_numbers(g, out, rtol=1e-5, atol=1e-5)


def test_names_and_facts_of_values_stay():
    g = parse(f"""graph(x: f32[1,3,4,5], w: f32[6,3,1,1]) {{
        %c = convolution(x, w, {CONV}, {NCX})
        %r = relu(%c)
        %t = tanh(%r)
        return %r as "the end", %t }}""")
    g.nodes[0].meta = {"id": 7}
    channels_last(g)
    assert g.output_names == ["the end", "t"] and [v.name for v in g.outputs] == ["r", "t"]
    assert g.outputs[0].node.op.name == "static_transpose"
    (conv,) = (n for n in g.nodes if n.op.name == "convolution")
    assert conv.output.name == "c" and conv.meta == {"id": 7}


# -- what follows -----------------------------------------------------------------------------------------------

POOLED = f"%p = max_pool(x, {POOL}, {NCX})\n"


@pytest.mark.parametrize("text, changed, transposes", [
    ("%y = gelu(%p)", 2, 2),
    ("%y = type_cast(%p, dtype=bf16)", 2, 2),
    ("%y = clamp(%p, min=-1, max=1)", 2, 2),
    ("%y = reorder(%p)", 2, 2),
    ('%y = bias_add(%p, c, data_format="NCX")', 2, 2),
    ('%y = prelu(%p, c, data_format="NCX")', 2, 2),
    ("%y = prelu(%p, w1, per_channel_broadcast=false)", 2, 2),
    ("%y = prelu(%p, c11)", 2, 2),
    ('%y = batch_norm_inference(%p, c, c, c, v, epsilon=1, data_format="NCX")', 2, 2),
    ('%y, %m, %d = group_norm(%p, c, c, groups=2, data_format="NCX")', 2, 2),
    ("%y = add(%p, s)", 2, 2),
    ("%y = add(w1, %p)", 2, 2),
    ("%y = subtract(%p, c11)", 2, 2),
    ("%y = multiply(nc11, %p)", 2, 2),
    ("%y = maximum(%p, one)", 2, 2),
    ("%y = add(%p, %p)", 2, 2),
    ("%g = greater_equal(%p, s)\n %y = select(%g, %p, w1)", 3, 2),
    ('%y = quantize(%p, dtype=s8, qtype="per_channel", scales=[1,2,3,4])', 2, 2),
    ('%y = quantize(%p, dtype=s8, qtype="per_channel", axis=-1, scales=[1,2,3,4,5])', 2, 2),
    ('%y = dynamic_quantize(%p, v, dtype=u8, qtype="per_channel")', 2, 2),
    ("%y = dynamic_quantize(%p, s, dtype=u8)", 2, 2),
    ("%y = concat(%p, %p, axis=-3)", 1, 2),
    ("%q = concat(%p, %p, %p, axis=2)\n %y = reduce_max(%q, axes=[2])", 3, 2),
    ("%y = softmax(%p, axis=1)", 2, 2),
    ("%y, %t = softmax(%p, axis=-2, keep_stats=true)", 2, 2),
    ("%y = softmax(%p, axis=-1)", 1, 2),  # along the last axis in the given layout, as kernels work
    ("%y = log_softmax(%p, axis=2)", 2, 2),
    ("%y = log_softmax(%p)", 1, 2),
    ("%y = gen_index(%p, axis=1)", 2, 2),
    ("%y = reduce_max(%p, axes=[1], keep_dims=true)", 2, 1),
    ("%y = reduce_sum(%p)", 2, 2),
    ("%y = reduce_mean(%p, axes=[2,3])", 2, 1),
    ("%y = reduce_mean(%p, axes=[-1,-2], keep_dims=true)", 2, 1),
    ("%y = reduce_min(%p, axes=[1])", 2, 1),
    ("%y = reduce_l2(%p, axes=[2])", 2, 2),
    ("%y = reduce_sum(%p, axes=[0])", 1, 2),
    ("%y = static_reshape(%p, shape=[2,4,-1])", 2, 2),
    ("%0 = static_reshape(%p, shape=[2,4,20])\n %y = static_transpose(%0, order=[0,2,1])", 2, 1),
    ("%y = static_reshape(%p, shape=[2,80])", 1, 2),
    ("%y = static_reshape(%p, shape=[1,8,4,5])", 1, 2),
    ("%y = static_reshape(%p, shape=[2,2,2,20])", 1, 2),
    ("%y = dropout(%p, seed, seed, s)", 1, 2),
    ("%y = static_transpose(%p, order=[0,3,2,1])", 1, 3),
    ("%y = add(%p, chw)", 1, 2),
])
def test_operations_after_an_anchor(text, changed, transposes):
    """Behind a pool, whose source is reordered, and the result at the end where the layout reaches it."""
    inputs = ("x: f32[2,4,5,6], c: f32[4], v: f32[4], s: f32[], w1: f32[1], c11: f32[4,1,1], nc11: f32[2,4,1,1], "
              "chw: f32[4,4,5], one: f32[1,1,1,1], seed: s64[]")
    g = parse(f"graph({inputs}) {{\n{POOLED} {text}\n return %y\n}}")
    out = g.copy()
    assert channels_last(out) == changed
    verify(out)
    check_round_trip(out)
    data = random_inputs(g) | {"v": np.array([0.5, 1, 2, 3], np.float32), "s": np.array(0.25, np.float32)}
    got, wanted = (reference(x, data).astype(np.float64) for x in (out, g))
    np.testing.assert_allclose(got, wanted, rtol=1e-6)
    assert sum(n.op.name == "static_transpose" for n in out.nodes) == transposes


@pytest.mark.parametrize("shape", [(6,), (5, 6), (4, 5, 6), (1, 4, 5, 6), (4, 1, 1), (2, 4, 1, 1), ()])
@pytest.mark.parametrize("first", [False, True])
def test_constants_are_laid_out_when_compiled(shape, first):
    """A broadcast constant of any rank follows as a constant."""
    g = parse(f"graph(x: f32[2,4,6,7]) {{ {POOLED} return %p }}")
    c = g.constant(np.random.default_rng(0).standard_normal(shape).astype(np.float32))
    y = g.subtract(c, g.outputs[0]) if first else g.subtract(g.outputs[0], c)
    g.set_outputs([y], ["y"])
    assert reorders(g) == ["static_transpose"] * 2


@pytest.mark.parametrize("build", [
    lambda g, c: g.max_pool(c, strides=[1, 1], pads_begin=[0, 0], pads_end=[0, 0], kernel=[2, 2], data_format="NCX"),
    lambda g, c: g.group_norm(c, groups=2, use_affine=False, data_format="NCX")[0],
    lambda g, c: g.reduce_max(c, axes=[2, 3]),
    lambda g, c: g.static_reshape(c, shape=[2, 4, 30]),
    lambda g, c: g.softmax(c),
])
def test_constant_sources_are_laid_out_when_compiled(build):
    g = parse(f"graph(x: f32[2,4,5,6]) {{ {POOLED} return %p }}")
    y = build(g, g.constant(np.random.default_rng(0).standard_normal((2, 4, 5, 6)).astype(np.float32)))
    g.set_outputs([g.outputs[0], y], ["p", "y"])
    moves = reorders(g)
    assert moves.count("static_transpose") <= 3


@pytest.mark.parametrize("shape", ["[?,0,1,1]", "[0,4,1,1]", "[?,4,1,1]", "[?,?,1,1]", "[2,1,?,?]"])
def test_views_of_unknown_and_empty_tensors(shape):
    size = [{"?": 2}.get(d) or int(d) for d in shape.strip("[]").split(",")]
    g = parse(f'graph(x: f32{shape}) {{ %y = interpolate(x, mode="nearest", sizes=[2,3], {NCX})\n return %y }}')
    out = g.copy()
    assert channels_last(out) == 1
    check_same_numbers(g, out, sizes={"x": tuple(size)})


# -- the minimum cut --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_the_given_side_is_the_smallest_of_all_minimum_cuts(seed):
    rng = np.random.default_rng(seed)
    free = [f"n{k}" for k in range(int(rng.integers(1, 8)))]
    edges = [({str(p) for p in rng.choice([*free, GIVEN, LAST], int(rng.integers(2, 4)))}, int(rng.integers(1, 4)))
             for _ in range(int(rng.integers(1, 14)))]
    cuts = []
    for sides in product((False, True), repeat=len(free)):
        given = {GIVEN, *(n for n, side in zip(free, sides, strict=True) if side)}
        cuts.append((sum(cost for pins, cost in edges if pins & given and pins - given), len(given), given))
    found = _given_side(edges)
    assert {x for x in found if x == GIVEN or x in free} == min(cuts, key=lambda c: c[:2])[2]
