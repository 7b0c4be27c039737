"""Move the scaling of channels from activations into weights, if both can then be quantized with less noise.

    x @ w = (x / s) @ (s w)        one factor s > 0 for each channel that is summed

Channels of very different ranges share the scale of their tensor: small channels use only a few integers. Weights have
a scale per output channel. In a depthwise convolution the output channel is also the input channel, so weights lose
nothing. This is SmoothQuant (Xiao et al., 2023, "SmoothQuant: accurate and efficient post-training quantization for
large language models").
"""
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from graphq.ir import Graph, Node, Value
from graphq.ir.node import GRAPH_ORDER
from graphq.passes.fold_scales import fold_scales
from graphq.quantization import tuned
from graphq.quantization.insert import replace_operand
from graphq.quantization.products import LinearLayer, name_values, products, values_by_name
from graphq.quantization.ranges import MOST
from graphq.quantization.statistics import Channels, Statistics


def smoothing(graph: Graph, statistics: Statistics) -> dict[str, np.ndarray]:
    """The factors that divide the channels of layers' inputs, by the names of the inputs.

    The factors are max|x|**alpha / max|w|**(1 - alpha). Each tensor gets the value of ALPHAS with the least `noise`; a
    tensor stays as it is if its noise does not fall below the share WORTH. The statistics have channels.
    """
    found = {}
    for x, users in _sources(graph):
        channels = statistics[str(x.name)].channels if str(x.name) in statistics else None
        factors = None if channels is None else _factors(channels, users)
        if factors is not None:
            found[str(x.name)] = factors
    return found


def divide(graph: Graph, factors: Mapping[str, np.ndarray]) -> set[str]:
    """Insert multiply(x, 1 / factors) before layers, by the name of x, and multiply the layers' weights by the factors.

    If a layer computes x, perhaps before a ReLU, and nothing else reads its result, the multiplication folds into its
    weights. Numbers change by f32 roundings. Returns the layers whose results are divided by such a fold.
    """
    chosen = [(x, users) for x, users in _sources(graph) if str(x.name) in factors]
    readers = [users[0].name for _, users in chosen]
    for x, users in chosen:
        divide_channels(graph, x, users, factors[str(x.name)])
    _fold(graph, len(chosen))
    read = {p.name: p.factors[0] for p in products(graph, inside=False)}
    makers = (_maker(read[name]) for name in readers)  # None for a multiplication that could not be folded
    return {maker.name for maker in makers if maker is not None}


def divide_channels(graph: Graph, x: Value, users: Sequence[LinearLayer], factors: np.ndarray) -> None:
    """Let `users` read x / factors, and multiply their weights by the factors."""
    axis = users[0].source_axis()
    assert axis is not None and x.shape is not None
    inverse = (1 / factors).astype(np.float32).reshape([-1 if k == axis else 1 for k in range(len(x.shape))])
    with graph.before(min((p.node for p in users), key=GRAPH_ORDER)):
        small = graph.multiply(x, inverse)
    for p in users:
        with graph.before(p.node):
            scaled = graph.constant(scaled_weights(p, factors))
        replace_operand(p.node, 1, scaled)
        replace_operand(p.node, 0, small)


class _Load(NamedTuple):
    """The weights of a layer by input channel: the largest one for each output, and the sum of squares."""

    largest: np.ndarray  # [groups, outputs of a group, channels of a group]
    squares: np.ndarray  # [groups, channels of a group]
    taps: int  # the number of weights between a channel and an output

    @property
    def by_channel(self) -> np.ndarray:
        return np.asarray(self.largest.max(axis=1).ravel())


def expected_ranges(channels: Channels) -> np.ndarray:
    """The magnitudes that the channels are expected to reach on data that calibration did not see.

    Each channel gives a ratio: its largest magnitude, divided by `second` (`Channels`). Any channel may exceed its
    largest magnitude by the quantile OF_CHANNELS of these ratios. No channel is expected to exceed the largest
    magnitude of the whole tensor.
    """
    largest = channels.largest
    known = channels.second > 0
    ratios = largest[known] / channels.second[known]
    ratio = np.quantile(ratios, tuned.OF_CHANNELS) if known.any() else tuned.UNSEEN_CHANNEL
    return np.asarray(np.minimum(largest * ratio, largest.max(initial=0)))


def noise(channels: Channels, loads: Iterable[_Load], factors: np.ndarray) -> float:
    """An estimate of the mean squared error of layers of u8 and s8, per element and up to a constant.

    Rounding to steps of size d gives a mean squared error of d**2 / 12. The error of activations is multiplied by the
    squares of weights, the error of weights by the mean squares of activations.
    """
    sides = 1 if channels.low.min(initial=0) > -0.2 * channels.high.max(initial=0) else 2
    step = sides * (expected_ranges(channels) / factors).max(initial=0) / 255
    total = 0.0
    for load in loads:
        factor, square = factors.reshape(load.squares.shape), channels.square.reshape(load.squares.shape)
        steps = (load.largest * factor[:, None]).max(axis=2) / 127  # [groups, outputs of a group]
        total += step**2 * (load.squares * factor**2).sum()
        total += (steps**2).sum(axis=1) @ (load.taps * square / factor**2).sum(axis=1)
    return float(total)


