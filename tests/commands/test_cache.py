"""The command `cache` lists and removes files, writes kernels to a file, and reads them again."""
import hashlib
import json
import os
import shutil
import subprocess
import sys

import pytest

import graphq as gq
from graphq.cli import main
from graphq.kernels.jit import cache
from graphq.kernels.jit.cache import Code, Entry
from graphq.model import saved_file

ENTRIES = {"one": Code(b"\x7fELF, or so\n\0", ("BLOCK", "twice")), "two": Code(bytes(5000), ("f",))}


def run(capsys, *arguments):
    assert main([str(a) for a in arguments]) == 0
    return capsys.readouterr().out


def test_cache(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("GRAPHQ_CACHE_DIR", str(tmp_path / "kernels"))
    (tmp_path / "kernels").mkdir(mode=0o700)
    names = f"a_{'0' * 32}.o", f"b_{'1' * 32}.o", f"model_{'2' * 32}.graphq", "mine.txt"
    for size, name in enumerate(names, 5):
        (tmp_path / "kernels" / name).write_bytes(bytes(size))
    folder = (tmp_path / "kernels").resolve()
    assert run(capsys, "cache", "info") == f"folder:  {folder}\nmodules: 2\nmodels:  1\nbytes:   18\n"
    assert json.loads(run(capsys, "cache", "info", "--json")) == {"folder": str(folder), "modules": 2, "models": 1,
                                                                 "bytes": 18}
    assert run(capsys, "cache", "clear") == "2 kernel modules and 1 model removed\n"
    assert [x.name for x in folder.iterdir()] == ["mine.txt"]
    assert json.loads(run(capsys, "cache", "clear", "--json")) == {"removed": 0, "models": 0}


# -- kernels in a file ----------------------------------------------------------------------------------------------


def child(*arguments, **environment):
    return subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, check=True,
                          env={**os.environ, **environment}).stdout


RUNS = """
import sys
import numpy as np
import graphq as gq
from graphq.kernels.jit import modules
model = gq.compile(gq.parse(open(sys.argv[1]).read()), cache="kernels", threads=1)
for rows in 1, 5, 100:
    model(np.ones((rows, 64), np.float32))
print(*modules.statistics())
"""


def test_after_import_nothing_is_compiled(tmp_path, capsys, monkeypatch):
    model, file, folder = tmp_path / "net.txt", tmp_path / "kernels.graphq", tmp_path / "kernels"
    model.write_text("graph(x: f32[?,64]) { %0 = softmax(x) return %0 }")
    first = {"GRAPHQ_CACHE_DIR": str(tmp_path / "first")}
    assert int(child("-c", RUNS, model, **first).split()[0]) > 0
    exported = json.loads(child("-m", "graphq", "cache", "export", file, "--json", **first))
    monkeypatch.setenv("GRAPHQ_CACHE_DIR", str(folder))
    assert exported == {"file": str(file), "exported": exported["exported"]}
    assert run(capsys, "cache", "import", file) == f"{exported['exported']} kernel modules imported\n"
    assert len(list(folder.iterdir())) == exported["exported"]
    compiled, loaded = map(int, child("-c", RUNS, model, GRAPHQ_CACHE_DIR=folder).split())
    assert compiled == 0 < loaded <= exported["exported"]


@pytest.fixture
def entries(folder):
    """Entries in the cache, by name."""
    found = {}
    for kind, code in ENTRIES.items():
        entry = Entry(kind, "text", ("avx2",))
        entry.write(code)
        found[entry.name] = entry
    return found


def test_a_read_only_folder_is_shown_and_exported(tmp_path, folder, entries, capsys, monkeypatch):
    monkeypatch.setattr(cache.os, "access", lambda path, mode: not mode & os.W_OK)
    assert run(capsys, "cache", "info").startswith(f"folder:  {folder}\nmodules: 2\n")
    assert run(capsys, "cache", "export", tmp_path / "file") == "2 kernel modules exported\n"


def test_an_empty_cache_is_not_exported(tmp_path, folder, capsys):
    assert main(["cache", "export", str(tmp_path / "file")]) == 2
    assert f"{folder} has none for this processor" in capsys.readouterr().err and not (tmp_path / "file").exists()


@pytest.fixture
def file(tmp_path, folder, entries, capsys):
    """The kernels of `entries` in a file; the cache is empty."""
    path = tmp_path / "file"
    (folder / "mine.txt").write_text("")
    (folder / Entry("old", "text").name).write_bytes(b"of another version")
    assert run(capsys, "cache", "export", path) == "2 kernel modules exported\n"
    shutil.rmtree(folder)
    return path


def refused(capsys, folder, path):
    """The error of an import, after which the cache is as empty as before."""
    assert main(["cache", "import", str(path)]) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.startswith(f"graphq: {path}: ") and error.count("\n") == 1
    assert not folder.exists() or not list(folder.iterdir())
    return error


