"""Records: fields by name for who fills an argument block in and for its kernel."""
import numpy as np
import pytest
from kernel_factories import PAIR, misnaming, swapping

from graphq.errors import KernelError
from graphq.kernels.jit.modules import load


@pytest.mark.parametrize("by_intrinsic", [False, True])
def test_a_kernel_reads_and_writes_fields(by_intrinsic):
    words = np.array([7, *PAIR.words({"second": -5, "first": 3}), 9], np.int64)
    load("test", swapping, by_intrinsic, cache=False).block(words.ctypes.data + 8, 0)
    assert words.tolist() == [7, -5, 3, 9]


def test_a_field_that_is_not_given_is_0():
    assert PAIR.words({"second": 4}) == [0, 4]


def test_a_wrong_name_is_an_error_when_the_kernel_is_compiled():
    with pytest.raises(KernelError, match="third"):
        load("test", misnaming, cache=False).block(0, 0)
