"""The statistics of calibration: for each tensor a histogram, its extremes, and statistics per channel."""
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphq.base.locks import lazy_property
from graphq.base.paths import read_arrays
from graphq.errors import InputError
from graphq.kernels.numbers.observed import BINS, SHIFT
from graphq.quantization import tuned

with np.errstate(invalid="ignore"):  # some bins hold NaN; calibration rejects them
    EDGES = (np.arange(BINS // 2 + 1, dtype=np.uint32) << SHIFT).view(np.float32).astype(np.float64)
"""The BINS / 2 + 1 bounds of the bins' magnitudes; bins beyond infinity stay empty."""


@dataclass
class Channels:
    """Statistics of each channel along `axis`: extremes, and means of the squares of elements.

    `second` is the largest magnitude if the batch with the largest magnitude is left out.
    """

    axis: int
    low: np.ndarray
    high: np.ndarray
    square: np.ndarray
    second: np.ndarray
    count: int = 1

    @property
    def largest(self) -> np.ndarray:
        """The largest magnitude of each channel."""
        return np.maximum(-self.low, self.high)

    def add(self, low: np.ndarray, high: np.ndarray, square: np.ndarray) -> None:
        """Add the extremes and mean squares of one more batch."""
        self.count += 1
        new = np.maximum(-low, high)
        self.second = np.maximum(self.second, np.minimum(self.largest, new))
        self.low, self.high = np.minimum(self.low, low), np.maximum(self.high, high)
        self.square = self.square + (square - self.square) / self.count


@dataclass
class TensorStatistics:
    """Statistics of one tensor: the number of its elements, their extremes, and a histogram.

    `histogram` has the indices of the bins that are not empty, and the counts of elements in these bins. The bins are
    the highest bits of an f32, as in operation `histogram`. `second` is the largest magnitude if the batch with the
    largest magnitude is left out; 0 if there is no other batch.
    """

    low: float = np.inf
    high: float = -np.inf
    second: float = 0.0
    histogram: tuple[np.ndarray, np.ndarray] = (np.zeros(0, np.int64), np.zeros(0, np.int64))
    channels: Channels | None = None
    ranges: dict[object, tuple[float, float]] = field(default_factory=dict, repr=False, compare=False)
    """The ranges computed so far, by the parameters that determine them (`ranges.parameters`)."""

    @property
    def size(self) -> int:
        """The number of elements in the histogram."""
        return int(self.histogram[1].sum())

    @property
    def counts(self) -> np.ndarray:
        """The counts of elements in all bins."""
        counts = np.zeros(BINS, np.int64)
        counts[self.histogram[0]] = self.histogram[1]
        return counts

    def add(self, counts: np.ndarray | None, low: float, high: float) -> None:
        """Add one more batch, with a histogram or without."""
        if counts is not None:
            total = self.counts + counts
            (used,) = np.nonzero(total)
            self.histogram = used, total[used]
        if self.low <= self.high:
            self.second = max(self.second, min(max(-self.low, self.high), max(-low, high)))
        self.low, self.high = min(self.low, low), max(self.high, high)

    def bins(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The bins that are not empty, ascending: lower and upper bounds, cut at the extremes, and counts."""
        half, counts = BINS // 2, self.counts
        negative, positive = counts[half:], counts[:half]
        (down,), (up,) = np.nonzero(negative), np.nonzero(positive)
        lower = np.concatenate([-EDGES[down[::-1] + 1], EDGES[up]])
        upper = np.concatenate([-EDGES[down[::-1]], EDGES[up + 1]])
        n = np.concatenate([negative[down[::-1]], positive[up]])
        return np.clip(lower, self.low, self.high), np.clip(upper, self.low, self.high), n.astype(np.float64)


class Statistics(Mapping[str, TensorStatistics]):
    """Statistics by the names of tensors; `batches` is the number of batches."""

    def __init__(self, tensors: Mapping[str, TensorStatistics], batches: int) -> None:
        self.tensors, self.batches = dict(tensors), batches

    def __getitem__(self, name: str) -> TensorStatistics:
        return self.tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __repr__(self) -> str:
        return f"<statistics of {len(self)} tensors over {self.batches} batches>"

    @lazy_property
    def unseen(self) -> float:
        """The ratio by which a new batch is expected to exceed the extremes: the upper quartile over all tensors.

        Each tensor gives a ratio: its largest magnitude, divided by `second` (`TensorStatistics`).
        """
        ratios = [max(-t.low, t.high) / t.second for t in self.values() if t.second > 0]
        return float(np.quantile(ratios, tuned.OF_TENSORS)) if ratios else tuned.UNSEEN

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the statistics as a NumPy archive (.npz), without statistics per channel."""
        arrays: dict[str, Any] = {"batches": np.array(self.batches)}
        for name, t in self.items():
            arrays[f"bins/{name}"], arrays[f"counts/{name}"] = t.histogram
            arrays[f"range/{name}"] = np.array([t.low, t.high, t.second])
        with open(path, "wb") as file:
            np.savez_compressed(file, **arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Statistics":
        """Read a file that `save` wrote. Raises InputError for any other file, OSError if reading fails."""
        arrays = read_arrays(path, f"{path} holds no statistics")
        if not isinstance(arrays, dict):
            raise InputError(f"{path} holds one array, not statistics")
        try:
            tensors = {}
            for name in (key.removeprefix("range/") for key in arrays if key.startswith("range/")):
                low, high, second = (float(x) for x in arrays[f"range/{name}"])
                bins, counts = arrays[f"bins/{name}"], arrays[f"counts/{name}"]
                np.zeros(BINS)[bins] = counts  # raises if an index is not a bin
                tensors[name] = TensorStatistics(low, high, second, (bins, counts))
            return cls(tensors, int(arrays["batches"]))
        except (ArithmeticError, LookupError, TypeError, ValueError) as e:  # NumPy's errors for other arrays
            raise InputError(f"{path} holds no statistics: {type(e).__name__}: {e}") from None
