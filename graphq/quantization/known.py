"""Decide by the results of a calibration how to quantize each layer (`Known`), and correct biases."""
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from graphq.ir import Graph
from graphq.quantization.insert import Quantized, integers_hold
from graphq.quantization.parametrized import bias_of, takes_bias
from graphq.quantization.products import LinearLayer, products
from graphq.quantization.ranges import MOST, Parameters, parameters
from graphq.quantization.scheme import Candidate, Scheme
from graphq.quantization.statistics import Statistics, TensorStatistics

WIDE_HEADROOM = 4.0
"""16-bit ranges are this many times as wide as the observed ranges: two of the 16 bits are for unseen data."""
MOST_HEADROOM = 2.0
"""The margin of a `Candidate` widens a range by at most this ratio."""


Key: TypeAlias = tuple[str, tuple[Candidate, ...], bool, bool, int]
"""The facts that determine how a layer is quantized.

A key has the layer's name, the candidates for its activations, whether activations have 16 bits, whether weights have
16 bits, and the number of bits that weights have otherwise.
"""


def key_of(p: LinearLayer, choices: Mapping[str, Candidate], scheme: Scheme) -> Key:
    """The key of a layer with these candidates for its tensors."""
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
        if key not in self.products:
            self.products[key] = self._quantized(product, choices, scheme)
        return self.products[key]

    def _quantized(self, product: LinearLayer, choices: Mapping[str, Candidate], scheme: Scheme) -> Quantized | None:
        activations, factors, wide = {}, None, product.name in scheme.wide
        for k in product.activations:
            name = str(product.factors[k].name)
            c = Candidate("min_max") if wide else choices[name]
            smooth = k == 0 and c.smooth and product.weights is not None and name in self.factors
            if smooth:
                factors = self.factors[name]
            activations[k] = self.parameters(name, c._replace(smooth=smooth), scheme, WIDE_HEADROOM if wide else None)
        if factors is None and not integers_hold(product, activations, self.plain, scheme):
            return None
        return Quantized(activations, factors, wide, product.name in scheme.wide_weights)

    def parameters(self, name: str, c: Candidate, scheme: Scheme, headroom: float | None = None) -> Parameters:
        """The parameters that candidate `c` gives to a tensor; a given `headroom` replaces the candidate's margin."""
        if headroom is None:
            headroom = min(MOST_HEADROOM, self.plain.unseen)**c.margin
        how = replace(scheme, method=c.method, headroom=headroom)
        return parameters(self._smoothed(name) if c.smooth else self.plain[name], how, scheme.activations, name)

    def _smoothed(self, name: str) -> TensorStatistics:
        channels = self.plain[name].channels
        assert channels is not None
        return TensorStatistics(float((channels.low / self.factors[name]).min()),
                                float((channels.high / self.factors[name]).max()))


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
            node = product.node
            with graph.before(node):
                new = graph.constant((bias_of(product) + shift).astype(np.float32))
                out = graph.add_node(node.op, [*node.inputs[:2], new], node.attrs)[0]
            product.replace(out)
            count += 1
    return count


def correctable(product: LinearLayer, shift: np.ndarray) -> bool:
    """Whether the shift can be added to a layer's bias: equal shapes, and all sums finite in f32."""
    return takes_bias(product) and shift.shape == bias_of(product).shape \
        and bool((np.abs(bias_of(product) + shift) <= MOST).all())
