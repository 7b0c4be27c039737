"""Dequantize moves behind what picks, repeats and joins; text in and text out, with the negatives."""
import itertools
import re
from functools import partial

import numpy as np
import pytest

import graphq as gq
from graphq.passes.move_quantization import (
    CastBeforeMoves,
    ConcatBeforeDequantize,
    GatherBeforeDequantize,
    PadBeforeDequantize,
    PickBeforeDequantize,
    QuantizeBeforePad,
    QuantizeBeforeReshape,
    QuantizeBeforeTranspose,
    ReshapeBeforeDequantize,
    TransposeBeforeDequantize,
)
from graphq.testing import check_pass

PICKS = ["slice({}, axes=[1], starts=[4], ends=[-9], steps=[-2])", "expand({}, shape=[3,1,1])"]


check = partial(check_pass, inputs="x: u8[4,6]")


@pytest.mark.parametrize("move, shape", [("static_reshape({}, shape=[3,8])", "4,6"),
                                         ("static_transpose({}, order=[1,0])", "4,6")])
def test_casts_to_narrower_types(move, shape):
    def text(cast_first, dtype):
        first, second = (f"type_cast({{}}, dtype={dtype})", move)[::1 if cast_first else -1]
        return f"%0 = {first.format('x')}\n %1 = {second.format('%0')}\n return %1"

    for dtype in ("bf16", "f16"):
        check_pass(CastBeforeMoves(), text(False, dtype), text(True, dtype), inputs=f"x: f32[{shape}]", count=1)
    check_pass(CastBeforeMoves(), text(False, "f32"), inputs=f"x: bf16[{shape}]", after=text(False, "f32"))
    both = text(False, "bf16").replace("return %1", "return %0, %1")  # the moved value has another user
    check_pass(CastBeforeMoves(), both, inputs=f"x: f32[{shape}]", after=both)


@pytest.mark.parametrize("pick", PICKS)
def test_picks(pick):
    check(PickBeforeDequantize(),
          f"%0 = dequantize(x, scales=[0.1], zps=[3])\n %1 = {pick.format('%0')}\n return %1",
          f"%0 = {pick.format('x')}\n %1 = dequantize(%0, scales=[0.1], zps=[3])\n return %1", count=1)


@pytest.mark.parametrize("axis,pick,after", [
    (0, "slice({}, axes=[-1], starts=[2], ends=[5], steps=[1])", 0),
    (-2, "slice({}, axes=[1], starts=[2], ends=[5], steps=[1])", 0), (0, "expand({}, shape=[3,4,6])", 1),
    (0, "slice({}, axes=[0], starts=[0], ends=[3], steps=[1])", None), (0, "slice({}, axes=[0,1], starts=[1,1], "
     "ends=[4,4], steps=[1,1])", None),
    (0, "slice({}, axes=[0], starts=[3], ends=[-5], steps=[-1])", None)])
def test_channels_that_are_not_picked_move(axis, pick, after):
    channels = 'dequantize({}, qtype="per_channel", axis={}, scales=[1,2,3,4])'
    check(PickBeforeDequantize(), f"%0 = {channels.format('x', axis)}\n %1 = {pick.format('%0')}\n return %1",
          None if after is None else f"%0 = {pick.format('x')}\n %1 = {channels.format('%0', after)}\n return %1")


def test_a_channel_that_is_repeated_stays():
    check(PickBeforeDequantize(), """%0 = dequantize(x, qtype="per_channel", axis=0, scales=[0.5])
        %1 = expand(%0, shape=[3,6])\n return %1""", inputs="x: u8[1,6]")


def test_a_second_user_keeps_the_dequantize():
    text = f"%0 = dequantize(x, scales=[0.1])\n %1 = {PICKS[0].format('%0')}\n return %1, %0"
    check(PickBeforeDequantize(), text)


GATHERED = "%t = constant(value=u8[3,2]{1, 2, 3, 4, 5, 6}) : u8[3,2]\n"


def test_gather():
    g = gq.parse(f"""graph(i: s64[5]) {{\n {GATHERED} %0 = dequantize(%t, scales=[0.5], zps=[1])
        %1 = gather(%0, i)\n return %1\n}}""")
    h = g.copy()
    assert GatherBeforeDequantize()(h) == 1
    assert [n.op.name for n in h.nodes] == ["constant", "gather", "dequantize"]
    i = np.asarray([0, -1, 2, 1, -3])
    np.testing.assert_array_equal(gq.reference(h, i=i), gq.reference(g, i=i))


