"""Decide by the results of a calibration how to quantize each layer (`Known`), and correct biases."""
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from graphq.ir import Graph
from graphq.quantization import tuned
from graphq.quantization.insert import Quantized, integers_hold
from graphq.quantization.parametrized import bias_of
from graphq.quantization.products import LinearLayer, products
from graphq.quantization.ranges import MOST, Parameters, parameters
from graphq.quantization.scheme import Candidate, Scheme
from graphq.quantization.statistics import Statistics, TensorStatistics

Key: TypeAlias = tuple[str, tuple[Candidate, ...], bool, bool, int]


def key_of(p: LinearLayer, choices: Mapping[str, Candidate], scheme: Scheme) -> Key:
    """The facts that determine how a layer is quantized: its name, its candidates, and the bits of its operands."""
    candidates = tuple(choices[str(p.factors[k].name)] for k in p.activations)
    return p.name, candidates, p.name in scheme.wide, p.name in scheme.wide_weights, scheme.weight_bits


@dataclass
class Known:
    """Results on some batches: statistics, smoothing factors, quantizations of layers, corrections of biases.

    All calls must pass schemes that differ only in bits and in the set of quantized layers.
    """

    plain: Statistics
    factors: Mapping[str, np.ndarray]
    products: dict[Key, Quantized | None] = field(default_factory=dict, repr=False)
    shifts: dict[Key, np.ndarray | None] = field(default_factory=dict, repr=False)

    def quantized(self, product: LinearLayer, choices: Mapping[str, Candidate], scheme: Scheme) -> Quantized | None:
        """How a layer is quantized by the candidates in `choices`; None if integers cannot hold the layer's numbers."""
        key = key_of(product, choices, scheme)
        if key in self.products:
            return self.products[key]
        activations, factors, wide = {}, None, product.name in scheme.wide
        for k in product.activations:
            name = str(product.factors[k].name)
            c = Candidate("min_max") if wide else choices[name]
            smooth = k == 0 and c.smooth and product.weights is not None and name in self.factors
            if smooth:
                factors = self.factors[name]
            headroom = tuned.WIDE_HEADROOM if wide else None
            activations[k] = self.parameters(name, c._replace(smooth=smooth), scheme, headroom)
        held = factors is not None or integers_hold(product, activations, self.plain, scheme)
        wide_weights = product.name in scheme.wide_weights
        self.products[key] = Quantized(activations, factors, wide, wide_weights) if held else None
        return self.products[key]

    def parameters(self, name: str, c: Candidate, scheme: Scheme, headroom: float | None = None) -> Parameters:
        """The parameters that candidate `c` gives to a tensor; a given `headroom` replaces the candidate's margin."""
        if headroom is None:
            headroom = min(tuned.MOST_HEADROOM, self.plain.unseen)**c.margin
        t, how = self.plain[name], replace(scheme, method=c.method, headroom=headroom)
        if c.smooth:
            assert t.channels is not None
            t = TensorStatistics(float((t.channels.low / self.factors[name]).min()),
                                 float((t.channels.high / self.factors[name]).max()))
        return parameters(t, how, scheme.activations, name)


def shift_biases(graph: Graph, shifts: Mapping[str, np.ndarray]) -> int:
    """Add `shifts`, by layer name, to biases where possible (`correctable`); returns how many biases changed.

    With the mean differences of the layers' channels, this is empirical bias correction (Nagel et al., 2019, "Data-free
    quantization through weight equalization and bias correction", 4.2). All layers are corrected at once, because each
    change is measured on exact operands.
    """
    count = 0
    for product in list(products(graph)):
        shift = shifts.get(product.name)
        if shift is not None and correctable(product, shift) and shift.any():
            node, bias = product.node, bias_of(product)
            assert bias is not None
            with graph.before(node):
                new = graph.constant((bias + shift).astype(np.float32))
                out = graph.add_node(node.op, [*node.inputs[:2], new], node.attrs)[0]
            product.replace(out)
            count += 1
    return count


def correctable(product: LinearLayer, shift: np.ndarray) -> bool:
    """Whether the shift can be added to a layer's bias: equal shapes, and all sums finite in f32."""
    bias = bias_of(product)
    return bias is not None and shift.shape == bias.shape and bool((np.abs(bias + shift) <= MOST).all())
