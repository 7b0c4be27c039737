"""Batch scoring on engines that run many processes and machines: Dask (extra `dask`) and Ray (extra `ray`).

scored = score(frame, "model.graphq", columns={"x": ["a", "b", "c"]})     # lazy, as the given dataset

This package only turns rows into inputs and outputs into columns. Scheduling, retries after a worker's death,
back-pressure and progress are the engine's.
"""
from graphq.scoring.score import score

__all__ = ["score"]
