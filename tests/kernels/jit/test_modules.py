"""Kernel modules: what a second process does, and what damage, races and broken folders mean for what is called."""
import ctypes
import json
import logging
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from operator import index
from types import ModuleType

import numpy as np
import pytest
from kernel_factories import divided_by_zero, multiples, of_a_missing_package, of_an_unknown_name

from graphq.errors import KernelError
from graphq.kernels.jit import cache, codegen, modules
from graphq.kernels.jit.cache import Code, Entry
from graphq.kernels.jit.modules import FunctionTable, ModuleCounts, Source, load
from graphq.kernels.lanes.epilogues import Epilogue
from graphq.kernels.lanes.expression import load as load_operand
from graphq.kernels.target import isa

CHILD = """
import json, sys
import numpy as np
from graphq.kernels.jit import cache, modules
from kernel_factories import multiples
module = modules.load("test", multiples, 2)
out = np.zeros(2, np.int64)
module.block(out.ctypes.data, 5)
module.times(21, out.ctypes.data + 8)
got = modules.statistics()
print(json.dumps({"out": out.tolist(), "compiled": got.compiled, "loaded": got.loaded, "numba": "numba" in sys.modules,
                  "path": str(cache.folder())}))
"""


def start(folder):
    """Begin a process that loads and calls a module."""
    return subprocess.Popen([sys.executable, "-c", CHILD], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            env={**os.environ, "GRAPHQ_CACHE_DIR": str(folder)})


def finish(child):
    with child.stdout, child.stderr:
        out, errors = child.stdout.read(), child.stderr.read()
    assert child.wait() == 0, errors
    found = json.loads(out)
    assert found["out"] == [5, 42] and not found["numba"]
    return found


def times(module, x=21):
    """What the function gives for `x`."""
    out = np.zeros(1, np.int64)
    module.times(x, out.ctypes.data)
    return int(out[0])


def of_no_importable_file():
    """Its file has a name here that another process cannot import."""


of_no_importable_file.__module__ = "no_such_module"


@contextmanager
def counted(compiled=0, loaded=0):
    """Within the block, so many modules are compiled and loaded from the folder."""
    before = modules.statistics()
    yield
    assert modules.statistics() == ModuleCounts(before.compiled + compiled, before.loaded + loaded)


@pytest.fixture
def fresh(monkeypatch):
    """A function that forgets the modules of this process, as a new one has none."""

    def forget():
        monkeypatch.setattr(modules, "modules_by_key", {})

    forget()
    return forget


def test_a_second_process_compiles_nothing_also_after_a_race(folder, fresh):
    first = [finish(child) for child in [start(folder) for _ in range(2)]]
    assert all(x["compiled"] + x["loaded"] == 1 for x in first) and any(x["compiled"] for x in first)
    assert [file.name for file in folder.iterdir()] == [Entry("test", Source(multiples, (2,)).text).name]
    second = finish(start(folder))
    assert (second["compiled"], second["loaded"], second["path"]) == (0, 1, str(folder))
    with counted(loaded=1):
        assert times(load("test", multiples, 2)) == 42


def test_levels_have_code_of_their_own(fresh, monkeypatch):
    monkeypatch.setattr(isa.Level, "withheld", property(lambda level: ("avx2",) if level.name == "scalar" else ()))
    levels = isa.LEVELS[0], isa.LEVELS[-1], None
    recipes = [load("test", multiples, 9, level=level, cache=False).recipe for level in levels]
    assert len({*recipes}) == 3, "code without a level has no special instructions"
    entries = [cache.Entry("test", "source", without) for without in ((), ("avx2",), ("avx512f",))]
    assert len({x.name for x in entries}) == 3 and len({x.recipe for x in entries}) == 1


def test_code_that_is_asked_for_is_kept(folder, fresh):
    with counted(compiled=1):
        assert load("test", multiples, 9).code.object
    fresh()
    with counted(loaded=1):
        assert times(load("test", multiples, 9)) == 189


def test_code_that_nobody_asks_for_is_kept_too(folder, fresh):
    """Such as that of kernels which other sizes may need: the next process would compile it again."""
    job = load("test", multiples, 11)._job
    while not job.done:
        time.sleep(0.001)
    with counted():
        assert [x.name for x in folder.iterdir()] == [Entry("test", Source(multiples, (11,)).text).name]
    fresh()
    with counted(loaded=1):
        assert times(load("test", multiples, 11)) == 231


