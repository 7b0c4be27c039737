"""The dtypes of compressed weights in the kernel table, and the rounding of weights to a narrower float."""
from __future__ import annotations

from graphq.kernels.jit.values import I32, Builder, Value, vector
from graphq.kernels.lanes.vector import narrow, widen

W_DTYPES = {4: "s4", 8: "s8groups"}
"""The names of compressed weights in the kernel table, by the bits of a weight."""
ROUNDED = {(bits, dtype): f"s{bits}{dtype}" for bits in W_DTYPES for dtype in ("f16", "bf16")}
"""The names of compressed weights that kernels round to a narrower float, by bits and float dtype.

The activations are f32 or have the narrower dtype.
"""
BITS = {**{name: bits for bits, name in W_DTYPES.items()}, **{name: bits for (bits, _), name in ROUNDED.items()}}
ROUNDS = {name: dtype for (_, dtype), name in ROUNDED.items()}
"""Maps from names of weights: to the bits of a weight (BITS), and to the narrower float of ROUNDED (ROUNDS)."""


def rounded(b: Builder, x: Value, dtype: str, lanes: int) -> Value:
    """Emit the rounding of finite f32 to a narrower float and back."""
    if dtype == "bf16":
        bits = x.as_type(vector(I32, lanes))
        return ((bits + 0x7FFF + (bits.shr(16) & 1)) & -0x10000).as_type(x.type)
    return widen(b, narrow(b, x, dtype, lanes), dtype, lanes)
