"""The family of interpolations."""
