"""What machine code a block function runs: x86-64 instructions read from memory at the function's address, and counted.

`instructions` follows the code from the entry: branches, and calls of other generated functions (Numba calls by
`movabs $address`). So nothing is taken for an instruction that is not one, and it does not matter whether the code was
compiled now or loaded from the cache. Encodings are those of Intel's Software Developer's Manual, volume 2: chapter 2
(prefixes, ModRM, VEX, EVEX) and appendix A (opcode maps).
"""
from __future__ import annotations

import ctypes
import platform
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from graphq.errors import KernelError
from graphq.kernels import compiling
from graphq.kernels.linker import behind

NONE, P66, F3, F2 = range(4)  # the mandatory prefix, numbered as `pp` of VEX and EVEX
_LEGACY, _0F, _0F38, _0F3A = range(4)  # opcode maps, numbered as in VEX and EVEX

DECISIVE = {  # (map, prefix, W, opcode): what tells how a kernel computes; AMX instructions are in TILE
    (_0F38, P66, 0, 0x50): "vpdpbusd", (_0F38, P66, 0, 0x51): "vpdpbusds",
    (_0F38, P66, 0, 0x52): "vpdpwssd", (_0F38, P66, 0, 0x53): "vpdpwssds",
    (_0F38, F2, 0, 0x50): "vpdpbssd", (_0F38, F3, 0, 0x50): "vpdpbsud", (_0F38, NONE, 0, 0x50): "vpdpbuud",
    (_0F, P66, 0, 0xF5): "vpmaddwd", (_0F38, P66, 0, 0x04): "vpmaddubsw", (_0F38, P66, 0, 0x40): "vpmulld",
    (_0F38, F3, 0, 0x52): "vdpbf16ps",
    (_0F38, P66, 0, 0x98): "vfmadd132ps", (_0F38, P66, 0, 0xA8): "vfmadd213ps", (_0F38, P66, 0, 0xB8): "vfmadd231ps",
    (_0F, NONE, 0, 0x59): "vmulps", (_0F, NONE, 0, 0x58): "vaddps", (_0F, NONE, 0, 0x5E): "vdivps",
    (_0F, NONE, 0, 0x51): "vsqrtps", (_0F, NONE, 0, 0x5B): "vcvtdq2ps", (_0F, P66, 0, 0x5B): "vcvtps2dq",
    (_0F38, P66, 0, 0x13): "vcvtph2ps", (_0F3A, P66, 0, 0x1D): "vcvtps2ph",
    (_0F38, F3, 0, 0x11): "vpmovusdb", (_0F38, F3, 0, 0x21): "vpmovsdb", (_0F38, F3, 0, 0x31): "vpmovdb",
}
TILE = {  # (prefix, opcode) of VEX.128.0F38.W0 on tile registers
    (P66, 0x5E): "tdpbusd", (F2, 0x5E): "tdpbssd", (F3, 0x5E): "tdpbsud", (NONE, 0x5E): "tdpbuud",
    (F3, 0x5C): "tdpbf16ps", (F2, 0x5C): "tdpfp16ps", (F2, 0x4B): "tileloadd", (F3, 0x4B): "tilestored",
}
REGISTERS = {128: "xmm", 256: "ymm", 512: "zmm"}


class Instruction(NamedTuple):
    """A decoded instruction: its bytes, opcode `map`, `opcode`, mandatory `prefix`, W, and what follows the opcode.

    `bits` is the vector length of a VEX or EVEX encoding, 0 of others; `immediate` is signed, 0 without one.
    """

    length: int
    map: int
    opcode: int
    prefix: int
    w: int
    bits: int
    modrm: int
    immediate: int

    @property
    def is_call(self) -> bool:
        """A call, of a given address or of a pointer."""
        return not self.bits and self.map == _LEGACY and (
            self.opcode == 0xE8 or self.opcode == 0xFF and self.modrm >> 3 & 7 in (2, 3))

    @property
    def name(self) -> str | None:
        """`vpdpbusd zmm`, as LLVM prints it less the operands; None for what is not in the tables."""
        if not self.bits:
            return None
        if self.map == _0F38 and self.bits == 128 and (self.prefix, self.opcode) in TILE:
            return f"{TILE[self.prefix, self.opcode]} tmm"
        found = DECISIVE.get((self.map, self.prefix, self.w, self.opcode))
        return f"{found} {REGISTERS[self.bits]}" if found else None


def decode(code: bytes) -> Instruction:
    """Decode the instruction that `code` (up to 15 bytes) begins with; raises KernelError when there is none."""
    try:
        return _decode(code)
    except IndexError:
        raise KernelError(f"no whole instruction in the bytes {code.hex(' ')}") from None


