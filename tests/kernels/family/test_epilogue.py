"""Operands of epilogues: how each is loaded, which are one, and what their parameters vary along."""
import numpy as np
import pytest

import graphq as gq
from graphq.kernels.family.epilogue import (
    EpilogueBuilder,
    OperandSource,
    _undoes,
    above,
    along_channels,
    lane_wise,
    lane_wise_operations,
    of_bytes,
    operand_dims,
    refuses,
    translate,
)
from graphq.kernels.lanes.epilogues import Epilogue, evaluate
from graphq.kernels.lanes.expression import acc, load, op


def kind(out, shape, anchored=False):
    e = EpilogueBuilder(out, anchored)
    return e.slot(OperandSource("input", "f32", shape)).value[2]


@pytest.mark.parametrize("out, shape, alone, anchored", [
    ((4, 3), (4, 3), "vector", "vector"), ((4, 3), (3,), "vector", "column"), ((4, 3), (1, 3), "vector", "column"),
    ((4, 3), (4, 1), "row", "row"), ((4, 3), (1, 1), "scalar", "scalar"), ((4, 3), (), "scalar", "scalar"),
    ((4, 1), (4, 1), "vector", "row"), ((4, 1, 1), (4, 1, 1), "vector", "row"), ((4, 3, 1), (3, 1), "vector", "row"),
    ((2, 4, 3), (2, 1, 3), "vector", "vector"), ((2, 4, 3), (2, 1, 1), "row", "row"),
    ((2, 4, 1), (2, 1, 1), "row", "row"),
    ((1, 1), (1, 1), "scalar", "scalar"), ((4, 1), (1,), "scalar", "scalar")])
def test_how_operands_vary(out, shape, alone, anchored):
    assert (kind(out, shape), kind(out, shape, True)) == (alone, anchored)


def test_row_numbers_are_read_in_the_loop():
    assert EpilogueBuilder((4, 3)).slot(OperandSource("row numbers", "f32", (1, 1))).value[2] == "row"


def test_parameters():
    e = EpilogueBuilder((4, 3, 5))
    assert e.parameter([2.0], "f32", 1) is e.parameter([2.0], "f32", None) and e.sources[0].shape == ()
    assert e.parameter([1.0, 2.0, 3.0], "f32", 1).value[0] == 1 and e.sources[1].shape == (1, 3, 1)
    assert e.parameter([1.0, 2.0, 3.0], "f32", 1, role="other").value[0] == 2
    assert e.parameter([1, 2, 3, 4], "s32", 0).value == (3, "s32", "row") and e.sources[3].shape == (4, 1, 1)
    assert e.parameter([1, 2, 3, 4], "s32", 0).value[0] == 3 and len(e.sources) == 4
    again = EpilogueBuilder((4, 3, 5), sources=e.sources)
    assert again.parameter([1.0, 2.0, 3.0], "f32", 1).value[0] == 1 and len(again.sources) == 4


def test_operands_that_differ_only_in_one_fact_have_slots_of_their_own():
    e, ones = EpilogueBuilder((4, 3)), np.ones(3, np.float32)
    sources = [
        OperandSource("parameter", "f32", (3,), data=ones), OperandSource("parameter", "f32", (3,), data=-ones),
        OperandSource("parameter", "s32", (3,), data=ones.view(np.int32)),
        OperandSource("parameter", "f32", (1, 3), data=ones), OperandSource("table", "f32", (3,), data=ones),
        OperandSource("parameter", "f32", (3,), data=ones, role="other"),
        OperandSource("input", "f32", (3,)), OperandSource("input", "f32", (3,), 1),
        OperandSource("input", "s32", (3,))]
    loads = [e.slot(s) for s in (*sources, *sources)]
    assert e.sources == sources and loads[:len(sources)] == loads[len(sources):] and len(set(loads)) == len(sources)


def test_inputs():
    g = gq.Graph()
    flags, x = g.input("b", dtype="boolean", shape=(4, 3)), g.input("x", dtype="u8", shape=(3,))
    e = EpilogueBuilder((4, 3))
    made = e.input(5, flags)
    assert made.op == "ne" and made.args[0].value[:2] == (0, "u8") and e.sources[0].index == 5
    assert e.input(6, x, (3, 1)).value == (1, "u8", "row") and e.sources[1].shape == (3, 1)


def test_numbers_that_are_the_same_for_all_rows():
    e = EpilogueBuilder((4, 3), anchored=True)
    column, scalar = e.parameter([1.0, 2.0, 3.0], "f32", 1), e.parameter([5.0], "f32", None)
    row, own = e.slot(OperandSource("input", "f32", (4, 1), 0)), e.slot(OperandSource("input", "f32", (3,), 1))
    found = e.numbers([np.ones(4), np.arange(3.0)])
    assert set(found) == {column, scalar, own} and row not in found and found[own].tolist() == [0, 1, 2]
    assert set(e.numbers([None, None])) == {column, scalar}


