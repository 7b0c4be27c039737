"""Refusals: texts with types and axes, and the same in other words."""
import pytest

import graphq as gq
from graphq.kernels.family.unsupported import Axes, Unsupported, called_axes


@pytest.fixture
def value():
    return gq.Graph().input("x", dtype="u8", shape=(2, 3, 4))


def test_axes(value):
    assert called_axes([]) == "no axes" and called_axes([1]) == "axis 1" and called_axes([0, 2, 3]) == "axes 0, 2 and 3"
    assert str(Axes(value, (-1,))) == "axis 2" and str(Axes(value, (2, -3))) == "axes 0 and 2"
    assert str(Axes(gq.Graph().input("y", dtype="u8", shape=()), (0,))) == "axis 0"


def test_mentions_are_filled_in(value):
    e = Unsupported("{own} of {source}", "move {own}", 1, own=Axes(value, (1,)), source=value)
    assert (str(e), e.edit, e.operand) == ("axis 1 of u8[2,3,4]", "move axis 1", 1)
    told = e.told(lambda mention: "A" if isinstance(mention, Axes) else "B")
    assert (str(told), told.edit, told.operand) == ("A of B", "move A", 1)


def test_without_mentions_the_text_stays():
    e = Unsupported("takes {3}")
    assert (str(e), e.edit, e.operand, e.mentions) == ("takes {3}", "", None, {})
    assert str(e.told(str)) == "takes {3}"
