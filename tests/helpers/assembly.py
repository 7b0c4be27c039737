"""The assembly of kernel modules, as LLVM prints it when they are compiled."""
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from graphq.kernels import backend, cache, codegen


@contextmanager
def recorded() -> Iterator[dict[str, str]]:
    """Within the block, collect the assembly of each module that is compiled, by the module's name."""
    texts: dict[str, str] = {}
    compiled = cache._compiled

    def record(name, *rest):
        made = codegen.request

        def request(functions, speed):
            asked = made(functions, speed)
            texts[name] = backend.machine(asked.target).emit_assembly(backend.optimised(asked))
            return asked

        with patch.object(codegen, "request", request):
            return compiled(name, *rest)

    with patch.object(cache, "_compiled", record):
        yield texts
