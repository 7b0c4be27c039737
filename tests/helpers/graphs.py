"""What tests ask of graphs."""


def ops(graph):
    """The names of its operations, in order."""
    return [n.op.name for n in graph.nodes]
