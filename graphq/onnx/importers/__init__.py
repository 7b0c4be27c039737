"""How ONNX operators become operations: one file for each family of operators, over the table in importer.py."""