@pytest.mark.parametrize("gather,channels,after", [(0, 1, 2), (1, 0, 0), (-1, -2, 0), (0, -1, 2), (0, 0, None)])
def test_gather_of_other_axes_than_the_channels(gather, channels, after):
    text = 'dequantize({}, qtype="per_channel", axis={}, scales=[1,2,3,4])'
    g = gq.parse(f"""graph(x: u8[4,4], i: s64[2,3]) {{\n %0 = {text.format('x', channels)}
        %1 = gather(%0, i, axis={gather})\n return %1\n}}""")
    h = g.copy()
    assert GatherBeforeDequantize()(h) == (after is not None)
    assert after is None or h.outputs[0].node.attrs["axis"] == after
    feeds = {"x": np.arange(16, dtype=np.uint8).reshape(4, 4), "i": np.asarray([[0, 3, 1], [2, -1, 0]])}
    np.testing.assert_array_equal(gq.reference(h, feeds), gq.reference(g, feeds))


UNRANKED = [  # a rewrite, its pattern, and the operands of which any may have a rank that is not known
    (ReshapeBeforeDequantize, "%0 = dequantize(x, {})\n %1 = static_reshape(%0, shape=[4,2,2])", "x: u8[4,4]"),
    (QuantizeBeforeReshape, "%0 = static_reshape(x, shape=[4,4])\n %1 = quantize(%0, dtype=u8, {})", "x: f32[4,2,2]"),
    (GatherBeforeDequantize, "%0 = dequantize(x, {})\n %1 = gather(%0, i, axis=1)", "x: u8[4,4], i: s64[2,3]"),
    (PickBeforeDequantize, f"%0 = dequantize(x, {{}})\n %1 = {PICKS[0].format('%0')}", "x: u8[4,9]"),
    (PickBeforeDequantize, f"%0 = dequantize(x, {{}})\n %1 = {PICKS[1].format('%0')}", "x: u8[4,4]"),
]


@pytest.mark.parametrize("rewrite, body, inputs", UNRANKED, ids=lambda x: getattr(x, "__name__", ""))
def test_channels_move_where_all_ranks_are_known_alone(rewrite, body, inputs):
    """Each operand's rank in turn; with one scale for all, no rank needs to be known."""
    sizes = {name: tuple(map(int, dims.split(","))) for name, dims in re.findall(r"(\w): \w+\[(.*?)\]", inputs)}
    for unknown in [set(), *({name} for name in sizes), set(sizes)]:
        types = ", ".join(re.sub(r"\[.*", "[*]", x) if x[0] in unknown else x for x in re.split(r", (?=\w:)", inputs))
        for scale in ("scales=[0.5]", 'qtype="per_channel", axis=0, scales=[1,2,3,4]'):
            before = gq.parse(f"graph({types}) {{\n {body.format(scale)}\n return %1\n}}")
            g = before.copy()
            assert rewrite()(g) == ("per_channel" not in scale or not unknown), (types, scale)
            gq.testing.check_same_numbers(before, g, sizes=sizes)


@pytest.mark.parametrize("parameters,pad,value", [
    ("scales=[0.1], zps=[3]", ", value=-0.0", None), ("scales=[-0.1], zps=[3]", ", value=-0.0", 3),
    ("scales=[-0.1], zps=[3]", ", value=0.0", None),
    ("scales=[0.1], zps=[3]", "", 3), ("scales=[0.5], zps=[3]", ", value=-1.5", 0),
    ("scales=[0.5], zps=[3]", ", value=126", 255), ("scales=[0.5], zps=[3]", ', mode="edge"', 0),
    ("scales=[0.5], zps=[3]", ", value=0.25", None), ("scales=[0.5], zps=[3]", ", value=127", None),
    ('qtype="per_channel", axis=0, scales=[1,2,3,4]', "", None)])
def test_pad(parameters, pad, value):
    at = "pads_begin=[1,0], pads_end=[0,2]"
    moved = ', mode="edge"' if "edge" in pad else f", value={value}"
    check(PadBeforeDequantize(), f"%0 = dequantize(x, {parameters})\n %1 = pad(%0, {at}{pad})\n return %1",
          None if value is None else f"%0 = pad(x, {at}{moved})\n %1 = dequantize(%0, {parameters})\n return %1")


def test_pad_of_floats_that_are_quantized_stays():
    check(PadBeforeDequantize(), "%0 = dequantize(x, scales=[0.1])\n %1 = pad(%0, pads_begin=[1,0], pads_end=[0,2])\n "
          "return %1", inputs="x: f8_e4m3[4,6]")


