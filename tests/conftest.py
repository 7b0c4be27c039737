"""The suite's own kernel cache: empty at the start, removed at the end. Set before anything imports graphq."""
import os
import shutil
import tempfile

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
