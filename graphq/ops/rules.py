"""Type rules and rounding that the declarations of operations share.

An unknown dimension (None) or rank (a shape of None) passes every check. Other operands may determine the dimension or
rank; otherwise it stays unknown. A broken rule raises GraphError with the rule and the values.

Arithmetic runs in f32, one IEEE operation at a time. Transcendental functions run in f64 and are rounded to f32 once,
because their f32 versions depend on the CPU. Results of bf16 and f16 are rounded from the f32 result. NumPy's
warnings are off.
"""
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from graphq.dtypes import DType, bf16, f16, f32, s32
from graphq.errors import GraphError
from graphq.ir import Dim, Op, TensorType, listing, register_op

Shape: TypeAlias = tuple[Dim, ...] | None

FLOATS = (f32, bf16, f16)
SUMS: dict[DType, tuple[DType, ...]] = {f32: (f32,), bf16: (f32, bf16), f16: (f32, f16)}
"""oneDNN's table of MatMul, also used for convolutions: the possible dtypes of the output, by the dtype of `src`."""
ONE: tuple[Shape, ...] = (None, (), (1,), (None,))
"""The shapes that a tensor of one element may have."""


def show(shape: Shape) -> str:
    """A shape in error messages: `[4,?]`."""
    return "[*]" if shape is None else f"[{','.join('?' if d is None else str(d) for d in shape)}]"


def expect_dtype(operand: str, type: TensorType, allowed: tuple[DType, ...]) -> None:
    """Raise GraphError if the operand's dtype is not one of `allowed`."""
    one_of(f"'{operand}'", type.dtype, allowed)


def one_of(what: str, dtype: DType, allowed: tuple[DType, ...]) -> None:
    """Raise GraphError if a dtype, called `what` in the error, is not one of `allowed`."""
    if dtype not in allowed:
        raise GraphError(f"{what} must be {listing(allowed)}, got {dtype}")


def expect_same_dtype(*allowed: DType, **operands: TensorType | None) -> None:
    """Raise GraphError if the operands that are present have different dtypes, or not one of `allowed` (if given)."""
    present = {name: t.dtype for name, t in operands.items() if t is not None}
    if allowed:
        one_of(f"'{next(iter(present))}'", next(iter(present.values())), allowed)
    if len(set(present.values())) > 1:
        got = ", ".join(f"'{name}' {dtype}" for name, dtype in present.items())
        raise GraphError(f"operands must have the same dtype, got {got}")


def output_dtype(src: DType, dtype: DType | None, table: dict[DType, tuple[DType, ...]]) -> DType:
    """Return `dtype`, or `src` if it is None. Raises GraphError if `table` does not allow `dtype` for `src`."""
    if dtype is None:
        return src
    if dtype not in table[src]:
        raise GraphError(f"dtype must be {listing(table[src])} for an operand of {src}, got {dtype}")
    return dtype


def normal_axis(axis: int, shape: tuple[Dim, ...], name: str = "axis") -> int:
    """`axis` counted from the front. Raises GraphError outside of [-r, r-1]."""
    rank = len(shape)
    if not -rank <= axis < rank:
        raise GraphError(f"{name} must be in [-r, r-1] with r = {rank} for shape {show(shape)}, got {axis}")
    return axis % rank


def normal_axes(axes: Sequence[int], src: TensorType) -> list[int]:
    """Axes counted from the front. Raises GraphError if an axis does not exist or appears twice."""
    assert src.shape is not None
    normal = [normal_axis(a, src.shape, "axes") for a in axes]
    if len(set(normal)) < len(normal):
        raise GraphError(f"axes must be different, got {list(axes)} for {src}")
    return normal


def with_axis(t: TensorType, axis: int, *dims: Dim) -> TensorType:
    """The type with the dimensions `dims` in place of one axis. Raises GraphError if the axis does not exist."""
    if t.shape is None:
        return t
    k = normal_axis(axis, t.shape)
    return TensorType(t.dtype, (*t.shape[:k], *dims, *t.shape[k + 1:]))


def channel_axis(data_format: str, shape: tuple[Dim, ...]) -> int:
    """The channel axis: 1 in NCX, the last in NXC. Raises GraphError if the shape has no such axis."""
    if len(shape) < (2 if data_format == "NCX" else 1):
        raise GraphError(f"data_format {data_format} needs a channel axis, got shape {show(shape)}")
    return 1 if data_format == "NCX" else len(shape) - 1


def finite_f32(name: str, value: float) -> float:
    """Return `value`. Raises GraphError if it is not finite as an f32."""
    with np.errstate(over="ignore"):
        if not np.isfinite(np.float32(value)):
            raise GraphError(f"{name} must be a finite f32, got {value}")
    return value


def _broadcast_dim(a: Dim, b: Dim) -> Dim:
    if a == 1 or a == b:
        return b
    if b == 1:
        return a
    if a is None or b is None:  # the unknown dimension must be 1 or equal to the known dimension
        return b if a is None else a
    raise ValueError


def broadcast(*shapes: Shape) -> Shape:
    """Broadcast shapes as NumPy does. Raises GraphError if two known dimensions are neither equal nor 1."""
    known = [s for s in shapes if s is not None]
    rank = max((len(s) for s in known), default=0)
    out: list[Dim] = [1] * rank
    for s in known:
        for k in range(1, len(s) + 1):
            try:
                out[-k] = _broadcast_dim(out[-k], s[-k])
            except ValueError:
                raise GraphError(f"shapes {listing(map(show, known), 'and')} do not broadcast: "
                                 f"{out[-k]} against {s[-k]} at axis {-k}") from None
    return tuple(out) if len(known) == len(shapes) else None


