"""From the text of a kernel module to object code: Numba types and lowers its functions, LLVM does the rest.

Numba is used by its public interface: `numba.njit` without wrappers for Python gives LLVM's IR of a function with all
its callees (`inspect_llvm`). The IR of a module's functions becomes one LLVM module, in which only their names are
visible; it is optimised and becomes a position-independent object. Numba's own optimisation would be work done
twice: the processes that compile (`compiling`) run with NUMBA_OPT=0.
"""
from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any, TypeAlias

from graphq.kernels.jit.deferred import Deferred, bound, jitted, types

Marked: TypeAlias = tuple[Callable[..., None], Sequence[str]] | Deferred
"""A function without a result and the types of its parameters, "intp" or "uintp"; or an intrinsic."""

_marked: dict[str, Marked] = {}
"""The functions of the module whose text runs now."""

_TAG = "graphq_entry"
_ENTRY = """
declare i32 @"{native}"(ptr, ptr{kinds})
define void @"{name}"({parameters}) {{
  %result = alloca ptr
  %exception = alloca ptr
  %status = call i32 @"{native}"(ptr %result, ptr %exception, {parameters})
  ret void
}}
"""


def block(body: Callable[[int, int], None]) -> Any:
    """Mark a block function, void(uintp args, intp index), of a kernel module.

    Division by zero is not checked (error_model "numpy"), so the code has no path for exceptions.
    """
    return function("uintp", "intp")(body)


def function(*parameters: str) -> Callable[[Callable[..., None]], Any]:
    """Mark a function of other parameters, each "intp" or "uintp"."""

    def mark(body: Callable[..., None]) -> Any:
        _marked[body.__name__] = body, parameters
        return body

    return mark


def exported(**intrinsics: Deferred) -> None:
    """Mark intrinsics as functions, under these names; their parameters and results have 64 bits."""
    _marked.update(intrinsics)


def object_code(source: str) -> tuple[bytes, tuple[str, ...]]:
    """Compile the text of a kernel module: an object file, and the names of its functions."""
    module, names = optimised(source)
    return _machine().emit_object(module), names


def assembly(source: str) -> str:
    """The assembly of a kernel module, as LLVM prints it."""
    text: str = _machine().emit_assembly(optimised(source)[0])
    return text


def optimised(source: str) -> tuple[Any, tuple[str, ...]]:
    """LLVM's module of a text, optimised, and the names of its functions: nothing else can be seen from outside.

    `SPEED` in the text is LLVM's level of optimisation. At 1, the default, the passes take half of the time that they
    take at 2, for code of the same size; at 3 loops are unrolled more.
    """
    import llvmlite.binding as llvm

    global _marked
    module = ModuleType("graphq_kernel")
    before, _marked = _marked, {}  # a signal's handler may compile while a text runs
    try:
        exec(compile(source, "<kernel module>", "exec"), module.__dict__)
        marked = _marked
    finally:
        _marked = before
    whole, *others = (_emitted(name, x) if isinstance(x, Deferred) else _lowered(name, *x)
                      for name, x in marked.items())
    for other in others:
        whole.link_in(other)
    for x in (*whole.functions, *whole.global_variables):
        if not x.is_declaration and x.name not in marked:
            x.linkage = "internal"
    builder = llvm.create_pass_builder(
        _machine(), llvm.create_pipeline_tuning_options(speed_level=getattr(module, "SPEED", 1)))
    unused = llvm.create_new_module_pass_manager()
    unused.add_global_dead_code_eliminate_pass()  # what is written for Python's sake
    unused.run(whole, builder)
    builder.getModulePassManager().run(whole, builder)
    return whole, tuple(marked)


@cache
def _machine() -> Any:
    """LLVM's code generator for this machine."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()  # of inline assembly
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3, reloc="pic",
        codemodel="small")


def _parsed(text: str) -> Any:
    import llvmlite.binding as llvm

    module = llvm.parse_assembly(text)
    module.triple, module.data_layout = _machine().triple, str(_machine().target_data)
    return module


def _emitted(name: str, deferred: Deferred) -> Any:
    """LLVM's module of an intrinsic as a function, for which Numba has nothing to do."""
    from llvmlite import ir

    count = len(inspect.signature(deferred.body).parameters) - 1
    signature, code = deferred.body(None, *[types.intp] * count)
    module, word = ir.Module(name), ir.IntType(64)
    none = signature.return_type == types.void
    function = ir.Function(module, ir.FunctionType(ir.VoidType() if none else word, [word] * count), name)
    builder = ir.IRBuilder(function.append_basic_block())
    context = SimpleNamespace(get_dummy_value=lambda: None)  # all that intrinsics ask of Numba's
    result = code(context, builder, signature, function.args)
    builder.ret_void() if none else builder.ret(result)
    return _parsed(str(module))


def _lowered(name: str, body: Any, parameters: Sequence[str]) -> Any:
    """LLVM's module of a function that C can call as `name`."""
    kinds = tuple(getattr(types, p) for p in parameters)
    copy = bound(body)
    copy.__name__ = copy.__qualname__ = _TAG
    module = _parsed(jitted(copy, types.void(*kinds)).inspect_llvm(kinds))
    (native,) = (x.name for x in module.functions if not x.is_declaration and _TAG in x.name)
    entry = _parsed(_ENTRY.format(
        native=native, name=name, kinds=", i64" * len(parameters),
        parameters=", ".join(f"i64 %a{k}" for k in range(len(parameters)))))
    module.link_in(entry)
    return module
