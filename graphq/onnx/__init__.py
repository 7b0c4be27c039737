"""ONNX models in and out; needs the package onnx (`pip install graphq[onnx]`)."""
from typing import TYPE_CHECKING, Any

from graphq.onnx.loading import load_onnx

if TYPE_CHECKING:
    from graphq.onnx.saving import save_onnx, to_model

__all__ = ["load_onnx", "save_onnx", "to_model"]


def __getattr__(name: str) -> Any:
    """What saves, when it is first asked for: its table of operators takes as long to import as that of loading."""
    if name not in __all__:
        raise AttributeError(f"module 'graphq.onnx' has no attribute {name!r}")
    from graphq.onnx import saving

    return getattr(saving, name)
