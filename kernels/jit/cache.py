"""The disk cache of compiled kernels and models: one folder per user, shared by all processes.

A file's name contains a hash of everything that its code depends on. The file also contains a checksum and the facts
that this hash needs, so outdated, damaged or foreign files are never run (`checked`). Code is read only if its file and
folder belong to the user and nobody else can write to them; every read checks this. If the folder is not safe, the
process uses a private temporary folder instead. New files also go there if the folder is read-only.

Files that have not been used for a month are removed. If the folder exceeds MOST_BYTES, the least recently used files
are removed as well. A process that misses a removed file compiles the kernel again.
"""
import atexit
import hashlib
import json
import logging
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from glob import glob
from pathlib import Path
from typing import Any, NamedTuple

from graphq.base.locks import late_imports, lazy_property
from graphq.base.platform import home, is_mine, new_file, open_at_once, remove, why_shared
from graphq.kernels.jit import cpu

log = logging.getLogger("graphq")

MOST_BYTES = 1 << 30
"""The most bytes of all files. The kernels of 100 models take a quarter; the rest is for saved models."""
MOST_OF_A_MODEL = MOST_BYTES // 4
"""The most bytes of a model's file. A few larger files would displace all other files."""
DAY = 86_400.0
UNUSED_DAYS = 30.0
OURS = re.compile(r"[a-z][a-z0-9_]*_[0-9a-f]{32}(\.o(\.tmp\.\w+)?|\.graphq|\.plan)|\.graphq\.[0-9a-f]{32}")
"""The names of files that the cache writes: kernels, models, later plans of models, and unfinished files of these."""
_DIGEST = hashlib.sha256().digest_size


class Code(NamedTuple):
    """An object file and the names of the functions in it."""

    object: bytes | memoryview
    names: tuple[str, ...]


_provided: dict[str, Code] = {}


def provide(codes: Mapping[str, Code]) -> None:
    """Add code, by `Entry.recipe`, which `read` prefers to files.

    The caller guarantees that this user compiled it, for this CPU or a target that this CPU fits.
    """
    _provided.update(codes)


class Info(NamedTuple):
    """The cache's contents: folder, number of kernel modules, number of models, and bytes of all files."""

    path: Path
    modules: int
    models: int
    bytes: int


class Entry:
    """The file of a kernel module in the cache. Environment variables choose the folder when an entry is made.

    `recipe` is a digest of what the module computes. The `name` also depends on what compiles the module: the versions,
    the CPU, and the features that the code must not use (`without`).
    """

    def __init__(self, kind: str, source: str, without: Sequence[str] = ()) -> None:
        self._wanted, self.kind, self.without = _wanted(), kind, without
        self.recipe = hashlib.sha256("\0".join((kind, sources(), source)).encode()).hexdigest()

    @lazy_property
    def name(self) -> str:
        """The name of the file. Code that is provided needs none, and the versions in it take time to find."""
        return _module_name(self.kind, self.recipe, self.without)

    def read(self) -> Code | None:
        """Read the code. Returns None if the file is missing, damaged, unsafe, or written for another key."""
        if self.recipe in _provided:
            return _provided[self.recipe]
        try:
            return checked(self.name, _read(safe_folder(self._wanted, writing=False) / self.name))
        except (OSError, TypeError, ValueError):
            return None

    def write(self, code: Code) -> None:
        """Write the code in one atomic step, so other processes never see a part of a file. Failures are logged."""
        data = json.dumps([self.recipe, self.without, code.names]).encode() + b"\n" + bytes(code.object)
        try:
            path = safe_folder(self._wanted)
        except OSError as error:
            return log.warning("there is no folder for the kernel cache: %s", error)
        try:
            put(path, self.name, hashlib.sha256(data).digest() + data)
        except OSError as error:  # for example, the disk is full
            log.warning("kernel cache %s cannot be used: %s", path, error)


def _module_name(kind: str, recipe: str, without: Sequence[str]) -> str:
    key = hashlib.sha256("\0".join((recipe, versions(), cpu.describe(), *without)).encode()).hexdigest()
    return f"{kind}_{key[:32]}.o"


