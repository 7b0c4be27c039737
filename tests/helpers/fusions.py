"""What a fusion makes of a graph in text."""
from graphs import graph_of

from graphq.testing import check_same_numbers


def fused(fusion, statements, inputs):
    """The operations of the partitions that the fusion makes, and its refusals; the numbers stay."""
    g = graph_of(statements, inputs)
    before = g.copy()
    _, refusals = fusion.apply(g)
    check_same_numbers(before, g)
    return [[n.op.name for n in p.attrs["body"].nodes] for p in g.nodes if p.op.name == "partition"], refusals
