"""The team: steps in order, every block once, whoever runs it; which helpers wake, and where regions run."""
import ctypes
import os
import sys
import threading
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest
from kernel_factories import dozing
from step_chains import Chain, begun

from graphq.kernels.jit import modules
from graphq.kernels.threads import helpers, steps, team
from graphq.kernels.threads.helpers import Helpers, native
from graphq.kernels.threads.system import SEMAPHORE_BYTES, start_thread


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
    """Seven helpers of a team that was not started, which end when woken; `cores` has those that they may use then."""

    def __init__(self):
        self.helpers, self.cores, code = Helpers(7), [], modules.load("doze", dozing)
        self.threads = [threading.Thread(target=self._doze, args=(code.doze, k)) for k in range(7)]
        for x in self.threads:
            x.start()
        while self.helpers.word(steps.SLEEPERS)[0] < 7:
            time.sleep(0.001)

    def _doze(self, doze, k):
        doze(self.helpers.address, self.helpers.address + steps.FIRST_RECORD + k * steps.RECORD)
        self.cores.append(os.sched_getaffinity(0))

    def run(self, table, helpers):
        native(self.helpers.code.run_shared, 4)(*table.span, self.helpers.address, helpers)

    def end(self):
        self.helpers.dismiss()
        for x in self.threads:
            x.join()


@pytest.fixture
def dozers():
    made = Dozers()
    yield made
    made.end()


def test_no_more_helpers_are_woken_than_wanted():
    """Of six that are asleep by their words alone: a semaphore counts how often its helper was woken."""
    found, chain, library = Helpers(6), Chain(1, 60, 3), ctypes.CDLL(None)
    found.word(steps.CORES)[0] = 0  # no thread's cores are set
    found.word(steps.HELPERS)[0] = found.word(steps.SLEEPERS)[0] = 6
    records = [steps.FIRST_RECORD + k * steps.RECORD for k in range(6)]
    for record in records:
        found.word(record + steps.ASLEEP)[0] = 1
    run_shared = native(found.code.run_shared, 4)

    def woken(record):
        count = ctypes.c_int()
        library.sem_getvalue(ctypes.c_void_p(found.address + record + steps.SEMAPHORE), ctypes.byref(count))
        assert count.value == 1 - found.word(record + steps.ASLEEP)[0]
        return count.value

    for wanted, awake in ((0, 0), (2, 2), (1, 2), (0, 2), (5, 5), (9, 6)):
        assert all(chain.right(lambda n=wanted: run_shared(*chain.table.span, found.address, n)) for _ in range(20))
        assert sum(map(woken, records)) == awake
        assert found.word(steps.SLEEPERS)[0] == 6 - awake and found.word(steps.WANTED)[0] == 0


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
    monkeypatch.setattr(helpers, "process_cores", lambda: cores)
    made = Helpers(2)
    size = int(made.word(steps.CORES)[0])
    assert size % 8 == 0 and size <= steps.LINE and (size > 0) == (max(cores) < 8 * steps.LINE)
    mask = int.from_bytes(made.word(steps.MASK)[:size // 8].tobytes(), sys.byteorder)
    assert mask == (sum(1 << core for core in cores) if size else 0)
    assert not made.word(steps.SLOTS)[:steps.SLOT * steps.MOST_TABLES // 8].any()


def test_helpers_begin_even_if_dismissed_before(monkeypatch):
    """However late a thread begins: it sees that it is not wanted, and ends."""
    made, cores = Helpers(5), os.sched_getaffinity(0)
    made.start()
    assert len(made.threads) == 5
    made.dismiss()
    assert made.threads == [] and os.sched_getaffinity(0) == cores


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
    """A team that runs its tables in a region, whose thread has loaded the region."""
    made, code = team.Team(), modules.load("team", steps.team_module)
    open_table = native(code.open_table, 4)

    def opening(*arguments):
        open_table(*arguments)
        region.interrupted("the table is open")

    made.loader, made.region, made.open_table = threading.Thread(), region, opening
    made.replace_helpers = lambda: None  # there are none
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
        slot = found.helpers.word(steps.SLOTS + k * steps.SLOT)
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


def own_team(monkeypatch, **system):
    """A new team of this process, for one test, with other functions of the system."""
    monkeypatch.setattr(team, "team_threads", lambda: 4)
    monkeypatch.setattr(team, "current", None)
    for name, function in system.items():
        monkeypatch.setattr(helpers, name, function)


@pytest.mark.parametrize("started", [0, 2])
def test_without_threads_plans_run_on_their_caller(monkeypatch, started):
    """Or with as many helpers as could be started."""
    left = [1] * started
    own_team(monkeypatch, start_thread=lambda *at: start_thread(*at) if left and left.pop() else None)
    monkeypatch.setattr(team.Team, "can_load", lambda self: False)
    chain = Chain(3, 30, 4)
    assert chain.right() and len(team.current.helpers.threads) == started
    found = begun()
    assert chain.right() and found.settled and found.helpers.begun == started
    team.atexit.unregister(found.end)
    found.end()


def test_nobody_waits_for_helpers_that_have_not_begun(monkeypatch):
    own_team(monkeypatch, start_thread=lambda *at: 1, join_thread=lambda thread: None)
    monkeypatch.setattr(team.Team, "can_load", lambda self: False)
    chain = Chain(3, 30, 4)
    assert all(chain.right() for _ in range(20)) and not team.current.settled
    team.atexit.unregister(team.current.end)


def test_without_numba_helpers_stay_as_they_are(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "graphq.kernels.threads.region", None)
    monkeypatch.delattr("graphq.kernels.threads.region", raising=False)
    own_team(monkeypatch)
    monkeypatch.setattr(team.Team, "can_load", lambda self: True)
    chain = Chain(3, 30, 4)
    assert chain.right()
    team.current.loader.join()
    assert chain.right() and begun().helpers.begun == 3 and team.current.region is None
    assert "plans do not run on Numba's threads" in caplog.text
    team.atexit.unregister(team.current.end)
    team.current.end()


def test_what_is_measured_runs_until_helpers_take_part():
    chain = Chain(4, 30, 2)

    def run():
        for _ in range(2):  # short runs have use for helpers only where they follow one another closely
            chain.table.run()

    team.run_until_settled(run)
    assert team.the_team().settled and chain.right()


def test_semaphores_fit_their_room():
    """That of the C library's sem_t on 64-bit Linux."""
    assert SEMAPHORE_BYTES >= 32 and ctypes.sizeof(ctypes.c_void_p) == 8
    assert steps.HELPER_AT - steps.SEMAPHORE >= SEMAPHORE_BYTES
    assert steps.HELPER_AT + steps.HELPER.nbytes <= steps.OWN_MASK


def test_a_run_does_not_wait_until_the_team_is_compiled(monkeypatch):
    """The caller runs all steps; the first run after the code is there starts the team."""
    class Late:
        ready = False
        want = address = staticmethod(lambda *_: asked.append(1))

    chain, late, asked, started = Chain(3, 12, 4), Late(), [], []
    monkeypatch.setattr(team, "current", None)
    monkeypatch.setattr(team, "modules_of_team", lambda threads, cache: (None, late))
    monkeypatch.setattr(team, "the_team", lambda cache: SimpleNamespace(run=lambda *of: started.append(of)))
    assert chain.right() and asked and not started
    late.ready = True
    chain.table.run()
    assert started[0][0] is chain.table
