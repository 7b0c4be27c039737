"""Memory of packed weights and arenas: aligned, disjoint, given back, and refused where there is too little."""
from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable

import numpy as np
import pytest

from graphq.base.sizes import Trace
from graphq.kernels.jit import memory
from graphq.kernels.jit.memory import CHUNK, LINE, PAGE, aligned_empty, lasting_empty


@pytest.mark.parametrize("empty", [aligned_empty, lasting_empty])
@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 65, 1000, CHUNK // 2, CHUNK // 2 + 1, 3 * PAGE + 5])
def test_aligned(nbytes: int, empty: Callable[[int], np.ndarray]) -> None:
    room = empty(nbytes)
    assert room.dtype == np.uint8 and room.shape == (nbytes,) and room.flags.writeable
    assert room.ctypes.data % LINE == 0
    room[:] = 7
    assert room.sum() == 7 * nbytes


def test_arrays_are_disjoint() -> None:
    sizes = [1, 64, 70, CHUNK // 3, CHUNK // 3, CHUNK // 3, CHUNK // 2 + 1, 5, 0, 130]
    found: list[np.ndarray] = []

    def take() -> None:
        found.extend(lasting_empty(n) for n in sizes)

    threads = [threading.Thread(target=take) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    spans = sorted((x.ctypes.data, x.ctypes.data + x.nbytes) for x in found if x.nbytes)
    assert len(spans) == 8 * (len(sizes) - 1) and all(start % LINE == 0 for start, _ in spans)
    assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:], strict=False))


def test_an_array_taken_amid_another_lies_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a signal's handler does it, or another thread."""
    mapped, inner = memory.mapped, list[np.ndarray]()

    def interrupted(nbytes: int) -> np.ndarray:
        monkeypatch.setattr(memory, "mapped", mapped)
        inner.append(lasting_empty(100))
        return mapped(nbytes)

    monkeypatch.setattr(memory, "chunks", [])
    monkeypatch.setattr(memory, "mapped", interrupted)
    arrays = [lasting_empty(100), *inner, lasting_empty(100), lasting_empty(100)]
    assert len({x.ctypes.data for x in arrays}) == 4 == len(arrays)


def test_a_chunk_lives_as_long_as_its_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "chunks", [])
    room = lasting_empty(100)
    chunk, part = weakref.ref(room.base), room[10:20]
    del room
    gc.collect()
    part[:] = 1
    assert lasting_empty(50).base is chunk() is part.base
    del part
    gc.collect()
    assert chunk() is None
    assert lasting_empty(10).ctypes.data % LINE == 0


@pytest.mark.parametrize("nbytes", [1 << 47, 1 << 62, (1 << 63) - 1, 1 << 80])
@pytest.mark.parametrize("empty", [aligned_empty, lasting_empty])
def test_too_much(nbytes: int, empty: Callable[[int], np.ndarray]) -> None:
    with pytest.raises(MemoryError):
        empty(nbytes)


def test_open_sizes_do_not_stay_in_memory_that_models_share():
    """A plan that needs an open number of bytes holds for this number alone, and the next model sees a plain one."""
    lasting_empty(10)
    trace = Trace()
    array = lasting_empty(trace.leaf(100, "n") * 2)
    assert array.shape == (200,) and list(trace.guards.values()) == [200]
    assert lasting_empty(30).shape == (30,) and all(type(used) is int for _, used in memory.chunks)
