"""Measure the time of a quantized model on this machine, compared with f32."""
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from graphq.compile import compile
from graphq.ir import Graph, counted
from graphq.kernels.threads.team import run_until_settled
from graphq.model.compiled_graph import CompiledGraph
from graphq.quantization import tuned
from graphq.quantization.calibrate import Batch, Batches, checked_batches

TURNS, SECONDS = 5, 0.3
"""All models run at least TURNS times, and for at least SECONDS in total."""


@dataclass(frozen=True)
class Speed:
    """The milliseconds of a run of the quantized model and of the f32 model, each the median of several runs.

    `level` is the ISA level of both models, `threads` the largest number of threads that a run uses.
    """

    milliseconds: float
    milliseconds_f32: float
    level: str
    threads: int

    @property
    def ratio(self) -> float:
        """The speedup: the time of f32 over the time of the quantized model."""
        return self.milliseconds_f32 / self.milliseconds

    @property
    def pays(self) -> bool:
        """Whether the quantized model is faster than f32 by more than chance."""
        return self.ratio >= tuned.EQUAL

    def json(self) -> dict[str, Any]:
        """The numbers for a report."""
        return {**asdict(self), "ratio": self.ratio, "pays": self.pays}

    def __str__(self) -> str:
        """One line: the times and the speedup, and whether int8 pays on this machine."""
        times = f"{self.milliseconds:.3g} ms per run, f32 {self.milliseconds_f32:.3g} ms"
        where = f"on this machine ({self.level}, {counted(self.threads, 'thread')})"
        if self.pays:
            return f"{times}: speedup {self.ratio:.2f} {where}"
        return f"{times}: int8 does not pay {where}, speedup {self.ratio:.2f}"


def speed(quantized: Graph, graph: Graph, batches: Batches) -> Speed:
    """Time a quantized graph and the f32 graph on the first batch.

    Both graphs take the inputs of the batch, a dict of arrays. Both compiled models are in memory at the same time,
    because they run alternately. Raises InputError if there is no batch, or if the batch does not fit the inputs.
    """
    batch = next(iter(checked_batches(batches, graph)))
    models = [compile(g, cache="kernels") for g in (quantized, graph)]
    (made, plain), model = run_times(models, batch), models[0]
    return Speed(made, plain, model.level.name, model.threads)


def run_times(models: Sequence[CompiledGraph], batch: Batch) -> list[float]:
    """The median milliseconds of a run of each model; the models run alternately."""
    for model in models:
        run_until_settled(partial(model, batch))
    times: list[list[float]] = [[] for _ in models]
    end = time.perf_counter() + SECONDS
    while len(times[0]) < TURNS or time.perf_counter() < end:
        for model, found in zip(models, times, strict=True):
            begin = time.perf_counter()
            model(batch)
            found.append(1e3 * (time.perf_counter() - begin))
    return [float(np.median(found)) for found in times]
