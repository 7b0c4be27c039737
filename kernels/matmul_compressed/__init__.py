"""The family of matmuls whose constant weights stay compressed, as integers of 2 to 8 bits or floats of 4 to 8 bits."""
