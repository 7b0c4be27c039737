"""The family of elementwise chains."""