def node(text, inputs="x: f32[2,3,4]"):
    return gq.parse(f"graph({inputs}) {{\n %0 = {text}\n return %0\n}}").nodes[-1]


@pytest.mark.parametrize("rank, axis, wanted", [(3, 1, 2), (3, -1, 3), (2, 0, 2), (1, 0, 3), (4, 0, 0)])
def test_axes_of_lower_ranks(rank, axis, wanted):
    dims = (3,) * rank
    quantize = node(f'quantize(x, dtype=u8, qtype="per_channel", axis={axis}, scales=[0.5, 1, 2])',
                    f"x: f32[{','.join(map(str, dims))}]")
    assert EpilogueBuilder((3, 3, 3, 3)).axis(quantize) == wanted
    assert EpilogueBuilder((3, 3)).axis(node("quantize(x, dtype=u8, scales=[0.5])")) is None


@pytest.mark.parametrize("text, inputs, k, shape", [
    ('bias_add(x, b, data_format="NCX")', "x: f32[2,3,4], b: f32[3]", 1, (3, 1)),
    ('bias_add(x, b, data_format="NXC")', "x: f32[2,3,4], b: f32[4]", 1, (4,)),
    ('prelu(x, b, data_format="NCX", per_channel_broadcast=false)', "x: f32[2,3,4], b: f32[4]", 1, (4,)),
    ('prelu(x, b, data_format="NCX")', "x: f32[2,3,4], b: f32[3]", 1, (3, 1)),
    ('dynamic_quantize(x, b, dtype=u8, qtype="per_channel", axis=-2)', "x: f32[2,3,4], b: f32[3]", 1, (3, 1)),
    ('dynamic_quantize(x, b, dtype=u8, qtype="per_channel", axis=2)', "x: f32[2,3,4], b: f32[4]", 1, (4,)),
    ("dynamic_quantize(x, b, dtype=u8)", "x: f32[2,3,4], b: f32[1]", 1, ()),
    ("dynamic_quantize(x, b, dtype=u8)", "x: f32[2,3,4], b: f32[1]", 0, (2, 3, 4)),
    ("add(x, b)", "x: f32[2,3,4], b: f32[3,1]", 1, (3, 1))])
def test_shapes_of_operands(text, inputs, k, shape):
    n = node(text, inputs)
    assert operand_dims(n, k, n.inputs[k]) == shape
    assert along_channels(n) == (shape == (3, 1) and n.op.name in ("bias_add", "prelu"))


@pytest.mark.parametrize("text, inputs, reason", [
    ("softmax(x, axis=1)", "x: f32[2,3]", "no lane-wise rule for softmax"),
    ("add(x, x)", "x: f32[2]", None), ("cast(x, dtype=f32)", "x: s64[2]", "kernels do not load s64"),
    ("quantize(x, dtype=f8_e4m3, scales=[1])", "x: f32[2]", None),
    ("cast(x, dtype=f32)", "x: u8[2]", None), ("cast(x, dtype=s32)", "x: f32[2]", None),
    ("cast(x, dtype=u8)", "x: f32[2]", None), ("cast(x, dtype=u16)", "x: f32[2]", "kernels do not cast f32 to u16"),
    ("cast(x, dtype=s32)", "x: s8[2]", "kernels do not cast s8 to s32"),
    ("cast(x, dtype=f32)", "x: boolean[2]", "kernels do not cast boolean to f32"),
    ('dynamic_dequantize(x, s, qtype="per_group", group_shape=[1,2])', "x: u8[2,4], s: f32[2,2]",
     "scales of groups of [1, 2]")])
def test_refusals(text, inputs, reason):
    assert refuses(node(text, inputs)) == reason


def test_what_a_quantize_undoes():
    def undone(first="scales=[0.5], zps=[3]", second="scales=[0.5], zps=[3]", dtype="u8"):
        g = gq.parse(f"graph(x: u8[2,3]) {{\n %0 = dequantize(x, {first})\n"
                     f" %1 = quantize(%0, dtype={dtype}, {second})\n return %1\n}}")
        return _undoes(*g.nodes)

    channels = 'qtype="per_channel", axis={}, scales=[0.5,1,2]'
    assert undone() and undone("scales=[0.5]", "scales=[0.5], zps=[0]")
    assert undone(channels.format(1), channels.format(-1))
    assert not undone(dtype="s8") and not undone(second="scales=[0.5], zps=[4]") and not undone(second="scales=[0.25]")
    assert not undone(channels.format(1), 'qtype="per_channel", axis=1, scales=[0.5,1,4]')
    for scale, fits in ((2.0**-99, True), (2.0**-100, False), (2.0**99, True), (2.0**100, False)):
        assert undone(f"scales=[{scale}]", f"scales=[{scale}]") is fits
        assert undone(*[f'qtype="per_channel", axis=1, scales=[1,{scale},2]'] * 2) is fits


