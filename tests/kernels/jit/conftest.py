"""Fixtures of tests that start compiling processes."""
from collections import deque
from queue import SimpleQueue

import pytest

from graphq.kernels.jit import codegen, compiling, modules


@pytest.fixture
def here(monkeypatch):
    """A list that grows by each source that this process compiles itself."""
    sources, compiled = [], codegen.object_code

    def object_code(source):
        sources.append(source)
        return compiled(source)

    monkeypatch.setattr(codegen, "object_code", object_code)
    return sources


@pytest.fixture
def fresh(monkeypatch, here):
    """No worker runs, no module is loaded, and it is not known whether processes work."""
    monkeypatch.setattr(compiling, "_workers", set())
    monkeypatch.setattr(compiling, "_idle", None)
    monkeypatch.setattr(compiling, "_queue", SimpleQueue())
    monkeypatch.setattr(compiling, "_first", deque())
    monkeypatch.setattr(compiling, "_later", deque())
    monkeypatch.setattr(compiling, "_processes_work", None)
    monkeypatch.setattr(compiling, "IDLE_SECONDS", 0.1)
    monkeypatch.setattr(modules, "_modules", {})
    yield
    for worker in [*compiling._workers, *filter(None, [compiling._idle])]:
        if worker.ident is not None:
            worker.join()
