"""Decompositions: operators without an importer become calls of simpler operators, traced for each call."""
import math
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from graphq.errors import GraphError
from graphq.torch.operators.importer import OPERATORS, operator_name

Function = TypeVar("Function", bound=Callable[..., Any])

DECOMPOSED: dict[str, Callable[..., Any]] = {
    "aten._cdist_forward.default": lambda x, y, p, mode: torch.linalg.vector_norm(
        x.unsqueeze(-2) - y.unsqueeze(-3), p, -1),
    "aten.expm1.default": lambda x: torch.exp(x) - 1,
    "aten.log2.default": lambda x: torch.log(x) / math.log(2),
    "aten._adaptive_avg_pool2d.default": lambda x, sizes: adaptive_pool(x, sizes, torch.mean),
    "aten.adaptive_max_pool2d.default": lambda x, sizes: (adaptive_pool(x, sizes, torch.amax), None),
}
"""Functions of tensors by the overloads that they compute. PyTorch decomposes others."""


def decomposes(overload: str) -> Callable[[Function], Function]:
    """Register the decorated function of tensors as the decomposition of an operator's overload."""

    def declare(f: Function) -> Function:
        DECOMPOSED[overload] = f
        return f

    return declare


@cache
def table() -> dict[Any, Any]:
    """PyTorch's decompositions, except for operators that have an importer."""
    return {op: f for op, f in torch.export.default_decompositions().items() if operator_name(op) not in OPERATORS}


def decomposed(node: fx.Node) -> fx.GraphModule | None:
    """A graph that computes a call, with the call's operands as placeholders; None if PyTorch has no decomposition.

    Raises GraphError if the decomposition takes an open size for that of the example inputs.
    """
    target: Any = node.target
    f, operands = DECOMPOSED.get(str(target), target), node.all_input_nodes

    def call(*values: Any) -> Any:
        known = dict(zip(operands, values, strict=True))
        args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), known.__getitem__)
        return f(*args, **kwargs)

    def shapes() -> list[str]:
        return [str(getattr(n.meta["val"], "shape", n.meta["val"])) for n in operands]

    before = shapes()
    with torch.no_grad():
        module = make_fx(call, decomposition_table=table())(*(n.meta["val"] for n in operands))
    if shapes() != before:
        raise GraphError(f"its decomposition needs known sizes, got {', '.join(before)}")
    return None if any(n.target is target for n in module.graph.nodes) else module


@decomposes("aten.var.correction")
def variance(x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Tensor:
    """The mean of squared distances from the mean; `correction` is subtracted from the number of elements."""
    dims = [*range(x.dim())] if dim is None else dim
    count = math.prod(x.shape[k] for k in dims) - (1 if correction is None else int(correction))
    return (x - x.mean(dims, True)).square().sum(dims, keepdim) / count


@decomposes("aten.var_mean.correction")
def variance_and_mean(x: Tensor, dim: Any = None, *, correction: float | None = None,
                      keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The variance and the mean."""
    dims = [*range(x.dim())] if dim is None else dim
    return variance(x, dim, correction=correction, keepdim=keepdim), x.mean(dims, keepdim)


def adaptive_pool(x: Tensor, sizes: Any, reduce: Any) -> Tensor:
    """Reduce windows along each of the last axes: window k of n is floor(k * size / n) to ceil((k + 1) * size / n)."""
    for axis, n in zip(range(-len(sizes), 0), sizes, strict=True):
        size = x.shape[axis]
        x = torch.cat([reduce(x.narrow(axis, k * size // n, -(-(k + 1) * size // n) - k * size // n), axis, True)
                       for k in range(n)], axis)
    return x


@decomposes("aten.unfold.default")
def unfold(x: Tensor, dim: int, size: int, step: int) -> Tensor:
    """Windows along an axis, each `step` elements after the one before; their elements are along the last axis."""
    axis = dim % x.dim()
    return torch.stack([x.narrow(axis, k, size).movedim(axis, -1)
                        for k in range(0, x.shape[axis] - size + 1, step)], axis)


@decomposes("aten.index.Tensor")
def index(x: Tensor, indices: Any) -> Tensor:
    """Index neighboring axes by several tensors: the axes become one, which is indexed by one tensor."""
    axes = [k for k, p in enumerate(indices) if p is not None]
    if len(axes) < 2 or axes != [*range(axes[0], axes[-1] + 1)]:
        return torch.ops.aten.index.Tensor(x, indices)
    place: Any = 0
    for k in axes:
        place = place * x.shape[k] + torch.where(indices[k] < 0, indices[k] + x.shape[k], indices[k])
    rows = x.flatten(axes[0], axes[-1]).index_select(axes[0], place.flatten())
    return rows.reshape(*x.shape[:axes[0]], *place.shape, *x.shape[axes[-1] + 1:])


@decomposes("aten.index_put.default")
def index_put(x: Tensor, indices: Any, values: Tensor, accumulate: bool = False) -> Tensor:
    """Replace the elements at a vector of indices along one axis, or those where a mask is true by one number."""
    (axis, place), *more = [(k, p) for k, p in enumerate(indices) if p is not None]
    mask = place.dtype == torch.bool
    if more or (axis or accumulate or values.numel() != 1 if mask else place.dim() != 1):
        return torch.ops.aten.index_put.default(x, indices, values, accumulate)
    if mask:
        return torch.where(place.reshape(*place.shape, *[1] * (x.dim() - place.dim())), values, x)
    places = place.reshape([-1 if k == axis else 1 for k in range(x.dim())])
    sizes = [place.shape[0] if k == axis else n for k, n in enumerate(x.shape)]
    places, values = places.expand(sizes), values.expand(sizes)
    return x.scatter_add(axis, places, values) if accumulate else x.scatter(axis, places, values)
