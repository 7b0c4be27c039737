"""The automatic search for the best setting; `Trials` measures the loss of settings.

The search cross-validates: statistics come from a part of the batches, and settings are compared on the other batches
(`trials.folds`). The best setting then gets the statistics of all batches. One compiled model computes all settings
(parametrized.py). A `Candidate` is a method that chooses a tensor's range, perhaps after a division of the tensor's
channels (smooth.py). The loss of a setting is the largest 1 - cosine of its outputs with f32. The steps:

    0. leave in f32 the depthwise convolutions that are faster in f32 (`price`)
    1. for each tensor, with everything else in f32, find the candidate with which the layers that read the tensor
       change least; with few batches, take the widest range that is hardly worse
    2. compare this setting with settings of one candidate for all tensors; if the best setting loses too much (see
       `Search.excess`), try each setting also with f32 for layers of little work; in any case, then try to correct
       biases
    3. if the best setting still loses too much and there are no convolutions, try dynamic ranges per token
    4. if it still loses too much, give 16 bits (as two times 8) to the layers that cause most loss for their time; a
       layer gets f32 instead if f32 is faster
    5. if the loss is still above MADE_FROM, quantize the graph with each of the best settings (MADE of them), and
       compare these graphs: small errors grow in such a network, and comparisons on few batches say little
    6. if the loss is not small yet, try f32 again for layers of little work
    7. quantize values between layers as well, to save time: as many as leave the loss unchanged or small
    8. quantize states of LSTMs as well, if that makes the loss at most a third larger, or if the loss is then small
    9. for x86 CPUs without VNNI, use 7-bit weights if the loss stays within TARGET; they are faster there (`automatic`)
"""
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import numpy as np

from graphq.base.locks import lazy_property
from graphq.base.progress import job_part, progress
from graphq.dtypes import u8
from graphq.quantization.dynamic import layers
from graphq.quantization.products import CONVOLUTIONS
from graphq.quantization.ranges import relative_error
from graphq.quantization.scheme import Candidate, Method, Preset, Setting, wider, with_scheme
from graphq.quantization.trials import Trials

GOOD = 5e-5
"""The search ends at this loss (1 - cosine of outputs with f32), regardless of the loss of plain methods.

Normally distributed outputs lose this much if they are rounded once to 8 bits: with 9 standard deviations in 255 steps
the squared error is (9 / 255)**2 / 12 = 1e-4 of their variance, and 1 - cosine half of that.
"""
TARGET = 0.002
"""Above this loss, as 1 - cosine of outputs with f32, layers get 16 bits (`Search.excess`)."""
TRIED = 12
"""The number of layers' operands that are quantized one by one, to measure the loss that each causes."""
RECOVERS, PRICE = 0.25, 3.0
"""16 bits must reduce the loss by the share RECOVERS, and more if they take much time (`Search.pays`).

If they take as much time as 8 bits save, the loss that is left must fall by this share another PRICE times.
"""
CAUTION = 0.0005
"""With a single batch, a setting with margins is preferred if its loss is at most this much above the least: a new
batch may exceed ranges without margins, and then loses more."""
MOST_WIDE = 0.5
"""The largest share of layers' operands that may get 16 bits. Each such operand repeats the work of its layer, so
16 bits for all operands would be slower than f32."""
LITTLE_LOSS = TARGET / 10
"""A loss that does not matter compared with the time that integer states of LSTMs save."""
STATE_ROWS = 8
"""The largest number of rows for which states of LSTMs are quantized. One thread computes quantized states, because
all rows share a range in each step; several threads compute states in f32."""
MARGINS = (0.5, 1.0)
"""The margins of ranges that are tried for single tensors (`Candidate`)."""
PART = 0.5
"""A loss is small enough (`Search.allowed`) if it is at most this share of the loss of plain methods."""
PLAIN: tuple[Method, ...] = ("min_max", "percentile")
"""The methods that count as plain (`Search.allowed`)."""
METHODS: tuple[Method, ...] = ("min_max", "mse", "percentile")
"""The methods for ranges in the settings that are tried."""
MADE_FROM, MADE = 0.005, 4
"""If the loss, as 1 - cosine, is above MADE_FROM, the graphs of the MADE best settings are made and compared."""
TWINS = 3
"""A run in which each layer also runs quantized takes about TWINS times as long (a guess for the progress bar)."""


