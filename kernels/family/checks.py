"""Whether lane-wise expressions can compute a body: fusion asks before it makes a partition."""
from __future__ import annotations

from collections.abc import Container

import numpy as np

from graphq.ir import Graph, Node, Value
from graphq.kernels.family.epilogue import LOADS, above, inverse_scales, operand_dims, refuses
from graphq.kernels.family.unsupported import Unsupported
from graphq.kernels.lanes.expression import STORAGE


def check_lanes(body: Graph, out: tuple[int, ...], anchor: Node | None = None, skip: Container[Node | None] = (),
                own: Container[int] = (), result: Value | None = None, *, anchored: bool = False) -> None:
    """Raise Unsupported if an operation, type or shape keeps `translate` from making an expression of shape `out`.

    The arguments are those of `translate`; `anchored` has the same meaning as in EpilogueBuilder.
    """
    for node in body.nodes if result is None else above(result):
        if node in skip:
            continue
        if node is not anchor and (reason := refuses(node)) is not None:
            raise Unsupported(reason)
        _check_fits(node.output.type.dims, out)
        for k, v in enumerate(node.inputs):
            if v is not None and v.node is None and not (node is anchor and k in own):
                check_loads(v)
                _check_fits(operand_dims(node, k, v), out)
        if anchored and node.op.name == "quantize" and node.attrs["dtype"].bits <= 8 \
                and not np.isfinite(inverse_scales(node)).all():
            raise Unsupported("1/scale of a quantize is not a finite f32", "give the quantize a scale above 2**-127")
    result = body.outputs[0] if result is None else result
    if result.type.dims != out:
        raise Unsupported("the result {result} has not the shape " + str(list(out)),
                          "quantize before the operation that changes the shape", result=result)
    if result.dtype.name not in STORAGE:
        raise Unsupported(f"kernels do not store {result.dtype}", "quantize to u8 or s8, or leave the result in f32")


def check_loads(value: Value) -> None:
    """Raise Unsupported for an operand of a type that kernels do not load."""
    if value.dtype.name not in LOADS:
        raise Unsupported(f"kernels do not load {value.dtype}", f"cast {value.name} to f32 before")


def _check_fits(shape: tuple[int, ...], out: tuple[int, ...]) -> None:
    """Raise Unsupported if an operand of shape `shape` would broadcast the output to a larger one."""
    more = len(out) - len(shape)
    if more < 0 or any([a not in (1, b) for a, b in zip(shape, out[more:], strict=True)]):
        raise Unsupported(f"an operand of shape {list(shape)} does not broadcast into the result {list(out)}",
                          "quantize before the operation that makes the result larger")
