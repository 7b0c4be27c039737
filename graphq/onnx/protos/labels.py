"""Names of ONNX nodes in messages, and the lines of PyTorch code that they are from."""
import re

from onnx import NodeProto

TRACE = "pkg.torch.onnx.stack_trace"
"""The key in a node's metadata for the call stack of PyTorch code that the node is from."""


def label(node: NodeProto) -> str:
    """The node's label in messages: `Conv 'name'` or `Conv 'first output'`, with the source line if it is known."""
    line = line_of(node)
    return f"{node.op_type} '{node.name or next(iter(node.output), '')}'" + (f" ({line})" if line else "")


def source_line(trace: str) -> str:
    """The innermost line of a call stack that is outside of PyTorch: `File "net.py", line 7, in forward`."""
    lines = re.findall(r"^ *(File .*)", trace, re.MULTILINE)
    own = [x for x in lines if not re.search(r"[/\\]torch[/\\](_|functional\.py|nn[/\\])", x)]
    return (own or lines or [""])[-1]


def line_of(node: NodeProto) -> str:
    """The line of PyTorch code that a node is from; empty if the file does not say so."""
    return source_line(next((p.value for p in node.metadata_props if p.key == TRACE), ""))
