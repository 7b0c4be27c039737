"""Functions that compute arrays from open sizes at run time, for ONNX importers.

The functions have a file of their own, because saved plans call them in processes that do not import the importers.
"""
import math

import numpy as np

from graphq.base.budget import expect, reserve
from graphq.base.sizes import recorded


@recorded("element")
def element(array: np.ndarray, number: int) -> int:
    """The element at flat index `number` of an integer array."""
    return int(array.reshape(-1)[number])


@recorded("numbers_between")
def numbers_between(*numbers: np.ndarray) -> np.ndarray:
    """The range `start + k * delta` up to `limit`, for `numbers` (start, limit, delta); CompileError if too large."""
    start, limit, delta = (x.reshape(()) for x in numbers)
    if start.dtype.kind in "iu":
        count = max(-((start.item() - limit.item()) // delta.item()), 0)  # exact, unlike a quotient in f64
    else:
        count = max(math.ceil((limit.item() - start.item()) / delta.item()), 0)
    reserve(count * start.itemsize, f"a constant {start.dtype}[{count}]")
    expect(3 * count * max(8, start.itemsize), f"a range of {count} numbers")  # three arrays: integers, products, sums
    return (start + np.arange(count).astype(start.dtype) * delta).astype(start.dtype)
