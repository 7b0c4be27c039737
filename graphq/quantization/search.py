"""What the automatic search works with: folds of the batches, and the loss of a setting on batches held out."""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from graphq.base.progress import progress
from graphq.compile import compile
from graphq.errors import InputError
from graphq.ir import Graph
from graphq.quantization.between import quantized_between
from graphq.quantization.calibrate import Batch, Batches, Calibration, checked_batches
from graphq.quantization.compare import distance, floats
from graphq.quantization.estimate import Estimate, Extended, halves
from graphq.quantization.insert import Quantized, insert, insert_dynamic, kept
from graphq.quantization.known import Known, correctable, key_of, shift_biases
from graphq.quantization.parametrised import Parametrised
from graphq.quantization.price import Price
from graphq.quantization.products import name_values, prepared
from graphq.quantization.ranges import Parameters, relative_error
from graphq.quantization.scheme import Candidate, Method, Scheme, Setting, with_scheme
from graphq.quantization.selection import resolved
from graphq.quantization.smooth import divide, smoothing

GOOD = 1e-5
"""The loss of a setting, as 1 - cosine of outputs with f32, at which the search ends."""
TARGET = 0.002
"""The loss of a setting, as 1 - cosine of outputs with f32, above which products get 16 bits."""
TRIED = 12
"""The number of products' operands whose own loss at the outputs is measured."""
RECOVERS, PRICE = 0.25, 3.0
"""16 bits must take away the share RECOVERS of the loss (`Search.pays`).

If they take all the time that 8 bits save beside f32, they must take away that share of the rest PRICE times more.
"""
CAUTION = 0.0005
"""With a single batch, a setting with margins is preferred if its loss is at most this much above the least one: a new
batch that exceeds ranges without margins would lose more."""
MOST_WIDE = 0.5
"""The largest share of products' operands that may get 16 bits. Each such operand repeats the work of its product, so
that with 16 bits for all of them f32 is faster."""
MARGINS = (0.5, 1.0)
"""The margins of ranges that are tried for single tensors (`Candidate`)."""
METHODS: tuple[Method, ...] = ("min_max", "mse", "percentile")
"""How ranges are chosen in the settings that are tried."""
MOST_COMPARED = 8
"""The most batches held out that a fold compares."""
FEW = 8
"""Up to this number of batches, changed copies of them are compared, too. The copies decide about settings only if
there is a single batch; with several they only say how sure the result is."""


class Fold(NamedTuple):
    """The numbers, in `Extended`, of the batches that statistics come from, and of the batches that are compared."""

    seen: tuple[int, ...]
    held_out: tuple[int, ...]


def folds(count: int) -> list[Fold]:
    """The folds of `count` batches. From four on there are two: one holds out the last quarter, the other the first.

    Of two or three batches each is held out in turn; a single batch is compared with itself. Up to FEW batches, changed
    copies of those held out are compared, too.
    """
    every = tuple(range(count))
    if count == 1:
        return [Fold(every, (0, 1))]
    if count <= 3:
        return [Fold(every[:k] + every[k + 1:], (k, count + k)) for k in reversed(every)]
    part = count // 4
    made = [Fold(every[:-part], _few(every[-part:])), Fold(every[part:], _few(every[:part]))]
    return made if count > FEW else [Fold(f.seen, (*f.held_out, *(count + k for k in f.held_out))) for f in made]


def _few(numbers: tuple[int, ...]) -> tuple[int, ...]:
    size = min(len(numbers), MOST_COMPARED)
    return tuple(numbers[int(k)] for k in np.linspace(0, len(numbers) - 1, size))


@dataclass(frozen=True)
class Chosen:
    """The batches of these numbers, each read when it is asked for."""

    batches: Sequence[Batch] | Extended
    numbers: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[Batch]:
        return (self.batches[k] for k in self.numbers)


