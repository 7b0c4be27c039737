"""Importers of operators on elements, comparisons, casts and reductions."""
from functools import partial
from typing import Any

import torch

from graphq.dtypes import bf16, boolean, f16, f32, s8, s32, u8
from graphq.ir import Value
from graphq.ops.rules import FLOATS
from graphq.torch.operators.importer import NUMBERS, AtenCall, Result, dtype_of, imports

SAME = ("Abs Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Erf Exp Floor HardSwish IsInf IsNaN Log Mish Neg "
        "Reciprocal Relu Sigmoid Sign Sin Sinh Softsign Sqrt Tan Tanh")
"""ONNX operators whose names in lower case are operators of ATen that compute the same."""

RENAMED = {"add": "Add", "sub": "Sub", "mul": "Mul", "maximum": "Max", "minimum": "Min", "eq": "Equal", "gt": "Greater",
           "lt": "Less", "ge": "GreaterOrEqual", "le": "LessOrEqual", "remainder": "Mod"}
"""ONNX operators of two operands by ATen's names."""


def common(c: AtenCall, *names: str) -> list[Value]:
    """Operands in the dtype of the result; if it is boolean, in the dtype that PyTorch compares them in.

    PyTorch computes narrow floats and a number in f32, so the number may have more digits and a wider range.
    """
    names = names or tuple(name for name in ("input", "other") if name in c.args)
    fakes = [c.fake(name) for name in names]
    dtype = c.dtype() if c.dtype() != boolean else dtype_of(torch.result_type(fakes[0], fakes[-1]))
    if dtype in (bf16, f16) and any(isinstance(fake, int | float) for fake in fakes):
        dtype = f32
    tensor = isinstance(c.fake(), torch.Tensor)
    return [(c.scalar if tensor and type(fake) in NUMBERS else c.value)(c[name], dtype)
            for name, fake in zip(names, fakes, strict=True)]


def lanewise(op_type: str, c: AtenCall, **attrs: Any) -> Result:
    """Import an operator of one operand, or of two that broadcast; the second is multiplied by `alpha`."""
    operands = common(c)
    op_type = op_type if c.dtype() != boolean else {"Add": "Or", "Mul": "And"}.get(op_type, op_type)
    if c["alpha"] not in (None, 1):
        operands[1] = c.Mul(operands[1], c["alpha"])
    return c.onnx(op_type, *operands, **attrs)


def logical(op_type: str, c: AtenCall) -> Result:
    """Import an operator on truth values, or on the bits of integers."""
    operands = [c.value(c[name]) for name in ("input", "other") if name in c.args]
    return c.onnx(op_type if c.dtype() == boolean else f"Bitwise{op_type}", *operands)


def reduction(op_type: str, c: AtenCall, x: Value | None = None) -> Any:
    """Import a reduction over the axes `dim`, or all axes, of `x` or the first argument."""
    axes = [c["dim"]] if isinstance(c["dim"], int) else c["dim"] or None
    return c.onnx(op_type, c.value(c.x) if x is None else x, axes, keepdims=int(bool(c["keepdim"])))


def limited(c: AtenCall, low: Any, high: Any) -> Result:
    """Import limits: numbers, tensors, or None."""
    x = c.value(c.x)
    if x.dtype == f32 and isinstance(low, int | float) and isinstance(high, int | float):
        return c.graph.clamp(x, min=low, max=high)
    x = x if low is None else c.Max(x, c.value(low))
    return x if high is None else c.Min(x, c.value(high))


def div(c: AtenCall) -> Result:
    """Import a division: exact, rounded down (`floor`) or towards zero (`trunc`); ONNX divides integers to zero."""
    mode, (a, b) = "floor" if c.op == "floor_divide" else c["rounding_mode"], common(c)
    if a.dtype not in FLOATS:
        return c.Div(c.Sub(a, c.Mod(a, b)) if mode == "floor" else a, b)
    quotient = c.Div(a, b)
    return quotient if mode is None else c.Floor(quotient) if mode == "floor" else truncated(c, quotient)


def truncated(c: AtenCall, x: Value) -> Result:
    """Floats, rounded towards zero."""
    return c.Mul(c.Sign(x), c.Floor(c.Abs(x)))


