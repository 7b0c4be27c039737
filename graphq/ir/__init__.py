"""Graphs: building, text form, copies, verifier and reference interpreter. Other rooms import these names from here."""
from graphq.ir.copies import add_copies, check_names, flat, part_of, rebuilt, returning, specialized
from graphq.ir.graph import Dim, Graph, Node, Op, Operand, Property, TensorType, Use, Value
from graphq.ir.interpret import SIZED_CONSTANT, GraphInput, Signature, add_known, known, named_outputs, reference
from graphq.ir.names import FILE_NAMES, Labels, Origin, choice, counted, listing, new_name, quote, suggestion
from graphq.ir.node import GRAPH_ORDER, ONNX_NAME, makers_of, reached, readers_of, sources
from graphq.ir.op import OPS, Curve, keywords, lookup, normalize, register_op, spelled, walk_ops
from graphq.ir.tensor_type import array_type, check_dims, check_size, shapes_agree
from graphq.ir.text import SHORT, attributes, to_text
