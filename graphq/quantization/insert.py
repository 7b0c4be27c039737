"""Put quantize and dequantize nodes at the factors of products, by given parameters."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from graphq.dtypes import DType
from graphq.errors import GraphError
from graphq.ir import Graph, Node, Value
from graphq.quantization.products import Product, products
from graphq.quantization.ranges import Parameters, parameters, wider
from graphq.quantization.scheme import Scheme
from graphq.quantization.statistics import Statistics
from graphq.quantization.weights import quantized_weights

MAX_BIAS = 2**30
"""A bias of larger integers stays in f32: sums need room, too."""


def insert_static(graph: Graph, statistics: Statistics, scheme: Scheme,
                  chosen: Mapping[str, Parameters] | None = None) -> None:
    """Quantize the products of a prepared graph in place, activations by statistics.

    x @ w + b -> dequantize(quantize(x)) @ dequantize(w') + dequantize(b'), w' in s8, b' in s32. `chosen` are parameters
    of activations by their names, where they shall not follow from the statistics.

    Raises GraphError for an activation without statistics.
    """
    pairs: dict[tuple[Value, DType], Value] = {}
    for product in kept(graph, scheme):
        dtype = wider(scheme.activations) if product.name in scheme.wide else scheme.activations
        left = None
        for k in product.activations:
            x = product.factors[k]
            name = str(x.name)
            p = chosen.get(name) if chosen else None
            if p is None or p.dtype != dtype:
                if name not in statistics:
                    raise GraphError(f"no statistics of '{name}', a factor of '{product.name}'")
                p = parameters(statistics[name], scheme, dtype)
            if (x, dtype) not in pairs:
                pairs[x, dtype] = pair(graph, product.node, x, p)
            replace_operand(graph, product.node, k, pairs[x, dtype])
            if k == 0:
                left = p
        insert_weights(graph, product, scheme, left)


def kept(graph: Graph, scheme: Scheme) -> list[Product]:
    """The products that the scheme does not exclude; raises GraphError for a name in it that no product has."""
    found = list(products(graph))
    names = [p.name for p in found]
    for wanted in (*scheme.exclude, *scheme.wide):
        if wanted not in names:
            raise GraphError(f"scheme: no matmul or convolution is named {wanted!r}; there are {', '.join(names)}")
    return [p for p in found if p.name not in scheme.exclude]


def pair(graph: Graph, before: Node, x: Value, p: Parameters) -> Value:
    """dequantize(quantize(x))"""
    with graph.before(before):
        return graph.dequantize(graph.quantize(x, dtype=p.dtype, **p.attrs), **p.attrs)


def insert_weights(graph: Graph, product: Product, scheme: Scheme, left: Parameters | None) -> None:
    """Quantize those of a product's factors that are constants, and its bias where the source has one scale, `left`."""
    node = product.node
    for k, value in enumerate(product.factors):
        if value.data is None:
            continue
        per_channel = scheme.per_channel and k == 1
        q, p = quantized_weights(product, value.data, per_channel=per_channel)
        with graph.before(node):
            replace_operand(graph, node, k, graph.dequantize(graph.constant(q), **p.attrs))
        if k == 1 and left is not None and scheme.bias == "s32":
            _insert_bias(graph, product, left, p)


def _insert_bias(graph: Graph, product: Product, left: Parameters, right: Parameters) -> None:
    """b -> dequantize(rint(b / (sx * sw)))"""
    bias = product.bias
    if bias is None or bias.data is None or len(bias.type.dims) != 1:
        return
    scales = np.float32(left.scales[0]) * np.asarray(right.scales, np.float32)
    if len(scales) not in (1, bias.type.size) or not (scales > 0).all():
        return
    q = np.rint(bias.data.astype(np.float64) / scales)
    if np.abs(q).max(initial=0) > MAX_BIAS:
        return
    p = Parameters(right.dtype, tuple(scales.tolist()), (0,) * len(scales), 0 if len(scales) > 1 else None)
    with graph.before(product.node):
        replace_operand(graph, product.node, 2, graph.dequantize(graph.constant(q.astype(np.int32)), **p.attrs))


def replace_operand(graph: Graph, node: Node, number: int, value: Value) -> None:
    """Let one operand of `node` be `value`; what only it used goes."""
    old = node.inputs[number]
    assert old is not None
    uses: list[Any] = [u for u in old.uses if u.node is node and u.number == number]
    graph.replace_uses(old, value, uses)
    if old.node is not None and not old.uses:
        graph.prune([old.node])
