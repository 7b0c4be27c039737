"""What declarations of operations share: type rules, and how NumPy bodies round.

An unknown dimension (None) or rank (a shape of None) passes every check and stays unknown, unless the other operands
determine it. A broken rule raises GraphError with the rule and the values.

Arithmetic runs in f32, one IEEE operation at a time; transcendental functions run in f64 and are rounded to f32 once,
so that results do not depend on the CPU. bf16 and f16 results are rounded from that f32. NumPy's warnings are
suppressed.
"""
from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from graphq.dtypes import DType, bf16, f16, f32, s32
from graphq.errors import GraphError
from graphq.ir import Dim, TensorType
from graphq.ir.names import listing

Shape: TypeAlias = tuple[Dim, ...] | None

FLOATS = (f32, bf16, f16)
SUMS: dict[DType, tuple[DType, ...]] = {f32: (f32,), bf16: (f32, bf16), f16: (f32, f16)}
"""oneDNN's table of MatMul, also for convolutions: for each source dtype, the dtypes that the output may have."""


def show(shape: Shape) -> str:
    """A shape as error messages print it: `[4,?]`."""
    return "[*]" if shape is None else f"[{','.join('?' if d is None else str(d) for d in shape)}]"


def expect_dtype(operand: str, type: TensorType, allowed: tuple[DType, ...]) -> None:
    """Raise GraphError unless the operand's dtype is one of `allowed`."""
    if type.dtype not in allowed:
        raise GraphError(f"'{operand}' must be {listing(allowed)}, got {type.dtype}")


def expect_same_dtype(**operands: TensorType | None) -> None:
    """Raise GraphError unless all operands that are present have one dtype."""
    present = {name: t.dtype for name, t in operands.items() if t is not None}
    if len(set(present.values())) > 1:
        got = ", ".join(f"'{name}' {dtype}" for name, dtype in present.items())
        raise GraphError(f"operands must have the same dtype, got {got}")


def output_dtype(src: DType, dtype: DType | None, table: dict[DType, tuple[DType, ...]]) -> DType:
    """The output's dtype: `dtype`, or the source's if it is None; raises GraphError if it is not in `table`."""
    if dtype is None:
        return src
    if dtype not in table[src]:
        raise GraphError(f"dtype must be {listing(table[src])} for a source of {src}, got {dtype}")
    return dtype


def normal_axis(axis: int, shape: tuple[Dim, ...], name: str = "axis") -> int:
    """`axis` counted from the front; raises GraphError outside [-r, r-1]."""
    rank = len(shape)
    if not -rank <= axis < rank:
        raise GraphError(f"{name} must be in [-r, r-1] with r = {rank} for shape {show(shape)}, got {axis}")
    return axis % rank


def normal_axes(axes: Sequence[int], src: TensorType) -> list[int]:
    """Axes counted from the front; raises GraphError unless they are different axes of `src`, whose rank is known."""
    assert src.shape is not None
    normal = [normal_axis(a, src.shape, "axes") for a in axes]
    if len(set(normal)) < len(normal):
        raise GraphError(f"axes must be different ones, got {list(axes)} for {src}")
    return normal


def channel_axis(data_format: str, shape: tuple[Dim, ...]) -> int:
    """The channel's axis: 1 in NCX, the last in NXC; raises GraphError when the shape has no such axis."""
    if len(shape) < (2 if data_format == "NCX" else 1):
        raise GraphError(f"data_format {data_format} needs a channel axis, got shape {show(shape)}")
    return 1 if data_format == "NCX" else len(shape) - 1


def finite_f32(name: str, value: float) -> float:
    """`value`; raises GraphError when it is not finite as an f32."""
    with np.errstate(over="ignore"):
        if not np.isfinite(np.float32(value)):
            raise GraphError(f"{name} must be a finite f32, got {value}")
    return value


def _broadcast_dim(a: Dim, b: Dim) -> Dim:
    if a == 1 or a == b:
        return b
    if b == 1:
        return a
    if a is None or b is None:  # the unknown one is 1 or equals the known one, which is therefore the result
        return b if a is None else a
    raise ValueError


