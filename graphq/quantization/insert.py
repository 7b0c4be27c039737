"""Put quantize and dequantize nodes at the operands of layers, with given parameters.

8-bit weights lie in [-127, 127], 7-bit weights in [-64, 64]. Two products of a u8 activation and a 7-bit weight sum to
at most 2 * 255 * 64 = 32640, which fits in 16 bits. Without VNNI, the fastest instruction of x86 adds two products in
16 bits and saturates; for 7-bit weights it is therefore exact. PyTorch and ONNX Runtime call such weights
`reduce_range`.
"""
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from graphq.dtypes import s8
from graphq.errors import GraphError
from graphq.ir import Graph, Node, Value, choice
from graphq.quantization.between import insert_between, pair, quantized_between, share
from graphq.quantization.bodies import body_text, with_bodies
from graphq.quantization.products import LinearLayer, products
from graphq.quantization.ranges import LEAST, MOST, Parameters, holds, parameters, scales_of
from graphq.quantization.scheme import Scheme
from graphq.quantization.statistics import Statistics

LARGEST: Mapping[int | None, int] = {7: 64, 8: 127}
"""The largest magnitude of weights, by their number of bits."""


def along(product: LinearLayer, scheme: Scheme) -> tuple[int | None, int]:
    """The axis of weights with one scale per index (None for one scale), and the largest integer."""
    return product.weight_axes()[0] if scheme.per_channel else None, LARGEST[scheme.weight_bits]


def integers(weights: np.ndarray, axis: int | None, most: int) -> tuple[np.ndarray, Parameters]:
    """Quantize an array to s8 numbers of magnitude up to `most`, with a scale per channel of `axis`, or one for all.

    A scale maps the largest weight of its channel, or of the tensor, to the largest integer. Nothing is clipped: at 8
    bits clipping costs more than it gains (docs/quantization.md has figures).
    """
    scales = weight_scales(weights, axis, most)
    p = Parameters(s8, tuple(scales.tolist()), (0,) * len(scales), axis)
    steps = scales.reshape([-1 if k == axis else 1 for k in range(weights.ndim)])
    return np.clip(np.rint(weights / steps), -most, most).astype(np.int8), p


def weight_scales(weights: np.ndarray, axis: int | None, most: int) -> np.ndarray:
    """The scales of quantized weights: f32, one per channel of `axis` or one for all."""
    scales = scales_of(_tops(weights, axis), most)
    return np.where(scales < LEAST, np.float32(1), scales)


def _tops(weights: np.ndarray, axis: int | None) -> np.ndarray:
    rows = weights.reshape(1, -1) if axis is None else np.moveaxis(weights, axis, 0).reshape(weights.shape[axis], -1)
    return np.maximum(rows.max(axis=1, initial=0.0), -rows.min(axis=1, initial=0.0))


def rest_of_weights(weights: np.ndarray, axis: int | None, most: int) -> np.ndarray:
    """The weights minus the numbers that their `integers` represent."""
    q, p = integers(weights, axis, most)
    steps = np.array(p.scales, np.float32).reshape([-1 if k == axis else 1 for k in range(weights.ndim)])
    return np.asarray(weights - q.astype(np.float32) * steps)


MAX_BIAS = 2**30
"""A bias with larger integers than MAX_BIAS stays in f32, because s32 must also have room for the sum of products."""
PART = 256
"""A 16-bit tensor is the sum of two 8-bit tensors. The second (the remainder) has steps PART times smaller."""


@dataclass(frozen=True)
class Quantized:
    """How one layer is quantized.

    `activations` maps indices of operands to parameters. With `wide`, activations have 16 bits, as the sum of two 8-bit
    tensors; with `wide_weights` the weights do.
    """

    activations: Mapping[int, Parameters]
    wide: bool = False
    wide_weights: bool = False


def insert_static(graph: Graph, statistics: Statistics, scheme: Scheme) -> dict[str, str]:
    """Quantize the layers of a `prepared` graph in place, with ranges from statistics; returns the result of `unheld`.

        x @ w + b -> dequantize(quantize(x)) @ dequantize(w') + dequantize(b'), w' in s8, b' in s32

    Raises GraphError for an activation without statistics.
    """
    between = held_between(graph, statistics, scheme, lambda _: scheme)
    chosen = by_statistics(graph, statistics, scheme)
    left = unheld(graph, chosen, scheme, statistics)
    insert(graph, chosen, scheme, between)
    return left


def _of_statistics(statistics: Statistics, name: str, what: str, scheme: Scheme) -> Parameters:
    if name not in statistics:
        raise GraphError(f"no statistics of '{name}', {what}")
    return parameters(statistics[name], scheme, scheme.activations, name)