class Search(Trials):
    """The steps of a search; each step finds a setting of less loss or less time."""

    @lazy_property
    def seconds(self) -> Mapping[str, float]:
        """Estimates of the seconds that each step takes, in order; a step that is often left out counts a quarter."""
        trial = len(self.held_out) * self.running
        noise, tried = TWINS * trial, len(self.ranges)
        return {"ranges": 2 * self.compiling + (tried + 2 * len(MARGINS)) * noise, "settings": (tried + 3) * trial,
                "16 bits": (2 * noise + TRIED * self.running + 4 * trial) / 4,
                "graphs": MADE * (self.compiling + trial) / 4, "between layers": 4 * trial,
                "graph": self.compiling, "estimate": len(self.judged) * self.running, "speed": 2 * self.compiling}

    def step(self, name: str) -> AbstractContextManager[None]:
        """The part of the progress bar for a step (a key of `seconds`)."""
        left = [*self.seconds.values()][[*self.seconds].index(name):]
        return job_part(name, left[0] / sum(left))

    def run(self, preset: Preset = "mixed") -> Setting:
        """The best setting that the `preset` allows (`Scheme`) and whose graph can be made.

        Layers stay in f32 if the scheme excludes them, if they are faster in f32, or if f32 reduces the loss and costs
        little time.
        """
        setting = self._searched(preset)
        with self.step("graph"):
            return self.possible(setting)

    def _searched(self, preset: Preset) -> Setting:
        with self.step("ranges"):
            settings = [*map(self.uniform, self.ranges), self.local()]
        wide = preset != "performance"
        with self.step("settings"):
            setting = self.best(settings)
            if wide and self.excess(setting, 1) > 1:
                little = self.best([*map(self.exact_where_little, settings)])
                setting = little if self.pays(little, setting, 0) else setting
            setting = self.best([setting, replace(setting, correct=True)])
            chosen = self.scheme.wide or self.scheme.wide_weights or self.scheme.limits
            by_rows = []
            if self.excess(setting, 1) > 1 and not chosen and not self.graph.nodes_of(CONVOLUTIONS):
                by_rows = [Setting(scheme=replace(self.scheme, mode="dynamic", rows=True, activations=u8,
                                                  symmetric=False, states=False))]
            setting = next((s for s in by_rows if self.excess(s, 1) <= 1), setting)
        with self.step("16 bits"):
            setting = self.best([self.widened(setting) if wide else setting, *by_rows])
        with self.step("graphs"):
            setting = self.best_made(MADE) if self.loss(setting, MADE_FROM) > MADE_FROM else setting
            if wide and self.loss(setting, GOOD) > GOOD:
                little = self.exact_where_little(setting)  # a second time, because the setting has changed
                setting = little if self.pays(little, setting, 0) else setting
        if preset == "accuracy" or setting.scheme.mode != "static":
            return setting
        with self.step("between layers"):
            setting = self.between_products(setting, all_of_them=preset == "performance")
            return self.with_states(setting, always=preset == "performance")

    @lazy_property
    def allowed(self) -> float:
        """The largest loss allowed on batches that statistics cover: PART of the least loss of PLAIN methods."""
        everything = replace(self.given, between=self.outputs.between)
        plain = (replace(self.uniform(Candidate(m)), scheme=everything) for m in PLAIN)
        return max(GOOD, PART * min(map(self.seen, plain)))

    def excess(self, setting: Setting, most: float = np.inf) -> float:
        """The larger of two ratios: the loss on held-out batches over TARGET, and on seen batches over `allowed`.

        A result above `most` may be too low, because measuring stops there.
        """
        found = self.loss(setting, most * TARGET) / TARGET
        return found if found > most else max(found, self.seen(setting, most * self.allowed) / self.allowed)

    @property
    def ranges(self) -> list[Candidate]:
        """The candidates that are tried for all tensors: METHODS, and min_max with divided channels (smooth.py).

        With one batch, min_max is also tried with a margin, because new batches may exceed this batch.
        """
        margins = (1.0, 0.0) if len(self.batches) == 1 else (0.0,)
        extremes = [[Candidate("min_max", smooth, m) for m in margins] for smooth in (False, True)]
        return [*extremes[0], *map(Candidate, METHODS[1:]), *extremes[1]]

    def best(self, settings: Sequence[Setting]) -> Setting:
        """The setting of least loss; the first setting if its loss is small enough.

        With a single batch, a setting without margins is chosen only if it loses much less than the best setting with a
        margin for every tensor: by a share RECOVERS, and by more than CAUTION.
        """
        first = settings[0]
        if self.loss(first) <= GOOD:
            return first
        least = first
        for s in progress(settings[1:], "settings"):
            least = s if self.loss(s, self.loss(least)) < self.loss(least) else least
        cautious = [s for s in settings if all(c.margin for _, c in s.choices)] if len(self.batches) == 1 else []
        wary = min(cautious, key=self.loss, default=least)
        lost = self.loss(wary) - self.loss(least)
        return wary if lost < RECOVERS * self.loss(wary) or lost <= CAUTION else least

    def local(self) -> Setting:
        """The setting with each tensor's best candidate: the layers that read the tensor then change least.

        `cautious` picks the candidate if there are few batches. A tensor between layers that no layer reads gets the
        most common candidate of the other tensors.
        """
        margins = (Candidate("min_max", smooth, m) for smooth in (False, True) for m in MARGINS)
        tried = [*dict.fromkeys([*self.ranges, *margins])]
        scores = {name: dict.fromkeys(tried, 0.0) for name in self.tensors}
        for candidate in progress(tried, "ranges"):
            noise = self.noise(self.uniform(candidate))
            for name, product in self.products.items():
                for k in product.activations:
                    scores[str(product.factors[k].name)][candidate] += noise.get(name, 0.0)
        read = {str(x.name) for p in self.products.values() for x in p.factors}
        careful = any(fold.copies for fold in self.folds)
        chosen = {n: cautious(x) if careful else min(x, key=x.__getitem__) for n, x in scores.items()}
        most = Counter(c._replace(smooth=False) for name, c in chosen.items() if name in read).most_common(1)
        return Setting(tuple((name, c if name in read or not most else most[0][0]) for name, c in chosen.items()),
                       scheme=self.scheme)

    def widened(self, setting: Setting) -> Setting:
        """Give 16 bits or f32 to the operands that lose most for their time; a setting of small loss is unchanged."""
        best, few, count = setting, 0, 1
        order = self.costs(setting) if self.excess(best) > 1 else []
        most = int(np.ceil(MOST_WIDE * len(order)))
        while count <= most:
            tried = self.exact(setting, order[:count])
            if self.pays(tried, best):
                best = tried
            if self.excess(tried, 1) <= 1:
                break
            few, count = count, min(2 * count, most) if count < most else most + 1
        while self.excess(best, 1) <= 1 and count - few > 1:  # fewer operands may be enough
            middle = (few + count) // 2
            tried = self.exact(setting, order[:middle])
            if self.excess(tried, 1) <= 1:
                best, count = tried, middle
            else:
                few = middle
        return best

    def between_products(self, setting: Setting, *, all_of_them: bool = False) -> Setting:
        """The setting with all or some values between layers in integers, if the loss then does not grow.

        The loss may grow to GOOD in any case, and to `allowed` on the batches that statistics cover.
        """
        already = setting.scheme.between
        most, most_seen = max(GOOD, self.loss(setting)), max(self.allowed, self.seen(setting))
        statistics = self.known[self.every].plain
        values = self.between(with_scheme(setting, between=self.outputs.between), self.every)
        error = {name: relative_error(statistics[name], p) for name, p in values.items() if name not in already}
        order = sorted(error, key=lambda name: error[name])

        def tried(names: Sequence[str]) -> Setting:
            return with_scheme(setting, between=(*already, *names))

        if not order or all_of_them:
            return tried(order)
        parts = (tried(order[:len(order) * part // 4]) for part in (4, 3, 2, 1))
        return next((s for s in parts if self.loss(s, most) <= most and self.seen(s, most_seen) <= most_seen),
                    setting)

    def with_states(self, setting: Setting, *, always: bool = False) -> Setting:
        """The setting with LSTM states in integers, if the loss then grows at most by a third, or if `always`.

        A loss up to LITTLE_LOSS is accepted in any case. The result is `setting` itself if a batch has more than
        STATE_ROWS rows.
        """
        rows = {p.name: p.node.output.type.dims[-2] for p in self.price.sized}
        found = [rows.get(p.name, STATE_ROWS + 1) for p, _ in layers(self.graph, setting.scheme)]
        if setting.scheme.states or not found or max(found) > STATE_ROWS:
            return setting
        tried = with_scheme(setting, states=True)
        self.loss(tried)
        most = max(LITTLE_LOSS, self.loss_made(setting) / (1 - RECOVERS))
        return tried if always or self.loss_made(tried) <= most else setting

    def exact_where_little(self, setting: Setting) -> Setting:
        """The setting with f32 for the layers of little work (`Price.little`)."""
        return self.in_floats(setting, self.price.little(self.products))

    def exact(self, setting: Setting, factors: Sequence[tuple[str, str]]) -> Setting:
        """The setting with 16 bits for these operands as well, or with f32 for layers that are faster in f32."""
        made = wider(setting, factors)
        operands = Counter((*made.scheme.wide, *made.scheme.wide_weights))
        return self.in_floats(made, self.price.faster_exact(operands))

    def in_floats(self, setting: Setting, names: Sequence[str]) -> Setting:
        """The setting with f32 for these layers, except for layers that the user's scheme mentions."""
        s = setting.scheme
        floats = [n for n in names if n not in s.exclude and not self._said(self.products[n])]
        wide = {part: [n for n in getattr(s, part) if n not in floats] for part in ("wide", "wide_weights")}
        return with_scheme(setting, exclude=(*s.exclude, *floats), **wide)

    def pays(self, tried: Setting, setting: Setting, least: float = RECOVERS,
             loss: Callable[[Setting, float], float] | None = None) -> bool:
        """Whether `tried`, with more 16-bit operands than `setting`, loses enough less for its additional time.

        The loss of `tried` may be (1 - least) * (1 - RECOVERS)**(PRICE * t) times the loss of `setting`. t is the added
        time divided by the time that 8 bits save compared with f32 (`price`). `loss` computes losses, by default
        `self.excess`; it may stop as soon as the loss is above its second argument.
        """
        loss = loss or self.excess
        price = self.price
        added = max(0.0, price.time(tried) - price.time(setting)) / price.saved
        most = (1 - least) * (1 - RECOVERS)**(PRICE * added) * loss(setting, np.inf)
        return loss(tried, most) <= most

    def costs(self, setting: Setting) -> list[tuple[str, str]]:
        """The 8-bit operands in order of loss, the largest first, each as a layer's name and "wide" or "wide_weights".

        "wide" is for activations, "wide_weights" for weights. Operands are first sorted by noise over signal in the
        layer's result; an unknown ratio comes first. The operands with unknown ratio and the first TRIED others are
        then sorted again, by the loss if only the operand has 8 bits, divided by the time that makes it exact.
        """
        everything = tuple(self.products)
        noise: dict[tuple[str, str], float] = {}
        for part, other in (("wide", "wide_weights"), ("wide_weights", "wide")):
            found = self.noise(with_scheme(setting, **{other: everything}))
            done = {*getattr(setting.scheme, part), *setting.scheme.exclude, *self.of_states}
            noise |= {(n, part): found.get(n, np.inf) for n, p in self.products.items()
                      if n not in done and (part == "wide" or p.weights is not None)}
        order = sorted(noise, key=lambda key: noise[key], reverse=True)
        tried, losses = TRIED + list(noise.values()).count(np.inf), {}
        for name, part in progress(order[:tried], "operands"):
            exact = with_scheme(setting, **{"wide_weights" if part == "wide" else "wide": (name,)})
            seen, k = max(self.held_out, key=lambda case: self.hard.get(case, 0.0))
            losses[name, part] = self.loss_of({n: q for n, q in self.chosen(exact, seen).items() if n == name}, k,
                                               exact.scheme)
        return [*sorted(losses, key=lambda key: losses[key] / self.price.exact(key[0]), reverse=True), *order[tried:]]

    def ranked(self, setting: Setting) -> list[str]:
        """The names of the quantized layers, from the most to the least changed results; unknown changes come last."""
        found = self.noise(setting if setting.choices else self.uniform(Candidate("mse")))
        names = [n for n in self.products if n not in setting.scheme.exclude]
        return sorted(names, key=lambda n: found.get(n, -np.inf), reverse=True)

    def best_made(self, count: int) -> Setting:
        """The best of the `count` settings of least loss, measured again on graphs with the statistics of all batches.

        The settings are compared in order of their time: a slower setting must reduce the loss enough (`pays`).
        """
        least = sorted(sorted(self.losses, key=self.losses.__getitem__)[:count], key=self.price.time)
        losses = {s: max(self.loss(s), self.loss_made(s)) for s in progress(least, "settings made")}
        best = least[0]
        for tried in least[1:]:
            best = tried if self.pays(tried, best, 0, lambda s, _: losses[s]) else best
        return best


def cautious(noise: Mapping[Candidate, float]) -> Candidate:
    """The candidate of widest range among the candidates whose noise is hardly above the least noise (RECOVERS).

    New data may exceed a few batches, and too narrow ranges lose more than too wide ranges.
    """
    near = [c for c, x in noise.items() if (1 - RECOVERS) * x <= min(noise.values())]
    return max(near, key=lambda c: (c.margin, c.method == "min_max", -noise[c]))
