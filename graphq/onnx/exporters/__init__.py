"""Exporters write operations as ONNX nodes: one file for each family of operations; writer.py has their table."""
