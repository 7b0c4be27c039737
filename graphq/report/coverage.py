"""Compute coverage (the share of multiply-accumulates in integer partitions), and classify partitions by kind."""
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from graphq.dtypes import DType, s4, u4
from graphq.ir import Graph, Node, Value
from graphq.kernels.families import FAMILIES, multiplies_integers
from graphq.kernels.native import NATIVE
from graphq.ops.quant import QUANTIZED
from graphq.ops.recurrent import quantizes_state
from graphq.report.records import Kind

FOREIGN = frozenset({"Attention", "Conv", "ConvInteger", "ConvTranspose", "DeformConv", "Einsum", "GRU", "Gemm", "If",
                     "LSTM", "Loop", "MatMul", "MatMulInteger", "QLinearConv", "QLinearMatMul", "RNN", "Scan"})
"""ONNX operators that multiply and accumulate, or whose bodies may contain such operators."""

MACS = {name: count for f in FAMILIES for name, count in f.macs.items()} \
    | {name: native.macs for name, native in NATIVE.items() if native.macs is not None}
"""For each operation with multiply-accumulates, the function that counts them."""


@dataclass(frozen=True, repr=False)
class Coverage:
    """The number of multiply-accumulates of each operation of the user's graph: in integer partitions, and in total.

    Multiplications by padding are included. `uncounted` names the ONNX operators that multiply but run as ONNX nodes;
    their multiply-accumulates cannot be counted.
    """

    integer_by_op: Mapping[str, int]
    total_by_op: Mapping[str, int]
    uncounted: tuple[str, ...] = ()

    @property
    def integer(self) -> int:
        """Multiply-accumulates in integer partitions."""
        return sum(self.integer_by_op.values())

    @property
    def total(self) -> int:
        """All multiply-accumulates that are counted."""
        return sum(self.total_by_op.values())

    @property
    def share(self) -> float:
        """`integer` / `total`. Without multiply-accumulates it is 1.0, or 0.0 if some operators are uncounted."""
        return self.integer / self.total if self.total else float(not self.uncounted)

    def __str__(self) -> str:
        """Text such as `97.1% of 568.8 million multiply-accumulates in integer partitions (convolution 100%)`."""
        if not self.total and not self.uncounted:
            return "no multiply-accumulates"
        parts = [f"{op} {percent(self.integer_by_op.get(op, 0), n)}" for op, n in self.total_by_op.items() if n]
        text = f"{percent(self.integer, self.total)} of {millions(self.total)} multiply-accumulates "
        text += "in integer partitions"
        text += f" ({', '.join(parts)})" if len(parts) > 1 else ""
        return text + (f"; not counted: {', '.join(self.uncounted)}" if self.uncounted else "")

    def __repr__(self) -> str:
        return str(self)


def percent(part: int, whole: int) -> str:
    """A share such as `97.1%`; `100%` and `0%` mean exactly all and nothing."""
    if part in (0, whole):
        return "100%" if part else "0%"
    return f"{min(max(100 * part / whole, 0.1), 99.9):.1f}%"


def millions(count: int) -> str:
    """A count such as `568.8 million`; counts below 100,000 are written in full."""
    return f"{count / 1e6:,.1f} million" if count >= 1e5 else str(count)


def coverage(graph: Graph) -> Coverage:
    """The coverage of a graph after the passes. All shapes must be known."""
    return merged(part for node in graph.nodes for part in _counted(node))


def _counted(node: Node) -> Iterator[Coverage]:
    partition = node.op.name == "partition"
    inside = multiplies_integers(node) if partition else quantizes_state(node)
    for n in node.attrs["body"].nodes if partition else [node]:
        if n.op.name == "onnx_node" and n.attrs["op_type"] in FOREIGN:
            yield Coverage({}, {}, (n.attrs["op_type"],))
        elif n.op.name in MACS:
            macs = MACS[n.op.name](n)
            yield Coverage({n.op.name: macs if inside else 0}, {n.op.name: macs})


def merged(parts: Iterable[Coverage]) -> Coverage:
    """The coverage of several parts, added up."""
    integer: Counter[str] = Counter()
    total: Counter[str] = Counter()
    uncounted: dict[str, None] = {}
    for part in parts:
        integer.update(part.integer_by_op)
        total.update(part.total_by_op)
        uncounted |= dict.fromkeys(part.uncounted)
    return Coverage(dict(integer), dict(total), tuple(uncounted))


SCALED = ("dynamic_quantize", "dynamic_dequantize")
"""Operations whose operands after the first are scales and zero points."""


def is_quantized(dtype: DType) -> bool:
    """Whether elements of this dtype are quantized numbers, that is, represent real numbers with a scale."""
    return dtype in (*QUANTIZED, s4, u4)


def kind_of(node: Node) -> Kind:
    """The kind of a node of a graph after the passes; "float" for a node that is not a partition."""
    if node.op.name != "partition":
        return "float"
    if multiplies_integers(node):
        return "integer"
    inputs = all(is_quantized(v.dtype) and all(u.op.name != "cast" for u in v.users) for v in read(node))
    return "quantized" if inputs and all(is_quantized(v.dtype) for v in node.outputs) else "float"


def factors(partition: Node) -> str:
    """The dtype of the floats that a partition's layer multiplies; "" if it multiplies integers, or has no layer."""
    anchor = next((n for n in partition.attrs["body"].nodes if n.op.name in MACS), None)
    return "" if anchor is None or multiplies_integers(partition) else next(anchor.operands).dtype.name


def read(partition: Node) -> Iterator[Value]:
    """The inputs of a partition's body, without constants, tensors of one element, and scales."""
    body = partition.attrs["body"]
    for inner, outer in zip(body.inputs, partition.operands, strict=True):
        one = outer.type.known and outer.type.size == 1
        if outer.data is None and not one and not all(is_scale(u.node, u.number) for u in inner.uses):
            yield inner


def is_scale(node: Node | None, number: int) -> bool:
    """Whether operand `number` of a node holds scales or zero points."""
    return node is not None and node.op.name in SCALED and number > 0
