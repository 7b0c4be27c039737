"""Constant folding of single nodes, by which models with open shapes compute most of their shapes."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import getitem
from typing import TYPE_CHECKING, Any

import numpy as np

from graphq.base.budget import reserve
from graphq.base.sizes import Later, assumed, is_open, later, number
from graphq.dtypes import DType, as_dtype
from graphq.errors import GraphqError
from graphq.ir.node import Value
from graphq.ir.op import REQUIRED, Attribute, Op
from graphq.ir.tensor_type import TensorType

if TYPE_CHECKING:
    from graphq.ir.graph import Graph

FOLDED = 1 << 16
"""The most elements of a result that is folded while a graph is built."""

_LONG = frozenset({"avg_pool", "loop", "max_pool"})
_LONG_ONNX = frozenset({"AveragePool", "Loop", "LpPool", "MaxPool", "RoiAlign", "Scan", "TfIdfVectorizer"})

UNFOLDED = frozenset({"constant", "dequantize", "dynamic_dequantize", "partition", "sized_constant"})
"""Operations that are not folded even if their operands are constants. Fusions match some of them."""


def runs_long(op: Op, attrs: Mapping[str, Any]) -> bool:
    """Whether an operation may take long even if operands and results are small. Such an operation is not folded."""
    return op.name in _LONG or attrs.get("op_type") in _LONG_ONNX


def _sized_type(*, value: Later, shape: tuple[int, ...], dtype: DType) -> TensorType:
    return TensorType(dtype, shape)


def _sized_constant(*, value: Later, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    """The reference of sized_constant: the array for the open sizes that compilation assumed (`graphq.base.sizes`)."""
    return np.asarray(value.assumed)


SIZED_CONSTANT = Op("sized_constant", "SizedConstant", (), {
    "value": Attribute("value", Later, REQUIRED), "shape": Attribute("shape", list[int], REQUIRED),
    "dtype": Attribute("dtype", DType, REQUIRED)}, _sized_constant, _sized_type)
"""The operation whose result is an array that depends on open sizes (`graphq.base.sizes`). For given sizes it is a
constant.

Compiling a graph with open shapes makes such nodes. Graphs that users build or load have none, and the text form cannot
express them."""


def known(value: Value) -> np.ndarray | Later | None:
    """The array of a constant, or its Later if it depends on open sizes; None for a value that is no constant."""
    if value.node is not None and value.node.op is SIZED_CONSTANT:
        return value.node.attrs["value"]
    return value.data


def add_known(graph: Graph, array: np.ndarray | Later) -> Value:
    """Add a constant to the graph; a Later becomes a constant that depends on open sizes."""
    if isinstance(array, np.ndarray):
        return graph.add_constant(array)
    dense: Any = later(_dense, array)
    example = dense.assumed
    shape = [number(_dimension, dense, k) for k in range(example.ndim)]
    return graph.add_node(SIZED_CONSTANT, (), {"value": dense, "shape": shape, "dtype": as_dtype(example.dtype)})[0]


def _dense(array: np.ndarray) -> np.ndarray:
    """The array in C order; unlike `np.ascontiguousarray` it keeps rank 0."""
    return np.asarray(array, order="C")


def _dimension(array: np.ndarray, axis: int) -> int:
    return array.shape[axis]


def constant_bytes(graph: Graph) -> int:
    """The bytes that the graph's constants take."""
    return sum(node.attrs["value"].nbytes for node in graph.nodes_of(("constant",)))


def computed(op: Op, operands: Sequence[Value | None], attrs: Mapping[str, Any],
             types: Sequence[TensorType]) -> tuple[np.ndarray | Later, ...] | None:
    """The results of an operation whose operands are all constants, as arrays of the given `types`.

    None if an operand is no constant, if a result has more than FOLDED elements, or if the operation cannot run or is
    never folded. If operands depend on open sizes, the results are Laters (`graphq.base.sizes`).
    """
    if op.name in UNFOLDED or runs_long(op, attrs) or not types:
        return None
    given = [None if v is None else known(v) for v in operands]
    if any(x is None and v is not None for x, v in zip(given, operands, strict=True)):
        return None
    if any(t.known and assumed(t.size) > FOLDED for t in types):
        return None
    if not is_open([given, attrs]):
        return evaluated(op, operands, attrs, types)
    dtypes = [t.dtype.numpy for t in types]
    try:
        results = later(_results, op, given, attrs, dtypes)
    except GraphqError:
        return None
    arrays: list[Any] = [later(getitem, results, k) for k in range(len(types))]
    return tuple(arrays)


def _results(op: Op, operands: Sequence[np.ndarray | None], attrs: Mapping[str, Any],
             dtypes: Sequence[np.dtype]) -> tuple[np.ndarray, ...]:
    out = op.reference(*operands, **attrs)
    outs = out if isinstance(out, tuple) else (out,)
    return tuple([np.asarray(x, t) for x, t in zip(outs, dtypes, strict=True)])


def evaluated(op: Op, operands: Sequence[Value | None], attrs: Mapping[str, Any],
              types: Sequence[TensorType]) -> tuple[np.ndarray, ...] | None:
    """The results of an operation on constants, as arrays of the given `types`; None if the operation cannot run.

    Raises CompileError if the results would exceed the memory limit.
    """
    reserve(sum(t.nbytes for t in types if t.known), f"the result of {op.name} on constants")
    try:
        return _results(op, [None if v is None else v.data for v in operands], attrs, [t.dtype.numpy for t in types])
    except GraphqError:
        return None
