"""Exporters: functions that write graphq's operations as ONNX nodes. writer.py has the table of them."""
