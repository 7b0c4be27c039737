"""WeightTile, the base class of tiles of compressed weights: it clears accumulators, and finds a group's numbers."""
from __future__ import annotations

from graphq.kernels.jit.memory import LINE
from graphq.kernels.jit.values import I32, Builder, Type, Value, constant, vector
from graphq.kernels.matmul.pack import DESCRIPTOR, PANEL
from graphq.kernels.matmul_compressed.pack import HEAD
from graphq.kernels.operands.tile_frame import Frame


class WeightTile:
    """A tile of `rows` rows and `panels` panels of 16 columns; a panel is `parts` vectors of `columns` columns."""

    def __init__(self, b: Builder, f: Frame, rows: int, panels: int, bits: int, columns: int) -> None:
        self.b, self.f, self.rows, self.panels, self.bits = b, f, rows, panels, bits
        self.parts, self.columns, self.line_rows = PANEL // columns, columns, 32 // bits
        self.line_shift = self.line_rows.bit_length() - 1
        self.group, self.groups, self.panel_bytes, self.group_bytes, *self.places = (
            DESCRIPTOR.load(f.sums, name) for name in DESCRIPTOR.fields)
        self.group_lines = (self.group + (self.line_rows - 1)) >> self.line_shift

    def clear(self) -> None:
        """Emit zeros for all accumulators in memory."""
        for n in range(self.rows * self.panels):
            constant(vector(I32, 16), 0).store(self.f.acc + 64 * n)

    def zeros(self, kind: Type) -> list[Value]:
        """A zero for each vector of outputs."""
        return [constant(kind, 0)] * (self.rows * self.panels * self.parts)

    def scales(self, group: Value) -> list[Value]:
        """The addresses of a group's scales, one for each vector of columns."""
        return self.vectors(group * self.group_bytes + HEAD)

    def terms(self, group: Value) -> list[Value]:
        """The addresses of a group's terms, one for each vector of columns."""
        first, step = self.places[:2]
        return self.vectors(first + group * step)

    def zero_points(self, group: Value) -> list[Value]:
        """The addresses of a group's zero points, one for each vector of columns."""
        first, step = self.places[2:]
        return self.vectors(first + group * step)

    def vectors(self, offset: Value) -> list[Value]:
        """The addresses of all vectors of columns, at `offset` in each panel."""
        return [self.f.w + self.panel_bytes * j + offset + 4 * self.columns * part
                for j in range(self.panels) for part in range(self.parts)]

    def line_of(self, group: Value) -> Value:
        """The byte offset of a group's first line of weights in a panel."""
        return (group + 1) * self.group_bytes + HEAD - self.group_lines * LINE

    def add(self, n: int, y: Value) -> None:
        """Emit the addition of `y` to the accumulators of vector `n`."""
        address = self.f.acc + 4 * self.columns * n
        (address.load(y.type) + y).store(address)