def test_kernels_are_not_imported_into_a_temporary_folder(folder, file, capsys):
    folder.mkdir()
    folder.chmod(0o777)
    assert main(["cache", "import", str(file)]) == 2
    assert "the kernels would be lost" in capsys.readouterr().err and not list(folder.iterdir())


def test_the_cache_reads_imported_kernels(folder, entries, file, capsys):
    assert run(capsys, "cache", "import", file) == "2 kernel modules imported\n"
    assert {name: entry.read() for name, entry in entries.items()} == dict(zip(entries, ENTRIES.values(), strict=True))
    assert {(folder / name).stat().st_mode & 0o777 for name in entries} == {0o600}
    with pytest.MonkeyPatch.context() as m:  # a read-only folder is read as well, whatever the age of its files
        m.setattr(cache.os, "access", lambda path, mode: not mode & os.W_OK)
        m.setattr(cache, "DAY", -1.0)
        m.setattr(cache.os, "utime", lambda path: open(os.path.join(path, "no folder")))
        assert all(entry.read() == code for entry, code in zip(entries.values(), ENTRIES.values(), strict=True))


def test_damaged_files_are_refused(folder, file, tmp_path, capsys):
    whole, damaged = file.read_bytes(), tmp_path / "damaged"
    for n in (0, 1, 63, 64, 4096, len(whole) - 1):
        damaged.write_bytes(whole[:n])
        refused(capsys, folder, damaged)
    for k in range(0, len(whole), 53):
        damaged.write_bytes(whole[:k] + bytes([whole[k] ^ 4]) + whole[k + 1:])
        refused(capsys, folder, damaged)


@pytest.mark.parametrize("change, part", [
    (lambda index, data: index.update(kernels=index["kernels"][::-1]), "the name of another module"),
    (lambda index, data: index["kernels"].append("one_" + "0" * 32 + ".o"), "there is no section 2"),
    (lambda index, data: index["kernels"].insert(0, "../" + index["kernels"].pop(0)), "not the name"),
    (lambda index, data: index["kernels"].insert(0, "/tmp/" + index["kernels"].pop(0)), "not the name"),
    (lambda index, data: index.update(kernels=5), "not as `graphq cache export` writes them"),
    (lambda index, data: index.update(kernels=[[], {}]), "not as `graphq cache export` writes them"),
    (lambda index, data: index.update(versions="9.9"), "versions '9.9', but here "),
    (lambda index, data: index.update(cpu="linux x86_64 other"), "cpu 'linux x86_64 other', but here "),
    (lambda index, data: data.__setitem__(1, data[1][:-1]), "damaged"),
    (lambda index, data: data.__setitem__(1, data[0]), "the name of another module"),
    (lambda index, data: data.__setitem__(1, b"[1,2]\n"), "damaged"),
    (lambda index, data: index.pop("kernels"), "not as `graphq cache export` writes them")])
def test_changed_files_are_refused(folder, file, tmp_path, capsys, change, part):
    """Whoever changes a file can also give it right hashes."""
    whole = saved_file.File(file)
    index = {name: whole.index[name] for name in ("kernels", "versions", "cpu")}
    data = [bytes(whole.section(k)) for k in range(2)]
    change(index, data)
    saved_file.write(tmp_path / "changed", index, list(map(memoryview, data)))
    assert part in refused(capsys, folder, tmp_path / "changed")


def test_files_of_others_and_of_other_kinds_are_refused(folder, file, tmp_path, capsys):
    file.chmod(0o666)
    assert "others than this user can write to it" in refused(capsys, folder, file)
    assert "No such file" in refused(capsys, folder, tmp_path / "none")
    saved_file.write(tmp_path / "model", {"builds": []}, [])
    assert "reads what `graphq cache export` wrote" in refused(capsys, folder, tmp_path / "model")
    file.chmod(0o600)
    with pytest.raises(gq.GraphqError, match="it holds kernels alone: `graphq cache import` reads it"):
        gq.load_compiled(file)


@pytest.mark.parametrize("head", [b"5", b"[1, 2]", b"[5, [], []]", b'["a", 5, []]', b'["a", [], 5]', b"{}"])
def test_a_kernel_with_a_wrong_head_is_not_used(folder, head):
    """Its hash is right, as anybody can compute it."""
    entry = Entry("kind", "text")
    entry.write(ENTRIES["one"])
    assert entry.read() == ENTRIES["one"] and list(cache.usable_modules()) == [entry.name]
    data = head + b"\ncode"
    (folder / entry.name).write_bytes(hashlib.sha256(data).digest() + data)
    assert entry.read() is None and cache.usable_modules() == {}


@pytest.mark.parametrize("arguments, part", [
    (["info", "file"], "cache info takes no FILE, got file"), (["export"], "cache export needs a FILE"),
    (["export", "folder/file"], "folder/file")])
def test_wrong_arguments(tmp_path, entries, monkeypatch, capsys, arguments, part):
    monkeypatch.chdir(tmp_path)
    assert main(["cache", *arguments]) == 2
    assert part in capsys.readouterr().err
