"""ONNX's own data and tools: types, tensors, functions, node order, shape inference and the reference evaluator."""
