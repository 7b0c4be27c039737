"""compare: measure how far every tensor of a quantized graph is from f32, and which layers cause most of the loss."""
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from graphq.base.progress import progress
from graphq.compile import compile
from graphq.dtypes import f32
from graphq.errors import GraphError, GraphqError, InputError
from graphq.ir import GRAPH_ORDER, Graph, Value, named_outputs, reached, sources
from graphq.model.compiled_graph import CompiledGraph
from graphq.ops.quant import DEQUANTIZES
from graphq.quantization import tuned
from graphq.quantization.calibrate import Batch, Batches, checked_batches
from graphq.quantization.comparison import Comparison, TensorDifference
from graphq.quantization.products import PRODUCTS, LinearLayer, prepared, products, right_after, values_by_name
from graphq.quantization.scheme import Scheme

SWITCH = "in_f32/"
"""The prefix of a layer's name in the name of a boolean input. If this input is true, the layer is computed in f32."""
RANKED = 2
"""The cost of each layer is measured on this many batches, which have the largest losses."""
SMALL = 4
"""Outputs of fewer elements are compared with their mean square: the cosine of n elements sees 1 - 1/n of the error."""
CHUNK = 1 << 15
"""The number of elements that are summed at a time in f64, so that they fit in the cache."""


def compare(quantized: Graph | CompiledGraph, against: Graph | CompiledGraph, batches: Batches, *,
            rank: bool = True) -> Comparison:
    """Compare all tensors that have the same name in both graphs, also inside partitions, on batches.

    `against` is the f32 graph from which the quantized graph was made. The loss is 1 - cosine of outputs. With `rank`
    the cost of each layer is measured: how much the loss falls if only this layer is computed in f32. One model with a
    switch per layer measures all costs. Tensors are sorted by costs that exceed the noise. All batches, and all tensors
    of one batch, stay in memory.

    If the loss is large and costs are known, the advice (`Comparison.advice`) is tried: `automatic` searches the
    best setting with the advised layers. The advice is given only if it then loses less, on these batches and if each
    is held out of calibration.

    Raises InputError if there are no batches, for batches without elements, and for a NaN in f32. Raises GraphError if
    the graphs share no tensors, or if their outputs differ in number, kind or shape.
    """
    left, right = _graph(quantized, "quantized"), prepared(_graph(against, "against"))
    made, plain = values_by_name(left), values_by_name(right)
    names = [n for n, v in made.items() if n in plain and _same(v, plain[n])]
    if not names:
        raise GraphError(f"graphs '{left.name}' and '{right.name}' have no tensor of the same name: compare a "
                         "quantized graph with the f32 graph that it was made from")
    _check_outputs(left, right)
    kept = list(checked_batches(batches, left))
    limits = _limits(made)
    have, want = _observing(left, names), _observing(right, names)
    sums = {name: _Differences(limits.get(name)) for name in names}
    wanted, outputs = [], []
    for k, batch in enumerate(progress(kept, "batches")):
        got, exact = (named_outputs(model.outputs, model(batch)) for model in (have, want))
        for name in names:
            if np.isnan(exact[name]).any():
                raise InputError(f"batch {k + 1}: tensor '{name}' of the f32 graph holds nan, and cannot be compared")
            if got[name].shape != exact[name].shape:
                shapes = (",".join(map(str, x[name].shape)) for x in (got, exact))
                raise GraphError("tensor '{}' is f32[{}] in the quantized graph, f32[{}] in the other".format(
                    name, *shapes))
            sums[name].add(got[name], exact[name])
        outs, exact_outs = (dict([*found.items()][len(names):]) for found in (got, exact))
        wanted.append(floats(exact_outs))
        outputs.append(outs)
    del have, want  # keep only one model in memory
    losses = [farthest(exact, outs, wanted) for exact, outs in zip(wanted, outputs, strict=True)]
    if not any(s.count for s in sums.values()):
        raise InputError(f"no tensor had any elements in {len(kept)} batches")
    rows = [sums[n].row(n, made[n]) for n in names]
    if right.outputs and rank:
        costs = _costs(left, right, set(names), kept, wanted, [int(k) for k in np.argsort(losses)[::-1][:RANKED]])
        for row in rows:
            row.cost = costs.get(row.name)
    found = Comparison(rows, max(losses), left.copy())
    if rank and right.outputs and found.loss > tuned.TARGET:
        found.tried = _tried(right, kept, wanted, found.advised)
    return found


def _tried(graph: Graph, batches: Sequence[Batch], wanted: Sequence[Sequence[np.ndarray]],
           advised: Mapping[str, Any]) -> float:
    from graphq.quantization.quantize import automatic  # late, because `quantize` imports this module

    try:
        found = automatic(graph, batches, Scheme(method="automatic", **advised))
        model = compile(found.graph, cache="kernels")
        losses = (farthest(want, model(batch), wanted) for batch, want in zip(batches, wanted, strict=True))
        return max(found.losses[found.setting], *losses)
    except GraphqError:
        return np.inf


