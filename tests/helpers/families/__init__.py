"""Random members of the families of oneDNN's fusion pages: `FAMILIES[name](rng)` gives a graph and its anchor."""
import numpy as np

from families import anchors, attention  # noqa: F401  # these fill the table
from families.build import FAMILIES

__all__ = ["FAMILIES", "member"]


def member(name, seed):
    """The `seed`-th member of a family and its anchor."""
    return FAMILIES[name](np.random.default_rng([seed, *name.encode()]))
