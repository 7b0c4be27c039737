"""Turn dynamic quantization with constant scales into static quantization, and ONNX's ConvInteger into convolution."""
from __future__ import annotations

from typing import Any

import numpy as np

from graphq.dtypes import DType, f32, s4, s8, u4, u8
from graphq.ir import Graph, Node, Value
from graphq.rewrite.rule import ANY, Rewrite

WIDER = {s4: s8, u4: u8}
"""The 8-bit types that 4-bit integers are converted to if no kernel takes 4 bits."""

MAX_SUM = 2**31 // 255**2
"""The most products of 9-bit numbers (differences of 8-bit ones) in a sum that cannot exceed s32."""


class DequantizeByGroups(Rewrite):
    """dequantize(x, scales of every group along group_axis) -> dynamic_dequantize(x, scales, zps?) per_group

    Other passes and kernels know groups in the second form only.
    """

    def pattern(self, g, x):
        return g.dequantize(x, attrs=ANY)

    def candidate(self, node):
        return node.attrs["group_axis"] is not None

    def check(self, x):
        return None if x.type.known else f"the shape of {x.type} is not known"

    def replace(self, g, x, match):
        attrs, dims = match.root.attrs, list(x.type.dims)
        axis, split = attrs["axis"] % len(dims), attrs["group_axis"] % len(dims)
        groups = len(attrs["scales"]) // dims[axis]
        counts = [1] * len(dims)
        counts[axis], counts[split] = dims[axis], groups
        order = sorted((split, axis))  # a group lists the scales of all its channels before the next group does

        def blocks(numbers, dtype):
            by_group = np.asarray(numbers, dtype).reshape(groups, dims[axis])
            return g.constant((by_group if order == [split, axis] else by_group.T).reshape(counts))

        scales = blocks(attrs["scales"], np.float32)
        zps = () if attrs["zps"] is None else (blocks(attrs["zps"], x.dtype.numpy),)
        return g.dynamic_dequantize(x, scales, *zps, qtype="per_group",
                                    group_shape=[d // n for d, n in zip(dims, counts, strict=True)])


class StaticDequantize(Rewrite):
    """dynamic_dequantize(x, scales, zps?) of constant scales and zero points -> dequantize(x), for s8 and u8

    Constants of 4 bits are converted to 8 bits, except for weights of a matmul, for which there is a fusion of their
    own.
    """

    def pattern(self, g, x, scales, zps):
        return g.any_of(g.dynamic_dequantize(x, scales, attrs=ANY), g.dynamic_dequantize(x, scales, zps, attrs=ANY))

    def check(self, x, scales, zps, match):
        """The attributes of dequantize must be able to express the scales and zero points."""
        if match.root.output.dtype != f32:
            return f"the result is {match.root.output.dtype}"
        if x.dtype in WIDER and (x.data is None or any(user.op.name == "matmul" for user in match.root.output.users)):
            return "a matmul takes 4 bits" if x.data is not None else f"of {x.dtype} that are not constant"
        return _refuses(match.root, WIDER.get(x.dtype, x.dtype), scales, zps)

    def replace(self, g, x, scales, zps, match):
        if x.dtype in WIDER:
            x = g.constant(x.data.astype(WIDER[x.dtype].numpy))
        return g.dequantize(x, **_attributes(match.root, scales, zps))


class StaticQuantize(Rewrite):
    """dynamic_quantize(x, scales, zps?) of constant scales and zero points -> quantize(x), to s8 and u8"""

    def pattern(self, g, x, scales, zps):
        return g.any_of(g.dynamic_quantize(x, scales, attrs=ANY), g.dynamic_quantize(x, scales, zps, attrs=ANY))

    def check(self, scales, zps, match):
        """The attributes of quantize must be able to express the scales and zero points."""
        return _refuses(match.root, match.root.attrs["dtype"], scales, zps)

    def replace(self, g, x, scales, zps, match):
        return g.quantize(x, dtype=match.root.attrs["dtype"], **_attributes(match.root, scales, zps))


def _refuses(node: Node, dtype: DType, scales: Value, zps: Value | None) -> str | None:
    """Why the attributes of a static operation cannot express scales and zero points; None if they can."""
    if dtype.name not in ("s8", "u8"):
        return f"of {dtype}"
    if node.attrs["qtype"] == "per_group":
        return "scales are those of groups"
    if scales.data is None or zps is not None and zps.data is None:
        return "scales or zero points are not constant"
    wide = scales.data.astype(np.float32)
    if not (np.isfinite(wide) & (wide > 0)).all():
        return "scales are not finite and positive"
    numbers = np.zeros(1) if zps is None or zps.data is None else zps.data.astype(np.int64)
    if not ((numbers >= dtype.min) & (numbers <= dtype.max)).all():
        return f"zero points are not in the range of {dtype}"
    return None


def _attributes(node: Node, scales: Value, zps: Value | None) -> dict[str, Any]:
    assert scales.data is not None
    numbers = None if zps is None or zps.data is None else zps.data.reshape(-1).tolist()
    return {"qtype": node.attrs["qtype"], "axis": node.attrs["axis"], "zps": numbers,
            "scales": scales.data.astype(np.float32).reshape(-1).tolist()}


class ConvIntegerAsConvolution(Rewrite):
    """cast(conv_integer(x, w, zx?, zw?) + bias?) to f32 -> convolution(x - zx, w - zw) + cast(bias)?

    Both operands are dequantized with scale 1. Without a bias, both forms compute an exact sum and round it to f32
    once. With a bias, the new form rounds the sum, the bias and the total. That changes nothing while all are below
    2**24 in magnitude, and adds small rounding errors beyond.
    """

    tolerance = 1e-6

    def pattern(self, g, x, w, zx, zw, bias):
        forms = ((x, w), (x, w, zx), (x, w, zx, zw), (x, w, None, zw))
        sums = g.any_of(*(g.conv_integer(*operands, attrs=ANY) for operands in forms))
        return g.cast(g.any_of(sums, g.add(sums, bias, attrs=ANY)), dtype=f32)

    def check(self, w, zw):
        """Sums must not wrap in s32, and the weights must have one zero point, or one for each channel."""
        if w.shape is None or None in w.shape:
            return "the shape of the weights is not known"
        if (terms := int(np.prod(w.shape[1:]))) > MAX_SUM:
            return f"sums of {terms} products could wrap"
        if zw is not None and (zw.shape is None or zw.shape not in ((), (1,)) and len(zw.shape) != 1):
            return f"zero points {zw.type} of the weights"
        return None

    def replace(self, g, x, w, zx, zw, bias, match):
        attrs = match.node("conv_integer").attrs
        y = g.convolution(_centred(g, x, zx), _centred(g, w, zw), data_format="NCX", weights_format="OIX", **attrs)
        return y if bias is None else g.add(y, g.cast(bias, dtype=f32))


def _centred(g: Graph, x: Value, zps: Value | None) -> Value:
    """x - zps in f32; zps is one zero point, or one for each index of the first axis."""
    if zps is None:
        return g.dequantize(x, scales=[1.0])
    one = zps.type.size == 1
    scales = g.constant(np.ones(zps.type.dims, np.float32))
    return g.dynamic_dequantize(x, scales, zps, qtype="per_tensor" if one else "per_channel", axis=0)
