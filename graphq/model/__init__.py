"""Compiled models: make plans, or read plans from files; run plans at the sizes of each call; save models."""
