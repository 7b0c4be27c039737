"""NumPy formulas of numbers that depend on the order of sums, shared by kernels and references of operations."""