@pytest.mark.parametrize("pad, moved", [("value=-0.26", "value=0"), ("value=1e30", "value=255"), ("", "value=3"),
                                        ('mode="reflect", value=9', 'mode="reflect", value=93')])
def test_quantize_moves_in_front_of_pads(pad, moved):
    at, scales = "pads_begin=[1,0], pads_end=[0,2]", "dtype=u8, scales=[0.1], zps=[3]"
    check(QuantizeBeforePad(), f"%0 = pad(x, {at}, {pad})\n %1 = quantize(%0, {scales})\n return %1",
          f"%0 = quantize(x, {scales})\n %1 = pad(%0, {at}, {moved})\n return %1", inputs="x: f32[4,6]")


ORDERS = list(itertools.permutations(range(3)))


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_channels_follow_every_transpose(order, axis):
    """Orders of three, of which two are not their own inverse; both ways round, with equal numbers."""
    size, place = (2, 3, 4)[axis], order.index(axis % 3)
    many = f"axis={{}}, scales={[0.25 * k + 0.5 for k in range(size)]}"
    moved, shape = f"static_transpose({{}}, order={list(order)})", [(2, 3, 4)[k] for k in order]
    before, after = (f'qtype="per_channel", {many.format(a)}' for a in (axis, place))
    check(TransposeBeforeDequantize(), f"%0 = dequantize(x, {before})\n %1 = {moved.format('%0')}\n return %1",
          f"%0 = {moved.format('x')}\n %1 = dequantize(%0, {after})\n return %1", inputs="x: u8[2,3,4]", count=1)
    g = gq.parse(f"""graph(x: f32[2,3,4]) {{\n %0 = {moved.format('x')}
        %1 = quantize(%0, dtype=u8, {after})\n return %1\n}}""")
    h = g.copy()
    assert QuantizeBeforeTranspose()(h) == 1 and h.outputs[0].type == g.outputs[0].type
    assert list(h.outputs[0].shape) == shape
    gq.testing.check_same_numbers(g, h)


@pytest.mark.parametrize("kind, shape, moved", [("per_tensor", "1", 1), ("per_channel", "3", 2)])
def test_transposes_move_before_scales_of_run_time(kind, shape, moved):
    def text(first, second, axis):
        return f"%0 = {first}\n %1 = {second}\n return %1".replace("AXIS", str(axis))

    order, scaled = "static_transpose({}, order=[0,2,1])", f'dynamic_dequantize({{}}, s, qtype="{kind}", axis=AXIS)'
    check(TransposeBeforeDequantize(), text(scaled.format("x"), order.format("%0"), 1),
          text(order.format("x"), scaled.format("%0"), moved), inputs=f"x: u8[2,3,4], s: f32[{shape}]", count=1)


def test_transposes_stay_after_scales_of_groups():
    text = """%0 = dynamic_dequantize(x, s, qtype="per_group", group_shape=[1, 2])
              %1 = static_transpose(%0, order=[1,0])
              return %1"""
    check(TransposeBeforeDequantize(), text, text, inputs="x: u8[3,4], s: f32[3,2]", count=0)


RESHAPES = [(2, 3, 4), (2, 12), (6, 4), (24,), (2, 1, 3, 4), (3, 2, 4), (4, 3, 2), (2, 3, 2, 2), (1, 2, 3, 4),
            (2, 3, 4, 1)]


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("shape", RESHAPES, ids=str)
def test_channels_that_a_reshape_keeps_move_with_equal_numbers(shape, axis):
    scales = [0.25 * k + 0.5 for k in range((2, 3, 4)[axis])]
    g = gq.parse(f"""graph(x: u8[2,3,4]) {{\n %0 = dequantize(x, qtype="per_channel", axis={axis}, scales={scales})
        %1 = static_reshape(%0, shape={list(shape)})\n return %1\n}}""")
    h = g.copy()
    outside, size = (1, 2, 6)[axis], (2, 3, 4)[axis]
    kept = any(d == size and np.prod(shape[:k]) == outside for k, d in enumerate(shape))
    assert ReshapeBeforeDequantize()(h) == kept
    gq.testing.check_same_numbers(g, h)
    back = gq.parse(f"""graph(x: f32{list(shape)}) {{\n %0 = static_reshape(x, shape=[2,3,4])
        %1 = quantize(%0, dtype=s8, qtype="per_channel", axis={axis}, scales={scales})\n return %1\n}}""")
    h = back.copy()
    assert QuantizeBeforeReshape()(h) == kept
    gq.testing.check_same_numbers(back, h)


