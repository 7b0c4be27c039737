"""What a fusion makes of a graph in text."""
from graphq.ir.text import parse
from graphq.testing import check_same_numbers


def text_of(statements, inputs):
    """The text of a graph."""
    return f"graph({inputs}) {{{statements}\n}}"


def fused(fusion, statements, inputs):
    """The operations of the partitions that the fusion makes, and its refusals; the numbers stay."""
    g = parse(text_of(statements, inputs))
    before = g.copy()
    _, refusals = fusion.apply(g)
    check_same_numbers(before, g)
    return [[n.op.name for n in p.attrs["body"].nodes] for p in g.nodes if p.op.name == "partition"], refusals
