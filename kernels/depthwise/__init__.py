"""Depthwise convolutions: packed weights, tiles of integers and floats, and which of them is taken."""
