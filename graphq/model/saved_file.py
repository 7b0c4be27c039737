"""Write and read files in the format of saved models: an index in JSON, and sections of bytes.

    64 bytes    magic, version of the format, size of the index, size of the file, SHA-256 of these four and the index
    index       JSON, filled up with spaces to a multiple of 4096
    sections    each at a multiple of 64 bytes, zeros between them

The index has the places of the sections in order, and a SHA-256 hash of each MiB after the index. The hashes cover
every byte of the file, and several threads can check them. Pieces that no wanted section touches are not read. SHA-256
is fast because processors have instructions for it: 1.7 GB/s per thread, twice as fast as BLAKE2b. Hashes detect
damage, but not attacks, since anybody can compute them. `File.private` says whether others could have written the file.
"""
import hashlib
import json
import os
import struct
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from io import BufferedReader
from typing import Any, NoReturn

from graphq.base.budget import expect
from graphq.base.paths import path_of, regular_file
from graphq.base.platform import is_private, mapped_file, new_file, process_cores
from graphq.errors import GraphError, ParseError
from graphq.kernels.jit import aligned_empty

MAGIC = b"\x89graphq\n"
FORMAT = 9
"""The version of the format. Increase it if the format changes, or if the meaning of plans and steps changes."""
PIECE = 1 << 20
"""The number of bytes that each hash covers."""
MOST_INDEX = 1 << 26
"""The most bytes of an index. An index takes 67 bytes per MiB of the file, and under 100 bytes per array or kernel."""
ALIGNMENT = 64
_PAGE = 4096
HEAD = struct.Struct("<8sIIQQ")
DIGEST = hashlib.sha256().digest_size


