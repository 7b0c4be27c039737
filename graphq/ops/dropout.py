"""The operation dropout, with oneDNN's random numbers."""
import numpy as np

from graphq.dtypes import f32, u8
from graphq.errors import GraphError
from graphq.ir import TensorType, register_op
from graphq.ops.rules import FLOATS, ONE, Array, expect_dtype, rounded


def infer_dropout(src: TensorType, seed: TensorType, offset: TensorType, probability: TensorType, *,
                  keep_mask: bool) -> TensorType | tuple[TensorType, TensorType]:
    """`src` is a float tensor; `seed` and `offset` are integers of 32 or 64 bits, and `probability` is an f32."""
    expect_dtype("src", src, FLOATS)
    expect_dtype("probability", probability, (f32,))
    for name, t in (("seed", seed), ("offset", offset)):
        if t.dtype.kind != "int" or t.dtype.bits < 32:
            raise GraphError(f"'{name}' must be an integer of 32 or 64 bits, got {t.dtype}")
    for name, t in (("seed", seed), ("offset", offset), ("probability", probability)):
        if t.shape not in ONE:
            raise GraphError(f"'{name}' must be one number, [] or [1], got {t}")
    return (src, TensorType(u8, src.shape)) if keep_mask else src


@register_op(infer=infer_dropout, rows="kept")
def dropout(src: Array, seed: Array, offset: Array, probability: Array, *,
            keep_mask: bool = False) -> Array | tuple[Array, Array]:
    """`src / (1 - p)` if a random number in [0, 1) is above the probability p, else 0 (oneDNN Dropout).

    With `keep_mask`, the second output is oneDNN's optional mask, u8: 1 for kept elements, else 0.

    The random numbers are oneDNN's (3.13, measured). Element i in row-major order gets word i % 4 of Philox 4x32-10
    with the 64-bit key `seed` and the counter (offset, b), b = i - i % 4. If the offset is 0, element i gets word 2
    with the counter (b, b + 1, b, b + 3). Both halves of the key are then the low half of the seed.
    """
    p = np.float32(probability.reshape(()))
    words = random_words(src.size, int(seed.reshape(())), int(offset.reshape(())))
    limit = min(max(np.float64(p) * 2**32, -1.0), 2.0**32)
    kept = (words > limit).reshape(src.shape) if limit >= 0 else np.ones(src.shape, np.bool_)
    scale = np.float32(1) / (np.float32(1) - p)
    y = rounded(np.where(kept, src.astype(np.float32) * scale, np.float32(0)), src.dtype)
    return (y, kept.astype(np.uint8)) if keep_mask else y


def random_words(count: int, seed: int, offset: int) -> Array:
    """Make `count` random numbers of 32 bits, as u64."""
    first = np.arange(-(-count // 4), dtype=np.uint64) * np.uint64(4)
    low, high = _halves(seed)
    if offset == 0:
        # At offset 0, oneDNN uses an older generator without offsets: four elements share one random number.
        counter = [first, first + np.uint64(1), first, first + np.uint64(3)]
        return np.repeat(_philox(counter, low, low)[2], 4)[:count]
    at = [np.broadcast_to(np.uint64(half), first.shape) for half in _halves(offset)]
    words = _philox([*at, first & _LOW, first >> np.uint64(32)], low, high)
    return np.stack(words, axis=-1).reshape(-1)[:count]


_LOW = np.uint64(0xFFFFFFFF)
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = 0x9E3779B9, 0xBB67AE85


def _halves(x: int) -> tuple[int, int]:
    return x & 0xFFFFFFFF, x >> 32 & 0xFFFFFFFF


def _philox(counter: list[Array], k0: int, k1: int) -> list[Array]:
    """Philox 4x32-10 (Salmon et al., SC 2011) on 32-bit words in u64 arrays."""
    c0, c1, c2, c3 = counter
    for _ in range(10):
        a, b = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1 = (b >> np.uint64(32)) ^ c1 ^ np.uint64(k0), b & _LOW
        c2, c3 = (a >> np.uint64(32)) ^ c3 ^ np.uint64(k1), a & _LOW
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return [c0, c1, c2, c3]
