"""Kernel modules: functions that a factory makes, compiled or read from the cache, and called by address.

`load` returns at once, and kernels are compiled while a plan is built. The first use of an address waits for the code.
"""
from __future__ import annotations

import ctypes
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from graphq.base.platform import TARGET
from graphq.base.sizes import plain
from graphq.errors import KernelError
from graphq.kernels.jit import cache as folder
from graphq.kernels.jit.codegen import Functions, link
from graphq.kernels.jit.compiling import Job

if TYPE_CHECKING:
    from graphq.kernels.target.level import Level


class Source(NamedTuple):
    """The recipe of a kernel module: a factory (a function at the top level of a file) and its arguments.

    Arguments are values whose `repr` is the same in every process and differs between different values: numbers,
    strings, booleans, None, levels, epilogues, and tuples of these. The code uses only the instructions of `level`;
    without a level it uses all instructions of the machine that LLVM chooses by itself.
    """

    factory: Callable[..., Functions]
    arguments: tuple[Any, ...]
    level: Level | None = None

    @property
    def without(self) -> tuple[str, ...]:
        """The features of this machine that LLVM must not use, by LLVM's names."""
        return () if self.level is None else self.level.withheld

    @property
    def text(self) -> str:
        """A text that is the same in all processes for equal recipes, and differs between different recipes."""
        level = "" if self.level is None else f" {self.level!r}"
        return f"{self.factory.__module__}.{self.factory.__qualname__}{self.arguments!r}{level}"


class ModuleCounts(NamedTuple):
    """The number of modules compiled, and of modules loaded from the cache, since the process started."""

    compiled: int = 0
    loaded: int = 0


_statistics: Counter[str] = Counter()
modules_by_key: dict[str, Module] = {}


def statistics() -> ModuleCounts:
    """The modules compiled and loaded so far."""
    return ModuleCounts(**_statistics)


class Function:
    """A function of a module with 64-bit integer arguments. `int()` gives the address of its code."""

    def __init__(self, module: Module, name: str) -> None:
        self.module, self.name = module, name

    def __repr__(self) -> str:
        return f"<function {self.name} of {self.module.name}>"

    def want(self) -> None:
        """Start the compilation of the function's module if it was deferred."""
        self.module.want()

    @property
    def address(self) -> int:
        """The address of the code, after waiting for it. Raises KernelError if it cannot be compiled."""
        return self.module.address(self.name)

    def __index__(self) -> int:
        return self.address

    __int__ = __index__

    def __call__(self, *args: int) -> None:
        """Call the function through ctypes and ignore its result. For tests and self-tests."""
        ctypes.CFUNCTYPE(None, *[ctypes.c_ssize_t] * len(args))(self.address)(*args)


class FunctionTable:
    """An array of words that are integers or addresses of functions. `int()` gives the array's address.

    The array's address never changes. Each `int()` waits for the code of all functions and writes the words; concurrent
    threads write the same words.
    """

    def __init__(self, entries: Sequence[Function | int]) -> None:
        self.entries = tuple(entries)
        self._words = np.zeros(len(self.entries), np.int64)

    def want(self) -> None:
        """Start the compilation of all modules in the table that were deferred."""
        for x in self.entries:
            if isinstance(x, Function):
                x.want()

    def __index__(self) -> int:
        self._words[:] = [int(x) for x in self.entries]
        return self._words.ctypes.data

    __int__ = __index__