def _factors(channels: Channels, users: Sequence[LinearLayer]) -> np.ndarray | None:
    loads = [_load(p) for p in users]
    if any(load.squares.size != len(channels.low) for load in loads):
        return None
    made = expected_ranges(channels)
    taken = np.max([load.by_channel for load in loads], axis=0)
    usable = (made > 0) & (taken > 0)
    if not usable.any() or taken.max() > MOST / tuned.MOST_FACTOR:
        return None
    tried = []
    for a in tuned.ALPHAS:
        logs = np.log(np.where(usable, made, 1)**a / np.where(usable, taken, 1)**(1 - a))
        logs = np.where(usable, logs - logs[usable].mean(), 0.0)  # a geometric mean of 1
        factors = np.exp(np.clip(logs, -np.log(tuned.MOST_FACTOR), np.log(tuned.MOST_FACTOR)))
        tried.append((noise(channels, loads, factors), factors))
    least, best = min(tried, key=lambda x: x[0])
    return best if least < tuned.WORTH * noise(channels, loads, np.ones_like(made)) else None


def _sources(graph: Graph) -> list[tuple[Value, list[LinearLayer]]]:
    """The activations of layers with constant weights, each with the layers that sum it along the same axis.

    An activation is left out if dividing it would copy weights, because another layer shares these weights.
    """
    found: dict[Value, list[LinearLayer]] = {}
    readers: dict[Value, set[Node]] = {}
    for p in products(graph, inside=False):
        readers.setdefault(p.factors[1], set()).add(p.node)
        if p.has_channels:
            users = found.setdefault(p.factors[0], [])
            if not users or users[0].source_axis() == p.source_axis():
                users.append(p)
    common = {w for w, nodes in readers.items() if w.data is not None and len(nodes) > 1}

    def copies(x: Value, users: list[LinearLayer]) -> bool:
        maker, nodes = _maker(x), {p.node for p in users}
        return maker is not None and maker.factors[1] in common or any(
            p.factors[1] in common and not readers[p.factors[1]] <= nodes for p in users)

    return [(x, users) for x, users in found.items() if not (common and copies(x, users))]


def along_weights(p: LinearLayer, factors: np.ndarray) -> np.ndarray:
    """The factors of input channels, in a shape that broadcasts with the weights."""
    assert p.weights is not None
    out, into = p.weight_axes()
    rank = p.weights.ndim
    if p.groups == 1:
        return factors.reshape([-1 if k == into else 1 for k in range(rank)])
    outputs, inputs = p.weights.shape[out], p.weights.shape[into]
    table = np.repeat(factors.reshape(p.groups, inputs), outputs // p.groups, axis=0)  # [outputs, inputs of a group]
    return np.moveaxis(table.reshape(outputs, inputs, *[1] * (rank - 2)), (0, 1), (out, into))


def scaled_weights(p: LinearLayer, factors: np.ndarray) -> np.ndarray:
    """The weights times the factors of input channels."""
    assert p.weights is not None
    return p.weights * along_weights(p, factors).astype(np.float32)


def _load(p: LinearLayer) -> _Load:
    assert p.weights is not None
    out, into = p.weight_axes()
    w = np.moveaxis(p.weights, (out, into), (0, 1)) if p.weights.ndim > 1 else p.weights
    w = w.reshape(p.groups, w.shape[0] // p.groups, w.shape[1], -1)
    return _Load(np.abs(w).max(axis=3), np.square(w, dtype=np.float64).sum(axis=(1, 3)), w.shape[3])


def _maker(x: Value) -> LinearLayer | None:
    """The layer with constant weights that computes x, perhaps before a ReLU, if nothing else reads its result."""
    node = x.node
    while node is not None and node.op.name in ("relu", "add", "bias_add") and len(list(node.operands)) <= 2:
        source = next((v for v in node.operands if v.data is None), None)
        if source is None or any(v.data is None and v is not source for v in node.operands) or len(source.uses) != 1:
            return None
        node = source.node
    if node is None:
        return None
    return next((p for p in products(node.graph, inside=False) if p.node is node and p.weights is not None), None)


def _fold(graph: Graph, count: int) -> None:
    """multiply(relu(y), c) -> relu(multiply(y, c)) for c > 0; then fold multiplications into weights before them."""
    if not count:
        return
    names, taken = [p.name for p in products(graph, inside=False)], values_by_name(graph)
    for node in sorted(graph.nodes_of(("multiply",)), key=GRAPH_ORDER):
        x, c = node.inputs
        if x is None or c is None or c.data is None or x.node is None or x.node.op.name != "relu":
            continue
        (y,) = x.node.operands
        if len(x.uses) == 1 and (c.data > 0).all() and node.output.type == x.type and y.node is not None \
                and len(y.uses) == 1 and _maker(y) is not None:
            with graph.before(node):
                graph.replace_uses(node.output, graph.relu(graph.multiply(y, c)))
            graph.prune([node])
    fold_scales(graph)
    for p, name in zip(list(products(graph, inside=False)), names, strict=True):
        graph.rename(p.node.output, name)
    name_values(graph, taken)
