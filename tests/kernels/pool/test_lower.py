"""Lowering of pools and means: refusals with their texts, and formulas against the reference."""
import numpy as np
import pytest

import graphq as gq
from graphq.kernels.family.unsupported import Unsupported
from graphq.kernels.pool.family import lower_pool


def body(build, dims=(2, 5, 6, 3), dtype="u8", dequantize=None):
    g = gq.Graph("body")
    x = g.input("x", dtype=dtype, shape=dims)
    y = x if dequantize is None else g.dequantize(x, **dequantize)
    g.output(build(g, y), name="y")
    return g


def pool(op="max_pool", **attrs):
    attrs = {"kernel": [2, 3], "strides": [1, 2], "pads_begin": [0, 0], "pads_end": [0, 0],
             "data_format": "NXC", **attrs}
    if op == "avg_pool":
        attrs.setdefault("exclude_pad", True)
    return lambda g, x: getattr(g, op)(x, **attrs)


def mean(*axes, **attrs):
    return lambda g, x: g.reduce_mean(x, axes=list(axes), keep_dims=True, **attrs)


SCALE = {"scales": [0.5], "zps": [7]}
CHANNELS = {"qtype": "per_channel", "axis": 3, "scales": [0.5, 1.0, 2.0], "zps": [1, 2, 3]}


@pytest.mark.parametrize("options, reason, edit, operand", [
    (dict(build=pool(data_format="NCX"), dtype="f32"), "kernels take channels last, data_format NXC", "", None),
    (dict(build=pool(), dequantize={**CHANNELS, "axis": 1, "scales": [1.0] * 5, "zps": None}),
     "the input is quantized along axis 1, not along the channels",
     "quantize the input per tensor, or along the channels, axis 3", 0),
    (dict(build=pool(), dtype="s32", dequantize={"scales": [0.5]}),
     "the input is s32, kernels over pixels take u8, s8, f32, bf16 and f16", "quantize the input to u8 or s8", 0),
    (dict(build=pool(kernel=[1, 1], pads_begin=[1, 0], strides=[1, 1]), dequantize=SCALE),
     "a window lies only in the padding: its maximum is -inf, and not an integer",
     "take pads that are smaller than the window", None),
    (dict(build=pool(), dequantize={**CHANNELS, "scales": [0.5, -1.0, 2.0]}),
     "its kernels take positive scales, and a scale is -1", "make the scales positive", None),
    (dict(build=mean(1, 3), dequantize=SCALE),
     "reduce_mean reduces axes 1 and 3 of f32[2,5,6,3], kernels any but axis 3",
     "transpose the input, to keep the last axis", None),
    (dict(build=lambda g, x: g.softmax(pool()(g, x), axis=-1), dtype="f32"), "no lane-wise rule for softmax", "", None),
    (dict(build=lambda g, x: g.static_reshape(pool()(g, x), shape=[2, 8, 3]), dtype="f32"),
     "an operand of shape [2, 4, 2, 3] does not broadcast into the result [2, 8, 3]",
     "quantize before the operation that makes the result larger", None)])
def test_refusals(options, reason, edit, operand):
    with pytest.raises(Unsupported) as error:
        lower_pool(body(**options))
    assert (str(error.value), error.value.edit, error.value.operand) == (reason, edit, operand)


CASES = {
    "max": dict(build=pool(), dequantize=SCALE),
    "max of channels": dict(build=pool(pads_end=[1, 2]), dequantize=CHANNELS),
    "max of floats": dict(build=pool(pads_begin=[1, 1], dilations=[2, 1]), dtype="f32"),
    "max of bf16": dict(build=pool(auto_pad="same_upper"), dtype="bf16"),
    **{f"max, {pad}, dilated": dict(build=pool(auto_pad=pad, dilations=[3, 2], strides=[1, 2], kernel=[2, 3]),
                                    dims=(2, 9, 8, 3), dtype="f32") for pad in ("same_lower", "same_upper", "valid")},
    **{f"mean, {pad}": dict(build=pool("avg_pool", auto_pad=pad, exclude_pad=exclude, strides=[3, 2]), dtype="f32",
                            dims=(2, 9, 8, 3)) for pad, exclude in (("same_lower", True), ("same_upper", False))},
    "mean": dict(build=pool("avg_pool", pads_begin=[1, 1], pads_end=[1, 0]), dequantize=SCALE),
    "mean with padding": dict(build=pool("avg_pool", exclude_pad=False, pads_begin=[1, 1], pads_end=[0, 2]), dtype="s8",
                              dequantize={"scales": [0.5], "zps": [-3]}),
    "mean of channels": dict(build=pool("avg_pool", pads_end=[1, 2]), dequantize=CHANNELS),
    "mean of floats": dict(build=pool("avg_pool", exclude_pad=False, pads_begin=[1, 2]), dtype="f32"),
    "mean in order": dict(build=pool("avg_pool", in_order=True), dtype="f32"),
    "mean of an axis": dict(build=mean(1), dequantize=SCALE), "mean of two": dict(build=mean(1, 2), dequantize=SCALE),
    "mean of others": dict(build=mean(0, -2), dtype="f32"), "mean of the first": dict(build=mean(0), dtype="f32"),
    "an epilogue": dict(build=lambda g, x: g.quantize(pool()(g, x), dtype="u8", scales=[0.5], zps=[3]),
                        dequantize=SCALE),
    "a volume": dict(build=pool(kernel=[2, 1, 3], strides=[1, 2, 1], pads_begin=[0, 0, 1], pads_end=[1, 0, 1]),
                     dims=(2, 3, 4, 5, 2), dtype="f32"),
}


def formula(lower, g):
    rng = np.random.default_rng(0)
    (v,) = g.inputs
    x = rng.integers(-50 if v.dtype.name != "u8" else 0, 50, v.type.dims).astype(v.dtype.numpy)
    return lower(g).formula([x]), gq.reference(g, {"x": x}), x


@pytest.mark.parametrize("name", CASES)
def test_formulas(name):
    got, want, x = formula(lower_pool, body(**CASES[name]))
    assert got.shape == want.shape and got.dtype == want.dtype
    anchor = lower_pool(body(**CASES[name])).anchor
    integers = anchor.how == "max" and anchor.dtype in ("u8", "s8")
    assert anchor.accumulate([x]).dtype == (np.int32 if integers else np.float32)
    np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), rtol=1e-6, atol=1e-6)
