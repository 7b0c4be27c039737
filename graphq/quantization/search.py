"""The automatic search: the frontier of loss over time, and the choice of one of its points."""
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, Context, Decimal
from typing import NamedTuple

import numpy as np

from graphq.base.progress import progress
from graphq.errors import GraphError
from graphq.quantization import tuned
from graphq.quantization.between import quantized_between
from graphq.quantization.estimate import GOOD
from graphq.quantization.scheme import Candidate, Scheme, Setting, wider, with_scheme
from graphq.quantization.trials import Trials

RANGES = (*(Candidate("min_max", margin) for margin in (0.0, 0.5, 1.0)), Candidate("mse"), Candidate("percentile"))
"""The candidates for ranges: three methods; min_max also with margins."""


class Point(NamedTuple):
    """A point of the frontier: a setting, its estimated time as a share of the time of f32, and its loss."""

    setting: Setting
    time: float
    loss: float

    @property
    def shown(self) -> tuple[str, str]:
        """The time and the loss as texts, rounded up: `max_time` and `max_loss` of these numbers allow the point."""
        loss = Context(prec=3, rounding=ROUND_CEILING).create_decimal(f"{self.loss}")
        return f"{Decimal(f'{self.time}').quantize(Decimal('0.01'), ROUND_CEILING)}", f"{float(loss):.2e}"

    def __str__(self) -> str:
        time, loss = self.shown
        return f"{time:>5}  {loss}  {self.setting}" + (", slower than f32" if self.time > 1 else "")


