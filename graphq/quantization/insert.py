"""Put quantize and dequantize nodes at the operands of products, by given parameters.

Weights of 8 bits lie in [-127, 127], weights of 7 bits in [-64, 64]. Two products of a u8 activation and a weight of
7 bits sum to at most 2 * 255 * 64 = 32640, which fits in 16 bits. So vpmaddubsw, the x86 instruction that adds two
products in 16 bits and saturates, is exact for them; CPUs without VNNI have no faster instruction. PyTorch and ONNX
Runtime call these weights `reduce_range`.
"""
from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from graphq.dtypes import s8
from graphq.errors import GraphError
from graphq.ir import Graph, Node, Value
from graphq.ir.names import choice
from graphq.quantization.between import insert_between, pair, quantized_between, share
from graphq.quantization.bodies import with_bodies
from graphq.quantization.products import Product, products
from graphq.quantization.ranges import LEAST, MOST, Parameters, holds, parameters, scales_of
from graphq.quantization.scheme import Scheme
from graphq.quantization.statistics import Statistics

LARGEST = {7: 64, 8: 127}
"""The largest magnitude of weights, by their bits."""


def quantized_weights(product: Product, weights: np.ndarray, scheme: Scheme) -> tuple[np.ndarray, Parameters]:
    """Weights as s8 integers in the range of `scheme.weight_bits`, and their scales.

    A scale maps the largest weight of its output channel, or of the tensor, to the largest integer. Nothing is clipped:
    at 8 bits clipping costs more than it gains. Over many products rounding errors cancel, but the parts that are cut
    off large weights add up (docs/quantization.md has figures).
    """
    return integers(weights, *_along(product, scheme))


def _along(product: Product, scheme: Scheme) -> tuple[int | None, int]:
    """The axis of weights along which scales differ, and the largest integer."""
    return product.weight_axes()[0] if scheme.per_channel else None, LARGEST[scheme.weight_bits]


def integers(weights: np.ndarray, axis: int | None, most: int) -> tuple[np.ndarray, Parameters]:
    """Numbers as s8 up to `most` in magnitude, and their scales: one for each channel of `axis`, or for all."""
    scales = _scales(weights, axis, most)
    p = Parameters(s8, tuple(scales.tolist()), (0,) * len(scales), axis)
    along = scales.reshape([-1 if k == axis else 1 for k in range(weights.ndim)])
    return np.clip(np.rint(weights / along), -most, most).astype(np.int8), p


def weight_steps(product: Product, weights: np.ndarray, scheme: Scheme) -> np.ndarray:
    """The scales of quantized weights: f32, one for each output channel or one for all."""
    return _scales(weights, *_along(product, scheme))


def _scales(weights: np.ndarray, axis: int | None, most: int) -> np.ndarray:
    scales = scales_of(_tops(weights, axis), most)
    return np.where(scales < LEAST, np.float32(1), scales)


def _tops(weights: np.ndarray, axis: int | None) -> np.ndarray:
    """The largest magnitude in each channel of `axis`, or of all weights."""
    rows = weights.reshape(1, -1) if axis is None else np.moveaxis(weights, axis, 0).reshape(weights.shape[axis], -1)
    return np.maximum(rows.max(axis=1, initial=0.0), -rows.min(axis=1, initial=0.0))


def channels_lost(graph: Graph, names: Collection[str], scheme: Scheme) -> dict[str, str]:
    """A sentence for each of these products some of whose channels become zeros: scales are normal numbers."""
    found = {}
    for p in kept(graph, scheme):
        if p.name in names and p.weights is not None:
            tops = _tops(p.weights, _along(p, scheme)[0])
            if (lost := int(((tops > 0) & (tops / LARGEST[scheme.weight_bits] < LEAST)).sum())):
                found[p.name] = f"{lost} of {len(tops)} channels have weights below 1e-35, which become zeros"
    return found


def dequantized_weights(product: Product, weights: np.ndarray, scheme: Scheme) -> np.ndarray:
    """The f32 weights that the quantized ones stand for."""
    q, p = quantized_weights(product, weights, scheme)
    along = [-1 if k == p.axis else 1 for k in range(weights.ndim)]
    return np.asarray(q.astype(np.float32) * np.array(p.scales, np.float32).reshape(along))


def rest_of_weights(product: Product, weights: np.ndarray, scheme: Scheme) -> np.ndarray:
    """The difference between the weights and what the quantized ones stand for."""
    return np.asarray(weights - dequantized_weights(product, weights, scheme))


