"""From the functions of a kernel module to one module of LLVM's IR: Numba types and lowers them.

Numba would link the code into memory, with wrappers that raise Python exceptions, which block functions cannot. Here
its IR becomes one position-independent object without them (`backend`), which `linker` loads, now and in later
processes.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from graphq.kernels.backend import Request, Target
from graphq.kernels.jit import Deferred

Marked: TypeAlias = tuple[Callable[..., None], Sequence[str]] | Deferred
"""A function without a result and the types of its parameters, "intp" or "uintp"; or an intrinsic."""
Functions: TypeAlias = Mapping[str, Marked]

_ENTRY = """
declare i32 @"{native}"(ptr, ptr{kinds})
define void @"{name}"({parameters}) {{
  %result = alloca ptr
  %exception = alloca ptr
  %status = call i32 @"{native}"(ptr %result, ptr %exception, {parameters})
  ret void
}}
"""


def request(functions: Functions, speed: int) -> Request:
    """Type and lower functions to one module, in which they are global under their names.

    `speed` is LLVM's level of optimisation: at 3 it unrolls loops more, which can double the time that it takes.
    """
    whole, *others = (_emitted(name, x) if isinstance(x, Deferred) else _lowered(name, *x)
                      for name, x in functions.items())
    for other in others:
        whole.link_in(other)
    return Request(whole.as_bitcode(), tuple(functions), speed, _target())


def _target() -> Target:
    """Give this machine, with the features that Numba compiles for."""
    from graphq.kernels.frontend import contexts

    return Target(*contexts()[1].codegen().magic_tuple())


def _emitted(name: str, intrinsic: Deferred) -> Any:
    """LLVM's module of an intrinsic as a function, for which Numba has nothing to do."""
    import llvmlite.binding as llvm
    from llvmlite import ir
    from numba.core import types

    from graphq.kernels.frontend import contexts

    typing, target = contexts()
    kind = intrinsic.made
    signature, code = kind.body(typing, *[types.intp] * kind.count)
    module = target.codegen()._create_empty_module(name)
    word, none = ir.IntType(64), signature.return_type == types.void
    function = ir.Function(module, ir.FunctionType(ir.VoidType() if none else word, [word] * len(signature.args)), name)
    builder = ir.IRBuilder(function.append_basic_block())
    result = code(target, builder, signature, function.args)
    builder.ret_void() if none else builder.ret(result)
    return llvm.parse_assembly(str(module))


def _lowered(name: str, body: Callable[..., None], parameters: Sequence[str]) -> Any:
    """LLVM's module of a function that C can call as `name`."""
    import llvmlite.binding as llvm
    from numba.core import types

    from graphq.kernels.frontend import lowered

    made = lowered(body, [getattr(types, p) for p in parameters], types.void)
    module = made.library._final_module
    entry = llvm.parse_assembly(_ENTRY.format(
        native=made.fndesc.mangled_name, name=name, kinds=", i64" * len(parameters),
        parameters=", ".join(f"i64 %a{k}" for k in range(len(parameters)))))
    entry.triple, entry.data_layout = module.triple, module.data_layout
    module.link_in(entry)
    return module