def equal_shapes(*shapes: Shape) -> Shape:
    """The common shape of equal shapes (auto_broadcast "none"). Raises GraphError if they differ."""
    known = [s for s in shapes if s is not None]
    if not known:
        return None
    ranks = {len(s) for s in known}
    dims = [{d for d in places if d is not None} for places in zip(*known, strict=False)]
    if len(ranks) > 1 or any(len(d) > 1 for d in dims):
        raise GraphError(f"auto_broadcast 'none' needs equal shapes, got {listing(map(show, known), 'and')}")
    return tuple(d.pop() if d else None for d in dims)


def combine(auto_broadcast: str, *shapes: Shape) -> Shape:
    """The shape of an elementwise result, by oneDNN's attribute auto_broadcast."""
    return broadcast(*shapes) if auto_broadcast == "numpy" else equal_shapes(*shapes)


def unary_rule(allowed: tuple[DType, ...] = FLOATS, result: DType | None = None) -> Callable[..., TensorType]:
    """Make the `infer` of an op with the operand `src`, whose dtype is one of `allowed`, and a result of its shape.

    The result has the dtype `result`, or the dtype of `src`. Float attributes are finite as f32. An attribute `axis`
    must be an axis of `src`.
    """

    def infer(src: TensorType, *, axis: int | None = None, **attrs: Any) -> TensorType:
        for name, value in attrs.items():
            if isinstance(value, float):
                finite_f32(name, value)
        expect_dtype("src", src, allowed)
        if axis is not None and src.shape is not None:
            normal_axis(axis, src.shape)
        return src if result is None else TensorType(result, src.shape)

    return infer


infer_unary = unary_rule()


def binary_rule(*, mixed: bool = False, integer: bool = False,
                result: DType | None = None) -> Callable[..., TensorType]:
    """Make the `infer` of a binary op: both operands are f32, bf16 or f16, and their shapes broadcast.

    Without the op's attribute `dtype`, both operands have the same dtype; `mixed` also allows one f32 operand, for an
    f32 result. With `dtype`, the operands may be any two of these floats, and the result has `dtype`. `integer` also
    allows s32, and s32 together with f32 if `dtype` is f32. `result` is the op's fixed output dtype, if any.
    """
    allowed = (*FLOATS, s32) if integer else FLOATS

    def infer_binary(src_0: TensorType, src_1: TensorType, *, auto_broadcast: str,
                     dtype: DType | None = None) -> TensorType:
        expect_dtype("src_0", src_0, allowed)
        expect_dtype("src_1", src_1, allowed)
        dtypes = {src_0.dtype, src_1.dtype}
        if dtype is not None and dtypes != {dtype}:
            if (dtypes | {dtype}) - set(FLOATS) and not (integer and dtype == f32 and dtypes <= {f32, s32}):
                also = ", or dtype f32 of s32 and f32" if integer else ""
                raise GraphError(f"dtype {dtype} and both operands must be floats{also}, "
                                 f"got {src_0} and {src_1}")
            return TensorType(dtype, combine(auto_broadcast, src_0.shape, src_1.shape))
        if not (mixed and f32 in dtypes and s32 not in dtypes):
            expect_same_dtype(src_0=src_0, src_1=src_1)
        out = result or (src_0.dtype if len(dtypes) == 1 else f32)
        return TensorType(out, combine(auto_broadcast, src_0.shape, src_1.shape))

    return infer_binary


Array: TypeAlias = np.ndarray
Body: TypeAlias = Callable[..., Any]


def _computed_in(wide: np.dtype, f: Body) -> Body:
    @functools.wraps(f)
    def run(*args: Array, **attrs: Any) -> Array:
        dtypes = {a.dtype for a in args}
        out = dtypes.pop() if len(dtypes) == 1 else np.dtype(np.float32)
        if attrs.get("dtype") is not None:
            out = attrs["dtype"].numpy
        if out == np.int32:
            return np.asarray(f(*args, **attrs), dtype=out)
        return rounded(f(*(a.astype(wide) for a in args), **attrs), out)

    return run


in_f32 = functools.partial(_computed_in, np.dtype(np.float32))
"""A decorator: compute a reference in f32. Its operands are converted to f32, except if the result is s32.

The result has the dtype of the attribute `dtype` or of the operands, or f32 if the operands' dtypes differ.
"""
in_f64 = functools.partial(_computed_in, np.dtype(np.float64))
"""A decorator: compute a reference in f64. The result is rounded to f32 once, and then to the operands' dtype."""


def lane_wise(compute: Callable[[Body], Body], **declared: Any) -> Callable[[Body], Op]:
    """Declare an elementwise operation, computed by `in_f32` or `in_f64`; the others are arguments of `register_op`."""
    return lambda f: register_op(elementwise=True, **declared)(compute(f))


def rounded(y: Any, dtype: np.dtype) -> Array:
    """Round `y` to f32, and then to `dtype`."""
    return np.asarray(np.asarray(y).astype(np.float32).astype(dtype))


def widened(x: Array) -> Array:
    """Convert a float array to f32, without rounding; return an s32 array as it is."""
    return x if x.dtype == np.int32 else x.astype(np.float32)


def larger(a: Array, b: Array) -> Array:
    """The larger of two numbers, b if they are equal, NaN if one is NaN. The sign of np.maximum(-0, 0) is the CPU's."""
    return np.where((a > b) | (a != a), a, b)


def smaller(a: Array, b: Array) -> Array:
    """The smaller of two numbers, b if they are equal, NaN if one is NaN."""
    return np.where((a < b) | (a != a), a, b)


def limited(x: Array, low: float, high: float) -> Array:
    """`x` limited to [low, high] as f32. NaN and the sign of zero stay."""
    a, b = np.float32(low), np.float32(high)
    return np.where(x < a, a, np.where(x > b, b, x))
