"""Memory of packed weights and arenas: aligned, disjoint, and given back."""
from __future__ import annotations

import gc
import os
import signal
import threading
import time

import numpy as np
import pytest

from graphq.kernels import memory
from graphq.kernels.memory import CHUNK, LINE, PAGE, aligned_empty


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 65, 1000, CHUNK // 2, CHUNK // 2 + 1, 3 * PAGE + 5])
def test_aligned(nbytes: int) -> None:
    room = aligned_empty(nbytes)
    assert room.dtype == np.uint8 and room.shape == (nbytes,) and room.flags.writeable
    assert room.ctypes.data % LINE == 0
    room[:] = 7
    assert room.sum() == 7 * nbytes


def test_pieces_are_disjoint() -> None:
    sizes = [1, 64, 70, CHUNK // 3, CHUNK // 3, CHUNK // 3, CHUNK // 2 + 1, 5, 0, 130]
    found: list[np.ndarray] = []

    def take() -> None:
        found.extend(aligned_empty(n) for n in sizes)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    spans = sorted((x.ctypes.data, x.ctypes.data + x.nbytes) for x in found if x.nbytes)
    assert len(spans) == 8 * (len(sizes) - 1)
    assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:], strict=False))


def test_a_chunk_lives_as_long_as_its_pieces() -> None:
    pool = memory._Pool()
    piece = pool.take(100)
    part = piece[10:20]
    del piece
    gc.collect()
    assert pool.chunk is not None and pool.chunk() is not None
    part[:] = 1
    assert pool.take(50).base is part.base
    del part
    gc.collect()
    assert pool.chunk() is None
    assert pool.take(10).ctypes.data % LINE == 0


def test_too_much() -> None:
    with pytest.raises(MemoryError):
        aligned_empty(1 << 62)


def test_a_fork_waits_for_threads_that_take_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, mapped = threading.Event(), memory._mapped

    def slowly(nbytes: int) -> np.ndarray:
        begun.set()
        time.sleep(0.3)
        return mapped(nbytes)

    with monkeypatch.context() as m:
        m.setattr(memory, "_mapped", slowly)
        m.setattr(memory._pool, "chunk", None)
        thread = threading.Thread(target=aligned_empty, args=(10,))
        thread.start()
        begun.wait()
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            aligned_empty(10)
            os._exit(0)
        thread.join()
    assert os.waitpid(child, 0)[1] == 0
