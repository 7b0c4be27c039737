"""LLVM's half of compilation: from the IR of a kernel module to its object code, in any process.

As a script it does so for another process (`compiling`): it answers one request after another, until its input ends or
it has had none for a while. It imports nothing of graphq, and LLVM is half of the time that a kernel takes to compile.
"""
from __future__ import annotations

import os
import select
import signal
import struct
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

IDLE_SECONDS = 10
SIZE, _SIZES = struct.Struct("<Q"), struct.Struct("<QQ")


class Target(NamedTuple):
    """A CPU, by LLVM's names."""

    triple: str
    cpu: str
    features: str


class Request(NamedTuple):
    """A module to compile: its bitcode, the functions that are seen from outside, and LLVM's level of optimisation."""

    bitcode: bytes
    names: tuple[str, ...]
    speed: int
    target: Target

    def pack(self) -> bytes:
        """As a message for `serve`."""
        import json

        rest = {"names": self.names, "speed": self.speed, "target": self.target._asdict()}
        head = json.dumps(rest).encode()
        return _SIZES.pack(len(head), len(self.bitcode)) + head + self.bitcode


def machine(target: Target) -> Any:
    """LLVM's code generator of a target."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()  # of inline assembly
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=3, reloc="pic", codemodel="small")


def optimised(request: Request) -> Any:
    """Give LLVM's module, optimised; nothing but its names can be seen from outside."""
    import llvmlite.binding as llvm

    module = llvm.parse_bitcode(request.bitcode)
    for x in (*module.functions, *module.global_variables):
        if not x.is_declaration and x.name not in request.names:
            x.linkage = "internal"
    builder = llvm.create_pass_builder(machine(request.target),
                                       llvm.create_pipeline_tuning_options(speed_level=request.speed))
    unused = llvm.create_new_module_pass_manager()
    unused.add_global_dead_code_eliminate_pass()  # what is written for Python's sake
    unused.run(module, builder)
    builder.getModulePassManager().run(module, builder)
    return module


def object_code(request: Request) -> bytes:
    """Compile a module to an object file."""
    code: bytes = machine(request.target).emit_object(optimised(request))
    return code


def serve(source: int, target: int) -> None:
    """Answer requests from one file descriptor on another: sizes and object code, none where something went wrong."""
    import json

    for head, bitcode in _requests(source):
        try:
            facts = json.loads(head)
            facts |= {"bitcode": bitcode, "names": tuple(facts["names"]), "target": Target(**facts["target"])}
            code = object_code(Request(**facts))
        except Exception:  # whatever it is, the other process tries itself, and tells
            code = b""
        data = SIZE.pack(len(code)) + code
        while data:
            data = data[os.write(target, data):]


def _requests(source: int) -> Iterator[tuple[bytes, bytes]]:
    while select.select([source], [], [], IDLE_SECONDS)[0]:
        sizes = read(source, _SIZES.size)
        if len(sizes) < _SIZES.size:
            return
        head, bitcode = _SIZES.unpack(sizes)
        yield read(source, head), read(source, bitcode)


def read(source: int, size: int) -> bytes:
    """Read so many bytes, or fewer where the input ends."""
    parts, left = [], size
    while left and (part := os.read(source, min(left, 1 << 20))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other process's to act upon
    serve(sys.stdin.fileno(), int(sys.argv[1]))
