"""Run graphs with NumPy (the reference interpreter), and fold constants.

The interpreter runs each node's reference, a NumPy function, in graph order. These results define the meaning of a
graph; passes and kernels are tested against them. Constant folding computes nodes whose operands are all constants.
Most of the shape arithmetic in models with open shapes is folded.
"""
import builtins
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import getitem
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from graphq.base.budget import SMALL, expect, reserve
from graphq.base.progress import progress
from graphq.base.sizes import Later, assumed, is_open, later, number, recorded
from graphq.dtypes import DType, as_dtype
from graphq.errors import GraphError, GraphqError, InputError, VerifyError
from graphq.ir.graph import Graph, Node
from graphq.ir.node import Value
from graphq.ir.op import REQUIRED, Attribute, Op
from graphq.ir.tensor_type import TensorType, shapes_agree

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Result = TypeVar("Result", np.ndarray, dict[str, np.ndarray], default=np.ndarray)
    """The type of a call's result: an array, or a dict of arrays if the caller's annotation says so."""


@dataclass(frozen=True)
class GraphInput:
    """An input of a graph. `property` is as in Value, or "size" if shapes depend on the elements of the input."""

    name: str
    type: TensorType
    property: str

    @builtins.property
    def dtype(self) -> DType:
        """The element type."""
        return self.type.dtype


CHECK_SHAPES = "check_shapes"
"""The key in a graph's `meta` for a function that raises InputError if the graph does not take its inputs' shapes."""


class Signature(NamedTuple):
    """A graph's name, its inputs, the types of its outputs by name, and the function for CHECK_SHAPES."""

    name: str
    inputs: tuple[GraphInput, ...]
    outputs: Mapping[str, TensorType]
    check_shapes: Callable[..., None] | None = None

    @classmethod
    def of(cls, graph: Graph) -> "Signature":
        """The signature of `graph`."""
        return cls(graph.name, tuple([GraphInput(v.name or "", v.type, v.property) for v in graph.inputs]),
                   {name: v.type for name, v in zip(graph.output_names, graph.outputs, strict=True)},
                   graph.meta.get(CHECK_SHAPES))


FOLDED = 1 << 16
"""Constant folding computes only results with at most this many elements."""

_LONG = frozenset({"avg_pool", "loop", "max_pool"})
_LONG_ONNX = frozenset({"AveragePool", "Loop", "LpPool", "MaxPool", "RoiAlign", "Scan", "TfIdfVectorizer"})

UNFOLDED = frozenset({
    "constant", "dequantize", "dequantize_linear", "dynamic_dequantize", "partition", "sized_constant"})
"""Operations that are never folded, for example dequantize, because fusions match it."""


def runs_long(op: Op, attrs: Mapping[str, Any]) -> bool:
    """Whether an operation may take long even for small operands and results; constant folding skips it then."""
    return op.name in _LONG or attrs.get("op_type") in _LONG_ONNX


