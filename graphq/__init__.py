"""graphq: a oneDNN-Graph-style operator graph compiler in Python."""
