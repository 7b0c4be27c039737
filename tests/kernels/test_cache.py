"""The kernel cache: where it lives, what a second process does, and what damage it survives."""
import hashlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from graphq.kernels import backend, cache, compiling

SOURCE = '''"""A kernel that writes its index."""
from graphq.kernels.cache import block, function
from graphq.kernels.expression import const
from graphq.kernels.stores import Store
from graphq.kernels.intrinsics import store_s64
from graphq.kernels.store_code import epilogue

WRITE = epilogue(Store(const({value}, "s32"), "s32"), 1)


@block
def BLOCK(args, index):
    WRITE(args, 0, 0, index, 1, 1, 0, 0, 0)


@function("intp", "intp")
def twice(x, target):
    store_s64(target, 2 * x)
'''

_CHILD = """
import json, sys
import numpy as np
from graphq.kernels import cache
from graphq.kernels.intrinsics import HEADER_WORDS
module = cache.load("test", sys.stdin.read())
out = np.zeros(3, np.int32)
module.BLOCK(np.array([0] * HEADER_WORDS + [out.ctypes.data, 0, 0]).ctypes.data, 1)
double = np.zeros(1, np.int64)
module.twice(21, double.ctypes.data)
got = cache.statistics()
print(json.dumps({"out": out.tolist(), "twice": int(double[0]), "compiled": got.compiled, "loaded": got.loaded,
                  "numba": "numba" in sys.modules, "llvm": "llvmlite.binding" in sys.modules,
                  "path": str(cache.info().path), "bytes": cache.info().bytes}))
"""


def start(folder, value=7, **environment):
    """Begin a process that loads and runs the kernel."""
    names = {k: v for k, v in os.environ.items() if k not in ("GRAPHQ_CACHE_DIR", "XDG_CACHE_HOME")}
    names |= {} if folder is None else {"GRAPHQ_CACHE_DIR": str(folder)}
    names |= environment
    child = subprocess.Popen([sys.executable, "-c", _CHILD], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, env={k: v for k, v in names.items() if v is not None})
    child.stdin.write(SOURCE.format(value=value))
    child.stdin.close()
    return child


def finish(child):
    out, errors = child.stdout.read(), child.stderr.read()
    child.stdout.close()
    child.stderr.close()
    assert child.wait() == 0, errors
    found = json.loads(out)
    assert (found["out"], found["twice"]) == ([0, 7, 0], 42)
    return found


