"""TensorType: a dtype and a shape whose dimensions may be unknown."""
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from graphq.base.sizes import Size, assumed
from graphq.dtypes import DType, as_dtype, f32, f64, s64
from graphq.errors import GraphError

Dim: TypeAlias = int | None

MAX_ELEMENTS = 2**48
"""The most elements of a tensor. Larger shapes are mistakes, and the limit keeps sizes in bytes far below 2**63."""

MAX_RANK = 64
"""The largest rank of a tensor: NumPy's limit for arrays."""


@dataclass(frozen=True)
class TensorType:
    """A dtype and a shape. A dimension of None is unknown; a shape of None means that the rank is unknown as well."""

    dtype: DType
    shape: tuple[Dim, ...] | None

    def __str__(self) -> str:
        dims = "*" if self.shape is None else ",".join("?" if d is None else str(d) for d in self.shape)
        return f"{self.dtype.name}[{dims}]"

    def refines(self, other: "TensorType") -> bool:
        """Whether this type equals `other`, except that more dimensions may be known."""
        return self.dtype == other.dtype and (other.shape is None or self.shape is not None and (
            len(self.shape) == len(other.shape) and all(b in (None, a) for a, b in zip(
                self.shape, other.shape, strict=True))))

    @property
    def known(self) -> bool:
        """Whether rank and all dimensions are known."""
        return self.shape is not None and None not in self.shape

    @property
    def dims(self) -> tuple[int, ...]:
        """The shape as ints. Raises GraphError if a dimension or the rank is unknown."""
        if self.shape is None or None in self.shape:
            raise GraphError(f"shape of {self} is not known yet")
        return self.shape  # type: ignore[return-value]  # mypy does not see that no dimension is None

    @property
    def rank(self) -> int:
        """The number of dimensions. Raises GraphError if it is unknown."""
        if self.shape is None:
            raise GraphError(f"the rank of {self} is not known")
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.dims)

    @property
    def nbytes(self) -> int:
        """The bytes of a dense array of this type."""
        return math.prod(self.dims) * self.dtype.itemsize


def array_type(array: np.ndarray) -> TensorType:
    """The type of an array. Raises GraphError if graphq lacks its dtype."""
    return TensorType(as_dtype(array.dtype), array.shape)


def shapes_agree(a: tuple[Dim, ...] | None, b: tuple[Dim, ...] | None, *, ones: bool = False) -> bool:
    """Whether all dimensions that are known in both shapes are equal. With `ones`, a 1 in `a` fits any dimension."""
    return a is None or b is None or len(a) == len(b) and all(
        [x is None or y is None or x == y or ones and x == 1 for x, y in zip(a, b, strict=True)])


def check_dims(shape: Sequence[Dim] | int | None, where: str) -> tuple[Dim, ...] | None:
    """Convert a shape to a tuple. Raises GraphError for a negative or fractional dimension, or too many elements."""
    if shape is None:
        return None
    try:
        dims = (shape,) if isinstance(shape, int) else tuple(shape)
    except TypeError:
        raise GraphError(f"{where}: a shape must be a list of dimensions, got {shape!r}") from None
    for d in dims:
        if d is not None and (not isinstance(d, int | np.integer | Size) or isinstance(d, bool) or assumed(d) < 0):
            raise GraphError(f"{where}: a dimension must be a non-negative int or None, got {d!r} in {list(dims)}")
    check_size(dims, where)
    return tuple(d if d is None or isinstance(d, Size) else int(d) for d in dims)


def check_size(dims: Sequence[Dim], where: str) -> None:
    """Raise GraphError for more than MAX_RANK axes or MAX_ELEMENTS elements. Dimensions of 0 count as 1."""
    if len(dims) > MAX_RANK:
        raise GraphError(f"{where}: a shape of {len(dims)} dimensions, but NumPy's limit is {MAX_RANK}")
    size = 1
    for n in dims:
        if n:
            size *= n if type(n) is int else int(assumed(n))
    if size > MAX_ELEMENTS:
        raise GraphError(f"{where}: shape {list(dims)} has more than 2**48 elements")


def frozen(value: Any, where: str, dtype: DType | None = None, *, real: DType = f32) -> np.ndarray:
    """A read-only copy of an array as `dtype` (see `_converted`), or the array itself if nothing can change it.

    If `dtype` is None, f64 arrays (NumPy's default), Python numbers, lists of numbers and NumPy's s64 scalars get the
    dtype `real`. All other values keep their dtype.
    """
    wanted = dtype or real
    try:  # an int becomes a float, because NumPy would keep a large int as an object
        real_int = wanted.kind == "float" and isinstance(value, int) and not isinstance(value, bool)
        array = np.asarray(float(value) if real_int else value)
    except OverflowError:
        raise GraphError(f"{where}: an int of {value.bit_length()} bits does not fit into {wanted}") from None
    except Exception as e:  # an object's own __array__ may raise anything
        raise GraphError(f"{where}: {type(value).__name__} is not an array: {e}") from e
    if array.dtype == object:
        found = sorted({type(x).__name__ for x in array.ravel()})
        raise GraphError(f"{where}: elements must be numbers of one NumPy dtype, got Python objects: "
                         f"{', '.join(found[:4])}")
    try:
        own = as_dtype(array.dtype)
    except GraphError as e:
        raise GraphError(f"{where}: {e}") from None
    if dtype is None:
        by_default = own == f64 or own == s64 and not isinstance(value, np.ndarray)
        dtype = real if by_default else own
    array = _converted(array, own, dtype, where)
    if not (array.flags.c_contiguous and array.flags.aligned and _immutable(array)):
        array = np.array(array, order="C", copy=True)
        array.flags.writeable = False
    return array


def _converted(array: np.ndarray, own: DType, dtype: DType, where: str) -> np.ndarray:
    """Convert an array to `dtype`. A float type rounds as NumPy does; an integer type must hold each number exactly.

    Raises GraphError with the first number that would become infinite, or would not be exact.
    """
    if own == dtype:
        return array
    with np.errstate(all="ignore"):
        out = array.astype(dtype.numpy)
        if dtype.kind == "float":
            same = np.isfinite(array.astype(np.float64)) == np.isfinite(out.astype(np.float64))
        else:  # converting back must give the same number. The sign must stay: u64(-1) also converts back to -1
            same = (out.astype(array.dtype) == array) & ((out < np.int8(0)) == (array < np.int8(0)))
            if own.kind == "float":  # some CPUs saturate 2**31 to 2**31 - 1, which is 2**31 as f32
                same &= array.astype(np.float64) < dtype.max + 1.0
    if not same.all():
        raise GraphError(f"{where}: {array[~same][0]} does not fit into {dtype}")
    return out


def _immutable(array: np.ndarray) -> bool:
    """Whether nothing can change the elements: the array and its bases are read-only, and the last base is bytes."""
    base: Any = array
    while isinstance(base, np.ndarray) and not base.flags.writeable:
        base = base.base
    return isinstance(base, bytes)
