"""The table of ATen operators: each has a function that takes a `AtenCall` and returns the values of its results."""
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import numpy as np
import torch
from onnx import helper

from graphq import dtypes as t
from graphq.dtypes import DType, as_dtype
from graphq.errors import GraphError
from graphq.ir import Graph, TensorType, Value
from graphq.ir.op import lookup
from graphq.onnx.importers.importer import Scope, import_node

Result: TypeAlias = "Value | int | float | bool | None | Sequence[Result]"
Importer: TypeAlias = "Callable[[AtenCall], Result]"

OPERATORS: dict[str, Importer] = {}
"""The importers by the names of operators without overloads, such as "aten.add"."""

OPSET = 23
"""The version of ONNX's operator set in which `AtenCall.onnx` writes nodes."""

DTYPES = {torch.bool: t.boolean, torch.float32: t.f32, torch.float64: t.f64, torch.bfloat16: t.bf16,
          torch.float16: t.f16, torch.float8_e4m3fn: t.f8_e4m3, torch.float8_e5m2: t.f8_e5m2, torch.int64: t.s64,
          torch.int32: t.s32, torch.int16: t.s16, torch.int8: t.s8, torch.uint8: t.u8, torch.uint16: t.u16,
          torch.uint32: t.u32, torch.uint64: t.u64}
"""graphq's element types by PyTorch's."""

VIEWED = {torch.bfloat16: torch.int16, torch.float8_e4m3fn: torch.uint8, torch.float8_e5m2: torch.uint8}
"""Element types that NumPy lacks, and the integers to view them as in PyTorch."""


def imports(*names: str) -> Callable[[Importer], Importer]:
    """Register the decorated function as the importer of these operators."""

    def declare(f: Importer) -> Importer:
        imports_each(dict.fromkeys(names, f))
        return f

    return declare


def imports_each(importers: dict[str, Importer], namespace: str = "aten") -> None:
    """Register importers by operator, `aten` unless the name or `namespace` says otherwise."""
    for name, importer in importers.items():
        OPERATORS[name if "." in name else f"{namespace}.{name}"] = importer


def dtype_of(dtype: torch.dtype) -> DType:
    """graphq's element type for a dtype of PyTorch. Raises GraphError if there is none."""
    if dtype not in DTYPES:
        raise GraphError(f"graphq has no element type for {dtype}")
    return DTYPES[dtype]


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """A read-only array that shares the tensor's memory, if the tensor is contiguous and on the CPU."""
    tensor = tensor.detach().cpu().contiguous()
    dtype = dtype_of(tensor.dtype)
    array: np.ndarray = tensor.view(VIEWED.get(tensor.dtype, tensor.dtype)).numpy().view(dtype.numpy)
    array.flags.writeable = False
    return array


def constant_of(graph: Graph, tensor: torch.Tensor) -> Value:
    """A constant that shares the tensor's memory."""
    array = array_of(tensor)
    return graph.add_checked(lookup("constant"), (), {"value": array},
                             [TensorType(as_dtype(array.dtype), array.shape)])[0]


@dataclass
class AtenCall:
    """A call of an operator: the graph, the node of the program, and its arguments.

    Tensors are Values. Symbolic integers are numbers if they are known, otherwise Values s64[1]. `op` is the operator's
    name without its namespace and overload, and `name` a name for the first result.
    """

    graph: Graph
    node: Any
    args: Sequence[Any]
    kwargs: dict[str, Any]
    op: str
    name: str

    def arg(self, k: int, name: str = "", default: Any = None) -> Any:
        """Argument `k`, which may be given by `name`."""
        return self.args[k] if k < len(self.args) else self.kwargs.get(name, default)

    def input(self, k: int, name: str = "") -> Value:
        """The tensor in argument `k`; a number becomes a constant of the result's dtype."""
        x = self.arg(k, name)
        return x if isinstance(x, Value) else self.number(x, self.dtype())

    def number(self, x: Any, dtype: DType) -> Value:
        """A number or list of numbers as a constant."""
        return self.graph.add_constant(np.asarray(x).astype(dtype.numpy))

    def fake(self, k: int | None = None) -> Any:
        """What the program says of its result or argument `k`: a fake tensor, or a tuple of fake tensors."""
        node = self.node if k is None else self.node.args[k]
        return node.meta.get("val") if hasattr(node, "meta") else node

    def dtype(self) -> DType:
        """The element type of the first result."""
        val = self.fake()
        return dtype_of((val[0] if isinstance(val, tuple | list) else val).dtype)

    def cast(self, x: Value, dtype: DType | None = None) -> Value:
        """Convert `x` to `dtype`, or to the result's element type."""
        dtype = dtype or self.dtype()
        return x if x.dtype == dtype else self.onnx("Cast", x, to=helper.np_dtype_to_tensor_dtype(dtype.numpy))

    def onnx(self, op_type: str, *inputs: Value | np.ndarray | None, outputs: Any = 1, **attrs: Any) -> Any:
        """Import an ONNX node with these operands; returns its result, or a list of its results."""
        values = [self.graph.add_constant(x) if isinstance(x, np.ndarray) else x for x in inputs]
        names = [f"{self.name}/in{k}" if v is not None else "" for k, v in enumerate(values)]
        scope = Scope({"": OPSET}, {name: v for name, v in zip(names, values, strict=True) if v is not None})
        results = [f"{self.name}/{op_type}{k or ''}" for k in range(outputs)]
        import_node(self.graph, helper.make_node(op_type, names, results, **attrs), scope)
        found = [scope.values[name] for name in results]
        return found[0] if outputs == 1 else found

    def size(self, x: Value, axis: int) -> Any:
        """The size of an axis: a number, or a Value s64[1] if it is open."""
        dims = self.dims(x)
        if dims[axis] is not None:
            return dims[axis]
        axis %= len(dims)
        return self.onnx("Shape", x, start=axis, end=axis + 1)

    def dims(self, x: Value) -> tuple[Any, ...]:
        """The dimensions of `x`; open dimensions are None."""
        if x.shape is None:
            self.refuse(f"the rank of {x.type} must be known")
        return x.shape

    def vector(self, sizes: Sequence[Any]) -> Value:
        """Sizes, numbers or Values s64[1], as one vector."""
        if not any(isinstance(n, Value) for n in sizes):
            return self.number(sizes, t.s64)
        return self.onnx("Concat", *(n if isinstance(n, Value) else self.number([n], t.s64) for n in sizes), axis=0)

    def results(self, value: Value) -> Any:
        """The first result, or a list with None for the operator's further results, which nothing uses."""
        val = self.fake()
        if not isinstance(val, tuple | list):
            return value
        used = [user.args[1] for user in self.node.users if user.args[1] and user.users]
        if used:
            self.refuse(f"its result {used[0]} is not supported")
        return [value, *[None] * (len(val) - 1)]

    def refuse(self, message: str) -> NoReturn:
        """Raise GraphError."""
        raise GraphError(message)
