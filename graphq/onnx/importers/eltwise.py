"""Importers of lane-wise operators."""
from collections.abc import Callable
from functools import partial, reduce
from typing import Literal

import numpy as np

from graphq.dtypes import DType, bf16, boolean, f8_e5m2, f16, f32, s8, s16, s32, s64, u8, u16
from graphq.ir import Value, lookup
from graphq.onnx.importers.composed import by_f32, one, standard
from graphq.onnx.importers.importer import Call, Importer, Outputs, aligned, imports, imports_each
from graphq.onnx.protos.tensors import dtype_of
from graphq.ops.arithmetic import NUMBERS
from graphq.ops.eltwise import CASTS
from graphq.ops.rules import FLOATS

BINARY = {"Add": "add", "Div": "divide", "Mul": "multiply", "Sub": "subtract"}
VARIADIC = {"Max": "maximum", "Min": "minimum", "Sum": "add"}

BY_F32 = {**dict.fromkeys((boolean, s8, u8, s16, u16), (bf16, f16)), s32: (f16,), s64: (f16,)}
"""Casts of integers by way of f32: the target dtypes by the integer dtype. Each cast rounds only once, because f32 is
exact for integers of up to 16 bits, and for larger integers up to the largest f16."""


def _binary(c: Call, function: str, a: Value, b: Value) -> Value:
    """Append a node of the operation `function`; use `arithmetic` for dtypes that only it accepts."""
    if a.dtype in NUMBERS and not (a.dtype == s32 and function in ("add", "subtract")):
        return c.graph.add_node(lookup("arithmetic"), [a, b], {"function": function})[0]
    return c.graph.add_node(lookup(function), [a, b], {})[0]


@imports("Abs")
def abs_(c: Call) -> Outputs:
    """Import Abs. For integers it becomes the maximum of x and -x."""
    x = c.input(0)
    if x.dtype in FLOATS:
        return c.graph.abs(x)
    if not x.dtype.name.startswith("s"):
        return None
    negative = c.graph.arithmetic(x, one(x, -1), function="multiply")
    return c.graph.arithmetic(x, negative, function="maximum")


@imports("Pow")
def pow_(c: Call) -> Outputs:
    """Import Pow: `x**y` for a constant scalar y of any dtype; y = 2 becomes square."""
    if "axis" in c.attrs:
        return standard(c, "Pow", [*aligned(c)])
    y = c.data(1)
    if y is None or y.size != 1 or y.ndim > (len(c.input(0).shape or ())):
        return None
    beta = float(y.reshape(()))
    return c.graph.square(c.input(0)) if beta == 2 else c.graph.pow(c.input(0), beta=beta)


@imports("Clip")
def clip(c: Call) -> Outputs:
    """Import Clip; limits are attributes before version 11 and operands since then.

    In versions 6 to 10 missing limits default to the largest f32, so infinities become finite.
    """
    x, largest = c.input(0), float(np.finfo(np.float32).max) if 6 <= c.version < 11 else np.inf
    limits = [c.attr("min", -largest), c.attr("max", largest)]
    if x.dtype in NUMBERS:
        for k, function in ((1, "maximum"), (2, "minimum")):
            limit = c.graph.add_constant(one(x, limits[k - 1])) if c.version < 11 else c.optional(k)
            x = x if limit is None else _binary(c, function, x, limit)
        return x
    for k in (1, 2):
        data = c.data(k)
        if c.has(k) and (data is None or data.size != 1):
            return None
        limits[k - 1] = limits[k - 1] if data is None else float(data.reshape(()))
    return c.graph.clamp(x, min=limits[0], max=limits[1])


def for_f32(build: Callable[[Call, Value], Value]) -> Importer:
    """Make an importer of a function of f32; narrower floats are rounded once, and others left to the reference."""
    return lambda c: by_f32(c, lambda x: build(c, x), c.input(0)) if c.floats() else None


def _selu(c: Call, x: Value) -> Value:
    alpha, gamma = (1.67326319217681884765625, 1.05070102214813232421875) if c.version >= 6 else (1.6732, 1.0507)
    return c.graph.multiply(c.graph.elu(x, alpha=c.attr("alpha", alpha)), one(x, c.attr("gamma", gamma)))


def _celu(c: Call, x: Value) -> Value:
    alpha = one(x, c.attr("alpha", 1.0))
    below = c.graph.multiply(c.graph.subtract(c.graph.exp(c.graph.divide(x, alpha)), one(x, 1)), alpha)
    return c.graph.add(c.graph.relu(x), c.graph.minimum(below, one(x, 0)))


