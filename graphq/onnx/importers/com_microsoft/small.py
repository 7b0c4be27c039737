"""Importers of com.microsoft's operators that resemble one ONNX operator or combine a few simple operators."""
from operator import itemgetter
from typing import Any

import numpy as np

from graphq.dtypes import s8, s32, s64, u8, u32
from graphq.ir import Value
from graphq.onnx.importers.composed import one, standard
from graphq.onnx.importers.conv import spatial, windows
from graphq.onnx.importers.eltwise import swish
from graphq.onnx.importers.importer import MICROSOFT, Call, Outputs, imports, imports_each, width
from graphq.onnx.importers.matmul import expect_bias, plus_bias, product
from graphq.onnx.importers.pool import channels_first
from graphq.onnx.protos.tensors import element_of


@imports("Pad", domain=MICROSOFT)
def pad(c: Call) -> Outputs:
    """Import Pad; pads may have the shape [1, n], and the value may be a tensor of one element."""
    mode, value = c.attr("mode", "constant"), c.optional(2)
    if mode not in ("constant", "reflect", "edge"):
        c.refuse(f"attribute 'mode' must be constant, reflect or edge, got {mode!r}")
    pads, = standard(c, "Reshape", [c.input(1), np.asarray([-1])])
    return standard(c, "Pad", [c.input(0), pads, None if value is None else _scalar(c, value)], mode=mode)


@imports("Range", domain=MICROSOFT)
def range_(c: Call) -> Outputs:
    """Import Range; start, limit and step (default 1) are scalars or tensors of one element."""
    start, limit = c.input(0), c.input(1)
    step = c.optional(2)
    step = c.graph.add_constant(one(start, 1)) if step is None else step
    return standard(c, "Range", [_scalar(c, x) for x in (start, limit, step)])


def _scalar(c: Call, x: Value) -> Value:
    if x.type.known and x.type.size != 1:
        c.refuse(f"a tensor of one element is needed, got {x.type}")
    return standard(c, "Reshape", [x, np.zeros(0, np.int64)])[0]


@imports("ExpandDims", domain=MICROSOFT)
def expand_dims(c: Call) -> Outputs:
    """Import ExpandDims: insert a dimension of 1 at a constant axis of the result."""
    c.expect(1, (), (1,))
    return standard(c, "Unsqueeze", [c.input(0), c.array(1).astype(np.int64).reshape(1)])


def _less_zero_point(c: Call, k: int) -> Value:
    x, zp = c.graph.cast(c.input(k), dtype=s32), c.optional(k + 1)
    if zp is None:
        return x
    if zp.dtype != c.input(k).dtype or zp.type.known and zp.type.size != 1:
        c.refuse(f"input {k + 1} must be one {c.input(k).dtype}, got {zp.type}")
    return standard(c, "Sub", [x, c.graph.cast(_scalar(c, zp), dtype=s32)])[0]


@imports("ReduceSumInteger", domain=MICROSOFT)
def reduce_sum_integer(c: Call) -> Outputs:
    """Import ReduceSumInteger: the sum of s8 in s32, or of u8 in u32."""
    wide = {s8: s32, u8: u32}.get(c.input(0).dtype)
    if wide is None:
        c.refuse(f"input 0 must be s8 or u8, got {c.input(0).type}")
    x, = standard(c, "Cast", [c.input(0)], to=element_of(wide))
    return standard(c, "ReduceSum", [x, np.asarray(c.attr("axes"), np.int64)], keepdims=c.attr("keepdims", 1))


@imports("BiasAdd", domain=MICROSOFT)
def bias_add(c: Call) -> Outputs:
    """Import BiasAdd: `(x + bias) + skip`."""
    c.expect(1, (width(c.input(0)),))
    c.expect(2, c.input(0).shape)
    return c.graph.add(c.graph.add(c.input(0), c.input(1)), c.input(2))


@imports("BiasSplitGelu", domain=MICROSOFT)
def bias_split_gelu(c: Call) -> Outputs:
    """Import BiasSplitGelu: the first half of `x + bias` times the gelu of its second half."""
    c.expect(1, (width(c.input(0)),))
    left, right = standard(c, "Split", [c.graph.add(c.input(0), c.input(1))], 2, axis=-1, num_outputs=2)
    return c.graph.multiply(left, c.graph.gelu(right, mode="gelu_erf"))


@imports("GemmFastGelu", domain=MICROSOFT)
def gemm_fast_gelu(c: Call) -> Outputs:
    """Import GemmFastGelu: a matmul, an added bias, and a gelu by tanh."""
    y = c.graph.matmul(c.input(0), c.input(1))
    c.expect(2, (width(y),))
    return c.graph.gelu(c.graph.add(y, c.input(2)) if c.has(2) else y, mode="gelu_tanh")


@imports("ScaledSiLU", domain=MICROSOFT)
def scaled_silu(c: Call) -> Outputs:
    """Import ScaledSiLU: `z * sigmoid(z)`, where z is alpha * x, or x times a scale input; each step is rounded."""
    g, x = c.graph, c.input(0)
    scale = c.optional(1)
    if scale is not None and scale.dtype != x.dtype:
        scale = standard(c, "CastLike", [scale, x])[0]
    z = g.multiply(x, one(x, c.attr("alpha", 1.0)) if scale is None else _scalar(c, scale))
    return g.multiply(z, g.sigmoid(z))


