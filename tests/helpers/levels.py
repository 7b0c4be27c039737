"""The names of ISA levels, for tests whose cases are no cross product with all levels."""
from collections.abc import Iterable
from typing import Any

from graphq.kernels.target import isa

LEVELS = [level.name for level in isa.LEVELS]
WIDTHS = list(dict.fromkeys(level.base.name for level in isa.LEVELS))
"""One level of each width."""


def at_each_width(cases: Iterable[Any]) -> list[tuple[Any, str]]:
    """Each case with a level of each width: levels of one width have their turn."""
    of_width = [[x.name for x in isa.LEVELS if x.base.name == width] for width in WIDTHS]
    return [(case, names[(turn + k) % len(names)]) for turn, case in enumerate(cases)
            for k, names in enumerate(of_width)]
