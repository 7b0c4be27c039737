"""What the package onnx is asked for: types, tensors, functions, the order of nodes, shape inference, the reference."""