def checked(name: str, data: bytes) -> Code:
    """The code in the bytes of a module's file. Raises ValueError or TypeError if damaged, or not for this CPU."""
    if not OURS.fullmatch(name):
        raise ValueError("not the name of a kernel module")
    head, _, code = data[_DIGEST:].partition(b"\n")
    if hashlib.sha256(data[_DIGEST:]).digest() != data[:_DIGEST]:
        raise ValueError("damaged: its bytes do not have the hash that they state")
    recipe, without, names = json.loads(head)
    if _module_name(name[:-35], recipe, without) != name:
        raise ValueError("it has the name of another module, or it is for another processor or other versions")
    return Code(code, tuple(map(str, names)))


def put(path: Path, name: str, data: bytes) -> None:
    """Write a file of the folder `path` in one step: other processes never see a part of it. Raises OSError."""
    with suppress(FileExistsError), new_file(path / name, 0o600) as file:  # another process reads the same code
        file.write(data)
    _tidy_once(path)


def usable_modules() -> dict[str, bytes]:
    """The files in the folder, by name, with kernel modules for this CPU and these versions. Raises OSError."""
    found = {}
    for entry, _ in _files(folder(writing=False)):
        with suppress(OSError, TypeError, ValueError):
            data = _read(Path(entry.path))
            checked(entry.name, data)
            found[entry.name] = data
    return found


def _read(path: Path) -> bytes:
    """The bytes of a file that only this user can write to. Raises OSError, also for any other file."""
    with open(path, "rb", opener=partial(open_at_once, follow=False)) as file:
        status = os.fstat(file.fileno())
        if not (is_mine(status) and stat.S_ISREG(status.st_mode)):
            raise PermissionError(f"{path} is not a file that only this user can write to")
        data = file.read()
    used(path)
    return data


def kept_name(digest: str, sizes: Sequence[int] | None = None) -> str:
    """The file name of a kept model or, with open `sizes`, of a plan that a call added to it for these sizes.

    `digest` is a hexadecimal digest of everything that the model's code depends on.
    """
    if sizes is None:
        return f"model_{digest[:32]}.graphq"
    return f"plan_{digest[:32]}_{hashlib.sha256(repr(tuple(sizes)).encode()).hexdigest()[:32]}.plan"


def plan_files(path: Path, digest: str) -> list[Path]:
    """The files of plans that calls have added to a compiled model, the latest first. Raises OSError."""
    found = [(facts.st_mtime, entry.path) for entry, facts in _files(path)
             if entry.name.startswith(f"plan_{digest[:32]}_") and entry.name.endswith(".plan")]
    return [Path(name) for _, name in sorted(found, reverse=True)]


def used(path: Path) -> None:
    """Mark a file as used now, unless it is read-only. This postpones its removal."""
    with suppress(OSError):
        if time.time() - path.stat().st_mtime > DAY:
            os.utime(path)


def lasting(writing: bool = True) -> Path | None:
    """The cache folder, or None if this process uses a temporary folder that is removed at its end.

    Without `writing`, the folder may be read-only.
    """
    path = _wanted()
    return None if path is None or _unsafe(path, writing) is not None else path.resolve()


def _unfinished(name: str) -> bool:
    return ".tmp." in name or name.startswith(".")


@cache
def versions() -> str:
    """The versions and kernel sources that compiled code depends on, as a text."""
    of = [version_of(name) for name in ("graphq-compiler", "numba", "llvmlite")]
    return " ".join((*of, sys.version.split()[0], sources()))


def version_of(package: str) -> str:
    """The version of an installed package; "none" if it is not installed."""
    with late_imports():
        from importlib.metadata import PackageNotFoundError, version
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


@cache
def sources() -> str:
    """A digest of the kernel sources."""
    digest = hashlib.sha256()
    add_sources(digest, Path(__file__).parents[1])
    return digest.hexdigest()


def add_sources(digest: Any, top: Path, skip: str | None = None) -> None:
    """Add all Python files of a folder and its subfolders to a digest, including symbolic links.

    Skip the subfolder `skip`.
    """
    for name in sorted(glob("**/*.py", root_dir=top, recursive=True)):
        if skip is None or not name.startswith(skip + os.sep):
            with open(os.path.join(top, name), "rb") as file:
                digest.update(name.encode() + b"\0" + file.read() + b"\0")


