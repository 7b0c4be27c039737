"""Importers of the operators of the domain com.microsoft: ONNX Runtime documents and writes them."""
