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
from pathlib import Path
from typing import TYPE_CHECKING

from graphq.kernels import backend
from graphq.kernels.backend import Request
from graphq.kernels.linker import Gates, link

if TYPE_CHECKING:  # 20 ms to import, which a process that compiles nothing saves
    from concurrent.futures import ThreadPoolExecutor
    from subprocess import Popen

Keep = Callable[[bytes], None]


class _Job:
    """A module that is being compiled, by the thread that claims it first."""

    def __init__(self, request: Request, keep: Keep) -> None:
        self.request, self.keep, self.gates = request, keep, Gates(request.names)
        self.reset()

    def reset(self) -> None:
        """Let it be claimed."""
        self.claimed, self.done = threading.Lock(), threading.Event()
        self.error: Exception | None = None

    def run(self, compiled: Callable[[Request], bytes]) -> None:
        """Compile it and open its gates, unless another thread does."""
        if not self.claimed.acquire(blocking=False):
            return
        try:
            code = compiled(self.request)
            self.gates.open(link(code))
            self.keep(code)
        except Exception as error:  # for those who wait
            self.error = error
        self.done.set()

    def wait(self) -> None:
        """Wait until it is compiled; raises what went wrong, each time."""
        self.done.wait()
        if self.error is not None:
            raise self.error


class _Worker:
    """The process, started when there is work for it; one thread uses it."""

    def __init__(self) -> None:
        self.process: Popen[bytes] | None = None
        self.answers = -1

    def start(self) -> None:
        """Start the process, if there is none; it ends by itself when it is idle."""
        from subprocess import DEVNULL, PIPE, Popen

        if self.process is not None and self.process.poll() is not None:
            self.stop()
        if self.process is None:
            self.answers, theirs = os.pipe()  # its output may have what a sitecustomize prints
            command = [sys.executable, "-P", str(Path(backend.__file__)), str(theirs)]  # math.py there is not Python's
            try:
                self.process = Popen(command, stdin=PIPE, stdout=DEVNULL, stderr=DEVNULL, bufsize=0, pass_fds=[theirs])
            except OSError:
                os.close(self.answers)
                raise
            finally:
                os.close(theirs)

    def stop(self) -> None:
        """End the process, which its input's end tells to."""
        if self.process is not None:
            with self.process:  # closes the pipe, and waits
                os.close(self.answers)
                self.process = None

    def compile(self, request: Request) -> bytes:
        """Give the object code; if the process cannot, this one does."""
        for _ in range(2):  # it may end between two requests
            try:
                self.start()
                if (code := self.ask(request)) is not None:
                    return code
                break
            except OSError:
                self.stop()
        return backend.object_code(request)

    def ask(self, request: Request) -> bytes | None:
        """Send a request, and wait for the answer; None where LLVM refuses it or cannot be imported there."""
        assert self.process is not None and self.process.stdin is not None
        data = memoryview(request.pack())
        while data:
            data = data[self.process.stdin.write(data):]
        size = backend.read(self.answers, backend.SIZE.size)
        if len(size) < backend.SIZE.size:
            raise OSError("the process ended")
        code = backend.read(self.answers, backend.SIZE.unpack(size)[0])
        return code or None


_worker = _Worker()
_threads: ThreadPoolExecutor | None = None
_jobs: list[_Job] = []
_lock = threading.Lock()


def _executor() -> ThreadPoolExecutor:
    global _threads
    from concurrent.futures import ThreadPoolExecutor

    if _threads is None:
        _threads = ThreadPoolExecutor(1, "graphq-compiling")
    return _threads


def _forked() -> None:
    """Forget threads and the process, which are the parent's, and what they were at."""
    global _worker, _threads, _lock
    _worker, _threads, _lock = _Worker(), None, threading.Lock()
    for job in _jobs:
        if not job.done.is_set():
            job.reset()


os.register_at_fork(after_in_child=_forked)
atexit.register(lambda: _worker.stop())


def in_background() -> bool:
    """Whether modules are compiled beside the work of this process."""
    python = Path(sys.executable or "").name.startswith("python") and not getattr(sys, "frozen", False)
    return python and platform.machine() == "x86_64" and len(os.sched_getaffinity(0)) > 1


def prepare() -> None:
    """Start the worker, while this process imports Numba."""
    if in_background():
        _executor().submit(_worker.start)


def begin(request: Request, keep: Keep) -> dict[str, int]:
    """Begin to compile: the addresses of the functions, which can be called after `finish`. `keep` gets the code."""
    if not in_background():
        code = backend.object_code(request)
        keep(code)
        return link(code)
    job = _Job(request, keep)
    with _lock:
        _jobs.append(job)
    _executor().submit(job.run, _worker.compile)
    return job.gates.addresses


def finish() -> None:
    """Compile what still has to wait for its turn, the last ones first, and wait for the rest.

    Raises what LLVM refuses, each time: such functions cannot be called.
    """
    with _lock:
        jobs = list(_jobs)
    for job in reversed(jobs):
        job.run(backend.object_code)
    for job in jobs:
        job.wait()
    if jobs:
        with _lock:
            _jobs[:] = [job for job in _jobs if job not in jobs]
