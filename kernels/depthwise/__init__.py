"""Depthwise convolutions: packed weights, tiles of integers and of floats, and the choice between them."""
