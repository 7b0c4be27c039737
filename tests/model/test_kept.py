"""Models that `compile` finds again: the same numbers, and never those of another file, option or version."""
import logging
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from dense import dense
from float_networks import attention, convolutional
from kept_models import FOUND, compiled, feeds, files, same, written
from levels import LEVELS

import graphq as gq
from graphq.kernels.jit import cache, cpu
from graphq.kernels.target import isa
from graphq.model import kept
from graphq.model import saved_file as format

pytestmark = pytest.mark.usefixtures("folder")
FEWEST = kept.FEWEST


@pytest.fixture(autouse=True)
def _graphs_are_kept(monkeypatch):
    monkeypatch.setattr(kept, "FEWEST", FEWEST)


@pytest.fixture
def path(tmp_path):
    """A model's file."""
    gq.save_onnx(dense(5, 16, 8), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


@pytest.fixture
def plain_path(tmp_path):
    """The file of a model with one f32 operation, for processes that compile it from an empty cache."""
    g = gq.Graph("plain")
    g.output(g.relu(g.input("x", dtype="f32", shape=(5, 16))), name="y")
    gq.save_onnx(g, tmp_path / "plain.onnx")
    return tmp_path / "plain.onnx"


def test_a_file_is_compiled_once(path, folder, monkeypatch):
    first = compiled(path)
    (file,) = files(folder)
    monkeypatch.setattr("graphq.passes.run_passes", None)  # from here on nothing can be compiled
    again = compiled(str(path))
    assert (first.origin, again.origin) == ("", f"{FOUND}{file}")
    given = feeds(first)
    assert same(again(given), first(given))
    assert (again.inputs, again.outputs, again.threads, again.level, again.rows_mix) == \
        (first.inputs, first.outputs, first.threads, first.level, first.rows_mix)
    assert file.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH) == 0 and files(folder) == [file]


def test_a_model_of_a_read_only_folder_is_found(path, folder, monkeypatch):
    first = compiled(path)
    (file,) = files(folder)
    monkeypatch.setattr(cache.os, "access", lambda path, mode: not mode & os.W_OK)
    again = compiled(path)
    assert again.origin == f"{FOUND}{file}" and same(again(feeds(first)), first(feeds(first)))


def test_a_result_does_not_wait_until_the_model_is_kept(path, monkeypatch):
    may_write, save = threading.Event(), kept.save
    monkeypatch.setattr(kept, "save", lambda *args, **named: may_write.wait(60) and save(*args, **named))
    model = gq.compile(path)
    result = model(feeds(model))
    may_write.set()
    again = compiled(path)
    assert again.origin.startswith(FOUND) and same(again(feeds(again)), result)


@pytest.mark.parametrize("graph", [convolutional, attention])
def test_networks_give_the_same_bits(graph, tmp_path):
    gq.save_onnx(graph()[0], tmp_path / "m.onnx")
    first, again = compiled(tmp_path / "m.onnx"), compiled(tmp_path / "m.onnx")
    assert again.origin.startswith(FOUND)
    given = feeds(first)
    assert same(again(given), first(given)) and same(again.formula(given), first(given))
    assert again.explain().split("\n", 1)[1] == first.explain()


def test_files_of_other_kinds_are_found_too(tmp_path):
    (tmp_path / "graph.txt").write_text(gq.to_text(dense(5, 16, 8)))
    compiled(dense(5, 16, 8), threads=1).save(tmp_path / "m.graphq")
    for name in ("graph.txt", "m.graphq"):
        first, again = compiled(tmp_path / name), compiled(tmp_path / name)
        assert (first.origin, again.origin[:len(FOUND)]) == ("", FOUND)
        assert same(first(feeds(first)), again(feeds(again)))