def _sized_constant(*, value: Later, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    """The array at the sizes that compilation assumes for open dimensions (`graphq.base.sizes`)."""
    return np.asarray(value.assumed)


SIZED_CONSTANT = Op("sized_constant", "SizedConstant", (), {
    "value": Attribute("value", Later, REQUIRED), "shape": Attribute("shape", list[int], REQUIRED),
    "dtype": Attribute("dtype", DType, REQUIRED)}, _sized_constant,
    lambda *, value, shape, dtype: TensorType(dtype, shape))
"""The operation of constants whose array depends on open sizes; the array is a `Later` (`graphq.base.sizes`).

Only the compiler adds nodes of this operation. The text form of graphs has no syntax for them."""


def known(value: Value) -> np.ndarray | Later | None:
    """The array of a constant, or the `Later` of a constant that depends on open sizes; None for any other value."""
    if value.node is not None and value.node.op is SIZED_CONSTANT:
        return value.node.attrs["value"]
    return value.data


def add_known(graph: Graph, array: np.ndarray | Later) -> Value:
    """Add a constant to the graph; a `Later` becomes a constant that depends on open sizes."""
    if isinstance(array, np.ndarray):
        return graph.add_constant(array)
    dense: Any = later(_dense, array)
    example = dense.assumed
    shape = [number(np.size, dense, k) for k in range(example.ndim)]
    return graph.add_node(SIZED_CONSTANT, (), {"value": dense, "shape": shape, "dtype": as_dtype(example.dtype)})[0]


@recorded("dense")
def _dense(array: np.ndarray) -> np.ndarray:
    """The array in C order. Unlike `np.ascontiguousarray`, this keeps rank 0. Raises CompileError beyond the budget."""
    expect(array.nbytes, "a constant")
    return np.asarray(array, order="C")


def constant_bytes(graph: Graph) -> int:
    """The bytes that the graph's constants take."""
    return sum(node.attrs["value"].nbytes for node in graph.nodes_of(("constant",)))


def computed(op: Op, operands: Sequence[Value | None], attrs: Mapping[str, Any],
             types: Sequence[TensorType]) -> tuple[np.ndarray | Later, ...] | None:
    """Fold an operation on constants. Returns its results as arrays of the given `types`, or None if it is not folded.

    An operation is not folded if an operand is not a constant, a result has more than FOLDED elements, the operation is
    in UNFOLDED or runs long, or its reference raises. If operands depend on open sizes, the results are `Later` objects
    (`base.sizes`).
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


@recorded("results")
def _results(op: Op, operands: Sequence[np.ndarray | None], attrs: Mapping[str, Any],
             dtypes: Sequence[np.dtype]) -> tuple[np.ndarray, ...]:
    out = op.reference(*operands, **attrs)
    outs = out if isinstance(out, tuple) else (out,)
    return tuple([np.asarray(x, t) for x, t in zip(outs, dtypes, strict=True)])


def evaluated(op: Op, operands: Sequence[Value | None], attrs: Mapping[str, Any],
              types: Sequence[TensorType]) -> tuple[np.ndarray, ...] | None:
    """Compute an operation on constants. Returns arrays of the given `types`, or None if its reference raises.

    Raises CompileError if the results would exceed the memory limit.
    """
    reserve(sum(t.nbytes for t in types if t.known), f"the result of {op.name} on constants")
    try:
        return _results(op, [None if v is None else v.data for v in operands], attrs, [t.dtype.numpy for t in types])
    except GraphqError:
        return None


def reference(graph: Graph, /, *inputs: Any, **named: Any) -> "Result":  # type: ignore[type-var]
    """Run a graph with the NumPy reference of each operation.

    Inputs are given in the graph's order, as keywords, or in one mapping by name. Returns the output as a new array, or
    a dict of outputs if the graph has several.

    Before anything runs, raises InputError if arrays do not fit the inputs, GraphError if the graph has no outputs or
    its operations refuse the shapes of the arrays, and VerifyError for nodes out of order.
    """
    if not isinstance(graph, Graph):
        raise GraphError(f"reference takes a Graph, got {graph!r}")
    require_outputs(graph)
    check_order(graph)
    given = check_inputs(graph, named_inputs(graph, inputs, named))
    if not all(v.type.known for v in graph.inputs):
        graph = graph.specialize({str(v.name): TensorType(v.dtype, given[str(v.name)].shape) for v in graph.inputs})
    return pack_outputs(graph.output_names, [np.array(y, order="C") for y in evaluate(graph, given)])


def evaluate(graph: Graph, inputs: Mapping[str, np.ndarray],
             attributes: Callable[[Node], Mapping[str, Any]] = lambda node: node.attrs) -> list[np.ndarray]:
    """Compute the outputs of a graph for checked input arrays. Outputs may share memory with inputs or constants.

    `attributes(node)` returns the attributes for the node's reference, for example with a compiled body of a loop.
    """
    env: dict[Value, np.ndarray] = {v: inputs[str(v.name)] for v in graph.inputs}
    left = {v: len(v.uses) for v in graph.inputs}
    for node in progress(graph.nodes, "reference"):
        args = [None if v is None else env[v] for v in node.inputs]
        for value, array in zip(node.outputs, _run(graph, node, args, attributes(node)), strict=True):
            env[value], left[value] = array, len(value.uses)
        for v in node.operands:  # free the values that no later node needs
            left[v] -= 1
            if left[v] == 0:
                del env[v]
    return [env[v] for v in graph.outputs]


def _run(graph: Graph, node: Node, args: list[np.ndarray | None], attrs: Mapping[str, Any]) -> list[np.ndarray]:
    """Run one node's reference. Its results are converted to the inferred dtypes and must have the inferred shapes."""
    if not all(v.type.known for v in node.operands):
        types = (None if v is None or x is None else TensorType(v.dtype, x.shape)
                 for v, x in zip(node.inputs, args, strict=True))
        try:
            node.op.infer(*types, **node.attrs)
        except GraphError as e:
            raise GraphError(f"{graph.describe(node)}: {e}") from None
    nbytes = sum(v.type.nbytes for v in node.outputs if v.type.known)
    if nbytes > SMALL:  # small results are not checked, because `describe` is slow
        expect(nbytes, f"{graph.describe(node)}: the result")
    try:
        out = node.op.reference(*args, **attrs)
    except MemoryError:
        raise GraphError(f"{graph.describe(node)}: not enough memory") from None
    except GraphqError as e:
        raise type(e)(f"{graph.describe(node)}: {e}") from e
    outs = out if isinstance(out, tuple) else (out,)
    if len(outs) != len(node.outputs):
        raise GraphError(f"{graph.describe(node)}: the reference returns {len(outs)} arrays")
    arrays = [np.asarray(y, dtype=v.dtype.numpy) for v, y in zip(node.outputs, outs, strict=True)]
    for v, y in zip(node.outputs, arrays, strict=True):
        if not shapes_agree(v.type.shape, y.shape):
            raise GraphError(f"{graph.describe(node)}: the reference returns shape {list(y.shape)}")
    return arrays


def pack_outputs(names: Iterable[str], results: Sequence[np.ndarray]) -> Any:
    """The result of a call: an array, or for several outputs a dict of arrays by output name."""
    return results[0] if len(results) == 1 else dict(zip(names, results, strict=True))


def named_outputs(names: Iterable[str], result: np.ndarray | dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The dict of arrays by output name for the result of a call: the inverse of `pack_outputs`."""
    return result if isinstance(result, dict) else dict.fromkeys(names, result)


def require_outputs(graph: Graph) -> None:
    """Raise GraphError unless the graph returns something."""
    if not graph.outputs:
        raise GraphError(f"graph '{graph.name}' has no outputs; call g.output(value, name=...)")


def check_order(graph: Graph) -> None:
    """Raise VerifyError with the node unless every operand is a graph input or the result of an earlier node."""
    known: set[Value] = set(graph.inputs)
    for node in graph.nodes:
        for k, v in enumerate(node.inputs):
            if v is not None and v not in known:
                raise VerifyError(f"{graph.describe(node)}: operand {k} is used before its definition, or removed: "
                                  "a cycle or bad order")
        known.update(node.outputs)
    for name, v in zip(graph.output_names, graph.outputs, strict=True):
        if v not in known:
            raise VerifyError(f"output '{name}' is not a value of the graph")


def named_inputs(graph: Graph | Signature, inputs: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays of a call by input name.

    `inputs` has the arrays in the graph's order, or one mapping from names to arrays. `named` has the keyword arguments
    of the call. Raises InputError if there are more arrays than inputs, or if an input is given twice.
    """
    names = [str(v.name) for v in graph.inputs]
    if len(inputs) == 1 and isinstance(inputs[0], Mapping):
        given = dict(inputs[0])
    elif len(inputs) > len(names):
        raise InputError(f"graph '{graph.name}' takes inputs {names}, got {len(inputs)} arrays")
    else:
        given = dict(zip(names, inputs, strict=False))
    twice = [k for k in named if k in given]
    if twice:
        raise InputError(f"input '{twice[0]}' is given twice")
    return {**given, **named}


OPTIONS = frozenset({"out", "fetch", "runs"})
"""Keywords of a compiled graph's call and of `profile` that are options, not names of inputs."""


def check_inputs(graph: Graph | Signature, given: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Check the arrays of a call: names, dtypes and shapes. Arrays that are not C-contiguous are copied.

    An unknown dimension accepts any size. Raises InputError with the input, the rule and the values.
    """
    names = [str(v.name) for v in graph.inputs]
    unexpected = [k for k in given if k not in names]
    missing = [k for k in names if k not in given]
    if unexpected or missing:
        hint = next((f"; '{k}' is an option of the call: give an input of that name in a mapping, {{'{k}': array, ...}}"
                     for k in missing if k in OPTIONS), "")
        raise InputError(f"graph '{graph.name}' takes inputs {names}; missing {missing}, unexpected {unexpected}{hint}")
    out = {}
    for value in graph.inputs:
        name = str(value.name)
        out[name] = check_array(name, value.type, given[name])
    signature = Signature.of(graph) if isinstance(graph, Graph) else graph
    if signature.check_shapes is not None:
        signature.check_shapes([x.shape for x in out.values()])
    return out


def check_array(name: str, type: TensorType, array: Any, *, word: str = "input") -> np.ndarray:
    """Make `array` a C-contiguous array. Raises InputError, with `word` and `name`, if it does not have `type`."""
    where = f"{word} '{name}' must be {type}"
    try:
        x = np.asarray(array)
    except Exception as e:  # an object's own __array__ may raise anything
        raise InputError(f"{where}: {e.__class__.__name__}: {e}") from e
    if x.dtype != type.dtype.numpy:
        raise InputError(f"{where}, got dtype {x.dtype} (no implicit conversion: use astype, or "
                         "Predictor(..., convert=True); tensors have x.to(dtype))")
    if not shapes_agree(type.shape, x.shape):
        raise InputError(f"{where}, got shape {list(x.shape)}")
    return np.require(x, requirements=["C", "A"]) if x.ndim else np.array(x)
