"""The reference interpreter: it runs the NumPy reference of every node in graph order.

Its results are the meaning of a graph; passes and kernels are tested against them.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from graphq.base.progress import progress
from graphq.errors import GraphError, GraphqError, InputError
from graphq.ir.graph import Graph, Node, TensorType, Value
from graphq.ir.signature import Signature
from graphq.ir.tensor_type import Dim
from graphq.ir.verify import check_order

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Result = TypeVar("Result", np.ndarray, dict[str, np.ndarray], default=np.ndarray)
    """The type of what a call returns: an array, or a dict of several if the caller's annotation says so."""


def reference(graph: Graph, /, *inputs: Any, **named: Any) -> Result:  # type: ignore[type-var]
    """Run `graph` op by op in NumPy as the specifications say.

    Inputs are given in the graph's order, by name as keywords, or in one mapping by name. Returns the output as a new
    array, or a dict of outputs if the graph has several.

    Errors are raised before anything runs: InputError if arrays do not fit the inputs, GraphError if the graph has no
    outputs or the shapes of the arrays do not fit its operations, VerifyError for nodes out of order.
    """
    if not isinstance(graph, Graph):
        raise GraphError(f"reference takes a Graph, got {graph!r}")
    require_outputs(graph)
    check_order(graph)
    given = check_inputs(graph, named_inputs(graph, inputs, named))
    if not all(v.type.known for v in graph.inputs):
        graph = graph.specialise({str(v.name): TensorType(v.dtype, given[str(v.name)].shape) for v in graph.inputs})
    return pack_outputs(graph.output_names, [np.array(y, order="C") for y in evaluate(graph, given)])


def evaluate(graph: Graph, inputs: Mapping[str, np.ndarray],
             attributes: Callable[[Node], Mapping[str, Any]] = lambda node: node.attrs) -> list[np.ndarray]:
    """The outputs of `graph` for checked input arrays; they may be inputs, constants or views of them.

    `attributes` returns the attributes that a node's reference runs with, such as compiled bodies in place of graphs.
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
    """The results of one node's reference. They must have the inferred types; NumPy's f64 is converted to f32."""
    if not all(v.type.known for v in node.operands):
        _check_operands(graph, node, args)
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
        if not fits(v.type.shape, y.shape):
            raise GraphError(f"{graph.describe(node)}: the reference returns shape {list(y.shape)}")
    return arrays


def _check_operands(graph: Graph, node: Node, args: list[np.ndarray | None]) -> None:
    """Check operands whose shapes depend on data: raise GraphError if the operation refuses their actual shapes."""
    types = (None if v is None or x is None else TensorType(v.dtype, x.shape)
             for v, x in zip(node.inputs, args, strict=True))
    try:
        node.op.infer(*types, **node.attrs)
    except GraphError as e:
        raise GraphError(f"{graph.describe(node)}: {e}") from None


def pack_outputs(names: Iterable[str], results: Sequence[np.ndarray]) -> Any:
    """The result of a call: a single array as it is, several as a dict by output name."""
    return results[0] if len(results) == 1 else dict(zip(names, results, strict=True))


def named_outputs(names: Iterable[str], result: np.ndarray | dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The result of a call as a dict by output name: the inverse of `pack_outputs`."""
    return result if isinstance(result, dict) else dict.fromkeys(names, result)


def require_outputs(graph: Graph) -> None:
    """Raise GraphError unless the graph returns something."""
    if not graph.outputs:
        raise GraphError(f"graph '{graph.name}' has no outputs; call g.output(value, name=...)")


def named_inputs(graph: Graph | Signature, inputs: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays of a call by the names of inputs.

    A call gives them in the graph's order or as one mapping (`inputs`), and by keyword (`named`). Raises InputError if
    there are more than the graph has inputs, or if an input is given twice.
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
"""The keywords of a compiled graph's call and `profile` that are options, not names of inputs."""


def check_inputs(graph: Graph | Signature, given: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The given arrays by input name, C-contiguous (others are copied), checked for names, dtypes and shapes.

    Raises InputError that names the input, the rule and the values. Unknown dimensions accept any size.
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
    return out


def check_array(name: str, type: TensorType, array: Any, *, word: str = "input") -> np.ndarray:
    """`array` as a C-contiguous array of exactly `type`; raises InputError that begins with `word` and the name."""
    where = f"{word} '{name}' must be {type}"
    try:
        x = np.asarray(array)
    except Exception as e:  # an object's own __array__ may raise anything
        raise InputError(f"{where}: {e.__class__.__name__}: {e}") from e
    if x.dtype != type.dtype.numpy:
        raise InputError(f"{where}, got dtype {x.dtype} (no implicit conversion: use astype, or "
                         "Predictor(..., convert=True))")
    if not fits(type.shape, x.shape):
        raise InputError(f"{where}, got shape {list(x.shape)}")
    return np.require(x, requirements=["C", "A"]) if x.ndim else np.array(x)


def fits(shape: tuple[Dim, ...] | None, dims: tuple[int, ...]) -> bool:
    """Whether an array of these dimensions fits a shape, in which dimensions, or even the rank, may be unknown."""
    return shape is None or len(dims) == len(shape) and all(
        [d is None or d == n for d, n in zip(shape, dims, strict=True)])
