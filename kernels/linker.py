"""A linker for what LLVM makes of one kernel module: x86-64 ELF object code into executable memory.

The objects are self-contained and position-independent, so that a process loads them without LLVM (50 MB, 50 ms; it
links those of other machines). Sections that are loaded lie in one mapping as in the file; stubs for calls of the C
library follow. Formats are those of the System V ABI and its AMD64 supplement: 4.1 (headers), 4.4 (relocations).
"""
from __future__ import annotations

import ctypes
import mmap
import platform
import struct
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

from graphq.errors import KernelError

_PROGBITS, _SYMTAB, _RELA, _NOBITS = 1, 2, 4, 8
_ALLOC, _EXECUTABLE = 2, 4
_GLOBAL = 1
_X86_64 = 62
MACHINES = {"x86_64": _X86_64, "aarch64": 183, "ppc64le": 21, "riscv64": 243}
_R64, _RPC32, _RPLT32, _RPC64 = 1, 2, 4, 24
_STUB = b"\xff\x25\0\0\0\0"  # jmp [rip], the address follows
_STUB_BYTES = 16
_MOST = 1 << 26  # bytes of a module; the largest have some 10,000

_kept: list[object] = []
"""Code, which stays where it is for as long as the process lives: threads of `shell` are in it while Python ends."""
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_kept))
_gates: dict[int, int] = {}  # addresses of gates, and of what they read


class _Section(NamedTuple):
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    align: int


class _Symbol(NamedTuple):
    name: str
    section: int
    value: int
    seen: bool  # from outside