def test_damaged_files_are_made_anew(folder, fresh):
    with counted(compiled=1):
        assert times(load("test", multiples, 3)) == 63
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    for damaged in (b"", whole[:20], whole[:100], whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1]), bytes(len(whole))):
        path.write_bytes(damaged)
        fresh()
        with counted(compiled=1):
            assert times(load("test", multiples, 3)) == 63
        assert path.read_bytes() == whole
    fresh()
    with counted(loaded=1):
        assert times(load("test", multiples, 3)) == 63


def test_what_llvm_cannot_load_is_made_anew(folder, fresh):
    """The file is whole and this kernel's, but its code is not of this machine, or lacks a function."""
    entry = Entry("test", Source(multiples, (4,)).text)
    index(load("test", multiples, 4).times)
    good = entry.read()
    for bad in (good._replace(object=b""), good._replace(object=b"not of this machine"),
                good._replace(object=good.object[:200]), Code(good.object, ("times", "block", "more"))):
        entry.write(bad)
        fresh()
        with counted(compiled=1):
            assert times(load("test", multiples, 4)) == 84
        assert entry.read() == good


def test_another_kernels_file_is_not_run(folder, fresh):
    first, second = (Entry("test", Source(multiples, (k,)).text) for k in (5, 6))
    assert times(load("test", multiples, 5)) == 105
    shutil.copy(folder / first.name, folder / second.name)
    with counted(compiled=1):
        assert times(load("test", multiples, 6)) == 126


def test_a_folder_that_was_opened_is_not_read(folder, fresh):
    assert times(load("test", multiples, 7)) == 147
    folder.chmod(0o777)
    fresh()
    with counted(compiled=1):
        assert times(load("test", multiples, 7)) == 147


def test_a_full_disk_costs_no_result(folder, fresh, monkeypatch, caplog):
    def full(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache.os, "replace", full)
    with caplog.at_level(logging.WARNING, "graphq"):
        assert times(load("test", multiples, 8)) == 168
    assert "No space left" in caplog.text and not list(folder.iterdir())


def test_without_the_cache_nothing_is_read_or_written(folder, fresh):
    with counted(compiled=1):
        assert times(load("test", multiples, 9, cache=False)) == 189
    assert not folder.exists()
    index(load("test", multiples, 10).times)
    fresh()
    with counted(compiled=1):
        assert times(load("test", multiples, 10, cache=False)) == 210


def test_loaded_modules_outlive_their_files(folder, fresh):
    module = load("test", multiples, 11)
    address = module.times.address
    assert cache.clear().modules == 1
    assert times(module) == 231 and module.times.address == address
    fresh()
    again = load("test", multiples, 11)
    assert times(again) == 231 and again.times.address != address


