"""The table of operators: each has a function that takes an `AtenCall` and returns the values of its results."""
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, NoReturn, TypeAlias

import numpy as np
import torch
from onnx import NodeProto, helper
from torch.fx.operator_schemas import get_signature_for_torch_op

from graphq import dtypes as t
from graphq.dtypes import DType, as_dtype
from graphq.errors import GraphError
from graphq.ir import Graph, Value
from graphq.onnx.importers.composed import standard
from graphq.onnx.importers.importer import Call, Scope

Result: TypeAlias = "Value | int | float | bool | None | Sequence[Result]"
Importer: TypeAlias = "Callable[[AtenCall], Result]"

OPERATORS: dict[str, Importer] = {}
"""The importers by the names of operators without overloads, such as "aten.add"."""

PYTHON = {"floordiv": "aten.floor_divide", "mod": "aten.remainder", "sym_max": "aten.maximum",
          "sym_min": "aten.minimum", "sym_float": "aten.to", "truediv": "aten.div", "_sym_sqrt": "aten.sqrt",
          **{name: f"aten.{name}" for name in "add sub mul neg pow trunc floor ceil eq ge gt le lt sym_sum".split()}}
"""Functions of Python on symbolic numbers, and the operators that compute the same."""

NUMBERS = {torch.SymInt: t.s64, torch.SymFloat: t.f64, torch.SymBool: t.boolean}
"""The element types of symbolic numbers."""

STATED = frozenset(
    "device dtype half_to_float implicit input_dtype layout memory_format out_dtype output_dtype physical_layout "
    "pin_memory C HxW N copy cudnn_enable cudnn_enabled enable_gqa momentum non_blocking padding_idx path "
    "return_debug_mask scale_grad_by_freq sorted sparse sparse_grad stable".split())
"""Arguments that importers need not read: the results' types state them, or they change no number of a result."""


def imports(importers: Mapping[str, Importer]) -> None:
    """Register importers by operators, separated by spaces; names without a namespace are ATen's."""
    for names, importer in importers.items():
        OPERATORS.update({name if "." in name else f"aten.{name}": importer for name in names.split()})


def operator_name(target: Any) -> str:
    """The name of an operator without its overload: "aten.add"; see `PYTHON` for functions."""
    if hasattr(target, "overloadpacket"):
        return str(target.overloadpacket)
    name = getattr(target, "__name__", str(target))
    return PYTHON.get(name, name)


@cache
def defaults(target: Any) -> dict[str, Any]:
    """The defaults of an operator's arguments, by their names."""
    signatures = get_signature_for_torch_op(target) or []
    return {name: p.default for signature in signatures for name, p in signature.parameters.items()}


@cache
def dtype_of(dtype: torch.dtype) -> DType:
    """graphq's element type for a dtype of PyTorch. Raises GraphError if there is none."""
    return as_dtype(str(dtype).removeprefix("torch."))


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """A read-only array that shares the tensor's memory, if the tensor is contiguous and on the CPU."""
    tensor, dtype = tensor.detach().cpu().contiguous(), dtype_of(tensor.dtype).numpy
    array: np.ndarray = tensor.numpy() if dtype.isbuiltin == 1 else \
        tensor.view(getattr(torch, f"int{8 * dtype.itemsize}")).numpy().view(dtype)
    array.flags.writeable = False
    return array


def tensor_of(array: np.ndarray) -> torch.Tensor:
    """A tensor that shares the array's memory; a read-only array is copied, because tensors are writable."""
    array = array if array.flags.writeable else array.copy()
    if array.dtype.isbuiltin == 1:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(f"i{array.itemsize}")).view(getattr(torch, array.dtype.name))


