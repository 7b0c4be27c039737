"""Complex numbers, as rotary embeddings multiply them: in a graph, the new last axis of a tensor has both parts."""
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from graphq.errors import GraphError
from graphq.torch.operators.importer import operator_name

BY_PART = frozenset({"cat", "clone", "index", "index_select", "mean", "mul", "neg", "stack", "sum"})
"""Operators that compute each part in the same way, from complex operands and real factors. All views do as well."""

OF_TWO = frozenset({"add", "mul", "sub"})
"""Operators whose functions in `COMPLEX` need two complex operands."""


def pairs(real: Tensor, imaginary: Tensor) -> Tensor:
    """Both parts along a new last axis."""
    return torch.stack([real, imaginary], -1)


def product(x: Tensor, y: Tensor) -> Tensor:
    """Complex products of pairs."""
    (a, b), (c, d) = x.unbind(-1), y.unbind(-1)
    return pairs(a * c - b * d, a * d + b * c)


COMPLEX: dict[str, Callable[..., Tensor]] = {
    "abs": lambda x: torch.hypot(*x.unbind(-1)),
    "add": lambda x, y: x + y,
    "angle": lambda x: torch.atan2(x.select(-1, 1), x.select(-1, 0)),
    "complex": pairs,
    "_conj": lambda x: pairs(x.select(-1, 0), -x.select(-1, 1)),
    "imag": lambda x: x.select(-1, 1),
    "mul": product,
    "polar": lambda length, angle: pairs(length * angle.cos(), length * angle.sin()),
    "real": lambda x: x.select(-1, 0),
    "sub": lambda x, y: x - y,
    "view_as_complex": lambda x: x,
    "view_as_real": lambda x: x,
}
"""Operators of ATen as functions of pairs."""


def is_complex(x: Any) -> bool:
    """Whether this is a complex tensor, or a node whose result is one."""
    val = x.meta.get("val") if isinstance(x, fx.Node) else x
    return isinstance(val, Tensor) and val.is_complex()


def in_pairs(x: Any) -> Any:
    """A complex tensor as pairs; anything else stays."""
    return torch.view_as_real(x.resolve_conj()) if is_complex(x) else x


def on_pairs(node: fx.Node, values: Mapping[fx.Node, Any]) -> Tensor:
    """Compute a call with complex operands or results from pairs."""
    target: Any = node.target
    name, given = operator_name(target).removeprefix("aten."), (node.args, dict(node.kwargs))
    if name in COMPLEX and (name not in OF_TWO or all(map(is_complex, node.args)) and not node.kwargs):
        return COMPLEX[name](*fx.node.map_arg(node.args, values.__getitem__))
    known = name in BY_PART or getattr(target, "is_view", False)
    if not known or any(isinstance(x, complex) for x in node.args):
        raise GraphError("graphq lacks this operator on complex numbers: compute with torch.view_as_real; a Fourier "
                         "transform is also a matrix product")

    def part(k: int) -> Tensor:
        args, kwargs = fx.node.map_arg(given, lambda n: values[n].select(-1, k) if is_complex(n) else values[n])
        computed: Tensor = target(*args, **kwargs)
        return computed
    return pairs(part(0), part(1))
