"""Quantize in an epilogue: the operations that define the result, and the numbers that results stand for."""
from graphq.kernels.lanes.expression import BYTES, STORAGE, Expr, define, maximum, minimum, op

RANGES = {"s8": (-128, 127), "u8": (0, 255), "s16": (-2**15, 2**15 - 1), "u16": (0, 2**16 - 1)}
F8 = {"f8_e4m3": 448.0, "f8_e5m2": 57344.0}
"""The floats of 8 bits that kernels read and write, with their largest finite numbers."""


def quantize(y: Expr, inv_scale: Expr | float, zp: Expr | float, dtype: str) -> Expr:
    """Saturate rint(y * inv_scale) + zp to `dtype`. NaN gives zp.

    The result is an s32, and only its low bits are the number (see `quantized`). `zp` is an integer in f32, in the
    range of `dtype`. For f8 the result is an f32, not yet rounded, and NaN stays.
    """
    if dtype in F8:
        return maximum(-F8[dtype], minimum(F8[dtype], y * inv_scale))
    lo, hi = RANGES[dtype]
    return op("quantize_to", y, inv_scale, zp, lo, hi)


@define("f32 f32 f32 f32 f32 -> s32")
def quantize_to(y: Expr, inv_scale: Expr, zp: Expr, lo: Expr, hi: Expr) -> Expr:
    """Saturate rint(y * inv_scale) + zp to [lo, hi], integers within +-2**22. NaN gives zp in the low 16 bits."""
    # The bounds are integers, so clipping before rounding equals saturating afterwards. Clipped numbers fit into s32,
    # so the conversion can round them; this saves an operation. min and max return their second operand if it is NaN.
    # The conversion turns NaN into an s32 whose low 16 bits are 0. With an explicit test for NaN, requantization was
    # slower by a tenth.
    clipped = minimum(hi - zp, maximum(lo - zp, y * inv_scale))
    return op("round_s32", clipped) + op("round_s32", zp)


def quantize_quotient(y: Expr, scale: Expr, inv_scale: Expr, zp: Expr | float, dtype: str) -> Expr:
    """Saturate rint(y / scale) + zp to `dtype` like `quantize`, without a division.

    `inv_scale` is 1 / scale, rounded once. Scales must be in the range QUOTIENTS.
    """
    lo, hi = RANGES[dtype]
    return op("quantize_quotient_to", y, scale, inv_scale, zp, lo, hi)


QUOTIENTS = (2.0**-100, 2.0**100)
"""The range of scales for which `quantize_quotient` rounds like a division.

In this range, no intermediate result that matters overflows or underflows.
"""


@define("f32 f32 f32 f32 f32 f32 -> s32")
def quantize_quotient_to(y: Expr, scale: Expr, inv_scale: Expr, zp: Expr, lo: Expr, hi: Expr) -> Expr:
    """Like `quantize_to`, with the quotient y / scale rounded once."""
    # Markstein's theorem: if t is close to the quotient and the fma computes the remainder exactly, the corrected t is
    # rounded like a division. For 16 lanes, these operations take 2 cycles; a division takes 10 on Zen 4, and 16 on
    # Xeons with AMX. y is clipped first, because infinities have no remainder. If a quotient is too small for an exact
    # remainder, it rounds to 0 anyway.
    clipped = minimum((hi - zp) * scale, maximum((lo - zp) * scale, y))
    t = clipped * inv_scale
    return op("round_s32", op("fma", op("fma", -t, scale, clipped), inv_scale, t)) + op("round_s32", zp)


def near_tie(y: Expr, inv_scale: Expr, zp: Expr, dtype: str, slope: Expr) -> Expr:
    """The closeness of a quantized y to a rounding tie: |q - rint(q)| + slope * |q| for q = y * inv_scale.

    At 0.5 or above, q is at a tie, or an error of slope * |q| could move q to a tie.
    """
    lo, hi = RANGES[dtype]
    return op("tie", y, inv_scale, zp, lo, hi, slope)


@define("f32 f32 f32 f32 f32 f32 -> f32")
def tie(y: Expr, inv_scale: Expr, zp: Expr, lo: Expr, hi: Expr, slope: Expr) -> Expr:
    """The result of `near_tie` for a quantize of y to [lo, hi]. NaN gives NaN."""
    clipped = minimum(hi - zp, maximum(lo - zp, y * inv_scale))
    return op("fma", op("abs", clipped), slope, op("abs", clipped - op("rint", clipped)))


@define("f32 f32 -> f32")
def saturate(x: Expr, lowest: Expr) -> Expr:
    """Saturate x to [lowest, 511.75]."""
    return minimum(511.75, maximum(lowest, x))


def quantized(x: Expr, dtype: str) -> Expr:
    """The number that remains when the result of `quantize` is stored as `dtype`: its low bits, extended to s32."""
    bits = 8 * STORAGE[dtype].itemsize
    return op("and", x, (1 << bits) - 1) if dtype[0] == "u" else op("sar", op("shl", x, 32 - bits), 32 - bits)


def unquantized(x: Expr) -> tuple[Expr, str] | None:
    """If x is a result of `quantized` with an 8-bit type, its argument and this type; otherwise None."""
    if x.op == "and" and x.args[1].value == 0xFF:
        return x.args[0], "u8"
    if x.op == "sar" and x.args[0].op == "shl" and x.args[1].value == x.args[0].args[1].value == 24:
        return x.args[0].args[0], "s8"
    return None


def byte_type(x: Expr) -> str | None:
    """The type, u8 or s8, if x is a byte that is loaded per element or quantized; otherwise None."""
    if x.op == "load":
        return x.value[1] if x.value[1] in BYTES and x.value[2] in ("vector", "column") else None
    number_and_type = unquantized(x)
    return None if number_and_type is None else number_and_type[1]
