"""The automatic search for the best setting. `Search.run` has its steps, tuned.py its numbers.

The search cross-validates: statistics come from a part of the batches, and settings are compared on the other batches
(`trials.folds`). The best setting then gets the statistics of all batches. One compiled model computes all settings
(parametrized.py). A `Candidate` is a method that chooses a tensor's range, perhaps after a division of the tensor's
channels (smooth.py). The loss of a setting is the largest 1 - cosine of its outputs with f32.
"""
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import numpy as np

from graphq.base.locks import lazy_property
from graphq.base.progress import job_part, progress
from graphq.quantization import tuned
from graphq.quantization.ranges import relative_error
from graphq.quantization.scheme import Candidate, Method, Preset, Setting, wider, with_scheme
from graphq.quantization.trials import Trials

PLAIN: tuple[Method, ...] = ("min_max", "percentile")
"""The methods that count as plain (`Search.allowed`)."""


class Search(Trials):
    """The steps of a search; each step finds a setting of less loss or less time."""

    def run(self, preset: Preset = "mixed") -> Setting:
        """The best setting that the `preset` allows (`Scheme`) and whose graph can be made.

        Layers start in f32 if the scheme excludes them, or if they are depthwise convolutions that are faster in f32
        (`Price`). A setting loses too much if its `excess` is above 1. 7-bit weights are tried last, by `automatic`.
        """
        wide = preset != "performance"
        with self.step("ranges"):  # settings of one candidate for all tensors, and of the best candidate for each
            settings = [*map(self.uniform, self.ranges), self.local()]
        with self.step("settings"):  # the best of them; if it loses too much, with f32 for layers of little work
            setting = self.best(settings)
            if wide and self.excess(setting, 1) > 1:
                little = self.best([*map(self.exact_where_little, settings)])
                setting = little if self.pays(little, setting, 0) else setting
            setting = self.best([setting, replace(setting, correct=True)])
        with self.step("16 bits"):  # if the loss is still too large, 16 bits for the layers that cause most of it
            setting = self.widened(setting) if wide else setting
        if preset != "accuracy":
            with self.step("between layers"):  # save time: integers between layers
                setting = self.between_products(setting, all_of_them=not wide)
        with self.step("graph"):
            return self.possible(setting)

    @property
    def ranges(self) -> list[Candidate]:
        """The candidates that are tried for all tensors: three methods, and min_max with divided channels (smooth.py).

        With one batch, min_max is also tried with a margin, because new batches may exceed this batch.
        """
        margins = (1.0, 0.0) if len(self.batches) == 1 else (0.0,)
        plain, smooth = ([Candidate("min_max", smooth, m) for m in margins] for smooth in (False, True))
        return [*plain, Candidate("mse"), Candidate("percentile"), *smooth]

    def local(self) -> Setting:
        """The setting with each tensor's best candidate: the layers that read the tensor then change least.

        `cautious` picks the candidate if there are few batches. A tensor between layers that no layer reads gets the
        most common candidate of the other tensors.
        """
        margins = (Candidate("min_max", smooth, m) for smooth in (False, True) for m in tuned.MARGINS)
        tried = [*dict.fromkeys([*self.ranges, *margins])]
        scores = {name: dict.fromkeys(tried, 0.0) for name in self.tensors}
        for candidate in progress(tried, "ranges"):
            noise = self.noise(self.uniform(candidate))
            for name, product in self.products.items():
                for source in product.sources:
                    scores[source][candidate] += noise.get(name, 0.0)
        read = {source for p in self.products.values() for source in p.sources}
        careful = len(self.batches) < tuned.FEW
        chosen = {n: cautious(x) if careful else min(x, key=x.__getitem__) for n, x in scores.items()}
        most = Counter(c._replace(smooth=False) for name, c in chosen.items() if name in read).most_common(1)
        return Setting(tuple((name, c if name in read or not most else most[0][0]) for name, c in chosen.items()),
                       scheme=self.scheme)

    def best(self, settings: Sequence[Setting]) -> Setting:
        """The setting of least loss; the first setting if its loss is small enough.

        With a single batch, a setting without margins is chosen only if it loses much less than the best setting with a
        margin for every tensor: by a share RECOVERS, and by more than CAUTION.
        """
        first = settings[0]
        if self.loss(first) <= tuned.GOOD:
            return first
        least = first
        for s in progress(settings[1:], "settings"):
            least = s if self.loss(s, self.loss(least)) < self.loss(least) else least
        cautious = [s for s in settings if all(c.margin for _, c in s.choices)] if len(self.batches) == 1 else []
        wary = min(cautious, key=self.loss, default=least)
        lost = self.loss(wary) - self.loss(least)
        return wary if lost < tuned.RECOVERS * self.loss(wary) or lost <= tuned.CAUTION else least

    def exact_where_little(self, setting: Setting) -> Setting:
        """The setting with f32 for the layers of little work (`Price.little`)."""
        return self.in_floats(setting, self.price.little(self.products))

    def widened(self, setting: Setting) -> Setting:
        """Give 16 bits or f32 to the operands that lose most for their time; a setting of small loss is unchanged.

        The number of operands doubles until the loss is small enough, and a larger number is taken only if it `pays`.
        Bisection then finds fewer operands that are enough.
        """
        best, few, count = setting, 0, 1
        order = self.costs(setting) if self.excess(best) > 1 else []
        most = int(np.ceil(tuned.MOST_WIDE * len(order)))
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
        tried, losses = tuned.TRIED + list(noise.values()).count(np.inf), {}
        for name, part in progress(order[:tried], "operands"):
            exact = with_scheme(setting, **{"wide_weights" if part == "wide" else "wide": (name,)})
            seen, k = max(self.held_out, key=lambda case: self.hard.get(case, 0.0))
            losses[name, part] = self.loss_of({n: q for n, q in self.chosen(exact, seen).items() if n == name}, k,
                                               exact.scheme)
        return [*sorted(losses, key=lambda key: losses[key] / self.price.exact(key[0]), reverse=True), *order[tried:]]

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

    def between_products(self, setting: Setting, *, all_of_them: bool = False) -> Setting:
        """The setting with all or some values between layers in integers, if the loss then does not grow.

        All values are tried, then the three quarters, the half and the quarter that change least. The loss may grow to
        GOOD in any case, and to `allowed` on the batches that statistics cover.
        """
        already = setting.scheme.between
        most, most_seen = max(tuned.GOOD, self.loss(setting)), max(self.allowed, self.seen(setting))
        statistics = self.known[self.every].plain
        values = self.between(with_scheme(setting, between=self.outputs.between), self.every)
        error = {name: relative_error(statistics[name], p) for name, p in values.items() if name not in already}
        order = sorted(error, key=lambda name: error[name])

        def tried(names: Sequence[str]) -> Setting:
            return with_scheme(setting, between=(*already, *names))

        if all_of_them:
            return tried(order)
        parts = (tried(order[:len(order) * part // 4]) for part in (4, 3, 2, 1))
        return next((s for s in parts if self.loss(s, most) <= most and self.seen(s, most_seen) <= most_seen),
                    setting)

    def excess(self, setting: Setting, most: float = np.inf) -> float:
        """The larger of two ratios: the loss on held-out batches over TARGET, and on seen batches over `allowed`.

        A result above `most` may be too low, because measuring stops there.
        """
        found = self.loss(setting, most * tuned.TARGET) / tuned.TARGET
        return found if found > most else max(found, self.seen(setting, most * self.allowed) / self.allowed)

    @lazy_property
    def allowed(self) -> float:
        """The largest loss allowed on batches that statistics cover: PART of the least loss of PLAIN methods."""
        everything = replace(self.given, between=self.outputs.between)
        plain = (replace(self.uniform(Candidate(m)), scheme=everything) for m in PLAIN)
        return max(tuned.GOOD, tuned.PART * min(map(self.seen, plain)))

    def pays(self, tried: Setting, setting: Setting, least: float = tuned.RECOVERS) -> bool:
        """Whether `tried`, with more 16-bit operands than `setting`, loses enough less for its additional time.

        The loss of `tried` may be (1 - least) * (1 - RECOVERS)**(PRICE * t) times the loss of `setting`. t is the added
        time divided by the time that 8 bits save compared with f32 (`price`).
        """
        price = self.price
        added = max(0.0, price.time(tried) - price.time(setting)) / price.saved
        most = (1 - least) * (1 - tuned.RECOVERS)**(tuned.PRICE * added) * self.excess(setting)
        return self.excess(tried, most) <= most

    def ranked(self, setting: Setting) -> list[str]:
        """The names of the quantized layers, from the most to the least changed results; unknown changes come last."""
        found = self.noise(setting)
        names = [n for n in self.products if n not in setting.scheme.exclude]
        return sorted(names, key=lambda n: found.get(n, -np.inf), reverse=True)

    @lazy_property
    def seconds(self) -> Mapping[str, float]:
        """Estimates of the seconds that each step takes, in order; a step that is often left out counts a quarter."""
        trial = len(self.held_out) * self.running
        noise, tried = tuned.TWINS * trial, len(self.ranges)
        return {"ranges": 2 * self.compiling + (tried + 2 * len(tuned.MARGINS)) * noise,
                "settings": (tried + 3) * trial,
                "16 bits": (2 * noise + tuned.TRIED * self.running + 4 * trial) / 4,
                "between layers": 4 * trial, "graph": self.compiling, "estimate": len(self.judged) * self.running,
                "speed": 2 * self.compiling}

    def step(self, name: str) -> AbstractContextManager[None]:
        """The part of the progress bar for a step (a key of `seconds`)."""
        left = [*self.seconds.values()][[*self.seconds].index(name):]
        return job_part(name, left[0] / sum(left))


def cautious(noise: Mapping[Candidate, float]) -> Candidate:
    """The candidate of widest range among the candidates whose noise is hardly above the least noise (RECOVERS).

    New data may exceed a few batches, and too narrow ranges lose more than too wide ranges.
    """
    near = [c for c, x in noise.items() if (1 - tuned.RECOVERS) * x <= min(noise.values())]
    return max(near, key=lambda c: (c.margin, c.method == "min_max", -noise[c]))
