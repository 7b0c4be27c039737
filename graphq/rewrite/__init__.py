"""The tools that passes are written with: patterns, the matcher, rewrites, and the partitions that fusions make."""
