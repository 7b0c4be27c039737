"""One file for several kinds of processors: each takes the build that fits, and compiles nothing."""
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from open_rows import network

import graphq as gq
from graphq import cli
from graphq.base import platform
from graphq.kernels import levels
from graphq.kernels.jit import cpu
from graphq.kernels.target import isa
from graphq.model import saved_file, saved_models, targets

HERE, OTHER = ("avx2", "neon_i8mm") if platform.HOST == "x86_64" else ("neon", "neon_dot")
"""A level that this machine has (with fewer features, only scalar), and one that it may lack. On x86 it is Arm's."""
ELF_MACHINES = {"avx2": 62, "neon": 183, "neon_dot": 183, "neon_i8mm": 183}
SIZES = 3, 40
"""The rows of the calls before the model was saved: two plans."""
ELSEWHERE = """
import json, sys
import numpy as np
import graphq as gq
from graphq.kernels.jit import modules
model = gq.load_compiled(sys.argv[1])
outputs = [model(np.arange(n * 64).reshape(n, 64).astype(np.uint8)).tolist() for n in (3, 40)]
print(json.dumps([model.level.name, model.origin, modules.statistics().compiled, outputs]))
"""


def rows(n):
    return np.arange(n * 64).reshape(n, 64).astype(np.uint8)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A file with builds for a level of this machine and for others."""
    if HERE not in [x.name for x in isa.native()]:
        pytest.skip(f"this machine lacks {HERE}")
    found = tmp_path_factory.mktemp("targets") / "net.graphq"
    model = gq.compile(network(10), threads=2)
    for n in SIZES:
        model(rows(n))
    model.save(found, targets=[HERE, OTHER])
    return found


def test_the_build_that_fits_runs_without_compilation(path):
    folder = path.parent / "empty"
    environment = {k: v for k, v in os.environ.items() if k != "GRAPHQ_ISA"} | {"GRAPHQ_CACHE_DIR": str(folder)}
    done = subprocess.run([sys.executable, "-c", ELSEWHERE, str(path)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    level, origin, compiled, outputs = json.loads(done.stdout)
    assert level in (HERE, OTHER) and (origin, compiled) == (f"loaded from {path}", 0)
    model = gq.compile(network(10))
    for n, found in zip(SIZES, outputs, strict=True):
        assert np.array_equal(np.array(found, np.float32), model(rows(n)))


def test_builds_share_the_graph_and_have_code_of_their_own(path):
    file = saved_file.File(path)
    builds = file.index["builds"]
    assert [x["options"]["level"] for x in builds] == [HERE, OTHER] and builds[0]["graph"] == builds[1]["graph"]
    for build in builds:
        assert len(build["plans"]) >= len(SIZES) and cpu.is_target(build["cpu"])
        for *_, number in build["code"]:
            head = bytes(file.section(number))[:20]
            if platform.SYSTEM == "linux":
                machine = int.from_bytes(head[18:], "little")
                assert (head[:4], machine) == (b"\x7fELF", ELF_MACHINES[build["options"]["level"]])


def test_damage_of_another_build_is_not_read(tmp_path):
    """The hash of a piece also covers neighbors, so damage is seen up to 1 MiB from what a build needs."""
    sections = [memoryview(np.full(saved_file.PIECE, n, np.uint8)) for n in range(6)]
    saved_file.write(tmp_path / "m", {}, sections)
    data = bytearray((tmp_path / "m").read_bytes())
    data[-1] ^= 1
    (tmp_path / "m").write_bytes(data)
    file = saved_file.File(tmp_path / "m")
    file.check([0, 3])
    for wanted in ([5], None):
        with pytest.raises(gq.ParseError, match="damaged"):
            file.check(wanted)


def test_a_processor_that_lacks_all_targets_compiles_the_graph(path, monkeypatch):
    monkeypatch.setattr(cpu, "fits", lambda described: False)
    model = gq.load_compiled(path)
    assert f"compiled anew, because this processor lacks what {HERE} or {OTHER} needs" in model.origin
    assert np.array_equal(model(rows(3)), gq.compile(network(10))(rows(3)))


def test_builds_have_the_options_of_the_model_whatever_new_files_may_be_by_default(tmp_path):
    """With a umask of 0 other users could write to new files, and the options of such files are not used."""
    model = gq.compile(network(10), threads=1, precision="bf16", ties="formula")
    before = os.umask(0)
    try:
        model.save(tmp_path / "m.graphq", targets=[HERE])
    finally:
        os.umask(before)
    (tmp_path / "m.graphq").chmod(0o644)
    settings, wanted = saved_models.Saved(tmp_path / "m.graphq").settings, model.options
    assert (settings.threads, settings.passes) == (1, wanted.passes) and wanted.passes is not None


def test_a_folder_that_is_wrong_is_named_before_anything_is_compiled(tmp_path, monkeypatch):
    monkeypatch.setattr(targets.subprocess, "run", None)
    for out, problem in ("none/m.graphq", "there is no such folder"), ("", "it is a folder"):
        with pytest.raises(gq.GraphError, match=f"cannot be written: {problem}"):
            gq.compile(network(10)).save(tmp_path / out, targets=[HERE])


def test_builds_have_the_plans_that_are_still_being_made(tmp_path):
    model = gq.compile(network(10), threads=1)
    for n in SIZES:
        model(rows(n))
    model.save(tmp_path / "m.graphq", targets=[HERE])
    assert {sizes for sizes, _ in saved_models.Saved(tmp_path / "m.graphq").plans(1)} \
        == {plan.sizes for plan in model.plans.all()}


@pytest.mark.parametrize("wrong", ["avx2", b"avx2", [["avx2"]]])
def test_targets_are_a_list(tmp_path, wrong):
    with pytest.raises(gq.CompileError, match=r'targets must be a list of names, such as \["avx2"\], got'):
        gq.compile(network(10)).save(tmp_path / "m.graphq", targets=wrong)


def test_a_level_that_fails_its_self_test_is_not_used(path, monkeypatch):
    monkeypatch.setattr(levels, "works", lambda level, cache=True: False)
    assert saved_models.Saved(path).misfit.startswith("this machine does not pass the self-test of ISA level")


def test_the_level_that_is_asked_for_is_taken(path, monkeypatch):
    monkeypatch.setattr(cpu, "fits", lambda described: True)
    monkeypatch.setattr(saved_models, "available", lambda: [isa.level_named(x) for x in (HERE, OTHER)])
    for asked, found in ((HERE, HERE), (OTHER, OTHER), (None, OTHER)):
        assert saved_models.Saved(path, asked).settings.level == found


@pytest.mark.parametrize("names, message", [
    (["avx3"], "unknown ISA level 'avx3'; the levels are scalar, avx2"), ([], "no targets: name ISA levels, or all")])
def test_unknown_targets_are_refused(names, message, tmp_path):
    with pytest.raises(gq.GraphqError, match=message):
        gq.compile(network(10)).save(tmp_path / "m", targets=names)
    assert not list(tmp_path.iterdir())


def test_a_process_that_compiles_for_another_cpu_runs_no_kernels(path):
    """A user who sets the variable by hand gets an error, not code that this CPU may lack."""
    (path.parent / "net.txt").write_text(gq.to_text(network(10)))
    environment = {**os.environ, "GRAPHQ_TARGET": " ".join((platform.MACHINE, *isa.level_named(HERE).features))}
    for model in f"gq.compile({str(path.parent / 'net.txt')!r})", f"gq.load_compiled({str(path)!r})":
        code = f"import numpy as np; import graphq as gq; {model}(np.zeros((3, 64), np.uint8))"
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        error = done.stderr.strip().rpartition("\n")[2]
        assert done.returncode and error.startswith("graphq.errors.KernelError: GRAPHQ_TARGET is set"), done.stderr


def test_all_stands_for_every_level_but_scalar():
    assert {*targets.ALL, "scalar"} == {x.name for x in isa.LEVELS}


def test_the_command_takes_targets(tmp_path, capsys):
    (tmp_path / "net.txt").write_text(gq.to_text(network(10)))
    command = ["compile", str(tmp_path / "net.txt"), "--targets"]
    assert cli.main([*command, "avx2,avx3"]) != 0
    assert "unknown ISA level 'avx3'" in capsys.readouterr().err
