"""Measure the loss of the automatic search's settings on held-out batches (`folds`), and make the settings' graphs."""
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from graphq.base.locks import lazy_property
from graphq.compile import compile
from graphq.errors import InputError
from graphq.ir import Graph
from graphq.model.compiled_graph import CompiledGraph
from graphq.quantization import tuned
from graphq.quantization.bodies import copied
from graphq.quantization.calibrate import Batches, LazyBatches, calibrate_parts, observed
from graphq.quantization.compare import farthest, floats
from graphq.quantization.dynamic import insert_layers, layers
from graphq.quantization.estimate import GOOD, Estimate, Halves, extended, folds, numbered, repeated, scalable
from graphq.quantization.insert import Quantized, held_between, insert, kept, quantized_layer
from graphq.quantization.parametrized import Parametrized
from graphq.quantization.price import Price
from graphq.quantization.products import LinearLayer, name_values, prepared, refuse_integers, values_by_name
from graphq.quantization.ranges import Parameters
from graphq.quantization.scheme import Candidate, Scheme, Setting
from graphq.quantization.selection import resolved
from graphq.quantization.statistics import SIZES, Statistics

Case: TypeAlias = tuple[tuple[int, ...], int]
"""The indices of the batches that a setting's statistics come from, and the index of the batch that gives the loss."""


