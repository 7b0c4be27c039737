"""Inputs and digests of outputs that are equal on every machine."""
import hashlib

import numpy as np
from level_graphs import numbers

from graphq.model.digests import add_array


def feed(value):
    """Inputs that no version of NumPy changes: integers, or floats with special numbers among them."""
    if value.dtype.kind == "int":
        return numbers(value.shape, value.dtype.name, 3)
    x = numbers(value.shape, "s8", 4).astype(np.float32) / np.float32(19)
    if len(value.shape) == 1:
        x[:6] = [-0.0, 1e-41, np.inf, -np.inf, np.nan, 88]
    return x.astype(value.dtype.numpy)


def digest(results):
    """The digest of outputs in which all NaN are one NaN."""
    results, found = results if isinstance(results, dict) else {"y": results}, hashlib.sha256()
    for name, x in sorted(results.items()):
        found.update(f"{name} ".encode())
        add_array(found, x)
    return found.hexdigest()[:16]
