"""The cache of generated kernel modules: readable Python files and their object code, in one folder per user.

A module's name holds the hash of its text, of this package's kernel sources and of the versions that matter, its object
file's also that of the machine, so a file is never stale; a checksum ends the object file. In a later process the code
is linked into memory as it is, without Numba. Where no folder is safe to use, a private temporary one serves for the
process.
"""
from __future__ import annotations

import atexit
import ctypes
import hashlib
import logging
import os
import platform
import pwd
import re
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from graphq.errors import KernelError
from graphq.kernels import codegen, compiling, isa
from graphq.kernels.jit import Deferred
from graphq.kernels.linker import link

log = logging.getLogger("graphq")

_OURS = re.compile(r"[a-z][a-z0-9_]*_[0-9a-f]{16}(\.py|\.[0-9a-f]{16}\.o)(\.tmp\..*)?")
_BLOCK = ("uintp", "intp")
_DIGEST = hashlib.sha256().digest_size
_NUMBA_SETTINGS = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_OPT")
_lock = threading.RLock()
_modules: dict[str, Module] = {}
_marked: dict[str, codegen.Marked] = {}  # by the module that runs now, under the lock


class Statistics(NamedTuple):
    """Functions compiled and functions loaded from the folder since the process began."""

    compiled: int = 0
    loaded: int = 0


class Info(NamedTuple):
    """The folder, its number of kernel modules, and the bytes of all its files."""

    path: Path
    modules: int
    bytes: int


_statistics = Statistics()


def statistics() -> Statistics:
    """Count the functions compiled and loaded so far."""
    return _statistics


@dataclass(frozen=True)
class Function:
    """A compiled function at `address`, of 64-bit integers, without a result."""

    address: int

    def __call__(self, *args: int) -> None:
        """Call it by way of ctypes: for tests and self-tests."""
        compiling.finish()
        ctypes.CFUNCTYPE(None, *[ctypes.c_ssize_t] * len(args))(self.address)(*args)


class Module:
    """A kernel module in memory: its functions are attributes."""

    def __init__(self, name: str, functions: Mapping[str, Function]) -> None:
        self.name, self.functions = name, functions

    def __getattr__(self, name: str) -> Function:
        if name.startswith("_") or name not in self.functions:
            raise AttributeError(name)
        return self.functions[name]

    def __repr__(self) -> str:
        return f"<kernel module {self.name}>"


def block(body: Callable[[int, int], None]) -> Any:
    """Mark a block function, void(uintp args, intp index), of a kernel module; `load` compiles it.

    Division by zero is not checked (error_model "numpy"), so the code has no path for exceptions.
    """
    return function(*_BLOCK)(body)


def function(*parameters: str) -> Callable[[Callable[..., None]], Any]:
    """Mark a function of other parameters, each "intp" or "uintp"."""

    def mark(body: Callable[..., None]) -> Any:
        _marked[body.__name__] = body, parameters
        return body

    return mark


def exported(**intrinsics: Deferred) -> None:
    """Mark intrinsics as functions, under these names; their parameters and results have 64 bits."""
    _marked.update(intrinsics)


def load(kind: str, source: str, cache: bool = True) -> Module:
    """Give the module of this text, made at most once per process; `kind` (an identifier) begins its name.

    Its functions have addresses, but may be called after `compiling.finish` only.

    `SPEED = 3` in the text asks for more optimisation, for the innermost loops of kernels.

    With `cache=False` a module that is not loaded yet is compiled in memory: no file is read or written.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", kind):
        raise ValueError(f"kind of a kernel module must be a lower-case identifier, got {kind!r}")
    name = f"{kind}_{_digest(source)}"
    with _lock:
        if name not in _modules:
            linked = _from_folder(name, source) if cache else _compiled(name, source)
            _modules[name] = Module(name, {k: Function(address) for k, address in linked.items()})
        return _modules[name]


def _digest(source: str) -> str:
    return hashlib.sha256((_versions() + source).encode()).hexdigest()[:16]


@cache
def _versions() -> str:
    """Everything beside its text and the machine that a module's compiled code comes from."""
    try:
        own = version("graphq")
    except PackageNotFoundError:
        own = "source"
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return " ".join((own, version("numba"), version("llvmlite"), platform.python_version(), digest.hexdigest(), ""))


@cache
def _machine() -> str:
    """What the machine's part in the code is: a hash of its features, and of Numba's settings about them."""
    facts = [isa.cpu(), *(os.environ.get(name, "") for name in _NUMBA_SETTINGS)]
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:16]