class Gates:
    """Functions of a module that is not compiled yet: jumps to where they will be. Calls before `open` end the process.

    The jumps are in a page of code, what they read in one of data.
    """

    def __init__(self, names: Sequence[str]) -> None:
        page = mmap.PAGESIZE * -(-len(names) * _STUB_BYTES // mmap.PAGESIZE)
        self._room, base = _memory(2 * page)
        self.addresses = {name: base + k * _STUB_BYTES for k, name in enumerate(names)}
        self._places = {name: page + 8 * k for k, name in enumerate(names)}
        _gates.update({self.addresses[name]: base + place for name, place in self._places.items()})
        for k in range(len(names)):
            at = k * _STUB_BYTES
            self._room[at:at + 6] = _STUB[:2] + struct.pack("<i", page + 8 * k - at - 6)
        _protect(base, page)
        _kept.append(self._room)

    def open(self, found: Mapping[str, int]) -> None:
        """Let the functions be those at the addresses that `link` gave."""
        for name, place in self._places.items():
            struct.pack_into("<Q", self._room, place, found[name])


def behind(address: int) -> int:
    """The address of a function, where `address` may be that of its gate, which is open."""
    return ctypes.c_uint64.from_address(_gates[address]).value if address in _gates else address


def link(data: bytes) -> dict[str, int]:
    """Load an object file; the addresses of its global functions by name.

    Raises KernelError for what is not a whole x86-64 object, or has relocations or symbols that are not known.
    """
    try:
        return _link(data)
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise KernelError(f"damaged object code: {error}") from None


def _link(data: bytes) -> dict[str, int]:
    if data[:6] != b"\x7fELF\x02\x01" or data[16] != 1 or MACHINES.get(platform.machine()) != data[18]:
        raise KernelError("not a relocatable 64-bit ELF object of this machine")
    sections = _sections(data)
    symbols = next((_symbols(data, sections, s) for s in sections if s.kind == _SYMTAB), [])
    if data[18] != _X86_64:
        return _by_llvm(data, [x.name for x in symbols if x.seen and sections[x.section].flags & _EXECUTABLE])
    places, size = _laid_out(sections)
    outer = list(dict.fromkeys(x.name for x in symbols[1:] if x.section == 0))
    stubs = {name: (-(-size // _STUB_BYTES) + k) * _STUB_BYTES for k, name in enumerate(outer)}
    room, base = _memory(size + _STUB_BYTES * (len(outer) + 1))
    for k, at in places.items():
        s = sections[k]
        if s.kind == _PROGBITS:
            room[at:at + s.size] = _cut(data, s.offset, s.size)
    for name, at in stubs.items():
        room[at:at + _STUB_BYTES] = (_STUB + struct.pack("<Q", _outer(name))).ljust(_STUB_BYTES, b"\0")
    addresses = [stubs[x.name] if x.section == 0 and x.name else places.get(x.section, 0) + x.value for x in symbols]
    for s in sections:
        if s.kind == _RELA and s.info in places:
            _relocate(room, base, data, s, places[s.info], sections[s.info].size, addresses)
    _protect(base, len(room))
    _kept.append(room)
    return {x.name: base + at for x, at in zip(symbols, addresses, strict=True)
            if x.seen and x.section in places and sections[x.section].flags & _EXECUTABLE}


def _laid_out(sections: Sequence[_Section]) -> tuple[dict[int, int], int]:
    """Where the sections that are loaded lie, by their numbers, and the bytes of all."""
    places, size = {}, 0
    for k, s in enumerate(sections):
        if s.flags & _ALLOC and s.kind in (_PROGBITS, _NOBITS):
            align = max(1, s.align)
            places[k] = -(-size // align) * align
            size = places[k] + s.size
    if size > _MOST:
        raise KernelError(f"damaged object code: sections of {size} bytes")
    return places, size


def _memory(size: int) -> tuple[mmap.mmap, int]:
    """New memory to write to, and its address."""
    room = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    return room, ctypes.addressof(ctypes.c_char.from_buffer(room))


def _by_llvm(data: bytes, names: list[str]) -> dict[str, int]:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(reloc="pic", codemodel="small")
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(data))
    engine.finalize_object()
    _kept.append(engine)
    return {name: engine.get_function_address(name) for name in names}


def _cut(data: bytes, offset: int, size: int) -> bytes:
    part = data[offset:offset + size]
    if len(part) != size:
        raise KernelError("damaged object code: it ends early")
    return part


def _sections(data: bytes) -> list[_Section]:
    (start,), (each, count) = struct.unpack_from("<Q", data, 0x28), struct.unpack_from("<HH", data, 0x3A)
    rows = (struct.unpack_from("<IIQQQQIIQQ", data, start + k * each) for k in range(count))
    return [_Section(kind, flags, offset, size, link, info, align)
            for _, kind, flags, _, offset, size, link, info, align, _ in rows]


def _symbols(data: bytes, sections: list[_Section], table: _Section) -> list[_Symbol]:
    names = sections[table.link]
    strings = _cut(data, names.offset, names.size)
    out = []
    for at in range(table.offset, table.offset + table.size, 24):
        name, info, _, section, value, _ = struct.unpack_from("<IBBHQQ", data, at)
        out.append(_Symbol(strings[name:strings.index(b"\0", name)].decode(), section, value, info >> 4 == _GLOBAL))
    return out


def _relocate(room: mmap.mmap, base: int, data: bytes, s: _Section, place: int, size: int,
              addresses: list[int]) -> None:
    """Apply the relocations of one section, which lies at `place`."""
    for at in range(s.offset, s.offset + s.size, 24):
        offset, info, addend = struct.unpack_from("<QQq", data, at)
        target, kind = addresses[info >> 32] + addend, info & 0xFFFFFFFF
        where = place + offset
        if not 0 <= offset <= size - 4 or not 0 <= addresses[info >> 32] < len(room):
            raise KernelError("damaged object code: a relocation outside of its section")
        if kind in (_RPC32, _RPLT32):
            struct.pack_into("<i", room, where, target - where)
        elif kind == _RPC64 and offset <= size - 8:
            struct.pack_into("<q", room, where, target - where)
        elif kind == _R64 and offset <= size - 8:
            struct.pack_into("<Q", room, where, base + target)
        else:
            raise KernelError(f"unknown relocation {kind} in object code")


@cache
def _process() -> ctypes.CDLL:
    """The functions of this process, the C library's among them."""
    return ctypes.CDLL(None, use_errno=True)


def _outer(name: str) -> int:
    """The address of a function of the C library."""
    try:
        found = ctypes.cast(getattr(_process(), name), ctypes.c_void_p).value
    except AttributeError:
        found = None
    if not found:
        raise KernelError(f"object code calls {name!r}, which this process does not have")
    return found


def _protect(address: int, size: int) -> None:
    """Make memory executable, and no longer writeable."""
    if _process().mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), mmap.PROT_READ | mmap.PROT_EXEC):
        raise KernelError(f"memory cannot be made executable (errno {ctypes.get_errno()})")
