"""Lowering of convolutions: refusals with their texts, parameters of groups, and formulas against the reference."""
import numpy as np
import pytest
from epilogues import check_epilogue

import graphq as gq
from graphq.kernels.conv.family import macs
from graphq.kernels.conv.lower import lower_convolution
from graphq.kernels.family.unsupported import Unsupported


def body(op="convolution", dims=(2, 5, 6, 4), w_dims=(6, 4, 3, 2), x="u8", w="s8", left=None, right=None,
         weights_format="OIX", **attrs):
    g = gq.Graph("body")
    a, b = g.input("x", dtype=x, shape=dims), g.input("w", dtype=w, shape=w_dims)
    rank = len(dims) - 2
    attrs = {"strides": [1] * rank, "pads_begin": [0] * rank, "pads_end": [0] * rank, "dilations": [1] * rank,
             "data_format": "NXC", "weights_format": weights_format, **attrs}
    operands = (g.dequantize(v, **{"scales": [0.5], **(o or {})}) for v, o in ((a, left), (b, right)))
    g.output(getattr(g, op)(*operands, **attrs), name="y")
    return g


def refusal(constants=(None, None), **options):
    with pytest.raises(Unsupported) as error:
        lower_convolution(body(**options), list(constants))
    return str(error.value), error.value.edit, error.value.operand


def channels(count, axis):
    return {"qtype": "per_channel", "axis": axis, "scales": [0.5 + k for k in range(count)]}


OUTPUTS = "quantize the weights along the output channels, {} of s8[6,4,3,2], or per tensor"
INSIDE = "the input is quantized per channel along axis {}: its scale would vary inside the sum"


@pytest.mark.parametrize("options, reason, edit, operand", [
    (dict(left=channels(4, -1)), INSIDE.format(3), "quantize the input per tensor", 0),
    (dict(left=channels(2, 0)), INSIDE.format(0), "quantize the input per tensor", 0),
    (dict(right=channels(4, 1)), "the weights are quantized along axis 1, not along the output channels",
     OUTPUTS.format("axis 0"), 1),
    (dict(right=channels(2, -1)), "the weights are quantized along axis 3, not along the output channels",
     OUTPUTS.format("axis 0"), 1),
    (dict(w="u8"), "the weights are u8 or have zero points, and are not constant",
     "make the weights a constant, or quantize them to s8 without zero points", 1),
    (dict(right={"zps": [1]}), "the weights are u8 or have zero points, and are not constant",
     "make the weights a constant, or quantize them to s8 without zero points", 1),
    (dict(data_format="NCX", dims=(2, 4, 5, 6)), "the convolution is channels-first (NCX), kernels are channels-last "
     "(NXC)", "", None),
    (dict(op="conv_transpose", strides=[65, 64], dims=(1, 2, 2, 4)),
     "strides of [65, 64] make 4160 phases, kernels take at most 4096", "take smaller strides", None)])
def test_refusals(options, reason, edit, operand):
    assert refusal(**options) == (reason, edit, operand)


def test_as_many_phases_as_there_may_be():
    lower_convolution(body("conv_transpose", strides=[64, 64], dims=(1, 2, 2, 4)), [None, None])


def test_sums_at_the_limit():
    k = 2**31 // (255 * 128)
    lower_convolution(body(dims=(1, 1, 1, k), w_dims=(1, k, 1, 1)), [None, None])
    assert refusal(dims=(1, 1, 1, k + 1), w_dims=(1, k + 1, 1, 1))[0] == \
        f"sums over k = {k + 1} can reach {(k + 1) * 255 * 128}, beyond s32"
    small = np.ones((1, k + 1, 1, 1), np.int8)
    lower_convolution(body(dims=(1, 1, 1, k + 1), w_dims=(1, k + 1, 1, 1)), [None, small])


