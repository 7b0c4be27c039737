"""Depthwise convolutions: packed weights, integer tiles and float tiles."""
