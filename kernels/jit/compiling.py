"""Compile kernels in other processes, while this process plans. This process never imports Numba for a kernel.

A `Job` compiles one kernel module. A job is *wanted* once somebody needs the module's code; it is then put into a
queue. Workers are threads of this process. Each worker has a process of its own that does one job after another
(`codegen`). On Linux the first of these processes imports Numba; the others are its forks. Workers that have had
nothing to do for a while end, and so do their processes. If no process can be started, the thread that waits for a job
does the job itself.

A plan for open sizes also has kernels that the first call does not need. The *background worker* (`IdleWorker`)
compiles them once the other workers have nothing to do, on cores that nobody else needs. If such a job becomes wanted,
another worker does it as well.
"""
import logging
import os
import pickle
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, TYPE_CHECKING, Any

from graphq.base.locks import Lock
from graphq.base.platform import FORKS, HOST, INHERITS, MACHINE, SPAWN_FLAGS, TARGET, at_fork, process_cores, run_idle
from graphq.errors import KernelError
from graphq.kernels.jit.codegen import llvm_lock
from graphq.kernels.jit.cpu import target_features

if TYPE_CHECKING:  # these imports take time, and only compiling needs them
    from multiprocessing.connection import Connection

    from graphq.kernels.jit.modules import Source

log = logging.getLogger("graphq")

MOST_WORKERS = 4
"""The most compiling processes. One model's kernels seldom keep more processes busy."""
MOST_JOBS = 1000
"""The most jobs of a process; then a new process replaces it, because each job leaks 0.3 to 1 MB in Numba and LLVM."""
IDLE_SECONDS = 30.0
POLL_SECONDS = 0.001
PATIENT_SECONDS = 0.02

CHILD = """
import sys
from importlib.util import find_spec, module_from_spec
sys.path[:] = {path!r}
sys.modules["graphq"] = module_from_spec(find_spec("graphq"))
sys.modules["graphq"].__path__[:] = {package!r}
from graphq.kernels.jit import compiling
compiling.serve({descriptors}, {idle})
"""
"""The code that starts a compiling process. It makes `graphq` a package without running its `__init__`."""


class Job:
    """A call of a function of `codegen` in another process, with the source of a kernel module as the argument.

    `want` starts the job. Jobs with `first`, and jobs that a thread waits for, overtake other jobs. Once `done` is set,
    either `error` or `answer` is set, and `keep` has been called with the answer. `here` is set if the waiting thread
    must do the job itself. `process` is the id of the process that put the job into the queue.
    """

    def __init__(self, function: str, source: "Source", keep: Callable[[Any], None] | None = None, *,
                 wanted: bool = True, first: bool = False) -> None:
        self.function, self.source, self.keep, self.first = function, source, keep, first
        self.message = pickle.dumps((function, source))
        self.answer: Any = None
        self.error: str | None = None
        self.done = False
        self.here = False
        self.process = 0
        self._ticket = [self]  # `take` empties this list, so only one caller gets the job
        if wanted:
            self.want()
        else:
            pool.later.append(self)

    def want(self) -> None:
        """Put the job into the queue, unless that has happened."""
        if not self.done and self.process != os.getpid():
            if self.process:  # this process is a fork, which has no worker threads
                self._ticket = [self]
            self.process = os.getpid()
            if self.first:
                pool.first.append(self)
            pool.queue.put(self)
            start_workers()
            if not pool.workers:
                self.here = True

    def take(self) -> bool:
        """Take the job out of the queue. Returns True for the first caller and False for all later callers."""
        # In a forked child, `want` compares this id with its own, and puts the job into the child's queue.
        self.process = os.getpid()
        with suppress(IndexError):
            return bool(self._ticket.pop())
        return False

    def wait(self) -> None:
        """Wait until the job is done or wanted. Give up if no background worker can do it, or if Python is ending."""
        while not self.done and not self.process and threading.main_thread().is_alive():
            _start_idle_worker()
            if pool.idle is None or not pool.idle.is_alive():  # no background worker is left
                break
            time.sleep(PATIENT_SECONDS)

    def result(self) -> Any:
        """Wait for the answer. Raises KernelError with the reason if the job failed.

        The thread polls, because with a lock a signal handler could wait forever for the thread that it interrupted.
        """
        if not self.done and pool.workers:
            pool.first.append(self)
        while not self.done:
            self.want()
            if self.here or not any(worker.is_alive() for worker in list(pool.workers)):
                self.run_here()
            else:
                time.sleep(POLL_SECONDS)
        if self.error is not None:
            raise KernelError(f"a kernel cannot be compiled: {self.error}")
        return self.answer

    def run_here(self) -> None:
        """Do the job in this thread, unless it is done."""
        from graphq.kernels.jit import codegen

        with llvm_lock.hold:
            if not self.done:
                try:
                    answer, error = getattr(codegen, self.function)(self.source), None
                except Exception as problem:
                    answer, error = None, f"{type(problem).__name__}: {problem}"
                self.end(answer, error)

    def end(self, answer: Any, error: str | None) -> None:
        """Store the answer or the error. Only the first call counts.

        `keep` writes the answer to disk before waiting threads see it, because the process may end soon afterwards.
        """
        if self.done:
            return
        self.answer, self.error = answer, error
        try:
            if error is None and self.keep is not None:
                self.keep(answer)
        except Exception as problem:  # only keeping it failed: the answer is valid
            log.warning("a compiled kernel is not kept: %s: %s", type(problem).__name__, problem)
        finally:
            self.done = True