FORMATS = {"OIX": (0, 1, 2, 3), "XIO": (2, 3, 1, 0), "IOX": (1, 0, 2, 3), "XOI": (2, 3, 0, 1)}
CASES = {
    "plain": dict(), "padding": dict(pads_begin=[1, 0], pads_end=[2, 1], left={"zps": [7]}),
    "strides and dilations": dict(strides=[2, 3], dilations=[2, 1], pads_begin=[1, 1], pads_end=[1, 1]),
    "columns": dict(right=channels(6, 0), left={"zps": [9]}),
    "groups": dict(dims=(2, 5, 6, 8), groups=2, right=channels(6, 0)),
    "depthwise": dict(dims=(2, 5, 6, 3), w_dims=(6, 1, 3, 2), groups=3, left={**channels(3, 3), "zps": [1, 2, 3]},
                      pads_begin=[1, 1], pads_end=[1, 1]),
    "zero points of weights": dict(w="u8", right={"zps": [3]}, x="s8", left={"zps": [-4]}),
    "zero points of columns": dict(w="s8", right={**channels(6, 0), "zps": [*range(6)]}),
    "line": dict(dims=(3, 9, 4), w_dims=(6, 4, 3), strides=[2], pads_begin=[2], pads_end=[0]),
    "same": dict(auto_pad="same_lower", strides=[2, 2], left={"zps": [3]}),
    **{f"{pad}, dilated": dict(auto_pad=pad, strides=[1, 2], dilations=[2, 3], left={"zps": [3]},
                               dims=(2, 9, 11, 4)) for pad in ("same_lower", "same_upper", "valid")},
    "same_upper, dilated depthwise": dict(auto_pad="same_upper", dims=(2, 9, 6, 3), w_dims=(6, 1, 4, 2), groups=3,
                                          dilations=[3, 2], left={"zps": [3]}),
}
TRANSPOSED = {
    "plain": dict(), "strides": dict(strides=[2, 3], pads_begin=[1, 0], pads_end=[0, 1], left={"zps": [7]}),
    "columns": dict(right=channels(6, 0)), "dilations": dict(dilations=[2, 3], output_padding=[1, 0], strides=[2, 1]),
    "groups": dict(dims=(2, 5, 6, 8), w_dims=(3, 8, 3, 2), groups=2, right=channels(3, 0)),
    "channels of their own": dict(dims=(2, 5, 6, 4), w_dims=(3, 4, 3, 2), groups=4, right=channels(4, 1)),
    **{f"{pad}, dilated": dict(auto_pad=pad, strides=[2, 1], dilations=[2, 3])
       for pad in ("same_lower", "same_upper", "valid")},
}


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("op, name", [*(("convolution", n) for n in CASES),
                                      *(("conv_transpose", n) for n in TRANSPOSED)])
def test_formulas(op, name, known):
    options = (CASES if op == "convolution" else TRANSPOSED)[name]
    g = body(op, **options)
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-9 if v.dtype.name == "s8" else 0, 10, v.type.dims).astype(v.dtype.numpy) for v in g.inputs]
    if not known and (g.inputs[1].dtype.name == "u8" or "zps" in options.get("right", {})):
        with pytest.raises(Unsupported, match="the weights are u8 or have zero points, and are not constant"):
            lower_convolution(g, [None, None])
        return
    lowered = lower_convolution(g, [None, arrays[1] if known else None])
    got, want = lowered.formula(arrays), gq.reference(g, dict(zip("xw", arrays, strict=True)))
    assert got.shape == want.shape == g.outputs[0].type.dims
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-4)
    if lowered.stated_sum is not None:
        flat = rng.permutation(got.size)[:50]
        sums = lowered.anchor.sums_as_written(arrays, flat, lowered.stated_sum.sum)
        np.testing.assert_allclose(sums, want.ravel()[flat], rtol=1e-4, atol=1e-3)
        k = np.prod(g.inputs[1].type.dims[1:]) if op == "convolution" else None
        assert k is None or lowered.stated_sum.k == k


def test_macs():
    node = body(groups=2, dims=(2, 5, 6, 8)).nodes[-1]
    assert macs(node) == node.output.type.size * 4 * 3 * 2
    node = body("conv_transpose", groups=2, dims=(2, 5, 6, 8), w_dims=(3, 8, 3, 2)).nodes[-1]
    assert macs(node) == 2 * 5 * 6 * 8 * 3 * 3 * 2
    node = body("conv_transpose", w_dims=(3, 2, 7, 4), weights_format="XOI").nodes[-1]
    assert macs(node) == 2 * 5 * 6 * 4 * 7 * 3 * 2


