"""The class LinearLayer, a layer that integer kernels can run, and `prepared`, the first step of quantization.

A LinearLayer is a matmul, a convolution or a transposed convolution in f32. Each of its two multiplied operands is an
activation (computed at run time, described by statistics) or a constant (the weights).
"""
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np

from graphq.base.locks import lazy_property
from graphq.dtypes import bf16, f16, f32
from graphq.errors import GraphError
from graphq.ir import FILE_NAMES, GRAPH_ORDER, Graph, Labels, Node, Value
from graphq.ops.conv import weight_axes
from graphq.ops.recurrent import quantizes_state
from graphq.passes.cleanup import eliminate_dead_code, fold_constants, share_constants
from graphq.passes.fold_scales import AddAsBias, fold_scales
from graphq.passes.normal_forms import VectorAsColumn
from graphq.quantization.bodies import bodies, copied, with_bodies
from graphq.report.coverage import FOREIGN, MACS

CONVOLUTIONS = ("convolution", "conv_transpose")
PRODUCTS = ("matmul", *CONVOLUTIONS)
"""The operations that count as layers."""
KEEPING = frozenset({"static_transpose", "static_reshape", "reorder", "slice", "expand", "max_pool"})
"""Operations that exporters such as PyTorch's PT2E put between a dequantize and a layer. Elements keep their scales."""
BODIES = frozenset({"If", "Loop", "Scan"})
"""ONNX operators with bodies."""
HALVES = (f16, bf16)
"""The dtypes that `in_f32` widens."""
PAST = 5, 6
"""The operands of cached_attention that are caches: they keep their types."""


@dataclass(frozen=True)
class LinearLayer:
    """A layer: operands 0 and 1 of `node` are multiplied; operand 2, if present, is the bias."""

    node: Node

    @property
    def name(self) -> str:
        """The name of the layer's result; schemes name layers by it."""
        return str(self.node.output.name)

    def replace(self, value: Value) -> None:
        """Remove the layer; `value` gets its result's uses and name."""
        graph, result = self.node.graph, self.node.output
        graph.replace_uses(result, value)
        graph.prune([self.node])
        if result.name is not None:
            graph.rename(value, result.name)

    @property
    def factors(self) -> tuple[Value, Value]:
        """The two operands that are multiplied."""
        return self.node.operand(0), self.node.operand(1)

    @property
    def activations(self) -> list[int]:
        """The indices of the operands that are activations."""
        return [k for k, v in enumerate(self.factors) if v.data is None]

    @property
    def sources(self) -> list[str]:
        """The names of the activations."""
        return [str(self.factors[k].name) for k in self.activations]

    @property
    def weights(self) -> np.ndarray | None:
        """The array of operand 1 if it is a constant."""
        return self.factors[1].data

    @lazy_property
    def largest(self) -> float:
        """The largest magnitude of the weights."""
        return 0.0 if self.weights is None else float(max(self.weights.max(initial=0), -self.weights.min(initial=0)))

    @property
    def bias(self) -> Value | None:
        """Operand 2, the bias; None if absent."""
        return self.node.inputs[2] if len(self.node.inputs) > 2 else None

    @property
    def groups(self) -> int:
        """The number of groups of a convolution's channels; 1 for a matmul."""
        return int(self.node.attrs.get("groups", 1))

    def weight_axes(self) -> tuple[int, int]:
        """The axes of output and input channels in operand 1."""
        rank = len(self.factors[1].type.dims)
        if self.node.op.name == "matmul":
            n, k = rank - 1, rank - 2
            return (k, n) if self.node.attrs["transpose_b"] else (n, k)
        out, into, *_ = weight_axes(self.node.attrs["weights_format"], rank - 2)
        return out, into

    def channels(self) -> int:
        """The number of channels of operand 0, which constant weights multiply."""
        assert self.weights is not None
        return int(self.weights.shape[self.weight_axes()[1]]) * self.groups


