"""The orders of f32 operations that docs/numbers.md states, once more in NumPy: an oracle on every machine.

Written from that page and ONNX Runtime's sources (MLAS), without graphq's code. Every function takes and gives f32, one
IEEE operation at a time, along the last axis where it sums. Constants are MLAS's.
"""
import numpy as np

F = np.float32


def fma(a, b, c):
    """a * b + c, rounded once."""
    with np.errstate(all="ignore"):
        product, c = np.asarray(a, np.float64) * b, np.asarray(c, np.float64)  # the product of two f32 is exact in f64
        total = product + c
        part = total - product
        lost = (product - (total - part)) + (c - part)  # total + lost is the exact sum
        # An even sum that lost something becomes its odd neighbor on that side: no odd f64 is halfway between two f32.
        even = (total.view(np.int64) & 1 == 0) & np.isfinite(lost) & (lost != 0)
        return np.where(even, np.nextafter(total, np.copysign(np.inf, lost)), total).astype(F)


def polynomial(x, *coefficients):
    y = np.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        y = fma(y, x, F(c))
    return y


def reduced(x):
    """n and r of x = n ln 2 + r."""
    magic = F(1.5 * 2**23)
    n = fma(x, F(1.44269504088896341), magic) - magic
    return n.astype(np.int32), fma(n, F(-1.42860677e-6), fma(n, F(-6.93145752e-1), x))


def exp(x):
    n, r = reduced(np.clip(x, F(-103.9720840454), F(88.776262664795)))
    p = polynomial(r, 1.37805939e-3, 8.37312452e-3, 4.16695364e-2, 1.66664720e-1, 4.99999851e-1, 1, 1)
    with np.errstate(all="ignore"):
        return np.ldexp(p, n)


def erf(x):
    t = np.minimum(np.abs(x), F(3.925))
    small = fma(polynomial(t * t, -5.99104969e-4, 4.99339588e-3, -2.67667342e-2, 1.12818025e-1, -3.76124859e-1,
                           1.28379151e-1), t, t)
    power = polynomial(t, 1.72948930e-5, -3.83208680e-4, 3.88393435e-3, -2.42545605e-2, 1.06777847e-1, 6.34846687e-1,
                       1.28717512e-1)
    n, r = reduced(-fma(power, t, t))
    p = polynomial(r, 1.38319808e-3, 8.37550033e-3, 4.16689515e-2, 1.66664466e-1, 4.99999851e-1, 1, 1)
    return np.copysign(np.where(t > F(0.921875), F(1) - np.ldexp(p, n), small), x)


def lanes(x, count, start, add):
    """`count` chains: lane k takes the elements k, k + count ...; what is left at the end goes to the first lanes."""
    sums = np.full((*x.shape[:-1], count), start, x.dtype)
    for k in range(0, x.shape[-1], count):
        part = x[..., k:k + count]
        sums[..., :part.shape[-1]] = add(sums[..., :part.shape[-1]], part)
    return sums


def halves(sums, to=1):
    """Lanes added to those half of them away, until `to` are left."""
    while sums.shape[-1] > to:
        middle = sums.shape[-1] // 2
        sums = sums[..., :middle] + sums[..., middle:]
    return sums


def softmax(x):
    """Powers are added in 16 lanes (AVX-512's), then the upper 8 to the lower 8, and neighbors to neighbors."""
    with np.errstate(all="ignore"):
        e = exp(x - x.max(axis=-1, keepdims=True))
        sums = halves(lanes(e, 16, 0, np.add), 8)
        while sums.shape[-1] > 1:
            sums = sums[..., ::2] + sums[..., 1::2]
        return e * (F(1) / sums)


def layer_norm(x, gamma, beta, epsilon):
    """The mean in f64; squares in 8 fused chains, then one by one, a first four of those not fused."""
    n = x.shape[-1]
    d = x - (halves(lanes(x.astype(np.float64), 16, -0.0, np.add)) / n).astype(F)
    whole = n // 8 * 8
    total = halves(lanes(d[..., :whole], 8, 0, lambda have, new: fma(new, new, have)))[..., 0]
    for k in range(whole, n):
        total = total + d[..., k] * d[..., k] if n & 4 and k < whole + 4 else fma(d[..., k], d[..., k], total)
    y = d * (F(1) / np.sqrt(total / F(n) + F(epsilon)))[..., None]
    return y * gamma if beta is None else fma(y, gamma, beta)


def row_sum(x):
    """8 lanes from -0, then 4 with four elements that may be left, then one, and the rest one by one."""
    n = x.shape[-1]
    whole = n // 8 * 8
    four = halves(lanes(x[..., :whole], 8, -0.0, np.add), 4)
    if n & 4:
        four, whole = four + x[..., whole:whole + 4], whole + 4
    total = halves(four)[..., 0]
    for k in range(whole, n):
        total = total + x[..., k]
    return total[..., None]


def matmul(x, w, block=256):
    """Chains of fused multiply-adds over `block` k, added up in order."""
    total = np.zeros((len(x), w.shape[1]), F)
    for start in range(0, len(w), block):
        chain = np.zeros_like(total)
        for k in range(start, min(start + block, len(w))):
            chain = fma(x[:, k, None], w[None, k], chain)
        total = total + chain
    return total


def quantized(z, scale, zp):
    """u8 as QuantizeLinear has it."""
    return np.clip(np.rint(z / F(scale)) + F(zp), 0, 255).astype(np.uint8)
