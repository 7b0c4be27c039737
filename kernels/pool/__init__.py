"""The family of pools."""
