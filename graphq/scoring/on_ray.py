"""Score Ray datasets with a pool of actors. Each actor loads the model once."""
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from graphq.scoring.score import Scorer

if TYPE_CHECKING:
    import ray.data

BATCH = 256
"""The default number of rows in a batch. Ray's own default is a whole block of any size."""


class ScoringActor:
    """A Ray actor that is created once, and then called for each batch."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer
        self.names = list(scorer.results)  # loads the model before the pool counts the actor as ready

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the kept columns of the batch, and the outputs."""
        return self.scorer(batch)


def score_dataset(rows: "ray.data.Dataset", scorer: Scorer, options: Mapping[str, Any]) -> "ray.data.Dataset":
    """Score a Ray dataset by `map_batches`. `options` such as `concurrency` go to Ray."""
    return rows.map_batches(ScoringActor, fn_constructor_args=(scorer,), batch_format="numpy",
                            **{"batch_size": BATCH, **options})
