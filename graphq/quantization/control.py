"""quantize_with_accuracy_control: keep the fewest layers in f32 that preserve the accuracy measured by the user."""
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from graphq.compile import compile
from graphq.errors import GraphError, InputError
from graphq.ir import Graph
from graphq.model.compiled_graph import CompiledGraph
from graphq.quantization.calibrate import Batches
from graphq.quantization.scheme import Setting, with_scheme
from graphq.quantization.search import Search
from graphq.quantization.speed import run_times

Evaluate = Callable[[CompiledGraph], float]


@dataclass
class Controlled:
    """The quantized graph, the accuracies and run times of both graphs, and the layers left in f32."""

    graph: Graph
    accuracy_f32: float
    accuracy: float
    milliseconds_f32: float
    milliseconds: float
    in_f32: tuple[str, ...]

    @property
    def drop(self) -> float:
        """The accuracy of f32 minus the accuracy of the quantized model."""
        return self.accuracy_f32 - self.accuracy


def quantize_with_accuracy_control(graph: Graph, batches: Batches, evaluate: Evaluate, max_drop: float, *,
                                   state: str | os.PathLike[str] | None = None,
                                   report: Callable[[str], None] | None = print) -> Controlled:
    """Quantize with the best automatic setting, then leave the fewest layers in f32 that keep the accuracy.

    `evaluate(model)` returns the accuracy of a compiled model, on other data than `batches`; larger is better. While
    the accuracy is more than `max_drop` below f32, more stays in f32: first the values between layers, then one more
    layer at a time. The layers whose results change most come first. At the end, layers that need not stay in f32 are
    quantized again. `report` gets a line for each trial, with its accuracy and the time of a run. `state` names a file
    that keeps the accuracies; an interrupted run can continue from it.

    Raises GraphError if the accuracy is too low even with all layers in f32, for example because `evaluate` is not
    deterministic. Raises InputError for a negative max_drop and for an accuracy that is not a finite number.
    """
    if not max_drop >= 0:
        raise InputError(f"max_drop must not be negative, got {max_drop}")
    search = Search(graph, batches)
    trial = _Measurements(search, evaluate, None if state is None else Path(state), report)
    accuracy_f32, time_f32 = trial.run("f32", lambda: search.graph)
    setting = search.run()
    order = search.ranked(setting)
    excluded = faster = tuple(setting.scheme.exclude)
    accuracy, milliseconds = trial.of(setting, excluded)
    if setting.scheme.between and accuracy_f32 - accuracy > max_drop:
        setting = with_scheme(setting, between=())
        accuracy, milliseconds = trial.of(setting, excluded)
    while accuracy_f32 - accuracy > max_drop:
        if not order:
            raise GraphError(f"accuracy {accuracy:g} with all layers in f32 is more than {max_drop:g} below "
                             f"{accuracy_f32:g}: does `evaluate` return the same for the same model?")
        excluded += (order.pop(0),)
        accuracy, milliseconds = trial.of(setting, excluded)
    for name in excluded[len(faster):-1]:
        fewer = tuple(n for n in excluded if n != name)
        found = trial.of(setting, fewer)
        if accuracy_f32 - found[0] <= max_drop:
            excluded, (accuracy, milliseconds) = fewer, found
    made = search.made(with_scheme(setting, exclude=excluded))
    return Controlled(made, accuracy_f32, accuracy, time_f32, milliseconds, excluded)


class _Measurements:
    """Measured accuracies and times, including those that an earlier run saved."""

    def __init__(self, search: Search, evaluate: Evaluate, path: Path | None,
                 report: Callable[[str], None] | None) -> None:
        self.search, self.evaluate, self.path, self.report = search, evaluate, path, report
        self.known: dict[str, list[float]] = {}
        if path is not None and path.exists():
            try:
                self.known = dict(json.loads(path.read_text()))
            except ValueError as e:
                raise InputError(f"{path} holds no state of quantize_with_accuracy_control: {e}") from None

    def of(self, setting: Setting, excluded: tuple[str, ...]) -> tuple[float, float]:
        """The accuracy, and the milliseconds of a run, of the model with the layers `excluded` in f32."""
        return self.run(f"{setting} | {' '.join(sorted(excluded))}",
                        lambda: self.search.made(with_scheme(setting, exclude=excluded)))

    def run(self, key: str, make: Callable[[], Graph]) -> tuple[float, float]:
        if key not in self.known:
            model = compile(make(), cache="kernels")
            accuracy = float(self.evaluate(model))
            if not np.isfinite(accuracy):
                raise InputError(f"evaluate must return a finite number, got {accuracy}")
            self.known[key] = [accuracy, *run_times([model], self.search.batches[0])]
            if self.path is not None:
                self.path.write_text(json.dumps(self.known, indent=1))
        accuracy, taken = self.known[key]
        if self.report is not None:
            self.report(f"accuracy {accuracy:.5g}, {taken:.2f} ms: {key}")
        return accuracy, taken
