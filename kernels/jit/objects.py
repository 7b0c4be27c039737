"""Loading of object code into memory: LLVM links what `codegen` made, in this process or an earlier one."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import count
from typing import Any

from graphq.base.locks import Lock
from graphq.errors import KernelError

llvm_lock = Lock(fork_waits=True)
"""Held while this process runs code of LLVM or Numba, whose own locks do not survive a fork."""
_numbers = count()
_loaded: list[object] = []
"""Loaded code, which stays in memory until the process ends, since plans hold its addresses."""


def link(code: bytes | memoryview, names: Sequence[str]) -> Mapping[str, int]:
    """Load an object file; returns the addresses of the named functions. Raises KernelError if LLVM refuses it."""
    with llvm_lock.hold:
        try:
            import llvmlite.binding as llvm
        except OSError as error:  # the process may have too many open files
            raise KernelError(f"LLVM cannot be loaded: {error}") from None

        library = llvm.JITLibraryBuilder().add_object_img(bytes(code)).add_current_process()
        for name in names:
            library.export_symbol(name)
        try:
            tracker = library.link(_linker(), f"graphq{next(_numbers)}")
        except RuntimeError as error:
            raise KernelError(f"LLVM cannot load object code: {error}") from None
        _loaded.append(tracker)
        return {name: tracker[name] for name in names}


@cache
def _linker() -> Any:
    """LLVM's JITLink, which puts an object into one piece of memory, so that constants are within 2 GB of the code."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True, reloc="pic", codemodel="small")
    return llvm.create_lljit_compiler(machine, use_jit_link=True)
