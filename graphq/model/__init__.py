"""Compiled models: plans with the trace of open sizes, made now or read from a file, run at sizes and in stages."""