@dataclass
class AtenCall:
    """A call of an operator: the graph, the node of the program, and its arguments by the names of the schema.

    `nodes` has the arguments of the program, and `args` their values. Tensors are Values. Symbolic integers are numbers
    if they are known, otherwise Values s64[1]. `op` is the operator's name without its namespace and overload, and
    `name` a name for the first result. `call["dim"]` is the argument `dim`, or None if this overload has no such
    argument; the argument `self` is called "input". `call.Add(a, b)` imports the ONNX node `Add`, see `onnx`.
    `read` has the names of arguments that the importer read, or that change no number of this call's results.
    """

    graph: Graph
    node: Any
    nodes: Mapping[str, Any]
    args: Mapping[str, Any]
    op: str
    name: str
    read: set[str] = field(default_factory=set)

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return self.args.get(name)

    def __getattr__(self, op_type: str) -> Any:
        if not op_type[0].isupper():
            raise AttributeError(op_type)
        return partial(self.onnx, op_type)

    @property
    def x(self) -> Value:
        """The first argument; a number becomes a constant of the result's element type."""
        first = self[next(iter(self.args))]
        return first if isinstance(first, Value) else self.value(first)

    def value(self, x: Any, dtype: DType | None = None) -> Value:
        """`x` in an element type, by default the result's. A number or a list of numbers becomes a constant."""
        dtype = dtype or self.dtype()
        if not isinstance(x, Value):
            return self.graph.add_constant(np.asarray(x).astype(dtype.numpy))
        return x if x.dtype == dtype else self.Cast(x, to=helper.np_dtype_to_tensor_dtype(dtype.numpy))

    def scalar(self, x: Any, dtype: DType | None = None) -> Value:
        """A number or a Value s64[1] as a scalar, by default of the result's element type."""
        return self.value(self.graph.static_reshape(x, shape=[]) if isinstance(x, Value) else x, dtype)

    def fake(self, name: str | None = None) -> Any:
        """What the program says of its result or of the argument `name`: a fake tensor, a number, a tuple of these."""
        node = self.node if name is None else self.nodes[name]
        return node.meta.get("val") if hasattr(node, "meta") else node

    def symbols(self, name: str | None = None) -> list[str]:
        """The sizes of the result or of an argument as texts: equal texts are equal sizes."""
        return [str(n) for n in self.fake(name).shape]

    def dtype(self) -> DType:
        """The element type of the first result."""
        val = self.fake()
        first = val[0] if isinstance(val, tuple | list) else val
        return dtype_of(first.dtype) if isinstance(first, torch.Tensor) else NUMBERS.get(type(first), t.s64)

    def onnx(self, op_type: str, *operands: Any, outputs: int = 1, **attrs: Any) -> Any:
        """Import an ONNX node; returns its result, or a list of its results.

        An array becomes a constant, a list a vector of sizes, and a number a constant of the first value's type.
        """
        like = next((v.dtype for v in operands if isinstance(v, Value)), None)
        given = [v if v is None or isinstance(v, Value | np.ndarray) else self.vector(v) if isinstance(v, list) else
                 self.value(v, like) for v in operands]
        call = Call(self.graph, NodeProto(name=self.name), Scope({}), 0, ())
        found = standard(call, op_type, given, outputs, opset=23, **attrs)
        return found[0] if outputs == 1 else found

    def dims(self, x: Value) -> tuple[Any, ...]:
        """The dimensions of `x`; open dimensions are None."""
        if x.shape is None:
            self.refuse(f"the rank of {x.type} must be known")
        return x.shape

    def size(self, x: Value, axis: int) -> Any:
        """The size of an axis: a number, or a Value s64[1] if it is open."""
        dims = self.dims(x)
        axis %= len(dims)
        return dims[axis] if dims[axis] is not None else self.Shape(x, start=axis, end=axis + 1)

    def sizes(self, x: Value) -> list[Any]:
        """The sizes of all axes, numbers or Values s64[1]."""
        return [self.size(x, k) for k in range(len(self.dims(x)))]

    def vector(self, sizes: Sequence[Any]) -> Value:
        """Sizes, numbers or Values s64[1], as one vector."""
        if not any(isinstance(n, Value) for n in sizes):
            return self.value(sizes, t.s64)
        found: Value = self.Concat(*(n if isinstance(n, Value) else self.value([n], t.s64) for n in sizes), axis=0)
        return found

    def imported(self, importer: Importer) -> Result:
        """The importer's results in the program's element types; None if it leaves the call to a decomposition.

        Raises GraphError for an argument that differs from its default and that the importer did not read.
        """
        found, known = importer(self), defaults(self.node.target)
        unread = [name for name, x in self.nodes.items()
                  if x is not None and name not in self.read | STATED and (name not in known or x != known[name])]
        if found is None:
            return None
        if unread:
            self.refuse(f"its argument {unread[0]}={self.nodes[unread[0]]} is not supported")
        fakes = self.fake()
        if isinstance(found, Value):
            return self.value(found)
        return found if not isinstance(found, list) else [
            self.value(v, dtype_of(fake.dtype)) if isinstance(v, Value) else v
            for v, fake in zip(found, fakes, strict=True)]

    def refuse(self, message: str) -> NoReturn:
        """Raise GraphError."""
        raise GraphError(message)