def write(path: str | os.PathLike[str], index: Mapping[str, Any], sections: Sequence[memoryview], *,
          mode: int = 0o666) -> str:
    """Write a file: other processes see either the old file or the whole new file. Returns the file's digest.

    `mode` has the file's permissions; the process's umask may reduce them. Raises GraphError on failure.
    """
    target = path_of(path)
    places, end = [], 0
    for x in sections:
        start = -(-end // ALIGNMENT) * ALIGNMENT
        end = start + x.nbytes
        places.append((start, x.nbytes))
    text = json.dumps({**index, "sections": places, "hashes": _hashes(_bytes_of(places, sections))},
                      separators=(",", ":")).encode()
    text += b" " * (-(HEAD.size + DIGEST + len(text)) % _PAGE)
    if len(text) > MOST_INDEX:
        raise GraphError(f"{str(target)!r} cannot be written: an index of {len(text)} bytes is too large")
    head = HEAD.pack(MAGIC, FORMAT, 0, len(text), HEAD.size + DIGEST + len(text) + end)
    digest = hashlib.sha256(head + text)
    try:
        if target.exists() and not target.is_file():
            raise ValueError("the path exists and is not a file")
        with new_file(target, mode) as file:
            file.write(head + digest.digest() + text)
            file.writelines(_bytes_of(places, sections))
    except (OSError, ValueError) as e:
        raise GraphError(f"{str(target)!r} cannot be written: {getattr(e, 'strerror', None) or e}") from None
    return digest.hexdigest()


def _bytes_of(places: Sequence[tuple[int, int]], sections: Sequence[memoryview]) -> Iterator[memoryview]:
    at = 0
    for (start, nbytes), x in zip(places, sections, strict=True):
        yield memoryview(bytes(start - at))
        yield x
        at = start + nbytes


def _hashes(parts: Iterable[memoryview]) -> list[str]:
    out, now, room = [], hashlib.sha256(), PIECE
    for part in parts:
        while part.nbytes >= room:
            now.update(part[:room])
            out.append(now.hexdigest())
            part, now, room = part[room:], hashlib.sha256(), PIECE
        now.update(part)
        room -= part.nbytes
    return [*out, now.hexdigest()]


class Fault(ParseError):
    """A ParseError whose message already names the file."""


class File:
    """A file that was read: its `index`, which is checked, its sections (`check` them), and a `digest` of all contents.

    `private` is true if the file belongs to this user or to root, and nobody else can write to it. graphq runs code
    only from private files, and maps them into memory. Other files are read into the memory of this process, because
    they could change after the check of their hashes. Sections are read-only memory, valid while views exist.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Read a file and check its index. Raises ParseError if there is no such file, or `write` did not write it.

        Raises CompileError if the file would take too much memory.
        """
        self.path = str(path_of(path))
        try:
            with regular_file(self.path) as (file, nbytes):
                self._read(file, nbytes)
        except OSError as e:
            self.fail(f"cannot be read: {e.strerror or e}")
        except MemoryError:
            self.fail("cannot be read: not enough memory")

    def _read(self, file: BufferedReader, nbytes: int) -> None:
        self.private = is_private(os.fstat(file.fileno()))
        head = file.read(HEAD.size + DIGEST)
        if len(head) < HEAD.size + DIGEST or head[:len(MAGIC)] != MAGIC:
            self.fail("not a compiled model of graphq")
        _, version, _, size, total = HEAD.unpack(head[:HEAD.size])
        if version != FORMAT:
            self.fail(f"format {version}; this is graphq with format {FORMAT}: compile the model again, and save it")
        if total != nbytes:
            self.fail(f"damaged: it has {nbytes} bytes of {total}")
        begin = len(head) + size
        if size > MOST_INDEX or begin > total or begin % _PAGE:
            self.fail(f"damaged: its index cannot have {size} bytes")
        text = file.read(size)
        if hashlib.sha256(head[:HEAD.size] + text).digest() != head[HEAD.size:]:
            self.fail("damaged: its index does not have the hash that it states")
        self.digest = head[HEAD.size:].hex()
        self.index = self._read_index(text)
        self._places = self._checked_places(self.index.get("sections"), total - begin)
        hashes = self.index.get("hashes")
        if not isinstance(hashes, list) or len(hashes) != (total - begin) // PIECE + 1:
            self.fail(f"its index lacks the hashes of {(total - begin) // PIECE + 1} pieces")
        self._hashes = hashes
        self._body = mapped_file(file)[begin:] if self.private else copied(file, begin, total - begin)

    def fail(self, problem: str) -> NoReturn:
        """Raise a ParseError with the file's path and this problem."""
        raise Fault(f"{self.path}: {problem}") from None

    def section(self, number: Any) -> memoryview:
        """The bytes of the section with this index. Raises ParseError if the section does not exist."""
        start, nbytes = self._place(number)
        return self._body[start:start + nbytes]

    def _place(self, number: Any) -> tuple[int, int]:
        if type(number) is not int or not 0 <= number < len(self._places):
            self.fail(f"there is no section {number!r:.40}")
        return self._places[number]

    def _read_index(self, text: bytes) -> dict[str, Any]:
        try:
            index = json.loads(text)
        except (ValueError, RecursionError) as e:
            self.fail(f"its index is not JSON: {e}")
        if not isinstance(index, dict):
            self.fail("its index is not a JSON object")
        return dict(index)

    def _checked_places(self, places: Any, size: int) -> list[tuple[int, int]]:
        """Check the places of sections: sections must not overlap, and the last one must end at `size`."""
        out: list[tuple[int, int]] = []
        end = 0
        for place in places if isinstance(places, list) else self.fail("its index has no sections"):
            if not (isinstance(place, list) and len(place) == 2 and all(type(n) is int for n in place)):
                self.fail(f"section {len(out)}: an offset and a size are two integers, got {place!r:.80}")
            start, nbytes = place
            if start % ALIGNMENT or nbytes < 0 or not end <= start <= size - nbytes:
                self.fail(f"section {len(out)}: {nbytes} bytes from {start} on overlap others, or are not in the file")
            end = start + nbytes
            out.append((start, nbytes))
        if end != size:
            self.fail(f"{size - end} bytes are in no section")
        return out

    def check(self, sections: Iterable[Any] | None = None) -> None:
        """Raise ParseError if a piece of these sections, or of any, has another hash than the index states."""
        wanted = set(range(len(self._hashes))) if sections is None else {
            piece for section in sections for start, nbytes in [self._place(section)] if nbytes
            for piece in range(start // PIECE, (start + nbytes - 1) // PIECE + 1)}
        pieces, right = sorted(wanted, reverse=True), set()

        def check() -> None:
            while pieces:
                with suppress(IndexError):  # no piece is left
                    k = pieces.pop()
                    if hashlib.sha256(self._body[k * PIECE:(k + 1) * PIECE]).hexdigest() != self._hashes[k]:
                        return pieces.clear()
                    right.add(k)

        threads = [threading.Thread(target=check) for _ in range(min(len(process_cores()), 4, len(wanted) // 4) - 1)]
        with suppress(RuntimeError):  # the system grants no more threads
            for thread in threads:
                thread.start()
        try:
            check()
        except MemoryError:
            self.fail("cannot be read: not enough memory")
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        if right != wanted:
            wrong = min(wanted.difference(right))
            self.fail(f"damaged: the bytes of piece {wrong} of {len(self._hashes)} do not have the hash of the index")


def copied(file: BufferedReader, begin: int, nbytes: int) -> memoryview:
    """Copy `nbytes` bytes of a file, from `begin` on, into aligned memory."""
    expect(nbytes, "the file")
    room = aligned_empty(nbytes).data
    file.seek(begin)
    at = 0
    while count := file.readinto(room[at:]):
        at += count
    return room.toreadonly()
