"""graphq: a oneDNN-Graph-style operator graph compiler in Python."""
from graphq import dtypes, errors, ops, passes, testing
from graphq.compile import CompiledGraph, compile
from graphq.dtypes import DType
from graphq.errors import (
    CompileError,
    GraphError,
    GraphqError,
    InputError,
    KernelError,
    ParseError,
    VerifyError,
)
from graphq.interpret import reference
from graphq.ir import Graph, Node, TensorType, Value
from graphq.onednn_json import load_onednn_json, save_onednn_json
from graphq.onnx_files import load_onnx, save_onnx
from graphq.partitions import Partition
from graphq.text import parse, to_text

__version__ = "0.1.0"

__all__ = ["CompileError", "CompiledGraph", "DType", "Graph", "GraphError", "GraphqError", "InputError", "KernelError",
           "Node", "ParseError", "Partition", "TensorType", "Value", "VerifyError", "compile", "dtypes", "errors",
           "load_onednn_json", "load_onnx", "ops", "parse", "passes", "reference", "save_onednn_json", "save_onnx",
           "testing", "to_text"]
