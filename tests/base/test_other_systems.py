"""graphq without what macOS and Windows lack (tests/helpers/other_systems): models, files, threads, commands."""
import os
import subprocess
import sys
from pathlib import Path

import cross_compile
import pytest

from graphq.base import platform
from graphq.kernels.jit.compiling import Streams

HELPERS = Path(__file__).parents[1] / "helpers"
MODEL = """
import os
import sys
import time
import numpy as np
import graphq as gq
from graphq import cli, quantization
from graphq.kernels.jit import cache, compiling
from graphq.kernels.threads import steps, team
from graphq.model import kept
g = gq.Graph("net")
x = g.input("x", shape=(64, 256), dtype="f32")
g.output(g.relu(g.matmul(x, np.eye(256, dtype="f4"))), name="y")
rng = np.random.default_rng(0)
samples = [rng.standard_normal((64, 256)).astype("f4") for _ in range(4)]
q = quantization.quantize(g, [{"x": s} for s in samples]) if sys.argv[1] == "quantized" else g
model = gq.compile(q, threads=2)
want = model.formula(x=samples[0])
for _ in range(100):
    assert (model(x=samples[0]) == want).all()
team.SHORT_SECONDS = 0  # each run wakes the helper
child = os.fork() if sys.argv[2] == "forks" else None
for _ in range(3):
    while team.the_team().helpers.word(steps.SLEEPERS)[0] == 0:
        time.sleep(0.001)
    assert (model(x=samples[0]) == want).all()
if child == 0:
    sys.exit()
assert child is None or os.waitpid(child, 0)[1] == 0
model.save("net.graphq")
loaded = gq.load_compiled("net.graphq")
assert (loaded(x=samples[0]) == want).all() and loaded.threads == 2
with open("net.txt", "w") as file:
    file.write(gq.to_text(q))
code = cli.main(["show", "net.txt"])
try:
    model.save("net.graphq")
except gq.GraphqError as error:
    print(error)
kept.FEWEST = 0
models = [gq.compile(q, threads=2) for _ in range(2)]
assert models[1].origin.startswith("compiled before")
kept.Kept.find = lambda self: None  # another process compiles the model at the same time
models.append(gq.compile(q, threads=2))
for thread in list(kept.writers.values()):
    thread.join()
cache.tidy(cache.folder(), now=1e12)
cache.clear()
assert all((x(x=samples[0]) == want).all() for x in [*models, loaded])
print(compiling.pool.processes_work, team.the_team().helpers.begun, code, cache.info().models)
"""


def run(system, *command, machine, folder):
    path = os.pathsep.join([str(HELPERS / "other_systems"), str(HELPERS), os.environ["PYTHONPATH"]])
    environment = {**os.environ, "GRAPHQ_SYSTEM": system, "GRAPHQ_MACHINE": machine, "PYTHONPATH": path,
                   "GRAPHQ_CACHE_DIR": str(folder / system)}
    return subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True, env=environment,
                          timeout=300)


@pytest.mark.parametrize("system, machine, layers, fork", [
    ("darwin", "x86_64", "quantized", "forks"), ("win32", "AMD64", "quantized", "does not fork"),
    ("freebsd14", "x86_64", "f32", "forks")])
def test_models_are_quantized_saved_loaded_and_run_on_threads(system, machine, layers, fork, tmp_path):
    """Other processes compile their kernels. Helpers begin, wait and wake by functions of the system, or poll."""
    ran = run(system, "-W", "always", "-c", MODEL, layers, fork, machine=machine, folder=tmp_path)
    said, last = ran.stdout.splitlines()[-2:]
    windows = system == "win32"
    assert last == f"True 1 0 {int(windows)}", ran.stderr  # Windows keeps files that a process has mapped
    assert windows == ("'net.graphq' cannot be written: a process uses this file, and" in said), said
    assert f"graphq is not tested on {system} with x86_64; where it fails, models with GRAPHQ_ISA=scalar" in ran.stderr


@pytest.mark.parametrize("system", cross_compile.TRIPLES)
def test_code_for_other_systems_calls_only_what_their_processes_have(system, tmp_path):
    """Of threads and a tile; tests/helpers/cross_compile.py tries all kinds of kernels."""
    ran = run("linux", str(HELPERS / "cross_compile.py"), system, "--sample", machine="", folder=tmp_path)
    found = dict(line.partition(" ")[::2] for line in ran.stdout.splitlines())
    assert ran.returncode == 0 and found.keys() == {"steps", "team", "strips", "traced", "tile"}, ran.stderr
    assert ("ReleaseSemaphore" if system == "win32" else "_dispatch_semaphore_signal") in found["team"]
    assert ("QueryPerformanceCounter" if system == "win32" else "_clock_gettime") in found["traced"]


def test_streams_carry_objects_and_end_with_the_other_side():
    ends = [os.pipe() for _ in range(2)]
    ours, theirs = (Streams(os.fdopen(ends[k][0], "rb"), os.fdopen(ends[1 - k][1], "wb")) for k in range(2))
    ours.send_bytes(b"12" * 50)
    assert theirs.poll(0) and theirs.recv_bytes() == b"12" * 50
    theirs.send((None, "an error"))
    assert ours.recv() == (None, "an error")
    theirs.close()
    with pytest.raises(EOFError):
        ours.recv()
    with pytest.raises(BrokenPipeError):
        ours.send(1)
    ours.close()
    assert ours.closed and theirs.closed


def test_machines_that_are_not_tested_and_machines_that_are_refused(monkeypatch):
    assert platform.untested() is None
    for system, machine in (("linux", "riscv64"), ("freebsd14", "x86_64"), ("darwin", "aarch64")):
        monkeypatch.setattr(platform, "SYSTEM", system)
        monkeypatch.setattr(platform, "MACHINE", machine)
        assert f"not tested on {system} with {machine}" in platform.untested()
    monkeypatch.setattr(sys, "byteorder", "big")
    with pytest.raises(ImportError, match="64-bit little-endian"):
        platform.untested()
