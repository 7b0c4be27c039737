"""What a user asks a compiled model: what fused and why not, the share of integer work, times, instructions."""