def convert(c: AtenCall) -> Result:
    """Import a conversion to the result's dtype; fusions match 8-bit integers that a dequantize converts."""
    c.read.add("other")  # a tensor; only its element type is used
    integers = c.x.dtype in (s8, u8) and c.dtype() in FLOATS
    return c.graph.dequantize(c.x, scales=[1.0]) if integers else c.x


imports({op_type.lower(): partial(lanewise, op_type) for op_type in SAME.split()})
imports({name: partial(lanewise, op_type) for name, op_type in RENAMED.items()})
imports({f"logical_{name} bitwise_{name} __{name}__": partial(logical, name.title()) for name in (
    "and", "or", "xor", "not")})
imports({
    "alias clone detach lift_fresh_copy": lambda c: c.x,
    "amax aten.max.default": partial(reduction, "ReduceMax"),
    "amin aten.min.default": partial(reduction, "ReduceMin"),
    "any": lambda c: reduction("ReduceMax", c, c.value(c.value(c.x, boolean), s32)),
    "argmax": lambda c: None if c["dim"] is None else c.ArgMax(c.x, axis=c["dim"], keepdims=int(c["keepdim"])),
    "argmin": lambda c: None if c["dim"] is None else c.ArgMin(c.x, axis=c["dim"], keepdims=int(c["keepdim"])),
    "clamp clamp_min clamp_max": lambda c: limited(c, c["min"], c["max"]),
    "cumsum": lambda c: c.graph.cum_sum(c.value(c.x), axis=c["dim"]),
    "cumprod": lambda c: c.graph.cum_prod(c.value(c.x), axis=c["dim"]),
    "div floor_divide": div,
    "dropout": lambda c: None if all([c["train"], c["p"]]) else c.x,
    "elu": lambda c: None if c["input_scale"] != 1 else c.Mul(c.Elu(c.x, alpha=float(c["alpha"])), c["scale"]),
    "fmod": lambda c: lanewise("Mod", c, fmod=1),
    "gelu": lambda c: c.Gelu(c.x, approximate=c["approximate"]),
    "hardsigmoid": lambda c: c.HardSigmoid(c.x, alpha=1 / 6, beta=0.5),
    "hardtanh": lambda c: limited(c, c["min_val"], c["max_val"]),
    "leaky_relu": lambda c: c.LeakyRelu(c.x, alpha=float(c["negative_slope"])),
    "linalg_vector_norm": lambda c: reduction(f"ReduceL{c['ord']:g}", c) if c["ord"] in (1, 2) else None,
    "masked_fill": lambda c: c.Where(c["mask"], c.value(c["value"]), c.x),
    "mean": partial(reduction, "ReduceMean"),
    "ne": lambda c: c.Not(lanewise("Equal", c)),
    # a square is a product, so integers stay exact
    "pow": lambda c: c.Mul(c.x, c.x) if c["exponent"] in (2, 2.0) else c.Pow(
        *common(c, *c.args)),
    "prod": partial(reduction, "ReduceProd"),
    "prelu": lambda c: c.graph.prelu(c.x, c["weight"], data_format="NCX"),
    "aten.round.default": lambda c: c.Round(c.x),
    "rsqrt": lambda c: c.Reciprocal(c.Sqrt(c.value(c.x))),
    "silu": lambda c: c.Mul(c.x, c.Sigmoid(c.x)),
    "softmax _softmax": lambda c: c.Softmax(c.value(c.x), axis=c["dim"]),
    "log_softmax _log_softmax": lambda c: c.LogSoftmax(c.value(c.x), axis=c["dim"]),
    "softplus": lambda c: None if c["threshold"] < 20 else c.graph.softplus(
        c.value(c.x, f32), beta=float(c["beta"])),
    "sort": lambda c: c.TopK(c.x, [c.size(c.x, c["dim"])], outputs=2, axis=c["dim"], largest=int(c["descending"])),
    "sum": partial(reduction, "ReduceSum"),
    "to _to_copy prims.convert_element_type quantized_decomposed.convert_element_type": convert,
    "topk": lambda c: c.TopK(c.x, [c["k"]], outputs=2, axis=c["dim"], largest=int(c["largest"])),
    "trunc": lambda c: truncated(c, c.x),
    "where": lambda c: c.Where(c["condition"], *common(c)),
})
