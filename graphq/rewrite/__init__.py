"""Tools for writing passes: patterns, the matcher, rewrites, fixpoints and partitions."""
