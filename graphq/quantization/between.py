"""Quantize values between layers before they are stored, so that later operations read bytes instead of f32.

A layer's kernel includes the elementwise operations after the layer and the quantize of the next layer, and then stores
integers. If something else also reads the value, such as a later sum or concat, or if a pool stands between the layers,
the kernel stores f32. Quantizing the value right after the layer avoids this.
"""
from collections.abc import Mapping
from typing import Any

from graphq.dtypes import f32
from graphq.ir import GRAPH_ORDER, Graph, Node, Value, makers_of, reached, readers_of
from graphq.quantization.products import PRODUCTS, products, values_by_name
from graphq.quantization.ranges import Parameters
from graphq.quantization.scheme import Scheme

POOLS = frozenset({"avg_pool", "reduce_mean", "interpolate"})
"""Operations whose kernels can contain the dequantize of an operand. They compute new numbers, so a quantize after them
cannot move before them."""
KEEPS = frozenset({"max_pool", "concat", "static_reshape", "static_transpose"})
"""Operations that only choose elements: quantizing before or after them gives the same numbers. `interpolate` in mode
"nearest" also belongs to them."""
READS = POOLS | KEEPS | {*PRODUCTS, "slice", "pad"}
"""Operations, other than elementwise operations, that can read quantized values."""


def stored_between(graph: Graph) -> list[str]:
    """The names of the values between layers that are stored in f32 although all readers could read bytes."""
    nodes = sorted(graph.nodes, key=GRAPH_ORDER)
    made = {p.node for p in products(graph)}
    after, before = {*reached(made, readers_of)}, {v for n in reached(made, makers_of) for v in n.operands}
    return [str(v.name) for n in nodes if n in after for v in n.outputs
            if v in before and v.dtype == f32 and not v.is_output and _is_stored(v)]


def _is_stored(x: Value) -> bool:
    readers = x.users
    if not all(n.op.elementwise or n.op.name in READS for n in readers) or not _from_products(x):
        return False
    if len(readers) == 1:
        return readers[0].op.name in POOLS and not _keeps(readers[0]) or _is_first_term(x, readers[0])
    return not all(n.op.name in PRODUCTS for n in readers) and not all(n.op.elementwise for n in readers)


def _from_products(x: Value) -> bool:
    """Whether only elementwise operations compute x from constants, inputs and results of READS."""
    def before(node: Node) -> list[Node]:
        return [] if node.op.name == "constant" or node.op.name in READS else makers_of(node)

    return x.node is None or all(n.op.name == "constant" or n.op.name in READS or n.op.elementwise
                                 and "quantize" not in n.op.name for n in reached([x.node], before))


def _is_first_term(x: Value, reader: Node) -> bool:
    """Whether `reader` combines x with the result of a later layer. The later layer's kernel can then read x."""
    both = [v for v in reader.operands if v.data is None]
    if not reader.op.elementwise or len(both) != 2 or any(v.type != reader.output.type for v in both):
        return False
    first, second = (_product(v) for v in both)
    if first is None or second is None:
        return False
    return x is min(zip((first, second), both, strict=True), key=lambda pair: pair[0].position)[1]


def _product(x: Value) -> Node | None:
    """The layer from which x follows by elementwise operations; None if a value on the way has other readers."""
    node = x.node
    while node is not None and len(x.uses) == 1 and node.op.name not in PRODUCTS:
        operands = [v for v in node.operands if v.data is None]
        if not node.op.elementwise or len(operands) != 1:
            return None
        x = operands[0]
        node = x.node
    return node if len(x.uses) == 1 else None


def _keeps(node: Node) -> bool:
    return node.op.name in KEEPS or node.op.name == "interpolate" and node.attrs["mode"] == "nearest"


def quantized_between(graph: Graph, scheme: Scheme) -> list[str]:
    """The values of the scheme's `between`, except inputs of layers in f32 or with 16-bit activations."""
    exact = {*scheme.exclude, *scheme.wide}
    read = {str(v.name) for p in products(graph) if p.name in exact for v in p.factors}
    return [name for name in scheme.between if name not in read]


def insert_between(graph: Graph, chosen: Mapping[str, Parameters]) -> dict[tuple[Value, Parameters], Value]:
    """Put a quantize and a dequantize after each value that `chosen` names; all readers read the result.

    The returned dict has each dequantized value under the key (value, parameters): a layer that would quantize the
    value again with the same parameters then uses the value unchanged.
    """
    values, pairs = values_by_name(graph), {}
    for name, p in chosen.items():
        uses = list(values[name].uses)
        out = pair(values[name].users[0], values[name], p)
        graph.replace_uses(values[name], out, uses)
        pairs[out, p] = out
    return pairs


def pair(before: Node, x: Value, p: Parameters) -> Value:
    """Add dequantize(quantize(x)) with the parameters `p` before the node `before`."""
    return _pair(before, x, {"dtype": p.dtype, **p.attrs})


def _pair(before: Node, x: Value, attrs: Mapping[str, Any]) -> Value:
    graph = before.graph
    with graph.before(before):
        return graph.dequantize(graph.quantize(x, **attrs), **{k: v for k, v in attrs.items() if k != "dtype"})


def share(graph: Graph) -> None:
    """Move each quantize, with its scale and zero point, before operations that only choose elements (KEEPS).

        quantize(concat(x, y)) -> quantize(concat(dequantize(quantize(x)), dequantize(quantize(y))))

    The operations then move bytes, and no number changes. Only values without other readers are quantized.
    """
    for node in sorted(graph.nodes_of(("quantize",)), key=GRAPH_ORDER, reverse=True):
        waiting = [next(iter(node.operands))]
        while waiting:
            y = waiting.pop()
            if y.node is None or len(y.uses) != 1 or not _keeps(y.node):
                continue
            for x in dict.fromkeys(y.node.operands):
                if x.dtype == f32 and x.data is None and x.node is not None and len(x.uses) == 1 \
                        and "dequantize" not in x.node.op.name:
                    uses = list(x.uses)
                    graph.replace_uses(x, _pair(y.node, x, node.attrs), uses)
                    waiting.append(x)
