"""Estimate how reliable the loss of a setting is, by held-out batches and by their smaller and larger copies."""
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, cast

import numpy as np

from graphq.errors import InputError
from graphq.ir import Graph
from graphq.ir.interpret import check_inputs
from graphq.quantization import tuned
from graphq.quantization.calibrate import Batch, Batches, LazyBatches, Reordered, checked_batches, is_plain

GOOD = 5e-5
"""A loss that 8 bits cannot avoid, so a smaller loss is not sought: normally distributed outputs lose it.

With 9 standard deviations in 255 steps the squared error of one rounding is (9 / 255)**2 / 12 = 1e-4 of the variance,
and 1 - cosine is half of that.
"""
SIZES = 0.7, 1.3
"""The numbers by which copies of the batches are multiplied: the sizes of inputs that an estimate covers."""
FEW = 8
"""Fewer batches are held out one at a time."""
LEAST_ASKED, MOST_ASKED = 4, 64
"""The least number of batches advised; above MOST_ASKED a text says "more than"."""
HOLDS = 0.95
"""The share of new inputs of which the loss to expect holds (`highest`)."""


def highest(losses: Sequence[float]) -> float:
    """The loss that a new batch exceeds in 1 - HOLDS of all cases, given the losses of n other batches.

    Any of n + 1 batches is equally likely to lose most, so the new one exceeds the largest loss with probability
    1 / (n + 1), and c times this loss with probability 1 / (c (n + 1)) if the probability of a loss falls like 1 / x.
    This is the slowest fall with which losses can have a mean. Losses below GOOD say nothing about larger ones.
    """
    return max((GOOD, *losses)) * max(1.0, 1 / ((1 - HOLDS) * (len(losses) + 1)))


@dataclass(frozen=True)
class Estimate:
    """The measured losses (1 - cosine of outputs with f32), and how reliable they are.

    `losses` has the loss on each held-out batch, and is empty if there is a single batch. `sized` is the largest loss
    on copies of these batches that are 0.7 and 1.3 times as large. `batches` is the number of batches; `repeated` of
    them equal an earlier batch. `exceeded` is the ratio by which a new batch is expected to exceed the ranges so far.
    `seen` is the largest loss of the graph on batches, with ranges from all batches; None if it was not measured.
    """

    losses: tuple[float, ...]
    sized: float | None
    batches: int
    exceeded: float
    repeated: int = 0
    seen: float | None = None

    @property
    def expected(self) -> float:
        """The loss to expect at most of inputs like the batches: `highest` of the held-out losses, at least `seen`."""
        return max(self.seen or 0.0, highest(self.losses or (self.sized or 0.0,)))

    @property
    def expected_sized(self) -> float:
        """The largest loss that such inputs are expected to have at 0.7 to 1.3 times their size."""
        return max(self.expected, self.sized or 0.0)

    @property
    def depends(self) -> bool:
        """Whether a batch that is left out of calibration loses more than expected of batches that are not."""
        return self.seen is not None and max(self.losses, default=0.0) > highest((self.seen,) * len(self.losses))

    @property
    def enough(self) -> int:
        """The number of batches needed, if data exceed the ranges of n batches by a share that falls as 1 / n."""
        asked = int(np.ceil(self.batches * (self.exceeded - 1) / (tuned.SURE - 1) - 1e-9))
        return max(asked, self.batches * (1 + self.depends), LEAST_ASKED + self.repeated)

    @property
    def sure(self) -> bool:
        """Whether there are enough batches, and the loss on held-out batches and their copies is small."""
        return self.enough <= self.batches and not self.much and not self.grows

    @property
    def much(self) -> bool:
        """Whether the loss is so large that other data may lose far more."""
        return max((*self.losses, self.seen or 0.0)) > tuned.TARGET

    @property
    def grows(self) -> bool:
        """Whether the loss on smaller or larger copies is large."""
        return (self.sized or 0.0) > tuned.TARGET

    def json(self) -> dict[str, Any]:
        """The numbers for a report."""
        return {"losses": list(self.losses), "sized": self.sized, "seen": self.seen, "expected": self.expected,
                "expected_sized": self.expected_sized, "batches": self.batches, "repeated": self.repeated,
                "exceeded": self.exceeded, "enough": self.enough, "sure": self.sure}

    def __str__(self) -> str:
        parts, why = [], []
        if self.losses:
            parts.append(f"{min(self.losses):.1e} to {max(self.losses):.1e} on {len(self.losses)} held-out batches")
        if self.sized is not None:
            parts.append(f"{self.sized:.1e} on the worst copy (0.7 or 1.3 times as large)")
        if self.grows and not self.much:
            why.append(f"copies of the batches lose more than {tuned.TARGET:g}")
        if self.exceeded > tuned.SURE:
            why.append(f"new data may exceed the ranges by {100 * (self.exceeded - 1):.0f} %")
        why += [f"{self.repeated} batches repeat others"] * (0 < self.repeated > self.batches - LEAST_ASKED)
        why += ["the batches are few"] * (self.batches < LEAST_ASKED)
        why += ["batches left out of calibration lose far more"] * self.depends
        why += [f"the loss is above {tuned.TARGET:g}, and other data may lose far more"] * self.much
        number = self.enough if self.enough <= MOST_ASKED else f"more than {MOST_ASKED}"
        asked = f"; {number} would be enough" if self.enough > self.batches and not self.much else ""
        sure = f"sure: {self.batches} batches are enough for inputs like these" if self.sure else \
            f"not sure of {self.batches} batch{'es' * (self.batches > 1)}: {', '.join(why)}{asked}"
        most = f"{self.expected:.1e} on new inputs like these, {self.expected_sized:.1e} at 0.7 to 1.3 times their size"
        return f"1 - cosine with f32: {', '.join(parts)}\nexpect at most {most}\n{sure}"


