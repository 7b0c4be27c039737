"""How kernels find their operands: rows, columns and windows of activations, and broadcast spaces."""
