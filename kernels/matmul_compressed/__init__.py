"""The family of matmuls with 4-bit weights."""
