"""The names of the ISA levels of this machine's architecture; test_arm.py emulates Arm's elsewhere."""
from collections.abc import Iterable
from itertools import cycle
from typing import Any

from all_pairs import all_pairs

from graphq.kernels.target import isa

_LEVELS = (isa.SCALAR, *(() if isa.HERE is None else isa.HERE.LEVELS))
LEVELS = [level.name for level in _LEVELS]
WIDTHS = list(dict.fromkeys(level.base.name for level in _LEVELS))
"""One level of each width."""


OF_WIDTH = {width: [x.name for x in _LEVELS if x.base.name == width] for width in WIDTHS}


def at_each_width(cases: Iterable[Any]) -> list[tuple[Any, str]]:
    """Each case with a level of each width: levels of one width have their turn."""
    return [(case, names[(turn + k) % len(names)]) for turn, case in enumerate(cases)
            for k, names in enumerate(OF_WIDTH.values())]


def pairs_at_each_width(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """`all_pairs` of these axes and the widths; the last element is a level: those of one width have their turn."""
    turns = {width: cycle(names) for width, names in OF_WIDTH.items()}
    return [(*case, next(turns[width])) for *case, width in all_pairs(*axes, WIDTHS)]
