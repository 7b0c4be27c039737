"""The expression compiler: what a kernel computes for each output element, in NumPy and as vector code."""
