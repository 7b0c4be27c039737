"""Importers of operators on elements, comparisons, casts and reductions."""
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from graphq.dtypes import DType, boolean, f32, s8, s64, u8
from graphq.ir import Value
from graphq.ops.rules import FLOATS
from graphq.torch.operators.importer import AtenCall, Result, dtype_of, imports, imports_each

UNARY = {"abs": "Abs", "acos": "Acos", "asin": "Asin", "atan": "Atan", "ceil": "Ceil", "cos": "Cos", "cosh": "Cosh",
         "erf": "Erf", "exp": "Exp", "floor": "Floor", "isinf": "IsInf", "isnan": "IsNaN", "log": "Log", "neg": "Neg",
         "reciprocal": "Reciprocal", "relu": "Relu", "round": "Round", "sigmoid": "Sigmoid", "sign": "Sign",
         "sin": "Sin", "sinh": "Sinh", "softsign": "Softsign", "sqrt": "Sqrt", "tan": "Tan", "tanh": "Tanh",
         "mish": "Mish", "logical_not": "Not", "bitwise_not": "Not", "hardswish": "HardSwish"}
"""ONNX operators that compute the same as an operator of ATen, on the result's dtype or on booleans."""

BINARY = {"add": "Add", "sub": "Sub", "mul": "Mul", "maximum": "Max", "minimum": "Min", "fmod": "Mod",
          "eq": "Equal", "gt": "Greater", "lt": "Less", "ge": "GreaterOrEqual", "le": "LessOrEqual",
          "logical_and": "And", "logical_or": "Or", "logical_xor": "Xor"}
"""ONNX operators of two operands."""

LOGICAL = frozenset({"And", "Or", "Xor", "Not"})
BITWISE = {"bitwise_and": "And", "bitwise_or": "Or", "bitwise_xor": "Xor", "__and__": "And", "__or__": "Or",
           "__xor__": "Xor"}


def unary(op_type: str, c: AtenCall) -> Result:
    """Import an operator of one operand; an integer becomes a float if the result is one."""
    x = c.input(0)
    if op_type in LOGICAL:
        return c.onnx(op_type, c.cast(x, boolean)) if x.dtype == boolean or c.name.startswith("logical") else \
            c.onnx("BitwiseNot", x)
    return c.onnx(op_type, c.cast(x) if c.dtype() != boolean else x)


def common(c: AtenCall, *ks: int) -> list[Value]:
    """Operands converted to the dtype that PyTorch computes in."""
    fakes = [c.fake(k) for k in ks]
    wanted = fakes[0].dtype if isinstance(fakes[0], torch.Tensor) else None
    for a, b in zip(fakes, fakes[1:], strict=False):
        wanted = torch.result_type(a, b)
    dtype = c.dtype() if wanted is None else dtype_of(wanted)
    return [_operand(c, c.args[k], dtype) for k in ks]


def _operand(c: AtenCall, x: Any, dtype: DType) -> Value:
    return c.cast(x, dtype) if isinstance(x, Value) else c.number(x, dtype)


def binary(op_type: str, c: AtenCall) -> Result:
    """Import an operator of two operands that broadcast; add and sub multiply the second by `alpha`."""
    a, b = common(c, 0, 1)
    if op_type in LOGICAL:
        return c.onnx(op_type, c.cast(a, boolean), c.cast(b, boolean))
    alpha = c.kwargs.get("alpha", 1)
    if alpha != 1:
        b = c.onnx("Mul", b, c.number(alpha, b.dtype))
    return c.onnx(op_type, a, b, **({"fmod": 1} if op_type == "Mod" else {}))


def _bitwise(op_type: str, c: AtenCall) -> Result:
    return binary(op_type if c.dtype() == boolean else f"Bitwise{op_type}", c)


