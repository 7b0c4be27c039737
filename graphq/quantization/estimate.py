"""Estimate how reliable the measured loss of a setting is, by held-out batches and by changed copies of batches.

If there are few batches, or if batches are alike, held-out batches say little: ranges that hold for them need not hold
for new data. A changed copy of a batch has more contrast and noise, so its tensors may exceed the ranges that
calibration saw.
"""
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, cast

import numpy as np

from graphq.errors import InputError
from graphq.ir import Graph
from graphq.ir.interpret import check_inputs
from graphq.quantization.calibrate import Batch, Batches, checked_batches, is_plain

SURE = 1.05
"""Ranges count as well known if new data are expected to exceed them by at most this ratio."""
LEAST_ASKED, MOST_ASKED = 4, 64
"""The smallest number of batches that is advised, and the number above which a text only says "more than"."""
ALIKE = 8.0
"""Batches count as alike if the loss on changed copies is more than ALIKE times the loss on held-out batches."""
SMALL = 1e-4
"""Batches never count as alike if the loss on changed copies is at most SMALL."""
MUCH = 0.002
"""Above this loss, no number of batches makes the estimate sure, because new data can lose far more."""
UNEVEN, EVEN_FROM = 2.0, 16
"""If the losses of held-out batches differ by more than the ratio UNEVEN, EVEN_FROM batches are needed to be sure."""
SIZES = (0.7, 1.3)
"""The numbers by which some copies of the batches are multiplied."""


