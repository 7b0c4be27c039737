"""Code that all kernel families share: from bodies of partitions to expressions, tables, scales and slots."""
