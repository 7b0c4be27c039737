"""The file format: what is written is read, and nothing else."""
import hashlib
import json
import mmap
import os
import threading

import numpy as np
import pytest

import graphq as gq
from graphq.base.budget import expect
from graphq.model import saved_file as format
from graphq.model.saved_file import write

HEAD = format.HEAD.size + format.DIGEST


def checked(path):
    """A file whose hashes are all checked."""
    found = format.File(path)
    found.check()
    return found


@pytest.fixture
def path(tmp_path):
    return tmp_path / "some.graphq"


def sections(*sizes):
    rng = np.random.default_rng(0)
    return [memoryview(rng.integers(0, 256, n, np.uint8)) for n in sizes]


def resealed(data, change):
    """The bytes of a file whose index was changed, with hashes that fit."""
    *_, size, _ = format.HEAD.unpack(data[:format.HEAD.size])
    index = json.loads(data[HEAD:HEAD + size])
    changed = change(index)
    text = json.dumps(index if changed is None else changed).encode()
    text += b" " * (-(HEAD + len(text)) % 4096)
    body = data[HEAD + size:]
    head = format.HEAD.pack(format.MAGIC, format.FORMAT, 0, len(text), HEAD + len(text) + len(body))
    return head + hashlib.sha256(head + text).digest() + text + body


@pytest.mark.parametrize("sizes", [(), (0,), (1,), (64, 0, 65), (3, format.PIECE, 5), (5 * format.PIECE + 7, 1)])
def test_round_trip(path, sizes):
    parts = sections(*sizes)
    write(path, {"a": [1, "x"]}, parts)
    found = checked(path)
    assert found.index["a"] == [1, "x"] and found.private
    for k, part in enumerate(parts):
        got = found.section(k)
        assert bytes(got) == bytes(part) and got.readonly
        assert np.frombuffer(got, np.uint8).ctypes.data % format.ALIGNMENT == 0 or not got.nbytes


def test_what_was_there_stays_until_the_file_is_whole(path):
    write(path, {}, sections(100))
    mapped = checked(path)
    with pytest.raises(TypeError):
        write(path, {"no": object()}, sections(10))
    assert bytes(checked(path).section(0)) == bytes(mapped.section(0))
    write(path, {}, sections(5000))
    assert len(mapped.section(0)) == 100 and len(checked(path).section(0)) == 5000
    assert os.listdir(path.parent) == [path.name]


def test_a_path_that_cannot_be_written(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "none" / "m", tmp_path, "a\0b", tmp_path / "pipe", tmp_path / ("a" * 300), "/"):
        with pytest.raises(gq.GraphError, match="cannot be written"):
            write(path, {}, [])
    assert os.listdir(tmp_path) == ["pipe"]


def test_the_longest_name(tmp_path):
    write(tmp_path / ("a" * 255), {}, [])
    assert checked(tmp_path / ("a" * 255)).private


def test_files_have_the_mode_of_new_files(path, monkeypatch):
    """The mask belongs to all threads of the process, so that none may change it for a moment."""
    mask = os.umask(0o027)
    try:
        monkeypatch.setattr(os, "umask", None)
        write(path, {}, [])
    finally:
        monkeypatch.undo()
        os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o640


def test_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    for path in (tmp_path / "absent", tmp_path, tmp_path / "pipe", tmp_path / "empty", "/dev/null", "a\0b"):
        with pytest.raises(gq.ParseError):
            checked(path)


def test_each_flipped_bit_is_noticed(path, tmp_path):
    write(path, {"key": "value"}, sections(100, 3 * format.PIECE, 77))
    data = path.read_bytes()
    places = np.random.default_rng(1).integers(0, len(data), 150).tolist()
    bad = tmp_path / "bad"
    for at in (*range(HEAD + 8), HEAD + 4000, len(data) - 1, *places):
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        bad.write_bytes(damaged)
        with pytest.raises(gq.ParseError, match="bad: "):
            checked(bad)


