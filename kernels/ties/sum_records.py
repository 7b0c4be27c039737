"""What the block functions of literal sums (`settle`) are called with: a layer's constants and an output's record."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphq.kernels.jit.records import Record
from graphq.kernels.ties.literal import ORDERS, Literal
from graphq.sizes import later

SPEC = Record("order", "block", "channels", "merged", "tap_k", "parts", "signed", "zero_point", "scale", "per", "pixel")
"""The constants of a layer's literal sums.

    order, block        of ORDERS, and the terms of a block
    channels            of the activations
    merged, tap_k       how many taps were packed as one, and the packed k of such a tap
    parts               how many packed weights a weight is the sum of
    signed, zero_point, scale    of the activations: whether they are s8; the bits of an f32
    per                 columns of a group, or 0: one group has all
    pixel               bytes of a pixel
"""
HEAD = ("sum", "spec", "start", "scale")
"""The first fields of an output's record: the sum (f32), which the block function stores, the address of the spec, the
bits of the f32 from which the sum starts, and those of the scale of the weights."""
PANEL_SUM = Record(*HEAD, "frame", "row", "panel_bytes", "column", "zero_point")
"""An output of a matmul: the frame of its tile (`tile_frame`), its row there, its column in all, and the zero point of
the column's weights; `panel_bytes` of packed weights."""
PIXEL_SUM = Record(*HEAD, "addresses", "taps", "weights", "item", "offsets")
"""An output of a depthwise convolution: the table of the addresses of its taps, their number, and where their weights,
of `item` bytes, lie: at `weights` and the table of `offsets`."""
SUM_BYTES = max(PANEL_SUM.nbytes, PIXEL_SUM.nbytes)


def spec(literal: Literal, channels: int, *, signed: bool, tap_k: int = 0, merged: int = 1, parts: int = 1,
         pixel: int = 0, per: int = 0) -> np.ndarray:
    """The SPEC of a layer, s64 words."""
    return later(_s64, SPEC.words({
        "order": ORDERS.index(literal.order), "block": literal.block, "channels": channels, "merged": merged,
        "tap_k": tap_k, "parts": parts, "signed": signed, "zero_point": literal.x_zp,
        "scale": int(np.float32(literal.x_scale).view(np.uint32)), "per": per, "pixel": pixel}))


def _s64(words: Sequence[int]) -> np.ndarray:
    return np.array(words, np.int64)
