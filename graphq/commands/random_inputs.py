"""Random inputs that the operations of a graph accept: for commands and benchmarks that are given no arrays."""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from graphq.ir import Graph, Node, Value


def accepted_inputs(graph: Graph, seed: int, spread: float = 1.0) -> dict[str, np.ndarray]:
    """Arrays for all inputs of a graph whose shapes are known, by name; the same seed gives the same arrays.

    Floats are in [-spread, spread]. Integers of less than 32 bits lie around their zero point, in the share `spread` of
    the range of their type.
    """
    rng = np.random.default_rng(seed)
    return {str(v.name): _array(v, rng, spread) for v in graph.inputs}


# What operands of these names must be: variances and scales are positive, probabilities are below 1.
_DOMAINS: Mapping[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "variance": lambda rng, shape: rng.uniform(0.5, 2.0, shape),
    "scales": lambda rng, shape: rng.uniform(0.01, 0.1, shape),
    "probability": lambda rng, shape: rng.uniform(0.1, 0.9, shape),
    "zps": lambda rng, shape: rng.integers(0, 5, shape),
    "seed": lambda rng, shape: rng.integers(0, 1000, shape),
    "offset": lambda rng, shape: rng.integers(0, 1000, shape),
}
_POSITIVE = ("log", "sqrt", "pow")


def _array(value: Value, rng: np.random.Generator, spread: float) -> np.ndarray:
    shape, dtype = value.type.dims, value.dtype
    users = value.users
    names = {u.node.op.operands[min(u.number, len(u.node.op.operands) - 1)].name for u in value.uses
             if u.node is not None}
    for name in sorted(names & _DOMAINS.keys()):
        return np.asarray(_DOMAINS[name](rng, shape)).astype(dtype.numpy)
    if dtype.kind == "bool":
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.kind == "float":
        low = 0.1 if any(n.op.name in _POSITIVE for n in users) else -1.0
        return (spread * rng.uniform(low, 1.0, shape)).astype(np.float32).astype(dtype.numpy)
    if dtype.bits >= 32:
        return rng.integers(-100, 101, shape).astype(dtype.numpy)
    low, high = int(dtype.min), int(dtype.max)
    centre = min(max(_zero_point(users), low), high)
    low, high = (centre - math.ceil(spread * (centre - low)), centre + math.ceil(spread * (high - centre)))
    return rng.integers(low, high + 1, shape).astype(dtype.numpy)


def _zero_point(users: Sequence[Node]) -> int:
    zps = [z for n in users for z in n.attrs.get("zps") or ()]
    return round(sum(zps) / len(zps)) if zps else 0
