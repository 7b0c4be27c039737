"""Packed 4-bit weights: nibbles as they stay in memory, with the scales and corrections of their groups.

Weights w (k, n) of s4 or u4 in groups of `group` rows, each with a scale and a zero point per column, are taken as
u = w + 8 (s4) or w (u4), in 0 .. 15, and z likewise; u - z must fit in s8. They lie packed as

    descriptors   s64 [panels][8]    DESCRIPTOR
    panels, each  [groups] f32[16] scales, s32[16] corrections
                  [groups] u8[16] zero points, up to a multiple of 64 bytes
                  [groups][lines] of 64 bytes

with panels = ceil(n / 16), lines = ceil(group / 8). Of line v the low nibbles are rows 8 v .. 8 v + 3 of 16 columns,
the high ones rows 8 v + 4 .. 8 v + 7, each in the order of a line of `pack`. Numbers past the group or n are 0.
"""
from __future__ import annotations

import numpy as np

from graphq.errors import KernelError
from graphq.kernels.jit.memory import LINE, aligned_empty
from graphq.kernels.matmul.pack import DESCRIPTOR, PANEL, panel_count


def pack_4bit(u: np.ndarray, z: np.ndarray, scales: np.ndarray, corrections: np.ndarray) -> np.ndarray:
    """Pack u (k, n) and z, both integers, with f32 `scales` and s32 `corrections`, all three (groups, n), as u8.

    Raises KernelError where numbers are out of range or k is no multiple of the groups.
    """
    (k, n), groups = u.shape, len(z)
    if groups < 1 or k % groups or not z.shape == scales.shape == corrections.shape == (groups, n):
        raise KernelError(f"{k} x {n} weights do not take groups of {z.shape}, {scales.shape}, {corrections.shape}")
    group = k // groups
    parts = u.reshape(groups, group, n).astype(np.int32)
    centred = parts - z[:, None].astype(np.int32)
    if k * n and not (0 <= parts.min() and parts.max() <= 15 and -128 <= centred.min() and centred.max() <= 127):
        raise KernelError("4-bit weights must be 0 to 15, and fit in s8 less their zero points")
    panels, lines = panel_count(n), -(-group // 8)
    padded = np.zeros((groups, lines * 8, panels * PANEL), np.uint8)
    padded[:, :group, :n] = parts
    low, high = padded.reshape(groups, lines, 2, 4, panels, PANEL).transpose(2, 4, 0, 1, 5, 3)
    first, second = 2 * LINE * groups, -(-PANEL * groups // LINE) * LINE
    size = first + second + lines * LINE * groups
    out = aligned_empty(panels * (LINE + size))
    out[:] = 0
    words = out[:panels * LINE].view(np.int64).reshape(panels, 8)
    words[:, :len(DESCRIPTOR.fields)] = DESCRIPTOR.words({
        "group": group, "groups": groups, "panel_bytes": size, "zero_points": first, "lines": first + second})
    body = out[panels * LINE:].reshape(panels, size)
    head = body[:, :first].view(np.int32).reshape(panels, groups, 2, PANEL)
    head[:, :, 0] = _columns(scales.astype(np.float32), panels).view(np.int32)
    head[:, :, 1] = _columns(corrections.astype(np.int32), panels)
    body[:, first:first + PANEL * groups] = _columns(z.astype(np.uint8), panels).reshape(panels, -1)
    body[:, first + second:] = (low | high << 4).reshape(panels, -1)
    return out


def panel_bytes(packed: np.ndarray) -> int:
    """The bytes of each panel of packed weights, as their descriptors say."""
    return int(packed.view(np.int64)[DESCRIPTOR.number("panel_bytes")]) if packed.size else 0


def _columns(x: np.ndarray, panels: int) -> np.ndarray:
    """(groups, n) as (panels, groups, 16), zeros past n."""
    out = np.zeros((len(x), panels * PANEL), x.dtype)
    out[:, :x.shape[1]] = x
    return out.reshape(len(x), panels, PANEL).transpose(1, 0, 2)
