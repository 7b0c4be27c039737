"""Graphs of statements in text, and what tests ask of graphs."""
from graphq.ir.text import parse


def text_of(statements, inputs):
    """The text of a graph."""
    return f"graph({inputs}) {{\n{statements}\n}}"


def graph_of(statements, inputs):
    """The graph of these statements."""
    return parse(text_of(statements, inputs))


def ops(graph):
    """The names of its operations, in order."""
    return [n.op.name for n in graph.nodes]
