"""quantize_with_accuracy_control: the fastest point of the frontier that keeps an accuracy measured by the user."""
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from graphq.compile import compile
from graphq.errors import GraphError, InputError
from graphq.ir import Graph
from graphq.model.compiled_graph import CompiledGraph
from graphq.quantization.calibrate import Batches
from graphq.quantization.scheme import Setting
from graphq.quantization.search import Search
from graphq.quantization.speed import run_times

Evaluate = Callable[[CompiledGraph], float]


@dataclass
class Controlled:
    """The quantized graph and its setting, and the accuracies and run times of f32 and of this graph."""

    graph: Graph
    setting: Setting
    accuracy_f32: float
    accuracy: float
    milliseconds_f32: float
    milliseconds: float


def quantize_with_accuracy_control(graph: Graph, batches: Batches, evaluate: Evaluate, max_drop: float, *,
                                   report: Callable[[str], None] | None = print) -> Controlled:
    """Quantize with the fastest setting of the search's frontier (`Search`) that keeps the accuracy.

    `evaluate(model)` returns the accuracy of a compiled model, on other data than `batches`; larger is better. It is
    called with the f32 model, and then with models of the whole frontier, the fastest first, until the accuracy is at
    most `max_drop` below f32. `report` gets a line for each model, with its accuracy and the time of a run.

    Raises GraphError if even the slowest setting loses more. Raises InputError for a negative max_drop and for an
    accuracy that is not a finite number.
    """
    if not max_drop >= 0:
        raise InputError(f"max_drop must not be negative, got {max_drop}")
    search = Search(graph, batches)
    search.whole = True

    def measured(name: str, made: Graph) -> tuple[float, float]:
        model = compile(made, cache="kernels")
        accuracy, (taken,) = float(evaluate(model)), run_times([model], search.batches[0])
        if not np.isfinite(accuracy):
            raise InputError(f"evaluate must return a finite number, got {accuracy}")
        if report is not None:
            report(f"accuracy {accuracy:.5g}, {taken:.2f} ms: {name}")
        return accuracy, taken

    accuracy_f32, time_f32 = measured("f32", search.graph)
    search.run(narrow=True)
    best = -np.inf
    tried = (search.possible(point.setting) for point in search.curve)
    for setting in (s for s in tried if s not in search.failed):
        made = search.made(setting)
        accuracy, taken = measured(str(setting), made)
        best = max(best, accuracy)
        if accuracy_f32 - accuracy <= max_drop:
            return Controlled(made, setting, accuracy_f32, accuracy, time_f32, taken)
    raise GraphError(f"no setting keeps the accuracy: the best has {best:g}, more than {max_drop:g} below f32's "
                     f"{accuracy_f32:g}. `compare` names the layers that cost most; `quantize` can leave them out")
