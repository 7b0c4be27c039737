"""The team: steps in order, every block once, whoever runs it; and helpers beside forks, signals, and Numba's users."""
import ctypes
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress

import numpy as np
import pytest
from kernel_factories import adding, dozing

from graphq.kernels.jit import modules
from graphq.kernels.threads import steps, team


class Chain:
    """Steps that each read what all blocks of the one before have written; `wanted` is what the last ones give."""

    def __init__(self, seed, steps, threads):
        rng = np.random.default_rng(seed)
        counts = rng.integers(1, 40, steps + 1)
        self.arrays = [np.zeros(n, np.int64) for n in counts]
        function = modules.load("adding", adding).block
        self.args = [np.array([a.ctypes.data, b.ctypes.data, a.size], np.int64)
                     for a, b in zip(self.arrays, self.arrays[1:], strict=False)]
        rows = [(function, args.ctypes.data, b.size,
                 min(b.size, threads) if rng.integers(0, 3) and b.size > 1 else 0)
                for args, b in zip(self.args, self.arrays[1:], strict=True)]
        self.table = team.StepTable(rows)
        self.arrays[0][:] = rng.integers(0, 100, counts[0])

    def right(self, run=None):
        """Whether a run, `table.run` if none is given, leaves what it should."""
        for x in self.arrays[1:]:
            x[:] = 0
        (run or self.table.run)()
        wanted = self.arrays[0]
        for x in self.arrays[1:]:
            wanted = np.resize(wanted, x.size) + 1
            if not np.array_equal(x, wanted):
                return False
        return True


def begun():
    """The team of this process, once it runs or has none: a caller finds Numba's layer when Numba is imported."""
    found, chain = team.the_team(), Chain(0, 30, 2)
    while found.thread.ident is not None and found.layer is None and (found.region or found.thread.is_alive()):
        chain.table.run()  # twice, as short runs have use for helpers only where they follow one another closely
        chain.table.run()
    while found.layer == "omp" and found.run_shared is None:
        time.sleep(0.001)
    return found


def finished(text, *arguments, **environment):
    """What a Python process prints that ends well, without a word of warning."""
    done = subprocess.run([sys.executable, "-c", text, *arguments], capture_output=True, text=True, timeout=300,
                          env={**os.environ, **environment})
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout.split("\n")[:-1]


@pytest.mark.parametrize("steps, threads", [(0, 2), (1, 1), (1, 2), (7, 2), (60, 2), (60, 5), (200, 40)])
def test_every_block_runs_once_and_steps_in_order(steps, threads):
    """Also before helpers have begun, and on the caller alone."""
    chain = Chain(steps, steps, threads)
    assert chain.right()
    begun()
    assert all(chain.right() for _ in range(50))
    assert chain.right(chain.table.run_alone)


# -- helpers of our own, beside a team that was not started ----------------------------------------------------------


class Dozers:
    """Helpers of a team that was not started, which end when woken; `cores` has those that they may use then."""

    def __init__(self):
        self.team, self.cores, code = team.Team(), [], modules.load("doze", dozing)
        self.team.code = modules.load("team", steps.team_module)
        self.team._prepare()
        self.threads = [threading.Thread(target=self._doze, args=(code.doze, k)) for k in range(self.team.most)]
        for x in self.threads:
            x.start()
        while self.word(steps.SLEEPERS) < self.team.most:
            time.sleep(0.001)

    def _doze(self, doze, k):
        doze(self.team.address, self.team.address + steps.FIRST_RECORD + k * steps.RECORD)
        self.cores.append(os.sched_getaffinity(0))

    def word(self, offset):
        return int(self.team._word(offset)[0])

    def run(self, table, helpers):
        team._native(self.team.code.run_shared, 4)(*table.span, self.team.address, helpers)

    def end(self):
        team._native(self.team.code.dismiss, 1)(self.team.address)
        for x in self.threads:
            x.join()


@pytest.fixture
def dozers(monkeypatch):
    monkeypatch.setattr(team, "team_threads", lambda: 7)
    made = Dozers()
    yield made
    made.end()


