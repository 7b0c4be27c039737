"""Compile kernel modules to object code, and load object code into memory.

A kernel module is a set of functions that a factory makes (`Functions`). graphq uses Numba's public interface:
`numba.njit`, then `inspect_llvm`, gives the LLVM IR of a function and all functions that it calls. The IR of a module's
functions is linked into one LLVM module that exports only these functions. LLVM optimizes this module and emits a
position-independent object. Compiling processes (`compiling.py`) run with NUMBA_OPT=0, because Numba's own optimization
would repeat LLVM's work.
"""
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache, wraps
from itertools import count
from typing import TYPE_CHECKING, Any

from llvmlite import ir

from graphq.base.locks import Lock
from graphq.base.platform import MACHINE, OBJECT_FORMAT, TARGET
from graphq.errors import KernelError
from graphq.kernels.jit.cpu import target_features
from graphq.kernels.jit.deferred import Emitter, bound, emits, jitted, types
from graphq.kernels.jit.intrinsics import store_s64
from graphq.kernels.jit.values import HIDDEN, I64, LEVEL, Builder, Value

if TYPE_CHECKING:
    from graphq.kernels.jit.modules import Source

llvm_lock = Lock(fork_waits=True)
"""Held while this process runs code of LLVM or Numba, whose own locks do not survive a fork."""
_numbers = count()
ONLY_COMPILES = ("GRAPHQ_TARGET is set, so this process compiles for another CPU and runs no kernels: unset the "
                 "variable, and name targets when you save a model")
_loaded: list[object] = []
"""Loaded code. It stays in memory until the process ends, because plans hold its addresses."""


def link(code: bytes | memoryview, names: Sequence[str]) -> Mapping[str, int]:
    """Load an object file and return the addresses of the functions `names`.

    Raises KernelError if LLVM rejects it, or in a process with a TARGET, whose code this CPU may be unable to run.
    """
    if TARGET:
        raise KernelError(ONLY_COMPILES)
    with llvm_lock.hold:
        try:
            import llvmlite.binding as llvm
        except OSError as error:  # for example, the process has too many open files
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
    """LLVM's JITLink. It keeps an object in one block of memory, with constants within 2 GB of the code."""
    import llvmlite.binding as llvm

    machine = _target().create_target_machine(jit=True, reloc="pic", codemodel="small")
    return llvm.create_lljit_compiler(machine, use_jit_link=True)


def _target() -> Any:
    """LLVM's target for MACHINE. On Windows, functions with big stacks call ntdll.dll's `__chkstk`."""
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    system = llvm.get_default_triple().partition("-")[2]
    return llvm.Target.from_triple(f"{MACHINE}-{system}{OBJECT_FORMAT}")


class Functions:
    """The result of a factory: the functions of a kernel module, by name.

    A function takes 64-bit integers. It is a Python function without a result, or a function decorated with `@emits`.
    The factory's variables are constants in the compiled code, and branches that these constants exclude are not
    compiled. Division by zero is not checked, so the code needs no exceptions.

    `speed` is LLVM's optimization level. Level 1 takes half of level 2's time, for code of the same size. Level 3
    unrolls more loops; kernels with hot inner loops use it.
    """

    def __init__(self, *, speed: int = 1, **named: Callable[..., object]) -> None:
        self.speed, self.named = speed, named


def block_module(body: Callable[..., None], speed: int = 1) -> Callable[..., Functions]:
    """Make the factory of a module whose only function, `block`, is the decorated function of a file.

    If the function emits its code, it has keyword-only parameters: the factory's arguments in the same order.
    """
    names = [name for name, p in inspect.signature(body).parameters.items() if p.kind is p.KEYWORD_ONLY]

    @wraps(body)
    def factory(*settings: Any) -> Functions:
        block = emits(body, **dict(zip(names, settings, strict=True))) if names else body
        return Functions(speed=speed, block=block)

    return factory


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


