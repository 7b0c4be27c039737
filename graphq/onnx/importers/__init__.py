"""Importers: functions that turn ONNX operators into graphq's operations. importer.py has the table of them."""
from importlib import import_module

for _family in ("attention", "by_reference", "com_microsoft.attention", "com_microsoft.quantized",
                "com_microsoft.small", "com_microsoft.transformer", "control", "conv", "eltwise", "matmul", "norm",
                "pool", "quant", "recurrent", "shape", "signal"):
    import_module(f"graphq.onnx.importers.{_family}")  # on import, the module adds its importers to IMPORTERS