def _decode(code: bytes) -> Instruction:
    at, prefix = 0, NONE
    while code[at] in (0x66, 0xF2, 0xF3, 0xF0, 0x2E, 0x36, 0x3E, 0x26, 0x64, 0x65, 0x67):
        prefix = {0x66: prefix or P66, 0xF3: F3, 0xF2: F2}.get(code[at], prefix)
        at += 1
    first = code[at]
    if first == 0x62:  # EVEX: 62, [RXBR' 0mmm], [Wvvvv1pp], [z L'L b V'aaa]
        p0, p1, p2 = code[at + 1], code[at + 2], code[at + 3]
        rounding = p2 & 0x10 and code[at + 5] >= 0xC0  # then L'L is the rounding mode, of 512-bit operations
        return _vector(code, at + 4, p0 & 7, p1 & 3, p1 >> 7, 512 if rounding else 128 << (p2 >> 5 & 3))
    if first == 0xC4:  # VEX: C4, [RXBmmmmm], [WvvvvLpp]
        p0, p1 = code[at + 1], code[at + 2]
        return _vector(code, at + 3, p0 & 31, p1 & 3, p1 >> 7, 128 << (p1 >> 2 & 1))
    if first == 0xC5:  # VEX: C5, [RvvvvLpp]
        p1 = code[at + 1]
        return _vector(code, at + 2, _0F, p1 & 3, 0, 128 << (p1 >> 2 & 1))
    w = 0
    if first & 0xF0 == 0x40:  # REX
        w, at = first >> 3 & 1, at + 1
    map = _LEGACY
    if code[at] == 0x0F:
        map = {0x38: _0F38, 0x3A: _0F3A}.get(code[at + 1], _0F)
        at += 1 if map == _0F else 2
    opcode = code[at]
    at += 1
    if map == _LEGACY:
        has_modrm, size = _one_byte(opcode, code[at:at + 1], 2 if prefix == P66 and not w else 4, w)
    else:
        has_modrm, size = _two_bytes(map, opcode)
    return _rest(code, at, has_modrm, size, map, opcode, prefix, w, 0)


def _vector(code: bytes, at: int, map: int, prefix: int, w: int, bits: int) -> Instruction:
    opcode = code[at]
    if bits > 512 or map not in (_0F, _0F38, _0F3A, 5, 6):
        raise KernelError(f"unknown vector encoding in the bytes {code.hex(' ')}")
    size = map == _0F3A or map == _0F and opcode in _IMMEDIATE
    return _rest(code, at + 1, (map, opcode) != (_0F, 0x77), int(size), map, opcode, prefix, w, bits)  # 77: vzeroupper


def _rest(code: bytes, at: int, has_modrm: bool, size: int, map: int, opcode: int, prefix: int, w: int,
          bits: int) -> Instruction:
    """ModRM, SIB, displacement and an immediate of `size` bytes, from `at` on."""
    modrm = 0
    if has_modrm:
        modrm = code[at]
        mod, rm = modrm >> 6, modrm & 7
        base = code[at + 1] & 7 if mod != 3 and rm == 4 else rm
        wide = mod == 2 or mod == 0 and base == 5  # mod 0, base 5: disp32, from rip or without a base
        at += 1 + (mod != 3 and rm == 4) + (4 if wide else int(mod == 1))
    if at + size > len(code):
        raise IndexError
    return Instruction(at + size, map, opcode, prefix, w, bits, modrm,
                       int.from_bytes(code[at:at + size], "little", signed=True))


_IMMEDIATE = frozenset((0x70, 0x71, 0x72, 0x73, 0xA4, 0xAC, 0xBA, 0xC2, 0xC4, 0xC5, 0xC6))  # 0F xx ib
_NO_MODRM = frozenset((*range(0x05, 0x0A), 0x0B, *range(0x30, 0x38), 0x77, *range(0x80, 0x90), *range(0xA0, 0xA3),
                       *range(0xA8, 0xAB), *range(0xC8, 0xD0)))


def _two_bytes(map: int, opcode: int) -> tuple[bool, int]:
    """Whether a 0F, 0F38 or 0F3A opcode has a ModRM byte, and the bytes of its immediate."""
    if map != _0F:
        return True, int(map == _0F3A)
    return opcode not in _NO_MODRM, 4 if opcode & 0xF0 == 0x80 else int(opcode in _IMMEDIATE)  # 8x: jcc rel32


