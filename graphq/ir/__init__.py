"""The graph, its text form, and the code that copies, checks and evaluates graphs."""
from graphq.ir.graph import Dim, Graph, Node, Op, Operand, Property, TensorType, Use, Value

__all__ = ["Dim", "Graph", "Node", "Op", "Operand", "Property", "TensorType", "Use", "Value"]