class Search:
    """The state of a search: batches and their `folds`, what calibration found on them, and the losses so far.

    Every setting tried begins with the bits that `scheme` gives, and leaves in f32 what is faster so. `level` is the
    ISA level that the graph is compiled for.
    """

    def __init__(self, graph: Graph, batches: Batches, scheme: Scheme | None = None) -> None:
        self.graph = prepared(graph)
        self.batches = _numbered(batches, graph)
        self.data = Extended(self.batches)
        self.folds = folds(len(self.batches))
        model = compile(self.graph, cache="kernels")
        self.level = model.level
        self.price = Price(self.graph, self.batches[0], self.level)
        self.scheme = self._without_slow(resolved(self.graph, scheme or Scheme()))
        self.products = {p.name: p for p in kept(self.graph, self.scheme)}
        self.wanted = {k: floats(model(self.data[k])) for fold in self.folds for k in fold.held_out}
        if self.products and not any(x.size for want in self.wanted.values() for x in want):
            raise InputError("no batch that is held out gives outputs with any elements")
        del model  # one compiled model at a time
        self._known = self._calibrated([tuple(range(len(self.batches))), *(fold.seen for fold in self.folds)])
        self.outputs = Parametrised(self.graph, twins=False)
        self._twins: Parametrised | None = None
        self._uses = 0
        self.losses: dict[Setting, float] = {}
        self.compared: dict[Setting, dict[int, float]] = {}

    def _without_slow(self, scheme: Scheme) -> Scheme:
        """The scheme without the products that are `faster_in_floats`; those of which it says anything stay."""
        said = {*scheme.wide, *scheme.wide_weights, *dict(scheme.limits)}
        slow = [p.name for p in kept(self.graph, scheme) if self.price.faster_in_floats(p)
                and said.isdisjoint((p.name, str(p.factors[0].name)))]
        return replace(scheme, exclude=(*scheme.exclude, *slow))

    def _calibrated(self, parts: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], Known]:
        """What calibration finds on each of the given parts of the batches.

        The first part is all batches, so that an error names the batch by its number.
        """
        model, found = Calibration(self.graph, channels=True), {}
        self.tensors = tuple(model.values)
        for seen in dict.fromkeys(parts):
            plain = model.statistics(Chosen(self.batches, seen))
            found[seen] = Known(plain, smoothing(self.graph, plain), plain)
        del model
        if any(known.factors for known in found.values()):
            model = Calibration(self.graph, divided=True)
            for seen, known in found.items():
                if known.factors:
                    known.smoothed = model.statistics(Chosen(self.batches, seen), known.factors)
        return found

    @contextmanager
    def twins(self) -> Iterator[Callable[[], Parametrised]]:
        """Returns a function that gives the model with the quantized form of each product beside the f32 one.

        The model is made at the first call, and dropped when the outermost `with` of this method ends.
        """
        self._uses += 1
        try:
            yield self._made_twins
        finally:
            self._uses -= 1
            if not self._uses:
                self._twins = None

    def _made_twins(self) -> Parametrised:
        if self._twins is None:
            self._twins = Parametrised(self.graph, twins=True, weights=self.outputs.weights)
        return self._twins

    @property
    def ranges(self) -> list[Candidate]:
        """The ways to choose ranges that are tried for all tensors: METHODS; for one batch also extremes with margin.

        A single batch does not tell by how much others exceed it.
        """
        return [*[Candidate("min_max", margin=1.0)] * (len(self.batches) == 1), *map(Candidate, METHODS)]

    def best(self, settings: Sequence[Setting]) -> Setting:
        """The setting of least loss; the first setting if its loss is small enough.

        For a single batch it is the best setting with a margin for every tensor, unless another one loses much less: a
        share RECOVERS, and more than CAUTION.
        """
        first = settings[0]
        if self.loss(first) <= GOOD:
            return first
        least = min(progress(settings, "settings"), key=self.loss)
        cautious = [s for s in settings if all(c.margin for _, c in s.choices)] if len(self.batches) == 1 else []
        wary = min(cautious, key=self.loss, default=least)
        lost = self.loss(wary) - self.loss(least)
        return wary if lost < RECOVERS * self.loss(wary) or lost <= CAUTION else least

    def loss(self, setting: Setting) -> float:
        """The largest 1 - cosine of an output with f32; changed copies count only if there is a single batch."""
        if setting not in self.losses:
            with self.twins():
                self.compared[setting] = {k: x for fold in self.folds
                                          for k, x in zip(fold.held_out, self._losses(setting, fold), strict=False)
                                          if any(want.size for want in self.wanted[k])}
            count = len(self.batches)
            counted = [x for k, x in self.compared[setting].items() if k < count or count == 1]
            self.losses[setting] = max(counted, default=0.0)
        return self.losses[setting]

    def estimate(self, setting: Setting) -> Estimate:
        """How much the setting loses, and how sure that is."""
        self.loss(setting)
        count, found = len(self.batches), self.compared[setting]
        held_out = [x for k, x in found.items() if k < count and count > 1]
        copies = [x for k, x in found.items() if k >= count]
        unseen = self.known(tuple(range(count))).plain.unseen
        return Estimate(tuple(held_out), max(copies, default=None), count, unseen)

    def _losses(self, setting: Setting, fold: Fold) -> list[float]:
        if setting.scheme.mode != "dynamic":
            return self._losses_of(self.chosen(setting, fold.seen), fold, setting.scheme,
                                   self.between(setting, fold.seen))
        model = compile(self.made(setting), cache="kernels")
        return [self._distance(k, floats(model(self.data[k]))) for k in fold.held_out]

    def _losses_of(self, chosen: Mapping[str, Quantized], fold: Fold, scheme: Scheme,
                   between: Mapping[str, Parameters] | None = None) -> list[float]:
        outputs = self.outputs.runs(Chosen(self.data, fold.held_out), chosen, scheme, between)
        return [self._distance(k, floats(out)) for k, out in zip(fold.held_out, outputs, strict=False)]

    def _distance(self, k: int, outputs: Sequence[np.ndarray]) -> float:
        return max(map(distance, self.wanted[k], outputs), default=0.0)

    def uniform(self, candidate: Candidate) -> Setting:
        """The setting with this candidate for every tensor."""
        return Setting(tuple((name, candidate) for name in self.tensors), scheme=self.scheme)

    def local(self) -> Setting:
        """The setting that gives each tensor the candidate that changes the products that read it least.

        A tensor between products that no product reads gets the candidate that most other tensors have.
        """
        ranges = dict.fromkeys([*self.ranges, *(Candidate("min_max", margin=m) for m in MARGINS)])
        tried = [c._replace(smooth=s) for s in (False, True) for c in ranges]
        scores = {name: dict.fromkeys(tried, 0.0) for name in self.tensors}
        with self.twins():
            for candidate in progress(tried, "ranges"):
                noise = self.noise(self.uniform(candidate))
                for name, product in self.products.items():
                    for k in product.activations:
                        scores[str(product.factors[k].name)][candidate] += noise.get(name, 0.0)
        read = {str(x.name) for p in self.products.values() for x in p.factors}
        chosen = {name: min(found, key=lambda c: found[c]) for name, found in scores.items()}
        most = Counter(c._replace(smooth=False) for name, c in chosen.items() if name in read).most_common(1)
        return Setting(tuple((name, c if name in read or not most else most[0][0]) for name, c in chosen.items()),
                       scheme=self.scheme)

    def noise(self, setting: Setting) -> dict[str, float]:
        """For each product, by name, the ratio of noise to signal in its result if it alone is quantized."""
        sums: dict[str, float] = {}
        with self.twins() as twins:
            for fold in self.folds:
                held_out, chosen = Chosen(self.data, fold.held_out), self.chosen(setting, fold.seen)
                for name, d in twins().differences(held_out, chosen, setting.scheme).items():
                    sums[name] = sums.get(name, 0.0) + d.ratio
        return sums

    def widened(self, setting: Setting) -> Setting:
        """The setting with 16 bits for a few operands, those that lose most; unchanged if its loss is small."""
        with self.twins():
            return self._widened(setting)

    def _widened(self, setting: Setting) -> Setting:
        best, few, count = setting, 0, 1
        order = self.costs(setting) if self.loss(best) > TARGET else []
        most = int(np.ceil(MOST_WIDE * len(order)))
        while count <= most:
            tried = wider(setting, order[:count])
            if self.pays(tried, best):
                best = tried
            if self.loss(tried) <= TARGET:
                break
            few, count = count, min(2 * count, most) if count < most else most + 1
        while self.loss(best) <= TARGET and count - few > 1:  # fewer may be enough
            middle = (few + count) // 2
            tried = wider(setting, order[:middle])
            if self.loss(tried) <= TARGET:
                best, count = tried, middle
            else:
                few = middle
        return best

    def between_products(self, setting: Setting, *, all_of_them: bool = False) -> Setting:
        """The setting with all values between products in integers, or a part, if the loss does not grow above GOOD."""
        every, already = tuple(range(len(self.batches))), setting.scheme.between
        most = max(GOOD, self.loss(setting))
        statistics = self.known(every).plain
        values = self.between(with_scheme(setting, between=self.outputs.between), every)
        error = {name: relative_error(statistics[name], p) for name, p in values.items() if name not in already}
        order = sorted(error, key=lambda name: error[name])

        def tried(names: Sequence[str]) -> Setting:
            return with_scheme(setting, between=(*already, *names))

        if not order or all_of_them or self.loss(tried(order)) <= most:
            return tried(order)
        alone = {name: self.loss(tried([name])) for name in progress(order[:TRIED], "values between products")}
        order = [*sorted(alone, key=lambda name: alone[name]), *order[TRIED:]]
        parts = (tried(order[:len(order) * part // 4]) for part in (3, 2, 1))
        return next((s for s in parts if self.loss(s) <= most), setting)

    def exact_where_little(self, setting: Setting) -> Setting:
        """The setting with f32 for the products of little work (`Price.little`), which is faster than 16 bits there."""
        s, given = setting.scheme, {*self.scheme.wide, *self.scheme.wide_weights}
        floats = [n for n in self.price.little(self.products) if n not in given and n not in s.exclude]
        wide = {part: [n for n in getattr(s, part) if n not in floats] for part in ("wide", "wide_weights")}
        return with_scheme(setting, exclude=(*s.exclude, *floats), **wide)

    def pays(self, tried: Setting, setting: Setting, least: float = RECOVERS,
             loss: Callable[[Setting], float] | None = None) -> bool:
        """Whether `tried`, with more operands of 16 bits than `setting`, loses enough less for the time that they add.

        Its loss may be (1 - least) * (1 - RECOVERS)**(PRICE * t) times the other's, where t is the time added
        over the time that 8 bits save beside f32 (`price`). `loss` gives the losses that are compared, by
        default `self.loss`.
        """
        loss = loss or self.loss
        price = self.price
        added = max(0.0, price.repeated(tried) - price.repeated(setting)) / price.saved
        left = (1 - least) * (1 - RECOVERS)**(PRICE * added)
        return loss(tried) <= left * loss(setting)

    def parts(self, name: str) -> list[str]:
        """What of a product can have 16 bits: its activations, and its weights if it has any."""
        return ["wide"] + ["wide_weights"] * (self.products[name].weights is not None)

    def costs(self, setting: Setting) -> list[tuple[str, str]]:
        """The operands of 8 bits, those that lose most first: a product's name, and "wide" or "wide_weights".

        "wide" stands for activations, "wide_weights" for weights. Operands are sorted by noise over signal of the
        product's result. The first TRIED are then sorted by the loss at the outputs if that operand alone has 8 bits.
        """
        everything = tuple(self.products)
        noise: dict[tuple[str, str], float] = {}
        for part, other in (("wide", "wide_weights"), ("wide_weights", "wide")):
            found = self.noise(with_scheme(setting, **{other: everything}))
            noise |= {(n, part): found.get(n, 0.0) for n in everything
                      if part in self.parts(n) and n not in (*getattr(setting.scheme, part), *setting.scheme.exclude)}
        order = sorted(noise, key=lambda key: noise[key], reverse=True)
        losses = {}
        for name, part in progress(order[:TRIED], "factors"):
            exact = with_scheme(setting, **{"wide_weights" if part == "wide" else "wide": (name,)})
            losses[name, part] = float(np.mean([x for fold in self.folds for x in self._losses_of(
                {name: self.chosen(exact, fold.seen)[name]}, fold, exact.scheme)]))
        return [*sorted(losses, key=lambda key: losses[key], reverse=True), *order[TRIED:]]

    def ranked(self, setting: Setting) -> list[str]:
        """The names of the quantized products, those first whose results static quantization changes most."""
        found = self.noise(setting if setting.choices else self.uniform(Candidate("mse")))
        return sorted(found, key=lambda n: found[n], reverse=True)

    def best_made(self, count: int) -> Setting:
        """Of the `count` settings of least loss, the best once they are made with the statistics of all batches.

        They are compared from those of least time on: more operands of 16 bits have to pay.
        """
        least = sorted(sorted(self.losses, key=self.loss)[:count], key=self.price.repeated)
        losses = {s: max(self.loss(s), self._loss_made(s)) for s in progress(least, "settings made")}
        best = least[0]
        for tried in least[1:]:
            best = tried if self.pays(tried, best, 0, losses.__getitem__) else best
        return best

    def _loss_made(self, setting: Setting) -> float:
        model = compile(self.made(setting), cache="kernels")
        return max(self._distance(k, floats(model(self.data[k]))) for k in self.wanted)

    def made(self, setting: Setting) -> Graph:
        """The graph quantized by the statistics of all batches."""
        g = self.graph.copy()
        if setting.scheme.mode == "dynamic":
            insert_dynamic(g, setting.scheme)
        else:
            every = tuple(range(len(self.batches)))
            chosen, between = self.chosen(setting, every), self.between(setting, every)
            shift_biases(g, {name: q.shift for name, q in chosen.items() if q.shift is not None})
            divide(g, {str(self.products[n].factors[0].name): q.factors for n, q in chosen.items()
                       if q.factors is not None})
            insert(g, chosen, setting.scheme, between)
        name_values(g)
        return g

    def chosen(self, setting: Setting, seen: tuple[int, ...]) -> dict[str, Quantized]:
        """How each product is quantized by the statistics of some batches."""
        known, choices = self.known(seen), dict(setting.choices)
        found = {p.name: known.quantized(p, choices, setting.scheme) for p in kept(self.graph, setting.scheme)}
        if setting.correct:
            keys = {n: key_of(p, choices, setting.scheme) for n, p in self.products.items() if n in found}
            new = {n: found[n] for n, key in keys.items() if key not in known.shifts}
            if new:
                with self.twins() as twins:
                    differences = twins().differences(Chosen(self.batches, _few(seen)), new, setting.scheme)
                known.shifts |= {keys[n]: differences[n].shift if n in differences and correctable(
                    self.products[n], differences[n].shift) else None for n in new}
            found = {n: replace(q, shift=known.shifts[keys[n]]) for n, q in found.items()}
        return found

    def between(self, setting: Setting, seen: tuple[int, ...]) -> dict[str, Parameters]:
        """How values between products are quantized by the statistics of some batches."""
        known, choices = self.known(seen), dict(setting.choices)
        return {name: known.parameters(name, choices[name]._replace(smooth=False), setting.scheme)
                for name in quantized_between(self.graph, setting.scheme)}

    def known(self, seen: tuple[int, ...]) -> Known:
        """What is known of the batches of these numbers."""
        if seen not in self._known:
            self._known |= self._calibrated([seen])
        return self._known[seen]


def wider(setting: Setting, factors: Sequence[tuple[str, str]]) -> Setting:
    """The setting with 16 bits for these operands, too, each given as a product's name and "wide" or "wide_weights"."""
    return with_scheme(setting, **{part: (*getattr(setting.scheme, part), *(n for n, p in factors if p == part))
                                   for part in ("wide", "wide_weights")})


def _numbered(batches: Batches, graph: Graph) -> Sequence[Batch]:
    """The batches as a sequence: iterators, and batches that must be cut, become a list. InputError for none."""
    if not isinstance(batches, Sequence) or sum(1 for _ in checked_batches(batches, graph.inputs)) > len(batches):
        batches = list(checked_batches(batches, graph.inputs))
    if not len(batches):
        raise InputError("calibration needs at least one batch, got an empty iterable")
    return halves(batches[0]) if len(batches) == 1 else batches