def _one_byte(opcode: int, modrm: bytes, z: int, w: int) -> tuple[bool, int]:
    """Whether a one-byte opcode has a ModRM byte, and the bytes of its immediate; `z`: operand size, at most 4."""
    low = opcode & 7
    if opcode < 0x40:
        if low > 5:
            raise KernelError(f"opcode {opcode:#04x} is not of 64-bit code")
        return low < 4, (0, 0, 0, 0, 1, z)[low]
    if opcode in (0xF6, 0xF7):  # /0, /1: test with an immediate
        return True, (1 if opcode == 0xF6 else z) if modrm and modrm[0] >> 3 & 7 < 2 else 0
    if 0xB8 <= opcode < 0xC0:
        return False, 8 if w else z
    has_modrm = opcode in (0x63, 0x69, 0x6B, 0xC0, 0xC1, 0xC6, 0xC7, 0xFE, 0xFF) or 0x80 <= opcode < 0x90 \
        or 0xD0 <= opcode < 0xD4 or 0xD8 <= opcode < 0xE0
    if opcode in (0x68, 0x69, 0x81, 0xA9, 0xC7):
        return has_modrm, z
    if opcode in (0xE8, 0xE9):
        return False, 4
    if opcode in (0x6A, 0x6B, 0x80, 0x83, 0xA8, 0xC0, 0xC1, 0xC6, 0xCD, 0xEB) or opcode & 0xF0 == 0x70 \
            or 0xB0 <= opcode < 0xB8 or 0xE0 <= opcode < 0xE8:
        return has_modrm, 1
    return has_modrm, {0xC2: 2, 0xCA: 2, 0xC8: 3}.get(opcode, 8 if 0xA0 <= opcode < 0xA4 else 0)


class _Range(NamedTuple):
    begin: int
    end: int


def _generated() -> list[_Range]:
    """The executable memory of this process that comes from no file."""
    found = []
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            span, rights, _, _, _, *path = line.split()
            if "x" in rights and "r" in rights and not path:
                found.append(_Range(*(int(x, 16) for x in span.split("-"))))
    return found


def instructions(address: int) -> Iterator[Instruction]:
    """Yield, each once and in no particular order, the instructions that generated code at `address` can reach.

    Code of shared libraries and functions called through a pointer in memory are not followed. Behind a call that does
    not return there is no code: the end of memory, the zeros that fill it, or the module's next function, which counts
    then. Raises KernelError where there is no generated code, on other machines than x86-64, and for a jump to a
    computed address.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        raise KernelError(f"machine code of {platform.machine()} is not understood")
    compiling.finish()
    address, ranges = behind(address), _generated()

    def room(at: int) -> int:
        return next((r.end - at for r in ranges if r.begin <= at < r.end), 0)

    if not room(address):
        raise KernelError(f"there is no generated code at {address:#x}")
    todo, seen = [address], set()
    while todo:
        at = todo.pop()
        while at not in seen:
            seen.add(at)
            found = decode(ctypes.string_at(at, min(15, room(at))))
            yield found
            at += found.length
            target, goes_on = _flow(found, at)
            if target is not None and room(target):
                todo.append(target)
            if not goes_on or found.is_call and not any(ctypes.string_at(at, min(2, room(at)))):
                break


def _flow(x: Instruction, after: int) -> tuple[int | None, bool]:
    """Where an instruction may go besides the next one (at `after`), and whether it may go on there."""
    if x.bits:
        return None, True
    if x.map == _0F:
        return (after + x.immediate, True) if x.opcode & 0xF0 == 0x80 else (None, x.opcode != 0x0B)  # jcc; ud2
    if x.map != _LEGACY:
        return None, True
    if x.opcode & 0xF0 == 0x70 or 0xE0 <= x.opcode < 0xE4 or x.opcode == 0xE8:  # jcc, loop, call
        return after + x.immediate, True
    if x.opcode in (0xE9, 0xEB):  # jmp
        return after + x.immediate, False
    if x.opcode == 0xFF and x.modrm >> 3 & 7 in (4, 5):
        raise KernelError(f"the jump before {after:#x} goes to a computed address")
    if 0xB8 <= x.opcode < 0xC0 and x.w:  # movabs: the address of a function to call, or a number
        return x.immediate, True
    return None, x.opcode not in (0xC2, 0xC3, 0xCC, 0xF4)  # ret, int3, hlt


def count(addresses: Iterable[int]) -> dict[str, int]:
    """Count the decisive instructions of the block functions at `addresses`, as {"vpdpbusd zmm": 24}, by name."""
    names = Counter(x.name for address in dict.fromkeys(addresses) for x in instructions(address))
    return {name: names[name] for name in sorted(x for x in names if x)}
