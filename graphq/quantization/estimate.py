"""Estimate how reliable the loss of a setting is, by held-out batches and by their smaller and larger copies."""
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any, cast

import numpy as np

from graphq.dtypes import as_dtype
from graphq.ir import Graph, Value
from graphq.quantization import tuned
from graphq.quantization.calibrate import Batch, Batches, LazyBatches, Reordered, checked_batches, is_plain
from graphq.quantization.statistics import SIZES

GOOD = 5e-5
"""A smaller loss is not sought. 255 steps for 9 standard deviations of normal outputs lose (9 / 255)**2 / 24."""
FEW = 2 * tuned.FOLDS
"""Fewer batches are held out one at a time: a fold of many holds out several."""
LEAST_ASKED, MOST_ASKED = tuned.FOLDS, 64
"""The least number of batches advised; above MOST_ASKED a text says "more than"."""
HOLDS = 0.95
"""The share of new inputs that lose at most the loss to expect (`highest`)."""


def highest(losses: Sequence[float]) -> float:
    """The loss that a new batch exceeds in 1 - HOLDS of all cases, given the losses of n other batches; 2 at most.

    The probability of a loss is assumed to fall like 1 / x. Losses below GOOD say nothing about larger ones.
    """
    return min(2.0, max((GOOD, *losses)) * max(1.0, 1 / ((1 - HOLDS) * (len(losses) + 1))))


@dataclass(frozen=True)
class Estimate:
    """The measured losses (1 - cosine of outputs with f32), and how reliable they are.

    `losses` has the loss on each held-out batch, and is empty if there is a single batch. `sized` is the largest loss
    on copies of these batches that are 0.7 and 1.3 times as large. `batches` is the number of batches; `repeated` of
    them equal an earlier batch. `exceeded` is the ratio by which a new batch is expected to exceed the ranges so far.
    `seen` is the largest loss of the graph on batches, with ranges from all batches; None if it was not measured.
    `fixed` has the inputs that copies do not scale (`scalable`); if all inputs are fixed, `sized` is None. With
    `halved`, the two batches are the halves of a single one (`halves`).
    """

    losses: tuple[float, ...]
    sized: float | None
    batches: int
    exceeded: float
    repeated: int = 0
    seen: float | None = None
    fixed: tuple[str, ...] = ()
    halved: bool = False

    @property
    def expected(self) -> float:
        """The loss to expect at most of inputs like the batches: `highest` of the held-out losses, at least `seen`."""
        return max(self.seen or 0.0, highest(self.losses or (self.sized or self.seen or 0.0,)))

    @property
    def expected_sized(self) -> float | None:
        """The largest loss to expect of such inputs at 0.7 to 1.3 times their size; None if all inputs are fixed."""
        return None if self.fixed and self.sized is None else max(self.expected, self.sized or 0.0)

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
        return self.enough <= self.batches and not self.much and (self.sized or 0.0) <= tuned.TARGET

    @property
    def much(self) -> bool:
        """Whether the loss is so large that other data may lose far more."""
        return max((*self.losses, self.seen or 0.0)) > tuned.TARGET

    def json(self) -> dict[str, Any]:
        """The numbers for a report."""
        return {**asdict(self), "losses": list(self.losses), "fixed": list(self.fixed), "expected": self.expected,
                "expected_sized": self.expected_sized, "enough": self.enough, "sure": self.sure}

    def __str__(self) -> str:
        parts, why = [], []
        if self.losses:
            held_out = "halves of the batch (even and odd rows)" if self.halved else "batches"
            parts.append(f"{min(self.losses):.1e} to {max(self.losses):.1e} on {len(self.losses)} held-out {held_out}")
        if self.sized is not None:
            parts.append(f"{self.sized:.1e} on the worst copy (0.7 or 1.3 times as large)")
            why += [f"copies lose more than {tuned.TARGET:g}"] * (self.sized > tuned.TARGET and not self.much)
        why += [f"new data may exceed the ranges by {100 * (self.exceeded - 1):.0f} %"] * (self.exceeded > tuned.SURE)
        why += [f"{self.repeated} batches repeat others"] * (0 < self.repeated > self.batches - LEAST_ASKED)
        why += ["the batches are few"] * (self.batches < LEAST_ASKED)
        why += ["batches left out of calibration lose far more"] * self.depends
        why += [f"the loss is above {tuned.TARGET:g}, and other data may lose far more"] * self.much
        number = self.enough if self.enough <= MOST_ASKED else f"more than {MOST_ASKED}"
        asked = f"; {number} would be enough" if self.enough > self.batches and not self.much else ""
        given = 1 if self.halved else self.batches
        sure = f"sure: {self.batches} batches are enough for inputs like these" if self.sure else \
            f"not sure of {given} batch{'es' * (given > 1)}: {', '.join(why)}{asked}"
        fixed = f" (integers are not scaled: {', '.join(self.fixed)})" * bool(self.fixed)
        sized = "" if self.expected_sized is None else f", {self.expected_sized:.1e} at 0.7 to 1.3 times their size"
        most = f"{self.expected:.1e} on new inputs like these{sized}{fixed}"
        return f"1 - cosine with f32: {', '.join(parts)}\nexpect at most {most}\n{sure}"


