"""Passes: one a file; pipeline.py has their order."""