class Module:
    """A kernel module. Its attributes are its functions; `recipe` is a digest of what it computes, for every CPU."""

    def __init__(self, kind: str, source: Source, cache: bool) -> None:
        self.name, self.source = kind, source
        entry = folder.Entry(kind, source.text, source.without)
        self.recipe, self._entry = entry.recipe, entry if cache else None
        self._addresses: Mapping[str, int] | None = None
        self._found: folder.Code | None = None
        self._job: Job | None = None

    def __getattr__(self, name: str) -> Function:
        if name.startswith("_"):
            raise AttributeError(name)
        return Function(self, name)

    def __repr__(self) -> str:
        return f"<kernel module {self.name}>"

    def begin(self, wanted: bool = True, first: bool = False) -> None:
        """Read the code from the cache. If it is not there, create the job that compiles the module."""
        self._found = self._entry.read() if self._entry else None
        if self._found is None:
            self._job = Job("object_code", self.source, self._keep, wanted=wanted, first=first)

    def _keep(self, answer: tuple[bytes, tuple[str, ...]]) -> None:
        """Write the code to the cache folder for later processes, even if this process does not use it."""
        if self._entry is not None:
            self._entry.write(folder.Code(*answer))

    def want(self) -> None:
        """Start the compilation of the module if it was deferred."""
        if self._addresses is None and self._job is not None:
            self._job.want()

    @property
    def ready(self) -> bool:
        """Whether the code can be loaded without waiting for its compilation."""
        return self._job is None or self._job.done

    @property
    def code(self) -> folder.Code:
        """The object code, after waiting for it. Raises KernelError if it cannot be compiled."""
        if not TARGET:
            self._ready()
        return self._found or folder.Code(*(self._job or Job("object_code", self.source)).result())

    @property
    def code_in_time(self) -> folder.Code:
        """The object code. A deferred compilation is not hurried: it runs when nobody else needs the cores."""
        if self._addresses is None and self._job is not None:
            self._job.wait()
        return self.code

    def address(self, name: str) -> int:
        """The address of a function, after waiting until the module's code is loaded."""
        addresses = self._ready()
        if name not in addresses:
            raise KernelError(f"kernel module {self.name} has no function {name!r}")
        return addresses[name]

    def _ready(self) -> Mapping[str, int]:
        while self._addresses is None:
            self._link()
        return self._addresses

    def _link(self) -> None:
        """Load the code. If LLVM rejects code from the cache folder, compile it again."""
        found, job = self._found, self._job
        if found is not None:
            try:
                self._load(found, loaded=1)
            except KernelError:
                self._found = None
        elif job is not None:
            self._load(job.result(), compiled=1)
        else:  # the code from the folder was rejected, or `begin` has not run
            self._job = Job("object_code", self.source, self._keep)

    def _load(self, code: tuple[bytes | memoryview, tuple[str, ...]], **counts: int) -> None:
        addresses = link(*code)
        if self._addresses is None:  # otherwise another thread has loaded the code
            self._addresses = addresses
            _statistics.update(counts)


class SavedModule(Module):
    """A module of a saved model: object code without a source."""

    def __init__(self, kind: str, recipe: str, code: folder.Code) -> None:
        self.name, self.recipe, self._code = kind, recipe, code
        self._addresses = self._job = None

    @property
    def code(self) -> folder.Code:
        """The object code."""
        return self._code

    def _link(self) -> None:
        self._load(self._code, loaded=1)


saved_modules: dict[tuple[str, str], SavedModule] = {}


def saved(kind: str, recipe: str, cpu: str, code: folder.Code) -> Module:
    """The module for code that this user compiled before, for a `cpu` (`cpu.describe`) that this CPU fits.

    Each recipe has one module for each description.
    """
    return saved_modules.setdefault((recipe, cpu), SavedModule(kind, recipe, code))


def load(kind: str, factory: Callable[..., Functions], *arguments: Any, level: Level | None = None, cache: bool = True,
         wanted: bool = True, first: bool = False) -> Module:
    """The kernel module that `factory` makes from these arguments (see `Source`). Equal calls return the same module.

    `kind` (an identifier) is the prefix of the file's name in the cache. With `cache=False` no file is read or written.
    Open sizes in the arguments are replaced by the numbers assumed for them.

    A module that is not `wanted` is compiled on request (`Module.want`), or when a compiling process has nothing else
    to do. Modules that take long to compile should be `first`: they overtake waiting modules.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", kind):
        raise ValueError(f"kind of a kernel module must be a lower-case identifier, got {kind!r}")
    if factory.__qualname__ != factory.__name__:
        raise ValueError(f"the factory of a kernel module must be a function of a file, got {factory.__qualname__}")
    source = Source(factory, plain(arguments), level)
    key = f"{kind}\0{source.text}"
    module = modules_by_key.get(key)
    if module is None:
        made = Module(kind, source, cache)
        module = modules_by_key.setdefault(key, made)
        if module is made:  # otherwise another thread has added the module
            made.begin(wanted, first)
    elif wanted:
        module.want()
    return module