def test_no_more_helpers_are_woken_than_wanted(monkeypatch):
    """Of six that are asleep by their words alone: a semaphore counts how often its helper was woken."""
    monkeypatch.setattr(team, "team_threads", lambda: 7)
    found, chain, library = team.Team(), Chain(1, 60, 3), ctypes.CDLL(None)
    found._prepare()
    found._word(steps.CORES)[0] = 0  # no thread's cores are set
    found._word(steps.HELPERS)[0] = found._word(steps.SLEEPERS)[0] = 6
    records = [steps.FIRST_RECORD + k * steps.RECORD for k in range(6)]
    for record in records:
        found._word(record + steps.ASLEEP)[0] = 1
    run_shared = team._native(modules.load("team", steps.team_module).run_shared, 4)

    def woken(record):
        count = ctypes.c_int()
        library.sem_getvalue(ctypes.c_void_p(found.address + record + steps.SEMAPHORE), ctypes.byref(count))
        assert count.value == 1 - found._word(record + steps.ASLEEP)[0]
        return count.value

    for wanted, awake in ((0, 0), (2, 2), (1, 2), (0, 2), (5, 5), (9, 6)):
        assert all(chain.right(lambda n=wanted: run_shared(*chain.table.span, found.address, n)) for _ in range(20))
        assert sum(map(woken, records)) == awake
        assert found._word(steps.SLEEPERS)[0] == 6 - awake and found._word(steps.WANTED)[0] == 0


def test_helpers_are_kept_off_the_core_of_the_caller(dozers):
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        pytest.skip("one core")
    chain = Chain(2, 60, 3)

    def call():
        os.sched_setaffinity(0, {min(cores)})
        dozers.run(chain.table, 2)

    caller = threading.Thread(target=call)
    caller.start()
    caller.join()
    while len(dozers.cores) < 2:
        time.sleep(0.001)
    assert dozers.cores == [cores - {min(cores)}] * 2