def chain(length=FEWEST, last=2.0, name="y"):
    """A graph of `length` nodes."""
    g = gq.Graph("chain")
    v = g.input("x", dtype="f32", shape=[2, 3])
    for _ in range((length - 2) // 2):
        v = g.abs(g.tanh(v))
    g.set_outputs([g.multiply(v, g.constant(np.float32([last, 1, -0.0])))], [name])
    return g


def test_a_graph_is_compiled_once(folder, monkeypatch):
    first = compiled(chain())
    (file,) = files(folder)
    monkeypatch.setattr("graphq.passes.run_passes", None)
    again = compiled(chain())
    assert (first.origin, again.origin) == ("", f"{FOUND}{file}")
    assert same(again(feeds(first)), first(feeds(first)))
    assert gq.to_text(again.source) == gq.to_text(chain())


def test_another_graph_is_another_model(folder):
    graphs = [chain(), chain(last=3.0), chain(name="z"), chain(FEWEST + 2)]
    assert [compiled(g).origin for g in graphs] == [""] * 4
    facts = chain()
    facts.meta = {"dimensions": {("x", 0): "batch"}}
    named = chain()
    named.rename(named.nodes[3].output, "inner")
    for g in (facts, named):
        assert compiled(g).origin == ""
    assert len(files(folder)) == 6 and all(compiled(g).origin.startswith(FOUND) for g in (*graphs, facts, named))


def test_constants_of_the_same_bytes_tell_graphs_apart():
    """Not of their dtype, or in another shape."""
    def digest(*constants):
        g = chain()
        for k, x in enumerate(constants):
            g.output(g.add_constant(x), name=f"c{k}")
        return kept.Kept.of(g, None, 1).digest

    x = np.arange(6, dtype=np.int32)
    others = [(x,), (x.reshape(2, 3),), (x.reshape(3, 2),), (x.view(np.uint32),), (x.view(np.float32),),
              (x.view(np.int64),), (x[:2], x[2:]), (x[:4], x[4:])]
    assert len({digest(*constants) for constants in others}) == len(others)
    assert digest(x) == digest(x.copy())


def test_models_of_small_graphs_are_not_kept(folder):
    for _ in range(2):
        assert compiled(chain(FEWEST - 2)).origin == ""
    assert not folder.exists() or files(folder) == []


def test_a_graph_that_changes_while_it_is_compiled(folder, monkeypatch, caplog):
    graph, of = chain(), kept.Kept.of

    def renamed(*arguments):
        made = of(*arguments)
        graph.rename(graph.nodes[3].output, "inner")
        return made

    monkeypatch.setattr(kept.Kept, "of", staticmethod(renamed))
    with caplog.at_level(logging.INFO, "graphq"):
        assert compiled(graph).origin == ""
    assert "is not kept: its file or graph has changed since" in caplog.text and files(folder) == []


# -- what makes it another model --------------------------------------------------------------------------------------

def test_another_file_of_the_same_name_is_another_model(path):
    compiled(path)
    facts = path.stat()
    gq.save_onnx(dense(5, 16, 8, seed=1), path)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    model = compiled(path)
    assert model.origin == "" and same(model(feeds(model)), compiled(gq.load_onnx(path))(feeds(model)))


def test_the_same_bytes_under_another_name_are_the_same_model(path, tmp_path):
    compiled(path)
    path.rename(tmp_path / "other.onnx")
    assert compiled(tmp_path / "other.onnx").origin.startswith(FOUND)


def test_each_option_has_a_model_of_its_own(path, folder):
    inner = gq.load_onnx(path).nodes[-2].output.name
    level = os.environ.get("GRAPHQ_ISA") or isa.available()[-1].name  # an option that names it is no other option
    levels = [name for name in LEVELS[:2] if name != level]
    options = [{}, {"threads": 1}, *({"isa": name, "threads": 1} for name in levels), {"strict": True},
               {"memory": 1 << 30}, {"precision": "bf16"}, {"ties": "formula"}, {"ranges": "rows"},
               {"outputs": ["y"]}, {"outputs": [inner]}, {"outputs": ["y", inner]}]
    made = [compiled(path, **o) for o in options]
    assert [m.origin for m in made] == [""] * len(options)
    assert len(files(folder)) == len(options)
    for o, first in zip(options, made, strict=True):
        again = compiled(path, **o)
        assert again.origin.startswith(FOUND) and again.outputs == first.outputs
        assert (again.options._replace(level=None), again.level) == (first.options._replace(level=None), first.level)


def test_the_environment_chooses_a_level_as_the_option_does(path, monkeypatch):
    compiled(path, isa="scalar")
    monkeypatch.setenv("GRAPHQ_ISA", "scalar")
    model = compiled(path)
    assert model.origin.startswith(FOUND) and model.level.name == "scalar"
    assert compiled(path, isa=LEVELS[1]).level.name == LEVELS[1]


@pytest.mark.parametrize("changed", ["versions", "cpu", "package"])
def test_other_versions_and_processors_have_models_of_their_own(changed, path, monkeypatch):
    compiled(path)
    kept.versions.cache_clear()
    if changed == "versions":
        monkeypatch.setattr(cache, "versions", lambda: "others")
    elif changed == "cpu":
        monkeypatch.setattr(cpu, "describe", lambda: "another")
    else:
        monkeypatch.setattr(cache, "version_of", lambda name: "99")
    try:
        assert compiled(path).origin == ""
    finally:
        kept.versions.cache_clear()


def test_an_edited_source_makes_another_model(path, tmp_path, monkeypatch):
    """Whatever its time says: some ways to install give all files one."""
    compiled(path)
    top = Path(kept.__file__).parents[1]
    copy = tmp_path / "graphq"
    for name in ("passes/fuse.py", "model/build_plan.py", "onnx/loading.py", "ops/matmul.py"):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes((top / name).read_bytes())
    monkeypatch.setattr(kept, "__file__", str(copy / "model" / "kept.py"))
    digests = []
    for name in ("", "passes/fuse.py", "model/build_plan.py", "onnx/loading.py", "ops/matmul.py"):
        if name:
            (copy / name).write_text((copy / name).read_text() + " ")
            os.utime(copy / name, (0, 0))
        kept.versions.cache_clear()
        digests.append(kept.Kept.of(path, None, 1).digest)
    kept.versions.cache_clear()
    assert len(set(digests)) == 5


def test_a_file_that_changes_while_it_is_loaded(path, monkeypatch, caplog):
    first, other = path.read_bytes(), path.with_name("other.onnx")
    gq.save_onnx(dense(5, 16, 8, seed=1), other)
    of = kept.Kept.of

    def swapped(*arguments):
        made = of(*arguments)
        path.write_bytes(other.read_bytes())
        return made

    monkeypatch.setattr(kept.Kept, "of", staticmethod(swapped))
    with caplog.at_level(logging.INFO, "graphq"):
        assert compiled(path).origin == ""
    monkeypatch.undo()
    assert "is not kept: its file or graph has changed since" in caplog.text
    path.write_bytes(first)
    assert compiled(path).origin == ""


def test_a_file_under_another_s_name_is_not_used(path, folder, tmp_path):
    gq.save_onnx(dense(5, 16, 8, seed=1), tmp_path / "other.onnx")
    compiled(path)
    (file,) = files(folder)
    compiled(tmp_path / "other.onnx")
    (other,) = set(files(folder)) - {file}
    other.write_bytes(file.read_bytes())
    model = compiled(tmp_path / "other.onnx")
    assert model.origin == "" and same(model(feeds(model)), model.formula(feeds(model)))


# -- damage -----------------------------------------------------------------------------------------------------------

def test_damaged_models_are_compiled_anew(path, folder, caplog):
    first = compiled(path)
    (file,) = files(folder)
    whole, given = file.read_bytes(), feeds(first)
    rng = np.random.default_rng(0)
    for at in [0, 9, 200, len(whole) - 1, *rng.integers(0, len(whole), 12).tolist()]:
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1:])
        model = compiled(path)
        assert model.origin == "" and same(model(given), first(given))
        assert file.read_bytes()[:8] == whole[:8]  # a new one
    for size in (0, 10, 100, len(whole) // 2):
        file.write_bytes(whole[:size])
        assert compiled(path).origin == ""
    assert "cannot be used, and is compiled anew" in caplog.text
    assert compiled(path).origin.startswith(FOUND)


def test_a_model_of_another_format_is_compiled_anew(path, folder, monkeypatch):
    compiled(path)
    monkeypatch.setattr(format, "FORMAT", format.FORMAT + 1)
    assert compiled(path).origin == ""
    assert compiled(path).origin.startswith(FOUND)


def test_code_of_a_file_that_others_can_write_to_is_not_run(path, folder):
    compiled(path)
    (file,) = files(folder)
    file.chmod(0o666)
    assert compiled(path).origin == ""
    assert not file.stat().st_mode & stat.S_IWOTH
    assert compiled(path).origin.startswith(FOUND)


def test_a_folder_that_others_can_write_to_is_not_used(path, folder):
    compiled(path)
    folder.chmod(0o777)
    (file,) = files(folder)
    before = file.stat().st_mtime_ns
    assert compiled(path).origin == ""
    assert file.stat().st_mtime_ns == before


def test_what_lies_in_the_model_s_place(path, folder):
    compiled(path)
    (file,) = files(folder)
    file.unlink()
    file.mkdir()
    assert compiled(path).origin == ""
    file.rmdir()
    file.symlink_to(path)  # no model
    assert compiled(path).origin == ""
    assert compiled(path).origin.startswith(FOUND) and path.exists()


def test_a_full_disk_is_a_warning(path, monkeypatch, caplog):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(format.os, "replace", full)
    with caplog.at_level(logging.WARNING, "graphq"):
        model = compiled(path)
    assert "a compiled model is not kept" in caplog.text and "No space left" in caplog.text
    assert same(model(feeds(model)), compiled(path, cache=False)(feeds(model)))


KILLED = """
import os, signal, sys
import graphq as gq
replace = os.replace
def kill(source, target):
    if str(target).endswith(".graphq"):
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)
os.replace = kill
gq.compile(sys.argv[1], threads=1)
"""


def test_a_process_that_is_killed_while_it_writes_does_no_harm(plain_path, folder):
    done = subprocess.run([sys.executable, "-c", KILLED, str(plain_path)], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    left = [p for p in folder.iterdir() if p.name.startswith(".graphq.")]
    assert len(left) == 1
    assert compiled(plain_path, threads=1).origin == "" and compiled(plain_path, threads=1).origin.startswith(FOUND)
    assert cache.tidy(folder, now=left[0].stat().st_mtime + 7200) == 1 and not left[0].exists()


def test_threads_that_compile_one_file_at_once(path, folder):
    results, given = [], feeds(compiled(path, cache=False))

    def use():
        results.append(compiled(path, threads=1)(given))

    threads = [threading.Thread(target=use) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 6 and all(same(r, results[0]) for r in results)
    assert len(files(folder)) == 1 and compiled(path, threads=1).origin.startswith(FOUND)


USER = """
import sys
import numpy as np
import graphq as gq
model = gq.compile(sys.argv[1], threads=2)
x = {n: np.ones(t.shape, t.dtype.numpy) for n, t in model.inputs.items()}
y = model(x)
print(bool(model.origin), int(y.astype(np.int64).sum()))
"""


def test_processes_that_compile_one_file_at_once(plain_path, folder):
    def begin():
        return subprocess.Popen([sys.executable, "-c", USER, str(plain_path)], stdout=subprocess.PIPE, text=True)

    said = [p.communicate()[0].split() for p in [begin(), begin()]]
    assert len({total for _, total in said}) == 1
    assert begin().communicate()[0].split() == ["True", said[0][1]]


# -- open sizes, the folder -------------------------------------------------------------------------------------------

def test_plans_that_calls_add_are_kept(tmp_path, monkeypatch):
    g = gq.Graph()
    x = g.input("x", dtype="u8", shape=(None, 16))
    w = g.dequantize(g.constant(np.arange(-64, 64, dtype=np.int8).reshape(16, 8)), scales=[0.5])
    g.output(g.quantize(g.matmul(g.dequantize(x, scales=[0.25]), w), dtype="u8", scales=[4.0]), name="y")
    gq.save_onnx(g, tmp_path / "m.onnx")
    first = compiled(tmp_path / "m.onnx")
    sizes = (1, 5, 70, 300)
    wanted = [first(feeds(first, n)) for n in sizes]
    written()
    again = compiled(tmp_path / "m.onnx")
    assert again.origin.startswith(FOUND) and len(again.plans.all()) == len(first.plans.all()) > 2
    monkeypatch.setattr("graphq.passes.run_passes", None)
    assert all(same(again(feeds(again, n)), y) for n, y in zip(sizes, wanted, strict=True))
    monkeypatch.undo()
    wanted = first(feeds(first, 3000))
    assert same(again(feeds(again, 3000)), wanted)  # a plan that the file lacked; both write it
    written()
    once_more = compiled(tmp_path / "m.onnx")
    assert len(once_more.plans.all()) == len(again.plans.all()) and same(once_more(feeds(again, 3000)), wanted)


def test_models_count_in_the_folder(path, folder):
    compiled(path)
    compiled(path, threads=1)
    assert cache.info().models == 2 and cache.info().bytes >= sum(p.stat().st_size for p in files(folder))
    model = compiled(path)
    assert cache.clear().models == 2 and files(folder) == []
    assert same(model(feeds(model)), compiled(path)(feeds(model)))  # the removed file stays mapped


def test_use_keeps_a_model(path, folder):
    compiled(path)
    (file,) = files(folder)
    os.utime(file, (1e9, 1e9))
    compiled(path)
    assert file.stat().st_mtime > 1.5e9
