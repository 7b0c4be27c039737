"""ONNX models in and out; needs the package onnx (`pip install graphq[onnx]`)."""
from graphq.onnx.loading import load_onnx
from graphq.onnx.saving import save_onnx, to_model

__all__ = ["load_onnx", "save_onnx", "to_model"]
