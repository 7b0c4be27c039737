"""Matrix products of floats."""
from __future__ import annotations

from graphq.ir import Value
from graphq.onnx.import_eltwise import one
from graphq.onnx.importer import Call, Outputs, imports


@imports("MatMul")
def matmul(c: Call) -> Outputs:
    """numpy.matmul."""
    return c.graph.matmul(c.input(0), c.input(1))


@imports("Gemm")
def gemm(c: Call) -> Outputs:
    """`alpha * A' @ B' + beta * C`."""
    return product(c, bool(c.attr("transA", 0)), bool(c.attr("transB", 0)), c.attr("alpha", 1.0), c.optional(2),
                   c.attr("beta", 1.0))


def product(c: Call, transpose_a: bool, transpose_b: bool, alpha: float, bias: Value | None, beta: float) -> Value:
    """`alpha * A' @ B' + beta * bias`; factors of 1 take no operation."""
    g = c.graph
    y = g.matmul(c.input(0), c.input(1), transpose_a=transpose_a, transpose_b=transpose_b)
    if alpha != 1:
        y = g.multiply(y, one(y, alpha))
    if bias is None or beta == 0:
        return y
    return g.add(y, bias if beta == 1 else g.multiply(bias, one(bias, beta)))
