"""oneDNN Graph's JSON files, kinds of operations, and partitions."""
