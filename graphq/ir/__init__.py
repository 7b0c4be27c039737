"""The graph: values, nodes, operations' declarations, text, copies, and what checks and evaluates graphs."""
from graphq.ir.graph import Dim, Graph, Node, Op, Operand, Property, TensorType, Use, Value

__all__ = ["Dim", "Graph", "Node", "Op", "Operand", "Property", "TensorType", "Use", "Value"]
