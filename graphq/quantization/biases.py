"""Bias correction: the bias of each product subtracts the mean change that quantization causes there."""
from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from graphq.ir import Graph
from graphq.quantization.calibrate import Batches
from graphq.quantization.insert import by_statistics
from graphq.quantization.parametrised import Difference, Parametrised, bias_of, takes_bias
from graphq.quantization.products import Product, products
from graphq.quantization.scheme import Scheme
from graphq.quantization.statistics import Statistics


def differences(graph: Graph, batches: Batches, statistics: Statistics, scheme: Scheme) -> dict[str, Difference]:
    """The change that quantization causes at each product of a `prepared` graph, by name."""
    model = Parametrised(graph, twins=True)
    return model.differences(batches, by_statistics(graph, statistics, scheme), scheme)


def correct_biases(graph: Graph, found: Mapping[str, Difference]) -> int:
    """Add the mean difference of each channel to the bias of each product; returns how many biases changed.

    This is empirical bias correction (Nagel et al., 2019, "Data-free quantization through weight equalization and bias
    correction", 4.2). It corrects all products at once, since each change is measured on exact operands.
    """
    return shift_biases(graph, {name: d.shift for name, d in found.items()})


def shift_biases(graph: Graph, shifts: Mapping[str, np.ndarray]) -> int:
    """Add `shifts`, given by the names of products, to the biases that can take them; returns how many changed."""
    count = 0
    for product in list(products(graph)):
        shift = shifts.get(product.name)
        if shift is not None and correctable(product, shift) and shift.any():
            node, name = product.node, product.name
            with graph.before(node):
                new = graph.constant((bias_of(product) + shift).astype(np.float32))
                out = graph.add_node(node.op, [*node.inputs[:2], new], node.attrs)[0]
            graph.replace_uses(node.output, out)
            graph.prune([node])
            graph.rename(out, name)
            count += 1
    return count


def correctable(product: Product, shift: np.ndarray) -> bool:
    """Whether the shift can be added to a product's bias: shapes are equal, and all numbers finite."""
    return takes_bias(product) and shift.shape == bias_of(product).shape and bool(np.isfinite(shift).all())
