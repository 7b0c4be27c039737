"""The cache of generated kernel modules: readable Python files and Numba's compiled code, in one folder per user.

A module's name holds the hash of its text, of this package's kernel sources and of the versions that matter, so a file
is never stale. Its functions are decorated with `block` or `function` from here, which compile at once; in a later
process they are loaded. Where no folder is safe to use, a private temporary one serves for the process.
"""
from __future__ import annotations

import atexit
import hashlib
import logging
import os
import platform
import pwd
import re
import shutil
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

import numba
from numba import cfunc, njit
from numba.core import config

log = logging.getLogger("graphq")

_OURS = re.compile(r"[a-z][a-z0-9_]*_[0-9a-f]{16}(\.py|\..*\.nb[ci](\.tmp\..*)?|\.py\.tmp\..*)")
_BLOCK = "void(uintp, intp)"
_lock = threading.RLock()
_modules: dict[str, ModuleType] = {}
_persist = False  # whether functions decorated now are kept in the folder; changes under the lock


@dataclass(frozen=True)
class Statistics:
    """Functions compiled and functions loaded from the folder since the process began."""

    compiled: int = 0
    loaded: int = 0


@dataclass(frozen=True)
class Info:
    """The folder, its number of kernel modules, and the bytes of all its files."""

    path: Path
    modules: int
    bytes: int


_statistics = Statistics()


def statistics() -> Statistics:
    """Count the functions compiled and loaded so far."""
    return _statistics


def _count(loaded: bool) -> None:
    global _statistics
    field = "loaded" if loaded else "compiled"
    _statistics = replace(_statistics, **{field: getattr(_statistics, field) + 1})


@contextmanager
def _beside_source() -> Iterator[None]:
    """Make Numba keep compiled code beside the module, whatever NUMBA_CACHE_DIR says."""
    names = [n for n in ("CACHE_DIR", "CACHE_LOCATOR_CLASSES") if hasattr(config, n)]
    before = [getattr(config, n) for n in names]
    try:
        for n in names:
            setattr(config, n, "")
        yield
    finally:
        for n, value in zip(names, before, strict=True):
            setattr(config, n, value)


def block(body: Callable[[int, int], None]) -> Any:
    """Compile a block function, void(uintp args, intp index); the result has its `address`.

    Division by zero is not checked (error_model "numpy"), so the code has no path for exceptions.
    """
    with _beside_source():
        made = cfunc(_BLOCK, cache=_persist, error_model="numpy")(body)
    _count(made.cache_hits > 0)
    return made


def function(signature: str, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function that Python or other kernels call, for one signature; `options` are njit's."""

    def compile_now(body: Callable[..., Any]) -> Any:
        with _beside_source():
            made = njit(signature, cache=_persist, error_model="numpy", **options)(body)
        _count(bool(made.stats.cache_hits))
        return made

    return compile_now


def load(kind: str, source: str, cache: bool = True) -> ModuleType:
    """Give the module of this text, made at most once per process; `kind` (an identifier) begins its name.

    With `cache=False` a module that is not loaded yet is compiled in memory: no file is read or written.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", kind):
        raise ValueError(f"kind of a kernel module must be a lower-case identifier, got {kind!r}")
    name = f"{kind}_{_digest(source)}"
    with _lock:
        if name not in _modules:
            _modules[name] = _from_folder(name, source) if cache else _execute(name, source, f"<{name}>", False)
        return _modules[name]


def _digest(source: str) -> str:
    return hashlib.sha256((_versions() + source).encode()).hexdigest()[:16]


@cache
def _versions() -> str:
    """Everything beside its text that a module's compiled code comes from. Numba itself keys by CPU and features."""
    try:
        own = version("graphq")
    except PackageNotFoundError:
        own = "source"
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return " ".join((own, numba.__version__, version("llvmlite"), platform.python_version(), digest.hexdigest(), ""))


def _from_folder(name: str, source: str) -> ModuleType:
    """Load by way of the folder; whatever is damaged there is made anew."""
    path = folder() / f"{name}.py"
    try:
        _write(path, source)
        return _execute(name, source, str(path), True)
    except OSError as error:  # full disk, folder gone
        log.warning("kernel cache %s cannot be used: %s", path.parent, error)
        return _execute(name, source, f"<{name}>", False)
    except Exception:  # a damaged file can raise anything in unpickling; a defect of the module raises again
        for old in (path.parent / "__pycache__").glob(f"{name}.*"):
            old.unlink(missing_ok=True)
        return _execute(name, source, str(path), True)


def _write(path: Path, source: str) -> None:
    """Write the module file unless it is there, whole; other processes see all of it or nothing."""
    data = source.encode()
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


def _execute(name: str, source: str, filename: str, persist: bool) -> ModuleType:
    """Run the module's text, in sys.modules by then: Numba looks functions up there."""
    global _persist
    module = ModuleType(f"graphq_kernels.{name}")
    module.__file__ = filename
    sys.modules[module.__name__] = module
    before, _persist = _persist, persist
    try:
        exec(compile(source, filename, "exec"), module.__dict__)
    except BaseException:
        del sys.modules[module.__name__]
        raise
    finally:
        _persist = before
    return module


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
    root = folder()
    return sorted(p for place in (root, root / "__pycache__") if place.is_dir() for p in place.iterdir()
                  if p.is_file() and _OURS.fullmatch(p.name))


def info() -> Info:
    """Say where the cache is and how much it holds."""
    files = _files()
    return Info(folder(), sum(p.suffix == ".py" for p in files), sum(p.stat().st_size for p in files))


def clear() -> int:
    """Remove the cache's files, and no others; the number of modules removed. Loaded modules stay usable."""
    removed = 0
    for path in _files():
        path.unlink(missing_ok=True)
        removed += path.suffix == ".py"
    return removed
