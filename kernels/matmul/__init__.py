"""The family of matmuls, of integers and of floats."""
