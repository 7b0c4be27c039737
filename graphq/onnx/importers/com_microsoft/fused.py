"""Importers of fused operators that ONNX Runtime writes: products with an activation, channels-last convolutions."""
from __future__ import annotations

from typing import Any

import numpy as np

from graphq.ir import Value
from graphq.onnx.importers.composed import standard
from graphq.onnx.importers.conv import spatial, windows
from graphq.onnx.importers.importer import MICROSOFT, Call, Outputs, imports
from graphq.onnx.importers.matmul import product
from graphq.onnx.importers.pool import channels_first

ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "Clip": ("min", "max"), "Elu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "LeakyRelu": ("alpha",),
    "LogSoftmax": ("axis",), "Relu": (), "Selu": ("alpha", "gamma"), "Sigmoid": (), "Softmax": ("axis",),
    "Softplus": (), "Softsign": (), "Tanh": (), "ThresholdedRelu": ("alpha",)}
"""ONNX's operators that may follow a product, and their attributes in the order of `activation_params`."""


@imports("FusedConv", "NhwcConv", "NhwcFusedConv", domain=MICROSOFT)
def fused_conv(c: Call) -> Outputs:
    """Import FusedConv: Conv, plus an optional fourth operand, then an activation.

    For NhwcFusedConv the channels of all operands are last, except for the weights, whose format is OIX.
    """
    g, x, last = c.graph, c.input(0), c.node.op_type.startswith("Nhwc")
    y = g.convolution(x, c.input(1), c.optional(2), groups=c.attr("group", 1), weights_format="OIX",
                      **windows(c, spatial(x), last))
    if c.has(3):
        y = g.add(y, c.input(3))
    name, given = c.attr("activation", ""), c.attr("activation_params", ())
    names = ACTIVATIONS.get(name, ())
    if name and len(given) != len(names):
        c.refuse(f"attribute 'activation_params' of {name} must have {len(names)} numbers, got {list(given)}")
    return activated(c, y, name, dict(zip(names, given, strict=False)))


@imports("NhwcMaxPool", domain=MICROSOFT)
def nhwc_max_pool(c: Call) -> Outputs:
    """Import NhwcMaxPool: MaxPool of channels-last integers."""
    return channels_first(c.input(0), spatial(c.input(0)), lambda x: standard(c, "MaxPool", [x], **c.attrs)[0])


@imports("FusedGemm", domain=MICROSOFT)
def fused_gemm(c: Call) -> Outputs:
    """Import FusedGemm: Gemm, then an activation."""
    y = product(c, c.input(0), c.input(1), c.optional(2), beta=c.attr("beta", 1.0))
    return activated(c, y, c.attr("activation", ""), _own(c))


@imports("FusedMatMul", "TransposeMatMul", "FusedMatMulActivation", domain=MICROSOFT)
def fused_matmul(c: Call) -> Outputs:
    """Import FusedMatMul: `alpha * A' @ B'`, then an activation.

    With transBatchA, A has its rows along the first dimension, before the batch dimensions.
    """
    a, b = (_batches_first(c, c.input(k), f"transBatch{'AB'[k]}") for k in range(2))
    return activated(c, product(c, a, b), c.attr("activation", ""), _own(c))


def _batches_first(c: Call, x: Value, name: str) -> Value:
    """`x` with its first dimension moved behind the batch dimensions, if the attribute `name` is set."""
    if not c.attr(name, 0):
        return x
    rank = 0 if x.shape is None else len(x.shape)
    if rank < 3:
        c.refuse(f"attribute '{name}' needs dimensions of batches, got {x.type}")
    return c.graph.static_transpose(x, order=[*range(1, rank - 1), 0, rank - 1])


def _own(c: Call) -> dict[str, Any]:
    """The attributes of the activation by their names without the prefix: activation_alpha becomes alpha."""
    names = ("alpha", "beta", "gamma", "axis")
    return {n: c.attr(f"activation_{n}") for n in names if f"activation_{n}" in c.attrs}


def activated(c: Call, y: Value, name: str, attrs: dict[str, Any]) -> Value:
    """Apply the ONNX operator `name` of ACTIVATIONS, if there is one, to `y`, with the attributes that it takes."""
    if not name:
        return y
    if name not in ACTIVATIONS:
        c.refuse(f"attribute 'activation' must be one of {', '.join(ACTIVATIONS)}, got {name!r}")
    if name == "Clip":
        if attrs.keys() != {"min", "max"}:
            c.refuse("attribute 'activation' is Clip, whose limits are not given")
        limits = [c.graph.add_constant(np.asarray(attrs[n]).astype(y.dtype.numpy)) for n in ("min", "max")]
        return standard(c, name, [y, *limits])[0]
    return standard(c, name, [y], **{n: v for n, v in attrs.items() if n in ACTIVATIONS[name]})[0]
