"""Access to ONNX's data and tools: types, tensors, functions, shape inference and the reference evaluator."""
