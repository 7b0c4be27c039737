"""Pairs of s8 weights about the bound of vpmaddubsw, whose sums of two products with u8 saturate at 16 bits."""

BOUND = [(64, 64), (1, 127), (127, 2), (65, 64), (127, 127), (-128, 0), (-64, -64), (-1, -127), (-128, -1), (-65, -64),
         (-128, -128), (127, -128), (-128, 127), (-127, 2), (0, 0)]
"""255 * 128 is within 16 bits, 255 * 129 is not; weights of both signs never saturate."""
