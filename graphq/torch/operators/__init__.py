"""Importers by kind of operator; the import of this package fills the table `importer.OPERATORS`."""
from graphq.torch.operators import arithmetic, layers, quantized, shape

__all__ = ["arithmetic", "layers", "quantized", "shape"]
