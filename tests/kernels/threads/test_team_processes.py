"""The team in processes of their own: its first run, other users of Numba, forks, signals, cores and ends."""
import os

import pytest
from step_chains import finished

FIRST = """
import sys
import numpy as np
from kernel_factories import meeting
from step_chains import native_threads
from graphq.kernels.jit import modules
from graphq.kernels.threads import team
met, block = np.zeros(3, np.int64), modules.load("meeting", meeting).block
def meet(pieces):
    met[0] = int(pieces == 1)  # a single block would wait for another one
    before = native_threads()
    table = team.StepTable([(block, met.ctypes.data, pieces, pieces if pieces > 1 else 0)])
    table.run()
    return met.tolist(), len(native_threads() - before)
print(*meet(1), *meet(2), *meet(2), "numba" in sys.modules)
"""


def test_helpers_take_part_in_the_first_run_with_several_threads():
    """Its two pieces wait for each other. Runs on one thread start no threads, and further runs start no more."""
    assert finished(FIRST, NUMBA_NUM_THREADS="4") == ["[2, 2, 0] 0 [2, 2, 2] 3 [2, 2, 2] 0 False"]


CALLERS = """
import sys, threading, time
from graphq.kernels.threads import team
from step_chains import Chain, begun, in_region
sys.setswitchinterval(1e-6)
if sys.argv[1] == "before": import numba
team.IMPORT_SECONDS = 0.0 if sys.argv[1] == "by itself" else 1e9
wrong, turns, first = [], 25, Chain(99, 30, 4)
print(first.right(), begun().helpers.most + 1, in_region(begun()))
def call(k):
    chain = Chain(k, 30, 1 + k % 9)
    for turn in range(turns):
        if not chain.right(): wrong.append(k)
        if turn % 10 == k % 10: time.sleep(0.003)  # helpers fall asleep
callers = [threading.Thread(target=call, args=(k,)) for k in range(20)]
[t.start() for t in callers]
if sys.argv[1] == "meanwhile":
    import numba
    begun()
[t.join() for t in callers]
print(wrong, in_region(begun()))
"""


@pytest.mark.parametrize("threads, numba", [
    ("1", "by itself"), ("2", "before"), ("8", "never"), ("8", "meanwhile"), ("8", "by itself")])
def test_more_callers_than_slots_and_helpers_than_cores(threads, numba):
    """With threads of the team's own, with those of Numba, and while these replace those."""
    several = threads != "1"
    assert finished(CALLERS, numba, NUMBA_NUM_THREADS=threads, NUMBA_THREADING_LAYER="omp") \
        == [f"True {threads} {several and numba in ('before', 'by itself')}", f"[] {several and numba != 'never'}"]


OTHERS = """
import sys, threading
import numba, numpy as np
from step_chains import Chain, begun, in_region

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
print(numba.threading_layer(), found.layer, in_region(found), others_right())
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
import os, sys
from graphq.kernels.threads import team
from step_chains import Chain, begun, in_region

def child(check):
    process = os.fork()
    if process == 0:
        try: os._exit(0 if check() else 1)
        finally: os._exit(2)
    return os.waitpid(process, 0)[1]

chain = Chain(0, 30, 4)
def right(region):
    return chain.right() and in_region(begun()) == region and begun().helpers.begun == 2 \\
        and all(chain.right() for _ in range(20))
def with_a_child():
    return right(False) and child(lambda: right(False)) == 0 and right(False)
team.IMPORT_SECONDS = 1e9
print(child(lambda: right(False)), right(False), child(with_a_child), right(False))
import numba
print(child(lambda: right(True)), right(True), child(with_a_child), right(True))
if os.fork() == 0: raise SystemExit(0 if right(False) else 3)  # with all that Python does at its end
print(os.wait()[1])
"""


def test_forked_children_have_helpers():
    """Their own threads if Numba had started threads before the fork, which do not survive it."""
    assert finished(FORKS, NUMBA_THREADING_LAYER="omp", NUMBA_NUM_THREADS="3", PYTHONWARNINGS="ignore") \
        == ["0 True 0 True", "0 True 0 True", "0"]


