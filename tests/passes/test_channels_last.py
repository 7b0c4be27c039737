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
    """[n, t, c] -> [n, c, t] and back are one order: which is meant, the neighbours tell."""
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
