"""Pack compressed weights: codes of 2, 4 or 8 bits, and the scales and zero points of their groups.

Weights w (k, n) come in groups of `group` rows, each with a scale and a zero point per column. CODES says how weights
become codes. A code stands for an integer u, and a zero point becomes an integer z. A panel is 16 columns; panels =
ceil(n / 16). For 8-bit activations, a term is an s32 correction. For float activations, a term is the f32 2**23 + z
(see `floats`), and zero points are stored as 0. The layout:

    descriptors   s64 [panels][8]    see DESCRIPTOR in `matmul.pack`
    panels, each  a head: [16] terms of 4 bytes and s32 [16] zero points if all groups share them, otherwise 0
                  [groups], each f32 [16] scales, then [16] terms and s32 [16] zero points if the groups differ in them,
                                 then [lines] of 64 bytes

A line of 4-bit weights has 8 rows: the low nibbles are rows 8 v .. 8 v + 3 of 16 columns, the high nibbles rows 8 v + 4
.. 8 v + 7, each in the order of a line of `matmul.pack`. A line of 8-bit weights has four rows in that order, a line of
2-bit weights 16 rows. Rows past the end of a group and columns past n have the code 0. A kernel reads a panel from its
start to its end.
"""
from typing import NamedTuple

import ml_dtypes
import numpy as np

from graphq.errors import KernelError
from graphq.kernels.jit import LINE, lasting_empty
from graphq.kernels.matmul.pack import DESCRIPTOR, PANEL, panel_count

BITS = {"s2": 2, "s4": 4, "s8": 8, "f4": 4, "e4m3": 8, "e5m2": 8}
"""The bits of each code. The codes s2, s4 and s8 are integers from 0 on, the others are the bits of floats."""
F4 = tuple(int(2 * x + 12) for x in np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32))
"""The integer u that each code f4 stands for."""


class WeightCode(NamedTuple):
    """How weights of a dtype are packed: the name of the code (see BITS), and w for a u: w = (u - low) * unit.

    `numpy` is the type that has the bits of a float's code.
    """

    name: str
    low: int = 0
    unit: float = 1.0
    numpy: type = np.uint8


_E4M3 = WeightCode("e4m3", 0, 2.0**-9, ml_dtypes.float8_e4m3fn)
CODES = {"u2": WeightCode("s2"), "s2": WeightCode("s2", 2), "u4": WeightCode("s4"), "s4": WeightCode("s4", 8),
         "u8": WeightCode("s8"), "s8": WeightCode("s8", 128),
         "f4_e2m1": WeightCode("f4", 12, 0.5, ml_dtypes.float4_e2m1fn), "f6_e2m3": _E4M3, "f6_e3m2": _E4M3,
         "f8_e4m3": _E4M3, "f8_e5m2": WeightCode("e5m2", 0, 2.0**-16, ml_dtypes.float8_e5m2)}
"""The code of each dtype of weights that kernels read compressed. All floats of 6 bits are floats f8_e4m3 as well."""


def finest(dtype: str) -> int:
    """The number of rows that groups are a multiple of, with float activations: the rows of a line, and at least 8."""
    return max(8, 32 // BITS[CODES[dtype].name])


HEAD = 2 * LINE
"""The bytes of a panel before its groups."""
FLOAT_BASE = np.float32(1 << 23)
"""2**23 as f32. If an integer of up to 23 bits replaces its last bits, the value is 2**23 plus the integer."""


def pack_integers(u: np.ndarray, z: np.ndarray, scales: np.ndarray, terms: np.ndarray, bits: int) -> np.ndarray:
    """Pack codes u (k, n) for 8-bit activations; s32 z, f32 `scales` and s32 `terms` (the corrections) are (groups, n).

    Raises KernelError if weights are out of range or k is not a multiple of the number of groups.
    """
    (k, n), groups, rows = u.shape, len(z), 32 // bits
    if groups < 1 or k % groups or not z.shape == scales.shape == terms.shape == (groups, n):
        raise KernelError(f"{k} x {n} weights do not take groups of {z.shape}, {scales.shape}, {terms.shape}")
    if u.size and not (0 <= u.min() and u.max() < 1 << bits):
        raise KernelError(f"weights of {bits} bits must be 0 to {(1 << bits) - 1}")
    panels, group = panel_count(n), len(u) // groups
    lines = -(-group // rows)
    padded = np.zeros((groups, lines * rows, panels * PANEL), np.uint8)
    padded[:, :group, :n] = u.reshape(groups, group, n)
    quads = padded.reshape(groups, lines, rows // 4, 4, panels, PANEL).transpose(2, 4, 0, 1, 5, 3)
    scales = scales.astype(np.float32).view(np.int32)
    of_group, places, head = [scales], dict[str, int](), np.zeros((panels, 2, PANEL), np.int32)
    for k, (name, x) in enumerate((("terms", terms.astype(np.int32)), ("zero_points", z.astype(np.int32)))):
        differ = bool((x != x[0]).any())
        places |= {name: HEAD + LINE * len(of_group) if differ else LINE * k, f"{name}_step": int(differ)}
        if differ:
            of_group.append(x)
        else:
            head[:, k] = _columns(x[:1], panels)[:, 0]
    of_groups = LINE * (len(of_group) + lines)
    size = HEAD + groups * of_groups
    out = lasting_empty(panels * (LINE + size))
    words = out[:panels * LINE].view(np.int64).reshape(panels, 8)
    words[:] = DESCRIPTOR.words({
        "group": group, "groups": groups, "panel_bytes": size, "group_bytes": of_groups,
        **{name: x * of_groups if name.endswith("_step") else x for name, x in places.items()}})
    body = out[panels * LINE:].reshape(panels, size)
    body[:, :HEAD] = head.view(np.uint8).reshape(panels, HEAD)
    parts = body[:, HEAD:].reshape(panels, groups, of_groups)
    for k, x in enumerate(of_group):
        parts[..., LINE * k:LINE * (k + 1)] = _columns(x, panels).view(np.uint8)
    parts[..., LINE * len(of_group):] = np.bitwise_or.reduce([q << bits * i for i, q in enumerate(quads)]).reshape(
        panels, groups, LINE * lines)
    return out


def pack_floats(u: np.ndarray, z: np.ndarray, scales: np.ndarray, bits: int) -> np.ndarray:
    """Pack codes u (k, n) for float activations, as `pack_integers` does; z and f32 `scales` are (groups, n)."""
    return pack_integers(u, np.zeros_like(z), scales, (FLOAT_BASE + z).astype(np.float32).view(np.int32), bits)


def _columns(x: np.ndarray, panels: int) -> np.ndarray:
    out = np.zeros((len(x), panels * PANEL), x.dtype)
    out[:, :x.shape[1]] = x
    return np.ascontiguousarray(out.reshape(len(x), panels, PANEL).transpose(1, 0, 2))


def panel_bytes(packed: np.ndarray) -> int:
    """The bytes of each panel of packed weights, read from their descriptors."""
    return int(packed.view(np.int64)[DESCRIPTOR.number("panel_bytes")]) if packed.size else 0
