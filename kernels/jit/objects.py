"""Object code into memory: LLVM links what `codegen` made, now or in an earlier process, on every kind of machine."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import count
from typing import Any

from graphq.base.locks import Lock
from graphq.errors import KernelError

llvm_lock = Lock(fork_waits=True)
"""Held while this process is in LLVM or Numba, whose own locks do not survive a fork."""
_numbers = count()
_loaded: list[object] = []
"""Code stays in memory for as long as the process lives: plans hold its addresses."""


def link(code: bytes | memoryview, names: Sequence[str]) -> Mapping[str, int]:
    """Load an object file: the addresses of the functions of these names. Raises KernelError where LLVM refuses it."""
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
    """LLVM's JITLink, which gives an object one piece of memory: its code reaches its constants within 2 GB."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True, reloc="pic", codemodel="small")
    return llvm.create_lljit_compiler(machine, use_jit_link=True)
