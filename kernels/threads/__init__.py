"""Threads: a parallel region on Numba's prange, and the team that runs the steps of plans in it."""
