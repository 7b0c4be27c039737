"""Fixtures of tests that start compiling processes."""
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
    monkeypatch.setattr(compiling, "pool", compiling.WorkerPool())
    monkeypatch.setattr(compiling, "IDLE_SECONDS", 0.1)
    monkeypatch.setattr(modules, "modules_by_key", {})
    yield
    for worker in [*compiling.pool.workers, *filter(None, [compiling.pool.idle])]:
        if worker.ident is not None:
            worker.join()
