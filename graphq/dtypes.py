"""Element types of tensors: oneDNN's types, under oneDNN's names, and further types of ONNX."""
from dataclasses import dataclass
from typing import Literal, TypeAlias

import ml_dtypes
import numpy as np

from graphq.base.locks import lazy_property
from graphq.errors import GraphError


@dataclass(frozen=True, repr=False)
class DType:
    """An element type: `name` is oneDNN's name, `numpy` the storage type, `bits` the logical width."""

    name: str
    numpy: np.dtype
    bits: int
    kind: str  # "float", "int" or "bool"

    def __repr__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        """Whether `other` is the same DType or its name, so `value.dtype == "u8"` works."""
        if isinstance(other, DType):
            return self.name == other.name
        return self.name == other if isinstance(other, str) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def itemsize(self) -> int:
        """The bytes that an element takes in memory: one byte for types of 2 to 6 bits, as in ml_dtypes."""
        return self.numpy.itemsize

    @lazy_property
    def min(self) -> float:
        """The least finite value."""
        return self._limit("min")

    @lazy_property
    def max(self) -> float:
        """The greatest finite value."""
        return self._limit("max")

    def _limit(self, which: str) -> float:
        if self.kind == "bool":
            return 0 if which == "min" else 1
        if self.kind == "float":
            return float(getattr(ml_dtypes.finfo(self.numpy), which))
        return int(getattr(ml_dtypes.iinfo(self.numpy), which))


f32 = DType("f32", np.dtype(np.float32), 32, "float")
bf16 = DType("bf16", np.dtype(ml_dtypes.bfloat16), 16, "float")
f16 = DType("f16", np.dtype(np.float16), 16, "float")
f8_e4m3 = DType("f8_e4m3", np.dtype(ml_dtypes.float8_e4m3fn), 8, "float")
f8_e5m2 = DType("f8_e5m2", np.dtype(ml_dtypes.float8_e5m2), 8, "float")
s32 = DType("s32", np.dtype(np.int32), 32, "int")
s64 = DType("s64", np.dtype(np.int64), 64, "int")
s8 = DType("s8", np.dtype(np.int8), 8, "int")
u8 = DType("u8", np.dtype(np.uint8), 8, "int")
s4 = DType("s4", np.dtype(ml_dtypes.int4), 4, "int")
u4 = DType("u4", np.dtype(ml_dtypes.uint4), 4, "int")
boolean = DType("boolean", np.dtype(np.bool_), 8, "bool")

f64 = DType("f64", np.dtype(np.float64), 64, "float")
f8_e4m3fnuz = DType("f8_e4m3fnuz", np.dtype(ml_dtypes.float8_e4m3fnuz), 8, "float")
f8_e5m2fnuz = DType("f8_e5m2fnuz", np.dtype(ml_dtypes.float8_e5m2fnuz), 8, "float")
f8_e8m0 = DType("f8_e8m0", np.dtype(ml_dtypes.float8_e8m0fnu), 8, "float")
f6_e2m3 = DType("f6_e2m3", np.dtype(ml_dtypes.float6_e2m3fn), 6, "float")
f6_e3m2 = DType("f6_e3m2", np.dtype(ml_dtypes.float6_e3m2fn), 6, "float")
f4_e2m1 = DType("f4_e2m1", np.dtype(ml_dtypes.float4_e2m1fn), 4, "float")
u64 = DType("u64", np.dtype(np.uint64), 64, "int")
u32 = DType("u32", np.dtype(np.uint32), 32, "int")
s16 = DType("s16", np.dtype(np.int16), 16, "int")
u16 = DType("u16", np.dtype(np.uint16), 16, "int")
s2 = DType("s2", np.dtype(ml_dtypes.int2), 2, "int")
u2 = DType("u2", np.dtype(ml_dtypes.uint2), 2, "int")

ONEDNN: dict[str, DType] = {t.name: t for t in (f32, bf16, f16, f8_e4m3, f8_e5m2, s64, s32, s8, u8, s4, u4, boolean)}
"""The dtypes that oneDNN Graph's files can hold, by name."""

DTYPES: dict[str, DType] = ONEDNN | {t.name: t for t in (f64, f8_e4m3fnuz, f8_e5m2fnuz, f8_e8m0, f6_e2m3, f6_e3m2,
                                                        f4_e2m1, u64, u32, s16, u16, s2, u2)}
_BY_NUMPY = {t.numpy: t for t in DTYPES.values()}

Name: TypeAlias = Literal[
    "f32", "bf16", "f16", "f8_e4m3", "f8_e5m2", "s64", "s32", "s8", "u8", "s4", "u4", "boolean", "f64", "f8_e4m3fnuz",
    "f8_e5m2fnuz", "f8_e8m0", "f6_e2m3", "f6_e3m2", "f4_e2m1", "u64", "u32", "s16", "u16", "s2", "u2", "float16",
    "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"]
"""For type checkers: the names of the dtypes, and NumPy's names for them."""

DTypeLike: TypeAlias = DType | Name | np.dtype | type


def as_dtype(x: DTypeLike | str) -> DType:
    """The DType of a name ("u8"), a NumPy dtype or a DType; raises GraphError on anything else."""
    if isinstance(x, DType):
        return x
    if isinstance(x, str) and x in DTYPES:
        return DTYPES[x]
    try:
        return _BY_NUMPY[np.dtype("" if x is None else x)]  # np.dtype(None) would be f64
    except (KeyError, TypeError, ValueError, SyntaxError):
        name = str(x) if isinstance(x, np.dtype) else repr(x)
        raise GraphError(f"unknown dtype {name}; graphq has {', '.join(DTYPES)}") from None