imports_each({name: partial(unary, op_type) for name, op_type in UNARY.items()})
imports_each({name: partial(binary, op_type) for name, op_type in BINARY.items()})
imports_each({name: partial(_bitwise, op_type) for name, op_type in BITWISE.items()})
imports_each({
    "alias": lambda c: c.input(0), "clone": lambda c: c.input(0), "contiguous": lambda c: c.input(0),
    "detach": lambda c: c.input(0), "lift_fresh_copy": lambda c: c.input(0), "positive": lambda c: c.input(0),
    "addcmul": lambda c: c.onnx("Add", c.input(0), _scaled(c, c.onnx("Mul", c.input(1), c.input(2)))),
    "addcdiv": lambda c: c.onnx("Add", c.input(0), _scaled(c, c.onnx("Div", c.input(1), c.input(2)))),
    "elu": lambda c: c.onnx("Elu", c.input(0), alpha=float(c.arg(1, "alpha", 1.0))),
    "gelu": lambda c: c.onnx("Gelu", c.input(0), approximate=c.kwargs.get("approximate", "none")),
    "hardsigmoid": lambda c: c.onnx("HardSigmoid", c.input(0), alpha=1 / 6, beta=0.5),
    "leaky_relu": lambda c: c.onnx("LeakyRelu", c.input(0), alpha=float(c.arg(1, "negative_slope", 0.01))),
    "log1p": lambda c: c.onnx("Log", c.onnx("Add", c.input(0), c.number(1, c.dtype()))),
    "log_sigmoid": lambda c: c.onnx("Neg", c.onnx("Softplus", c.onnx("Neg", c.input(0)))),
    "ne": lambda c: c.onnx("Not", c.onnx("Equal", *common(c, 0, 1))),
    "rsqrt": lambda c: c.onnx("Reciprocal", c.onnx("Sqrt", c.cast(c.input(0)))),
    "rsub": lambda c: c.onnx("Sub", *reversed(common(c, 0, 1))),
    "silu": lambda c: c.onnx("Mul", c.input(0), c.onnx("Sigmoid", c.input(0))),
    "softplus": lambda c: c.graph.softplus(c.cast(c.input(0), f32), beta=float(c.arg(1, "beta", 1))),
    "square": lambda c: c.onnx("Mul", c.input(0), c.input(0)),
    "where": lambda c: c.onnx("Where", c.input(0), *common(c, 1, 2)),
    "masked_fill": lambda c: c.onnx("Where", c.input(1), _operand(c, c.args[2], c.dtype()), c.input(0)),
})


def _scaled(c: AtenCall, x: Value) -> Value:
    value = c.kwargs.get("value", 1)
    return x if value == 1 else c.onnx("Mul", x, c.number(value, x.dtype))


@imports("dropout", "native_dropout", "feature_dropout", "dropout_")
def dropout(c: AtenCall) -> Result:
    """Import dropout of a module in eval mode: its operand. Refuses training."""
    if c.arg(2, "train", False) and c.arg(1, "p", 0.5):
        c.refuse("dropout in training mode is random: export module.eval()")
    return [c.input(0), None] if isinstance(c.fake(), tuple | list) else c.input(0)


@imports("to", "_to_copy", "type_as", "prims.convert_element_type", "quantized_decomposed.convert_element_type")
def to(c: AtenCall) -> Result:
    """Import a conversion to the result's dtype; the device and layout do not matter.

    A conversion of 8-bit integers is a dequantize with the scale 1, because fusions match it.
    """
    x = c.input(0)
    if x.dtype in (s8, u8) and c.dtype() in FLOATS:
        return c.cast(c.graph.dequantize(x, scales=[1.0]))
    return c.cast(x)


@imports("div", "true_divide", "floor_divide")
def div(c: AtenCall) -> Result:
    """Import a division: exact, rounded down (`floor`) or towards zero (`trunc`)."""
    name = c.op
    mode = "floor" if "floor_divide" in name else c.kwargs.get("rounding_mode")
    a, b = common(c, 0, 1)
    if mode is None:
        return c.onnx("Div", c.cast(a), c.cast(b))
    if a.dtype in FLOATS:
        quotient = c.onnx("Div", a, b)
        return c.onnx("Floor", quotient) if mode == "floor" else \
            c.onnx("Mul", c.onnx("Sign", quotient), c.onnx("Floor", c.onnx("Abs", quotient)))
    return floored(c, a, b) if mode == "floor" else c.onnx("Div", a, b)


def floored(c: AtenCall, a: Value, b: Value) -> Value:
    """The quotient of integers, rounded down: `(a - a mod b) / b`, because ONNX rounds towards zero."""
    quotient: Value = c.onnx("Div", c.onnx("Sub", a, c.onnx("Mod", a, b)), b)
    return quotient


