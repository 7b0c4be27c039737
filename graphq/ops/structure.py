"""Operations that hold, move or mark values without arithmetic: constant and oneDNN's concat, reorder and more."""
from __future__ import annotations

from typing import NoReturn

import numpy as np

from graphq.dtypes import DType, as_dtype, s32
from graphq.errors import GraphError
from graphq.ir import Dim, TensorType
from graphq.ir.names import listing
from graphq.ir.op import register_op
from graphq.ops.compute import Array
from graphq.ops.infer import FLOATS, expect_dtype, infer_unary, normal_axis, show


def infer_constant(*, value: np.ndarray) -> TensorType:
    """The array's own type; raises GraphError for a dtype that graphq does not have."""
    return TensorType(as_dtype(value.dtype), value.shape)


@register_op(infer=infer_constant)
def constant(*, value: np.ndarray) -> np.ndarray:
    """The array `value`. oneDNN has no such op: there a constant is a logical tensor of property "constant"."""
    return value


def infer_concat(*srcs: TensorType, axis: int) -> TensorType:
    """The sources have one dtype, in oneDNN a float, and equal shapes except along `axis`, where sizes are added."""
    if not srcs:
        raise GraphError("takes at least one source, got none")
    if len({t.dtype for t in srcs}) > 1:
        raise GraphError(f"sources must have the same dtype, got {listing([t.dtype for t in srcs], 'and')}")
    shapes = [t.shape for t in srcs if t.shape is not None]
    if not shapes:
        return srcs[0]
    rank = len(shapes[0])
    at = normal_axis(axis, shapes[0])
    if any(len(s) != rank for s in shapes):
        raise GraphError(f"sources must have the same rank, got {listing(map(show, shapes), 'and')}")
    out: list[Dim] = []
    for k in range(rank):
        dims = [s[k] for s in shapes]
        known = {d for d in dims if d is not None}
        if k == at:
            out.append(None if None in dims or len(shapes) < len(srcs) else sum(d for d in dims if d is not None))
        elif len(known) > 1:
            raise GraphError(f"sources must agree but for axis {at}, got {listing(map(show, shapes), 'and')}")
        else:
            out.append(known.pop() if known else None)
    return TensorType(srcs[0].dtype, tuple(out))


@register_op(infer=infer_concat, layout="along_axis", rows="joined", onnx="Concat")
def concat(*srcs: Array, axis: int) -> Array:
    """The sources one after the other along `axis` (oneDNN Concat)."""
    return np.concatenate(srcs, axis=axis)


@register_op(infer=infer_unary, layout="lane_wise", rows="kept", onnx="Identity")
def reorder(src: Array) -> Array:
    """`src` itself; in oneDNN it gets another memory layout, which changes no element (oneDNN Reorder)."""
    return src


def infer_gen_index(src: TensorType, *, axis: int) -> TensorType:
    """The result is s32 and has the source's shape."""
    expect_dtype("src", src, FLOATS)
    if src.shape is not None:
        normal_axis(axis, src.shape)
    return TensorType(s32, src.shape)


@register_op(infer=infer_gen_index, layout="along_axis")
def gen_index(src: Array, *, axis: int) -> Array:
    """Each element's index along `axis` (oneDNN GenIndex)."""
    k = axis % src.ndim
    index = np.arange(src.shape[k], dtype=np.int32).reshape(-1, *[1] * (src.ndim - k - 1))
    return np.broadcast_to(index, src.shape).copy()


def infer_end(src: TensorType) -> tuple[TensorType, ...]:
    """The operation has no outputs. oneDNN's table has float sources only; its library, like graphq, takes any."""
    return ()


@register_op(infer=infer_end, rows="kept")
def end(src: Array) -> tuple[Array, ...]:
    """Mark `src` as used outside of the graph (oneDNN End)."""
    return ()


def infer_wildcard(*srcs: TensorType, dtypes: tuple[DType, ...],
                   shapes: tuple[tuple[int, ...], ...] | None) -> tuple[TensorType, ...]:
    """There are as many outputs as `dtypes`, of the given shapes, or of unknown rank; -1 is an unknown dimension."""
    if shapes is None:
        return tuple(TensorType(t, None) for t in dtypes)
    if len(shapes) != len(dtypes) or any(d < -1 for s in shapes for d in s):
        raise GraphError(f"shapes must be one of dimensions >= -1 for each of {len(dtypes)} dtypes, "
                         f"got {[list(s) for s in shapes]}")
    return tuple(TensorType(t, tuple(None if d == -1 else d for d in s)) for t, s in zip(dtypes, shapes, strict=True))


@register_op(infer=infer_wildcard)
def wildcard(*srcs: Array, dtypes: tuple[DType, ...] = (),
             shapes: list[list[int]] | None = None) -> NoReturn:
    """An operation that oneDNN Graph does not know (oneDNN Wildcard). It has a place in a graph but no meaning.

    `dtypes` (and `shapes`, with -1 for an unknown dimension) are the types of its outputs. Running it raises
    GraphError.
    """
    raise GraphError("wildcard stands for an operation that is not known, and cannot run")
