"""Decoding of what LLVM 22 assembled, counts against the assembly text of kernels that were just compiled."""
import ctypes
import mmap
import re
from collections import Counter

import numpy as np
import pytest
from assembly import recorded

from graphq.errors import KernelError
from graphq.kernels import cache, eltwise, isa, matmul
from graphq.kernels import machine_code as mc
from graphq.kernels.cache import Module
from graphq.kernels.expression import acc, load
from graphq.kernels.registry import KERNELS
from graphq.kernels.stores import Store

# Bytes by LLVM's assembler, and its AT&T text.
DECISIVE = """
62f26d4850d9            vpdpbusd %zmm1, %zmm2, %zmm3
62f26d48505801          vpdpbusd 64(%rax), %zmm2, %zmm3
62225d4150bc8841000000  vpdpbusd 65(%rax,%r9,4), %zmm20, %zmm31 {%k1}
62625d505038            vpdpbusd (%rax){1to16}, %zmm20, %zmm31
c4e26d50d9              {vex} vpdpbusd %ymm1, %ymm2, %ymm3
62726d2850e9            vpdpbusd %ymm1, %ymm2, %ymm13
62d26d08509de8030000    vpdpbusd 1000(%r13), %xmm2, %xmm3
c4e26d51d9              {vex} vpdpbusds %ymm1, %ymm2, %ymm3
62f26d4852d9            vpdpwssd %zmm1, %zmm2, %zmm3
62f26d48531d00000000    vpdpwssds (%rip), %zmm2, %zmm3
c5edf5d9                vpmaddwd %ymm1, %ymm2, %ymm3
62d14d40f59820000000    vpmaddwd 32(%r8), %zmm22, %zmm3
c4e26d041c24            vpmaddubsw (%rsp), %ymm2, %ymm3
62f26d4840d9            vpmulld %zmm1, %zmm2, %zmm3
62f26e4852d9            vdpbf16ps %zmm1, %zmm2, %zmm3
c4e26998d9              vfmadd132ps %xmm1, %xmm2, %xmm3
c4e26da85d04            vfmadd213ps 4(%rbp), %ymm2, %ymm3
62f26d18b8d9            vfmadd231ps {rn-sae}, %zmm1, %zmm2, %zmm3
c5ec59d9                vmulps %ymm1, %ymm2, %ymm3
c4411c58eb              vaddps %ymm11, %ymm12, %ymm13
c5e85ed9                vdivps %xmm1, %xmm2, %xmm3
62f17c4851d1            vsqrtps %zmm1, %zmm2
c5fc5bd1                vcvtdq2ps %ymm1, %ymm2
62f17d485bd1            vcvtps2dq %zmm1, %zmm2
62f27d4813d1            vcvtph2ps %ymm1, %zmm2
62f37d481dca04          vcvtps2ph $4, %zmm1, %ymm2
62f27e48110f            vpmovusdb %zmm1, (%rdi)
62f27e4821ca            vpmovsdb %zmm1, %xmm2
62f27e48310f            vpmovdb %zmm1, (%rdi)
c4e2715eda              tdpbusd %tmm1, %tmm2, %tmm3
c4e2435eda              tdpbssd %tmm7, %tmm2, %tmm3
c4e2725eda              tdpbsud %tmm1, %tmm2, %tmm3
c4e2705eda              tdpbuud %tmm1, %tmm2, %tmm3
c4e2725cda              tdpbf16ps %tmm1, %tmm2, %tmm3
c4e2735cda              tdpfp16ps %tmm1, %tmm2, %tmm3
c4e27b4b0c18            tileloadd (%rax,%rbx), %tmm1
c4e27a4b4c1840          tilestored %tmm1, 64(%rax,%rbx)
c4e26f50d9              vpdpbssd %ymm1, %ymm2, %ymm3
c4e26e50d9              vpdpbsud %ymm1, %ymm2, %ymm3
c4e26850d9              vpdpbuud %xmm1, %xmm2, %xmm3
"""
OTHERS = """
c5ed59d9                vmulpd %ymm1, %ymm2, %ymm3
c5ea59d9                vmulss %xmm1, %xmm2, %xmm3
c5eb5818                vaddsd (%rax), %xmm2, %xmm3
62f2ed48b8d9            vfmadd231pd %zmm1, %zmm2, %zmm3
c4e269b9d9              vfmadd231ss %xmm1, %xmm2, %xmm3
0ff5d1                  pmaddwd %mm1, %mm2
62f17e485bd1            vcvttps2dq %zmm1, %zmm2
62f16d48fe5808          vpaddd 512(%rax), %zmm2, %zmm3
62f36d4825d9ff          vpternlogd $255, %zmm1, %zmm2, %zmm3
c5f4c690a086010003      vshufps $3, 100000(%rax), %ymm1, %ymm2
c5f1c41003              vpinsrw $3, (%rax), %xmm1, %xmm2
62f16d4872f104          vpslld $4, %zmm1, %zmm2
62f16c48c2d901          vcmpltps %zmm1, %zmm2, %k3
c5f893c1                kmovw %k1, %eax
c4e3f930d102            kshiftrw $2, %k1, %k2
c5f877                  vzeroupper
c4e2784900              ldtilecfg (%rax)
c4e27b49d8              tilezero %tmm3
c4e27849c0              tilerelease
48b8f0debc9a78563412    movabsq $0x123456789abcdef0, %rax
48c7c0ffffffff          movq $-1, %rax
c7445c0805000000        movl $5, 8(%rsp,%rbx,2)
66b80500                movw $5, %ax
66c740040500            movw $5, 4(%rax)
b005                    movb $5, %al
88042578563412          movb %al, 0x12345678
4805e8030000            addq $1000, %rax
6681c3e803              addw $1000, %bx
81c3e8030000            addl $1000, %ebx
83c30a                  addl $10, %ebx
0401                    addb $1, %al
f60001                  testb $1, (%rax)
41f7c101000000          testl $1, %r9d
66f741020100            testw $1, 2(%rcx)
f7d0                    notl %eax
48f7f9                  idivq %rcx
486bd864                imulq $100, %rax, %rbx
486918a0860100          imulq $100000, (%rax), %rbx
6669d1e803              imulw $1000, %cx, %dx
480fafd8                imulq %rax, %rbx
68a0860100              pushq $100000
4154                    pushq %r12
c9                      leave
c3                      ret
c20800                  retq $8
ff542448                call *72(%rsp)
ffe0                    jmp *%rax
e8fbffffff              call .
ebfe                    jmp .
0f85e2030000            jne .+1000
480f4f08                cmovgq (%rax), %rcx
0fb60c18                movzbl (%rax,%rbx), %ecx
480fbe4801              movsbq 1(%rax), %rcx
486308                  movslq (%rax), %rcx
48c1e003                shlq $3, %rax
d3ea                    shrl %cl, %edx
480fa4c303              shldq $3, %rax, %rbx
480fbae003              btq $3, %rax
0f95c0                  setne %al
4899                    cqto
490fc9                  bswapq %r9
4893                    xchgq %rax, %rbx
660f1f0400              nopw 0x0(%rax,%rax,1)
90                      nop
0f0b                    ud2
660f70d103              pshufd $3, %xmm1, %xmm2
660f6ed8                movd %eax, %xmm3
660f3a0ad103            roundss $3, %xmm1, %xmm2
0f59d1                  mulps %xmm1, %xmm2
f3480f2ac8              cvtsi2ssq %rax, %xmm1
0f280d00100000          movaps 0x1000(%rip), %xmm1
f3aa                    rep stosb
f00fc107                lock xaddl %eax, (%rdi)
dd00                    fldl (%rax)
f3480fb8d8              popcntq %rax, %rbx
c4e2f9f7cb              shlxq %rax, %rbx, %rcx
c4e3fbf0cb07            rorxq $7, %rbx, %rcx
c4e260f2c8              andnl %eax, %ebx, %ecx
"""


