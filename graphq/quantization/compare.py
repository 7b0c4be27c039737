"""compare: how far every tensor of a quantized graph is from f32, and which product costs most at the outputs."""
from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from graphq.compile import compile
from graphq.compiled_graph import CompiledGraph
from graphq.dtypes import f32
from graphq.errors import GraphError, InputError
from graphq.ir import Graph, Node, Value
from graphq.ir.names import quote
from graphq.ir.node import GRAPH_ORDER
from graphq.paths import path_of
from graphq.quantization.calibrate import Batches, checked_batches
from graphq.quantization.insert import replace_operand
from graphq.quantization.products import PRODUCTS, prepared, values_by_name

QUANTIZES = ("quantize", "dynamic_quantize")
DEQUANTIZES = ("dequantize", "dynamic_dequantize")


@dataclass
class TensorDifference:
    """A tensor of both graphs over all batches.

    `sqnr` is 10 log10 of the mean square of f32 over that of the difference, in dB; `largest` the largest difference;
    `saturation` the share of elements that the integers of a tensor's quantize do not reach. `cost` is what the
    product that makes the tensor loses at the outputs: how much 1 - cosine falls when it alone is computed in f32.
    """

    name: str
    op: str
    sqnr: float
    cosine: float
    largest: float
    saturation: float | None = None
    cost: float | None = None

    def cells(self) -> dict[str, str]:
        """The numbers as a table has them, by the heads of its columns."""
        return {"cost": "" if self.cost is None else f"{self.cost:.1e}", "SQNR dB": f"{self.sqnr:.1f}",
                "cosine": f"{self.cosine:.6f}", "largest": f"{self.largest:.3g}",
                "saturated": "" if self.saturation is None else f"{100 * self.saturation:.3f}%"}


@dataclass
class Comparison:
    """Differences in the order of their cost, those without one after them in graph order; `outputs`' 1 - cosine.

    `graph` is the quantized graph, in which a page shows them.
    """

    tensors: list[TensorDifference]
    loss: float
    graph: Graph = field(repr=False, compare=False)

    @property
    def summary(self) -> str:
        """The loss in a line."""
        return f"outputs: 1 - cosine {self.loss:.2e}"

    def __getitem__(self, name: str) -> TensorDifference:
        for t in self.tensors:
            if t.name == name:
                return t
        raise KeyError(name)

    def __str__(self) -> str:
        """A table, a line a tensor."""
        rows = [[*self.tensors[0].cells(), " tensor"],
                *([*t.cells().values(), f" {quote(t.name)} ({t.op})"] for t in self.tensors)]
        return "\n".join([self.summary, *(" ".join(f"{text:>9}" for text in row) for row in rows)])

    def json(self) -> str:
        """The same as JSON; infinite numbers (SQNR of equal tensors) are null."""
        rows = [{k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in asdict(t).items()}
                for t in self.tensors]
        return json.dumps({"loss": self.loss, "tensors": rows}, indent=1)

    def report(self, path: str | os.PathLike[str], /) -> None:
        """Write an HTML page: all tensors in graph order and by cost, as charts, and the graph coloured by cost.

        It has all in it, and needs no network. The graph is there where Graphviz is (`pip install graphq[report]`).
        Raises GraphError for what is no path, OSError where it cannot write.
        """
        from graphq.report.differences import differences_page

        path_of(path).write_bytes(differences_page(self).encode("utf-8", "replace"))

    def _repr_html_(self) -> str:
        """The table, for notebooks."""
        from graphq.report.differences import differences_html

        return differences_html(self)


def compare(quantized: Graph | CompiledGraph, against: Graph | CompiledGraph, batches: Batches, *,
            rank: bool = True) -> Comparison:
    """Compare all tensors that both graphs name alike, also those inside of partitions, on batches.

    `against` is the f32 graph that the quantized one was made of. With `rank` each product by itself is computed in
    f32, all others as they are, which compiles the model as many times, and tensors are sorted by what that gains.
    The batches are kept in memory, and all tensors of one.

    Raises InputError for no batches, GraphError where the graphs share no tensors.
    """
    left, right = _graph(quantized, "quantized"), prepared(_graph(against, "against"))
    kept = list(checked_batches(batches))
    if not kept:
        raise InputError("compare needs at least one batch, got an empty iterable")
    made, plain = values_by_name(left), values_by_name(right)
    names = [n for n, v in made.items() if n in plain and _same(v, plain[n])]
    if not names:
        raise GraphError(f"graphs '{left.name}' and '{right.name}' have no tensor of the same name")
    limits = _limits(made)
    have, want = compile(left, outputs=names), compile(right, outputs=names)
    sums = {name: _Sums() for name in names}
    beyond: dict[str, list[float]] = {name: [] for name in names if name in limits}
    for batch in kept:
        got, exact = _dict(have(batch), have), _dict(want(batch), want)
        for name in names:
            sums[name].add(got[name], exact[name])
        for name, shares in beyond.items():
            low, high = limits[name]
            shares.append(float(np.mean((got[name] < low) | (got[name] > high))))
    rows = [sums[n].row(n, made[n]) for n in names]
    for row in rows:
        row.saturation = float(np.mean(beyond[row.name])) if row.name in beyond else None
    loss = 0.0
    if right.outputs:
        costs, loss = _costs(left, right, kept, rank)
        for row in rows:
            row.cost = costs.get(row.name)
    rows.sort(key=lambda t: -np.inf if t.cost is None else t.cost, reverse=True)
    return Comparison(rows, loss, left.copy())


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """1 - cosine of two arrays; of two that are all zeros 0."""
    x, y = np.asarray(a, np.float64).ravel(), np.asarray(b, np.float64).ravel()
    size = float(np.linalg.norm(x) * np.linalg.norm(y))
    return 1 - float(x @ y) / size if size > 0 else float(np.linalg.norm(x - y) > 0)


