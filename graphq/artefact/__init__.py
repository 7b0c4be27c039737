"""Compiled models in a file: the graph, the plan, packed weights that processes share, and the kernels' object code."""
