"""The operations, one file for each family; importing this package registers all of them."""
from importlib import import_module

from graphq.base.collector import collector_paused

with collector_paused():
    for _family in ("arithmetic", "attention", "binary", "cast", "control", "conv", "conv_transpose", "detect",
                    "dropout", "dynamic_quant", "eltwise", "grid_sample", "integer", "interpolate", "linear_quant",
                    "logic", "matmul", "move", "norm", "normalise", "pick", "pool", "quant", "recurrent", "reduce",
                    "shape", "structure", "threshold", "trees"):
        import_module(f"graphq.ops.{_family}")  # the import enters the family's operations in OPS
