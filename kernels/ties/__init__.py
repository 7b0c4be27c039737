"""Outputs near a tie of their rounding: how far sums in f32 may lie from exact ones, and what settles the outputs."""
