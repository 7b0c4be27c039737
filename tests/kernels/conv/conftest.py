"""Fixtures of the tests of convolutions, whose kernels copy pixels into memory of the arena."""
import pytest

from graphq.kernels.jit.memory import aligned_empty
from graphq.plan import runtime


def _dirty(nbytes):
    memory = aligned_empty(nbytes)
    memory.fill(0xA5)
    return memory


@pytest.fixture(scope="session", autouse=True)
def dirty_arenas():
    """New arenas hold what a kernel would not have written, where the system's are zeros."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "aligned_empty", _dirty)
        yield
