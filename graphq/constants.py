"""What depends on constants alone, computed: the shapes of dynamic models are made of it."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphq.errors import GraphqError
from graphq.node import Value
from graphq.op import Op
from graphq.tensor_type import TensorType

FOLDED = 1 << 16
"""Results of at most so many elements are computed while a graph is built."""

UNFOLDED = frozenset({"constant", "dequantize", "dynamic_dequantize", "loop", "partition"})
"""Operations that stay though their operands are constants: fusions want them, or they may run for long."""


def computed(op: Op, operands: Sequence[Value | None], attrs: Mapping[str, Any],
             types: Sequence[TensorType]) -> tuple[np.ndarray, ...] | None:
    """The results, of `types`, of an operation on constants of at most FOLDED elements; None for any other.

    None too for an operation that cannot run.
    """
    if op.name in UNFOLDED or not types or any(v is not None and v.data is None for v in operands):
        return None
    if any(t.known and t.size > FOLDED for t in types):
        return None
    return evaluated(op, operands, attrs, types)


def evaluated(op: Op, operands: Sequence[Value | None], attrs: Mapping[str, Any],
              types: Sequence[TensorType]) -> tuple[np.ndarray, ...] | None:
    """The results, of `types`, of an operation on constants; None for one that cannot run."""
    try:
        out = op.reference(*(None if v is None else v.data for v in operands), **attrs)
    except GraphqError:
        return None
    outs = out if isinstance(out, tuple) else (out,)
    return tuple(np.asarray(x, t.dtype.numpy) for x, t in zip(outs, types, strict=True))
