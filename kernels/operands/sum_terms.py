"""TERMS: where the terms of an output's sum are in memory, to add them again for outputs near a rounding tie."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphq.base.sizes import later
from graphq.kernels.jit.records import Record
from graphq.kernels.numbers.sum_orders import ORDERS, DequantizedSum

TERMS = Record("order", "block", "signed", "zero_point", "scale", "channels", "per", "merged", "tap_k",
               "parts", "pixel", "chunk", "chunk_bytes", "item", "half")
"""The order of a sum in the graph as written, and how the kernel has packed the weights.

    order, block        the order's number in ORDERS, and the number of terms in a block
    signed, zero_point, scale    of the activations: whether they are s8; the scale as the bits of an f32
    channels            the number of channels that an output reads
    per                 the output columns of a group, or 0 if one group has all columns
    merged, tap_k       how many taps were packed as one, and the packed k of such a tap
    parts               the number of packed weights whose sum is a weight
    pixel               bytes of a pixel
    chunk, chunk_bytes, item, half    of depthwise weights: channels and bytes of a chunk, bytes of a weight, and the
                        lanes of a half if pairs of taps are in the order of vpunpcklbw, otherwise 0
"""


def terms(how: DequantizedSum, channels: int, *, signed: bool, **layout: int) -> np.ndarray:
    """The TERMS of a layer as s64 words.

    `layout` has the fields that describe the packed weights; fields that it lacks are 0.
    """
    return later(_s64, TERMS.words({
        "order": ORDERS.index(how.order), "block": how.block, "signed": signed, "zero_point": how.x_zp,
        "scale": int(np.float32(how.x_scale).view(np.uint32)), "channels": channels, **layout}))


def _s64(words: Sequence[int]) -> np.ndarray:
    return np.array(words, np.int64)