@pytest.mark.parametrize("after, reason", [
    (lambda g, y: g.softmax(y, axis=-1), "no lane-wise rule for softmax"),
    (lambda g, y: g.quantize(y, dtype="u8", scales=[1e-39]), "1/scale of a quantize is not a finite f32"),
    (lambda g, y: g.cast(g.quantize(y, dtype="u8", scales=[1.0]), dtype="f32"), None),
    (lambda g, y: g.add(y, g.input("r", dtype="f32", shape=(6,))), None),
    (lambda g, y: g.add(y, g.cast(g.input("r", dtype="f64", shape=(6,)), dtype="f32")), "kernels do not load f64"),
    (lambda g, y: g.add(y, g.input("r", dtype="f32", shape=(2, 2, 3, 5, 6))), "the epilogue changes the shape of "
     "f32[2,3,5,6] to f32[2,2,3,5,6]"),
    (lambda g, y: g.static_reshape(y, shape=[2, 15, 6]), "the epilogue changes the shape of f32[2,3,5,6] to "
     "f32[2,15,6]")])
def test_epilogues(after, reason):
    check_epilogue(lower_convolution, body(), after, reason)


@pytest.mark.parametrize("op, groups, w_dims, axis, scales, message", [
    ("conv_transpose", 2, (3, 8, 3, 2), 0, 3, "the weights have 3 scales for 6 output channels of 2 groups"),
    ("conv_transpose", 4, (3, 4, 3, 2), 1, 4, "the weights have 4 scales for 12 output channels of 4 groups"),
    ("conv_transpose", 1, (3, 4, 3, 2), 0, 3, None), ("convolution", 2, (6, 4, 3, 2), 0, 6, None)])
@pytest.mark.parametrize("known", [True, False])
def test_scales_of_weights_that_are_tensors(op, groups, w_dims, axis, scales, message, known):
    """Those of the channels of a group are repeated when the plan is made: they must be constants."""
    g = gq.Graph("body")
    inner = w_dims[1] * (groups if op == "convolution" else 1)
    x, w = g.input("x", dtype="u8", shape=(2, 5, 6, inner)), g.input("w", dtype="s8", shape=w_dims)
    s = g.input("s", dtype="f32", shape=(scales,))
    two = {name: [value] * 2 for name, value in (("strides", 1), ("pads_begin", 0), ("pads_end", 0), ("dilations", 1))}
    g.output(getattr(g, op)(g.dequantize(x, scales=[0.5]), g.dynamic_dequantize(w, s, qtype="per_channel", axis=axis),
                            groups=groups, data_format="NXC", weights_format="OIX", **two), name="y")
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 9, v.type.dims).astype(v.dtype.numpy) for v in g.inputs[:2]]
    arrays.append(np.arange(1, scales + 1, dtype=np.float32))
    constants = [None, arrays[1], arrays[2] if known else None]
    if message is not None and not known:
        with pytest.raises(Unsupported, match=message) as error:
            lower_convolution(g, constants)
        assert (error.value.edit, error.value.operand) == ("make the scales constants", 1)
        return
    want = gq.reference(g, dict(zip("xws", arrays, strict=True)))
    np.testing.assert_allclose(lower_convolution(g, constants).formula(arrays), want, rtol=2e-6, atol=1e-4)


@pytest.mark.parametrize("group_shape, refused", [([1, 4, 3, 2], False), ([1, 4, 1, 2], True), ([1, 2, 3, 2], True)])
def test_groups_of_scales_are_those_of_the_convolution(group_shape, refused):
    g = gq.Graph("body")
    x, w = g.input("x", dtype="u8", shape=(2, 5, 6, 8)), g.input("w", dtype="s8", shape=(3, 8, 3, 2))
    s = g.input("s", dtype="f32", shape=[d // size for d, size in zip(w.type.dims, group_shape, strict=True)])
    two = {name: [value] * 2 for name, value in (("strides", 1), ("pads_begin", 0), ("pads_end", 0), ("dilations", 1))}
    right = g.dynamic_dequantize(w, s, qtype="per_group", group_shape=group_shape)
    g.output(g.conv_transpose(g.dequantize(x, scales=[0.5]), right, groups=2, data_format="NXC", weights_format="OIX",
                              **two), name="y")
    constants = [None, np.ones(w.type.dims, np.int8), np.ones(s.type.dims, np.float32)]
    if refused:
        with pytest.raises(Unsupported, match=r"the weights have scales of groups of \["):
            lower_convolution(g, constants)
    else:
        lower_convolution(g, constants)