def broadcast(*shapes: Shape) -> Shape:
    """NumPy's broadcast of the shapes; raises GraphError when two known dimensions are neither equal nor 1."""
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
    """The shape that all shapes must equal (auto_broadcast "none"); raises GraphError if they differ."""
    known = [s for s in shapes if s is not None]
    if not known:
        return None
    ranks = {len(s) for s in known}
    dims = [{d for d in places if d is not None} for places in zip(*known, strict=False)]
    if len(ranks) > 1 or any(len(d) > 1 for d in dims):
        raise GraphError(f"auto_broadcast 'none' needs equal shapes, got {listing(map(show, known), 'and')}")
    return tuple(d.pop() if d else None for d in dims)


def combine(auto_broadcast: str, *shapes: Shape) -> Shape:
    """The shape of an elementwise result under oneDNN's attribute auto_broadcast."""
    return broadcast(*shapes) if auto_broadcast == "numpy" else equal_shapes(*shapes)


def infer_unary(src: TensorType, **attrs: Any) -> TensorType:
    """The source is f32, bf16 or f16, and the result has its type."""
    expect_dtype("src", src, FLOATS)
    return src


def binary_rule(*, mixed: bool = False, integer: bool = False,
                result: DType | None = None) -> Callable[..., TensorType]:
    """The `infer` of a binary op: both operands are f32, bf16 or f16, and their shapes broadcast.

    Without the op's attribute `dtype` both operands have one dtype; `mixed` also allows f32 with bf16 or f16, and the
    result is then f32. With `dtype` the operands may be any two of these floats, and the result has that dtype.
    `integer` also allows s32, and any combination of s32 and f32 if `dtype` is f32. `result` is the output's dtype if
    the op has a fixed one.
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
                raise GraphError(f"dtype {dtype} must be a float and so must both sources{also}, "
                                 f"got {src_0} and {src_1}")
            return TensorType(dtype, combine(auto_broadcast, src_0.shape, src_1.shape))
        if not (mixed and f32 in dtypes and s32 not in dtypes):
            expect_same_dtype(src_0=src_0, src_1=src_1)
        out = result or (src_0.dtype if len(dtypes) == 1 else f32)
        return TensorType(out, combine(auto_broadcast, src_0.shape, src_1.shape))

    return infer_binary


Array: TypeAlias = np.ndarray
Body: TypeAlias = Callable[..., Any]


def quiet(f: Body) -> Body:
    """Run `f` with NumPy's floating point warnings off: infinities and NaN are values like others here."""

    @functools.wraps(f)
    def run(*args: Any, **attrs: Any) -> Any:
        with np.errstate(all="ignore"):
            return f(*args, **attrs)

    return run


def in_f32(f: Body) -> Body:
    """Run the body on f32 operands; s32 operands stay s32.

    The result has the dtype of the attribute `dtype`. Without it, or if it is None, it has the dtype of the operands,
    or f32 if they differ.
    """
    return _computed_in(np.dtype(np.float32), f)


def in_f64(f: Body) -> Body:
    """Run the body on f64 operands and round to f32 once, then to the operands' dtype."""
    return _computed_in(np.dtype(np.float64), f)


def _computed_in(wide: np.dtype, f: Body) -> Body:
    @quiet
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


def rounded(y: Any, dtype: np.dtype) -> Array:
    """`y` rounded to f32, and from there to `dtype`."""
    return np.asarray(np.asarray(y).astype(np.float32).astype(dtype))


def widened(x: Array) -> Array:
    """A float array as f32, which is exact; an s32 array as it is."""
    return x if x.dtype == np.int32 else x.astype(np.float32)


def limited(x: Array, low: float, high: float) -> Array:
    """`x` limited to [low, high] as f32; NaN stays, and so does the sign of a zero."""
    a, b = np.float32(low), np.float32(high)
    return np.where(x < a, a, np.where(x > b, b, x))


@np.vectorize(otypes=[np.float64])
def c_erf(x: float) -> float:
    """The error function in f64, from the C library."""
    return math.erf(x)


@np.vectorize(otypes=[np.float64])
def erfc(x: float) -> float:
    """The complementary error function in f64, from the C library."""
    return math.erfc(x)
