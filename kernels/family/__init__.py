"""Code that all kernel families share: it lowers bodies of partitions and locates their operands."""
