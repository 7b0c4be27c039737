"""Processes that compile: the same code as here, whatever becomes of them, of threads, of forks and of signals."""
import os
import signal
import sys
import threading
import time
from collections import deque
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from echo_process import ECHO
from kernel_factories import divided_by_zero, multiples

from graphq.errors import KernelError
from graphq.kernels.jit import codegen, compiling, modules
from graphq.kernels.jit.compiling import Job, Worker
from graphq.kernels.jit.modules import Source

BROKEN = Source(divided_by_zero, ())
ENDING = """
import os
from multiprocessing.connection import Connection
Connection({descriptors}[0]).recv()
os._exit(1)
"""
forks = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # Python 3.12, of its threads


def times(module):
    """What the function gives for 10."""
    out = np.zeros(1, np.int64)
    module.times(10, out.ctypes.data)
    return int(out[0])


def load(factor):
    return modules.load("test", multiples, factor, cache=False)


@pytest.mark.parametrize("returned, own", [((11, 12, 13), 5), ((0,), 6), ((11, 0), 7), ((11, 12, 0), 8)])
def test_each_connection_is_served_by_one_process(monkeypatch, returned, own):
    """A fork does not fork again, and the ends of the others' connections are closed."""
    forks, closed, served = list(returned), [], []

    class Closed:
        """A connection that no job comes through."""

        def __init__(self, descriptor):
            served.append(descriptor)

        def poll(self, seconds):
            return False

    monkeypatch.setattr(compiling, "os", SimpleNamespace(fork=lambda: forks.pop(0), close=closed.append))
    monkeypatch.setattr("multiprocessing.connection.Connection", Closed)
    for name in ("signal.signal", "gc.freeze", "gc.set_threshold"):
        monkeypatch.setattr(name, lambda *arguments: None)
    monkeypatch.setattr(codegen, "object_code", lambda source: None)
    compiling.serve([5, 6, 7, 8])
    assert served == [own] and closed == [x for x in (5, 6, 7, 8) if x != own] and not forks


def test_what_is_wanted_comes_first_and_nothing_comes_twice(fresh, monkeypatch):
    monkeypatch.setattr(compiling, "start_workers", lambda: None)
    jobs = [Job("object_code", Source(multiples, (n,)), wanted=n in (2, 4), first=n == 4) for n in range(5)]
    done = []
    monkeypatch.setattr(Worker, "do", lambda self, job: (done.append(job), jobs[3].want()))
    Worker(None, 0).run()
    assert [jobs.index(job) for job in done] == [4, 2, 3, 0, 1]


def test_a_job_that_a_thread_waits_for_comes_next(fresh, monkeypatch):
    monkeypatch.setattr(compiling, "start_workers", lambda: None)
    monkeypatch.setattr(compiling, "IDLE_SECONDS", 0.01)
    jobs, done, waits = [Job("object_code", Source(multiples, (n,))) for n in range(4)], [], threading.Event()
    monkeypatch.setattr(Worker, "do", lambda self, job: (done.append(job), waits.wait(), job.end(None, None)))
    worker, waiting = Worker(None, 0), threading.Thread(target=jobs[3].result)
    compiling.pool.workers.add(worker)
    worker.start()
    while not done:
        time.sleep(0.001)
    waiting.start()
    while jobs[3] not in compiling.pool.first:
        time.sleep(0.001)
    waits.set()
    waiting.join()
    worker.join()
    assert [jobs.index(job) for job in done] == [0, 3, 1, 2]


def test_a_fork_begins_what_a_worker_of_its_parent_does(fresh, monkeypatch):
    """Also a job that nobody wanted, because its worker is not in the fork. Jobs that are done start no process."""
    monkeypatch.setattr(compiling, "start_workers", lambda: None)
    *jobs, done = [Job("object_code", Source(multiples, (n,)), wanted=n != 3) for n in (2, 3, 4)]
    assert all(job.take() and not job.take() for job in (*jobs, done))
    done.end(None, None)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    for job in jobs:
        job.want()
        assert job.take() and not job.take()
    done.want()
    assert not done.take()