MAX_BIAS = 2**30
"""A bias whose integers are larger stays in f32, since the products that are added to it need room in s32."""


PART = 256
"""The ratio of the steps of a wide tensor's two 8-bit parts: the step of the first over that of the remainder."""


@dataclass(frozen=True)
class Quantized:
    """How one product is quantized.

    `activations` maps the numbers of its operands to their parameters. `factors` divide the channels of the source and
    multiply the weights (`smooth`). If `wide`, activations have 16 bits, as sums of two tensors of 8 bits; with
    `wide_weights` the weights do. `shift` is added to the bias.
    """

    activations: Mapping[int, Parameters]
    factors: np.ndarray | None = None
    wide: bool = False
    wide_weights: bool = False
    shift: np.ndarray | None = None


def insert_static(graph: Graph, statistics: Statistics, scheme: Scheme) -> dict[str, str]:
    """Quantize the products of a `prepared` graph in place, activations by statistics; returns what is `unheld`.

    x @ w + b -> dequantize(quantize(x)) @ dequantize(w') + dequantize(b'), w' in s8, b' in s32.

    Raises GraphError for an activation without statistics.
    """
    between = {name: _of_statistics(statistics, name, "between products", scheme)
               for name in quantized_between(graph, scheme)}
    between = {name: p for name, p in between.items() if holds(statistics[name], p)}
    chosen = by_statistics(graph, statistics, scheme)
    left = unheld(graph, chosen, statistics, scheme)
    insert(graph, chosen, scheme, between)
    return left


def _of_statistics(statistics: Statistics, name: str, what: str, scheme: Scheme) -> Parameters:
    if name not in statistics:
        raise GraphError(f"no statistics of '{name}', {what}")
    return parameters(statistics[name], scheme, scheme.activations, name)


def by_statistics(graph: Graph, statistics: Statistics, scheme: Scheme) -> dict[str, Quantized]:
    """How the scheme quantizes each product that it does not exclude, by name, if integers hold its numbers."""
    found = {}
    for product in kept(graph, scheme):
        if product.node.graph is not graph and not all(n in statistics for n in product.sources):
            continue  # a body that no batch reached
        activations = {k: _of_statistics(statistics, str(product.factors[k].name), f"a factor of '{product.name}'",
                                         scheme) for k in product.activations}
        if not integers_hold(product, activations, statistics, scheme):
            continue
        found[product.name] = Quantized(activations, wide=product.name in scheme.wide,
                                        wide_weights=product.name in scheme.wide_weights)
    return found


def integers_hold(product: Product, activations: Mapping[int, Parameters], statistics: Statistics,
                  scheme: Scheme) -> bool:
    """Whether the integers of a product's operands, and f32 the product of their scales, tell numbers from 0.

    Numbers of one integer each must not be infinite either. Ranges that the scheme's limits state are not questioned.
    """
    limits, sources = dict(scheme.limits), [(str(product.factors[k].name), p) for k, p in activations.items()]
    if not all(name in limits or holds(statistics[name], p) for name, p in sources):
        return False
    step, weights = float(np.prod([p.scales[0] for _, p in sources])), product.largest / LARGEST[8]
    if product.weights is None or weights == 0:
        return LEAST <= step <= MOST / 2**16
    return LEAST <= weights and LEAST <= step * weights <= MOST / 2**16


def unheld(graph: Graph, chosen: Collection[str], statistics: Statistics, scheme: Scheme) -> dict[str, str]:
    """A sentence for each product that stays in f32 since integers do not hold its numbers, or that loses channels."""
    found = channels_lost(graph, chosen, scheme)
    for p in kept(graph, scheme):
        if p.name not in chosen and all(name in statistics for name in p.sources):
            tops = {f"'{name}'": max(-statistics[name].low, statistics[name].high) for name in p.sources}
            tops |= {} if p.weights is None else {"its weights": p.largest}
            sizes = " and ".join(f"{name} up to {top:.1e}" for name, top in tops.items())
            found[p.name] = f"stays in f32, since scales in f32 cannot hold {sizes}"
    return found


