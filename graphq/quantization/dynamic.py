"""Dynamic quantization: ranges of activations are computed at run time, so that no calibration data is needed.

    by tensor   x -> dynamic_dequantize(dynamic_quantize(x, range), range), ONNX's DynamicQuantizeLinear, u8
    by row      y = (rint(x / s) @ w') s, s = max|x| / 127 of each row: s8, for matmuls with rows along the last axis

A row's scale cannot be inside the sum of an integer kernel, so it multiplies the result.
"""
from __future__ import annotations

from graphq.ir import Graph, Value
from graphq.passes.ranges_by_row import quantized_rows
from graphq.quantization.insert import insert_weights, kept, replace_operand
from graphq.quantization.products import Product
from graphq.quantization.scheme import Scheme


def insert_dynamic(graph: Graph, scheme: Scheme) -> None:
    """Quantize the products of a `prepared` graph in place; activations are quantized at run time."""
    pairs: dict[Value, Value] = {}
    for product in kept(graph, scheme):
        node = product.node
        if scheme.rows and _has_rows(product):
            _by_rows(graph, product, scheme)
            continue
        for k in product.activations:
            x = product.factors[k]
            if x not in pairs:
                with graph.before(node):
                    scale, zp = graph.dynamic_range(x)
                    q = graph.dynamic_quantize(x, scale, zp, dtype="u8")
                    pairs[x] = graph.dynamic_dequantize(q, scale, zp)
            replace_operand(graph, node, k, pairs[x])
        insert_weights(graph, product, scheme, None)


def _has_rows(p: Product) -> bool:
    return p.node.op.name == "matmul" and p.weights is not None and not p.node.attrs["transpose_a"]


def _by_rows(graph: Graph, product: Product, scheme: Scheme) -> None:
    node, (x, weights), bias = product.node, product.factors, product.bias
    with graph.before(node):
        q, scale = quantized_rows(graph, x)
        (sums,) = graph.add_node(node.op, [graph.dequantize(q, scales=[1.0]), weights], node.attrs)
        y = graph.multiply(sums, scale)
        if bias is not None:
            y = graph.add(y, bias)
    graph.replace_uses(node.output, y)
    graph.prune([node])
    assert sums.node is not None
    insert_weights(graph, Product(sums.node), scheme, None)
