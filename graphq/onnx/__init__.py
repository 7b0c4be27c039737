"""ONNX models in and out; needs the package onnx (`pip install graphq[onnx]`)."""
from graphq.onnx.loading import load_onnx

__all__ = ["load_onnx"]
