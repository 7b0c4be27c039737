"""Packed weights of 4 or 8 bits: integers that stay packed in memory, with the scales of their groups.

Weights w (k, n) in groups of `group` rows, each with a scale and a zero point per column, are taken as integers u of
`bits` bits from 0 on, and so are zero points z. They are packed as

    descriptors   s64 [panels][8]    DESCRIPTOR
    panels, each  [groups] f32[16] scales, [16] terms of 4 bytes
                  [groups] u8[16] zero points, up to a multiple of 64 bytes
                  [groups][lines] of 64 bytes

with panels = ceil(n / 16). A line of 4-bit weights has 8 rows: the low nibbles are rows 8 v .. 8 v + 3 of 16 columns,
the high nibbles rows 8 v + 4 .. 8 v + 7, each in the order of a line of `matmul.pack`. A line of 8-bit weights has four
rows in that order. Numbers past the group or n are 0.

For activations of 8 bits, u - z must be in the range REACH; terms are s32 corrections, and weights of 8 bits are stored
as u - z, with zero points of 0. For f32 activations, terms are the f32 number 2**23 + z, from which kernels compute
f32(u - z) (`tiles`).
"""
from __future__ import annotations

import numpy as np

from graphq.errors import KernelError
from graphq.kernels.jit.memory import LINE, lasting_empty
from graphq.kernels.matmul.pack import DESCRIPTOR, PANEL, panel_count

BITS = {"s4": 4, "u4": 4, "s8": 8, "u8": 8}
"""The dtypes of weights that kernels read compressed, and their bits."""
REACH = {4: (-64, 64), 8: (-128, 127)}
"""The range of a weight minus its zero point, by the weight's bits, for activations of 8 bits.

Weights of 8 bits then fit into s8. For weights of 4 bits vpmaddubsw adds two products exactly, as 255 * 2 * 64 < 2**15.
"""
FLOAT_BASE = np.float32(1 << 23)
"""2**23 as f32. Replacing its last bits by an integer of up to 23 bits adds the integer to it."""


def pack_integers(u: np.ndarray, z: np.ndarray, scales: np.ndarray, corrections: np.ndarray, bits: int) -> np.ndarray:
    """Pack u (k, n) for activations of 8 bits; z, f32 `scales` and s32 `corrections` are (groups, n). Returns u8.

    Raises KernelError if numbers are out of range or k is not a multiple of the number of groups.
    """
    _check(u, z, scales, corrections, bits)
    centred = u.reshape(len(z), -1, u.shape[1]).astype(np.int16) - z[:, None].astype(np.int16)
    low, high = REACH[bits]
    if centred.size and not (low <= centred.min() and centred.max() <= high):
        raise KernelError(f"weights of {bits} bits must be {low} to {high} less their zero points")
    if bits == 8:
        return _pack(centred.astype(np.int8).view(np.uint8), np.zeros_like(z), scales, corrections, bits)
    return _pack(u.reshape(centred.shape), z, scales, corrections, bits)


def pack_floats(u: np.ndarray, z: np.ndarray, scales: np.ndarray, bits: int) -> np.ndarray:
    """Pack u (k, n) for activations of f32; z and f32 `scales` are (groups, n). Returns u8.

    Raises KernelError if numbers are out of range or k is not a multiple of the number of groups.
    """
    _check(u, z, scales, z, bits)
    terms = (FLOAT_BASE + z).astype(np.float32)
    return _pack(u.reshape(len(z), -1, u.shape[1]), np.zeros_like(z), scales, terms.view(np.int32), bits)


def panel_bytes(packed: np.ndarray) -> int:
    """The bytes of each panel of packed weights, as their descriptors say."""
    return int(packed.view(np.int64)[DESCRIPTOR.number("panel_bytes")]) if packed.size else 0


def _check(u: np.ndarray, z: np.ndarray, scales: np.ndarray, terms: np.ndarray, bits: int) -> None:
    (k, n), groups = u.shape, len(z)
    if groups < 1 or k % groups or not z.shape == scales.shape == terms.shape == (groups, n):
        raise KernelError(f"{k} x {n} weights do not take groups of {z.shape}, {scales.shape}, {terms.shape}")
    if u.size and not (0 <= u.min() and u.max() < 1 << bits):
        raise KernelError(f"weights of {bits} bits must be 0 to {(1 << bits) - 1}")


def _pack(u: np.ndarray, z: np.ndarray, scales: np.ndarray, terms: np.ndarray, bits: int) -> np.ndarray:
    """Pack weights (groups, group, n) as u8, with the scales, terms (see the module) and zero points of the groups."""
    groups, group, n = u.shape
    panels, rows = panel_count(n), 32 // bits
    lines = -(-group // rows)
    padded = np.zeros((groups, lines * rows, panels * PANEL), np.uint8)
    padded[:, :group, :n] = u
    quads = padded.reshape(groups, lines, rows // 4, 4, panels, PANEL).transpose(2, 4, 0, 1, 5, 3)
    first, second = 2 * LINE * groups, -(-PANEL * groups // LINE) * LINE
    size = first + second + lines * LINE * groups
    out = lasting_empty(panels * (LINE + size))
    out[:] = 0
    words = out[:panels * LINE].view(np.int64).reshape(panels, 8)
    words[:, :len(DESCRIPTOR.fields)] = DESCRIPTOR.words({
        "group": group, "groups": groups, "panel_bytes": size, "zero_points": first, "lines": first + second})
    body = out[panels * LINE:].reshape(panels, size)
    head = body[:, :first].view(np.int32).reshape(panels, groups, 2, PANEL)
    head[:, :, 0] = _columns(scales.astype(np.float32), panels).view(np.int32)
    head[:, :, 1] = _columns(terms.astype(np.int32), panels)
    body[:, first:first + PANEL * groups] = _columns(z.astype(np.uint8), panels).reshape(panels, -1)
    body[:, first + second:] = (quads[0] if bits == 8 else quads[0] | quads[1] << 4).reshape(panels, -1)
    return out


def _columns(x: np.ndarray, panels: int) -> np.ndarray:
    out = np.zeros((len(x), panels * PANEL), x.dtype)
    out[:, :x.shape[1]] = x
    return out.reshape(len(x), panels, PANEL).transpose(1, 0, 2)
