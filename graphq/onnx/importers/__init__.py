"""How ONNX operators become operations: one file for each family of operators, over the table in importer.py."""
from importlib import import_module

for _family in ("attention", "by_reference", "contributed", "control", "conv", "einsum", "eltwise", "fused", "grouped",
                "matmul", "microsoft", "move", "norm", "pick", "pool", "quant", "recurrent", "reduce", "shape",
                "signal", "transformer", "trees"):
    import_module(f"graphq.onnx.importers.{_family}")  # each fills IMPORTERS, for whoever reads it
