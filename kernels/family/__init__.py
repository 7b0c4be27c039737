"""Code that all kernel families share: expressions from bodies of partitions, tables, scales and slots."""
