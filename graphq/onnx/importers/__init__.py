"""Importers turn ONNX operators into operations: a file for each family, over the table in importer.py."""
from importlib import import_module

for _family in ("by_reference", "com_microsoft.attention", "com_microsoft.fused", "com_microsoft.group_query",
                "com_microsoft.quantized", "com_microsoft.small", "com_microsoft.transformer", "control", "conv",
                "eltwise", "matmul", "move", "norm", "pool", "quant", "recurrent", "reduce",
                "shape", "trees"):
    import_module(f"graphq.onnx.importers.{_family}")  # each fills IMPORTERS, for whoever reads it