class Trials:
    """Batches and their `folds`, the results of calibration, and the losses of the settings tried so far.

    Every setting starts from `scheme`; in it, layers that are faster in f32 stay in f32, except for layers that the
    user's scheme, `given`, mentions. `level` is the ISA level that the graph is compiled for.
    """

    def __init__(self, graph: Graph, batches: Batches, scheme: Scheme | None = None) -> None:
        self.graph = prepared(graph)
        refuse_integers(self.graph)
        self.batches = numbered(batches, graph)
        scaled = [str(v.name) for v in self.graph.inputs if scalable(v)]
        self.fixed = tuple(str(v.name) for v in self.graph.inputs if not scalable(v))
        self.data = extended(self.batches, scaled)
        count = len(self.batches)
        self.every = tuple(range(count))
        self.folds = folds(count)
        self.held_out: list[Case] = [(seen, k) for seen, held_out in self.folds for k in held_out]
        """The cases that show the loss on new data."""
        self.compared = list(dict.fromkeys([*self.held_out, *((self.every, k) for _, k in self.held_out)]))
        """The cases on which settings are compared: also these batches with the statistics of all batches."""
        sizes = range(0, count * (1 + len(SIZES)) if scaled else 1, count)
        self.judged = list(dict.fromkeys((part, first + k % count) for first in sizes for part, k in self.compared))
        """The cases that show how reliable a loss is: also smaller and larger copies of these batches."""
        self.given = resolved(self.graph, scheme or Scheme())
        self.of_states = {p.name for p, _ in layers(self.graph, self.given)} if self.given.states else set[str]()
        """The matmuls of LSTM inputs that need 8 bits, because the user wants the LSTMs' states in integers."""
        self.outputs = Parametrized(self.graph, twins=False)
        assert self.outputs.model is not None
        self.level = self.outputs.model.level
        numbers = tuple(dict.fromkeys(k for _, k in (*self.compared, *self.judged)))
        runs = self.outputs.runs(LazyBatches(numbers, self.data.__getitem__), {}, self.given)
        self.wanted = {k: floats(out) for k, out in zip(numbers, runs, strict=True)}
        self.price = Price(self.graph, self.batches[0], self.level)
        slow = [p.name for p in kept(self.graph, self.given) if self.price.faster_in_floats(p) and not self._said(p)]
        self.scheme = replace(self.given, exclude=(*self.given.exclude, *slow))
        self.everything = {p.name: p for p in kept(self.graph, Scheme())}
        self.products = {p.name: p for p in kept(self.graph, self.scheme)}
        if self.products and not any(x.size for want in self.wanted.values() for x in want):
            raise InputError("no held-out batch gives outputs with any elements")
        self.tensors = observed(self.graph)
        parts = tuple(dict.fromkeys([self.every, *(seen for seen, _ in self.folds)]))
        self.statistics: dict[tuple[int, ...], Statistics] = dict(
            zip(parts, calibrate_parts(self.graph, self.batches, parts), strict=True))
        chosen = self.chosen(self.uniform(Candidate("min_max")), self.every)
        wide, weights = ([n for n in names if n in chosen] for names in (self.given.wide, self.given.wide_weights))
        self.given, self.scheme = (replace(s, wide=wide, wide_weights=weights) for s in (self.given, self.scheme))
        self.products = {n: p for n, p in self.products.items() if n in chosen}
        self.losses: dict[Setting, float] = {}
        self.failed: dict[Setting, str] = {}
        """The settings whose graphs could not be made or run, with the reason."""
        self._compared: dict[Setting, dict[Case, float]] = {}
        self.hard: dict[Case, float] = {}
        """The largest loss of any setting on each batch."""
        self._model: tuple[Setting, CompiledGraph] | None = None

    def _said(self, product: LinearLayer) -> bool:
        """Whether the user asks for 16 bits in the layer, limits of its inputs, or integer states of its LSTM."""
        said = {*self.given.wide, *self.given.wide_weights, *dict(self.given.limits), *self.of_states}
        return not said.isdisjoint((product.name, str(product.factors[0].name)))

    @lazy_property
    def twins(self) -> Parametrized:
        """The model with a quantized twin for each f32 layer."""
        return Parametrized(self.graph, twins=True, steps=self.outputs.steps)

    def loss(self, setting: Setting, most: float = np.inf) -> float:
        """The largest 1 - cosine of an output with f32 on `compared`; infinite if the setting has failed.

        Comparisons begin with the batches on which other settings lost most, and end as soon as a loss is above `most`:
        such a loss is a lower bound.
        """
        self.losses[setting] = self._largest(setting, self.compared, most)
        return self.losses[setting]

    def _largest(self, setting: Setting, cases: Sequence[Case], most: float) -> float:
        if setting in self.failed:
            return np.inf
        found = self._compared.setdefault(setting, {})
        largest = max((found[case] for case in cases if case in found), default=0.0)
        for case in sorted((c for c in cases if c not in found), key=lambda c: -self.hard.get(c, 0.0)):
            if largest > most:
                break
            seen, k = case
            found[case] = self.loss_made(setting, [k]) if setting.scheme.states else self.loss_of(
                self.chosen(setting, seen), k, setting.scheme, self.between(setting, seen))
            if setting in self.failed:
                return np.inf
            self.hard[case] = max(self.hard.get(case, 0.0), found[case])
            largest = max(largest, found[case])
        return largest

    def typical(self, setting: Setting) -> float:
        """The geometric mean of a setting's losses on `compared`, each at least GOOD; infinite if one is not known."""
        found = {} if setting in self.failed else self._compared.get(setting, {})
        return float(np.exp(np.mean(np.log([max(GOOD, found.get(case, np.inf)) for case in self.compared]))))

    def estimate(self, setting: Setting) -> Estimate:
        """The loss of the setting on the cases `judged`, and how reliable it is."""
        count = len(self.batches)
        self._largest(setting, self.judged, np.inf)
        found = {(part, k): self._compared[setting][part, k] for part, k in self.judged
                 if any(x.size for x in self.wanted[k])}
        held_out = tuple(found[case] for case in self.held_out if count > 1 and case in found)
        seen = max((x for (part, k), x in found.items() if part == self.every and k < count), default=None)
        sized = max((x for (_, k), x in found.items() if k >= count), default=None)
        return Estimate(held_out, sized, count, self.statistics[self.every].unseen, repeated(self.batches), seen,
                        self.fixed, isinstance(self.batches, Halves))

    def lost(self, k: int, out: np.ndarray | Mapping[str, np.ndarray]) -> float:
        """The largest distance of an output from f32's on batch `k`; 0 if there are no outputs."""
        alike = [outs for n, outs in self.wanted.items() if n // len(self.batches) == k // len(self.batches)]
        return farthest(self.wanted[k], out, alike)

    def loss_of(self, chosen: Mapping[str, Quantized], k: int, scheme: Scheme,
                between: Mapping[str, Parameters] | None = None) -> float:
        """The loss on batch `k` of the model whose layers are quantized as `chosen`."""
        (out,) = self.outputs.runs([self.data[k]], chosen, scheme, between)
        return self.lost(k, out)

    def uniform(self, candidate: Candidate) -> Setting:
        """The setting with this candidate for every tensor."""
        return Setting(tuple((name, candidate) for name in self.tensors), scheme=self.scheme)

    def noise(self, setting: Setting) -> dict[str, float]:
        """The ratio of noise to signal in each layer's result, by name, if only this layer is quantized."""
        sums: dict[str, float] = {}
        for seen, held_out in self.folds:
            batches = LazyBatches(held_out, self.data.__getitem__)
            for name, ratio in self.twins.ratios(batches, self.chosen(setting, seen), setting.scheme).items():
                sums[name] = sums.get(name, 0.0) + ratio
        return sums

    def loss_made(self, setting: Setting, numbers: Iterable[int]) -> float:
        """The largest loss of a setting's graph, made with the statistics of all batches, on the batches `numbers`.

        If the graph cannot be made or run, the setting has `failed` and the loss is infinite.
        """
        try:
            if self._model is None or self._model[0] != setting:
                self._model = None  # keep only one model in memory
                self._model = setting, compile(self.made(setting), cache="kernels")
            model = self._model[1]
            return max(self.lost(k, model(self.data[k])) for k in numbers)
        except Exception as e:  # any error rules out only this setting, and reports show it
            self.failed[setting] = f"{type(e).__name__}: {e}"
            self.losses[setting] = np.inf
            return np.inf

    def possible(self, setting: Setting) -> Setting:
        """The setting. It gets its graph's losses, and has `failed` if the graph cannot be made or run."""
        found = self._compared.setdefault(setting, {})
        for part, k in self.judged:
            if part == self.every and setting not in self.failed:
                found[part, k] = self.loss_made(setting, [k])
        return setting

    def made(self, setting: Setting) -> Graph:
        """The graph, quantized with the statistics of all batches."""
        g, chosen, between = copied(self.graph), self.chosen(setting, self.every), self.between(setting, self.every)
        if setting.scheme.states:
            insert_layers(g, setting.scheme)
        insert(g, chosen, setting.scheme, between)
        name_values(g, values_by_name(self.graph))
        return g

    def chosen(self, setting: Setting, seen: tuple[int, ...]) -> dict[str, Quantized]:
        """How each layer is quantized with the statistics of some batches."""
        scheme, statistics, of = setting.scheme, self.statistics[seen], self._schemes(setting, seen)
        wide = replace(scheme, method="min_max", headroom=tuned.WIDE_HEADROOM)
        found = {n: quantized_layer(self.graph, p, statistics, scheme, (lambda _: wide) if n in scheme.wide else of)
                 for n, p in self.everything.items() if n not in scheme.exclude}
        return {n: q for n, q in found.items() if q is not None}

    def between(self, setting: Setting, seen: tuple[int, ...]) -> dict[str, Parameters]:
        """How values between layers are quantized with the statistics of some batches."""
        return held_between(self.graph, self.statistics[seen], setting.scheme, self._schemes(setting, seen))

    def _schemes(self, setting: Setting, seen: tuple[int, ...]) -> Callable[[str], Scheme]:
        """A function that returns the scheme for the range of a tensor, by its name: the method and margin chosen."""
        choices, unseen = dict(setting.choices), min(tuned.MOST_HEADROOM, self.statistics[seen].unseen)
        schemes = {c: replace(setting.scheme, method=c.method, headroom=unseen**c.margin)
                   for c in set(choices.values())}
        return lambda name: schemes[choices[name]]
