"""The family of concats."""
