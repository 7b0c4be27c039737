"""Twins: the f32 graph with the quantized form of each product beside it, on the same f32 operands.

So one run tells what each product alone would change at its result, all others exact: the mean of the difference, for
each channel, is what bias correction takes back, its mean square is the product's noise.
"""
from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from graphq.compile import compile
from graphq.ir import Graph, Value
from graphq.quantization.calibrate import Batches, checked_batches
from graphq.quantization.insert import insert_static, kept
from graphq.quantization.scheme import Scheme
from graphq.quantization.statistics import Statistics

PREFIX = "quantized/"


@dataclass
class Difference:
    """Of one product over all batches: the mean of f32 - quantized, by channel if there are weights; mean squares."""

    shift: np.ndarray
    noise: float = 0.0
    signal: float = 0.0

    @property
    def ratio(self) -> float:
        """Noise over signal."""
        return self.noise / max(self.signal, 1e-300)


def differences(graph: Graph, batches: Batches, statistics: Statistics, scheme: Scheme) -> dict[str, Difference]:
    """What quantization changes at each product of a prepared graph, by name."""
    g = graph.copy()
    chosen = kept(g, scheme)
    for product in chosen:
        (twin,) = g.add_again(product.node, product.node.inputs)
        g.rename(twin, PREFIX + product.name)
    plain = [p.name for p in kept(g, replace(scheme, exclude=(), wide=())) if not p.name.startswith(PREFIX)]
    insert_static(g, statistics, replace(scheme, exclude=plain, wide=[PREFIX + n for n in scheme.wide]))
    outputs: dict[str, Value] = {}
    twins = {str(v.name): v for n in g.nodes for v in n.outputs if v.name is not None}
    for product in chosen:
        y, axis = product.node.output, product.result_axis()
        if axis is None or y.shape is None:
            continue
        # Without weights the number of columns may be another in each batch.
        others = [k for k in range(len(y.shape)) if k != axis or product.weights is None]
        d = g.subtract(y, twins[PREFIX + product.name])
        for part, v in (("shift", d), ("noise", g.square(d)), ("signal", g.square(y))):
            outputs[f"{part}/{product.name}"] = g.reduce_mean(v, axes=others)
    if not outputs:
        return {}
    g.set_outputs(list(outputs.values()), list(outputs))
    g.prune()
    model = compile(g)
    found: dict[str, Difference] = {}
    for count, batch in enumerate(checked_batches(batches), 1):
        out = model(batch)
        for product in chosen:
            if f"shift/{product.name}" not in out:
                continue
            shift = out[f"shift/{product.name}"].astype(np.float64)
            noise, signal = (float(out[f"{part}/{product.name}"].astype(np.float64).mean())
                             for part in ("noise", "signal"))
            mean = found.setdefault(product.name, Difference(np.zeros_like(shift)))
            mean.shift = mean.shift + (shift - mean.shift) / count
            mean.noise += (noise - mean.noise) / count
            mean.signal += (signal - mean.signal) / count
    return found


def correct_biases(graph: Graph, found: dict[str, Difference]) -> int:
    """Add the mean difference of each channel to the bias of each product; how many changed.

    Empirical bias correction (Nagel et al., 2019, "Data-free quantization through weight equalization and bias
    correction", 4.2), all products at once: each is measured on exact operands.
    """
    count = 0
    for product in kept(graph, Scheme()):
        d = found.get(product.name)
        if d is None or product.weights is None or not np.isfinite(d.shift).all() or not d.shift.any():
            continue
        node, bias = product.node, product.bias
        channels = product.weights.shape[product.weight_axes()[0]]
        if node.op.name == "conv_transpose" and product.groups > 1 or len(d.shift) != channels:
            continue
        if bias is not None and (bias.data is None or bias.data.shape != (channels,)):
            continue
        old = np.zeros(channels, np.float32) if bias is None else bias.data
        assert old is not None
        with graph.before(node):
            new = graph.constant((old + d.shift).astype(np.float32))
            out = graph.add_node(node.op, [*node.inputs[:2], new], node.attrs)[0]
        graph.replace_uses(node.output, out)
        graph.prune([node])
        count += 1
    return count
