"""Sum squares of numbers of any magnitude in f32.

f32 cannot hold the squares of numbers above 2**64 or below 2**-63. A model that sums squares therefore first multiplies
the numbers by a unit: a power of two that is an input of the model. A power of two changes no digit of normal numbers.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np

from graphq.ir import Graph, Value
from graphq.ir.interpret import named_outputs
from graphq.model.compiled_graph import CompiledGraph

PREFIX = "unit/"
STEP = 2.0**100
"""The ratio between neighboring units; 1 / STEP, 1 and STEP are enough for all numbers of f32."""

Arrays: TypeAlias = dict[str, np.ndarray]


def in_unit(graph: Graph, name: str, *values: Value) -> list[Value]:
    """Multiply the values by the unit of this name, a new input of the graph."""
    unit = graph.input(f"{PREFIX}{name}", dtype="f32", shape=())
    return [graph.multiply(v, unit) for v in values]


class Units:
    """The units of a model, by name. A run starts with the units of the previous run."""

    def __init__(self, names: Iterable[str]) -> None:
        self.units = dict.fromkeys(names, 1.0)

    def run(self, model: CompiledGraph, batch: Mapping[str, Any], squares: Callable[[Arrays, str], np.ndarray],
            ) -> tuple[Arrays, Mapping[str, float]]:
        """The results of the model by name, and the units of these results.

        The model runs again with other units until, for each name, the largest of the `squares` of its results is
        neither infinite nor tiny.
        """
        for _ in range(3):
            used = dict(self.units)
            units = {f"{PREFIX}{name}": np.array(u, np.float32) for name, u in used.items()}
            out = named_outputs(model.outputs, model({**batch, **units}))
            for name, u in used.items():
                self.units[name] = _fitting(u, squares(out, name))
            if self.units == used:
                break
        return out, used


def _fitting(unit: float, squares: np.ndarray) -> float:
    """The unit for the next run. `squares` are squares of numbers in `unit`; if all are NaN, `unit` is kept."""
    known = squares[~np.isnan(squares)]
    if not known.size:
        return unit
    if np.isinf(known).any():
        return max(unit / STEP, 1 / STEP)
    return min(unit * STEP, STEP) if known.max() < 1 / STEP else unit
