"""What runs a graph: its plan with the trace of its sizes, made now or read from a file, at sizes, and in stages."""