@pytest.mark.parametrize("users, returned, skipped", [
    (["quantize"], False, True), (["quantize", "quantize"], False, True), (["quantize", "relu"], False, False),
    (["relu", "quantize"], False, False), (["quantize"], True, False), ([], True, False)])
def test_a_dequantize_is_left_out_if_all_users_undo_it(users, returned, skipped):
    g = gq.Graph()
    d = g.dequantize(g.input("x", dtype="u8", shape=(4, 3)), scales=[0.5], zps=[3])
    for name in users:
        g.output(g.relu(d) if name == "relu" else g.quantize(d, dtype="u8", scales=[0.5], zps=[3]))
    if returned:
        g.output(d)
    x = load(0, "u8", "vector")
    assert (EpilogueBuilder((4, 3)).dequantized(x, d.node, d) is x) is skipped


def test_nodes_above_a_value():
    g = gq.parse("graph(x: f32[2]) {\n %0 = relu(x)\n %1 = tanh(x)\n %2 = exp(%0)\n"
                 " %3 = add(%2, %0)\n return %3, %1\n}")
    assert above(g.nodes[3].output) == [g.nodes[0], g.nodes[2], g.nodes[3]] and above(g.inputs[0]) == []


def test_inverse_scales_are_rounded_once():
    n = node('quantize(x, dtype=u8, qtype="per_channel", axis=1, scales=[0.1, 3.0, 7.0])')
    want = [np.float32(1 / np.float64(np.float32(s))) for s in (0.1, 3.0, 7.0)]
    e = EpilogueBuilder((2, 3, 4), anchored=True)
    lane_wise(e, n, [acc("f32")])
    (inverse,) = [x.data for x in e.sources if x.shape == (1, 3, 1)]
    assert inverse.tolist() == want and inverse.dtype == np.float32


def test_functions_of_bytes():
    body = gq.parse("graph(x: f32[4]) {\n %0 = quantize(x, dtype=u8, scales=[0.5])\n"
                    " %1 = dequantize(%0, scales=[0.5])\n %2 = tanh(%1)\n return %2\n}")
    e = EpilogueBuilder((4,))
    assert of_bytes(translate(e, body)) and not of_bytes(op("tanh", acc("f32")))
    sums = gq.parse("graph(x: f32[4]) {\n %0 = relu(x)\n %1 = quantize(%0, dtype=u8, scales=[0.5])\n"
                    " %2 = dequantize(%1, scales=[0.5])\n %3 = tanh(%2)\n return %3, %0\n}")
    e = EpilogueBuilder((4,), anchored=True)
    assert of_bytes(translate(e, sums, (sums.nodes[0], lambda args: acc("f32"))))
    assert not of_bytes(e.values[sums.nodes[0].output])
    assert of_bytes(load(0, "f32", "vector")) and not of_bytes(acc("f32") + load(0, "f32", "vector"))


SPECIAL = np.float32([0, -0.0, 1, -1, 2.5, -2.5, 100, -100, 1e9, -1e9, 2**31, -2**31, 3e38, -3e38, np.inf, -np.inf,
                      np.nan, 1e-42, 0.5, 1.5])


@pytest.mark.parametrize("text", [
    "cast(x, dtype=s32)", "cast(x, dtype=s8)", "cast(x, dtype=u8)",
    "clamp(x, min=-2, max=3)", "maximum(x, y)", "minimum(x, y)", "prelu(x, y)",
    "leaky_relu(x, alpha=0.1)", "ceil(x)", "floor(x)", "round(x)", "relu(x)", "abs(x)", "square(x)", "reciprocal(x)",
    "subtract(x, y)", "divide(x, y)", "squared_difference(x, y)",
    "quantize(x, dtype=u8, scales=[0.5], zps=[7])", "quantize(x, dtype=s8, scales=[1e-30])",
    "quantize(x, dtype=s8, scales=[1e30])", "quantize(x, dtype=u16, scales=[0.1], zps=[700])"])