@pytest.mark.parametrize("end", [
    'quantize(%0, dtype=u8, qtype="per_channel", axis=0, scales=[0.1,0.2,0.3,0.4,0.5])\n return %1',
    "quantize(%0, dtype=f8_e4m3, scales=[0.1])\n return %1", "quantize(%0, dtype=u8, scales=[0.1])\n return %1, %0"])
def test_quantizes_that_stay_behind_pads(end):
    check(QuantizeBeforePad(), f"%0 = pad(x, pads_begin=[1,0], pads_end=[0,2])\n %1 = {end}", inputs="x: f32[4,6]")


JOINED = ("%0 = dequantize(x, scales=[0.1], zps=[3])\n %1 = dequantize(y, {})\n %2 = concat(%0, %1, axis=1)\n "
          "%3 = {}\n return %3")


def test_concat():
    matmul = "matmul({}, w)"
    check(ConcatBeforeDequantize(), JOINED.format("scales=[0.1], zps=[3]", matmul.format("%2")),
          f"""%0 = concat(x, y, axis=1)\n %1 = dequantize(%0, scales=[0.1], zps=[3])\n %2 = {matmul.format('%1')}
          return %2""", inputs="x: u8[4,6], y: u8[4,2], w: f32[8,3]", count=1)
    check(ConcatBeforeDequantize(), JOINED.format("scales=[0.1], zps=[4]", matmul.format("%2")),
          inputs="x: u8[4,6], y: u8[4,2], w: f32[8,3]")
    check(ConcatBeforeDequantize(), JOINED.format("scales=[0.1], zps=[3]", matmul.format("%2")),
          inputs="x: u8[4,6], y: s8[4,2], w: f32[8,3]")
    check(ConcatBeforeDequantize(), JOINED.format("scales=[0.1], zps=[3]", "exp(%2)"), inputs="x: u8[4,6], y: u8[4,2]")


def test_concat_of_a_source_that_is_float_stays():
    check(ConcatBeforeDequantize(), """%0 = dequantize(x, scales=[0.1])\n %1 = concat(%0, y, axis=1)
        %2 = matmul(%1, w)\n return %2""", inputs="x: u8[4,6], y: f32[4,2], w: f32[8,3]")


@pytest.mark.parametrize("move", [
    "slice({}, axes=[1], starts=[1], ends=[5], steps=[2])", "pad({}, pads_begin=[1,0], pads_end=[0,2])",
    "expand({}, shape=[3,4,6])", "static_reshape({}, shape=[6,4])", "static_transpose({}, order=[1,0])",
    "gather({}, i, axis=1)"])
def test_between_equal_parameters_integers_move_alone(move):
    g = gq.parse(f"""graph(x: u8[4,6], i: s64[2]) {{
        %0 = dequantize(x, scales=[0.1], zps=[3])\n %1 = {move.format('%0')}
        %2 = quantize(%1, dtype=u8, scales=[0.1], zps=[3])\n %3 = dequantize(%2, scales=[0.1], zps=[3])\n %4 = exp(%3)
        return %4\n}}""")
    model = gq.compile(g)
    ops = {n.op.name for n in model.graph.nodes} | {b.op.name for n in model.graph.nodes if n.op.name == "partition"
                                                    for b in n.attrs["body"].nodes}
    assert "quantize" not in ops
    feeds = {**gq.testing.random_inputs(g), "i": np.asarray([5, 0])}
    np.testing.assert_allclose(model(feeds), gq.reference(g, feeds), rtol=1e-6)


def test_slices_of_one_dequantize_all_move():
    g = gq.parse("""graph(x: u8[4,6]) {\n %0 = dequantize(x, scales=[0.1])
        %1 = slice(%0, axes=[1], starts=[0], ends=[3], steps=[1])
        %2 = slice(%0, axes=[1], starts=[3], ends=[6], steps=[1])
        %3 = quantize(%1, dtype=u8, scales=[0.1])\n %4 = quantize(%2, dtype=u8, scales=[0.1])\n return %3, %4\n}""")
    model = gq.compile(g)
    assert not any(n.op.name == "partition" for n in model.graph.nodes)


def test_a_table_stays_as_it_is_in_the_compiled_graph():
    g = gq.parse(f"""graph(i: s64[5]) {{\n {GATHERED} %0 = dequantize(%t, scales=[0.5], zps=[1])
        %1 = gather(%0, i)\n return %1\n}}""")
    model = gq.compile(g)
    assert {n.output.dtype.name for n in model.graph.nodes if n.op.name == "constant"} == {"u8"}
    i = np.asarray([0, -1, 2, 1, -3])
    np.testing.assert_array_equal(model(i=i), gq.reference(g, i=i))
