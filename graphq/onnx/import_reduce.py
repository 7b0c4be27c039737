"""Reductions of floats."""
from __future__ import annotations

from graphq.ir import Value
from graphq.onnx.importer import Call, Outputs, imports
from graphq.op import lookup

REDUCTIONS = {"ReduceL1": "reduce_l1", "ReduceL2": "reduce_l2", "ReduceMax": "reduce_max", "ReduceMean": "reduce_mean",
              "ReduceMin": "reduce_min", "ReduceProd": "reduce_prod", "ReduceSum": "reduce_sum"}


@imports(*REDUCTIONS)
def reduction(c: Call) -> Outputs:
    """`axes` are an attribute, or a constant in newer versions; none mean all, or with noop_with_empty_axes none."""
    x = c.input(0)
    axes = c.ints("axes", 1)
    if not axes:
        if c.attr("noop_with_empty_axes", 0):
            return _of_elements(c, x)
        if x.shape is None:
            return None
        axes = tuple(range(len(x.shape)))
    return c.graph.add_node(lookup(REDUCTIONS[c.node.op_type]), [x],
                            {"axes": axes, "keep_dims": bool(c.attr("keepdims", 1))})


def _of_elements(c: Call, x: Value) -> Outputs:
    """The reduction of each element by itself."""
    return x if c.node.op_type not in ("ReduceL1", "ReduceL2") else None
