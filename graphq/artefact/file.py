"""The file: an index in JSON, and sections of bytes that are mapped into memory read-only.

    64 bytes    magic, version of the format, size of the index, size of the file, SHA-256 of these and the index
    index       JSON, filled up with spaces to a multiple of 4096
    sections    each at a multiple of 64 bytes, zeros between them

The index has the places of the sections in order, and the SHA-256 of each MiB of what follows it: so every byte of the
file is covered, and several threads check them. SHA-256 is what processors have instructions for (1.7 GB/s a thread
here, twice BLAKE2b). Hashes notice damage. They say nothing about who wrote the file: `private` does.
"""
from __future__ import annotations

import hashlib
import json
import mmap
import os
import stat
import struct
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from graphq.errors import GraphError, ParseError
from graphq.kernels.jit.cache import is_private
from graphq.kernels.threads.count import process_cores
from graphq.paths import path_of

MAGIC = b"\x89graphq\n"
FORMAT = 2
"""Grows with each change of the format, and of what plans and steps mean."""
PIECE = 1 << 20
"""Bytes that one hash is of."""
ALIGNMENT = 64
_PAGE = 4096
_HEAD = struct.Struct("<8sIIQQ")
_DIGEST = hashlib.sha256().digest_size


def write(path: str | os.PathLike[str], index: Mapping[str, Any], sections: Sequence[memoryview]) -> None:
    """Write a file; other processes see the whole of it, or what was there before. Raises GraphError where it cannot.

    A file that is mapped somewhere stays as it is: the new one takes its name alone.
    """
    target = path_of(path)
    places, end = [], 0
    for x in sections:
        start = -(-end // ALIGNMENT) * ALIGNMENT
        end = start + x.nbytes
        places.append((start, x.nbytes))
    text = json.dumps({**index, "sections": places, "hashes": _hashes(_bytes_of(places, sections))},
                      separators=(",", ":")).encode()
    text += b" " * (-(_HEAD.size + _DIGEST + len(text)) % _PAGE)
    head = _HEAD.pack(MAGIC, FORMAT, 0, len(text), _HEAD.size + _DIGEST + len(text) + end)
    try:
        if target.exists() and not target.is_file():
            raise ValueError("there is something else than a file")
        temporary = target.with_name(f".graphq.{uuid.uuid4().hex}")
        try:
            with open(temporary, "xb") as file:
                file.write(head + hashlib.sha256(head + text).digest() + text)
                file.writelines(_bytes_of(places, sections))
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except (OSError, ValueError) as e:
        raise GraphError(f"{str(target)!r} cannot be written: {getattr(e, 'strerror', None) or e}") from None


def _bytes_of(places: Sequence[tuple[int, int]], sections: Sequence[memoryview]) -> Iterator[memoryview]:
    """The sections, and the zeros between them."""
    at = 0
    for (start, nbytes), x in zip(places, sections, strict=True):
        yield memoryview(bytes(start - at))
        yield x
        at = start + nbytes


def _hashes(parts: Iterable[memoryview]) -> list[str]:
    """The hashes of pieces of the parts one after another."""
    out, now, room = [], hashlib.sha256(), PIECE
    for part in parts:
        while part.nbytes >= room:
            now.update(part[:room])
            out.append(now.hexdigest())
            part, now, room = part[room:], hashlib.sha256(), PIECE
        now.update(part)
        room -= part.nbytes
    return [*out, now.hexdigest()]


class File:
    """A file that was read and checked: `index`, and its sections as read-only memory, for as long as that is used.

    `private` says whether it belongs to this user or to root, and nobody else can write to it: as with files of the
    kernel cache, only then may code come from it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises ParseError where there is no such file, or it is not one that `write` wrote."""
        self.path = str(path_of(path))
        data = self._mapped()
        if len(data) < _HEAD.size + _DIGEST or data[:len(MAGIC)] != MAGIC:
            self.fail("not a compiled model of graphq")
        head = bytes(data[:_HEAD.size])
        _, version, _, size, total = _HEAD.unpack(head)
        if version != FORMAT:
            self.fail(f"format {version}; this is graphq with format {FORMAT}: compile the model again, and save it")
        if total != len(data):
            self.fail(f"damaged: it has {len(data)} bytes of {total}")
        begin = _HEAD.size + _DIGEST
        text, self._body = data[begin:begin + size], data[begin + size:]
        if begin + size > len(data) or hashlib.sha256(head + text).digest() != data[_HEAD.size:begin]:
            self.fail("damaged: its index does not have the hash that it states")
        self.index = self._read_index(bytes(text))
        self._places = self._checked_places(self.index.get("sections"))
        self._check_hashes(self.index.get("hashes"))

    def fail(self, problem: str) -> NoReturn:
        """Raise ParseError that names the file."""
        raise ParseError(f"{self.path}: {problem}") from None

    def section(self, number: Any) -> memoryview:
        """The bytes of a section. Raises ParseError for the number of none."""
        if type(number) is not int or not 0 <= number < len(self._places):
            self.fail(f"there is no section {number!r:.40}")
        start, nbytes = self._places[number]
        return self._body[start:start + nbytes]

    def _mapped(self) -> memoryview:
        try:
            handle = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError) as e:  # ValueError: a null character in the path
            self.fail(str(getattr(e, "strerror", None) or e))
        try:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode) or found.st_size == 0:
                self.fail("not a file of bytes")
            self.private = is_private(found)
            # all pages at once: they are read now, for the hashes
            return memoryview(mmap.mmap(handle, 0, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ))
        except OSError as e:
            self.fail(str(e.strerror))
        finally:
            os.close(handle)

    def _read_index(self, text: bytes) -> dict[str, Any]:
        try:
            index = json.loads(text)
        except (ValueError, RecursionError) as e:
            self.fail(f"its index is no JSON: {e}")
        if not isinstance(index, dict):
            self.fail("its index is no object")
        return dict(index)

    def _checked_places(self, places: Any) -> list[tuple[int, int]]:
        """The places of sections, which follow one another within the file."""
        out: list[tuple[int, int]] = []
        end = 0
        for place in places if isinstance(places, list) else self.fail("its index has no sections"):
            if not (isinstance(place, list) and len(place) == 2 and all(type(n) is int for n in place)):
                self.fail(f"section {len(out)}: an offset and a size are two integers, got {place!r:.80}")
            start, nbytes = place
            if start % ALIGNMENT or nbytes < 0 or not end <= start <= len(self._body) - nbytes:
                self.fail(f"section {len(out)}: {nbytes} bytes from {start} on overlap others, or are not in the file")
            end = start + nbytes
            out.append((start, nbytes))
        if end != len(self._body):
            self.fail(f"{len(self._body) - end} bytes are in no section")
        return out

    def _check_hashes(self, hashes: Any) -> None:
        pieces = len(self._body) // PIECE + 1
        if not isinstance(hashes, list) or len(hashes) != pieces:
            self.fail(f"its index lacks the hashes of {pieces} pieces")
        wrong: list[int] = []

        def check(first: int, step: int) -> None:
            for k in range(first, pieces, step):
                if hashlib.sha256(self._body[k * PIECE:(k + 1) * PIECE]).hexdigest() != hashes[k]:
                    wrong.append(k)

        count = max(1, min(len(process_cores()), 4, pieces // 4))
        threads = [threading.Thread(target=check, args=(k, count)) for k in range(1, count)]
        for thread in threads:
            thread.start()
        check(0, count)
        for thread in threads:
            thread.join()
        if wrong:
            self.fail(f"damaged: the bytes of piece {min(wrong)} of {pieces} do not have the hash of the index")
