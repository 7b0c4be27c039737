"""Scoring of Ray's datasets: batches go to a pool of actors, each of which loads the model once."""
from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from graphq.scoring.score import Scorer

if TYPE_CHECKING:
    import ray.data

BATCH = 256
"""The default number of rows of a batch; Ray's default is a whole block, whatever its size."""


class ScoringActor:
    """The callable that an actor of the pool runs: it is made once, and called for each batch."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer
        self.names = list(scorer.results)  # loads the model before the pool counts the actor as ready

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The kept columns of the batch, and the outputs."""
        return self.scorer(batch)


def score_dataset(rows: ray.data.Dataset, scorer: Scorer, options: Mapping[str, Any]) -> ray.data.Dataset:
    """Apply `map_batches` over a pool of actors, with Ray's default size or as `concurrency` and other options say."""
    return rows.map_batches(ScoringActor, fn_constructor_args=(scorer,), batch_format="numpy",
                            **{"batch_size": BATCH, **options})
