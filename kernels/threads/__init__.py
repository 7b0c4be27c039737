"""Threads: the parallel region on prange, and the team that runs the steps of plans in it."""