@imports("remainder")
def remainder(c: AtenCall) -> Result:
    """Import the remainder with the divisor's sign: `a - floor(a / b) * b` for floats."""
    a, b = common(c, 0, 1)
    if a.dtype not in FLOATS:
        return c.onnx("Mod", a, b)
    return c.onnx("Sub", a, c.onnx("Mul", c.onnx("Floor", c.onnx("Div", a, b)), b))


@imports("pow")
def pow_(c: AtenCall) -> Result:
    """Import a power; a square of integers stays exact."""
    a, b = common(c, 0, 1)
    if c.args[1] == 2 and isinstance(c.args[1], int | float):
        return c.onnx("Mul", a, a)
    return c.onnx("Pow", c.cast(a), c.cast(b))


@imports("clamp", "clamp_min", "clamp_max", "hardtanh", "relu6")
def clamp(c: AtenCall) -> Result:
    """Import limits, which may be numbers or tensors."""
    name = c.op
    low, high = {"clamp_min": (c.arg(1, "min"), None), "clamp_max": (None, c.arg(1, "max")), "relu6": (0, 6),
                 "clamp": (c.arg(1, "min"), c.arg(2, "max")),
                 "hardtanh": (c.arg(1, "min_val", -1), c.arg(2, "max_val", 1))}[name]
    x = c.cast(c.input(0))
    if x.dtype == f32 and low is not None and high is not None and not isinstance(low, Value) | isinstance(high, Value):
        return c.graph.clamp(x, min=low, max=high)
    x = x if low is None else c.onnx("Max", x, _operand(c, low, x.dtype))
    return x if high is None else c.onnx("Min", x, _operand(c, high, x.dtype))


@imports("prelu", "_prelu_kernel")
def prelu(c: AtenCall) -> Result:
    """Import PReLU with one slope, or one for each channel (axis 1)."""
    x, slope = c.input(0), c.input(1)
    rank = len(c.dims(x))
    if len(c.dims(slope)) == 1 and rank > 1:
        slope = c.graph.static_reshape(slope, shape=[1, -1, *[1] * (rank - 2)])
    return c.onnx("PRelu", x, slope)


@imports("glu")
def glu(c: AtenCall) -> Result:
    """Import GLU: the first half along an axis times the sigmoid of the second."""
    a, b = c.onnx("Split", c.input(0), outputs=2, axis=c.arg(1, "dim", -1), num_outputs=2)
    return c.onnx("Mul", a, c.onnx("Sigmoid", b))


@imports("softmax", "_softmax", "_safe_softmax", "log_softmax", "_log_softmax")
def softmax(c: AtenCall) -> Result:
    """Import softmax and its logarithm; with a `dtype`, the operand is converted first."""
    op_type = "LogSoftmax" if "log" in c.op else "Softmax"
    return c.onnx(op_type, c.cast(c.input(0)), axis=c.arg(1, "dim"))


REDUCTIONS = {"mean": "ReduceMean", "sum": "ReduceSum", "amax": "ReduceMax", "amin": "ReduceMin", "prod": "ReduceProd",
              "logsumexp": "ReduceLogSumExp"}


def reduction(op_type: str, c: AtenCall, x: Value | None = None) -> Any:
    """Import a reduction over the axes in argument 1, or all axes, of `x` or the first operand."""
    axes, keep = c.arg(1, "dim"), bool(c.arg(2, "keepdim", False))
    axes = [axes] if isinstance(axes, int) else axes
    x = c.cast(c.input(0)) if x is None else x
    chosen = np.asarray(axes, np.int64) if axes else None
    return c.onnx(op_type, x, chosen, keepdims=int(keep))


imports_each({name: partial(reduction, op_type) for name, op_type in REDUCTIONS.items()})


@imports("max", "min")
def extreme(c: AtenCall) -> Result:
    """Import an extreme of all elements, of two tensors, or along an axis with the place of the first extreme."""
    name = "Max" if "max" in c.op else "Min"
    if len(c.args) > 1 and isinstance(c.args[1], Value):
        return binary(name, c)
    values = reduction(f"Reduce{name}", c)
    return values if len(c.args) < 2 else [values, _place_of(c, f"Arg{name}")]


def _place_of(c: AtenCall, op_type: str) -> Value:
    place: Value = c.onnx(op_type, c.input(0), axis=c.arg(1, "dim"), keepdims=int(c.arg(2, "keepdim", False)))
    return place