def distance(a: np.ndarray, b: np.ndarray, alike: Sequence[np.ndarray] = ()) -> float:
    """1 - cosine of two arrays; 2 if infinities or NaNs differ. Equal infinities and NaNs are left out.

    With arrays `alike`: half of the mean squared error over their mean square, at most 2. For truth values and integers
    of more than a byte, such as indices: the share that differs.
    """
    if a.dtype.kind == "b" or (a.dtype.kind in "iu" and a.dtype.itemsize > 1):
        return float(np.mean(a != b)) if a.size else 0.0
    x, y = np.asarray(a, np.float64).ravel(), np.asarray(b, np.float64).ravel()
    finite = np.isfinite(x) & np.isfinite(y)
    if not finite.all():
        if not np.array_equal(x[~finite], y[~finite], equal_nan=True):
            return 2.0
        x, y = x[finite], y[finite]
    square = float(np.mean([np.mean(np.square(z, dtype=np.float64)) for z in alike if z.size] or [0]))
    if x.size and 0 < square < np.inf:
        return min(2.0, _dot(x - y, x - y) / (2 * x.size * square))
    size = float(np.sqrt(_dot(x, x) * _dot(y, y)))
    return 1 - _dot(x, y) / size if size > 0 else float((x != y).any())


def _dot(x: np.ndarray, y: np.ndarray) -> float:
    """The dot product, computed in this thread, because BLAS's threads wait for one another on a busy machine."""
    return float(np.einsum("i,i->", x, y))


def farthest(wanted: Sequence[np.ndarray], out: np.ndarray | Mapping[str, np.ndarray],
             alike: Iterable[Sequence[np.ndarray]]) -> float:
    """The largest distance of an output from `wanted`, the outputs of f32; 0 if there are no outputs.

    `alike` has the f32 outputs of all batches, for outputs of fewer than SMALL elements.
    """
    return max((distance(a, b, same if a.size < SMALL else ())
                for a, b, *same in zip(wanted, floats(out), *alike, strict=True)), default=0.0)


