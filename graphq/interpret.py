"""The op-by-op reference: every node's NumPy body in graph order. The meaning that all else is checked against."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from graphq.errors import GraphError, InputError
from graphq.ir import Graph, TensorType, Value


def reference(graph: Graph, inputs: Mapping[str, Any] | None = None, /, **arrays: Any) -> Any:
    """Run `graph` op by op in NumPy as the specifications say.

    Inputs by name, as keywords or as one mapping. Returns the output array, or a dict of them when the graph has
    several. Raises InputError when arrays do not fit the inputs, GraphError when the graph has no outputs.
    """
    require_outputs(graph)
    given = check_inputs(graph, {**(inputs or {}), **arrays})
    results = evaluate(graph, given)
    return pack_outputs(graph, results)


def evaluate(graph: Graph, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of `graph` for checked input arrays."""
    env: dict[Value, np.ndarray] = {v: inputs[str(v.name)] for v in graph.inputs}
    for node in graph.nodes:
        args = [None if v is None else env[v] for v in node.inputs]
        out = node.op.reference(*args, **node.attrs)
        outs = out if isinstance(out, tuple) else (out,)
        for value, array in zip(node.outputs, outs, strict=True):
            env[value] = np.asarray(array, dtype=value.dtype.numpy)
    return [env[v] for v in graph.outputs]


def pack_outputs(graph: Graph, results: list[np.ndarray]) -> Any:
    """One array as it is, several as a dict by output name."""
    return results[0] if len(results) == 1 else dict(zip(graph.output_names, results, strict=True))


def require_outputs(graph: Graph) -> None:
    """Raise GraphError unless the graph returns something."""
    if not graph.outputs:
        raise GraphError(f"graph '{graph.name}' has no outputs; call g.output(value, name=...)")


def check_inputs(graph: Graph, given: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The given arrays by input name, C-contiguous (others are copied), checked for names, dtypes and shapes.

    Raises InputError that names the input, the rule and the values. Symbolic dimensions accept any size, as long as
    all types of the graph can be inferred from it.
    """
    names = [str(v.name) for v in graph.inputs]
    unexpected = [k for k in given if k not in names]
    missing = [k for k in names if k not in given]
    if unexpected or missing:
        raise InputError(f"graph '{graph.name}' takes inputs {names}; missing {missing}, unexpected {unexpected}")
    out = {}
    for value in graph.inputs:
        name = str(value.name)
        out[name] = check_array(name, value.type, given[name])
    return out


def check_array(name: str, type: TensorType, array: Any) -> np.ndarray:
    """`array` as a C-contiguous array of exactly `type`; raises InputError when it is not one."""
    try:
        x = np.asarray(array)
    except ValueError as e:  # a ragged list
        raise InputError(f"input '{name}' must be {type}: {e}") from None
    if x.dtype != type.dtype.numpy:
        raise InputError(f"input '{name}' must be {type}, got dtype {x.dtype} (no implicit conversion: use astype)")
    fits = type.shape is None or (x.ndim == len(type.shape)
                                  and all(d is None or d == n for d, n in zip(type.shape, x.shape, strict=True)))
    if not fits:
        raise InputError(f"input '{name}' must be {type}, got shape {list(x.shape)}")
    return np.require(x, requirements=["C", "A"]) if x.ndim else np.array(x)
