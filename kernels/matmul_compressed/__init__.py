"""The family of matmuls whose constant weights stay compressed, as integers of 4 or 8 bits."""