def test_no_process_is_started_for_what_nobody_wants(fresh):
    job = Job("object_code", Source(multiples, (7,)), wanted=False)
    assert not compiling.pool.workers and not job.done
    job.want()
    assert compiling.pool.workers and "times" in job.result()[1]


@pytest.mark.parametrize("can_start", [True, False])
def test_who_can_wait_leaves_a_job_to_the_background_worker(fresh, monkeypatch, can_start):
    monkeypatch.setattr(compiling.pool, "later", deque())
    job = Job("object_code", Source(multiples, (11,)), wanted=False)
    if not can_start:
        monkeypatch.setattr(compiling, "start_process", lambda count, idle=False: None)
    job.wait()
    assert (job.done, job.process) == (can_start, 0)
    assert "times" in job.result()[1]


def waiting(source, function="object_code", keep=None):
    """A job that is in no queue."""
    with pytest.MonkeyPatch.context() as m:
        m.setattr(Job, "want", lambda self: None)
        return Job(function, source, keep)


@pytest.fixture(scope="module")
def processes():
    """A process and its fork."""
    made = compiling.Process(2)
    yield made
    for connection in made.connections:
        if not connection.closed:
            made.leave(connection)


def children(process):
    """The ids of a process's forks."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            found += [int(path.parent.name)] if path.read_text().rpartition(")")[2].split()[1] == str(process) else []
        except OSError:
            continue
    return found


def ended(process):
    """Wait for a process's end, which is not our child."""
    while os.path.exists(f"/proc/{process}"):
        time.sleep(0.001)


# -- workers --------------------------------------------------------------------------------------------------------


def test_workers_compile_the_same_as_we(here):
    source = Source(multiples, (2,))
    assert Job("object_code", source).result() == codegen.object_code(source)
    assert Job("assembly", source).result() == codegen.assembly(source)
    assert here == [source]


def test_processes_take_one_job_after_another_and_tell_defects(processes, here):
    for number in range(2):
        worker = compiling.Worker(processes, number)
        for source, error in ((BROKEN, "ZeroDivisionError: division by zero"), (Source(multiples, (3,)), None)) * 2:
            job = waiting(source)
            worker.do(job)
            assert job.done and job.error == error and (job.answer is None) == (error is not None)
        assert job.answer[1] == ("block", "times")
        with pytest.raises(KernelError, match="cannot be compiled: ZeroDivisionError"):
            job = waiting(BROKEN)
            worker.do(job)
            job.result()
    assert here == []


def test_an_answer_is_kept_before_the_job_is_done_and_an_error_never_is():
    """Who waits for the job may end this process: what is not kept by then is compiled again by the next one."""
    kept = []
    job = waiting(BROKEN, keep=lambda answer: kept.append((answer, job.done)))
    job.end("code", None)
    assert kept == [("code", False)] and job.done and job.result() == "code"
    failed = waiting(BROKEN, keep=kept.append)
    failed.end(None, "what went wrong")
    assert failed.done and len(kept) == 1


def test_an_answer_that_cannot_be_kept_is_there_all_the_same(here, caplog):
    def keep(answer):
        raise OSError("no space left")

    job = waiting(Source(multiples, (9,)), keep=keep)
    job.run_here()
    assert job.done and job.result()[1] == ("block", "times") and here == [job.source]
    assert "a compiled kernel is not kept: OSError: no space left" in caplog.text


def test_a_process_that_is_killed_is_replaced(processes, here, monkeypatch):
    """First the fork, then the process that it is a fork of."""
    monkeypatch.setattr(compiling.pool, "processes_work", True)
    workers = [compiling.Worker(processes, number) for number in range(2)]
    for worker in workers:
        worker.do(waiting(Source(multiples, (4,))))
    (fork,) = children(processes.popen.pid)
    os.kill(fork, signal.SIGKILL)
    ended(fork)
    job = waiting(Source(multiples, (5,)))
    workers[0].do(job)
    assert job.answer is not None and workers[0].process is processes
    job = waiting(Source(multiples, (6,)))
    workers[1].do(job)
    assert job.answer is not None and workers[1].process not in (None, processes)
    replaced = workers[1].process.popen
    replaced.kill()
    replaced.wait()
    os.kill(processes.popen.pid, signal.SIGKILL)
    job = waiting(Source(multiples, (7,)))
    workers[0].do(job)
    assert job.answer is not None and workers[0].process not in (None, processes)
    assert processes.popen.returncode == -signal.SIGKILL and here == []
    for worker in workers:
        worker.leave()


