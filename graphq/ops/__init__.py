"""The operations, one file per family, and the version of their numbers. An import registers all operations."""
from importlib import import_module

from graphq.base.budget import collector_paused

NUMBERS = 3
"""The version of graphq's numbers. tests/test_same_bits.py has digests of outputs for it."""

with collector_paused():
    for _family in ("angles", "arithmetic", "attention", "binary", "control", "conv", "dropout", "dynamic_quant",
                    "eltwise", "interpolate", "matmul", "move", "normalize", "pick", "pool", "positions", "quant",
                    "recurrent", "reduce"):
        import_module(f"graphq.ops.{_family}")  # the import registers the family's operations in OPS