def products(graph: Graph, *, inside: bool = True) -> Iterator[LinearLayer]:
    """The layers of a graph that integer kernels can run, in graph order; with `inside`, then the layers of bodies."""
    graphs = with_bodies(graph) if inside else (graph,)
    for node in [n for g in graphs for n in sorted(g.nodes_of(PRODUCTS), key=GRAPH_ORDER)]:
        factors = node.inputs[:2]
        if node.output.dtype != f32 or any(v is None or v.dtype != f32 or v.shape is not None and len(v.shape) < 2
                                           for v in factors):
            continue
        product = LinearLayer(node)
        if product.activations and not all(_maker("dequantize", v) for v in product.factors):
            yield product


def prepared(graph: Graph) -> Graph:
    """Copy a graph and prepare it for quantization: fold constants and batch normalizations, and name all values.

    A layer keeps its name if a batch normalization is folded into it. Constants that are added to a layer become its
    bias, and equal constants are merged. Operations in f16 or bf16 become f32 (`in_f32`). Constant vectors become
    matrices of one column. Bodies are prepared as well, and names are unique in the graph and its bodies. Numbers
    change by the f32 roundings that `passes.fold_scales` states. A prepared graph stays as it is.
    """
    if not isinstance(graph, Graph):
        raise GraphError(f"expected a Graph, got {graph!r}")
    out, renamed = copied(graph, in_f32), dict[str, str]()
    for part in with_bodies(out):
        part.labels.keep(trace=True)
        normalized = {n.operand(0).node for n in part.nodes_of(("batch_norm_inference",))}
        for step in (eliminate_dead_code, fold_constants, fold_scales, VectorAsColumn(), AddAsBias(),
                     eliminate_dead_code, share_constants):
            step(part)
        for node in part.nodes:
            if node.op.name in PRODUCTS and node.origin is not None:
                node.meta = node.meta or node.origin.meta  # such as its name in an ONNX file
                later, name = node.output.name, node.origin.outputs[0].name
                if node.origin in normalized and name is not None and not part.has_name(name):
                    part.rename(node.output, name)
                    renamed |= {later: name} if later is not None else {}
            node.origin = None  # otherwise the old weights stay in memory
        part.labels = Labels(part)
    renamed |= {old: renamed.get(name, name) for old, name in out.meta.get(FILE_NAMES, {}).items()}
    out.meta = {**out.meta, FILE_NAMES: renamed} if renamed else out.meta
    name_values(out)
    return out


def in_f32(graph: Graph) -> Graph:
    """Copy a graph with f32 instead of f16 and bf16; inputs and outputs keep their types.

    Constants keep their numbers. Results are more exact, because values between operations are not rounded to 16 bits.
    Operands, results and bodies of ONNX's If, Loop and Scan keep their types, and so do caches of attention.
    """
    if not any(v.dtype in HALVES for n in graph.nodes for v in n.outputs):
        return graph.copy()
    out, new, casts = Graph(graph.name), dict[Value, Value](), dict[Value, Value]()
    out.meta = graph.meta
    for v in graph.inputs:
        new[v] = out.input(str(v.name), dtype=v.dtype, shape=v.shape, property=v.property)

    def wide(v: Value) -> Value:
        """The value in f32 if it is f16 or bf16, otherwise the value itself."""
        x = new[v]
        if x.dtype in HALVES and x not in casts:
            casts[x] = out.type_cast(x, dtype="f32")
        return casts.get(x, x)

    def narrow(v: Value) -> Value:
        return new[v] if new[v].dtype == v.dtype else out.type_cast(new[v], dtype=v.dtype)

    for node in graph.nodes:
        if node.op.name == "type_cast":
            new[node.output] = wide(next(node.operands))
            continue
        kept = range(len(node.inputs)) if bodies(node) else PAST if node.op.name == "cached_attention" else ()
        outs = _widened(out, node, [None if v is None else narrow(v) if k in kept else wide(v)
                                    for k, v in enumerate(node.inputs)])
        out.nodes[-1].meta = node.meta
        for old, value in zip(node.outputs, outs, strict=True):
            new[old] = value
            if old.name is not None:
                out.rename(value, old.name)
    out.set_outputs([narrow(v) for v in graph.outputs], graph.output_names)
    return out


