"""Tools of importers: express an operator by other ones; sizes, constants, casts."""
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import helper

from graphq.dtypes import bf16, f16, f32, s32
from graphq.ir import Value
from graphq.onnx.importers.importer import Call, Scope, import_node

OPSET = 21
"""The default operator set of `standard`; `save_onnx` writes the same."""

NEWER = 23
"""The first version of ONNX's operator set that has Attention and RotaryEmbedding."""


def standard(c: Call, op_type: str, inputs: Sequence[Value | np.ndarray | None], outputs: int = 1, *,
             opset: int = OPSET, **attrs: Any) -> list[Value]:
    """Import an ONNX operator of the operator set `opset`; returns its outputs. Operands may be arrays."""
    prefix = f"{c.node.name or next(filter(None, c.node.output), '')}/{op_type}"
    around = dict(c.scope.values) if "body" in attrs else {}  # a body may read values around it
    scope = Scope({**c.scope.opsets, "": opset}, around, folder=c.scope.folder)
    scope.values.update({f"{prefix}/in{k}": c.graph.add_constant(v) if isinstance(v, np.ndarray) else v
                         for k, v in enumerate(inputs) if v is not None})
    names = [f"{prefix}/in{k}" if v is not None else "" for k, v in enumerate(inputs)]
    node = helper.make_node(op_type, names, [f"{prefix}/{k}" for k in range(outputs)], name=prefix, **attrs)
    import_node(c.graph, node, scope)
    return [scope.values[name] for name in node.output]


def size_of(c: Call, x: Value, axis: int) -> Value:
    """The size of a dimension of `x`, s64[1]."""
    return standard(c, "Shape", [x], start=axis, end=axis + 1)[0]


def places(c: Call, x: Value, axis: int) -> Value:
    """The positions 0, 1, 2, ... along a dimension of `x`, in s32."""
    count, = standard(c, "Squeeze", [size_of(c, x, axis)])
    return c.graph.cast(*standard(c, "Range", [np.asarray(0), count, np.asarray(1)]), dtype=s32)


def one(like: Value, value: float) -> np.ndarray:
    """`value` as a scalar array of the dtype of `like`."""
    return np.asarray(value).astype(like.dtype.numpy)


def in_f32(c: Call, x: Value) -> Value:
    """Cast `x`, of any float dtype, to f32."""
    return x if x.dtype == f32 else c.graph.type_cast(x, dtype=f32)


def by_f32(c: Call, build: Callable[..., Value], *operands: Value | None) -> Value:
    """Apply `build` to the operands; f16 and bf16 are computed in f32 and rounded once, as in ONNX Runtime."""
    x = operands[0]
    if x is None or x.dtype not in (bf16, f16):
        return build(*operands)
    return c.graph.type_cast(build(*(v if v is None else c.graph.type_cast(v, dtype=f32) for v in operands)),
                             dtype=x.dtype)
