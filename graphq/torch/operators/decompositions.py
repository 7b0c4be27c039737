"""Decompositions: operators without an importer become calls of simpler operators, traced for each call."""
import math
from collections.abc import Callable, Mapping
from functools import cache, partial
from operator import getitem
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.nn.functional import linear

from graphq.errors import GraphError
from graphq.torch.operators.complex import in_pairs, is_complex, on_pairs
from graphq.torch.operators.importer import OPERATORS, operator_name

DECOMPOSED: dict[str, Callable[..., Any]] = {}
"""Functions of tensors by the overloads that they compute. PyTorch decomposes others."""


def decomposes(functions: Mapping[str, Callable[..., Any]]) -> None:
    """Register functions of tensors by the overloads that they compute, separated by spaces."""
    for overloads, function in functions.items():
        DECOMPOSED.update(dict.fromkeys(overloads.split(), function))


@cache
def table(missing: Any = None) -> dict[Any, Any]:
    """PyTorch's decompositions of `missing`, and of all operators without an importer."""
    return {op: f for op, f in torch.export.default_decompositions().items()
            if op is missing or operator_name(op) not in OPERATORS}


def decomposed(node: fx.Node, mode: Any) -> fx.GraphModule | None:
    """A graph that computes a call, with the call's operands as placeholders; None if PyTorch has no decomposition.

    `mode` is the context in which the program's fake tensors were made; all tensors of a program must have the same.
    Raises GraphError if the decomposition takes an open size for that of the example inputs.
    """
    target: Any = node.target
    f, operands = DECOMPOSED.get(str(target), table(target).get(target, target)), node.all_input_nodes
    paired = any(map(is_complex, (node, *operands)))

    def call(*values: Any) -> Any:
        known = dict(zip(operands, values, strict=True))
        if paired:
            return on_pairs(node, known)
        args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), known.__getitem__)
        return f(*args, **kwargs)

    def shapes() -> list[str]:
        return [str(getattr(n.meta["val"], "shape", n.meta["val"])) for n in operands]

    before = shapes()
    with torch.no_grad(), mode:
        examples = [in_pairs(n.meta["val"]) for n in operands]
        module = make_fx(call, decomposition_table=table(target))(*examples)
        if any(operator_name(n.target).endswith("_") for n in module.graph.nodes):  # a change that views share
            module = make_fx(torch.func.functionalize(module))(*examples)
    if shapes() != before:
        raise GraphError(f"its decomposition needs known sizes, got {', '.join(before)}")
    made = {n.target for n in module.graph.nodes if n.op == "call_function"}
    return None if not paired and target in made and made <= {target, getitem} else module


def call_key(node: fx.Node) -> str:
    """A text for a call, equal for calls of equal decompositions: the operator, the operands' types, the numbers."""
    places = {n: k for k, n in enumerate(node.all_input_nodes)}
    types = [(v.dtype, v.shape, v.stride()) if isinstance(v, Tensor) else v for v in (n.meta["val"] for n in places)]
    return str((node.target, types, fx.node.map_arg((node.args, dict(node.kwargs)), places.__getitem__)))