class WorkerPool:
    """The jobs that wait, and the workers that do them.

    Jobs in `first` overtake other jobs; they are in `queue` as well. Jobs in `later` were not wanted when they were
    created: the background worker `idle` does them. `processes_work` is True once a process has answered, and False if
    no process can be started, or if the first died without an answer.
    """

    def __init__(self, processes_work: bool | None = None) -> None:
        self.queue: SimpleQueue[Job] = SimpleQueue()
        self.first: deque[Job] = deque()
        self.later: deque[Job] = deque()
        self.workers: set[Worker] = set()
        self.idle: IdleWorker | None = None
        self.processes_work = processes_work


pool = WorkerPool()
_starting = Lock(fork_waits=True)
"""Held while workers or processes start. No fork may happen then, because its child closes the workers' connections."""


class Streams:
    """A connection through two pipes, for systems whose processes cannot inherit a `Connection`."""

    closed = False

    def __init__(self, reader: IO[bytes], writer: IO[bytes]) -> None:
        self.reader, self.writer = reader, writer

    def send(self, x: object) -> None:
        """Send an object. Raises OSError if the other process has ended."""
        pickle.dump(x, self.writer)
        self.writer.flush()

    def recv(self) -> Any:
        """Wait for an object. Raises EOFError if the other process has ended."""
        return pickle.load(self.reader)

    def poll(self, seconds: float) -> bool:
        """Answer that there may be an object, because a pipe cannot be asked on every system."""
        return True

    def close(self) -> None:
        """Close both pipes, so the other process ends."""
        self.closed = True
        for pipe in self.writer, self.reader:
            with suppress(OSError):  # the other process has ended
                pipe.close()

    send_bytes, recv_bytes = send, recv


