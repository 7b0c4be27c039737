"""What differs between operating systems: cores, memory, files and their owners, forks, signals, and CPU features.

A plan has as many threads as the process's share of the machine's cores: the minimum of the cores that the process may
use (affinity), the CPU quotas of its control groups (containers, Kubernetes), and OMP_NUM_THREADS. Dask, Ray and joblib
set OMP_NUM_THREADS for their workers.

Other files read SYSTEM here, and none imports a module that some systems lack (`pwd`, `grp`, `resource`). Each function
has a form for Linux, and a plain form that works everywhere.
"""
import ctypes
import mmap
import os
import platform
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from io import BufferedReader
from itertools import takewhile
from math import inf
from pathlib import Path
from typing import IO

import numpy as np

from graphq.errors import CompileError

SYSTEM = sys.platform
"""The operating system by Python's name: linux, darwin (macOS), win32 (Windows), or another."""
FORKS = SYSTEM == "linux"
"""Whether a process that has imported other packages can fork: libraries of macOS do not allow it."""
INHERITS = SYSTEM != "win32"
"""Whether processes inherit open descriptors. Windows starts a process in a group of its own by SPAWN_FLAGS."""
IN_USE: tuple[type[OSError], ...] = (PermissionError,) if SYSTEM == "win32" else ()
"""What the system raises if a file that a process has open or mapped is to be replaced or removed."""
OBJECT_FORMAT = "-elf" if SYSTEM == "win32" else ""
"""The end of LLVM's triple. Object files on Windows are ELF: they need no symbols of Microsoft's C compiler."""
SPAWN_FLAGS = 0 if INHERITS else 0x0800_0200  # CREATE_NO_WINDOW, CREATE_NEW_PROCESS_GROUP
TARGET = tuple(os.environ.get("GRAPHQ_TARGET", "").split())
"""The architecture and CPU features (LLVM's names) that this process compiles for. `model.targets` starts such
processes: they plan and compile, and run no kernels. In all others this is empty: they compile for their own CPU."""
HOST = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
"""The architecture of this machine, by LLVM's name."""
MACHINE = TARGET[0] if TARGET else HOST
"""The architecture that kernels are compiled for, by LLVM's name."""
_NO_LIMIT = 1 << 20
_most_asked = 0


def untested() -> str | None:
    """A sentence about a machine that the tests have not run on; None on Linux with x86-64 or 64-bit Arm.

    Raises ImportError for a machine on which nothing works.
    """
    if sys.maxsize < 1 << 32 or sys.byteorder == "big":
        raise ImportError(f"graphq needs a 64-bit little-endian machine, and this is {SYSTEM} on {MACHINE}")
    if SYSTEM == "linux" and MACHINE in ("x86_64", "aarch64"):
        return None
    return (f"graphq is not tested on {SYSTEM} with {MACHINE}; where it fails, models with GRAPHQ_ISA=scalar and "
            "threads=1 need the least of the system")


def at_fork(before: Callable[[], object] = lambda: None, after_in_parent: Callable[[], object] = lambda: None,
            after_in_child: Callable[[], object] = lambda: None) -> None:
    """Call functions before and after each fork of this process, on systems that fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=before, after_in_parent=after_in_parent, after_in_child=after_in_child)


def process_cores() -> set[int]:
    """The cores that the process may use, taken from its main thread; other threads may be restricted."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(os.getpid())
    return set(range(os.cpu_count() or 1))


def most_threads() -> int:
    """The most threads that a plan can have: $NUMBA_NUM_THREADS, or the cores that this process may use."""
    return _variable("NUMBA_NUM_THREADS") or len(process_cores())


def team_threads() -> int:
    """The number of threads of the process: its limit, or the largest number that a plan asked for, if larger."""
    return max(_allowed(), _most_asked)


def resolve_threads(threads: int | None) -> int:
    """The number of threads for a plan: `threads`, but at most `most_threads`; by default the process's share.

    Raises CompileError unless `threads` is a positive int or None.
    """
    global _most_asked
    if threads is None:
        return min(len(process_cores()), _allowed())
    if not isinstance(threads, int | np.integer) or isinstance(threads, bool) or threads < 1:
        raise CompileError(f"threads must be a positive int or None, got {threads!r}")
    asked = min(int(threads), most_threads())
    _most_asked = max(_most_asked, asked)
    return asked