@pytest.mark.parametrize("cores", [{0}, {0, 63, 64}, {1, 1023}, {0, 1024}, {5000}])
def test_masks_of_many_cores_fit_or_are_left_out(monkeypatch, cores):
    monkeypatch.setattr(team, "process_cores", lambda: cores)
    monkeypatch.setenv("NUMBA_NUM_THREADS", "3")
    made = team.Team()
    made._prepare()
    size = int(made._word(steps.CORES)[0])
    assert size % 8 == 0 and size <= steps.LINE and (size > 0) == (max(cores) < 8 * steps.LINE)
    mask = int.from_bytes(made._word(steps.MASK)[:size // 8].tobytes(), sys.byteorder)
    assert mask == (sum(1 << core for core in cores) if size else 0)
    assert not made._word(steps.SLOTS)[:steps.SLOT * steps.MOST_TABLES // 8].any()


# -- a region of our own, beside a team that was not started ---------------------------------------------------------


class Region:
    """What stands for Numba's region: its threads run one after another. `interrupt` says where one of them ends."""

    def __init__(self, name):
        self.name, self.interrupt, self.entered = name, None, 0

    def layer(self, nothing):
        self.interrupted("the layer")
        return self.name

    def enter(self, function, argument, threads):
        self.interrupted("before the region")
        for k in range(threads):
            ctypes.CFUNCTYPE(None, ctypes.c_ssize_t, ctypes.c_ssize_t)(function)(argument, k)
        self.entered += 1
        self.interrupted("after the region")

    def interrupted(self, where):
        if self.interrupt == where:
            raise KeyboardInterrupt


def of_region(region):
    """A team that runs its tables in a region."""
    made, code = team.Team(), modules.load("team", steps.team_module)
    open_table, made.close_table = team._native(code.open_table, 4), team._native(code.close_table, 1)

    def opening(*arguments):
        open_table(*arguments)
        region.interrupted("the table is open")

    made.code, made.region, made.open_table = code, region, opening
    return made


@pytest.mark.parametrize("layer", ["workqueue", "tbb", "omp"])
@pytest.mark.parametrize("where", ["the table is open", "the layer", "before the region", "after the region"])
def test_interrupts_leave_no_slot_taken_and_no_piece_on_offer(layer, where):
    """More interrupts than there are slots. Who takes a piece later would run it on memory that is gone."""
    region = Region(layer)
    found, chain = of_region(region), Chain(5, 30, 4)
    region.interrupt = where
    for _ in range(steps.MOST_TABLES + 1):
        with suppress(KeyboardInterrupt):
            found.run(chain.table, 3)
    for k in range(steps.MOST_TABLES):
        slot = found._word(steps.SLOTS + k * steps.SLOT)
        ticket = int(slot[steps.TICKET // 8])
        assert slot[steps.BUSY // 8] == 0 and (ticket & 4095) + (ticket >> 12 & 4095) >= ticket >> 24
    region.interrupt, before = None, region.entered
    assert chain.right(lambda: found.run(chain.table, 3))
    assert found.layer == layer and region.entered == before + (layer != "omp")


def test_runs_in_regions_come_one_at_a_time():
    """A second caller runs alone while the first is in its region."""
    region = Region("workqueue")
    found, inner, outer = of_region(region), Chain(6, 30, 4), Chain(7, 30, 4)
    right, enter = [], region.enter

    def entered(*arguments):
        right.append(inner.right(lambda: found.run(inner.table, 3)))
        enter(*arguments)

    region.enter = entered
    assert outer.right(lambda: found.run(outer.table, 3)) and right == [True] and region.entered == 1


# -- processes ------------------------------------------------------------------------------------------------------

CALLERS = """
import sys, threading, time
from tests.kernels.threads.test_team import Chain, begun
wrong, turns, first = [], 25, Chain(99, 30, 4)
print(first.right(), begun().most + 1, begun().run_shared is not None)
def call(k):
    chain = Chain(k, 30, 1 + k % 9)
    for turn in range(turns):
        if not chain.right(): wrong.append(k)
        if turn % 10 == k % 10: time.sleep(0.003)  # helpers fall asleep
callers = [threading.Thread(target=call, args=(k,)) for k in range(20)]
[t.start() for t in callers]; [t.join() for t in callers]
print(wrong)
"""


@pytest.mark.parametrize("threads", ["1", "2", "8"])
def test_more_callers_than_slots_and_helpers_than_cores(threads):
    assert finished(CALLERS, NUMBA_NUM_THREADS=threads, NUMBA_THREADING_LAYER="omp") \
        == [f"True {threads} {threads != '1'}", "[]"]


OTHERS = """
import sys, threading
import numba, numpy as np
from tests.kernels.threads.test_team import Chain, begun

@numba.njit(parallel=True, nogil=True)
def squares(n):
    out = np.empty(n)
    for i in numba.prange(n):
        out[i] = i * i
    return out

want = np.arange(5000.0) ** 2
def others_right():
    return all(np.array_equal(squares(5000), want) for _ in range(10))

chain, wrong = Chain(0, 30, 4), []
print(others_right(), chain.right())
found = begun()
print(numba.threading_layer(), found.layer, found.run_shared is not None, others_right())
def call(k):
    chain = Chain(k, 30, 1 + k % 5)
    for turn in range(30):
        if not chain.right(): wrong.append(k)
callers = [threading.Thread(target=call, args=(k,)) for k in range(8)]
[t.start() for t in callers]
if sys.argv[1] == "omp":
    print(others_right())
[t.join() for t in callers]
print(wrong, others_right(), chain.right(), numba.get_num_threads())
"""


@pytest.mark.parametrize("layer", ["omp", "workqueue"])
def test_other_parallel_code_of_numba(layer):
    """With layer omp at the same time; workqueue ends a process that tries."""
    lines = finished(OTHERS, layer, NUMBA_THREADING_LAYER=layer, NUMBA_NUM_THREADS="4")
    omp = layer == "omp"
    assert lines == ["True True", f"{layer} {layer} {omp} True", *["True"] * omp, "[] True True 4"]


FORKS = """
import os
from tests.kernels.threads.test_team import Chain, begun
from graphq.kernels.threads import team

def child(check):
    process = os.fork()
    if process == 0:
        try: os._exit(0 if check() else 1)
        finally: os._exit(2)
    return os.waitpid(process, 0)[1]

chain = Chain(0, 30, 4)
def with_helpers():
    return chain.right() and begun().run_shared is not None and all(chain.right() for _ in range(20))
def alone():
    right = all(chain.right() for _ in range(20))
    return right and team.the_team().run_shared is None and team.the_team().thread.ident is None
print(child(with_helpers), with_helpers())
print(child(alone), child(lambda: alone() and child(alone) == 0), with_helpers())
chain.right()
if os.fork() == 0: raise SystemExit(0 if alone() else 3)  # with all that Python does at its end
print(os.wait()[1])
"""


def test_children_have_helpers_unless_numbas_threads_ran_before():
    assert finished(FORKS, NUMBA_THREADING_LAYER="omp", NUMBA_NUM_THREADS="3", PYTHONWARNINGS="ignore") \
        == ["0 True", "0 0 True", "0"]


END = """
import sys, time
from tests.kernels.threads.test_team import Chain, begun
from graphq.kernels.threads import steps, team
team.PATIENCE = 1000 if sys.argv[1] == "at once" else 0
chain = Chain(0, 30, 3)
print(chain.right())
if sys.argv[1] == "at once": sys.exit("numba" in sys.modules)
if sys.argv[1] == "early": sys.exit()
found = begun()
print(chain.right(), found.run_shared is not None)
if sys.argv[1] == "asleep":
    while found._word(steps.SLEEPERS)[0] < 2: time.sleep(0.001)
"""


@pytest.mark.parametrize("when", ["at once", "early", "awake", "asleep"])
def test_a_process_ends_well(when):
    """After its first run, before Numba is imported or while its helpers begin; while they look for work, or sleep."""
    lines = finished(END, when, NUMBA_THREADING_LAYER="omp", NUMBA_NUM_THREADS="3")
    assert lines == ["True", "True True"][:1 if when in ("at once", "early") else 2]


KEPT_OFF = """
import os, time
from tests.kernels.threads.test_team import Chain, begun
cores = os.sched_getaffinity(0)
chain = Chain(0, 30, 2)
found = begun()
for core in sorted(cores)[:2]:
    os.sched_setaffinity(0, {core})  # this thread, whose core is then known
    for turn in range(10_000):
        time.sleep(0.01)  # the helper falls asleep
        found.run(chain.table, 1)
        if os.sched_getaffinity(found.thread.native_id) == cores - {core}: break
    else:
        print(core, os.sched_getaffinity(found.thread.native_id))
print("done")
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
def test_a_helper_follows_its_caller_to_other_cores():
    assert finished(KEPT_OFF, NUMBA_THREADING_LAYER="omp", NUMBA_NUM_THREADS="2") == ["done"]


NO_NUMBA = """
import sys
import numpy as np, graphq as gq
g = gq.Graph()
g.output(g.gelu(g.input("x", shape=(300_000,), dtype="f32")))
x = np.ones(300_000, np.float32)
print(gq.compile(g, isa="scalar", threads=int(sys.argv[1]))(x=x).sum() > 0, "numba" in sys.modules)
"""


def test_plans_of_one_thread_import_no_numba(tmp_path):
    """The first process compiles by another one; the second compiles nothing."""
    for _ in range(2):
        assert finished(NO_NUMBA, "1", GRAPHQ_CACHE_DIR=str(tmp_path), NUMBA_NUM_THREADS="4") == ["True False"]


def test_without_threads_plans_run_on_their_caller(monkeypatch):
    def start(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setenv("NUMBA_NUM_THREADS", "4")
    chain = Chain(3, 30, 4)
    monkeypatch.setattr(team, "_team", None)
    with monkeypatch.context() as m:
        m.setattr(threading.Thread, "start", start)
        assert chain.right()
    assert chain.right() and team._team.thread.ident is None and team._team.run_shared is None and team._team.settled


def test_without_numba_plans_run_on_their_caller(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "graphq.kernels.threads.region", None)
    monkeypatch.delattr("graphq.kernels.threads.region", raising=False)
    monkeypatch.setenv("NUMBA_NUM_THREADS", "4")
    chain = Chain(3, 30, 4)
    monkeypatch.setattr(team, "_team", None)
    assert chain.right()
    team._team.thread.join()
    assert chain.right() and team._team.run_shared is None and team._team.settled
    assert "plans run on one thread" in caplog.text
    team.atexit.unregister(team._team.end)


def test_what_is_measured_runs_until_helpers_take_part():
    chain = Chain(4, 30, 2)

    def run():
        for _ in range(2):  # short runs have use for helpers only where they follow one another closely
            chain.table.run()

    team.run_until_settled(run)
    assert team.the_team().settled and chain.right()


def test_semaphores_fit_their_room():
    """That of the C library's sem_t: 32 bytes on 64-bit Linux."""
    assert steps.HELPER_AT - steps.SEMAPHORE >= 32 and ctypes.sizeof(ctypes.c_void_p) == 8
