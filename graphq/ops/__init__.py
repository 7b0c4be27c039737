"""Op declarations by family."""