def test_a_module_is_made_once_even_by_many_threads(folder, fresh):
    made, given = [], []

    def use(k):
        made.append(load("test", multiples, 12))
        given.append(times(made[-1], k) == 12 * k)

    threads = [threading.Thread(target=use, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(made) == 8 and len(set(map(id, made))) == 1 and given == [True] * 8
    assert load("test", multiples, 12) is made[0]
    assert len(list(folder.iterdir())) == 1


def test_functions_and_tables_wait_for_their_code(folder, fresh):
    module = load("test", multiples, 13, cache=False)
    table = FunctionTable([module.times, 0, module.block, 77])
    assert repr(module.times) == "<function times of test>" and repr(module) == "<kernel module test>"
    words = (np.ctypeslib.ctypes.c_int64 * 4).from_address(index(table))
    assert list(words) == [index(module.times), 0, module.block.address, 77] and module.times.address != 0
    assert index(table) == index(table)


def test_threads_that_ask_a_table_at_a_time_get_its_one_address():
    """An array that one of them replaced would be freed under the other's address."""
    together, addresses = threading.Barrier(2), []

    class Late:
        """An entry that both threads are about to write."""

        def __int__(self):
            together.wait(timeout=60)
            return 7

    table = FunctionTable([Late(), 5])
    threads = [threading.Thread(target=lambda: addresses.append(index(table))) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(addresses) == 2 and len(set(addresses)) == 1
    assert (ctypes.c_int64 * 2).from_address(addresses[0])[:] == [7, 5]


def test_sources_are_equal_where_all_of_their_arguments_are():
    stores = [Epilogue(load_operand(0, "f32", "vector") * x, "f32") for x in (0.0, -0.0, 1.0, 1.5)]
    arguments = [(), (1,), (True,), ("1",), (None,), ((1,),), ((1, 2), 3), (1, (2, 3)), *((x,) for x in stores)]
    texts = [Source(factory, x).text for factory in (multiples, divided_by_zero) for x in arguments]
    assert len(set(texts)) == len(texts)
    assert texts[1] == "kernel_factories.multiples(1,)"


def test_names_that_are_none(folder):
    with pytest.raises(ValueError, match="lower-case identifier"):
        load("../test", multiples, 1)
    with pytest.raises(ValueError, match="must be a function of a file, got .*<lambda>"):
        load("test", lambda: None)
    with pytest.raises(pickle.PicklingError, match="no_such_module"):
        load("test", of_no_importable_file, cache=False)
    module = load("test", multiples, 14, cache=False)
    with pytest.raises(KernelError, match="kernel module test has no function 'nothing'"):
        index(module.nothing)
    assert not hasattr(module, "_private")


def test_a_defect_in_a_module_is_an_error_each_time(folder, fresh, monkeypatch):
    monkeypatch.setitem(sys.modules, "no_such_module", ModuleType("no_such_module"))
    sys.modules["no_such_module"].of_no_importable_file = of_no_importable_file
    for factory, error in ((divided_by_zero, "ZeroDivisionError"), (of_a_missing_package, "ModuleNotFoundError"),
                           (of_an_unknown_name, "nothing"), (of_no_importable_file, "no_such_module")):
        for _ in range(2):
            with pytest.raises(KernelError, match=error):
                index(load("test", factory).times)
    assert not list(folder.iterdir())


def test_llvm_links_what_codegen_made_as_often_as_asked(folder, fresh):
    index(load("test", multiples, 15).times)
    code = Entry("test", Source(multiples, (15,)).text).read()
    assert codegen.link(*code)["times"] != codegen.link(*code)["times"]
    with pytest.raises(KernelError, match="nothing_like_it"):
        codegen.link(code.object, ("times", "nothing_like_it"))


# -- memory ---------------------------------------------------------------------------------------------------------

SCATTERED = """
import ctypes
import graphq as gq
import numpy as np

libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
RESERVED, SIZE, PAGE = 0x4022, 8 << 30, 4096  # private, anonymous, without a reserve

g = gq.Graph("net")
g.output(g.softmax(g.gelu(g.input("x", shape=(None, 64), dtype="f32")), axis=-1), name="y")
model = gq.compile(g, threads=2)
base = libc.mmap(None, SIZE, 0, RESERVED, -1, 0)
for size in (1 << 26, 1 << 20, 1 << 16, 1 << 14, PAGE):  # fill all holes above
    while (place := libc.mmap(None, size, 0, RESERVED, -1, 0)) > base:
        pass
    libc.munmap(place, size)
for k in range(500):  # what takes one page comes here, what takes more far below
    libc.munmap(base + SIZE - 2 * PAGE * (k + 1), PAGE)
print(model(np.zeros((3, 64), np.float32)).sum())
"""


def test_sections_of_an_object_are_loaded_side_by_side():
    """Code reaches its constants within 2 GB, however scattered free memory is, as in processes with large maps."""
    done = subprocess.run([sys.executable, "-c", SCATTERED], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "3.0\n"), done.stderr


def test_modules_of_saved_code_are_made_once_and_count_as_loaded(folder, fresh, monkeypatch):
    monkeypatch.setattr(modules, "saved_modules", {})
    code, recipe = load("test", multiples, 13).code, load("test", multiples, 13).recipe
    with counted(loaded=1):
        module = modules.saved("test", recipe, "a CPU", code)
        assert times(module) == 273 and times(module, 2) == 26
        assert modules.saved("test", recipe, "a CPU", code) is module and (module.recipe, module.code) == (recipe, code)
    assert repr(module) == "<kernel module test>" and index(module.times) == module.times.address
    with counted(loaded=1):
        assert times(modules.saved("test", recipe, "another CPU", code)) == 273
