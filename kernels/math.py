"""Functions of f32 built from basic operations, so that every instruction set and NumPy give the same bits."""
from __future__ import annotations

from graphq.kernels.expression import Expr, define, maximum, minimum, op, select


def quantize(y: Expr, inv_scale: Expr | float, zp: Expr | float, dtype: str) -> Expr:
    """Saturate rint(y * inv_scale) + zp to s8 or u8, NaN -> zp; an s32 to be stored as `dtype`.

    `zp` is a whole number in the range of `dtype`, as f32.
    """
    lo, hi = {"s8": (-128, 127), "u8": (0, 255)}[dtype]
    return op("quantize_to", y, inv_scale, zp, lo, hi)


@define("f32 f32 f32 f32 f32 -> s32")
def quantize_to(y: Expr, inv_scale: Expr, zp: Expr, lo: Expr, hi: Expr) -> Expr:
    """Saturate rint(y * inv_scale) + zp to [lo, hi], whole numbers below 2**22 in size; NaN -> zp."""
    # Clipping q to whole bounds before rounding is the same as saturating after it, and makes the conversion safe;
    # rounding in the conversion saves an operation. zp is exact as an integer.
    q = y * inv_scale
    clipped = minimum(maximum(q, lo - zp), hi - zp)
    return select(op("eq", q, q), op("round_s32", clipped), 0) + op("round_s32", zp)
