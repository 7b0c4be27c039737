"""What the kernel families share: how bodies of partitions become expressions, tables, scales, slots."""