END = """
import sys, time
from step_chains import Chain, begun, in_region
from graphq.kernels.threads import steps, team
when, numba = sys.argv[1:]
if numba == "numba": import numba
team.PATIENCE, team.IMPORT_SECONDS = 1000 if when == "at once" else 0, 0 if numba == "by itself" else 1e9
chain = Chain(0, 30, 3)
print(chain.right())
if when in ("at once", "early"): sys.exit("graphq.kernels.threads.region" in sys.modules and when == "at once")
found = begun()
print(chain.right(), in_region(found))
if when == "asleep":
    while found.helpers.word(steps.SLEEPERS)[0] < 2: time.sleep(0.001)
"""


@pytest.mark.parametrize("when, numba", [
    ("at once", "numba"), ("early", "numba"), ("awake", "none"), ("asleep", "none"), ("asleep", "numba"),
    ("early", "by itself"), ("asleep", "by itself")])
def test_a_process_ends_well(when, numba):
    """After its first run, before the region is loaded or meanwhile; while helpers look for work, or sleep."""
    lines = finished(END, when, numba, NUMBA_THREADING_LAYER="omp", NUMBA_NUM_THREADS="3")
    assert lines == ["True", f"True {numba != 'none'}"][:1 if when in ("at once", "early") else 2]


ON_CORES = """
import os, signal, threading, time
from step_chains import Chain, begun, native_threads
cores, before, chain = os.sched_getaffinity(0), native_threads(), Chain(0, 30, 2)
def first():
    os.sched_setaffinity(0, {min(cores)})
    chain.table.run()
caller = threading.Thread(target=first)
caller.start(); caller.join()
found = begun()
(helper,) = native_threads() - before - {str(caller.native_id)}  # the system may still end the caller's thread
for line in open(f"/proc/self/task/{helper}/status"):
    if line.startswith("SigBlk"): blocked = int(line.split()[1], 16)
print(max(cores) in os.sched_getaffinity(int(helper)), not blocked >> signal.SIGSEGV - 1 & 1,
      all(blocked >> s - 1 & 1 for s in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD)),
      signal.pthread_sigmask(signal.SIG_BLOCK, ()))
for core in sorted(cores)[:2]:
    os.sched_setaffinity(0, {core})  # this thread, whose core is then known
    for turn in range(10_000):
        time.sleep(0.01)  # the helper falls asleep
        found.run(chain.table, 1)
        if os.sched_getaffinity(int(helper)) == cores - {core}: break
    else:
        print(core, os.sched_getaffinity(int(helper)))
print("done")
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
def test_a_helper_leaves_signals_to_others_and_follows_its_caller_to_other_cores():
    """It has all cores of the process even if a thread of one core has started it."""
    assert finished(ON_CORES, NUMBA_NUM_THREADS="2") == ["True True True set()", "done"]


BY_ITSELF = """
import os, sys, threading, time
from graphq.kernels.threads import team
from step_chains import Chain, begun, in_region
team.PATIENCE, team.IMPORT_SECONDS = 0.0, float(sys.argv[1])
chain = Chain(0, 30, 3)
right = [chain.right()]
end = time.perf_counter() + 0.5
while time.perf_counter() < end: right.append(chain.right())
if sys.argv[1] == "0": begun()
for thread in threading.enumerate():
    if thread.name == "graphq-team": thread.join(10)  # the thread that imports
time.sleep(0.1)  # the system may still end it
priorities = {os.getpriority(os.PRIO_PROCESS, int(t)) for t in os.listdir("/proc/self/task")}
print(all(right), "numba" in sys.modules, in_region(team.the_team()), priorities)
"""


def test_a_process_imports_numba_by_itself_when_its_time_has_come():
    """No earlier, and its threads do not have the low priority of the thread that imports."""
    own = os.getpriority(os.PRIO_PROCESS, 0)
    for seconds, there in (("0", True), ("1e9", False)):
        assert finished(BY_ITSELF, seconds, NUMBA_NUM_THREADS="3", NUMBA_THREADING_LAYER="omp") \
            == [f"True {there} {there} {{{own}}}"]


NO_NUMBA = """
import sys
import numpy as np, graphq as gq
g = gq.Graph()
g.output(g.gelu(g.input("x", shape=(300_000,), dtype="f32")))
x = np.ones(300_000, np.float32)
print(*(gq.compile(g, isa="scalar", threads=n)(x=x).sum() > 0 for n in (1, 2)), "numba" in sys.modules)
"""


def test_plans_import_no_numba(tmp_path):
    """Neither to compile kernels, which other processes do, nor to run them on several threads for a short time."""
    assert finished(NO_NUMBA, GRAPHQ_CACHE_DIR=str(tmp_path), NUMBA_NUM_THREADS="4") == ["True True False"]
