"""How kernels find their operands.

Rows, columns and windows of activations, and iteration domains of broadcast operands.
"""
