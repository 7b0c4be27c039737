"""The plan step of a node that has no kernel: its NumPy reference."""
from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from graphq.errors import GraphError, GraphqError
from graphq.ir import Node, Op
from graphq.plan.builder import PlanBuilder
from graphq.plan.plan import PythonStep


def reference_steps(b: PlanBuilder, node: Node) -> None:
    """Add the Python step that runs the operation's NumPy reference."""
    inputs = tuple(None if v is None else b.of[v] for v in node.inputs)
    shapes = tuple(None if v is None else v.type.dims for v in node.inputs)
    where = b.graph.describe(node)
    b.steps.append(PythonStep(where, partial(_reference, node.op, node.attrs, where, shapes), inputs,
                              tuple(b.result(v) for v in node.outputs)))


def _reference(op: Op, attrs: Mapping[str, Any], where: str, shapes: tuple[tuple[int, ...] | None, ...],
               *arrays: np.ndarray | None) -> Any:
    """Run the operation's reference; its errors name the node `where`.

    An array in the buffer of a view may have another shape than the operand, so each array is reshaped to its operand's
    shape.
    """
    args = (x if x is None or s is None else x.reshape(s) for x, s in zip(arrays, shapes, strict=True))
    try:
        return op.reference(*args, **attrs)
    except MemoryError:
        raise GraphError(f"{where}: not enough memory") from None
    except GraphqError as e:
        raise type(e)(f"{where}: {e}") from e