def floats(out: np.ndarray | Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs with a floating-point type; all outputs if no output has one."""
    arrays = list(out.values()) if isinstance(out, Mapping) else [out]
    return [x for x in arrays if x.dtype.kind not in "iub"] or arrays


class _Differences:
    """A tensor's sums of squares and products, its largest difference, and how many of its elements are out of range.

    Equal infinities are left out. The difference between a NaN and any number is infinite.
    """

    def __init__(self, limits: tuple[float, float] | None) -> None:
        self.limits = limits
        self.signal = self.noise = self.product = self.size = self.largest = 0.0
        self.count = self.beyond = 0

    def add(self, got: np.ndarray, want: np.ndarray) -> None:
        x, y = got.ravel(), want.ravel()
        self.count += x.size
        for k in range(0, x.size, CHUNK):
            self._add(x[k:k + CHUNK].astype(np.float64), y[k:k + CHUNK].astype(np.float64))

    def _add(self, x: np.ndarray, y: np.ndarray) -> None:
        if self.limits is not None:
            low, high = self.limits
            self.beyond += int(np.count_nonzero((x < low) | (x > high)))
        if not np.isfinite(_dot(x, x) + _dot(y, y)):
            finite = np.isfinite(x) & np.isfinite(y)
            if (x != y)[~finite].any():
                self.noise = self.largest = np.inf
            x, y = x[finite], y[finite]
        d = x - y
        self.signal, self.noise = self.signal + _dot(y, y), self.noise + _dot(d, d)
        self.product, self.size = self.product + _dot(x, y), self.size + _dot(x, x)
        self.largest = max(self.largest, float(np.abs(d).max(initial=0)))

    def row(self, name: str, value: Value) -> TensorDifference:
        op = "input" if value.node is None else value.node.op.name
        both = float(np.sqrt(self.signal * self.size))
        cosine = float(self.product) / both if both > 0 else float(self.noise == 0)
        ratio = self.signal / self.noise if self.noise else np.inf
        sqnr = float(10 * np.log10(ratio)) if ratio > 0 else -np.inf
        saturation = None if self.limits is None else self.beyond / max(self.count, 1)
        return TensorDifference(name, op, sqnr, cosine, self.largest, saturation)


def _graph(given: object, word: str) -> Graph:
    graph = given.source if isinstance(given, CompiledGraph) else given
    if not isinstance(graph, Graph):
        raise GraphError(f"{word} must be a Graph or a compiled one, got {given!r}")
    return graph


def _check_outputs(left: Graph, right: Graph) -> None:
    pairs = zip(left.outputs, right.outputs, strict=False)
    if len(left.outputs) == len(right.outputs) and all(
            (a.dtype.kind == "float") == (b.dtype.kind == "float") and _fit(a, b) for a, b in pairs):
        return
    texts = (", ".join(f"{n}: {v.type}" for n, v in zip(g.output_names, g.outputs, strict=True)) for g in (left, right))
    raise GraphError("the quantized graph's outputs ({}) must match the outputs of the f32 graph ({}): the same "
                     "number, in the same order, and floats for floats".format(*texts))


def _fit(x: Value, y: Value) -> bool:
    return x.shape is None or y.shape is None or len(x.shape) == len(y.shape) and all(
        a is None or b is None or a == b for a, b in zip(x.shape, y.shape, strict=True))


def _same(x: Value, y: Value) -> bool:
    """Whether values of the same name can be the same tensor: f32 results of the same operation, with fitting shapes.

    Quantization may turn an f32 layer into a sum (of the layer and a bias, or of two 8-bit layers), or into the layer
    times the scales of its rows.
    """
    if x.node is None or y.node is None or x.dtype != f32 or y.dtype != f32:
        return False
    ops = x.node.op.name, y.node.op.name
    return (ops[0] == ops[1] or ops[0] in ("add", "multiply") and ops[1] in PRODUCTS) and _fit(x, y)


def _limits(made: Mapping[str, Value]) -> dict[str, tuple[float, float]]:
    """For each tensor with one scale, the range that its integers can represent, plus half a step at both ends."""
    limits = {}
    for name, x in made.items():
        for node in x.users:
            a = node.attrs
            if node.op.name == "quantize" and a["qtype"] == "per_tensor" and a["dtype"].kind == "int":
                scale, zp = a["scales"][0], (a["zps"] or (0,))[0]
                limits[name] = (a["dtype"].min - zp - 0.5) * scale, (a["dtype"].max - zp + 0.5) * scale
    return limits


def _costs(left: Graph, right: Graph, shared: Collection[str], batches: Sequence[Batch],
           wanted: Sequence[Sequence[np.ndarray]], worst: Sequence[int]) -> dict[str, float]:
    """The cost of each quantized layer by name, on the `worst` batches. `wanted` has the f32 outputs of all batches.

    If the cost of a layer on one batch is within the noise, the layer is not measured on the next batch.
    """
    g = left.copy()
    names = [p.name for p in products(right) if p.name in shared and switch(g, p, shared)]
    if not names:
        return {}
    model = compile(g, cache="kernels")
    switches = {f"{SWITCH}{name}": np.zeros((), np.bool_) for name in names}

    def loss(k: int, **on: np.ndarray) -> float:
        return farthest(wanted[k], model({**batches[k], **switches, **on}), wanted)

    highest, noise = max(map(loss, worst)), -np.inf
    costs = dict.fromkeys(names, np.inf)
    for k in worst:
        for name in progress([n for n in names if costs[n] > noise], "products"):
            costs[name] = min(costs[name], highest - loss(k, **{f"{SWITCH}{name}": np.ones((), np.bool_)}))
        noise = max(-cost for cost in costs.values())
    return costs


def _observing(graph: Graph, names: Sequence[str]) -> CompiledGraph:
    g, prefix = graph.copy(), "output"
    values = values_by_name(g)
    while any(name.startswith(prefix) for name in names):
        prefix += "_"
    g.set_outputs([*(values[name] for name in names), *g.outputs],
                  [*names, *(f"{prefix}{k}" for k in range(len(g.outputs)))])
    return compile(g, cache="kernels")


def switch(g: Graph, product: LinearLayer, shared: Collection[str]) -> bool:
    """Add a boolean input to a quantized graph that switches one layer to f32. Returns False if this is not possible.

    The f32 layer starts from the nearest inputs and `shared` tensors before the layer, with the values that the
    quantized graph gives them. Everything between these tensors and the layer is copied from the f32 graph, such as
    weights and operations without a name. The switch therefore works for every form of a quantized layer: a sum with
    its bias, two 8-bit layers, or a layer on divided channels. It is not possible if the layer has no dequantize, or if
    an operand of the f32 layer is computed only after the layer's result. The graph is then unchanged.
    """
    made = values_by_name(g)
    copied = [*reached(product.node.operands, lambda x: () if x.name in shared else sources(x))]
    known = {x: made[str(x.name)] for x in copied if x.node is None or x.name in shared}
    nodes = {product.node, *(x.maker for x in copied if x not in known)}
    result = made[product.name]
    late = any(x.node is not None and x.node.position > result.maker.position for x in known.values())
    operands = set(known.values())
    inside = {*reached([result], lambda x: () if x in operands else sources(x))} - operands
    quantized = any(x.node is not None and x.node.op.name in DEQUANTIZES for x in inside)
    if late or not quantized or result.type != product.node.output.type:
        return False
    with right_after(g, result):
        for node in sorted(nodes, key=GRAPH_ORDER):
            outs = g.add_again(node, [None if x is None else known[x] for x in node.inputs])
            known.update(zip(node.outputs, outs, strict=True))
        uses = list(result.uses)
        on = g.input(f"{SWITCH}{product.name}", dtype="boolean", shape=())
        chosen = g.select(on, known[product.node.output], result)
    g.replace_uses(result, chosen, uses)
    return True
