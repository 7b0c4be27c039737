"""Write `graphq/ir/operations.pyi`, the builder methods for type checkers and editors: run this file."""
import inspect
import textwrap
import types
import typing
from pathlib import Path
from typing import Any, Literal

import numpy as np

from graphq.dtypes import DType
from graphq.ir.graph import Graph
from graphq.ir.op import Op, walk_ops
from graphq.ir.tensor_type import TensorType

PATH = Path(inspect.getfile(Graph)).with_name("operations.pyi")

_HEAD = '''"""Builder methods of graphs, made from operations' declarations by `tests/helpers/operations_stub.py`."""
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from graphq.dtypes import DTypeLike
from graphq.ir import Graph
from graphq.ir.node import Number, Value
from graphq.ir.op import Op

def add_method(name: str, method: Callable[..., Any]) -> None: ...

def add_builder(op: Op) -> None: ...

class Operations:
'''

_NAMES = {DType: "DTypeLike", np.ndarray: "np.ndarray", Graph: "Graph", type(None): "None"}
_WIDTH = 120


def stub() -> str:
    """The text of `operations.pyi`, without methods that Graph itself defines."""
    return _HEAD + "\n".join(_method(op) for op in walk_ops() if op.name not in vars(Graph))


def _method(op: Op) -> str:
    operands = [f"*{p.name}: Number | None" if p.variadic else f"{p.name}: Number" + " | None = None" * p.optional
                for p in op.operands]
    parameters = ["self", *operands, *([] if op.variadic else ["/", "*"])]
    for a in op.signature.parameters.values():
        if a.kind is a.KEYWORD_ONLY:
            default = "" if a.default is a.empty else f" = {_default(a.default)}"
            parameters.append(f"{a.name}: {_annotation(a.annotation)}{default}")
    doc = textwrap.indent(op.doc, " " * 8).lstrip() + "\n        " * ("\n" in op.doc)
    return f'{_filled(f"    def {op.name}(", parameters, f") -> {_result(op)}:")}\n        """{doc}"""\n'


def _filled(head: str, parameters: list[str], tail: str) -> str:
    lines, indent = [head], " " * len(head)
    for k, p in enumerate(parameters):
        part = p + (tail if k == len(parameters) - 1 else ", ")
        if len(lines[-1]) + len(part.rstrip()) > _WIDTH:
            lines[-1] = lines[-1].rstrip()
            lines.append(indent)
        lines[-1] += part
    return "\n".join(lines)


def _annotation(annotation: Any) -> str:
    """The annotation of an attribute for callers. They may give any sequence for a list, and any name of a dtype."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(_annotation(a) for a in args)
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, args))}]"
    if origin in (list, tuple):
        return f"Sequence[{_annotation(args[0])}]" + " | np.ndarray" * (args[0] in (int, float))
    return _NAMES.get(annotation) or annotation.__name__


def _default(value: Any) -> str:
    return repr(value) if value is None or isinstance(value, bool | int | float | str | tuple) else "..."


def _result(op: Op) -> str:
    result = inspect.signature(op.infer, eval_str=True).return_annotation
    return {TensorType: "Value", tuple[TensorType, TensorType]: "tuple[Value, Value]"}.get(result, "Any")


if __name__ == "__main__":
    PATH.write_text(stub(), encoding="utf-8")
