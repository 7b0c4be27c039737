"""A fixture for tests that declare operations."""
import pytest

from graphq.ir.op import OPS
from graphq.ir.operations import Operations


@pytest.fixture
def registry():
    """The operations; after the test those that it declared are gone, with their builder methods."""
    before = dict(OPS)
    yield OPS
    for name in OPS.keys() - before.keys():
        delattr(Operations, name)
    OPS.clear()
    OPS.update(before)
