"""Depthwise convolutions: packed weights, integer and float tiles, and the choice between them."""
