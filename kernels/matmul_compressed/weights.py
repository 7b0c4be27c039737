"""The kernel table's names for compressed weights, and how kernels round weights to a narrower float."""
from __future__ import annotations

from graphq.kernels.jit.values import I16, I32, Builder, Value, vector
from graphq.kernels.jit.x86 import instruction
from graphq.kernels.lanes.vector import narrow, widen

W_DTYPES = {4: "s4", 8: "s8groups"}
"""The kernel table's names for the dtypes of compressed weights, by their bits."""
ROUNDED = {(bits, dtype): f"s{bits}{dtype}" for bits in W_DTYPES for dtype in ("f16", "bf16")}
"""The same of weights that are rounded to a narrower float before activations of f32, or of it, multiply them."""
BITS = {**{name: bits for bits, name in W_DTYPES.items()}, **{name: bits for (bits, _), name in ROUNDED.items()}}
ROUNDS = {name: dtype for (_, dtype), name in ROUNDED.items()}
"""The bits of a weight, and the float that weights are rounded to, by these names."""


def rounded(b: Builder, x: Value, dtype: str, lanes: int) -> Value:
    """Emit the rounding of finite f32 to a narrower float and back; below 8 lanes are for CPUs without f16."""
    if dtype == "bf16":
        bits = x.as_type(vector(I32, lanes))
        return ((bits + 0x7FFF + (bits.shr(16) & 1)) & -0x10000).as_type(x.type)
    emulated = lanes < 8
    return widen(b, narrow(b, x, dtype, lanes, emulated), dtype, lanes, emulated)


def pairs(b: Builder, first: Value, second: Value) -> Value:
    """Emit the rounding of two vectors of 16 f32 to bf16: each s32 has the bits of both, those of `first` below.

    vcvtne2ps2bf16 takes subnormal numbers as zeros, as vdpbf16ps does.
    """
    halves = instruction(b, "avx512bf16.cvtne2ps2bf16.512", vector(I16, 32), [second, first])
    return halves.shuffle(halves, [k // 2 + 16 * (k % 2) for k in range(32)]).as_type(vector(I32, 16))