KNOWN = {*mc.DECISIVE.values(), *mc.TILE.values()}


def listing(text):
    """(bytes, line) of each line."""
    return [(bytes.fromhex(line[:24]), line[24:]) for line in text.strip("\n").split("\n")]


def printed_name(line):
    """`vpdpbusd zmm`: the mnemonic and the largest register."""
    line = re.sub(r"{vex}\s+", "", line)
    found = re.findall(r"%([xyzt]mm)\d", line)
    return f"{line.split()[0]} {max(found, key='xmm ymm zmm tmm'.split().index)}" if found else ""


@pytest.mark.parametrize(("code", "line"), listing(DECISIVE))
def test_decisive_instructions_are_named(code, line):
    found = mc.decode(code + b"\x90" * 4)
    assert (found.length, found.name) == (len(code), printed_name(line))


@pytest.mark.parametrize(("code", "line"), listing(OTHERS))
def test_other_instructions_have_their_length_and_no_name(code, line):
    found = mc.decode(code + b"\x90" * 4)
    assert (found.length, found.name) == (len(code), None)


def test_every_name_of_the_tables_is_listed():
    assert {printed_name(line).split()[0] for _, line in listing(DECISIVE)} == KNOWN


@pytest.mark.parametrize("code", [b"", b"\x66", b"\x62\xf2", b"\xc5", b"\x0f", b"\x06", b"\xe8\0\0",
                                  b"\x62\xf4\x7c\x08\x88\xc0"])