def swish(c: Call, x: Value, alpha: float = 1.0) -> Value:
    """`x * sigmoid(alpha * x)`, with the node's own alpha if it has one."""
    return c.graph.multiply(x, c.graph.sigmoid(c.graph.multiply(x, one(x, c.attr("alpha", alpha)))))


@imports("Gelu")
def gelu(c: Call) -> Outputs:
    """Import Gelu. It is computed by erf, or by tanh if `approximate` is tanh."""
    modes: dict[str, Literal["gelu_erf", "gelu_tanh"]] = {"none": "gelu_erf", "tanh": "gelu_tanh"}
    return c.graph.gelu(c.input(0), mode=modes[c.attr("approximate", "none")])


def cast_to(c: Call, x: Value, dtype: DType) -> Value | None:
    """Cast `x` to `dtype`; None if floats of 8 bits are not to saturate, or powers of two not to be rounded up."""
    if dtype == x.dtype != f8_e5m2:  # a cast from f8_e5m2 to itself saturates infinities
        return x
    if dtype in CASTS.get(x.dtype, ()):
        return c.graph.type_cast(x, dtype=dtype)
    if dtype in BY_F32.get(x.dtype, ()):
        return c.graph.type_cast(c.graph.cast(x, dtype=f32), dtype=dtype)
    narrow = dtype.kind == "float" and dtype.bits == 8
    if narrow and (not c.attr("saturate", 1) or c.attr("round_mode", "up") != "up"):
        return None
    return c.graph.cast(x, dtype=dtype)


imports_each({
    **dict.fromkeys(BINARY, lambda c: _binary(c, BINARY[c.node.op_type], *aligned(c))),
    "BitCast": lambda c: c.graph.bit_cast(c.input(0), dtype=dtype_of(c.attr("to"), "attribute 'to'")),
    "BitShift": lambda c: _binary(c, f"shift_{c.attr('direction').lower()}", c.input(0), c.input(1)),
    "BitwiseAnd": lambda c: _binary(c, "and", c.input(0), c.input(1)),
    "BitwiseNot": lambda c: c.graph.arithmetic(c.input(0), one(c.input(0), -1), function="xor"),
    "BitwiseOr": lambda c: _binary(c, "or", c.input(0), c.input(1)),
    "BitwiseXor": lambda c: _binary(c, "xor", c.input(0), c.input(1)),
    "Cast": lambda c: cast_to(c, c.input(0), dtype_of(c.attr("to"), "attribute 'to'")),
    "CastLike": lambda c: cast_to(c, c.input(0), c.input(1).dtype),
    # max(x, 0) + min(alpha * (exp(x / alpha) - 1), 0)
    "Celu": for_f32(_celu),
    # outside of training, if its mask output is unused
    "Dropout": lambda c: None if c.outputs > 1 or c.has(2) and (c.data(2) is None or c.array(2).any()) else c.input(0),
    "GreaterOrEqual": lambda c: c.graph.less_equal(c.input(1), c.input(0)),
    # the sum from the first to the last operand, divided by their number
    "Mean": lambda c: c.graph.divide(standard(c, "Sum", c.inputs)[0], one(c.input(0), len(c.inputs)))
    if c.floats() else None,
    # the result has the sign of the divisor or, with `fmod`, of the dividend
    "Mod": lambda c: c.graph.arithmetic(
        c.input(0), c.input(1), function="remainder" if c.attr("fmod", 0) else "modulo"),
    # x * -1 also changes the signs of zeros
    "Neg": lambda c: _binary(c, "multiply", c.input(0), c.graph.add_constant(one(c.input(0), -1))),
    # the slope broadcasts to x as in NumPy; before version 7 a 1-D slope has one element per channel
    "PRelu": lambda c: c.graph.prelu(c.input(0), c.input(1), data_format="NCX", per_channel_broadcast=(
        c.version < 7 and len(c.input(1).type.dims) == 1 and c.input(1).type.dims != (1,))),
    "Selu": for_f32(_selu),
    # x / (1 + |x|)
    "Softsign": for_f32(lambda c, x: c.graph.divide(x, c.graph.add(c.graph.abs(x), one(x, 1)))),
    "Swish": for_f32(swish),
    # x if it is above alpha, else 0
    "ThresholdedRelu": lambda c: c.graph.select(
        c.graph.greater(c.input(0), one(c.input(0), c.attr("alpha", 1.0))), c.input(0), one(c.input(0), 0)),
    # any number of tensors, combined from the first to the last
    **dict.fromkeys(VARIADIC, lambda c: reduce(partial(_binary, c, VARIADIC[c.node.op_type]),
                                               [c.input(k) for k in range(len(c.inputs))])),
    "Where": lambda c: (c.graph.select if c.input(1).dtype in FLOATS else c.graph.choose)(
        c.input(0), c.input(1), c.input(2)),
})