def _from_folder(name: str, source: str) -> dict[str, int]:
    """Load by way of the folder; whatever is damaged there is made anew."""
    path, objects = folder() / f"{name}.py", folder() / f"{name}.{_machine()}.o"
    try:
        found = _linked(objects)
        if found is not None:
            _write(path, source.encode())
            return found
    except OSError:
        pass

    def keep(code: bytes) -> None:
        try:
            _write(path, source.encode())
            _write(objects, code + hashlib.sha256(code).digest())
        except OSError as error:  # full disk, folder gone
            log.warning("kernel cache %s cannot be used: %s", path.parent, error)

    return _compiled(name, source, str(path), keep)


def _linked(path: Path) -> dict[str, int] | None:
    """Load an object file; None where there is none, or it is not as it was written."""
    if not path.is_file():
        return None
    data = path.read_bytes()
    code, digest = data[:-_DIGEST], data[-_DIGEST:]
    if hashlib.sha256(code).digest() != digest:
        return None
    try:
        found = link(code)
    except KernelError as error:
        log.warning("kernel %s is compiled anew: %s", path.name, error)
        return None
    _count(loaded=len(found))
    return found


def _compiled(name: str, source: str, filename: str | None = None,
              keep: compiling.Keep = lambda code: None) -> dict[str, int]:
    """Run the module's text, and begin to compile the functions that it marks: their addresses."""
    compiling.prepare()
    module = ModuleType(f"graphq_kernels.{name}")
    filename = filename or f"<{name}>"
    _marked.clear()
    try:
        exec(compile(source, filename, "exec"), module.__dict__)
        request = codegen.request(_marked, getattr(module, "SPEED", 2))
    finally:
        _marked.clear()
    found = compiling.begin(request, keep)
    _count(compiled=len(found))
    return found


def _count(compiled: int = 0, loaded: int = 0) -> None:
    global _statistics
    _statistics = Statistics(_statistics.compiled + compiled, _statistics.loaded + loaded)


def _write(path: Path, data: bytes) -> None:
    """Write a file unless it is there, whole; other processes see all of it or nothing."""
    if path.is_file() and path.read_bytes() == data:
        return
    handle, temporary = tempfile.mkstemp(prefix=f"{path.name}.tmp.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def folder() -> Path:
    """Give the cache folder, made if need be: $GRAPHQ_CACHE_DIR, $XDG_CACHE_HOME/graphq or ~/.cache/graphq.

    It must be a folder of this user that no other user can write to, as code is loaded from it; else a temporary one.
    """
    return _checked(_wanted())


def _wanted() -> Path | None:
    """Find where the cache should be; None when the user has no home."""
    if chosen := os.environ.get("GRAPHQ_CACHE_DIR"):
        return Path(chosen).absolute()
    if (base := os.environ.get("XDG_CACHE_HOME")) and os.path.isabs(base):
        return Path(base) / "graphq"
    try:
        home = os.environ.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return None
    return Path(home) / ".cache" / "graphq" if os.path.isabs(home) else None


@cache
def _checked(path: Path | None) -> Path:
    reason = "the user has no home folder" if path is None else _unsafe(path)
    if path is not None and reason is None:
        return path
    log.warning("kernel cache %s is not used, a temporary folder is: %s", path or "", reason)
    return _temporary()


@cache
def _temporary() -> Path:
    path = Path(tempfile.mkdtemp(prefix="graphq-"))
    atexit.register(_remove_temporary, path, os.getpid())
    return path


def _remove_temporary(path: Path, owner: int) -> None:
    """Remove the temporary folder when the process that made it ends, not a fork of it."""
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)


def _unsafe(path: Path) -> str | None:
    """Make the folder and say why it cannot be used, or None."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.stat()
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        return str(error)
    if found.st_uid != os.geteuid():
        return "it belongs to another user"
    if stat.S_IMODE(found.st_mode) & 0o022:
        return f"others can write to it (mode {stat.S_IMODE(found.st_mode):o})"
    return None


def _files() -> list[Path]:
    """List the files in the folder that are ours, by name."""
    return sorted(p for p in folder().iterdir() if p.is_file() and _OURS.fullmatch(p.name))


def info() -> Info:
    """Say where the cache is and how much it holds."""
    compiling.finish()
    files = _files()
    return Info(folder(), sum(p.suffix == ".py" for p in files), sum(p.stat().st_size for p in files))


def clear() -> int:
    """Remove the cache's files, and no others; the number of modules removed. Loaded modules stay usable."""
    compiling.finish()
    removed = 0
    for path in _files():
        path.unlink(missing_ok=True)
        removed += path.suffix == ".py"
    return removed