def folder(writing: bool = True) -> Path:
    """The cache folder: $GRAPHQ_CACHE_DIR, $XDG_CACHE_HOME/graphq or ~/.cache/graphq. It is created if missing.

    Code is loaded from the folder, so the folder must belong to this user, and other users must have no write access. A
    temporary folder replaces an unsafe folder, and a read-only one if `writing`.
    """
    return safe_folder(_wanted(), writing)


def safe_folder(path: Path | None, writing: bool = True) -> Path:
    """Return `path` if it is safe to read and, if `writing`, to write; otherwise a temporary folder."""
    reason = "the user has no home folder" if path is None else _unsafe(path, writing)
    if path is not None and reason is None:
        return path.resolve()
    _warn(path, str(reason))
    return temporary_folder()


def _wanted() -> Path | None:
    """The configured path of the cache; None if the user has no home folder."""
    if chosen := os.environ.get("GRAPHQ_CACHE_DIR"):
        return Path(chosen).absolute()
    if (base := os.environ.get("XDG_CACHE_HOME")) and os.path.isabs(base):
        return Path(base) / "graphq"
    own = home()
    return Path(own) / ".cache" / "graphq" if own and os.path.isabs(own) else None


@cache
def _warn(path: Path | None, reason: str) -> None:
    log.warning("kernel cache %s is not used, but a temporary folder: %s", path or "", reason)


@cache
def temporary_folder() -> Path:
    """A folder that is removed when this process ends."""
    path = Path(tempfile.mkdtemp(prefix="graphq-"))
    atexit.register(_remove_temporary, path, os.getpid())
    return path


def _remove_temporary(path: Path, owner: int) -> None:
    """Remove the temporary folder at the end of the process `owner`, but not at the end of its forks."""
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)


def _unsafe(path: Path, writing: bool = True) -> str | None:
    """Create the folder if it is missing. Returns the reason why it is not safe to read or write, or None."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = path.resolve()
        status = path.stat()
        above = [(parent, parent.stat()) for parent in path.parents]
    except OSError as error:
        return str(error)
    reason = why_shared(status, above)  # who can write to a parent can replace the folder
    wanted = os.R_OK | os.X_OK | (os.W_OK if writing else 0)
    return reason or (None if os.access(path, wanted) else "it is read-only")


def _files(path: Path) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
    with os.scandir(path) as entries:
        for entry in entries:
            if OURS.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                try:
                    yield entry, entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue


@cache
def _tidy_once(path: Path) -> None:
    try:
        tidy(path)
    except OSError as error:
        log.warning("kernel cache %s cannot be tidied: %s", path, error)


def tidy(path: Path, now: float | None = None) -> int:
    """Remove files unused for UNUSED_DAYS, then the least recently used files beyond MOST_BYTES.

    Returns the number of removed files. Other processes can read files meanwhile.
    """
    now = time.time() if now is None else now
    removed, room = 0, MOST_BYTES
    for entry, facts in sorted(_files(path), key=lambda x: -x[1].st_mtime):
        room -= facts.st_size
        left_over = _unfinished(entry.name) and now - facts.st_mtime > DAY / 24  # its writer died
        if room < 0 or left_over or now - facts.st_mtime > UNUSED_DAYS * DAY:
            removed += remove(entry.path)
    return removed


def info() -> Info:
    """The cache's folder, and the number and size of its files."""
    return _counted(path := folder(writing=False), {entry.name: facts.st_size for entry, facts in _files(path)})


def clear() -> Info:
    """Remove the cache's files, and no others. Returns the removed files' number and size. Loaded code stays usable."""
    path = folder()
    return _counted(path, {entry.name: facts.st_size for entry, facts in list(_files(path)) if remove(entry.path)})


def _counted(path: Path, sizes: Mapping[str, int]) -> Info:
    finished = [name for name in sizes if not _unfinished(name)]
    modules, models = (sum(name.endswith(suffix) for name in finished) for suffix in (".o", ".graphq"))
    return Info(path, modules, models, sum(sizes.values()))
