"""oneDNN Graph's formats and tools: JSON files, kinds of operations, and partitions."""
