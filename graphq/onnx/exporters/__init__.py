"""Exporters write operations as ONNX nodes: one file for each family of operations, over the table in writer.py."""
