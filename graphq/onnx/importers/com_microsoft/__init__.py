"""Importers of the operators of the domain com.microsoft, which ONNX Runtime defines and writes into files."""
