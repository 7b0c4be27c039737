"""How a program of PyTorch is called: which tensors its graph takes and returns, and the structures around them."""
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from graphq.errors import GraphError, InputError
from graphq.ir import Graph
from graphq.torch.operators.importer import VIEWED, array_of, dtype_of

CALLING = "calling"
"""The key in a graph's `meta` for the `Calling` of the program that the graph was made of."""

TORCH_TYPES = {dtype_of(dtype).numpy: dtype for dtype in VIEWED}
"""PyTorch's element types by NumPy's, for types that `torch.from_numpy` does not take."""


class Calling(NamedTuple):
    """The structure of a program's arguments and of its result, flattened into leaves.

    For each leaf of the arguments, `arguments` has the class Tensor if it is an input of the graph, otherwise the value
    that the program was exported with. The graph's first inputs are `buffers`, tensors of the module that the program
    changes; its first outputs are new values for `changed`: buffers, and arguments by their number. For each leaf of
    the result, `results` has its kind: "tensor", "number" or None. `guards` are functions of the leaves that raise
    AssertionError for sizes that the program was not exported for.
    """

    in_spec: Any
    out_spec: Any
    arguments: tuple[Any, ...]
    buffers: tuple[torch.Tensor, ...]
    changed: tuple[torch.Tensor | int, ...]
    results: tuple[str | None, ...]
    guards: tuple[Callable[..., Any], ...]

    @staticmethod
    def in_graph(graph: Graph) -> "Calling":
        """The calling in a graph's `meta`; raises GraphError if the graph was not made by `from_torch`."""
        found = graph.meta.get(CALLING)
        if not isinstance(found, Calling):
            raise GraphError(f"graph '{graph.name}' was not made by from_torch: its structure of inputs is not known")
        return found

    def call(self, run: Callable[..., Iterable[np.ndarray]], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run the graph and return the program's result; tensors and arrays share memory, if tensors are contiguous.

        Tensors that the program changes are changed after the run. Raises InputError for wrong arguments.
        """
        leaves: Sequence[Any] = args
        if kwargs or len(args) != len(self.arguments) or not all(isinstance(x, torch.Tensor) for x in args):
            try:
                leaves = self.in_spec.flatten_up_to((tuple(args), dict(kwargs)))
            except (TypeError, ValueError) as e:
                raise InputError(f"the arguments do not have the structure of the example inputs: {e}") from None
        taken = [x for x, exported in zip(leaves, self.arguments, strict=True) if exported is torch.Tensor]
        for k, (x, exported) in enumerate(zip(leaves, self.arguments, strict=True)):
            if exported is not torch.Tensor and not (type(x) is type(exported) and x == exported):
                raise InputError(f"argument {k} was {exported!r} when the program was exported, and is "
                                 f"{type(x).__name__ if isinstance(x, torch.Tensor) else repr(x)}: export it again")
        for x in taken:
            if not isinstance(x, torch.Tensor) or x.device.type != "cpu":
                raise InputError("inputs must be tensors on the CPU, got "
                                 f"{x.device if isinstance(x, torch.Tensor) else type(x).__name__}")
        found = iter(run(*map(array_of, (*self.buffers, *taken))))
        for target in self.changed:
            old = leaves[target] if isinstance(target, int) else target
            old.detach().copy_(tensor_of(next(found)))
        return self.out_spec.unflatten([None if kind is None else tensor_of(next(found)) if kind == "tensor" else
                                        next(found).item() for kind in self.results])

    def check_shapes(self, shapes: Sequence[Sequence[int]]) -> None:
        """Raise InputError for shapes of the graph's inputs that the program was not exported for."""
        given = [tuple(shape) for shape in shapes[len(self.buffers):]]
        sizes = iter(given)
        leaves = [torch.empty(next(sizes), device="meta") if x is torch.Tensor else x for x in self.arguments]
        for guard in self.guards:
            try:
                guard(*leaves)
            except AssertionError as e:
                raise InputError(f"the program was not exported for these sizes, {given}: {e}") from None


def tensor_of(array: np.ndarray) -> torch.Tensor:
    """A tensor that shares the array's memory; a read-only array is copied, because tensors are writable."""
    array = array if array.flags.writeable else array.copy()
    if array.dtype in TORCH_TYPES:
        dtype = TORCH_TYPES[array.dtype]
        return torch.from_numpy(array.view(f"i{array.itemsize}")).view(dtype)
    return torch.from_numpy(array)
