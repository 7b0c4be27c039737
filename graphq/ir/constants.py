"""Constant folding of single nodes: the results of a node whose operands are all known.

Models with open shapes compute most of their shapes by such nodes.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphq.budget import reserve
from graphq.errors import GraphqError
from graphq.ir.node import Value
from graphq.ir.op import Op
from graphq.ir.tensor_type import TensorType

FOLDED = 1 << 16
"""Results of at most so many elements are computed while a graph is built."""

_LONG = frozenset({"avg_pool", "loop", "max_pool"})
_LONG_ONNX = frozenset({"AveragePool", "Loop", "LpPool", "MaxPool", "Scan"})

UNFOLDED = frozenset({"constant", "dequantize", "dynamic_dequantize", "partition"})
"""Operations that stay though their operands are constants, as fusions want them."""


def runs_long(op: Op, attrs: Mapping[str, Any]) -> bool:
    """Whether an operation may run for long though operands and results are small: it is not computed beforehand."""
    return op.name in _LONG or attrs.get("op_type") in _LONG_ONNX


def computed(op: Op, operands: Sequence[Value | None], attrs: Mapping[str, Any],
             types: Sequence[TensorType]) -> tuple[np.ndarray, ...] | None:
    """The results, of `types`, of an operation on constants of at most FOLDED elements; None for any other.

    None too for an operation that cannot run.
    """
    if op.name in UNFOLDED or runs_long(op, attrs) or not types:
        return None
    if any(v is not None and v.data is None for v in operands):
        return None
    if any(t.known and t.size > FOLDED for t in types):
        return None
    return evaluated(op, operands, attrs, types)


def evaluated(op: Op, operands: Sequence[Value | None], attrs: Mapping[str, Any],
              types: Sequence[TensorType]) -> tuple[np.ndarray, ...] | None:
    """The results, of `types`, of an operation on constants; None for one that cannot run.

    Raises CompileError for results that take too much memory (see `graphq.budget`).
    """
    reserve(sum(t.nbytes for t in types if t.known), f"the result of {op.name} on constants")
    try:
        out = op.reference(*(None if v is None else v.data for v in operands), **attrs)
    except GraphqError:
        return None
    outs = out if isinstance(out, tuple) else (out,)
    return tuple(np.asarray(x, t.dtype.numpy) for x, t in zip(outs, types, strict=True))