def twice(module):
    """Twice 21, by the module's function."""
    out = np.zeros(1, np.int64)
    module.twice(21, out.ctypes.data)
    return out[0]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A new cache folder for this process and its children."""
    monkeypatch.setenv("GRAPHQ_CACHE_DIR", str(tmp_path / "kernels"))
    return tmp_path / "kernels"


def test_a_second_process_compiles_nothing(folder):
    first, second = finish(start(folder)), finish(start(folder))
    assert (first["compiled"], first["loaded"]) == (2, 0)
    assert (second["compiled"], second["loaded"]) == (0, 2)
    assert (first["numba"], first["llvm"]) == (True, True)
    assert (second["numba"], second["llvm"]) == (False, False)
    assert folder.stat().st_mode & 0o777 == 0o700
    (module,) = folder.glob("test_*.py")
    assert module.read_text() == SOURCE.format(value=7)
    assert sorted(p.suffix for p in folder.iterdir()) == [".o", ".py"]


def test_damaged_files_are_made_anew(folder, monkeypatch):
    def load():
        """As a new process would: how many functions were compiled."""
        monkeypatch.setattr(cache, "_modules", {})
        before = cache.statistics().compiled
        assert twice(cache.load("test", SOURCE.format(value=4))) == 42
        return cache.statistics().compiled - before

    assert (load(), load()) == (2, 0)
    (module,) = folder.glob("test_*.py")
    (code,) = folder.glob("test_*.o")
    for path in (module, code):
        for damaged in (path.read_bytes()[:40], b"", b"\0" + path.read_bytes()[1:]):
            path.write_bytes(damaged)
            load()
            assert load() == 0, path
            assert module.read_text() == SOURCE.format(value=4)
    foreign = b"not of this machine"
    code.write_bytes(foreign + hashlib.sha256(foreign).digest())
    assert (load(), load()) == (2, 0)


def test_processes_may_race(folder):
    children = [start(folder) for _ in range(2)]
    assert {finish(c)["path"] for c in children} == {str(folder)}
    assert finish(start(folder))["compiled"] == 0


def test_numba_settings_of_the_machine_have_code_of_their_own(folder, tmp_path):
    plain, other = {"NUMBA_CACHE_DIR": str(tmp_path / "numba")}, {"NUMBA_OPT": "2"}
    assert [finish(start(folder, **names))["compiled"] for names in (plain, other, plain, other)] == [2, 2, 0, 0]
    assert not (tmp_path / "numba").exists()
    assert len(list(folder.glob("*.o"))) == 2


def test_where_the_folder_is(tmp_path):
    home, base = tmp_path / "home", tmp_path / "xdg"
    home.mkdir()
    assert finish(start(None, HOME=str(home)))["path"] == str(home / ".cache" / "graphq")
    assert finish(start(None, HOME=str(home), XDG_CACHE_HOME=str(base)))["path"] == str(base / "graphq")


def test_unusable_folders_give_way_to_a_temporary_one(tmp_path):
    shared, blocked = tmp_path / "shared", tmp_path / "file"
    shared.mkdir()
    shared.chmod(0o777)
    blocked.write_text("")
    for wanted in (shared, blocked / "graphq"):
        found = finish(start(wanted))
        assert found["path"] != str(wanted) and not Path(found["path"]).exists()  # removed at exit
        assert found["compiled"] == 2
    assert not list(shared.iterdir())


def test_without_a_home(monkeypatch):
    for name in ("GRAPHQ_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cache.pwd, "getpwuid", {}.__getitem__)  # a user without an entry, as in some containers
    path = cache.folder()
    assert path.is_dir() and path.name.startswith("graphq-")


def test_a_module_is_made_once_even_by_many_threads(folder):
    made = []
    source = SOURCE.format(value=1)
    threads = [threading.Thread(target=lambda: made.append(cache.load("test", source))) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(made) == 8 and len(set(map(id, made))) == 1
    assert cache.load("test", source) is made[0]


def test_without_the_cache_nothing_is_written(folder):
    before = cache.statistics().compiled
    module = cache.load("test", SOURCE.format(value=2), cache=False)
    assert twice(module) == 42 and module.BLOCK.address
    assert cache.statistics().compiled == before + 2
    assert not folder.exists()


def test_info_and_clear_know_only_our_files(folder):
    assert cache.info() == cache.Info(folder, 0, 0)
    cache.load("test", SOURCE.format(value=3))
    (folder / "notes.py").write_text("mine")
    (folder / "test_short.py").write_text("mine")
    found = cache.info()
    assert (found.path, found.modules) == (folder, 1) and found.bytes > 1000
    assert cache.clear() == 1
    assert sorted(p.name for p in folder.rglob("*") if p.is_file()) == ["notes.py", "test_short.py"]
    assert cache.info() == cache.Info(folder, 0, 0)


def test_a_defect_in_a_module_is_its_own_error(folder):
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            cache.load("test", "1 / 0\n")
    with pytest.raises(ValueError, match="lower-case identifier"):
        cache.load("../test", "")


def test_gates_open_when_the_code_is_there(folder):
    """Addresses stand before the code is made; the file is written when it is."""
    module = cache.load("test", SOURCE.format(value=11))
    address = module.twice.address
    compiling.finish()
    assert list(folder.glob("test_*.o")) and module.twice.address == address
    assert twice(module) == 42


@pytest.fixture
def request_(folder, monkeypatch):
    """What is asked of the worker for a module."""
    asked = []
    monkeypatch.setattr(compiling, "begin", lambda request, keep: asked.append(request) or {})
    monkeypatch.setattr(cache, "_modules", {})
    cache.load("test", SOURCE.format(value=12), cache=False)
    return asked[0]


@pytest.fixture
def worker():
    made = compiling._Worker()
    yield made
    made.close()


def test_the_worker_makes_the_same_code(request_, worker):
    """Also when the process ended after an answer."""
    here = backend.object_code(request_)
    assert worker.compile(request_) == here
    worker.process.kill()
    worker.process.wait()
    assert worker.compile(request_) == here
    assert worker.compile(request_._replace(bitcode=b"none")) is None


CRASHING = """
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location("backend", {path!r})
backend = sys.modules["backend"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(backend)
compiled = backend.object_code
backend.object_code = lambda request: compiled(request) if request.speed == 2 else os._exit(1)
backend.serve(0, int(sys.argv[1]))
"""


def test_a_worker_that_crashes_at_one_request_is_started_for_the_next(request_, worker, tmp_path, monkeypatch):
    (tmp_path / "script.py").write_text(CRASHING.format(path=backend.__file__))
    monkeypatch.setattr(compiling.backend, "__file__", str(tmp_path / "script.py"))
    here = backend.object_code(request_)
    assert worker.compile(request_) == here
    assert worker.compile(request_._replace(speed=1)) is None
    assert worker.compile(request_) == here


ANSWER = "import os, sys; os.read(0, 9); os.write(int(sys.argv[1]), {})"


@pytest.mark.parametrize("command, script", [
    ("false", ""), ("no such program", ""), (sys.executable, ""),
    (sys.executable, "import os; os.read(0, 9); os._exit(1)"), (sys.executable, ANSWER.format("b'half'")),
    (sys.executable, ANSWER.format("(99).to_bytes(8, 'little') + b'half'"))])
def test_a_worker_that_cannot_work_is_not_started_again(request_, worker, monkeypatch, tmp_path, command, script):
    """It ends at once, does not exist, answers nothing, crashes at a request, or in the middle of its answer."""
    (tmp_path / "script.py").write_text(script)
    monkeypatch.setattr(compiling.sys, "executable", command)
    monkeypatch.setattr(compiling.backend, "__file__", str(tmp_path / "script.py"))
    assert [worker.compile(request_), worker.compile(request_)] == [None, None]
    assert worker.process is None


def test_without_a_worker_modules_are_compiled_here(folder, monkeypatch):
    monkeypatch.setattr(compiling, "in_background", lambda: True)
    monkeypatch.setattr(compiling._Worker, "compile", lambda self, request: None)
    assert twice(cache.load("test", SOURCE.format(value=12))) == 42


def test_without_threads_modules_are_compiled_here(folder, monkeypatch):
    def start(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(compiling, "in_background", lambda: True)
    with monkeypatch.context() as m:
        m.setattr(compiling.threading.Thread, "start", start)
        module = cache.load("test", SOURCE.format(value=15))
    assert twice(module) == 42


def test_an_interrupt_leaves_the_work_to_the_next_call(folder, monkeypatch):
    monkeypatch.setattr(compiling, "in_background", lambda: True)
    monkeypatch.setattr(compiling._Worker, "compile", lambda self, request: None)

    def interrupted(request):
        raise KeyboardInterrupt

    module = cache.load("test", SOURCE.format(value=16))
    with monkeypatch.context() as m, pytest.raises(KeyboardInterrupt):
        m.setattr(compiling.backend, "object_code", interrupted)
        compiling.finish()
    assert twice(module) == 42


def test_on_one_cpu_modules_are_compiled_at_once(folder, monkeypatch):
    monkeypatch.setattr(compiling.os, "sched_getaffinity", lambda process: {0})
    assert not compiling.in_background()
    cache.load("test", SOURCE.format(value=13))
    assert list(folder.glob("test_*.o"))


def test_what_llvm_refuses_stays_refused(monkeypatch):
    """A function whose gate is closed cannot be called, then or later."""
    monkeypatch.setattr(compiling, "_jobs", [])
    monkeypatch.setattr(compiling, "in_background", lambda: True)
    request = backend.Request(b"no bitcode", ("f",), 2, backend.Target("x86_64-unknown-linux-gnu", "generic", ""))
    compiling.begin(request, lambda code: None)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            compiling.finish()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # Python 3.12, of its threads
def test_a_fork_makes_what_its_parent_had_begun(folder):
    module = cache.load("test", SOURCE.format(value=14))
    child = os.fork()
    if child == 0:
        os._exit(0 if twice(module) == 42 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert twice(module) == 42