def test_a_process_that_ends_at_each_job_is_an_error_and_no_end_of_the_others(here, monkeypatch):
    """As one that is killed because it needs too much memory: this process would be, too."""
    monkeypatch.setattr(compiling.pool, "processes_work", True)
    worker = compiling.Worker(None, 0)
    job = waiting(Source(multiples, (8,)))
    with monkeypatch.context() as m:
        m.setattr(compiling, "CHILD", ENDING)
        worker.do(job)
    with pytest.raises(KernelError, match="the process that compiles it ended, twice"):
        job.result()
    assert here == [] and compiling.pool.processes_work and worker.process is None


# -- without processes or threads -----------------------------------------------------------------------------------

@pytest.mark.parametrize("executable", ["/no such program", "/bin/false"])
def test_where_no_process_works_modules_are_compiled_here(fresh, here, monkeypatch, executable):
    monkeypatch.setattr(sys, "executable", executable)
    assert (times(load(2)), times(load(3))) == (20, 30)
    assert len(here) == 2 and compiling.pool.processes_work is False


def test_a_first_process_that_ends_at_its_first_job_is_the_last(fresh, here, monkeypatch):
    monkeypatch.setattr(compiling, "CHILD", ENDING)
    assert (times(load(2)), times(load(3))) == (20, 30)
    assert len(here) == 2 and compiling.pool.processes_work is False


def test_an_application_with_python_inside_is_not_started_again(fresh, here, monkeypatch):
    def refuse(count):
        raise AssertionError

    monkeypatch.setattr(compiling.pool, "processes_work", False)
    monkeypatch.setattr(compiling, "Process", refuse)
    assert times(load(2)) == 20 and len(here) == 1
    with pytest.raises(KernelError, match="ZeroDivisionError"):
        modules.load("test", divided_by_zero, cache=False).address("f")


def test_llvm_can_parse_assembly_before_numba_emits_code(monkeypatch):
    """In a process that has compiled nothing yet, LLVM would otherwise end the process at Arm's `isb`."""
    def machine(without):
        raise InterruptedError("the machine comes first")

    monkeypatch.setattr(codegen, "_machine", machine)
    monkeypatch.setattr(codegen, "jitted", None)
    with pytest.raises(InterruptedError, match="first"):
        codegen.object_code(Source(multiples, (2,)))