def scalable(x: Value) -> bool:
    """Whether copies scale an input: floats, and bytes that no operation makes wider integers of, such as indices."""
    return x.dtype.kind == "float" or (x.dtype.kind == "int" and x.dtype.itemsize == 1 and not any(
        v.dtype.kind == "int" and v.dtype.itemsize > 1 for n in x.users for v in n.outputs))


def extended(batches: Sequence[Batch], scaled: Collection[str]) -> LazyBatches:
    """The batches, then copies with the inputs `scaled` times each of SIZES; n + k is batch k of n times SIZES[0]."""
    def read(k: int) -> Batch:
        kind, number = divmod(k, len(batches))
        if kind == 0:
            return batches[number]
        arrays = {name: np.asarray(x) for name, x in batches[number].items()}
        for name in scaled:
            x = arrays[name].astype(np.float64) * SIZES[kind - 1]
            of = as_dtype(arrays[name].dtype)
            arrays[name] = np.clip(np.rint(x) if of.kind == "int" else x, of.min, of.max).astype(of.numpy)
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


class Halves(LazyBatches):
    """The two `halves` of a single batch."""


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
    """The batches as a sequence; iterators, and batches that must be cut, become a list.

    A single batch is split by `halves`. Fewer than FEW batches are sorted by their digests, so that the result does not
    depend on their order. Raises InputError if there is no batch, or if the graph rejects a batch.
    """
    plain = isinstance(batches, Sequence) and all(map(is_plain, batches)) \
        and sum(1 for _ in checked_batches(batches, graph)) <= len(batches)
    found = cast("Sequence[Batch]", batches) if plain else list(checked_batches(batches, graph))
    if len(found) == 1:
        parts = halves(found[0])
        return Halves(range(2), parts.__getitem__) if len(parts) == 2 else parts
    order = sorted(range(len(found)), key=lambda k: digest(found[k])) if len(found) < FEW else []
    return Reordered(order, found.__getitem__) if order else found


def folds(count: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Split `count` batches into the batches that give statistics and the batches that are held out, several times.

    All are indices in `extended`; docs/theory/quantization.md explains them. A single batch is compared with its copy.
    """
    if count == 1:
        return [((0,), (0, len(SIZES)))]
    outs = np.array_split(range(count), count if count < FEW else tuned.FOLDS)
    most = round(1 / (1 - HOLDS) - 1) // len(outs)  # of so many losses, `highest` is the largest
    return [(tuple(k for k in range(count) if k not in out),
             tuple(out[np.linspace(0, len(out) - 1, min(len(out), most)).astype(int)].tolist())) for out in outs]
