"""Reports on compiled models: what fused and why not, the share of integer work, times, instructions."""
