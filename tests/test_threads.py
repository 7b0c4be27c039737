"""Thread numbers."""
import numba
import numpy as np
import pytest

from graphq.errors import CompileError
from graphq.threads import _quota, resolve_threads


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