def floats(out: np.ndarray | Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs in floating point; all of them where there are none."""
    arrays = list(out.values()) if isinstance(out, Mapping) else [out]
    return [x for x in arrays if x.dtype.kind not in "iub"] or arrays


def loss_of(model: CompiledGraph, batches: Sequence[Mapping[str, np.ndarray]],
            wanted: Sequence[Sequence[np.ndarray]]) -> float:
    """The largest 1 - cosine of an output, over batches, to those wanted."""
    return max((distance(a, b) for batch, want in zip(batches, wanted, strict=True)
                for a, b in zip(want, floats(model(batch)), strict=True)), default=0.0)


class _Sums:
    """What is kept of a tensor: sums of squares and products, and the largest difference."""

    def __init__(self) -> None:
        self.signal = self.noise = self.product = self.size = self.largest = 0.0

    def add(self, got: np.ndarray, want: np.ndarray) -> None:
        x, y = got.astype(np.float64).ravel(), want.astype(np.float64).ravel()
        d = x - y
        self.signal, self.noise = self.signal + float(y @ y), self.noise + float(d @ d)
        self.product, self.size = self.product + float(x @ y), self.size + float(x @ x)
        self.largest = max(self.largest, float(np.abs(d).max(initial=0)))

    def row(self, name: str, value: Value) -> TensorDifference:
        op = "input" if value.node is None else value.node.op.name
        both = float(np.sqrt(self.signal * self.size))
        cosine = float(self.product) / both if both > 0 else float(self.noise == 0)
        sqnr = float(10 * np.log10(self.signal / self.noise)) if self.noise and self.signal else \
            np.inf if not self.noise else -np.inf
        return TensorDifference(name, op, sqnr, cosine, self.largest)


def _graph(given: object, word: str) -> Graph:
    graph = given.source if isinstance(given, CompiledGraph) else given
    if not isinstance(graph, Graph):
        raise GraphError(f"{word} must be a Graph or a compiled one, got {given!r}")
    return graph


def _dict(out: np.ndarray | Mapping[str, np.ndarray], model: CompiledGraph) -> Mapping[str, np.ndarray]:
    return out if isinstance(out, Mapping) else {next(iter(model.outputs)): out}


def _same(x: Value, y: Value) -> bool:
    """Whether two values of one name can be the same tensor: f32 results of one operation, of one rank.

    A product with a bias may be a product and a sum in a file.
    """
    if x.node is None or y.node is None or x.dtype != f32 or y.dtype != f32:
        return False
    before = next(x.node.operands).node if x.node.op.name == "add" else None
    if y.node.op is not x.node.op and (before is None or y.node.op is not before.op):
        return False
    return x.shape is None or y.shape is None or len(x.shape) == len(y.shape)


def _limits(made: Mapping[str, Value]) -> dict[str, tuple[float, float]]:
    """What the integers of a tensor with one scale reach, half a step beyond the last ones included."""
    limits = {}
    for name, x in made.items():
        for node in x.users:
            a = node.attrs
            if node.op.name == "quantize" and a["qtype"] == "per_tensor" and a["dtype"].kind == "int":
                scale, zp = a["scales"][0], (a["zps"] or (0,))[0]
                limits[name] = (a["dtype"].min - zp - 0.5) * scale, (a["dtype"].max - zp + 0.5) * scale
    return limits


def _costs(left: Graph, right: Graph, batches: Sequence[Mapping[str, np.ndarray]],
           rank: bool) -> tuple[dict[str, float], float]:
    """What each product costs, by its name, and the loss of all together."""
    model = compile(right)
    wanted = [floats(model(batch)) for batch in batches]
    loss = loss_of(compile(left), batches, wanted)
    names = [str(n.output.name) for n in sorted(left.nodes_of(PRODUCTS), key=GRAPH_ORDER) if rank and _quantized(n)]
    return {name: loss - loss_of(compile(in_f32(left, right, name)), batches, wanted) for name in names}, loss


def in_f32(left: Graph, right: Graph, name: str) -> Graph:
    """A copy in which one product's activations are f32, and its weights, where `right` has the same ones."""
    g = left.copy()
    node, same = values_by_name(g)[name].node, values_by_name(right).get(name)
    assert node is not None
    for k, v in enumerate(node.inputs[:2]):
        producer = None if v is None else v.node
        if v is None or producer is None or producer.op.name not in DEQUANTIZES:
            continue
        q = next(producer.operands)
        if q.node is not None and q.node.op.name in QUANTIZES:
            replace_operand(g, node, k, next(q.node.operands))
        elif q.data is not None and same is not None and same.node is not None:
            weights = same.node.inputs[k] if k < len(same.node.inputs) else None
            if weights is not None and weights.data is not None and weights.type == v.type and _near(producer, weights):
                with g.before(node):
                    replace_operand(g, node, k, g.constant(weights.data))
    return g


def _near(producer: Node, weights: Value) -> bool:
    """Whether a dequantize of constants gives these weights, but for rounding: smoothed ones are others."""
    made = producer.op.reference(*(v.data for v in producer.operands), **producer.attrs)
    assert weights.data is not None
    return bool(np.linalg.norm(made - weights.data) <= 0.1 * np.linalg.norm(weights.data))


def _quantized(node: Node) -> bool:
    return any(v.node is not None and v.node.op.name in DEQUANTIZES for v in node.operands)