def test_rules_on_special_numbers(text):
    body = gq.parse(f"graph(x: f32[400], y: f32[400]) {{\n %0 = {text}\n return %0\n}}")
    x, y = (a.ravel() for a in np.meshgrid(SPECIAL, SPECIAL))
    e = EpilogueBuilder((400,))
    expr = translate(e, body)
    operands = [(x, y)[s.index] if s.origin == "input" else s.data.reshape(-1) for s in e.sources]
    got = evaluate(Epilogue(expr, body.outputs[0].dtype.name), None, operands)
    want = gq.reference(body, {"x": x, "y": y})
    assert np.array_equal(got.astype(want.dtype), want, equal_nan=want.dtype.kind == "f")
    assert {n.op.name for n in body.nodes} <= set(lane_wise_operations())


@pytest.mark.parametrize("text, more", [
    ("dynamic_quantize(x, s, dtype=u8)", "s: f32[]"), ("dynamic_quantize(x, s, z, dtype=s8)", "s: f32[], z: s8[]"),
    ("dynamic_quantize(x, s, z, dtype=u8)", "s: f32[], z: s32[]"),
    ("dynamic_quantize(x, s, z, dtype=u8)", "s: f32[], z: u8[]"),
    ('dynamic_quantize(x, s, z, dtype=s8, qtype="per_channel", axis=0)', "s: f32[20], z: s32[20]"),
    ('dynamic_quantize(x, s, z, dtype=u8, qtype="per_channel", axis=1)', "s: f32[20], z: u8[20]"),
    ("dynamic_dequantize(q, s)", "s: f32[]"), ("dynamic_dequantize(q, s, z)", "s: f32[], z: s32[]"),
    ('dynamic_dequantize(q, s, z, qtype="per_channel", axis=0)', "s: f32[20], z: s8[20]"),
    ('dynamic_dequantize(q, s, z, qtype="per_channel", axis=0)', "s: f32[20], z: s32[20]"),
    ('dynamic_dequantize(q, s, qtype="per_channel", axis=-1)', "s: f32[20]")])
def test_rules_of_scales_that_are_tensors(text, more):
    """On special numbers, and with zero points far out of the integers' range: then within 2**22 steps."""
    body = gq.parse(f"graph(x: f32[20,20], q: s8[20,20], {more}) {{\n %0 = {text}\n return %0\n}}")
    rng = np.random.default_rng(0)
    far = np.resize([7, -9, 2**22, -2**22, 2**22 + 7, 2**30, -2**31, 2**31 - 1], 20)
    near = np.clip(SPECIAL, -1e5, 1e5) if "s32" in more else SPECIAL
    arrays = {"x": np.resize(near, (20, 20)), "q": rng.integers(-128, 128, (20, 20)).astype(np.int8)}
    for v in body.inputs[2:]:
        one = {"f32": np.resize(np.float32([0.5, 0.1, 3]), 20), "s32": far}.get(v.dtype.name, np.arange(20))
        arrays[v.name] = one.astype(v.dtype.numpy).reshape(v.type.dims) if v.shape else one[0].astype(v.dtype.numpy)
    e = EpilogueBuilder((20, 20))
    expr = translate(e, body)
    operands = [list(arrays.values())[s.index].reshape(s.shape) for s in e.sources]
    got, want = evaluate(Epilogue(expr, body.outputs[0].dtype.name), None, operands), gq.reference(body, arrays)
    assert got.dtype == want.dtype and np.array_equal(got, want, equal_nan=want.dtype.kind == "f")


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_each_intermediate_result_has_the_precision_of_its_type(dtype):
    body = gq.parse(f"graph(x: {dtype}[400], y: {dtype}[400]) {{\n %0 = add(x, y)\n %1 = multiply(%0, x)\n"
                    " %2 = subtract(%1, y)\n return %2\n}")
    x, y = (np.random.default_rng(k).normal(size=400).astype(body.inputs[0].dtype.numpy) for k in range(2))
    e = EpilogueBuilder((400,))
    expr = translate(e, body)
    got = evaluate(Epilogue(expr, dtype), None, [(x, y)[s.index] for s in e.sources])
    want = gq.reference(body, {"x": x, "y": y})
    assert got.dtype == want.dtype and got.tobytes() == want.tobytes()


def test_integers_between_operations_saturate():
    body = gq.parse("graph(x: f32[20]) {\n %0 = quantize(x, dtype=u8, scales=[0.5], zps=[7])\n"
                    " %1 = cast(%0, dtype=f32)\n %2 = quantize(%1, dtype=s8, scales=[0.25])\n return %2\n}")
    e = EpilogueBuilder((20,))
    expr = translate(e, body)
    operands = [SPECIAL if s.origin == "input" else s.data.reshape(-1) for s in e.sources]
    got = evaluate(Epilogue(expr, "s8"), None, operands)
    assert np.array_equal(got, gq.reference(body, {"x": SPECIAL}))