class Search(Trials):
    """A search in four steps. The loss of a setting is the largest 1 - cosine of its outputs with f32 (`Trials`).

    1. Ranges (`local`): each candidate of RANGES is given to all tensors, and one run of the f32 model with quantized
       twins shows how much each layer's result changes. Each tensor gets the widest range that changes its layers
       hardly more than the best one.
    2. Operands (`costs`): the operands in 8 bits are sorted by a ratio: the loss if only this operand has 8 bits,
       divided by the time that makes it exact. Exact means 16 bits, or f32 for the whole layer if that is faster.
       Times are estimated (price.py), so the result does not depend on the machine's load.
    3. Frontier (`frontier`): more and more operands become exact in this order, half as many again each time. The loss
       of each such setting is measured, and so is the loss with what makes it faster: weights of 7 bits on some CPUs,
       integers for values between layers that a layer reads. Plain min-max is a point as well. A setting that loses no
       less than a faster one is dropped.
    4. Choice (`choose`): the preset, `max_loss` or `max_time` selects a point of the frontier. This point gets the loss
       of its graph. If the graph cannot be made or run, if this loss is above `max_loss`, or if a faster point loses no
       more, the choice is made again.
    """

    curve: list[Point]
    """The frontier, the fastest point first."""
    whole = False
    """Whether the frontier goes on until all operands are exact, whatever the loss and the time."""

    def run(self, scheme: Scheme | None = None, *, narrow: bool = False) -> Setting:
        """The setting that the scheme's preset, `max_loss` or `max_time` chooses, and whose graph can be made.

        With `narrow`, weights get 7 bits if that is faster on this CPU and the loss allows it. Raises GraphError if no
        point has the loss or the time that the scheme asks for.
        """
        scheme = scheme or Scheme(method="automatic")
        self.whole = self.whole or scheme.max_loss is not None
        self.curve = falling([*self.frontier(self.local()), self.point(self.uniform(Candidate("min_max")))])
        between = [name for name, elements in self.price.stored.items() if elements < 0]
        changes = [{"weight_bits": 7}] * (narrow and self.level.sorts) + [
            {"between": tuple(dict.fromkeys((*self.given.between, *between)))}] * bool(between)
        for change in changes:
            for p in [*self.curve]:
                faster = with_scheme(p.setting, **change)
                found = [q.loss for q in self.curve if q.time <= self.price.time(faster)]
                self.curve = falling([*self.curve, self.point(faster, min(found, default=np.inf))])
        while self.curve:
            chosen = self.possible(self.choose(scheme).setting)
            tried = [*self.losses] if chosen in self.failed else [p.setting for p in self.curve]
            self.curve = falling([self.point(s) for s in tried if s not in self.failed])
            point = self.point(chosen)
            if point in self.curve and (scheme.max_loss is None or point.loss <= scheme.max_loss):
                return chosen
        raise GraphError(f"no setting of the search can be made: {next(iter(self.failed.values()))}")

    def point(self, setting: Setting, most: float = np.inf) -> Point:
        """The point of a setting, without values that stay in f32; its loss is a lower bound if it is above `most`."""
        between = tuple(quantized_between(self.graph, setting.scheme))
        if between != setting.scheme.between:
            setting = with_scheme(setting, between=between)
        return Point(setting, self.price.time(setting), self.loss(setting, most))

    def local(self) -> Setting:
        """The setting with each tensor's best candidate (`widest`)."""
        scores = {name: dict.fromkeys(RANGES, 0.0) for name in self.tensors}
        for candidate in progress(RANGES, "ranges"):
            noise = self.noise(self.uniform(candidate))
            for name, product in self.products.items():
                for source in product.sources:
                    scores[source][candidate] += noise.get(name, 0.0)
        return Setting(tuple((name, widest(found)) for name, found in scores.items()), scheme=self.scheme)

    def costs(self, setting: Setting) -> list[tuple[str, str]]:
        """The 8-bit operands by their loss for the time that makes them exact, the largest first.

        An operand is a layer's name and "wide", for activations, or "wide_weights". Operands are first sorted by noise
        over signal in the layer's result; an unknown ratio comes first. The operands with unknown ratio and the first
        TRIED others are then sorted again, by the measured loss if only the operand has 8 bits.
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
        """The setting with 16 bits for these operands as well, or with f32 for layers that are faster in f32.

        Layers that the user's scheme mentions stay in integers.
        """
        s = wider(setting, factors).scheme
        floats = [n for n in self.price.faster_exact(Counter((*s.wide, *s.wide_weights)))
                  if n not in s.exclude and not self._said(self.products[n])]
        wide = {part: [n for n in getattr(s, part) if n not in floats] for part in ("wide", "wide_weights")}
        return with_scheme(setting, exclude=(*s.exclude, *floats), **wide)

    def frontier(self, setting: Setting) -> list[Point]:
        """The points from `setting` to exact operands, the fastest first, each with less loss than the one before.

        Settings that take longer than f32 and LONGEST times as long as `setting` are left out unless the frontier is
        `whole`; and once a setting loses at most GOOD, so are others, except those that are faster by more than EQUAL.
        """
        found = [self.point(setting)]
        longest = max(1.0, tuned.LONGEST * found[0].time)
        order = self.costs(setting)
        for count in progress(growing(len(order)), "settings"):
            longest = min([longest, *(p.time / tuned.EQUAL for p in found if p.loss <= GOOD)])
            tried = self.exact(setting, order[:count])
            if self.whole or self.price.time(tried) <= longest:
                found.append(self.point(tried))
        return falling(found)

    def choose(self, scheme: Scheme) -> Point:
        """The point that the scheme asks for.

        Presets choose from points that lose no more than min-max, neither at most nor typically (`typical`), or choose
        min-max: "accurate" the least loss, "balanced" the least product of loss and time to the power EXCHANGE, "fast"
        the same from points that take at most EQUAL times as long as min-max. Losses up to GOOD count as equal; except
        for "accurate", so do losses up to PART of the loss of min-max, and of TARGET if that is less.
        So "balanced" is never faster than "fast", and "accurate" never faster than "balanced".
        """
        curve = self.curve
        if scheme.max_loss is not None:
            found = [p for p in curve if p.loss <= scheme.max_loss]
            if not found:
                raise GraphError(f"no setting loses at most {scheme.max_loss}: the least loss is {curve[-1].shown[1]}")
            return found[0]
        if scheme.max_time is not None:
            found = [p for p in curve if p.time <= scheme.max_time]
            if not found:
                raise GraphError(f"no setting takes at most {scheme.max_time:g} of the time of f32: the fastest takes "
                                 f"{curve[0].shown[0]}, as estimated")
            return found[-1]
        plain = self.point(self.uniform(Candidate("min_max")))
        usable = [p for p in curve if p.loss <= plain.loss and self.typical(p.setting) <= self.typical(plain.setting)
                  and (scheme.preset != "fast" or p.time <= tuned.EQUAL * max(plain.time, curve[0].time))]
        if not usable:
            curve[:] = [plain, *(p for p in curve if p.time > plain.time)]
            return plain
        if scheme.preset == "accurate":
            return min(usable, key=lambda p: (max(p.loss, GOOD), p.time))
        enough = max(GOOD, tuned.PART * min(tuned.TARGET, plain.loss))
        return min(usable, key=lambda p: max(p.loss, enough) * p.time**tuned.EXCHANGE)


def falling(points: Sequence[Point]) -> list[Point]:
    """The points that lose less than all points that take no longer, the fastest first."""
    curve: list[Point] = []
    for p in sorted(points, key=lambda p: (p.time, p.loss)):
        curve += [p] * (not curve or p.loss < curve[-1].loss)
    return curve


def growing(most: int) -> list[int]:
    """The numbers 1, 2, 3, 4, 6, 9, ... up to `most`: each is GROWTH times as large as the one before."""
    found = [0]
    while found[-1] < most:
        found.append(min(most, max(found[-1] + 1, int(tuned.GROWTH * found[-1]))))
    return found[1:]


def widest(noise: Mapping[Candidate, float]) -> Candidate:
    """The candidate of widest range among the candidates whose noise is hardly above the least noise (NEAR)."""
    near = [c for c, x in noise.items() if tuned.NEAR * x <= min(noise.values())]
    return max(near, key=lambda c: (c.margin, c.method == "min_max", -noise[c]))