def insert(graph: Graph, chosen: Mapping[str, Quantized], scheme: Scheme,
           between: Mapping[str, Parameters] | None = None) -> None:
    """Quantize the products of a `prepared` graph in place, each as `chosen` says.

    The caller has already divided the channels of sources and shifted biases.

    The values that `between` names are quantized for everything that reads them.

    A wide product becomes a sum of products of 8 bits:

        x @ w + b -> hi @ w'' + (lo @ w' + (hi @ w' + b))

    with hi = dequantize(quantize(x)), lo = dequantize(quantize(x - hi)), w' = dequantize(quantize(w)) and w'' likewise
    of w - w'. The smallest product comes last: its kernel takes in the sum and what follows, and the rounding errors of
    its own f32 sum are small beside a step, so that few outputs are near a tie. The product of the two remainders,
    lo @ w'', is left out: it is smaller than what 16 bits can tell apart.
    """
    pairs, weights = insert_between(graph, between or {}), Weights()

    def dequantized(node: Node, x: Value, p: Parameters) -> Value:
        if (x, p) not in pairs:
            pairs[x, p] = pair(node, x, p)
        return pairs[x, p]

    for product in list(products(graph)):
        q = chosen.get(product.name)
        if q is None:
            continue
        node, own = product.node, product.node.graph
        rests: dict[int, Value] = {}
        for k in product.activations:
            x, p = product.factors[k], q.activations[k]
            high = dequantized(node, x, p)
            if q.wide:
                with own.before(node):
                    rests[k] = pair(node, own.subtract(x, high), rest_of(p))
            replace_operand(node, k, high)
        if q.wide_weights and product.weights is not None:
            rests[1] = _dequantized(product, *weights.quantized(product, 1, scheme, rest=True))
        insert_weights(product, scheme, q.activations.get(0), weights)
        if rests:
            _add_rests(product, rests)
    for part in with_bodies(graph):
        share(part)


def rest_of(p: Parameters) -> Parameters:
    """The parameters of the remainder that rounding to 8 bits leaves: s8, with a step PART times smaller."""
    return Parameters(s8, (float(np.float32(p.scales[0]) / np.float32(PART)),), (0,))


def _add_rests(product: Product, rests: Mapping[int, Value]) -> None:
    graph, node, name = product.node.graph, product.node, product.name
    with graph.before(node):
        total = graph.add_again(node, node.inputs)[0]
        for k, rest in rests.items():
            factors = [rest if j == k else v for j, v in enumerate(product.factors)]
            total = graph.add(graph.add_node(node.op, factors, node.attrs)[0], total)
    graph.replace_uses(node.output, total)
    graph.prune([node])
    graph.rename(total, name)


def kept(graph: Graph, scheme: Scheme) -> list[Product]:
    """The products that the scheme does not exclude; raises GraphError if it names a product that does not exist."""
    found = list(products(graph))
    names = [p.name for p in found]
    for wanted in (*scheme.exclude, *scheme.wide, *scheme.wide_weights):
        if wanted not in names:
            raise GraphError(f"scheme: no matmul or convolution is named {wanted!r}{choice(wanted, names)}")
    return [p for p in found if p.name not in scheme.exclude]


class Weights:
    """The quantized constants of a graph and its bodies; what several products read is quantized once."""

    def __init__(self) -> None:
        self._made: dict[object, tuple[Value, Parameters]] = {}

    def quantized(self, product: Product, number: int, scheme: Scheme, *,
                  rest: bool = False) -> tuple[Value, Parameters]:
        """The integers of a product's constant operand, or of what rounding leaves of it, and their scales."""
        value, along = product.factors[number], _along(product, scheme)
        key = value, along, rest
        if key not in self._made:
            assert value.data is not None
            q, p = integers(rest_of_weights(product, value.data, scheme) if rest else value.data, *along)
            with product.node.graph.before(product.node):
                self._made[key] = product.node.graph.constant(q), p
        return self._made[key]


def insert_weights(product: Product, scheme: Scheme, left: Parameters | None, weights: Weights) -> None:
    """Quantize a product's constant operands, and its bias if the dequantized source `left` has a single scale."""
    node = product.node
    for k, value in enumerate(product.factors):
        if value.data is None:
            continue
        q, p = weights.quantized(product, k, scheme if k == 1 else replace(scheme, per_channel=False))
        replace_operand(node, k, _dequantized(product, q, p))
        if k == 1 and left is not None and scheme.bias == "s32":
            _insert_bias(product, left, p)


def _dequantized(product: Product, q: Value, p: Parameters) -> Value:
    with product.node.graph.before(product.node):
        return product.node.graph.dequantize(q, **p.attrs)


def _insert_bias(product: Product, left: Parameters, right: Parameters) -> None:
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
    """Replace one operand of `node` by `value`, and remove the nodes that only the old operand used."""
    graph, old = node.graph, node.inputs[number]
    assert old is not None
    uses: list[Any] = [u for u in old.uses if u.node is node and u.number == number]
    graph.replace_uses(old, value, uses)
    if old.node is not None and not old.uses:
        graph.prune([old.node])
