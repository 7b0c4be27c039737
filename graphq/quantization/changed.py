"""Data that differ from the batches given, for comparisons: changed copies of the batches, and rows held out.

If there are few batches, or batches are alike, those held out say little: ranges that hold for them do not hold for
the next one. A changed copy has more contrast and noise, so that tensors inside of a network exceed what calibration
saw.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphq.quantization.calibrate import Batch

CONTRAST, NOISE = 1.25, 0.05
"""Changed elements lie CONTRAST times as far from their input's mean; the noise has NOISE times its standard
deviation."""


@dataclass(frozen=True)
class Extended:
    """Batches, followed by as many changed copies: number k + len(batches) is the copy of batch k."""

    batches: Sequence[Batch]

    def __getitem__(self, k: int) -> Batch:
        if k < len(self.batches):
            return self.batches[k]
        rng = np.random.default_rng(k)
        return {name: changed(np.asarray(x), rng) for name, x in self.batches[k - len(self.batches)].items()}


def changed(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A float array with more contrast and added noise; an integer array as it is."""
    if x.dtype.kind != "f" or not x.size:
        return x
    mean = x.mean()
    return np.asarray(mean + CONTRAST * (x - mean) + NOISE * x.std() * rng.standard_normal(x.shape)).astype(x.dtype)


def halves(batch: Batch) -> list[Batch]:
    """A batch of several rows as two batches, each of every other row, repeated up to the same number of rows.

    Any other batch is returned alone.
    """
    arrays = {name: np.asarray(x) for name, x in batch.items()}
    counts = {x.shape[:1] for x in arrays.values()}
    rows = counts.pop()[0] if len(counts) == 1 and counts != {()} else 0
    if rows < 2:
        return [batch]
    return [{name: x[np.resize(np.arange(first, rows, 2), rows)] for name, x in arrays.items()} for first in (0, 1)]