def test_each_truncation_is_noticed(path, tmp_path):
    write(path, {"key": "value"}, sections(100, 2 * format.PIECE, 77))
    data = path.read_bytes()
    bad = tmp_path / "bad"
    for size in (0, 1, 7, 8, 31, HEAD - 1, HEAD, HEAD + 1, 4095, 4096, 4097, len(data) // 2, len(data) - 1):
        bad.write_bytes(data[:size])
        with pytest.raises(gq.ParseError):
            checked(bad)
    bad.write_bytes(data + b"\0")
    with pytest.raises(gq.ParseError, match="damaged: it has"):
        checked(bad)


def test_a_file_of_another_format(path, monkeypatch):
    monkeypatch.setattr(format, "FORMAT", 99)
    write(path, {}, [])
    monkeypatch.undo()
    with pytest.raises(gq.ParseError, match=f"format 99; this is graphq with format {format.FORMAT}: compile the mod"):
        checked(path)


def places(*given):
    def change(index):
        index["sections"] = list(given)
    return change


@pytest.mark.parametrize("change", [
    lambda index: [], lambda index: "text", lambda index: index.pop("sections") and None,
    lambda index: index.pop("hashes") and None, lambda index: index["hashes"].append("00"),
    lambda index: index["hashes"].__setitem__(0, 7), lambda index: index["hashes"].clear(),
    places([0, 100], [64, 100]), places([0, 100], [-64, 100]), places([0, -1], [128, 100]), places([0, 2**70]),
    places([0, 100], [128, 1 << 40]), places([1, 99], [128, 100]), places([0.0, 100], [128, 100]), places([0], [1]),
    places([0, 100], [128, 99]), places([True, 100], [128, 100]), places(None), places([0, 100], ["128", 100]),
    lambda index: index.update(sections={"0": [0, 100]}),
], ids=range(20))
def test_a_hostile_index(path, change):
    write(path, {}, sections(100, 100))
    path.write_bytes(resealed(path.read_bytes(), change))
    with pytest.raises(gq.ParseError):
        checked(path)


def test_text_that_is_no_json(path):
    write(path, {}, [])
    data = path.read_bytes()
    for text in (b"{", b"[" * 100_000, b"\xff", b"1" * 5000):
        head = format.HEAD.pack(format.MAGIC, format.FORMAT, 0, len(text), HEAD + len(text))
        path.write_bytes(head + hashlib.sha256(head + text).digest() + text)
        with pytest.raises(gq.ParseError):
            checked(path)
    assert data


def test_what_is_no_model_is_not_read(path, monkeypatch):
    """A sparse file of 1 TiB: zeros, the head of a model, an index of most of it, one without hashes."""
    def heads():
        yield b""
        for size, total, text in ((4096 - HEAD, 1 << 39, b""), (4096 - HEAD, 1 << 40, b""),
                                  ((1 << 40) - HEAD, 1 << 40, b""),
                                  (4096 - HEAD, 1 << 40, b'{"sections": [], "hashes": []}'),
                                  (4096 - HEAD, 1 << 40, b'{"sections": [[0, 1099511623680]], "hashes": []}')):
            head, text = format.HEAD.pack(format.MAGIC, format.FORMAT, 0, size, total), text.ljust(4096 - HEAD)
            yield head + hashlib.sha256(head + text).digest() + text

    monkeypatch.setattr(format, "mapped_file", None)
    monkeypatch.setattr(format, "copied", None)
    for head in heads():
        with open(path, "wb") as file:
            file.write(head)
            file.truncate(1 << 40)
        with pytest.raises(gq.ParseError, match="some.graphq: "):
            checked(path)


def test_a_file_of_others_is_copied_within_the_limit(path, monkeypatch):
    """Who can write to it may change what is mapped after its hashes were checked."""
    write(path, {}, sections(100, 5000))
    path.chmod(0o666)
    found = checked(path)
    before = bytes(found.section(1))
    with open(path, "r+b") as file:
        file.seek(-5000, os.SEEK_END)
        file.write(bytes(5000))
    assert bytes(found.section(1)) == before != bytes(5000) and found.section(1).readonly
    write(path, {}, sections(1 << 20))
    path.chmod(0o666)
    monkeypatch.setattr(format, "expect", lambda nbytes, what: expect(nbytes << 40, what))
    with pytest.raises(gq.CompileError, match="the file would take .* more than the limit"):
        checked(path)


@pytest.mark.parametrize("problem", [OSError(24, "Too many open files"), MemoryError()])
@pytest.mark.parametrize("mode", [0o600, 0o666])
def test_what_cannot_be_read_is_a_parse_error(path, monkeypatch, problem, mode):
    write(path, {}, sections(100))
    path.chmod(mode)

    def fail(*arguments, **options):
        raise problem

    monkeypatch.setattr(mmap, "mmap", fail)
    monkeypatch.setattr(format, "aligned_empty", fail)
    with pytest.raises(gq.ParseError, match="some.graphq: cannot be read: (Too many open files|not enough memory)"):
        checked(path)


@pytest.mark.parametrize("started", [0, 1])
def test_hashes_are_checked_without_threads(path, monkeypatch, started):
    """By as many as can be started, and all of them."""
    start, count = threading.Thread.start, iter(range(started))
    monkeypatch.setattr(format, "process_cores", lambda: set(range(4)))

    def few(self):
        if next(count, None) is None:
            raise RuntimeError("can't start new thread")
        start(self)

    write(path, {}, sections(17 * format.PIECE))
    data = bytearray(path.read_bytes())
    monkeypatch.setattr(threading.Thread, "start", few)
    assert len(checked(path).section(0)) == 17 * format.PIECE
    for piece in (0, 9, 16):
        bad = bytearray(data)
        bad[-17 * format.PIECE + piece * format.PIECE + 5] ^= 1
        path.write_bytes(bad)
        with pytest.raises(gq.ParseError, match=f"piece {piece} of 18"):
            checked(path)


def test_a_piece_that_no_thread_could_check_is_not_taken_for_right(path, monkeypatch):
    write(path, {}, sections(17 * format.PIECE))
    sha256, failed = hashlib.sha256, []

    def without_memory(data=b""):
        if len(data) == format.PIECE and not failed:
            failed.append(1)
            raise MemoryError
        return sha256(data)

    monkeypatch.setattr(format, "process_cores", lambda: {0})
    monkeypatch.setattr(format.hashlib, "sha256", without_memory)
    with pytest.raises(gq.ParseError, match="not enough memory"):
        checked(path)


def test_who_else_can_write_is_seen(path):
    write(path, {}, [])
    assert checked(path).private
    path.chmod(0o666)
    assert not checked(path).private


def test_many_threads_read_and_write(path):
    write(path, {"n": -1}, sections(2 * format.PIECE))
    wrong = []

    def use(n):
        try:
            for _ in range(5):
                write(path, {"n": n}, sections(2 * format.PIECE + n))
                found = checked(path)
                if len(found.section(0)) != 2 * format.PIECE + max(0, found.index["n"]):
                    wrong.append(n)
        except Exception as e:
            wrong.append(e)

    threads = [threading.Thread(target=use, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


@pytest.mark.parametrize("most", [1, 3, 100])
def test_a_range_is_copied_whole_however_it_is_read(most):
    class Short:
        """A file that gives a few bytes at a time."""

        def __init__(self, data):
            self.data, self.at = data, 0

        def seek(self, at):
            self.at = at

        def readinto(self, room):
            count = min(most, len(room), len(self.data) - self.at)
            room[:count] = self.data[self.at:self.at + count]
            self.at += count
            return count

    found = format.copied(Short(bytes(range(20))), 3, 10)
    assert bytes(found) == bytes(range(3, 13)) and found.readonly