def variance(x: Tensor, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Tensor:
    """The mean of squared distances from the mean; `correction` is subtracted from the number of elements."""
    dims = [*range(x.dim())] if dim is None else dim
    count = math.prod(x.shape[k] for k in dims) - (1 if correction is None else int(correction))
    return (x - x.mean(dims, True)).square().sum(dims, keepdim) / count


def adaptive_pool(reduce: Any, x: Tensor, sizes: Any) -> Tensor:
    """Reduce windows along each of the last axes: window k of n is floor(k * size / n) to ceil((k + 1) * size / n)."""
    for axis, n in zip(range(-len(sizes), 0), sizes, strict=True):
        size = x.shape[axis]
        if size % n == 0:
            x = reduce(x.unflatten(axis, (n, size // n)), axis)
        else:
            x = torch.cat([reduce(x.narrow(axis, k * size // n, -(-(k + 1) * size // n) - k * size // n), axis, True)
                           for k in range(n)], axis)
    return x


def index(x: Tensor, indices: Any) -> Tensor:
    """Index neighboring axes by several tensors: the axes become one, which is indexed by one tensor."""
    axes, place = joined(x, indices)
    return torch.ops.aten.index.Tensor(x.flatten(axes[0], axes[-1]), [None] * axes[0] + [place])


def index_put(x: Tensor, indices: Any, values: Tensor, accumulate: bool = False) -> Tensor:
    """Replace or add to elements at tensors of indices of neighboring axes, or replace those where a mask is true."""
    axes, place = joined(x, indices)
    if place.dtype == torch.bool:
        if axes[0] or accumulate or values.numel() != 1:
            raise GraphError("a mask takes one new value, and starts at the first axis")
        return torch.where(place.reshape(*place.shape, *[1] * (x.dim() - place.dim())), values, x)
    before, after = x.shape[:axes[0]], x.shape[axes[-1] + 1:]
    flat = x.flatten(axes[0], axes[-1])
    places = place.reshape(-1, *[1] * len(after)).expand(*before, place.numel(), *after)
    values = values.expand(*before, *place.shape, *after).reshape(places.shape)
    put = flat.scatter_add if accumulate else flat.scatter
    return put(axes[0], places, values).reshape(x.shape)


def joined(x: Tensor, indices: Any) -> tuple[list[int], Any]:
    """The axes that have indices, and their places in these axes as one axis."""
    axes = [k for k, p in enumerate(indices) if p is not None]
    place = indices[axes[0]]
    if axes != [*range(axes[0], axes[-1] + 1)] or place.dtype == torch.bool and len(axes) > 1:
        raise GraphError("several tensors of indices must be integers, and of neighboring axes")
    for k in axes[1:]:
        before, here = (torch.where(v < 0, v + x.shape[a], v) for v, a in ((place, k - 1), (indices[k], k)))
        place = before * x.shape[k] + here
    return axes, place


def slice_scatter(x: Tensor, new: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Tensor:
    """The tensor with other elements at every `step` between `start` and `end` along an axis."""
    if step != 1:
        return x.index_copy(dim, torch.arange(x.shape[dim])[start:end:step], new)
    cut = torch.ops.aten.slice.Tensor
    before = [] if start in (None, 0) else [cut(x, dim, 0, start)]
    first = sum(v.shape[dim] for v in (*before, new))  # `end` may be before `start`
    after = [] if end in (None, 2**63 - 1) else [cut(x, dim, first)]
    return torch.cat([*before, new, *after], dim)


def scatter_reduce(x: Tensor, dim: int, index: Tensor, new: Tensor, reduce: str, include_self: bool = True) -> Tensor:
    """A scatter that takes means, or that does not count the elements that were there."""
    counts = torch.zeros_like(x).scatter_add(dim, index, torch.ones_like(new))
    if not include_self:
        least = {"sum": 0, "mean": 0, "prod": 1, "amax": -math.inf, "amin": math.inf}[reduce]
        x = torch.where(counts > 0, least, x)
    if reduce != "mean":
        return x.scatter_reduce(dim, index, new, reduce)
    return x.scatter_add(dim, index, new) / (counts + int(include_self)).clamp(min=1)


def log1p(x: Tensor) -> Tensor:
    """`log(1 + x)`, where the rounding of `1 + x` is made up for (Kahan)."""
    u = 1 + x
    return torch.where((u == 1) | u.isinf(), x, u.log() * (x / (u - 1)))


def wide(f: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function in f32 for integers and narrower floats; narrower floats get a result in their own type."""
    def computed(*args: Any, **kwargs: Any) -> Tensor:
        dtype = torch.result_type(args[0], args[-1])
        dtype = dtype if dtype.is_floating_point else torch.float32
        return f(*(x.to(torch.promote_types(dtype, torch.float32)) for x in args), **kwargs).to(dtype)
    return computed


def angle(y: Tensor, x: Tensor) -> Tensor:
    """The angle of points (x, y); an infinite coordinate counts as 1 next to one that is not, which counts as 0."""
    far = x.isinf() | y.isinf()
    x, y = (torch.where(far, torch.where(v.isinf(), v.sign(), 0 * v), v) for v in (x, y))
    left, below = ((v < 0) | (1 / v < 0) for v in (x, y))  # zeros have signs
    turn = torch.where(left, torch.where(below, -math.pi, math.pi), 0.0)
    return torch.where(y == 0, turn, torch.where(x == 0, y.sign() * (math.pi / 2), torch.atan(y / x) + turn))


def vector_norm(x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, *,
                dtype: torch.dtype | None = None) -> Tensor:
    """The largest (inf) or least (-inf) magnitude, the number of elements that are not 0 (0), or the root of powers."""
    x, dims = x.to(dtype or x.dtype).abs(), [*range(x.dim())] if dim is None else dim
    if math.isinf(ord):
        return x.amax(dims, keepdim) if ord > 0 else x.amin(dims, keepdim)
    return (x != 0).sum(dims, keepdim).to(x.dtype) if ord == 0 else x.pow(ord).sum(dims, keepdim).pow(1 / ord)


def hypotenuse(x: Tensor, y: Tensor) -> Tensor:
    """`sqrt(x * x + y * y)`, where the larger of both is 1, so that squares stay finite."""
    most = torch.maximum(x.abs(), y.abs())
    unit = torch.where((most == 0) | most.isinf(), 1, most)
    return unit * ((x / unit).square() + (y / unit).square()).sqrt()


def diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Elements [i, i + offset] of two axes; the new axis is the last."""
    x, below, right = x.movedim((dim1, dim2), (-2, -1)), max(-offset, 0), max(offset, 0)
    steps = torch.arange(max(min(x.shape[-2] - below, x.shape[-1] - right), 0))
    return x[..., steps + below, steps + right]


def embedding_bag(table: Tensor, indices: Tensor, offsets: Tensor, scaled: bool = False, mode: int = 0,
                  sparse: bool = False, weights: Tensor | None = None, last: bool = False,
                  skipped: int = -1) -> tuple[Any, ...]:
    """Sums (mode 0) or means (1) of the rows at `indices`, from each offset to the next."""
    if mode == 2:
        raise GraphError("maxima of bags are not supported")
    bags = (torch.arange(indices.shape[0]) >= offsets[:, None]).sum(0) - 1
    inside = (bags == torch.arange(offsets.shape[0] - int(last))[:, None]) & (indices != skipped)
    factors = inside.to(table.dtype)
    sums = (factors if weights is None else factors * weights) @ table[indices]
    return sums / factors.sum(1, True).clamp(min=1) if mode else sums, None, None, None


def trilinear(x: Tensor, y: Tensor, z: Tensor, in_x: Any, in_y: Any, in_z: Any, dims: Any, unroll: int = 1) -> Tensor:
    """The sums over `dims` of products of three tensors, each with new axes at its places."""
    for axis in range(x.dim() + len(in_x)):
        x, y, z = (v.unsqueeze(axis) if axis in new else v for v, new in ((x, in_x), (y, in_y), (z, in_z)))
    return (x * y * z).sum(dims)


def places(bounds: Tensor, x: Tensor, right: bool, narrow: bool) -> Tensor:
    """How many sorted bounds are before each element of `x`; `right` counts those that are equal. NaN is the last."""
    before = ~(bounds[..., None, :] > x[..., None]) if right else ~(bounds[..., None, :] >= x[..., None])
    return before.sum(-1).to(torch.int32 if narrow else torch.int64)


def ranked(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, ...]:
    """The k-th smallest element along an axis and its place."""
    return tuple(v.select(dim, k - 1).unsqueeze(dim) if keepdim else v.select(dim, k - 1) for v in x.sort(dim))


def unfold(x: Tensor, dim: int, size: int, step: int) -> Tensor:
    """Windows of `size` elements along an axis, one for each `step`; the new axis is the last."""
    places = torch.arange(0, x.shape[dim] - size + 1, step)[:, None] + torch.arange(size)
    return x.movedim(dim, -1)[..., places].movedim(-2, dim % x.dim())


def lstm_cell(x: Tensor, state: Any, w: Tensor, r: Tensor, b: Any = None, c: Any = None) -> tuple[Tensor, Tensor]:
    """A step of an LSTM: the hidden state and the cell."""
    hidden, cell = state
    i, f, g, o = (linear(x, w, b) + linear(hidden, r, c)).chunk(4, 1)
    cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


def gru_cell(x: Tensor, hidden: Tensor, w: Tensor, r: Tensor, b: Any = None, c: Any = None) -> Tensor:
    """A step of a GRU."""
    (reset, keep, new), before = linear(x, w, b).chunk(3, 1), linear(hidden, r, c).chunk(3, 1)
    new = (new + (reset + before[0]).sigmoid() * before[2]).tanh()
    return new + (keep + before[1]).sigmoid() * (hidden - new)


def fused_attention(q: Tensor, k: Tensor, v: Tensor, size: int, heads: int, w: Tensor, b: Tensor, out_w: Tensor,
                    out_b: Tensor, mask: Any = None, weights: bool = True, average: bool = True,
                    kind: int | None = None) -> tuple[Any, ...]:
    """PyTorch's fused attention; a mask is true at tokens that are not seen: of [L, L], [B, L] (kind 1) or all axes."""
    mask = None if mask is None else mask.bool()
    q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    y, found = F.multi_head_attention_forward(
        q, k, v, size, heads, w, b, None, None, False, 0.0, out_w, out_b, False,
        mask if kind == 1 else None, weights, mask.flatten(0, 1) if kind == 2 else None if kind == 1 else mask,
        average_attn_weights=average)
    return y.transpose(0, 1), found


def fused_encoder(x: Tensor, size: int, heads: int, w: Tensor, b: Tensor, out_w: Tensor, out_b: Tensor, gelu: bool,
                  first: bool, epsilon: float, *parts: Any) -> Tensor:
    """PyTorch's fused layer of an encoder; `first` normalizes before attention and linear layers."""
    g1, b1, g2, b2, up, up_b, down, down_b, mask, kind = (*parts, None, None)[:10]

    def attend(y: Tensor) -> Any:
        return fused_attention(y, y, y, size, heads, w, b, out_w, out_b, mask, False, True, kind)[0]

    for g, c, f in ((g1, b1, attend), (g2, b2, lambda y: linear(
            F.gelu(linear(y, up, up_b)) if gelu else linear(y, up, up_b).relu(), down, down_b))):
        x = x + f(F.layer_norm(x, (size,), g, c, epsilon)) if first else F.layer_norm(x + f(x), (size,), g, c, epsilon)
    return x


decomposes({
    "aten.__lshift__.Scalar": lambda x, bits: x * 2**bits,
    "aten.__rshift__.Scalar": lambda x, bits: torch.floor_divide(x, 2**bits),
    "aten._cdist_forward.default": lambda x, y, p, mode: torch.linalg.vector_norm(
        x.unsqueeze(-2) - y.unsqueeze(-3), p, -1),
    "aten._adaptive_avg_pool2d.default aten._adaptive_avg_pool3d.default": partial(adaptive_pool, torch.mean),
    "aten.adaptive_max_pool1d.default aten.adaptive_max_pool2d.default": lambda x, sizes: (
        adaptive_pool(torch.amax, x, sizes), None),
    "aten.addmm.default aten.addmv.default": lambda x, a, b, *, beta=1, alpha=1: (
        (x if beta == 1 else beta * x) + (a @ b if alpha == 1 else alpha * (a @ b))),
    # with `keepdim` the place keeps the axes
    "aten.argmax.default": lambda x, dim=None, keepdim=False: x.flatten().argmax(0).reshape([1] * keepdim * x.dim()),
    "aten.argmin.default": lambda x, dim=None, keepdim=False: x.flatten().argmin(0).reshape([1] * keepdim * x.dim()),
    "aten.atan2.default": wide(angle),
    "aten.bucketize.Tensor": lambda x, bounds, *, out_int32=False, right=False: places(
        bounds, x, right, out_int32),
    "aten.diagonal.default": diagonal,
    "aten.dist.default": lambda x, y, p=2: torch.linalg.vector_norm((x - y).flatten(), p),
    "aten._embedding_bag.default aten._embedding_bag_forward_only.default": embedding_bag,
    "aten.exp2.default": wide(lambda x: torch.pow(2.0, x)),
    # exp(x) - 1 for small x, without the rounding of exp(x)
    "aten.expm1.default": wide(lambda x: (x / 2).tanh() * (x.exp() + 1)),
    "aten.fmax.default": lambda x, y: torch.where(x.isnan(), y, torch.where(y.isnan(), x, torch.maximum(x, y))),
    "aten.fmin.default": lambda x, y: torch.where(x.isnan(), y, torch.where(y.isnan(), x, torch.minimum(x, y))),
    "aten.gru_cell.default": gru_cell,
    "aten.hypot.default": wide(hypotenuse),
    "aten.index.Tensor": index,
    "aten.index_put.default": index_put,
    "aten.kthvalue.default": ranked,
    "aten.ldexp.Tensor": lambda x, y: x * torch.pow(2.0, y),
    "aten.linalg_vector_norm.default": vector_norm,
    "aten.log10.default": wide(lambda x: torch.log(x) / math.log(10)),
    "aten.log1p.default": wide(log1p),
    "aten.log2.default": wide(lambda x: torch.log(x) / math.log(2)),
    "aten.lstm_cell.default": lstm_cell,
    "aten.max.dim": lambda x, dim, keepdim=False: (x.amax(dim, keepdim), x.argmax(dim, keepdim)),
    "aten.median.default": lambda x: ranked(x.flatten(), (x.numel() + 1) // 2)[0],
    "aten.median.dim": lambda x, dim, keepdim=False: ranked(x, (x.shape[dim] + 1) // 2, dim, keepdim),
    "aten.min.dim": lambda x, dim, keepdim=False: (x.amin(dim, keepdim), x.argmin(dim, keepdim)),
    "aten.round.decimals": lambda x, *, decimals: torch.round(x * 10.0**decimals) / 10.0**decimals,
    "aten.searchsorted.Tensor": lambda bounds, x, *, out_int32=False, right=False, side=None: places(
        bounds, x, right or side == "right", out_int32),
    "aten.scatter_reduce.two": scatter_reduce,
    "aten._native_multi_head_attention.default": fused_attention,
    "aten._transformer_encoder_layer_fwd.default": fused_encoder,
    "aten.slice_scatter.default": slice_scatter,
    "aten.split_with_sizes.default": lambda x, sizes, dim=0: [
        x.narrow(dim, sum(sizes[:k]), n) for k, n in enumerate(sizes)],
    "aten._trilinear.default": trilinear,
    "aten.unfold.default": unfold,
    "aten.var.correction": variance,
    "aten.var_mean.correction": lambda x, dim=None, **how: (
        variance(x, dim, **how), x.mean(dim, how.get("keepdim", False))),
})
