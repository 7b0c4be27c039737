"""Kernel modules that are compiled beside the work of this process: Numba types one while LLVM optimises another.

LLVM's half of the time is spent in a process of its own (`backend`), as llvmlite lets only one thread in at a time.
Until its code is there, a function is a gate (`linker.Gates`): its address is known, and can stand in plans. Nothing
may be called before `finish`. Where there is no second CPU, or no process can be started, modules are compiled at once.
"""
from __future__ import annotations

import atexit
import os
import platform
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from graphq.kernels import backend
from graphq.kernels.backend import Request
from graphq.kernels.linker import Gates, link

if TYPE_CHECKING:  # 10 ms to import, which a process that compiles nothing saves
    from subprocess import Popen

Keep = Callable[[bytes], None]


@dataclass(eq=False)
class _Job:
    """A module that is being compiled. A thread has `taken` it, or one that `finish` runs in will."""

    request: Request
    keep: Keep
    gates: Gates = field(init=False)
    taken: bool = False
    refused: bool = False
    """Whether the worker did not compile it."""

    def __post_init__(self) -> None:
        self.gates = Gates(self.request.names)


class _Worker:
    """The process, started when there is work for it; one thread uses it, and it ends by itself when it is idle."""

    def __init__(self) -> None:
        self.process: Popen[bytes] | None = None
        self.answers = -1
        self.works: bool | None = None  # not known before its first answer

    def start(self) -> bool:
        """Start the process, if there is none; whether there is one."""
        from subprocess import DEVNULL, PIPE, Popen

        if self.process is not None and self.process.poll() is not None:
            self.stop()
        if self.process is None and self.works is not False:
            self.answers, theirs = os.pipe()  # its output may have what a sitecustomize prints
            flag = "-I" if sys.flags.isolated else "-P"  # either way, math.py beside the script is not Python's
            command = [sys.executable, flag, str(Path(backend.__file__)), str(theirs)]
            try:
                self.process = Popen(command, stdin=PIPE, stdout=DEVNULL, stderr=DEVNULL, bufsize=0, pass_fds=[theirs])
            except OSError:
                os.close(self.answers)
            finally:
                os.close(theirs)
        return self.process is not None

    def stop(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            with self.process:  # closes the pipe, and waits
                self.forget()

    def close(self) -> None:
        """End the process for good."""
        self.works = False
        self.stop()

    def forget(self) -> None:
        """Close what leads to the process, which another one waits for."""
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            os.close(self.answers)
            self.process.returncode = self.process.returncode or 0
            self.process = None

    def compile(self, request: Request) -> bytes | None:
        """Give the object code; None where there is no process, or LLVM refuses the module or cannot be imported there.

        A process that ended between two requests is started anew, once; one that ended before its first answer is not.
        """
        for _ in range(2):
            if not self.start():
                break
            try:
                code = self.ask(request)
                self.works = True
                return code
            except OSError:
                self.stop()
                self.works = self.works or False
        return None

    def ask(self, request: Request) -> bytes | None:
        """Send a request, and wait for the answer."""
        assert self.process is not None and self.process.stdin is not None
        data = memoryview(request.pack())
        while data:
            data = data[self.process.stdin.write(data):]
        (size,) = backend.SIZE.unpack(self.part(backend.SIZE.size))
        return self.part(size) or None

    def part(self, size: int) -> bytes:
        """So many bytes of the answer; raises OSError when the process ends before."""
        data = backend.read(self.answers, size)
        if len(data) < size:
            raise OSError("the process ended")
        return data


_worker = _Worker()
_jobs: list[_Job] = []  # that are not done
_changed = threading.Condition()
_running = False  # whether there is a thread for the worker


def _forked() -> None:
    """Forget the thread and the process, which are the parent's, and what was under way."""
    global _worker, _changed, _running
    _worker.forget()
    _worker, _changed, _running = _Worker(), threading.Condition(), False
    for job in _jobs:
        job.taken = False


os.register_at_fork(after_in_child=_forked)
atexit.register(lambda: _worker.close())


def in_background() -> bool:
    """Whether modules are compiled beside the work of this process."""
    python = Path(sys.executable or "").name.startswith("python") and not getattr(sys, "frozen", False)
    return python and platform.machine() == "x86_64" and len(os.sched_getaffinity(0)) > 1


def prepare() -> None:
    """Start the worker, while this process imports Numba."""
    if in_background():
        _serve()


def begin(request: Request, keep: Keep) -> dict[str, int]:
    """Begin to compile: the addresses of the functions, which can be called after `finish`. `keep` gets the code."""
    if not in_background():
        code = backend.object_code(request)
        keep(code)
        return link(code)
    job = _Job(request, keep)
    with _changed:
        _jobs.append(job)
    _serve()
    return job.gates.addresses


def finish() -> None:
    """Compile what still has to wait for its turn, the last ones first, and wait for the rest.

    Raises what LLVM refuses, each time: such functions cannot be called.
    """
    while _jobs:
        with _changed:
            job = next((x for x in reversed(_jobs) if not x.taken), None)
            if job is None:
                if _jobs:
                    _changed.wait()
                continue
            job.taken = True
        _compile(job, backend.object_code)


def _compile(job: _Job, compiled: Callable[[Request], bytes | None]) -> None:
    """Compile a job that this thread has taken; where that fails, it can be taken again."""
    done = False
    try:
        code = compiled(job.request)
        if code is not None:
            job.gates.open(link(code))
            job.keep(code)
            done = True
    finally:
        with _changed:
            if done:
                _jobs.remove(job)
            else:
                job.taken, job.refused = False, True
            _changed.notify_all()


def _serve() -> None:
    """See to it that a thread gives jobs to the worker; where none can be started, `finish` does them all."""
    global _running
    with _changed:
        if _running:
            return
        _running = True
    try:
        threading.Thread(target=_work, args=(_worker, _changed), name="graphq-compiling", daemon=True).start()
    except RuntimeError:  # no more threads, or the main one has ended
        _running = False


def _work(worker: _Worker, changed: threading.Condition) -> None:
    """Give jobs to the worker until there are none. LLVM is never called here: a fork would keep its lock."""
    global _running
    worker.start()
    while True:
        with changed:
            job = next((x for x in _jobs if not (x.taken or x.refused)), None)
            if job is None:
                _running = False
                return
            job.taken = True
        with suppress(Exception):  # `finish` tries again, and tells
            _compile(job, worker.compile)
