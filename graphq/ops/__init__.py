"""The operations, one file per family. Importing this package registers all operations."""
from importlib import import_module

from graphq.base.budget import collector_paused

with collector_paused():
    for _family in ("angles", "arithmetic", "attention", "binary", "control", "conv", "dropout", "dynamic_quant",
                    "eltwise", "interpolate", "matmul", "move", "normalize", "pick", "pool", "positions", "quant",
                    "recurrent", "reduce"):
        import_module(f"graphq.ops.{_family}")  # the import registers the family's operations in OPS