def test_what_is_no_instruction_is_refused(code):
    with pytest.raises(KernelError):
        mc.decode(code)


def counted(text, entry):
    """The decisive instructions in the text of the functions that `entry` reaches."""
    bodies, name = {}, None
    for line in text.splitlines():
        if label := re.match(r'"?([^\s.#"][^\s"]*)"?:', line):
            name = label[1]
            bodies[name] = []
        elif line.startswith("\t") and not line.startswith("\t.") and name:
            bodies[name].append(line.strip())
    todo = [entry]
    seen = set()
    while todo:
        name = todo.pop()
        seen.add(name)
        todo += [x for x in bodies if x not in seen and any(x in line.split()[1:] for line in bodies[name])]
    found = Counter(printed_name(line) for x in seen for line in bodies[x])
    return {x: n for x, n in sorted(found.items()) if x and x.split()[0] in KNOWN}


def kernels_of(level):
    return [k for k in KERNELS.values() if k.op == "matmul" and k.level == level]


def plan(kernel, level, **options):
    """A step of the kernel, its accumulators stored as they are."""
    dtype = "s32" if kernel.dtypes[1] == "s8" else "f32"
    return matmul.plan_matmul(Store(acc(dtype), dtype), kernel.dtypes[0], 64, 70, 70, level, kernel=kernel, **options)


def steps(level):
    """A step of some kernels of the level."""
    for kernel in kernels_of(level.name)[:1] if level.emulated else kernels_of(level.name)[::3]:
        yield plan(kernel, level, cache=False)
    product = load(0, "f32", "vector") * load(1, "f32", "scalar")
    yield eltwise.plan_eltwise(Store(product, "f32"), 1, 9, 33, level, cache=False)


def test_counts_are_those_of_the_assembly(level):
    with recorded() as texts:
        made = list(steps(isa.resolve(level)))
    for step in made:
        for module in step.keep if isinstance(step.keep, tuple) else (step.keep,):
            for name, function in module.functions.items() if isinstance(module, Module) else ():
                if module.name in texts:
                    assert mc.count([function.address]) == counted(texts[module.name], name), (step.name, name)


FMA = {f"vfmadd{order}ps" for order in (132, 213, 231)}
INSTRUCTION = {"avx2": {"vpmaddwd ymm", "vpdpwssd ymm"}, "avx_vnni": {"vpdpbusd ymm"},
               "avx512": {"vpmaddwd zmm", "vpdpwssd zmm"}, "avx512_vnni": {"vpdpbusd zmm"},
               "amx": {"tdpbusd tmm", "tdpbssd tmm"}}


