"""The best automatic setting: try few settings, compare the model's outputs with f32 on data held out, keep the best.

Cross-validation: statistics come from part of the batches and outputs are compared on all, in turns (`folds`); then the
best setting is made with the statistics of all. What is tried, each step from the best setting so far:

    1. ranges by min-max or by least squared error, channels smoothed (`smooth`) or not; without convolutions, and where
       that loses more than DYNAMIC_FROM, dynamic ranges by rows, which end the search if they are best
    2. biases corrected (`twins`)
    3. percentiles; headroom for data that were not seen
    4. biases and smoothing once more, the other way round
    5. where the loss is still above TARGET: the products that lose most left in f32, while each recovers a good part
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from graphq.compile import compile
from graphq.errors import InputError
from graphq.ir import Graph
from graphq.quantization.calibrate import Batch, Batches, calibrate, checked_batches
from graphq.quantization.compare import floats, loss_of
from graphq.quantization.dynamic import insert_dynamic
from graphq.quantization.insert import insert_static
from graphq.quantization.products import CONVOLUTIONS, name_values, prepared
from graphq.quantization.scheme import Scheme
from graphq.quantization.smooth import smooth
from graphq.quantization.statistics import Statistics
from graphq.quantization.twins import correct_biases, differences

GOOD = 1e-5
"""1 - cosine of outputs with f32 at which the search ends."""
DYNAMIC_FROM = 0.001
"""1 - cosine from which dynamic ranges are tried: they take longer when the model runs."""
CAUTION = 1.15
"""What the loss of settings that clip counts: batches that were not seen are clipped more."""
TARGET = 0.01
"""1 - cosine of outputs with f32 above which products are left in f32."""
MOST_EXCLUDED, CANDIDATES, RECOVERS = 4, 5, 0.25
"""At most so many, each the best of so many that lose most, while that takes away this part of the loss."""
MOST_COMPARED = 16
"""Batches that outputs are compared on."""


Fold: TypeAlias = tuple[int, ...]
"""The numbers of batches."""


@dataclass(frozen=True)
class Setting:
    """A scheme, and what is done to the graph before: channels smoothed, biases corrected."""

    scheme: Scheme = Scheme()
    smooth: bool = False
    correct: bool = False

    def __str__(self) -> str:
        s = self.scheme
        parts = ["dynamic by rows" if s.mode == "dynamic" else s.method.replace("_", "-")]
        parts += [f"headroom {s.headroom:.2f}"] * (s.headroom != 1)
        parts += ["smoothed"] * self.smooth + ["biases corrected"] * self.correct
        return ", ".join(parts + [f"{', '.join(s.exclude)} in f32"] * bool(s.exclude))


@dataclass
class Choice:
    """The quantized graph, its setting, and the loss of each setting tried: the largest 1 - cosine of an output."""

    graph: Graph
    setting: Setting
    losses: dict[Setting, float] = field(default_factory=dict)

    def __str__(self) -> str:
        """A table, a line for each setting in the order in which they were tried; `*` is the best."""
        return "\n".join(f"{'*' if s == self.setting else ' '} {1 - loss:.6f}  {s}" for s, loss in self.losses.items())


def automatic(graph: Graph, batches: Batches, *, progress: Callable[[str], None] | None = None) -> Choice:
    """Quantize by the setting whose outputs are nearest to f32 on data held out; `progress` is told what is tried."""
    work = Search(graph, batches, progress)
    setting = chosen_setting(work)
    setting = work.recovered(setting)
    made = work.made(setting, tuple(range(len(work.batches))))
    made.meta = {**made.meta, "quantization": {"setting": str(setting), "f32": list(setting.scheme.exclude),
                                               "cosine": 1 - work.losses[setting]}}
    return Choice(made, setting, work.losses)


def chosen_setting(work: Search) -> Setting:
    """The best setting with all products quantized."""
    settings = [Setting(Scheme(method=m), smooth=s) for s in (False, True) for m in ("min_max", "mse")]
    setting = work.best(settings)
    if work.loss(setting) > DYNAMIC_FROM and not work.graph.nodes_of(CONVOLUTIONS):
        setting = work.best([setting, Setting(Scheme(method="min_max", mode="dynamic", rows=True))])
        if setting.scheme.mode == "dynamic":
            return setting
    setting = work.best([setting, replace(setting, correct=True)])
    headroom = min(2.0, max(work.statistics(setting.smooth, fold).unseen for fold in work.folds))
    if headroom > 1:
        setting = work.best([setting, _with(setting, method="min_max", headroom=headroom)])
    setting = work.best([setting, _with(setting, method="percentile", headroom=1.0)])
    return work.best([setting, replace(setting, correct=not setting.correct),
                      replace(setting, smooth=not setting.smooth)])


def folds(count: int) -> list[Fold]:
    """All but one of up to three batches; of more, all but the last, and all but the first fourth."""
    every = tuple(range(count))
    if count == 1:
        return [every]
    if count <= 3:
        return [every[:k] + every[k + 1:] for k in reversed(every)]
    part = count // 4
    return [every[:-part], every[part:]]


def _with(setting: Setting, **changes: Any) -> Setting:
    return replace(setting, scheme=replace(setting.scheme, **changes))


class Search:
    """The batches, the `folds` of them that statistics come from in turns, and what was worked out so far."""

    def __init__(self, graph: Graph, batches: Batches, progress: Callable[[str], None] | None = None) -> None:
        self.graph, self.progress = prepared(graph), progress
        self.batches = _numbered(batches)
        count = len(self.batches)
        self.folds = folds(count)
        self.compared = sorted({int(k) for k in np.linspace(0, count - 1, min(count, MOST_COMPARED))})
        model = compile(self.graph)
        self.wanted = [floats(model(self.batches[k])) for k in self.compared]
        self._smoothed: dict[Fold, Graph] = {}
        self._statistics: dict[tuple[bool, Fold], Statistics] = {}
        self.losses: dict[Setting, float] = {}

    def best(self, settings: Sequence[Setting]) -> Setting:
        """The one of least loss; the first, where that is good enough."""
        first = settings[0]
        return first if self.loss(first) <= GOOD else min(settings, key=self._judged)

    def _judged(self, setting: Setting) -> float:
        return self.loss(setting) * (1 if setting.scheme.method == "min_max" else CAUTION)

    def loss(self, setting: Setting) -> float:
        """The largest 1 - cosine of an output with f32, the mean over all folds."""
        if setting not in self.losses:
            if self.progress is not None:
                self.progress(str(setting))
            self.losses[setting] = float(np.mean([self._loss(self.made(setting, fold)) for fold in self.folds]))
        return self.losses[setting]

    def _loss(self, graph: Graph) -> float:
        return loss_of(compile(graph), [self.batches[k] for k in self.compared], self.wanted)

    def recovered(self, setting: Setting) -> Setting:
        """The setting with the products in f32 that lose most, where it loses much."""
        while setting.scheme.mode == "static" and self.loss(setting) > TARGET and \
                 len(setting.scheme.exclude) < MOST_EXCLUDED:
            worst = self.ranked(setting)[:CANDIDATES]
            if len(worst) < 2:
                return setting
            tried = self.best([_with(setting, exclude=(*setting.scheme.exclude, n)) for n in worst])
            if self.loss(tried) > (1 - RECOVERS) * self.loss(setting):
                return setting
            setting = tried
        return setting

    def ranked(self, setting: Setting) -> list[str]:
        """The names of the quantized products, those first whose results static quantization changes most."""
        setting = _with(setting, mode="static", rows=False)
        fold = self.folds[0]
        g, s = self.source(setting.smooth, fold), self.statistics(setting.smooth, fold)
        found = differences(g, self.parts(fold), s, setting.scheme)
        return sorted(found, key=lambda n: found[n].ratio, reverse=True)

    def made(self, setting: Setting, part: Fold) -> Graph:
        """The graph quantized by the statistics of a part of the batches."""
        g = self.source(setting.smooth, part).copy()
        if setting.scheme.mode == "dynamic":
            insert_dynamic(g, setting.scheme)
            name_values(g)
            return g
        statistics = self.statistics(setting.smooth, part)
        if setting.correct:
            correct_biases(g, differences(g, self.parts(part), statistics, setting.scheme))
        insert_static(g, statistics, setting.scheme)
        name_values(g)
        return g

    def source(self, smoothed: bool, part: Fold) -> Graph:
        """The f32 graph, smoothed or not."""
        if not smoothed:
            return self.graph
        if part not in self._smoothed:
            self._smoothed[part] = self.graph.copy()
            smooth(self._smoothed[part], self.statistics(False, part))
        return self._smoothed[part]

    def statistics(self, smoothed: bool, part: Fold) -> Statistics:
        """Of the f32 graph, smoothed or not."""
        key = smoothed, part
        if key not in self._statistics:
            self._statistics[key] = calibrate(self.source(smoothed, part), self.parts(part), channels=True)
        return self._statistics[key]

    def parts(self, part: Fold) -> Iterator[Batch]:
        """The batches of a part."""
        return (self.batches[k] for k in part)


def _numbered(batches: Batches) -> Sequence[Batch]:
    """The batches by number: a sequence as it is, anything else read into a list; raises InputError without any."""
    if isinstance(batches, Sequence):
        for _ in checked_batches(batches[:1]):
            pass
    else:
        batches = list(checked_batches(batches))
    if not len(batches):
        raise InputError("calibration needs at least one batch, got an empty iterable")
    return batches
