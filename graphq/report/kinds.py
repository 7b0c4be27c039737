"""Kinds of partitions: those that multiply integers, those that read and write only quantized numbers, and others."""
from __future__ import annotations

from collections.abc import Iterator

from graphq.dtypes import DType, s4, u4
from graphq.ir import Node, Value
from graphq.kernels.families import multiplies_integers
from graphq.ops.quant import QUANTIZED
from graphq.report.coverage import MACS
from graphq.report.records import Kind

SCALED = ("dynamic_quantize", "dynamic_dequantize")
"""Operations whose operands after the first are scales and zero points."""


def is_quantized(dtype: DType) -> bool:
    """Whether numbers of this type stand for real numbers by a scale."""
    return dtype in (*QUANTIZED, s4, u4)


def kind_of(node: Node) -> Kind:
    """The kind of a node of a graph after the passes; "float" for a node that is no partition."""
    if node.op.name != "partition":
        return "float"
    if multiplies_integers(node):
        return "integer"
    inputs = all(is_quantized(v.dtype) and all(u.op.name != "cast" for u in v.users) for v in read(node))
    return "quantized" if inputs and all(is_quantized(v.dtype) for v in node.outputs) else "float"


def factors(partition: Node) -> str:
    """The dtype of the floats that the product in a partition multiplies; "" if it multiplies integers or nothing."""
    anchor = next((n for n in partition.attrs["body"].nodes if n.op.name in MACS), None)
    return "" if anchor is None or multiplies_integers(partition) else next(anchor.operands).dtype.name


def read(partition: Node) -> Iterator[Value]:
    """The inputs of a partition's body that are data: neither constants nor single numbers or scales."""
    body = partition.attrs["body"]
    for inner, outer in zip(body.inputs, partition.operands, strict=True):
        one = outer.type.known and outer.type.size == 1
        if outer.data is None and not one and not all(is_scale(u.node, u.number) for u in inner.uses):
            yield inner


def is_scale(node: Node | None, number: int) -> bool:
    """Whether operand `number` of a node is its scales or zero points."""
    return node is not None and node.op.name in SCALED and number > 0
