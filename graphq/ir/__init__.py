"""Graphs: building, text form, copies, verifier and reference interpreter."""
from graphq.ir.graph import Dim, Graph, Node, Op, Operand, Property, TensorType, Use, Value

__all__ = ["Dim", "Graph", "Node", "Op", "Operand", "Property", "TensorType", "Use", "Value"]
