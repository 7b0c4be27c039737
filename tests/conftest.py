"""The suite's own kernel cache: empty at the start, removed at the end. Set before anything imports graphq."""
import os
import shutil
import tempfile
from contextlib import ExitStack

import pytest

_FOLDER = tempfile.mkdtemp(prefix="graphq-tests-")
_BEFORE = os.environ.get("GRAPHQ_CACHE_DIR")
os.environ["GRAPHQ_CACHE_DIR"] = _FOLDER


@pytest.hookimpl(trylast=True)
def pytest_unconfigure():
    if _BEFORE is None:
        os.environ.pop("GRAPHQ_CACHE_DIR", None)
    else:
        os.environ["GRAPHQ_CACHE_DIR"] = _BEFORE
    shutil.rmtree(_FOLDER, ignore_errors=True)


LEVELS = ("scalar", "avx2", "avx_vnni", "avx512", "avx512_vnni", "amx")


@pytest.fixture(scope="module", params=LEVELS)
def level(request):
    """Each ISA level in turn: the machine's own, or emulated where it has none."""
    from graphq.kernels import isa

    assert tuple(x.name for x in isa.LEVELS) == LEVELS
    with ExitStack() as stack:
        if request.param not in [x.name for x in isa.available()]:
            stack.enter_context(isa.emulate(request.param))
        yield request.param
