"""Elementwise operators. Each docstring has the operators' names; numbers are those of graphq's references."""
from __future__ import annotations

from functools import reduce

import numpy as np

from graphq.dtypes import DType, bf16, f16, f32
from graphq.ir import Value
from graphq.onnx.importer import Call, Outputs, imports
from graphq.onnx.types import dtype_of
from graphq.op import lookup
from graphq.ops.cast import CASTABLE

SAME = {"Abs": "abs", "Erf": "erf", "Exp": "exp", "HardSwish": "hard_swish", "Log": "log", "Mish": "mish",
        "Reciprocal": "reciprocal", "Relu": "relu", "Round": "round", "Sigmoid": "sigmoid", "Softplus": "softplus",
        "Sqrt": "sqrt", "Tanh": "tanh"}
"""Operators that take one tensor and no attributes, and graphq's operations."""

WITH_ALPHA = {"Elu": ("elu", {"alpha": 1.0}), "HardSigmoid": ("hard_sigmoid", {"alpha": 0.2, "beta": 0.5}),
              "LeakyRelu": ("leaky_relu", {"alpha": 0.01})}
"""Operators whose attributes graphq's operations have under the same names, and ONNX's defaults."""

BINARY = {"Add": "add", "Sub": "subtract", "Mul": "multiply", "Div": "divide"}
VARIADIC = {"Max": "maximum", "Min": "minimum", "Sum": "add"}

ROUNDED = {f32: (bf16, f16), bf16: (f32,), f16: (f32,)}
"""Casts that are oneDNN's TypeCast."""


@imports(*SAME)
def same(c: Call) -> Outputs:
    """See SAME."""
    return c.graph.add_node(lookup(SAME[c.node.op_type]), [c.input(0)], {})


@imports(*WITH_ALPHA)
def with_alpha(c: Call) -> Outputs:
    """See WITH_ALPHA."""
    name, defaults = WITH_ALPHA[c.node.op_type]
    return c.graph.add_node(lookup(name), [c.input(0)], {k: c.attr(k, v) for k, v in defaults.items()})


@imports(*BINARY)
def binary(c: Call) -> Outputs:
    """Add, Sub, Mul, Div since version 7, which broadcast as NumPy does."""
    a, b = c.input(0), c.input(1)
    return None if c.version < 7 else c.graph.add_node(lookup(BINARY[c.node.op_type]), [a, b], {})


@imports(*VARIADIC)
def variadic(c: Call) -> Outputs:
    """Max, Min, Sum of any number of tensors, from the first to the last."""
    if c.version < 8 or not c.floats():
        return None
    op = lookup(VARIADIC[c.node.op_type])
    return reduce(lambda a, b: c.graph.add_node(op, [a, b], {})[0], [c.input(k) for k in range(len(c.inputs))])


@imports("Neg")
def neg(c: Call) -> Outputs:
    """`x * -1`, which is `-x`, signs of zeros included."""
    return c.graph.multiply(c.input(0), one(c.input(0), -1)) if c.floats() else None


@imports("Pow")
def pow_(c: Call) -> Outputs:
    """`x**y` for a constant scalar y of any dtype; y = 2 is a product."""
    y = c.data(1)
    if y is None or y.size != 1 or y.ndim > (len(c.input(0).shape or ())):
        return None
    beta = float(y.reshape(()))
    return c.graph.square(c.input(0)) if beta == 2 else c.graph.pow(c.input(0), beta=beta)


@imports("Clip")
def clip(c: Call) -> Outputs:
    """Limits are attributes before version 11, then constants."""
    limits = []
    for k, (name, default) in enumerate((("min", -np.inf), ("max", np.inf)), 1):
        limit = c.data(k)
        if c.has(k) and (limit is None or limit.size != 1):
            return None
        limits.append(c.attr(name, default) if limit is None else float(limit.reshape(())))
    return c.graph.clamp(c.input(0), min=limits[0], max=limits[1])


@imports("PRelu")
def prelu(c: Call) -> Outputs:
    """The slope broadcasts to x as in NumPy."""
    return c.graph.prelu(c.input(0), c.input(1), per_channel_broadcast=False)


@imports("Gelu")
def gelu(c: Call) -> Outputs:
    """`approximate` none is by erf, tanh by tanh."""
    mode = {"none": "gelu_erf", "tanh": "gelu_tanh"}[c.attr("approximate", "none")]
    return c.graph.gelu(c.input(0), mode=mode)


@imports("Where")
def where(c: Call) -> Outputs:
    """Of floats."""
    return c.graph.select(c.input(0), c.input(1), c.input(2))


@imports("Identity", "Dropout")
def identity(c: Call) -> Outputs:
    """Identity, and Dropout that does not train, without its mask."""
    training = c.data(2)
    if c.outputs > 1 or c.has(2) and (training is None or training.any()):
        return None
    return c.input(0)


@imports("Cast")
def cast(c: Call) -> Outputs:
    """To `to`; `saturate` and `round_mode` concern dtypes of 8 bits and fewer, which are left to ONNX."""
    return cast_to(c, c.input(0), dtype_of(c.attr("to"), "attribute 'to'"))


@imports("CastLike")
def cast_like(c: Call) -> Outputs:
    """To the dtype of the second input."""
    return cast_to(c, c.input(0), c.input(1).dtype)


def cast_to(c: Call, x: Value, dtype: DType) -> Value | None:
    """`x` as `dtype`; None for dtypes that graphq does not cast."""
    if dtype == x.dtype:
        return x
    if dtype in ROUNDED.get(x.dtype, ()):
        return c.graph.type_cast(x, dtype=dtype)
    return c.graph.cast(x, dtype=dtype) if {dtype, x.dtype} <= set(CASTABLE) else None


def one(like: Value, value: float) -> np.ndarray:
    """A scalar of the value's dtype."""
    return np.asarray(value).astype(like.dtype.numpy)
