"""The expression compiler: it evaluates lane-wise expressions in NumPy and compiles them to vector code."""