@imports("GatedAdd", domain=MICROSOFT)
def gated_add(c: Call) -> Outputs:
    """Import GatedAdd: `x + y * gate`."""
    c.expect(1, c.input(0).shape)
    return c.graph.add(c.input(0), c.graph.multiply(c.input(1), c.input(2)))


ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "Clip": ("min", "max"), "Elu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "LeakyRelu": ("alpha",),
    "LogSoftmax": ("axis",), "Relu": (), "Selu": ("alpha", "gamma"), "Sigmoid": (), "Softmax": ("axis",),
    "Softplus": (), "Softsign": (), "Tanh": (), "ThresholdedRelu": ("alpha",)}
"""The ONNX operators that a fused layer may apply, with their attributes in the order of `activation_params`."""


@imports("FusedConv", "NhwcConv", "NhwcFusedConv", domain=MICROSOFT)
def fused_conv(c: Call) -> Outputs:
    """Import FusedConv: Conv, an added input 3, and an activation. In Nhwc form, only the image has channels last."""
    g, x, last = c.graph, c.input(0), c.node.op_type.startswith("Nhwc")
    y = g.convolution(x, c.input(1), c.optional(2), groups=c.attr("group", 1), weights_format="OIX",
                      **windows(c, spatial(x), last))
    c.expect(3, y.shape)
    if c.has(3):
        y = g.add(y, c.input(3))
    name, given = c.attr("activation", ""), c.attr("activation_params", ())
    names = ACTIVATIONS.get(name, ())
    if name and len(given) != len(names):
        c.refuse(f"attribute 'activation_params' of {name} must have {len(names)} numbers, got {list(given)}")
    return activated(c, y, name, dict(zip(names, given, strict=False)))


@imports("FusedGemm", domain=MICROSOFT)
def fused_gemm(c: Call) -> Outputs:
    """Import FusedGemm: Gemm and an activation."""
    for k in (0, 1):
        c.expect(k, (None, None))
    y = product(c, c.input(0), c.input(1))
    expect_bias(c, 2, y)
    return activated(c, plus_bias(c, y), c.attr("activation", ""), _own(c))


@imports("FusedMatMul", "TransposeMatMul", "FusedMatMulActivation", domain=MICROSOFT)
def fused_matmul(c: Call) -> Outputs:
    """Import FusedMatMul: `alpha * A' @ B'` and an activation.

    With transBatchA, the first dimension of A has the rows, and the batch dimensions follow.
    """
    a, b = (_batches_first(c, c.input(k), f"transBatch{'AB'[k]}") for k in range(2))
    return activated(c, product(c, a, b), c.attr("activation", ""), _own(c))


def _batches_first(c: Call, x: Value, name: str) -> Value:
    if not c.attr(name, 0):
        return x
    rank = 0 if x.shape is None else len(x.shape)
    if rank < 3:
        c.refuse(f"attribute '{name}' needs batch dimensions, got {x.type}")
    return c.graph.static_transpose(x, order=[*range(1, rank - 1), 0, rank - 1])


def _own(c: Call) -> dict[str, Any]:
    names = ("alpha", "beta", "gamma", "axis")
    return {n: c.attr(f"activation_{n}") for n in names if f"activation_{n}" in c.attrs}


def activated(c: Call, y: Value, name: str, attrs: dict[str, Any]) -> Value:
    """Apply the activation `name` ("": do nothing) to `y`; ignores `attrs` that the activation lacks."""
    if not name:
        return y
    if name not in ACTIVATIONS:
        c.refuse(f"attribute 'activation' must be one of {', '.join(ACTIVATIONS)}, got {name!r}")
    if name == "Clip":
        if attrs.keys() != {"min", "max"}:
            c.refuse("attribute 'activation' is Clip, but its limits are missing")
        limits = [c.graph.add_constant(np.asarray(attrs[n]).astype(y.dtype.numpy)) for n in ("min", "max")]
        return standard(c, name, [y, *limits])[0]
    return standard(c, name, [y], **{n: v for n, v in attrs.items() if n in ACTIVATIONS[name]})[0]


imports_each({
    # the softmax over the dimensions from `axis` on, as in operator set 11
    "BiasSoftmax": lambda c: standard(c, "Softmax", [c.graph.add(c.input(0), c.input(1))], opset=11,
                                      axis=c.attr("axis", 1)),
    **dict.fromkeys(("GridSample", "Trilu"), lambda c: standard(c, c.node.op_type, c.inputs, opset=16, **c.attrs)),
    "GatherND": lambda c: standard(c, "GatherND", [
        c.input(0), c.input(1) if c.input(1).dtype == s64 else c.graph.cast(c.input(1), dtype=s64)]),
    # (A - za) * (B - zb) in s32, for operands A, za, B and zb; an absent zero point is 0
    "MulInteger": lambda c: standard(c, "Mul", [_less_zero_point(c, k) for k in (0, 2)]),
    "NhwcMaxPool": lambda c: channels_first(
        c.input(0), spatial(c.input(0)), lambda x: standard(c, "MaxPool", [x], **c.attrs)[0]),
    "QuickGelu": lambda c: swish(c, c.input(0), 1.702),
    # elements of a vector in the order of their first occurrence, their indices, and their counts
    "Unique": lambda c: itemgetter(0, 2, 3)(standard(c, "Unique", [c.input(0)], 4, sorted=0)),
}, domain=MICROSOFT)