def changed(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Add contrast and noise to a float array; an integer array is returned unchanged."""
    if x.dtype.kind != "f" or not x.size:
        return x
    unit = np.ldexp(1.0, np.frexp(np.abs(x).max())[1] - 1).astype(x.dtype)  # `x / unit` has finite squares
    with np.errstate(invalid="ignore"):  # infinities become NaN; calibration rejects both
        near = x / unit
        mean = near.mean()
        out = mean + CONTRAST * (near - mean) + NOISE * near.std() * rng.standard_normal(x.shape)
        return fitting(out * np.float64(unit), x.dtype)


def fitting(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Convert numbers to a float dtype; numbers beyond the dtype's range become its largest or smallest number."""
    most = float(np.finfo(dtype).max)
    return np.asarray(np.clip(x, -most, most)).astype(dtype)


@dataclass(frozen=True)
class Estimate:
    """The measured losses (1 - cosine of outputs with f32), and how reliable they are.

    `losses` has the loss on each held-out batch, and is empty if there is a single batch. With few batches, `changed`
    is the largest loss on changed, smaller and larger copies of the batches. With many batches, `changed` is None, and
    `sized` is the largest loss on smaller and larger copies. `batches` is the number of batches; `repeated` of them
    equal an earlier batch. `exceeded` is the ratio by which a new batch is expected to exceed the ranges seen so far.
    """

    losses: tuple[float, ...]
    changed: float | None
    batches: int
    exceeded: float
    sized: float | None = None
    repeated: int = 0

    @property
    def alike(self) -> bool:
        """Whether the batches are so alike that the held-out batches say little about new data."""
        if self.changed is None or not self.losses:
            return False
        return self.changed > max(SMALL, ALIKE * max(self.losses))

    @property
    def uneven(self) -> bool:
        """Whether the losses of the held-out batches differ much, so that a new batch may lose far more."""
        return max(self.losses, default=0.0) > max(SMALL, UNEVEN * min(self.losses, default=0.0))

    @property
    def enough(self) -> int:
        """The number of batches needed, if data exceed the ranges of n batches by a share that falls as 1 / n."""
        asked = int(np.ceil(self.batches * (self.exceeded - 1) / (SURE - 1) - 1e-9))
        return max(self.batches * (1 + self.alike), LEAST_ASKED + self.repeated, EVEN_FROM * self.uneven, asked)

    @property
    def sure(self) -> bool:
        """Whether there are enough batches, and the loss on held-out batches and their changed copies is small."""
        return self.enough <= self.batches and not self.much and not self.grows

    @property
    def much(self) -> bool:
        """Whether the loss is so large that other data may lose far more."""
        return max(self.losses, default=0.0) > MUCH

    @property
    def grows(self) -> bool:
        """Whether there are few batches, and the loss on their changed copies is large."""
        return (self.changed or 0.0) > MUCH

    def json(self) -> dict[str, Any]:
        """The numbers for a report."""
        return {"losses": list(self.losses), "changed": self.changed, "sized": self.sized, "batches": self.batches,
                "repeated": self.repeated, "exceeded": self.exceeded, "alike": self.alike, "enough": self.enough,
                "sure": self.sure}

    def __str__(self) -> str:
        parts, why = [], []
        if self.losses:
            parts.append(f"{min(self.losses):.1e} to {max(self.losses):.1e} on {len(self.losses)} held-out batches")
        if self.changed is not None:
            parts.append(f"{self.changed:.1e} on the worst copy (0.7 or 1.3 times as large, or more contrast)")
        if self.sized is not None:
            parts.append(f"{self.sized:.1e} on the worst copy (0.7 or 1.3 times as large)")
        if self.grows and not self.much:
            why.append(f"copies of the batches lose more than {MUCH:g}")
        if self.exceeded > SURE:
            why.append(f"new data may exceed the ranges by {100 * (self.exceeded - 1):.0f} %")
        why += [f"{self.repeated} batches repeat others"] * (0 < self.repeated > self.batches - LEAST_ASKED)
        why += ["the batches are alike"] * self.alike + ["the batches are few"] * (self.batches < LEAST_ASKED)
        why += ["the losses of the batches differ"] * (self.uneven and self.batches < EVEN_FROM)
        why += [f"the loss is above {MUCH:g}, and other data may lose far more"] * self.much
        number = self.enough if self.enough <= MOST_ASKED else f"more than {MOST_ASKED}"
        asked = f"; {number} would be enough" if self.enough > self.batches and not self.much else ""
        sure = f"sure: {self.batches} batches are enough for inputs like these" if self.sure else \
            f"not sure of {self.batches} batch{'es' * (self.batches > 1)}: {', '.join(why)}{asked}"
        return f"1 - cosine with f32: {', '.join(parts)}\n{sure}"


CONTRAST, NOISE = 1.25, 0.05
"""A changed copy has CONTRAST times the distance of elements from their array's mean, and noise of NOISE times the
array's standard deviation."""


@dataclass(frozen=True)
class Extended:
    """Batches, followed by as many changed copies, and by copies multiplied by each of SIZES.

    With n batches, index n + k is the changed copy of batch k, and index 2n + k is batch k times SIZES[0].
    """

    batches: Sequence[Batch]

    def __getitem__(self, k: int) -> Batch:
        if k < len(self.batches):
            return self.batches[k]
        kind, number = divmod(k, len(self.batches))
        batch, rng = {name: np.asarray(x) for name, x in self.batches[number].items()}, np.random.default_rng(k)
        if kind == 1:
            return {name: changed(x, rng) for name, x in batch.items()}
        return {name: fitting(x * np.float64(SIZES[kind - 2]), x.dtype) if x.dtype.kind == "f" else x
                for name, x in batch.items()}


def repeated(batches: Sequence[Batch]) -> int:
    """The number of batches that equal an earlier batch; arrays of one number are compared without their shapes."""
    digests = set()
    for batch in batches:
        found = blake2b()
        for name, x in sorted(batch.items()):
            x = np.ascontiguousarray(x)
            x = x.reshape(-1)[:1] if x.size and (x == x.flat[0]).all() else x
            x = np.where(x == 0, np.zeros_like(x), x)  # -0 is 0
            found.update(f"{name!r} {x.dtype} {x.shape}".encode("utf-8", "replace") + x.tobytes())
        digests.add(found.digest())
    return len(batches) - len(digests)


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


@dataclass(frozen=True)
class Chosen:
    """The batches with the indices `numbers`; a batch is read when it is used."""

    batches: Sequence[Batch] | Extended
    numbers: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[Batch]:
        return (self.batches[k] for k in self.numbers)


def numbered(batches: Batches, graph: Graph) -> Sequence[Batch]:
    """The batches as a sequence; iterators, and batches that must be split, become a list.

    A single batch is split by `halves`. Raises InputError if there is no batch, or if the graph rejects a batch.
    """
    def fitting(batches: Batches) -> Iterator[Batch]:
        for batch in checked_batches(batches, graph.inputs):
            check_inputs(graph, batch)
            yield batch

    found: Sequence[Batch]
    if isinstance(batches, Sequence) and all(map(is_plain, batches)) and \
            sum(1 for _ in fitting(batches)) <= len(batches):
        found = cast("Sequence[Batch]", batches)
    else:
        found = list(fitting(batches))
    if not len(found):
        raise InputError("calibration needs at least one batch, got an empty iterable")
    return halves(found[0]) if len(found) == 1 else found