def test_where_no_thread_starts_modules_are_compiled_here(fresh, here, monkeypatch):
    def start(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    assert (times(load(2)), times(load(3))) == (20, 30)
    assert len(here) == 2 and not compiling.pool.workers


def test_an_interrupted_start_leaves_nothing_that_jobs_wait_for(fresh, here, monkeypatch):
    def start(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as m:
        m.setattr(threading.Thread, "start", start)
        with pytest.raises(KeyboardInterrupt):
            compiling.start_workers()
    (idle,) = compiling.pool.workers
    assert times(load(2)) == 20
    for connection in idle.process.connections:
        idle.process.leave(connection)
    assert not here


def test_nothing_is_imported_from_the_current_folder(fresh, here, monkeypatch, tmp_path):
    for name in ("warnings", "types", "importlib", "numba", "signal", "gc"):
        (tmp_path / f"{name}.py").write_text("import os\nos._exit(3)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [x for x in sys.path if x not in ("", ".")])
    assert times(load(2)) == 20
    assert not here and compiling.pool.processes_work


def test_workers_end_when_idle_and_start_again(fresh, here, monkeypatch):
    """Their processes end with them."""
    monkeypatch.setattr(compiling, "IDLE_SECONDS", 0.01)
    monkeypatch.setattr(compiling, "CHILD", ECHO)
    for text in ("first", "second"):
        assert Job("object_code", text).result().startswith(text)
        processes = {worker.process for worker in compiling.pool.workers} - {None}
        while workers := list(compiling.pool.workers):
            workers[0].join()
        assert all(process.popen.poll() is not None for process in processes)


def test_a_process_ends_after_its_most_jobs_and_another_goes_on(here, monkeypatch):
    monkeypatch.setattr(compiling, "CHILD", ECHO)
    monkeypatch.setattr(compiling.pool, "processes_work", True)
    monkeypatch.setattr(compiling, "MOST_JOBS", 2)
    first = compiling.Process(2)
    worker, other = (compiling.Worker(first, number) for number in range(2))
    for text in ("one", "two"):
        assert worker.process is first
        worker.do(job := waiting(text))
        assert job.answer.startswith(text)
    assert worker.process is None and first.popen.poll() is None  # the other worker has its fork
    for text in ("three", "four", "five"):
        worker.do(job := waiting(text))
        assert job.answer.startswith(text)
    assert worker.process not in (first, None)
    for text in ("six", "seven"):
        other.do(job := waiting(text))
        assert job.answer.startswith(text)
    assert first.popen.poll() is not None and here == []
    worker.leave()


# -- interrupts, signals, forks -------------------------------------------------------------------------------------


@pytest.fixture
def busy(fresh, monkeypatch):
    """Workers that are at other work; the function given starts more."""
    start = compiling.start_workers
    idle = compiling.Worker(None, 0)
    monkeypatch.setattr(idle, "is_alive", lambda: True)
    monkeypatch.setattr(compiling, "start_workers", lambda: compiling.pool.workers.add(idle))

    def more():
        monkeypatch.setattr(compiling, "start_workers", start)
        compiling.pool.workers.discard(idle)
        start()

    return more


def test_an_interrupt_leaves_a_module_usable(busy, monkeypatch):
    def interrupted(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(compiling.pool, "processes_work", False)
    module = load(2)
    for _ in range(2):
        with monkeypatch.context() as m, pytest.raises(KeyboardInterrupt):
            m.setattr(compiling.time, "sleep", interrupted)
            times(module)
    busy()
    assert times(module) == 20 and load(2) is module


def test_a_signals_handler_may_need_the_module_that_its_thread_waits_for(busy, monkeypatch):
    found = []

    def handle(number, frame):
        busy()
        found.append((times(module), times(load(3))))

    monkeypatch.setattr(compiling.pool, "processes_work", False)
    module = load(2)
    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        found.append(times(module))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert found == [(20, 30), 20]


@forks
@pytest.mark.parametrize("started", [False, True])
def test_a_fork_does_what_its_parent_had_begun(busy, started, monkeypatch):
    """By a process of its own, whether or not its parent has some."""
    monkeypatch.setattr(compiling, "CHILD", ECHO)
    if started:
        monkeypatch.setattr(compiling.pool, "workers", {compiling.Worker(compiling.Process(1), 0)})
    processes = [worker.process for worker in compiling.pool.workers if worker.process]
    job, parent = Job("object_code", "text"), os.getpid()
    child = os.fork()
    if child == 0:
        try:
            assert not compiling.pool.workers and compiling.pool.queue.empty()
            assert all(process.connections[0].closed for process in processes)
            busy()
            assert job.result() == f"text by {os.getpid()}" and job.process == os.getpid() != parent
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    for process in processes:
        worker = compiling.Worker(process, 0)
        worker.do(job)
        worker.leave()
        assert job.result() == f"text by {parent}" and process.popen.returncode is not None


@forks
def test_a_fork_waits_for_llvm(fresh, monkeypatch):
    """A thread that compiles holds LLVM's and Numba's locks, which a child would wait for for ever."""
    monkeypatch.setattr(compiling.pool, "processes_work", False)
    stop, done = threading.Event(), []

    def compile_others():
        while not stop.is_set():
            done.append(load(len(done) + 100).address("times"))

    thread = threading.Thread(target=compile_others)
    thread.start()
    for turn in range(4):
        while len(done) < turn:
            time.sleep(0.001)
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if times(load(2)) == 20 else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
    stop.set()
    thread.join()
