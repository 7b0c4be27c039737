"""How kernels find operands: rows, columns and windows of activations, and domains of broadcast operands."""
