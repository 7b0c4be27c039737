"""Thread numbers."""
import os
import subprocess
import sys

import numba
import numpy as np
import pytest

from graphq.errors import CompileError
from graphq.threads import SPIN, _quota, resolve_threads


def test_thread_numbers(monkeypatch):
    assert resolve_threads(1) == resolve_threads(np.int64(1)) == 1
    assert resolve_threads(10_000) == numba.config.NUMBA_NUM_THREADS
    monkeypatch.setattr("graphq.threads._quota", lambda: 1)
    assert resolve_threads(None) == 1


def test_quota_of_the_control_group(tmp_path):
    for text, cores in (("150000 100000", 2), ("100000 100000", 1), ("50000 100000", 1)):
        (tmp_path / "cpu.max").write_text(text)
        assert _quota(str(tmp_path / "cpu.max")) == cores
    (tmp_path / "cpu.max").write_text("max 100000")
    assert _quota(str(tmp_path / "cpu.max")) > 1000
    assert _quota(str(tmp_path / "absent")) > 1000


@pytest.mark.parametrize("threads", [0, -1, 2.0, True, "2"])
def test_bad_thread_numbers(threads):
    with pytest.raises(CompileError, match="positive int"):
        resolve_threads(threads)


LAUNCH = """
import os
from graphq.threads import launch
before = dict(os.environ)
launch()
assert dict(os.environ) == before
"""


@pytest.mark.parametrize("given, spins", [({}, SPIN), ({"GOMP_SPINCOUNT": "123"}, "123")])
def test_idle_threads_sleep_soon_unless_the_environment_says_otherwise(given, spins):
    env = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    env |= {"OMP_DISPLAY_ENV": "verbose", "NUMBA_THREADING_LAYER": "omp", **given}
    done = subprocess.run([sys.executable, "-c", LAUNCH], env=env, capture_output=True, text=True, check=True)
    if "GOMP_SPINCOUNT" not in done.stderr:
        pytest.skip("Numba's OpenMP threads are not libgomp's")
    assert f"GOMP_SPINCOUNT = '{spins}'" in done.stderr
