"""What calibration found on some batches, and the parameters of a product's operands that follow from it."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from graphq.quantization.insert import Quantized
from graphq.quantization.products import Product
from graphq.quantization.ranges import Parameters, parameters
from graphq.quantization.scheme import Scheme
from graphq.quantization.setting import Candidate
from graphq.quantization.statistics import Statistics

WIDE_HEADROOM = 4.0
"""The factor by which ranges of 16 bits exceed the observed ones: two of the 16 bits are spent on unseen data."""
MOST_HEADROOM = 2.0
"""The largest factor by which the margin of a candidate (`Candidate`) widens a range."""


@dataclass
class Known:
    """What is known of some batches: statistics, smoothing factors, statistics after smoothing, bias corrections."""

    plain: Statistics
    factors: Mapping[str, np.ndarray]
    smoothed: Statistics
    shifts: dict[Key, np.ndarray | None] = field(default_factory=dict)

    def quantized(self, product: Product, choices: Mapping[str, Candidate], scheme: Scheme) -> Quantized:
        """How a product is quantized with the candidates that `choices` has for its tensors."""
        activations, factors, wide = {}, None, product.name in scheme.wide
        for k in product.activations:
            name = str(product.factors[k].name)
            c = Candidate("min_max") if wide else choices[name]
            smooth = k == 0 and c.smooth and product.weights is not None and name in self.factors
            if smooth:
                factors = self.factors[name]
            activations[k] = self.parameters(name, c._replace(smooth=smooth), scheme, WIDE_HEADROOM if wide else None)
        return Quantized(activations, factors, wide, product.name in scheme.wide_weights)

    def parameters(self, name: str, c: Candidate, scheme: Scheme, headroom: float | None = None) -> Parameters:
        """The parameters of a tensor by a candidate; a `headroom`, if given, replaces the candidate's margin."""
        if headroom is None:
            headroom = min(MOST_HEADROOM, self.plain.unseen)**c.margin
        how = replace(scheme, method=c.method, headroom=headroom)
        return parameters((self.smoothed if c.smooth else self.plain)[name], how, scheme.activations, name)


Key: TypeAlias = tuple[str, tuple[Candidate, ...], bool, bool, int]
"""What determines how a product is quantized: its name, the candidates of its activations, and its bits.

The bits are whether activations have 16, whether weights have 16, and the bits of weights otherwise.
"""


def key_of(p: Product, choices: Mapping[str, Candidate], scheme: Scheme) -> Key:
    """The key of a product with these candidates for its tensors."""
    candidates = tuple(choices[str(p.factors[k].name)] for k in p.activations)
    return p.name, candidates, p.name in scheme.wide, p.name in scheme.wide_weights, scheme.weight_bits
