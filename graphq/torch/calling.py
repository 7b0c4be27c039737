"""How a program of PyTorch is called: which tensors its graph takes and returns, and the structures around them."""
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, SymIntArgument, TensorArgument

from graphq.errors import GraphError, InputError
from graphq.ir import Graph
from graphq.torch.operators.importer import VIEWED, array_of, dtype_of

CALLING = "calling"
"""The key in a graph's `meta` for the `Calling` of the program that the graph was made of."""

TORCH_TYPES = {dtype_of(dtype).numpy: dtype for dtype in VIEWED}
"""PyTorch's element types by NumPy's, for types that `torch.from_numpy` does not take."""


class Calling(NamedTuple):
    """The structure of a program's arguments and of its result, flattened into leaves.

    For each leaf of the arguments, `arguments` says whether it is an input of the graph. For each leaf of the result,
    `results` has its kind ("tensor" or "number"), or a tuple with the constant that the program returns.
    """

    in_spec: Any
    out_spec: Any
    arguments: tuple[bool, ...]
    results: tuple[Any, ...]

    @staticmethod
    def of(program: torch.export.ExportedProgram) -> "Calling":
        """The calling of a program."""
        signature, specs = program.graph_signature, program.call_spec
        arguments = [isinstance(s.arg, TensorArgument) for s in signature.input_specs if s.kind == InputKind.USER_INPUT]
        returned = [s.arg for s in signature.output_specs if s.kind == OutputKind.USER_OUTPUT]
        results = [(x.value,) if isinstance(x, ConstantArgument) else
                   "number" if isinstance(x, SymIntArgument) else "tensor" for x in returned]
        return Calling(specs.in_spec, specs.out_spec, tuple(arguments), tuple(results))

    @staticmethod
    def in_graph(graph: Graph) -> "Calling":
        """The calling in a graph's `meta`; raises GraphError if the graph was not made by `from_torch`."""
        found = graph.meta.get(CALLING)
        if not isinstance(found, Calling):
            raise GraphError(f"graph '{graph.name}' was not made by from_torch: its structure of inputs is not known")
        return found

    def arrays(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[np.ndarray]:
        """The arrays for the graph's inputs, which share the memory of contiguous tensors."""
        leaves: Sequence[Any] = args
        if kwargs or len(args) != len(self.arguments) or not all(isinstance(x, torch.Tensor) for x in args):
            try:
                leaves = self.in_spec.flatten_up_to((tuple(args), dict(kwargs)))
            except (TypeError, ValueError) as e:
                raise InputError(f"the arguments do not have the structure of the example inputs: {e}") from None
        taken = [x for x, is_input in zip(leaves, self.arguments, strict=True) if is_input]
        for x in taken:
            if not isinstance(x, torch.Tensor) or x.device.type != "cpu":
                raise InputError("inputs must be tensors on the CPU, got "
                                 f"{x.device if isinstance(x, torch.Tensor) else type(x).__name__}")
        return [array_of(x) for x in taken]

    def structured(self, arrays: Sequence[np.ndarray]) -> Any:
        """The program's result, with tensors that share the memory of the arrays."""
        rest = iter(arrays)
        leaves = [kind[0] if isinstance(kind, tuple) else tensor_of(next(rest)) if kind == "tensor" else
                  int(next(rest).reshape(())) for kind in self.results]
        return self.out_spec.unflatten(leaves)


def tensor_of(array: np.ndarray) -> torch.Tensor:
    """A tensor that shares the array's memory; a read-only array is copied, because tensors are writable."""
    array = array if array.flags.writeable else array.copy()
    if array.dtype in TORCH_TYPES:
        dtype = TORCH_TYPES[array.dtype]
        return torch.from_numpy(array.view(f"i{array.itemsize}")).view(dtype)
    return torch.from_numpy(array)
