"""NumPy formulas whose results depend on the order of sums; kernels and references of operations share them."""
