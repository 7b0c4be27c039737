"""Arrays of the float types, with special values among them on demand."""
import numpy as np

from graphq.kernels.lanes.expression import STORAGE

SPECIAL = np.array([0, -0.0, 1, -1, np.nan, np.inf, -np.inf, 1e-45, -1e-45, 1e-38, 3e38, -3e38, 1e-23, -1e-23, 65504],
                   np.float32)


def float_array(dtype, shape, seed=0, special=False):
    """Normal numbers; with `special`, one in twenty is one of SPECIAL."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape, np.float32)
    if special:
        x = np.where(rng.random(shape) < 0.05, rng.choice(SPECIAL, shape), x)
    with np.errstate(over="ignore"):
        return x.astype(STORAGE[dtype])


def tiny_arrays(m, k, n):
    """bf16 whose products are of the size of the smallest normal f32; some of them are subnormal themselves."""
    rng = np.random.default_rng((m, k, n))
    exponents = rng.integers(-66, -61, k)
    exponents[rng.random(k) < 0.2] = -130
    exponents[rng.random(k) < 0.2] = 3
    pairs = ((m, k), exponents), ((k, n), -126 + rng.integers(-1, 2, (k, 1)) - exponents[:, None])
    return [np.ldexp(rng.choice([-1, 1], shape) * (1 + rng.integers(0, 128, shape) / 128), powers).astype(
        np.float32).astype(STORAGE["bf16"]) for shape, powers in pairs]
