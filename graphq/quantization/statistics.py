"""The statistics of calibration: a histogram and the extremes of each tensor."""
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from graphq.base.locks import lazy_property
from graphq.kernels.numbers.observed import BINS, SHIFT
from graphq.quantization import tuned

with np.errstate(invalid="ignore"):  # some bins hold NaN; calibration rejects them
    EDGES = (np.arange(BINS // 2 + 1, dtype=np.uint32) << SHIFT).view(np.float32).astype(np.float64)
"""The BINS / 2 + 1 bounds of the bins' magnitudes; bins beyond infinity stay empty."""
SIZES = 0.7, 1.3
"""The factors of copies of the batches: the sizes of inputs that an estimate covers."""


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

        Each tensor gives a ratio: its largest magnitude, divided by `second` (`TensorStatistics`). If there is only one
        batch, the ratio is the largest of SIZES, because estimates cover inputs of this size.
        """
        ratios = [max(-t.low, t.high) / t.second for t in self.values() if t.second > 0]
        return float(np.quantile(ratios, tuned.OF_TENSORS)) if ratios else max(SIZES)
