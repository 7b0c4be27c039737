"""Values between products that are stored: quantized once, so that all that reads them moves and computes bytes.

A product's kernel takes elementwise operations after it, and the quantize of the product that follows, into its
epilogue, and stores integers. It stores f32 where something else reads the value, too, a sum or a concat further on, or
where a pool stands between. Such a value can be quantized itself, before the fork or the pool.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping

from graphq.dtypes import f32
from graphq.ir import Graph, Node, Value
from graphq.ir.node import GRAPH_ORDER
from graphq.quantization.products import PRODUCTS, products, values_by_name
from graphq.quantization.ranges import Parameters
from graphq.quantization.scheme import Scheme

POOLS = frozenset({"avg_pool", "reduce_mean", "interpolate"})
"""Operations that take a dequantize into their kernels, and before which none can be moved for their result's."""
KEEPS = frozenset({"max_pool", "concat", "static_reshape", "static_transpose"})
"""Operations whose results, quantized, are theirs of quantized operands: they choose elements. So does `interpolate`
of mode "nearest"."""
READS = POOLS | KEEPS | {*PRODUCTS, "slice", "pad"}
"""Operations that take bytes, besides the elementwise ones."""


def stored_between(graph: Graph) -> list[str]:
    """The names of the values between products that are stored in f32, and that all readers could take as bytes."""
    nodes = sorted(graph.nodes, key=GRAPH_ORDER)
    made = {p.node for p in products(graph)}
    after = _reached(nodes, made)
    before = {v for n in _reached(reversed(nodes), made, backwards=True) for v in n.operands}
    return [str(v.name) for n in nodes if n in after for v in n.outputs
            if v in before and v.dtype == f32 and not v.is_output and _is_stored(v)]


def _is_stored(x: Value) -> bool:
    """Whether a value is stored for readers that all can take bytes, and not for products alone."""
    readers = x.users
    if not all(n.op.elementwise or n.op.name in READS for n in readers) or not _from_products(x):
        return False
    if len(readers) == 1:
        return readers[0].op.name in POOLS and not _keeps(readers[0]) or _is_first_term(x, readers[0])
    return not all(n.op.name in PRODUCTS for n in readers) and not all(n.op.elementwise for n in readers)


def _from_products(x: Value) -> bool:
    """Whether operations that store bytes compute x, with elementwise ones after them: no normalisation, say."""
    waiting, seen = [x], {x}
    while waiting:
        node = waiting.pop().node
        if node is None or node.op.name == "constant" or node.op.name in READS:
            continue
        if not node.op.elementwise or "quantize" in node.op.name:
            return False
        waiting += [v for v in node.operands if v not in seen]
        seen.update(node.operands)
    return True


def _is_first_term(x: Value, reader: Node) -> bool:
    """Whether `reader` combines x with the result of a later product, whose kernel so reads x."""
    both = [v for v in reader.operands if v.data is None]
    if not reader.op.elementwise or len(both) != 2 or any(v.type != reader.output.type for v in both):
        return False
    first, second = (_product(v) for v in both)
    if first is None or second is None:
        return False
    return x is min(zip((first, second), both, strict=True), key=lambda pair: pair[0].position)[1]


def _product(x: Value) -> Node | None:
    """The product that computes x, perhaps with elementwise operations after it, if nothing else reads any of them."""
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


def _from_integers(x: Value) -> bool:
    return x.node is not None and "dequantize" in x.node.op.name


def _reached(nodes: Iterable[Node], made: set[Node], *, backwards: bool = False) -> set[Node]:
    """The nodes that products, or values after them, reach; or that reach products, of nodes in reverse order."""
    found: set[Node] = set()
    for n in nodes:
        next_ones = (m for v in n.outputs for m in v.users) if backwards else (v.node for v in n.operands)
        if n in made or any(m in found for m in next_ones):
            found.add(n)
    return found


def quantized_between(graph: Graph, scheme: Scheme) -> list[str]:
    """The values of the scheme's `between`, but for those that products in f32 or of 16 bits read: these stay exact."""
    exact = {*scheme.exclude, *scheme.wide}
    read = {str(v.name) for p in products(graph) if p.name in exact for v in p.factors}
    return [name for name in scheme.between if name not in read]


def insert_between(graph: Graph, chosen: Mapping[str, Parameters]) -> dict[tuple[Value, Parameters], Value]:
    """Let all that reads these values, by name, read dequantize(quantize(value)).

    Returns the dequantized values, by themselves and by their parameters: what a product reads by the same ones.
    """
    values, pairs = values_by_name(graph), {}
    for name, p in chosen.items():
        uses = list(values[name].uses)
        out = pair(graph, values[name].users[0], values[name], p)
        graph.replace_uses(values[name], out, uses)
        pairs[out, p] = out
    return pairs


def pair(graph: Graph, before: Node, x: Value, p: Parameters) -> Value:
    """dequantize(quantize(x))"""
    with graph.before(before):
        return graph.dequantize(graph.quantize(x, dtype=p.dtype, **p.attrs), **p.attrs)


def share(graph: Graph) -> None:
    """Quantize before what KEEPS elements, by the scale after it, so that it moves bytes; numbers stay as they are.

    quantize(concat(x, y)) -> quantize(concat(dequantize(quantize(x)), dequantize(quantize(y)))), and so for values that
    nothing else reads.
    """
    for node in sorted(graph.nodes_of(("quantize",)), key=GRAPH_ORDER, reverse=True):
        waiting = [next(iter(node.operands))]
        while waiting:
            y = waiting.pop()
            if y.node is None or len(y.uses) != 1 or not _keeps(y.node):
                continue
            for x in dict.fromkeys(y.node.operands):
                if x.dtype == f32 and x.data is None and x.node is not None and len(x.uses) == 1 \
                        and not _from_integers(x):
                    _share(graph, x, y.node, node)
                    waiting.append(x)


def _share(graph: Graph, x: Value, reader: Node, quantize: Node) -> None:
    attrs = {k: v for k, v in quantize.attrs.items() if k != "dtype"}
    uses = list(x.uses)
    with graph.before(reader):
        out = graph.dequantize(graph.quantize(x, **quantize.attrs), **attrs)
    graph.replace_uses(x, out, uses)
