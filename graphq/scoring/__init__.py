"""Batch scoring on many processes and machines with Dask (extra `dask`) or Ray (extra `ray`).

scored = score(frame, "model.graphq", columns={"x": ["a", "b", "c"]})     # lazy, like `frame`

This package only turns rows into inputs, and outputs into columns. Dask or Ray does the rest: scheduling, retries after
a worker's death, back-pressure and progress.
"""
from graphq.scoring.score import score

__all__ = ["score"]