def held_between(graph: Graph, statistics: Statistics, scheme: Scheme,
                 how: Callable[[str], Scheme]) -> dict[str, Parameters]:
    """The parameters of the scheme's values between layers that integers can hold; `how` is as in `quantized_layer`."""
    found = {name: _of_statistics(statistics, name, "a value between layers", how(name))
             for name in quantized_between(graph, scheme)}
    return {name: p for name, p in found.items() if holds(statistics[name], p)}


def quantized_layer(graph: Graph, p: LinearLayer, statistics: Statistics, scheme: Scheme,
                    how: Callable[[str], Scheme]) -> Quantized | None:
    """How a layer of a graph is quantized: by the scheme that `how` returns for the name of each activation.

    None if integers cannot hold the layer's numbers, or if too few batches reached the body that the layer is in.
    """
    if p.node.graph is not graph and not all(name in statistics for name in p.sources):
        return None
    activations = {k: _of_statistics(statistics, str(p.factors[k].name), f"an operand of '{p.name}'",
                                     how(str(p.factors[k].name))) for k in p.activations}
    if not integers_hold(p, activations, statistics, scheme):
        return None
    return Quantized(activations, p.name in scheme.wide, p.name in scheme.wide_weights)


def by_statistics(graph: Graph, statistics: Statistics, scheme: Scheme) -> dict[str, Quantized]:
    """How each layer is quantized, by name; layers that the scheme excludes or integers cannot hold are left out."""
    found = {p.name: quantized_layer(graph, p, statistics, scheme, lambda _: scheme) for p in kept(graph, scheme)}
    return {name: q for name, q in found.items() if q is not None}


def integers_hold(product: LinearLayer, activations: Mapping[int, Parameters], statistics: Statistics,
                  scheme: Scheme) -> bool:
    """Whether integers can hold the numbers of a layer's operands, and f32 can hold the product of their scales.

    Integers hold numbers if not all numbers are rounded to 0, and if all integers represent finite numbers. Ranges that
    the scheme's limits state are not checked.
    """
    limits, sources = dict(scheme.limits), [(str(product.factors[k].name), p) for k, p in activations.items()]
    if not all(name in limits or holds(statistics[name], p) for name, p in sources):
        return False
    step, weights = float(np.prod([p.scales[0] for _, p in sources])), product.largest / LARGEST[8]
    if product.weights is None or weights == 0:
        return LEAST <= step <= MOST / 2**16
    return LEAST <= weights and LEAST <= step * weights <= MOST / 2**16


def unheld(graph: Graph, chosen: Collection[str], scheme: Scheme,
           statistics: Statistics | None = None) -> dict[str, str]:
    """A sentence about each layer that is not `chosen`, or has channels of weights so small that they become zeros.

    Layers are not chosen if their numbers are too small or too large, or if a part of the batches (`calibrate_parts`)
    did not reach the branch or loop that they are in. Without statistics, ranges are dynamic.
    """
    lost, stays, owners = {}, {}, with_bodies(graph)
    for p in kept(graph, scheme):
        if p.name in chosen and p.weights is not None:
            tops = _tops(p.weights, along(p, scheme)[0])
            if (zeros := int(((tops > 0) & (tops / LARGEST[scheme.weight_bits] < LEAST)).sum())):
                lost[p.name] = f"{zeros} of {len(tops)} channels have weights below 1e-35 and become zeros"
        elif p.name not in chosen and statistics is None:
            stays[p.name] = f"stays in f32, because its weights are at most {p.largest:.1e}"
        elif p.name not in chosen and statistics is not None and not all(name in statistics for name in p.sources):
            stays[p.name] = f"stays in f32, because too few batches reached {body_text(p.node.graph, owners)}"
        elif p.name not in chosen and statistics is not None:
            largest = {f"'{name}'": max(-statistics[name].low, statistics[name].high) for name in p.sources}
            largest |= {} if p.weights is None else {"its weights": p.largest}
            sizes = " and ".join(f"{name} up to {top:.1e}" for name, top in largest.items())
            stays[p.name] = f"stays in f32, because scales in f32 cannot hold {sizes}"
    return lost | stays


