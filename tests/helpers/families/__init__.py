"""Random members of the families of oneDNN's fusion pages: `FAMILIES[name](rng)` gives a graph and its anchor."""
from importlib import import_module

import numpy as np

from families.build import FAMILIES

for _name in ("anchors", "attention"):
    import_module(f"families.{_name}")  # each fills FAMILIES

__all__ = ["FAMILIES", "member"]


def member(name, seed):
    """The `seed`-th member of a family and its anchor."""
    return FAMILIES[name](np.random.default_rng([seed, *name.encode()]))