class Process:
    """A compiling process and its forks, with one connection to each. An `idle` process yields to all other work."""

    def __init__(self, count: int, idle: bool = False) -> None:
        from multiprocessing import Pipe
        from subprocess import DEVNULL, PIPE, Popen

        # -P prevents imports from the current directory. A process group of its own protects the process from Ctrl-C.
        # An idle process stays in this session, because Linux applies priorities only within a session.
        command = [sys.executable, "-P", "-c"]
        pipes = [Pipe() for _ in range(count)] if INHERITS else []
        descriptors = [theirs.fileno() for _, theirs in pipes]
        code = CHILD.format(path=[x or os.getcwd() for x in sys.path], descriptors=descriptors,
                            package=list(sys.modules["graphq"].__path__), idle=idle)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("NUMBA_")}
        environment |= {"NUMBA_OPT": "0", "OPENBLAS_NUM_THREADS": "1"}
        if TARGET and HOST == MACHINE:  # Numba also makes code, which nobody runs, and must know the instructions
            environment |= {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": target_features()}
        try:
            self.popen: Popen[bytes] = Popen(
                [*command, code], pass_fds=descriptors, stdin=DEVNULL if pipes else PIPE,
                stdout=DEVNULL if pipes else PIPE, stderr=DEVNULL, env=environment, creationflags=SPAWN_FLAGS,
                start_new_session=not idle, process_group=0 if idle else None)
        finally:
            for _, theirs in pipes:
                theirs.close()
        self.connections: list[Connection | Streams] = [ours for ours, _ in pipes]
        if self.popen.stdin and self.popen.stdout:
            self.connections.append(Streams(self.popen.stdout, self.popen.stdin))

    def leave(self, connection: "Connection | Streams") -> None:
        """Close a connection, so its process ends. After the last connection, wait for the first process to end."""
        connection.close()
        if all(x.closed for x in self.connections):
            self.popen.terminate()  # the process may still be importing Numba
            self.popen.wait()

    def forget(self) -> None:
        """Close the connections in a forked child. Only the parent waits for the compiling processes."""
        for x in self.connections:
            x.close()
        self.popen.returncode = 0


class Worker(threading.Thread):
    """A thread whose process does one job after another."""

    idle = False

    def __init__(self, process: Process | None, number: int) -> None:
        super().__init__(name=f"graphq-compiling-{number}", daemon=True)
        self.process, self.connection = process, process.connections[number] if process else None
        self.jobs = 0  # jobs done by the current process

    def run(self) -> None:
        """Do jobs until none comes for a while."""
        while True:
            try:
                job = _next_job()
            except Empty:
                pool.workers.discard(self)  # from here on, new jobs start new workers
                if pool.queue.empty():
                    return self.leave()
                pool.workers.add(self)
            else:
                if job.take():
                    self.do(job)

    def do(self, job: Job) -> None:
        """Let the process do a job.

        If the process ends without an answer, a new process tries once more: lack of memory may have killed the first.
        """
        for _ in range(2):
            with _starting.hold:
                self.process = self.process or start_process(1, self.idle)
            if self.process is None:
                break
            self.connection = self.connection or self.process.connections[0]
            try:
                self.connection.send_bytes(job.message)
                answer, error = self.connection.recv()
            except Exception:  # the connection broke, or memory is full
                self.leave()
                pool.processes_work = pool.processes_work or False
            else:
                pool.processes_work = True
                job.end(answer, error)
                self.jobs += 1
                if self.jobs >= MOST_JOBS:
                    self.leave()
                return
        if self.idle:
            return
        if pool.processes_work:
            job.end(None, "the process that compiles it ended, twice")
        else:
            job.here = True

    def leave(self) -> None:
        """Let the process end; the next job starts another."""
        if self.process is not None and self.connection is not None:
            self.process.leave(self.connection)
        self.process = self.connection = None
        self.jobs = 0


class IdleWorker(Worker):
    """The background worker: it does jobs that nobody has wanted yet, and ends after the last job."""

    idle = True

    def run(self) -> None:
        """Do the jobs that nobody has wanted yet."""
        with suppress(IndexError):
            while True:
                job = pool.later.popleft()
                if not job.process:
                    self.do(job)
        self.leave()


def _next_job() -> Job:
    """Take the next wanted job. Raises Empty if none comes for a while."""
    with suppress(IndexError):
        return pool.first.popleft()
    with suppress(Empty):
        return pool.queue.get_nowait()
    _start_idle_worker()
    return pool.queue.get(timeout=IDLE_SECONDS)


def _start_idle_worker() -> None:
    with _starting.hold:
        if pool.later and (pool.idle is None or not pool.idle.is_alive()):
            pool.idle = IdleWorker(None, MOST_WORKERS)
            with suppress(RuntimeError):  # no more threads can be started, or Python is ending
                pool.idle.start()


def start_process(count: int, idle: bool = False) -> Process | None:
    """Start a process with `count - 1` forks. Returns None if no process can be started."""
    if pool.processes_work is not False:
        with suppress(OSError):
            return Process(count, idle)
        pool.processes_work = False
    return None


def start_workers() -> None:
    """Start the workers unless they are running. They can compile after about a second."""
    with _starting.hold:
        if any(worker.is_alive() for worker in list(pool.workers)):
            return
        count = min(MOST_WORKERS, len(process_cores()))
        process = start_process(count) if FORKS else None
        for number in range(count if process or not FORKS else 1):
            worker = Worker(process, number)
            pool.workers.add(worker)
            try:
                worker.start()
            except RuntimeError:  # no more threads can be started, or Python is ending
                pool.workers.discard(worker)
                worker.leave()


def _in_child() -> None:
    global pool
    for worker in (*pool.workers, *([pool.idle] if pool.idle else [])):
        if worker.process is not None:
            worker.process.forget()
    pool = WorkerPool(pool.processes_work)


at_fork(after_in_child=_in_child)
if getattr(sys, "frozen", False) or not Path(sys.executable or "").name.startswith("python"):
    pool.processes_work = False  # sys.executable is another program, for example one that embeds Python


def serve(descriptors: list[int], idle: bool = False) -> None:
    """Do the jobs that arrive through the connections, in one process per connection.

    Without descriptors, jobs arrive through the standard input. A process ends when its connection is closed, or has
    been idle for long. An `idle` process runs only on cores that no other process needs.
    """
    import gc

    from graphq.kernels.jit import codegen, modules

    if idle:
        run_idle()
    codegen.object_code(modules.Source(codegen.first_module, ()))
    gc.freeze()
    gc.set_threshold(100_000)  # collect garbage less often: it took 1/12 of the time
    connection = _forked(descriptors) if descriptors else _standard()
    while connection.poll(6 * IDLE_SECONDS):
        try:
            message = connection.recv_bytes()
        except EOFError:
            return
        try:
            function, source = pickle.loads(message)  # this imports the factory's file
            answer, error = getattr(codegen, function)(source), None
        except Exception as problem:
            answer, error = None, f"{type(problem).__name__}: {problem}"
        connection.send((answer, error))


def _forked(descriptors: list[int]) -> "Connection":
    """Fork this process, once for each descriptor after the first. Returns the connection of the process."""
    import signal
    from multiprocessing.connection import Connection

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forked processes that end leave no zombies
    own = descriptors[0]
    for other in descriptors[1:]:
        if os.fork() == 0:
            own = other
            break
    for other in descriptors:
        if other != own:
            os.close(other)
    return Connection(own)


def _standard() -> Streams:
    """The connection through standard input and output. What other code prints goes to the standard error."""
    writer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return Streams(sys.stdin.buffer, writer)
