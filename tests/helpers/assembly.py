"""The assembly of kernel modules, as LLVM prints it when they are compiled."""
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from graphq.kernels import cache, codegen


@contextmanager
def recorded() -> Iterator[dict[str, str]]:
    """Within the block, collect the assembly of each module that is compiled, by the module's name."""
    texts: dict[str, str] = {}
    compiled = cache._compiled

    def record(name, *rest):
        def object_code(functions, speed):
            whole, machine = codegen.whole_module(functions, speed), codegen.target_machine()
            texts[name] = machine.emit_assembly(whole.clone())
            return machine.emit_object(whole)

        with patch.object(codegen, "object_code", object_code):
            return compiled(name, *rest)

    with patch.object(cache, "_compiled", record):
        yield texts
