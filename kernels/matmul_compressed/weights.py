"""The kernel table's names for compressed weights, and how kernels round weights to a narrower float."""
from __future__ import annotations

from graphq.kernels.jit.values import Builder, Value
from graphq.kernels.lanes.vector import narrow, widen

W_DTYPES = {4: "s4", 8: "s8groups"}
"""The kernel table's names for the dtypes of compressed weights, by their bits."""
ROUNDED = {(bits, dtype): f"s{bits}{dtype}" for bits in W_DTYPES for dtype in ("f16", "bf16")}
"""The same of weights that are rounded to a narrower float before f32 activations multiply them."""
BITS = {**{name: bits for bits, name in W_DTYPES.items()}, **{name: bits for (bits, _), name in ROUNDED.items()}}
ROUNDS = {name: dtype for (_, dtype), name in ROUNDED.items()}
"""The bits of a weight, and the float that weights are rounded to, by these names."""


def rounded(b: Builder, x: Value, dtype: str, lanes: int) -> Value:
    """Emit the rounding of f32 to a narrower float and back; vectors below 8 lanes are for CPUs without f16."""
    emulated = lanes < 8
    return widen(b, narrow(b, x, dtype, lanes, emulated), dtype, lanes, emulated)
