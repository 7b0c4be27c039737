"""Importers of reductions of floats, and of sums of integers."""
from __future__ import annotations

from graphq.dtypes import f64, s32, s64
from graphq.ir import Value
from graphq.ir.op import lookup
from graphq.onnx.importers.importer import Call, Outputs, by_body, imports
from graphq.ops.infer import FLOATS

REDUCTIONS = {"ReduceL1": "reduce_l1", "ReduceL2": "reduce_l2", "ReduceMax": "reduce_max", "ReduceMean": "reduce_mean",
              "ReduceMin": "reduce_min", "ReduceProd": "reduce_prod", "ReduceSum": "reduce_sum"}


@imports(*REDUCTIONS)
def reduction(c: Call) -> Outputs:
    """Import a reduction that is one operation of graphq."""
    return _reduced(c, c.input(0), c.node.op_type)


@imports("ReduceSumSquare")
def sum_of_squares(c: Call) -> Outputs:
    """Import ReduceSumSquare: `sum(x**2)`."""
    return _reduced(c, c.graph.square(c.input(0)), "ReduceSum")


@imports("ReduceLogSum")
def log_of_sum(c: Call) -> Outputs:
    """Import ReduceLogSum: `log(sum(x))`."""
    if c.input(0).dtype not in (*FLOATS, f64):
        c.refuse(f"a logarithm of sums takes floats, got {c.input(0).type}")
    total = _reduced(c, c.input(0), "ReduceSum")
    return None if total is None else c.graph.log(total)


@imports("ReduceLogSumExp")
def log_of_sum_of_powers(c: Call) -> Outputs:
    """Import ReduceLogSumExp by ONNX's function; versions without a function are left to ONNX's reference."""
    if c.input(0).dtype not in (*FLOATS, f64):
        c.refuse(f"a logarithm of sums takes floats, got {c.input(0).type}")
    return by_body(c)


def _reduced(c: Call, x: Value, name: str) -> Value | None:
    """The reduction `name` of x along `axes`, which is an attribute or, in newer versions, a constant input.

    Without axes it reduces all of them or, with noop_with_empty_axes, none.
    """
    axes = c.ints("axes", 1)
    if not axes:
        if c.attr("noop_with_empty_axes", 0):
            return x if name not in ("ReduceL1", "ReduceL2") else None
        if x.shape is None:
            return None
        axes = tuple(range(len(x.shape)))
    attrs = {"axes": axes, "keep_dims": bool(c.attr("keepdims", 1))}
    whole = name == "ReduceSum" and x.dtype in (s32, s64)
    return c.graph.add_node(lookup("integer_sum" if whole else REDUCTIONS[name]), [x], attrs)[0]
