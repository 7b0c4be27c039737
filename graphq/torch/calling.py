"""How a program of PyTorch is called: which tensors its graph takes and returns, and the structures around them."""
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from graphq.errors import InputError

CALLING = "calling"
"""The key in a graph's `meta` for the `Calling` of the program that the graph was made of."""


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

    def takes(self, k: int, x: Any) -> bool:
        """Whether leaf `k` of the arguments is an input of the graph. Raises InputError if `x` may not be there."""
        exported, tensor = self.arguments[k], isinstance(x, torch.Tensor)
        if exported is torch.Tensor and not (tensor and x.device.type == "cpu"):
            raise InputError(f"inputs must be tensors on the CPU, got {x.device if tensor else type(x).__name__}")
        if exported is not torch.Tensor and not (type(x) is type(exported) and x == exported):
            raise InputError(f"argument {k} was {exported!r} when the program was exported, and is "
                             f"{type(x).__name__ if tensor else repr(x)}: export it again")
        return exported is torch.Tensor

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
