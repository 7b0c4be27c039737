"""The plan step of a node that has no kernel: its NumPy reference."""
from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from graphq.ir import Node
from graphq.plan_builder import PlanBuilder
from graphq.runtime import PythonStep


def reference_steps(b: PlanBuilder, node: Node) -> None:
    """One step in Python."""
    inputs = tuple(None if v is None else b.of[v] for v in node.inputs)
    shapes = tuple(None if v is None else v.type.dims for v in node.inputs)
    b.steps.append(PythonStep(b.graph.describe(node), partial(_reference, node, shapes), inputs,
                              tuple(b.result(v) for v in node.outputs)))


def _reference(node: Node, shapes: tuple[tuple[int, ...] | None, ...], *arrays: np.ndarray | None) -> Any:
    """The node's reference; a view's buffer has the shape of what it views."""
    args = (x if x is None or s is None else x.reshape(s) for x, s in zip(arrays, shapes, strict=True))
    return node.op.reference(*args, **node.attrs)
