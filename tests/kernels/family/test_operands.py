"""Scales that kernels take, and operands whose rows are those of the output."""
import numpy as np
import pytest

from graphq.kernels.family.epilogue import OperandSource, expect_positive
from graphq.kernels.family.lower import Lowered, at_rows
from graphq.kernels.family.unsupported import Unsupported
from graphq.kernels.lanes.epilogues import Epilogue
from graphq.kernels.lanes.expression import acc


@pytest.mark.parametrize("scales, shown", [([0.5, 0.0], "0"), ([-2.0, 0.0], "-2"), ([np.nan], "nan")])
def test_scales_that_are_not_positive(scales, shown):
    expect_positive([1e-30, 2.0])
    with pytest.raises(Unsupported, match=f"its kernels take positive scales, and a scale is {shown}$"):
        expect_positive(scales)


def test_operands_at_the_rows_of_the_output():
    """Of an input with this number alone; constants of the epilogue are no inputs."""
    whole, row = (OperandSource("input", "f32", shape, 1) for shape in ((2, 3), (3,)))
    constant = OperandSource("parameter", "f32", (3,), 1, data=np.ones(3, np.float32))
    lowered = Lowered((2, 3), Epilogue(acc("f32"), "f32"), (whole, constant), None)
    assert at_rows(lowered, 1) and not at_rows(lowered, 1, [row]) and at_rows(lowered, 0, [row])
