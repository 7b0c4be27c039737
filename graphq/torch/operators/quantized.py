"""Importers of quantized operators of PT2E (`quantized_decomposed`) and torchao."""
