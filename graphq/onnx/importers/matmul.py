"""Importers of matrix products of floats."""
from __future__ import annotations

from graphq.ir import Value
from graphq.onnx.importers.composed import standard
from graphq.onnx.importers.eltwise import one
from graphq.onnx.importers.importer import Call, Outputs, imports
from graphq.ops.infer import FLOATS


@imports("Gemm")
def gemm(c: Call) -> Outputs:
    """Import Gemm: `alpha * A' @ B' + beta * C`. ONNX's reference, which runs other dtypes, has no older versions."""
    if c.version < 7 and c.input(0).dtype not in FLOATS:
        return standard(c, "Gemm", list(c.inputs), **{k: v for k, v in c.attrs.items() if k != "broadcast"})
    return product(c, c.input(0), c.input(1), c.optional(2), beta=c.attr("beta", 1.0))


def product(c: Call, a: Value, b: Value, bias: Value | None = None, *, beta: float = 1.0) -> Value:
    """`alpha * A' @ B' + beta * bias`, with transA, transB and alpha of the node; factors of 1 add no operation."""
    g, alpha = c.graph, c.attr("alpha", 1.0)
    y = g.matmul(a, b, transpose_a=bool(c.attr("transA", 0)), transpose_b=bool(c.attr("transB", 0)))
    if alpha != 1:
        y = g.multiply(y, one(y, alpha))
    if bias is None or beta == 0:
        return y
    return g.add(y, bias if beta == 1 else g.multiply(bias, one(bias, beta)))
