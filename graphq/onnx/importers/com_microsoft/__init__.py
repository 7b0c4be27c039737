"""Importers of the operators of the domain com.microsoft, which ONNX Runtime documents and writes."""