def _allowed() -> int:
    return max(1, min(most_threads(), quota(), _variable("OMP_NUM_THREADS") or _NO_LIMIT))


def _variable(name: str) -> int | None:
    """The number at the start of an environment variable, such as 4 in "4,2"; None if it is not positive."""
    first = os.environ.get(name, "").split(",")[0].strip()
    return max(1, int(first)) if first.isdecimal() else None


def quota(root: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> int:
    """The cores that the quotas of control groups allow, rounded up; a large number if there are no quotas."""
    return min((-(-quota // period) for quota, period in _quotas(Path(root), Path(own)) if quota > 0 and period > 0),
               default=_NO_LIMIT)


def _quotas(root: Path, own: Path) -> Iterator[tuple[int, int]]:
    """The quota and period of the process's control groups (version 1 or 2) and of their parents."""
    try:
        groups = [line.split(":", 2) for line in own.read_text().splitlines() if line.count(":") >= 2]
    except OSError:
        groups = []
    for _, controllers, path in [*groups, ["", "", "/"]]:
        if controllers and "cpu" not in controllers.split(","):
            continue
        mounted = root / controllers
        group = mounted / path.lstrip("/")
        for folder in (group, *group.parents):
            if not folder.is_relative_to(mounted):
                break
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
            try:
                quota, period, *_ = " ".join((folder / name).read_text() for name in names).split()
                yield int(quota), int(period)
            except (OSError, ValueError):  # no quota: the file does not exist, or says "max"
                continue


def machine_memory() -> float:
    """The bytes of this machine's memory; a terabyte if the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 1 << 40


def address_limit() -> float:
    """The most bytes of addresses that this process may use (`ulimit -v`); infinity without a limit."""
    try:
        import resource
    except ImportError:
        return inf
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return inf if limit == resource.RLIM_INFINITY else limit


def mapped_pages(nbytes: int) -> mmap.mmap:
    """Map `nbytes` bytes of zeros, private to this process and its forks; huge pages if the system has them.

    Raises OSError or OverflowError if the system refuses.
    """
    private = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0)
    pages = mmap.mmap(-1, nbytes, flags=private) if private else mmap.mmap(-1, nbytes)
    with suppress(OSError, AttributeError):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return pages


def mapped_file(file: BufferedReader) -> memoryview:
    """Map a file into memory for reading. Pages that nobody reads take no memory."""
    return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def open_at_once(path: str, flags: int, follow: bool = True) -> int:
    """Open a file like `os.open`, but never wait for a pipe. Unless `follow`, raise OSError for a symbolic link."""
    flags |= getattr(os, "O_NONBLOCK", 0) | (0 if follow else getattr(os, "O_NOFOLLOW", 0))
    return os.open(path, flags | getattr(os, "O_BINARY", 0))


@contextmanager
def new_file(path: Path, mode: int) -> Iterator[IO[bytes]]:
    """Open a file that takes its name after the `with` block. Processes that use an old file of this name keep it.

    Raises FileExistsError if the system does not replace a file in use, and OSError if the file cannot be written.
    """
    unfinished = path.with_name(f".graphq.{os.urandom(16).hex()}")
    try:
        with open(unfinished, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
        try:
            os.replace(unfinished, path)
        except IN_USE:
            raise FileExistsError("a process uses this file, and Windows replaces no file in use; choose another path, "
                                  "or end the processes that have loaded it") from None
    except BaseException:
        remove(unfinished)
        raise


def remove(path: Path | str) -> bool:
    """Remove a file, if it exists. False if the system keeps the file, because a process uses it."""
    try:
        with suppress(FileNotFoundError):
            os.unlink(path)
    except IN_USE:
        return False
    return True


def home() -> str | None:
    """The user's home folder; None if no folder is known."""
    if found := os.environ.get("HOME"):
        return found
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_dir
    except (ImportError, KeyError):  # on Windows, or for a user without an account
        return os.environ.get("USERPROFILE")


def is_mine(facts: os.stat_result) -> bool:
    """Whether a file belongs to this user, and its mode lets no other user write. True on systems without owners."""
    return not hasattr(os, "geteuid") or (
        facts.st_uid == os.geteuid() and not facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def is_private(facts: os.stat_result) -> bool:
    """Whether a file belongs to this user or to root, and no other user may write to it."""
    return not hasattr(os, "geteuid") or (facts.st_uid in (0, os.geteuid()) and not _others_write(facts))


def why_shared(facts: os.stat_result, above: Sequence[tuple[Path, os.stat_result]]) -> str | None:
    """Why other users could replace the files of a folder; None if they cannot. `above` are the folders around it."""
    if not hasattr(os, "geteuid"):  # a folder in the user's own folder is the user's
        return None
    if facts.st_uid != os.geteuid():
        return "it belongs to another user"
    if _others_write(facts):
        return f"others can write to it (mode {stat.S_IMODE(facts.st_mode):o})"
    for parent, of_parent in above:
        if of_parent.st_uid not in (0, os.geteuid()):
            return f"{parent} belongs to another user"
        if _others_write(of_parent) and not of_parent.st_mode & stat.S_ISVTX:
            return f"others can write to {parent} (mode {stat.S_IMODE(of_parent.st_mode):o})"
    return None


def _others_write(facts: os.stat_result) -> bool:
    """Whether another user is allowed to write. A group with the user's name and no other members does not count."""
    if facts.st_mode & stat.S_IWOTH:
        return True
    return bool(facts.st_mode & stat.S_IWGRP) and facts.st_gid != private_group()


@cache
def private_group() -> int | None:
    """The group that only this user belongs to, or None."""
    import grp
    import pwd

    try:
        user = pwd.getpwuid(os.geteuid())
        group = grp.getgrgid(user.pw_gid)
    except KeyError:
        return None
    return group.gr_gid if group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name} else None


def lower_priority() -> None:
    """Give this thread a low priority, for the rest of its life, where threads have priorities.

    It then gets a quarter of a core that another thread of the process wants. With the lowest priority, 19, an import
    of Numba next to plans on all cores had not ended after 17 s.
    """
    if SYSTEM == "linux":  # elsewhere this would be the priority of the process
        with suppress(OSError):  # a sandbox may forbid it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 5)


def run_idle() -> None:
    """Let this process run only on cores that no other process needs, where the system can do that."""
    with suppress(OSError, AttributeError):  # a container may forbid it
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


@contextmanager
def signals_left_to_others() -> Iterator[None]:
    """Block signals in this thread and in threads that it starts in the `with` block, except for faults."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    faults = {signal.SIGSEGV, signal.SIGFPE, signal.SIGBUS, signal.SIGILL, signal.SIGTRAP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - faults)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@cache
def processor() -> dict[str, str]:
    """What Linux says about the first processor; empty on other systems."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            lines = (line.split(":", 1) for line in takewhile(str.strip, file) if ":" in line)
            return {key.strip(): value.strip() for key, value in lines}
    except OSError:
        return {}


_HWCAP, _HWCAP2 = 16, 26
ARM_FEATURES = {
    "neon": (_HWCAP, 1), "crc": (_HWCAP, 7), "lse": (_HWCAP, 8), "fullfp16": (_HWCAP, 10), "rdm": (_HWCAP, 12),
    "jsconv": (_HWCAP, 13), "complxnum": (_HWCAP, 14), "rcpc": (_HWCAP, 15), "dotprod": (_HWCAP, 20),
    "fp16fml": (_HWCAP, 23), "i8mm": (_HWCAP2, 13), "bf16": (_HWCAP2, 14)}
"""Features of Arm CPUs that code may use: the word of Linux's auxiliary vector, and the bit."""


def system_features() -> frozenset[str] | None:
    """The CPU's features, by LLVM's names without hyphens and underscores; None if the system lists none."""
    if TARGET:
        return frozenset(name.replace("-", "") for name in TARGET[1:])
    if SYSTEM == "linux" and MACHINE == "aarch64":
        ask = ctypes.CDLL(None).getauxval
        ask.argtypes, ask.restype = (ctypes.c_ulong,), ctypes.c_ulong
        return frozenset(name for name, (word, bit) in ARM_FEATURES.items() if ask(word) >> bit & 1)
    flags = processor().get("flags")
    return None if flags is None else frozenset(flag.replace("_", "") for flag in flags.split())


def grants_tile_registers() -> bool:
    """Ask Linux for AMX's tile registers in all threads: arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA)."""
    try:
        return ctypes.CDLL(None).arch_prctl(0x1023, 18) == 0
    except (OSError, AttributeError, TypeError):  # TypeError: Windows has no library of the process itself
        return False