def _widened(out: Graph, node: Node, operands: list[Value | None]) -> tuple[Value, ...]:
    """Add the node to `out` with operands in f32. Results that the node would round to 16 bits are f32 instead."""
    value = node.attrs.get("value")
    if node.op.name == "constant" and node.output.dtype in HALVES:
        return (out.constant(np.asarray(value).astype(f32.numpy)),)
    if node.attrs.get("mode") == "stepwise":
        return out.add_node(node.op, operands, {**node.attrs, "mode": "none"})
    if node.attrs.get("dtype") in HALVES:
        wide = {"dtype": f32} if node.op.attributes["dtype"].required else {}  # otherwise f32 operands make it f32
        return out.add_node(node.op, operands, {**{k: x for k, x in node.attrs.items() if k != "dtype"}, **wide})
    return out.add_again(node, operands)


def refuse_integers(graph: Graph) -> None:
    """Raise GraphError if a graph has a layer in integers: both operands are dequantized, one of them is quantized."""
    for node in (n for g in with_bodies(graph) for n in g.nodes_of(PRODUCTS)):
        made = [_maker("dequantize", v) for v in node.inputs[:2]]
        if all(made) and any(m is not None and _maker("quantize", next(m.operands)) for m in made):
            raise GraphError(f"graph '{graph.name}' is already quantized: '{node.output.name}' multiplies integers. "
                             "Quantize the f32 graph that it was made from")


def left_in_floats(graph: Graph) -> dict[str, int]:
    """Count the operations of a `prepared` graph that multiply in floats and are never quantized.

    These are recurrent operations, and nodes that stayed ONNX operators, by ONNX's names: layers that ONNX's reference
    runs, layers with operands of unknown shape, and If, Loop and Scan, because their bodies may hold layers.
    """
    taken = {p.node for p in products(graph)}
    found = Counter[str]()
    for node in (n for g in with_bodies(graph) for n in g.nodes if n not in taken and not quantizes_state(n)):
        name = node.attrs.get("op_type", node.op.name)
        foreign = node.op.name == "onnx_node" and name in FOREIGN
        if node.op.name == "onnx_node" and name in BODIES or (foreign or node.op.name in MACS) and all(
                v.dtype in (f16, bf16, f32) and not _maker("dequantize", v) for v in node.inputs[:2] if v is not None):
            found[name] += 1
    return dict(found)


def _maker(kind: str, value: Value | None) -> Node | None:
    """The node of this kind that a value comes from, perhaps through operations of KEEPING."""
    node = None if value is None else value.node
    while node is not None and node.op.name in KEEPING:
        node = next(node.operands).node
    return node if node is not None and kind in node.op.name else None


def right_after(graph: Graph, x: Value) -> AbstractContextManager[object]:
    """A context that adds nodes right after the node that computes x, so that x can be freed early."""
    at = 0 if x.node is None else bisect_right(graph.nodes, x.node.position, key=GRAPH_ORDER)
    return graph.before(graph.nodes[at]) if at < len(graph.nodes) else nullcontext()


def name_values(graph: Graph, taken: Collection[str] = ()) -> None:
    """Name unnamed values after their operation: `matmul`, `matmul_1` and so on, avoiding the names in `taken`.

    A value in a body that has the name of another value is also renamed.
    """
    values = {g: [*([] if g is graph else g.inputs), *_results(g)] for g in with_bodies(graph)}
    first: dict[str, Value] = {}
    for v in (*graph.inputs, *(v for found in values.values() for v in found)):
        if v.name is not None:
            first.setdefault(v.name, v)
    numbers: dict[str, int] = {}
    for part, found in values.items():
        for v in found:
            if v.name is not None and first[v.name] is v:
                continue
            wanted = numbered = v.name or ("input" if v.node is None else v.node.op.name)
            while numbered in first or numbered in taken or part.has_name(numbered):
                numbers[wanted] = numbers.get(wanted, 0) + 1
                numbered = f"{wanted}_{numbers[wanted]}"
            part.rename(v, numbered)
            first[numbered] = v


def _results(graph: Graph) -> list[Value]:
    return [v for n in graph.nodes if n.op.name != "constant" for v in n.outputs]


def values_by_name(graph: Graph, *, inside: bool = False) -> dict[str, Value]:
    """The named values that are not constants, inputs first; with `inside` also the values of bodies."""
    graphs = with_bodies(graph) if inside else (graph,)
    return {v.name: v for g in graphs for v in (*g.inputs, *_results(g)) if v.name is not None}