@block_module
def first_module(args: int, index: int) -> None:
    """Make Numba do its lazy imports: a new compiling process compiles this module before any job."""
    for k in range(index // 2, max(index, 3)):
        store_s64(args + 8 * k, k if k > index % 5 else 0)


def object_code(source: "Source") -> tuple[bytes, tuple[str, ...]]:
    """Compile a kernel module. Returns an object file and the names of its functions."""
    module, names = optimized(source)
    return _machine(source.without).emit_object(module), names


def assembly(source: "Source") -> str:
    """The assembly of a kernel module as text."""
    text: str = _machine(source.without).emit_assembly(optimized(source)[0])
    return text


def whole_module(source: "Source") -> tuple[Any, Functions]:
    """Make one LLVM module of all functions of a source, not optimized. It exports only these functions."""
    token = LEVEL.set(source.level)
    try:
        functions = source.factory(*source.arguments)
        whole, *others = (_emitted(name, x) if isinstance(x, Emitter) else _lowered(name, x)
                          for name, x in functions.named.items())
    finally:
        LEVEL.reset(token)
    for other in others:
        whole.link_in(other)
    for x in (*whole.functions, *whole.global_variables):
        if not x.is_declaration and x.name not in functions.named:
            x.linkage = "internal"
    return whole, functions


def optimized(source: "Source") -> tuple[Any, tuple[str, ...]]:
    """Make the optimized LLVM module of a source. Returns the module and the names of its functions."""
    import llvmlite.binding as llvm

    machine = _machine(source.without)  # first: now LLVM can parse the inline assembly in code that Numba emits
    whole, functions = whole_module(source)
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=functions.speed))
    unused = llvm.create_new_module_pass_manager()
    unused.add_global_dead_code_eliminate_pass()  # remove the code that Numba emits for Python
    unused.run(whole, builder)
    builder.getModulePassManager().run(whole, builder)
    return whole, tuple(functions.named)


@cache
def _machine(without: tuple[str, ...] = ()) -> Any:
    """LLVM's code generator for the CPU, without the features `without` and all features that need them."""
    import llvmlite.binding as llvm

    llvm.initialize_native_asmparser()  # needed to parse inline assembly
    features = ",".join((target_features(), *(f"-{x}" for x in without)))
    return _target().create_target_machine(
        cpu="generic" if TARGET else llvm.get_host_cpu_name(), features=features, opt=3, reloc="pic", codemodel="small")


def _parsed(text: str) -> Any:
    import llvmlite.binding as llvm

    for theirs, ours in HIDDEN:
        text = text.replace(ours, theirs)
    module = llvm.parse_assembly(text)
    module.triple, module.data_layout = _machine().triple, str(_machine().target_data)
    return module


def _emitted(name: str, emitter: Emitter) -> Any:
    """Make the LLVM module of one function that emits its code itself, without Numba."""
    module, result = ir.Module(name), ir.VoidType() if emitter.result == "None" else I64
    function = ir.Function(module, ir.FunctionType(result, [I64] * len(emitter.kinds)), name)
    b = Builder(ir.IRBuilder(function.append_basic_block()))
    value = emitter.body(b, *(Value(b, x) for x in function.args))
    b.ret_void() if value is None else b.ret(value)
    return _parsed(str(module))


def _lowered(name: str, body: Any) -> Any:
    """Make the LLVM module of one Python function with Numba, and export the function under `name`."""
    count = len(inspect.signature(body).parameters)
    kinds = (types.intp,) * count
    copy = bound(body)
    copy.__name__ = copy.__qualname__ = _TAG
    module = _parsed(jitted(copy, types.void(*kinds)).inspect_llvm(kinds))
    (native,) = (x.name for x in module.functions if not x.is_declaration and _TAG in x.name)
    entry = _parsed(_ENTRY.format(
        native=native, name=name, kinds=", i64" * count, parameters=", ".join(f"i64 %a{k}" for k in range(count))))
    module.link_in(entry)
    return module
