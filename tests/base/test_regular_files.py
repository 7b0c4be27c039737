"""Only regular files are read, and no more of them than their size: anything else could wait, or never end."""
import os
import socket
from contextlib import suppress

import numpy as np
import pytest

import graphq as gq
from graphq.base.budget import budget
from graphq.base.paths import named_object, read_arrays, read_file, regular_file
from graphq.model.files import load_graph

KINDS = ("pipe", "device", "folder", "socket", "link to a pipe", "link to a device")


def made(kind, path):
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(path.name)
    else:
        made(kind.removeprefix("link to a "), path.with_name(f"target{path.suffix}"))
        path.symlink_to(f"target{path.suffix}")
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_regular_file_is_refused(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for suffix, read in ((".txt", gq.compile), (".onnx", gq.compile), (".json", gq.compile), ("", load_graph),
                         (".graphq", gq.load_compiled), (".npy", read_arrays), (".npz", read_arrays),
                         (".py", lambda path: named_object(f"{path}:NAME"))):
        path = made(kind, tmp_path / f"x{suffix}")
        with pytest.raises(gq.ParseError, match="not a regular file") as error:
            read(path)
        assert str(error.value).count(str(path)) == 1
        if suffix:
            (tmp_path / f"target{suffix}").unlink(missing_ok=True)


def test_a_file_that_grows_is_read_up_to_its_first_size(tmp_path):
    path = tmp_path / "x.txt"
    path.write_bytes(b"12345")
    with regular_file(path) as (file, nbytes):
        path.write_bytes(b"123456789")
        assert file.read(nbytes) == b"12345"
    assert read_file("/proc/self/status", 1) == b""  # the system makes its bytes up, and says that it has none


def test_a_file_larger_than_memory_is_refused(tmp_path):
    for name in ("x.txt", "x.npy", "x.npz", "x.py"):
        with open(tmp_path / name, "wb") as file:
            file.truncate(1 << 42)
    for read in (lambda: gq.compile(tmp_path / "x.txt"), lambda: read_arrays(tmp_path / "x.npy"),
                 lambda: read_arrays(tmp_path / "x.npz"), lambda: named_object(f"{tmp_path}/x.py:NAME")):
        with pytest.raises(gq.CompileError, match="would take .* more than the limit"):
            read()


def test_what_an_archive_holds_counts_not_its_size(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros(1 << 20, np.float64))
    assert (tmp_path / "x.npz").stat().st_size < 1 << 17
    with budget(1 << 22), pytest.raises(gq.CompileError, match="x.npz: the archive would take 8.*more than the limit"):
        read_arrays(tmp_path / "x.npz")
    with budget(1 << 25):
        assert read_arrays(tmp_path / "x.npz")["x"].size == 1 << 20


def test_damaged_arrays(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((2, 3), np.float32))
    np.savez_compressed(tmp_path / "x.npz", x=np.ones((20, 30), np.float32))
    array, archive = (tmp_path / "x.npy").read_bytes(), (tmp_path / "x.npz").read_bytes()
    assert read_arrays(tmp_path / "x.npy").shape == (2, 3) and read_arrays(tmp_path / "x.npz")["x"].shape == (20, 30)
    bad = [b"", b"text", array[:-1], array[:70], archive[:-1], archive[:100], archive[:-9],
           array.replace(b"(2, 3), }", b"(1<<70,)}"), array.replace(b"(2, 3)", b"(99**9)")]
    for data in bad:
        (tmp_path / "bad").write_bytes(data)
        with pytest.raises(gq.InputError) as error:
            read_arrays(tmp_path / "bad")
        assert str(error.value).startswith(f"{tmp_path / 'bad'}: ")
    for k in range(0, len(archive), 3):
        (tmp_path / "bad").write_bytes(archive[:k] + bytes([archive[k] ^ 255]) + archive[k + 1:])
        with suppress(gq.InputError):  # some bytes of an archive, such as times, do not matter
            read_arrays(tmp_path / "bad")