@pytest.mark.parametrize("name", INSTRUCTION)
def test_native_kernels_have_the_instruction_of_their_level(name):
    """Where the CPU has VNNI, LLVM makes vpdpwssd of vpmaddwd and vpaddd: the same sums."""
    if isa.is_emulated(name):
        pytest.skip(f"no {name} here")
    for kernel in kernels_of(name):
        counts = tile_counts(kernel, isa.level_named(name))
        register = "ymm" if isa.level_named(name).lanes == 8 else "zmm"
        wanted = INSTRUCTION[name] if kernel.dtypes[1] in ("s8", "s4") else {f"{x} {register}" for x in FMA}
        assert sum(counts.get(x, 0) for x in wanted) >= 2, (kernel.name, counts)
        assert "vpmaddubsw" not in " ".join(counts)  # it saturates


def test_emulated_kernels_have_none(level):
    with isa.emulate(level) as emulated:
        counts = tile_counts(kernels_of(level)[0], emulated)
    assert not any(x.startswith(("vpdpbusd", "tdp", "tile")) for x in counts)


def tile_counts(kernel, level):
    return mc.count([m.TILE.address for m in plan(kernel, level).keep if hasattr(m, "TILE")])


_LOOP = '''"""A loop."""
from graphq.kernels.cache import block
from graphq.kernels.intrinsics import store_s64


@block
def BLOCK(args, index):
    for i in range(index):
        store_s64(args + 8 * i, i * i)
'''


def test_code_from_the_cache_counts_the_same():
    first = cache.load("loop", _LOOP)
    code = Counter(mc.instructions(first.BLOCK.address))
    for key in [k for k, m in cache._modules.items() if m is first]:
        del cache._modules[key]
    again = cache.load("loop", _LOOP)
    assert again.BLOCK.address != first.BLOCK.address
    found = Counter(mc.instructions(again.BLOCK.address))
    assert sum(code.values()) == sum(found.values()) > 10
    assert Counter(x._replace(immediate=0) for x in code) == Counter(x._replace(immediate=0) for x in found)


def test_only_generated_code_is_read():
    data = np.zeros(64, np.uint8)
    libc = ctypes.cast(ctypes.CDLL(None).strlen, ctypes.c_void_p).value
    for address in (0, data.ctypes.data, libc):
        with pytest.raises(KernelError, match="no generated code at"):
            mc.count([address])


def test_other_machines(monkeypatch):
    monkeypatch.setattr(mc.platform, "machine", lambda: "aarch64")
    with pytest.raises(KernelError, match="aarch64"):
        mc.count([0])


def test_paths_are_followed_and_computed_jumps_refused():
    room = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
                     prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    address = ctypes.addressof(ctypes.c_char.from_buffer(room))
    multiply, add, ret = (bytes.fromhex(x) for x in ("c5ec59d9", "c5ec58d9", "c3"))  # vmulps, vaddps on ymm

    def count(*code):
        room[:] = bytes(mmap.PAGESIZE)
        room[:len(b"".join(code))] = b"".join(code)
        return mc.count([address, address])

    assert count(multiply, ret, add) == {"vmulps ymm": 1}
    assert count(b"\x75\x05", multiply, ret, add, ret) == {"vaddps ymm": 1, "vmulps ymm": 1}  # jne behind ret
    assert count(b"\xeb\x04", multiply, add, ret) == {"vaddps ymm": 1}  # jmp
    assert count(multiply, b"\x75\xfa", ret) == {"vmulps ymm": 1}  # a loop
    assert count(b"\xe8\x01\0\0\0", ret, add, ret) == {"vaddps ymm": 1}  # call
    assert count(b"\x48\xb8" + (address + 13).to_bytes(8, "little"), b"\xff\xd0", ret, add, ret) == {"vaddps ymm": 1}
    assert count(multiply, b"\xff\xd0") == {"vmulps ymm": 1}  # a call that does not return
    with pytest.raises(KernelError, match="computed address"):
        count(b"\xff\xe0")
