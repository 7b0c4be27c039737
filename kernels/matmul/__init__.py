"""The family of integer and float matmuls."""