@imports("argmax", "argmin")
def place_of_extreme(c: AtenCall) -> Result:
    """Import the place of the first extreme along an axis, or among all elements."""
    op_type = "ArgMax" if "max" in c.op else "ArgMin"
    if c.arg(1, "dim") is not None:
        return _place_of(c, op_type)
    return c.onnx(op_type, c.graph.static_reshape(c.input(0), shape=[-1]), axis=0, keepdims=0)


@imports("any", "all")
def any_or_all(c: AtenCall) -> Result:
    """Import `any` and `all` as extremes of 0 and 1."""
    ones = c.cast(c.cast(c.input(0), boolean), dtype_of(torch.int32))
    return c.cast(reduction("ReduceMax" if "any" in c.op else "ReduceMin", c, ones))


@imports("var", "std", "var_mean")
def variance(c: AtenCall) -> Result:
    """Import the variance over axes, its root, or variance and mean."""
    x, name = c.cast(c.input(0)), c.op
    axes, keep = c.arg(1, "dim"), int(c.arg(3 if "dim" in name else 2, "keepdim", False))
    correction = c.arg(2, "unbiased") if "dim" in name.split(".")[-1] else c.kwargs.get("correction")
    dims = c.dims(x)
    chosen = range(len(dims)) if not axes else [a % len(dims) for a in axes]
    count = 1
    for a in chosen:
        size = dims[a]
        if size is None:
            c.refuse("a variance over an open dimension is not supported")
        count *= size
    many = np.asarray(chosen, np.int64)
    mean = c.onnx("ReduceMean", x, many, keepdims=1)
    less = c.onnx("Sub", x, mean)
    total = c.onnx("ReduceSum", c.onnx("Mul", less, less), many, keepdims=keep)
    y = c.onnx("Div", total, c.number(count - (1 if correction is None else int(correction)), x.dtype))
    if "var_mean" in name:
        return [y, mean if keep else c.onnx("ReduceMean", x, many, keepdims=0)]
    return c.onnx("Sqrt", y) if "std" in name else y


@imports("linalg_vector_norm")
def vector_norm(c: AtenCall) -> Result:
    """Import the norms of order 1 and 2."""
    order = c.arg(1, "ord", 2)
    if order not in (1, 2):
        c.refuse(f"a norm of order {order} is not supported")
    axes = c.arg(2, "dim")
    return c.onnx(f"ReduceL{int(order)}", c.input(0), np.asarray(axes, np.int64) if axes else None,
                  keepdims=int(c.arg(3, "keepdim", False)))


@imports("cumsum")
def cumsum(c: AtenCall) -> Result:
    """Import sums of all elements up to each one, along an axis."""
    return c.onnx("CumSum", c.cast(c.input(0)), np.asarray(c.arg(1, "dim"), np.int64))


@imports("topk")
def topk(c: AtenCall) -> Result:
    """Import the greatest or least elements along an axis and their places, sorted."""
    k = c.arg(1, "k")
    return c.onnx("TopK", c.input(0), k if isinstance(k, Value) else np.asarray([k], np.int64), outputs=2,
                  axis=c.arg(2, "dim", -1), largest=int(c.arg(3, "largest", True)))


SYMBOLIC: dict[str, tuple[Callable[..., Any], str]] = {
    "add": (operator.add, "Add"), "sub": (operator.sub, "Sub"), "mul": (operator.mul, "Mul"),
    "sym_max": (max, "Max"), "sym_min": (min, "Min"), "mod": (operator.mod, "Mod"), "eq": (operator.eq, "Equal"),
    "ge": (operator.ge, "GreaterOrEqual"), "gt": (operator.gt, "Greater"), "le": (operator.le, "LessOrEqual"),
    "lt": (operator.lt, "Less")}


def symbolic(function: Callable[..., Any], op_type: str, c: AtenCall) -> Result:
    """Import arithmetic of Python on symbolic integers."""
    if not any(isinstance(x, Value) for x in c.args):
        return function(*c.args)
    return c.onnx(op_type, *(_operand(c, x, s64) for x in c.args))


imports_each({f".{name}": partial(symbolic, *how) for name, how in SYMBOLIC.items()})


@imports(".floordiv")
def floordiv(c: AtenCall) -> Result:
    """Import the floor of a quotient of symbolic integers."""
    if not any(isinstance(x, Value) for x in c.args):
        return c.args[0] // c.args[1]
    return floored(c, *(_operand(c, x, s64) for x in c.args))