def extended(batches: Sequence[Batch]) -> LazyBatches:
    """The batches, followed by their copies multiplied by each of SIZES: index n + k is batch k of n times SIZES[0]."""
    def read(k: int) -> Batch:
        kind, number = divmod(k, len(batches))
        if kind == 0:
            return batches[number]
        arrays = {name: np.asarray(x) for name, x in batches[number].items()}
        for name, x in arrays.items():
            if x.dtype.kind == "f":
                limits = np.finfo(x.dtype)
                arrays[name] = np.clip(x * np.float64(SIZES[kind - 1]), limits.min, limits.max).astype(x.dtype)
        return arrays

    return LazyBatches(range((1 + len(SIZES)) * len(batches)), read)


def digest(batch: Batch) -> bytes:
    """A digest of the arrays of a batch."""
    found = blake2b()
    for name, x in sorted(batch.items()):
        x = np.ascontiguousarray(x)
        found.update(f"{name!r} {x.dtype} {x.shape}".encode("utf-8", "replace") + x.tobytes())
    return found.digest()


def repeated(batches: Sequence[Batch]) -> int:
    """The number of batches that equal an earlier batch; arrays of one number are compared without their shapes."""
    def short(x: np.ndarray) -> np.ndarray:
        x = x.reshape(-1)[:1] if x.size and (x == x.flat[0]).all() else x
        return np.where(x == 0, np.zeros_like(x), x)  # -0 is 0

    return len(batches) - len({digest({name: short(np.asarray(x)) for name, x in b.items()}) for b in batches})


def halves(batch: Batch) -> list[Batch]:
    """Split a batch of several rows into its even and its odd rows; both repeat their rows to fill a whole batch.

    Any other batch is returned unchanged, in a list.
    """
    arrays = {name: np.asarray(x) for name, x in batch.items()}
    counts = {x.shape[:1] for x in arrays.values()}
    rows = counts.pop()[0] if len(counts) == 1 and counts != {()} else 0
    if rows < 2:
        return [batch]
    return [{name: x[np.resize(np.arange(first, rows, 2), rows)] for name, x in arrays.items()} for first in (0, 1)]


def numbered(batches: Batches, graph: Graph) -> Sequence[Batch]:
    """The batches as a sequence; iterators, and batches that must be split, become a list.

    A single batch is split by `halves`. Fewer than FEW batches are sorted by their digests, so that the result does not
    depend on their order. Raises InputError if there is no batch, or if the graph rejects a batch.
    """
    def checked() -> Iterator[Batch]:
        for batch in checked_batches(batches, graph.inputs):
            check_inputs(graph, batch)
            yield batch

    plain = isinstance(batches, Sequence) and all(map(is_plain, batches)) and sum(1 for _ in checked()) <= len(batches)
    found = cast("Sequence[Batch]", batches) if plain else list(checked())
    if not len(found):
        raise InputError("calibration needs at least one batch, got an empty iterable")
    if len(found) == 1:
        return halves(found[0])
    order = sorted(range(len(found)), key=lambda k: digest(found[k])) if len(found) < FEW else []
    return Reordered(order, found.__getitem__) if order else found