def insert(graph: Graph, chosen: Mapping[str, Quantized], scheme: Scheme,
           between: Mapping[str, Parameters] | None = None) -> None:
    """Quantize the layers of a `prepared` graph in place, each as `chosen` says.

    Values in `between` are quantized for all their readers. A layer with 16 bits becomes a sum of 8-bit layers:

        x @ w + b -> hi @ w'' + (lo @ w' + (hi @ w' + b))

    with hi = dequantize(quantize(x)), lo = dequantize(quantize(x - hi)), w' = dequantize(quantize(w)) and w'' =
    dequantize(quantize(w - w')). The product lo @ w'' is left out, because it is below the resolution of 16 bits. The
    smallest term is computed last; the additions and the operations after them run in the same kernel. The f32
    rounding errors of this term are small compared with a step, so few outputs are near a tie.
    """
    pairs, weights = insert_between(graph, between or {}), QuantizedWeights()
    for product in list(products(graph)):
        q = chosen.get(product.name)
        if q is None:
            continue
        node, own = product.node, product.node.graph
        rests: dict[int, Value] = {}
        for k in product.activations:
            x, p = product.factors[k], q.activations[k]
            if (x, p) not in pairs:
                pairs[x, p] = pair(node, x, p)
            high = pairs[x, p]
            if q.wide:
                smaller = Parameters(s8, (float(np.float32(p.scales[0]) / np.float32(PART)),), (0,))
                with own.before(node):
                    rests[k] = pair(node, own.subtract(x, high), smaller)
            replace_operand(node, k, high)
        if q.wide_weights and product.weights is not None:
            rests[1] = _dequantized(product, *weights.quantized(product, 1, scheme, rest=True))
        insert_weights(product, scheme, q.activations.get(0), weights)
        if rests:
            _add_rests(product, rests)
    for part in with_bodies(graph):
        share(part)


def _add_rests(product: LinearLayer, rests: Mapping[int, Value]) -> None:
    graph, node = product.node.graph, product.node
    with graph.before(node):
        total = graph.add_again(node, node.inputs)[0]
        for k, rest in rests.items():
            factors = [rest if j == k else v for j, v in enumerate(product.factors)]
            total = graph.add(graph.add_node(node.op, factors, node.attrs)[0], total)
    product.replace(total)


def kept(graph: Graph, scheme: Scheme) -> list[LinearLayer]:
    """The layers that the scheme does not exclude. Raises GraphError if the scheme names an unknown layer."""
    found = list(products(graph))
    names = [p.name for p in found]
    for wanted in (*scheme.exclude, *scheme.wide, *scheme.wide_weights):
        if wanted not in names:
            raise GraphError(f"scheme: no matmul or convolution is named {wanted!r}{choice(wanted, names)}")
    return [p for p in found if p.name not in scheme.exclude]


class QuantizedWeights:
    """The quantized constants of a graph and its bodies; a constant that several layers read is quantized once."""

    def __init__(self) -> None:
        self._made: dict[object, tuple[Value, Parameters]] = {}

    def quantized(self, product: LinearLayer, number: int, scheme: Scheme, *,
                  rest: bool = False) -> tuple[Value, Parameters]:
        """The integers and scales of a layer's constant operand or, with `rest`, of its rounding remainder."""
        value, how = product.factors[number], along(product, scheme)
        key = value, how, rest
        if key not in self._made:
            q, p = integers(rest_of_weights(value.array, *how) if rest else value.array, *how)
            with product.node.graph.before(product.node):
                self._made[key] = product.node.graph.constant(q), p
        return self._made[key]


def insert_weights(product: LinearLayer, scheme: Scheme, left: Parameters | None, weights: QuantizedWeights) -> None:
    """Quantize a layer's constant operands. The bias stays in f32 if `left`, the parameters of the input, is None."""
    node = product.node
    for k, value in enumerate(product.factors):
        if value.data is None:
            continue
        q, p = weights.quantized(product, k, scheme if k == 1 else replace(scheme, per_channel=False))
        replace_operand(node, k, _dequantized(product, q, p))
        if k == 1 and left is not None and scheme.bias == "s32":
            _insert_bias(product, left, p)


def _dequantized(product: LinearLayer, q: Value, p: Parameters) -> Value:
    with product.node.graph.before(product.node):
        return product.node.graph.dequantize(q, **p.attrs)


def _insert_bias(product: LinearLayer, left: Parameters, right: Parameters) -> None:
    """b -> dequantize(rint(b / (sx * sw)))"""
    graph, bias = product.node.graph, product.bias
    if bias is None or bias.data is None or len(bias.type.dims) != 1:
        return
    with np.errstate(over="ignore"):
        scales = np.float32(left.scales[0]) * np.asarray(right.scales, np.float32)
    if len(scales) not in (1, bias.type.size) or not ((scales > 0) & np.isfinite(scales)).all():
        return
    q = np.rint(bias.data.astype(np.float64) / scales)
    if np.abs(q).max(initial=0) > MAX_BIAS:
        return
    p = Parameters(right.dtype, tuple(scales.tolist()), (0,) * len(scales), 0 if len(scales) > 1 else None)
    with graph.before(product.node):
        replace_operand(product.node, 2, graph.dequantize(graph.constant(q.astype(np.int32)), **p.attrs))


def replace_operand(node: Node, number: int, value: Value) -> None:
    """Replace one operand of `node` by `value`, and remove nodes that only the old operand used."""
    graph, old = node.graph, node.operand(number)
    uses: list[Any] = [u for u in old.uses if u.node is node and u.number == number]
    graph.replace_uses(old, value, uses)
    if old.node is not None and not old.uses:
        graph.prune([old.node])
