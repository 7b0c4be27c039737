"""oneDNN Graph's formats and tools: JSON files, kinds of operations, partitions, and benchdnn's knobs and runner."""
