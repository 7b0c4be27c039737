"""What the suite sets before anything imports graphq or NumPy; tests/conftest.py imports this module first.

The kernel cache is the suite's own and shared by its workers: empty at the start, removed at the end, unless
$GRAPHQ_TESTS_CACHE is a folder that keeps it (tests on an emulated CPU compile for long). Processes that
tests start import the graphq that the tests import, in whatever folder they run, and tests/helpers. NumPy's products
run on one thread: workers use all cores, and OpenBLAS's threads wait for one another in busy loops. Python keeps the
bytecode of sources, also where it is told not to: hundreds of processes import the same files.
"""
import os
import shutil
import sys
import tempfile

_WORKER = "PYTEST_XDIST_WORKER" in os.environ  # one of those that the controlling process started, with its folder
_BEFORE = {name: os.environ.get(name)
           for name in ("GRAPHQ_CACHE_DIR", "PYTHONPATH", "OPENBLAS_NUM_THREADS", "PYTHONDONTWRITEBYTECODE")}
_KEPT = os.environ.get("GRAPHQ_TESTS_CACHE")
_FOLDER = os.environ["GRAPHQ_CACHE_DIR"] if _WORKER else _KEPT or tempfile.mkdtemp(prefix="graphq-tests-")
os.environ |= {"GRAPHQ_CACHE_DIR": _FOLDER, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
               "OPENBLAS_NUM_THREADS": "1"}
if not _WORKER:
    os.environ["PYTHONDONTWRITEBYTECODE"] = ""
    sys.dont_write_bytecode = False


def restore():
    """Set the environment as it was and remove the cache, at the end of the controlling process."""
    if _WORKER:
        return
    for name, value in _BEFORE.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if not _KEPT:
        shutil.rmtree(_FOLDER, ignore_errors=True)
